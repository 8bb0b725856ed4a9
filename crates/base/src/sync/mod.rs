//! The one door for threads and time: locks, conditions, atomics that threads wait on, spawning,
//! sleeping and clocks.
//!
//! The library takes them from here only; `clippy.toml` forbids those of the standard library, and
//! no other crate of the library depends on `parking_lot`. In a normal build they are these types,
//! at no cost. Under `--cfg shuttle` they are models (`model.rs`): one seed decides every switch of
//! threads and every tick of the clock, and repeats a failure. CONTRIBUTING.md has the command.
//!
//! Counters of statistics stay plain atomics: nobody waits for them. So do the lock-free parts
//! (memtable, cache, epoch), where the order in which writes become visible matters: loom models
//! it.

#[cfg(shuttle)]
mod model;
#[cfg(not(shuttle))]
mod native;

#[cfg(shuttle)]
pub use model::*;
#[cfg(not(shuttle))]
pub use native::*;
