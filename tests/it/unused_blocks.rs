//! Blocks that scans enter without taking an entry from them: what a range filter could save.

use tamis::vfs::SimFileSystem;
use tamis::{Compression, Db, KeyspaceOptions, ReadStats};

use crate::support::stepped_options;

const RUNS: u64 = 4;
const KEYS: u64 = 2_000;

fn key(n: u64) -> [u8; 8] {
    (n * 1000).to_be_bytes()
}

/// A store of four runs. Run r has every fourth key, from r on.
fn store() -> (SimFileSystem, Db) {
    let fs = SimFileSystem::new();
    let (options, _) = stepped_options(&fs);
    let keyspace = KeyspaceOptions::new().compression(Compression::None).block_size(512);
    let db = options.cache_size(0).default_keyspace(keyspace).open("/db").unwrap();
    for run in 0..RUNS {
        (0..KEYS).for_each(|n| _ = db.put(key(n * RUNS + run), [7; 30]).unwrap());
        db.flush().unwrap();
    }
    assert_eq!(db.stats().keyspaces[0].levels[0].tables.len(), 4);
    (fs, db)
}

/// What `scan` has read, by the ledger, and calls of the file system.
fn reads_of(fs: &SimFileSystem, db: &Db, scan: impl FnOnce()) -> (ReadStats, u64) {
    // Every table is open.
    assert!(db.range(key(9)..).take(9).all(|entry| entry.is_ok()));
    let before = (db.stats().reads(), fs.reads());
    scan();
    (db.stats().reads() - before.0, fs.reads() - before.1)
}

#[test]
fn blocks_of_an_empty_range_are_all_unused_and_read() {
    let (fs, db) = store();
    for forward in [true, false] {
        let (reads, calls) = reads_of(&fs, &db, || {
            for n in (0..KEYS).step_by(7) {
                let mut range = db.range((n * 4000 + 1).to_be_bytes()..(n * 4000 + 999).to_be_bytes());
                assert!(if forward { range.next() } else { range.next_back() }.is_none());
            }
        });
        // A block of each run, and the next one where the first ends before the range.
        let ranges = KEYS.div_ceil(7);
        assert!((4 * ranges..5 * ranges).contains(&reads.scan_blocks_unused), "{forward}: {reads:?}");
        assert_eq!((reads.scan_blocks_unused, calls), (reads.scan_reads_unused, reads.block_reads));
        let used = reads.block_reads - reads.scan_reads_unused;
        // Backward, an entry before the range may have to be passed to learn whose version it is.
        assert!(used <= if forward { 0 } else { ranges / 10 }, "{reads:?}");
    }
}

#[test]
fn a_seek_that_finds_an_entry_uses_the_block_of_one_run() {
    let (fs, db) = store();
    for taken in [1, 2, 4] {
        let (reads, _) = reads_of(&fs, &db, || {
            for n in (4..KEYS).step_by(7) {
                assert_eq!(db.range(key(4 * n)..).take(taken).filter(|entry| entry.is_ok()).count(), taken);
            }
        });
        let used = reads.block_reads - reads.scan_reads_unused;
        let seeks = (KEYS - 4).div_ceil(7);
        // Each entry is of another run.
        assert!(used >= seeks * taken as u64 && used < seeks * (taken as u64 + 1), "{taken}: {used} {reads:?}");
        assert!(reads.block_reads >= 4 * seeks, "{reads:?}");
    }
}

#[test]
fn a_full_scan_uses_every_block_in_both_directions() {
    let (fs, db) = store();
    let blocks = |scan: &dyn Fn() -> usize| {
        let (reads, _) = reads_of(&fs, &db, || assert_eq!(scan(), 8_000));
        (reads.block_reads > 4 * KEYS * 30 / 512, reads.scan_blocks_unused)
    };
    assert_eq!(blocks(&|| db.iter().count()), (true, 0));
    assert_eq!(blocks(&|| db.iter().rev().count()), (true, 0));
    // A cursor that turns around takes what it has passed.
    let (reads, _) = reads_of(&fs, &db, || {
        let mut cursor = db.cursor().unwrap();
        cursor.seek(key(800)).unwrap();
        (0..8).for_each(|_| assert!(cursor.next().unwrap()));
        (0..8).for_each(|_| assert!(cursor.prev().unwrap()));
        assert_eq!(cursor.key(), Some(&key(800)[..]));
    });
    assert!(reads.scan_blocks_unused < 4, "{reads:?}");
}
