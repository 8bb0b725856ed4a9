//! Random histories of a store against one model: the library's only engine of them.
//!
//! A history is data (`op`), drawn from a seed by a profile (`draw`, `profiles`) and carried out
//! beside a model that keeps every version of every key (`world`, `model`). Whatever reads must
//! agree with the model (`check`, `reads`, `handles`, `transaction`), whatever ends the process
//! must leave what it may (`ends`), and others act amid flushes, compactions and refreshes
//! (`watched`), in other stores, too (`neighbours`). Trouble comes at random, or at one call after
//! the other (`sweep`). Nothing but the seed decides, unless a profile has threads.
//!
//! A history that fails is shrunk, and printed as an expression to be replayed by [`replay`].
//! `TAMIS_TIMES` multiplies the number of histories of each profile, `TAMIS_SEED` runs one seed,
//! `TAMIS_SHRINK=0` does not shrink.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "threads and clocks of tests are their own")]

mod check;
mod damage;
mod draw;
mod ends;
mod handles;
#[path = "../it/interrupted.rs"]
mod interrupted;
mod model;
mod neighbours;
mod op;
mod profiles;
mod reads;
#[path = "../it/repair/repaired.rs"]
mod repaired;
mod shrink;
mod shuffled;
#[path = "../it/support.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod support;
mod sweep;
mod transaction;
mod watched;
mod world;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Once;
use std::time::Instant;

use crate::support::{count_from_env, for_each_seed};
use draw::Profile;
use op::History;
use sweep::Kinds;
use watched::Event;
use world::World;

thread_local! {
    /// Whether panics of this thread are no news.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The calls of a history, and where those of each operation begin.
struct Calls {
    events: Vec<Event>,
    begins: Vec<usize>,
}

/// Carries out a history; what it expects fails by panics.
fn replay(history: &History, settles: bool) -> Calls {
    let mut world = World::new(history);
    let mut begins = Vec::new();
    for op in &history.ops {
        begins.push(world.fs.events.lock().len());
        world.run(op);
    }
    begins.push(world.fs.events.lock().len());
    world.run(&op::Op::Check(0xff));
    if settles {
        world.check_settled();
    }
    world.note_files();
    world.check_neighbours();
    world.fs.kill();
    let events = std::mem::take(&mut *world.fs.events.lock());
    Calls { events, begins }
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

/// Carries out a history of a profile; one that fails is shrunk and printed.
fn carry_out(profile: &Profile, seed: u64, history: &History) -> Calls {
    catch_unwind(AssertUnwindSafe(|| replay(history, profile.settles))).unwrap_or_else(|panic| {
        eprintln!("{}, seed {seed}: {} operations fail", profile.name, history.ops.len());
        if history.setup.jobs == op::Jobs::Threads {
            eprintln!("with threads, it may not fail again");
        } else if !fails(history, profile.settles) {
            eprintln!("once only");
        } else if std::env::var("TAMIS_SHRINK").as_deref() != Ok("0") {
            let history = shrink::shrink(history, |history| fails(history, profile.settles));
            eprintln!("{} operations fail:\n{history:?}", history.ops.len());
            let _ = catch_unwind(AssertUnwindSafe(|| replay(&history, profile.settles)));
        }
        resume_unwind(panic)
    })
}

/// Runs the histories of a profile.
fn run(profile: &Profile) {
    let start = Instant::now();
    let kinds = RefCell::new(Kinds::default());
    for_each_seed(profile.cases * count_from_env("TAMIS_TIMES", 1), |seed| {
        let case = || match profile.every {
            0 => _ = carry_out(profile, seed, &profile.history(seed)),
            every => sweep::sweep(profile, seed, every, &mut kinds.borrow_mut()),
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(case)) {
            eprintln!("{}, seed {seed}, after {:.1} s", profile.name, start.elapsed().as_secs_f32());
            resume_unwind(panic);
        }
    });
    if std::env::var("TAMIS_SEED").is_err() {
        kinds.borrow().check();
    }
}
