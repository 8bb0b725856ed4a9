//! [`Fetcher`]: the one door through which bytes of a table enter. It checks every length against the file before it allocates,
//! verifies every block, and counts the data blocks.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::TableContext;
use super::compress::{decompress_into, from_code, highest_code, raw_len};
use super::footer::{Handle, TRAILER_LEN};
use super::mapped::Mapped;
use super::properties::Properties;
use crate::block::{BlockRef, Frame};
use crate::error::{Error, IoContext, Result};
use crate::format::Decoded;
use crate::format::checksum::{FileChecksum, bound_crc};
use crate::format::filename::FileKind;
use crate::options::Compression;
use crate::stats::ReadCounters;
use crate::vfs::ReadableFile;

/// Reads from one table's file.
pub(super) struct Fetcher {
    pub(super) context: Arc<TableContext>,
    number: u64,
    /// Bytes of the file.
    pub(super) size: u64,
    pub(super) path: PathBuf,
    /// Shared with those who keep the counts of a table that is gone.
    pub(super) counters: Arc<ReadCounters>,
}

impl Fetcher {
    pub(super) fn new(context: Arc<TableContext>, number: u64, size: u64) -> Fetcher {
        Fetcher { path: FileKind::Table(number).path(&context.dir), context, number, size, counters: Arc::default() }
    }

    pub(super) fn corrupt(&self, offset: u64, rule: impl fmt::Display) -> Error {
        Error::corruption(&self.path, offset, rule)
    }

    pub(super) fn file(&self) -> Result<Arc<dyn ReadableFile>> {
        let TableContext { fs, files, .. } = &*self.context;
        files.get(self.number, || fs.open(&self.path)).during("open", &self.path)
    }

    /// Length of the file as the file system has it.
    pub(super) fn file_len(&self) -> Result<u64> {
        self.file()?.len().during("read", &self.path)
    }

    /// The `len` bytes at `offset`, unverified.
    pub(super) fn bytes(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.checked_len(offset, len)?];
        self.fill(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// `len`, if the file has as many bytes at `offset`.
    fn checked_len(&self, offset: u64, len: u64) -> Result<usize> {
        match (offset.checked_add(len), usize::try_from(len)) {
            (Some(end), Ok(len)) if end <= self.size => Ok(len),
            _ => Err(self.corrupt(offset, "a block reaches beyond the end of the file")),
        }
    }

    /// Reads the bytes at `offset` until `bytes` is full.
    fn fill(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let read = self.file()?.read_at(bytes, offset);
        if read.during("read", &self.path)? < bytes.len() {
            return Err(self.corrupt(offset, "the file ends before the block does"));
        }
        Ok(())
    }

    /// A filter, properties or index block, verified.
    pub(super) fn meta_block(&self, handle: Handle) -> Result<Vec<u8>> {
        let stored = self.bytes(handle.offset, handle.stored_len())?;
        match self.verified(handle, &stored)? {
            (Compression::None, _) => Ok(without_trailer(stored.into())),
            _ => Err(self.corrupt(handle.offset, "a block is compressed that must not be")),
        }
    }

    /// A data block, verified, decompressed, and its compression; from what was read ahead, if it is there. `frame` makes a frame of as
    /// many bytes as it is told. A block that is not compressed is read into it and stays there.
    pub(super) fn data_block(
        &self,
        handle: Handle,
        properties: &Properties,
        ahead: Option<&mut ReadAhead>,
        frame: impl FnOnce(usize) -> Frame,
    ) -> Result<(Compression, BlockRef)> {
        let longest = properties.largest_block;
        let malformed = |malformed| self.corrupt(handle.offset, malformed);
        if let Some(stored) = ahead.and_then(|ahead| ahead.block(self, handle)) {
            let (compression, packed) = self.verified(handle, stored)?;
            let block = block_of(compression, packed, longest, frame).map_err(malformed)?;
            return Ok((compression, block));
        }
        let stored_len = self.checked_len(handle.offset, handle.stored_len())?;
        if properties.compression != u64::from(Compression::None.code()) {
            // How long the block is, its stored form says.
            let mut stored = Frame::new(stored_len);
            let bytes = &mut stored.bytes_mut()[..stored_len];
            self.fill(bytes, handle.offset)?;
            let (compression, packed) = self.verified(handle, bytes)?;
            let block = block_of(compression, packed, longest, frame).map_err(malformed);
            stored.spare();
            return Ok((compression, block?));
        }
        let mut stored = frame(stored_len);
        let bytes = &mut stored.bytes_mut()[..stored_len];
        self.fill(bytes, handle.offset)?;
        let (compression, block) = match self.verified(handle, bytes)? {
            (Compression::None, block) => {
                let len = block.len();
                (Compression::None, stored.into_block(len))
            }
            (compression, packed) => (compression, block_of(compression, packed, longest, Frame::new)),
        };
        Ok((compression, block.map_err(malformed)?))
    }

    /// A data block twice, verified: as it is stored, with its compression, and as [`Fetcher::data_block`] gives it. `checksum` takes in
    /// what of the file it takes.
    pub(super) fn data_block_to_copy(
        &self,
        handle: Handle,
        longest: u32,
        ahead: &mut ReadAhead,
        checksum: &mut FileChecksum,
    ) -> Result<(Compression, Vec<u8>, BlockRef)> {
        let stored = self.stored(handle, Some(ahead))?;
        checksum.update(&stored);
        let (compression, packed) = self.verified(handle, &stored)?;
        let block = block_of(compression, packed, longest, Frame::new);
        let block = block.map_err(|malformed| self.corrupt(handle.offset, malformed))?;
        Ok((compression, without_trailer(stored), block))
    }

    /// A block with its trailer, unverified; from what was read ahead, if it is there.
    fn stored<'a>(&self, handle: Handle, ahead: Option<&'a mut ReadAhead>) -> Result<Cow<'a, [u8]>> {
        match ahead.and_then(|ahead| ahead.block(self, handle)) {
            Some(stored) => Ok(Cow::Borrowed(stored)),
            None => Ok(Cow::Owned(self.bytes(handle.offset, handle.stored_len())?)),
        }
    }

    /// Checks the trailer of `stored`, a block with its trailer; returns the block and its compression.
    fn verified<'a>(&self, handle: Handle, stored: &'a [u8]) -> Result<(Compression, &'a [u8])> {
        let split = stored.split_last_chunk::<4>();
        let Some((checked @ [block @ .., compression], crc)) = split else {
            return Err(self.corrupt(handle.offset, "a block is shorter than its trailer"));
        };
        if u32::from_le_bytes(*crc) != bound_crc(self.number, handle.offset, checked) {
            return Err(self.corrupt(handle.offset, "the checksum of a block does not match"));
        }
        match from_code(*compression) {
            Some(compression) => Ok((compression, block)),
            None => Err(Error::Unsupported {
                file: self.path.clone(),
                what: "block compression",
                found: (*compression).into(),
                known: highest_code().into(),
            }),
        }
    }
}

/// The block that `packed` holds, at most `longest` bytes long if it is compressed, in a frame of its own.
fn block_of(
    compression: Compression,
    packed: &[u8],
    longest: u32,
    frame: impl FnOnce(usize) -> Frame,
) -> Decoded<BlockRef> {
    let len = match compression {
        Compression::None => packed.len(),
        _ => raw_len(packed, longest)?,
    };
    let mut raw = frame(len);
    match (compression, &mut raw.bytes_mut()[..len]) {
        (Compression::None, raw) => raw.copy_from_slice(packed),
        (compression, raw) => decompress_into(compression, packed, raw)?,
    }
    raw.into_block(len)
}

fn without_trailer(stored: Cow<'_, [u8]>) -> Vec<u8> {
    let mut bytes = stored.into_owned();
    bytes.truncate(bytes.len().saturating_sub(TRAILER_LEN));
    bytes
}

/// What a scan has read of a table beyond the block that it asked for.
///
/// A cursor that goes through enough blocks in their order is on a long scan: it reads ahead, and each time twice as much. Short
/// scans read what they use, long ones pay a system call per [`ReadAhead::MOST`] bytes.
pub(super) struct ReadAhead {
    /// Where the data blocks end.
    limit: u64,
    /// Blocks in a row after which it reads ahead.
    patience: u32,
    /// Position of the block that continues the scan.
    next: usize,
    /// Blocks in a row before this one.
    run: u32,
    /// Bytes to read next time; how many at first and at most.
    window: u64,
    least: u64,
    most: u64,
    /// Where what was read stands in the file.
    start: u64,
    /// What was read, of this length; the buffer behind it serves for the next read.
    len: usize,
    buffer: Vec<u8>,
    /// Up to where the system was asked for what comes.
    asked: u64,
}

impl ReadAhead {
    const LEAST: u64 = 32 << 10;
    const MOST: u64 = 256 << 10;
    /// Read at once by who goes through all, or through a part of a compaction.
    const OF_ALL: u64 = 256 << 10;
    /// Blocks in a row that make a scan a long one.
    const PATIENCE: u32 = 2;
    /// The same if what is read by itself stays in the cache, and what is read ahead does not.
    const PATIENCE_WITH_CACHE: u32 = 16;

    pub(super) fn new(limit: u64, fill_cache: bool) -> ReadAhead {
        let patience = if fill_cache { ReadAhead::PATIENCE_WITH_CACHE } else { ReadAhead::PATIENCE };
        let (least, most) = (ReadAhead::LEAST, ReadAhead::MOST);
        let (next, window) = (usize::MAX, least);
        ReadAhead { limit, patience, next, run: 0, window, least, most, start: 0, len: 0, buffer: Vec::new(), asked: 0 }
    }

    /// For a cursor that is known to go through all of a table: it reads ahead from the first block on.
    pub(super) fn of_all(limit: u64) -> ReadAhead {
        let window = ReadAhead::OF_ALL;
        ReadAhead { patience: 0, window, least: window, most: window, ..ReadAhead::new(limit, false) }
    }

    /// Notes that the scan has come to the block at position `i`.
    pub(super) fn step_to(&mut self, i: usize) {
        if i == self.next {
            self.run = self.run.saturating_add(1);
        } else {
            self.run = 0;
            self.window = self.least;
            self.asked = 0;
        }
        self.next = i + 1;
    }

    /// Whether the scan is so long that it reads ahead.
    pub(super) fn is_long(&self) -> bool {
        self.run >= self.patience
    }

    /// Asks the system for what comes next, if the scan is long and goes through a mapped file: that is read by looking at it.
    pub(super) fn ask_for(&mut self, mapped: &Mapped, handle: Handle) {
        if self.is_long() && handle.end().is_some_and(|end| end > self.asked) {
            self.asked = handle.offset.saturating_add(self.window).min(self.limit);
            mapped.will_need(handle.offset, self.asked);
            self.window = (self.window * 2).min(self.most);
        }
    }

    /// The stored form of a block, or `None` if it should be read by itself.
    fn block(&mut self, fetcher: &Fetcher, handle: Handle) -> Option<&[u8]> {
        if self.range(handle).is_none() && self.is_long() {
            let len = self.window.min(self.limit.min(fetcher.size).saturating_sub(handle.offset));
            if len < handle.stored_len() {
                return None;
            }
            self.len = 0;
            let len = usize::try_from(len).ok()?;
            if self.buffer.len() < len {
                self.buffer.resize(len, 0);
            }
            // What fails here may lie behind the block that was asked for: reading that by itself decides.
            fetcher.fill(&mut self.buffer[..len], handle.offset).ok()?;
            (self.start, self.len) = (handle.offset, len);
            self.window = (self.window * 2).min(self.most);
        }
        self.range(handle)
    }

    fn range(&self, handle: Handle) -> Option<&[u8]> {
        let start = usize::try_from(handle.offset.checked_sub(self.start)?).ok()?;
        let len = usize::try_from(handle.stored_len()).ok()?;
        self.buffer[..self.len].get(start..)?.get(..len)
    }
}
