//! Background work: flushes, compactions, and the upkeep of range deletes.
//!
//! `schedule` begins what the `agenda` finds due and `background` counts what runs; `flush`,
//! `compact`, `covered` and `refilter` do it; `throttle` slows writers down when it falls behind.

mod agenda;
pub(crate) mod background;
mod compact;
mod covered;
mod flush;
mod progress;
pub(crate) mod refilter;
pub(crate) mod schedule;
pub(crate) mod throttle;
pub(crate) mod upkeep;
