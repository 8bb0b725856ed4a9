//! Data blocks: about a page of sorted entries behind a directory, searched in place without
//! decoding.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | flags: bit 0, offsets are u32 instead of u16; others zero |
//! | 1 | 1 | zero |
//! | 2 | 2 | length of the common prefix of all user keys in the block, at most 65,535 |
//! | 4 | 4 | n, the number of entries, at least 1 |
//! | 8 | 8 | base: the smallest sequence number in the block |
//! | 16 | n | fingerprints: bits 56..63 of the user key's hash |
//! | | 2n or 4n | offset of each entry from the start of the block |
//! | | 4n | heads: [`head4`](crate::format::key::head4) of each key after the common prefix |
//! | | | the common prefix |
//! | | | the entries, one after another, up to the end of the block |
//!
//! ```text
//! entry = rest length: varint, value length: varint, packed: varint, rest, value
//! packed = (seqno - base) << 3 | kind
//! ```
//!
//! The rest is the user key without the common prefix. Entries are ordered by user key, then newest
//! first. Offsets are u32 if the block would otherwise exceed 65,536 bytes.
//!
//! The directory, all before the common prefix, has three flat arrays. A point look-up compares
//! one-byte *fingerprints* of the keys' hashes. A seek compares *heads*, the four key bytes after
//! the block's common prefix. Both then touch only the entries that match, and the whole key always
//! decides.
//!
//! A block's CRC is checked before the block reaches this module. A block that breaks the format is
//! still an error, never a panic: [`Block::decode`] and [`Frame::into_block`] check that the
//! directory fits, and every entry is decoded with checks.

mod builder;
mod cursor;
mod fingerprints;
mod frame;
#[cfg(any(fuzzing, test, feature = "testing"))]
pub mod fuzz;
mod kept;
mod reader;
#[cfg(test)]
mod tests;
mod verify;
mod view;

pub use builder::BlockBuilder;
pub use cursor::BlockCursor;
pub use frame::{BlockRef, BorrowedFrame, Frame, FramedBlock};
pub use kept::CursorBlock;
pub use reader::BlockHit;
pub use view::{Block, prefetch_block, set_seqno};

use crate::format::key::HEAD4_LEN;

/// Bytes before the fingerprints. Part of the format.
const HEADER_LEN: usize = 16;
/// Where the smallest sequence number is. Part of the format.
const BASE_OFFSET: usize = 8;
/// Flag: offsets take four bytes instead of two. Part of the format.
const WIDE_OFFSETS: u8 = 1;
/// Longest common prefix that is taken out of the keys. Part of the format.
const MAX_PREFIX_LEN: usize = 0xffff;

/// Directory bytes of one entry: fingerprint, offset and head.
const fn directory_len(wide: bool) -> usize {
    1 + if wide { 4 } else { 2 } + HEAD4_LEN
}
