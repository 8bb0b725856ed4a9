//! What a store reports about itself.
//!
//! - [`stats`]: counters of reads and filters.
//! - [`event`]: what happens in a store, and [`delivery`]: how a listener is told.
//! - [`progress`]: how far a long operation is.

pub mod delivery;
pub mod event;
pub mod progress;
pub mod stats;
