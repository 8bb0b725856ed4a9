//! Do the entries of a small store stay in its logs when it is closed, and are they as safe there
//! as in tables? Random histories of closed, killed and damaged stores are in `tests/histories`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tamis::inspect::Inspector;
use tamis::operator::Add;
use tamis::vfs::SimFileSystem;
use tamis::{ByteOrder, Db, Error, KeyspaceOptions, Options, RepairOptions, WriteBatch, WriteOptions};

use crate::support::{WAL_MODES, count_entries, stepped_options};

/// As many logs may stay.
const MOST_LOGS: usize = 8;

fn options(fs: &SimFileSystem) -> Options {
    stepped_options(fs).0.memtable_size(256 << 10)
}

fn open(fs: &SimFileSystem) -> Db {
    options(fs).open("/db").unwrap()
}

fn files(fs: &SimFileSystem, kind: &str) -> Vec<PathBuf> {
    fs.paths().into_iter().filter(|path| path.extension().is_some_and(|of| of == kind)).collect()
}

fn key(n: u32) -> String {
    format!("key{n:04}")
}

/// The store is opened, changed and closed once for each of these numbers.
fn put_in_turn(fs: &SimFileSystem, numbers: impl IntoIterator<Item = u32>) {
    for n in numbers {
        let db = open(fs);
        db.put(key(n), "v").unwrap();
        db.close().unwrap();
    }
}

#[test]
fn a_thousand_processes_that_write_one_entry_make_few_files() {
    for mode in WAL_MODES {
        let fs = SimFileSystem::new();
        let (mut made, mut most) = (BTreeSet::new(), 0);
        for n in 0..1000 {
            let db = options(&fs).wal_mode(mode).open("/db").unwrap();
            assert_eq!(db.get(key(n / 2)).unwrap().is_some(), n > 0);
            db.put(key(n), "v").unwrap();
            if n % 10 == 0 {
                db.wait_for_compactions().unwrap();
            }
            db.close().unwrap();
            made.extend(files(&fs, "sst"));
            most = most.max(fs.paths().len());
            assert!(files(&fs, "wal").len() <= MOST_LOGS, "{n}");
        }
        // One for each 9 logs, and what they are merged to.
        assert!((1000 / 9..=1000 / 6).contains(&made.len()), "{} tables", made.len());
        // Beside them CURRENT, LOCK, a manifest, and the runs of level 0 and below.
        assert!(most <= MOST_LOGS + 3 + 24, "{most} files");
        assert_eq!(count_entries(open(&fs).iter()), 1000);
    }
}

#[test]
fn processes_that_are_killed_leave_as_few_files() {
    let mut fs = SimFileSystem::new();
    for n in 0..300 {
        let db = open(&fs);
        db.put_with(key(n), "v", WriteOptions::new().sync(n % 5 == 0)).unwrap();
        match n % 3 {
            0 => {
                db.wait_for_compactions().unwrap();
                db.close().unwrap();
            }
            1 => fs = fs.kill(),
            _ => {
                db.sync().unwrap();
                fs = fs.crash(u64::from(n));
            }
        }
        // The last process may have got no further.
        assert!(fs.paths().len() <= MOST_LOGS + 20, "{n}: {:?}", fs.paths());
    }
    assert_eq!(count_entries(open(&fs).iter()), 300);
}

#[test]
fn what_stays_in_a_log_is_durable_and_its_store_goes_on() {
    let fs = SimFileSystem::new();
    put_in_turn(&fs, 0..5);
    assert_eq!((files(&fs, "wal").len(), files(&fs, "sst").len()), (5, 0));
    for seed in 0..20 {
        let cut = fs.crash(seed);
        let db = open(&cut);
        assert_eq!(count_entries(db.iter()), 5);
        let stats = db.stats();
        assert_eq!((db.synced_seqno(), stats.flushed_seqno, stats.flushes), (5, 0, 0), "it is known to be durable");
        // Neither a look at the store nor a sync makes a file.
        db.sync().unwrap();
        db.close().unwrap();
        assert_eq!((files(&cut, "wal").len(), files(&cut, "sst").len()), (5, 0));
        let db = open(&cut);
        db.put(key(5), "v").unwrap();
        db.flush().unwrap();
        assert_eq!((db.flushed_seqno(), files(&cut, "sst").len()), (6, 1));
        assert!(files(&cut, "wal").len() <= 1, "{:?}", cut.paths());
        assert_eq!(count_entries(open(&cut.crash(seed)).iter()), 6);
    }
}

#[test]
fn a_flush_of_recovered_entries_alone_begins_no_log_that_follows_none() {
    let fs = SimFileSystem::new();
    put_in_turn(&fs, 0..2);
    let db = options(&fs).keep_log(1 << 20, Duration::MAX).open("/db").unwrap();
    db.flush().unwrap();
    db.put(key(2), "v").unwrap();
    db.close().unwrap();
    let inspector = Inspector::on(Arc::new(fs.clone()));
    let logs = files(&fs, "wal");
    for pair in logs.windows(2) {
        let number = inspector.log(&pair[0]).unwrap().header().unwrap().number;
        assert_eq!(inspector.log(&pair[1]).unwrap().header().unwrap().previous, number);
    }
    let db = options(&fs).keep_log(1 << 20, Duration::MAX).open("/db").unwrap();
    assert_eq!(db.changes_since(0).unwrap().map(|batch| batch.unwrap().last_seqno()).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn entries_of_all_kinds_stay_in_logs_and_those_without_a_log_in_tables() {
    let fs = SimFileSystem::new();
    let now = || UNIX_EPOCH + Duration::from_secs(1000);
    let open = || options(&fs).clock(now).merge_operator(Add(ByteOrder::Little)).open("/db").unwrap();
    let counters =
        |db: &Db| db.keyspace_with("counters", KeyspaceOptions::new().merge_operator(Add(ByteOrder::Little))).unwrap();
    let large = |db: &Db| db.keyspace_with("large", KeyspaceOptions::new().separate_values(100)).unwrap();
    let sessions = |db: &Db| db.keyspace_with("sessions", KeyspaceOptions::new().ttl(Duration::from_secs(60))).unwrap();
    let check = |db: &Db, round: u8| {
        assert_eq!(counters(db).get("n").unwrap().as_deref(), Some(&i64::from(round + 1).to_le_bytes()[..]));
        assert_eq!(large(db).get([round]).unwrap().as_deref(), Some(&[round; 500][..]));
        assert_eq!(count_entries(db.iter()), 1, "round {round}");
        let (_, deadline) = sessions(db).get_with_expiry([round]).unwrap().unwrap();
        assert_eq!(deadline, Some(now() + Duration::from_secs(60)));
    };
    for round in 0..6u8 {
        let db = open();
        // As a batch: a log that lacks a feature of a later write ends, and is flushed.
        let mut batch = WriteBatch::new();
        batch.merge_in(&counters(&db), "n", 1i64.to_le_bytes());
        batch.put_in(&large(&db), [round], [round; 500]);
        batch.put([b'a', round], "v");
        batch.put([b'b', round], "v");
        batch.delete([b'b', round]);
        // The entries of earlier processes.
        batch.delete_range([b'a', 0]..[b'a', round]);
        batch.put_in(&sessions(&db), [round], "v");
        db.write(batch).unwrap();
        check(&db, round);
        db.close().unwrap();
        assert_eq!((files(&fs, "sst").len(), files(&fs, "val").len()), (0, 0));
        check(&options(&fs).clock(now).merge_operator(Add(ByteOrder::Little)).open_read_only("/db").unwrap(), round);
    }
    let db = open();
    let unlogged = db.keyspace_with("unlogged", KeyspaceOptions::new().wal(false)).unwrap();
    unlogged.put("k", "v").unwrap();
    db.close().unwrap();
    assert!(!files(&fs, "sst").is_empty(), "no log has the entry");
    let db = open();
    assert_eq!(db.keyspace("unlogged").unwrap().get("k").unwrap().as_deref(), Some(&b"v"[..]));
    check(&db, 5);
    // Its entries are in tables: the others may stay.
    let tables = files(&fs, "sst");
    db.put([b'a', 5], "w").unwrap();
    db.close().unwrap();
    assert_eq!(files(&fs, "sst"), tables);
    check(&open(), 5);
}

#[test]
fn long_logs_are_flushed_when_the_store_is_closed() {
    let fs = SimFileSystem::new();
    for (len, is_flushed) in [(48 << 10, false), (8 << 10, false), (16 << 10, true)] {
        let db = open(&fs);
        db.put(len.to_string(), vec![7; len]).unwrap();
        db.close().unwrap();
        assert_eq!(!files(&fs, "sst").is_empty(), is_flushed, "{len}");
    }
    assert_eq!(count_entries(open(&fs).iter()), 3);
}

#[cfg(unix)]
#[test]
fn a_log_that_stays_takes_no_more_space_than_its_records() {
    use std::os::unix::fs::MetadataExt;

    let dir = tempfile::tempdir().unwrap();
    for (mode, n) in WAL_MODES.into_iter().zip(0..) {
        let db = Options::new().wal_mode(mode).open(dir.path().join("db")).unwrap();
        db.put(key(n), "v").unwrap();
        db.close().unwrap();
    }
    let files = std::fs::read_dir(dir.path().join("db")).unwrap().map(Result::unwrap);
    let logs: Vec<_> = files.filter(|file| file.path().extension().is_some_and(|of| of == "wal")).collect();
    assert_eq!(logs.len(), 2);
    for log in logs {
        // The file system may need a block to say where the others are.
        assert!(log.metadata().unwrap().blocks() * 512 <= 16 << 10, "{log:?}");
    }
    assert_eq!(count_entries(Db::open(dir.path().join("db")).unwrap().iter()), 2);
}

/// Whether opening the store fails because of damage.
fn is_refused(fs: &SimFileSystem) -> bool {
    let results = [options(fs).open("/db"), options(&fs.kill()).open_read_only("/db")];
    let refused = results.map(|result| match result {
        Err(Error::Corruption { .. }) => true,
        Err(error) => panic!("{error}"),
        Ok(_) => false,
    });
    assert_eq!(refused[0], refused[1]);
    refused[0]
}

#[test]
fn damage_in_any_log_that_stays_is_reported_and_repaired() {
    for mode in WAL_MODES {
        let fs = SimFileSystem::new();
        for n in 0..4 {
            let db = options(&fs).wal_mode(mode).open("/db").unwrap();
            // Every other log, the last one too, is named for a sync before its last entry.
            db.put_with(key(2 * n), "v", WriteOptions::new().sync(n % 2 == 1)).unwrap();
            db.put(key(2 * n + 1), "v").unwrap();
            db.close().unwrap();
        }
        let logs = files(&fs, "wal");
        assert_eq!(logs.len(), 4);
        for log in &logs {
            let mut records = Vec::new();
            let mut file = Inspector::on(Arc::new(fs.clone())).log(log).unwrap();
            while let Some(record) = file.next_record().unwrap() {
                records.extend((record.count > 0).then_some(record.offset));
            }
            assert_eq!(records.len(), 2);
            for offset in records {
                let damaged = fs.kill();
                damaged.corrupt(log, offset + 2, 1).unwrap();
                assert!(is_refused(&damaged), "{log:?} at {offset}");
                let cut = fs.kill();
                cut.truncate(log, offset).unwrap();
                assert!(is_refused(&cut), "{log:?} ends at {offset}");
                let file_system = Arc::new(damaged.clone());
                let report = tamis::repair(Path::new("/db"), RepairOptions::new().file_system(file_system)).unwrap();
                assert!(report.has_losses());
                assert!(count_entries(open(&damaged).iter()) >= 6);
            }
            let gone = fs.kill();
            tamis::vfs::FileSystem::remove(&gone, log).unwrap();
            assert!(is_refused(&gone), "{log:?} is gone");
        }
        // Without the manifest, a repair finds all of it.
        tamis::vfs::FileSystem::remove(&fs, Path::new("/db/CURRENT")).unwrap();
        let file_system = Arc::new(fs.clone());
        let report = tamis::repair(Path::new("/db"), RepairOptions::new().file_system(file_system)).unwrap();
        assert!(!report.has_losses(), "{report}");
        assert_eq!(count_entries(open(&fs).iter()), 8);
    }
}

#[test]
fn a_torn_tail_in_a_log_that_stays_is_no_damage() {
    for seed in 0..40 {
        let fs = SimFileSystem::new();
        put_in_turn(&fs, 0..2);
        // A power cut tears what comes after the last sync.
        let db = open(&fs);
        db.put_with(key(2), "v", WriteOptions::new().sync(true)).unwrap();
        for n in 3..40 {
            db.put(key(n), [1; 300]).unwrap();
        }
        let fs = fs.crash(seed);
        let found = count_entries(open(&fs.kill()).iter());
        assert!((3..=40).contains(&found));
        // The torn log stays beside later ones, again and again.
        for n in 0..3 {
            let db = open(&fs);
            assert_eq!(count_entries(db.iter()), found + n, "{seed}");
            db.put(format!("later{n}"), "v").unwrap();
            db.close().unwrap();
            assert!(!is_refused(&fs.crash(seed)));
        }
        assert_eq!(count_entries(open(&fs.crash(seed)).iter()), found + 3);
    }
}

#[test]
fn a_store_in_logs_is_copied_and_its_changes_are_read() {
    let fs = SimFileSystem::new();
    put_in_turn(&fs, 0..3);
    let db = open(&fs);
    assert_eq!(db.changes_since(0).unwrap().map(|batch| batch.unwrap().last_seqno()).collect::<Vec<_>>(), [1, 2, 3]);
    db.put(key(3), "v").unwrap();
    db.checkpoint("/copy").unwrap();
    db.close().unwrap();
    for seed in 0..5 {
        let copied = options(&fs.crash(seed)).open("/copy").unwrap();
        assert_eq!((count_entries(copied.iter()), copied.stats().flushes), (4, 0));
        copied.put(key(4), "v").unwrap();
        copied.close().unwrap();
    }
    let reader = options(&fs).open_read_only("/db").unwrap();
    assert_eq!(count_entries(reader.iter()), 4);
    // Each process begins a log; the reader goes on from log to log, and to the table.
    for n in 4..60 {
        put_in_turn(&fs, [n]);
        reader.refresh().unwrap();
        assert_eq!(count_entries(reader.iter()), n as usize + 1);
    }
    assert!(!files(&fs, "sst").is_empty());
}
