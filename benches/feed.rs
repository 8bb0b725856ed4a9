//! Lag of a follower of the change feed at full write load, and what it costs the writers:
//! `cargo bench --bench feed [-- DIRECTORY [CPU]]`.
//!
//! Two threads put values of 100 bytes without sync for two seconds, and note when each put has
//! returned. The lag of a follower is the time from then until it has read the put from the feed.
//! The runs take turns: no follower; one of visible changes; one of visible changes that applies
//! them to a second store, up to 1000 batches at a time; one of durable changes, which has the
//! store synced; and, to compare with, a thread that calls `sync` every 5 ms, whose "lag" is how
//! long each call takes. The last runs put one value per millisecond instead, so that the follower
//! waits for each.
//!
//! With fewer processors than threads, a follower spends most of its lag waiting for one. The
//! figures tell how long it had one for each change, and which part of its time it waited. To
//! measure the lag without that, give it a processor of its own, and all other threads the rest:
//! `taskset -c 0 cargo bench --bench feed -- DIRECTORY 1` (Linux).
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    reason = "a benchmark"
)]

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tamis::{Changes, Db, OperationKind, Options, WriteBatch};
use tamis_figures::{Table, command, median};

const ROUNDS: usize = 3;
const TIME: Duration = Duration::from_secs(2);
const WRITERS: u64 = 2;

/// Threads that put without pause: [`WRITERS`], or as many as `TAMIS_WRITERS` says.
fn writers() -> u64 {
    std::env::var("TAMIS_WRITERS").map_or(WRITERS, |text| text.parse().unwrap())
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Follower {
    None,
    Visible,
    Apply,
    Durable,
    Sync,
}

/// What a run has measured.
struct Measured {
    /// Puts per second.
    rate: f64,
    /// Lags of all changes, in nanoseconds.
    lags: Vec<u64>,
    /// Nanoseconds that the follower has had a processor, and that it has waited for one.
    times: [u64; 2],
}

/// Puts of a run whose time is noted.
const NOTED: usize = 8 << 20;

/// How long this thread has had a processor, and has waited for one, in nanoseconds; 0 where the
/// system does not tell.
fn processor_times() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let mut times = text.split_whitespace().map(|time| time.parse().unwrap());
    std::array::from_fn(|_| times.next().unwrap_or(0))
}

/// Binds this thread to a processor.
fn bind_to(cpu: &str) {
    let task = std::fs::read_link("/proc/thread-self").unwrap();
    let task = task.file_name().unwrap();
    let status = std::process::Command::new("taskset").args(["-p", "-c", cpu]).arg(task).stdout(Stdio::null()).status();
    assert!(status.unwrap().success());
}

/// Follows `db` until the writers are done and everything is read, and applies the changes to
/// `copy`. Returns lags in nanoseconds.
fn follow(
    mut changes: Changes,
    db: &Db,
    copy: Option<&Db>,
    written: &[AtomicU64],
    done: &AtomicBool,
    nanos: impl Fn() -> u64,
) -> Vec<u64> {
    let mut lags = Vec::with_capacity(NOTED);
    while !done.load(Ordering::Relaxed) || changes.seqno() < db.last_seqno() {
        let Some(batch) = changes.next_timeout(Duration::from_millis(20)).unwrap() else { continue };
        let mut batches = vec![batch];
        if let Some(copy) = copy {
            while batches.len() < 1000
                && let Some(batch) = changes.next_timeout(Duration::ZERO).unwrap()
            {
                batches.push(batch);
            }
            let mut all = WriteBatch::new();
            batches.iter().for_each(|batch| batch.append_to(&mut all, copy).unwrap());
            copy.write(all).unwrap();
        }
        for operation in batches.iter().flat_map(|batch| batch.operations()) {
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

fn run(dir: &Path, cpu: Option<&str>, follower: Follower, pause: Option<Duration>) -> Measured {
    let paths = ["feed.db", "copy.db"].map(|name| dir.join(name));
    let remove = || paths.iter().for_each(|path| _ = std::fs::remove_dir_all(path));
    remove();
    let db = Options::new().open(&paths[0]).unwrap();
    let copy = (follower == Follower::Apply).then(|| Options::new().open(&paths[1]).unwrap());
    let written: Vec<AtomicU64> = (0..NOTED).map(|_| AtomicU64::new(0)).collect();
    let begin = Instant::now();
    let nanos = || begin.elapsed().as_nanos() as u64;
    let done = AtomicBool::new(false);
    let measured = std::thread::scope(|scope| {
        let (db, copy, written, done, nanos) = (&db, copy.as_ref(), &written, &done, &nanos);
        let reader = scope.spawn(move || {
            cpu.into_iter().for_each(bind_to);
            let before = processor_times();
            let changes = || db.changes_since(0).unwrap();
            let lags = match follower {
                Follower::None => Vec::new(),
                Follower::Sync => sync(db, done),
                Follower::Visible | Follower::Apply => follow(changes().visible(), db, copy, written, done, nanos),
                Follower::Durable => follow(changes(), db, copy, written, done, nanos),
            };
            let after = processor_times();
            (lags, [after[0] - before[0], after[1] - before[1]])
        });
        let writers: Vec<_> = (0..if pause.is_some() { 1 } else { writers() })
            .map(|writer| scope.spawn(move || put_all(db, writer, pause, written, nanos)))
            .collect();
        let puts: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
        let rate = puts as f64 / begin.elapsed().as_secs_f64();
        done.store(true, Ordering::Relaxed);
        let (lags, times) = reader.join().unwrap();
        Measured { rate, lags, times }
    });
    drop((db, copy));
    remove();
    measured
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

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with('-'));
    let (dir, cpu) = (args.next(), args.next());
    let temporary = tempfile::tempdir().unwrap();
    let dir = dir.as_deref().map_or(temporary.path(), Path::new);
    let heads = [
        "",
        "puts per second",
        "lag, ms: median",
        "p99",
        "greatest",
        "ns on a processor per change",
        "ms waiting for a processor",
    ];
    let command = command("cargo bench --bench feed", &["TAMIS_WRITERS"]);
    let (name, command) = match cpu {
        Some(_) => ("feed/own core", format!("taskset -c 0 {command}")),
        None => ("feed/lag", command),
    };
    let mut table = Table::new(name, &command, &heads);
    for (pause, load) in [(None, "all the time"), (Some(Duration::from_millis(1)), "one per millisecond")] {
        let followers = [Follower::None, Follower::Visible, Follower::Apply, Follower::Durable, Follower::Sync];
        let mut figures = followers.map(|_| [const { Vec::new() }; 6]);
        for _ in 0..ROUNDS {
            for (follower, figures) in followers.into_iter().zip(&mut figures) {
                let Measured { rate, mut lags, times: [on, off] } = run(dir, cpu.as_deref(), follower, pause);
                lags.sort_unstable();
                let lag = |part: usize| lags.get((lags.len() * part / 100).min(lags.len().saturating_sub(1)));
                let millis = |part| lag(part).map_or(0.0, |lag| *lag as f64 / 1e6);
                let each = on as f64 / lags.len().max(1) as f64;
                let of_run = [rate, millis(50), millis(99), millis(100), each, off as f64 / 1e6];
                for (all, figure) in figures.iter_mut().zip(of_run) {
                    all.push(figure);
                }
            }
        }
        for (follower, figures) in followers.into_iter().zip(figures) {
            let [rate, half, most, all, each, off] = figures.map(median);
            let name = match follower {
                Follower::None => "no follower",
                Follower::Visible => "visible changes",
                Follower::Apply => "visible changes, applied together to a store",
                Follower::Durable => "durable changes",
                Follower::Sync => "`sync` alone",
            };
            let has_lags = follower != Follower::None;
            let figure = |text: String| if has_lags { text } else { String::new() };
            let lags = [half, most, all].map(|lag| figure(format!("{lag:.3}")));
            let whole = [each, off].map(|time| figure(format!("{time:.0}")));
            table.row([format!("{name}, puts {load}"), format!("{rate:.0}")].into_iter().chain(lags).chain(whole));
        }
    }
    table.show();
}
