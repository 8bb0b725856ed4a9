//! The write workloads.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Bench, Limit, Tally, wrong};
use crate::Result;
use crate::engine::{Engine, Reader, SortedEntries};
use crate::keys::{KeyBuffer, Keys, Permutation};
use crate::meter::Moment;

/// Entries per batch of `fillbatch`, and of `bulkload`.
pub(super) const SMALL_BATCH: u64 = 100;
pub(super) const LARGE_BATCH: u64 = 1000;

/// Keys that are looked up after an ingest.
const CHECKED: u64 = 1000;

/// Loads the keys from the `from`-th on, in the order of a random fill, as fast as possible.
pub(crate) fn load<E: Engine>(bench: &Bench<'_, E>, from: u64) -> Result<()> {
    let mut batches = Batches::new(bench, LARGE_BATCH);
    let mut next = from;
    while next < bench.keys.count() {
        next += batches.write(bench, next)?;
    }
    bench.present.store(bench.keys.count(), Ordering::Relaxed);
    Ok(())
}

impl<E: Engine> Bench<'_, E> {
    /// The order of random fills.
    fn order(&self) -> Permutation {
        Permutation::new(self.keys.count(), self.seed)
    }

    fn fill_limit(&self, steps: u64) -> Limit {
        Limit { steps, seconds: self.fill_seconds }
    }

    pub(super) fn fill_in_order(&self) -> Result<Tally> {
        self.put_each(|i| i)
    }

    pub(super) fn fill_random(&self) -> Result<Tally> {
        let order = self.order();
        self.put_each(|i| order.at(i))
    }

    fn put_each(&self, number: impl Fn(u64) -> u64) -> Result<Tally> {
        let (mut key, mut values) = (self.keys.buffer(), self.values(1));
        let tally = self.drive(self.fill_limit(self.keys.count()), |i| {
            self.engine.put(self.keys.existing(number(i), &mut key), values.next())?;
            Ok(1)
        })?;
        self.present.store(tally.ops, Ordering::Relaxed);
        Ok(self.written(tally))
    }

    pub(super) fn fill_batches(&self, entries: u64) -> Result<Tally> {
        let mut batches = Batches::new(self, entries);
        let limit = self.fill_limit(self.keys.count().div_ceil(entries));
        let tally = self.drive(limit, |i| batches.write(self, i * entries))?;
        self.present.store(tally.ops, Ordering::Relaxed);
        Ok(self.written(tally))
    }

    pub(super) fn fill_synced(&self, threads: u64) -> Result<Tally> {
        let order = self.order();
        let tally = self.threads(threads, |thread| {
            let (mut key, mut values) = (self.keys.buffer(), self.values(1 + thread));
            let limit = Limit { steps: self.keys.count() / threads, seconds: self.seconds };
            self.drive(limit, |i| {
                let number = order.at(i * threads + thread);
                self.engine.put_sync(self.keys.existing(number, &mut key), values.next())?;
                Ok(1)
            })
        })?;
        // If threads ran at different speeds, the keys are not a prefix of the order; nothing is
        // read from such a store.
        self.present.store(tally.ops, Ordering::Relaxed);
        Ok(self.written(tally))
    }

    /// Overwrites each key `times` times, each time in another order, none of which is the fill's.
    pub(super) fn overwrite(&self, times: u64) -> Result<Tally> {
        let count = self.keys.count();
        let mut order = self.order();
        let (mut key, mut values) = (self.keys.buffer(), self.values(2));
        let tally = self.drive(self.fill_limit(times * count), |i| {
            if i % count == 0 {
                order = Permutation::new(count, self.seed.wrapping_add(1 + i / count));
            }
            self.engine.put(self.keys.existing(order.at(i % count), &mut key), values.next())?;
            Ok(1)
        })?;
        Ok(self.written(tally))
    }

    /// Loads all keys in order through files in `dir`, and then checks some. No operations if the
    /// engine cannot.
    pub(crate) fn ingest(&self, dir: &Path) -> Result<Tally> {
        std::fs::create_dir(dir)?;
        let mut tally = Tally::empty()?;
        let mut entries = InOrder { keys: self.keys, key: self.keys.buffer(), values: self.values(1), next: 0 };
        let start = Instant::now();
        let ops = if self.engine.ingest(dir, &mut entries)? { self.keys.count() } else { 0 };
        tally.step(self.rate, start, ops)?;
        tally.ended = Some(Moment::now());
        self.present.store(ops, Ordering::Relaxed);
        let (mut key, mut reader, mut rng) = (self.keys.buffer(), self.engine.reader()?, self.rng(9));
        for _ in 0..CHECKED.min(ops) {
            let key = self.keys.existing(rng.u64(0..ops), &mut key);
            if !reader.get(key, |_| ())? {
                return Err(wrong("an ingested key is missing", key));
            }
        }
        Ok(self.written(tally))
    }

    /// Deletes each key once, in an order of its own.
    pub(super) fn delete_random(&self) -> Result<Tally> {
        let order = Permutation::new(self.keys.count(), self.seed.wrapping_add(2));
        let mut key = self.keys.buffer();
        let mut tally = self.drive(self.fill_limit(self.keys.count()), |i| {
            self.engine.delete(self.keys.existing(order.at(i), &mut key))?;
            Ok(1)
        })?;
        self.present.fetch_sub(tally.ops, Ordering::Relaxed);
        tally.user_bytes = tally.ops * self.keys.key_len() as u64;
        Ok(tally)
    }

    fn written(&self, mut tally: Tally) -> Tally {
        tally.user_bytes = tally.ops * self.entry_len();
        tally
    }
}

/// All keys in their order, with their values.
struct InOrder {
    keys: Keys,
    key: KeyBuffer,
    values: crate::values::Values,
    next: u64,
}

impl SortedEntries for InOrder {
    fn next(&mut self) -> Option<(&[u8], &[u8])> {
        let number = self.next;
        self.next += 1;
        (number < self.keys.count()).then(|| (self.keys.existing(number, &mut self.key), self.values.next()))
    }
}

/// Buffers reused from batch to batch.
struct Batches {
    order: Permutation,
    keys: Vec<KeyBuffer>,
    values: crate::values::Values,
}

impl Batches {
    fn new<E: Engine>(bench: &Bench<'_, E>, entries: u64) -> Batches {
        let keys = (0..entries).map(|_| bench.keys.buffer()).collect();
        Batches { order: bench.order(), keys, values: bench.values(1) }
    }

    /// Writes a batch of the keys from the `first`-th on; returns their number.
    fn write<E: Engine>(&mut self, bench: &Bench<'_, E>, first: u64) -> Result<u64> {
        let count = (self.keys.len() as u64).min(bench.keys.count() - first);
        let numbers = (first..first + count).map(|i| self.order.at(i));
        let keys = self.keys.iter_mut().zip(numbers).map(|(buffer, number)| bench.keys.existing(number, buffer));
        let values = self.values.several(usize::try_from(count)?);
        bench.engine.put_batch(&keys.zip(values).collect::<Vec<(&[u8], &[u8])>>())?;
        Ok(count)
    }
}
