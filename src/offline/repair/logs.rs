//! The logs: whether they are good, and new tables of what can be read of them if they are not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::tables::{Target, Writer};
use crate::error::Result;
use crate::format::Malformed;
use crate::format::filename::FileKind;
use crate::format::header::Magic;
use crate::format::key::SeqNo;
use crate::memory::pool::Pool;
use crate::options::KeyspaceOptions;
use crate::sorted::table::{Origin, TableMeta};
use crate::tree::manifest::ManifestState;
use crate::vfs::FileSystem;
use crate::write::batch::{BatchReader, Op};
use crate::write::log::{LogGap, Needed, Record, salvage};
use crate::write::memtable::Memtable;
use crate::write::wal;

/// Entries of logs that are gathered in memory before they go to tables.
const MEMTABLE_SIZE: usize = 32 << 20;

/// The last sequence number that opening would recover. Fails as opening would: if the logs
/// `numbers` do not hold all that was durable and is not in tables by `state`.
pub(super) fn check(fs: &dyn FileSystem, dir: &Path, numbers: &[u64], state: &ManifestState) -> Result<SeqNo> {
    let known = wal::Known { flushed: state.flushed_seqno, synced_log: state.synced_log };
    let known_ids = state.next_file_number;
    let mut check = |stretch: wal::Stretch<'_>| {
        stretch.batches().try_for_each(|batch| {
            batch.operations().try_for_each(|operation| match operation {
                Ok(operation) if u64::from(operation.keyspace) < known_ids => Ok(()),
                Ok(_) => {
                    let rule = Malformed("a batch names a keyspace that the manifest does not know of");
                    Err(batch.corruption(dir, rule))
                }
                Err(rule) => Err(batch.corruption(dir, rule)),
            })
        })
    };
    wal::recover(fs, dir, numbers, known, false, &mut check).map(|end| end.last_seqno)
}

/// What came of reading damaged logs.
#[derive(Default)]
pub(super) struct Read {
    pub(super) gaps: Vec<LogGap>,
    /// The last sequence number that was read, or that the logs mention.
    pub(super) last_seqno: SeqNo,
    /// Operations that were handed on.
    pub(super) entries: u64,
}

/// Which operations are wanted.
pub(super) struct Wanted {
    /// The logs, ascending.
    pub(super) numbers: Vec<u64>,
    /// What is up to here is in tables.
    pub(super) flushed: SeqNo,
    /// What is up to here is in tables, or was, of each keyspace.
    pub(super) floors: BTreeMap<u32, SeqNo>,
    /// The logs need not hold what is up to here; it may be in tables.
    pub(super) elsewhere: SeqNo,
    /// What the manifest says was on stable storage in the logs.
    pub(super) synced: Option<wal::SyncedLog>,
}

/// Hands all operations that are wanted to `take`, in order.
pub(super) fn read(
    fs: &dyn FileSystem,
    dir: &Path,
    wanted: &Wanted,
    take: &mut dyn FnMut(&Op<'_>, SeqNo) -> Result<()>,
) -> Result<Read> {
    let path = |&number: &u64| (number, FileKind::Wal(number).path(dir));
    let logs: Vec<(u64, PathBuf)> = wanted.numbers.iter().map(path).collect();
    let mut read = Read::default();
    let mut apply = |record: &Record<'_>| -> Result<()> {
        let operations: Result<Vec<Op<'_>>, Malformed> = BatchReader::new(record.payload, record.count).collect();
        match operations {
            Ok(operations) => {
                for (operation, seqno) in operations.iter().zip(record.first..) {
                    if seqno > wanted.floors.get(&operation.keyspace).copied().unwrap_or(0) {
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
            }),
        }
        Ok(())
    };
    let needed = Needed { expected: wanted.flushed + 1, elsewhere: wanted.elsewhere.max(wanted.flushed) };
    let salvaged = salvage(fs, Magic::Wal, &logs, needed, &mut apply)?;
    read.gaps.extend(salvaged.gaps);
    read.last_seqno = salvaged.next - 1;
    let known = read.last_seqno.max(needed.elsewhere);
    if let Some(synced) = wanted.synced.filter(|synced| synced.seqno > known) {
        read.gaps.push(LogGap {
            file: path(&synced.number).1,
            offset: 0,
            bytes: 0,
            ordinals: Some(synced.seqno - known),
            rule: format!("its entries up to {} were on stable storage, and are gone", synced.seqno),
        });
        read.last_seqno = synced.seqno;
    }
    Ok(read)
}

/// Writes what the logs hold to tables of level 0. `define` gives name and options of a keyspace,
/// `None` for one that was dropped.
pub(super) fn write(
    fs: &dyn FileSystem,
    dir: &Path,
    wanted: &Wanted,
    writer: &Writer<'_>,
    define: &dyn Fn(u32) -> Option<(String, KeyspaceOptions)>,
) -> Result<(Read, Vec<(u32, TableMeta)>)> {
    let pool = Pool::new(2 * MEMTABLE_SIZE);
    let new = || Arc::new(Memtable::new(0, MEMTABLE_SIZE, writer.seed, &pool));
    let (mut memtable, mut written) = (new(), Vec::new());
    let mut flush = |memtable: &Arc<Memtable>| -> Result<()> {
        for (id, keys) in memtable.keyspaces() {
            let Some((name, options)) = define(id) else { continue };
            let target = Target { id, name: &name, options: &options, level: 0, keys };
            let inputs = wanted.numbers.iter().map(|&number| crate::sorted::table::Input { number, is_replaced: true });
            let origin = Origin { flushed: wanted.flushed, inputs: inputs.collect(), ..Origin::default() };
            let tables = writer.write(&mut memtable.flush_cursor(id), target, u64::MAX, origin)?;
            written.extend(tables.into_iter().map(|meta| (id, meta)));
        }
        Ok(())
    };
    let read = read(fs, dir, wanted, &mut |operation, seqno| {
        if define(operation.keyspace).is_none() {
            return Ok(());
        }
        if memtable.used() >= MEMTABLE_SIZE {
            flush(&memtable)?;
            memtable = new();
        }
        let mut inserter = memtable.writer();
        inserter.insert(operation.keyspace, operation.key, seqno, operation.kind, operation.value);
        Ok(())
    })?;
    flush(&memtable)?;
    Ok((read, written))
}
