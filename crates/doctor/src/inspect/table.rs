//! Reads an SSTable: its properties, blocks and entries.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use super::WriteKind;
use crate::error::{Error, Result};
use crate::filter::{FilterState, RangeFilterPolicy, RangeFilterState};
use crate::format::deadline::{split_expiring, time_of};
use crate::format::filename::FileKind;
use crate::format::key::{SeqNo, ValueKind};
use crate::sorted::iter::{InternalCursor, MergeCursor, Stamped};
use crate::sorted::operator::decode_operand;
use crate::sorted::table::{SalvageCursor, SalvageTable, Table, TableContext};
use crate::tree::options::Compression;

/// An SSTable.
#[derive(Debug)]
pub struct TableFile {
    table: Arc<Table>,
    properties: TableProperties,
    filter: FilterState,
    range_filter: RangeFilterState,
}

/// The position of a block in its file.
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

/// What a table states about itself, in its footer and its properties block.
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
    /// Entries that are operands of merges.
    pub operands: u64,
    /// Entries that are range deletes: all or none.
    pub range_deletes: u64,
    /// Entries with a deadline.
    pub expiring: u64,
    /// The least and the greatest deadline, if there is one.
    pub deadlines: Option<(SystemTime, SystemTime)>,
    /// Data blocks.
    pub data_blocks: u64,
    /// Bytes of all user keys.
    pub key_bytes: u64,
    /// Bytes of all values, or of the pointers to those in value files.
    pub value_bytes: u64,
    /// The value files to which entries point: number, entries, bytes of their records.
    pub value_files: Vec<(u64, u64, u64)>,
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
    /// The configured compression, or its code if this build does not know it.
    pub compression: Result<Compression, u64>,
    /// Configured block size, in bytes.
    pub block_size: u32,
    /// Seed of the filter's hash.
    pub hash_seed: u64,
    /// Number of the filter policy: 0 none, 1 split-line Bloom, 4 binary fuse.
    pub filter_policy: u64,
    /// Configured bits per key, in thousandths.
    pub filter_millibits: u32,
    /// Distinct keys and prefixes in the filter.
    pub filter_keys: u64,
    /// Hash of the filter block: XXH3 with 64 bits, seed 0. `None` without a filter, and in tables
    /// of older versions.
    pub filter_hash: Option<u64>,
    /// Position of the filter block, if there is one.
    pub filter_block: Option<Handle>,
    /// Bits per key of the range filter that was asked for, in thousandths; 0 for none.
    pub range_filter_millibits: u32,
    /// Position of the range filter's block, if there is one.
    pub range_filter_block: Option<Handle>,
    /// Position of the properties block.
    pub properties_block: Handle,
    /// Position of the index block.
    pub index_block: Handle,
}

/// One data block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataBlock {
    /// Its position.
    pub handle: Handle,
    /// Its compression.
    pub compression: Compression,
    /// Length before compression, in bytes.
    pub raw_len: u64,
    /// Number of entries.
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
    /// What it does to the key.
    pub kind: WriteKind,
    /// The value or the operand; `None` for a tombstone.
    pub value: Option<Vec<u8>>,
    /// When the value expires; `None` if it does not.
    pub deadline: Option<SystemTime>,
    /// The oldest write that the entry stands for: several operands may have been combined.
    pub oldest: SeqNo,
}

impl TableFile {
    pub(super) fn open(context: &Arc<TableContext>, number: u64) -> Result<TableFile> {
        let table = Arc::new(Table::alone(Arc::clone(context), number, false)?);
        Ok(TableFile {
            properties: properties(&table)?,
            filter: table.filter_state()?,
            range_filter: table.range_filter_state()?,
            table,
        })
    }

    /// What the table states about itself.
    pub fn properties(&self) -> &TableProperties {
        &self.properties
    }

    /// Its filter.
    pub fn filter(&self) -> &FilterState {
        &self.filter
    }

    /// Its range filter.
    pub fn range_filter(&self) -> &RangeFilterState {
        &self.range_filter
    }

    /// What range filters of each of these policies would be like, of this table. Reads the table,
    /// builds all of them in memory, and keeps none. Fails where a block is damaged.
    pub fn range_filters_of(&self, policies: &[RangeFilterPolicy]) -> Result<Vec<RangeFilterState>> {
        policies.iter().try_for_each(|policy| policy.validate())?;
        self.table.range_filters_of(policies)
    }

    /// Its data blocks, in order. A damaged block yields an error; the others follow.
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

    /// Its entries: every version, in order. A damaged part yields an error; the entries behind it
    /// follow.
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
        operands: properties.operands,
        range_deletes: properties.ranges,
        expiring: properties.deadlines.count,
        deadlines: properties.deadlines.range(),
        data_blocks: properties.data_blocks,
        key_bytes: properties.key_bytes,
        value_bytes: properties.value_bytes,
        value_files: properties.references.iter().map(|file| (file.file, file.count, file.bytes)).collect(),
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
        range_filter_millibits: properties.range_filter.map_or(0, |request| request.millibits),
        range_filter_block: table.range_filter_block()?.map(Handle::from),
        properties_block: footer.properties.into(),
        index_block: footer.index.into(),
    })
}

/// The entries of a table, as far as they can be read; see
/// [`Inspector::entries`](super::Inspector::entries).
pub struct Entries {
    cursor: SalvageCursor,
    path: PathBuf,
    state: ScanState,
    /// Number of holes already reported.
    reported_holes: usize,
    /// Error of opening the table, reported once. There are no entries then.
    failure: Option<Error>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ScanState {
    New,
    /// On the next entry.
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
            state: ScanState::New,
            reported_holes: 0,
            failure: None,
        })
    }

    fn failed(error: Error) -> Entries {
        let cursor = SalvageCursor::new(Vec::new());
        Entries { cursor, path: PathBuf::new(), state: ScanState::New, reported_holes: 0, failure: Some(error) }
    }

    /// The error for the next hole that the cursor has passed and that is not reported yet.
    fn next_hole(&mut self) -> Option<Error> {
        let (_, hole) = self.cursor.holes().get(self.reported_holes)?;
        self.reported_holes += 1;
        Some(Error::corruption(&self.path, hole.offset, &hole.rule))
    }
}

impl Iterator for Entries {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if let Some(error) = self.failure.take() {
            return Some(Err(error));
        }
        if self.state == ScanState::New {
            self.state = ScanState::Running;
            if let Err(error) = self.cursor.seek_to_first() {
                self.state = ScanState::Done;
                return Some(Err(error));
            }
        }
        if let Some(error) = self.next_hole() {
            return Some(Err(error));
        }
        if self.state == ScanState::Done || !self.cursor.valid() {
            return None;
        }
        let (seqno, kind, stored) = (self.cursor.seqno(), self.cursor.kind(), self.cursor.value());
        let mut deadline = None;
        let (oldest, value) = match kind {
            ValueKind::Put | ValueKind::SeparatePut => (seqno, Some(stored)),
            ValueKind::Delete => (seqno, None),
            ValueKind::ExpiringPut | ValueKind::SeparateExpiringPut => {
                let (at, value) = split_expiring(stored);
                deadline = Some(time_of(at));
                (seqno, Some(value))
            }
            // The block has been verified.
            ValueKind::Merge => decode_operand(seqno, stored).map_or((seqno, None), |(at, bytes)| (at, Some(bytes))),
        };
        let (key, value) = (self.cursor.key().to_vec(), value.map(<[u8]>::to_vec));
        let kind = if self.cursor.is_range() == Some(true) { WriteKind::DeleteRange } else { kind.into() };
        let entry = Entry { key, seqno, kind, value, deadline, oldest };
        if let Err(error) = self.cursor.next() {
            self.state = ScanState::Done;
            return Some(Err(error));
        }
        Some(Ok(entry))
    }
}
