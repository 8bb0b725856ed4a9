//! Does a kill at any moment of a checkpoint leave a whole copy or a refused one?
//!
//! A child process, this binary again, writes to a store and makes checkpoints of it one after the
//! other, and says when each is finished, until it is killed. `TAMIS_KILLS` sets the number of
//! kills.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use tamis::{Db, Error, KeyspaceOptions, Options, WriteBatch};

use crate::support::{Watchdog, count_from_env, kill_child};

const DIR: &str = "TAMIS_CHECKPOINT_KILL_DIR";

fn options() -> Options {
    let separate = KeyspaceOptions::new().separate_values(64);
    Options::new().memtable_size(16 << 10).table_size(16 << 10).default_keyspace(separate)
}

/// Batch `n` puts `n` under a key of its own and under `last`: a store that has a prefix of the
/// batches has as many keys as `last` says.
fn write(db: &Db, n: u64) {
    let mut batch = WriteBatch::new();
    batch.put(format!("k{n:08}"), "v".repeat(usize::try_from(n % 100).unwrap()));
    batch.put("last", n.to_string());
    db.write(batch).unwrap();
}

fn last(db: &Db) -> u64 {
    let last = db.get("last").unwrap().map_or(0, |last| std::str::from_utf8(&last).unwrap().parse().unwrap());
    assert_eq!(db.prefix("k").count() as u64, last);
    last
}

#[test]
#[ignore = "the process that the other test of this module kills; cargo test --test it checkpoint::kill"]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let dir = Path::new(&dir);
    let db = options().open(dir.join("db")).unwrap();
    let mut n = last(&db);
    for round in 0u64.. {
        loop {
            n += 1;
            write(&db, n);
            if n.is_multiple_of(100) {
                break;
            }
        }
        let target = dir.join(format!("copy{}", round % 3));
        // A finished one makes room for the next.
        if target.exists() && !target.join("PARTIAL").exists() {
            std::fs::remove_dir_all(&target).unwrap();
        }
        db.checkpoint(&target).unwrap();
        std::io::stderr().write_all(format!("{} {n}\n", round % 3).as_bytes()).unwrap();
    }
}

#[test]
fn a_killed_checkpoint_is_refused_or_whole() {
    let _watchdog = Watchdog::new("a_killed_checkpoint_is_refused_or_whole");
    let dir = tempfile::tempdir().unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    let (mut whole, mut refused) = (0, 0);
    for round in 0..count_from_env("TAMIS_KILLS", 50) {
        let (lines, delay) = (rng.usize(..4), Duration::from_micros(rng.u64(5_000..80_000)));
        let said = kill_child("checkpoint::kill::child", DIR, dir.path(), lines, delay);
        // The last one of which the child said that it is finished. It would have replaced the two
        // others first.
        let said = said.last().and_then(|line| line.split_once(' '));
        let db = options().open_read_only(dir.path().join("db"));
        let of_store = db.as_ref().map_or(0, last);
        for copy in 0..3 {
            let n = said.filter(|(number, _)| *number == copy.to_string()).map(|(_, n)| n);
            match options().paranoid(true).open_read_only(dir.path().join(format!("copy{copy}"))) {
                Ok(store) => {
                    whole += 1;
                    let found = last(&store);
                    assert!(found <= of_store && found.is_multiple_of(100), "round {round}: {found} of {of_store}");
                    assert!(n.is_none_or(|n| *n == found.to_string()), "round {round}: {found}, not {n:?}");
                }
                Err(Error::Incomplete(_)) if n.is_none() => refused += 1,
                // Not begun, or the child was removing a finished one.
                Err(error) => {
                    let is_gone = matches!(error, Error::NotFound(_)) || error.is_corruption();
                    assert!(is_gone && n.is_none(), "round {round}: {error}");
                }
            }
        }
        drop(db);
    }
    assert!(whole > 0 && refused > 0, "{whole} copies were whole and {refused} refused");
}
