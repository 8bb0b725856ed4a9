//! The feed and the kept logs after lost files, and with every k-th call failed.

use std::path::PathBuf;

use tamis::operator::Add;
use tamis::vfs::{Fault, FaultMode, SimFileSystem};
use tamis::{Changes, Db, Error, Executor, KeyspaceOptions, Options, Result, SeqNo, WalMode, WriteBatch};

use super::{LONG, fill, listed, numbers, open, options};
use crate::support::{Scene, WAL_MODES, count_from_env, for_each_seed, stepped_options};

fn logs(fs: &SimFileSystem) -> Vec<PathBuf> {
    let is_log = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "wal");
    let mut logs: Vec<_> = fs.paths().into_iter().filter(is_log).collect();
    logs.sort();
    logs
}

fn keeping(fs: &SimFileSystem) -> Options {
    options(fs).wal_mode(WalMode::Write).keep_log(1 << 20, LONG)
}

/// A log whose history was lost must not come back. Three crashes are needed: the first takes the
/// end of the log before it, so that it is void; the second one and a flush leave the log after it
/// unsynced; the third takes that one.
#[test]
fn a_void_log_is_never_given_out() {
    for is_flushed_by_open in [false, true] {
        let fs = SimFileSystem::new();
        let db = keeping(&fs).open("/db").unwrap();
        while logs(&fs).len() < 2 {
            fill(&db, 1);
        }
        fill(&db, 3);
        let fs = fs.kill();
        let [first, void] = logs(&fs).try_into().unwrap();
        fs.truncate(&first, fs.file_len(&first).unwrap() - 100).unwrap();
        let db = keeping(&fs).open("/db").unwrap();
        let end = db.last_seqno();
        for i in 0..if is_flushed_by_open { 200 } else { 40u8 } {
            db.put([i], "another history").unwrap();
        }
        let fs = fs.kill();
        let db = keeping(&fs).open("/db").unwrap();
        let last = db.last_seqno();
        assert!(last >= end + 40);
        db.flush().unwrap();
        // Nothing but what was found could have been lost.
        let fs = fs.kill();
        for log in logs(&fs).into_iter().filter(|log| *log > void) {
            fs.truncate(&log, 0).unwrap();
        }
        let db = keeping(&fs).open("/db").unwrap();
        assert_eq!(db.last_seqno(), last);
        for since in 0..last {
            let Err(error) = db.changes_since(since).and_then(|changes| changes.collect::<Result<Vec<_>>>()) else {
                panic!("changes since {since} are gone")
            };
            assert!(matches!(error, Error::LogGone { .. } | Error::InvalidArgument(_)), "{error}");
        }
    }
}

#[test]
fn an_unreadable_kept_log_fails_the_open_and_stays() {
    let fs = SimFileSystem::new();
    let db = keeping(&fs).open("/db").unwrap();
    fill(&db, 60);
    db.close().unwrap();
    let kept = logs(&fs);
    assert!(kept.len() > 3);
    let mut failed = 0;
    for at in 1.. {
        fs.set_fault(Some(Fault { at, mode: FaultMode::ReadError, sticky: false }));
        let result = keeping(&fs).open("/db");
        let is_hit = fs.fault_hit();
        fs.set_fault(None);
        assert_eq!(logs(&fs)[..kept.len()], kept, "read {at}");
        match result {
            Ok(db) => {
                assert_eq!(numbers(&mut db.changes_since(0).unwrap()).len(), 60, "read {at}");
                db.close().unwrap();
            }
            Err(Error::Io { path, .. }) => failed += u64::from(kept.contains(&path)),
            Err(error) => panic!("read {at}: {error}"),
        }
        if !is_hit {
            break;
        }
    }
    assert!(failed >= kept.len() as u64, "{failed}");
    fs.set_fault(Some(Fault { at: 1, mode: FaultMode::ReadError, sticky: true }));
    assert!(keeping(&fs).open("/db").is_err());
    fs.set_fault(None);
    // Without the option, nobody reads them.
    assert_eq!(open(&fs).stats().log.kept_bytes, 0);
}

/// A first write that finds no space leaves a log without a header. The next one may need a feature
/// that the header must state.
#[test]
fn a_log_without_a_header_breaks_no_chain() {
    let fs = SimFileSystem::new();
    let with_operator = || KeyspaceOptions::new().merge_operator(Add::LITTLE);
    let options = || keeping(&fs).default_keyspace(with_operator());
    let db = options().open("/db").unwrap();
    fill(&db, 20);
    db.close().unwrap();
    let db = options().open("/db").unwrap();
    let before = logs(&fs).len();
    fs.set_capacity(Some(0));
    assert!(db.put("a", "1").unwrap_err().is_no_space());
    fs.set_capacity(None);
    assert_eq!(logs(&fs).len(), before + 1);
    db.merge("sum", 5u64.to_le_bytes()).unwrap();
    assert_eq!(logs(&fs).len(), before + 1);
    db.close().unwrap();
    let db = options().open("/db").unwrap();
    assert_eq!(db.changes_since(0).unwrap().map(|batch| batch.unwrap().last_seqno()).last(), Some(61));
    assert_eq!(db.changes_since(0).unwrap().count(), 21);
}

#[test]
fn a_reader_of_a_store_that_takes_no_more_writes_fails_once_it_has_read_all() {
    for visible in [false, true] {
        let fs = SimFileSystem::new();
        let db = open(&fs);
        db.put("a", "1").unwrap();
        db.sync().unwrap();
        let changes = db.changes_since(0).unwrap();
        let mut changes = if visible { changes.visible() } else { changes };
        fs.set_fault(Some(Fault { at: 1, mode: FaultMode::Io, sticky: false }));
        assert!(db.put("b", "2").and_then(|_| db.sync()).is_err());
        fs.set_fault(None);
        assert_eq!(changes.next_timeout(LONG).unwrap().unwrap().last_seqno(), 1);
        let end = (0..2).find_map(|_| changes.next_timeout(LONG).err());
        assert!(matches!(end, Some(Error::Poisoned(_))), "{end:?}");
    }
}

/// What each number was, as the writer knows it.
type Written = Vec<(SeqNo, SeqNo, Vec<u8>)>;

fn write(db: &Db, rng: &mut fastrand::Rng, written: &mut Written) -> Result<()> {
    let mut batch = WriteBatch::new();
    let value = vec![rng.u8(..); rng.usize(1..300)];
    let count = rng.u64(1..4);
    (0..count).for_each(|_| batch.put([rng.u8(..)], &value));
    let last = db.write(batch)?;
    written.push((last - count + 1, last, value));
    Ok(())
}

/// Reads what there is. A batch is what was written with its numbers, and follows the one before.
fn read(changes: &mut Changes, written: &Written) -> Result<()> {
    loop {
        let since = changes.seqno();
        let Some(batch) = changes.next_timeout(std::time::Duration::ZERO)? else { return Ok(()) };
        assert_eq!(batch.first_seqno(), since + 1);
        let value = listed(&batch).pop().unwrap().3.unwrap();
        let found = (batch.first_seqno(), batch.last_seqno(), value);
        // A write that failed may have come to the log.
        let is_known = written.binary_search_by_key(&found.0, |known| known.0);
        assert!(is_known.is_err() || written[is_known.unwrap()] == found, "{batch:?}");
    }
}

/// Every k-th call fails, k = 1, 2, …, under a writer and two readers, through rotations, flushes
/// and reopening. The readers fail or wait, and miss nothing.
#[test]
fn every_failed_call_leaves_the_feed_whole() {
    const MODES: [FaultMode; 4] = [FaultMode::Io, FaultMode::NoSpace, FaultMode::ShortWrite, FaultMode::ReadError];
    for_each_seed(count_from_env("TAMIS_SEEDS", 8), |seed| {
        for at in 1.. {
            let fault = Fault { at, mode: MODES[(seed % 4) as usize], sticky: seed / 4 % 2 == 1 };
            let _scene = Scene(format!("{fault:?}"));
            let mut rng = fastrand::Rng::with_seed(seed);
            let fs = SimFileSystem::new();
            let open = || {
                let (options, executor) = stepped_options(&fs);
                let options = options.memtable_size(4096).wal_mode(WAL_MODES[(seed / 2 % 2) as usize]);
                options.keep_log(1 << 30, LONG).open("/db").map(|db| (db, executor))
            };
            let mut written = Written::new();
            fs.set_fault(Some(fault));
            let run = |rng: &mut fastrand::Rng, written: &mut Written| -> Result<()> {
                for _ in 0..2 {
                    let (db, executor) = open()?;
                    let (mut durable, mut visible) = (db.changes_since(0)?, db.changes_since(0)?.visible());
                    for _ in 0..10 {
                        let done = match rng.u8(0..6) {
                            0 => db.sync(),
                            1 => db.flush(),
                            2 => Ok(_ = executor.step()),
                            _ => write(&db, rng, written),
                        };
                        for changes in [&mut durable, &mut visible] {
                            // An error is repeated or passes; it skips nothing.
                            let _ = read(changes, written);
                        }
                        done?;
                    }
                    db.close()?;
                }
                Ok(())
            };
            if let Err(error) = run(&mut rng, &mut written) {
                assert!(matches!(error, Error::Io { .. } | Error::Poisoned(_)), "{error}");
            }
            let is_hit = fs.fault_hit();
            fs.set_fault(None);
            let (db, _) = open().unwrap();
            db.sync().unwrap();
            let mut changes = db.changes_since(0).unwrap();
            read(&mut changes, &written).unwrap();
            assert_eq!(changes.seqno(), db.last_seqno());
            assert!(written.last().is_none_or(|last| last.1 <= db.last_seqno()));
            if !is_hit {
                return;
            }
        }
    });
}
