//! Memory: where it comes from, when it may be reused, and hints to the processor.
//!
//! - [`pool`]: large pieces from the system, cut up for memtables, cached blocks and open tables.
//! - [`epoch`]: when memory may be freed that readers without locks may still read.
//! - [`thread`]: small numbers for threads.
//! - [`prefetch`]: a hint that a line of memory is about to be read.

pub(crate) mod epoch;
pub(crate) mod pool;
pub(crate) mod prefetch;
pub(crate) mod thread;
