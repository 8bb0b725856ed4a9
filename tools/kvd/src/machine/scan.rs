//! The order of SCAN, and [`Selection`], the keys that one call answers.
//!
//! A cursor must fit into a number, and still be good when keys came and went, after a restart and
//! on another node. SCAN therefore goes by slot, and within a slot by a hash of the key: a position
//! is a slot and a hash. It needs no index. Each call that answers part of a slot reads all of it.
//! A call answers about 1/64 of a slot or more, so that a scan reads a slot some 64 times, not once
//! for every few keys.
//!
//! A key that is there from the first call to the last is answered exactly once.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::slot::SLOTS;

/// Bits of a position that hold the hash. With 14 for the slot, a position is exact as a double,
/// which is what some clients keep cursors in.
const HASH_BITS: u32 = 39;

/// A call answers about this part of a slot, or more.
const PARTS: usize = 64;

/// A call answers keys of about this many bytes at most.
const MAX_BYTES: usize = 1 << 20;

/// The slot that a position is in; behind all slots for what is no position.
pub fn slot_of_position(position: u64) -> u16 {
    u16::try_from(position >> HASH_BITS).unwrap_or(SLOTS).min(SLOTS)
}

/// The position before all keys of a slot.
pub fn position_of_slot(slot: u16) -> u64 {
    u64::from(slot) << HASH_BITS
}

/// The keys that one call answers: those from its position on that come first, at least as many
/// as asked for.
pub(super) struct Selection {
    from: u64,
    count: usize,
    /// Keys of slots that are complete.
    done: Vec<Bytes>,
    /// The slot being read.
    slot: u16,
    /// Its first keys, by position. Keys with equal positions stay together.
    first: BTreeMap<u64, Vec<Bytes>>,
    /// Keys in `first`, bytes of all keys, and keys offered of the slot.
    kept: usize,
    bytes: usize,
    offered: usize,
    /// The first position of the slot whose keys were dropped, because others come before.
    dropped: Option<u64>,
    /// Whether keys of a further slot were left out.
    more: bool,
}

impl Selection {
    pub(super) fn new(from: u64, count: u32) -> Selection {
        Selection {
            from,
            count: usize::try_from(count).unwrap_or(usize::MAX).max(1),
            done: Vec::new(),
            slot: slot_of_position(from),
            first: BTreeMap::new(),
            kept: 0,
            bytes: 0,
            offered: 0,
            dropped: None,
            more: false,
        }
    }

    /// Offers a key, in the order of the keyspace; `sees` tells whether it is there for the reader.
    pub(super) fn offer(&mut self, slot: u16, key: &[u8], sees: impl FnOnce() -> bool) -> ControlFlow<()> {
        if slot != self.slot {
            if self.dropped.is_some() || self.done.len() + self.kept >= self.count || self.bytes > MAX_BYTES {
                self.more = true;
                return ControlFlow::Break(());
            }
            self.done.extend(std::mem::take(&mut self.first).into_values().flatten());
            (self.slot, self.kept, self.offered) = (slot, 0, 0);
        }
        let position = position_of_slot(slot) | (xxh3_64(key) >> (64 - HASH_BITS));
        self.offered += 1;
        if position < self.from || self.dropped.is_some_and(|dropped| position >= dropped) || !sees() {
            return ControlFlow::Continue(());
        }
        self.first.entry(position).or_default().push(Bytes::copy_from_slice(key));
        self.kept += 1;
        self.bytes += key.len();
        let limit = self.count.saturating_sub(self.done.len()).max(self.offered / PARTS);
        while let Some(last) = self.first.last_entry() {
            let fits = self.bytes <= MAX_BYTES || self.kept == last.get().len();
            if self.kept - last.get().len() < limit && fits {
                break;
            }
            self.dropped = Some(*last.key());
            let keys = last.remove();
            self.kept -= keys.len();
            self.bytes -= keys.iter().map(Bytes::len).sum::<usize>();
        }
        ControlFlow::Continue(())
    }

    /// The position to go on from, 0 if there is nothing more, and the keys.
    pub(super) fn finish(mut self) -> (u64, Vec<Bytes>) {
        self.done.extend(self.first.into_values().flatten());
        let next = match self.dropped {
            Some(position) => position,
            None if self.more => position_of_slot(self.slot + 1),
            None => 0,
        };
        (next, self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan_all(keys: &[(u16, String)], count: u32) -> (Vec<Bytes>, usize) {
        let (mut found, mut calls, mut from) = (Vec::new(), 0, 0);
        loop {
            let mut selection = Selection::new(from, count);
            let first = slot_of_position(from);
            for (slot, key) in keys.iter().filter(|(slot, _)| *slot >= first) {
                if selection.offer(*slot, key.as_bytes(), || true).is_break() {
                    break;
                }
            }
            let (next, keys) = selection.finish();
            found.extend(keys);
            calls += 1;
            match next {
                0 => return (found, calls),
                next => assert!(next > from, "the scan goes on"),
            }
            from = next;
        }
    }

    #[test]
    fn a_scan_answers_each_key_once_whatever_the_slots_hold() {
        for (slots, per_slot) in [(1, 0), (1, 1), (1, 5000), (300, 1), (3, 700)] {
            let keys: Vec<_> =
                (0..slots).flat_map(|slot| (0..per_slot).map(move |i| (slot * 50, format!("{slot}-{i:05}")))).collect();
            let mut expected: Vec<_> = keys.iter().map(|(_, key)| Bytes::from(key.clone())).collect();
            expected.sort();
            for count in [1, 10, 10_000] {
                let (mut found, calls) = scan_all(&keys, count);
                found.sort();
                assert_eq!(found, expected, "{slots} slots, {per_slot} keys each, count {count}");
                assert!(calls <= 1 + 2 * keys.len().div_ceil(count as usize), "{calls} calls");
                assert!(calls <= 1 + 4 * PARTS * usize::from(slots), "{calls} calls");
            }
        }
    }

    #[test]
    fn positions_are_exact_as_doubles() {
        let last = position_of_slot(SLOTS);
        assert!(last <= 1 << 53);
        assert_eq!(slot_of_position(position_of_slot(77) + 5), 77);
        assert_eq!(slot_of_position(u64::MAX), SLOTS, "no position, no keys");
    }
}
