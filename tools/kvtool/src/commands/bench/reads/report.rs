//! Expected and measured figures: as a table, as JSON, as the points of a plot.

use serde_json::{Map, Value, json};
use tamis::{FilterMode, LevelStats};

use super::asked::{Asked, Kind, Start};
use super::plot::{Figure, Line, Point, Series};
use super::subject::Subject;
use super::theory::{interval, textbook_rate};
use super::{CacheState, Pass, title};
use crate::args::Common;
use crate::commands::store::{existing_keyspace, stats_of_keyspace};
use crate::commands::workload::level_json;
use crate::commands::workload::measure::Question;
use crate::commands::workload::process::Io;
use crate::failure::Result;
use crate::output::{Output, json_reads};
use crate::table::{self, Table, number, text};
use crate::text::{Decimal, count, counted, percent, size};

pub(super) struct Report {
    kind: Kind,
    /// Entries and bytes of the store's tables.
    entries: u64,
    bytes: u64,
    levels: Vec<Value>,
    passes: Vec<Pass>,
    disagreements: Vec<String>,
}

impl Pass {
    /// Blocks accessed, in the cache or by a read: what the filters save.
    fn blocks(&self) -> u64 {
        self.measured.reads.block_reads + self.measured.reads.cache_hits
    }

    fn asked(&self) -> Asked {
        self.measured.question
    }

    /// Per key or range.
    fn per_one(&self, n: f64) -> f64 {
        n / self.measured.asked.max(1) as f64
    }

    /// Of the answers about absent keys or empty ranges, the wrong ones, and all.
    fn answers(&self) -> (u64, u64) {
        let reads = &self.measured.reads;
        match self.asked().kind() {
            Kind::Keys => (reads.false_positives, reads.absent()),
            Kind::Ranges => (reads.range_false_positives, reads.range_absent()),
        }
    }

    /// Blocks per key or range, with the 95 % confidence interval.
    fn blocks_per_one(&self) -> (f64, [f64; 2]) {
        blocks_per_one(&[self])
    }

    /// Expected bytes read. A warm store reads none.
    fn expected_bytes(&self) -> f64 {
        match self.state {
            CacheState::Cold => self.expected.bytes.mean,
            CacheState::Warm => 0.0,
        }
    }

    fn title(&self) -> String {
        title(self.state, self.asked(), self.measured.filters, self.rebuilt)
    }

    /// The contradictions between theory, the store's counters and the operating system's.
    fn disagreements(&self) -> Vec<String> {
        let (reads, expected) = (&self.measured.reads, &self.expected);
        let mut found = Vec::new();
        let mut check = |agrees: bool, what: &str, counted: u64, should_be: f64| {
            if !agrees {
                let (title, counted) = (self.title(), count(counted));
                found.push(format!("{title}: {what}: {counted}, expected {}", Decimal(should_be)));
            }
        };
        let is_certain = self.asked().is_certain(self.measured.filters);
        let agrees = !is_certain || expected.blocks.agrees_with(self.blocks());
        check(agrees, "blocks accessed", self.blocks(), expected.blocks.mean);
        match self.state {
            CacheState::Cold => {
                let (bytes, mean) = (reads.block_bytes, expected.bytes.mean);
                check(!is_certain || expected.bytes.agrees_with(bytes), "bytes read", bytes, mean);
                check(reads.cache_hits == 0, "hits in a cache of size 0", reads.cache_hits, 0.0);
            }
            CacheState::Warm => check(reads.block_reads == 0, "blocks read", reads.block_reads, 0.0),
        }
        if let Some(process) = &self.measured.process {
            let (calls, bytes) = (process.read_calls, process.bytes_read);
            check(calls == reads.block_reads, "read calls of the process", calls, reads.block_reads as f64);
            check(bytes == reads.block_bytes, "bytes read by the process", bytes, reads.block_bytes as f64);
        }
        found
    }

    fn filters(&self) -> String {
        match (self.measured.filters, self.rebuilt) {
            (FilterMode::Ignore, _) => "ignored".to_owned(),
            (_, Some(bits)) => format!("{bits} bits/key"),
            (_, None) => "as they are".to_owned(),
        }
    }

    /// A figure of the process's counters per key or range.
    fn process(&self, figure: fn(&Io) -> u64) -> Option<f64> {
        self.measured.process.as_ref().map(|io| self.per_one(figure(io) as f64))
    }

    /// The share of wrong answers about empty ranges that the builders of the filters predict.
    fn predicted_rate(&self) -> Option<f64> {
        let absent = self.measured.reads.range_absent();
        (absent > 0).then(|| self.measured.predicted / absent as f64)
    }

    fn json(&self) -> Value {
        let (blocks, interval) = self.blocks_per_one();
        let (measured, expected, unit) = (&self.measured, &self.expected, self.asked().kind().unit());
        let per = |fields: &[(&str, Value)]| -> Map<String, Value> {
            fields.iter().map(|(name, value)| (name.replace('*', unit), value.clone())).collect()
        };
        let mut theory = per(&[
            ("blocks_per_*", json!(self.per_one(expected.blocks.mean))),
            ("bytes_read_per_*", json!(self.per_one(self.expected_bytes()))),
        ]);
        let mut document = self.asked().json();
        match self.asked().kind() {
            Kind::Keys => {
                theory.insert("blocks_per_key_by_design".into(), json!(self.per_one(expected.by_design)));
                document.insert("tables_per_key".into(), json!(self.per_one(expected.look_ups as f64)));
            }
            Kind::Ranges => _ = theory.insert("false_positive_rate".into(), json!(self.predicted_rate())),
        }
        let found = per(&[
            ("blocks_per_*", json!(blocks)),
            ("blocks_per_*_interval", json!(interval)),
            ("reads_per_*", json!(self.per_one(measured.reads.block_reads as f64))),
            ("bytes_read_per_*", json!(self.per_one(measured.reads.block_bytes as f64))),
            ("seconds", json!(measured.time.as_secs_f64())),
        ]);
        let fields = json!({
            "filters": if measured.filters == FilterMode::Ignore { "ignored" } else { "used" },
            "state": self.state.name(),
            "rebuilt_bits_per_key": self.rebuilt,
            "bits_per_key": self.bits,
            "asked": measured.asked,
            "found": measured.found,
            "expected": theory,
            "measured": found,
            "reads": json_reads(&measured.reads),
            "process": measured.process.as_ref().map(|io| json!({
                "read_calls": io.read_calls,
                "bytes_read": io.bytes_read,
                "device_bytes": io.device_bytes,
            })),
            "agrees": self.disagreements().is_empty(),
        });
        if let Value::Object(fields) = fields {
            document.extend(fields);
        }
        Value::Object(document)
    }
}

/// Blocks per key or range of some passes, with the 95 % confidence interval. Only false positives
/// are subject to chance.
fn blocks_per_one(passes: &[&Pass]) -> (f64, [f64; 2]) {
    let sum = |n: &dyn Fn(&Pass) -> u64| passes.iter().map(|pass| n(pass)).sum::<u64>();
    let (blocks, asked) = (sum(&Pass::blocks) as f64, sum(&|pass| pass.measured.asked).max(1) as f64);
    let (wrong, absent) = (sum(&|pass| pass.answers().0), sum(&|pass| pass.answers().1));
    let bound = |rate: f64| (blocks - wrong as f64 + rate * absent as f64) / asked;
    (blocks / asked, interval(wrong, absent).map_or([blocks / asked; 2], |bounds| bounds.map(bound)))
}

/// A column of the table, and a pass's cell.
type Column = (table::Column, fn(&Report, &Pass) -> String);

fn optional(figure: Option<f64>, show: impl Fn(f64) -> String) -> String {
    figure.map_or_else(|| "–".to_owned(), show)
}

fn decimal(n: f64) -> String {
    Decimal(n).to_string()
}

fn columns(kind: Kind) -> Vec<Column> {
    let column = |column, cell| -> Column { (column, cell) };
    let asked = column(number("asked").detail(), |_, pass| count(pass.measured.asked));
    let measured = column(number("blocks measured").key(), |_, pass| rate(pass.blocks_per_one().0));
    let interval = column(number("95 % interval").detail(), |_, pass| {
        let (_, [low, high]) = pass.blocks_per_one();
        format!("{} – {}", rate(low), rate(high))
    });
    let expected = |head| column(number(head).key(), |_, pass| rate(pass.per_one(pass.expected.blocks.mean)));
    let first = |head| column(text(head).key(), |_, pass| pass.asked().what());
    let filters = column(text("filters").key(), |_, pass| pass.filters());
    let mut columns = match kind {
        Kind::Keys => vec![
            first("keys"),
            filters,
            column(text("state").key(), |_, pass| pass.state.name().to_owned()),
            asked,
            column(number("tables").detail(), |_, pass| decimal(pass.per_one(pass.expected.look_ups as f64))),
            column(number("blocks by the textbook"), |_, pass| rate(pass.per_one(pass.expected.by_design))),
            expected("blocks expected"),
            measured,
            interval,
            column(number("reads").detail(), |_, pass| rate(pass.per_one(pass.measured.reads.block_reads as f64))),
        ],
        Kind::Ranges => vec![
            first("ranges"),
            filters,
            asked,
            expected("blocks predicted"),
            measured,
            interval,
            column(number("backward"), |report, pass| optional(report.backward(pass), rate)),
            column(number("false predicted"), |_, pass| percent(pass.predicted_rate())),
            column(number("false measured"), |_, pass| percent(pass.measured.reads.range_false_positive_rate())),
        ],
    };
    columns.push(column(number("read calls"), |_, pass| optional(pass.process(|io| io.read_calls), rate)));
    if kind == Kind::Keys {
        columns.push(column(number("bytes expected").detail(), |_, pass| decimal(pass.per_one(pass.expected_bytes()))));
    }
    let bytes = |_: &Report, pass: &Pass| decimal(pass.per_one(pass.measured.reads.block_bytes as f64));
    columns.extend([
        column(number("bytes read"), bytes),
        column(number("device bytes").detail(), |_, pass| optional(pass.process(|io| io.device_bytes), decimal)),
        column(number("µs"), |_, pass| decimal(pass.per_one(pass.measured.time.as_secs_f64() * 1e6))),
    ]);
    columns
}

/// A number of blocks per key or range: three decimals, or more until three significant digits are
/// shown.
fn rate(n: f64) -> String {
    let mut decimals = 3;
    let mut scaled = n;
    while n > 0.0 && scaled < 0.1 && decimals < 7 {
        scaled *= 10.0;
        decimals += 1;
    }
    format!("{n:.decimals$}")
}

impl Report {
    pub(super) fn new(subject: &Subject, common: &Common) -> Result<Report> {
        let db = subject.open(0)?;
        let mut levels = stats_of_keyspace(&db, &existing_keyspace(&db, common)?).levels;
        levels.retain(|level| !level.tables.is_empty());
        Ok(Report {
            kind: subject.kind,
            entries: levels.iter().map(LevelStats::entries).sum(),
            bytes: levels.iter().map(LevelStats::size).sum(),
            levels: levels.iter().map(level_json).collect(),
            passes: Vec::new(),
            disagreements: Vec::new(),
        })
    }

    pub(super) fn add(&mut self, pass: Pass) {
        self.disagreements.extend(pass.disagreements());
        self.passes.push(pass);
    }

    /// The contradictions of all passes.
    pub(super) fn disagreements(&self) -> &[String] {
        &self.disagreements
    }

    pub(super) fn print(&self, common: &Common) -> Result<()> {
        let mut output = Output::new();
        if common.json() {
            output.json(json!({
                "store": { "entries": self.entries, "bytes": self.bytes, "levels": self.levels },
                "passes": self.passes.iter().map(Pass::json).collect::<Vec<_>>(),
                "agrees": self.disagreements.is_empty(),
            }))?;
        } else {
            output.sentence(format_args!(
                "{} in {}, {}; all figures but \"asked\" and shares are per {}",
                counted(self.entries, "entry"),
                counted(self.levels.len() as u64, "level"),
                size(self.bytes),
                self.kind.unit()
            ))?;
            output.line("")?;
            output.table(common, &self.table())?;
        }
        output.finish()
    }

    /// Blocks per range of the pass that scans backward what a pass scans forward.
    fn backward(&self, pass: &Pass) -> Option<f64> {
        let is_it = |other: &&Pass| {
            let filters = other.measured.filters == pass.measured.filters && other.rebuilt == pass.rebuilt;
            filters && other.asked() == pass.asked().reversed()
        };
        self.passes.iter().find(is_it).map(|pass| pass.blocks_per_one().0)
    }

    /// A row for each pass. What is scanned backward has a column.
    fn table(&self) -> Table {
        let first = |pass: &Pass| self.passes.iter().position(|other| other.asked() == pass.asked());
        let mut passes: Vec<&Pass> = self.passes.iter().filter(|pass| !pass.asked().scan().backward).collect();
        // A stable sort: within a group, passes stay in the order of the requested bits.
        passes.sort_by_key(|pass| (first(pass), pass.state == CacheState::Warm));
        let (columns, cells): (Vec<_>, Vec<_>) = columns(self.kind).into_iter().unzip();
        Table::new(columns, passes.into_iter().map(|pass| cells.iter().map(|cell| cell(self, pass)).collect()))
    }

    /// Blocks per missing key, or per empty range, against the filters' actual bits per key: from
    /// the cold passes, otherwise from the warm ones.
    pub(super) fn figure(&self) -> Figure {
        match self.kind {
            Kind::Keys => self.figure_of_keys(),
            Kind::Ranges => self.figure_of_ranges(),
        }
    }

    fn figure_of_keys(&self) -> Figure {
        let missing = Asked::Keys(Question::Missing);
        let of = |state: CacheState| {
            self.passes.iter().filter(|pass| pass.asked() == missing && pass.state == state).collect::<Vec<_>>()
        };
        let cold = of(CacheState::Cold);
        let (is_cold, passes) = if cold.is_empty() { (false, of(CacheState::Warm)) } else { (true, cold) };
        let used = || passes.iter().filter(|pass| pass.measured.filters == FilterMode::Use);
        let ignored = passes.iter().find(|pass| pass.measured.filters == FilterMode::Ignore);
        let last = used().next_back();
        let per_key = |n: fn(&Pass) -> u64| last.map_or(0.0, |pass| pass.per_one(n(pass) as f64));
        let absent = per_key(|pass| pass.expected.look_ups - pass.expected.finds);
        let certain = per_key(|pass| pass.expected.finds);
        let points: Vec<Point> = used().filter_map(|pass| Some(point(pass.bits?, &[pass]))).collect();
        let most = points.iter().map(|point| point.bits).fold(10.0, f64::max) + 2.0;
        let steps = (0..=480).map(|i| most * f64::from(i) / 480.0);
        let (heading, unit, cached) = match is_cold {
            true => ("Disk reads per missing key", "block reads per missing key", "nothing cached but filters"),
            false => ("Blocks accessed per missing key", "blocks per missing key", "all blocks cached"),
        };
        Figure {
            heading,
            below: format!(
                "{} entries; each key in the range of {} tables; {} keys looked up; {cached}",
                count(self.entries),
                Decimal(absent + certain),
                count(last.map_or(0, |pass| pass.measured.asked)),
            ),
            bits: "filter size (bits per key)",
            unit,
            ignored: ignored.map(|pass| pass.blocks_per_one().0),
            series: vec![Series {
                theory: Line {
                    label: format!("textbook: {} × (1 − e^(−k/b))^k, k = b ln 2", Decimal(absent)),
                    points: steps.map(|bits| (bits, absent * textbook_rate(bits) + certain)).collect(),
                },
                label: "measured, with 95 % confidence interval".to_owned(),
                points,
            }],
        }
    }

    /// Of each start, all lengths together: they have ranges of their own. The same ranges read
    /// backward say nothing new.
    fn figure_of_ranges(&self) -> Figure {
        let empty = |pass: &Pass, wanted: Start| match pass.asked() {
            Asked::Empty { start, backward, .. } => start == wanted && !backward,
            _ => false,
        };
        let of = |start: Start, filters: FilterMode, rebuilt: Option<f32>| -> Vec<&Pass> {
            let passes = self.passes.iter().filter(|pass| empty(pass, start) && pass.rebuilt == rebuilt);
            passes.filter(|pass| pass.measured.filters == filters).collect()
        };
        let mut sizes: Vec<Option<f32>> = self.passes.iter().map(|pass| pass.rebuilt).collect();
        sizes.dedup();
        let first = sizes.first().copied().flatten();
        let plain = |start| of(start, FilterMode::Ignore, first);
        let series = Start::ALL.into_iter().filter(|start| !plain(*start).is_empty()).map(|start| {
            let mut groups = vec![(0.0, plain(start))];
            groups.extend(sizes.iter().filter_map(|rebuilt| {
                let passes = of(start, FilterMode::Use, *rebuilt);
                // Where no table has a filter, the size that was asked for.
                let bits = passes.first()?.bits.or(rebuilt.map(f64::from))?;
                Some((bits, passes))
            }));
            groups.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            let predicted = |passes: &[&Pass]| {
                let asked: u64 = passes.iter().map(|pass| pass.measured.asked).sum();
                passes.iter().map(|pass| pass.expected.blocks.mean).sum::<f64>() / asked.max(1) as f64
            };
            let (begin, predictor) = match start {
                Start::Fresh => ("fresh starts", "predicted by the tables"),
                Start::NearKeys => ("starts near keys", "predicted near keys"),
            };
            Series {
                theory: Line {
                    label: predictor.to_owned(),
                    points: groups.iter().map(|(bits, passes)| (*bits, predicted(passes))).collect(),
                },
                label: format!("measured, {begin}, with 95 % interval"),
                points: groups.iter().map(|(bits, passes)| point(*bits, passes)).collect(),
            }
        });
        let ignored: Vec<&Pass> = Start::ALL.into_iter().flat_map(plain).collect();
        let asked: u64 = ignored.iter().map(|pass| pass.measured.asked).sum();
        let declines =
            |rebuilt: &&Option<f32>| self.passes.iter().any(|pass| pass.rebuilt == **rebuilt && pass.declined > 0);
        let declined: Vec<String> = sizes.iter().filter(declines).flatten().map(f32::to_string).collect();
        let declined = match declined.is_empty() {
            true => String::new(),
            false => format!("; tables declined a filter of {} bits", declined.join(", ")),
        };
        Figure {
            heading: "Disk reads per empty range",
            below: format!(
                "{} entries in {}; {} empty ranges scanned; nothing cached but filters{declined}",
                count(self.entries),
                counted(self.levels.len() as u64, "level"),
                count(asked),
            ),
            bits: "range filter size (bits per key)",
            unit: "block reads per empty range",
            series: series.collect(),
            ignored: Some(blocks_per_one(&ignored).0),
        }
    }
}

fn point(bits: f64, passes: &[&Pass]) -> Point {
    let (blocks, [low, high]) = blocks_per_one(passes);
    Point { bits, blocks, low, high }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_blocks_have_three_digits_that_count() {
        let shown = [0.0, 3.98, 1.0362, 0.147, 0.0326, 0.000_067_1, 0.000_000_4].map(rate);
        assert_eq!(shown, ["0.000", "3.980", "1.036", "0.147", "0.0326", "0.0000671", "0.0000004"]);
    }
}
