//! `bench reads`: what look-ups of missing and existing keys cost at several bits per key, and
//! whether theory agrees.
//!
//! The tables of one store get new filters for each number of bits; their data stay as they are.
//! Each pass looks up the same keys. A *survey* first searches all tables that may hold a key,
//! whatever their filters say. From it and from the theory of the filters follows how many blocks
//! the filters should let through. The command fails if a measurement disagrees with that, or if
//! the store's counters disagree with the operating system's for this process.
//!
//! *Cold*: the store caches no blocks, and the tables' pages are dropped from the system's cache
//! before each pass. Every block is then a system call, and the first use of every page a read from
//! the device. *Warm*: the store's cache holds every block needed. Nothing is read; filters save
//! look-ups in blocks.

mod copy;
mod expect;
mod pages;
mod plot;
mod questions;
mod report;
mod subject;
mod theory;

use tamis::FilterMode;
use tempfile::TempDir;

use crate::args::{BenchReads, Common};
use crate::commands::store::existing_keyspace;
use crate::commands::workload::measure::{Measured, Question, measure, warm_up};
use crate::failure::{Attempt, Failure, Result};
use crate::output::say;
use crate::text::count;
use expect::{Expected, Rates};
use questions::Questions;
use report::Report;
use subject::Subject;

/// What is in memory before the keys are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheState {
    /// Only filters and indexes.
    Cold,
    /// The blocks, in the store's cache.
    Warm,
}

/// One pass over the keys of a question, with the expected result.
struct Pass {
    state: CacheState,
    /// Bits per key with which the filters were rebuilt; `None` for a store's original filters.
    rebuilt: Option<f32>,
    /// Actual bits per key of the filters, averaged over keys; `None` without usable filters.
    bits: Option<f64>,
    expected: Expected,
    measured: Measured,
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

fn bench(common: &Common, args: &BenchReads, dir: &TempDir) -> Result<Report> {
    let subject = Subject::prepare(common, args, &dir.path().join("db"))?;
    let questions = {
        let db = subject.open(0)?;
        Questions::choose(common, args, &subject, &existing_keyspace(&db, common)?)?
    };
    let states = match (args.cold, args.warm) {
        (true, false) => &[CacheState::Cold][..],
        (false, true) => &[CacheState::Warm],
        _ => &[CacheState::Cold, CacheState::Warm],
    };
    let mut report = Report::new(&subject, common)?;
    // A given store is first measured with its own filters. A store that we loaded has filters of
    // the first size already.
    let original = subject.is_given().then_some(None);
    for (i, rebuilt) in original.into_iter().chain(args.bits.iter().copied().map(Some)).enumerate() {
        if let Some(bits) = rebuilt {
            subject.rebuild(common, bits)?;
        }
        let modes = if i == 0 { &[FilterMode::Ignore, FilterMode::Use][..] } else { &[FilterMode::Use] };
        for &state in states {
            measure_state(common, &subject, &questions, state, rebuilt, modes, &mut report)?;
        }
    }
    Ok(report)
}

/// Measures all questions in one state, in each of the modes.
fn measure_state(
    common: &Common,
    subject: &Subject,
    questions: &Questions,
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
    let rates = Rates::of(&db, &keyspace);
    for question in [Question::Missing, Question::Existing] {
        let keys = questions.keys(question);
        // The survey also fills the cache, if there is one.
        let survey = expect::survey(&keyspace, &rates, keys)?;
        for &filters in modes {
            say(format_args!("{}: {} keys", title(state, question, filters, rebuilt), count(keys.len() as u64)));
            if state == CacheState::Cold {
                pages::drop_from_cache(&subject.path)?;
            }
            let measured = measure(&db, &keyspace, question, filters, keys.iter())?;
            let expected = if filters == FilterMode::Ignore { survey.ignored } else { survey.used };
            report.add(Pass { state, rebuilt, bits: rates.bits_per_key(), expected, measured });
        }
    }
    Ok(())
}

fn title(state: CacheState, question: Question, filters: FilterMode, rebuilt: Option<f32>) -> String {
    let state = match state {
        CacheState::Cold => "cold",
        CacheState::Warm => "warm",
    };
    let question = match question {
        Question::Existing => "existing",
        Question::Missing => "missing",
    };
    match (filters, rebuilt) {
        (FilterMode::Ignore, _) => format!("{state}, {question}, filters ignored"),
        (_, None) => format!("{state}, {question}, filters as they are"),
        (_, Some(bits)) => format!("{state}, {question}, {bits} bits per key"),
    }
}
