//! Does a kill at any moment of a backup, a restore or a prune leave whole generations?
//!
//! A child process, this binary again, writes to a store, backs it up, prunes and restores, one
//! after the other, until it is killed. `TAMIS_KILLS` sets the number of kills.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tamis::{Db, Error, KeyspaceOptions, Options, WriteBatch};
use tamis_backup::Repository;

const DIR: &str = "TAMIS_BACKUP_KILL_DIR";

fn options() -> Options {
    let separate = KeyspaceOptions::new().separate_values(64);
    Options::new().memtable_size(16 << 10).table_size(64 << 10).default_keyspace(separate)
}

/// A store that has a prefix of the batches has as many keys as `last` says.
fn last(db: &Db) -> u64 {
    let last = db.get("last").unwrap().map_or(0, |last| std::str::from_utf8(&last).unwrap().parse().unwrap());
    assert_eq!(db.prefix("k").count() as u64, last);
    last
}

#[test]
#[ignore = "the process that the other test of this module kills; cargo test -p tamis-backup kill"]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let dir = Path::new(&dir);
    let db = options().open(dir.join("db")).unwrap();
    let repository = Repository::create(dir.join("backups")).unwrap();
    let mut n = last(&db);
    for round in 0u64.. {
        for _ in 0..30 {
            n += 1;
            let mut batch = WriteBatch::new();
            batch.put(format!("k{n:08}"), "v".repeat(usize::try_from(n % 100).unwrap()));
            batch.put("last", n.to_string());
            db.write(batch).unwrap();
        }
        let made = repository.backup(&db).unwrap();
        std::io::stderr().write_all(format!("{} {n}\n", made.generation).as_bytes()).unwrap();
        let target = dir.join(format!("restored{}", round % 2));
        if target.exists() && !target.join("PARTIAL").exists() {
            std::fs::remove_dir_all(&target).unwrap();
        }
        repository.restore(made.generation, &target).unwrap();
        if round % 4 == 3 {
            repository.prune(3).unwrap();
        }
    }
}

#[test]
fn a_kill_leaves_whole_generations() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    let (mut whole, mut refused, mut newest) = (0, 0, 0);
    let kills = std::env::var("TAMIS_KILLS").map_or(100, |text| text.parse().unwrap());
    for round in 0..kills {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "kill::child", "--test-threads=1"])
            .env(DIR, dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let longest = [50, 200, 800][rng.usize(0..3)];
        std::thread::sleep(Duration::from_micros(rng.u64(5_000..longest * 1000)));
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!text.contains("panicked"), "{text}");
        let said = text.lines().last().and_then(|line| line.split_once(' '));
        let Ok(repository) = Repository::open(dir.path().join("backups")) else {
            assert!(newest == 0 && said.is_none());
            continue;
        };
        let verified = repository.verify(&mut |fault| panic!("round {round}: {fault}")).unwrap();
        let generations = repository.generations().unwrap();
        assert_eq!(verified.generations, generations.len());
        let last_number = generations.last().map_or(0, |last| last.number);
        if let Some((number, _)) = said {
            newest = number.parse().unwrap();
        }
        assert!(last_number >= newest, "round {round}: {last_number} of {newest}");
        newest = last_number;
        for restored in ["restored0", "restored1"] {
            match options().paranoid(true).open_read_only(dir.path().join(restored)) {
                Ok(store) => {
                    whole += 1;
                    assert!(last(&store) > 0, "round {round}");
                }
                Err(Error::Incomplete(_)) => refused += 1,
                // Not begun, or the child was removing a finished one.
                Err(error) => {
                    assert!(matches!(error, Error::NotFound(_)) || error.is_corruption(), "round {round}: {error}");
                }
            }
        }
        if round % 10 == 9
            && let Some(generation) = generations.last()
        {
            let target = dir.path().join(format!("check{round}"));
            repository.restore(generation.number, &target).unwrap();
            let found = last(&options().paranoid(true).open(&target).unwrap());
            if let Some((number, n)) = said.filter(|(number, _)| *number == generation.number.to_string()) {
                assert_eq!(found.to_string(), n, "generation {number}");
            }
            std::fs::remove_dir_all(target).unwrap();
        }
    }
    assert!(whole > 0 && refused > 0, "{whole} restores were whole and {refused} refused");
}
