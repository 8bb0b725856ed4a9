//! [`Block`]: a view of a data block's bytes, in a frame or a mapped file, with its decoded header.

use super::{BASE_OFFSET, HEADER_LEN, WIDE_OFFSETS, directory_len};
use crate::format::coding::{Decoder, set_u64};
use crate::format::key::{HEAD4_LEN, SeqNo};
use crate::format::{Decoded, Malformed};
use crate::memory::prefetch::prefetch;

/// Bytes of a cache line.
pub(super) const CACHE_LINE: usize = 64;
/// Cache lines that are worth prefetching before a search: the directory of about 34 entries, the
/// prefix after it, and the frame header in front.
pub(super) const PREFETCH_LINES: usize = 5;

/// Prefetches `count` cache lines from `start` on.
#[inline]
pub(super) fn prefetch_lines(start: *const u8, count: usize) {
    for line in 0..count {
        prefetch(start.wrapping_add(line * CACHE_LINE));
    }
}

/// A data block whose directory fits into its bytes: a view of a frame or of a part of a mapped
/// file.
///
/// The header is decoded once and kept beside the bytes. Even if a mapped file changes, no read
/// goes beyond the block.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    pub(super) header: BlockHeader,
    /// Begins with the block; may be longer.
    buffer: &'a [u8],
}

/// The decoded header of a block.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct BlockHeader {
    pub(super) base: SeqNo,
    /// Length of the block in bytes.
    pub(super) block_len: u32,
    /// Number of entries, at least 1.
    pub(super) entry_count: u32,
    pub(super) heads_start: u32,
    pub(super) prefix_len: u16,
    pub(super) wide: bool,
    /// Explicit padding, as in a frame's header: every byte is initialised.
    pub(super) _filled: u8,
}

impl BlockHeader {
    /// Decodes the header of the block that fills `bytes`.
    #[inline]
    pub(super) fn decode(bytes: &[u8]) -> Decoded<BlockHeader> {
        let mut header = Decoder::new(bytes);
        let (flags, zero) = (header.u8()?, header.u8()?);
        if flags & !WIDE_OFFSETS != 0 || zero != 0 {
            return Err(Malformed("a data block has unknown flags"));
        }
        let wide = flags & WIDE_OFFSETS != 0;
        let (prefix_len, entry_count, base) = (header.u16()?, header.u32()?, header.u64()?);
        if entry_count == 0 {
            return Err(Malformed("a data block has no entries"));
        }
        let directory = u64::from(entry_count) * directory_len(wide) as u64 + u64::from(prefix_len);
        if directory > header.remaining() as u64 {
            return Err(Malformed("the directory of a data block is cut short"));
        }
        let too_long = |_| Malformed("a data block is longer than 4 GiB");
        let block_len = u32::try_from(bytes.len()).map_err(too_long)?;
        let heads_start = HEADER_LEN + entry_count as usize * (directory_len(wide) - HEAD4_LEN);
        let heads_start = u32::try_from(heads_start).map_err(too_long)?;
        Ok(BlockHeader { base, block_len, entry_count, heads_start, prefix_len, wide, _filled: 0 })
    }
}

impl<'a> Block<'a> {
    /// The block at the front of `buffer` with the header that [`BlockHeader::decode`] returned.
    #[inline]
    pub(super) fn new(header: BlockHeader, buffer: &'a [u8]) -> Block<'a> {
        Block { header, buffer }
    }

    /// Decodes the first `len` bytes of `buffer` as a block.
    #[inline]
    pub fn decode(buffer: &'a [u8], len: usize) -> Decoded<Block<'a>> {
        let bytes = buffer.get(..len).ok_or(Malformed("a data block reaches beyond the end of its file"))?;
        Ok(Block { header: BlockHeader::decode(bytes)?, buffer })
    }

    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        &self.buffer[..self.header.block_len as usize]
    }

    /// The block's bytes and everything after them in the buffer.
    #[inline]
    pub(super) fn buffer(&self) -> &'a [u8] {
        self.buffer
    }

    /// Where `part` begins, which a look-up found in the block.
    #[expect(clippy::cast_possible_truncation, reason = "a block is shorter than 4 GiB")]
    pub fn start_of(&self, part: &[u8]) -> u32 {
        (part.as_ptr().addr() - self.buffer.as_ptr().addr()) as u32
    }

    /// The `len` bytes at `start`, where a look-up found a value.
    #[inline]
    pub fn part(&self, start: u32, len: u32) -> &'a [u8] {
        self.bytes().get(start as usize..).and_then(|rest| rest.get(..len as usize)).unwrap_or_default()
    }
}

/// Gives `seqno` to all entries of an encoded block that have the sequence number 0. Refuses a
/// block whose base is another number. Entries above the base stay above it.
pub fn set_seqno(block: &mut [u8], seqno: SeqNo) -> Decoded<()> {
    let base = block.get_mut(BASE_OFFSET..HEADER_LEN).ok_or(Malformed("a data block is shorter than its header"))?;
    if base.iter().any(|&byte| byte != 0) {
        return Err(Malformed("an entry of an ingested table has a sequence number"));
    }
    set_u64(block, BASE_OFFSET, seqno);
    Ok(())
}

/// Prefetches the lines that a search of the block at the front of `buffer` reads first.
#[inline]
pub fn prefetch_block(buffer: &[u8]) {
    prefetch_lines(buffer.as_ptr(), PREFETCH_LINES);
}
