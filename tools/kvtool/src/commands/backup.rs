//! `backup`, `backups` and `restore`: a repository of copies of a store.

use std::time::SystemTime;

use serde_json::json;
use tamis_backup::{Generation, Repository};

use super::store::open_existing;
use crate::args::{Backup, Backups, Common, Restore};
use crate::failure::{Failure, Result};
use crate::output::{Output, say, table};
use crate::text::{counted, size};

pub(crate) fn backup(common: &Common, args: Backup) -> Result<()> {
    let db = open_existing(&args.db)?;
    let repository = Repository::create(&args.repository)?;
    // A store that nobody else has open has all of its writes in tables then.
    db.flush()?;
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

pub(crate) fn list(common: &Common, args: Backups) -> Result<()> {
    let repository = Repository::open(&args.repository)?;
    if args.verify {
        return verify(common, &repository);
    }
    let generations = repository.generations()?;
    let mut output = Output::new();
    if common.json {
        let generations: Vec<_> = generations.iter().map(generation_json).collect();
        output.json(json!({ "generations": generations }))?;
    } else {
        let rows = generations.iter().map(|generation| {
            let seconds = unix_seconds(generation.created);
            vec![
                generation.number.to_string(),
                seconds.to_string(),
                generation.seqno.to_string(),
                generation.files.len().to_string(),
                size(generation.bytes()),
            ]
        });
        output.line(table(0, &["generation", "made, in seconds since 1970", "last number", "files", "size"], rows))?;
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
        "{}, {}, {}: {}",
        counted(verified.generations as u64, "generation"),
        counted(verified.files as u64, "file"),
        size(verified.bytes),
        counted(verified.faults as u64, "fault")
    ));
    if faults.is_empty() { Ok(()) } else { Err(Failure::Damaged) }
}

pub(crate) fn restore(args: Restore) -> Result<()> {
    let repository = Repository::open(&args.repository)?;
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

fn generation_json(generation: &Generation) -> serde_json::Value {
    json!({
        "generation": generation.number,
        "created": unix_seconds(generation.created),
        "seqno": generation.seqno,
        "flushed_seqno": generation.flushed_seqno,
        "files": generation.files.len(),
        "bytes": generation.bytes(),
    })
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
