//! Range deletes in memtables: what commits, flushes and memory cost beside many of them.

use std::sync::Arc;

use tamis::{Db, Error, Options, Snapshot, SteppedExecutor};

fn key(i: u32) -> Vec<u8> {
    format!("k{i:06}").into_bytes()
}

/// Deletes `count` overlapping ranges, with a snapshot after every tenth if `held`.
fn delete_ranges(db: &Db, count: u32, held: bool) -> Vec<Snapshot> {
    let delete = |i: u32| {
        let from = i * 7919 % count;
        db.delete_range(key(from)..key(from + 2)).unwrap();
        (held && i.is_multiple_of(10)).then(|| db.snapshot())
    };
    (0..count).filter_map(delete).collect()
}

#[test]
fn a_flush_takes_and_writes_what_the_ranges_are_however_many_snapshots_there_are() {
    let count = 1500;
    let sizes = [false, true].map(|held| {
        // Nothing is flushed before this thread waits for it.
        let db = Options::new().executor(Arc::new(SteppedExecutor::new())).open_in_memory().unwrap();
        (0..count).for_each(|i| _ = db.put(key(i), "").unwrap());
        db.flush().unwrap();
        let snapshots = delete_ranges(&db, count, held);
        let expected: Vec<usize> = snapshots.iter().map(|snapshot| snapshot.keys(..).count()).collect();
        let memory = db.stats().memory.memtables;
        db.flush().unwrap();
        let ranges = &db.stats().keyspaces[0].range_deletes;
        assert_eq!(ranges.in_memory, 0);
        assert!(ranges.in_tables < 2 * u64::from(count), "{}", ranges.in_tables);
        for (snapshot, expected) in snapshots.iter().zip(expected) {
            assert_eq!(snapshot.keys(..).count(), expected);
        }
        assert!(db.is_empty().unwrap());
        memory
    });
    assert!(sizes[1] > sizes[0] + (1 << 20), "what snapshots keep of the ranges is counted: {sizes:?}");
}

/// What a transaction reads, of the keys 2 to 6.
#[derive(Clone, Copy, Debug)]
enum Read {
    Key(u32),
    Range(u32, u32),
}

#[test]
fn a_commit_beside_range_deletes_conflicts_with_those_over_its_reads_and_no_others() {
    let reads = [Read::Key(2), Read::Key(4), Read::Key(9), Read::Range(2, 4), Read::Range(4, 9), Read::Range(8, 10)];
    let deletes: [&[(u32, u32)]; 6] =
        [&[(2, 3)], &[(2, 3), (2, 3)], &[(4, 6), (5, 7)], &[(3, 4)], &[(0, 2)], &[(20, 30)]];
    for (deletes, flushes) in deletes.iter().flat_map(|deletes| (0..3).map(move |flushes| (deletes, flushes))) {
        let db = Options::new().open_in_memory().unwrap();
        for key_of in 2..7 {
            db.put(key(key_of), "1").unwrap();
        }
        // Beside many that are older.
        (100..200).for_each(|i| _ = db.delete_range(key(i * 2)..key(i * 2 + 1)).unwrap());
        if flushes == 2 {
            db.flush().unwrap();
        }
        let mut transactions: Vec<_> = reads
            .iter()
            .map(|read| {
                let mut transaction = db.begin();
                match *read {
                    Read::Key(at) => _ = transaction.get(key(at)).unwrap(),
                    Read::Range(from, to) => transaction.range(key(from)..key(to)).for_each(|entry| _ = entry.unwrap()),
                }
                transaction.put("written", "");
                (*read, transaction)
            })
            .collect();
        for (from, to) in *deletes {
            db.delete_range(key(*from)..key(*to)).unwrap();
        }
        (100..200).for_each(|i| _ = db.delete_range(key(i * 2)..key(i * 2 + 1)).unwrap());
        if flushes > 0 {
            db.flush().unwrap();
        }
        for (read, transaction) in transactions.drain(..) {
            let (first, end) = match read {
                Read::Key(at) => (at, at + 1),
                Read::Range(from, to) => (from, to),
            };
            let meets = |(from, to): &(u32, u32)| *from < end && first < *to;
            // A range that deleted nothing may be gone after a flush.
            let was_there = |(from, to): &(u32, u32)| (*from.max(&first)..end.min(*to)).any(|at| (2..7).contains(&at));
            let conflicts = deletes.iter().any(|range| meets(range) && (flushes == 0 || was_there(range)));
            match transaction.commit() {
                Err(Error::Conflict { .. }) => assert!(conflicts, "{read:?} {deletes:?} {flushes}"),
                committed => assert!(committed.is_ok() && !conflicts, "{read:?} {deletes:?} {flushes}: {committed:?}"),
            }
        }
    }
}
