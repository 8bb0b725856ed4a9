//! What a store reports about itself.
//!
//! - [`stats`]: counters of reads and filters.
//! - [`event`]: what happens in a store, and [`delivery`]: how a listener is told.
//! - [`explain`]: the steps of one point read.

pub(crate) mod delivery;
pub(crate) mod event;
pub(crate) mod explain;
pub(crate) mod stats;
