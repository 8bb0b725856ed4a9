//! `bench reads`: what do missing and existing keys cost at several bits per key, and is it what theory says?
//!
//! One store, whose tables get new filters for each number of bits while their data stay as they are. Each time the same keys are asked
//! for. A *survey* first goes through all tables that may hold a key, whatever their filters say; from that, and from what theory says
//! of the filters, follows how many blocks the filters should let through. What is then measured must agree with it, and what the store
//! counts with what the operating system counts for this process: otherwise the command fails.
//!
//! *Cold* means that the store caches no blocks, and that the tables' pages were dropped from the system's cache before each pass:
//! every block is a system call, and the first use of every page a read of the device. *Warm* means that the store's cache holds every
//! block that is asked for: nothing is read, and what filters save are look-ups in blocks.

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

/// What is in memory before the keys are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but filters and indexes.
    Cold,
    /// The blocks, in the store's cache.
    Warm,
}

/// One pass over the keys of a question, and what was to be expected of it.
struct Pass {
    state: State,
    /// Bits per key that the tables' filters were rebuilt with; `None` for those that a store came with.
    rebuilt: Option<f32>,
    /// Bits per key that the filters really have, on average over keys; `None` without usable filters.
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
        say(format_args!("the plot is in {}", plot.display()));
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
        (true, false) => &[State::Cold][..],
        (false, true) => &[State::Warm],
        _ => &[State::Cold, State::Warm],
    };
    let mut report = Report::new(&subject, common)?;
    // A store that was taken is measured with the filters that it has, too. One of our own was loaded with the first of the others.
    let as_they_are = subject.is_taken().then_some(None);
    for (i, rebuilt) in as_they_are.into_iter().chain(args.bits.iter().copied().map(Some)).enumerate() {
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

/// Asks all questions in one state, in each of the modes.
fn measure_state(
    common: &Common,
    subject: &Subject,
    questions: &Questions,
    state: State,
    rebuilt: Option<f32>,
    modes: &[FilterMode],
    report: &mut Report,
) -> Result<()> {
    let db = subject.open(match state {
        State::Cold => 0,
        // The blocks asked for, however many they are. Nothing is set aside.
        State::Warm => usize::MAX >> 1,
    })?;
    let keyspace = existing_keyspace(&db, common)?;
    warm_up(&db, &keyspace)?;
    let rates = Rates::of(&db, &keyspace);
    for question in [Question::Missing, Question::Existing] {
        let keys = questions.keys(question);
        // It also brings the blocks into the cache, if there is one.
        let survey = expect::survey(&keyspace, &rates, keys)?;
        for &filters in modes {
            say(format_args!("{}: {} keys", title(state, question, filters, rebuilt), count(keys.len() as u64)));
            if state == State::Cold {
                pages::drop_from_cache(&subject.path)?;
            }
            let measured = measure(&db, &keyspace, question, filters, keys.iter())?;
            let expected = if filters == FilterMode::Ignore { survey.ignored } else { survey.used };
            report.add(Pass { state, rebuilt, bits: rates.bits_per_key(), expected, measured });
        }
    }
    Ok(())
}

fn title(state: State, question: Question, filters: FilterMode, rebuilt: Option<f32>) -> String {
    let state = match state {
        State::Cold => "cold",
        State::Warm => "warm",
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
