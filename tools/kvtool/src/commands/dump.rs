//! `dump`: any file of a store, as text.

use std::path::Path;

use serde_json::{Value, json};
use tamis::inspect::{
    Content, FileKind, Inspector, LogEnd, LogFile, LogRecord, LoggedOperation, ManifestChange, StatedTable,
};

use super::range::KeyRange;
use super::sst;
use crate::args::{Common, Dump};
use crate::failure::{Failure, Result};
use crate::output::{Output, json_bytes};
use crate::text::{count, unix_time};

/// Characters shown of a key or value without `--full`.
const WIDTH: usize = 60;

pub(crate) fn run(common: &Common, args: Dump) -> Result<()> {
    let kinds = args.files.iter().map(|file| kind_of(file)).collect::<Result<Vec<_>>>()?;
    let (mut output, are_several) = (Output::new(), args.files.len() > 1);
    for (i, (file, kind)) in args.files.iter().zip(kinds).enumerate() {
        match common.json() {
            // Before each document, of which file it is.
            true if are_several => output.json(json!({ "file": file.display().to_string() }))?,
            false if are_several => {
                output.line(format_args!("{}{}:", if i == 0 { "" } else { "\n" }, file.display()))?
            }
            _ => {}
        }
        dump(&mut output, common, file, kind, args.full)?;
    }
    output.finish()
}

fn dump(output: &mut Output, common: &Common, file: &Path, kind: FileKind, full: bool) -> Result<()> {
    let inspector = Inspector::new();
    match kind {
        FileKind::Current => {
            let manifest = FileKind::Manifest(inspector.current(file)?).name();
            match common.json() {
                true => output.json(json!({ "kind": "current", "manifest": manifest })),
                false => output.line(format_args!("the current manifest is {manifest}")),
            }
        }
        FileKind::Table(_) => {
            sst::describe(output, common, &inspector.table(file)?, Some(&KeyRange::new(None, None, None)))
        }
        FileKind::Values(_) => dump_values(output, common, file, full),
        FileKind::Wal(_) | FileKind::Manifest(_) => {
            let mut log = inspector.log(file)?;
            match common.json() {
                true => output.json(log_json(common, &mut log)?),
                false => dump_log(output, common, &mut log, full),
            }
        }
        _ => Err(Failure::usage(format_args!("{} has no content to print", file.display()))),
    }
}

fn kind_of(file: &Path) -> Result<FileKind> {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    FileKind::parse(name)
        .ok_or_else(|| Failure::usage(format_args!("{} is not the name of a store's file", file.display())))
}

fn dump_log(output: &mut Output, common: &Common, log: &mut LogFile, full: bool) -> Result<()> {
    match log.header() {
        Ok(header) => {
            output.line(format_args!(
                "file {}, first ordinal {}, synced up to {}",
                header.number, header.first, header.synced
            ))?;
            if header.previous != 0 {
                let (number, len) = (header.previous, count(header.previous_len));
                output.line(format_args!("the previous log is {number}, {len} bytes"))?;
            }
        }
        Err(rule) => output.line(format_args!("the header is not valid: {rule}"))?,
    }
    while let Some(record) = log.next_record().inspect_err(|_| drop(output.flush()))? {
        output.line(record_line(&record))?;
        match &record.content {
            Content::Batch(operations) => {
                for operation in operations {
                    output.line(operation_line(common, operation, full))?;
                }
            }
            Content::Edit(changes) => {
                for change in changes {
                    output.line(format_args!("    {change}"))?;
                }
            }
            _ => {}
        }
    }
    match log.end() {
        Some(LogEnd::Bad { offset, rule }) => output
            .line(format_args!("{offset}: reading ends here: {rule} (`kvtool verify` tells a torn tail from damage)")),
        _ => output.line("the file ends with the last record"),
    }
}

fn dump_values(output: &mut Output, common: &Common, file: &Path, full: bool) -> Result<()> {
    let mut documents = Vec::new();
    for record in Inspector::new().values(file)? {
        let record = record.inspect_err(|_| drop(output.flush()))?;
        let show = |bytes: &[u8]| match full {
            true => common.form().show(bytes),
            false => common.form().show_short(bytes, WIDTH),
        };
        if common.json() {
            documents.push(json!({
                "offset": record.offset,
                "bytes": record.len,
                "keyspace": record.keyspace,
                "key": json_bytes(common.form(), &record.key),
                "value": json_bytes(common.form(), &record.value),
            }));
        } else {
            let (key, value) = (show(&record.key), show(&record.value));
            output.line(format_args!("{}: keyspace {}\t{key}\t{value}", record.offset, record.keyspace))?;
        }
    }
    match common.json() {
        true => output.json(json!({ "kind": "values", "records": documents })),
        false => output.line("the file ends with the last record"),
    }
}

fn record_line(record: &LogRecord) -> String {
    let offset = record.offset;
    let what = match &record.content {
        Content::SyncMarker => return format!("{offset}: sync marker, synced up to {}", record.synced),
        Content::Batch(_) => "batch".to_owned(),
        Content::Edit(_) => "version edit".to_owned(),
        Content::Malformed(rule) => format!("not valid: {rule};"),
        other => format!("{other:?}"),
    };
    let last = record.first.saturating_add(record.count.into()).saturating_sub(1);
    let ordinals = if last > record.first { format!("{} to {last}", record.first) } else { record.first.to_string() };
    let synced = if record.synced > 0 { format!(", synced up to {}", record.synced) } else { String::new() };
    format!("{offset}: {what} {ordinals}, {} bytes{synced}", count(record.payload_len))
}

fn operation_line(common: &Common, operation: &LoggedOperation, full: bool) -> String {
    let show = |bytes: &[u8]| match full {
        true => common.form().show(bytes),
        false => common.form().show_short(bytes, WIDTH),
    };
    let place = format!("    {}\tkeyspace {}", operation.seqno, operation.keyspace);
    match (&operation.value, operation.deadline) {
        (Some(value), Some(deadline)) => {
            let deadline = unix_time(deadline);
            format!("{place}\t{}\t{}\t{}\tuntil {deadline}", operation.kind, show(&operation.key), show(value))
        }
        (Some(value), None) => format!("{place}\t{}\t{}\t{}", operation.kind, show(&operation.key), show(value)),
        (None, _) => format!("{place}\t{}\t{}", operation.kind, show(&operation.key)),
    }
}

fn log_json(common: &Common, log: &mut LogFile) -> Result<Value> {
    let header = match log.header() {
        Ok(header) => json!({
            "number": header.number,
            "first": header.first,
            "synced": header.synced,
            "previous": header.previous,
            "previous_len": header.previous_len,
        }),
        Err(rule) => json!({ "broken": rule }),
    };
    let mut records = Vec::new();
    while let Some(record) = log.next_record()? {
        records.push(record_json(common, &record));
    }
    let end = match log.end() {
        Some(LogEnd::Bad { offset, rule }) => json!({ "offset": offset, "broken": rule }),
        _ => json!("clean"),
    };
    let kind = if matches!(log.kind(), FileKind::Wal(_)) { "wal" } else { "manifest" };
    Ok(json!({ "kind": kind, "header": header, "records": records, "end": end }))
}

fn record_json(common: &Common, record: &LogRecord) -> Value {
    let mut document = json!({
        "offset": record.offset,
        "first": record.first,
        "count": record.count,
        "synced": record.synced,
        "payload_len": record.payload_len,
    });
    match &record.content {
        Content::SyncMarker => document["kind"] = json!("sync marker"),
        Content::Batch(operations) => {
            document["kind"] = json!("batch");
            document["operations"] = operations.iter().map(|operation| operation_json(common, operation)).collect();
        }
        Content::Edit(changes) => {
            document["kind"] = json!("version edit");
            document["changes"] = changes.iter().map(|change| change_json(common, change)).collect();
        }
        Content::Malformed(rule) => {
            document["kind"] = json!("malformed");
            document["broken"] = json!(rule);
        }
        other => document["kind"] = json!(format!("{other:?}")),
    }
    document
}

fn operation_json(common: &Common, operation: &LoggedOperation) -> Value {
    json!({
        "seqno": operation.seqno,
        "keyspace": operation.keyspace,
        "kind": operation.kind.to_string(),
        "key": json_bytes(common.form(), &operation.key),
        "value": operation.value.as_ref().map(|value| json_bytes(common.form(), value)),
        "deadline": operation.deadline.map(unix_time),
    })
}

fn change_json(common: &Common, change: &ManifestChange) -> Value {
    match change {
        ManifestChange::NextFileNumber(number) => json!({ "next_file_number": number }),
        ManifestChange::MinLog(number) => json!({ "min_log": number }),
        ManifestChange::FlushedSeqno(seqno) => json!({ "flushed_seqno": seqno }),
        ManifestChange::Unfinished { id, keyspace, output_level, inputs, finished } => json!({ "unfinished": {
            "id": id, "keyspace": keyspace, "output_level": output_level, "inputs": inputs, "finished": finished,
        } }),
        ManifestChange::Ended(id) => json!({ "ended": id }),
        ManifestChange::Branch { first, id } => json!({ "branch": { "first": first, "id": format!("{id:#018x}") } }),
        ManifestChange::HashSeed(seed) => json!({ "hash_seed": format!("{seed:#018x}") }),
        ManifestChange::Keyspace { id, name, options } => {
            json!({ "keyspace": { "id": id, "name": name, "options": format!("{options:?}") } })
        }
        ManifestChange::DropKeyspace { id } => json!({ "drop_keyspace": { "id": id } }),
        ManifestChange::RemoveTable { keyspace, level, number } => {
            json!({ "remove_table": { "keyspace": keyspace, "level": level, "number": number } })
        }
        ManifestChange::AddValues { keyspace, number, size, checksum, count } => json!({ "add_values": {
            "keyspace": keyspace,
            "number": number,
            "bytes": size,
            "checksum": format!("{checksum:08x}"),
            "values": count,
        } }),
        ManifestChange::AddTable(table) => json!({ "add_table": table_json(common, table) }),
        other => json!(other.to_string()),
    }
}

fn table_json(common: &Common, table: &StatedTable) -> Value {
    json!({
        "keyspace": table.keyspace,
        "level": table.level,
        "number": table.number,
        "bytes": table.size,
        "checksum": format!("{:08x}", table.checksum),
        "entries": table.entries,
        "keys": table.keys,
        "tombstones": table.tombstones,
        "expiring": table.expiring,
        "deadlines": table.deadlines.map(|(first, last)| [unix_time(first), unix_time(last)]),
        "value_files": table.value_files,
        "cleared": table.cleared,
        "kept": table.kept,
        "identity": table.identity.map(|identity| format!("{identity:016x}")),
        "range_end": table.range_end.as_deref().map(|end| json_bytes(common.form(), end)),
        "smallest_seqno": table.smallest_seqno,
        "largest_seqno": table.largest_seqno,
        "smallest": json_bytes(common.form(), &table.smallest),
        "largest": json_bytes(common.form(), &table.largest),
    })
}
