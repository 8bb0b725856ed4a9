//! A source and its follower in a real directory, in a process that is killed at random moments.
//!
//! `TAMIS_KILLS` sets the number of kills.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tamis::{Db, Options, WalMode, WriteBatch, WriteOptions};

use super::{Follower, LONG, content};
use crate::support::{Watchdog, count_from_env};

/// The child's directory, and the number of its life.
const DIR: &str = "TAMIS_FEED_DIR";
const LIFE: &str = "TAMIS_FEED_LIFE";

fn open(dir: &Path, life: u64) -> (Db, Follower) {
    let options = Options::new().memtable_size(16 << 10).table_size(16 << 10).max_open_files(16);
    let mode = if life.is_multiple_of(2) { WalMode::Auto } else { WalMode::Write };
    let options = options.wal_mode(mode);
    let source = options.clone().keep_log(1 << 30, Duration::MAX).open(dir.join("source")).unwrap();
    (source, Follower { db: options.open(dir.join("copy")).unwrap() })
}

#[test]
#[ignore = "the process that the other test of this module kills; cargo test --test it feed::killed"]
fn child() {
    let (Ok(dir), Ok(life)) = (std::env::var(DIR), std::env::var(LIFE)) else { return };
    let life: u64 = life.parse().unwrap();
    let (source, follower) = open(Path::new(&dir), life);
    std::thread::scope(|scope| {
        for writer in 0..2u8 {
            let source = &source;
            scope.spawn(move || write_for_ever(source, writer, life));
        }
        // A kill takes nothing that was written, so that visible changes are safe too.
        let changes = source.changes_since(follower.seqno()).unwrap();
        let mut changes = if life.is_multiple_of(3) { changes.visible() } else { changes };
        loop {
            if let Some(batch) = changes.next_timeout(LONG).unwrap() {
                follower.write(batch.to_write_batch(&follower.db).unwrap(), batch.last_seqno());
            }
        }
    });
}

fn write_for_ever(source: &Db, writer: u8, life: u64) {
    let mut rng = fastrand::Rng::with_seed(life * 2 + u64::from(writer));
    let keyspace = source.keyspace("other").unwrap();
    for n in 0u64.. {
        let mut batch = WriteBatch::new();
        for _ in 0..rng.usize(1..6) {
            let (key, value) = ([writer, rng.u8(..)], vec![rng.u8(..); rng.usize(0..100)]);
            match rng.u8(0..4) {
                0 => batch.delete(key),
                1 => batch.put_in(&keyspace, key, value),
                _ => batch.put(key, value),
            }
        }
        source.write_with(batch, WriteOptions::new().sync(n % 50 == 0)).unwrap();
        if n % 300 == 0 {
            source.flush().unwrap();
        }
    }
}

#[test]
fn a_follower_in_a_killed_process_continues_where_it_was() {
    let _watchdog = Watchdog::new("a_follower_in_a_killed_process_continues_where_it_was");
    let dir = tempfile::tempdir().unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let kills = count_from_env("TAMIS_KILLS", 100) / 4;
    let mut round = 0;
    let mut last = 0;
    // On a busy machine a short-lived child may get nothing done.
    while round < kills || last < 1000 {
        round += 1;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "feed::killed::child", "--test-threads=1"])
            .env(DIR, dir.path())
            .env(LIFE, round.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(rng.u64(3000..150_000)));
        assert!(child.try_wait().unwrap().is_none(), "the child has ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
        // The other lives leave recovery to the next child, which may be killed in it.
        if rng.u8(0..3) == 0 || round >= kills {
            let (source, follower) = open(dir.path(), round);
            assert!(follower.seqno() <= source.last_seqno(), "round {round}");
            source.sync().unwrap();
            assert!(!follower.catch_up(&source, usize::MAX), "round {round}: the log is gone");
            assert_eq!((follower.seqno(), content(&follower.db)), (source.last_seqno(), content(&source)));
            last = follower.seqno();
        }
    }
}
