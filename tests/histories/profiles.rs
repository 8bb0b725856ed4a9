//! Profiles: which operations, options and ends a history draws from.

use super::draw::Class::*;
use super::draw::{Draw, Profile, Stores, any_kind};
use super::op::{End, Jobs, Kind, Operator, Shape, Take, Trouble};
use super::{run, sweep};

const ENDS: &[fn(&mut fastrand::Rng) -> End] =
    &[|_| End::Close, |_| End::Drop, |_| End::Kill, |rng| End::PowerCut(rng.u64(..) >> 40), |_| End::Repair];

const DEATHS: &[fn(&mut fastrand::Rng) -> Trouble] = &[|_| Trouble::Kill, |rng| Trouble::PowerCut(rng.u64(..) >> 40)];

const FAULTS: &[fn(&mut fastrand::Rng) -> Trouble] =
    &[|_| Trouble::Io, |_| Trouble::NoSpace, |_| Trouble::ShortWrite, |_| Trouble::ReadError];

const TROUBLES: &[fn(&mut fastrand::Rng) -> Trouble] = &[
    |_| Trouble::Kill,
    |rng| Trouble::PowerCut(rng.u64(..) >> 40),
    |_| Trouble::Io,
    |_| Trouble::NoSpace,
    |_| Trouble::ShortWrite,
];

const ALL_TROUBLES: &[fn(&mut fastrand::Rng) -> Trouble] =
    &[TROUBLES[0], TROUBLES[1], FAULTS[0], FAULTS[1], FAULTS[2], FAULTS[3]];

const TAKES: &[fn(&mut Draw<'_>) -> Take] = &[
    |_| Take::Snapshot,
    |draw| Take::Iter(draw.span()),
    |draw| Take::Keys(draw.span()),
    |_| Take::Cursor,
    |_| Take::Transaction,
];

/// Everything at once.
const ALL: Profile = Profile {
    name: "all",
    cases: 200,
    steps: 20..300,
    weights: &[
        (30, Write),
        (10, Batch),
        (6, Queue),
        (1, Stretch),
        (2, Ingest),
        (4, Update),
        (1, Create),
        (1, Drop),
        (2, Configure),
        (1, Refilter),
        (10, Get),
        (2, MultiGet),
        (2, Prefix),
        (3, Check),
        (5, Take),
        (14, Use),
        (4, Release),
        (4, Clock),
        (12, Step),
        (1, Settle),
        (2, Flush),
        (1, Compact),
        (1, Sync),
        (1, Verify),
        (2, Refresh),
        (2, Feed),
        (1, Reopen),
        (2, Amid),
    ],
    changes: [24, 6, 10, 10, 4, 1, 1],
    keys: &[8, 40, 200, 2000],
    shapes: &[Shape::Decimal, Shape::Sensors, Shape::Letters, Shape::Random, Shape::Long(200)],
    lens: &[0..60, 0..60, 0..1, 100..600, 1000..3000],
    takes: TAKES,
    of_transactions: 3,
    ends: ENDS,
    troubles: DEATHS,
    calls: 60,
    every: 0,
    stores: Stores::One,
    kinds: |rng| (0..rng.usize(1..4)).map(|_| any_kind(rng)).collect(),
    setup: |setup| setup.keep_log = true,
    settles: false,
};

/// Keyspaces of every operator, with and without separate values and deadlines, all with a log.
fn merging(rng: &mut fastrand::Rng) -> Vec<Kind> {
    let kinds = (0..rng.usize(1..5)).map(|_| Kind { wal: true, filter: 7, ..any_kind(rng) });
    kinds.collect()
}

fn plain(rng: &mut fastrand::Rng) -> Vec<Kind> {
    let kind = any_kind(rng);
    (0..rng.usize(1..4)).map(|_| Kind { operator: Operator::None, ttl: None, wal: true, ..kind }).collect()
}

/// Short histories of everything that changes files.
const EVERYWHERE: Profile = Profile {
    steps: 8..40,
    weights: &[
        (30, Write),
        (16, Batch),
        (2, Ingest),
        (5, Create),
        (2, Drop),
        (1, Configure),
        (1, Refilter),
        (12, Step),
        (1, Runs),
        (4, Flush),
        (3, Compact),
        (6, Sync),
        (2, Clock),
        (2, Take),
        (3, Use),
        (2, Check),
        (1, Checkpoint),
        (5, Reopen),
    ],
    keys: &[40],
    lens: &[0..120, 200..600, 600..1800],
    ..ALL
};

const PROFILES: &[Profile] = &[
    ALL,
    // Against a map, and in the end nothing is left but what lives.
    Profile {
        name: "map",
        weights: &[
            (20, Write),
            (8, Batch),
            (1, Ingest),
            (16, Get),
            (1, MultiGet),
            (4, Take),
            (10, Use),
            (3, Release),
            (3, Clock),
            (5, Step),
            (2, Flush),
            (1, Runs),
            (1, Compact),
            (1, Create),
            (1, Drop),
            (1, Refilter),
            (1, Refresh),
            (1, Reopen),
        ],
        kinds: |rng| {
            let finite = |kind: Kind| Kind { ttl: kind.ttl.filter(|ttl| *ttl < 1000), wal: true, ..kind };
            (0..rng.usize(1..4)).map(|_| finite(any_kind(rng))).collect()
        },
        takes: &[|_| Take::Snapshot, |draw| Take::Iter(draw.span()), |_| Take::Cursor],
        settles: true,
        ..ALL
    },
    // Lives that end by a kill or a power cut at any call, while others look.
    Profile {
        name: "lives",
        cases: 180,
        weights: &[
            (60, Write),
            (10, Batch),
            (3, Ingest),
            (2, Clock),
            (20, Step),
            (3, Flush),
            (2, Compact),
            (1, Sync),
            (1, Check),
            (2, Take),
            (2, Use),
            (2, Image),
            (2, Refresh),
            (6, Amid),
            (3, Arm),
            (1, Reopen),
        ],
        changes: [10, 3, 30, 5, 2, 0, 0],
        keys: &[3, 6, 12, 24, 60],
        lens: &[0..20, 30..60, 100..300, 300..1400],
        takes: &[|_| Take::Snapshot, |_| Take::SnapshotBeside],
        kinds: merging,
        ..ALL
    },
    Profile {
        name: "threads",
        cases: 40,
        weights: &[
            (60, Write),
            (10, Batch),
            (3, Ingest),
            (3, Flush),
            (2, Compact),
            (1, Sync),
            (4, Check),
            (3, Take),
            (6, Use),
            (3, Image),
            (3, Refresh),
            (6, Arm),
            (1, Reopen),
        ],
        changes: [10, 3, 30, 5, 2, 0, 0],
        keys: &[3, 6, 12, 24, 60],
        lens: &[0..20, 30..60, 100..300, 300..1400],
        takes: &[|_| Take::Snapshot, |_| Take::SnapshotBeside],
        troubles: ALL_TROUBLES,
        kinds: merging,
        setup: |setup| setup.jobs = Jobs::Threads,
        ..ALL
    },
    // A call fails, or all from one on.
    Profile {
        name: "faults",
        cases: 350,
        steps: 10..80,
        weights: &[
            (30, Write),
            (20, Batch),
            (3, Ingest),
            (3, Update),
            (2, Create),
            (1, Drop),
            (1, Configure),
            (1, Refilter),
            (2, Get),
            (2, Check),
            (2, Take),
            (4, Use),
            (1, Release),
            (12, Step),
            (3, Flush),
            (1, Runs),
            (1, Compact),
            (3, Sync),
            (2, Feed),
            (1, Checkpoint),
            (3, Arm),
            (2, Reopen),
        ],
        keys: &[40],
        troubles: FAULTS,
        calls: 40,
        ends: &[|_| End::Close, |_| End::Kill],
        ..ALL
    },
    // Short histories with a death in most of their calls.
    Profile {
        name: "deaths",
        cases: 450,
        steps: 10..60,
        weights: &[
            (30, Write),
            (20, Batch),
            (2, Ingest),
            (2, Create),
            (1, Drop),
            (1, Configure),
            (12, Step),
            (3, Flush),
            (1, Runs),
            (1, Compact),
            (3, Sync),
            (1, Clock),
            (2, Feed),
            (1, Checkpoint),
            (12, Arm),
            (2, Reopen),
        ],
        keys: &[40],
        lens: &[0..120, 200..600, 600..1800],
        ..ALL
    },
    // Death, or a fault, at one call after the other; so many that each kind of call is struck.
    Profile { name: "deaths_everywhere", cases: 40, every: 7, ..EVERYWHERE },
    Profile { name: "faults_everywhere", cases: 40, every: 7, troubles: FAULTS, ..EVERYWHERE },
    Profile {
        name: "queues",
        cases: 100,
        steps: 100..700,
        weights: &[
            (40, Queue),
            (3, Write),
            (3, Stretch),
            (6, Take),
            (30, Use),
            (3, Release),
            (6, Step),
            (2, Flush),
            (2, Compact),
            (1, Check),
            (1, Reopen),
        ],
        changes: [10, 0, 0, 5, 2, 0, 0],
        keys: &[40, 300],
        lens: &[0..20, 0..1],
        shapes: &[Shape::Decimal, Shape::Sensors],
        kinds: plain,
        settles: true,
        of_transactions: 0,
        ..ALL
    },
    Profile {
        name: "prefixes",
        cases: 60,
        steps: 200..800,
        weights: &[
            (45, Write),
            (20, Prefix),
            (2, Take),
            (6, Use),
            (12, Step),
            (2, Flush),
            (1, Compact),
            (1, Configure),
            (1, Refilter),
            (1, Reopen),
        ],
        changes: [40, 0, 0, 15, 1, 1, 0],
        keys: &[600, 8000],
        lens: &[0..100, 0..10],
        shapes: &[Shape::Letters],
        kinds: |rng| vec![Kind { filter: rng.u8(0..5), prefix: rng.u8(0..6), ..plain(rng)[0] }],
        settles: true,
        ..ALL
    },
    Profile {
        name: "transactions",
        cases: 250,
        weights: &[
            (8, Write),
            (1, Batch),
            (6, Take),
            (40, Use),
            (6, Release),
            (6, Update),
            (2, Queue),
            (1, Clock),
            (4, Step),
            (1, Flush),
            (1, Ingest),
            (1, Compact),
        ],
        keys: &[8, 40],
        takes: &[|_| Take::Transaction],
        of_transactions: 8,
        ..ALL
    },
    // What a handle has read once it reads again.
    Profile {
        name: "moments",
        cases: 150,
        weights: &[
            (20, Write),
            (2, Stretch),
            (10, Clock),
            (2, Flush),
            (2, Compact),
            (2, Settle),
            (4, Check),
            (6, Take),
            (16, Use),
            (1, Release),
            (3, Amid),
        ],
        changes: [5, 25, 5, 3, 2, 0, 0],
        keys: &[60],
        lens: &[4..60, 0..10],
        ..ALL
    },
    Profile {
        name: "unlogged",
        cases: 200,
        weights: &[(60, Write), (40, Batch), (5, Step), (4, Flush), (4, Sync), (2, Configure), (4, Arm), (2, Reopen)],
        keys: &[10, 40],
        lens: &[0..60, 300..400],
        troubles: TROUBLES,
        calls: 200,
        kinds: |rng| (0..3).map(|n| Kind { wal: n == 0 || rng.u8(0..4) == 0, ..any_kind(rng) }).collect(),
        ..ALL
    },
    Profile {
        name: "feed",
        cases: 150,
        weights: &[
            (30, Write),
            (20, Batch),
            (1, Ingest),
            (1, Create),
            (1, Drop),
            (16, Feed),
            (6, Sync),
            (4, Flush),
            (8, Step),
            (3, Reopen),
            (1, Arm),
        ],
        keys: &[40],
        lens: &[0..60, 100..300],
        troubles: TROUBLES,
        ..ALL
    },
    Profile {
        name: "refresh",
        cases: 90,
        weights: &[
            (40, Write),
            (8, Batch),
            (2, Ingest),
            (2, Create),
            (1, Drop),
            (1, Configure),
            (1, Clock),
            (8, Step),
            (4, Flush),
            (2, Compact),
            (3, Refresh),
            (12, Amid),
            (2, Take),
            (4, Use),
            (1, Arm),
            (1, Reopen),
        ],
        keys: &[40],
        takes: &[|_| Take::SnapshotBeside],
        troubles: &[|_| Trouble::Kill],
        ends: &[|_| End::Close, |_| End::Kill],
        ..ALL
    },
    Profile {
        name: "ingests",
        cases: 100,
        weights: &[
            (10, Write),
            (12, Ingest),
            (6, Step),
            (2, Flush),
            (1, Compact),
            (4, Take),
            (6, Use),
            (2, Check),
            (3, Amid),
            (3, Arm),
            (1, Reopen),
        ],
        changes: [20, 3, 10, 6, 2, 1, 0],
        keys: &[40],
        troubles: TROUBLES,
        ..ALL
    },
    Profile {
        name: "checkpoints",
        cases: 80,
        weights: &[
            (40, Write),
            (10, Batch),
            (1, Create),
            (1, Drop),
            (8, Step),
            (2, Flush),
            (1, Compact),
            (1, Sync),
            (4, Checkpoint),
            (1, Image),
            (1, Reopen),
        ],
        keys: &[300],
        ..ALL
    },
    // Copies beside their originals: files that they share are of each.
    Profile {
        name: "copies",
        cases: 40,
        steps: 200..500,
        weights: &[
            (30, Write),
            (10, Batch),
            (1, Create),
            (1, Drop),
            (8, Step),
            (3, Flush),
            (1, Compact),
            (1, Sync),
            (1, Verify),
            (2, Checkpoint),
            (2, Reopen),
        ],
        keys: &[300],
        ends: &[|_| End::Close, |_| End::Drop, |_| End::Kill],
        stores: Stores::Copies,
        ..ALL
    },
    // 256 stores in one environment.
    Profile {
        name: "environment",
        cases: 2,
        steps: 9000..10000,
        weights: &[(50, Write), (2, Batch), (6, Step), (12, Get), (2, Flush), (2, Settle), (4, Reopen)],
        changes: [25, 0, 0, 4, 0, 0, 0],
        keys: &[300],
        shapes: &[Shape::Decimal],
        lens: &[0..2000, 0..200],
        ends: &[|_| End::Close, |_| End::Kill],
        kinds: |rng| vec![Kind { block: 512, ..plain(rng)[0] }],
        setup: |setup| (setup.memtable, setup.table) = (64 << 10, 16 << 10),
        stores: Stores::Shared,
        ..ALL
    },
    // Every combination of damage.
    Profile {
        name: "damage",
        cases: 100,
        steps: 40..220,
        weights: &[
            (30, Write),
            (30, Batch),
            (1, Flush),
            (1, Compact),
            (1, Sync),
            (5, Step),
            (1, Take),
            (1, Use),
            (2, Damage),
            (1, Reopen),
        ],
        changes: [20, 3, 0, 10, 0, 0, 0],
        keys: &[160],
        lens: &[5..40, 0..1],
        takes: &[|draw| Take::Iter(draw.span())],
        ends: &[|_| End::Close, |_| End::Kill],
        kinds: plain,
        ..ALL
    },
];

macro_rules! tests {
    ($($test:ident)*) => {$(
        #[test]
        fn $test() {
            run(PROFILES.iter().find(|profile| profile.name == stringify!($test)).expect("it is in the list"));
        }
    )*};
}

tests! {
    all map lives threads faults deaths deaths_everywhere faults_everywhere queues prefixes transactions moments unlogged feed refresh ingests checkpoints copies environment damage
}

#[test]
fn one_seed_is_one_history() {
    (0..20).for_each(|seed| sweep::check_repeats(&ALL, seed));
}
