//! The workload, phase by phase.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tamis::{Db, Executor, Options, SteppedExecutor, WriteBatch};

use crate::Result;

/// Number of keys: enough for some hundreds of blocks, few enough for callgrind.
const KEYS: u64 = 20_000;
/// Operations of a phase of single operations.
const OPERATIONS: u64 = 10_000;
/// Fewer than `OPERATIONS`, because each seek does ten steps.
const SEEKS: usize = 5000;
const BATCH: usize = 100;

/// The program's own counts for a phase.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct OwnCounts {
    pub(crate) operations: u64,
    pub(crate) allocations: u64,
    pub(crate) block_reads: u64,
}

fn key(n: u64) -> [u8; 16] {
    let mut key = *b"0000000000000000";
    let mut rest = n;
    for digit in key.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// A hundred bytes that differ from key to key.
fn value(n: u64) -> [u8; 100] {
    let mut value = [b'v'; 100];
    value[..8].copy_from_slice(&n.to_le_bytes());
    value
}

/// The functions that callgrind counts: it counts what runs below them, and starts a new dump when
/// one returns. They must not be inlined.
mod measured_phase {
    use super::*;

    #[inline(never)]
    pub(super) fn put(db: &Db, keys: &[u64]) -> Result<()> {
        for &n in keys {
            db.put(key(n), value(n))?;
        }
        Ok(())
    }

    #[inline(never)]
    pub(super) fn write_batches(db: &Db, keys: &[u64]) -> Result<()> {
        for keys in keys.chunks(BATCH) {
            let mut batch = WriteBatch::new();
            for &n in keys {
                batch.put(key(n), value(n));
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

    #[inline(never)]
    pub(super) fn get(db: &Db, keys: &[u64], present: bool) -> Result<()> {
        for &n in keys {
            if db.get(key(n))?.is_some() != present {
                return Err(format!("key {n} should be {}", if present { "present" } else { "absent" }).into());
            }
        }
        Ok(())
    }

    #[inline(never)]
    pub(super) fn seek_and_ten_steps(db: &Db, keys: &[u64]) -> Result<()> {
        for &n in keys {
            let mut cursor = db.cursor()?;
            let mut found = cursor.seek(key(n))?;
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
    let mut some = |offset: u64| -> Vec<u64> { (0..OPERATIONS).map(|_| 2 * random.u64(0..KEYS) + offset).collect() };

    let db = open(dir.path(), &executor)?;
    phases.phase("put", &db, single.len() as u64, || measured_phase::put(&db, single))?;
    phases.phase("put in batches of 100", &db, batched.len() as u64, || measured_phase::write_batches(&db, batched))?;
    phases.phase("get from the memtable", &db, OPERATIONS, || measured_phase::get(&db, &some(0), true))?;
    phases.phase("flush", &db, KEYS, || measured_phase::flush(&db))?;
    // Three more runs, of every third key. They are counted and added to the phases of the same
    // name: callgrind books system calls between phases under later phases.
    for run in 0..3 {
        let third: Vec<u64> = keys.iter().copied().filter(|n| n / 2 % 3 == run).collect();
        phases.phase("put", &db, third.len() as u64, || measured_phase::put(&db, &third))?;
        phases.phase("flush", &db, third.len() as u64, || measured_phase::flush(&db))?;
    }
    phases.phase("get, two runs of each key", &db, OPERATIONS, || measured_phase::get(&db, &some(0), true))?;
    phases.phase("seek and ten steps, four runs", &db, SEEKS as u64, || {
        measured_phase::seek_and_ten_steps(&db, &some(0)[..SEEKS])
    })?;
    phases.phase("compact", &db, 2 * KEYS, || measured_phase::compact(&db))?;
    phases.phase("scan, from files", &db, KEYS, || expect_all(measured_phase::scan(&db)?))?;
    phases.phase("get, first time", &db, OPERATIONS, || measured_phase::get(&db, &some(0), true))?;
    phases.phase("get, in cache", &db, OPERATIONS, || measured_phase::get(&db, &some(0), true))?;
    phases.phase("get, absent", &db, OPERATIONS, || measured_phase::get(&db, &some(1), false))?;
    phases.phase("seek and ten steps", &db, SEEKS as u64, || {
        measured_phase::seek_and_ten_steps(&db, &some(0)[..SEEKS])
    })?;
    phases.phase("scan", &db, KEYS, || expect_all(measured_phase::scan(&db)?))?;
    phases.phase("scan backward", &db, KEYS, || expect_all(measured_phase::scan_backward(&db)?))?;
    db.close()?;
    Ok(phases.counts)
}

fn open(path: &Path, executor: &Arc<SteppedExecutor>) -> Result<Db> {
    let executor: Arc<dyn Executor> = Arc::<SteppedExecutor>::clone(executor);
    Ok(Options::new().executor(executor).hash_seed(7).cache_size(64 << 20).open(path)?)
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
