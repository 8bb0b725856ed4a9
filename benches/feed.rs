//! Lag of a follower of the change feed at full write load, and what it costs the writers:
//! `cargo bench --bench feed [-- DIRECTORY]`.
//!
//! Two threads put values of 100 bytes without sync for two seconds. Each value has the time at
//! which it was written; the follower reads it from the feed. The runs take turns: no follower, one
//! of visible changes, one of durable changes, which has the store synced. The last runs put one
//! value per millisecond instead, so that the follower waits for each.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
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
}

/// Puts per second, and the lags of all of them in nanoseconds.
fn run(dir: &Path, follower: Follower, pause: Option<Duration>) -> (f64, Vec<u64>) {
    let path = dir.join("feed.db");
    let _ = std::fs::remove_dir_all(&path);
    let db = Options::new().open(&path).unwrap();
    let begin = Instant::now();
    let nanos = || u64::try_from(begin.elapsed().as_nanos()).unwrap();
    let done = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let reader = (follower != Follower::None).then(|| {
            let changes = db.changes_since(0).unwrap();
            let mut changes = if follower == Follower::Visible { changes.visible() } else { changes };
            let (db, done, nanos) = (&db, &done, &nanos);
            scope.spawn(move || {
                let mut lags = Vec::new();
                while !done.load(Ordering::Relaxed) || changes.seqno() < db.last_seqno() {
                    let Some(batch) = changes.next_timeout(Duration::from_millis(20)).unwrap() else { continue };
                    let now = nanos();
                    for operation in batch.operations() {
                        if let OperationKind::Put { value, .. } = operation.kind {
                            lags.push(now - u64::from_le_bytes(*value.first_chunk().unwrap()));
                        }
                    }
                }
                lags
            })
        });
        let writers: Vec<_> = (0..if pause.is_some() { 1 } else { WRITERS })
            .map(|writer| {
                let (db, nanos) = (&db, &nanos);
                scope.spawn(move || put_all(db, writer, pause, nanos))
            })
            .collect();
        let puts: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
        let rate = puts as f64 / begin.elapsed().as_secs_f64();
        done.store(true, Ordering::Relaxed);
        (rate, reader.map(|reader| reader.join().unwrap()).unwrap_or_default())
    });
    drop(db);
    let _ = std::fs::remove_dir_all(&path);
    result
}

fn put_all(db: &Db, writer: u64, pause: Option<Duration>, nanos: impl Fn() -> u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(writer);
    let begin = Instant::now();
    let mut value = [0; 100];
    let mut puts = 0;
    while begin.elapsed() < TIME {
        for _ in 0..if pause.is_some() { 1 } else { 100 } {
            value[..8].copy_from_slice(&nanos().to_le_bytes());
            db.put(rng.u64(..).to_be_bytes(), value).unwrap();
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
        let followers = [Follower::None, Follower::Visible, Follower::Durable];
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
