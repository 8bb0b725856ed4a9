//! `explain`: the steps of a look-up, source by source, or what a scan reads, table by table.

use std::ffi::OsString;
use std::time::Duration;

use serde_json::{Value, json};
use tamis::{
    BlockVisit, Explanation, FilterAnswer, Found, Opening, RangeExplanation, ReadOptions, ReadSource, ReadStep,
    ScanStep,
};

use super::range::KeyRange;
use super::store::open_to_read;
use crate::args::{Common, Explain};
use crate::failure::{Failure, Result};
use crate::output::{Output, say};
use crate::table::{Table, number, text};
use crate::text::{Decimal, count, counted};

/// The table of what was read.
fn steps(rows: impl Iterator<Item = Vec<String>>) -> Table {
    let columns = [
        text("source").key(),
        text("verdict").key(),
        text("read"),
        number("offset").detail(),
        number("bytes"),
        number("µs").detail(),
    ];
    Table::new(columns, rows)
}

pub(crate) fn run(common: &Common, args: Explain) -> Result<()> {
    match &args.key {
        Some(key) => explain_get(common, &args, key),
        None => explain_scan(common, &args),
    }
}

fn explain_scan(common: &Common, args: &Explain) -> Result<()> {
    let from = common.optional_bytes("--from", args.from.as_ref())?;
    let to = common.optional_bytes("--to", args.to.as_ref())?;
    let prefix = common.optional_bytes("--prefix", args.prefix.as_ref())?;
    let range = KeyRange::new(from, to, prefix);
    let (_db, keyspace) = open_to_read(&args.db, common)?;
    let options = ReadOptions::new().filters(args.filters.into());
    let explained = keyspace.explain_range_with(range.bounds(), args.limit, options)?;
    let mut output = Output::new();
    if common.json() {
        output.json(scan_document(&explained))?;
    } else {
        output.table(common, &steps(explained.steps.iter().flat_map(scan_rows)))?;
    }
    output.finish()?;
    say(format_args!(
        "{}: {} opened, {} entered, {} read, {}, {} for nothing, {} µs",
        match &explained.outcome {
            Ok(entries) => counted(*entries, "entry"),
            Err(_) => "failed".to_owned(),
        },
        counted(explained.tables_opened() as u64, "table"),
        counted(explained.blocks_entered() as u64, "block"),
        explained.block_reads(),
        counted(explained.bytes_read(), "byte"),
        explained.blocks_unused(),
        Decimal(explained.time.as_secs_f64() * 1e6)
    ));
    match explained.outcome {
        Ok(0) => Err(Failure::NotFound),
        Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// [`read_rows`] of a table.
fn scan_rows(step: &ScanStep) -> Vec<Vec<String>> {
    let blocks = step.blocks.iter().map(|block| (block.visit, if block.used { "" } else { "for nothing" }));
    let source = format!("level {}, table {}", step.level, step.table);
    read_rows([source, step.to_string()], None, step.opened, blocks)
}

fn scan_document(explained: &RangeExplanation) -> Value {
    let steps = explained.steps.iter().map(|step| {
        let blocks = step.blocks.iter().map(|block| {
            let mut document = block_document(&block.visit);
            document["used"] = block.used.into();
            document
        });
        json!({
            "level": step.level,
            "table": step.table,
            "opened": step.opened.map(opening),
            "prefix_filter": step.prefix.map(answer_name),
            "range_filter": step.range.map(answer_name),
            "blocks": blocks.collect::<Vec<_>>(),
        })
    });
    json!({
        "entries": explained.outcome.as_ref().ok(),
        "error": explained.outcome.as_ref().err().map(ToString::to_string),
        "microseconds": explained.time.as_secs_f64() * 1e6,
        "tables_opened": explained.tables_opened(),
        "blocks_entered": explained.blocks_entered(),
        "blocks_unused": explained.blocks_unused(),
        "block_reads": explained.block_reads(),
        "block_reads_unused": explained.reads_unused(),
        "bytes_read": explained.bytes_read(),
        "steps": steps.collect::<Vec<_>>(),
    })
}

fn explain_get(common: &Common, args: &Explain, key: &OsString) -> Result<()> {
    let key = common.bytes("KEY", key)?;
    let (_db, keyspace) = open_to_read(&args.db, common)?;
    let explained = keyspace.explain_with(key, ReadOptions::new().filters(args.filters.into()))?;
    let mut output = Output::new();
    if common.json() {
        output.json(document(&explained))?;
    } else {
        output.table(common, &steps(explained.steps.iter().flat_map(rows)))?;
    }
    output.finish()?;
    say(format_args!(
        "{}: {} opened, {} read, {}, {} passed, {} µs",
        match &explained.outcome {
            Ok(found) => found.to_string(),
            Err(_) => "failed".to_owned(),
        },
        counted(explained.tables_opened() as u64, "table"),
        counted(explained.block_reads() as u64, "block"),
        counted(explained.bytes_read(), "byte"),
        counted(explained.tombstones_passed() as u64, "tombstone"),
        Decimal(explained.time.as_secs_f64() * 1e6)
    ));
    match explained.outcome {
        Ok(Found::Value(_)) => Ok(()),
        Ok(_) => Err(Failure::NotFound),
        Err(error) => Err(error.into()),
    }
}

/// [`read_rows`] of a step.
fn rows(step: &ReadStep) -> Vec<Vec<String>> {
    let words = [step.source.to_string(), step.to_string()];
    read_rows(words, Some(step.time), step.opened, step.blocks.iter().map(|block| (*block, "")))
}

/// A row for a source with its first read, and one for each further read: opening the table, then
/// the blocks, each with what is said of it. The first row has the time of the step, if that is
/// known.
fn read_rows<'s>(
    words: [String; 2],
    time: Option<Duration>,
    opened: Option<Opening>,
    blocks: impl Iterator<Item = (BlockVisit, &'s str)>,
) -> Vec<Vec<String>> {
    let read = |what: &str, offset: String, bytes: u64| [what.to_owned(), offset, count(bytes)];
    let opening = opened.map(|opening| (read("to open it", String::new(), opening.bytes), "", opening.time));
    let blocks = blocks.map(|(block, verdict)| {
        let from = if block.cached { "from cache" } else { "from disk" };
        (read(from, block.offset.to_string(), block.len), verdict, block.time)
    });
    let mut reads = opening.into_iter().chain(blocks);
    let micros = |time: Duration| Decimal(time.as_secs_f64() * 1e6).to_string();
    let row = |words: [String; 2], read: [String; 3], time: String| {
        words.into_iter().chain(read).chain([time]).collect::<Vec<_>>()
    };
    let (first, _, first_time) = reads.next().map_or_else(Default::default, |(read, _, time)| (read, "", Some(time)));
    let mut rows = vec![row(words, first, time.or(first_time).map(micros).unwrap_or_default())];
    rows.extend(reads.map(|(read, verdict, time)| row([String::new(), verdict.to_owned()], read, micros(time))));
    rows
}

fn document(explained: &Explanation) -> Value {
    let steps: Vec<Value> = explained.steps.iter().map(step).collect();
    json!({
        // As text: many JSON readers keep numbers exactly only up to 2^53.
        "hash": format!("{:#018x}", explained.hash),
        "outcome": explained.outcome.as_ref().map_or("failed", |found| found_name(*found)),
        "error": explained.outcome.as_ref().err().map(ToString::to_string),
        "microseconds": explained.time.as_secs_f64() * 1e6,
        "tables_opened": explained.tables_opened(),
        "block_reads": explained.block_reads(),
        "block_bytes": explained.block_bytes(),
        "bytes_read": explained.bytes_read(),
        "tombstones_passed": explained.tombstones_passed(),
        "steps": steps,
    })
}

fn step(step: &ReadStep) -> Value {
    let source = match step.source {
        ReadSource::Memtable(i) => json!({ "memtable": i }),
        ReadSource::Table { level, number } => json!({ "level": level, "table": number }),
        ReadSource::Level(level) => json!({ "level": level }),
        other => json!(other.to_string()),
    };
    let filter = step.filter.map(answer_name);
    let blocks: Vec<Value> = step.blocks.iter().map(block_document).collect();
    json!({
        "source": source,
        "opened": step.opened.map(opening),
        "filter": filter,
        "false_positive": step.is_false_positive(),
        "found": step.found.map_or("failed", found_name),
        "blocks": blocks,
        "microseconds": step.time.as_secs_f64() * 1e6,
    })
}

fn opening(opening: Opening) -> Value {
    json!({ "bytes": opening.bytes, "microseconds": opening.time.as_secs_f64() * 1e6 })
}

fn block_document(block: &BlockVisit) -> Value {
    json!({
        "offset": block.offset,
        "bytes": block.len,
        "cached": block.cached,
        "microseconds": block.time.as_secs_f64() * 1e6,
    })
}

fn answer_name(answer: FilterAnswer) -> &'static str {
    match answer {
        FilterAnswer::No => "no",
        FilterAnswer::Maybe => "maybe",
        FilterAnswer::Degraded => "degraded",
        FilterAnswer::Skipped => "skipped",
        _ => "other",
    }
}

fn found_name(found: Found) -> &'static str {
    match found {
        Found::OutOfRange => "out of range",
        Found::Absent => "absent",
        Found::Newer => "newer",
        Found::Value(_) => "value",
        Found::Deleted => "deleted",
        Found::Expired(_) => "expired",
        _ => "other",
    }
}
