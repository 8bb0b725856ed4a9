//! Lag of a follower of the change feed at full write load, and what it costs the writers:
//! `cargo bench --bench feed [-- DIRECTORY]`.
//!
//! Two threads put values of 100 bytes without sync for two seconds, and note when each put has
//! returned. The lag of a follower is the time from then until it has read the put from the feed.
//! The runs take turns: no follower, one of visible changes, one of durable changes, which has the
//! store synced; and, to compare with, a thread that calls `sync` every 5 ms, whose "lag" is how
//! long each call takes. The last runs put one value per millisecond instead, so that the follower
//! waits for each.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    reason = "a benchmark"
)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tamis::{Db, OperationKind, Options};

const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_secs(2);
const WRITERS: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Follower {
    None,
    Visible,
    Durable,
    Sync,
}

/// Puts of a run whose time is noted.
const NOTED: usize = 8 << 20;

/// Follows `db` until the writers are done and everything is read. Returns lags in nanoseconds.
fn follow(db: &Db, visible: bool, written: &[AtomicU64], done: &AtomicBool, nanos: impl Fn() -> u64) -> Vec<u64> {
    let changes = db.changes_since(0).unwrap();
    let mut changes = if visible { changes.visible() } else { changes };
    let mut lags = Vec::new();
    while !done.load(Ordering::Relaxed) || changes.seqno() < db.last_seqno() {
        let Some(batch) = changes.next_timeout(Duration::from_millis(20)).unwrap() else { continue };
        for operation in batch.operations() {
            if let (OperationKind::Put { .. }, Some(time)) = (operation.kind, written.get(operation.seqno as usize)) {
                // 0 if the put has not returned yet.
                let time = time.load(Ordering::Relaxed);
                lags.push(if time == 0 { 0 } else { nanos().saturating_sub(time) });
            }
        }
    }
    lags
}

fn sync(db: &Db, done: &AtomicBool) -> Vec<u64> {
    let mut times = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let begin = Instant::now();
        db.sync().unwrap();
        times.push(begin.elapsed().as_nanos() as u64);
        std::thread::sleep(Duration::from_millis(5).saturating_sub(begin.elapsed()));
    }
    times
}

/// Puts per second, and the lags of all of them in nanoseconds.
fn run(dir: &Path, follower: Follower, pause: Option<Duration>) -> (f64, Vec<u64>) {
    let path = dir.join("feed.db");
    let _ = std::fs::remove_dir_all(&path);
    let db = Options::new().open(&path).unwrap();
    let written: Vec<AtomicU64> = (0..NOTED).map(|_| AtomicU64::new(0)).collect();
    let begin = Instant::now();
    let nanos = || begin.elapsed().as_nanos() as u64;
    let done = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let (db, written, done, nanos) = (&db, &written, &done, &nanos);
        let reader = scope.spawn(move || match follower {
            Follower::None => Vec::new(),
            Follower::Sync => sync(db, done),
            Follower::Visible | Follower::Durable => follow(db, follower == Follower::Visible, written, done, nanos),
        });
        let writers: Vec<_> = (0..if pause.is_some() { 1 } else { WRITERS })
            .map(|writer| scope.spawn(move || put_all(db, writer, pause, written, nanos)))
            .collect();
        let puts: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
        let rate = puts as f64 / begin.elapsed().as_secs_f64();
        done.store(true, Ordering::Relaxed);
        (rate, reader.join().unwrap())
    });
    drop(db);
    let _ = std::fs::remove_dir_all(&path);
    result
}

fn put_all(db: &Db, writer: u64, pause: Option<Duration>, written: &[AtomicU64], nanos: impl Fn() -> u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(writer);
    let begin = Instant::now();
    let mut puts = 0;
    while begin.elapsed() < TIME {
        for _ in 0..if pause.is_some() { 1 } else { 100 } {
            let seqno = db.put(rng.u64(..).to_be_bytes(), [7; 100]).unwrap();
            if let Some(time) = written.get(seqno as usize) {
                time.store(nanos(), Ordering::Relaxed);
            }
            puts += 1;
        }
        pause.into_iter().for_each(std::thread::sleep);
    }
    puts
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    let dir = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let temporary = tempfile::tempdir().unwrap();
    let dir = dir.as_deref().map_or(temporary.path(), Path::new);
    println!("follower, pause: puts/s; lag in ms: median, p99, greatest (medians of {ROUNDS} runs)");
    for pause in [None, Some(Duration::from_millis(1))] {
        let followers = [Follower::None, Follower::Visible, Follower::Durable, Follower::Sync];
        let mut figures = followers.map(|_| [const { Vec::new() }; 4]);
        for _ in 0..ROUNDS {
            for (follower, figures) in followers.into_iter().zip(&mut figures) {
                let (rate, mut lags) = run(dir, follower, pause);
                lags.sort_unstable();
                let lag = |part: usize| lags.get((lags.len() * part / 100).min(lags.len().saturating_sub(1)));
                let millis = |part| lag(part).map_or(0.0, |lag| *lag as f64 / 1e6);
                for (all, figure) in figures.iter_mut().zip([rate, millis(50), millis(99), millis(100)]) {
                    all.push(figure);
                }
            }
        }
        for (follower, figures) in followers.into_iter().zip(figures) {
            let [rate, half, most, all] = figures.map(median);
            println!("{follower:?}, {pause:?}: {rate:.0}; {half:.3}, {most:.3}, {all:.3}");
        }
    }
}
