//! Data blocks: up to a page of sorted entries with a directory in front, searched in place without decoding.
//!
//! docs/FORMAT.md draws the layout. The directory has three flat arrays: a point look-up compares the one-byte *fingerprints* of the
//! keys' hashes, a seek compares the *heads* (the four key bytes behind the block's common prefix), and both then touch only the
//! entries that agree. Whatever head or fingerprint say, the answer is decided by the whole key.
//!
//! What a block holds has been checked by its CRC before it comes here. Still, a block that does not follow the format is an error
//! and never a panic: [`Block::decode`] and [`Frame::into_block`] check that the directory fits, and every entry is decoded with checks.

mod builder;
mod cursor;
mod fingerprints;
mod frame;
#[cfg(any(fuzzing, test))]
pub(crate) mod fuzz;
mod kept;
mod reader;
#[cfg(test)]
mod tests;
mod verify;
mod view;

pub(crate) use builder::BlockBuilder;
pub(crate) use cursor::BlockCursor;
pub(crate) use frame::{BlockRef, Borrowed, Frame, FramedBlock, HeldBlock};
pub(crate) use kept::{KeptBlock, LentBlock};
pub(crate) use reader::BlockHit;
pub(crate) use view::{Block, prefetch_block};

/// Bytes before the fingerprints. Part of the format.
const HEADER_LEN: usize = 16;
/// Flag: offsets take four bytes instead of two. Part of the format.
const WIDE_OFFSETS: u8 = 1;
/// Longest common prefix that is taken out of the keys. Part of the format.
const MAX_PREFIX_LEN: usize = 0xffff;
/// Bytes of a head. Part of the format.
const HEAD_LEN: usize = 4;

/// The first bytes of `rest`, a key without the common prefix, as a number that orders as the bytes do.
fn head4(rest: &[u8]) -> u32 {
    let mut bytes = [0; HEAD_LEN];
    let len = rest.len().min(HEAD_LEN);
    bytes[..len].copy_from_slice(&rest[..len]);
    u32::from_be_bytes(bytes)
}

/// Fingerprint, offset and head of one entry.
const fn directory_len(wide: bool) -> usize {
    1 + if wide { 4 } else { 2 } + HEAD_LEN
}
