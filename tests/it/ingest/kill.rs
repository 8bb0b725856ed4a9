//! Does a kill at any moment of an ingest leave all of it or nothing?
//!
//! A child process, this binary again, ingests files by copy and by move in turn, and says when it
//! begins and when it has finished, until it is killed. `TAMIS_KILLS` sets the number of kills in
//! the middle of an ingest, for each of the two.
#![allow(clippy::disallowed_methods, reason = "a process prepares its own files")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tamis::inspect::{FindingKind, Inspector};
use tamis::{Db, Error, IngestMode, IngestOptions, Options, SstWriter};

use crate::support::{Watchdog, count_from_env, kill_child};

const DIR: &str = "TAMIS_INGEST_KILL_DIR";
const MODES: [IngestMode; 2] = [IngestMode::Copy, IngestMode::Move];

fn options() -> Options {
    Options::new().memtable_size(16 << 10).table_size(16 << 10)
}

fn mode(n: u64) -> usize {
    usize::try_from(n % 2).unwrap()
}

/// The keys that begin with `k` after ingest `n`: each ingest adds one, and every fourth deletes
/// the three before it.
fn keys_after(n: u64) -> Vec<String> {
    (1..=n).filter(|i| i.is_multiple_of(4) || *i > n / 4 * 4).map(|i| format!("k{i:08}")).collect()
}

fn write_files(db: &Db, dir: &Path, n: u64) -> Vec<PathBuf> {
    let (key, paths) = (format!("k{n:08}"), ["ranges", "key", "last"].map(|name| dir.join(format!("{n}-{name}"))));
    let create = |path: &PathBuf| SstWriter::create(path, &db.sst_format().unwrap()).unwrap();
    let mut writer = create(&paths[1]);
    writer.put(&key, "v".repeat(usize::try_from(n % 1000).unwrap())).unwrap();
    writer.finish().unwrap();
    let mut writer = create(&paths[2]);
    writer.put("last", n.to_string()).unwrap();
    writer.finish().unwrap();
    if !n.is_multiple_of(4) {
        return paths[1..].to_vec();
    }
    let mut writer = create(&paths[0]);
    writer.delete_range(format!("k{:08}", n - 3)..key).unwrap();
    writer.finish().unwrap();
    paths.to_vec()
}

/// The number of the last ingest, whose traces must be all there.
fn last(db: &Db) -> u64 {
    let last = db.get("last").unwrap().map_or_else(|| "0".into(), |last| String::from_utf8(last.to_vec()).unwrap());
    // Before each ingest, a put of its number in words takes the key.
    let n = match last.strip_prefix("before ") {
        Some(next) => next.parse::<u64>().unwrap() - 1,
        None => last.parse().unwrap(),
    };
    let found = db.prefix("k").map(|entry| String::from_utf8(entry.unwrap().0.to_vec()).unwrap());
    assert_eq!(found.collect::<Vec<_>>(), keys_after(n), "after ingest {n}");
    n
}

#[test]
#[ignore = "the process that the other test of this module kills; cargo test --test it ingest::kill"]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let (dir, new) = (Path::new(&dir), Path::new(&dir).join("in"));
    let _ = std::fs::remove_dir_all(&new);
    std::fs::create_dir(&new).unwrap();
    let db = options().open(dir.join("db")).unwrap();
    let say = |what: String| std::io::stderr().write_all(what.as_bytes()).unwrap();
    for n in last(&db) + 1.. {
        let files = write_files(&db, &new, n);
        // So that a memtable has to be flushed.
        db.put("last", format!("before {n}")).unwrap();
        say(format!("begin {n}\n"));
        db.ingest(&files, IngestOptions::new().mode(MODES[mode(n)])).unwrap();
        let is_there = files.iter().any(|file| file.exists());
        assert_eq!(is_there, MODES[mode(n)] == IngestMode::Copy, "moved files are gone, others stay");
        say(format!("end {n}\n"));
    }
}

#[test]
fn a_killed_ingest_is_there_whole_or_not_at_all() {
    let _watchdog = Watchdog::new("a_killed_ingest_is_there_whole_or_not_at_all");
    let dir = tempfile::tempdir().unwrap();
    let (store, mut rng) = (dir.path().join("db"), fastrand::Rng::with_seed(6));
    let kills = count_from_env("TAMIS_KILLS", 10);
    let (mut killed, mut whole, mut known, mut rounds) = ([0; 2], 0, 0, 0);
    while killed.iter().any(|count| *count < kills) {
        rounds += 1;
        assert!(rounds < 100 * kills, "hardly any kill hits an ingest: {killed:?}");
        // Some children are killed while they open the store.
        let lines = if rng.u8(..6) == 0 { 0 } else { rng.usize(1..8) };
        let delay = Duration::from_micros(rng.u64(..20_000));
        let said = kill_child("ingest::kill::child", DIR, dir.path(), lines, delay);
        let mut damage = Vec::new();
        match Inspector::new().verify(&store, &mut |finding| damage.push(finding.clone())) {
            Ok(verified) => assert_eq!((verified.damaged, verified.unchecked), (0, 0), "{damage:?}"),
            Err(Error::NotFound(_)) if known == 0 => continue,
            Err(error) => panic!("round {rounds}: {error}"),
        }
        let found = last(&options().open_read_only(&store).unwrap());
        match said.last().and_then(|line| line.split_once(' ')) {
            Some(("begin", n)) => {
                let n: u64 = n.parse().unwrap();
                assert!(found == n || found + 1 == n, "round {rounds}: {found} after the begin of {n}");
                killed[mode(n)] += 1;
                whole += u64::from(found == n);
            }
            Some((_, n)) => assert_eq!(found.to_string(), n, "round {rounds}"),
            None => assert_eq!(found, known, "round {rounds}"),
        }
        known = found;
        if rng.u8(..4) == 0 {
            let db = options().paranoid(true).open(&store).unwrap();
            assert_eq!(last(&db), found);
            db.close().unwrap();
            let mut left = Vec::new();
            let verified = Inspector::new().verify(&store, &mut |finding| {
                if finding.kind == FindingKind::Leftover && finding.file.extension().is_some_and(|kind| kind == "sst") {
                    left.push(finding.to_string());
                }
            });
            assert_eq!((verified.unwrap().damaged, &left), (0, &Vec::new()));
        }
    }
    println!("{killed:?} kills by copy and by move in {rounds} rounds; {whole} of the ingests were there");
}
