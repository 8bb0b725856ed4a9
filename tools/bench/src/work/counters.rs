//! Writes that depend on reads: increments of counters, and transfers between accounts; and merges,
//! which increment without reading. Each checks at its end that no update was lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::{Bench, Limit, Tally};
use crate::Result;
use crate::engine::{Engine, counter};
use crate::meter::Moment;

/// Increments of each thread, where their number is fixed.
pub(super) const FIXED: u64 = 20_000;
/// What each account has at first.
const BALANCE: u64 = 1000;
/// Accounts written in one batch before the measurement.
const BATCH: u64 = 1000;
/// Length of a counter.
const COUNTER_LEN: u64 = 8;

impl<E: Engine> Bench<'_, E> {
    /// Increments random counters in `threads` threads: each at most `steps` times, or until time
    /// is up.
    pub(super) fn increment(&self, counters: u64, threads: u64, steps: u64) -> Result<Tally> {
        let count = self.set_counters(counters, 0)?;
        let lock = Mutex::new(());
        let tally = self.update(threads, steps, |rng| {
            let mut key = self.keys.buffer();
            self.increment_one(self.keys.existing(rng.u64(0..count), &mut key), &lock)
        })?;
        self.expect_sum(count, tally.ops)?;
        Ok(tally)
    }

    /// Increments random counters by merges in `threads` threads. Does nothing if the engine has no
    /// merges.
    pub(super) fn merge(&self, counters: u64, threads: u64) -> Result<Tally> {
        let count = self.set_counters(counters, 0)?;
        if !self.engine.merge(self.keys.existing(0, &mut self.keys.buffer()))? {
            return Tally::empty();
        }
        let mut tally = self.update(threads, u64::MAX, |rng| {
            let mut key = self.keys.buffer();
            self.engine.merge(self.keys.existing(rng.u64(0..count), &mut key)).map(|_| 0)
        })?;
        // The reads that fold what was merged, which are not part of the workload's time.
        let start = Instant::now();
        self.expect_sum(count, 1 + tally.ops)?;
        tally.extra.push(("seconds_to_read_all", start.elapsed().as_secs_f64()));
        Ok(tally)
    }

    /// Moves money between random accounts in `threads` threads.
    pub(super) fn transfer(&self, accounts: u64, threads: u64) -> Result<Tally> {
        let count = self.set_counters(accounts, BALANCE)?;
        let lock = Mutex::new(());
        let mut tally = self.update(threads, u64::MAX, |rng| {
            let (mut from, mut to) = (self.keys.buffer(), self.keys.buffer());
            let giver = rng.u64(0..count);
            // Another account, if there is one.
            let taker = (giver + 1 + rng.u64(0..(count - 1).max(1))) % count;
            self.transfer_one(self.keys.existing(giver, &mut from), self.keys.existing(taker, &mut to), &lock)
        })?;
        self.expect_sum(count, count * BALANCE)?;
        tally.user_bytes *= 2;
        Ok(tally)
    }

    /// The engine's own increment, or what applications write without one.
    fn increment_one(&self, key: &[u8], lock: &Mutex<()>) -> Result<u64> {
        if let Some(conflicts) = self.engine.increment(key)? {
            return Ok(conflicts);
        }
        let _guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counter(&mut self.engine.reader()?, key)?;
        self.engine.put(key, &(count + 1).to_le_bytes())?;
        Ok(0)
    }

    fn transfer_one(&self, from: &[u8], to: &[u8], lock: &Mutex<()>) -> Result<u64> {
        if let Some(conflicts) = self.engine.transfer(from, to)? {
            return Ok(conflicts);
        }
        let _guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reader = self.engine.reader()?;
        let (giver, taker) = (counter(&mut reader, from)?, counter(&mut reader, to)?);
        if let Some(left) = giver.checked_sub(1) {
            self.engine.put_batch(&[(from, &left.to_le_bytes()), (to, &(taker + 1).to_le_bytes())])?;
        }
        Ok(0)
    }

    /// Sets `count` counters, or as many as there are keys, and returns how many.
    fn set_counters(&self, count: u64, value: u64) -> Result<u64> {
        let count = count.min(self.keys.count());
        let value = value.to_le_bytes();
        for start in (0..count).step_by(usize::try_from(BATCH)?) {
            let keys: Vec<Vec<u8>> = (start..count.min(start + BATCH))
                .map(|number| self.keys.existing(number, &mut self.keys.buffer()).to_vec())
                .collect();
            let entries: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &value[..])).collect();
            self.engine.put_batch(&entries)?;
        }
        self.present.fetch_max(count, Ordering::Relaxed);
        Ok(count)
    }

    /// Runs `update`, which returns its number of conflicts, in `threads` threads.
    fn update(
        &self,
        threads: u64,
        steps: u64,
        update: impl Fn(&mut fastrand::Rng) -> Result<u64> + Sync,
    ) -> Result<Tally> {
        let conflicts = AtomicU64::new(0);
        let seconds = if steps == u64::MAX { self.seconds } else { self.fill_seconds };
        let mut tally = self.threads(threads, |thread| {
            let (mut rng, mut met) = (self.rng(80 + thread), 0);
            let mut tally = self.drive(Limit { steps, seconds }, |_| {
                met += update(&mut rng)?;
                Ok(1)
            })?;
            conflicts.fetch_add(met, Ordering::Relaxed);
            tally.user_bytes = tally.ops * (self.keys.key_len() as u64 + COUNTER_LEN);
            Ok(tally)
        })?;
        tally.ended = Some(Moment::now());
        tally.extra.push(("conflicts_per_op", conflicts.into_inner() as f64 / tally.ops.max(1) as f64));
        Ok(tally)
    }

    fn expect_sum(&self, count: u64, expected: u64) -> Result<()> {
        let mut reader = self.engine.reader()?;
        let mut key = self.keys.buffer();
        let found = (0..count).try_fold(0, |sum, i| Ok(sum + counter(&mut reader, self.keys.existing(i, &mut key))?));
        match found {
            Ok(found) if found == expected => Ok(()),
            Ok(found) => Err(format!("the counters add up to {found}, not to {expected}").into()),
            Err(error) => Err(error),
        }
    }
}
