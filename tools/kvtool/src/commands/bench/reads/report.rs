//! Expected and measured figures: as a table, as JSON, as the points of a plot.

use comfy_table::Table;
use serde_json::{Value, json};
use tamis::{FilterMode, LevelStats};

use super::plot::{Figure, Point};
use super::subject::Subject;
use super::{CacheState, Pass, title};
use crate::args::Common;
use crate::commands::store::{existing_keyspace, stats_of_keyspace};
use crate::commands::workload::level_json;
use crate::commands::workload::measure::Question;
use crate::failure::Result;
use crate::output::{Output, json_reads, table};
use crate::text::{Decimal, count, counted, size};

pub(super) struct Report {
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

    fn per_key(&self, n: f64) -> f64 {
        n / self.measured.asked.max(1) as f64
    }

    /// Blocks per key with the 95 % confidence interval. Only false positives are subject to
    /// chance.
    fn blocks_per_key(&self) -> (f64, [f64; 2]) {
        let (blocks, reads) = (self.blocks() as f64, &self.measured.reads);
        let certain = blocks - reads.false_positives as f64;
        let bound = |rate: f64| self.per_key(certain + rate * reads.absent() as f64);
        let interval = reads.false_positive_interval();
        (self.per_key(blocks), interval.map_or([self.per_key(blocks); 2], |(low, high)| [bound(low), bound(high)]))
    }

    /// Expected bytes read. A warm store reads none.
    fn expected_bytes(&self) -> f64 {
        match self.state {
            CacheState::Cold => self.expected.bytes.mean,
            CacheState::Warm => 0.0,
        }
    }

    fn title(&self) -> String {
        title(self.state, self.measured.question, self.measured.filters, self.rebuilt)
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
        check(expected.blocks.agrees_with(self.blocks()), "blocks accessed", self.blocks(), expected.blocks.mean);
        match self.state {
            CacheState::Cold => {
                let (bytes, mean) = (reads.block_bytes, expected.bytes.mean);
                check(expected.bytes.agrees_with(bytes), "bytes read", bytes, mean);
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

    fn row(&self) -> Vec<String> {
        let decimal = |n: f64| Decimal(n).to_string();
        let per_key = |n: f64| decimal(self.per_key(n));
        let (blocks, [low, high]) = self.blocks_per_key();
        let process = self.measured.process.as_ref();
        let reads = &self.measured.reads;
        vec![
            match self.measured.question {
                Question::Existing => "existing",
                Question::Missing => "missing",
            }
            .to_owned(),
            self.filters(),
            match self.state {
                CacheState::Cold => "cold",
                CacheState::Warm => "warm",
            }
            .to_owned(),
            count(self.measured.asked),
            per_key(self.expected.look_ups as f64),
            rate(self.per_key(self.expected.by_design)),
            rate(self.per_key(self.expected.blocks.mean)),
            rate(blocks),
            format!("{} – {}", rate(low), rate(high)),
            rate(self.per_key(reads.block_reads as f64)),
            process.map_or_else(|| "–".to_owned(), |io| rate(self.per_key(io.read_calls as f64))),
            per_key(self.expected_bytes()),
            per_key(reads.block_bytes as f64),
            process.map_or_else(|| "–".to_owned(), |io| per_key(io.device_bytes as f64)),
            per_key(self.measured.time.as_secs_f64() * 1e6),
        ]
    }

    fn json(&self) -> Value {
        let (blocks, interval) = self.blocks_per_key();
        let (measured, expected) = (&self.measured, &self.expected);
        json!({
            "keys": match measured.question {
                Question::Existing => "existing",
                Question::Missing => "missing",
            },
            "filters": if measured.filters == FilterMode::Ignore { "ignored" } else { "used" },
            "state": match self.state {
                CacheState::Cold => "cold",
                CacheState::Warm => "warm",
            },
            "rebuilt_bits_per_key": self.rebuilt,
            "bits_per_key": self.bits,
            "asked": measured.asked,
            "found": measured.found,
            "tables_per_key": self.per_key(expected.look_ups as f64),
            "expected": {
                "blocks_per_key_by_design": self.per_key(expected.by_design),
                "blocks_per_key": self.per_key(expected.blocks.mean),
                "bytes_read_per_key": self.per_key(self.expected_bytes()),
            },
            "measured": {
                "blocks_per_key": blocks,
                "blocks_per_key_interval": interval,
                "reads_per_key": self.per_key(measured.reads.block_reads as f64),
                "bytes_read_per_key": self.per_key(measured.reads.block_bytes as f64),
                "seconds": measured.time.as_secs_f64(),
            },
            "reads": json_reads(&measured.reads),
            "process": measured.process.as_ref().map(|io| json!({
                "read_calls": io.read_calls,
                "bytes_read": io.bytes_read,
                "device_bytes": io.device_bytes,
            })),
            "agrees": self.disagreements().is_empty(),
        })
    }
}

/// A number of blocks per key: three decimals, or more until three significant digits are shown.
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
        if common.json {
            output.json(json!({
                "store": { "entries": self.entries, "bytes": self.bytes, "levels": self.levels },
                "passes": self.passes.iter().map(Pass::json).collect::<Vec<_>>(),
                "agrees": self.disagreements.is_empty(),
            }))?;
        } else {
            output.line(format_args!(
                "{} in {}, {}; all figures but \"asked\" are per key",
                counted(self.entries, "entry"),
                counted(self.levels.len() as u64, "level"),
                size(self.bytes)
            ))?;
            output.line("")?;
            output.line(self.table())?;
        }
        output.finish()
    }

    fn table(&self) -> Table {
        let heads = [
            "keys",
            "filters",
            "state",
            "asked",
            "tables",
            "blocks by the textbook",
            "blocks expected",
            "blocks measured",
            "95 % interval",
            "reads",
            "read calls",
            "bytes expected",
            "bytes read",
            "device bytes",
            "µs",
        ];
        let mut passes: Vec<&Pass> = self.passes.iter().collect();
        // A stable sort: within a group, passes stay in the order of the requested bits.
        passes.sort_by_key(|pass| (pass.measured.question == Question::Existing, pass.state == CacheState::Warm));
        table(3, &heads, passes.into_iter().map(Pass::row))
    }

    /// Blocks per missing key against the filters' actual bits per key: from the cold passes,
    /// otherwise from the warm ones.
    pub(super) fn figure(&self) -> Figure {
        let of = |state: CacheState| {
            let missing = move |pass: &&Pass| pass.measured.question == Question::Missing && pass.state == state;
            self.passes.iter().filter(missing).collect::<Vec<_>>()
        };
        let cold = of(CacheState::Cold);
        let (state, passes) =
            if cold.is_empty() { (CacheState::Warm, of(CacheState::Warm)) } else { (CacheState::Cold, cold) };
        let used = passes.iter().filter(|pass| pass.measured.filters == FilterMode::Use);
        let points = used.clone().filter_map(|pass| {
            let (blocks, [low, high]) = pass.blocks_per_key();
            Some(Point { bits: pass.bits?, blocks, low, high })
        });
        let ignored = passes.iter().find(|pass| pass.measured.filters == FilterMode::Ignore);
        let last = used.clone().next_back();
        let per_key = |n: fn(&Pass) -> u64| last.map_or(0.0, |pass| pass.per_key(n(pass) as f64));
        Figure {
            state,
            entries: self.entries,
            asked: last.map_or(0, |pass| pass.measured.asked),
            absent: per_key(|pass| pass.expected.look_ups - pass.expected.finds),
            certain: per_key(|pass| pass.expected.finds),
            ignored: ignored.map(|pass| pass.blocks_per_key().0),
            points: points.collect(),
        }
    }
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
