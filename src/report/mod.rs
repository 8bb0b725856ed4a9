//! What a store reports about itself.
//!
//! - [`stats`]: counters of reads and filters.
//! - [`event`]: notable conditions, passed to a listener.
//! - [`explain`]: the steps of one point read.

pub(crate) mod event;
pub(crate) mod explain;
pub(crate) mod stats;
