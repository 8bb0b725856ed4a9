//! [`SalvageTable`]: reads what is still readable of a damaged table.
//!
//! Each block verifies by itself: its checksum is bound to the file's number and the block's
//! offset. Therefore every good block is usable, whatever happened to the others, even without the
//! index:
//!
//! 1. With a footer and an index that verify, the index locates the data blocks.
//! 2. Otherwise the file is searched from front to back. An uncompressed block states its own
//!    length; for a compressed one, each length is tried. The filter, properties and index blocks
//!    follow the data blocks without gaps and are found the same way.
//!
//! A hole is a range where data blocks were and cannot be read. By key, what was in it lies between
//! the last entry before and the first entry after it. Ordinary reads do not use this module, and
//! it caches nothing.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::extras::Extras;
use super::fetch::{Fetcher, ReadHint};
use super::footer::{BlockHandle, FOOTER_LEN, Footer, PAGE, TRAILER_LEN};
use super::index::Index;
use super::origin::Origin;
use super::properties::{LONGEST_BLOCK, Properties};
use super::{Ingested, TableContext, TableMeta};
use crate::block::{BlockCursor, BlockRef, Frame};
use crate::error::{Error, IoContext, Result};
use crate::format::checksum::BoundCrc;
use crate::format::coding::{Decoder, get_u32};
use crate::format::filename::FileKind;
use crate::format::header::{FILE_HEADER_LEN, FileHeader, Magic, features};
use crate::format::key::{SeqNo, ValueKind, compare_entries};
use crate::format::{Decoded, Malformed};
use crate::iter::{InternalCursor, MergeCursor, Stamped};

/// Bytes of the file that the search buffers at once, unless a block is longer.
const WINDOW_LEN: usize = 1 << 20;
/// Longest compressed block that the search looks for, before compression: right after a good
/// block, and elsewhere, unless the table has larger ones. The search tries each length.
const MAX_RAW_LEN: u64 = 4 << 20;
const MAX_RAW_LEN_ELSEWHERE: u64 = 64 << 10;
/// How many times the search may go over the bytes of a file for compressed blocks. Two suffice,
/// unless the damage looks like small numbers.
const TIMES_SEARCHED: u64 = 64;

/// A part of a table that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hole {
    /// File offset and length; 0 bytes if the file ends too early.
    pub offset: u64,
    pub bytes: u64,
    /// The lost keys lie between these two, both included. `None`: unknown.
    pub from: Option<Vec<u8>>,
    pub to: Option<Vec<u8>>,
    /// The broken rule.
    pub rule: String,
}

/// A table that may be partly unreadable.
pub struct SalvageTable {
    fetcher: Fetcher,
    number: u64,
    /// The table's properties, if they verify.
    properties: Option<Properties>,
    /// What the footer says that readers must understand, if it verifies.
    footer_features: Option<u32>,
    origin: Origin,
    /// The data blocks, from the index or from the search.
    blocks: Vec<BlockHandle>,
    /// The index. Without one, blocks may be missing between those found.
    index: Option<Index>,
    /// Smallest and largest key of the table, if known.
    bounds: Option<(Vec<u8>, Vec<u8>)>,
    /// Holes that all cursors together have passed.
    holes: AtomicU64,
}

impl SalvageTable {
    /// Finds the blocks of table `number`; `known` is what the manifest says of it, if anything
    /// does.
    ///
    /// Fails if the file does not exist, cannot be read, or is of a later version of the format.
    pub fn open(context: &Arc<TableContext>, number: u64, known: Option<&TableMeta>) -> Result<SalvageTable> {
        let path = FileKind::Table(number).path(context.dir());
        let size = context.fs().open(&path).and_then(|file| file.len()).during("open", &path)?;
        let ingested = match known {
            Some(meta) => meta.ingested,
            None => Ingested::found(context, number)?,
        };
        let bounds = known.map(|meta| (meta.smallest.to_vec(), meta.largest.to_vec()));
        let fetcher = Fetcher::new(Arc::clone(context), number, size, ingested);
        let mut table = SalvageTable {
            fetcher,
            number,
            properties: None,
            footer_features: None,
            origin: Origin::default(),
            blocks: Vec::new(),
            index: None,
            bounds,
            holes: AtomicU64::new(0),
        };
        table.refuse_later_version(size, &path)?;
        if let Some(footer) = none_if_damaged(table.footer())? {
            table.footer_features = Some(footer.features);
            table.read_properties(footer.properties)?;
            if let Some(index) = none_if_damaged(table.fetcher.meta_block(footer.index))?
                && let Ok(index) = Index::decode(&index, None)
            {
                table.blocks = (0..index.len()).map(|i| index.handle(i)).collect();
                table.index = Some(index);
            }
        }
        if table.index.is_none() {
            Search::new(&table.fetcher).run(&mut table.blocks)?;
            table.search_properties()?;
        }
        if let (None, Some(properties)) = (&table.bounds, &table.properties) {
            table.bounds = Some((properties.smallest.to_vec(), properties.largest.to_vec()));
        }
        Ok(table)
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Holes that all cursors together have passed so far.
    pub fn holes(&self) -> u64 {
        self.holes.load(Ordering::Relaxed)
    }

    /// File length in bytes.
    pub fn size(&self) -> u64 {
        self.fetcher.size
    }

    /// The table's properties, if they verify.
    pub fn properties(&self) -> Option<&Properties> {
        self.properties.as_ref()
    }

    /// Whether the table is one of range deletes; `None` if neither the footer nor the properties
    /// verify.
    pub fn holds_ranges(&self) -> Option<bool> {
        let stated = self.properties.as_ref().map(|properties| properties.ranges > 0);
        self.footer_features.map(|features| features & features::RANGE_DELETE != 0).or(stated)
    }

    /// The table's stated origin; empty if it does not verify.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Smallest and largest key of the table, if known.
    pub fn bounds(&self) -> Option<(&[u8], &[u8])> {
        self.bounds.as_ref().map(|(smallest, largest)| (smallest.as_slice(), largest.as_slice()))
    }

    /// A file of a later version must not pass for a damaged one.
    fn refuse_later_version(&self, size: u64, path: &Path) -> Result<()> {
        if size < FILE_HEADER_LEN as u64 {
            return Ok(());
        }
        let header = self.fetcher.bytes(0, FILE_HEADER_LEN as u64)?;
        match FileHeader::decode(&header, Magic::Table, self.fetcher.identity, path) {
            Err(error @ Error::Unsupported { .. }) => Err(error),
            _ => Ok(()),
        }
    }

    fn footer(&self) -> Result<Footer> {
        let offset = self.fetcher.size.saturating_sub(FOOTER_LEN as u64);
        let bytes = self.fetcher.bytes(offset, (FOOTER_LEN as u64).min(self.fetcher.size))?;
        Footer::decode(&bytes, self.fetcher.identity, offset, self.fetcher.path())
    }

    fn read_properties(&mut self, handle: BlockHandle) -> Result<()> {
        if let Some(bytes) = none_if_damaged(self.fetcher.meta_block(handle))? {
            let identity = self.fetcher.identity;
            self.properties = Properties::decode(&bytes).ok().filter(|properties| properties.number == identity);
            if self.properties.is_some() {
                self.origin = Origin::decode(&bytes).unwrap_or_default();
            }
        }
        Ok(())
    }

    /// Looks for the properties after the last data block found: filters and extra blocks come
    /// first.
    fn search_properties(&mut self) -> Result<()> {
        let mut offset = self.blocks.last().and_then(|last| last.end()).unwrap_or(FILE_HEADER_LEN as u64);
        for _ in 0..Extras::MAX + 2 {
            let found = Search::new(&self.fetcher).block_of_any_length(offset, u64::MAX, &[0])?;
            let Some(handle) = found else { break };
            self.read_properties(handle)?;
            if self.properties.is_some() {
                break;
            }
            offset = handle.offset + handle.stored_len();
        }
        Ok(())
    }

    /// The block at position `i` with its entries in order, or the rule that it breaks.
    fn block(&self, i: usize) -> Result<Result<BlockRef, String>> {
        let handle = self.blocks[i];
        // Compression has no lower bound: Zstandard makes 20 bytes of 100 KB of zeros.
        let stated = self.properties.as_ref().map(|properties| properties.largest_block);
        let properties = Properties {
            largest_block: stated.unwrap_or(u32::try_from(LONGEST_BLOCK).unwrap_or(u32::MAX)),
            compression: 1,
            ..Properties::default()
        };
        match self.fetcher.data_block(handle, &properties, ReadHint::None, Frame::new) {
            Ok((_, block)) => Ok(match check_order(&block) {
                Ok(()) => Ok(block),
                Err(Malformed(rule)) => Err(rule.to_owned()),
            }),
            Err(Error::Corruption { rule, .. }) => Ok(Err(rule)),
            Err(error) => Err(error),
        }
    }
}

/// `None` for damage; every other error ends the salvage.
fn none_if_damaged<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Corruption { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn check_order(block: &BlockRef) -> Decoded<()> {
    let mut cursor = BlockCursor::new(block.clone());
    let mut last: Option<(Vec<u8>, SeqNo)> = None;
    cursor.seek_to_first()?;
    while cursor.valid() {
        let here = (cursor.key(), cursor.seqno());
        if let Some((key, seqno)) = &last
            && compare_entries((key, *seqno), here).is_ge()
        {
            return Err(Malformed("entries are out of order"));
        }
        last = Some((here.0.to_vec(), here.1));
        cursor.next()?;
    }
    Ok(())
}

/// Searches for blocks without an index.
struct Search<'a> {
    fetcher: &'a Fetcher,
    /// Bytes of the file from `start` on.
    start: u64,
    window: Vec<u8>,
    /// Bytes that may still be gone through to find the ends of blocks: damaged bytes may look like
    /// the beginning of a compressed block again and again.
    budget: u64,
}

impl<'a> Search<'a> {
    fn new(fetcher: &'a Fetcher) -> Search<'a> {
        let budget = fetcher.size.saturating_mul(TIMES_SEARCHED);
        Search { fetcher, start: 0, window: Vec::new(), budget }
    }

    /// Collects the data blocks.
    fn run(&mut self, blocks: &mut Vec<BlockHandle>) -> Result<()> {
        let (mut offset, mut largest) = (FILE_HEADER_LEN as u64, 0);
        while offset < self.fetcher.size {
            let is_next = blocks.last().is_none_or(|last| last.end() == Some(offset));
            let longest = if is_next { MAX_RAW_LEN } else { largest.max(MAX_RAW_LEN_ELSEWHERE) };
            // Padding zeros before a block do not parse as one.
            offset = match self.data_block(offset, longest)? {
                Some((handle, raw_len)) => {
                    blocks.push(handle);
                    largest = largest.max(raw_len);
                    handle.offset + handle.stored_len()
                }
                None => offset + 1,
            };
        }
        Ok(())
    }

    /// The data block at `offset`, if there is one, and its length before compression; at most
    /// `longest` if it is compressed.
    fn data_block(&mut self, offset: u64, longest: u64) -> Result<Option<(BlockHandle, u64)>> {
        if let Some(len) = self.uncompressed_len(offset)?
            && let Ok(len) = u32::try_from(len)
        {
            let handle = BlockHandle { offset, len };
            if none_if_damaged(self.fetcher.meta_block(handle))?.is_some() {
                return Ok(Some((handle, len.into())));
            }
        }
        // A compressed block begins with its raw length, and is shorter than that.
        let raw_len = self.bytes(offset, 4)?.and_then(|bytes| Decoder::new(bytes).u32().ok()).map(u64::from);
        match raw_len {
            Some(raw_len) if (1..=longest).contains(&raw_len) => {
                Ok(self.block_of_any_length(offset, raw_len, &[1, 2])?.map(|handle| (handle, raw_len)))
            }
            _ => Ok(None),
        }
    }

    /// The length that the data block at `offset` states, if the bytes there can be an uncompressed
    /// one.
    fn uncompressed_len(&mut self, offset: u64) -> Result<Option<u64>> {
        let Some(header) = self.bytes(offset, 16)? else { return Ok(None) };
        let mut fields = Decoder::new(header);
        let decoded = (|| Ok::<_, Malformed>((fields.u8()?, fields.u8()?, fields.u16()?, fields.u32()?)))();
        let Ok((flags @ 0..=1, 0, prefix_len, n @ 1..)) = decoded else { return Ok(None) };
        let (n, wide) = (u64::from(n), flags == 1);
        let width = if wide { 4 } else { 2 };
        let first = 16 + n + n * width + 4 * n + u64::from(prefix_len);
        if self.offset_at(offset + 16 + n, wide)? != Some(first) {
            return Ok(None);
        }
        let Some(last) = self.offset_at(offset + 16 + n + (n - 1) * width, wide)? else { return Ok(None) };
        // Three varints of at most ten bytes each.
        let left = self.fetcher.size.saturating_sub(offset.saturating_add(last));
        let Some(front) = self.bytes(offset.saturating_add(last), left.min(30))? else { return Ok(None) };
        let mut fields = Decoder::new(front);
        let lengths = (|| Ok::<_, Malformed>((fields.varint()?, fields.varint()?, fields.varint()?)))();
        let Ok((rest_len, value_len, _)) = lengths else { return Ok(None) };
        let front_len = (front.len() - fields.remaining()) as u64;
        let end = rest_len.checked_add(value_len).and_then(|len| len.checked_add(last + front_len));
        Ok(end.filter(|len| offset.checked_add(*len).is_some_and(|end| end < self.fetcher.size)))
    }

    /// Reads the entry offset stored at `at`.
    fn offset_at(&mut self, at: u64, wide: bool) -> Result<Option<u64>> {
        let bytes = self.bytes(at, if wide { 4 } else { 2 })?;
        Ok(bytes.and_then(|bytes| {
            let mut fields = Decoder::new(bytes);
            if wide { fields.u32().ok().map(u64::from) } else { fields.u16().ok().map(u64::from) }
        }))
    }

    /// The block at `offset`, of any length up to `longest`, whose trailer has one of the
    /// compressions `codes`.
    fn block_of_any_length(&mut self, offset: u64, longest: u64, codes: &[u8]) -> Result<Option<BlockHandle>> {
        let max_len = self.fetcher.size.saturating_sub(offset).saturating_sub(TRAILER_LEN as u64).min(longest);
        let max_len = max_len.min(self.budget);
        let mut crc = BoundCrc::new(self.fetcher.identity, offset);
        let mut len = 0;
        while len <= max_len {
            // The next byte belongs to the block, or is the code in its trailer.
            let Some(&[code, stated @ ..]) = self.bytes(offset + len, 5)?.and_then(|bytes| bytes.first_chunk::<5>())
            else {
                return Ok(None);
            };
            crc.update(&[code]);
            if codes.contains(&code) && crc.value() == get_u32(&stated) {
                return Ok(u32::try_from(len).ok().map(|len| BlockHandle { offset, len }));
            }
            len += 1;
            self.budget = self.budget.saturating_sub(1);
        }
        Ok(None)
    }

    /// `len` bytes at `offset`, if the file has that many.
    fn bytes(&mut self, offset: u64, len: u64) -> Result<Option<&[u8]>> {
        let size = self.fetcher.size;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Ok(None);
        }
        let is_buffered = offset >= self.start && offset + len <= self.start + self.window.len() as u64;
        if !is_buffered {
            self.window = self.fetcher.bytes(offset, (WINDOW_LEN as u64).max(len).min(size - offset))?;
            self.start = offset;
        }
        let skip = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        Ok(self.window.get(skip..).and_then(|rest| rest.get(..len)))
    }
}

/// A cursor over the tables of a run, which do not overlap. It skips all damage and goes forward
/// only.
pub struct SalvageCursor {
    tables: Vec<Arc<SalvageTable>>,
    /// The current table, and the position of the next block in it.
    table: usize,
    next_block: usize,
    block: BlockCursor,
    /// The last entry passed in this table.
    last: Option<(Vec<u8>, SeqNo)>,
    /// The hole before the next good block.
    open_hole: Option<Hole>,
    /// The target of the last seek.
    sought: Option<Vec<u8>>,
    holes: Vec<(u64, Hole)>,
}

impl SalvageCursor {
    /// A cursor over `tables`, in key order.
    pub fn new(tables: Vec<Arc<SalvageTable>>) -> SalvageCursor {
        SalvageCursor {
            tables,
            table: 0,
            next_block: 0,
            block: BlockCursor::default(),
            last: None,
            open_hole: None,
            sought: None,
            holes: Vec::new(),
        }
    }

    /// Number of the table that holds the current entry.
    pub fn table(&self) -> u64 {
        self.tables.get(self.table).map_or(0, |table| table.number)
    }

    /// Whether the current entry is a range delete, as far as its table can tell.
    pub fn is_range(&self) -> Option<bool> {
        self.tables.get(self.table).and_then(|table| table.holds_ranges())
    }

    /// The holes passed, each with the number of its table.
    pub fn holes(&self) -> &[(u64, Hole)] {
        &self.holes
    }

    /// Enters the next good block, of this table or of a later one. The cursor is invalid if there
    /// is none.
    fn enter_next(&mut self) -> Result<()> {
        self.block.invalidate();
        while let Some(table) = self.tables.get(self.table).cloned() {
            while self.next_block < table.blocks.len() {
                let handle = table.blocks[self.next_block];
                self.note_gap(&table, handle.offset)?;
                self.next_block += 1;
                let broken = match table.block(self.next_block - 1)? {
                    Ok(block) => match self.enter(block) {
                        Ok(()) => return Ok(()),
                        Err(Malformed(rule)) => rule.to_owned(),
                    },
                    Err(rule) => rule,
                };
                self.block.invalidate();
                self.widen_hole(&table, handle.offset, handle.stored_len(), &broken);
            }
            self.leave_table(&table);
        }
        Ok(())
    }

    /// Enters a block, if it comes after the previous one.
    fn enter(&mut self, block: BlockRef) -> Decoded<()> {
        self.block.enter(block.into());
        self.block.seek_to_first()?;
        let here = (self.block.key(), self.block.seqno());
        if let Some((key, seqno)) = &self.last
            && compare_entries((key, *seqno), here).is_ge()
        {
            return Err(Malformed("a data block begins before the end of the previous one"));
        }
        if let Some(mut hole) = self.open_hole.take() {
            hole.to = Some(here.0.to_vec());
            let table = &self.tables[self.table];
            table.holes.fetch_add(1, Ordering::Relaxed);
            self.holes.push((table.number, hole));
        }
        Ok(())
    }

    /// Notes what is missing between the previous block and `offset`, where the next one was found.
    fn note_gap(&mut self, table: &SalvageTable, offset: u64) -> Result<()> {
        let before = self.next_block.checked_sub(1).map(|before| table.blocks[before]);
        let end = before.map_or(FILE_HEADER_LEN as u64, |handle| handle.offset + handle.stored_len());
        if table.index.is_some() || offset <= end {
            return Ok(());
        }
        let is_padding = offset == end.next_multiple_of(PAGE)
            && table.fetcher.bytes(end, offset - end)?.iter().all(|&byte| byte == 0);
        if !is_padding {
            self.widen_hole(table, end, offset - end, "no block verifies here");
        }
        Ok(())
    }

    fn widen_hole(&mut self, table: &SalvageTable, offset: u64, bytes: u64, rule: &str) {
        let from = match &self.last {
            Some((key, _)) => Some(key.clone()),
            None => self.sought.clone().max(table.bounds().map(|(smallest, _)| smallest.to_vec())),
        };
        let new = || Hole { offset, bytes: 0, from, to: None, rule: rule.to_owned() };
        self.open_hole.get_or_insert_with(new).bytes += bytes;
    }

    /// Moves on to the next table, at the end of this one.
    fn leave_table(&mut self, table: &SalvageTable) {
        let largest = table.bounds().map(|(_, largest)| largest.to_vec());
        let ends_early = match (&self.last, &largest) {
            _ if table.index.is_some() => false,
            (Some((last, _)), Some(largest)) => last < largest,
            _ => true,
        };
        if ends_early && self.open_hole.is_none() {
            let end = table.blocks.last().and_then(|last| last.end()).unwrap_or(FILE_HEADER_LEN as u64);
            self.widen_hole(table, end, table.size().saturating_sub(end), "no block verifies from here on");
        }
        if let Some(mut hole) = self.open_hole.take() {
            hole.to = largest;
            table.holes.fetch_add(1, Ordering::Relaxed);
            self.holes.push((table.number, hole));
        }
        self.table += 1;
        self.next_block = 0;
        self.last = None;
    }
}

/// The error of an unsupported move. The cursor stays where it is.
fn forward_only() -> Result<()> {
    Err(Error::invalid("a damaged table can only be read forward"))
}

impl InternalCursor for SalvageCursor {
    fn valid(&self) -> bool {
        self.block.valid()
    }

    fn seek_to_last(&mut self) -> Result<()> {
        forward_only()
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        (self.next_block, self.last, self.open_hole, self.sought) = (0, None, None, Some(key.to_vec()));
        self.holes.clear();
        let ends_before = |table: &Arc<SalvageTable>| table.bounds().is_some_and(|(_, largest)| largest < key);
        self.table = self.tables.iter().position(|table| !ends_before(table)).unwrap_or(self.tables.len());
        if let Some(index) = self.tables.get(self.table).and_then(|table| table.index.as_ref()) {
            self.next_block = index.find(key, |_| ());
        }
        self.enter_next()?;
        while self.valid() && compare_entries((self.key(), self.seqno()), (key, seqno)).is_lt() {
            self.next()?;
        }
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        let number = self.table();
        let last = self.last.get_or_insert_default();
        last.0.clear();
        last.0.extend_from_slice(self.block.key());
        last.1 = self.block.seqno();
        // Cannot fail: all entries of the block were read before the cursor entered it.
        let stepped = self.block.next();
        stepped.map_err(|Malformed(rule)| {
            let path = self.tables.get(self.table).map(|table| table.fetcher.path().to_owned()).unwrap_or_default();
            Error::corruption(&path, 0, format_args!("in table {number}: {rule}"))
        })?;
        if self.block.valid() { Ok(()) } else { self.enter_next() }
    }

    fn prev(&mut self) -> Result<()> {
        forward_only()
    }

    fn key(&self) -> &[u8] {
        self.block.key()
    }

    #[inline(always)]
    fn stamp(&self) -> (SeqNo, ValueKind) {
        (self.block.seqno(), self.block.kind())
    }

    fn value(&self) -> &[u8] {
        self.block.value()
    }
}

impl MergeCursor for SalvageCursor {
    fn seek_to_first(&mut self) -> Result<()> {
        (self.table, self.next_block, self.last, self.open_hole, self.sought) = (0, 0, None, None, None);
        self.holes.clear();
        self.enter_next()
    }
}
