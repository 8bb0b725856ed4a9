//! Does a fork of the process leave the store to its parent?
//!
//! A child has a copy of every handle, and shares the files. What it drops, closes or writes must
//! change nothing, and must not wait for threads that only the parent has.

use std::process::Command;
use std::time::Duration;

use tamis::inspect::Inspector;
use tamis::{Db, Environment, EnvironmentOptions, Error, Options, WalMode, WriteOptions};

use crate::support::Watchdog;

const DIR: &str = "TAMIS_FORK_DIR";
const MODE: &str = "TAMIS_FORK_WAL";
/// Writes before, during and after the child's life.
const PART: u32 = 500;
/// How a child ends that has found all as it should be.
const RIGHT: i32 = 42;

fn options(mode: &str) -> Options {
    let mode = if mode == "auto" { WalMode::Auto } else { WalMode::Write };
    Options::new().wal_mode(mode).memtable_size(1 << 20)
}

fn write_part(db: &Db, part: u32) {
    for i in part * PART..(part + 1) * PART {
        db.put_with(i.to_be_bytes(), [7; 300], WriteOptions::new().sync(i % 100 == 99)).unwrap();
    }
}

/// What a child does to its copies; `true` if all is as it should be.
fn misuse(db: Db, environment: Environment) -> bool {
    let is_forked = |result: Result<(), Error>| matches!(result, Err(Error::Forked(_)));
    let mut is_right = is_forked(db.put("child", "").map(drop)) && is_forked(db.sync());
    is_right &= is_forked(db.flush()) && is_forked(db.compact_range(..));
    is_right &= is_forked(db.keyspace("child").map(drop))
        && is_forked(db.fetch_add("child", 1u64, tamis::ByteOrder::Little).map(drop));
    is_right &= is_forked(db.transact(|tx| {
        tx.put("child", "");
        Ok(())
    }));
    is_right &= db.get(0u32.to_be_bytes()).unwrap().is_some_and(|value| *value == [7; 300]);
    let snapshot = db.snapshot();
    let mut iter = snapshot.iter();
    is_right &= iter.by_ref().take(3).all(|entry| entry.is_ok());
    drop((iter, snapshot));
    let other = db.clone();
    is_right &= is_forked(db.close());
    drop(other);
    let elsewhere = std::env::temp_dir().join(format!("tamis-fork-{}", std::process::id()));
    is_right &= Options::new().environment(&environment).open(&elsewhere).is_err();
    drop(environment);
    is_right && !elsewhere.exists()
}

#[test]
#[ignore = "part of another test, which runs it in a process of its own; cargo test --test it fork::"]
fn parent() {
    let (Ok(dir), Ok(mode)) = (std::env::var(DIR), std::env::var(MODE)) else { return };
    let environment = Environment::new(EnvironmentOptions::new()).unwrap();
    let db = options(&mode).environment(&environment).open(dir).unwrap();
    write_part(&db, 0);
    let snapshot = db.snapshot();
    // SAFETY: the child does what a program might, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child if it hangs.
        unsafe { libc::alarm(60) };
        // Meanwhile, the parent writes.
        std::thread::sleep(Duration::from_millis(200));
        drop(snapshot);
        let is_right = misuse(db, environment);
        // SAFETY: ends the process. One whose test has panicked ends with 0.
        unsafe { libc::_exit(if is_right { RIGHT } else { 1 }) };
    }
    write_part(&db, 1);
    let mut status = 0;
    // SAFETY: the pointer is valid.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == RIGHT, "{status}");
    write_part(&db, 2);
    // Ends without closing, as if it were killed.
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) };
}

#[test]
fn a_fork_changes_nothing_that_its_parent_has_written() {
    let _watchdog = Watchdog::new("fork");
    for mode in ["auto", "write"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let mut parent = Command::new(std::env::current_exe().unwrap());
        parent.args(["--exact", "--ignored", "--nocapture", "fork::parent"]).env(DIR, &path).env(MODE, mode);
        let output = parent.output().unwrap();
        assert!(output.status.success(), "{mode}: {output:?}");
        let db = options(mode).open(&path).unwrap();
        assert_eq!(db.iter().map(Result::unwrap).count(), 3 * PART as usize, "{mode}");
        drop(db);
        Inspector::new().verify(&path, &mut |fault| panic!("{mode}: {fault}")).unwrap();
    }
}
