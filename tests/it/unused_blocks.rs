//! Blocks that scans enter without taking an entry from them: what a range filter could save. What
//! `explain_range` says of them.

use tamis::vfs::SimFileSystem;
use tamis::{Compression, Db, Error, FilterAnswer, KeyspaceOptions, PrefixExtractor, ReadStats, Value};

use crate::support::stepped_options;

const RUNS: u64 = 4;
const KEYS: u64 = 2_000;

fn key(n: u64) -> [u8; 8] {
    (n * 1000).to_be_bytes()
}

/// A store of four runs of `KEYS` keys, which `number` gives for the run and a number in it.
fn store_of(number: impl Fn(u64, u64) -> u64) -> (SimFileSystem, Db) {
    let fs = SimFileSystem::new();
    let (options, _) = stepped_options(&fs);
    let keyspace = KeyspaceOptions::new().compression(Compression::None).block_size(512);
    let db = options.cache_size(0).default_keyspace(keyspace).open("/db").unwrap();
    for run in 0..RUNS {
        (0..KEYS).for_each(|n| _ = db.put(key(number(run, n)), [7; 30]).unwrap());
        db.flush().unwrap();
    }
    assert_eq!(db.stats().keyspaces[0].levels[0].tables.len(), 4);
    (fs, db)
}

/// Run r has every fourth key, from r on.
fn store() -> (SimFileSystem, Db) {
    store_of(|run, n| n * RUNS + run)
}

/// Keys in order, as a program that counts writes them: the runs do not overlap.
fn store_in_order() -> (SimFileSystem, Db) {
    store_of(|run, n| run * KEYS + n)
}

/// What `scan` has read, by the ledger, and calls of the file system.
fn reads_of(fs: &SimFileSystem, db: &Db, scan: impl FnOnce()) -> (ReadStats, u64) {
    // Every table is open.
    let of_each_run = (0..RUNS).chain((0..RUNS).map(|run| run * KEYS));
    assert!(of_each_run.into_iter().all(|n| db.get(key(n)).unwrap().is_some()));
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
        // A block of each run, sometimes the next one too, and none where a run begins later.
        let ranges = KEYS.div_ceil(7);
        assert!((39 * ranges..42 * ranges).contains(&(10 * reads.scan_blocks_unused)), "{forward}: {reads:?}");
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

#[test]
fn a_seek_reads_one_block_where_runs_do_not_overlap() {
    let (fs, db) = store_in_order();
    let one_block = |name: &str, scan: &dyn Fn() -> Option<[u8; 8]>, expected: u64| {
        let (reads, calls) = reads_of(&fs, &db, || assert_eq!(scan(), Some(key(expected)), "{name}"));
        assert_eq!((reads.block_reads, reads.scan_blocks_unused, calls), (1, 0, 1), "{name} {expected}");
    };
    let to_key = |entry: Option<tamis::Result<(Value, Value)>>| Some((*entry?.unwrap().0).try_into().unwrap());
    let last = RUNS * KEYS - 1;
    one_block("first", &|| to_key(db.iter().next()), 0);
    one_block("last", &|| to_key(db.iter().next_back()), last);
    for run in 0..RUNS {
        for n in [0, KEYS / 2, KEYS - 1].map(|n| run * KEYS + n) {
            one_block("from", &|| to_key(db.range(key(n)..).next()), n);
            one_block("to", &|| to_key(db.range(..=key(n)).next_back()), n);
            one_block("only", &|| to_key(db.range(key(n)..=key(n)).next()), n);
            one_block("only, backward", &|| to_key(db.range(key(n)..=key(n)).next_back()), n);
        }
    }
}

#[test]
fn a_range_between_runs_is_known_to_be_empty_without_a_read() {
    let (fs, db) = store_in_order();
    let (reads, calls) = reads_of(&fs, &db, || {
        for run in 1..=RUNS {
            let between = |offset: u64| ((run * KEYS - 1) * 1000 + offset).to_be_bytes();
            assert!(db.range(between(1)..between(1000)).next().is_none());
            assert!(db.range(between(1)..between(1000)).next_back().is_none());
        }
    });
    assert_eq!((reads.block_reads, calls), (0, 0));
}

/// The separator after a block bounds what follows it.
#[test]
fn a_scan_that_ends_with_a_block_does_not_read_the_next() {
    let (fs, db) = store_in_order();
    for forward in [true, false] {
        let (mut used, mut unused) = (0, 0);
        for n in 0..200 {
            let (reads, _) = reads_of(&fs, &db, || {
                let range = db.range(key(n)..=key(n + 9));
                assert_eq!(if forward { range.count() } else { range.rev().count() }, 10);
            });
            used += reads.block_reads - reads.scan_reads_unused;
            unused += reads.scan_reads_unused;
        }
        assert!(used > 300, "many ranges span two blocks");
        assert_eq!(unused, 0, "{forward}");
    }
}

#[test]
fn an_explanation_of_a_scan_adds_up_to_the_ledger() {
    for ((fs, db), tables, read) in [(store(), 4, 4), (store_in_order(), 1, 1)] {
        for most in [1, 5, 40] {
            let (mut blocks, mut unused, mut steps) = (0, 0, 0);
            let scans = (4..RUNS * KEYS - 100).step_by(501);
            let (reads, _) = reads_of(&fs, &db, || {
                for n in scans.clone() {
                    let explained = db.explain_range(key(n).., most).unwrap();
                    assert_eq!(explained.outcome.as_ref().unwrap(), &most);
                    assert_eq!(explained.blocks_entered(), explained.block_reads(), "the store has no cache");
                    assert_eq!(explained.blocks_unused(), explained.reads_unused());
                    assert_eq!(explained.tables_opened(), 0);
                    blocks += explained.block_reads() as u64;
                    unused += explained.reads_unused() as u64;
                    steps += explained.steps.len() as u64;
                    let read: u64 = explained.steps.iter().flat_map(|step| &step.blocks).map(|b| b.visit.len).sum();
                    assert_eq!(explained.bytes_read(), read);
                }
            });
            assert_eq!((reads.block_reads, reads.scan_reads_unused), (blocks, unused), "{most}");
            let scans = scans.count() as u64;
            assert!(blocks >= read * scans && steps >= tables * scans && steps < (tables + 1) * scans, "{steps}");
        }
    }
}

#[test]
fn an_explanation_names_tables_that_were_not_needed() {
    let (_, db) = store_in_order();
    // From the last key of run 0 on: run 1 is never asked.
    let explained = db.explain_range(key(KEYS - 1)..key(2 * KEYS), 1).unwrap();
    let said: Vec<String> = explained.steps.iter().map(ToString::to_string).collect();
    assert_eq!(said, ["table opened, 1 block"]);
    let explained = db.explain_range(key(KEYS - 1)..key(2 * KEYS), 2).unwrap();
    let said: Vec<String> = explained.steps.iter().map(ToString::to_string).collect();
    assert_eq!(said, ["table opened, 1 block", "1 block"]);
    // Between them, nothing is left to ask.
    let between = (KEYS - 1) * 1000;
    let explained = db.explain_range((between + 1).to_be_bytes()..(between + 9).to_be_bytes(), 1).unwrap();
    assert_eq!((explained.outcome.unwrap(), explained.steps), (0, Vec::new()));
}

#[test]
fn an_explanation_of_a_prefix_has_the_filters_answers() {
    let fs = SimFileSystem::new();
    let (options, _) = stepped_options(&fs);
    let keyspace = KeyspaceOptions::new().prefix(PrefixExtractor::Fixed(2));
    let db = options.default_keyspace(keyspace).open("/db").unwrap();
    for run in [["aa1", "cc1"], ["aa2", "bb2"], ["aa3", "bb3"]] {
        run.iter().for_each(|key| _ = db.put(key, "").unwrap());
        db.flush().unwrap();
    }
    let explained = db.explain_range("bb".."bc", 9).unwrap();
    let answers: Vec<_> = explained.steps.iter().map(|step| (step.prefix, step.blocks.len())).collect();
    let (no, maybe) = (Some(FilterAnswer::No), Some(FilterAnswer::Maybe));
    assert_eq!(answers, [(maybe, 1), (maybe, 1), (no, 0)]);
    assert_eq!(explained.steps[2].to_string(), "table opened, filter said no, no block needed");
    assert_eq!(explained.outcome.unwrap(), 2);
}

#[test]
fn a_damaged_block_is_part_of_the_explanation() {
    let (fs, db) = store_in_order();
    let explained = db.explain_range(key(0).., 1).unwrap();
    let block = explained.steps[0].blocks[0].visit;
    let table = fs.paths().into_iter().filter(|path| path.extension().is_some_and(|end| end == "sst")).min().unwrap();
    fs.corrupt(table, block.offset + 9, 1).unwrap();
    let explained = db.explain_range(key(0).., 1).unwrap();
    assert!(matches!(explained.outcome, Err(Error::Corruption { .. })), "{explained:?}");
}
