//! The workload, phase by phase.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tamis::{Db, Executor, Options, ReadMode, SteppedExecutor, WriteBatch};

use crate::Result;

/// Number of keys: enough for some hundreds of blocks, few enough for callgrind.
const KEYS: u64 = 20_000;
/// Operations of a phase of single operations.
const OPERATIONS: u64 = 10_000;
/// Fewer than `OPERATIONS`: a seek costs more than a get.
const SEEKS: usize = 5000;
const BATCH: usize = 100;
/// Number of keys of the phase of hot gets.
const HOT: u64 = 100;

/// Made before a phase begins: what a program does to make its keys and values is not counted.
type Key = [u8; 16];
type Value = [u8; 100];

/// The program's own counts for a phase.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct OwnCounts {
    pub(crate) operations: u64,
    pub(crate) allocations: u64,
    pub(crate) block_reads: u64,
}

fn key(n: u64) -> Key {
    let mut key = *b"0000000000000000";
    let mut rest = n;
    for digit in key.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// A hundred bytes that differ from key to key.
fn value(n: u64) -> Value {
    let mut value = [b'v'; 100];
    value[..8].copy_from_slice(&n.to_le_bytes());
    value
}

fn entries(numbers: &[u64]) -> Vec<(Key, Value)> {
    numbers.iter().map(|&n| (key(n), value(n))).collect()
}

/// The functions that callgrind counts: it counts what runs below them, and starts a new dump when
/// one returns. They must not be inlined.
mod measured_phase {
    use super::*;

    #[inline(never)]
    pub(super) fn put(db: &Db, entries: &[(Key, Value)]) -> Result<()> {
        for (key, value) in entries {
            db.put(key, value)?;
        }
        Ok(())
    }

    #[inline(never)]
    pub(super) fn write_batches(db: &Db, entries: &[(Key, Value)]) -> Result<()> {
        for entries in entries.chunks(BATCH) {
            let mut batch = WriteBatch::new();
            for (key, value) in entries {
                batch.put(key, value);
            }
            db.write(batch)?;
        }
        Ok(())
    }

    #[inline(never)]
    pub(super) fn flush(db: &Db) -> Result<()> {
        Ok(db.flush()?)
    }

    #[inline(never)]
    pub(super) fn compact(db: &Db) -> Result<()> {
        Ok(db.compact_range(..)?)
    }

    /// Lends the value to a closure, which copies nothing.
    #[inline(never)]
    pub(super) fn read(db: &Db, keys: &[Key], present: bool) -> Result<()> {
        for key in keys {
            expect(db.read(key, |value| value.len())?.is_some(), present, key)?;
        }
        Ok(())
    }

    /// Returns the value in an allocation of its own.
    #[inline(never)]
    pub(super) fn get(db: &Db, keys: &[Key]) -> Result<()> {
        for key in keys {
            expect(db.get(key)?.is_some(), true, key)?;
        }
        Ok(())
    }

    #[inline(never)]
    pub(super) fn multi_get(db: &Db, keys: &[Key]) -> Result<()> {
        for keys in keys.chunks(BATCH) {
            expect(db.multi_get(keys)?.iter().all(Option::is_some), true, &keys[0])?;
        }
        Ok(())
    }

    #[inline(never)]
    pub(super) fn seek(db: &Db, keys: &[Key]) -> Result<()> {
        for key in keys {
            expect(db.cursor()?.seek(key)?, true, key)?;
        }
        Ok(())
    }

    #[inline(never)]
    pub(super) fn seek_and_ten_steps(db: &Db, keys: &[Key]) -> Result<()> {
        for key in keys {
            let mut cursor = db.cursor()?;
            let mut found = cursor.seek(key)?;
            for _ in 0..10 {
                found = found && cursor.next()?;
            }
        }
        Ok(())
    }

    #[inline(never)]
    pub(super) fn scan(db: &Db) -> Result<u64> {
        let (mut cursor, mut count) = (db.cursor()?, 0);
        let mut found = cursor.seek_to_first()?;
        while found {
            count += 1;
            found = cursor.next()?;
        }
        Ok(count)
    }

    #[inline(never)]
    pub(super) fn scan_backward(db: &Db) -> Result<u64> {
        let (mut cursor, mut count) = (db.cursor()?, 0);
        let mut found = cursor.seek_to_last()?;
        while found {
            count += 1;
            found = cursor.prev()?;
        }
        Ok(count)
    }
}

/// Runs everything, on real files.
pub(crate) fn run() -> Result<Vec<(String, OwnCounts)>> {
    let dir = tempfile::tempdir()?;
    let executor = Arc::new(SteppedExecutor::new());
    let mut phases = Phases { counts: Vec::new() };
    let mut random = fastrand::Rng::with_seed(7);
    // Even numbers are keys; odd ones are absent keys within the same range.
    let mut keys: Vec<u64> = (0..KEYS).map(|n| 2 * n).collect();
    random.shuffle(&mut keys);
    let (single, batched) = keys.split_at(keys.len() / 2);
    let mut some =
        |offset: u64, of: u64| -> Vec<Key> { (0..OPERATIONS).map(|_| key(2 * random.u64(0..of) + offset)).collect() };

    let db = open(dir.path(), &executor)?;
    let (single, batched) = (entries(single), entries(batched));
    phases.phase("put", &db, single.len() as u64, || measured_phase::put(&db, &single))?;
    phases
        .phase("batch of 100, per put", &db, batched.len() as u64, || measured_phase::write_batches(&db, &batched))?;
    let found = some(0, KEYS);
    phases.phase("get from the memtable", &db, OPERATIONS, || measured_phase::read(&db, &found, true))?;
    phases.phase("flush", &db, KEYS, || measured_phase::flush(&db))?;
    // Three more runs, of every third key. They are counted and added to the phases of the same
    // name: callgrind books system calls between phases under later phases.
    for run in 0..3 {
        let third: Vec<u64> = keys.iter().copied().filter(|n| n / 2 % 3 == run).collect();
        let third = entries(&third);
        phases.phase("put", &db, third.len() as u64, || measured_phase::put(&db, &third))?;
        phases.phase("flush", &db, third.len() as u64, || measured_phase::flush(&db))?;
    }
    let found = some(0, KEYS);
    phases.phase("get, two runs of each key", &db, OPERATIONS, || measured_phase::read(&db, &found, true))?;
    let sought = &some(0, KEYS)[..SEEKS];
    phases.phase("seek and ten steps, four runs", &db, SEEKS as u64, || {
        measured_phase::seek_and_ten_steps(&db, sought)
    })?;
    phases.phase("compact", &db, 2 * KEYS, || measured_phase::compact(&db))?;
    phases.phase("step, from files", &db, KEYS, || expect_all(measured_phase::scan(&db)?))?;
    let (found, hot, absent) = (some(0, KEYS), some(0, HOT), some(1, KEYS));
    phases.phase("get, first time", &db, OPERATIONS, || measured_phase::read(&db, &found, true))?;
    phases.phase("get, cached", &db, OPERATIONS, || measured_phase::read(&db, &found, true))?;
    phases.phase("get, cached, to keep", &db, OPERATIONS, || measured_phase::get(&db, &found))?;
    phases.phase("get, hot", &db, OPERATIONS, || measured_phase::read(&db, &hot, true))?;
    phases.phase("get, missing", &db, OPERATIONS, || measured_phase::read(&db, &absent, false))?;
    phases.phase("multi-get of 100, per key", &db, OPERATIONS, || measured_phase::multi_get(&db, &found))?;
    phases.phase("seek", &db, SEEKS as u64, || measured_phase::seek(&db, sought))?;
    phases.phase("seek and ten steps", &db, SEEKS as u64, || measured_phase::seek_and_ten_steps(&db, sought))?;
    phases.phase("step", &db, KEYS, || expect_all(measured_phase::scan(&db)?))?;
    phases.phase("step backward", &db, KEYS, || expect_all(measured_phase::scan_backward(&db)?))?;
    db.close()?;
    Ok(phases.counts)
}

fn open(path: &Path, executor: &Arc<SteppedExecutor>) -> Result<Db> {
    let executor: Arc<dyn Executor> = Arc::<SteppedExecutor>::clone(executor);
    // The default read mode times its copies and turns to system calls after a slow one: how many
    // it makes depends on the machine's other work.
    let options = Options::new().executor(executor).hash_seed(7).cache_size(64 << 20).read_mode(ReadMode::Pread);
    Ok(options.open(path)?)
}

fn expect(found: bool, expected: bool, key: &Key) -> Result<()> {
    if found == expected { Ok(()) } else { Err(format!("a wrong answer for key {}", key.escape_ascii()).into()) }
}

fn expect_all(count: u64) -> Result<()> {
    if count == KEYS { Ok(()) } else { Err(format!("a scan found {count} of {KEYS} keys").into()) }
}

struct Phases {
    counts: Vec<(String, OwnCounts)>,
}

impl Phases {
    fn phase(&mut self, name: &str, db: &Db, operations: u64, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let block_reads = || db.stats().reads().block_reads;
        let before = block_reads();
        let mut result = Ok(());
        let allocated = allocation_counter::measure(|| result = work());
        result?;
        let own = OwnCounts { operations, allocations: allocated.count_total, block_reads: block_reads() - before };
        self.counts.push((name.to_owned(), own));
        Ok(())
    }
}
