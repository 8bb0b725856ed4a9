//! Checks the logs, and writes new tables from what is readable of damaged ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::tables::{TableWriter, TargetKeyspace};
use crate::error::Result;
use crate::filter::KeyHash;
use crate::format::Malformed;
use crate::format::filename::FileKind;
use crate::format::header::Magic;
use crate::format::key::SeqNo;
use crate::log::op::{LogOp, LogOps, Op, OpKind};
use crate::log::wal;
use crate::log::{LogGap, Needed, Record, salvage};
use crate::memory::pool::MemtablePool;
use crate::sorted::memtable::Memtable;
use crate::sorted::table::{Ingested, Origin, TableMeta};
use crate::tree::insert::apply;
use crate::tree::manifest::{ManifestState, RANGE_LEVEL, missing_tables, stated_tables};
use crate::tree::options::KeyspaceOptions;
use crate::vfs::FileSystem;

/// Bytes of log entries that are gathered in memory before they go to tables.
const MEMTABLE_SIZE: usize = 32 << 20;

/// What opening would recover.
pub(super) struct SoundLogs {
    pub(super) last_seqno: SeqNo,
    /// Tables of ingests that the manifest does not know yet.
    pub(super) ingested: Vec<AddedTable>,
}

/// What opening would recover. Fails as opening would, if the logs `numbers` lack entries that were
/// durable and are not in tables by `state`.
pub(super) fn check(fs: &dyn FileSystem, dir: &Path, numbers: &[u64], state: &ManifestState) -> Result<SoundLogs> {
    let known = wal::ManifestLogs { flushed: state.flushed_seqno, synced_log: state.synced_log };
    let known_ids = state.next_file_number;
    let mut ingested = Vec::new();
    let mut check = |group: wal::BatchGroup<'_>| {
        group.batches().try_for_each(|batch| {
            batch.operations().try_for_each(|operation| match operation {
                Ok(operation) if u64::from(operation.keyspace()) >= known_ids => {
                    let rule = Malformed("a batch names a keyspace that the manifest does not know of");
                    Err(batch.corruption(dir, rule))
                }
                Ok(LogOp::Write(_)) => Ok(()),
                Ok(LogOp::Ingest(ingest)) => {
                    let seqno = batch.first + u64::from(ingest.index);
                    let tables = missing_tables(&ingest, seqno, state).map_err(|rule| batch.corruption(dir, rule))?;
                    ingested.extend(tables.into_iter().map(|(level, meta)| (ingest.keyspace, level, meta)));
                    Ok(())
                }
                Err(rule) => Err(batch.corruption(dir, rule)),
            })
        })
    };
    let (end, _) = wal::recover(fs, dir, numbers, known, false, &mut check)?;
    Ok(SoundLogs { last_seqno: end.last_seqno, ingested })
}

/// Whether damaged logs write to a keyspace that `state` has not created yet, or ingest into one.
pub(super) fn name_unknown_keyspace(
    fs: &dyn FileSystem,
    dir: &Path,
    selection: &LogSelection,
    state: &ManifestState,
) -> Result<bool> {
    let mut found = false;
    let mut look = |record: &Record<'_>| {
        let mut operations = LogOps::new(record.payload, record.count).filter_map(|operation| operation.ok());
        found |= operations.any(|operation| u64::from(operation.keyspace()) >= state.next_file_number);
        Ok(())
    };
    salvage(fs, Magic::Wal, &selection.paths(dir), selection.needed(), &mut look)?;
    Ok(found)
}

/// The outcome of reading damaged logs.
#[derive(Default)]
pub(super) struct SalvagedLogs {
    pub(super) gaps: Vec<LogGap>,
    /// The last sequence number that was read, or that the logs mention.
    pub(super) last_seqno: SeqNo,
    /// Number of operations passed to the callback.
    pub(super) entries: u64,
}

impl SalvagedLogs {
    /// Notes a gap if entries that were on stable storage are neither in what was read nor up to
    /// `elsewhere`.
    fn note_lost_end(&mut self, dir: &Path, synced: wal::SyncedLog, elsewhere: SeqNo) {
        let known = self.last_seqno.max(elsewhere);
        if synced.seqno <= known {
            return;
        }
        self.gaps.push(LogGap {
            file: FileKind::Wal(synced.number).path(dir),
            offset: 0,
            bytes: 0,
            ordinals: Some(synced.seqno - known),
            rule: format!("its entries up to {} were on stable storage, but are gone", synced.seqno),
            may_be_elsewhere: false,
        });
        self.last_seqno = synced.seqno;
    }
}

/// The logs to replay, and the operations that are not needed from them.
pub(super) struct LogSelection {
    /// The logs, ascending.
    pub(super) numbers: Vec<u64>,
    /// Entries up to this one are in tables.
    pub(super) flushed: SeqNo,
    /// By keyspace: entries up to this one are in tables, or were.
    pub(super) floors: BTreeMap<u32, SeqNo>,
    /// Entries up to this one may be in tables: the logs need not hold them.
    pub(super) elsewhere: SeqNo,
    /// Entries up to this one are in tables whatever their keyspace.
    pub(super) certainly_elsewhere: SeqNo,
    /// What the manifest says was on stable storage in the logs.
    pub(super) synced: Option<wal::SyncedLog>,
}

impl LogSelection {
    /// All entries of these logs after number `flushed`, up to which all are in tables.
    pub(super) fn after(flushed: SeqNo, numbers: &[u64]) -> LogSelection {
        LogSelection {
            numbers: numbers.to_vec(),
            flushed,
            floors: BTreeMap::new(),
            elsewhere: flushed,
            certainly_elsewhere: flushed,
            synced: None,
        }
    }

    fn paths(&self, dir: &Path) -> Vec<(u64, PathBuf)> {
        self.numbers.iter().map(|&number| (number, FileKind::Wal(number).path(dir))).collect()
    }

    fn needed(&self) -> Needed {
        Needed {
            expected: self.flushed + 1,
            elsewhere: self.elsewhere.max(self.flushed),
            certainly_elsewhere: self.certainly_elsewhere.max(self.flushed),
        }
    }
}

/// The tables that ingests in readable records add, each with the number of its ingest. A gap
/// before it makes that a lower bound, as for other operations.
pub(super) fn ingested(fs: &dyn FileSystem, dir: &Path, selection: &LogSelection) -> Result<Vec<(SeqNo, AddedTable)>> {
    let mut found = Vec::new();
    let mut apply = |record: &Record<'_>| {
        for operation in LogOps::new(record.payload, record.count) {
            if let Ok(LogOp::Ingest(ingest)) = operation {
                let seqno = record.first + u64::from(ingest.index);
                let tables = stated_tables(&ingest).unwrap_or_default().into_iter();
                found.extend(tables.map(|(level, meta)| (seqno, (ingest.keyspace, level, meta))));
            }
        }
        Ok(())
    };
    salvage(fs, Magic::Wal, &selection.paths(dir), selection.needed(), &mut apply)?;
    Ok(found)
}

/// The tables of ingests that damaged logs still tell of, and that the manifest does not know yet.
pub(super) fn ingested_in_damaged(
    fs: &dyn FileSystem,
    dir: &Path,
    logs: &LogSelection,
    state: &ManifestState,
) -> Result<Vec<AddedTable>> {
    let mut found: BTreeMap<u64, AddedTable> = BTreeMap::new();
    for (seqno, (id, level, meta)) in ingested(fs, dir, logs)? {
        if seqno > state.ingested && state.keyspaces.contains_key(&id) && !state.has_table(meta.number) {
            // Numbered like what the logs have before and after it.
            let ingested = meta.ingested.map(|of| Ingested { seqno, ..of });
            let meta = TableMeta { ingested, smallest_seqno: seqno, largest_seqno: seqno, ..meta };
            found.insert(meta.number, (id, level, meta));
        }
    }
    Ok(found.into_values().collect())
}

/// Passes all needed operations to `take`, in order.
pub(super) fn read(
    fs: &dyn FileSystem,
    dir: &Path,
    selection: &LogSelection,
    take: &mut dyn FnMut(&Op<'_>, SeqNo) -> Result<()>,
) -> Result<SalvagedLogs> {
    let mut read = SalvagedLogs::default();
    let mut apply = |record: &Record<'_>| -> Result<()> {
        let operations: Result<Vec<LogOp<'_>>, Malformed> = LogOps::new(record.payload, record.count).collect();
        match operations {
            Ok(operations) => {
                for operation in &operations {
                    let LogOp::Write(operation) = operation else { continue };
                    let seqno = record.first + u64::from(operation.index);
                    // A table of entries says nothing of the ranges before its last one, and
                    // applying a range twice does no harm.
                    let is_above = seqno > selection.floors.get(&operation.keyspace).copied().unwrap_or(0);
                    if is_above || operation.kind == OpKind::DeleteRange {
                        read.entries += 1;
                        take(operation, seqno)?;
                    }
                }
            }
            Err(rule) => read.gaps.push(LogGap {
                file: record.file.to_owned(),
                offset: record.offset,
                bytes: record.payload.len() as u64,
                ordinals: Some(record.count.into()),
                rule: rule.0.to_owned(),
                may_be_elsewhere: false,
            }),
        }
        Ok(())
    };
    let needed = selection.needed();
    let salvaged = salvage(fs, Magic::Wal, &selection.paths(dir), needed, &mut apply)?;
    read.gaps.extend(salvaged.gaps);
    read.last_seqno = salvaged.next - 1;
    if let Some(synced) = selection.synced {
        read.note_lost_end(dir, synced, needed.elsewhere);
    }
    Ok(read)
}

/// A table with its keyspace and level.
pub(super) type AddedTable = (u32, u8, TableMeta);

/// Writes what the logs hold to tables. `define` returns name and options of a keyspace, `None` if
/// it was dropped.
pub(super) fn write(
    fs: &dyn FileSystem,
    dir: &Path,
    selection: &LogSelection,
    writer: &TableWriter<'_>,
    define: &dyn Fn(u32) -> Option<(String, KeyspaceOptions)>,
) -> Result<(SalvagedLogs, Vec<AddedTable>)> {
    let pool = MemtablePool::new(2 * MEMTABLE_SIZE);
    let new = || Arc::new(Memtable::new(0, MEMTABLE_SIZE, writer.seed, &pool));
    let (mut memtable, mut written) = (new(), Vec::new());
    let mut flush = |memtable: &Arc<Memtable>| -> Result<()> {
        for (id, keys) in memtable.keyspaces() {
            let Some((name, options)) = define(id) else { continue };
            let target = TargetKeyspace { id, name: &name, options: &options, level: 0, keys };
            let inputs =
                selection.numbers.iter().map(|&number| crate::sorted::table::Input { number, is_replaced: true });
            let origin = Origin { flushed: selection.flushed, inputs: inputs.collect(), ..Origin::default() };
            let tables = writer.write(&mut memtable.flush_cursor(id), target, u64::MAX, origin.clone())?;
            written.extend(tables.into_iter().map(|meta| (id, 0, meta)));
            let ranges = writer.write_ranges(memtable.range_deletes(id).collect(), target, origin)?;
            written.extend(ranges.map(|meta| (id, RANGE_LEVEL, meta)));
        }
        Ok(())
    };
    let read = read(fs, dir, selection, &mut |operation, seqno| {
        if define(operation.keyspace).is_none() {
            return Ok(());
        }
        if memtable.used() >= MEMTABLE_SIZE {
            flush(&memtable)?;
            memtable = new();
        }
        let hash = KeyHash::new(writer.seed, operation.key);
        apply(&mut memtable.writer(), operation, hash, seqno, || None);
        Ok(())
    })?;
    flush(&memtable)?;
    Ok((read, written))
}
