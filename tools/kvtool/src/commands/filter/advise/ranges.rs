//! What range filters would cost and save in a given store.
//!
//! Their size and rates depend on the keys. Tables are therefore read, and their range filters
//! built in memory: those of level 0, which are a run each, and up to [`SAMPLED`] of each level
//! below, spread over its keys.

use std::path::Path;

use serde_json::{Value, json};
use tamis::filter::RangeFilterState;
use tamis::inspect::{FileKind, Inspector};
use tamis::{FilterMode, Keyspace, KeyspaceStats, RangeFilterPolicy, ReadOptions, TableStats};

use super::super::super::filters::{filters_of, rates_of, share};
use super::super::super::look_up::{SCANNED, each_range};
use super::{RunTables, reads, run_tables};
use crate::args::Common;
use crate::failure::Result;
use crate::output::say;
use crate::table::{Table, number, text};
use crate::text::{count, counted, percent, size};

/// Bits per key of the rows.
const BITS: [u8; 6] = [6, 8, 10, 12, 14, 16];
/// Of these, the one that runs are shown with: [`RangeFilterPolicy::ORDERED`].
const SHOWN: usize = 3;
/// Most tables of a level below level 0 that are read.
const SAMPLED: usize = 4;

pub(crate) struct RangeAdvice {
    runs: Vec<RangeRun>,
    /// Ranges that were scanned to weigh the runs.
    scans: Option<u64>,
}

/// A table of level 0, or a level below.
struct RangeRun {
    level: usize,
    table: Option<u64>,
    tables: usize,
    entries: u64,
    /// Blocks that a scan reads for nothing, without a range filter.
    weight: f64,
    /// Bytes and predicted rate of the range filters that it has.
    bytes: u64,
    rate: f64,
    /// Of each table that was read: its entries, and its range filters with [`BITS`] bits per key.
    sample: Vec<(u64, Vec<RangeFilterState>)>,
}

/// Range filters of one size.
struct Choice {
    bits: u8,
    bytes: f64,
    /// Blocks that a scan of an empty range reads.
    blocks: f64,
    /// Blocks that a scan reads of an empty range that begins near a key.
    near: f64,
    /// Runs in which a table that was read would get none.
    declined: usize,
}

impl RangeAdvice {
    pub(crate) fn of(dir: &Path, keyspace: &KeyspaceStats) -> Result<RangeAdvice> {
        let runs = run_tables(keyspace).iter().map(|run| RangeRun::of(dir, run)).collect::<Result<_>>()?;
        Ok(RangeAdvice { runs, scans: None })
    }

    /// Scans every range of a file, and weights each run by the blocks of it that a scan entered
    /// for nothing.
    pub(super) fn weigh(&mut self, keyspace: &Keyspace, common: &Common, file: &Path) -> Result<()> {
        let (mut scans, mut unused) = (0u64, vec![0usize; self.runs.len()]);
        each_range(file, common.form(), |range| {
            let options = ReadOptions::new().filters(FilterMode::Ignore);
            let explained = keyspace.explain_range_with(range.bounds(), SCANNED, options)?;
            explained.outcome?;
            scans += 1;
            for step in explained.steps {
                let is_it =
                    |run: &RangeRun| run.level == step.level && run.table.is_none_or(|table| table == step.table);
                if let Some(at) = self.runs.iter().position(is_it) {
                    unused[at] += step.blocks.iter().filter(|block| !block.used).count();
                }
            }
            Ok(())
        })?;
        for (run, unused) in self.runs.iter_mut().zip(unused) {
            run.weight = unused as f64 / scans.max(1) as f64;
        }
        self.scans = Some(scans);
        Ok(())
    }

    fn blocks_without(&self) -> f64 {
        self.runs.iter().map(|run| run.weight).sum()
    }

    fn blocks_now(&self) -> f64 {
        self.runs.iter().map(|run| run.weight * run.rate).sum()
    }

    fn bytes_now(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes).sum()
    }

    fn choices(&self) -> impl Iterator<Item = Choice> {
        BITS.into_iter().enumerate().map(|(at, bits)| {
            let none = Choice { bits, bytes: 0.0, blocks: 0.0, near: 0.0, declined: 0 };
            self.runs.iter().fold(none, |sum, run| {
                let [fresh, near] = run.rates(at);
                Choice {
                    bits,
                    bytes: sum.bytes + run.bytes_of(at),
                    blocks: sum.blocks + run.weight * fresh,
                    near: sum.near + run.weight * near,
                    declined: sum.declined + usize::from(run.declined(at) > 0),
                }
            })
        })
    }

    pub(super) fn json(&self) -> Value {
        let without = self.blocks_without();
        let choices = self.choices().map(|choice| {
            json!({
                "bits_per_key": choice.bits,
                "bytes": choice.bytes.round(),
                "blocks_per_empty_range": choice.blocks,
                "blocks_per_empty_range_near_keys": choice.near,
                "blocks_saved": without - choice.blocks,
                "runs_declined": choice.declined,
            })
        });
        json!({
            "scans": self.scans,
            "runs": self.runs.iter().map(RangeRun::json).collect::<Vec<_>>(),
            "without": { "blocks_per_empty_range": without },
            "now": { "bytes": self.bytes_now(), "blocks_per_empty_range": self.blocks_now() },
            "choices": choices.collect::<Vec<_>>(),
        })
    }

    pub(crate) fn runs_table(&self) -> Table {
        let at = format!("with {} bits per key", BITS[SHOWN]);
        let columns = [
            text("run").key(),
            text(at).key(),
            number("tables").detail(),
            number("read").detail(),
            number("entries").detail(),
            number("blocks for nothing"),
            text("range filters now"),
        ];
        Table::new(columns, self.runs.iter().map(RangeRun::cells))
    }

    pub(crate) fn choices_table(&self) -> Table {
        let without = self.blocks_without();
        let row = |name: &str, bytes: u64, blocks: f64| {
            let saved = reads(without - blocks);
            vec![name.to_owned(), size(bytes), reads(blocks), String::new(), saved, String::new()]
        };
        let mut cells = vec![row("none", 0, without), row("now", self.bytes_now(), self.blocks_now())];
        cells.extend(self.choices().map(|choice| {
            vec![
                choice.bits.to_string(),
                size(whole(choice.bytes)),
                reads(choice.blocks),
                reads(choice.near),
                reads(without - choice.blocks),
                count(choice.declined as u64),
            ]
        }));
        let columns = [
            text("range filters: bits per key").key(),
            number("memory").key(),
            number("blocks per empty range").key(),
            number("near keys"),
            number("saved"),
            number("runs declined"),
        ];
        Table::new(columns, cells)
    }

    /// What blocks are counted by.
    pub(super) fn in_words(&self) -> String {
        match self.scans {
            Some(scans) => format!(
                "Blocks are per scan of {}, up to {SCANNED} entries each: those entered for nothing.",
                counted(scans, "range")
            ),
            None => "Blocks are per scan of a short empty range that lies in the key range of every run. How often your \
                     program's scans read blocks for nothing, the program counts from the opening of its store on: \
                     `ReadStats::scan_reads_unused`, in Prometheus tamis_scan_reads_unused_total. This command has no such \
                     count; --ranges-from FILE measures ranges of yours."
                .to_owned(),
        }
    }

    /// What range filters of the default size would save that there are not now, if any: their
    /// bytes, and blocks per scan of a short empty range without and with them.
    pub(crate) fn gain(&self) -> Option<(u64, f64, f64)> {
        let choice = self.choices().nth(SHOWN)?;
        let gains = self.bytes_now() == 0 && choice.declined == 0 && choice.bytes > 0.0;
        gains.then(|| (whole(choice.bytes), self.blocks_without(), choice.blocks))
    }
}

impl RangeRun {
    fn of(dir: &Path, run: &RunTables<'_>) -> Result<RangeRun> {
        let filters = filters_of(dir, run.tables)?;
        let policies = BITS.map(|bits| RangeFilterPolicy::Ordered { bits_per_key: bits.into() });
        let mut sample = Vec::new();
        for TableStats { number, entries, .. } in spread(run.tables) {
            let path = FileKind::Table(*number).path(dir);
            match Inspector::new().table(&path).and_then(|file| file.range_filters_of(&policies)) {
                Ok(filters) => sample.push((*entries, filters)),
                Err(error) => say(format_args!("table {number} is left out: {error}")),
            }
        }
        let tables = run.tables.len();
        Ok(RangeRun {
            level: run.level,
            table: run.table,
            tables,
            entries: run.tables.iter().map(|table| table.entries).sum(),
            weight: 1.0,
            bytes: filters.ranges.bytes,
            rate: filters.ranges.wasted / tables.max(1) as f64,
            sample,
        })
    }

    /// Entries of the tables that were read.
    fn entries_read(&self) -> f64 {
        self.sample.iter().map(|(entries, _)| *entries as f64).sum::<f64>().max(1.0)
    }

    /// Bytes of the filters of all tables, with the bits at a position.
    fn bytes_of(&self, at: usize) -> f64 {
        let read = self.sample.iter().filter_map(|(_, filters)| filters[at].info());
        read.map(|info| info.bytes as f64).sum::<f64>() * self.entries as f64 / self.entries_read()
    }

    /// Share of empty ranges that read a block: of all, and of those that begin near a key. Where a
    /// table would get no filter, all do.
    fn rates(&self, at: usize) -> [f64; 2] {
        if self.sample.is_empty() {
            return [1.0; 2];
        }
        let mut sums = [0.0; 2];
        for (entries, filters) in &self.sample {
            let rates = filters[at].info().map_or([1.0; 2], |info| [share(info.rates.fresh), share(info.rates.near)]);
            sums.iter_mut().zip(rates).for_each(|(sum, rate)| *sum += *entries as f64 * rate);
        }
        sums.map(|sum| sum / self.entries_read())
    }

    /// Tables that were read, and would get no filter.
    fn declined(&self, at: usize) -> usize {
        self.sample.iter().filter(|(_, filters)| filters[at].info().is_none()).count()
    }

    /// The filters with the bits at a position, in words.
    fn in_words(&self, at: usize) -> String {
        let worst = |filters: &[RangeFilterState]| {
            rates_of(&filters[at]).map_or(0.0, |rates| share(rates.fresh.max(rates.near)))
        };
        let declined = self.declined(at);
        match (self.sample.len(), declined) {
            (0, _) => "not read".to_owned(),
            (read, declined) if declined > 0 => {
                let predicted = percent(self.sample.iter().map(|(_, filters)| worst(filters)).reduce(f64::max));
                match read {
                    1 => format!("declined: predicted {predicted}"),
                    read => format!("{declined} of {read} declined: predicted {predicted}"),
                }
            }
            _ => {
                let [fresh, near] = self.rates(at).map(|rate| percent(Some(rate)));
                format!("{}: {fresh} false, {near} near keys", size(whole(self.bytes_of(at))))
            }
        }
    }

    fn cells(&self) -> Vec<String> {
        let name = match self.table {
            Some(number) => format!("level {}, table {number}", self.level),
            None => format!("level {}", self.level),
        };
        let now = format!("{}, {} false", size(self.bytes), percent(Some(self.rate)));
        vec![
            name,
            self.in_words(SHOWN),
            count(self.tables as u64),
            count(self.sample.len() as u64),
            count(self.entries),
            format!("{:.3}", self.weight),
            if self.bytes == 0 { "none".to_owned() } else { now },
        ]
    }

    fn json(&self) -> Value {
        let choices = BITS.into_iter().enumerate().map(|(at, bits)| {
            let [fresh, near] = self.rates(at);
            json!({
                "bits_per_key": bits,
                "bytes": self.bytes_of(at).round(),
                "false_positive_rate": fresh,
                "false_positive_rate_near_keys": near,
                "tables_declined": self.declined(at),
                "tables": self.sample.iter().map(|(_, filters)| super::range_filter_json(&filters[at])).collect::<Vec<_>>(),
            })
        });
        json!({
            "level": self.level,
            "table": self.table,
            "tables": self.tables,
            "tables_read": self.sample.len(),
            "entries": self.entries,
            "weight": self.weight,
            "now": { "bytes": self.bytes, "false_positive_rate": self.rate },
            "choices": choices.collect::<Vec<_>>(),
        })
    }
}

/// Up to [`SAMPLED`] of the tables, from the first to the last at equal distances.
fn spread(tables: &[TableStats]) -> impl Iterator<Item = &TableStats> {
    let taken = tables.len().min(SAMPLED);
    (0..taken).map(move |i| &tables[i * tables.len() / taken])
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of bytes")]
fn whole(bytes: f64) -> u64 {
    bytes.round() as u64
}
