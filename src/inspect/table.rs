//! An SSTable: what it says of itself, its blocks, its entries.

use std::sync::Arc;

use crate::error::Result;
use crate::filter::FilterState;
use crate::format::key::{SeqNo, ValueKind};
use crate::iter::InternalCursor;
use crate::options::Compression;
use crate::table::{Table, TableContext, TableCursor};

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

impl From<crate::table::Handle> for Handle {
    fn from(handle: crate::table::Handle) -> Handle {
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
    /// Hash of the filter block: XXH3 with 64 bits, seed 0. 0 if there is no filter.
    pub filter_hash: u64,
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

    /// Its entries, every version of them, in order. They end after an error.
    pub fn entries(&self) -> Entries {
        Entries { cursor: self.table.cursor(false), state: State::New }
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

/// The entries of a table.
pub struct Entries {
    cursor: TableCursor,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Running,
    Done,
}

impl std::fmt::Debug for Entries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entries").finish_non_exhaustive()
    }
}

impl Iterator for Entries {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        let stepped = match self.state {
            State::New => self.cursor.seek_to_first(),
            State::Running => self.cursor.next(),
            State::Done => return None,
        };
        self.state = match &stepped {
            Ok(()) if self.cursor.valid() => State::Running,
            _ => State::Done,
        };
        match (stepped, self.state) {
            (Err(error), _) => Some(Err(error)),
            (Ok(()), State::Running) => Some(Ok(Entry {
                key: self.cursor.key().to_vec(),
                seqno: self.cursor.seqno(),
                value: (self.cursor.kind() == ValueKind::Put).then(|| self.cursor.value().to_vec()),
            })),
            (Ok(()), _) => None,
        }
    }
}
