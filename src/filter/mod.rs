//! Filters: a few bits per key that answer, for any key, "certainly not in this table" or "maybe".
//!
//! A [`FilterBuilder`] takes the hashes of a table's keys and makes a block; a [`Filter`] is that block in memory. Both work on an
//! array of 64-byte lines whose bits one of two layouts places, `split` (the default) or `standard` (the textbook, to compare
//! with), or on the packed fingerprints of `fuse` in such lines. `header` draws the block, `sizing` says how many lines and probes a policy takes. Nothing here does I/O, and nothing
//! knows of tables: a stand-alone filter is the same lines, layouts and header.
//!
//! What must stay true:
//! - No "no" for a key that was added. Every block is asked for all its keys before it leaves the builder.
//! - Bytes that are not understood, do not verify, or belong to another hash seed answer "maybe", and say why.
//! - The same hashes, policy and seed make the same bytes on every platform: sizes and stored rates are integer arithmetic or
//!   single IEEE operations.

mod avx2;
mod builder;
mod fuse;
mod hash;
mod header;
mod info;
mod layout;
mod line;
mod reader;
mod sizing;
mod split;
mod standard;
#[cfg(test)]
mod tests;

pub(crate) use builder::FilterBuilder;
pub(crate) use hash::KeyHash;
pub(crate) use info::FilterInfo;
pub(crate) use reader::Filter;
