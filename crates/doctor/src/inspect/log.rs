//! Reads a WAL or manifest record by record.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::WriteKind;
use super::{FileKind, LogHeader, wrong_kind};
use crate::error::Result;
use crate::format::deadline::time_of;
use crate::format::header::Magic;
use crate::format::key::SeqNo;
use crate::log::op::{LogOp, LogOps, Write};
use crate::log::reader::{End, LogReader, Record, Step};
use crate::sorted::table::TableMeta;
use crate::tree::manifest::{Branch, RANGE_LEVEL, VersionEdit};
use crate::tree::options::KeyspaceOptions;
use crate::vfs::FileSystem;

/// A log file being read.
pub struct LogFile {
    reader: LogReader,
    kind: FileKind,
    end: Option<LogEnd>,
}

/// How a log ends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogEnd {
    /// At the end of the file, or at zeros prepared for more records.
    Clean,
    /// At bytes that are not the next record. The file alone does not tell a torn record from a
    /// damaged one.
    Bad {
        /// Their offset in the file.
        offset: u64,
        /// The rule that they break.
        rule: String,
    },
}

/// One record of a log.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LogRecord {
    /// Its offset in the file.
    pub offset: u64,
    /// Ordinal of its first entry.
    pub first: u64,
    /// How many ordinals it takes.
    pub count: u32,
    /// Every ordinal up to this one was on stable storage when the record was written; 0 if the
    /// record does not state it.
    pub synced: u64,
    /// Length of the payload in bytes.
    pub payload_len: u64,
    /// The decoded payload.
    pub content: Content,
}

/// The decoded payload of a log record.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Content {
    /// Empty: it states only that everything before it was synced.
    SyncMarker,
    /// A batch, in a WAL.
    Batch(Vec<LoggedOperation>),
    /// A version edit, in a manifest.
    Edit(Vec<ManifestChange>),
    /// The checksums match, but the payload breaks this rule of the format.
    Malformed(String),
}

/// One operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoggedOperation {
    /// Its sequence number.
    pub seqno: SeqNo,
    /// Id of the keyspace.
    pub keyspace: u32,
    /// The key.
    pub key: Vec<u8>,
    /// What it does to the key.
    pub kind: WriteKind,
    /// The value, the operand, or the encoded edit of an ingest; `None` for a delete.
    pub value: Option<Vec<u8>>,
    /// When the value expires; `None` if it does not.
    pub deadline: Option<SystemTime>,
}

/// One change of a version edit.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ManifestChange {
    /// Every file number below this one may have been used.
    NextFileNumber(u64),
    /// Logs below this one are no longer needed.
    MinLog(u64),
    /// Every entry up to this one is in a table.
    FlushedSeqno(SeqNo),
    /// Seed of the filters' hash.
    HashSeed(u64),
    /// This log holds synced entries: it must exist for as long as it is needed.
    SyncedLog {
        /// The log's number.
        number: u64,
        /// Every entry up to this one was on stable storage, and this log holds the last of them.
        seqno: SeqNo,
    },
    /// Everything whose deadline is not later counts as expired, whatever the clock says.
    ExpiredBy(SystemTime),
    /// Ingests up to this one are in the manifest.
    Ingested(SeqNo),
    /// From this file number on, files are of another branch than those of the store from which
    /// this one was copied; 0 if the branch is not drawn yet.
    Branch {
        /// The first file number.
        first: u64,
        /// The branch.
        id: u64,
    },
    /// A compaction is to go on when the store is opened again.
    Unfinished {
        /// Its id.
        id: u64,
        /// Id of the keyspace.
        keyspace: u32,
        /// The level of its output.
        output_level: u8,
        /// Levels and file numbers of the inputs that are left.
        inputs: Vec<(u8, u64)>,
        /// File numbers of the tables that it has finished and no version has yet.
        finished: Vec<u64>,
    },
    /// The compaction with this id is over.
    Ended(u64),
    /// A keyspace is created, or its options change.
    Keyspace {
        /// Its id.
        id: u32,
        /// Its name.
        name: String,
        /// Its options.
        options: KeyspaceOptions,
    },
    /// A keyspace is dropped.
    DropKeyspace {
        /// Its id.
        id: u32,
    },
    /// A table is removed from a level.
    RemoveTable {
        /// Id of the keyspace.
        keyspace: u32,
        /// The level.
        level: u8,
        /// The table's number.
        number: u64,
    },
    /// A value file is added.
    AddValues {
        /// Id of the keyspace.
        keyspace: u32,
        /// The file's number.
        number: u64,
        /// Bytes of the file.
        size: u64,
        /// Checksum of the file.
        checksum: u32,
        /// Number of values.
        count: u64,
    },
    /// A table is added to a level.
    AddTable(StatedTable),
}

/// What a manifest states of a table that it adds to a level.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StatedTable {
    /// Id of the keyspace.
    pub keyspace: u32,
    /// The level.
    pub level: u8,
    /// The table's number.
    pub number: u64,
    /// Bytes of its file.
    pub size: u64,
    /// Checksum of its file.
    pub checksum: u32,
    /// Entries, tombstones included.
    pub entries: u64,
    /// Distinct user keys.
    pub keys: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Entries with a deadline.
    pub expiring: u64,
    /// The least and the greatest deadline, if there is one.
    pub deadlines: Option<(SystemTime, SystemTime)>,
    /// The value files to which entries point: number, entries, bytes of their records.
    pub value_files: Vec<(u64, u64, u64)>,
    /// No range delete numbered up to this deletes an entry of the table; 0 if that is not
    /// known.
    pub cleared: SeqNo,
    /// Hidden entries that a rewrite has kept although no snapshot needed them.
    pub kept: u64,
    /// The number that an ingested file states in place of its own. All of its entries have
    /// the largest sequence number.
    pub identity: Option<u64>,
    /// Of an ingested table of range deletes, the end of the last range; `None` if that is the
    /// end of the key space, and for every other table.
    pub range_end: Option<Vec<u8>>,
    /// Smallest sequence number.
    pub smallest_seqno: SeqNo,
    /// Largest sequence number.
    pub largest_seqno: SeqNo,
    /// Smallest key.
    pub smallest: Vec<u8>,
    /// Largest key.
    pub largest: Vec<u8>,
}

impl fmt::Debug for LogFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogFile").field("kind", &self.kind).field("end", &self.end).finish_non_exhaustive()
    }
}

impl LogFile {
    pub(super) fn open(fs: &dyn FileSystem, path: &Path, kind: FileKind) -> Result<LogFile> {
        let (magic, number) = match kind {
            FileKind::Wal(number) => (Magic::Wal, number),
            FileKind::Manifest(number) => (Magic::Manifest, number),
            _ => return Err(wrong_kind(path, "a log")),
        };
        Ok(LogFile { reader: LogReader::open(fs, path, magic, number)?, kind, end: None })
    }

    /// Whether it is a WAL or a manifest, and its number.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// The header, or the rule that it breaks.
    pub fn header(&self) -> Result<LogHeader, String> {
        self.reader.header().map(LogHeader::from).map_err(str::to_owned)
    }

    /// The next record; `None` at the end.
    pub fn next_record(&mut self) -> Result<Option<LogRecord>> {
        match self.reader.read()? {
            Step::Record(record) => Ok(Some(LogRecord {
                offset: record.offset,
                first: record.first,
                count: record.count,
                synced: record.synced,
                payload_len: record.payload.len() as u64,
                content: content(&record, self.kind),
            })),
            Step::End(end) => {
                self.end = Some(match end {
                    End::Clean => LogEnd::Clean,
                    End::Bad { offset, reason } => LogEnd::Bad { offset, rule: reason },
                });
                Ok(None)
            }
        }
    }

    /// How the log ends; `None` until [`LogFile::next_record`] has reached the end.
    pub fn end(&self) -> Option<&LogEnd> {
        self.end.as_ref()
    }

    /// The file's path.
    pub fn path(&self) -> PathBuf {
        self.reader.path().to_owned()
    }
}

fn content(record: &Record<'_>, kind: FileKind) -> Content {
    if record.count == 0 {
        return Content::SyncMarker;
    }
    let decoded = match kind {
        FileKind::Wal(_) => operations(record).map(Content::Batch),
        _ => VersionEdit::decode(record.payload).map(|edit| Content::Edit(changes(edit))),
    };
    decoded.unwrap_or_else(|malformed| Content::Malformed(malformed.to_string()))
}

fn operations(record: &Record<'_>) -> crate::format::Decoded<Vec<LoggedOperation>> {
    let operations = LogOps::new(record.payload, record.count);
    operations
        .map(|operation| {
            let operation = operation?;
            let (kind, key, value, deadline) = match &operation {
                LogOp::Write(op) => {
                    let write = Write::of(op.kind, op.value);
                    (op.kind.into(), op.key, write.value(), write.deadline().map(time_of))
                }
                LogOp::Ingest(ingest) => (WriteKind::Ingest, &[][..], Some(ingest.edit), None),
            };
            Ok(LoggedOperation {
                seqno: record.first + u64::from(operation.index()),
                keyspace: operation.keyspace(),
                key: key.to_vec(),
                kind,
                value: value.map(<[u8]>::to_vec),
                deadline,
            })
        })
        .collect()
}

/// Lists an edit's changes in the order in which they take effect.
fn changes(edit: VersionEdit) -> Vec<ManifestChange> {
    let mut changes = Vec::new();
    changes.extend(edit.next_file_number.map(ManifestChange::NextFileNumber));
    changes.extend(edit.min_log.map(ManifestChange::MinLog));
    changes.extend(edit.flushed_seqno.map(ManifestChange::FlushedSeqno));
    changes.extend(edit.hash_seed.map(ManifestChange::HashSeed));
    changes.extend(edit.synced_log.map(|log| ManifestChange::SyncedLog { number: log.number, seqno: log.seqno }));
    changes.extend(edit.expired_by.map(|mark| ManifestChange::ExpiredBy(time_of(mark))));
    changes.extend(edit.ingested.map(ManifestChange::Ingested));
    changes.extend(edit.dropped.into_iter().map(|id| ManifestChange::DropKeyspace { id }));
    changes.extend(edit.created.into_iter().map(|(id, name, options)| ManifestChange::Keyspace { id, name, options }));
    changes.extend(edit.removed.into_iter().map(|(keyspace, level, number)| ManifestChange::RemoveTable {
        keyspace,
        level,
        number,
    }));
    changes.extend(edit.values.into_iter().map(|(keyspace, file)| ManifestChange::AddValues {
        keyspace,
        number: file.number,
        size: file.size,
        checksum: file.checksum,
        count: file.count,
    }));
    changes.extend(
        edit.added
            .into_iter()
            .map(|(keyspace, level, table)| ManifestChange::AddTable(stated_table(keyspace, level, table))),
    );
    changes.extend(edit.branches.into_iter().map(|Branch { first, id }| ManifestChange::Branch { first, id }));
    changes.extend(edit.unfinished.into_iter().map(|note| ManifestChange::Unfinished {
        id: note.id,
        keyspace: note.keyspace,
        output_level: note.output_level,
        inputs: note.inputs,
        finished: note.tables.iter().map(|table| table.number).collect(),
    }));
    changes.extend(edit.ended.into_iter().map(ManifestChange::Ended));
    changes
}

fn stated_table(keyspace: u32, level: u8, table: TableMeta) -> StatedTable {
    StatedTable {
        keyspace,
        level,
        number: table.number,
        size: table.size,
        checksum: table.checksum,
        entries: table.entries,
        keys: table.keys,
        tombstones: table.tombstones,
        expiring: table.deadlines.count,
        deadlines: table.deadlines.range(),
        value_files: table.references.iter().map(|file| (file.file, file.count, file.bytes)).collect(),
        cleared: table.cleared,
        kept: table.kept,
        identity: table.ingested.map(|ingested| ingested.identity),
        range_end: table.range_end.map(Vec::from),
        smallest_seqno: table.smallest_seqno,
        largest_seqno: table.largest_seqno,
        smallest: table.smallest.into(),
        largest: table.largest.into(),
    }
}

/// A level, in words.
fn place(level: u8) -> String {
    match level {
        RANGE_LEVEL => "the range tables".to_owned(),
        level => format!("level {level}"),
    }
}

impl fmt::Display for ManifestChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ManifestChange::NextFileNumber(n) => write!(f, "file numbers below {n} may have been used"),
            ManifestChange::MinLog(n) => write!(f, "logs below {n} are no longer needed"),
            ManifestChange::FlushedSeqno(n) => write!(f, "entries up to {n} are in tables"),
            ManifestChange::HashSeed(seed) => write!(f, "the hash seed is {seed:#018x}"),
            ManifestChange::SyncedLog { number, seqno } => {
                write!(f, "log {number} holds synced entries, up to {seqno} and maybe more")
            }
            ManifestChange::Ingested(seqno) => write!(f, "ingests up to {seqno} have taken effect"),
            ManifestChange::Branch { first, id } => write!(f, "from file {first} on: branch {id:016x}"),
            ManifestChange::Unfinished { id, keyspace, output_level, inputs, finished } => write!(
                f,
                "compaction {id} of keyspace {keyspace} to {} is unfinished: {} inputs are left, finished are {finished:?}",
                place(*output_level),
                inputs.len()
            ),
            ManifestChange::Ended(id) => write!(f, "compaction {id} is over"),
            ManifestChange::ExpiredBy(mark) => write!(f, "what expires by {} counts as expired", UnixTime(*mark)),
            ManifestChange::Keyspace { id, name, options } => {
                write!(f, "keyspace {id} is {name:?}: {options:?}")
            }
            ManifestChange::DropKeyspace { id } => write!(f, "keyspace {id} is dropped"),
            ManifestChange::RemoveTable { keyspace, level, number } => {
                write!(f, "table {number} is removed from {} of keyspace {keyspace}", place(*level))
            }
            ManifestChange::AddValues { keyspace, number, size, checksum, count } => write!(
                f,
                "value file {number} is added to keyspace {keyspace}: {size} bytes, checksum {checksum:08x}, {count} values"
            ),
            ManifestChange::AddTable(table) => table.fmt(f),
        }
    }
}

impl fmt::Display for StatedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StatedTable { keyspace, number, size, checksum, entries, keys, tombstones, .. } = self;
        write!(
            f,
            "table {number} is added to {} of keyspace {keyspace}: {size} bytes, checksum {checksum:08x}, \
             {entries} entries of {keys} keys, {tombstones} tombstones, sequence numbers {} to {}, keys {} to {}",
            place(self.level),
            self.smallest_seqno,
            self.largest_seqno,
            KeyPreview(&self.smallest),
            KeyPreview(&self.largest)
        )?;
        if let Some((first, last)) = self.deadlines {
            write!(f, ", {} expire from {} to {}", self.expiring, UnixTime(first), UnixTime(last))?;
        }
        if !self.value_files.is_empty() {
            let bytes: u64 = self.value_files.iter().map(|(.., bytes)| bytes).sum();
            write!(f, ", {bytes} bytes of values in {} value files", self.value_files.len())?;
        }
        if let Some(identity) = self.identity {
            write!(f, ", ingested, with the identity {identity:016x}")?;
        }
        if let Some(end) = &self.range_end {
            write!(f, ", ranges up to {}", KeyPreview(end))?;
        }
        if self.kept > 0 {
            write!(f, ", {} hidden entries that stay", self.kept)?;
        }
        match self.cleared {
            0 => Ok(()),
            cleared => write!(f, ", free of what range deletes up to {cleared} delete"),
        }
    }
}

/// A time in seconds since the beginning of 1970.
struct UnixTime(SystemTime);

impl fmt::Display for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.0.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        write!(f, "{}.{:03}", since.as_secs(), since.subsec_millis())
    }
}

/// The first bytes of a key, as a byte string literal.
struct KeyPreview<'a>(&'a [u8]);

impl fmt::Display for KeyPreview<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LIMIT: usize = 60;
        match self.0.get(..LIMIT) {
            Some(beginning) if beginning.len() < self.0.len() => write!(f, "\"{}…\"", beginning.escape_ascii()),
            _ => write!(f, "\"{}\"", self.0.escape_ascii()),
        }
    }
}
