//! `bench reads`: what look-ups of missing and existing keys cost at several bits per key, and
//! whether theory agrees; with `--ranges`, what scans of empty ranges and short scans cost at
//! several bits per key of the range filters.
//!
//! The tables of one store get new filters for each number of bits; their data stay as they are.
//! Each pass asks for the same keys or ranges. A *survey* first searches all tables that may hold
//! one, whatever their filters say. From it and from the theory of the filters follows how many
//! blocks the filters should let through. The command fails if a measurement disagrees with that
//! (but for what builders of range filters predict), or if the store's counters disagree with the
//! operating system's for this process.
//!
//! *Cold*: the store caches no blocks, and the tables' pages are dropped from the system's cache
//! before each pass. Every block is then a system call, and the first use of every page a read from
//! the device. *Warm*: the store's cache holds every block needed. Nothing is read; filters save
//! look-ups in blocks.

mod asked;
mod copy;
mod expect;
mod pages;
mod plot;
mod questions;
mod ranges;
mod report;
mod subject;
mod theory;

use tamis::FilterMode;
use tempfile::TempDir;

use crate::args::{BenchReads, Common};
use crate::commands::store::existing_keyspace;
use crate::commands::workload::measure::{Measured, warm_up};
use crate::failure::{Attempt, Failure, Result};
use crate::output::say;
use crate::text::counted;
use asked::Asked;
use expect::{Expected, Rates};
use questions::Set;
use report::Report;
use subject::{Subject, kind};

/// What is in memory before a pass begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheState {
    /// Only filters and indexes.
    Cold,
    /// The blocks, in the store's cache.
    Warm,
}

impl CacheState {
    fn name(self) -> &'static str {
        match self {
            CacheState::Cold => "cold",
            CacheState::Warm => "warm",
        }
    }
}

/// One pass over what is asked for, with the expected result.
struct Pass {
    state: CacheState,
    /// Bits per key with which the filters were rebuilt; `None` for a store's original filters.
    rebuilt: Option<f32>,
    /// Actual bits per key of the filters, averaged over keys; `None` without usable filters.
    bits: Option<f64>,
    /// Tables whose keys allow no useful range filter.
    declined: u64,
    expected: Expected,
    measured: Measured<Asked>,
}

pub(super) fn run(common: &Common, args: BenchReads) -> Result<()> {
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let mut dir = tempfile::Builder::new()
        .prefix("tamis-bench-")
        .tempdir_in(&parent)
        .attempt(format_args!("cannot create a directory in {}", parent.display()))?;
    dir.disable_cleanup(args.keep);
    let report = bench(common, &args, &dir)?;
    report.print(common)?;
    for plot in &args.plot {
        tamis_bench::plot::write(plot, &report.figure()).attempt(format_args!("cannot write {}", plot.display()))?;
        say(format_args!("plot written to {}", plot.display()));
    }
    if args.keep {
        say(format_args!("the store is in {}", dir.path().display()));
    } else {
        let path = dir.path().to_owned();
        dir.close().attempt(format_args!("cannot remove {}", path.display()))?;
    }
    match report.disagreements() {
        [] => Ok(()),
        disagreements => Err(Failure::Wrong(disagreements.join("\n"))),
    }
}

/// Sizes of the filters to measure.
fn sizes(args: &BenchReads) -> Result<&[f32]> {
    if args.bits.is_empty() {
        return Ok(kind(args).bits());
    }
    if args.ranges && !args.bits.iter().all(|bits| (3.0..=18.0).contains(bits)) {
        return Err(Failure::usage("a range filter takes 3 to 18 bits per key"));
    }
    Ok(&args.bits)
}

fn bench(common: &Common, args: &BenchReads, dir: &TempDir) -> Result<Report> {
    let bits = sizes(args)?;
    let subject = Subject::prepare(common, args, bits, &dir.path().join("db"))?;
    let sets = {
        let db = subject.open(0)?;
        questions::choose(common, args, &subject, &existing_keyspace(&db, common)?)?
    };
    // A range filter is asked only about blocks that are not in memory.
    let states = match (args.cold || args.ranges, args.warm) {
        (true, false) => &[CacheState::Cold][..],
        (false, true) => &[CacheState::Warm],
        _ => &[CacheState::Cold, CacheState::Warm],
    };
    let mut report = Report::new(&subject, common)?;
    // A given store is first measured with its own filters. A store that we loaded has filters of
    // the first size already.
    let original = subject.is_given().then_some(None);
    for (i, rebuilt) in original.into_iter().chain(bits.iter().copied().map(Some)).enumerate() {
        if let Some(bits) = rebuilt {
            subject.rebuild(common, bits)?;
        }
        let modes = if i == 0 { &[FilterMode::Ignore, FilterMode::Use][..] } else { &[FilterMode::Use] };
        for &state in states {
            measure_state(common, &subject, &sets, state, rebuilt, modes, &mut report)?;
        }
    }
    Ok(report)
}

/// Asks for everything in one state, in each of the modes.
fn measure_state(
    common: &Common,
    subject: &Subject,
    sets: &[Set],
    state: CacheState,
    rebuilt: Option<f32>,
    modes: &[FilterMode],
    report: &mut Report,
) -> Result<()> {
    let db = subject.open(match state {
        CacheState::Cold => 0,
        // All blocks, however many. This is only a limit: no memory is reserved.
        CacheState::Warm => usize::MAX >> 1,
    })?;
    let keyspace = existing_keyspace(&db, common)?;
    warm_up(&db, &keyspace)?;
    let rates = Rates::of(&db, &keyspace, subject.kind);
    if rates.declined > 0 {
        say(format_args!(
            "{}: {} without a range filter, since it would say \"maybe\" to more than a quarter of short empty ranges",
            of_size(rebuilt),
            counted(rates.declined, "table")
        ));
    }
    let passes = sets.iter().map(|set| set.asked.len() * set.items.len()).sum::<usize>() * modes.len();
    say(format_args!(
        "{}, {}: reading {}",
        state.name(),
        of_size(rebuilt),
        counted(passes as u64, subject.kind.unit())
    ));
    for set in sets {
        let Some(entries) = set.asked.first().map(|asked| asked.scan().entries) else { continue };
        // The survey also fills the cache, if there is one.
        let survey = expect::survey(&keyspace, &rates, &set.items, entries)?;
        for &asked in &set.asked {
            for &filters in modes {
                if state == CacheState::Cold {
                    pages::drop_from_cache(&subject.path)?;
                }
                let measured = set.items.measure(&db, &keyspace, asked, filters)?;
                let expected = if filters == FilterMode::Ignore { survey.ignored } else { survey.used };
                report.add(Pass {
                    state,
                    rebuilt,
                    bits: rates.bits_per_key(),
                    declined: rates.declined,
                    expected,
                    measured,
                });
            }
        }
    }
    Ok(())
}

fn title(state: CacheState, asked: Asked, filters: FilterMode, rebuilt: Option<f32>) -> String {
    let state = state.name();
    match filters {
        FilterMode::Ignore => format!("{state}, {}, filters ignored", asked.name()),
        _ => format!("{state}, {}, {}", asked.name(), of_size(rebuilt)),
    }
}

fn of_size(rebuilt: Option<f32>) -> String {
    rebuilt.map_or_else(|| "filters as they are".to_owned(), |bits| format!("{bits} bits per key"))
}
