//! What a checkpoint takes, beside the size of the store, and what writers notice of it.
//!
//! ```text
//! TAMIS_GB=20 cargo bench --bench checkpoint
//! ```
//!
//! A store is filled in order with values of 1 KiB that do not compress. Checkpoints are made of it
//! with empty memtables, with 40 MB in the log, and beside a thread that puts all the time.
//! `TAMIS_GB` sets the size in GB (default 1), `TAMIS_DIR` the directory. No figure makes this
//! program fail.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tamis::{Checkpoint, Compression, Db, KeyspaceOptions, Options};

const VALUE: usize = 1024;
const ROUNDS: usize = 9;

fn put(db: &Db, rng: &mut fastrand::Rng, i: u64) {
    let mut value = [0; VALUE];
    rng.fill(&mut value);
    db.put(i.to_be_bytes(), value).unwrap();
}

/// Median time of a checkpoint, after `before`, and the last one.
fn measure(db: &Db, dir: &Path, mut before: impl FnMut()) -> (Duration, Checkpoint) {
    let mut last = None;
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|round| {
            before();
            let target = dir.join(format!("copy {round}"));
            let begin = Instant::now();
            last = Some(db.checkpoint(&target).unwrap());
            let time = begin.elapsed();
            std::fs::remove_dir_all(&target).unwrap();
            time
        })
        .collect();
    times.sort_unstable();
    (times[ROUNDS / 2], last.unwrap())
}

/// Puts for `time`; prints how many and how long they took.
fn put_for(name: &str, db: &Db, from: u64, time: Duration) {
    let mut rng = fastrand::Rng::with_seed(from);
    let (begin, mut times) = (Instant::now(), Vec::new());
    while begin.elapsed() < time {
        let before = Instant::now();
        put(db, &mut rng, from + times.len() as u64);
        times.push(before.elapsed());
    }
    times.sort_unstable();
    println!(
        "  {name:20} {:7} puts/s, p99.9 {:?}, longest {:?}",
        times.len() as u64 / time.as_secs(),
        times[times.len() * 999 / 1000],
        times[times.len() - 1]
    );
}

fn main() {
    let gb: u64 = std::env::var("TAMIS_GB").map_or(1, |text| text.parse().unwrap());
    let dir = match std::env::var("TAMIS_DIR") {
        Ok(dir) => tempfile::tempdir_in(dir).unwrap(),
        Err(_) => tempfile::tempdir().unwrap(),
    };
    let keyspace = KeyspaceOptions::new().compression(Compression::None);
    let db = Options::new().default_keyspace(keyspace).open(dir.path().join("db")).unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut next = gb * 1_000_000_000 / VALUE as u64;
    (0..next).for_each(|i| put(&db, &mut rng, i));
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();

    let (time, made) = measure(&db, dir.path(), || {});
    println!("{gb} GB, {} files", made.files.len());
    println!("  empty memtables      {time:?}");
    let (time, made) = measure(&db, dir.path(), || {
        db.flush().unwrap();
        (0..40_000_000 / VALUE as u64).for_each(|i| put(&db, &mut rng, next + i));
        next += 40_000_000 / VALUE as u64;
    });
    let logs = made.files.iter().filter(|file| matches!(file.kind, tamis::inspect::FileKind::Wal(_)));
    println!("  {:3} MB in the log    {time:?}", logs.map(|file| file.size).sum::<u64>() / 1_000_000);

    let time = Duration::from_secs(20);
    put_for("puts alone", &db, next, time);
    next += 100_000_000;
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut times = Vec::new();
            while !is_done.load(Ordering::Relaxed) {
                times.push(measure(&db, dir.path(), || std::thread::sleep(Duration::from_millis(200))).0);
            }
            times.sort_unstable();
            println!("  beside puts          {:?}", times[times.len() / 2]);
        });
        put_for("puts and checkpoints", &db, next, time);
        is_done.store(true, Ordering::Relaxed);
    });
}
