//! [`ChangeBatch`]: a batch as it was written; and what is in one that is to be written.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::SystemTime;

use super::Names;
use crate::batch::{BatchMark, Ingest, LogOp, LogOps, OpKind, Write, WriteBatch};
use crate::db::Db;
use crate::db::keyspace::Keyspace;
use crate::db::shape::view::ReadView;
use crate::error::{Error, Result};
use crate::format::deadline::time_of;
use crate::format::key::SeqNo;
use crate::log::Record;
use crate::tree::manifest::{RANGE_LEVEL, ingested_tables};

/// A feed forgets the names of earlier batches when it has so many: keyspaces may come and go.
const MOST_NAMES: usize = 64;

/// A batch of the change feed: what one write has written, whole.
pub struct ChangeBatch {
    first: SeqNo,
    count: u32,
    payload: Vec<u8>,
    names: Arc<Names>,
}

/// One operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation<'a> {
    /// Its sequence number.
    pub seqno: SeqNo,
    /// Name of the keyspace.
    pub keyspace: &'a str,
    /// What was done.
    pub kind: OperationKind<'a>,
}

/// One operation of a [`WriteBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchOperation<'a> {
    /// The keyspace, by its [id](Keyspace::id): 0 for the default keyspace.
    pub keyspace: u32,
    /// What is to be done. Never an ingest.
    pub kind: OperationKind<'a>,
}

impl WriteBatch {
    /// The operations, in order.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use tamis::{OperationKind, WriteBatch};
    ///
    /// let users = db.keyspace("users")?;
    /// let mut batch = WriteBatch::new();
    /// batch.put_in(&users, "id7", "Ann");
    /// batch.delete("draft");
    /// let put = batch.iter().next().expect("two operations");
    /// assert_eq!(put.keyspace, users.id());
    /// assert_eq!(put.kind, OperationKind::Put { key: b"id7", value: b"Ann" });
    /// # Ok(()) }
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = BatchOperation<'_>> {
        let writes = self.writes_from(&BatchMark::default());
        writes.map(|(keyspace, key, kind, at)| BatchOperation {
            keyspace,
            kind: OperationKind::of(key, kind, self.bytes(at)),
        })
    }
}

/// What an operation does to its keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperationKind<'a> {
    /// Sets a key to a value.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// Sets a key to a value until a deadline.
    PutWithExpiry {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
        /// When it expires.
        deadline: SystemTime,
    },
    /// Merges an operand into a key; see [`operator`](crate::operator).
    Merge {
        /// The key.
        key: &'a [u8],
        /// The operand.
        operand: &'a [u8],
    },
    /// Deletes a key, which may be absent.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Deletes a range of keys.
    DeleteRange {
        /// The first key of the range.
        from: &'a [u8],
        /// The first key after it; `None` is the end of the key space.
        to: Option<&'a [u8]>,
    },
    /// Adds tables to the keyspace; see [`Keyspace::ingest`](crate::Keyspace::ingest). The log has
    /// their metadata, and not their entries. Its batch has nothing else, except that an ingest of
    /// range deletes comes before the one of the entries that they do not delete.
    ///
    /// A follower copies from a snapshot of the source that has the ingest, after it has applied
    /// the changes up to the snapshot's number, of which it leaves out the ingests: for each table
    /// of these, it deletes [the range](IngestedTable::range) and puts what the snapshot has in it.
    /// `examples/follower.rs` does so.
    Ingest {
        /// The tables. The key ranges of those with entries share no key.
        tables: IngestedTables<'a>,
    },
}

impl<'a> OperationKind<'a> {
    /// The operation of this kind on a key, with a value as the log stores it.
    fn of(key: &'a [u8], kind: OpKind, stored: &'a [u8]) -> OperationKind<'a> {
        match Write::of(kind, stored) {
            Write::Put(value) => OperationKind::Put { key, value },
            Write::ExpiringPut(value, deadline) => {
                OperationKind::PutWithExpiry { key, value, deadline: time_of(deadline) }
            }
            Write::Merge(operand) => OperationKind::Merge { key, operand },
            Write::Delete => OperationKind::Delete { key },
            Write::DeleteRange(end) => OperationKind::DeleteRange { from: key, to: (!end.is_empty()).then_some(end) },
        }
    }
}

/// The tables of an ingest, as the log describes them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IngestedTables<'a> {
    ingest: Ingest<'a>,
    seqno: SeqNo,
}

/// A table of an ingest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestedTable {
    /// Number of the table in the store that ingested it: its file was `000012.sst` there. A
    /// compaction may have replaced it since.
    pub number: u64,
    /// Number of entries, tombstones included.
    pub entries: u64,
    /// Number of range deletes. Either this or the number of entries is 0.
    pub range_deletes: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// The smallest key; of range deletes, the first key of the first one.
    pub smallest: Vec<u8>,
    /// The greatest key; of range deletes, the first key of the last one.
    pub greatest: Vec<u8>,
    /// The first key after all that the table changes: of range deletes, where the last one ends;
    /// of entries, the key after the greatest one. `None` is the end of the key space.
    pub end: Option<Vec<u8>>,
}

impl IngestedTable {
    /// The range of keys that the table may change: from the smallest up to the end.
    pub fn range(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Included(&self.smallest), self.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded))
    }
}

impl IngestedTables<'_> {
    /// The tables, in the order of their smallest keys.
    pub fn iter(&self) -> impl Iterator<Item = IngestedTable> + use<> {
        // They were decoded before.
        let tables = ingested_tables(&self.ingest, self.seqno).unwrap_or_default();
        tables.into_iter().map(|(level, meta)| {
            let (entries, range_deletes, end) = match level {
                RANGE_LEVEL => (0, meta.entries, meta.range_end.map(Vec::from)),
                _ => (meta.entries, 0, Some([&*meta.largest, &[0]].concat())),
            };
            IngestedTable {
                end,
                number: meta.number,
                entries,
                range_deletes,
                bytes: meta.size,
                smallest: meta.smallest.into_vec(),
                greatest: meta.largest.into_vec(),
            }
        })
    }
}

impl fmt::Debug for IngestedTables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Whether the log stores an operation of the record that is numbered less than `seqno`.
pub(super) fn has_operation_before(record: &Record<'_>, seqno: SeqNo) -> bool {
    let mut operations = LogOps::new(record.payload, record.count).filter_map(|operation| operation.ok());
    operations.any(|operation| record.first + u64::from(operation.index()) < seqno)
}

impl ChangeBatch {
    /// Copies a batch from the log and checks all of it. `names` are those of earlier batches, and
    /// of this one afterwards; `view` has those of now.
    pub(super) fn new(record: &Record<'_>, names: &mut Arc<Names>, view: &ReadView) -> Result<ChangeBatch> {
        if names.len() >= MOST_NAMES {
            *names = Arc::default();
        }
        let mut last = None;
        for operation in LogOps::new(record.payload, record.count) {
            let operation = operation.map_err(|rule| record.corruption(rule))?;
            if let LogOp::Ingest(ingest) = operation {
                let seqno = record.first + u64::from(ingest.index);
                ingested_tables(&ingest, seqno).map_err(|rule| record.corruption(rule))?;
            }
            let keyspace = operation.keyspace();
            if last.replace(keyspace) == Some(keyspace) {
                continue;
            }
            let name = view.tree(keyspace).map(|tree| &tree.name);
            if names.get(&keyspace).is_none_or(|known| known.as_ref() != name) {
                Arc::make_mut(names).insert(keyspace, name.cloned());
            }
        }
        let Record { first, count, payload, .. } = *record;
        Ok(ChangeBatch { first, count, payload: payload.to_vec(), names: Arc::clone(names) })
    }

    /// Sequence number of the first operation.
    pub fn first_seqno(&self) -> SeqNo {
        self.first
    }

    /// Sequence number of the last operation, with which [`Db::changes_since`] continues.
    pub fn last_seqno(&self) -> SeqNo {
        self.first + u64::from(self.count) - 1
    }

    /// The batch as the log has it, for [`CopiedLog::add`](crate::CopiedLog::add). It names
    /// keyspaces by their [ids](Keyspace::id).
    pub fn encoded(&self) -> &[u8] {
        &self.payload
    }

    /// [Ids](Keyspace::id) of the keyspaces of the operations, in the order of these, and those
    /// that have been dropped among them. An id may come several times.
    pub fn keyspace_ids(&self) -> impl Iterator<Item = u32> {
        let operations = LogOps::new(&self.payload, self.count).filter_map(|operation| operation.ok());
        operations.map(|operation| operation.keyspace())
    }

    /// The operations, in order. Those of keyspaces that had been dropped when the feed gave out
    /// the batch are left out.
    pub fn operations(&self) -> impl Iterator<Item = Operation<'_>> {
        // All of them were decoded before.
        let operations = LogOps::new(&self.payload, self.count).filter_map(|operation| operation.ok());
        operations.filter_map(|operation| {
            let keyspace = self.names.get(&operation.keyspace())?.as_deref()?;
            let seqno = self.first + u64::from(operation.index());
            let kind = match operation {
                LogOp::Write(operation) => OperationKind::of(operation.key, operation.kind, operation.value),
                LogOp::Ingest(ingest) => OperationKind::Ingest { tables: IngestedTables { ingest, seqno } },
            };
            Some(Operation { seqno, keyspace, kind })
        })
    }

    /// Copies the operations to a batch for `store`, into its keyspaces of these names. Missing
    /// keyspaces are created, with default options. Keyspaces with merges need their merge operator
    /// there too. A keyspace that the source has dropped and created anew must be dropped in
    /// `store` first: see [`Changes`](crate::Changes).
    ///
    /// Puts keep the deadlines that they have in the source, and those without one never expire: a
    /// ttl of the keyspaces in `store` does not apply to the batch, nor does
    /// [`WriteOptions::expiry`](crate::WriteOptions::expiry).
    ///
    /// Fails with [`Error::Ingested`] if the batch is an ingest: a batch cannot hold tables. The
    /// follower then copies what the tables change, as [`OperationKind::Ingest`] says, or begins
    /// again with [`Db::follow`].
    ///
    /// A follower that adds its position, [`last_seqno`](ChangeBatch::last_seqno), to the batch
    /// before it writes it, continues after a crash where it was.
    pub fn to_write_batch(&self, store: &Db) -> Result<WriteBatch> {
        let mut batch = WriteBatch::new();
        self.append_to(&mut batch, store)?;
        Ok(batch)
    }

    /// Appends the operations to a batch for `store`, as
    /// [`to_write_batch`](ChangeBatch::to_write_batch) copies them. A follower that writes several
    /// batches as one spends a quarter less time on each.
    ///
    /// What is said there of deadlines then holds for the whole of `batch`. After an error, `batch`
    /// has only some of the operations.
    pub fn append_to(&self, batch: &mut WriteBatch, store: &Db) -> Result<()> {
        batch.keep_deadlines();
        let mut keyspace: Option<Keyspace> = None;
        for operation in self.operations() {
            let former = keyspace.take().filter(|keyspace| keyspace.name() == operation.keyspace);
            let of = keyspace.insert(former.map_or_else(|| store.keyspace(operation.keyspace), Ok)?);
            match operation.kind {
                OperationKind::Put { key, value } => batch.put_in(of, key, value),
                OperationKind::PutWithExpiry { key, value, deadline } => {
                    batch.put_with_expiry_in(of, key, value, deadline);
                }
                OperationKind::Merge { key, operand } => batch.merge_in(of, key, operand),
                OperationKind::Delete { key } => batch.delete_in(of, key),
                OperationKind::Ingest { .. } => {
                    let keyspace = operation.keyspace.to_owned();
                    return Err(Error::Ingested { keyspace, seqno: operation.seqno });
                }
                OperationKind::DeleteRange { from, to } => {
                    batch.delete_range_in(of, (Bound::Included(from), to.map_or(Bound::Unbounded, Bound::Excluded)));
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ChangeBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeBatch").field("first", &self.first).field("last", &self.last_seqno()).finish()
    }
}
