//! `watch`: a line for each look at a store in use.

use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use super::rates::Rates;
use super::source::Source;
use super::{bytes, known, rate};
use crate::args::{Common, Watch};
use crate::failure::Result;
use crate::interrupt;
use crate::output::{Output, say};
use crate::text::{percent, utc};

/// The head is printed again after so many lines.
const PAGE: u64 = 20;

type Column = (&'static str, usize, fn(&Rates) -> String);

const COLUMNS: [Column; 13] = [
    ("time", 8, |rates| clock(rates.at)),
    ("writes/s", 8, |rates| rate(rates.writes)),
    ("log/s", 9, |rates| known(rates.is_published, || bytes(rates.log_bytes))),
    ("flushed/s", 9, |rates| known(rates.is_published, || bytes(rates.flushed_bytes))),
    ("compacted/s", 11, |rates| known(rates.is_published, || bytes(rates.compacted_written_bytes))),
    ("stalled", 8, |rates| known(rates.is_published, || percent(Some(rates.stalled())))),
    ("debt", 9, |rates| known(rates.is_published, || bytes(rates.debt))),
    ("blocks/s", 8, |rates| known(rates.is_published, || rate(rates.blocks_cached + rates.blocks_read))),
    ("cached", 8, |rates| known(rates.is_published, || percent(rates.cached_share()))),
    ("filter no/s", 11, |rates| known(rates.is_published, || rate(rates.negatives))),
    ("wrong", 8, |rates| known(rates.is_published, || percent(rates.false_share()))),
    ("memory", 9, |rates| known(rates.is_published, || bytes(rates.memory))),
    ("size", 9, |rates| bytes(rates.size)),
];

pub(crate) fn run(common: &Common, args: Watch) -> Result<()> {
    let (mut source, mut output) = (Source::new(&args.db), Output::new());
    let (mut last, mut lines) = (source.look()?, 0);
    if !last.is_published {
        say(format_args!(
            "{} publishes no statistics (Options::publish_stats): reads, memory and background work are not known",
            args.db.display()
        ));
    }
    while args.count.is_none_or(|count| lines < count) {
        thread::sleep(Duration::from_secs_f64(args.interval));
        interrupt::check()?;
        let sample = source.look()?;
        if let Some(rates) = Rates::between(&last, &sample) {
            if common.json() {
                output.json(rates.json())?;
            } else {
                if lines % PAGE == 0 {
                    output.line(row(COLUMNS.map(|(head, ..)| head.to_owned())))?;
                }
                output.line(row(COLUMNS.map(|(.., cell)| cell(&rates))))?;
            }
            lines += 1;
            output.flush()?;
        }
        last = sample;
    }
    output.finish()
}

/// Cells, aligned to the right.
fn row(cells: [String; COLUMNS.len()]) -> String {
    let aligned = cells.iter().zip(COLUMNS).map(|(cell, (_, width, _))| format!("{cell:>width$}"));
    aligned.collect::<Vec<_>>().join("  ")
}

/// The time of day, in UTC.
fn clock(at: f64) -> String {
    let time = UNIX_EPOCH + Duration::try_from_secs_f64(at).unwrap_or_default();
    utc(time).get(11..19).unwrap_or_default().to_owned()
}
