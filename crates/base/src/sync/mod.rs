//! The one door for threads and time: locks, conditions, atomics that threads wait on, spawning,
//! sleeping and clocks.
//!
//! The library takes them from here only; `clippy.toml` forbids those of the standard library, and
//! no other crate of the library depends on `parking_lot`. They are these types, at no cost.
//!
//! Counters of statistics stay plain atomics: nobody waits for them. So do the lock-free parts
//! (memtable, cache, epoch), where the order in which writes become visible matters: loom models
//! it.

mod native;

pub use native::*;
