//! The shape of a store: which files it consists of, and what a reader may see of them.
//!
//! `catalog` is the manifest in force; `view` what a read consults; `live` the read points that
//! hold old versions back; `gaps` where nothing is left to see; `dropped` the names of what is
//! gone.

pub(crate) mod catalog;
pub(crate) mod dropped;
pub(crate) mod gaps;
pub(crate) mod live;
mod persistent;
pub(crate) mod view;
