//! The worker process: works on the store and may die at any moment.
//!
//! It reports each acknowledged write at once on standard output, as `thread step operations
//! synced`. A written line belongs to the system and survives the process. Violations are reported
//! as `! message`.

use std::io::Write;
use std::path::Path;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;
use tamis::{Db, Options, WriteOptions};

use super::faulty::FaultyFileSystem;
use super::plan::{Step, THREADS, prefix, progress_key};
use crate::args::SoakWorker;
use crate::failure::Result;

/// The exit code after the fault has hit.
pub(super) const FAULT_HIT: i32 = 9;

/// Small sizes, so that flushes and compactions run all the time.
pub(super) fn options() -> Options {
    Options::new().memtable_size(256 << 10).table_size(256 << 10).cache_size(1 << 20).max_open_files(64)
}

pub(crate) fn run(args: &SoakWorker) -> Result<()> {
    let faulty = args.fault.map(|kind| FaultyFileSystem::new(kind, args.at));
    let mut options = options();
    if let Some(faulty) = &faulty {
        options = options.file_system(Arc::new(faulty.clone()));
    }
    let result = work(&args.db, &options, args);
    if faulty.is_some_and(|faulty| faulty.was_hit()) {
        // An error caused by the fault is expected.
        exit(FAULT_HIT);
    }
    if let Err(failure) = &result {
        complain(format_args!("a call failed without a fault: {}", failure.message().unwrap_or_default()));
    }
    result
}

fn work(path: &Path, options: &Options, args: &SoakWorker) -> Result<()> {
    // The second half runs after closing and reopening the store.
    for steps in [args.steps / 2, args.steps - args.steps / 2] {
        let db = options.clone().open(path)?;
        let ended = AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            scope.spawn(|| disturb(&db, args.seed, &ended));
            scope.spawn(|| scan(&db, &ended));
            let writers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    scope.spawn({
                        let db = &db;
                        move || write(db, args.seed, thread, steps)
                    })
                })
                .collect();
            let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            ended.store(true, Ordering::Relaxed);
            results
        });
        for result in written {
            result.unwrap_or_else(|_| {
                complain("a writing thread panicked");
                Ok(())
            })?;
        }
        db.close()?;
    }
    Ok(())
}

fn complain(what: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout(), "! {what}");
}

/// Continues after the last step of `thread` that is in the store.
fn write(db: &Db, seed: u64, thread: u32, steps: u64) -> tamis::Result<()> {
    let done = progress(db, thread)?;
    for number in done + 1..=done + steps {
        let step = Step::new(seed, thread, number);
        db.write_with(step.batch(thread, number), WriteOptions::new().sync(step.is_synced))?;
        let (operations, synced) = (step.len(), u8::from(step.is_synced));
        // One system call: standard output is line-buffered.
        let _ = writeln!(std::io::stdout(), "{thread} {number} {operations} {synced}");
    }
    Ok(())
}

/// The last step of `thread` that is in the store.
pub(super) fn progress(db: &Db, thread: u32) -> tamis::Result<u64> {
    let noted = db.get(progress_key(thread))?;
    Ok(noted.and_then(|noted| std::str::from_utf8(&noted).ok()?.parse().ok()).unwrap_or(0))
}

/// Flushes, syncs and compacts at random. An error is caused by the fault, or a write will return
/// it too.
fn disturb(db: &Db, seed: u64, ended: &AtomicBool) {
    let mut random = Rng::with_seed(seed);
    while !ended.load(Ordering::Relaxed) {
        let result = match random.u32(..4) {
            0 => db.compact_range(..),
            1 => db.compact_range(prefix(1)..prefix(2)),
            2 => db.sync(),
            _ => db.flush(),
        };
        if result.is_err() {
            return;
        }
        std::thread::yield_now();
    }
}

/// Scans snapshots and checks that keys ascend and that no value is newer than its thread's
/// progress.
fn scan(db: &Db, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let result = (0..THREADS).try_for_each(|thread| {
            let snapshot = db.snapshot();
            let noted = snapshot.get(progress_key(thread))?;
            let reached = noted.and_then(|noted| std::str::from_utf8(&noted).ok()?.parse().ok()).unwrap_or(0);
            let mut last = Vec::new();
            for entry in snapshot.prefix(prefix(thread)) {
                let (key, value) = entry?;
                if !last.is_empty() && *key <= *last {
                    complain(format_args!("a scan went from {} back to {}", last.escape_ascii(), key.escape_ascii()));
                }
                let digits = value.split(|&byte| byte == b':').next().unwrap_or_default();
                let step: Option<u64> = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
                if step.is_none_or(|step| step > reached) {
                    complain(format_args!(
                        "{} has a value of step {step:?} in a snapshot of step {reached}",
                        key.escape_ascii()
                    ));
                }
                last = key.to_vec();
            }
            Ok::<(), tamis::Error>(())
        });
        if let Err(error) = result {
            complain(format_args!("a scan failed: {error}"));
            return;
        }
    }
}
