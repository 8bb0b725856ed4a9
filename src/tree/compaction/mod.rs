//! Keeping the tables in shape: `picker` decides what to compact and is pure, `stages` says what of it is done at once, `job` does it,
//! `retention` says which versions of a key must live on, `filters` which filter a new table gets, `output` writes tables (for
//! flushes too).

pub(crate) mod filters;
pub(crate) mod job;
mod output;
pub(crate) mod picker;
mod retention;
pub(crate) mod stages;

pub(crate) use output::{OutputContext, Part, Unknown, write_run};
