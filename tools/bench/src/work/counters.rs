//! Writes that depend on reads: increments of counters, and transfers between accounts. Each checks
//! at its end that no update was lost.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::{Bench, Limit, Tally};
use crate::Result;
use crate::engine::{Engine, counter};

const COUNTERS: u64 = 1000;
/// What each account has at first.
const BALANCE: u64 = 1000;
/// Accounts written in one batch before the measurement.
const BATCH: u64 = 1000;
/// Length of a counter.
const COUNTER_LEN: u64 = 8;

impl<E: Engine> Bench<'_, E> {
    /// Increments random counters in `threads` threads.
    pub(super) fn increment(&self, threads: u64) -> Result<Tally> {
        let count = self.set_counters(COUNTERS, 0)?;
        let lock = Mutex::new(());
        let tally = self.update(threads, |rng| {
            let mut key = self.keys.buffer();
            let number = rng.u64(0..count);
            self.engine.increment(self.keys.existing(number, &mut key), &lock)
        })?;
        self.expect_sum(count, tally.ops)?;
        Ok(tally)
    }

    /// Moves money between random accounts in `threads` threads.
    pub(super) fn transfer(&self, accounts: u64, threads: u64) -> Result<Tally> {
        let count = self.set_counters(accounts, BALANCE)?;
        let lock = Mutex::new(());
        let mut tally = self.update(threads, |rng| {
            let (mut from, mut to) = (self.keys.buffer(), self.keys.buffer());
            let giver = rng.u64(0..count);
            // Another account, if there is one.
            let taker = (giver + 1 + rng.u64(0..(count - 1).max(1))) % count;
            self.engine.transfer(self.keys.existing(giver, &mut from), self.keys.existing(taker, &mut to), &lock)
        })?;
        self.expect_sum(count, count * BALANCE)?;
        tally.user_bytes *= 2;
        Ok(tally)
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

    fn update(&self, threads: u64, update: impl Fn(&mut fastrand::Rng) -> Result<()> + Sync) -> Result<Tally> {
        self.threads(threads, |thread| {
            let mut rng = self.rng(80 + thread);
            let limit = Limit { steps: u64::MAX, seconds: self.seconds };
            let mut tally = self.drive(limit, |_| update(&mut rng).map(|()| 1))?;
            tally.user_bytes = tally.ops * (self.keys.key_len() as u64 + COUNTER_LEN);
            Ok(tally)
        })
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
