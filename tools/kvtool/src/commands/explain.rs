//! `explain`: the steps of a look-up, source by source.

use std::time::Duration;

use serde_json::{Value, json};
use tamis::{Explanation, FilterAnswer, Found, ReadOptions, ReadSource, ReadStep};

use super::store::open_to_read;
use crate::args::{Common, Explain};
use crate::failure::{Failure, Result};
use crate::output::{Output, say, table};
use crate::text::{Decimal, count, counted};

pub(crate) fn run(common: &Common, args: Explain) -> Result<()> {
    let key = common.bytes("KEY", &args.key)?;
    let (_db, keyspace) = open_to_read(&args.db, common)?;
    let explained = keyspace.explain_with(key, ReadOptions::new().filters(args.filters.into()))?;
    let mut output = Output::new();
    if common.json {
        output.json(document(&explained))?;
    } else {
        let rows = explained.steps.iter().flat_map(rows);
        let heads = ["source", "verdict", "read", "offset", "bytes", "µs"];
        output.line(table(3, &heads, rows))?;
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

/// A row for the step with its first read, and one for each further read: opening the table, then
/// the blocks.
fn rows(step: &ReadStep) -> Vec<Vec<String>> {
    let read = |what: &str, offset: String, bytes: u64, time: Duration| ([what.to_owned(), offset, count(bytes)], time);
    let opening = step.opened.map(|opening| read("to open it", String::new(), opening.bytes, opening.time));
    let blocks = step.blocks.iter().map(|block| {
        let from = if block.cached { "from cache" } else { "from disk" };
        read(from, block.offset.to_string(), block.len, block.time)
    });
    let mut reads = opening.into_iter().chain(blocks);
    let first = reads.next().map(|(read, _)| read).unwrap_or_default();
    let row = |words: [String; 2], read: [String; 3], time: Duration| {
        let micros = Decimal(time.as_secs_f64() * 1e6).to_string();
        words.into_iter().chain(read).chain([micros]).collect()
    };
    let mut rows = vec![row([step.source.to_string(), step.to_string()], first, step.time)];
    rows.extend(reads.map(|(read, time)| row(Default::default(), read, time)));
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
    let filter = step.filter.map(|answer| match answer {
        FilterAnswer::No => "no",
        FilterAnswer::Maybe => "maybe",
        FilterAnswer::Degraded => "degraded",
        FilterAnswer::Skipped => "skipped",
        _ => "other",
    });
    let blocks: Vec<Value> = step
        .blocks
        .iter()
        .map(|block| {
            json!({
                "offset": block.offset,
                "bytes": block.len,
                "cached": block.cached,
                "microseconds": block.time.as_secs_f64() * 1e6,
            })
        })
        .collect();
    json!({
        "source": source,
        "opened": step.opened.map(|opening| json!({
            "bytes": opening.bytes,
            "microseconds": opening.time.as_secs_f64() * 1e6,
        })),
        "filter": filter,
        "false_positive": step.is_false_positive(),
        "found": step.found.map_or("failed", found_name),
        "blocks": blocks,
        "microseconds": step.time.as_secs_f64() * 1e6,
    })
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
