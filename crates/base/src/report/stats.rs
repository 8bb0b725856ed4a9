//! Counters of what reads did. They are always on: a count costs one addition to a cache line that
//! the thread rarely shares.

use std::iter::Sum;
use std::ops::{AddAssign, Sub};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::thread;
use crate::sync::OnceLock;

/// What reads asked of tables and what the answers cost; for one table, or summed over tables.
///
/// Each time a point read reaches a table that may hold the key, it is counted in exactly one
/// class. Either the filter was asked, `probes = negatives + true_positives + false_positives`, or
/// it was not: `degraded` or `skipped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReadStats {
    /// Point reads that asked a filter.
    pub probes: u64,
    /// The filter said no: nothing was read.
    pub negatives: u64,
    /// The filter said maybe, and the table held the key (a tombstone or a version newer than the
    /// snapshot counts as held).
    pub true_positives: u64,
    /// The filter said maybe, and the table did not hold the key.
    pub false_positives: u64,
    /// Point reads of a table whose filter is damaged or of an unknown kind, and so means "maybe".
    pub degraded: u64,
    /// Point reads without a filter to ask: the table was written without one, the read was told to
    /// ignore it, or a page of it was not in memory while most keys were found.
    pub skipped: u64,
    /// Tables whose filters a scan of one prefix asked for the prefix; each table counts once per
    /// scan. Wrong answers are not counted: a scan may begin or end between the keys with the
    /// prefix, and so cannot tell.
    pub prefix_probes: u64,
    /// Of `prefix_probes`, those that the filter answered with no. The scan left the table out, or
    /// would have without `FilterMode::Shadow`.
    pub prefix_skips: u64,
    /// Data blocks found in memory: in the cache, or in a mapped file after the block's first read
    /// (`ReadMode::Mmap`).
    pub cache_hits: u64,
    /// Data blocks read from the file.
    pub block_reads: u64,
    /// Bytes of data blocks read from the file, trailers included.
    pub block_bytes: u64,
    /// Of `block_reads`, those made in the mode `FilterMode::Shadow` although a filter had said no,
    /// to a key, to the prefix of a scan or, of a range filter, to its range: what filters save.
    pub avoidable_reads: u64,
    /// Of `block_bytes`, those of `avoidable_reads`.
    pub avoidable_bytes: u64,
    /// Pages of filters read from files, of tables whose filters the limit of memory
    /// (`Options::memory`) does not let stay whole.
    pub filter_reads: u64,
    /// Pages of indexes read from files, likewise.
    pub index_reads: u64,
    /// Data blocks that scans and seeks entered, in memory or not, without taking an entry from
    /// them: another run had the next key, or the range ended before.
    pub scan_blocks_unused: u64,
    /// Of these, those that were read from the file.
    pub scan_reads_unused: u64,
    /// Seeks and scans that asked a table's range filter, because the block that may hold their
    /// first key was not in memory.
    pub range_probes: u64,
    /// Of `range_probes`, those after which nothing was read from the table: its filter allows no
    /// key in what the scan passed over. A seek without an end leaves such tables behind where
    /// others have its entries.
    pub range_negatives: u64,
    /// Of `range_probes`, those after which a block was read, and no entry taken from it.
    pub range_false_positives: u64,
    /// Tombstones that scans stepped over to reach an entry. Point reads count none, since each
    /// meets one at most. Scans remember long ranges of deleted keys and later jump over them; what
    /// they jump over is not counted.
    pub tombstones_passed: u64,
    /// Point reads of keys that a range delete deletes, where nothing newer was found. Counted for
    /// the keyspace, not for a table.
    pub deleted_by_range: u64,
}

impl ReadStats {
    /// Point reads that reached a table that may hold the key.
    pub fn look_ups(&self) -> u64 {
        self.probes + self.degraded + self.skipped
    }

    /// Point reads that asked a filter for a key that was not in its table.
    pub fn absent(&self) -> u64 {
        self.negatives + self.false_positives
    }

    /// Measured rate of false positives of range filters: of the questions where nothing was to be
    /// found, the share that they answered with maybe. `None` before the first.
    pub fn range_false_positive_rate(&self) -> Option<f64> {
        let absent = self.range_absent();
        (absent > 0).then(|| self.range_false_positives as f64 / absent as f64)
    }

    /// Questions to range filters where nothing was to be found.
    pub fn range_absent(&self) -> u64 {
        self.range_negatives + self.range_false_positives
    }

    /// Share of the data blocks wanted that were in memory; `None` before the first. Indexes are
    /// always in memory once a table is open, filters while there is room for them, and values in
    /// value files never.
    pub fn cache_hit_rate(&self) -> Option<f64> {
        let wanted = self.cache_hits + self.block_reads;
        (wanted > 0).then(|| self.cache_hits as f64 / wanted as f64)
    }

    /// Data blocks searched for each point read that reached a table: read amplification, as far as
    /// tables are concerned. Blocks of scans count too. `None` before the first point read.
    pub fn blocks_per_look_up(&self) -> Option<f64> {
        (self.look_ups() > 0).then(|| (self.cache_hits + self.block_reads) as f64 / self.look_ups() as f64)
    }

    /// Measured false-positive rate of the filters: false positives over look-ups of absent keys.
    /// `None` before the first such look-up.
    pub fn false_positive_rate(&self) -> Option<f64> {
        (self.absent() > 0).then(|| self.false_positives as f64 / self.absent() as f64)
    }

    /// The 95 % confidence interval of [`false_positive_rate`](ReadStats::false_positive_rate), by
    /// Wilson's score (E. B. Wilson, 1927), which also holds for few false positives. It assumes
    /// independent look-ups; repeated look-ups of the same keys are not independent.
    pub fn false_positive_interval(&self) -> Option<(f64, f64)> {
        const Z: f64 = 1.959_964;
        let (rate, n) = (self.false_positive_rate()?, self.absent() as f64);
        let spread = Z * Z / n;
        let centre = rate + spread / 2.0;
        let half = Z * (rate * (1.0 - rate) / n + spread / (4.0 * n)).sqrt();
        let bound = |sum: f64| (sum / (1.0 + spread)).clamp(0.0, 1.0);
        Some((bound(centre - half), bound(centre + half)))
    }

    fn combine(self, other: ReadStats, by: impl Fn(u64, u64) -> u64) -> ReadStats {
        ReadStats {
            probes: by(self.probes, other.probes),
            negatives: by(self.negatives, other.negatives),
            true_positives: by(self.true_positives, other.true_positives),
            false_positives: by(self.false_positives, other.false_positives),
            degraded: by(self.degraded, other.degraded),
            skipped: by(self.skipped, other.skipped),
            prefix_probes: by(self.prefix_probes, other.prefix_probes),
            prefix_skips: by(self.prefix_skips, other.prefix_skips),
            cache_hits: by(self.cache_hits, other.cache_hits),
            block_reads: by(self.block_reads, other.block_reads),
            block_bytes: by(self.block_bytes, other.block_bytes),
            avoidable_reads: by(self.avoidable_reads, other.avoidable_reads),
            avoidable_bytes: by(self.avoidable_bytes, other.avoidable_bytes),
            filter_reads: by(self.filter_reads, other.filter_reads),
            index_reads: by(self.index_reads, other.index_reads),
            scan_blocks_unused: by(self.scan_blocks_unused, other.scan_blocks_unused),
            scan_reads_unused: by(self.scan_reads_unused, other.scan_reads_unused),
            range_probes: by(self.range_probes, other.range_probes),
            range_negatives: by(self.range_negatives, other.range_negatives),
            range_false_positives: by(self.range_false_positives, other.range_false_positives),
            tombstones_passed: by(self.tombstones_passed, other.tombstones_passed),
            deleted_by_range: by(self.deleted_by_range, other.deleted_by_range),
        }
    }
}

impl AddAssign for ReadStats {
    fn add_assign(&mut self, other: ReadStats) {
        *self = self.combine(other, |a, b| a + b);
    }
}

/// The counts between two readings: the later minus the earlier. Where the later is less, because a
/// table is gone or moved to another level, the difference is 0.
impl Sub for ReadStats {
    type Output = ReadStats;

    fn sub(self, earlier: ReadStats) -> ReadStats {
        self.combine(earlier, u64::saturating_sub)
    }
}

/// Counted answers of filters beside what theory predicts; for one table, or summed over tables.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct FilterLedger {
    /// What was counted.
    pub reads: ReadStats,
    /// Expected false positives for the absent keys that were looked up, if every filter has its
    /// designed rate.
    pub designed_false_positives: f64,
    /// Expected false positives, if every filter has the rate that its own bits give it.
    pub expected_false_positives: f64,
    /// Expected false positives of range filters, if short ranges begin at strings spread like each
    /// table's keys: what their builders predicted.
    pub expected_range_false_positives: f64,
    /// Variance of the false positives if the design holds: by chance, and between filters.
    #[cfg_attr(feature = "serde", serde(skip))]
    variance: f64,
}

/// How much the rates of filters over different keys vary: standard deviation over mean, times the
/// square root of the number of keys. Measured: 12 % at 100 keys, 4 % at 1,000, 1.2 % at 10,000,
/// 0.38 % at 100,000.
const SPREAD: f64 = 1.2;
/// False positives are excessive if they exceed the design by more than this many standard
/// deviations …
const EXCESS: f64 = 5.0;
/// … and enough were expected for their number to be nearly normally distributed.
const LEAST_EXPECTED: f64 = 25.0;

impl FilterLedger {
    /// The ledger of one table.
    fn new(reads: ReadStats, rates: FilterRates) -> FilterLedger {
        let FilterRates { keys, design, expected } = rates;
        let absent = reads.absent() as f64;
        let designed = absent * design;
        let spread = designed * SPREAD / (keys.max(1) as f64).sqrt();
        FilterLedger {
            reads,
            designed_false_positives: designed,
            expected_false_positives: absent * expected,
            expected_range_false_positives: 0.0,
            variance: designed * (1.0 - design) + spread * spread,
        }
    }

    /// The false-positive rate by design, each filter weighted by the absent keys that it was asked
    /// for. `None` before the first absent key.
    pub fn designed_rate(&self) -> Option<f64> {
        self.per_absent(self.designed_false_positives)
    }

    /// The false-positive rate of the filters' actual bits, weighted in the same way.
    pub fn expected_rate(&self) -> Option<f64> {
        self.per_absent(self.expected_false_positives)
    }

    /// The false-positive rate as measured.
    pub fn measured_rate(&self) -> Option<f64> {
        self.reads.false_positive_rate()
    }

    /// How far the number of false positives is above the design's, in standard deviations. `None`
    /// before there is anything to compare.
    pub fn excess(&self) -> Option<f64> {
        (self.variance > 0.0)
            .then(|| (self.reads.false_positives as f64 - self.designed_false_positives) / self.variance.sqrt())
    }

    /// Whether there are significantly more false positives than by design: by more than five
    /// standard deviations, with at least 25 expected. Either a filter is broken, or the same
    /// absent keys are looked up again and again.
    pub fn is_excessive(&self) -> bool {
        self.designed_false_positives >= LEAST_EXPECTED && self.excess().is_some_and(|excess| excess > EXCESS)
    }

    /// The rate of false positives that the builders of range filters predicted, each weighted by
    /// the questions to it where nothing was to be found. `None` before the first.
    pub fn predicted_range_rate(&self) -> Option<f64> {
        let absent = self.reads.range_absent();
        (absent > 0).then(|| self.expected_range_false_positives / absent as f64)
    }

    fn per_absent(&self, false_positives: f64) -> Option<f64> {
        (self.reads.absent() > 0).then(|| false_positives / self.reads.absent() as f64)
    }
}

impl AddAssign for FilterLedger {
    fn add_assign(&mut self, other: FilterLedger) {
        self.reads += other.reads;
        self.designed_false_positives += other.designed_false_positives;
        self.expected_false_positives += other.expected_false_positives;
        self.expected_range_false_positives += other.expected_range_false_positives;
        self.variance += other.variance;
    }
}

impl Sum for FilterLedger {
    fn sum<I: Iterator<Item = FilterLedger>>(ledgers: I) -> FilterLedger {
        ledgers.fold(FilterLedger::default(), |mut sum, ledger| {
            sum += ledger;
            sum
        })
    }
}

/// One kind of event that [`ReadCounters`] counts.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum ReadEvent {
    Negative,
    TruePositive,
    FalsePositive,
    Skipped,
    CacheHit,
    BlockRead,
    BlockBytes,
    Degraded,
    PrefixProbe,
    PrefixSkip,
    AvoidableRead,
    AvoidableBytes,
    TombstonePassed,
    DeletedByRange,
    FilterRead,
    IndexRead,
    SkippedAbsent,
    ScanBlockUnused,
    ScanReadUnused,
    RangeProbe,
    RangeNegative,
    RangeFalsePositive,
}

const EVENTS: usize = 22;

/// Ordinary reads count in the first cache line only.
#[repr(align(64))]
#[derive(Default)]
struct CounterShard {
    /// Saturating score of recent look-ups: one up for each key found, to [`SATURATED`] at most,
    /// one down for each not found.
    found_score: AtomicU64,
    counts: [AtomicU64; EVENTS],
}

/// Look-ups of one kind after which the score is saturated; half as many of the other kind turn it.
const SATURATED: u64 = 16;

/// The counters behind [`ReadStats`]: a shard for each of the first few threads, and one for all
/// others.
///
/// A look-up that a filter ends takes some hundred nanoseconds. An atomic addition is a tenth of
/// that; a plain one cannot be measured. Therefore a thread with a shard to itself loads and
/// stores.
#[derive(Default)]
pub struct ReadCounters {
    shards: [CounterShard; OWNED_SHARDS + 1],
    /// See [`inherit`](ReadCounters::inherit).
    inherited: AtomicU64,
    filter: OnceLock<FilterRates>,
    /// Predicted rate of false positives of the range filter.
    range_rate: OnceLock<f64>,
}

/// The expected rates of the filter that is counted for.
#[derive(Clone, Copy, Debug)]
pub struct FilterRates {
    pub keys: u64,
    /// False-positive rate by design, and by the actual bits.
    pub design: f64,
    pub expected: f64,
}

impl ReadCounters {
    /// Counts an event; returns this thread's shard's count of its kind.
    #[inline]
    pub fn count(&self, event: ReadEvent) -> u64 {
        self.add(event, 1)
    }

    /// Counts `n` events; see [`count`](ReadCounters::count).
    #[inline]
    pub fn add(&self, event: ReadEvent, n: u64) -> u64 {
        self.add_in(shard_number(), event, n)
    }

    #[inline]
    fn add_in(&self, number: usize, event: ReadEvent, n: u64) -> u64 {
        let counter = &self.shards[number].counts[event as usize];
        if number == OWNED_SHARDS {
            return counter.fetch_add(n, Ordering::Relaxed) + n;
        }
        let sum = counter.load(Ordering::Relaxed) + n;
        counter.store(sum, Ordering::Relaxed);
        sum
    }

    /// Counts a look-up that asked a usable filter: `Negative`, `TruePositive` or `FalsePositive`;
    /// see [`count`](ReadCounters::count).
    #[inline]
    pub fn count_look_up(&self, event: ReadEvent) -> u64 {
        let number = shard_number();
        let score = &self.shards[number].found_score;
        let before = score.load(Ordering::Relaxed);
        // Threads that share a shard may lose updates here: the score is only a hint.
        score.store(
            match event {
                ReadEvent::TruePositive => (before + 1).min(SATURATED),
                _ => before.saturating_sub(1),
            },
            Ordering::Relaxed,
        );
        self.add_in(number, event, 1)
    }

    /// Whether most of this thread's recent look-ups found their keys.
    #[inline]
    pub fn expects_hit(&self) -> bool {
        self.shards[shard_number()].found_score.load(Ordering::Relaxed) > SATURATED / 2
    }

    /// Look-ups of keys that the table does not hold, whether or not a filter was asked, and those
    /// that were inherited.
    pub fn absent(&self) -> u64 {
        let events = [ReadEvent::Negative, ReadEvent::FalsePositive, ReadEvent::SkippedAbsent];
        self.inherited.load(Ordering::Relaxed) + events.map(|event| self.sum(event)).iter().sum::<u64>()
    }

    /// Takes over `absent` look-ups from the tables in whose place this one is.
    pub fn inherit(&self, absent: u64) {
        self.inherited.fetch_add(absent, Ordering::Relaxed);
    }

    fn sum(&self, event: ReadEvent) -> u64 {
        self.shards.iter().map(|shard| shard.counts[event as usize].load(Ordering::Relaxed)).sum()
    }

    /// Sets the expected rates of the filter. Later calls have no effect.
    pub fn expect(&self, rates: FilterRates) {
        let _ = self.filter.set(rates);
    }

    /// Sets the expected rate of the range filter. Later calls have no effect.
    pub fn expect_of_ranges(&self, rate: f64) {
        let _ = self.range_rate.set(rate);
    }

    /// The counts beside the expected false positives.
    pub fn ledger(&self) -> FilterLedger {
        let reads = self.read();
        let of_ranges = self.range_rate.get().map_or(0.0, |rate| reads.range_absent() as f64 * rate);
        let ledger = match self.filter.get() {
            Some(rates) => FilterLedger::new(reads, *rates),
            None => FilterLedger { reads, ..FilterLedger::default() },
        };
        FilterLedger { expected_range_false_positives: of_ranges, ..ledger }
    }

    fn read(&self) -> ReadStats {
        let sum = |event: ReadEvent| self.sum(event);
        let (negatives, true_positives, false_positives) =
            (sum(ReadEvent::Negative), sum(ReadEvent::TruePositive), sum(ReadEvent::FalsePositive));
        ReadStats {
            probes: negatives + true_positives + false_positives,
            negatives,
            true_positives,
            false_positives,
            degraded: sum(ReadEvent::Degraded),
            skipped: sum(ReadEvent::Skipped) + sum(ReadEvent::SkippedAbsent),
            prefix_probes: sum(ReadEvent::PrefixProbe),
            prefix_skips: sum(ReadEvent::PrefixSkip),
            cache_hits: sum(ReadEvent::CacheHit),
            block_reads: sum(ReadEvent::BlockRead),
            block_bytes: sum(ReadEvent::BlockBytes),
            avoidable_reads: sum(ReadEvent::AvoidableRead),
            avoidable_bytes: sum(ReadEvent::AvoidableBytes),
            filter_reads: sum(ReadEvent::FilterRead),
            index_reads: sum(ReadEvent::IndexRead),
            scan_blocks_unused: sum(ReadEvent::ScanBlockUnused),
            scan_reads_unused: sum(ReadEvent::ScanReadUnused),
            range_probes: sum(ReadEvent::RangeProbe),
            range_negatives: sum(ReadEvent::RangeNegative),
            range_false_positives: sum(ReadEvent::RangeFalsePositive),
            tombstones_passed: sum(ReadEvent::TombstonePassed),
            deleted_by_range: sum(ReadEvent::DeletedByRange),
        }
    }
}

/// Number of shards that belong to one thread, by its number, while it lives.
const OWNED_SHARDS: usize = 8;

#[inline]
fn shard_number() -> usize {
    thread::number().map_or(OWNED_SHARDS, |number| number.min(OWNED_SHARDS))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn no_count_is_lost_between_many_threads() {
        // More threads than shards, twice: the second round takes over the shards of the first.
        const THREADS: u32 = 16;
        const COUNTS: u64 = 30_000;
        let counters = ReadCounters::default();
        for _ in 0..2 {
            let together = Barrier::new(THREADS as usize);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        together.wait();
                        for i in 0..COUNTS {
                            counters.count(match i % 3 {
                                0 => ReadEvent::Negative,
                                1 => ReadEvent::TruePositive,
                                _ => ReadEvent::FalsePositive,
                            });
                        }
                    });
                }
            });
        }
        let stats = counters.read();
        let all = 2 * u64::from(THREADS) * COUNTS;
        assert_eq!(stats.probes, all);
        assert_eq!(stats.negatives, all / 3);
        assert_eq!(stats.false_positive_rate(), Some(0.5));
    }

    #[test]
    fn no_count_is_lost_between_threads_that_share_a_shard() {
        // Up to `OWNED_SHARDS` threads own a shard. The others count in the shared one, for long
        // enough to run at the same time.
        const COUNTS: u64 = if cfg!(miri) { 100 } else { 400_000 };
        let (counters, counted) = (ReadCounters::default(), AtomicU64::new(0));
        let together = Barrier::new(OWNED_SHARDS + 4);
        std::thread::scope(|scope| {
            for _ in 0..OWNED_SHARDS + 4 {
                scope.spawn(|| {
                    let is_shared = shard_number() == OWNED_SHARDS;
                    together.wait();
                    if is_shared {
                        (0..COUNTS).for_each(|_| _ = counters.count(ReadEvent::Negative));
                        counted.fetch_add(COUNTS, Ordering::Relaxed);
                    }
                    together.wait();
                });
            }
        });
        let counted = counted.into_inner();
        assert!(counted >= 4 * COUNTS, "at least four threads own no shard");
        assert_eq!(counters.read().negatives, counted);
    }

    #[test]
    fn expects_hit_follows_the_thread_s_recent_look_ups() {
        let counters = ReadCounters::default();
        let after = |event, times: usize| {
            (0..times).for_each(|_| _ = counters.count_look_up(event));
            counters.expects_hit()
        };
        assert!(!counters.expects_hit());
        assert!(!after(ReadEvent::FalsePositive, 100));
        assert!(!after(ReadEvent::TruePositive, 8) && after(ReadEvent::TruePositive, 1));
        assert!(!after(ReadEvent::Negative, 1) && after(ReadEvent::TruePositive, 100));
        assert!(after(ReadEvent::Negative, 4) && after(ReadEvent::FalsePositive, 3) && !after(ReadEvent::Negative, 1));
        assert!(after(ReadEvent::TruePositive, 100));
        // Another thread has a score of its own, unless both use the shared shard.
        let here = shard_number();
        std::thread::scope(|scope| _ = scope.spawn(|| assert!(shard_number() == here || !counters.expects_hit())));
        let stats = counters.read();
        assert_eq!((stats.negatives, stats.true_positives, stats.false_positives), (6, 209, 103));
    }

    fn reads(negatives: u64, false_positives: u64) -> ReadStats {
        ReadStats { probes: negatives + false_positives, negatives, false_positives, ..ReadStats::default() }
    }

    fn ledger(reads: ReadStats, keys: u64, design: f64, expected: f64) -> FilterLedger {
        FilterLedger::new(reads, FilterRates { keys, design, expected })
    }

    #[test]
    fn false_positive_interval_is_wilson_s() {
        assert_eq!(reads(0, 0).false_positive_interval(), None);
        // Computed by hand from the published formula.
        for (negatives, false_positives, low, high) in
            [(90, 10, 0.055_229, 0.174_366), (10, 0, 0.0, 0.277_533), (0, 10, 0.722_467, 1.0)]
        {
            let (from, to) = reads(negatives, false_positives).false_positive_interval().unwrap();
            assert!((from - low).abs() < 1e-5 && (to - high).abs() < 1e-5, "{from} {to}");
        }
    }

    #[test]
    fn ledger_weights_each_filter_by_its_absent_keys() {
        let good = ledger(reads(9_900, 100), 1_000_000, 0.01, 0.009);
        let better = ledger(reads(30_000, 0), 1_000_000, 0.002, 0.002);
        let both: FilterLedger = [good, better].into_iter().sum();
        assert!((both.designed_rate().unwrap() - 0.004).abs() < 1e-12);
        assert!((both.expected_rate().unwrap() - 0.00375).abs() < 1e-12);
        assert!((both.measured_rate().unwrap() - 0.0025).abs() < 1e-12);
        assert!(good.excess().unwrap().abs() < 0.01 && !good.is_excessive());
        assert_eq!(FilterLedger::default().excess(), None);
    }

    #[test]
    fn excess_is_reported_only_when_it_is_significant() {
        let counted = |false_positives: u64, keys: u64| {
            ledger(reads(100_000 - false_positives, false_positives), keys, 0.01, 0.01)
        };
        // 1,000 are expected, with a standard deviation of 31.5; between filters of 100 keys it is
        // 120.
        assert!(!counted(1_150, 1_000_000).is_excessive());
        assert!(counted(1_170, 1_000_000).is_excessive());
        assert!(!counted(1_500, 100).is_excessive());
        assert!(counted(1_700, 100).is_excessive());
        // Too few to tell.
        assert!(!ledger(reads(0, 1_000), 1_000_000, 0.01, 0.01).is_excessive());
    }
}
