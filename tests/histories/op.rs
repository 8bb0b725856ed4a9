//! A history as data: the shape of its keys, options, and operations.
//!
//! All of it is plain numbers, so that what `{:?}` prints is an expression that a test can replay.
//! A number that chooses among what exists is taken modulo their count: any part of a history is a
//! history.

use std::ops::Bound;
use std::time::Duration;

use tamis::operator::{Add, Append, Max};
use tamis::{
    Compression, FilterBudget, FilterPolicy, KeyspaceOptions, LevelFilters, PrefixExtractor, RangeFilterPolicy,
};

use super::model::Affine;

/// A key by its number.
pub(super) type K = u16;

/// A range of keys.
pub(super) type Span = (Bound<K>, Bound<K>);

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct History {
    pub(super) shape: Shape,
    pub(super) setup: Setup,
    /// The keyspaces at the beginning.
    pub(super) kinds: Vec<Kind>,
    /// The limits that its stores share, if it has several.
    pub(super) environment: Option<Limits>,
    /// As of [`Op::Arm`], while the store is created.
    pub(super) birth: Option<(u16, Trouble, bool)>,
    pub(super) ops: Vec<Op>,
}

/// Limits of an environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limits {
    pub(super) memtables: usize,
    pub(super) cache: usize,
    pub(super) open_files: usize,
}

/// What bytes a key has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    Decimal,
    /// A group of two bytes, then a time of eight.
    Sensors,
    /// A few letters, so that there are many nested prefixes, delimiters at all offsets, and the
    /// empty key.
    Letters,
    Random,
    /// Behind a common prefix of so many bytes.
    Long(u16),
}

impl Shape {
    pub(super) fn key(self, k: K) -> Vec<u8> {
        let decimal = || format!("k{k:05}").into_bytes();
        match self {
            Shape::Decimal if k == 0 => Vec::new(),
            Shape::Decimal => decimal(),
            Shape::Sensors => [&(k % 7).to_be_bytes()[..], &(60_000 * u64::from(k / 7)).to_be_bytes()].concat(),
            Shape::Letters => {
                let letters = [b'a', b'b', b'c', b':', b'd', b':', 0, 0xff];
                let mut rest = k;
                let digit = |rest: &mut K| {
                    let letter = letters[usize::from(*rest % 8)];
                    *rest /= 8;
                    letter
                };
                std::iter::from_fn(|| (rest > 0).then(|| digit(&mut rest))).collect()
            }
            Shape::Random => {
                let mut rng = fastrand::Rng::with_seed(k.into());
                (0..rng.usize(1..24)).map(|_| rng.u8(..)).chain(k.to_be_bytes()).collect()
            }
            Shape::Long(len) => [vec![b'p'; len.into()], decimal()].concat(),
        }
    }
}

/// Options of an open store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setup {
    pub(super) memtable: usize,
    pub(super) table: u64,
    pub(super) cache: usize,
    pub(super) open_files: usize,
    /// The limit of all memory, within which filters and indexes have hardly any room.
    pub(super) memory: Option<usize>,
    /// Whether the log is written by calls, and not through memory.
    pub(super) write_calls: bool,
    pub(super) mmap: bool,
    pub(super) paranoid: bool,
    pub(super) keep_log: bool,
    pub(super) jobs: Jobs,
}

/// Who runs background work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Jobs {
    /// Steps of the history, in order.
    InOrder,
    /// Steps of the history, as if three jobs could run at once, in an order of this seed.
    Shuffled(u64),
    /// Threads: nothing is the same twice.
    Threads,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    None,
    Append,
    Max,
    /// The store's counters, which memtables combine at once.
    Add,
    /// The caller's own: see [`Affine`].
    Affine,
}

/// Options of a keyspace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kind {
    pub(super) operator: Operator,
    pub(super) separate: Option<u32>,
    /// In milliseconds.
    pub(super) ttl: Option<u64>,
    pub(super) wal: bool,
    pub(super) block: u32,
    pub(super) lz4: bool,
    /// Number of a policy, of what levels make of it, and of an extractor of prefixes.
    pub(super) filter: u8,
    pub(super) levels: u8,
    pub(super) prefix: u8,
}

/// Filter policy number `n`.
pub(super) fn policy(n: u8) -> FilterPolicy {
    match n % 8 {
        0 => FilterPolicy::DEFAULT,
        1 => FilterPolicy::Bloom { bits_per_key: 6.0 },
        2 => FilterPolicy::BinaryFuse { fingerprint_bits: 8 },
        3 => FilterPolicy::Bloom { bits_per_key: 3.0 },
        _ => FilterPolicy::None,
    }
}

impl Kind {
    pub(super) const PLAIN: Kind = Kind {
        operator: Operator::None,
        separate: None,
        ttl: None,
        wal: true,
        block: 256,
        lz4: false,
        filter: 7,
        levels: 0,
        prefix: 0,
    };

    pub(super) fn options(&self) -> KeyspaceOptions {
        let filter = policy(self.filter);
        let levels = match self.levels % 8 {
            1 => LevelFilters::Each(vec![FilterPolicy::DEFAULT, filter]),
            2 if filter != FilterPolicy::None => LevelFilters::Budget(FilterBudget::bits_per_key(6.0).absent(0.5)),
            3 if filter != FilterPolicy::None => LevelFilters::Budget(FilterBudget::bytes(500)),
            _ => LevelFilters::Uniform,
        };
        let prefix = match self.prefix % 8 {
            1 => Some(PrefixExtractor::Fixed(1)),
            2 => Some(PrefixExtractor::Fixed(2)),
            3 => Some(PrefixExtractor::Fixed(4)),
            4 => Some(PrefixExtractor::UpTo(b':')),
            5 => Some(PrefixExtractor::UpTo(0)),
            _ => None,
        };
        let options = KeyspaceOptions::new()
            .block_size(self.block)
            .compression(if self.lz4 { Compression::Lz4 } else { Compression::None })
            .separate_values(self.separate)
            .ttl(self.ttl.map(Duration::from_millis))
            .wal(self.wal)
            .filter(filter)
            .level_filters(levels)
            .range_filter(RangeFilterPolicy::Ordered { bits_per_key: if self.lz4 { 7.0 } else { 12.0 } })
            .prefix(prefix);
        match self.operator {
            Operator::None => options,
            Operator::Append => options.merge_operator(Append),
            Operator::Max => options.merge_operator(Max),
            Operator::Add => options.merge_operator(Add::LITTLE),
            Operator::Affine => options.merge_operator(Affine),
        }
    }
}

/// What a write does. Values are unique, and have about this many bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    Put(K, u16),
    /// Until so many milliseconds from now.
    PutUntil(K, u16, i32),
    /// A put where the keyspace has no operator.
    Merge(K, u16),
    Delete(K),
    DeleteRange(Span),
    /// Of the first so many bytes of the key.
    DeletePrefix(K, u8),
    Clear,
}

/// How the next process finds the store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    Close,
    Drop,
    Kill,
    /// With the seed of what is left.
    PowerCut(u64),
    /// A kill that leaves no CURRENT, and a repair.
    Repair,
}

/// What will happen at a mutating call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Trouble {
    Kill,
    PowerCut(u64),
    Io,
    NoSpace,
    ShortWrite,
    ReadError,
}

/// What becomes of a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Copies {
    Look,
    GoOn,
    /// It is a store beside its original, and both go on.
    Both,
}

/// A handle that reads at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Take {
    Snapshot,
    /// A snapshot of the reader beside the writer.
    SnapshotBeside,
    Iter(Span),
    Keys(Span),
    Cursor,
    Transaction,
}

/// What is done with a handle. Each does what it can of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Move {
    Next,
    Back,
    Seek(K),
    SeekBack(K),
    First,
    Last,
    Get(K),
    /// Everything, in the ways that the bits say.
    All(u8),
    /// A range, by steps and seeks.
    Scan(Span, Vec<Move>),
    Write(Change),
    Guard(K),
    GuardRange(Span),
    Savepoint,
    Rollback(u8),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Update {
    Keep,
    Put(u16),
    Delete,
    Swap(u16, Expected),
}

/// What a swap expects to find.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Expected {
    Absent,
    Current,
    Other,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Op {
    /// Changes in keyspaces, as one write; a single one not as a batch.
    Write(Vec<(u8, Change)>, bool),
    Ingest(u8, Vec<Span>, Vec<Change>),
    /// In between, another write may come.
    Update(u8, K, Update, Option<Change>),
    Pop(u8, bool),
    Create(u8, Kind),
    Drop(u8),
    Configure(u8, Kind),
    Refilter(u8, u8),
    Get(u8, K),
    MultiGet(u8, Vec<K>),
    Prefix(u8, K, u8),
    Check(u8),
    Take(u8, Take),
    Use(u8, Vec<Move>),
    /// Drops a handle; a transaction commits if true.
    Release(u8, bool),
    Clock(i32),
    Step,
    /// Until no work is left.
    Settle,
    Flush,
    Compact(u8, Span),
    Sync,
    Verify,
    /// Opens or refreshes the reader, and checks it.
    Refresh,
    /// A refresh whose call of this number fails.
    RefreshFails(u16),
    /// Reads so many batches of the change feed.
    Feed(u8),
    Checkpoint(Copies),
    /// Opens what a kill, or a power cut of this seed, would leave now.
    Image(Option<u64>),
    /// Repairs what a kill, or a power cut, would leave, with damage of this seed.
    Damage(u64),
    Arm(u16, Trouble, bool),
    Reopen(End, Setup),
    /// The first operation runs in a thread of its own; before its call of each number, which a
    /// reader counts by what it reads and others by what they change, another one.
    Amid(Box<Op>, Vec<(u16, Op)>),
    /// In another store of the environment, or in a copy, or here if there is none.
    Elsewhere(u8, Box<Op>),
}
