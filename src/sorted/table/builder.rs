//! [`TableBuilder`]: sorted entries to a file.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use super::compress::compress;
use super::footer::{FOOTER_LEN, Footer, Handle, PAGE, TRAILER_LEN};
use super::index::{IndexBuilder, separator};
use super::origin::Origin;
use super::properties::{Properties, filter_hash};
use super::{TableMeta, TableOptions};
use crate::error::{Error, IoContext, Result};
use crate::filter::{FilterBuilder, KeyHash};
use crate::format::checksum::{FileChecksum, bound_crc};
use crate::format::filename::FileKind;
use crate::format::header::{FileHeader, Magic};
use crate::format::key::{MAX_KEY_LEN, MAX_SEQNO, MAX_VALUE_LEN, SeqNo, ValueKind};
use crate::options::Compression;
use crate::sorted::block::BlockBuilder;
use crate::vfs::{FileSystem, WritableFile};

/// Bytes collected before they are appended to the file.
const WRITE_LEN: usize = 1 << 20;
/// At most this part of a block's length is left free behind it, so that the next one begins with a page.
const PADDING_PART: u64 = 16;

/// Writes a table. The file is complete, and synced, when `finish` has returned; that its name lasts is up to the caller, who syncs
/// the directory once for all new files.
///
/// ```text
/// builder = new add+ (finish | abandon)        after an error: abandon
/// ```
pub(crate) struct TableBuilder<'a> {
    options: TableOptions,
    output: Output<'a>,
    block: BlockBuilder,
    /// So long the block may become, without its trailer.
    limit: usize,
    /// The block before compression.
    raw: Vec<u8>,
    index: IndexBuilder,
    filter: FilterBuilder,
    /// Of the last key.
    fingerprint: u8,
    /// Of what was added so far.
    properties: Properties,
    /// Encoded; empty if it is not known.
    origin: Vec<u8>,
}

impl<'a> TableBuilder<'a> {
    /// Creates the file of table `number` in `dir`.
    pub(crate) fn new(
        fs: &'a dyn FileSystem,
        dir: &Path,
        number: u64,
        options: TableOptions,
    ) -> Result<TableBuilder<'a>> {
        let mut builder = TableBuilder {
            options,
            output: Output::create(fs, dir, number)?,
            block: BlockBuilder::new(),
            limit: 0,
            raw: Vec::new(),
            index: IndexBuilder::default(),
            filter: FilterBuilder::new(options.filter, options.seed).with_prefixes(options.prefix),
            fingerprint: 0,
            properties: Properties {
                number,
                compression: options.compression.code().into(),
                block_size: options.block_size,
                seed: options.seed,
                filter_policy: options.filter.code().into(),
                filter_millibits: options.filter.millibits(),
                keyspace: options.keyspace,
                ..Properties::default()
            },
            origin: Vec::new(),
        };
        builder.begin_block(0);
        Ok(builder)
    }

    /// Says where the table comes from; it may be said up to the end.
    pub(crate) fn set_origin(&mut self, origin: &Origin) {
        self.origin.clear();
        origin.encode(&mut self.origin);
    }

    /// The last key that was added.
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.block.last().map(|(key, _)| key)
    }

    /// Entries added so far.
    pub(crate) fn entries(&self) -> u64 {
        self.properties.entries
    }

    /// About as long as the file would become if it were finished now, the filter aside.
    pub(crate) fn estimated_size(&self) -> u64 {
        self.output.offset() + (self.block.size() + self.index.size() + FOOTER_LEN) as u64
    }

    /// Adds an entry, which must come behind the one before it. One that does not is refused, always: it means that what is being
    /// merged is damaged, and a table out of order would hide entries.
    pub(crate) fn add(&mut self, key: &[u8], seqno: SeqNo, kind: ValueKind, value: &[u8]) -> Result<()> {
        if key.len() > MAX_KEY_LEN || value.len() > MAX_VALUE_LEN || seqno > MAX_SEQNO {
            return Err(Error::invalid("an entry exceeds the limits of a table"));
        }
        // Between two calls the block holds the last entry: it is ended only when the next one does not fit.
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
            self.filter.add_key(key, hash);
            self.fingerprint = hash.fingerprint();
        }
        if !self.block.add(key, seqno, kind, value, self.fingerprint, self.limit) {
            let last = self.end_block(Some(key))?;
            self.begin_block(last.stored_len());
            self.block.add(key, seqno, kind, value, self.fingerprint, self.limit);
        }
        self.properties.count_entry(key, is_new_key, seqno, kind, value);
        Ok(())
    }

    fn out_of_order(&self) -> Error {
        let rule = "an entry to be written does not come behind the one before it, so that what was merged into this file must \
                    be damaged";
        Error::corruption(&self.output.path, self.output.offset(), rule)
    }

    /// Decides where the next data block begins, behind one of `last` bytes, and how long it may become: one that lies in a page is read at
    /// the cost of one page. How long a compressed block becomes is not known before it is there, so that those just follow each other.
    fn begin_block(&mut self, last: u64) {
        let size = u64::from(self.options.block_size);
        let mut len = size;
        if self.options.compression == Compression::None {
            let page = self.output.offset().next_multiple_of(PAGE);
            if page - self.output.offset() <= last.min(size) / PADDING_PART {
                self.output.pad_to(page);
            }
            // Up to the end of a page, if that makes the block little shorter.
            let start = self.output.offset();
            let to_page = ((start + size) / PAGE * PAGE).saturating_sub(start);
            if to_page >= size - size / PADDING_PART {
                len = to_page;
            }
        }
        self.limit = usize::try_from(len).unwrap_or(usize::MAX).saturating_sub(TRAILER_LEN);
    }

    /// Writes the data block; `next` is the first key of the one behind it, if there is one. Returns where it is.
    fn end_block(&mut self, next: Option<&[u8]>) -> Result<Handle> {
        let last = self.block.last().map_or(&[][..], |(key, _)| key);
        self.index.begin(next.map_or(last, |next| separator(last, next)));
        let start = self.output.buffer.len();
        let (compression, raw_len) = match self.options.compression {
            Compression::None => {
                self.block.finish(&mut self.output.buffer);
                (Compression::None, self.output.buffer.len() - start)
            }
            compression => {
                self.raw.clear();
                self.raw.shrink_to(WRITE_LEN);
                self.block.finish(&mut self.raw);
                let used = compress(compression, &self.raw, &mut self.output.buffer);
                (used, self.raw.len())
            }
        };
        let handle = self.output.end_block(start, compression)?;
        self.index.end(handle);
        self.properties.count_block(raw_len);
        Ok(handle)
    }

    /// Completes the file and syncs it. If that fails, the file is removed as by [`TableBuilder::abandon`].
    pub(crate) fn finish(self) -> Result<TableMeta> {
        let (fs, path) = (self.output.fs, self.output.path.clone());
        let result = self.complete();
        if result.is_err() {
            let _ = fs.remove(&path);
        }
        result
    }

    fn complete(mut self) -> Result<TableMeta> {
        if self.entries() == 0 {
            return Err(Error::invalid("a table has at least one entry"));
        }
        let largest = self.block.last().map_or(&[][..], |(key, _)| key).into();
        self.end_block(None)?;
        let index = self.index.finish().ok_or_else(too_large)?;
        let properties = Properties { largest, ..self.properties };
        self.output.complete(self.filter, properties, &self.origin, &index)
    }

    /// Gives up, and removes the file if that is possible; a file that stays belongs to no version, and the next open of the store
    /// removes it.
    pub(crate) fn abandon(self) {
        let _ = self.output.fs.remove(&self.output.path);
    }
}

/// The file being written, and what of it waits to be appended.
pub(super) struct Output<'a> {
    fs: &'a dyn FileSystem,
    file: Box<dyn WritableFile>,
    path: PathBuf,
    number: u64,
    buffer: Vec<u8>,
    /// Bytes of the file before those in the buffer.
    appended: u64,
    /// Of the appended bytes.
    checksum: FileChecksum,
}

impl<'a> Output<'a> {
    pub(super) fn create(fs: &'a dyn FileSystem, dir: &Path, number: u64) -> Result<Output<'a>> {
        let path = FileKind::Table(number).path(dir);
        let header = FileHeader { number, ..FileHeader::default() };
        Ok(Output {
            fs,
            file: fs.create(&path).during("create", &path)?,
            path,
            number,
            buffer: header.encode(Magic::Table).to_vec(),
            appended: 0,
            checksum: FileChecksum::default(),
        })
    }

    /// The offset of the next byte.
    fn offset(&self) -> u64 {
        self.appended + self.buffer.len() as u64
    }

    /// Puts zeros up to `offset`, where the next block is to begin; returns them.
    pub(super) fn pad_to(&mut self, offset: u64) -> &[u8] {
        let start = self.buffer.len();
        while self.offset() < offset {
            self.buffer.push(0);
        }
        &self.buffer[start..]
    }

    /// Writes a block that is not compressed.
    fn write_block(&mut self, block: &[u8]) -> Result<Handle> {
        self.copy_block(block, Compression::None)
    }

    /// Writes a block that is in its stored form already.
    pub(super) fn copy_block(&mut self, stored: &[u8], compression: Compression) -> Result<Handle> {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(stored);
        self.end_block(start, compression)
    }

    /// Puts the trailer behind a block that takes the buffer from `start` on.
    fn end_block(&mut self, start: usize, compression: Compression) -> Result<Handle> {
        let handle = Handle { offset: self.appended + start as u64, len: to_u32(self.buffer.len() - start)? };
        self.buffer.push(compression.code());
        let crc = bound_crc(self.number, handle.offset, &self.buffer[start..]);
        self.buffer.extend_from_slice(&crc.to_le_bytes());
        if self.buffer.len() >= WRITE_LEN {
            self.append()?;
        }
        Ok(handle)
    }

    /// Writes what follows the data blocks, and syncs the file. Of the filter, `properties` tell what was asked for; `origin` is encoded.
    pub(super) fn complete(
        mut self,
        filter: FilterBuilder,
        mut properties: Properties,
        origin: &[u8],
        index: &[u8],
    ) -> Result<TableMeta> {
        let filter = match filter.finish() {
            Some(filter) => {
                properties.filter_keys = filter.info.keys;
                properties.filter_hash = Some(filter_hash(&filter.bytes));
                Some(self.write_block(&filter.bytes)?)
            }
            None => None,
        };
        let mut encoded = properties.encode();
        encoded.extend_from_slice(origin);
        let properties_handle = self.write_block(&encoded)?;
        let footer = Footer {
            index: self.write_block(index)?,
            filter,
            properties: properties_handle,
            number: properties.number,
            size: self.offset() + FOOTER_LEN as u64,
            entries: properties.entries,
            seed: properties.seed,
        };
        self.buffer.extend_from_slice(&footer.encode());
        self.append()?;
        self.file.sync().during("sync", &self.path)?;
        Ok(TableMeta {
            number: footer.number,
            size: footer.size,
            checksum: self.checksum.finish(),
            entries: properties.entries,
            keys: properties.keys,
            tombstones: properties.tombstones,
            smallest_seqno: properties.smallest_seqno,
            largest_seqno: properties.largest_seqno,
            smallest: properties.smallest,
            largest: properties.largest,
        })
    }

    fn append(&mut self) -> Result<()> {
        self.checksum.update(&self.buffer);
        self.file.append(&self.buffer).during("write", &self.path)?;
        self.file.begin_sync();
        self.appended += self.buffer.len() as u64;
        self.buffer.clear();
        self.buffer.shrink_to(2 * WRITE_LEN);
        Ok(())
    }
}

fn to_u32(len: usize) -> Result<u32> {
    u32::try_from(len).map_err(|_| too_large())
}

fn too_large() -> Error {
    Error::invalid("a block of a table exceeds 4 GiB")
}
