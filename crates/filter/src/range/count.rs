//! [`Counts`]: how often each symbol occurs at each position of keys in order.
//!
//! Keys in order begin as their predecessors do: of each key, only the bytes from the first other
//! one on are counted. A byte that keys share counts when they end to share it.

use super::alphabet::MAX_POSITIONS;

/// Counts of symbols: the end of keys, then the bytes.
pub(super) struct Counts {
    symbols: Vec<[u32; 257]>,
    /// The key with which the byte at a position began.
    since: [u32; MAX_POSITIONS],
    /// Keys that end at a position.
    ends: [u32; MAX_POSITIONS + 1],
    keys: u32,
    /// Bytes of the last key that the one before it has too.
    shared: usize,
    positions: usize,
    is_open: bool,
}

impl Counts {
    pub(super) fn new() -> Counts {
        Counts {
            symbols: Vec::new(),
            since: [0; MAX_POSITIONS],
            ends: [0; MAX_POSITIONS + 1],
            keys: 0,
            shared: 0,
            positions: 0,
            is_open: false,
        }
    }

    /// Adds a key, of which `shared` bytes are those of `before`, the key before it.
    pub(super) fn add(&mut self, before: &[u8], key: &[u8], shared: usize) {
        let head = &key[..key.len().min(MAX_POSITIONS)];
        self.is_open |= key.len() > MAX_POSITIONS;
        let shared = shared.min(head.len());
        self.close(before, shared);
        if self.positions < head.len() {
            if self.symbols.len() < head.len() {
                self.symbols.resize(head.len(), [0; 257]);
            }
            self.positions = head.len();
        }
        let fresh = shared..head.len();
        self.since[fresh.clone()].fill(self.keys);
        for (symbols, &byte) in self.symbols[fresh.clone()].iter_mut().zip(&head[fresh]) {
            symbols[usize::from(byte) + 1] += 1;
        }
        self.ends[head.len()] += 1;
        self.shared = shared;
        self.keys += 1;
    }

    /// Counts the bytes from `shared` on that `before` and keys before it have.
    fn close(&mut self, before: &[u8], shared: usize) {
        if shared >= self.shared {
            return;
        }
        let ended = shared..self.shared;
        let counted = self.symbols[ended.clone()].iter_mut().zip(&self.since[ended.clone()]);
        for ((symbols, since), &byte) in counted.zip(&before[ended]) {
            symbols[usize::from(byte) + 1] += self.keys - since - 1;
        }
    }

    /// The counts, and whether keys have more bytes than are counted, given the last key. The
    /// counts begin again.
    pub(super) fn take(&mut self, last: &[u8], write: impl FnOnce(&[[u32; 257]], bool)) {
        self.close(last, 0);
        let counted = &mut self.symbols[..self.positions];
        for (symbols, ends) in counted.iter_mut().zip(self.ends) {
            symbols[0] = ends;
        }
        write(counted, self.is_open);
        counted.fill([0; 257]);
        self.ends = [0; MAX_POSITIONS + 1];
        (self.keys, self.shared, self.positions, self.is_open) = (0, 0, 0, false);
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        size_of::<Counts>() + size_of_val(&*self.symbols)
    }
}
