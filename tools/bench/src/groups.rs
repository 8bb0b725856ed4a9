//! [`Workload`]s, and [`Group`]s of workloads that one process runs.

use serde::{Deserialize, Serialize};

use crate::engine::{Settings, Variant};
use crate::keys::Encoding;

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Puts in key order.
    FillSeq,
    /// Batches of 100 puts in random order.
    FillBatch,
    /// Puts in random order, including the time until flushes and compactions are idle.
    FillRandom,
    /// Synced puts.
    FillSync,
    /// Synced puts by eight threads.
    FillSync8,
    /// Batches of 1000 puts in random order.
    BulkLoad,
    /// Sorted entries by way of files that the store takes in, durably, including the time to write
    /// the files.
    Ingest,
    /// Puts of existing keys.
    Overwrite,
    /// Two puts of every existing key, in two random orders.
    Overwrite2,
    /// Deletes of existing keys.
    DeleteRandom,
    /// Compaction of the whole store.
    Compact,
    /// A scan of the whole store.
    ReadSeq,
    /// [`ReadSeq`] with cold caches.
    ReadSeqCold,
    /// A scan of all keys that looks at no value.
    ReadKeys,
    /// A backward scan of the whole store.
    ReadReverse,
    /// Gets of existing keys.
    ReadRandom,
    /// Gets of missing keys.
    ReadMissing,
    /// [`ReadRandom`] right after a random fill.
    ReadRandomFresh,
    /// [`ReadMissing`] right after a random fill.
    ReadMissingFresh,
    /// [`SeekRandom`] right after a random fill.
    SeekRandomFresh,
    /// [`ReadRandom`] with cold caches.
    ReadRandomCold,
    /// [`ReadMissing`] with cold caches.
    ReadMissingCold,
    /// Gets of the first hundredth of the keys.
    ReadHot,
    /// Gets of existing keys in two threads.
    ReadRandom2,
    /// A seek and ten steps.
    SeekRandom,
    /// A seek and a hundred steps.
    Scan100,
    /// Seeks, without a step.
    SeekOne,
    /// Empty ranges between two neighbours.
    RangeEmpty,
    /// [`SeekOne`] with cold caches.
    SeekOneCold,
    /// [`SeekRandom`] with cold caches.
    SeekRandomCold,
    /// [`RangeEmpty`] with cold caches.
    RangeEmptyCold,
    /// Gets of a hundred keys in one call.
    MultiGet100,
    /// [`MultiGet100`] with cold caches.
    MultiGet100Cold,
    /// Half reads, half updates.
    YcsbA,
    /// 95 % reads, 5 % updates.
    YcsbB,
    /// Reads only.
    YcsbC,
    /// 95 % reads, mostly of the latest keys, 5 % inserts.
    YcsbD,
    /// 95 % short scans, 5 % inserts.
    YcsbE,
    /// Half reads, half read-modify-writes.
    YcsbF,
    /// Gets while another thread overwrites.
    ReadWhileWriting,
    /// Pops the first entry, repeatedly, from a queue of a thousand.
    Queue,
    /// Increments of counters, in `threads` threads.
    Increment {
        /// Number of counters.
        counters: u64,
        /// Number of threads.
        threads: u64,
    },
    /// 20,000 increments of one counter in each of four threads.
    Increment80K,
    /// Increments of counters by merges, which do not read them.
    Merge {
        /// Number of counters.
        counters: u64,
        /// Number of threads.
        threads: u64,
    },
    /// Transfers between accounts.
    Transfer {
        /// Number of accounts.
        accounts: u64,
        /// Number of threads.
        threads: u64,
    },
    /// Opening a closed store.
    Open,
    /// Opening after the process was killed with 40 MiB of entries in its log.
    OpenKilled,
}

use Workload::*;

const fn increment(counters: u64, threads: u64) -> Workload {
    Increment { counters, threads }
}

const fn merge(counters: u64, threads: u64) -> Workload {
    Merge { counters, threads }
}

const fn transfer(accounts: u64, threads: u64) -> Workload {
    Transfer { accounts, threads }
}

/// All workloads with their names.
const WORKLOADS: &[(Workload, &str)] = &[
    (FillSeq, "fillseq"),
    (FillBatch, "fillbatch"),
    (FillRandom, "fillrandom"),
    (FillSync, "fillsync"),
    (FillSync8, "fillsync8t"),
    (BulkLoad, "bulkload"),
    (Ingest, "ingest"),
    (Overwrite, "overwrite"),
    (Overwrite2, "overwrite2x"),
    (DeleteRandom, "deleterandom"),
    (Compact, "compact"),
    (ReadSeq, "readseq"),
    (ReadSeqCold, "readseq-cold"),
    (ReadKeys, "readkeys"),
    (ReadReverse, "readreverse"),
    (ReadRandom, "readrandom"),
    (ReadMissing, "readmissing"),
    (ReadRandomFresh, "readrandom-fresh"),
    (ReadMissingFresh, "readmissing-fresh"),
    (SeekRandomFresh, "seekrandom-fresh"),
    (ReadRandomCold, "readrandom-cold"),
    (ReadMissingCold, "readmissing-cold"),
    (ReadHot, "readhot"),
    (ReadRandom2, "readrandom2t"),
    (SeekRandom, "seekrandom"),
    (Scan100, "scan100"),
    (SeekOne, "seekone"),
    (RangeEmpty, "rangeempty"),
    (SeekOneCold, "seekone-cold"),
    (SeekRandomCold, "seekrandom-cold"),
    (RangeEmptyCold, "rangeempty-cold"),
    (MultiGet100, "multiget100"),
    (MultiGet100Cold, "multiget100-cold"),
    (YcsbA, "ycsbA"),
    (YcsbB, "ycsbB"),
    (YcsbC, "ycsbC"),
    (YcsbD, "ycsbD"),
    (YcsbE, "ycsbE"),
    (YcsbF, "ycsbF"),
    (ReadWhileWriting, "readwhilewriting"),
    (Queue, "queue"),
    (increment(1, 1), "increment-one"),
    (increment(1, 4), "increment-one-4t"),
    (increment(1, 8), "increment-one-8t"),
    (increment(1000, 1), "increment-1k"),
    (increment(1000, 4), "increment-1k-4t"),
    (increment(1000, 8), "increment-1k-8t"),
    (Increment80K, "increment-80k"),
    (merge(1, 1), "merge-one"),
    (merge(1, 4), "merge-one-4t"),
    (merge(1, 8), "merge-one-8t"),
    (merge(1000, 1), "merge-1k"),
    (merge(1000, 4), "merge-1k-4t"),
    (merge(1000, 8), "merge-1k-8t"),
    (transfer(10, 1), "transfer-10"),
    (transfer(10, 2), "transfer-10-2t"),
    (transfer(10, 4), "transfer-10-4t"),
    (transfer(10, 8), "transfer-10-8t"),
    (transfer(1000, 1), "transfer-1k"),
    (transfer(1000, 2), "transfer-1k-2t"),
    (transfer(1000, 4), "transfer-1k-4t"),
    (transfer(1000, 8), "transfer-1k-8t"),
    (transfer(1_000_000, 1), "transfer-1m"),
    (transfer(1_000_000, 2), "transfer-1m-2t"),
    (transfer(1_000_000, 4), "transfer-1m-4t"),
    (transfer(1_000_000, 8), "transfer-1m-8t"),
    (Open, "open"),
    (OpenKilled, "open-killed"),
];

impl Workload {
    /// All workloads.
    pub fn all() -> impl Iterator<Item = Workload> {
        WORKLOADS.iter().map(|&(workload, _)| workload)
    }

    /// The name on command lines and in tables: that of `db_bench` or YCSB where they have one.
    pub fn name(self) -> &'static str {
        WORKLOADS.iter().find(|&&(workload, _)| workload == self).map_or("", |&(_, name)| name)
    }

    /// The workload called `name`.
    pub fn named(name: &str) -> Option<Workload> {
        WORKLOADS.iter().find(|&&(_, other)| other == name).map(|&(workload, _)| workload)
    }

    /// Whether it only writes, so that the background work it causes is part of its cost.
    pub(crate) fn only_writes(self) -> bool {
        matches!(self, FillSeq | FillBatch | FillRandom | FillSync | FillSync8 | Overwrite | Overwrite2 | DeleteRandom)
    }

    /// Whether it may leave background work.
    pub(crate) fn writes(self) -> bool {
        self.only_writes()
            || matches!(self, BulkLoad | Ingest | YcsbA | YcsbB | YcsbD | YcsbE | YcsbF | ReadWhileWriting | Queue)
            || matches!(self, Increment { .. } | Increment80K | Merge { .. } | Transfer { .. })
    }

    /// Whether it ends after a number of steps; the others run until time is up.
    pub(crate) fn is_finite(self) -> bool {
        matches!(
            self,
            FillSeq
                | FillBatch
                | FillRandom
                | BulkLoad
                | Ingest
                | Overwrite
                | Overwrite2
                | DeleteRandom
                | Queue
                | Increment80K
        )
    }

    /// Whether it runs with cold caches.
    pub(crate) fn is_cold(self) -> bool {
        let is_cold_seek = matches!(self, SeekOneCold | SeekRandomCold | RangeEmptyCold);
        is_cold_seek || matches!(self, ReadRandomCold | ReadMissingCold | MultiGet100Cold | ReadSeqCold)
    }

    /// Whether its time includes waiting until background work is idle.
    pub(crate) fn includes_settling(self) -> bool {
        self == FillRandom
    }
}

/// How the store of a scene is prepared before its workloads begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preparation {
    /// Not at all: as the fill left it.
    AsFilled,
    /// Flushed, and background work is idle.
    Settled,
    /// Fully compacted.
    Compacted,
    /// Fully compacted; then a tenth of the keys again, flushed and settled; then twelve runs of a
    /// hundredth of the keys each, which nothing compacts.
    Runs,
}

/// A store, its fill, its preparation, and the workloads that run on it in turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    /// The workload that fills the store. A measured fill may run out of time; the missing keys are
    /// loaded before the other workloads.
    pub(crate) fill: Option<Workload>,
    /// The fill is not reported as a result.
    pub(crate) unmeasured_fill: bool,
    pub(crate) preparation: Preparation,
    pub(crate) work: &'static [Workload],
}

/// Scenes with the same settings.
#[derive(Debug)]
pub struct Group {
    /// The name on command lines and in tables.
    pub name: &'static str,
    /// A description.
    pub about: &'static str,
    pub(crate) scenes: &'static [Scene],
    settings: GroupSettings,
}

/// How a group's data and settings differ from the default.
#[derive(Clone, Copy, Debug)]
struct GroupSettings {
    /// Number of keys, in percent of the plan's.
    keys_percent: u64,
    key_len: Option<usize>,
    value_len: Option<usize>,
    encoding: Option<Encoding>,
    /// Cache in MiB at five million keys; it scales with their number.
    cache: u64,
    compress: bool,
    /// Whether engines count the bytes that they write apart from the log.
    count_table_bytes: bool,
}

const USUAL: GroupSettings = GroupSettings {
    keys_percent: 100,
    key_len: None,
    value_len: None,
    encoding: None,
    cache: 256,
    compress: false,
    count_table_bytes: false,
};

const fn filled(fill: Workload, work: &'static [Workload]) -> Scene {
    Scene { fill: Some(fill), unmeasured_fill: false, preparation: Preparation::Settled, work }
}

const fn fresh(work: &'static [Workload]) -> Scene {
    Scene { fill: Some(FillRandom), unmeasured_fill: true, preparation: Preparation::AsFilled, work }
}

const fn compacted(work: &'static [Workload]) -> Scene {
    Scene { fill: Some(BulkLoad), unmeasured_fill: true, preparation: Preparation::Compacted, work }
}

const FRESH_READS: &[Workload] = &[ReadRandomFresh, ReadMissingFresh];
/// Reads of a fully compacted store.
const READS: &[Workload] =
    &[ReadSeq, ReadReverse, ReadRandom, ReadMissing, ReadHot, SeekRandom, Scan100, MultiGet100, ReadRandom2, YcsbC];
const FEW_READS: &[Workload] = &[ReadSeq, ReadRandom, ReadMissing, ReadHot, SeekRandom, Scan100, MultiGet100];

/// Writes that depend on reads, and merges.
const UPDATES: &[Workload] = &[
    Increment80K,
    increment(1, 1),
    increment(1, 4),
    increment(1, 8),
    increment(1000, 1),
    increment(1000, 4),
    increment(1000, 8),
    merge(1, 1),
    merge(1, 4),
    merge(1, 8),
    merge(1000, 1),
    merge(1000, 4),
    merge(1000, 8),
    transfer(10, 1),
    transfer(10, 2),
    transfer(10, 4),
    transfer(10, 8),
    transfer(1000, 1),
    transfer(1000, 2),
    transfer(1000, 4),
    transfer(1000, 8),
    transfer(1_000_000, 1),
    transfer(1_000_000, 2),
    transfer(1_000_000, 4),
    transfer(1_000_000, 8),
];

/// All groups.
pub const GROUPS: &[Group] = &[
    Group {
        name: "raw",
        about: "a store filled in random order, settled, not fully compacted; no compression",
        settings: USUAL,
        scenes: &[
            filled(FillSeq, &[]),
            filled(FillBatch, &[]),
            filled(FillSync, &[]),
            filled(FillSync8, &[]),
            Scene {
                fill: Some(BulkLoad),
                unmeasured_fill: false,
                preparation: Preparation::AsFilled,
                work: &[Compact],
            },
            fresh(FRESH_READS),
            filled(
                FillRandom,
                &[
                    ReadSeq,
                    ReadReverse,
                    ReadRandom,
                    ReadMissing,
                    ReadHot,
                    SeekRandom,
                    Scan100,
                    MultiGet100,
                    ReadRandom2,
                    YcsbC,
                    YcsbB,
                    YcsbA,
                    YcsbF,
                    YcsbD,
                    YcsbE,
                    ReadWhileWriting,
                    Overwrite,
                    DeleteRandom,
                    Open,
                ],
            ),
            Scene { fill: None, unmeasured_fill: true, preparation: Preparation::AsFilled, work: &[OpenKilled] },
        ],
    },
    Group {
        name: "ranges",
        about: "twelve runs beside the levels, a cache of 5 % of the data; -cold: with an empty system cache too",
        settings: GroupSettings { cache: 32, ..USUAL },
        scenes: &[Scene {
            fill: Some(BulkLoad),
            unmeasured_fill: true,
            preparation: Preparation::Runs,
            work: &[RangeEmpty, SeekOne, SeekRandom, RangeEmptyCold, SeekOneCold, SeekRandomCold],
        }],
    },
    Group { name: "compacted", about: "the same data, fully compacted", settings: USUAL, scenes: &[compacted(READS)] },
    Group {
        name: "incache",
        about: "fully compacted, and everything in the cache",
        settings: GroupSettings { cache: 1024, ..USUAL },
        scenes: &[compacted(READS)],
    },
    Group {
        name: "big",
        about: "values of 400 bytes, a cache of 3 % of the data; -cold: with an empty system cache too",
        settings: GroupSettings { value_len: Some(400), cache: 64, ..USUAL },
        scenes: &[
            fresh(FRESH_READS),
            filled(
                FillRandom,
                &[
                    ReadRandom,
                    ReadMissing,
                    ReadHot,
                    SeekRandom,
                    Scan100,
                    MultiGet100,
                    ReadRandomCold,
                    ReadMissingCold,
                    MultiGet100Cold,
                    ReadSeqCold,
                ],
            ),
        ],
    },
    Group {
        name: "lz4",
        about: "compressed blocks (LZ4, or the engine's substitute)",
        settings: GroupSettings { compress: true, ..USUAL },
        scenes: &[fresh(FRESH_READS), filled(FillRandom, FEW_READS)],
    },
    Group {
        name: "bigendian",
        about: "keys that begin with eight big-endian bytes",
        settings: GroupSettings { encoding: Some(Encoding::BigEndian), ..USUAL },
        scenes: &[filled(FillRandom, FEW_READS)],
    },
    Group {
        name: "shortkeys",
        about: "keys of 8 bytes, values of 8",
        settings: GroupSettings { key_len: Some(8), value_len: Some(8), encoding: Some(Encoding::BigEndian), ..USUAL },
        scenes: &[filled(FillRandom, FEW_READS)],
    },
    Group {
        name: "longkeys",
        about: "keys of 200 bytes with a common prefix of more than 180",
        settings: GroupSettings { key_len: Some(200), keys_percent: 40, ..USUAL },
        scenes: &[filled(FillRandom, FEW_READS)],
    },
    Group {
        name: "blobs",
        about: "values of 16 KiB; engines with their own settings for long values too",
        settings: GroupSettings {
            value_len: Some(16 << 10),
            keys_percent: 2,
            cache: 12_800,
            count_table_bytes: true,
            ..USUAL
        },
        scenes: &[filled(
            FillRandom,
            &[ReadSeq, ReadKeys, ReadRandom, ReadMissing, ReadHot, SeekRandom, Scan100, MultiGet100, Overwrite2],
        )],
    },
    Group {
        name: "grown",
        about: "ten times as many keys, and ten times the cache",
        settings: GroupSettings { keys_percent: 1000, ..USUAL },
        scenes: &[
            fresh(&[ReadRandomFresh, ReadMissingFresh, SeekRandomFresh]),
            filled(FillRandom, &[ReadRandom, ReadMissing, ReadHot, SeekRandom]),
        ],
    },
    Group {
        name: "queue",
        about: "a queue of a thousand entries in an empty store; latencies are those of pops only",
        settings: GroupSettings { keys_percent: 20, ..USUAL },
        scenes: &[Scene { fill: None, unmeasured_fill: true, preparation: Preparation::AsFilled, work: &[Queue] }],
    },
    Group {
        name: "ingest",
        about: "sorted entries, by puts and by files that the store takes in",
        settings: USUAL,
        scenes: &[
            filled(FillSeq, &[]),
            Scene { fill: None, unmeasured_fill: true, preparation: Preparation::AsFilled, work: &[Ingest] },
        ],
    },
    Group {
        name: "updates",
        about: "writes that depend on reads: increments and merges of one and of 1,000 counters, transfers between \
                accounts; an engine without operations for them takes a mutex around gets and puts",
        settings: GroupSettings { keys_percent: 20, ..USUAL },
        scenes: &[Scene { fill: None, unmeasured_fill: true, preparation: Preparation::AsFilled, work: UPDATES }],
    },
];

/// The group called `name`.
pub fn group_named(name: &str) -> Option<&'static Group> {
    GROUPS.iter().find(|group| group.name == name)
}

/// Sizes and durations of a run, from the command line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Number of keys in most groups; the others have multiples of it.
    pub keys: u64,
    /// Length of a key in bytes, unless the group sets it.
    pub key_len: usize,
    /// Length of a value in bytes, unless the group sets it.
    pub value_len: usize,
    /// How numbers become keys, unless the group sets it.
    pub encoding: Encoding,
    /// Seconds for each read workload.
    pub seconds: f64,
    /// Time limit of each fill workload, in seconds.
    pub fill_seconds: f64,
    /// Size of a memtable in MiB.
    pub memtable: usize,
    /// Size of the cache in MiB for all groups; `None` scales each group's own with the number of
    /// keys.
    pub cache: Option<usize>,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The default number of keys, to which the cache sizes of groups refer.
pub const USUAL_KEYS: u64 = 5_000_000;

impl Group {
    /// Its workloads, in the order in which they run.
    pub fn workloads(&self) -> impl Iterator<Item = Workload> {
        self.scenes.iter().flat_map(|scene| {
            let fill = scene.fill.filter(|_| !scene.unmeasured_fill);
            fill.into_iter().chain(scene.work.iter().copied())
        })
    }

    /// `plan` with the sizes that this group sets.
    pub(crate) fn plan(&self, plan: &Plan) -> Plan {
        Plan {
            keys: (plan.keys * self.settings.keys_percent / 100).max(1),
            key_len: self.settings.key_len.unwrap_or(plan.key_len),
            value_len: self.settings.value_len.unwrap_or(plan.value_len),
            encoding: self.settings.encoding.unwrap_or(plan.encoding),
            ..*plan
        }
    }

    /// The settings for engines, by the plan of this group.
    pub fn settings(&self, plan: &Plan) -> Settings {
        // A group's cache size refers to `USUAL_KEYS`.
        let scaled = u128::from(self.settings.cache << 20) * u128::from(plan.keys) / u128::from(USUAL_KEYS);
        let cache = plan.cache.map(|mib| mib << 20).unwrap_or(usize::try_from(scaled).unwrap_or(usize::MAX));
        Settings {
            cache: cache.max(1 << 20),
            memtable: plan.memtable << 20,
            block: 4096,
            bloom_bits: 10,
            keeps_runs: false,
            compress: self.settings.compress,
            compaction_threads: 2,
            durable: false,
            count_table_bytes: self.settings.count_table_bytes,
            variant: Variant::Usual,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_have_names_of_their_own() {
        for workload in Workload::all() {
            assert_eq!(Workload::named(workload.name()), Some(workload));
        }
        assert_eq!(Workload::named(""), None);
    }

    #[test]
    fn every_workload_is_in_a_group() {
        let named = |workload: &Workload| {
            let scenes = GROUPS.iter().flat_map(|group| group.scenes);
            scenes.into_iter().any(|scene| scene.fill == Some(*workload) || scene.work.contains(workload))
        };
        assert!(Workload::all().all(|workload| named(&workload)));
    }

    #[test]
    fn caches_grow_with_the_keys() {
        let plan = Plan {
            keys: 1_000_000,
            key_len: 16,
            value_len: 100,
            encoding: Encoding::Decimal,
            seconds: 1.0,
            fill_seconds: 1.0,
            memtable: 64,
            cache: None,
            seed: 1,
        };
        let cache = |name| {
            let group = group_named(name).unwrap();
            group.settings(&group.plan(&plan)).cache
        };
        // One million keys are a fifth of the usual number.
        assert_eq!(cache("raw"), (256 << 20) / 5);
        assert_eq!(cache("incache"), (1024 << 20) / 5);
        assert_eq!(cache("grown"), (2560 << 20) / 5);
    }
}
