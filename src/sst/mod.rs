//! Tables written without an open store, to be ingested later.
//!
//! Such a table is an ordinary one, except for two things that are not known when it is written:
//!
//! - its *number*: the file has an identity of random bits in its place, to which its checksums are
//!   bound. Blocks of two such files therefore cannot change places, and a file need not be
//!   rewritten to be ingested.
//! - the *sequence number* of its entries: it is 0 in the file.
//!
//! The manifest states both ([`Ingested`](crate::sorted::table::Ingested)).

mod format;
#[cfg(test)]
mod tests;
mod writer;

pub use format::SstFormat;
pub use writer::{SstInfo, SstWriter};
