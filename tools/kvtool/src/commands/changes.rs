//! `changes`: what was written, in order, as far as the log still has it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tamis::{ChangeBatch, Changes, Db, Error, IngestedTable, Operation, OperationKind};

use super::store::open_read_only;
use crate::args::{Changes as Args, Common};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::output::{Output, json_bytes, say};
use crate::text::{Form, unix_time};

/// Characters shown of a key or value without `--full`.
const WIDTH: usize = 60;

/// The least time between two looks at a store that is followed. Each opens the store anew, and a
/// look that takes long is followed by a pause four times as long.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) fn run(common: &Common, args: Args) -> Result<()> {
    let mut output = Output::new();
    let (mut since, mut left) = (args.since, args.limit.unwrap_or(u64::MAX));
    loop {
        let begin = Instant::now();
        let db = open_read_only(&args.db, common)?;
        let mut changes = open_changes(&db, since)?;
        while left > 0 {
            interrupt::check()?;
            let Some(batch) = changes.next() else { break };
            if print(&mut output, common, &batch.map_err(in_words)?, args.full)? {
                left -= 1;
            }
        }
        if !args.follow || left == 0 {
            return output.finish();
        }
        output.flush()?;
        since = Some(changes.seqno());
        std::thread::sleep(PAUSE.max(4 * begin.elapsed()));
    }
}

/// The changes after number `since`, or all that the log still has.
fn open_changes(db: &Db, since: Option<u64>) -> Result<Changes> {
    match db.changes_since(since.unwrap_or(0)) {
        Err(Error::LogGone { oldest, .. }) if since.is_none() => {
            say(format_args!("kvtool: the log begins with number {oldest}"));
            db.changes_since(oldest - 1).map_err(in_words)
        }
        changes => changes.map_err(in_words),
    }
}

/// Says what the errors of a change feed mean to a user of this command.
fn in_words(error: Error) -> Failure {
    match error {
        Error::LogGone { wanted, oldest } => Failure::Gone(format!(
            "change {wanted} is no longer in the log, which begins with number {oldest}: use --since {}, or keep \
             more of the log (Options::keep_log)",
            oldest - 1
        )),
        Error::Diverged { since, last } => Failure::usage(format_args!(
            "there is no change {since} in this store: its last write is number {last}; was it restored from a copy?"
        )),
        error => error.into(),
    }
}

/// Prints the operations of a batch, or of one keyspace. Returns whether there is one.
fn print(output: &mut Output, common: &Common, batch: &ChangeBatch, full: bool) -> Result<bool> {
    let is_wanted = |of: &Operation<'_>| common.keyspace.as_ref().is_none_or(|name| name == of.keyspace);
    let mut operations = batch.operations().filter(is_wanted).peekable();
    if operations.peek().is_none() {
        return Ok(false);
    }
    if common.json() {
        let (first, last) = (batch.first_seqno(), batch.last_seqno());
        let operations = operations.map(|operation| document(common.form(), &operation)).collect::<Result<Vec<_>>>()?;
        output.json(json!({ "first": first, "last": last, "operations": operations }))?;
    } else {
        for operation in operations {
            output.line(line(common.form(), &operation, full)?)?;
        }
    }
    Ok(true)
}

fn document(form: Form, operation: &Operation<'_>) -> Result<Value> {
    let mut document = match operation.kind {
        OperationKind::Put { key, value } => {
            json!({ "kind": "put", "key": json_bytes(form, key), "value": json_bytes(form, value) })
        }
        OperationKind::PutWithExpiry { key, value, deadline } => json!({
            "kind": "put",
            "key": json_bytes(form, key),
            "value": json_bytes(form, value),
            "deadline": unix_time(deadline),
        }),
        OperationKind::Merge { key, operand } => {
            json!({ "kind": "merge", "key": json_bytes(form, key), "value": json_bytes(form, operand) })
        }
        OperationKind::Delete { key } => json!({ "kind": "delete", "key": json_bytes(form, key) }),
        OperationKind::DeleteRange { from, to } => {
            json!({ "kind": "delete range", "from": json_bytes(form, from), "to": to.map(|to| json_bytes(form, to)) })
        }
        OperationKind::Ingest { tables } => {
            let tables = tables.iter().map(|table| {
                json!({
                    "number": table.number,
                    "entries": table.entries,
                    "range_deletes": table.range_deletes,
                    "bytes": table.bytes,
                    "smallest": json_bytes(form, &table.smallest),
                    "greatest": json_bytes(form, &table.greatest),
                    "end": table.end.as_deref().map(|end| json_bytes(form, end)),
                })
            });
            json!({ "kind": "ingest", "tables": tables.collect::<Vec<_>>() })
        }
        _ => return Err(unknown(operation)),
    };
    document["seqno"] = json!(operation.seqno);
    document["keyspace"] = json!(operation.keyspace);
    Ok(document)
}

fn line(form: Form, operation: &Operation<'_>, full: bool) -> Result<String> {
    let show = |bytes: &[u8]| if full { form.show(bytes) } else { form.show_short(bytes, WIDTH) };
    let what = match operation.kind {
        OperationKind::Put { key, value } => format!("put\t{}\t{}", show(key), show(value)),
        OperationKind::PutWithExpiry { key, value, deadline } => {
            format!("put\t{}\t{}\tuntil {}", show(key), show(value), unix_time(deadline))
        }
        OperationKind::Merge { key, operand } => format!("merge\t{}\t{}", show(key), show(operand)),
        OperationKind::Delete { key } => format!("delete\t{}", show(key)),
        OperationKind::DeleteRange { from, to: Some(to) } => format!("delete range\t{}\t{}", show(from), show(to)),
        OperationKind::DeleteRange { from, to: None } => format!("delete range\t{}", show(from)),
        OperationKind::Ingest { tables } => {
            let range = |table: IngestedTable| {
                let (smallest, greatest) = (show(&table.smallest), show(&table.greatest));
                match table.range_deletes {
                    0 => format!("\ttable {}: {} entries, {smallest} to {greatest}", table.number, table.entries),
                    count => {
                        let end =
                            table.end.as_deref().map_or("the end".to_owned(), |end| format!("before {}", show(end)));
                        format!("\ttable {}: {count} range deletes, {smallest} to {end}", table.number)
                    }
                }
            };
            format!("ingest{}", tables.iter().map(range).collect::<String>())
        }
        _ => return Err(unknown(operation)),
    };
    Ok(format!("{}\t{}\t{what}", operation.seqno, Form::Plain.show(operation.keyspace.as_bytes())))
}

fn unknown(operation: &Operation<'_>) -> Failure {
    Failure::usage(format_args!("number {} is an operation that this version does not know", operation.seqno))
}
