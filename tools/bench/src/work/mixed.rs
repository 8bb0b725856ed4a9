//! Workloads that read and write: YCSB's core workloads, and reads while another thread writes.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Bench, Limit, Tally};
use crate::engine::{Engine, Reader};
use crate::work::read::scan_from;
use crate::zipf::Zipfian;
use crate::{Error, Result};

/// Ranks are drawn beforehand, because a draw computes a power, which must not be measured.
const DRAWS: usize = 1 << 22;
/// Longest scan of workload E; lengths are uniformly distributed.
const LONGEST_SCAN: u64 = 100;

/// The mix of a YCSB workload, in percent; the rest are updates.
pub(super) struct Ycsb {
    reads: u64,
    inserts: u64,
    scans: u64,
    /// Reads followed by a write of the key.
    modifications: u64,
    /// The most popular keys are those inserted last, instead of scattered ones.
    latest: bool,
}

const NONE: Ycsb = Ycsb { reads: 0, inserts: 0, scans: 0, modifications: 0, latest: false };
pub(super) const YCSB_A: Ycsb = Ycsb { reads: 50, ..NONE };
pub(super) const YCSB_B: Ycsb = Ycsb { reads: 95, ..NONE };
pub(super) const YCSB_C: Ycsb = Ycsb { reads: 100, ..NONE };
pub(super) const YCSB_D: Ycsb = Ycsb { reads: 95, inserts: 5, latest: true, ..NONE };
pub(super) const YCSB_E: Ycsb = Ycsb { scans: 95, inserts: 5, ..NONE };
pub(super) const YCSB_F: Ycsb = Ycsb { reads: 50, modifications: 50, ..NONE };

impl<E: Engine> Bench<'_, E> {
    pub(super) fn ycsb(&self, mix: &Ycsb) -> Result<Tally> {
        let mut rng = self.rng(50);
        let count = self.present();
        let zipfian = Zipfian::new(count);
        let draws: Vec<u64> = if mix.latest {
            (0..DRAWS).map(|_| zipfian.rank(&mut rng)).collect()
        } else {
            zipfian.scattered(DRAWS, &mut rng)
        };
        let (mut key, mut values) = (self.keys.buffer(), self.values(3));
        let mut reader = self.engine.reader()?;
        let (mut present, mut written) = (count, 0);
        let limit = Limit { steps: u64::MAX, seconds: self.seconds };
        let mut tally = self.drive(limit, |i| {
            #[expect(clippy::cast_possible_truncation, reason = "taken modulo the number of draws")]
            let draw = draws[i as usize % DRAWS];
            let number = if mix.latest { present - 1 - draw } else { draw };
            let mut choice = rng.u64(0..100);
            let mut falls_on = |share: u64| {
                let falls = choice < share;
                choice = choice.wrapping_sub(share);
                falls
            };
            if falls_on(mix.inserts) {
                self.engine.put(self.keys.existing(present, &mut key), values.next())?;
                present += 1;
                written += 1;
                return Ok(1);
            }
            let key = self.keys.existing(number, &mut key);
            if falls_on(mix.reads) {
                reader.refresh()?;
                self.must_be_there(&mut reader, key)?;
            } else if falls_on(mix.scans) {
                reader.refresh()?;
                scan_from(&mut reader, key, 1 + rng.u64(0..LONGEST_SCAN))?;
            } else {
                if falls_on(mix.modifications) {
                    reader.refresh()?;
                    self.must_be_there(&mut reader, key)?;
                }
                self.engine.put(key, values.next())?;
                written += 1;
            }
            Ok(1)
        })?;
        self.present.store(present, Ordering::Relaxed);
        tally.user_bytes = written * self.entry_len();
        Ok(tally)
    }

    /// Reads at random in one thread while another one overwrites at random at full speed. Only
    /// reads are counted.
    pub(super) fn read_while_writing(&self) -> Result<Tally> {
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| -> Result<u64> {
                let (mut rng, mut key, mut values) = (self.rng(60), self.keys.buffer(), self.values(4));
                let mut written = 0;
                while !end.load(Ordering::Relaxed) {
                    let number = rng.u64(0..self.keys.count());
                    self.engine.put(self.keys.existing(number, &mut key), values.next())?;
                    written += 1;
                }
                Ok(written)
            });
            let reads = self.read_fresh();
            end.store(true, Ordering::Relaxed);
            let written = writer.join().map_err(|_| Error::from("the writing thread panicked"))??;
            let mut tally = reads?;
            tally.user_bytes = written * self.entry_len();
            tally.extra.push(("writes_per_second", written as f64 / tally.seconds));
            Ok(tally)
        })
    }

    /// Reads random keys, each with a fresh view.
    fn read_fresh(&self) -> Result<Tally> {
        let (mut rng, mut key) = (self.rng(61), self.keys.buffer());
        let mut reader = self.engine.reader()?;
        self.drive(Limit { steps: u64::MAX, seconds: self.seconds }, |_| {
            reader.refresh()?;
            self.must_be_there(&mut reader, self.keys.existing(rng.u64(0..self.keys.count()), &mut key))?;
            Ok(1)
        })
    }
}
