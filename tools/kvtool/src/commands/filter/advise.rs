//! `filter advise`: what filters of other sizes would cost and save in a given store.

mod ranges;

use std::path::Path;

use serde_json::{Value, json};
use tamis::filter::{FilterState, Run, allocate, expected_rate, filter_bytes};
use tamis::inspect::{FileKind, Inspector};
use tamis::{Explanation, FilterPolicy, Found, KeyspaceStats, ReadSource, TableStats};

pub(crate) use self::ranges::RangeAdvice;
use super::super::look_up::each_key;
use super::super::sst::range_filter_json;
use super::super::store::{open_to_read, stats_of_keyspace};
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
    let stats = stats_of_keyspace(&db, &keyspace);
    let mut advice = Advice::of(db.path(), &stats)?;
    if let Some(file) = &args.trace {
        let mut misses = Misses::default();
        each_key(file, common.form(), |key| {
            let explained = keyspace.explain(key)?;
            advice.count(&mut misses, &explained);
            explained.outcome?;
            Ok(())
        })?;
        advice.weigh(&misses);
    }
    let mut ranges = RangeAdvice::of(db.path(), &stats)?;
    if let Some(file) = &args.ranges_from {
        ranges.weigh(&keyspace, common, file)?;
    }
    let mut output = Output::new();
    if common.json() {
        output.json(json!({
            "keyspace": keyspace.name(),
            "look_ups": advice.look_ups,
            "runs": advice.runs.iter().map(OneRun::json).collect::<Vec<Value>>(),
            "now": { "bytes": advice.bytes(), "wasted_reads": advice.wasted_now() },
            "choices": advice.rows().iter().map(Row::json).collect::<Vec<Value>>(),
            "ranges": ranges.json(),
        }))?;
        return output.finish();
    }
    let tables = [advice.runs_table(), advice.choices_table(), ranges.runs_table(), ranges.choices_table()];
    for (i, table) in tables.iter().enumerate() {
        if i > 0 {
            output.line("")?;
        }
        output.table(common, table)?;
    }
    output.finish()?;
    say(advice.in_words());
    say(
        "`kvtool filter rebuild --bits N` gives every run N bits per key; with --allocate it shares the same memory out.",
    );
    say(ranges.in_words());
    say("`kvtool filter rebuild --range-filter BITS` adds range filters.");
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
pub(crate) struct Advice {
    runs: Vec<OneRun>,
    /// Look-ups that weight the runs.
    look_ups: Option<u64>,
}

/// Look-ups, and how many of them missed in each run.
#[derive(Default)]
pub(crate) struct Misses {
    look_ups: u64,
    of_runs: Vec<u64>,
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

impl Advice {
    pub(crate) fn of(dir: &Path, keyspace: &KeyspaceStats) -> Result<Advice> {
        let runs = run_tables(keyspace).iter().map(|run| OneRun::of(dir, run)).collect::<Result<_>>()?;
        Ok(Advice { runs, look_ups: None })
    }

    /// Counts a look-up, and the runs in which it missed.
    pub(crate) fn count(&self, misses: &mut Misses, explained: &Explanation) {
        misses.look_ups += 1;
        misses.of_runs.resize(self.runs.len(), 0);
        for step in explained.steps.iter().filter(|step| step.found == Some(Found::Absent)) {
            let ReadSource::Table { level, number } = step.source else { continue };
            let is_it = |run: &OneRun| run.level == level && run.table.is_none_or(|table| table == number);
            if let Some(at) = self.runs.iter().position(is_it) {
                misses.of_runs[at] += 1;
            }
        }
    }

    /// Sets each run's weight to the share of look-ups that miss there.
    pub(crate) fn weigh(&mut self, misses: &Misses) {
        for (at, run) in self.runs.iter_mut().enumerate() {
            let missed = misses.of_runs.get(at).copied().unwrap_or_default();
            run.run.weight = missed as f64 / misses.look_ups.max(1) as f64;
        }
        self.look_ups = Some(misses.look_ups);
    }

    /// Bytes of the filters that there are.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes).sum()
    }

    /// Reads that a look-up wastes with these.
    pub(crate) fn wasted_now(&self) -> f64 {
        self.runs.iter().map(|run| run.run.weight * run.rate).sum()
    }

    /// Choices for all runs, from few bits to many.
    pub(crate) fn rows(&self) -> Vec<Row> {
        BITS.map(|bits| self.row(bits)).collect()
    }

    pub(crate) fn runs_table(&self) -> Table {
        let columns = [
            text("run").key(),
            number("keys"),
            number("look-ups that miss"),
            number("filters now").key(),
            number("expected false now"),
        ];
        Table::new(columns, self.runs.iter().map(OneRun::cells))
    }

    pub(crate) fn choices_table(&self) -> Table {
        let none = String::new;
        let now = ["now".into(), size(self.bytes()), none(), reads(self.wasted_now()), none(), none()];
        let columns = [
            number("bits per key").key(),
            number("memory").key(),
            number("false positives"),
            number("wasted reads").key(),
            number("if shared out"),
            text("bits of each run").detail(),
        ];
        Table::new(columns, std::iter::once(now.into()).chain(self.rows().iter().map(Row::cells)))
    }

    /// What wasted reads are counted by.
    pub(crate) fn in_words(&self) -> String {
        match self.look_ups {
            Some(look_ups) => format!(
                "Wasted reads are per look-up of the trace, which has {}. A look-up misses if it reaches a run that lacks the \
                 key.",
                count(look_ups)
            ),
            None => "Wasted reads are per look-up of an absent key that lies in the key range of every run.".to_owned(),
        }
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
pub(crate) struct Row {
    pub(crate) bits: u8,
    pub(crate) memory: u64,
    rate: f64,
    /// Wasted reads per look-up with equal bits in every run.
    pub(crate) wasted: f64,
    /// Wasted reads per look-up if the memory is shared out.
    pub(crate) shared: f64,
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
