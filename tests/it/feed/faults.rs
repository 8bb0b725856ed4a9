//! The feed and the kept logs after lost files and failed calls.

use std::path::PathBuf;

use tamis::operator::Add;
use tamis::vfs::{Fault, FaultMode, SimFileSystem};
use tamis::{Error, KeyspaceOptions, Options, Result, WalMode};

use super::{LONG, fill, numbers, open, options};

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
