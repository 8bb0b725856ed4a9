//! [`Fetcher`]: the only way by which bytes of a table enter the process. It checks every length
//! against the file before it allocates, verifies every block, and counts the data blocks.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use super::footer::{BlockHandle, TRAILER_LEN};
use super::mapped::Mapped;
use super::properties::Properties;
use super::{Ingested, TableContext};
use crate::block::{BlockRef, Frame, set_seqno};
use crate::cache::Place;
use crate::compress::Compression;
use crate::compress::{decompress_into, from_code, highest_code, raw_len};
use crate::error::{Error, Result};
use crate::files::StoredFile;
use crate::format::Decoded;
use crate::format::checksum::{FileChecksum, bound_crc};
use crate::format::coding::get_u32;
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::memory::budget::{MemoryCharge, MemoryUse};
use crate::memory::pool::TableArray;
use crate::report::stats::ReadCounters;

/// The rule that a file breaks which is shorter than its table.
pub(super) const SHORT: &str = "the file ends inside a block";

/// Reads from one table's file.
pub(super) struct Fetcher {
    pub(super) context: Arc<TableContext>,
    pub(super) file: StoredFile,
    /// The number that checksums are bound to.
    pub(super) identity: u64,
    /// Sequence number of all entries, if the file has none.
    seqno: Option<SeqNo>,
    /// File length in bytes.
    pub(super) size: u64,
    /// Shared with owners that keep the counts when the table is gone.
    pub(super) counters: Arc<ReadCounters>,
}

impl Fetcher {
    pub(super) fn new(context: Arc<TableContext>, number: u64, size: u64, ingested: Option<Ingested>) -> Fetcher {
        let (file, counters) = (StoredFile::new(&context.files, FileKind::Table, number), Arc::default());
        let (identity, seqno) = (Ingested::identity_of(ingested, number), ingested.map(|ingested| ingested.seqno));
        Fetcher { context, file, identity, seqno, size, counters }
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(super) fn corrupt(&self, offset: u64, rule: impl fmt::Display) -> Error {
        Error::corruption(self.path(), offset, rule)
    }

    /// Reads `len` bytes at `offset`, unverified.
    pub(super) fn bytes(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.checked_len(offset, len)?];
        self.file.fill(&mut bytes, offset, None, SHORT)?;
        Ok(bytes)
    }

    /// Returns `len` if the file has that many bytes at `offset`.
    fn checked_len(&self, offset: u64, len: u64) -> Result<usize> {
        match (offset.checked_add(len), usize::try_from(len)) {
            (Some(end), Ok(len)) if end <= self.size => Ok(len),
            _ => Err(self.corrupt(offset, "a block reaches beyond the end of the file")),
        }
    }

    /// Reads and verifies a filter, properties or index block.
    pub(super) fn meta_block(&self, handle: BlockHandle) -> Result<MetaBlock> {
        let len = self.checked_len(handle.offset, handle.stored_len())?;
        let fill = |bytes: &mut [u8]| self.file.fill(bytes, handle.offset, None, SHORT);
        let (stored, filled) = TableArray::filled(&self.context.memory, len, fill);
        filled?;
        match self.verified(handle, &stored)? {
            (Compression::None, _) => Ok(MetaBlock(stored)),
            _ => Err(self.corrupt(handle.offset, "a filter, properties or index block is compressed")),
        }
    }

    /// Reads, verifies and decompresses a data block, from the read-ahead buffer if it is there.
    /// Returns its compression too. `frame` makes a frame of a given length; an uncompressed block
    /// is read into it and stays there.
    pub(super) fn data_block(
        &self,
        handle: BlockHandle,
        properties: &Properties,
        hint: ReadHint<'_>,
        frame: impl FnOnce(usize) -> Frame,
    ) -> Result<(Compression, BlockRef)> {
        let longest = properties.largest_block;
        let malformed = |malformed| self.corrupt(handle.offset, malformed);
        let (ahead, before_wait) = match hint {
            ReadHint::None => (None, None),
            ReadHint::Scan(ahead) => (Some(ahead), None),
            ReadHint::Batch(before_wait) => (None, Some(before_wait)),
        };
        if let Some(stored) = ahead.and_then(|ahead| ahead.block(self, handle)) {
            let (compression, packed) = self.verified(handle, stored)?;
            let block = self.block_of(compression, packed, longest, frame).map_err(malformed)?;
            return Ok((compression, block));
        }
        let stored_len = self.checked_len(handle.offset, handle.stored_len())?;
        if properties.compression != u64::from(Compression::None.code()) {
            // The frame's length is known only when the stored form has been read.
            let mut stored = Frame::new(stored_len);
            let bytes = &mut stored.bytes_mut()[..stored_len];
            self.file.fill_block(bytes, handle.offset, before_wait, SHORT)?;
            let (compression, packed) = self.verified(handle, bytes)?;
            let block = self.block_of(compression, packed, longest, frame).map_err(malformed);
            stored.spare();
            return Ok((compression, block?));
        }
        let mut stored = frame(stored_len);
        let bytes = &mut stored.bytes_mut()[..stored_len];
        self.file.fill_block(bytes, handle.offset, before_wait, SHORT)?;
        let (compression, block) = match self.verified(handle, bytes)? {
            (Compression::None, block) => {
                let len = block.len();
                (Compression::None, self.numbered(stored, len).and_then(|stored| stored.into_block(len)))
            }
            (compression, packed) => (compression, self.block_of(compression, packed, longest, Frame::new)),
        };
        Ok((compression, block.map_err(malformed)?))
    }

    /// Reads and verifies a data block. Returns its compression, its stored form, and the block as
    /// [`Fetcher::data_block`] does. Adds the stored bytes to `checksum`.
    pub(super) fn data_block_to_copy(
        &self,
        handle: BlockHandle,
        longest: u32,
        ahead: &mut ReadAhead,
        checksum: &mut FileChecksum,
    ) -> Result<(Compression, Vec<u8>, BlockRef)> {
        let stored = self.stored(handle, Some(ahead))?;
        checksum.update(&stored);
        let (compression, packed) = self.verified(handle, &stored)?;
        let block = self.block_of(compression, packed, longest, Frame::new);
        let block = block.map_err(|malformed| self.corrupt(handle.offset, malformed))?;
        Ok((compression, without_trailer(stored), block))
    }

    /// Reads a block, verifies it and adds its stored bytes to `checksum`.
    pub(super) fn check_block(
        &self,
        handle: BlockHandle,
        ahead: &mut ReadAhead,
        checksum: &mut FileChecksum,
    ) -> Result<()> {
        let stored = self.stored(handle, Some(ahead))?;
        checksum.update(&stored);
        self.verified(handle, &stored).map(drop)
    }

    /// A block with its trailer, unverified; from the read-ahead buffer if it is there.
    fn stored<'a>(&self, handle: BlockHandle, ahead: Option<&'a mut ReadAhead>) -> Result<Cow<'a, [u8]>> {
        match ahead.and_then(|ahead| ahead.block(self, handle)) {
            Some(stored) => Ok(Cow::Borrowed(stored)),
            None => Ok(Cow::Owned(self.bytes(handle.offset, handle.stored_len())?)),
        }
    }

    /// Decodes `packed` into a new frame. A compressed block may have at most `longest` bytes.
    fn block_of(
        &self,
        compression: Compression,
        packed: &[u8],
        longest: u32,
        frame: impl FnOnce(usize) -> Frame,
    ) -> Decoded<BlockRef> {
        let len = match compression {
            Compression::None => packed.len(),
            _ => raw_len(compression, packed, longest)?,
        };
        let mut raw = frame(len);
        match (compression, &mut raw.bytes_mut()[..len]) {
            (Compression::None, raw) => raw.copy_from_slice(packed),
            (compression, raw) => decompress_into(compression, packed, raw)?,
        }
        self.numbered(raw, len)?.into_block(len)
    }

    /// Gives the entries of the block in the first `len` bytes their sequence number, if they have
    /// none. Readers then need not know where the table comes from.
    #[inline]
    fn numbered(&self, mut frame: Frame, len: usize) -> Decoded<Frame> {
        if let Some(seqno) = self.seqno {
            set_seqno(&mut frame.bytes_mut()[..len], seqno)?;
        }
        Ok(frame)
    }

    /// Verifies `stored`, a block with its trailer. Returns the block and its compression.
    fn verified<'a>(&self, handle: BlockHandle, stored: &'a [u8]) -> Result<(Compression, &'a [u8])> {
        let split = stored.split_last_chunk::<4>();
        let Some((checked @ [block @ .., compression], crc)) = split else {
            return Err(self.corrupt(handle.offset, "a block is shorter than its trailer"));
        };
        if get_u32(crc) != bound_crc(self.identity, handle.offset, checked) {
            return Err(self.corrupt(handle.offset, "the checksum of a block does not match"));
        }
        match from_code(*compression) {
            Some(compression) => Ok((compression, block)),
            None => Err(Error::Unsupported {
                file: self.path().to_owned(),
                what: "block compression",
                found: (*compression).into(),
                known: highest_code().into(),
            }),
        }
    }
}

/// A filter, properties or index block.
pub(super) struct MetaBlock(TableArray<u8>);

impl Deref for MetaBlock {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0[..self.0.len().saturating_sub(TRAILER_LEN)]
    }
}

fn without_trailer(stored: Cow<'_, [u8]>) -> Vec<u8> {
    let mut bytes = stored.into_owned();
    bytes.truncate(bytes.len().saturating_sub(TRAILER_LEN));
    bytes
}

/// What will be read after a block.
pub(super) enum ReadHint<'a> {
    /// Unknown.
    None,
    /// The next blocks of a scan.
    Scan(&'a mut ReadAhead),
    /// Other blocks. The closure prefetches them when the read would wait for the device.
    Batch(&'a mut dyn FnMut()),
}

/// What a scan has read of a table beyond the current block.
///
/// A cursor that passes enough blocks in a row, in either direction, is a long scan: it reads
/// ahead, each time twice as much. Short scans read only what they use; long ones need one system
/// call per [`ReadAhead::MOST`] bytes. After its first wait for the device, a long scan also
/// prefetches the next window with each read, so that the device works while the cursor does.
pub(super) struct ReadAhead {
    /// Offset at which the data blocks end.
    limit: u64,
    /// Number of blocks in a row before read-ahead starts.
    patience: u32,
    /// Position of the block that the scan reached last.
    last: Option<usize>,
    forward: bool,
    /// Blocks in a row before the current one.
    run: u32,
    /// Bytes of the next read, and the least and the most of them.
    window: u64,
    least: u64,
    most: u64,
    /// File offset of the buffer.
    start: u64,
    /// Valid bytes of the buffer. The rest of it is kept for the next read.
    len: usize,
    buffer: Vec<u8>,
    /// Range that the system was last asked to prefetch.
    prefetched: Range<u64>,
    /// Whether the scan has waited for the device.
    has_waited: bool,
    /// Blocks of a long scan for which the cache is not asked for free space.
    unasked: u32,
    charged_as: MemoryUse,
    charge: Option<ScanCharge>,
}

/// What a scan is charged.
struct ScanCharge {
    charge: MemoryCharge,
    /// Bytes of the longest block that the cache did not hold; the others are those of the buffer.
    held: usize,
}

impl ReadAhead {
    const LEAST: u64 = 32 << 10;
    const MOST: u64 = 256 << 10;
    /// Window for a cursor over a whole table, or over a part of a compaction.
    const WHOLE_TABLE: u64 = 256 << 10;
    /// Number of blocks in a row that make a scan long.
    const PATIENCE: u32 = 2;
    /// [`ReadAhead::PATIENCE`] of a scan that fills the cache: its single reads may take the place
    /// of other blocks there, and what it reads ahead does not.
    const PATIENCE_WITH_CACHE: u32 = 16;
    /// After a block that the cache had no free space for, a long scan asks for none for so many
    /// blocks: to ask takes a lock, 3 % of the time of a scan.
    const UNASKED: u32 = 63;

    pub(super) fn new(limit: u64, fill_cache: bool) -> ReadAhead {
        let patience = if fill_cache { ReadAhead::PATIENCE_WITH_CACHE } else { ReadAhead::PATIENCE };
        ReadAhead {
            limit,
            patience,
            last: None,
            forward: true,
            run: 0,
            window: ReadAhead::LEAST,
            least: ReadAhead::LEAST,
            most: ReadAhead::MOST,
            start: 0,
            len: 0,
            buffer: Vec::new(),
            prefetched: 0..0,
            has_waited: false,
            unasked: 0,
            charged_as: MemoryUse::Scans,
            charge: None,
        }
    }

    /// For a job that reads a whole table: reads ahead from the first block on.
    pub(super) fn for_whole_table(limit: u64) -> ReadAhead {
        let (window, charged_as) = (ReadAhead::WHOLE_TABLE, MemoryUse::Jobs);
        ReadAhead { patience: 0, window, least: window, most: window, charged_as, ..ReadAhead::new(limit, false) }
    }

    /// Notes that the scan has reached the block at position `i`.
    pub(super) fn step_to(&mut self, i: usize) {
        let last = self.last.replace(i);
        let is_neighbour = last.is_some_and(|last| last.abs_diff(i) == 1);
        let forward = last < Some(i);
        if is_neighbour && forward == self.forward {
            self.run = self.run.saturating_add(1);
        } else {
            (self.run, self.forward) = (u32::from(is_neighbour), forward);
            self.window = self.least;
            self.prefetched = 0..0;
        }
    }

    /// Whether the scan is long enough for read-ahead.
    pub(super) fn is_long(&self) -> bool {
        self.run >= self.patience
    }

    /// What the next block may take the place of in the cache; `None` if it is not to be kept. A
    /// long scan would evict blocks that other reads need.
    pub(super) fn place(&mut self) -> Option<Place> {
        if !self.is_long() {
            return Some(Place::Earned);
        }
        match self.unasked.checked_sub(1) {
            None => Some(Place::Free),
            Some(fewer) => {
                self.unasked = fewer;
                None
            }
        }
    }

    /// The next window of a long scan, which begins with the block, or ends with it if the scan
    /// goes backward. Doubles the next window.
    fn next_window(&mut self, handle: BlockHandle) -> Option<Range<u64>> {
        let end = handle.end()?;
        let window = match self.forward {
            true => handle.offset..handle.offset.saturating_add(self.window).min(self.limit),
            false => end.saturating_sub(self.window)..end,
        };
        self.window = (self.window * 2).min(self.most);
        // None if a block is longer than the window.
        (window.start <= handle.offset && end <= window.end).then_some(window)
    }

    /// The window after `window` in the scan's direction, without what `window` covers.
    fn following(&self, window: &Range<u64>) -> Range<u64> {
        match self.forward {
            true => window.end..window.end.saturating_add(self.window).min(self.limit).max(window.end),
            false => window.start.saturating_sub(self.window)..window.start,
        }
    }

    /// Prefetches the next window of a long scan over a mapped file, which reads by touching pages.
    pub(super) fn prefetch_mapped(&mut self, mapped: &Mapped, handle: BlockHandle) {
        if self.is_long()
            && !self.prefetched.contains(&handle.offset)
            && let Some(window) = self.next_window(handle)
        {
            mapped.will_need(window.start, window.end);
            self.prefetched = window;
        }
    }

    fn charge(&mut self, fetcher: &Fetcher) -> &mut ScanCharge {
        self.charge.get_or_insert_with(|| {
            let charge = MemoryCharge::new(fetcher.context.budget(), self.charged_as, 0);
            ScanCharge { charge, held: 0 }
        })
    }

    /// Notes that the scan holds a block of `len` bytes for which the cache had no place.
    pub(super) fn hold(&mut self, fetcher: &Fetcher, len: usize, place: Option<Place>) {
        if place == Some(Place::Free) {
            self.unasked = ReadAhead::UNASKED;
        }
        let buffered = self.buffer.len();
        let ScanCharge { charge, held } = self.charge(fetcher);
        if len > *held {
            *held = len;
            charge.resize(len + buffered);
        }
    }

    /// The stored form of a block, or `None` if the caller should read it alone: also if the memory
    /// budget has no room for a window.
    fn block(&mut self, fetcher: &Fetcher, handle: BlockHandle) -> Option<&[u8]> {
        if self.range(handle).is_none() && self.is_long() {
            let window = self.next_window(handle).filter(|window| window.end <= fetcher.size)?;
            self.len = 0;
            let len = usize::try_from(window.end - window.start).ok()?;
            if self.buffer.len() < len {
                let ScanCharge { charge, held } = self.charge(fetcher);
                if !charge.try_resize(len + *held) {
                    return None;
                }
                self.buffer.resize(len, 0);
            }
            let following = self.following(&window);
            let bytes = &mut self.buffer[..len];
            // A failure here may lie beyond the requested block: the caller then reads that block
            // alone.
            let (prefetched, has_waited) = (&mut self.prefetched, &mut self.has_waited);
            let mut prefetch = || {
                if !prefetched.contains(&u64::midpoint(window.start, window.end)) {
                    fetcher.file.will_need(window.clone());
                }
                fetcher.file.will_need(following.clone());
                *prefetched = following.clone();
            };
            if *has_waited {
                prefetch();
                fetcher.file.fill(bytes, window.start, None, SHORT).ok()?;
            } else {
                let mut before_wait = || {
                    *has_waited = true;
                    prefetch();
                };
                fetcher.file.fill(bytes, window.start, Some(&mut before_wait), SHORT).ok()?;
            }
            (self.start, self.len) = (window.start, len);
        }
        self.range(handle)
    }

    fn range(&self, handle: BlockHandle) -> Option<&[u8]> {
        let start = usize::try_from(handle.offset.checked_sub(self.start)?).ok()?;
        let len = usize::try_from(handle.stored_len()).ok()?;
        self.buffer[..self.len].get(start..)?.get(..len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_is_long_that_goes_on_in_one_direction() {
        let is_long = |blocks: &[usize]| {
            let mut ahead = ReadAhead::new(1 << 30, false);
            blocks.iter().for_each(|&i| ahead.step_to(i));
            ahead.is_long()
        };
        for long in [&[0, 1, 2][..], &[7, 8, 9, 10], &[9, 8, 7], &[2, 1, 0], &[3, 9, 4, 3, 2], &[1, 2, 3, 2, 1]] {
            assert!(is_long(long), "{long:?}");
        }
        for short in
            [&[0][..], &[0, 1], &[1, 0], &[5, 6, 5, 6, 5, 6, 5], &[5, 7, 9, 11], &[5, 5, 5, 5], &[1, 2, 3, 4, 3]]
        {
            assert!(!is_long(short), "{short:?}");
        }
    }

    #[test]
    fn windows_grow_in_the_direction_of_the_scan_and_hold_the_block() {
        let mut ahead = ReadAhead::new(100 << 10, false);
        let handle = |offset: u64| BlockHandle { offset, len: 4 << 10 };
        let mut window = |step: usize, offset: u64| {
            ahead.step_to(step);
            ahead.next_window(handle(offset))
        };
        let block = handle(0).stored_len();
        assert_eq!(window(1, 64), Some(64..64 + (32 << 10)));
        assert_eq!(window(2, 4 << 10), Some(4 << 10..68 << 10));
        assert_eq!(window(3, 40 << 10), Some(40 << 10..100 << 10));
        assert_eq!(window(4, 99 << 10), None);
        assert_eq!(window(3, 90 << 10), Some((58 << 10) + block..(90 << 10) + block));
        assert_eq!(window(2, 20 << 10), Some(0..(20 << 10) + block));
        ahead.window = 1 << 10;
        assert_eq!(ahead.next_window(handle(0)), None);
    }
}
