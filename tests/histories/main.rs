//! Random histories of a store against one model: the library's only engine of them.
//!
//! A history is data (`op`), drawn from a seed by a profile (`draw`, `profiles`) and carried out
//! beside a model that keeps every version of every key (`world`, `model`). Whatever reads must
//! agree with the model (`check`, `reads`, `handles`, `transaction`), whatever ends the process
//! must leave what it may (`ends`), and others act amid flushes, compactions and refreshes
//! (`watched`). Nothing but the seed decides, unless a profile has threads.
//!
//! A history that fails is shrunk, and printed as an expression to be replayed by [`replay`].
//! `TAMIS_TIMES` multiplies the number of histories of each profile, `TAMIS_SEED` runs one seed,
//! `TAMIS_SHRINK=0` does not shrink.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "threads and clocks of tests are their own")]

mod check;
mod draw;
mod ends;
mod handles;
#[path = "../it/interrupted.rs"]
mod interrupted;
mod model;
mod op;
mod profiles;
mod reads;
mod shrink;
#[path = "../it/support.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod support;
mod transaction;
mod watched;
mod world;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Once;
use std::time::Instant;

use crate::support::{count_from_env, for_each_seed};
use draw::Profile;
use op::History;
use world::World;

thread_local! {
    /// Whether panics of this thread are no news.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Carries out a history; what it expects fails by panics.
fn replay(history: &History, settles: bool) {
    let mut world = World::new(history);
    for op in &history.ops {
        world.run(op);
    }
    world.run(&op::Op::Check(0xff));
    if settles {
        world.check_settled();
    }
    world.fs.kill();
}

/// Whether a history fails, without a word.
fn fails(history: &History, settles: bool) -> bool {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                former(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| replay(history, settles)));
    QUIET.set(false);
    result.is_err()
}

/// Runs the histories of a profile.
fn run(profile: &Profile) {
    let (cases, start) = (profile.cases * count_from_env("TAMIS_TIMES", 1), Instant::now());
    for_each_seed(cases, |seed| {
        let history = profile.history(seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| replay(&history, profile.settles))) {
            let seconds = start.elapsed().as_secs_f32();
            eprintln!("{}, seed {seed}, after {seconds:.1} s: {} operations fail", profile.name, history.ops.len());
            if history.setup.jobs == op::Jobs::Threads {
                eprintln!("with threads, it may not fail again");
            } else if !fails(&history, profile.settles) {
                eprintln!("once only");
            } else if std::env::var("TAMIS_SHRINK").as_deref() != Ok("0") {
                let history = shrink::shrink(&history, |history| fails(history, profile.settles));
                eprintln!("{} operations fail:\n{history:?}", history.ops.len());
                let _ = catch_unwind(AssertUnwindSafe(|| replay(&history, profile.settles)));
            }
            resume_unwind(panic);
        }
    });
}
