//! What each thread of the load does: a pure function of seed, thread and step, so that both
//! processes know it without speaking.

use std::collections::BTreeMap;

use fastrand::Rng;
use tamis::WriteBatch;

/// Writing threads. Each has its own keys, so that what it did last is what stands there.
pub(super) const THREADS: u32 = 4;
/// Keys of a thread: few enough that most are overwritten and deleted again and again.
const KEYS: u32 = 400;
/// One step in so many is synced.
const SYNCED: u32 = 16;
/// Most operations of a batch.
const BATCH: u32 = 20;
/// Length of a value, and of one in thirty-two.
const VALUE_LEN: usize = 300;
const LARGE_VALUE_LEN: usize = 20_000;

/// Keys and values of one thread.
pub(super) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// One write: all of it is there or nothing.
pub(super) struct Step {
    /// A key, and its value unless it is deleted.
    operations: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub(super) is_synced: bool,
}

/// The key under which a thread notes, in each of its batches, which step this is.
pub(super) fn progress_key(thread: u32) -> String {
    format!("progress/{thread}")
}

/// What all keys of a thread begin with.
pub(super) fn prefix(thread: u32) -> String {
    format!("thread/{thread}/")
}

impl Step {
    /// Step `number`, from 1 on, of `thread`.
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

    /// Operations, without the note of the progress.
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
