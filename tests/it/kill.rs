//! Does a store survive SIGKILL at any moment?
//!
//! A child process, this binary again, writes to a store in a real directory and acknowledges each
//! write on a pipe until it is killed. Afterwards nothing acknowledged is missing, batches are
//! whole, and of each writer a prefix of its writes is there. All kills share one directory, so
//! that most recoveries meet what an interrupted one left.
//!
//! `TAMIS_KILLS` sets the number of kills.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use tamis::{Db, Keyspace, KeyspaceOptions, Options, WalMode, WriteBatch, WriteOptions};

use crate::support::{Watchdog, count_from_env};

/// The child's arguments: the directory, and the number of each writer's last write.
const DIR: &str = "TAMIS_KILL_DIR";
const DONE: &str = "TAMIS_KILL_DONE";
const WRITERS: usize = 3;
const KEYS: u32 = 150;
const KEYSPACES: [&str; 2] = ["default", "other"];

/// One operation of a write: keyspace, key, and the value or `None` for a delete.
type WriteOp = (usize, Vec<u8>, Option<Vec<u8>>);

/// The `n`-th write of a writer; each has keys of its own.
fn write_number(writer: usize, n: u64) -> Vec<WriteOp> {
    let mut rng = fastrand::Rng::with_seed(n * WRITERS as u64 + writer as u64);
    let count = if rng.bool() { 1 } else { rng.usize(2..12) };
    let op = |_| {
        let key = format!("w{writer}/k{:03}", rng.u32(0..KEYS)).into_bytes();
        let value = format!("{n}/{}", "v".repeat(rng.usize(0..100))).into_bytes();
        (rng.usize(0..KEYSPACES.len()), key, (rng.u8(0..5) > 0).then_some(value))
    };
    (0..count).map(op).collect()
}

/// About half of the values go to value files.
fn options() -> Options {
    let small = KeyspaceOptions::new().block_size(512).separate_values(50);
    Options::new().memtable_size(16 << 10).table_size(16 << 10).max_open_files(16).default_keyspace(small)
}

fn open_keyspaces(db: &Db) -> Vec<Keyspace> {
    KEYSPACES.iter().map(|name| db.keyspace(name).unwrap()).collect()
}

#[test]
#[ignore = "the process that the other tests of this module kill; cargo test --test it kill::"]
fn child() {
    let (Ok(dir), Ok(done)) = (std::env::var(DIR), std::env::var(DONE)) else { return };
    let done: Vec<u64> = done.split(',').map(|n| n.parse().unwrap()).collect();
    // Successive children alternate between the ways to write a log.
    let mode = if done.iter().sum::<u64>().is_multiple_of(2) { WalMode::Auto } else { WalMode::Write };
    let db = options().wal_mode(mode).open(dir).unwrap();
    let keyspaces = open_keyspaces(&db);
    std::thread::scope(|scope| {
        for (writer, &done) in done.iter().enumerate() {
            let (db, keyspaces) = (&db, &keyspaces);
            scope.spawn(move || write_for_ever(db, keyspaces, writer, done));
        }
        churn(&db);
    });
}

fn write_for_ever(db: &Db, keyspaces: &[Keyspace], writer: usize, done: u64) {
    for n in done + 1.. {
        let mut batch = WriteBatch::new();
        for (keyspace, key, value) in write_number(writer, n) {
            match value {
                Some(value) => batch.put_in(&keyspaces[keyspace], key, value),
                None => batch.delete_in(&keyspaces[keyspace], key),
            }
        }
        db.write_with(batch, WriteOptions::new().sync(n % 64 == 0)).unwrap();
        // One system call, so that a line arrives whole or not at all.
        std::io::stderr().write_all(format!("{writer} {n}\n").as_bytes()).unwrap();
    }
}

/// Every other activity that writes files, beside the writers.
fn churn(db: &Db) -> ! {
    for round in 0u64.. {
        let keyspace = db.keyspace("passing").unwrap();
        keyspace.put("key", "value").unwrap();
        match round % 4 {
            0 => db.flush().unwrap(),
            1 => db.compact_range(..).unwrap(),
            2 => db.sync().unwrap(),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
        assert!(db.drop_keyspace("passing").unwrap());
    }
    unreachable!("rounds never end")
}

/// The entries that a writer must have left.
#[derive(Default)]
struct WriterModel {
    done: u64,
    /// By keyspace and key.
    entries: BTreeMap<(usize, Vec<u8>), Vec<u8>>,
}

impl WriterModel {
    fn advance(&mut self, writer: usize) {
        self.done += 1;
        for (keyspace, key, value) in write_number(writer, self.done) {
            match value {
                Some(value) => self.entries.insert((keyspace, key), value),
                None => self.entries.remove(&(keyspace, key)),
            };
        }
    }

    /// Applies all acknowledged writes, and the next one if the store has it: the writer had
    /// already submitted it.
    fn catch_up(&mut self, writer: usize, acknowledged: u64, found: &BTreeMap<(usize, Vec<u8>), Vec<u8>>) {
        while self.done < acknowledged {
            self.advance(writer);
        }
        if self.entries != *found {
            self.advance(writer);
        }
        assert!(self.entries == *found, "writer {writer} acknowledged {acknowledged}; the store has something else");
    }
}

#[cfg(unix)]
fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(9)
}

/// On Windows, [`std::process::Child::kill`] ends a process with code 1; a failing test ends with
/// 101.
#[cfg(not(unix))]
fn was_killed(status: ExitStatus) -> bool {
    status.code() == Some(1)
}

/// Runs the child on `dir` and kills it after `lifetime`. Returns each writer's last acknowledged
/// write.
fn run_and_kill(dir: &Path, models: &[WriterModel], lifetime: Duration) -> Vec<u64> {
    let mut acknowledged: Vec<u64> = models.iter().map(|model| model.done).collect();
    let done: Vec<String> = acknowledged.iter().map(u64::to_string).collect();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "kill::child", "--test-threads=1"])
        .env(DIR, dir)
        .env(DONE, done.join(","))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stderr.take().unwrap();
    let (sender, output) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        sender.send(text).unwrap();
    });
    // If the pipe ends before the time is up, the child has ended by itself.
    let early = output.recv_timeout(lifetime).ok();
    child.kill().unwrap();
    let status = child.wait().unwrap();
    let text = early.unwrap_or_else(|| output.recv().unwrap());
    reader.join().unwrap();
    assert!(was_killed(status), "the child was to be killed, but: {text}");
    for line in text.lines() {
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let (Some(Ok(writer)), Some(Ok(n))) = (numbers.next(), numbers.next()) else {
            panic!("the child says: {text}")
        };
        let last = &mut acknowledged[usize::try_from(writer).unwrap()];
        assert_eq!(n, *last + 1);
        *last = n;
    }
    acknowledged
}

fn check(db: &Db, models: &mut [WriterModel], acknowledged: &[u64]) {
    let mut found = vec![BTreeMap::new(); models.len()];
    for (at, name) in KEYSPACES.iter().enumerate() {
        let Some(keyspace) = db.existing_keyspace(name).unwrap() else { continue };
        for entry in keyspace.iter() {
            let (key, value) = entry.unwrap();
            let writer = usize::from(key[1] - b'0');
            found[writer].insert((at, key.to_vec()), value.to_vec());
        }
    }
    for (writer, model) in models.iter_mut().enumerate() {
        model.catch_up(writer, acknowledged[writer], &found[writer]);
    }
}

/// Kills children with `writers` writers on one directory, `kills` times. Long runs also continue
/// until all writers have come far.
fn kill_again_and_again(writers: usize, kills: u64) {
    let _watchdog = Watchdog::new("kills");
    let dir = tempfile::tempdir().unwrap();
    let mut rng = fastrand::Rng::with_seed(writers as u64);
    let mut models: Vec<WriterModel> = (0..writers).map(|_| WriterModel::default()).collect();
    let mut deep = false;
    let mut round = 0;
    // On a busy machine a short-lived child may get nothing done.
    let is_far = |deep: bool, models: &[WriterModel]| deep && models.iter().all(|model| model.done > 10 * kills);
    while round < kills || kills >= 20 && !is_far(deep, &models) {
        round += 1;
        // The shortest lives end while the store is being opened.
        let longest = [20, 60, 200][rng.usize(0..3)];
        let lifetime = Duration::from_micros(rng.u64(3000..longest * 1000));
        let acknowledged = run_and_kill(dir.path(), &models, lifetime);
        match options().open_read_only(dir.path()) {
            Ok(db) => check(&db, &mut models, &acknowledged),
            Err(tamis::Error::NotFound(_)) => assert!(acknowledged.iter().all(|&n| n == 0), "the store is gone"),
            Err(error) => panic!("round {round}: {error}"),
        }
        // Most rounds leave recovery to the next child, which may be killed in it.
        if rng.u8(0..6) == 0 {
            let db = options().paranoid(true).open(dir.path()).unwrap();
            check(&db, &mut models, &acknowledged);
            let stats = db.stats();
            deep |= stats.keyspaces.iter().any(|keyspace| keyspace.levels[1..].iter().any(|l| !l.tables.is_empty()));
            if rng.bool() {
                db.close().unwrap();
            }
        }
    }
    let db = options().paranoid(true).open(dir.path()).unwrap();
    let acknowledged: Vec<u64> = models.iter().map(|model| model.done).collect();
    check(&db, &mut models, &acknowledged);
}

#[test]
fn nothing_acknowledged_by_one_writer_is_lost() {
    kill_again_and_again(1, count_from_env("TAMIS_KILLS", 100) / 3);
}

#[test]
fn nothing_acknowledged_by_several_writers_is_lost() {
    let kills = count_from_env("TAMIS_KILLS", 100);
    kill_again_and_again(WRITERS, kills - kills / 3);
}
