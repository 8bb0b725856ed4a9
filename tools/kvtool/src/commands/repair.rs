//! `repair`: rebuilds a store from what verifies.

use serde_json::{Value, json};
use tamis::{Loss, RepairOptions, RepairReport};

use super::progress::{Unit, bar};
use crate::args::{Common, Repair};
use crate::failure::{Failure, Result};
use crate::output::{Output, json_bytes, say};
use crate::text::counted;

pub(crate) fn run(common: &Common, args: Repair) -> Result<()> {
    let bar = bar(Unit::Bytes, Some(0));
    let options = RepairOptions::new().dry_run(args.dry_run).on_progress(bar.listener());
    let report = tamis::repair(&args.db, options)?;
    drop(bar);
    let printed = print(common, &report, args.dry_run);
    match (report.is_sound(), args.dry_run) {
        (true, _) => say("nothing to repair"),
        (false, true) => say("dry run: nothing was changed"),
        (false, false) => say(format_args!(
            "repaired; {}; moved files and this report are in {}",
            counted(report.losses.len() as u64, "affected range"),
            args.db.join("lost").display()
        )),
    }
    // A script must be able to tell a store with losses, or one that needs repair, from a sound
    // one: by the exit code, also if it closes the pipe.
    let is_damaged = report.has_losses() || (args.dry_run && !report.is_sound());
    match printed {
        Ok(()) | Err(Failure::ClosedPipe) if is_damaged => Err(Failure::Damaged),
        printed => printed,
    }
}

fn print(common: &Common, report: &RepairReport, dry_run: bool) -> Result<()> {
    let mut output = Output::new();
    if common.json() {
        output.json(document(common, report, dry_run))?;
    } else if !report.is_sound() {
        output.write(report.to_string().as_bytes())?;
    }
    output.finish()
}

fn document(common: &Common, report: &RepairReport, dry_run: bool) -> Value {
    json!({
        "dry_run": dry_run,
        "sound": report.is_sound(),
        "basis": report.basis.to_string(),
        "faults": report.faults.iter().map(|fault| json!({
            "file": fault.file.display().to_string(),
            "offset": fault.offset,
            "what": fault.what,
        })).collect::<Vec<_>>(),
        "losses": report.losses.iter().map(|loss| loss_json(common, loss)).collect::<Vec<_>>(),
        "notes": report.notes,
        "moved": report.moved.iter().map(|file| json!({
            "name": file.name,
            "to": file.to.display().to_string(),
        })).collect::<Vec<_>>(),
        "tables_kept": report.tables_kept,
        "tables_rewritten": report.tables_rewritten,
        "entries_from_logs": report.entries_from_logs,
        "manifest": report.manifest,
    })
}

fn loss_json(common: &Common, loss: &Loss) -> Value {
    let key = |key: &Option<Vec<u8>>| key.as_ref().map(|key| json_bytes(common.form(), key));
    json!({
        "kind": loss.kind.to_string(),
        "file": loss.file.as_ref().map(|file| file.display().to_string()),
        "keyspace": loss.keyspace,
        "from": key(&loss.from),
        "to": key(&loss.to),
        "entries": loss.entries,
        "bytes": loss.bytes,
        "why": loss.why,
    })
}
