//! The steps of each writing thread: a pure function of seed, thread and step, so that both
//! processes know them without communicating.

use std::collections::BTreeMap;

use fastrand::Rng;
use tamis::WriteBatch;

/// Writing threads. Each has its own keys, so its last write to a key decides the value.
pub(super) const THREADS: u32 = 4;
/// Keys of a thread: few, so that most are overwritten and deleted repeatedly.
const KEYS: u32 = 400;
/// One step in `SYNCED` is synced, on average.
const SYNCED: u32 = 16;
/// Largest number of operations in a batch.
const BATCH: u32 = 20;
/// Upper bounds on a value's length; one value in 32 is a large one.
const VALUE_LEN: usize = 300;
const LARGE_VALUE_LEN: usize = 20_000;

/// Keys and values of one thread.
pub(super) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// One atomic write.
pub(super) struct Step {
    /// Keys with their values; `None` deletes.
    operations: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub(super) is_synced: bool,
}

/// The key under which each batch of a thread notes its step.
pub(super) fn progress_key(thread: u32) -> String {
    format!("progress/{thread}")
}

/// The common prefix of all keys of a thread.
pub(super) fn prefix(thread: u32) -> String {
    format!("thread/{thread}/")
}

impl Step {
    /// Step `number` of `thread`; numbers start at 1.
    pub(super) fn new(seed: u64, thread: u32, number: u64) -> Step {
        let mut random = Rng::with_seed(seed ^ (u64::from(thread) << 56) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let count = if random.u32(..6) == 0 { random.u32(2..=BATCH) } else { 1 };
        let operations = (0..count).map(|_| {
            let key = format!("{}{:04}", prefix(thread), random.u32(..KEYS)).into_bytes();
            let value = (random.u32(..5) > 0).then(|| value(&mut random, number));
            (key, value)
        });
        Step { operations: operations.collect(), is_synced: random.u32(..SYNCED) == 0 }
    }

    pub(super) fn batch(&self, thread: u32, number: u64) -> WriteBatch {
        let mut batch = WriteBatch::new();
        for (key, value) in &self.operations {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        batch.put(progress_key(thread), number.to_string());
        batch
    }

    /// Number of operations, without the progress key.
    pub(super) fn len(&self) -> u64 {
        self.operations.len() as u64
    }

    pub(super) fn apply(self, model: &mut Model) {
        for (key, value) in self.operations {
            match value {
                Some(value) => drop(model.insert(key, value)),
                None => drop(model.remove(&key)),
            }
        }
    }
}

/// A value that names its step and does not compress well.
fn value(random: &mut Rng, number: u64) -> Vec<u8> {
    let len = if random.u32(..32) == 0 { random.usize(..LARGE_VALUE_LEN) } else { random.usize(..VALUE_LEN) };
    let mut value = format!("{number}:").into_bytes();
    value.extend(std::iter::repeat_with(|| random.u8(..)).take(len));
    value
}
