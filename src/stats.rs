//! Counters of what reads did. They are always on; a count costs one add to a line that the counting thread rarely shares.

use std::cell::Cell;
use std::ops::{AddAssign, Sub};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What reads asked of tables and what it took to answer; per table, or summed up over tables.
///
/// Every time a point read asks a table that may hold the key, it falls in exactly one class:
/// `probes = negatives + true_positives + false_positives`, and `unfiltered` counts those that had no usable filter to ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadStats {
    /// Point reads that asked a filter.
    pub probes: u64,
    /// The filter said no: nothing was read.
    pub negatives: u64,
    /// The filter said maybe, and the table held the key (a tombstone or a version newer than the snapshot counts as held).
    pub true_positives: u64,
    /// The filter said maybe, and the table did not hold the key.
    pub false_positives: u64,
    /// Point reads that found no filter in the table, or one that is damaged.
    pub unfiltered: u64,
    /// Tables that a scan of one prefix came to and whose filters it asked for the prefix.
    pub prefix_probes: u64,
    /// Of `prefix_probes`, those for which the filter said no: the scan left the table out.
    pub prefix_skips: u64,
    /// Data blocks found in the cache.
    pub cache_hits: u64,
    /// Data blocks read from the file.
    pub block_reads: u64,
    /// Bytes of data blocks read from the file, trailers included.
    pub block_bytes: u64,
}

impl ReadStats {
    /// Measured false-positive rate of the filters: false positives over look-ups of keys that were not there. `None` before the
    /// first.
    pub fn false_positive_rate(&self) -> Option<f64> {
        let absent = self.negatives + self.false_positives;
        (absent > 0).then(|| self.false_positives as f64 / absent as f64)
    }
}

impl AddAssign for ReadStats {
    fn add_assign(&mut self, other: ReadStats) {
        self.probes += other.probes;
        self.negatives += other.negatives;
        self.true_positives += other.true_positives;
        self.false_positives += other.false_positives;
        self.unfiltered += other.unfiltered;
        self.prefix_probes += other.prefix_probes;
        self.prefix_skips += other.prefix_skips;
        self.cache_hits += other.cache_hits;
        self.block_reads += other.block_reads;
        self.block_bytes += other.block_bytes;
    }
}

/// What was counted between two readings: the later minus the earlier.
impl Sub for ReadStats {
    type Output = ReadStats;

    fn sub(self, earlier: ReadStats) -> ReadStats {
        ReadStats {
            probes: self.probes - earlier.probes,
            negatives: self.negatives - earlier.negatives,
            true_positives: self.true_positives - earlier.true_positives,
            false_positives: self.false_positives - earlier.false_positives,
            unfiltered: self.unfiltered - earlier.unfiltered,
            prefix_probes: self.prefix_probes - earlier.prefix_probes,
            prefix_skips: self.prefix_skips - earlier.prefix_skips,
            cache_hits: self.cache_hits - earlier.cache_hits,
            block_reads: self.block_reads - earlier.block_reads,
            block_bytes: self.block_bytes - earlier.block_bytes,
        }
    }
}

/// One thing that [`ReadCounters`] counts.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum ReadEvent {
    Negative,
    TruePositive,
    FalsePositive,
    Unfiltered,
    PrefixProbe,
    PrefixSkip,
    CacheHit,
    BlockRead,
    BlockBytes,
}

const EVENTS: usize = 9;
const SHARDS: usize = 4;

#[repr(align(64))]
#[derive(Default)]
struct Shard([AtomicU64; EVENTS]);

/// Counters behind [`ReadStats`], in a few shards so that two reading threads rarely write the same line.
#[derive(Default)]
pub(crate) struct ReadCounters {
    shards: [Shard; SHARDS],
}

impl ReadCounters {
    pub(crate) fn count(&self, event: ReadEvent) {
        self.add(event, 1);
    }

    pub(crate) fn add(&self, event: ReadEvent, n: u64) {
        self.shards[shard_of_thread()].0[event as usize].fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> ReadStats {
        let sum = |event: ReadEvent| -> u64 {
            self.shards.iter().map(|shard| shard.0[event as usize].load(Ordering::Relaxed)).sum()
        };
        let (negatives, true_positives, false_positives) =
            (sum(ReadEvent::Negative), sum(ReadEvent::TruePositive), sum(ReadEvent::FalsePositive));
        ReadStats {
            probes: negatives + true_positives + false_positives,
            negatives,
            true_positives,
            false_positives,
            unfiltered: sum(ReadEvent::Unfiltered),
            prefix_probes: sum(ReadEvent::PrefixProbe),
            prefix_skips: sum(ReadEvent::PrefixSkip),
            cache_hits: sum(ReadEvent::CacheHit),
            block_reads: sum(ReadEvent::BlockRead),
            block_bytes: sum(ReadEvent::BlockBytes),
        }
    }
}

fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        shard.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_is_in_one_class_under_eight_threads() {
        let counters = ReadCounters::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for i in 0..999 {
                        counters.count(match i % 3 {
                            0 => ReadEvent::Negative,
                            1 => ReadEvent::TruePositive,
                            _ => ReadEvent::FalsePositive,
                        });
                    }
                });
            }
        });
        let stats = counters.read();
        assert_eq!(stats.probes, 8 * 999);
        assert_eq!(stats.negatives, 8 * 333);
        assert_eq!(stats.false_positive_rate(), Some(0.5));
    }
}
