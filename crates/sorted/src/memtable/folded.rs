//! [`FoldedChains`]: what operands of a memtable come to, so that reads do not combine them again.
//!
//! A memtable combines the operands of built-in operators as they come. An operator of the caller's
//! own is the caller's code, which does not run while writers wait; so its operands stay as they
//! are until a flush combines them. A read that has combined many of them leaves the result here.
//! The next read takes it in place of all that it stands for: together, reads combine each operand
//! about once.
//!
//! What is here stands for entries that are in the memtable. It holds for every read that sees the
//! newest of them, unless a range delete covers the oldest.
//!
//! Gain: a get of a key with 511,000 operands took 251 ms each time. To remove it, let a read
//! combine what it finds.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::format::key::{SeqNo, Window};
use crate::memory::budget::{MemoryBudget, MemoryCharge, MemoryUse};
use crate::sync::Mutex;

/// Chains from this length on are folded.
pub const FOLD_FROM: usize = 64;
/// A result is kept if it is this many times shorter than what it is made of. Two are kept of a
/// key. Therefore all of them take at most a quarter of what the entries take.
const LEAST_GAIN: usize = 8;

/// Operands combined to one.
#[derive(Debug)]
pub struct FoldedChain {
    /// The newest and the oldest number that it stands for.
    pub newest: SeqNo,
    pub oldest: SeqNo,
    /// As the entry of the newest number would store it.
    pub stored: Vec<u8>,
    /// Bytes of the operands.
    pub made_of: usize,
}

impl FoldedChain {
    /// Bytes that it takes, about.
    fn memory(&self) -> usize {
        size_of::<FoldedChain>() + self.stored.capacity()
    }
}

/// Those of a key: the last two that reads have left.
type OfKey = [Option<Arc<FoldedChain>>; 2];

/// Keyspace and key.
type ChainKey = (u32, Box<[u8]>);

/// The folded chains of a memtable, by keyspace and key.
pub(super) struct FoldedChains {
    kept: Mutex<KeptChains>,
    /// Whether there are any. Reads of a memtable without them take no lock.
    any: AtomicBool,
}

struct KeptChains {
    by_key: HashMap<ChainKey, OfKey>,
    charge: MemoryCharge,
}

impl FoldedChains {
    pub(super) fn new(budget: &Arc<MemoryBudget>) -> FoldedChains {
        let charge = MemoryCharge::new(budget, MemoryUse::Memtables, 0);
        let kept = KeptChains { by_key: HashMap::new(), charge };
        FoldedChains { kept: Mutex::new(kept), any: AtomicBool::new(false) }
    }

    /// Bytes that they take.
    pub(super) fn allocated(&self) -> usize {
        self.kept.lock().charge.bytes()
    }

    /// The newest of a key that holds for a read with this window.
    pub(super) fn find(&self, keyspace: u32, key: &[u8], window: Window) -> Option<Arc<FoldedChain>> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let kept = self.kept.lock();
        let chains = kept.by_key.get(&(keyspace, Box::from(key)))?.iter().flatten();
        let holds = |chain: &&Arc<FoldedChain>| chain.newest <= window.newest && window.oldest <= chain.oldest;
        chains.filter(holds).max_by_key(|chain| chain.newest).cloned()
    }

    /// Keeps a folded chain, if it is worth its memory.
    pub(super) fn keep(&self, keyspace: u32, key: &[u8], chain: FoldedChain) {
        if chain.stored.len().saturating_mul(LEAST_GAIN) > chain.made_of {
            return;
        }
        let mut kept = self.kept.lock();
        let KeptChains { by_key, charge } = &mut *kept;
        let mut bytes = charge.bytes() + chain.memory();
        let [newer, older] = by_key.entry((keyspace, Box::from(key))).or_insert_with(|| {
            bytes += size_of::<(ChainKey, OfKey)>() + key.len();
            OfKey::default()
        });
        let dropped = std::mem::replace(older, newer.replace(Arc::new(chain)));
        bytes -= dropped.map_or(0, |chain| chain.memory());
        charge.resize(bytes);
        self.any.store(true, Ordering::Relaxed);
    }
}
