//! The workloads, which run on an open store while it is measured.

mod counters;
mod fill;
mod mixed;
mod queue;
mod read;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;

use crate::clock::{TickRate, ticks};
use crate::engine::{Direction, Engine};
use crate::groups::Workload;
use crate::keys::Keys;
use crate::meter::Moment;
use crate::values::Values;
use crate::{Error, Result};

pub(crate) use fill::load;

/// An open store, its keys, and the time limits of workloads.
pub(crate) struct Bench<'a, E> {
    pub(crate) engine: &'a E,
    pub(crate) keys: Keys,
    pub(crate) value_len: usize,
    pub(crate) seed: u64,
    pub(crate) rate: TickRate,
    /// Duration of read workloads, and time limit of synced fills.
    pub(crate) seconds: f64,
    /// Time limit of the other write workloads.
    pub(crate) fill_seconds: f64,
    /// Number of existing keys: those of the fill, and those appended by workloads.
    pub(crate) present: &'a AtomicU64,
}

/// The operations done, and a histogram of the steps' durations in ticks.
pub(crate) struct Tally {
    /// When it began, after all preparations.
    pub(crate) begun: Moment,
    /// When it ended, if a check of the results followed.
    pub(crate) ended: Option<Moment>,
    pub(crate) ops: u64,
    pub(crate) seconds: f64,
    pub(crate) steps: Histogram<u64>,
    /// Whether time ran out.
    pub(crate) capped: bool,
    /// Bytes of keys and values written.
    pub(crate) user_bytes: u64,
    pub(crate) extra: Vec<(&'static str, f64)>,
}

impl Tally {
    pub(crate) fn empty() -> Result<Tally> {
        // Three significant digits; the histogram grows as needed.
        let steps = Histogram::new(3)?;
        let begun = Moment::now();
        Ok(Tally { begun, ended: None, ops: 0, seconds: 0.0, steps, capped: false, user_bytes: 0, extra: Vec::new() })
    }

    /// Records one step of `ops` operations.
    pub(crate) fn step(&mut self, rate: TickRate, start: Instant, ops: u64) -> Result<()> {
        let seconds = start.elapsed().as_secs_f64();
        self.steps.record(rate.ticks(seconds))?;
        self.ops += ops;
        self.seconds += seconds;
        Ok(())
    }
}

/// When to stop: after `steps` steps or `seconds` seconds, whichever comes first.
#[derive(Clone, Copy)]
struct Limit {
    steps: u64,
    seconds: f64,
}

impl<E: Engine> Bench<'_, E> {
    /// Runs a workload on an open store. `scene` runs the workloads that close it, and the
    /// measurements around all of them.
    pub(crate) fn run(&self, workload: Workload) -> Result<Tally> {
        match workload {
            Workload::FillSeq => self.fill_in_order(),
            Workload::FillRandom => self.fill_random(),
            Workload::FillBatch => self.fill_batches(fill::SMALL_BATCH),
            Workload::BulkLoad => self.fill_batches(fill::LARGE_BATCH),
            Workload::FillSync => self.fill_synced(1),
            Workload::FillSync8 => self.fill_synced(8),
            Workload::Overwrite => self.overwrite(1),
            Workload::Overwrite2 => self.overwrite(2),
            Workload::DeleteRandom => self.delete_random(),
            // A cold scan is cold only once.
            Workload::ReadSeq | Workload::ReadSeqCold => {
                self.read_all(read::What::Entries(Direction::Forward), workload.is_cold())
            }
            Workload::ReadReverse => self.read_all(read::What::Entries(Direction::Backward), false),
            Workload::ReadKeys => self.read_all(read::What::Keys, false),
            Workload::ReadRandom | Workload::ReadRandomFresh | Workload::ReadRandomCold => self.read_existing(1, 1),
            Workload::ReadMissing | Workload::ReadMissingFresh | Workload::ReadMissingCold => self.read_missing(),
            Workload::ReadHot => self.read_existing(1, 100),
            Workload::ReadRandom2 => self.read_existing(2, 1),
            Workload::SeekRandom | Workload::SeekRandomFresh | Workload::SeekRandomCold => self.scan_random(10),
            Workload::SeekOne | Workload::SeekOneCold => self.scan_random(0),
            Workload::RangeEmpty | Workload::RangeEmptyCold => self.empty_ranges(),
            Workload::Scan100 => self.scan_random(100),
            Workload::MultiGet100 | Workload::MultiGet100Cold => self.multi_get(),
            Workload::YcsbA => self.ycsb(&mixed::YCSB_A),
            Workload::YcsbB => self.ycsb(&mixed::YCSB_B),
            Workload::YcsbC => self.ycsb(&mixed::YCSB_C),
            Workload::YcsbD => self.ycsb(&mixed::YCSB_D),
            Workload::YcsbE => self.ycsb(&mixed::YCSB_E),
            Workload::YcsbF => self.ycsb(&mixed::YCSB_F),
            Workload::ReadWhileWriting => self.read_while_writing(),
            Workload::Queue => self.queue(),
            Workload::Increment80K => self.increment(1, 4, counters::FIXED),
            Workload::Increment { counters, threads } => self.increment(counters, threads, u64::MAX),
            Workload::Merge { counters, threads } => self.merge(counters, threads),
            Workload::Transfer { accounts, threads } => self.transfer(accounts, threads),
            Workload::Compact | Workload::Ingest | Workload::Open | Workload::OpenKilled => {
                Err(format!("{} does not run on an open store", workload.name()).into())
            }
        }
    }

    /// A random generator per purpose, so that workloads do not share draws.
    fn rng(&self, purpose: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed.wrapping_mul(1000).wrapping_add(purpose))
    }

    fn values(&self, purpose: u64) -> Values {
        Values::new(self.value_len, self.seed.wrapping_mul(1000).wrapping_add(purpose))
    }

    fn entry_len(&self) -> u64 {
        (self.keys.key_len() + self.value_len) as u64
    }

    fn present(&self) -> u64 {
        self.present.load(Ordering::Relaxed)
    }

    /// Runs and times steps until the limit. A step returns its number of operations.
    fn drive(&self, limit: Limit, mut step: impl FnMut(u64) -> Result<u64>) -> Result<Tally> {
        let mut tally = Tally::empty()?;
        let first = ticks();
        let deadline = first.saturating_add(self.rate.ticks(limit.seconds));
        let mut last = first;
        for i in 0..limit.steps {
            tally.ops += step(i)?;
            let now = ticks();
            tally.steps.record(now.saturating_sub(last))?;
            last = now;
            if now >= deadline {
                tally.capped = i + 1 < limit.steps;
                break;
            }
        }
        tally.seconds = self.rate.seconds(last - first);
        Ok(tally)
    }

    /// Runs `work` in `count` threads that start together, and adds up their operations and steps.
    fn threads(&self, count: u64, work: impl Fn(u64) -> Result<Tally> + Sync) -> Result<Tally> {
        let together = Barrier::new(usize::try_from(count)? + 1);
        let mut sum = Tally::empty()?;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .map(|thread| {
                    let (together, work) = (&together, &work);
                    scope.spawn(move || {
                        together.wait();
                        work(thread)
                    })
                })
                .collect();
            together.wait();
            sum.begun = Moment::now();
            for thread in threads {
                let tally = thread.join().map_err(|_| Error::from("a thread panicked"))??;
                sum.ops += tally.ops;
                sum.user_bytes += tally.user_bytes;
                sum.capped |= tally.capped;
                sum.steps.add(tally.steps)?;
            }
            sum.seconds = sum.begun.at.elapsed().as_secs_f64();
            Ok(sum)
        })
    }
}

/// Touches both ends of a value, which loads it into the processor's cache. Returns whether it has
/// the right length.
fn look_at(value: &[u8], len: usize) -> bool {
    std::hint::black_box((value.first(), value.last()));
    value.len() == len
}

/// The error for a missing, unexpected or wrong entry.
fn wrong(what: &str, key: &[u8]) -> Error {
    format!("{what}: {}", key.escape_ascii()).into()
}
