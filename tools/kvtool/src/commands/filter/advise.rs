//! `filter advise`: what filters of other sizes would cost and save in a given store.

mod ranges;

use std::path::Path;

use serde_json::{Value, json};
use tamis::filter::{FilterState, Run, allocate, expected_rate, filter_bytes};
use tamis::inspect::{FileKind, Inspector};
use tamis::{FilterPolicy, Found, Keyspace, KeyspaceStats, ReadSource, TableStats};

use self::ranges::RangeAdvice;
use super::super::look_up::each_key;
use super::super::sst::range_filter_json;
use super::super::store::{open_to_read, stats_of};
use crate::args::{Common, FilterAdvise};
use crate::failure::Result;
use crate::output::{Output, say};
use crate::table::{Table, number, text};
use crate::text::{count, percent, size};

/// Bits per key of the rows.
const BITS: std::ops::RangeInclusive<u8> = 4..=20;

pub(crate) fn run(common: &Common, args: &FilterAdvise) -> Result<()> {
    common.form_needs("--trace or --ranges-from", args.trace.is_some() || args.ranges_from.is_some())?;
    let (db, keyspace) = open_to_read(&args.db, common)?;
    let stats = stats_of(&db, common)?;
    let levels = stats.keyspaces.iter().find(|stats| stats.name == keyspace.name());
    let run_tables = levels.map_or_else(Vec::new, run_tables);
    let mut tree = Runs::of(db.path(), &run_tables)?;
    let look_ups = match &args.trace {
        Some(file) => Some(tree.weigh(&keyspace, common, file)?),
        None => None,
    };
    let mut ranges = RangeAdvice::of(db.path(), &run_tables)?;
    if let Some(file) = &args.ranges_from {
        ranges.weigh(&keyspace, common, file)?;
    }
    let rows: Vec<Row> = BITS.map(|bits| tree.row(bits)).collect();
    let mut output = Output::new();
    if common.json() {
        output.json(json!({
            "keyspace": keyspace.name(),
            "look_ups": look_ups,
            "runs": tree.runs.iter().map(OneRun::json).collect::<Vec<Value>>(),
            "now": { "bytes": tree.bytes(), "wasted_reads": tree.wasted_now() },
            "choices": rows.iter().map(Row::json).collect::<Vec<Value>>(),
            "ranges": ranges.json(),
        }))?;
        return output.finish();
    }
    let columns = [
        text("run").key(),
        number("keys"),
        number("look-ups that miss"),
        number("filters now").key(),
        number("expected false now"),
    ];
    output.table(common, &Table::new(columns, tree.runs.iter().map(OneRun::cells)))?;
    output.line("")?;
    let mut cells = vec![vec![
        "now".into(),
        size(tree.bytes()),
        String::new(),
        reads(tree.wasted_now()),
        String::new(),
        String::new(),
    ]];
    cells.extend(rows.iter().map(Row::cells));
    let columns = [
        number("bits per key").key(),
        number("memory").key(),
        number("false positives"),
        number("wasted reads").key(),
        number("if shared out"),
        text("bits of each run").detail(),
    ];
    output.table(common, &Table::new(columns, cells))?;
    output.line("")?;
    ranges.print(&mut output, common)?;
    output.finish()?;
    match look_ups {
        Some(look_ups) => say(format_args!(
            "Wasted reads are per look-up of the trace, which has {}. A look-up misses if it reaches a run that lacks the key.",
            count(look_ups)
        )),
        None => say("Wasted reads are per look-up of an absent key that lies in the key range of every run."),
    }
    say(
        "`kvtool filter rebuild --bits N` gives every run N bits per key; with --allocate it shares the same memory out.",
    );
    ranges.say();
    Ok(())
}

/// The tables of a run: one of level 0, or all of a level below.
struct RunTables<'a> {
    level: usize,
    /// Number of the table in level 0.
    table: Option<u64>,
    tables: &'a [TableStats],
}

/// The runs of a keyspace, in the order in which a read visits them.
fn run_tables(keyspace: &KeyspaceStats) -> Vec<RunTables<'_>> {
    let mut runs = Vec::new();
    for level in keyspace.levels.iter().filter(|level| !level.tables.is_empty()) {
        let run = |table, tables| RunTables { level: level.level, table, tables };
        match level.level {
            0 => runs.extend(level.tables.chunks(1).map(|tables| run(Some(tables[0].number), tables))),
            _ => runs.push(run(None, &level.tables)),
        }
    }
    runs
}

/// The runs of a keyspace, in the order in which a read visits them.
struct Runs {
    runs: Vec<OneRun>,
}

/// A table of level 0, or all tables of a level below.
struct OneRun {
    level: usize,
    /// Number of the table in level 0.
    table: Option<u64>,
    /// Its keys are those in its filters, prefixes included; without filters, its own number of
    /// keys.
    run: Run,
    /// Bytes of its filters.
    bytes: u64,
    /// Their false-positive rate, by their actual bits.
    rate: f64,
}

impl Runs {
    fn of(dir: &Path, runs: &[RunTables<'_>]) -> Result<Runs> {
        let runs = runs.iter().map(|run| OneRun::of(dir, run)).collect::<Result<_>>()?;
        Ok(Runs { runs })
    }

    /// Looks up every line of a trace and returns the number of look-ups. Sets each run's weight to
    /// the share of look-ups that miss there.
    fn weigh(&mut self, keyspace: &Keyspace, common: &Common, file: &Path) -> Result<u64> {
        let mut look_ups = 0u64;
        let mut misses = vec![0u64; self.runs.len()];
        each_key(file, common.form(), |key| {
            let explained = keyspace.explain(key)?;
            explained.outcome?;
            look_ups += 1;
            for step in explained.steps.iter().filter(|step| step.found == Some(Found::Absent)) {
                let ReadSource::Table { level, number } = step.source else { continue };
                let is_it = |run: &OneRun| run.level == level && run.table.is_none_or(|table| table == number);
                if let Some(at) = self.runs.iter().position(is_it) {
                    misses[at] += 1;
                }
            }
            Ok(())
        })?;
        for (run, misses) in self.runs.iter_mut().zip(misses) {
            run.run.weight = misses as f64 / look_ups.max(1) as f64;
        }
        Ok(look_ups)
    }

    fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes).sum()
    }

    fn wasted_now(&self) -> f64 {
        self.runs.iter().map(|run| run.run.weight * run.rate).sum()
    }

    fn row(&self, bits: u8) -> Row {
        let uniform = FilterPolicy::Bloom { bits_per_key: bits.into() };
        let runs: Vec<Run> = self.runs.iter().map(|run| run.run).collect();
        let memory = filter_bytes(uniform, runs.iter().map(|run| run.keys).sum());
        let policies = allocate(&runs, memory);
        let shared = runs.iter().zip(&policies).map(|(run, policy)| run.weight * expected_rate(*policy)).sum();
        Row {
            bits,
            memory,
            rate: expected_rate(uniform),
            wasted: runs.iter().map(|run| run.weight * expected_rate(uniform)).sum(),
            shared,
            each: policies.iter().map(|policy| policy.bits_per_key()).collect(),
        }
    }
}

impl OneRun {
    fn of(dir: &Path, &RunTables { level, table, tables }: &RunTables<'_>) -> Result<OneRun> {
        let inspector = Inspector::new();
        let (mut keys, mut bytes, mut false_keys) = (0, 0, 0.0);
        for TableStats { number, .. } in tables {
            let file = inspector.table(&FileKind::Table(*number).path(dir))?;
            let (held, rate) = match file.filter() {
                FilterState::Usable(info) => {
                    bytes += info.bytes;
                    (info.keys, info.expected_fpr)
                }
                _ => (file.properties().keys, 1.0),
            };
            keys += held;
            false_keys += rate * held as f64;
        }
        let rate = false_keys / keys.max(1) as f64;
        Ok(OneRun { level, table, run: Run { keys, weight: 1.0 }, bytes, rate })
    }

    fn cells(&self) -> Vec<String> {
        let name = match self.table {
            Some(number) => format!("level {}, table {number}", self.level),
            None => format!("level {}", self.level),
        };
        let (keys, weight) = (count(self.run.keys), percent(Some(self.run.weight)));
        vec![name, keys, weight, size(self.bytes), percent(Some(self.rate))]
    }

    fn json(&self) -> Value {
        json!({
            "level": self.level,
            "table": self.table,
            "keys": self.run.keys,
            "weight": self.run.weight,
            "bytes": self.bytes,
            "false_positive_rate": self.rate,
        })
    }
}

/// Filters of `bits` bits per key, in every run or on average.
struct Row {
    bits: u8,
    memory: u64,
    rate: f64,
    /// Wasted reads per look-up with equal bits in every run.
    wasted: f64,
    /// Wasted reads per look-up if the memory is shared out.
    shared: f64,
    /// Bits per key of each run if the memory is shared out.
    each: Vec<f32>,
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let each: Vec<String> = self.each.iter().map(f32::to_string).collect();
        vec![
            self.bits.to_string(),
            size(self.memory),
            percent(Some(self.rate)),
            reads(self.wasted),
            reads(self.shared),
            each.join(" "),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "bits_per_key": self.bits,
            "bytes": self.memory,
            "false_positive_rate": self.rate,
            "wasted_reads": self.wasted,
            "wasted_reads_shared_out": self.shared,
            "bits_per_key_of_runs": self.each,
        })
    }
}

fn reads(number: f64) -> String {
    format!("{number:.5}")
}
