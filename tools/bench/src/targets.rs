//! The performance targets of tamis, and whether a run meets them. The only place that holds these
//! figures.

use crate::contest::Kind;
use crate::groups::Workload::{self, *};
use crate::record::Record;
use tamis_figures::text::{bytes, rate, three_digits, time};

/// A target for a workload of a group.
struct Target {
    group: &'static str,
    workload: Workload,
    goal: Goal,
}

#[derive(Clone, Copy, Debug)]
enum Goal {
    /// A multiple of the throughput of the best log-structured peer in the run.
    TimesBest(f64),
    /// A multiple of the throughput of LMDB in the run.
    TimesLmdb(f64),
    /// A multiple of tamis's own throughput in another workload of the group.
    TimesOwn(Workload, f64),
    /// Upper bound on the median step, in milliseconds.
    MillisAtMost(f64),
    /// Upper bound on the longest step, in milliseconds.
    LongestAtMost(f64),
    /// No more write amplification than the best RocksDB in the run.
    WritesLikeRocksDb,
    /// Upper bound on bytes on disk per live byte.
    SpaceAtMost(f64),
    /// Upper bound on read calls per operation.
    ReadsAtMost(f64),
    /// Upper bound on peak memory as a multiple of the configured memory, without the program
    /// itself.
    MemoryAtMost(f64),
    /// Upper bound on memory afterwards as a multiple of the configured memory, without pages of
    /// files, which the system takes back when others need memory.
    OwnMemoryAtMost(f64),
    /// Upper bound on the time per operation as a multiple of that in group `raw`, whose store is a
    /// tenth of this one's size.
    GrowthAtMost(f64),
}

use Goal::*;

const INCREMENTS: Workload = Increment { counters: 1000, threads: 1 };
const MERGES: Workload = Merge { counters: 1000, threads: 1 };

/// The targets for 5 M keys of 16 bytes, values of 100, 2 cores.
const TARGETS: &[Target] = &[
    target("raw", FillSeq, TimesBest(3.0)),
    target("raw", FillBatch, TimesBest(3.0)),
    target("raw", BulkLoad, TimesBest(3.0)),
    target("raw", Overwrite, TimesBest(3.0)),
    target("raw", DeleteRandom, TimesBest(3.0)),
    target("raw", FillRandom, TimesBest(4.0)),
    target("raw", FillRandom, LongestAtMost(100.0)),
    target("raw", Overwrite, LongestAtMost(5.0)),
    target("raw", DeleteRandom, LongestAtMost(5.0)),
    target("raw", FillRandom, WritesLikeRocksDb),
    target("raw", FillRandom, SpaceAtMost(1.15)),
    target("raw", FillSync, TimesBest(1.0)),
    target("raw", FillSync8, TimesBest(2.0)),
    target("raw", ReadRandom, TimesBest(3.0)),
    target("raw", ReadRandom, TimesLmdb(1.0)),
    target("incache", ReadRandom, TimesBest(3.0)),
    target("incache", ReadRandom, TimesLmdb(1.5)),
    target("raw", ReadRandom2, TimesBest(3.0)),
    target("raw", ReadMissing, TimesBest(5.0)),
    target("raw", ReadMissingFresh, TimesBest(4.0)),
    target("raw", ReadHot, TimesBest(5.0)),
    target("raw", ReadHot, TimesLmdb(1.5)),
    target("raw", ReadSeq, TimesBest(2.5)),
    target("raw", ReadSeq, TimesLmdb(1.2)),
    target("raw", ReadReverse, TimesBest(2.5)),
    target("raw", ReadReverse, TimesLmdb(1.2)),
    target("raw", SeekRandom, TimesBest(3.0)),
    target("raw", SeekRandom, TimesLmdb(1.2)),
    target("raw", Scan100, TimesBest(3.0)),
    target("raw", Scan100, TimesLmdb(1.2)),
    target("raw", MultiGet100, TimesBest(4.0)),
    target("raw", YcsbA, TimesBest(3.0)),
    target("raw", YcsbB, TimesBest(3.0)),
    target("raw", YcsbC, TimesBest(3.0)),
    target("raw", YcsbD, TimesBest(3.0)),
    target("raw", YcsbE, TimesBest(3.0)),
    target("raw", YcsbF, TimesBest(3.0)),
    target("raw", ReadWhileWriting, TimesBest(3.0)),
    target("raw", Compact, TimesBest(1.5)),
    target("big", ReadRandomCold, TimesBest(1.0)),
    target("big", ReadRandomCold, ReadsAtMost(1.0)),
    // One filter of 10 bits per key, 0.82 %, for each run of a settled store: level 0 is empty, two
    // levels are full.
    target("big", ReadMissingCold, ReadsAtMost(2.0 * 0.0082)),
    target("raw", FillRandom, MemoryAtMost(1.1)),
    target("raw", ReadRandom, OwnMemoryAtMost(1.1)),
    // By merges, and by updates.
    target("updates", MERGES, TimesOwn(INCREMENTS, 3.0)),
    target("ingest", Ingest, TimesOwn(FillSeq, 3.0)),
    target("ingest", Ingest, TimesBest(1.0)),
    target("grown", FillRandom, GrowthAtMost(1.3)),
    target("grown", ReadRandom, GrowthAtMost(1.3)),
    target("raw", Open, MillisAtMost(1.0)),
    target("raw", OpenKilled, MillisAtMost(30.0)),
];

/// Memory of the measuring program without a store: code, stacks, values, histograms.
const PROGRAM_MEMORY: u64 = 12 << 20;

const fn target(group: &'static str, workload: Workload, goal: Goal) -> Target {
    Target { group, workload, goal }
}

/// A target and the measured figure.
pub(crate) struct Verdict {
    pub(crate) group: &'static str,
    pub(crate) workload: &'static str,
    /// The target, as text.
    pub(crate) goal: String,
    /// The measured figure, as text, and its comparison.
    pub(crate) reached: String,
    pub(crate) met: bool,
}

/// The verdicts on all targets for which a run has records.
pub(crate) fn verdicts(records: &[Record], kind: impl Fn(&str) -> Option<Kind>) -> Vec<Verdict> {
    TARGETS.iter().filter_map(|target| target.verdict(records, &kind)).collect()
}

impl Target {
    fn verdict(&self, records: &[Record], kind: &impl Fn(&str) -> Option<Kind>) -> Option<Verdict> {
        let of = |wanted: &dyn Fn(&Record) -> bool| -> Vec<&Record> {
            let same = |record: &&Record| record.group == self.group && record.workload == self.workload.name();
            records.iter().filter(same).filter(|record| wanted(record)).collect()
        };
        let own = *of(&|record| kind(&record.engine) == Some(Kind::Tamis)).first()?;
        let times = |goal: f64, others: Vec<&Record>, whom: &str| {
            let best = others.into_iter().max_by(|a, b| a.ops_per_second.total_cmp(&b.ops_per_second))?;
            let ratio = own.ops_per_second / best.ops_per_second;
            let goal_text = format!("{goal}× {whom}");
            let (mine, theirs) = (rate(own.ops_per_second), rate(best.ops_per_second));
            Some((
                goal_text,
                format!("{}× ({mine} to {theirs} of {})", three_digits(ratio), best.engine),
                ratio >= goal,
            ))
        };
        let (goal, reached, met) = match self.goal {
            TimesBest(goal) => {
                times(goal, of(&|record| kind(&record.engine) == Some(Kind::Lsm)), "the best log-structured peer")?
            }
            TimesLmdb(goal) => times(goal, of(&|record| record.engine == "lmdb"), "LMDB")?,
            TimesOwn(other, goal) => {
                let same = |record: &&Record| record.group == self.group && record.workload == other.name();
                let other = records.iter().filter(same).find(|record| record.engine == own.engine)?;
                times(goal, vec![other], &other.workload)?
            }
            MillisAtMost(goal) => {
                // An opening that loses writes does not count.
                let whole = own.extra.get("recovered").is_none_or(|&share| share >= 1.0);
                let reached = time(own.latency.p50);
                (format!("{goal} ms"), reached, whole && own.latency.p50 <= goal * 1e6)
            }
            LongestAtMost(goal) => {
                (format!("no step over {goal} ms"), time(own.latency.max), own.latency.max <= goal * 1e6)
            }
            WritesLikeRocksDb => {
                let amplification = |record: &Record| record.settled.map(|settled| settled.write_amplification);
                let peers = of(&|record| record.engine.starts_with("rocksdb"));
                let least = peers.into_iter().filter_map(amplification).min_by(f64::total_cmp)?;
                let own = amplification(own)?;
                let goal = format!("write amplification of RocksDB, {}", three_digits(least));
                (goal, three_digits(own), own <= least)
            }
            SpaceAtMost(goal) => {
                let own = own.settled?.space_amplification?;
                (format!("space amplification {goal}"), three_digits(own), own <= goal)
            }
            ReadsAtMost(goal) => {
                let own = own.reads_per_op.calls;
                (format!("{goal} reads per get"), format!("{own:.4}"), own <= goal * 1.005)
            }
            MemoryAtMost(goal) | OwnMemoryAtMost(goal) => {
                let used = if let MemoryAtMost(_) = self.goal { own.peak_memory } else { own.anonymous_memory };
                let configured = own.configured_memory;
                let ratio = used.saturating_sub(PROGRAM_MEMORY) as f64 / configured as f64;
                let goal_text = format!("memory: {goal}× the {} configured", bytes(configured as f64));
                (goal_text, format!("{}×", three_digits(ratio)), ratio <= goal)
            }
            GrowthAtMost(goal) => {
                let same = |record: &&Record| record.group == "raw" && record.workload == self.workload.name();
                let small = records.iter().filter(same).find(|record| record.engine == own.engine)?;
                let ratio = small.ops_per_second / own.ops_per_second;
                (format!("{goal}× the time at a tenth of the keys"), format!("{}×", three_digits(ratio)), ratio <= goal)
            }
        };
        Some(Verdict { group: self.group, workload: self.workload.name(), goal, reached, met })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::group_named;

    fn record(engine: &str, group: &str, workload: &str, ops_per_second: f64) -> Record {
        let json = serde_json::json!({
            "engine": engine, "group": group, "workload": workload, "ops": 1, "seconds": 1.0,
            "ops_per_second": ops_per_second, "capped": false,
            "latency": { "p50": 1e6, "p99": 2e6, "p999": 3e6, "max": 4e6 },
            "cpu_per_op": 1.0, "peak_memory": 500 << 20, "anonymous_memory": 50 << 20, "configured_memory": 40 << 20,
            "reads_per_op": { "calls": 1.0, "bytes": 1.0, "device_bytes": 1.0 },
            "bytes_written": 1, "settled": null, "extra": {},
        });
        serde_json::from_value(json).unwrap()
    }

    fn kind(name: &str) -> Option<Kind> {
        Some(match name {
            "tamis" => Kind::Tamis,
            "lmdb" => Kind::Other,
            _ => Kind::Lsm,
        })
    }

    #[test]
    fn every_target_is_of_a_workload_of_its_group() {
        for target in TARGETS {
            let group = group_named(target.group).unwrap();
            assert!(group.workloads().any(|workload| workload == target.workload), "{}", target.workload.name());
        }
    }

    #[test]
    fn the_best_peer_of_the_same_workload_counts() {
        let run = |own| {
            [
                record("tamis", "raw", "readhot", own),
                record("slow", "raw", "readhot", 5.0),
                record("quick", "raw", "readhot", 10.0),
                record("quick", "raw", "readseq", 1000.0),
                record("lmdb", "raw", "readhot", 40.0),
            ]
        };
        let met = |own| -> Vec<bool> { verdicts(&run(own), kind).iter().map(|verdict| verdict.met).collect() };
        // The targets are five times the best peer, and 1.5 times LMDB.
        assert_eq!(met(49.0), [false, false]);
        assert_eq!(met(51.0), [true, false]);
        assert_eq!(met(60.0), [true, true]);
        assert!(verdicts(&run(49.0), kind)[0].reached.contains("of quick"));
    }

    #[test]
    fn memory_of_the_program_itself_is_left_out() {
        let read = record("tamis", "raw", "readrandom", 1.0);
        let memory =
            |read: &Record| verdicts(std::slice::from_ref(read), kind).into_iter().map(|verdict| verdict.met).collect();
        let met: Vec<bool> = memory(&read);
        assert_eq!(met, [true]);
        let met: Vec<bool> = memory(&Record { anonymous_memory: 57 << 20, ..read });
        assert_eq!(met, [false]);
    }

    #[test]
    fn growth_is_against_the_same_workload_of_the_small_group() {
        let run = |grown| [record("tamis", "raw", "fillrandom", 13.0), record("tamis", "grown", "fillrandom", grown)];
        let growth =
            |grown| verdicts(&run(grown), kind).into_iter().find(|verdict| verdict.group == "grown").unwrap().met;
        assert!(growth(10.0) && !growth(9.9));
    }

    #[test]
    fn an_opening_that_lost_writes_is_not_quick() {
        let mut opened = record("tamis", "raw", "open-killed", 1.0);
        assert!(verdicts(std::slice::from_ref(&opened), kind)[0].met);
        opened.extra.insert("recovered".to_owned(), 0.99);
        assert!(!verdicts(std::slice::from_ref(&opened), kind)[0].met);
    }
}
