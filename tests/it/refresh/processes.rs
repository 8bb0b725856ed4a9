//! Readers in processes of their own beside a writer at full load, all of which are killed.
//!
//! The store after the writer's n-th batch is a function of n, so that a reader can tell whether it
//! sees what the writer had after some batch. The reader that follows a killed one, and the writer
//! that follows a killed one, go on from there.
//!
//! `TAMIS_READERS` and `TAMIS_KILLS` set the numbers of readers and kills.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tamis::operator::Add;
use tamis::vfs::{FileSystem, OsFileSystem};
use tamis::{Db, Error, KeyspaceOptions, Options, Snapshot, WriteBatch, WriteOptions};

use crate::support::{Watchdog, count_from_env};

/// What a process is: `writer`, or a reader that calls `refresh` or has it `auto`matic.
const ROLE: &str = "TAMIS_REFRESH_ROLE";
const DIR: &str = "TAMIS_REFRESH_DIR";
/// The number of the batch that a reader must see when it has opened the store.
const LEAST: &str = "TAMIS_REFRESH_LEAST";

const KEYS: u64 = 499;
const COUNT: &str = "count";
/// Operations of a batch.
const OPERATIONS: u64 = 3;

fn options() -> Options {
    let small = KeyspaceOptions::new().separate_values(400).block_size(1024);
    Options::new().memtable_size(64 << 10).table_size(64 << 10).default_keyspace(small)
}

/// The value that batch `n` writes, which may go to a value file.
fn value(n: u64) -> Vec<u8> {
    let len = if n.is_multiple_of(7) { 500 } else { usize::try_from(n % 90).unwrap() };
    [&n.to_be_bytes()[..], &vec![b'v'; len]].concat()
}

/// The batch up to `n` that wrote a key last, if one did.
fn last_write(key: u64, n: u64) -> Option<u64> {
    (n >= key.max(1)).then(|| n - (n - key) % KEYS).filter(|last| *last > 0)
}

fn count(snapshot: &Snapshot) -> u64 {
    let count = snapshot.get(COUNT).unwrap();
    count.map_or(0, |count| u64::from_le_bytes(count[..].try_into().unwrap()))
}

/// The number of the last batch, if the store is what it was after that; panics if not.
fn check(db: &Db) -> u64 {
    let (snapshot, other) = (db.snapshot(), db.existing_keyspace("other").unwrap());
    let Some(other) = other else { return 0 };
    let counts = snapshot.keyspace(&db.existing_keyspace("counts").unwrap().unwrap());
    let n = count(&counts);
    assert_eq!(snapshot.seqno(), OPERATIONS * n);
    for keyspace in [snapshot.clone(), snapshot.keyspace(&other)] {
        let found = keyspace.iter().map(|entry| entry.unwrap()).map(|(key, value)| (key.to_vec(), value.to_vec()));
        let expected = (0..KEYS).filter_map(|key| Some((key.to_be_bytes().to_vec(), value(last_write(key, n)?))));
        assert!(found.eq(expected), "after batch {n}");
    }
    let key = n % KEYS;
    assert_eq!(snapshot.get(key.to_be_bytes()).unwrap().map(|value| value.to_vec()), last_write(key, n).map(value));
    n
}

fn tell(n: u64) {
    // One system call, so that a line arrives whole or not at all.
    std::io::stderr().write_all(format!("at {n}\n").as_bytes()).unwrap();
}

#[test]
#[ignore = "the processes of the other tests of this module; cargo test --test it refresh::processes"]
fn child() {
    let (Ok(role), Ok(dir)) = (std::env::var(ROLE), std::env::var(DIR)) else { return };
    match &*role {
        "writer" => write_for_ever(Path::new(&dir)),
        role => read_for_ever(Path::new(&dir), role == "auto"),
    }
}

fn write_for_ever(dir: &Path) -> ! {
    let db = options().open(dir).unwrap();
    let counts = db.keyspace_with("counts", KeyspaceOptions::new().merge_operator(Add::LITTLE)).unwrap();
    let other = db.keyspace("other").unwrap();
    let done = count(&counts.snapshot());
    tell(done);
    for n in done + 1.. {
        let (mut batch, key) = (WriteBatch::new(), (n % KEYS).to_be_bytes());
        batch.put(key, value(n));
        batch.put_in(&other, key, value(n));
        batch.merge_in(&counts, COUNT, 1u64.to_le_bytes());
        db.write_with(batch, WriteOptions::new().sync(n.is_multiple_of(256))).unwrap();
        if n.is_multiple_of(100) {
            tell(n);
        }
    }
    unreachable!("there is always another number")
}

fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::ResourceBusy)
}

fn read_for_ever(dir: &Path, is_automatic: bool) -> ! {
    let least: u64 = std::env::var(LEAST).unwrap().parse().unwrap();
    let interval = is_automatic.then_some(Duration::from_millis(1));
    let db = options().refresh_every(interval).open_read_only(dir).unwrap();
    let mut seen = check(&db);
    assert!(seen >= least, "{seen} at the opening, {least} before it");
    tell(seen);
    loop {
        let seqno = if is_automatic { db.last_seqno() } else { db.refresh().unwrap() };
        let n = check(&db);
        assert!(n >= seen && n >= seqno / OPERATIONS, "{n} after {seen}");
        // On a busy machine an automatic refresh may give up until the next one.
        let error = db.stats().reader.unwrap().error.filter(|error| !(is_automatic && is_busy(error)));
        assert!(error.is_none(), "{error:?}");
        seen = n;
        tell(n);
    }
}

/// A process, and what it has told.
struct Process {
    role: &'static str,
    child: Child,
    /// The number of the last batch that it has written or seen.
    at: Arc<AtomicU64>,
    lines: Arc<AtomicU64>,
}

impl Process {
    fn start(role: &'static str, dir: &Path, least: u64) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["refresh::processes::child", "--exact", "--include-ignored", "--nocapture"])
            .envs([(ROLE, role), (DIR, dir.to_str().unwrap()), (LEAST, &least.to_string())])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (at, lines) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let told = BufReader::new(child.stderr.take().unwrap()).lines();
        let (last, count) = (Arc::clone(&at), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in told.map_while(Result::ok) {
                match line.strip_prefix("at ").and_then(|n| n.parse().ok()) {
                    Some(n) => {
                        last.store(n, Ordering::Relaxed);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    None => eprintln!("{role}: {line}"),
                }
            }
        });
        Process { role, child, at, lines }
    }

    /// Waits until it has told `lines` times more.
    fn await_lines(&mut self, lines: u64) {
        let end = self.lines.load(Ordering::Relaxed) + lines;
        while self.lines.load(Ordering::Relaxed) < end {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the {} has ended: {ended:?}", self.role);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const READERS: [&str; 2] = ["refresh", "auto"];

/// Kills readers and writers at random; each must have made progress before the next kill.
fn run(readers: u64, kills: u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut rng = fastrand::Rng::with_seed(readers + kills);
    let mut processes = vec![Process::start("writer", &path, 0)];
    processes[0].await_lines(3);
    let roles = READERS.iter().cycle().take(usize::try_from(readers).unwrap());
    processes.extend(roles.map(|role| Process::start(role, &path, 0)));
    for _ in 0..kills {
        processes.iter_mut().for_each(|process| process.await_lines(4));
        let killed = rng.usize(..processes.len());
        // What any process has seen is there for the next.
        let least = processes.iter().map(|process| process.at.load(Ordering::Relaxed)).max().unwrap();
        let role = processes[killed].role;
        drop(processes.remove(killed));
        processes.insert(killed, Process::start(role, &path, least));
    }
    processes.iter_mut().for_each(|process| process.await_lines(4));
    let least = processes.iter().map(|process| process.at.load(Ordering::Relaxed)).max().unwrap();
    drop(processes);
    let db = options().open(&path).unwrap();
    assert!(check(&db) >= least);
    // Killed readers have left nothing: all files are the store's.
    db.compact_range(..).unwrap();
    db.wait_for_compactions().unwrap();
    let stats = db.stats();
    let tables: usize =
        stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels).map(|level| level.tables.len()).sum();
    let values: u64 = stats.keyspaces.iter().map(|keyspace| keyspace.values.files).sum();
    db.close().unwrap();
    let names = OsFileSystem::new().list(&path).unwrap();
    let count = |kind: &str| names.iter().filter(|name| name.ends_with(kind)).count();
    assert_eq!((count(".sst"), count(".val") as u64), (tables, values));
}

#[test]
fn readers_beside_a_writer_see_what_it_had_after_some_batch() {
    let _watchdog = Watchdog::new("readers beside a writer");
    run(count_from_env("TAMIS_READERS", 3), count_from_env("TAMIS_KILLS", 6));
}

#[test]
#[ignore = "minutes; cargo test --release -- --ignored refresh::processes"]
fn eight_readers_beside_a_writer_survive_many_kills() {
    run(count_from_env("TAMIS_READERS", 8), count_from_env("TAMIS_KILLS", 400));
}
