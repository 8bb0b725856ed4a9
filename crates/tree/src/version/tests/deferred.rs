//! Merges whose range filters defer seeks, beside a sorted list: keys of many kinds in many
//! versions, blocks of 256 bytes, with and without limits, and reads that fail.

use super::*;
use crate::sorted::files::ReadMode;
use crate::vfs::{Fault, FaultMode};

/// Keys in order, of one of six kinds.
fn keys_of(random: &mut fastrand::Rng) -> Vec<Vec<u8>> {
    let bytes = |random: &mut fastrand::Rng, most: usize, of: &[u8]| -> Vec<u8> {
        (0..random.usize(..most)).map(|_| *random.choice(of).unwrap()).collect()
    };
    let (kind, count, step) = (random.u8(..6), random.u64(1..200), random.u64(1..9));
    let mut keys: Vec<Vec<u8>> = (0..count)
        .map(|i| match kind {
            0 => bytes(random, 5, &[0, 1, b'a', b'b', 0xfe, 0xff]),
            1 => [b"shared/by/many/".to_vec(), bytes(random, 4, b"\0az\xff")].concat(),
            2 => (i * step).to_be_bytes().to_vec(),
            3 => random.u64(..).to_be_bytes().to_vec(),
            4 => vec![0xff; random.usize(..24)],
            _ => format!("user{:06}", random.u32(..5000)).into_bytes(),
        })
        .collect();
    keys.sort();
    keys.dedup();
    keys
}

/// A key of the list or near one, and a number.
fn target(list: &[CursorEntry], random: &mut fastrand::Rng) -> (Vec<u8>, SeqNo) {
    let (key, seqno, ..) = random.choice(list).unwrap();
    let mut key = key.clone();
    match random.u8(..6) {
        0 => key.push(0),
        1 => key.push(0xff),
        2 => key.truncate(random.usize(..=key.len())),
        3 => key.iter_mut().last().into_iter().for_each(|last| *last = last.wrapping_sub(1)),
        _ => {}
    }
    (key, *random.choice(&[SeqNo::MAX, 0, *seqno, seqno + 1]).unwrap())
}

/// Runs of some of the keys, newest first, and all their entries in order.
fn runs_of(
    keys: &[Vec<u8>],
    context: &Arc<TableContext>,
    random: &mut fastrand::Rng,
) -> (Vec<(u8, Arc<Table>)>, Vec<CursorEntry>) {
    let ranges = RangeFilterPolicy::Ordered { bits_per_key: *random.choice(&[4.0, 12.0, 18.0]).unwrap() };
    let options = TableOptions {
        filters: TableFilters { ranges, ..TableFilters::NONE },
        compression: Compression::None,
        block_size: 256,
        seed: SEED,
        keyspace: 0,
    };
    let (mut tables, mut all) = (Vec::new(), Vec::new());
    for (level, count, first) in [(0, 1, 5000), (0, 1, 4000), (2, 3, 3000), (6, 5, 0)] {
        let (share, most) = (random.u8(1..=8), *random.choice(&[1, 2, 30]).unwrap());
        let of_run: Vec<&Vec<u8>> = keys.iter().filter(|_| random.u8(..8) < share).collect();
        for of_table in of_run.chunks(of_run.len().div_ceil(count).max(1)) {
            let number = tables.len() as u64 + 1;
            let mut builder = TableBuilder::new(context.fs(), context.dir(), number, options).unwrap();
            for &key in of_table {
                for version in (0..random.u64(1..=most)).rev() {
                    let kind = if random.u8(..5) == 0 { ValueKind::Delete } else { ValueKind::Put };
                    let len = if kind == ValueKind::Put { random.usize(..30) } else { 0 };
                    let entry = (key.clone(), first + version, kind, vec![7; len]);
                    builder.add(&entry.0, entry.1, entry.2, &entry.3).unwrap();
                    all.push(entry);
                }
            }
            tables.push((level, Arc::new(Table::new(Arc::clone(context), builder.finish().unwrap()))));
        }
    }
    all.sort_by(|a, b| compare_entries((&a.0, a.1), (&b.0, b.1)));
    (tables, all)
}

/// Moves the merge at random, and compares where it is with `all`. Returns the number of moves that
/// ended at an entry, and of those that failed.
fn walk(
    merge: &mut MergingCursor<ScanSource>,
    all: &[CursorEntry],
    limits: &KeySpan<Vec<u8>>,
    fs: Option<&SimFileSystem>,
    random: &mut fastrand::Rng,
) -> (u64, u64) {
    let (mut found, mut failed) = (0, 0);
    let (mut at, mut forward): (Option<usize>, bool) = (None, true);
    let within = |i: usize| (i < all.len()).then_some(i);
    for _ in 0..300 {
        if let Some(fs) = fs.filter(|_| random.u8(..12) == 0) {
            fs.set_fault(Some(Fault { at: random.u64(1..4), mode: FaultMode::ReadError, sticky: false }));
        }
        let (key, seqno) = target(all, random);
        let first = all.partition_point(|entry| compare_entries((&entry.0, entry.1), (&key, seqno)).is_lt());
        let moved = match (random.u8(..12), at.filter(|_| merge.valid())) {
            (0, _) => {
                (at, forward) = (within(0), true);
                merge.seek_to_first()
            }
            (1, _) => {
                (at, forward) = (all.len().checked_sub(1), false);
                merge.seek_to_last()
            }
            (2 | 3, _) | (_, None) => {
                (at, forward) = (within(first), true);
                merge.seek(&key, seqno)
            }
            (4 | 5, _) => {
                (at, forward) = (first.checked_sub(1), false);
                merge.seek_before(&key, seqno)
            }
            (step, Some(here)) => {
                // One step in seven turns around.
                forward ^= step == 6;
                at = if forward { within(here + 1) } else { here.checked_sub(1) };
                if forward { merge.next() } else { merge.prev() }
            }
        };
        if let Err(error) = moved {
            assert!(fs.is_some() && !merge.valid() && !error.to_string().contains("denies"), "{error}");
            (at, failed) = (None, failed + 1);
            continue;
        }
        match at.map(|at| &all[at]) {
            Some((key, seqno, kind, value)) if merge.valid() => {
                assert_eq!(
                    (merge.key(), merge.seqno(), merge.kind(), merge.value()),
                    (&key[..], *seqno, *kind, &value[..])
                );
                found += 1;
            }
            // It may have ended where the next entry is outside of the limits.
            Some((key, ..)) => {
                assert!(!limits.overlaps(key, key), "{key:?} is missing");
                at = None;
            }
            None => assert!(!merge.valid()),
        }
    }
    fs.into_iter().for_each(|fs| fs.set_fault(None));
    (found, failed)
}

#[test]
fn merges_of_deferred_seeks_are_as_a_sorted_list() {
    let (mut found, mut failed, mut ledger) = (0, 0, FilterLedger::default());
    for seed in 0..150 {
        let random = &mut fastrand::Rng::with_seed(seed);
        let fs = SimFileSystem::new();
        fs.create_dir(Path::new("/db")).unwrap();
        let cache = *random.choice(&[0, 0, 2048, 8 << 20]).unwrap();
        let read_mode = if random.u8(..4) == 0 { ReadMode::Mmap } else { ReadMode::Pread };
        let context = TableContext::new(Arc::new(fs.clone()), Path::new("/db"), cache, 8).with_read_mode(read_mode);
        let (tables, all) = runs_of(&keys_of(random), &Arc::new(context), random);
        if all.is_empty() {
            continue;
        }
        let version = Version::default().edited(&[], tables);
        version.tables().for_each(|(_, table)| table.verify().unwrap());
        let filters = if random.bool() { FilterMode::Use } else { FilterMode::Shadow };
        let mode = ReadFlags { filters, fill_cache: random.bool(), values: true };
        let (a, b) = (target(&all, random).0, target(&all, random).0);
        let between = KeySpan { lower: Some(a.clone().min(b.clone())), upper: Some(a.max(b)) };
        for limits in [KeySpan { lower: None, upper: None }, between] {
            for faults in [None, Some(&fs)] {
                let merge = version.cursor(0, std::iter::empty(), mode, None);
                let walked = walk(&mut merge.with_limits(limits.borrowed()), &all, &limits, faults, random);
                (found, failed) = (found + walked.0, failed + walked.1);
            }
        }
        ledger += version.tables().map(|(_, table)| table.ledger()).sum();
    }
    let reads = ledger.reads;
    assert!(found > 50_000 && failed > 500, "{found} {failed}");
    assert!(reads.range_probes > 10_000 && reads.range_negatives > 1000, "{reads:?}");
    assert!(reads.range_probes >= reads.range_absent(), "{reads:?}");
}
