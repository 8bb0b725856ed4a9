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
use tamis_figures::{Table, command, millis};

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

/// Puts for `time`: how many a second, and how long they took.
fn put_for(db: &Db, from: u64, time: Duration) -> [String; 3] {
    let mut rng = fastrand::Rng::with_seed(from);
    let (begin, mut times) = (Instant::now(), Vec::new());
    while begin.elapsed() < time {
        let before = Instant::now();
        put(db, &mut rng, from + times.len() as u64);
        times.push(before.elapsed());
    }
    times.sort_unstable();
    let rate = format!("{} k", times.len() as u64 / time.as_secs() / 1000);
    [rate, millis(times[times.len() * 999 / 1000]), millis(times[times.len() - 1])]
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

    let command = command("cargo bench --bench checkpoint", &["TAMIS_GB"]);
    let (time, made) = measure(&db, dir.path(), || {});
    let store = format!("a checkpoint of {gb} GB in {} files", made.files.len());
    let mut checkpoints = Table::new("checkpoint/times", &command, &[&store, "median"]);
    checkpoints.row(["with empty memtables", &millis(time)]);
    let (time, made) = measure(&db, dir.path(), || {
        db.flush().unwrap();
        (0..40_000_000 / VALUE as u64).for_each(|i| put(&db, &mut rng, next + i));
        next += 40_000_000 / VALUE as u64;
    });
    let logs = made.files.iter().filter(|file| matches!(file.kind, tamis::inspect::FileKind::Wal(_)));
    let logs = logs.map(|file| file.size).sum::<u64>() / 1_000_000;
    checkpoints.row([format!("with {logs} MB in the log, which are copied and synced"), millis(time)]);

    let mut puts = Table::new("checkpoint/puts", &command, &["puts of one thread", "per second", "p99.9", "longest"]);
    let time = Duration::from_secs(20);
    let row = |name: &str, figures: [String; 3]| [name.to_owned()].into_iter().chain(figures);
    puts.row(row("alone", put_for(&db, next, time)));
    next += 100_000_000;
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            let mut times = Vec::new();
            while !is_done.load(Ordering::Relaxed) {
                times.push(measure(&db, dir.path(), || std::thread::sleep(Duration::from_millis(200))).0);
            }
            times.sort_unstable();
            times[times.len() / 2]
        });
        puts.row(row("beside a checkpoint every 200 ms", put_for(&db, next, time)));
        is_done.store(true, Ordering::Relaxed);
        checkpoints.row(["beside a thread that puts all the time", &millis(copying.join().unwrap())]);
    });
    checkpoints.show();
    puts.show();
}
