//! [`Workload`]s, and the [`Group`]s of them that one process does in one go.

use serde::{Deserialize, Serialize};

use crate::engine::Settings;
use crate::keys::Encoding;

/// What is done to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Puts in key order.
    FillSeq,
    /// Batches of 100 puts in random order.
    FillBatch,
    /// Puts in random order, until the store has settled.
    FillRandom,
    /// Synced puts.
    FillSync,
    /// Synced puts of eight threads.
    FillSync8,
    /// Batches of 1000 puts in random order.
    BulkLoad,
    /// Puts of keys that are there.
    Overwrite,
    /// Deletes of keys that are there.
    DeleteRandom,
    /// Compaction of everything.
    Compact,
    /// A cursor over everything.
    ReadSeq,
    /// The same with nothing cached.
    ReadSeqCold,
    /// A cursor over everything, backwards.
    ReadReverse,
    /// Gets of keys that are there.
    ReadRandom,
    /// Gets of keys that are not there.
    ReadMissing,
    /// The same right after a random fill.
    ReadRandomFresh,
    /// The same right after a random fill.
    ReadMissingFresh,
    /// The same with nothing cached.
    ReadRandomCold,
    /// The same with nothing cached.
    ReadMissingCold,
    /// Gets of the first hundredth of the keys.
    ReadHot,
    /// Gets in two threads.
    ReadRandom2,
    /// A seek and ten steps.
    SeekRandom,
    /// A seek and a hundred steps.
    Scan100,
    /// Gets of a hundred keys in one call.
    MultiGet100,
    /// The same with nothing cached.
    MultiGet100Cold,
    /// Half reads, half updates.
    YcsbA,
    /// 95 % reads, 5 % updates.
    YcsbB,
    /// Reads.
    YcsbC,
    /// 95 % reads of the latest, 5 % inserts.
    YcsbD,
    /// 95 % short scans, 5 % inserts.
    YcsbE,
    /// Half reads, half read-modify-writes.
    YcsbF,
    /// Gets beside a thread that overwrites.
    ReadWhileWriting,
    /// Takes the first entry and deletes it, again and again, in a queue of a thousand.
    Queue,
    /// Opening after a close.
    Open,
    /// Opening after the process was killed with 40 MB of log.
    OpenKilled,
}

use Workload::*;

/// All workloads, by name.
const WORKLOADS: [(Workload, &str); 34] = [
    (FillSeq, "fillseq"),
    (FillBatch, "fillbatch"),
    (FillRandom, "fillrandom"),
    (FillSync, "fillsync"),
    (FillSync8, "fillsync8t"),
    (BulkLoad, "bulkload"),
    (Overwrite, "overwrite"),
    (DeleteRandom, "deleterandom"),
    (Compact, "compact"),
    (ReadSeq, "readseq"),
    (ReadSeqCold, "readseq-cold"),
    (ReadReverse, "readreverse"),
    (ReadRandom, "readrandom"),
    (ReadMissing, "readmissing"),
    (ReadRandomFresh, "readrandom-fresh"),
    (ReadMissingFresh, "readmissing-fresh"),
    (ReadRandomCold, "readrandom-cold"),
    (ReadMissingCold, "readmissing-cold"),
    (ReadHot, "readhot"),
    (ReadRandom2, "readrandom2t"),
    (SeekRandom, "seekrandom"),
    (Scan100, "scan100"),
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
    (Open, "open"),
    (OpenKilled, "open-killed"),
];

impl Workload {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Workload> {
        WORKLOADS.iter().map(|&(workload, _)| workload)
    }

    /// The name on command lines and in tables: `db_bench`'s or YCSB's where they have one.
    pub fn name(self) -> &'static str {
        WORKLOADS.iter().find(|&&(workload, _)| workload == self).map_or("", |&(_, name)| name)
    }

    /// The workload of that name.
    pub fn named(name: &str) -> Option<Workload> {
        WORKLOADS.iter().find(|&&(_, other)| other == name).map(|&(workload, _)| workload)
    }

    /// Whether it writes and does nothing else, so that what it causes afterwards belongs to its cost.
    pub(crate) fn only_writes(self) -> bool {
        matches!(self, FillSeq | FillBatch | FillRandom | FillSync | FillSync8 | Overwrite | DeleteRandom)
    }

    /// Whether the store has something to do in the background when it is done.
    pub(crate) fn writes(self) -> bool {
        self.only_writes()
            || matches!(self, BulkLoad | YcsbA | YcsbB | YcsbD | YcsbE | YcsbF | ReadWhileWriting | Queue)
    }

    /// Whether it is done when every key has had its turn; the others go on until time runs out.
    pub(crate) fn is_finite(self) -> bool {
        matches!(self, FillSeq | FillBatch | FillRandom | BulkLoad | Overwrite | DeleteRandom | Queue)
    }

    /// Whether it is done with nothing cached.
    pub(crate) fn is_cold(self) -> bool {
        matches!(self, ReadRandomCold | ReadMissingCold | MultiGet100Cold | ReadSeqCold)
    }

    /// Whether the time until the store has settled is part of the workload's.
    pub(crate) fn includes_settling(self) -> bool {
        self == FillRandom
    }
}

/// In what state the store of a scene is when its workloads begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// As filling left it.
    AsItIs,
    /// Flushed, and compactions have come to rest.
    Settled,
    /// Compacted as a whole.
    Compacted,
}

/// A store, how it comes about, and what is done to it, in turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    /// It is filled so, in whole or, when that is measured, until time runs out; what is missing then is loaded before the rest is done.
    pub(crate) fill: Option<Workload>,
    /// The fill is no result of its own.
    pub(crate) unmeasured_fill: bool,
    pub(crate) state: State,
    pub(crate) work: &'static [Workload],
}

/// Scenes with the same settings.
#[derive(Debug)]
pub struct Group {
    /// The name on command lines and in tables.
    pub name: &'static str,
    /// In words.
    pub about: &'static str,
    pub(crate) scenes: &'static [Scene],
    shape: Shape,
}

/// What distinguishes a group's data and settings from the usual ones.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Keys for each hundred keys of the usual number.
    keys_percent: u64,
    key_len: Option<usize>,
    value_len: Option<usize>,
    encoding: Option<Encoding>,
    /// Cache in MiB at five million keys; it grows and shrinks with their number.
    cache: u64,
    compress: bool,
}

const USUAL: Shape =
    Shape { keys_percent: 100, key_len: None, value_len: None, encoding: None, cache: 256, compress: false };

const fn filled(fill: Workload, work: &'static [Workload]) -> Scene {
    Scene { fill: Some(fill), unmeasured_fill: false, state: State::Settled, work }
}

const fn fresh(work: &'static [Workload]) -> Scene {
    Scene { fill: Some(FillRandom), unmeasured_fill: true, state: State::AsItIs, work }
}

const fn compacted(work: &'static [Workload]) -> Scene {
    Scene { fill: Some(BulkLoad), unmeasured_fill: true, state: State::Compacted, work }
}

const FRESH_READS: &[Workload] = &[ReadRandomFresh, ReadMissingFresh];
/// Reads of a store in one piece.
const READS: &[Workload] =
    &[ReadSeq, ReadReverse, ReadRandom, ReadMissing, ReadHot, SeekRandom, Scan100, MultiGet100, ReadRandom2, YcsbC];
const FEW_READS: &[Workload] = &[ReadSeq, ReadRandom, ReadMissing, ReadHot, SeekRandom, Scan100, MultiGet100];

/// All groups. The first four are compared with the targets.
pub const GROUPS: &[Group] = &[
    Group {
        name: "raw",
        about: "a store filled in random order, settled, not compacted as a whole; no compression",
        shape: USUAL,
        scenes: &[
            filled(FillSeq, &[]),
            filled(FillBatch, &[]),
            filled(FillSync, &[]),
            filled(FillSync8, &[]),
            Scene { fill: Some(BulkLoad), unmeasured_fill: false, state: State::AsItIs, work: &[Compact] },
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
            Scene { fill: None, unmeasured_fill: true, state: State::AsItIs, work: &[OpenKilled] },
        ],
    },
    Group { name: "compacted", about: "the same data compacted as a whole", shape: USUAL, scenes: &[compacted(READS)] },
    Group {
        name: "incache",
        about: "compacted, and everything in the cache",
        shape: Shape { cache: 1024, ..USUAL },
        scenes: &[compacted(READS)],
    },
    Group {
        name: "big",
        about: "values of 400 bytes, a cache of 3 % of the data; -cold: nothing in the system's cache either",
        shape: Shape { value_len: Some(400), cache: 64, ..USUAL },
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
        about: "compressed blocks (LZ4, or what the engine has instead)",
        shape: Shape { compress: true, ..USUAL },
        scenes: &[fresh(FRESH_READS), filled(FillRandom, FEW_READS)],
    },
    Group {
        name: "bigendian",
        about: "keys that begin with eight big-endian bytes",
        shape: Shape { encoding: Some(Encoding::BigEndian), ..USUAL },
        scenes: &[filled(FillRandom, FEW_READS)],
    },
    Group {
        name: "shortkeys",
        about: "keys of 8 bytes, values of 8",
        shape: Shape { key_len: Some(8), value_len: Some(8), encoding: Some(Encoding::BigEndian), ..USUAL },
        scenes: &[filled(FillRandom, FEW_READS)],
    },
    Group {
        name: "longkeys",
        about: "keys of 200 bytes with a common prefix of more than 180",
        shape: Shape { key_len: Some(200), keys_percent: 40, ..USUAL },
        scenes: &[filled(FillRandom, FEW_READS)],
    },
    Group {
        name: "blobs",
        about: "values of 16 KiB",
        shape: Shape { value_len: Some(16 << 10), keys_percent: 2, cache: 12_800, ..USUAL },
        scenes: &[filled(FillRandom, FEW_READS)],
    },
    Group {
        name: "grown",
        about: "ten times as many keys, and ten times the cache",
        shape: Shape { keys_percent: 1000, ..USUAL },
        scenes: &[filled(FillRandom, &[ReadRandom, ReadMissing, ReadHot, SeekRandom])],
    },
    Group {
        name: "queue",
        about: "an empty store, through which a queue of a thousand entries passes; latencies are those of pops alone",
        shape: Shape { keys_percent: 20, ..USUAL },
        scenes: &[Scene { fill: None, unmeasured_fill: true, state: State::AsItIs, work: &[Queue] }],
    },
];

/// The group of that name.
pub fn group_named(name: &str) -> Option<&'static Group> {
    GROUPS.iter().find(|group| group.name == name)
}

/// Sizes and times of a run, from the command line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Keys of most groups; the others have multiples of it.
    pub keys: u64,
    /// Bytes of keys, where a group does not say otherwise.
    pub key_len: usize,
    /// Bytes of values, where a group does not say otherwise.
    pub value_len: usize,
    /// How numbers become keys, where a group does not say otherwise.
    pub encoding: Encoding,
    /// Seconds of each workload that reads.
    pub seconds: f64,
    /// Seconds at most of each workload that fills a store.
    pub fill_seconds: f64,
    /// MiB of a memtable.
    pub memtable: usize,
    /// MiB of the cache, where a group does not say otherwise; else as many as belong to the number of keys.
    pub cache: Option<usize>,
    /// Seed of all choices.
    pub seed: u64,
}

/// What the number of keys is when no plan says otherwise, to which caches belong.
pub const USUAL_KEYS: u64 = 5_000_000;

impl Group {
    /// Its workloads, in the order in which they are done.
    pub fn workloads(&self) -> impl Iterator<Item = Workload> {
        self.scenes.iter().flat_map(|scene| {
            let fill = scene.fill.filter(|_| !scene.unmeasured_fill);
            fill.into_iter().chain(scene.work.iter().copied())
        })
    }

    /// The plan of this group: sizes are its own where it has some.
    pub(crate) fn plan(&self, plan: &Plan) -> Plan {
        Plan {
            keys: (plan.keys * self.shape.keys_percent / 100).max(1),
            key_len: self.shape.key_len.unwrap_or(plan.key_len),
            value_len: self.shape.value_len.unwrap_or(plan.value_len),
            encoding: self.shape.encoding.unwrap_or(plan.encoding),
            ..*plan
        }
    }

    /// What engines are given, by the plan of this group.
    pub fn settings(&self, plan: &Plan) -> Settings {
        // Sizes of caches are those of the usual number of keys.
        let scaled = u128::from(self.shape.cache << 20) * u128::from(plan.keys) / u128::from(USUAL_KEYS);
        let cache = plan.cache.map(|mib| mib << 20).unwrap_or(usize::try_from(scaled).unwrap_or(usize::MAX));
        Settings {
            cache: cache.max(1 << 20),
            memtable: plan.memtable << 20,
            block: 4096,
            bloom_bits: 10,
            compress: self.shape.compress,
            background_threads: 2,
            durable: false,
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
        // A fifth of the usual keys.
        assert_eq!(cache("raw"), (256 << 20) / 5);
        assert_eq!(cache("incache"), (1024 << 20) / 5);
        assert_eq!(cache("grown"), (2560 << 20) / 5);
    }
}
