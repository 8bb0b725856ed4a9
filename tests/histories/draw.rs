//! Draws histories: what a profile says of how often things happen, and what a seed makes of it.

use std::ops::{Bound, Range};

use fastrand::Rng;

use super::op::{
    Change, Copies, End, Expected, History, Jobs, K, Kind, Limits, Move, Op, Operator, Setup, Shape, Span, Take,
    Trouble, Update,
};

/// Kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Class {
    Write,
    Batch,
    /// Puts behind all keys before, and pops.
    Queue,
    /// Deletes of neighbours, one by one or as ranges.
    Stretch,
    Ingest,
    Update,
    Create,
    Drop,
    Configure,
    Refilter,
    Get,
    MultiGet,
    Prefix,
    Check,
    Take,
    Use,
    Release,
    Clock,
    Step,
    Settle,
    Flush,
    /// Many flushes: more runs in level 0 than compactions merge meanwhile.
    Runs,
    Compact,
    Sync,
    Verify,
    Refresh,
    Feed,
    Checkpoint,
    Image,
    Damage,
    Arm,
    Reopen,
    Amid,
}

/// Where operations happen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stores {
    One,
    /// In a store, its copies, and copies of these.
    Copies,
    /// In 256 stores of one environment.
    Shared,
}

/// How often what happens, and under which options.
#[derive(Clone)]
pub(super) struct Profile {
    pub(super) name: &'static str,
    /// Histories in a run of all tests.
    pub(super) cases: u64,
    pub(super) steps: Range<usize>,
    pub(super) weights: &'static [(u32, Class)],
    /// Weights of puts, puts with a deadline, merges, deletes, and deletes of ranges, of prefixes,
    /// and of everything.
    pub(super) changes: [u32; 7],
    pub(super) keys: &'static [K],
    pub(super) shapes: &'static [Shape],
    /// Lengths of values, one of which is drawn.
    pub(super) lens: &'static [Range<u16>],
    pub(super) takes: &'static [fn(&mut Draw<'_>) -> Take],
    /// Of eight moves of handles, how many are those that only transactions make.
    pub(super) of_transactions: u32,
    pub(super) ends: &'static [fn(&mut Rng) -> End],
    pub(super) troubles: &'static [fn(&mut Rng) -> Trouble],
    /// In how many calls trouble comes.
    pub(super) calls: u16,
    pub(super) kinds: fn(&mut Rng) -> Vec<Kind>,
    /// If not 0, each history runs once for every so many of its calls, at which trouble comes.
    pub(super) every: usize,
    pub(super) stores: Stores,
    /// Changes what was drawn of the options.
    pub(super) setup: fn(&mut Setup),
    /// Whether the store is compacted in the end, and must hold nothing but what lives.
    pub(super) settles: bool,
}

pub(super) struct Draw<'a> {
    pub(super) rng: Rng,
    profile: &'a Profile,
    keys: K,
    /// The next key of a queue.
    next: K,
    kinds: usize,
}

fn pick<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(0..of.len())].clone()
}

fn weighed(rng: &mut Rng, mut weights: impl Iterator<Item = u32> + Clone) -> usize {
    let mut left = rng.u32(0..weights.clone().sum());
    weights.position(|weight| left.checked_sub(weight).map(|rest| left = rest).is_none()).expect("it is below the sum")
}

pub(super) fn any_setup(rng: &mut Rng) -> Setup {
    let (memtable, table) = (4096 << rng.u32(0..2), 4096 << rng.u32(0..3));
    let cache = pick(rng, &[0, 64 << 10]);
    let open_files = 8 + rng.usize(0..8);
    Setup {
        memtable,
        table,
        cache,
        open_files,
        // Not drawn: the histories of known seeds stay what they are.
        memory: open_files.is_multiple_of(4).then_some(64 << 10),
        write_calls: rng.bool(),
        mmap: rng.bool(),
        paranoid: rng.u8(0..8) == 0,
        keep_log: false,
        jobs: if rng.bool() { Jobs::InOrder } else { Jobs::Shuffled(rng.u64(..) >> 40) },
    }
}

/// A keyspace of any options, mostly without filters, which take a quarter of the time here.
pub(super) fn any_kind(rng: &mut Rng) -> Kind {
    Kind {
        operator: pick(rng, &[Operator::None, Operator::Append, Operator::Max, Operator::Add, Operator::Affine]),
        separate: pick(rng, &[None, None, Some(16), Some(48), Some(500)]),
        ttl: pick(rng, &[None, None, None, Some(100), Some(150), Some(1 << 40)]),
        wal: rng.u8(0..6) > 0,
        block: 256 << rng.u32(0..3),
        lz4: rng.bool(),
        filter: rng.u8(0..8),
        levels: rng.u8(0..8),
        prefix: rng.u8(0..8),
    }
}

impl Profile {
    pub(super) fn history(&self, seed: u64) -> History {
        let mut rng = Rng::with_seed(seed);
        let (kinds, mut setup) = ((self.kinds)(&mut rng), any_setup(&mut rng));
        (self.setup)(&mut setup);
        let (keys, shape) = (pick(&mut rng, self.keys), pick(&mut rng, self.shapes));
        let mut draw = Draw { rng, profile: self, keys, next: 0, kinds: kinds.len() };
        let steps = draw.rng.usize(self.steps.clone());
        let mut ops = Vec::new();
        let environment = (self.stores == Stores::Shared).then(|| Limits {
            memtables: 1 << 20 << draw.rng.u8(0..2),
            cache: pick(&mut draw.rng, &[0, 64 << 10, 1 << 20]),
            open_files: 8 + draw.rng.usize(0..20),
        });
        while ops.len() < steps {
            let before = ops.len();
            draw.push_op(&mut ops);
            if self.stores == Stores::Shared || self.stores == Stores::Copies && draw.rng.u8(0..4) > 0 {
                // A few stores are busy, and all have their turn.
                let n = draw.rng.u8(..) >> if draw.rng.bool() { 5 } else { 0 };
                ops[before..].iter_mut().for_each(|op| *op = Op::Elsewhere(n, Box::new(op.clone())));
            }
        }
        History { shape, setup, kinds, environment, birth: None, ops }
    }
}

impl Draw<'_> {
    fn k(&mut self) -> K {
        let behind = self.next.saturating_sub(self.keys / 2);
        self.rng.u16(behind..behind.saturating_add(self.keys))
    }

    fn ks(&mut self) -> u8 {
        // One is the favourite.
        if self.rng.u8(0..3) == 0 { 0 } else { self.rng.u8(..) % 16 }
    }

    fn len(&mut self) -> u16 {
        let lens = pick(&mut self.rng, self.profile.lens);
        self.rng.u16(lens)
    }

    fn bound(&mut self) -> Bound<K> {
        match self.rng.u8(0..5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Excluded(self.k()),
            _ => Bound::Included(self.k()),
        }
    }

    /// Mostly a short one.
    pub(super) fn span(&mut self) -> Span {
        if self.rng.u8(0..4) == 0 {
            return (self.bound(), self.bound());
        }
        let from = self.k();
        let to = from.saturating_add(self.rng.u16(0..=self.keys / 8));
        (Bound::Included(from), if self.rng.bool() { Bound::Included(to) } else { Bound::Excluded(to) })
    }

    fn change(&mut self) -> Change {
        match weighed(&mut self.rng, self.profile.changes.into_iter()) {
            0 => Change::Put(self.k(), self.len()),
            1 => Change::PutUntil(self.k(), self.len(), self.rng.i32(-20..250)),
            2 => Change::Merge(self.k(), self.len()),
            3 => Change::Delete(self.k()),
            4 => Change::DeleteRange(self.span()),
            5 => Change::DeletePrefix(self.k(), self.rng.u8(1..8)),
            _ => Change::Clear,
        }
    }

    fn changes(&mut self, most: usize) -> Vec<(u8, Change)> {
        (0..self.rng.usize(0..most)).map(|_| (self.ks(), self.change())).collect()
    }

    fn scan_move(&mut self) -> Move {
        match self.rng.u8(0..40) {
            0 => Move::Seek(self.k()),
            1 => Move::SeekBack(self.k()),
            2..25 => Move::Next,
            _ => Move::Back,
        }
    }

    fn one_move(&mut self) -> Move {
        if self.rng.u32(0..8) < self.profile.of_transactions {
            return match self.rng.u8(0..16) {
                0..4 => Move::Get(self.k()),
                4..8 => Move::Scan(self.span(), (0..self.rng.usize(0..12)).map(|_| self.scan_move()).collect()),
                8..12 => Move::Write(self.change()),
                12 => Move::Guard(self.k()),
                13 => Move::GuardRange(self.span()),
                14 => Move::Savepoint,
                _ => Move::Rollback(self.rng.u8(0..4)),
            };
        }
        match self.rng.u8(0..18) {
            0..5 => Move::Next,
            5..10 => Move::Back,
            10 => Move::Seek(self.k()),
            11 => Move::SeekBack(self.k()),
            12 => Move::First,
            13 => Move::Last,
            14..17 => Move::Get(self.k()),
            _ => Move::All(self.rng.u8(..)),
        }
    }

    fn setup(&mut self) -> Setup {
        let mut setup = any_setup(&mut self.rng);
        (self.profile.setup)(&mut setup);
        setup
    }

    fn nested(&mut self, of_reader: bool) -> Vec<(u16, Op)> {
        let count = self.rng.usize(1..if of_reader { 8 } else { 5 });
        let mut calls: Vec<u16> = (0..count).map(|_| self.rng.u16(0..if of_reader { 150 } else { 40 })).collect();
        calls.sort_unstable();
        calls.into_iter().map(|at| (at, self.nested_op(of_reader))).collect()
    }

    fn nested_op(&mut self, of_reader: bool) -> Op {
        match self.rng.u8(0..16) {
            0..4 if of_reader => Op::Write(self.changes(4), false),
            4 if of_reader => Op::Flush,
            5 | 6 if of_reader => Op::Step,
            7 if of_reader => Op::Compact(self.ks(), self.span()),
            8 if of_reader => Op::Ingest(self.ks(), vec![self.span()], vec![self.change(), self.change()]),
            9 if of_reader => Op::Settle,
            10 if of_reader => Op::Drop(self.rng.u8(0..4)),
            11 if of_reader => Op::Create(self.rng.u8(0..5), any_kind(&mut self.rng)),
            12 if of_reader => Op::Reopen(End::Kill, self.setup()),
            // Short ones, so that no writer waits for the work that it interrupts.
            0..4 => Op::Write(vec![(self.ks(), Change::Put(self.k(), 20))], false),
            4 => Op::Write(vec![(self.ks(), Change::DeleteRange(self.span()))], false),
            5..9 => Op::Take(self.ks(), Take::Snapshot),
            9 => Op::Check(self.rng.u8(..)),
            10 => Op::Clock(self.rng.i32(0..60)),
            11 => Op::Use(self.rng.u8(..), vec![Move::All(0)]),
            12 => Op::Refresh,
            13 => Op::Image(None),
            _ => Op::Image(Some(self.rng.u64(..) >> 40)),
        }
    }

    fn push_op(&mut self, ops: &mut Vec<Op>) {
        let weights = self.profile.weights;
        let class = weights[weighed(&mut self.rng, weights.iter().map(|(weight, _)| *weight))].1;
        ops.push(match class {
            Class::Write => Op::Write(vec![(self.ks(), self.change())], false),
            Class::Batch => Op::Write(self.changes(9), self.rng.u8(0..6) == 0),
            Class::Queue if self.rng.bool() => {
                self.next = self.next.saturating_add(1).min(K::MAX - 1000);
                let key = self.next + self.keys;
                Op::Write(vec![(self.ks(), Change::Put(key, self.len()))], false)
            }
            Class::Queue => Op::Pop(self.ks(), self.rng.u8(0..4) > 0),
            Class::Stretch => {
                let (n, first, len, step) = (self.ks(), self.k(), self.rng.u16(10..60), self.rng.u16(0..5));
                for k in (first..first.saturating_add(len)).step_by(step.max(1).into()) {
                    let range = (Bound::Included(k), Bound::Excluded(k.saturating_add(step)));
                    let change = if step == 0 { Change::Delete(k) } else { Change::DeleteRange(range) };
                    ops.push(Op::Write(vec![(n, change)], false));
                }
                return;
            }
            Class::Ingest => {
                let spans = (0..self.rng.usize(0..4)).map(|_| self.span()).collect();
                let changes = (0..self.rng.usize(0..20)).map(|_| self.change()).collect();
                Op::Ingest(self.ks(), spans, changes)
            }
            Class::Update => {
                let update = match self.rng.u8(0..6) {
                    0 => Update::Keep,
                    1 => Update::Delete,
                    2 | 3 => {
                        let expected = pick(&mut self.rng, &[Expected::Absent, Expected::Current, Expected::Other]);
                        Update::Swap(self.len(), expected)
                    }
                    _ => Update::Put(self.len()),
                };
                let k = self.k();
                let amid = match self.rng.u8(0..4) {
                    0 => Some(Change::Put(k, self.len())),
                    1 => Some(self.change()),
                    _ => None,
                };
                Op::Update(self.ks(), k, update, amid)
            }
            Class::Create => Op::Create(self.rng.u8(0..5), self.kind()),
            Class::Drop => Op::Drop(self.rng.u8(0..4)),
            Class::Configure => Op::Configure(self.ks(), self.kind()),
            Class::Refilter => Op::Refilter(self.ks(), self.rng.u8(0..8)),
            Class::Get => Op::Get(self.ks(), self.k()),
            Class::MultiGet => {
                let mut keys: Vec<K> = (0..self.rng.usize(0..60)).map(|_| self.k()).collect();
                keys.extend(keys.first().copied());
                Op::MultiGet(self.ks(), keys)
            }
            Class::Prefix => Op::Prefix(self.ks(), self.k(), self.rng.u8(0..7)),
            Class::Check => Op::Check(self.rng.u8(..)),
            Class::Take => {
                let take = pick(&mut self.rng, self.profile.takes);
                Op::Take(self.ks(), take(self))
            }
            Class::Use => {
                let moves = (0..self.rng.usize(1..12)).map(|_| self.one_move()).collect();
                Op::Use(self.rng.u8(..), moves)
            }
            Class::Release => Op::Release(self.rng.u8(..), self.rng.u8(0..4) > 0),
            Class::Clock => Op::Clock(self.rng.i32(-10..60)),
            Class::Step => Op::Step,
            Class::Settle => Op::Settle,
            Class::Flush => Op::Flush,
            Class::Runs => {
                for _ in 0..self.rng.u8(2..25) {
                    ops.extend([Op::Write(vec![(self.ks(), self.change())], false), Op::Flush]);
                }
                return;
            }
            Class::Compact => {
                let all = self.rng.bool();
                Op::Compact(self.ks(), if all { (Bound::Unbounded, Bound::Unbounded) } else { self.span() })
            }
            Class::Sync => Op::Sync,
            Class::Verify => Op::Verify,
            Class::Refresh if self.rng.u8(0..4) == 0 => Op::RefreshFails(self.rng.u16(1..100)),
            Class::Refresh => Op::Refresh,
            Class::Feed => Op::Feed(self.rng.u8(0..30)),
            Class::Checkpoint => {
                let both = if self.profile.stores == Stores::Copies { Copies::Both } else { Copies::GoOn };
                Op::Checkpoint(if self.rng.bool() { both } else { Copies::Look })
            }
            Class::Image => Op::Image(self.rng.bool().then(|| self.rng.u64(..) >> 40)),
            Class::Damage => Op::Damage(self.rng.u64(..) >> 40),
            Class::Arm => {
                let trouble = pick(&mut self.rng, self.profile.troubles)(&mut self.rng);
                Op::Arm(self.rng.u16(1..self.profile.calls), trouble, self.rng.u8(0..4) == 0)
            }
            Class::Reopen => {
                let end = pick(&mut self.rng, self.profile.ends)(&mut self.rng);
                Op::Reopen(end, self.setup())
            }
            Class::Amid => {
                let work = match self.rng.u8(0..8) {
                    0 | 1 => Op::Flush,
                    2 | 3 => Op::Compact(self.ks(), (Bound::Unbounded, Bound::Unbounded)),
                    4 => Op::Settle,
                    5 | 6 => Op::Refresh,
                    _ => Op::Step,
                };
                let nested = self.nested(work == Op::Refresh);
                Op::Amid(Box::new(work), nested)
            }
        });
    }

    /// Options of a keyspace as the profile's are.
    fn kind(&mut self) -> Kind {
        let kinds = (self.profile.kinds)(&mut self.rng);
        let at = self.rng.usize(0..kinds.len().max(self.kinds)) % kinds.len();
        kinds[at]
    }
}
