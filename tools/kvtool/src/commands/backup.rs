//! `backup`, `backups` and `restore`: a repository of copies of a store.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::json;
use tamis::{Db, Error};
use tamis_backup::{Follow, FollowOptions, Generation, Point, Reach, Repository};

use super::store::open_existing;
use crate::args::{Backup, Backups, Common, Restore};
use crate::failure::{Failure, Result};
use crate::output::{Output, say, table};
use crate::text::{counted, size, utc};

/// The longest time that a segment of the log spans.
const SEGMENT: Duration = Duration::from_millis(500);

/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(2);

pub(crate) fn backup(common: &Common, args: Backup) -> Result<()> {
    let (db, is_ours) = open_to_copy(&args.db)?;
    let repository = create(&args.repository)?;
    if args.follow {
        return follow(&args, db, is_ours, &repository);
    }
    if is_ours {
        // A store that nobody else has open has all of its writes in tables then.
        db.flush()?;
    }
    let made = repository.backup(&db)?;
    db.close()?;
    let pruned = args.keep.map(|keep| repository.prune(keep as usize)).transpose()?.unwrap_or_default();
    if common.json {
        let mut output = Output::new();
        output.json(json!({
            "generation": made.generation,
            "seqno": made.seqno,
            "files": made.files,
            "bytes": made.bytes,
            "copied_files": made.copied_files,
            "copied_bytes": made.copied_bytes,
            "removed_generations": pruned.generations,
        }))?;
        output.finish()?;
    }
    say(format_args!(
        "generation {} as of number {}: {} in {}, of which {} in {} were copied",
        made.generation,
        made.seqno,
        size(made.bytes),
        counted(made.files as u64, "file"),
        size(made.copied_bytes),
        counted(made.copied_files as u64, "file"),
    ));
    Ok(())
}

/// Opens a store, read-only if another process has it open. Returns whether nobody else has.
fn open_to_copy(db: &Path) -> Result<(Db, bool)> {
    match open_existing(db) {
        Err(Failure::Store(Error::Locked { .. })) => Ok((Db::open_read_only(db)?, false)),
        opened => Ok((opened?, true)),
    }
}

/// Keeps what is written to a store until Ctrl-C.
fn follow(args: &Backup, mut db: Db, is_ours: bool, repository: &Repository) -> Result<()> {
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let interrupted = Arc::clone(&is_interrupted);
    if let Err(error) = ctrlc::set_handler(move || interrupted.store(true, Ordering::Relaxed)) {
        say(format_args!("kvtool: Ctrl-C may lose the last second: {error}"));
    }
    let mut options = FollowOptions::new().generation_every(Duration::from_secs(args.every));
    options.keep = args.keep.map(|keep| keep as usize);
    let mut follow = Follow::begin(repository, &db, options)?;
    let (mut generation, mut has_failed) = (0, false);
    loop {
        let is_last = is_interrupted.load(Ordering::Relaxed);
        if follow.status().generation != generation {
            generation = follow.status().generation;
            say(format_args!("generation {generation}"));
        }
        let stepped = follow.step(SEGMENT);
        match stepped {
            Ok(()) => has_failed = false,
            Err(error) if is_last => return Err(error.into()),
            Err(error @ (Error::Closed | Error::Poisoned(_) | Error::Diverged { .. })) => return Err(error.into()),
            Err(error) => {
                if !has_failed {
                    say(format_args!("kvtool: {error}; it is tried again"));
                }
                has_failed = true;
                std::thread::sleep(RETRY);
            }
        }
        if is_last {
            break;
        }
        if !is_ours {
            db = Db::open_read_only(&args.db)?;
            follow.reopen(&db)?;
        }
    }
    let status = follow.status();
    say(format_args!("followed up to number {}, in {}", status.seqno, counted(status.segments, "segment")));
    drop(follow);
    Ok(db.close()?)
}

pub(crate) fn list(common: &Common, args: Backups) -> Result<()> {
    let repository = open(&args.repository)?;
    if args.verify {
        return verify(common, &repository);
    }
    let (generations, reach) = (repository.generations()?, repository.reach()?);
    let reach_of = |generation: &Generation| reach.iter().find(|reach| reach.generation == generation.number).copied();
    let mut output = Output::new();
    if common.json {
        let generations: Vec<_> = generations.iter().map(|of| generation_json(of, reach_of(of))).collect();
        output.json(json!({ "generations": generations }))?;
    } else {
        let rows = generations.iter().map(|generation| {
            let reach = reach_of(generation).filter(|reach| reach.seqno > generation.seqno);
            vec![
                generation.number.to_string(),
                utc(generation.created),
                generation.seqno.to_string(),
                generation.files.len().to_string(),
                size(generation.bytes()),
                reach.map_or_else(|| "–".to_owned(), |reach| utc(reach.until)),
                reach.map_or_else(|| "–".to_owned(), |reach| reach.seqno.to_string()),
            ]
        });
        let columns = ["generation", "made", "last number", "files", "size", "followed until", "number"];
        output.line(table(0, &columns, rows))?;
    }
    output.finish()
}

fn verify(common: &Common, repository: &Repository) -> Result<()> {
    let mut faults = Vec::new();
    let verified = repository.verify(&mut |fault| faults.push(fault.clone()))?;
    let mut output = Output::new();
    if common.json {
        output.json(json!({
            "generations": verified.generations,
            "files": verified.files,
            "segments": verified.segments,
            "bytes": verified.bytes,
            "faults": faults.iter().map(|fault| json!({
                "file": fault.file.display().to_string(),
                "generations": fault.generations,
                "what": fault.what,
            })).collect::<Vec<_>>(),
        }))?;
    } else {
        faults.iter().try_for_each(|fault| output.line(fault))?;
    }
    output.finish()?;
    say(format_args!(
        "{}, {}, {}, {}: {}",
        counted(verified.generations as u64, "generation"),
        counted(verified.files as u64, "file"),
        counted(verified.segments as u64, "segment"),
        size(verified.bytes),
        counted(verified.faults as u64, "fault")
    ));
    if faults.is_empty() { Ok(()) } else { Err(Failure::Damaged) }
}

pub(crate) fn restore(args: Restore) -> Result<()> {
    let repository = open(&args.repository)?;
    let point = args.at.map(Point::Time).or(args.seqno.map(Point::Seqno));
    if let Some(point) = point {
        let restored = repository.restore_to(point, args.generation, &args.dir)?;
        say(format_args!(
            "{} is as of number {}, written until {}: generation {} and what followed it",
            args.dir.display(),
            restored.seqno,
            utc(restored.time),
            restored.generation.number
        ));
        return Ok(());
    }
    let last = || repository.generations().map(|all| all.last().map(|last| last.number));
    let number = match args.generation {
        Some(number) => number,
        None => last()?.ok_or_else(|| Failure::usage("the repository has no generation"))?,
    };
    let restored = repository.restore(number, &args.dir)?;
    say(format_args!(
        "{} is generation {number}, as of number {}: {}",
        args.dir.display(),
        restored.seqno,
        size(restored.bytes())
    ));
    Ok(())
}

/// Opens the repository in a directory or a bucket, and creates it if absent.
fn create(repository: &Path) -> Result<Repository> {
    match bucket(repository) {
        #[cfg(feature = "object-store")]
        Some(address) => Ok(Repository::create_in_bucket(address)?),
        #[cfg(not(feature = "object-store"))]
        Some(address) => Err(no_buckets(address)),
        None => Ok(Repository::create(repository)?),
    }
}

/// Opens the repository in a directory or a bucket.
fn open(repository: &Path) -> Result<Repository> {
    match bucket(repository) {
        #[cfg(feature = "object-store")]
        Some(address) => Ok(Repository::open_in_bucket(address)?),
        #[cfg(not(feature = "object-store"))]
        Some(address) => Err(no_buckets(address)),
        None => Ok(Repository::open(repository)?),
    }
}

/// The address, if it is one and no path.
fn bucket(repository: &Path) -> Option<&str> {
    repository.to_str().filter(|address| address.contains("://"))
}

#[cfg(not(feature = "object-store"))]
fn no_buckets(address: &str) -> Failure {
    Failure::usage(format_args!(
        "{address:?} needs a kvtool with object stores: cargo install --path tools/kvtool --features object-store"
    ))
}

fn generation_json(generation: &Generation, reach: Option<Reach>) -> serde_json::Value {
    let reach = reach.filter(|reach| reach.seqno > generation.seqno);
    json!({
        "generation": generation.number,
        "created": unix_seconds(generation.created),
        "seqno": generation.seqno,
        "flushed_seqno": generation.flushed_seqno,
        "files": generation.files.len(),
        "bytes": generation.bytes(),
        "followed_until": reach.map(|reach| utc(reach.until)),
        "followed_seqno": reach.map(|reach| reach.seqno),
    })
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
