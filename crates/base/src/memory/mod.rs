//! Memory: where it comes from, when it may be reused, and hints to the processor.
//!
//! - [`budget`]: one limit for all of it.
//! - [`pool`]: large pieces from the system, cut up for memtables, cached blocks and open tables.
//! - [`epoch`]: epoch-based reclamation of what lock-free readers may still see.
//! - [`thread`]: small numbers for threads.
//! - [`prefetch`]: prefetch of one cache line.

pub mod budget;
pub mod epoch;
pub mod pool;
pub mod prefetch;
pub mod thread;
