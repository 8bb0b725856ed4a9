//! [`TableBuilder`]: writes sorted entries to a table file.

use std::cmp::Ordering;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::deadlines::DeadlineCounter;
use super::extras::Extras;
use super::filters::{FilterBlocks, FiltersBuilder};
use super::footer::{BlockHandle, FOOTER_LEN, Footer, PAGE, TRAILER_LEN};
use super::index::{IndexBuilder, separator};
use super::origin::Origin;
use super::properties::Properties;
use super::{References, TableMeta, TableOptions};
use crate::block::BlockBuilder;
use crate::compress::Compression;
use crate::compress::compress;
use crate::error::{Error, Result};
use crate::files::{CHARGE_STEP, FileWriter, WRITE_LEN};
use crate::filter::KeyHash;
use crate::format::checksum::bound_crc;
use crate::format::coding::put_u32;
use crate::format::filename::FileKind;
use crate::format::header::Magic;
use crate::format::key::{MAX_KEY_LEN, MAX_SEQNO, MAX_VALUE_LEN, SeqNo, ValueKind};
use crate::memory::budget::{MemoryBudget, MemoryCharge, MemoryUse};
use crate::ranges::Fragment;
use crate::vfs::FileSystem;

/// At most this fraction of a block's length becomes padding, so that the next block begins on a
/// page boundary.
const PADDING_FRACTION: u64 = 16;

/// Writes a table. When `finish` returns, the file is complete and synced. The caller makes its
/// name durable, by one sync of the directory for all new files.
///
/// ```text
/// builder = new add+ (finish | abandon)        after an error: abandon
/// ```
pub struct TableBuilder<'a> {
    options: TableOptions,
    output: TableFileWriter<'a>,
    block: BlockBuilder,
    /// Longest that the current block may become, without its trailer.
    block_limit: usize,
    /// The current block before compression.
    raw: Vec<u8>,
    index: IndexBuilder,
    filters: FiltersBuilder,
    /// Fingerprint of the last key.
    fingerprint: u8,
    /// Properties of the entries added so far.
    properties: Properties,
    deadlines: DeadlineCounter,
    /// Encoded [`Origin`]; empty if unknown.
    origin: Vec<u8>,
    /// For the buffers, if somebody counts them, and the least of it.
    charge: Option<MemoryCharge>,
    reserved: usize,
    /// Bytes that the entry added last takes in it, if it is long beside what a table being written
    /// takes otherwise.
    long: usize,
    /// Bytes of memory that the index and filters took when the last block ended.
    growing: usize,
}

impl<'a> TableBuilder<'a> {
    /// Creates the file of table `number` in `dir`.
    pub fn new(fs: &'a dyn FileSystem, dir: &Path, number: u64, options: TableOptions) -> Result<TableBuilder<'a>> {
        let output = TableFileWriter::create(fs, FileKind::Table(number).path(dir), number)?;
        Ok(TableBuilder::of(TableFileWriter { fs: Some(fs), ..output }, options))
    }

    /// Creates the file of a table that is to be ingested. Its entries must have the sequence
    /// number 0. After a failure, the caller removes the file.
    pub fn unnumbered(
        fs: &dyn FileSystem,
        path: &Path,
        identity: u64,
        options: TableOptions,
    ) -> Result<TableBuilder<'a>> {
        let mut builder = TableBuilder::of(TableFileWriter::create(fs, path.to_owned(), identity)?, options);
        builder.properties.is_unnumbered = true;
        Ok(builder)
    }

    fn of(output: TableFileWriter<'a>, options: TableOptions) -> TableBuilder<'a> {
        let mut builder = TableBuilder {
            options,
            block: BlockBuilder::new(),
            block_limit: 0,
            raw: Vec::new(),
            index: IndexBuilder::default(),
            filters: FiltersBuilder::new(options.filters, options.seed, output.file.number()),
            fingerprint: 0,
            properties: Properties {
                number: output.file.number(),
                compression: options.compression.code().into(),
                block_size: options.block_size,
                seed: options.seed,
                keyspace: options.keyspace,
                ..Properties::default()
            },
            deadlines: DeadlineCounter::default(),
            origin: Vec::new(),
            charge: None,
            reserved: 0,
            long: 0,
            growing: 0,
            output,
        };
        builder.begin_block(0);
        builder
    }

    /// Charges what the builder takes to `budget`: `reserved` bytes from the beginning.
    pub fn charging(self, budget: &Arc<MemoryBudget>, reserved: usize) -> TableBuilder<'a> {
        TableBuilder { charge: Some(MemoryCharge::new(budget, MemoryUse::Jobs, reserved)), reserved, ..self }
    }

    /// Sets how many bytes are written at a time.
    pub fn set_write_len(&mut self, len: usize) {
        self.output.set_write_len(len);
    }

    /// This builder, which has no entry yet, with other options.
    pub fn with_options(self, options: TableOptions) -> TableBuilder<'a> {
        let is_unnumbered = self.properties.is_unnumbered;
        let former = TableBuilder::of(self.output, options);
        let (charge, reserved) = (self.charge, self.reserved);
        let mut builder = TableBuilder { origin: self.origin, charge, reserved, ..former };
        builder.properties.is_unnumbered = is_unnumbered;
        builder
    }

    /// Records where the table comes from. May be called at any time before
    /// [`TableBuilder::finish`].
    pub fn set_origin(&mut self, origin: &Origin) {
        self.origin.clear();
        origin.encode(&mut self.origin);
    }

    /// The last key added.
    pub fn last_key(&self) -> Option<&[u8]> {
        self.block.last().map(|(key, _)| key)
    }

    /// Entries added so far.
    pub fn entries(&self) -> u64 {
        self.properties.entries
    }

    /// Approximate length of the file if it were finished now, without the filter.
    pub fn estimated_size(&self) -> u64 {
        self.output.file.offset() + (self.block.size() + self.index.size() + FOOTER_LEN) as u64
    }

    /// Bytes of memory that grow with the number of keys: those of the index and filters.
    pub fn growing_memory(&self) -> usize {
        self.growing
    }

    /// The value files to which the entries added so far point.
    pub fn references(&self) -> &References {
        &self.properties.references
    }

    /// Adds an entry, which must come after the one before it. An entry out of order is always an
    /// error: the input of the merge is damaged, and a table out of order would hide entries.
    pub fn add(&mut self, key: &[u8], seqno: SeqNo, kind: ValueKind, value: &[u8]) -> Result<()> {
        if key.len() > MAX_KEY_LEN || value.len() > MAX_VALUE_LEN || seqno > MAX_SEQNO {
            return Err(Error::invalid("a key, value or sequence number exceeds the limit of the format"));
        }
        // Between calls the block holds the last entry: a block ends only when the next entry does
        // not fit.
        let is_new_key = match self.block.last() {
            None => true,
            Some((last, last_seqno)) => match last.cmp(key) {
                Ordering::Less => true,
                Ordering::Equal if seqno < last_seqno => false,
                _ => return Err(self.out_of_order()),
            },
        };
        if is_new_key {
            let hash = KeyHash::new(self.options.seed, key);
            self.filters.add_key(key, hash);
            self.fingerprint = hash.fingerprint();
        }
        self.long = 0;
        if key.len() + value.len() >= WRITE_LEN {
            // It is moved from the block to the file's buffer, or packed into that.
            let copies = if self.options.compression == Compression::None { 1 } else { 2 };
            self.long = copies * (key.len() + value.len());
            self.charge();
        }
        if !self.block.add(key, seqno, kind, value, self.fingerprint, self.block_limit) {
            let last = self.end_block(Some(key))?;
            self.begin_block(last.stored_len());
            self.block.add(key, seqno, kind, value, self.fingerprint, self.block_limit);
        }
        self.filters.add_to_block(key);
        self.properties.count_entry(key, is_new_key, seqno, kind, value);
        self.deadlines.count_entry(key, kind, value);
        Ok(())
    }

    /// Adds a range delete, which must come after the one before it. All of a table's entries are
    /// range deletes, or none.
    pub fn add_range(&mut self, range: &Fragment<impl Deref<Target = [u8]>>) -> Result<()> {
        self.add(&range.start, range.seqno, ValueKind::Put, range.stored_end())?;
        self.properties.ranges += 1;
        Ok(())
    }

    fn out_of_order(&self) -> Error {
        let rule = "an entry does not come after the one before it: the input of this flush or compaction is damaged";
        Error::corruption(self.output.file.path(), self.output.file.offset(), rule)
    }

    /// Decides where the next data block begins, after a block of `last_len` bytes, and how long it
    /// may become. A block within one page costs one page to read: without this, `seekrandom` of 5
    /// M keys reached 0.87 of its speed, `multiget100` 0.92. The length of a compressed block is
    /// not known in advance; therefore compressed blocks are not padded.
    fn begin_block(&mut self, last_len: u64) {
        let size = u64::from(self.options.block_size);
        let mut len = size;
        if self.options.compression == Compression::None {
            let page = self.output.file.offset().next_multiple_of(PAGE);
            if page - self.output.file.offset() <= last_len.min(size) / PADDING_FRACTION {
                self.output.pad_to(page);
            }
            // End the block at a page boundary, if that makes it only a little shorter.
            let start = self.output.file.offset();
            let len_to_page = ((start + size) / PAGE * PAGE).saturating_sub(start);
            if len_to_page >= size - size / PADDING_FRACTION {
                len = len_to_page;
            }
        }
        self.block_limit = usize::try_from(len).unwrap_or(usize::MAX).saturating_sub(TRAILER_LEN);
    }

    /// Writes the data block and returns its position. `next` is the first key of the next block,
    /// if any.
    fn end_block(&mut self, next: Option<&[u8]>) -> Result<BlockHandle> {
        let last = self.block.last().map_or(&[][..], |(key, _)| key);
        let separator = next.map_or(last, |next| separator(last, next));
        self.index.begin(separator);
        self.filters.end_block(separator);
        let start = self.output.file.buffer.len();
        let (compression, raw_len) = match self.options.compression {
            Compression::None => {
                self.block.finish(&mut self.output.file.buffer);
                (Compression::None, self.output.file.buffer.len() - start)
            }
            compression => {
                self.block.finish(&mut self.raw);
                let used = compress(compression, &self.raw, &mut self.output.file.buffer);
                let raw_len = self.raw.len();
                self.raw.clear();
                self.raw.shrink_to(WRITE_LEN);
                (used, raw_len)
            }
        };
        let handle = self.output.end_block(start, compression)?;
        self.index.end(handle);
        self.properties.count_block(raw_len);
        self.growing = self.index.size() + self.filters.memory();
        self.charge();
        Ok(handle)
    }

    fn charge(&mut self) {
        if let Some(charge) = &mut self.charge {
            let buffers = self.output.file.buffer.capacity() + self.raw.capacity();
            let bytes = (buffers + self.growing + self.long).next_multiple_of(CHARGE_STEP);
            charge.resize(bytes.max(self.reserved));
        }
    }

    /// Completes the file and syncs it. On failure the file is removed as by
    /// [`TableBuilder::abandon`].
    pub fn finish(self) -> Result<TableMeta> {
        let (fs, path) = (self.output.fs, self.output.file.path().to_owned());
        let result = self.complete();
        if let (Err(_), Some(fs)) = (&result, fs) {
            let _ = fs.remove(&path);
        }
        result
    }

    fn complete(mut self) -> Result<TableMeta> {
        if self.entries() == 0 {
            return Err(Error::invalid("a table needs at least one entry"));
        }
        let largest = self.block.last().map_or(&[][..], |(key, _)| key).into();
        self.end_block(None)?;
        let index = self.index.finish().ok_or_else(too_large)?;
        let deadlines = self.deadlines.finish(self.properties.all_bytes());
        let mut properties = Properties { largest, deadlines, ..self.properties };
        let filters = self.output.finish_filters(self.filters, &mut properties)?;
        self.output.complete(filters, properties, &self.origin, &index)
    }

    /// Gives up and removes the file, best effort. A file that stays belongs to no version; the
    /// next open of the store removes it.
    pub fn abandon(self) {
        let _ = self.output.fs.map(|fs| fs.remove(self.output.file.path()));
    }
}

/// The file of a table being written.
pub(super) struct TableFileWriter<'a> {
    /// Removes the file after a failure.
    fs: Option<&'a dyn FileSystem>,
    file: FileWriter,
}

impl<'a> TableFileWriter<'a> {
    pub(super) fn create(fs: &dyn FileSystem, path: PathBuf, number: u64) -> Result<TableFileWriter<'a>> {
        Ok(TableFileWriter { fs: None, file: FileWriter::create(fs, path, Magic::Table, number)? })
    }

    /// Sets how many bytes are written at a time.
    pub(super) fn set_write_len(&mut self, len: usize) {
        self.file.write_len = len;
    }

    /// Pads with zeros up to `offset`, where the next block begins. Returns the padding.
    pub(super) fn pad_to(&mut self, offset: u64) -> &[u8] {
        let start = self.file.buffer.len();
        while self.file.offset() < offset {
            self.file.buffer.push(0);
        }
        &self.file.buffer[start..]
    }

    /// Writes an uncompressed block.
    fn write_block(&mut self, block: &[u8]) -> Result<BlockHandle> {
        self.copy_block(block, Compression::None)
    }

    /// Writes a block that is already in its stored form.
    pub(super) fn copy_block(&mut self, stored: &[u8], compression: Compression) -> Result<BlockHandle> {
        let start = self.file.buffer.len();
        self.file.buffer.extend_from_slice(stored);
        self.end_block(start, compression)
    }

    /// Appends the trailer of the block that fills the buffer from `start` on.
    fn end_block(&mut self, start: usize, compression: Compression) -> Result<BlockHandle> {
        let len = self.file.buffer.len() - start;
        let handle = BlockHandle { offset: self.file.offset() - len as u64, len: to_u32(len)? };
        self.file.buffer.push(compression.code());
        let crc = bound_crc(self.file.number(), handle.offset, &self.file.buffer[start..]);
        put_u32(&mut self.file.buffer, crc);
        self.file.append_if_full()?;
        Ok(handle)
    }

    /// The filters, which `properties` then state.
    pub(super) fn finish_filters(&self, filters: FiltersBuilder, properties: &mut Properties) -> Result<FilterBlocks> {
        filters.finish(properties).map_err(|rule| Error::corruption(self.file.path(), self.file.offset(), rule))
    }

    /// Writes what follows the data blocks, and syncs the file. `properties` state the filters;
    /// `origin` is encoded.
    pub(super) fn complete(
        mut self,
        filters: FilterBlocks,
        mut properties: Properties,
        origin: &[u8],
        index: &[u8],
    ) -> Result<TableMeta> {
        let filter = filters.points.map(|block| self.write_block(&block)).transpose()?;
        properties.extras = Extras::default();
        for (kind, block) in filters.extras {
            properties.extras = properties.extras.with(kind, self.write_block(&block)?.len);
        }
        let mut encoded = properties.encode();
        encoded.extend_from_slice(origin);
        let properties_handle = self.write_block(&encoded)?;
        let footer = Footer {
            index: self.write_block(index)?,
            filter,
            properties: properties_handle,
            number: properties.number,
            size: self.file.offset() + FOOTER_LEN as u64,
            entries: properties.entries,
            seed: properties.seed,
            features: properties.features(),
        };
        self.file.buffer.extend_from_slice(&footer.encode());
        let checksum = self.file.finish()?;
        Ok(properties.into_meta(footer.number, footer.size, checksum))
    }
}

fn to_u32(len: usize) -> Result<u32> {
    u32::try_from(len).map_err(|_| too_large())
}

fn too_large() -> Error {
    Error::invalid("a block of a table exceeds 4 GiB")
}
