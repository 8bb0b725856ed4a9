//! `backup`, `backups` and `restore`: a repository of copies of a store.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::json;
use tamis::{Db, Error, KeyspaceCopy};
use tamis_backup::{Base, Follow, FollowOptions, Generation, KeyspaceAt, Point, Reach, Repository};

use super::progress::{Bar, Unit, bar};
use super::store::{close, no_such_keyspace, open_or_create, open_to_copy, settle_and_close};
use crate::args::{Backup, Backups, Common, Restore};
use crate::failure::{Failure, Result};
use crate::interrupt::on_interrupt;
use crate::output::{Output, say};
use crate::table::{Table, number, text};
use crate::text::{counted, size, utc};

/// The longest time that a segment of the log spans.
const SEGMENT: Duration = Duration::from_millis(500);

/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(2);

pub(crate) fn backup(common: &Common, args: Backup) -> Result<()> {
    if args.follow {
        return follow(&args);
    }
    let db = open_to_copy(&args.db, common)?;
    let bar = bar(Unit::Bytes, Some(0));
    let repository = Repository::create_at(&args.repository)?.on_progress(bar.listener());
    if !db.is_read_only() {
        // All writes are in tables then, which the next backup need not copy again. If it fails,
        // the log is copied.
        let _ = db.flush();
    }
    let made = match &args.keyspace {
        Some(name) => {
            let keyspace = db.existing_keyspace(name)?.ok_or_else(|| no_such_keyspace(name))?;
            repository.backup_keyspace(&db, &keyspace)?
        }
        None => repository.backup(&db)?,
    };
    drop(bar);
    close(db, common)?;
    let pruned = args.keep.map(|keep| repository.prune_store(made.store, keep as usize)).transpose()?;
    let pruned = pruned.unwrap_or_default();
    if common.json() {
        let mut output = Output::new();
        output.json(json!({
            "generation": made.generation,
            "store": made.store.to_string(),
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

/// Keeps what is written to a store until Ctrl-C. Reads it beside the process that writes, if there
/// is one, and is never that process.
fn follow(args: &Backup) -> Result<()> {
    let mut db = Db::open_read_only(&args.db)?;
    let repository = &Repository::create_at(&args.repository)?;
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let interrupted = Arc::clone(&is_interrupted);
    let _handled = on_interrupt("Ctrl-C may lose the last second", move || {
        interrupted.store(true, Ordering::Relaxed);
    });
    let mut options = FollowOptions::new().generation_every(Duration::from_secs(args.every));
    options.keep = args.keep.map(|keep| keep as usize);
    let mut follow = Follow::begin(repository, &db, options)?;
    let (mut generation, mut restarts, mut has_failed) = (0, 0, false);
    loop {
        let is_last = is_interrupted.load(Ordering::Relaxed);
        if let (status, Some(reason)) = (follow.status(), &follow.status().restarted_for)
            && status.restarts != restarts
        {
            restarts = status.restarts;
            say(format_args!("{reason}: begins anew with a generation"));
        }
        if follow.status().generation != generation {
            generation = follow.status().generation;
            say(format_args!("generation {generation}"));
        }
        let stepped = follow.step(SEGMENT);
        match stepped {
            Ok(()) => has_failed = false,
            Err(error) if is_last => return Err(error.into()),
            Err(error) => {
                if !has_failed {
                    say(format_args!("kvtool: {error}; it is tried again"));
                }
                has_failed = true;
                std::thread::sleep(RETRY);
                // Another store may have been put in the place of this one.
                if let (Error::HistoryChanged { .. }, Ok(other)) = (&error, Db::open_read_only(&args.db)) {
                    db = other;
                    follow.reopen(&db)?;
                }
            }
        }
        if is_last {
            break;
        }
    }
    let status = follow.status();
    say(format_args!("followed up to number {}, in {}", status.seqno, counted(status.segments, "segment")));
    drop(follow);
    Ok(db.close()?)
}

pub(crate) fn list(common: &Common, args: Backups) -> Result<()> {
    let repository = Repository::open_at(&args.repository)?;
    if args.verify {
        return verify(common, &repository);
    }
    if let Some(store) = args.forget {
        let pruned = repository.prune_store(store, 0)?;
        let removed = counted(pruned.generations as u64, "generation");
        say(format_args!("{removed} of store {store} removed, {}", counted(pruned.files as u64, "file")));
    }
    let (generations, reach) = (repository.generations()?, repository.reach()?);
    let has_several = generations.iter().any(|of| of.store != generations[0].store || of.keyspace.is_some());
    let reach_of = |generation: &Generation| reach.iter().find(|reach| reach.generation == generation.number).copied();
    let mut output = Output::new();
    if common.json() {
        let generations: Vec<_> = generations.iter().map(|of| generation_json(of, reach_of(of))).collect();
        output.json(json!({ "generations": generations }))?;
    } else {
        let rows = generations.iter().map(|generation| {
            let reach = reach_of(generation).filter(|reach| reach.seqno > generation.seqno);
            let keyspace = generation.keyspace.as_ref().map_or_else(String::new, |name| format!(" keyspace {name}"));
            let store = has_several.then(|| format!("{} {}{keyspace}", generation.store, generation.path));
            let mut row = vec![
                generation.number.to_string(),
                utc(generation.time),
                generation.seqno.to_string(),
                generation.files.len().to_string(),
                size(generation.bytes()),
                reach.map_or_else(|| "–".to_owned(), |reach| utc(reach.until)),
                reach.map_or_else(|| "–".to_owned(), |reach| reach.seqno.to_string()),
            ];
            row.extend(store);
            row
        });
        let mut columns = vec![
            number("generation").key(),
            number("made").key(),
            number("last number").detail(),
            number("files").detail(),
            number("size"),
            number("followed until"),
            number("number").detail(),
        ];
        columns.extend(has_several.then(|| text("store").key()));
        output.table(common, &Table::new(columns, rows))?;
    }
    output.finish()
}

fn verify(common: &Common, repository: &Repository) -> Result<()> {
    let mut faults = Vec::new();
    let bar = bar(Unit::Bytes, Some(0));
    let repository = repository.clone().on_progress(bar.listener());
    let verified = repository.verify(&mut |fault| faults.push(fault.clone()))?;
    drop(bar);
    let mut output = Output::new();
    if common.json() {
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

pub(crate) fn restore(common: &Common, args: Restore) -> Result<()> {
    let bar = bar(Unit::Bytes, Some(0));
    let repository = Repository::open_at(&args.repository)?.on_progress(bar.listener());
    let point = args.at.map(Point::Time).or(args.seqno.map(Point::Seqno));
    let base = match (args.generation, args.store) {
        (Some(number), _) => Base::Generation(number),
        (None, Some(store)) => Base::Store(store),
        (None, None) => Base::OnlyStore,
    };
    if let Some(keyspace) = &args.keyspace {
        return restore_keyspace(common, (&repository, bar), &args, (point, base), keyspace);
    }
    if let Some(point) = point {
        let restored = repository.restore_to(point, base, &args.dir)?;
        drop(bar);
        say(format_args!(
            "{} is as of number {}, written until {}: generation {} and what followed it",
            args.dir.display(),
            restored.seqno,
            utc(restored.time),
            restored.generation.number
        ));
        return report_restored(common, &restored.generation, restored.seqno, Some(restored.time), None);
    }
    let number = repository.last(base)?.number;
    let restored = repository.restore(number, &args.dir)?;
    drop(bar);
    say(format_args!(
        "{} is generation {number}, as of number {}: {}",
        args.dir.display(),
        restored.seqno,
        size(restored.bytes())
    ));
    report_restored(common, &restored, restored.seqno, None, None)
}

/// Brings one keyspace into a store, which is created if absent.
fn restore_keyspace(
    common: &Common,
    (repository, bar): (&Repository, Bar),
    args: &Restore,
    (point, base): (Option<Point>, Base),
    keyspace: &str,
) -> Result<()> {
    let name = args.name.as_deref().unwrap_or(keyspace);
    let from = match point {
        Some(point) => KeyspaceAt::point(point, base, keyspace),
        None => KeyspaceAt::last(base, keyspace),
    };
    let db = open_or_create(&args.dir, common)?;
    if db.existing_keyspace(name)?.is_some() {
        let dir = args.dir.display();
        let drop =
            if name == "default" { String::new() } else { format!("; `kvtool drop-keyspace {dir} {name}` drops it") };
        return Err(Failure::usage(format_args!(
            "keyspace {name:?} exists in {dir}; --as NAME calls the restored one otherwise{drop}"
        )));
    }
    let scratch = scratch_beside(&args.dir);
    let done = repository.restore_keyspace(from, &db, name, &scratch);
    // If it is empty, it was this command's.
    let _ = fs::remove_file(scratch.join("LOCK")).and_then(|()| fs::remove_dir(&scratch));
    let (restored, copied) = done?;
    drop(bar);
    settle_and_close(db, common)?;
    say(format_args!(
        "keyspace {name:?} of {} is {keyspace:?} of generation {}, as of number {}: {} in {}",
        args.dir.display(),
        restored.generation.number,
        restored.seqno,
        counted(copied.keys, "key"),
        size(copied.bytes)
    ));
    let until = point.map(|_| restored.time);
    report_restored(common, &restored.generation, restored.seqno, until, Some((name, copied)))
}

/// The directory beside a store into which files are put that it is about to get.
fn scratch_beside(dir: &Path) -> PathBuf {
    // `words.db/` names the directory, too.
    let mut name = dir.components().as_path().as_os_str().to_owned();
    name.push(".restoring");
    name.into()
}

/// Prints, with `--json`, what was restored.
fn report_restored(
    common: &Common,
    generation: &Generation,
    seqno: u64,
    until: Option<SystemTime>,
    keyspace: Option<(&str, KeyspaceCopy)>,
) -> Result<()> {
    if !common.json() {
        return Ok(());
    }
    let mut output = Output::new();
    output.json(json!({
        "generation": generation.number,
        "seqno": seqno,
        "bytes": generation.bytes(),
        "until": until.map(utc),
        "keyspace": keyspace.map(|(name, copied)| json!({
            "name": name,
            "keys": copied.keys,
            "bytes": copied.bytes,
        })),
    }))?;
    output.finish()
}

fn generation_json(generation: &Generation, reach: Option<Reach>) -> serde_json::Value {
    let reach = reach.filter(|reach| reach.seqno > generation.seqno);
    json!({
        "generation": generation.number,
        "store": generation.store.to_string(),
        "path": generation.path,
        "keyspace": generation.keyspace,
        "time": unix_seconds(generation.time),
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
