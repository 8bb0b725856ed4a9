//! Tests of memtables as the engine uses them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::format::key::{MAX_SEQNO, Window, compare_entries, head16};
use crate::iter::{Direction, InternalCursor, MergeCursor, Stamped};
use crate::memory::budget::{MemoryBudget, MemoryUse};
use crate::memory::pool::CHUNK_LEN;
use crate::ranges::{fold, steps};

const SEED: u64 = 7;

fn new(size: usize) -> Arc<Memtable> {
    Arc::new(Memtable::new(1, size, SEED, &MemtablePool::new(0)))
}

fn filled(entries: &[(u32, &[u8], SeqNo, &[u8])]) -> Arc<Memtable> {
    let memtable = new(4096);
    let mut writer = memtable.writer();
    for (keyspace, key, seqno, value) in entries {
        writer.insert(*keyspace, key, *seqno, ValueKind::Put, value);
    }
    drop(writer);
    memtable
}

fn get<'a>(memtable: &'a Memtable, keyspace: u32, key: &[u8], snapshot: SeqNo) -> Option<MemEntry<'a>> {
    memtable.get(keyspace, key, KeyHash::new(SEED, key), Window::up_to(snapshot))
}

#[test]
fn get_returns_the_newest_version_that_the_snapshot_sees() {
    let memtable = filled(&[(0, b"a", 1, b"one"), (1, b"a", 3, b"other"), (0, b"a", 5, b"five")]);
    let value = |snapshot| get(&memtable, 0, b"a", snapshot).map(|e| e.value.to_vec());
    assert_eq!(value(0), None);
    assert_eq!(value(4), Some(b"one".to_vec()));
    assert_eq!(value(9), Some(b"five".to_vec()));
    assert_eq!(get(&memtable, 1, b"a", 9).map(|e| e.seqno), Some(3));
    assert_eq!(get(&memtable, 0, b"b", 9), None);
    assert_eq!(memtable.keyspaces(), [(0, 1), (1, 1)]);
    assert_eq!(memtable.last_seqno(), 5);
    assert_eq!(memtable.entries(), 3);
}

#[test]
fn every_snapshot_finds_its_version_of_a_key_that_is_written_often() {
    let versions = if cfg!(miri) { 70 } else { 3_000 };
    let memtable = new(1 << 20);
    let mut writer = memtable.writer();
    for i in 1..=versions {
        writer.insert(0, b"k", 2 * i, ValueKind::Put, &i.to_le_bytes());
    }
    drop(writer);
    assert_eq!(get(&memtable, 0, b"k", 1), None);
    for snapshot in 2..2 * versions + 2 {
        assert_eq!(get(&memtable, 0, b"k", snapshot).map(|e| e.seqno), Some(snapshot & !1));
    }
    assert_eq!(memtable.keyspaces(), [(0, 1)]);
}

#[test]
fn what_a_memtable_keeps_beside_its_entries_is_charged() {
    let budget = MemoryBudget::unlimited();
    let pool = MemtablePool::charging(&budget, 0);
    let memtable = Arc::new(Memtable::new(1, 1 << 20, SEED, &pool));
    let mut writer = memtable.writer();
    for i in 0..200 {
        writer.insert(i / 100, &i.to_be_bytes(), u64::from(i) + 1, ValueKind::Put, b"value");
    }
    drop(writer);
    let beside = || budget.used(MemoryUse::Memtables) - pool.taken();
    assert_eq!(beside(), 0);
    // Lists the entries of both keyspaces; a cursor sorts those of its own.
    memtable.keyspaces();
    let listed = beside();
    assert!((200 * 4..=200 * 8).contains(&listed), "{listed}");
    for (keyspace, left) in [(0, listed / 2), (1, 0)] {
        memtable.cursor(keyspace).seek_to_last().unwrap();
        assert_eq!(beside(), left);
    }
    // The last two of a key stay.
    for newest in 2..50 {
        let chain = FoldedChain { newest, oldest: 1, stored: vec![0; 250], made_of: 10_000 };
        memtable.keep_folded(0, b"key", chain);
    }
    assert!((500..800).contains(&beside()), "{}", beside());
    drop(memtable);
    assert_eq!(budget.used(MemoryUse::Memtables), 0);
}

#[test]
fn cursor_stays_in_its_keyspace() {
    let memtable = filled(&[(0, b"z", 1, b""), (1, b"a", 2, b""), (1, b"b", 3, b""), (2, b"", 4, b"")]);
    let mut cursor = memtable.cursor(1);
    cursor.seek_to_last().unwrap();
    assert_eq!(cursor.key(), b"b");
    cursor.next().unwrap();
    assert!(!cursor.valid());
    cursor.seek_to_first().unwrap();
    assert_eq!(cursor.key(), b"a");
    cursor.prev().unwrap();
    assert!(!cursor.valid());
    let mut cursor = memtable.cursor(7);
    cursor.seek_to_last().unwrap();
    assert!(!cursor.valid());
}

#[test]
fn cursor_sees_entries_written_before_its_first_move() {
    let memtable = filled(&[(0, b"b", 1, b"")]);
    let mut cursor = memtable.cursor(0);
    memtable.writer().insert(0, b"a", 2, ValueKind::Put, b"");
    cursor.seek_to_first().unwrap();
    memtable.writer().insert(0, b"c", 3, ValueKind::Put, b"");
    assert_eq!(cursor.key(), b"a");
    cursor.next().unwrap();
    assert_eq!(cursor.key(), b"b");
    let mut cursor = memtable.cursor(0);
    cursor.seek_to_last().unwrap();
    assert_eq!(cursor.key(), b"c");
}

#[test]
fn large_entries_are_stored_outside_of_chunks() {
    let (key, value) = (vec![9; 3_000], vec![3; 100_000]);
    let memtable = filled(&[(0, b"k", 1, &value), (0, &key, 2, b""), (0, b"k", 3, b"small")]);
    assert_eq!(get(&memtable, 0, b"k", 2).map(|e| e.value.to_vec()), Some(value));
    assert_eq!(get(&memtable, 0, &key, 2).map(|e| e.value), Some(&b""[..]));
    let mut cursor = memtable.cursor(0);
    cursor.seek_to_last().unwrap();
    assert_eq!((cursor.seqno(), cursor.value().len()), (1, 100_000));
    assert!((103_000..110_000).contains(&memtable.used()), "{}", memtable.used());
    assert!((103_000..115_000).contains(&memtable.allocated()), "{}", memtable.allocated());
}

#[test]
fn entries_are_found_in_any_number_of_chunks() {
    // Eight entries to a chunk: more than 64 + 64 chunks.
    let memtable = new(4096);
    let value = [1; 450];
    for number in 1..=1200u64 {
        memtable.writer().insert(0, &number.to_be_bytes(), number, ValueKind::Put, &value);
    }
    assert!(memtable.allocated() > 130 * 4096);
    for number in 1..=1200u64 {
        assert_eq!(get(&memtable, 0, &number.to_be_bytes(), MAX_SEQNO).map(|e| e.seqno), Some(number));
    }
    assert_eq!(memtable.keyspaces(), [(0, 1200)]);
}

/// No insert pays for all: one that grew the whole index would make a writer wait.
#[test]
#[cfg_attr(miri, ignore = "it takes a hundred thousand keys")]
fn a_large_index_grows_part_by_part() {
    let memtable = new(48 << 20);
    let (mut number, mut longest, first) = (0u64, 0, memtable.index.grown());
    // Past three quarters of its 2^19 slots.
    while number < 440_000 {
        let before = memtable.index.grown();
        number += 1;
        memtable.writer().insert(0, &number.to_le_bytes()[..3], number, ValueKind::Delete, b"");
        longest = longest.max(memtable.index.grown() - before);
    }
    let part = (2 << 15) * size_of::<u64>();
    assert_eq!((first, longest, memtable.index.grown()), (0, part, 16 * part));
    for number in 1..=number {
        let entry = get(&memtable, 0, &number.to_le_bytes()[..3], MAX_SEQNO).expect("it was inserted");
        assert_eq!(entry.seqno, number);
    }
}

/// Small entries need a larger index than the memtable began with. The index grows, and its growth
/// counts as used.
#[test]
fn memtable_of_small_entries_is_full_before_it_takes_much_more_than_its_size() {
    let size = if cfg!(miri) { 4096 } else { 1 << 20 };
    let memtable = new(size);
    let empty = memtable.allocated();
    let mut number = 0u64;
    while memtable.used() < size {
        number += 1;
        memtable.writer().insert(0, &number.to_le_bytes()[..3], number, ValueKind::Delete, b"");
    }
    assert!(memtable.allocated() - empty <= size + size / 4 + 4096, "{} of {size}", memtable.allocated());
    for number in 1..=number {
        let entry = get(&memtable, 0, &number.to_le_bytes()[..3], MAX_SEQNO).expect("it was inserted");
        assert_eq!((entry.seqno, entry.kind), (number, ValueKind::Delete));
    }
    assert_eq!(memtable.keyspaces(), [(0, number)]);
}

#[test]
fn dropped_memtables_return_memory_to_the_pool() {
    let pool = MemtablePool::new(usize::MAX);
    let memtable = Arc::new(Memtable::new(1, 4 * CHUNK_LEN, SEED, &pool));
    memtable.writer().insert(0, b"k", 1, ValueKind::Put, b"v");
    let cursor = memtable.cursor(0);
    drop(memtable);
    assert_eq!(pool.idle(), 0);
    drop(cursor);
    assert_eq!(pool.idle(), CHUNK_LEN + CHUNK_LEN / 2);
    let memtable = Memtable::new(2, 4 * CHUNK_LEN, SEED, &pool);
    memtable.writer().insert(0, b"l", 1, ValueKind::Put, b"v");
    assert_eq!(pool.idle(), 0);
    assert_eq!(get(&memtable, 0, b"k", 1), None);
}

/// Keys whose length and order do not follow `i`.
fn key(i: u64) -> Vec<u8> {
    let bytes = i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    [&b"common/"[..], &bytes, &bytes[..(i % 8) as usize]].concat()
}

#[test]
fn readers_see_whole_entries_while_the_writer_inserts() {
    let count = if cfg!(miri) { 60 } else { 30_000u64 };
    let memtable = new(64 << 10);
    let visible = AtomicU64::new(0);
    std::thread::scope(|scope| {
        // Point reads.
        scope.spawn(|| {
            let mut rng = fastrand::Rng::with_seed(3);
            loop {
                let last = visible.load(Ordering::Acquire);
                let i = rng.u64(1..=count);
                let found = get(&memtable, 0, &key(i), last);
                assert_eq!(found.as_ref().map(|e| e.seqno), (i <= last).then_some(i));
                assert!(found.is_none_or(|e| e.value == key(i)));
                if last == count {
                    break;
                }
            }
        });
        // Full scans forward, then a few steps backward.
        scope.spawn(|| {
            loop {
                let last = visible.load(Ordering::Acquire);
                let mut cursor = memtable.cursor(0);
                let (mut seen, mut before) = (0, Vec::new());
                cursor.seek_to_first().unwrap();
                while cursor.valid() {
                    assert!(before.as_slice() < cursor.key());
                    assert_eq!(cursor.key(), cursor.value());
                    seen += u64::from(cursor.seqno() <= last);
                    before = cursor.key().to_vec();
                    cursor.next().unwrap();
                }
                assert_eq!(seen, last);
                cursor.seek_to_last().unwrap();
                for _ in 0..10.min(last) {
                    assert_eq!(cursor.key(), cursor.value());
                    cursor.prev().unwrap();
                }
                if last == count {
                    break;
                }
            }
        });
        // Seeks.
        scope.spawn(|| {
            let mut rng = fastrand::Rng::with_seed(4);
            loop {
                let last = visible.load(Ordering::Acquire);
                let mut cursor = memtable.cursor(0);
                if last > 0 {
                    let i = rng.u64(1..=last);
                    cursor.seek(&key(i), MAX_SEQNO).unwrap();
                    assert_eq!((cursor.key(), cursor.seqno()), (&key(i)[..], i));
                }
                if last == count {
                    break;
                }
            }
        });
        for i in 1..=count {
            memtable.writer().insert(0, &key(i), i, ValueKind::Put, &key(i));
            visible.store(i, Ordering::Release);
        }
    });
}

#[derive(Clone, Debug)]
enum MemtableStep {
    Insert {
        keyspace: u32,
        key: Vec<u8>,
        delete: bool,
    },
    /// Inserts `count` entries with consecutive keys.
    InsertMany {
        keyspace: u32,
        first: u16,
        count: u16,
    },
    Get {
        keyspace: u32,
        key: Vec<u8>,
        snapshot: u64,
    },
    /// Walks a new cursor from a start; a step is forward if true.
    Scan {
        keyspace: u32,
        from: ScanStart,
        steps: Vec<bool>,
    },
    Check {
        keyspace: u32,
    },
}

#[derive(Clone, Debug)]
enum ScanStart {
    First,
    Last,
    At(Vec<u8>, u64),
}

fn any_key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(0u8..3, 0..4),
        prop::collection::vec(0u8..2, 12..15).prop_map(|tail| [&b"a long prefix"[..], &tail].concat()),
        any::<u16>().prop_map(|i| format!("{:016}", i % 512).into_bytes()),
        // Equal beyond the length of a head, and different only in trailing zeros.
        (0..3u8, 0..40usize).prop_map(|(i, zeros)| [&[i; 40][..], &vec![0; zeros]].concat()),
        Just(vec![5; 900]),
    ]
}

fn any_step() -> impl Strategy<Value = MemtableStep> {
    let from = prop_oneof![
        Just(ScanStart::First),
        Just(ScanStart::Last),
        (any_key(), 0..300u64).prop_map(|(k, s)| ScanStart::At(k, s))
    ];
    prop_oneof![
        6 => (0..3u32, any_key(), any::<bool>()).prop_map(|(keyspace, key, delete)| MemtableStep::Insert { keyspace, key, delete }),
        1 => (0..3u32, 0..512u16, 0..300u16)
            .prop_map(|(keyspace, first, count)| MemtableStep::InsertMany { keyspace, first, count }),
        2 => (0..3u32, any_key(), 0..300u64).prop_map(|(keyspace, key, snapshot)| MemtableStep::Get { keyspace, key, snapshot }),
        3 => (0..3u32, from, prop::collection::vec(any::<bool>(), 0..12))
            .prop_map(|(keyspace, from, steps)| MemtableStep::Scan { keyspace, from, steps }),
        1 => (0..3u32).prop_map(|keyspace| MemtableStep::Check { keyspace }),
    ]
}

type MemtableModel = BTreeMap<(u32, Vec<u8>, Reverse<SeqNo>), (ValueKind, Vec<u8>)>;

struct Tested {
    memtable: Arc<Memtable>,
    model: MemtableModel,
    seqno: SeqNo,
}

impl Tested {
    fn insert(&mut self, keyspace: u32, key: Vec<u8>, delete: bool) {
        self.seqno += 1;
        let kind = if delete { ValueKind::Delete } else { ValueKind::Put };
        let value = if delete { Vec::new() } else { self.seqno.to_le_bytes().repeat((self.seqno % 5) as usize) };
        self.memtable.writer().insert(keyspace, &key, self.seqno, kind, &value);
        self.model.insert((keyspace, key, Reverse(self.seqno)), (kind, value));
    }

    fn entries(&self, keyspace: u32) -> Vec<(&[u8], SeqNo, ValueKind, &[u8])> {
        let entries = self.model.iter().filter(|((of, ..), _)| *of == keyspace);
        entries.map(|((_, key, seqno), (kind, value))| (&key[..], seqno.0, *kind, &value[..])).collect()
    }

    fn step(&mut self, step: MemtableStep) {
        match step {
            MemtableStep::Insert { keyspace, key, delete } => self.insert(keyspace, key, delete),
            MemtableStep::InsertMany { keyspace, first, count } => {
                (first..first + count).for_each(|i| self.insert(keyspace, format!("{i:016}").into_bytes(), false));
            }
            MemtableStep::Get { keyspace, key, snapshot } => {
                let found = get(&self.memtable, keyspace, &key, snapshot).map(|e| (e.seqno, e.kind, e.value));
                let versions = self.model.range((keyspace, key.clone(), Reverse(snapshot))..);
                let expected = versions.take_while(|((of, k, _), _)| *of == keyspace && *k == key).next();
                assert_eq!(found, expected.map(|((_, _, seqno), (kind, value))| (seqno.0, *kind, &value[..])));
            }
            MemtableStep::Scan { keyspace, from, steps } => {
                let (entries, mut cursor) = (self.entries(keyspace), self.memtable.cursor(keyspace));
                let mut at = match &from {
                    ScanStart::First => Some(0),
                    ScanStart::Last => entries.len().checked_sub(1),
                    ScanStart::At(key, seqno) => {
                        let wanted = (&key[..], Reverse(*seqno));
                        Some(entries.partition_point(|(key, seqno, ..)| (*key, Reverse(*seqno)) < wanted))
                    }
                };
                match from {
                    ScanStart::First => cursor.seek_to_first().unwrap(),
                    ScanStart::Last => cursor.seek_to_last().unwrap(),
                    ScanStart::At(key, seqno) => cursor.seek(&key, seqno).unwrap(),
                }
                for forward in steps {
                    let expected = at.and_then(|at| entries.get(at)).copied();
                    let found = cursor.valid().then(|| (cursor.key(), cursor.seqno(), cursor.kind(), cursor.value()));
                    assert_eq!(found, expected);
                    if found.is_none() {
                        break;
                    }
                    match forward {
                        true => cursor.next().unwrap(),
                        false => cursor.prev().unwrap(),
                    }
                    at = if forward { at.map(|at| at + 1) } else { at.and_then(|at| at.checked_sub(1)) };
                }
            }
            MemtableStep::Check { keyspace } => {
                let mut cursor = self.memtable.flush_cursor(keyspace);
                let mut found = Vec::new();
                cursor.seek_to_first().unwrap();
                while cursor.valid() {
                    found.push((cursor.key().to_vec(), cursor.seqno(), cursor.kind(), cursor.value().to_vec()));
                    cursor.next().unwrap();
                }
                let found: Vec<_> =
                    found.iter().map(|(key, seqno, kind, value)| (&key[..], *seqno, *kind, &value[..])).collect();
                assert_eq!(found, self.entries(keyspace));
                let keys = |keyspace| {
                    let mut keys: Vec<_> = self.entries(keyspace).iter().map(|(key, ..)| *key).collect();
                    keys.dedup();
                    keys.len() as u64
                };
                let expected: Vec<_> = (0..3).map(|id| (id, keys(id))).filter(|(_, keys)| *keys > 0).collect();
                assert_eq!(self.memtable.keyspaces(), expected);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]
    #[test]
    fn memtable_agrees_with_a_map(steps in prop::collection::vec(any_step(), 0..if cfg!(miri) { 12 } else { 60 })) {
        let mut tested = Tested { memtable: new(4096), model: MemtableModel::new(), seqno: 0 };
        for step in steps {
            tested.step(step);
        }
        (0..3).for_each(|keyspace| tested.step(MemtableStep::Check { keyspace }));
    }
}

#[test]
fn a_jump_stops_at_the_first_entry_that_is_newer_or_past_its_end() {
    let mut rng = fastrand::Rng::with_seed(3);
    let (mut jumps, mut stops) = (0, 0);
    for _ in 0..if cfg!(miri) { 4 } else { 300 } {
        let memtable = new(1 << 16);
        let mut model: Vec<(Vec<u8>, SeqNo)> = Vec::new();
        let entries = rng.u64(1..if cfg!(miri) { 60 } else { 1500 });
        let in_order = rng.bool();
        for seqno in 1..=entries {
            // Prefixes of different length, so that runs have different prefixes.
            let number = if in_order { seqno / 2 } else { rng.u64(0..200) };
            let key = [&b"prefix"[..rng.usize(5..=6)], &number.to_be_bytes()[6..]].concat();
            memtable.writer().insert(0, &key, seqno, ValueKind::Delete, b"");
            model.push((key, seqno));
            if rng.u8(0..20) == 0 {
                memtable.cursor(0).seek_to_first().unwrap();
            }
        }
        model.sort_by(|a, b| compare_entries((&a.0, a.1), (&b.0, b.1)));
        for _ in 0..20 {
            let from = rng.usize(0..model.len());
            let (forward, seen) = (rng.bool(), rng.u64(0..=entries + 1));
            let end = (rng.u8(0..5) > 0).then(|| model[rng.usize(0..model.len())].0.clone());
            let mut cursor = memtable.cursor(0);
            cursor.seek(&model[from].0, model[from].1).unwrap();
            cursor.jump(end.as_deref(), seen, forward).unwrap();
            let goes_on = |(key, seqno): &(Vec<u8>, SeqNo)| {
                let is_before = end.as_ref().is_none_or(|end| if forward { key < end } else { key >= end });
                is_before && *seqno <= seen
            };
            let mut at = Some(from);
            while let Some(here) = at.filter(|&here| model.get(here).is_some_and(goes_on)) {
                at = if forward { Some(here + 1) } else { here.checked_sub(1) };
                jumps += 1;
            }
            // From there, steps in both directions must behave as for a cursor that never jumped.
            for step in [None, Some(forward), Some(!forward), Some(!forward), Some(forward)] {
                match step {
                    None => {}
                    Some(true) => {
                        cursor.next().unwrap();
                        at = at.map(|at| at + 1);
                    }
                    Some(false) => {
                        cursor.prev().unwrap();
                        at = at.and_then(|at| at.checked_sub(1));
                    }
                }
                let expected = at.and_then(|at| model.get(at));
                let found = cursor.valid().then(|| (cursor.key().to_vec(), cursor.seqno()));
                assert_eq!(found.as_ref(), expected);
                stops += 1;
                if expected.is_none() {
                    break;
                }
            }
        }
    }
    assert!(jumps > stops || cfg!(miri));
}

#[test]
fn fast_steps_lead_to_values_of_one_version_that_are_seen_and_come_before_the_bound() {
    let mut rng = fastrand::Rng::with_seed(11);
    let (mut planned, mut refused, mut taken, mut firsts) = (0, 0, 0, 0);
    for _ in 0..if cfg!(miri) { 4 } else { 400 } {
        let memtable = new(1 << 16);
        let mut model: Vec<(Vec<u8>, SeqNo, ValueKind)> = Vec::new();
        let (entries, keys) = (rng.u64(1..if cfg!(miri) { 40 } else { 300 }), rng.u64(2..2000));
        let (prefixes, ends) = (rng.usize(1..=2), rng.usize(1..=3));
        for seqno in 1..=entries {
            let number = rng.u64(0..keys).to_be_bytes();
            // Heads that are equal though the keys are not: of 16 bytes, and with zeros at the end.
            let (prefix, end) = (&b"prefix"[..rng.usize(7 - prefixes..=6)], &b"\0\0 "[..rng.usize(0..ends)]);
            let key = [prefix, &number[rng.usize(0..3).min(2)..], end].concat();
            let kind = if rng.u8(0..8) == 0 { ValueKind::Delete } else { ValueKind::Put };
            memtable.writer().insert(0, &key, seqno, kind, &key);
            model.push((key, seqno, kind));
            if rng.u8(0..40) == 0 {
                memtable.cursor(0).seek_to_first().unwrap();
            }
        }
        model.sort_by(|a, b| compare_entries((&a.0, a.1), (&b.0, b.1)));
        for _ in 0..20 {
            let (mut at, forward) = (rng.usize(0..model.len()), rng.bool());
            let snapshot = if rng.u8(0..4) > 0 { MAX_SEQNO } else { rng.u64(0..=entries) };
            let bound = match rng.u8(0..3) {
                0 if forward => u128::MAX,
                0 => 0,
                _ => head16(&model[rng.usize(0..model.len())].0),
            };
            let mut cursor = memtable.cursor(0);
            cursor.seek(&model[at].0, model[at].1).unwrap();
            for _ in 0..5 {
                let steps = cursor.fast_steps(snapshot, bound, forward);
                planned += steps;
                for _ in 0..steps {
                    let next = Direction::new(forward).step_from(at).unwrap();
                    let (key, seqno, kind) = &model[next];
                    let versions = model.iter().filter(|(other, ..)| other == key).count();
                    let (head, is_seen) = (head16(key), *seqno <= snapshot);
                    assert!(versions == 1 && is_seen && if forward { head < bound } else { head > bound });
                    let is_taken = cursor.fast_step(forward);
                    assert_eq!(is_taken, *kind == ValueKind::Put);
                    if !is_taken {
                        refused += 1;
                        break;
                    }
                    (at, taken) = (next, taken + 1);
                    assert_eq!((cursor.key(), cursor.value()), (&key[..], &key[..]));
                }
                cursor.end_fast_steps().unwrap();
                let is_alone = |(i, other): (usize, &(Vec<u8>, SeqNo, ValueKind))| i >= at || other.0 != model[at].0;
                firsts += usize::from(cursor.is_first_of_key());
                assert!(!cursor.is_first_of_key() || model.iter().enumerate().all(is_alone));
                if forward { cursor.next() } else { cursor.prev() }.unwrap();
                match Direction::new(forward).step_from(at).filter(|&at| at < model.len()) {
                    None => assert!(!cursor.valid()),
                    Some(next) => {
                        at = next;
                        assert_eq!((cursor.key(), cursor.seqno()), (&model[at].0[..], model[at].1));
                    }
                }
                if !cursor.valid() {
                    break;
                }
            }
        }
    }
    assert!(cfg!(miri) || (taken > 15_000 && refused > 1_000 && planned > taken), "{planned}, {taken}, {refused}");
    assert!(cfg!(miri) || firsts > 5_000, "{firsts}");
}

/// Law 2: what a flush of range deletes takes grows with their number, not with that of snapshots.
#[test]
fn a_flush_orders_each_range_once_however_many_snapshots_there_are() {
    let memtable = Memtable::new(1, 1 << 20, 0, &MemtablePool::new(0));
    let mut rng = fastrand::Rng::with_seed(5);
    let (count, mut ranges) = (1000, Vec::new());
    for seqno in 1..=count {
        let (from, keyspace) = (rng.u32(0..5000), rng.u32(0..2));
        let range = (from.to_be_bytes(), (from + rng.u32(1..500)).to_be_bytes());
        let mut writer = memtable.writer();
        // Each has a snapshot of its own.
        writer.keep_ranges_if(&|_| true);
        writer.delete_range(keyspace, &range.0, &range.1, seqno);
        ranges.push((keyspace, seqno, range));
    }
    let snapshots: Vec<SeqNo> = (1..=count).collect();
    for keyspace in 0..2 {
        let written: Vec<_> =
            memtable.range_deletes(keyspace).map(|range| (range.seqno, range.start, range.end)).collect();
        let of_keyspace = ranges.iter().rev().filter(|(of, ..)| *of == keyspace);
        let expected: Vec<_> =
            of_keyspace.map(|(_, seqno, range)| (*seqno, &range.0[..], Some(&range.1[..]))).collect();
        assert_eq!(written, expected, "newest first");
        for snapshots in [&snapshots[..], &snapshots[..10], &[]] {
            steps::take();
            let folded = fold(memtable.range_deletes(keyspace).collect(), snapshots);
            assert!(folded.len() < 2 * written.len());
            assert!(steps::take() <= written.len());
        }
    }
    // All that the roots share is counted once.
    assert!(memtable.allocated() > memtable.used(), "{}", memtable.allocated());
    let (before, sorting) = (memtable.allocated(), memtable.count_sorting(1000));
    assert_eq!(memtable.allocated(), before + 1000);
    drop(sorting);
    assert_eq!(memtable.allocated(), before);
}
