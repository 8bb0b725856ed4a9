//! An SSTable: what it says of itself, its blocks, its entries.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::filter::FilterState;
use crate::format::filename::FileKind;
use crate::format::key::{SeqNo, ValueKind};
use crate::options::Compression;
use crate::sorted::iter::{InternalCursor, MergeCursor, Stamped};
use crate::sorted::table::{SalvageCursor, SalvageTable, Table, TableContext};

/// An SSTable.
#[derive(Debug)]
pub struct TableFile {
    table: Arc<Table>,
    properties: TableProperties,
    filter: FilterState,
}

/// Where a block is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Handle {
    /// Its offset.
    pub offset: u64,
    /// Its length, without the trailer.
    pub len: u32,
}

impl From<crate::sorted::table::BlockHandle> for Handle {
    fn from(handle: crate::sorted::table::BlockHandle) -> Handle {
        Handle { offset: handle.offset, len: handle.len }
    }
}

/// What a table says of itself, in its footer and its properties block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableProperties {
    /// File number.
    pub number: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Id of the keyspace that it was written for.
    pub keyspace: u32,
    /// Entries, tombstones included.
    pub entries: u64,
    /// Distinct user keys; the other entries are older versions of them.
    pub keys: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Data blocks.
    pub data_blocks: u64,
    /// Bytes of all user keys.
    pub key_bytes: u64,
    /// Bytes of all values.
    pub value_bytes: u64,
    /// Smallest key.
    pub smallest: Vec<u8>,
    /// Largest key.
    pub largest: Vec<u8>,
    /// Smallest sequence number.
    pub smallest_seqno: SeqNo,
    /// Largest sequence number.
    pub largest_seqno: SeqNo,
    /// Bytes of the largest data block before compression.
    pub largest_block: u32,
    /// The compression asked for, or its number if this build does not know it.
    pub compression: Result<Compression, u64>,
    /// Block size asked for, in bytes.
    pub block_size: u32,
    /// Seed of the filter's hash.
    pub hash_seed: u64,
    /// Number of the filter policy: 0 none, 1 split-line Bloom, 2 standard Bloom, 4 binary fuse.
    pub filter_policy: u64,
    /// Bits per key asked for, in thousandths.
    pub filter_millibits: u32,
    /// Distinct keys and prefixes in the filter.
    pub filter_keys: u64,
    /// Hash of the filter block: XXH3 with 64 bits, seed 0. Without a filter there is none, nor in
    /// tables of older versions.
    pub filter_hash: Option<u64>,
    /// Where the filter is, if there is one.
    pub filter_block: Option<Handle>,
    /// Where the properties are.
    pub properties_block: Handle,
    /// Where the index is.
    pub index_block: Handle,
}

/// One data block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataBlock {
    /// Where it is.
    pub handle: Handle,
    /// How it is compressed.
    pub compression: Compression,
    /// Bytes before compression.
    pub raw_len: u64,
    /// Entries.
    pub entries: u64,
    /// Length of the common prefix of all keys.
    pub prefix_len: u64,
    /// Key of the first entry.
    pub first_key: Vec<u8>,
    /// Key of the last entry.
    pub last_key: Vec<u8>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The user key.
    pub key: Vec<u8>,
    /// The sequence number.
    pub seqno: SeqNo,
    /// The value; `None` for a tombstone.
    pub value: Option<Vec<u8>>,
}

impl TableFile {
    pub(super) fn open(context: &Arc<TableContext>, number: u64) -> Result<TableFile> {
        let table = Arc::new(Table::alone(Arc::clone(context), number, false)?);
        Ok(TableFile { properties: properties(&table)?, filter: table.filter_state()?, table })
    }

    /// What the table says of itself.
    pub fn properties(&self) -> &TableProperties {
        &self.properties
    }

    /// Its filter.
    pub fn filter(&self) -> &FilterState {
        &self.filter
    }

    /// Its data blocks, in order. One that is damaged is an error; the others follow it.
    pub fn blocks(&self) -> impl Iterator<Item = Result<DataBlock>> {
        (0..self.table.block_count().unwrap_or_default()).map(|i| {
            let block = self.table.describe_block(i)?;
            Ok(DataBlock {
                handle: block.handle.into(),
                compression: Compression::from_code(block.compression.into()).unwrap_or(Compression::None),
                raw_len: block.raw_len,
                entries: block.entries,
                prefix_len: block.prefix_len,
                first_key: block.first_key,
                last_key: block.last_key,
            })
        })
    }

    /// Its entries, every version of them, in order. A part that is damaged is an error; the entries behind it follow.
    pub fn entries(&self) -> Entries {
        Entries::open(self.table.context(), self.properties.number).unwrap_or_else(Entries::failed)
    }
}

fn properties(table: &Table) -> Result<TableProperties> {
    let (footer, properties) = (table.footer()?, table.properties()?);
    Ok(TableProperties {
        number: footer.number,
        size: footer.size,
        keyspace: properties.keyspace,
        entries: properties.entries,
        keys: properties.keys,
        tombstones: properties.tombstones,
        data_blocks: properties.data_blocks,
        key_bytes: properties.key_bytes,
        value_bytes: properties.value_bytes,
        smallest: properties.smallest.to_vec(),
        largest: properties.largest.to_vec(),
        smallest_seqno: properties.smallest_seqno,
        largest_seqno: properties.largest_seqno,
        largest_block: properties.largest_block,
        compression: Compression::from_code(properties.compression).ok_or(properties.compression),
        block_size: properties.block_size,
        hash_seed: footer.seed,
        filter_policy: properties.filter_policy,
        filter_millibits: properties.filter_millibits,
        filter_keys: properties.filter_keys,
        filter_hash: properties.filter_hash,
        filter_block: footer.filter.map(Handle::from),
        properties_block: footer.properties.into(),
        index_block: footer.index.into(),
    })
}

/// The entries of a table, as far as they can be read; see [`Inspector::entries`](super::Inspector::entries).
pub struct Entries {
    cursor: SalvageCursor,
    path: PathBuf,
    state: State,
    /// Parts that cannot be read and have been told of.
    told: usize,
    /// Why there are none; told once.
    failure: Option<Error>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    /// On the entry that comes next.
    Running,
    Done,
}

impl std::fmt::Debug for Entries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entries").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Entries {
    pub(super) fn open(context: &Arc<TableContext>, number: u64) -> Result<Entries> {
        let table = SalvageTable::open(context, number, None)?;
        let path = FileKind::Table(number).path(context.dir());
        Ok(Entries {
            cursor: SalvageCursor::new(vec![Arc::new(table)]),
            path,
            state: State::New,
            told: 0,
            failure: None,
        })
    }

    fn failed(error: Error) -> Entries {
        let cursor = SalvageCursor::new(Vec::new());
        Entries { cursor, path: PathBuf::new(), state: State::New, told: 0, failure: Some(error) }
    }

    /// What is wrong in front of the cursor, if that has not been told yet.
    fn untold(&mut self) -> Option<Error> {
        let (_, hole) = self.cursor.holes().get(self.told)?;
        self.told += 1;
        Some(Error::corruption(&self.path, hole.offset, &hole.rule))
    }
}

impl Iterator for Entries {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if let Some(error) = self.failure.take() {
            return Some(Err(error));
        }
        if self.state == State::New {
            self.state = State::Running;
            if let Err(error) = self.cursor.seek_to_first() {
                self.state = State::Done;
                return Some(Err(error));
            }
        }
        if let Some(error) = self.untold() {
            return Some(Err(error));
        }
        if self.state == State::Done || !self.cursor.valid() {
            return None;
        }
        let entry = Entry {
            key: self.cursor.key().to_vec(),
            seqno: self.cursor.seqno(),
            value: (self.cursor.kind() == ValueKind::Put).then(|| self.cursor.value().to_vec()),
        };
        if let Err(error) = self.cursor.next() {
            self.state = State::Done;
            return Some(Err(error));
        }
        Some(Ok(entry))
    }
}
