//! Looks up every line of a file, and reports the cost.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tamis::{Keyspace, ReadOptions, ReadStats};

use super::formats::{Codec, Format};
use super::lines::Lines;
use super::range::KeyRange;
use super::view::View;
use crate::failure::Result;
use crate::interrupt;
use crate::output::say;
use crate::text::{Decimal, Form, count, counted, size};

/// How many keys were looked up, and how long that took.
#[derive(Default)]
pub(super) struct Summary {
    pub(super) asked: u64,
    pub(super) found: u64,
    pub(super) time: Duration,
}

/// Passes each line of `file` to `on_key`, decoded as a key in `form`.
pub(super) fn each_key(file: &Path, form: Form, mut on_key: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    // A value may follow the key.
    let limit = Codec { format: Format::Tsv, form }.longest_record();
    Lines::open(Some(file), limit)?.each_key(form, |_, key| on_key(key))
}

/// Looks up each line of `file`, a key in `form`. Passes each key, with the value that is found, to
/// `on_key`.
pub(super) fn look_up_all(
    view: &View<'_>,
    file: &Path,
    form: Form,
    options: ReadOptions,
    mut on_key: impl FnMut(&[u8], Option<&[u8]>) -> Result<()>,
) -> Result<Summary> {
    let mut summary = Summary::default();
    each_key(file, form, |key| {
        interrupt::check()?;
        let start = Instant::now();
        let value = view.get(key, options)?;
        summary.time += start.elapsed();
        summary.asked += 1;
        summary.found += u64::from(value.is_some());
        on_key(key, value.as_deref())
    })?;
    Ok(summary)
}

/// Most entries that a scan reads: a short scan.
pub(super) const SCANNED: u64 = 10;

/// How many ranges were scanned, and how long that took.
#[derive(Default)]
pub(super) struct ScanSummary {
    ranges: u64,
    /// Of these, the empty ones.
    empty: u64,
    entries: u64,
    time: Duration,
}

/// Passes the range of each line of `file` to `on_range`.
pub(super) fn each_range(file: &Path, form: Form, on_range: impl FnMut(KeyRange) -> Result<()>) -> Result<()> {
    let limit = Codec { format: Format::Tsv, form }.longest_record();
    Lines::open(Some(file), limit)?.each_range(form, on_range)
}

/// Scans the first [`SCANNED`] entries of each range of `file`.
pub(super) fn scan_all(keyspace: &Keyspace, file: &Path, form: Form, options: ReadOptions) -> Result<ScanSummary> {
    let mut summary = ScanSummary::default();
    each_range(file, form, |range| {
        let start = Instant::now();
        let mut entries = 0;
        for entry in keyspace.range_with(range.bounds(), options) {
            entry?;
            entries += 1;
            if entries == SCANNED {
                break;
            }
        }
        summary.time += start.elapsed();
        summary.ranges += 1;
        summary.empty += u64::from(entries == 0);
        summary.entries += entries;
        Ok(())
    })?;
    Ok(summary)
}

impl ScanSummary {
    pub(super) fn say(&self, reads: &ReadStats) {
        let per_range = |n: f64| Decimal(n / self.ranges.max(1) as f64);
        say(format_args!(
            "scanned {}, {} empty; {} found; {} µs per range",
            counted(self.ranges, "range"),
            count(self.empty),
            counted(self.entries, "entry"),
            per_range(self.time.as_secs_f64() * 1e6)
        ));
        say(format_args!(
            "blocks read for nothing {}, {} per range",
            count(reads.scan_reads_unused),
            per_range(reads.scan_reads_unused as f64)
        ));
    }
}

impl Summary {
    fn absent(&self) -> u64 {
        self.asked - self.found
    }

    fn per_key(&self, n: f64) -> Decimal {
        Decimal(n / self.asked.max(1) as f64)
    }

    pub(super) fn json(&self, reads: Value) -> Value {
        json!({
            "asked": self.asked,
            "found": self.found,
            "absent": self.absent(),
            "seconds": self.time.as_secs_f64(),
            "reads": reads,
        })
    }

    pub(super) fn say(&self, reads: &ReadStats) {
        say(format_args!(
            "asked {}, found {}, absent {}; {} µs per key",
            count(self.asked),
            count(self.found),
            count(self.absent()),
            self.per_key(self.time.as_secs_f64() * 1e6)
        ));
        say(format_args!(
            "filters asked {}: no {}, rightly maybe {}, wrongly maybe {}; damaged {}, not asked {}",
            counted(reads.probes, "time"),
            count(reads.negatives),
            count(reads.true_positives),
            count(reads.false_positives),
            count(reads.degraded),
            count(reads.skipped)
        ));
        if reads.avoidable_reads > 0 {
            say(format_args!(
                "filters would have saved {} of the blocks read ({})",
                count(reads.avoidable_reads),
                size(reads.avoidable_bytes)
            ));
        }
        say(format_args!(
            "blocks read {} ({}), {} per key; found in the cache {}",
            count(reads.block_reads),
            size(reads.block_bytes),
            self.per_key(reads.block_reads as f64),
            count(reads.cache_hits)
        ));
    }
}
