//! `demo`: how many disk reads the filters save.
//!
//! Creates a store with several levels, opens it read-only with a small cache, and looks up
//! existing and missing keys, empty ranges and the first entries from keys on, with and without
//! filters. Prints what the filters save, and then the store's counters next to the operating
//! system's counters for this process.

use std::time::Instant;

use serde_json::{Value, json};
use tamis::{FilterMode, FilterPolicy, RangeFilterPolicy, Stats};

use super::range::KeyRange;
use super::workload::keys::Keys;
use super::workload::load::Load;
use super::workload::measure::{Measured, Question, Scan, measure, measure_ranges, warm_up};
use super::workload::{level_json, process};
use crate::args::{Common, Demo};
use crate::failure::{Attempt, Result};
use crate::output::{Output, json_reads, say};
use crate::table::{Table, number, text};
use crate::text::{Decimal, count, percent, size};

/// The data are this many times as large as the block cache, so that blocks come from files.
const CACHE_SHARE: u64 = 128;
/// One key in `ASKED_SHARE` is looked up.
const ASKED_SHARE: u64 = 10;
const VALUE_LEN: usize = 100;
const SEED: u64 = 0;

pub(crate) fn run(common: &Common, args: Demo) -> Result<()> {
    let parent = args.dir.unwrap_or_else(std::env::temp_dir);
    let mut dir = tempfile::Builder::new()
        .prefix("tamis-demo-")
        .tempdir_in(&parent)
        .attempt(format_args!("cannot create a directory in {}", parent.display()))?;
    dir.disable_cleanup(args.keep);
    let path = dir.path().join("db");
    let keys = Keys::dense(args.keys, SEED);
    let load = Load { keys, value_len: VALUE_LEN, filter: FilterPolicy::DEFAULT, ranges: RangeFilterPolicy::ORDERED };

    let start = Instant::now();
    load.run(&path)?;
    let loaded = start.elapsed();
    let cache = usize::try_from(load.bytes() / CACHE_SHARE).unwrap_or(usize::MAX);
    // A read-only store has no background work: only the look-ups read while they are measured.
    let db = load.late_options().cache_size(cache).open_read_only(&path)?;
    let stats = db.stats();
    let bytes: u64 = stats.keyspaces.iter().map(|keyspace| keyspace.size()).sum();
    say(format_args!(
        "loaded {} keys, {} in tables, in {} s",
        count(keys.count()),
        size(bytes),
        Decimal(loaded.as_secs_f64())
    ));

    let keyspace = db.default_keyspace();
    warm_up(&db, keyspace)?;
    let asked = (keys.count() / ASKED_SHARE).max(1);
    // Spread over all loaded keys, early and late.
    let step = keys.count() / asked;
    let mut measured: Vec<Measured<Asked>> = Vec::new();
    for question in [Question::Existing, Question::Missing] {
        for filters in [FilterMode::Use, FilterMode::Ignore] {
            say(format_args!("looking up {} {}", count(asked), title(Asked::Keys(question), filters)));
            let keys = (0..asked).map(|i| match question {
                Question::Existing => keys.existing(i * step),
                Question::Missing => keys.missing(i * step),
            });
            let question = (Asked::Keys(question), question == Question::Existing);
            measured.push(measure(&db, keyspace, question, filters, keys)?);
        }
    }
    for question in [Asked::EmptyRanges, Asked::Firsts] {
        for filters in [FilterMode::Use, FilterMode::Ignore] {
            say(format_args!("looking up {} {}", count(asked), title(question, filters)));
            let ranges = (0..asked).map(|i| match question {
                Asked::Firsts => KeyRange { lower: keys.existing(i * step).into(), upper: None },
                _ => {
                    let (from, until) = keys.empty_range(i * step);
                    KeyRange { lower: from.into(), upper: Some(until.into()) }
                }
            });
            let is_found = question == Asked::Firsts;
            measured.push(measure_ranges(&db, keyspace, (question, is_found), filters, Scan::FIRST, ranges)?);
        }
    }
    let predicted = measured.iter().map(|m| m.predicted).sum();
    let mut output = Output::new();
    if common.json() {
        output.json(json!({
            "keys": keys.count(),
            "bytes": bytes,
            "load_seconds": loaded.as_secs_f64(),
            "levels": levels_json(&stats),
            "measured": measured.iter().map(measured_json).collect::<Vec<_>>(),
            "saved": saved(&measured, Asked::MISSING).map(|saved| saved.share),
            "saved_of_empty_ranges": saved(&measured, Asked::EmptyRanges).map(|saved| saved.share),
            "predicted_range_false_positives": predicted,
        }))?;
    } else {
        output.table(common, &result_table(&measured))?;
        output.line("")?;
        conclude(&mut output, &measured, predicted)?;
        output.line("")?;
        output.table(common, &levels_table(&stats))?;
        output.line("")?;
        output.table(common, &measured_table(&measured).attempt("cannot keep the figures")?)?;
    }
    output.finish()?;
    db.close()?;
    if args.keep {
        say(format_args!("the store is in {}", path.display()));
        return Ok(());
    }
    dir.close().attempt(format_args!("cannot remove {}", path.display()))
}

/// What is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Keys(Question),
    /// Between neighbours.
    EmptyRanges,
    /// The first entry from each key on.
    Firsts,
}

impl Asked {
    const MISSING: Asked = Asked::Keys(Question::Missing);
}

fn title(question: Asked, filters: FilterMode) -> String {
    let question = match question {
        Asked::Keys(Question::Existing) => "existing keys",
        Asked::MISSING => "missing keys",
        Asked::EmptyRanges => "empty ranges",
        Asked::Firsts => "first entries from a key on",
    };
    match filters {
        FilterMode::Ignore => format!("{question}, filters ignored"),
        _ => format!("{question}, with filters"),
    }
}

/// What the filters save, in a few lines.
fn result_table(measured: &[Measured<Asked>]) -> Table {
    let questions = [
        (Asked::MISSING, "missing key"),
        (Asked::EmptyRanges, "empty range"),
        (Asked::Keys(Question::Existing), "existing key"),
        (Asked::Firsts, "first entry from a key on"),
    ];
    let row = |(question, name): (Asked, &str)| {
        let Saved { without, with, share } = saved(measured, question)?;
        let asked = measured.iter().find(|m| m.question == question)?.asked as f64;
        let per_one = |n: u64| format!("{:.4}", n as f64 / asked);
        Some(vec![name.to_owned(), per_one(without), per_one(with), percent(Some(share))])
    };
    let columns = [
        text("disk reads per").key(),
        number("without filters").key(),
        number("with filters").key(),
        number("saved").key(),
    ];
    Table::new(columns, questions.into_iter().filter_map(row))
}

fn levels_table(stats: &Stats) -> Table {
    let levels = stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels).filter(|level| !level.tables.is_empty());
    let rows = levels.map(|level| {
        vec![level.level.to_string(), count(level.tables.len() as u64), count(level.entries()), size(level.size())]
    });
    Table::new([text("level").key(), number("tables"), number("entries"), number("size")], rows)
}

fn levels_json(stats: &Stats) -> Vec<Value> {
    let levels = stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels);
    levels.filter(|level| !level.tables.is_empty()).map(level_json).collect()
}

/// All figures, which are also kept for the documents.
fn measured_table(measured: &[Measured<Asked>]) -> std::io::Result<Table> {
    let row = |m: &Measured<Asked>| {
        let per_key = |n: u64| Decimal(n as f64 / m.asked as f64).to_string();
        let process = |figure: fn(&process::Io) -> String| m.process.as_ref().map_or_else(|| "–".to_owned(), figure);
        vec![
            title(m.question, m.filters),
            count(m.asked),
            count(m.found),
            count(m.reads.negatives + m.reads.range_negatives),
            count(m.reads.false_positives + m.reads.range_false_positives),
            count(m.reads.block_reads),
            size(m.reads.block_bytes),
            per_key(m.reads.block_reads),
            Decimal(m.time.as_secs_f64() * 1e6 / m.asked as f64).to_string(),
            process(|io| count(io.read_calls)),
            process(|io| size(io.bytes_read)),
        ]
    };
    let table = Table::new(
        [
            text("asked for").key(),
            number("asked").detail(),
            number("found").detail(),
            number("filter said no"),
            number("wrongly maybe"),
            number("blocks read").key(),
            number("bytes read").detail(),
            number("reads per key").key(),
            number("µs per key"),
            number("process: reads"),
            number("process: bytes").detail(),
        ],
        measured.iter().map(row),
    );
    table.to_figures("demo/reads", "cargo run --release -p kvtool -- demo").keep()?;
    Ok(table)
}

fn measured_json(m: &Measured<Asked>) -> Value {
    json!({
        "keys": match m.question {
            Asked::Keys(Question::Existing) => "existing",
            Asked::MISSING => "missing",
            Asked::EmptyRanges => "empty ranges",
            Asked::Firsts => "first from a key on",
        },
        "filters": m.filters == FilterMode::Use,
        "asked": m.asked,
        "found": m.found,
        "seconds": m.time.as_secs_f64(),
        "reads": json_reads(&m.reads),
        "process": m.process.as_ref().map(|io| json!({ "read_calls": io.read_calls, "bytes_read": io.bytes_read })),
    })
}

/// What the filters save.
struct Saved {
    without: u64,
    with: u64,
    share: f64,
}

fn saved(measured: &[Measured<Asked>], question: Asked) -> Option<Saved> {
    let reads = |filters: FilterMode| {
        let of = measured.iter().find(|m| m.question == question && m.filters == filters);
        of.map(|m| m.reads.block_reads)
    };
    let (with, without) = (reads(FilterMode::Use)?, reads(FilterMode::Ignore)?);
    (without > 0).then(|| Saved { without, with, share: 1.0 - with as f64 / without as f64 })
}

fn conclude(output: &mut Output, measured: &[Measured<Asked>], predicted: f64) -> Result<()> {
    let with_filters = || measured.iter().filter(|m| m.filters == FilterMode::Use);
    let rate = with_filters().find(|m| m.question == Asked::MISSING).and_then(|m| m.reads.false_positive_rate());
    let (wrong, absent) = with_filters()
        .fold((0, 0), |(wrong, absent), m| (wrong + m.reads.range_false_positives, absent + m.reads.range_absent()));
    let range_rate = |wrong: f64| percent((absent > 0).then(|| wrong / absent as f64));
    output.sentence(format_args!(
        "False positives: filters {}, in theory 0.82 %; range filters {}, predicted {}.",
        percent(rate),
        range_rate(wrong as f64),
        range_rate(predicted)
    ))?;
    let calls: Option<u64> = measured.iter().map(|m| m.process.as_ref().map(|io| io.read_calls)).sum();
    let reads: u64 = measured.iter().map(|m| m.reads.block_reads).sum();
    match calls {
        Some(calls) => output.sentence(format_args!(
            "The store counts {} block reads, the kernel {} read calls of this process.",
            count(reads),
            count(calls)
        )),
        None => Ok(()),
    }
}
