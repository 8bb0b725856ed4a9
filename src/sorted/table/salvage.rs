//! [`SalvageTable`]: what can still be read of a damaged table.
//!
//! A block verifies by itself: its checksum is bound to the number of the file and to the block's
//! offset. So every good block can be used, whatever has happened to the others, and also without
//! the index:
//!
//! 1. With a footer and an index that verify, the index says where the data blocks are.
//! 2. Otherwise they are searched for, from front to back. A block that is not compressed says
//!    itself how long it is; for a compressed one, each length is tried. The blocks behind the data
//!    blocks follow without gaps and are found like this, too: they are the filter, the properties
//!    and the index.
//!
//! A hole is a place where data blocks were and cannot be read. What was in it lies, by its key,
//! between the last entry before it and the first one behind it. Nothing here is for ordinary
//! reads, and nothing is cached.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::TableContext;
use super::fetch::{Fetcher, ReadHint};
use super::footer::{FOOTER_LEN, Footer, Handle, PAGE, TRAILER_LEN};
use super::index::Index;
use super::origin::Origin;
use super::properties::{LONGEST_BLOCK, Properties};
use crate::error::{Error, IoContext, Result};
use crate::format::checksum::BoundCrc;
use crate::format::coding::Decoder;
use crate::format::filename::FileKind;
use crate::format::header::{FILE_HEADER_LEN, FileHeader, Magic};
use crate::format::key::{SeqNo, ValueKind, compare_entries};
use crate::format::{Decoded, Malformed};
use crate::sorted::block::{BlockCursor, BlockRef, Frame};
use crate::sorted::iter::InternalCursor;

/// Bytes of the file that the search for blocks holds at once, unless a block is longer.
const WINDOW_LEN: usize = 1 << 20;
/// Longest compressed block that is looked for, before compression: right behind a good block, and
/// elsewhere, unless the table has larger ones. A search tries each length.
const LONGEST_SOUGHT: u64 = 4 << 20;
const LONGEST_SOUGHT_ELSEWHERE: u64 = 64 << 10;
/// How many times over the bytes of a file are gone through in search of compressed blocks. Two
/// suffice, unless the damage looks like small numbers.
const TIMES_SEARCHED: u64 = 64;

/// A part of a table that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    /// Where it begins in the file, and how long it is; 0 bytes if the file ends too early.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// The keys of what was in it lie between these two, both included. `None`: there is no
    /// telling.
    pub(crate) from: Option<Vec<u8>>,
    pub(crate) to: Option<Vec<u8>>,
    /// The rule that is broken there.
    pub(crate) rule: String,
}

/// A table of which not everything need be readable.
pub(crate) struct SalvageTable {
    fetcher: Fetcher,
    number: u64,
    /// What the table says of itself, if that verifies.
    properties: Option<Properties>,
    origin: Origin,
    /// The data blocks, as the index has them or as they were found.
    blocks: Vec<Handle>,
    /// The index; without one, blocks may be missing between those that were found.
    index: Option<Index>,
    /// Smallest and largest key of the table, if they are known.
    bounds: Option<(Vec<u8>, Vec<u8>)>,
    /// Holes that all cursors together have passed over.
    holes: AtomicU64,
}

impl SalvageTable {
    /// Finds the blocks of table `number`. `bounds` are its smallest and largest key, if the caller
    /// knows them.
    ///
    /// Fails if the file is not there, cannot be read, or is of a later version of the format.
    pub(crate) fn open(
        context: &Arc<TableContext>,
        number: u64,
        bounds: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Result<SalvageTable> {
        let path = FileKind::Table(number).path(context.dir());
        let size = context.fs().open(&path).and_then(|file| file.len()).during("open", &path)?;
        let fetcher = Fetcher::new(Arc::clone(context), number, size);
        let mut table = SalvageTable {
            fetcher,
            number,
            properties: None,
            origin: Origin::default(),
            blocks: Vec::new(),
            index: None,
            bounds,
            holes: AtomicU64::new(0),
        };
        table.refuse_later_version(size, &path)?;
        if let Some(footer) = ok_or_damaged(table.footer())? {
            table.read_properties(footer.properties)?;
            if let Some(index) = ok_or_damaged(table.fetcher.meta_block(footer.index))?
                && let Ok(index) = Index::decode(&index, None)
            {
                table.blocks = (0..index.len()).map(|i| index.handle(i)).collect();
                table.index = Some(index);
            }
        }
        if table.index.is_none() {
            Search::new(&table.fetcher, number).run(&mut table.blocks)?;
            table.search_properties()?;
        }
        if let (None, Some(properties)) = (&table.bounds, &table.properties) {
            table.bounds = Some((properties.smallest.to_vec(), properties.largest.to_vec()));
        }
        Ok(table)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Holes that all cursors together have passed over until now.
    pub(crate) fn holes(&self) -> u64 {
        self.holes.load(Ordering::Relaxed)
    }

    /// Bytes of the file.
    pub(crate) fn size(&self) -> u64 {
        self.fetcher.size
    }

    /// What the table says of itself, if that verifies.
    pub(crate) fn properties(&self) -> Option<&Properties> {
        self.properties.as_ref()
    }

    /// Where the table says that it comes from; nothing, if that does not verify.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Smallest and largest key of the table, if they are known.
    pub(crate) fn bounds(&self) -> Option<(&[u8], &[u8])> {
        self.bounds.as_ref().map(|(smallest, largest)| (smallest.as_slice(), largest.as_slice()))
    }

    /// A file of a later version must not be taken for a damaged one.
    fn refuse_later_version(&self, size: u64, path: &Path) -> Result<()> {
        if size < FILE_HEADER_LEN as u64 {
            return Ok(());
        }
        let header = self.fetcher.bytes(0, FILE_HEADER_LEN as u64)?;
        match FileHeader::decode(&header, Magic::Table, self.number, path) {
            Err(error @ Error::Unsupported { .. }) => Err(error),
            _ => Ok(()),
        }
    }

    fn footer(&self) -> Result<Footer> {
        let offset = self.fetcher.size.saturating_sub(FOOTER_LEN as u64);
        let bytes = self.fetcher.bytes(offset, (FOOTER_LEN as u64).min(self.fetcher.size))?;
        Footer::decode(&bytes, self.number, offset, &self.fetcher.path)
    }

    fn read_properties(&mut self, handle: Handle) -> Result<()> {
        if let Some(bytes) = ok_or_damaged(self.fetcher.meta_block(handle))? {
            self.properties = Properties::decode(&bytes).ok().filter(|properties| properties.number == self.number);
            if self.properties.is_some() {
                self.origin = Origin::decode(&bytes).unwrap_or_default();
            }
        }
        Ok(())
    }

    /// Looks for the properties behind the data blocks that were found: the second block of two, or
    /// of three.
    fn search_properties(&mut self) -> Result<()> {
        let mut offset = self.blocks.last().and_then(|last| last.end()).unwrap_or(FILE_HEADER_LEN as u64);
        for _ in 0..3 {
            let found = Search::new(&self.fetcher, self.number).block_of_any_length(offset, u64::MAX, &[0])?;
            let Some(handle) = found else { return Ok(()) };
            if self.properties.is_none() {
                self.read_properties(handle)?;
            }
            offset = handle.offset + handle.stored_len();
        }
        Ok(())
    }

    /// The entries of the block at position `i`, which are known to be in order; or the rule that
    /// it breaks.
    fn block(&self, i: usize) -> Result<Result<BlockRef, String>> {
        let handle = self.blocks[i];
        // How much a block may have shrunk has no bound: Zstandard makes 20 bytes of 100 KB of zeros.
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

/// `None` for what is damaged; every other error ends the salvage.
fn ok_or_damaged<T>(result: Result<T>) -> Result<Option<T>> {
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

/// Looks for blocks without an index.
struct Search<'a> {
    fetcher: &'a Fetcher,
    number: u64,
    /// Bytes of the file from `start` on.
    start: u64,
    window: Vec<u8>,
    /// Bytes that may still be gone through to find the ends of blocks: damaged bytes may look like
    /// the beginning of a compressed block again and again.
    budget: u64,
}

impl<'a> Search<'a> {
    fn new(fetcher: &'a Fetcher, number: u64) -> Search<'a> {
        let budget = fetcher.size.saturating_mul(TIMES_SEARCHED);
        Search { fetcher, number, start: 0, window: Vec::new(), budget }
    }

    /// Collects the data blocks.
    fn run(&mut self, blocks: &mut Vec<Handle>) -> Result<()> {
        let (mut offset, mut largest) = (FILE_HEADER_LEN as u64, 0);
        while offset < self.fetcher.size {
            let is_next = blocks.last().is_none_or(|last| last.end() == Some(offset));
            let longest = if is_next { LONGEST_SOUGHT } else { largest.max(LONGEST_SOUGHT_ELSEWHERE) };
            // Zeros in front of a block begin none.
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
    fn data_block(&mut self, offset: u64, longest: u64) -> Result<Option<(Handle, u64)>> {
        if let Some(len) = self.plain_len(offset)?
            && let Ok(len) = u32::try_from(len)
        {
            let handle = Handle { offset, len };
            if ok_or_damaged(self.fetcher.meta_block(handle))?.is_some() {
                return Ok(Some((handle, len.into())));
            }
        }
        // A compressed one begins with its raw length, and is shorter.
        let raw_len = self.bytes(offset, 4)?.and_then(|bytes| Decoder::new(bytes).u32().ok()).map(u64::from);
        match raw_len {
            Some(raw_len) if (1..=longest).contains(&raw_len) => {
                Ok(self.block_of_any_length(offset, raw_len, &[1, 2])?.map(|handle| (handle, raw_len)))
            }
            _ => Ok(None),
        }
    }

    /// How long the data block at `offset` says that it is, if what stands there can be one that is
    /// not compressed.
    fn plain_len(&mut self, offset: u64) -> Result<Option<u64>> {
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
        // Three numbers of at most ten bytes.
        let left = self.fetcher.size.saturating_sub(offset.saturating_add(last));
        let Some(front) = self.bytes(offset.saturating_add(last), left.min(30))? else { return Ok(None) };
        let mut fields = Decoder::new(front);
        let lengths = (|| Ok::<_, Malformed>((fields.varint()?, fields.varint()?, fields.varint()?)))();
        let Ok((rest_len, value_len, _)) = lengths else { return Ok(None) };
        let front_len = (front.len() - fields.remaining()) as u64;
        let end = rest_len.checked_add(value_len).and_then(|len| len.checked_add(last + front_len));
        Ok(end.filter(|len| offset.checked_add(*len).is_some_and(|end| end < self.fetcher.size)))
    }

    /// The offset of an entry, which stands at `at`.
    fn offset_at(&mut self, at: u64, wide: bool) -> Result<Option<u64>> {
        let bytes = self.bytes(at, if wide { 4 } else { 2 })?;
        Ok(bytes.and_then(|bytes| {
            let mut fields = Decoder::new(bytes);
            if wide { fields.u32().ok().map(u64::from) } else { fields.u16().ok().map(u64::from) }
        }))
    }

    /// The block at `offset`, of whatever length up to `longest`, whose trailer has one of the
    /// compressions `codes`.
    fn block_of_any_length(&mut self, offset: u64, longest: u64, codes: &[u8]) -> Result<Option<Handle>> {
        let most = self.fetcher.size.saturating_sub(offset).saturating_sub(TRAILER_LEN as u64).min(longest);
        let most = most.min(self.budget);
        let mut crc = BoundCrc::new(self.number, offset);
        let mut len = 0;
        while len <= most {
            // The next byte belongs to the block, or is the code in its trailer.
            let Some(&[code, stated @ ..]) = self.bytes(offset + len, 5)?.and_then(|bytes| bytes.first_chunk::<5>())
            else {
                return Ok(None);
            };
            crc.update(&[code]);
            if codes.contains(&code) && crc.value() == u32::from_le_bytes(stated) {
                return Ok(u32::try_from(len).ok().map(|len| Handle { offset, len }));
            }
            len += 1;
            self.budget = self.budget.saturating_sub(1);
        }
        Ok(None)
    }

    /// `len` bytes at `offset`, if the file has as many.
    fn bytes(&mut self, offset: u64, len: u64) -> Result<Option<&[u8]>> {
        let size = self.fetcher.size;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Ok(None);
        }
        let has = offset >= self.start && offset + len <= self.start + self.window.len() as u64;
        if !has {
            self.window = self.fetcher.bytes(offset, (WINDOW_LEN as u64).max(len).min(size - offset))?;
            self.start = offset;
        }
        let skip = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        Ok(self.window.get(skip..).and_then(|rest| rest.get(..len)))
    }
}

/// Goes through the tables of a run, which do not overlap, past all damage. It goes forward only.
pub(crate) struct SalvageCursor {
    tables: Vec<Arc<SalvageTable>>,
    /// The table that the cursor is in, and the block of it that comes next.
    table: usize,
    next: usize,
    block: BlockCursor,
    /// The last entry of the table that was passed.
    last: Option<(Vec<u8>, SeqNo)>,
    /// The hole in front of what comes next.
    open: Option<Hole>,
    /// The key that the cursor was sent to.
    sought: Option<Vec<u8>>,
    holes: Vec<(u64, Hole)>,
}

impl SalvageCursor {
    /// A cursor over `tables`, in the order of their keys.
    pub(crate) fn new(tables: Vec<Arc<SalvageTable>>) -> SalvageCursor {
        SalvageCursor {
            tables,
            table: 0,
            next: 0,
            block: BlockCursor::default(),
            last: None,
            open: None,
            sought: None,
            holes: Vec::new(),
        }
    }

    /// The number of the table that the current entry is in.
    pub(crate) fn table(&self) -> u64 {
        self.tables.get(self.table).map_or(0, |table| table.number)
    }

    /// What was passed over, each with the number of its table.
    pub(crate) fn holes(&self) -> &[(u64, Hole)] {
        &self.holes
    }

    /// Enters the next good block, of this table or of a later one. The cursor is invalid if there
    /// is none.
    fn enter_next(&mut self) -> Result<()> {
        self.block.invalidate();
        while let Some(table) = self.tables.get(self.table).cloned() {
            while self.next < table.blocks.len() {
                let handle = table.blocks[self.next];
                self.note_gap(&table, handle.offset)?;
                self.next += 1;
                let broken = match table.block(self.next - 1)? {
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

    /// Enters a block, if it comes behind the one before it.
    fn enter(&mut self, block: BlockRef) -> Decoded<()> {
        self.block.enter(block.into());
        self.block.seek_to_first()?;
        let here = (self.block.key(), self.block.seqno());
        if let Some((key, seqno)) = &self.last
            && compare_entries((key, *seqno), here).is_ge()
        {
            return Err(Malformed("a data block begins before the end of the one before it"));
        }
        if let Some(mut hole) = self.open.take() {
            hole.to = Some(here.0.to_vec());
            let table = &self.tables[self.table];
            table.holes.fetch_add(1, Ordering::Relaxed);
            self.holes.push((table.number, hole));
        }
        Ok(())
    }

    /// Notes what is missing between the last block and `offset`, where the next one was found.
    fn note_gap(&mut self, table: &SalvageTable, offset: u64) -> Result<()> {
        let before = self.next.checked_sub(1).map(|before| table.blocks[before]);
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
        self.open.get_or_insert_with(new).bytes += bytes;
    }

    /// Goes on to the next table, at the end of this one.
    fn leave_table(&mut self, table: &SalvageTable) {
        let largest = table.bounds().map(|(_, largest)| largest.to_vec());
        let ends_early = match (&self.last, &largest) {
            _ if table.index.is_some() => false,
            (Some((last, _)), Some(largest)) => last < largest,
            _ => true,
        };
        if ends_early && self.open.is_none() {
            let end = table.blocks.last().and_then(|last| last.end()).unwrap_or(FILE_HEADER_LEN as u64);
            self.widen_hole(table, end, table.size().saturating_sub(end), "no block verifies from here on");
        }
        if let Some(mut hole) = self.open.take() {
            hole.to = largest;
            table.holes.fetch_add(1, Ordering::Relaxed);
            self.holes.push((table.number, hole));
        }
        self.table += 1;
        self.next = 0;
        self.last = None;
    }
}

/// Moves that the cursor does not know are errors, and leave it as it is.
fn forward_only() -> Result<()> {
    Err(Error::invalid("a damaged table is read forward only"))
}

impl InternalCursor for SalvageCursor {
    fn valid(&self) -> bool {
        self.block.valid()
    }

    fn seek_to_first(&mut self) -> Result<()> {
        (self.table, self.next, self.last, self.open, self.sought) = (0, 0, None, None, None);
        self.holes.clear();
        self.enter_next()
    }

    fn seek_to_last(&mut self) -> Result<()> {
        forward_only()
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        (self.next, self.last, self.open, self.sought) = (0, None, None, Some(key.to_vec()));
        self.holes.clear();
        let ends_before = |table: &Arc<SalvageTable>| table.bounds().is_some_and(|(_, largest)| largest < key);
        self.table = self.tables.iter().position(|table| !ends_before(table)).unwrap_or(self.tables.len());
        if let Some(index) = self.tables.get(self.table).and_then(|table| table.index.as_ref()) {
            self.next = index.find(key, |_| ());
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
        // The block was gone through before it was entered.
        let stepped = self.block.next();
        stepped.map_err(|Malformed(rule)| {
            let path = self.tables.get(self.table).map(|table| table.fetcher.path.clone()).unwrap_or_default();
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

    fn seqno(&self) -> SeqNo {
        self.block.seqno()
    }

    fn kind(&self) -> ValueKind {
        self.block.kind()
    }

    fn value(&self) -> &[u8] {
        self.block.value()
    }
}
