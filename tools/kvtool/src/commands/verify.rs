//! `verify`: checks every file of a store, or one file alone.

use std::path::Path;

use serde_json::json;
use tamis::inspect::{Finding, Inspector, Verified};

use super::progress::{Unit, bar};
use crate::args::{Common, Verify};
use crate::failure::{Failure, Result};
use crate::output::{Output, say};
use crate::text::{count, counted, size};

pub(crate) fn run(common: &Common, args: Verify) -> Result<()> {
    let are_several = args.paths.len() > 1;
    let mut worst = Ok(());
    for path in &args.paths {
        if are_several {
            say(format_args!("{}:", path.display()));
        }
        match verify(common, path) {
            Ok(()) => {}
            // The other paths are checked, and damage is the worst that can be said of any.
            Err(failure @ (Failure::Damaged | Failure::Unchecked)) => {
                worst = if matches!(worst, Err(Failure::Damaged)) { worst } else { Err(failure) };
            }
            Err(failure) => return Err(failure),
        }
    }
    worst
}

fn verify(common: &Common, path: &Path) -> Result<()> {
    let mut output = Output::new();
    let mut documents = Vec::new();
    // A closed pipe does not end the check: the exit code must still report damage.
    let mut printed = Ok(());
    let bar = bar(Unit::Bytes, Some(0));
    let mut take = |fault: &Finding| {
        if common.json() {
            documents.push(fault_json(fault));
        } else if printed.is_ok() {
            printed = bar.suspend(|| output.line(fault).and_then(|()| output.flush()));
        }
    };
    let inspector = Inspector::new().on_progress(bar.listener());
    let verified = match path.is_file() {
        true => inspector.verify_file(path, &mut take)?,
        false => inspector.verify(path, &mut take)?,
    };
    drop(bar);
    if common.json() {
        printed = output.json(json!({
            "path": path.display().to_string(),
            "sound": verified.damaged == 0 && verified.unchecked == 0,
            "damaged": verified.damaged,
            "unchecked": verified.unchecked,
            "notes": verified.notes,
            "faults": documents,
            "edits": verified.edits,
            "batches": verified.batches,
            "tables": verified.tables,
            "entries": verified.entries,
            "value_files": verified.value_files,
            "values": verified.values,
            "bytes": verified.bytes,
            "being_written": verified.being_written,
        }));
    }
    let printed = printed.and_then(|()| output.finish());
    report(&verified);
    match (verified.damaged, verified.unchecked, printed) {
        (1.., _, _) => Err(Failure::Damaged),
        (0, _, Err(failure)) if !matches!(failure, Failure::ClosedPipe) => Err(failure),
        (0, 1.., _) => Err(Failure::Unchecked),
        _ => Ok(()),
    }
}

fn fault_json(fault: &Finding) -> serde_json::Value {
    json!({
        "file": fault.file.display().to_string(),
        "offset": fault.offset,
        "kind": fault.kind.to_string(),
        "damage": fault.kind.is_damage(),
        "what": fault.what,
    })
}

fn report(verified: &Verified) {
    say(format_args!(
        "checked {}, {}, {} with {} in {}",
        counted(verified.edits, "version edit"),
        counted(verified.batches, "batch"),
        counted(verified.tables, "table"),
        counted(verified.entries, "entry"),
        size(verified.bytes)
    ));
    if verified.value_files > 0 {
        say(format_args!(
            "of that, {} in {}",
            counted(verified.values, "value"),
            counted(verified.value_files, "value file")
        ));
    }
    if verified.being_written {
        say("the store is open for writing: the end of its log and files in no version were not checked");
    }
    match (verified.damaged, verified.unchecked) {
        (0, 0) => say("no damage"),
        (damaged, 0) => say(format_args!("damage: {}", count(damaged))),
        (damaged, unchecked) => {
            say(format_args!("damage: {}; could not be checked: {}", count(damaged), count(unchecked)))
        }
    }
}
