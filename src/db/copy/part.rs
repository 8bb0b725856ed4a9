//! One keyspace of a store: [`LogPart`], its part of the logs, for an image; and
//! [`StoreCopy::keep_keyspace`], for a copy of the whole store.
//!
//! A keyspace's tables and value files are its own. The manifest is stated anew, without the other
//! keyspaces. The logs are not: what they have of a keyspace that is gone is passed over, and what
//! they have of the default keyspace is not, because that is always there. An image therefore has
//! a log of its own, in which operations on other keyspaces are only counted, as those on keyspaces
//! without a log are.

use std::path::Path;

use super::StoreCopy;
use crate::batch::{LogOp, LoggedPart};
use crate::db::write::logs::KeptLog;
use crate::error::{Error, IoContext, Result};
use crate::format::Malformed;
use crate::format::checksum::{FileChecksum, crc};
use crate::format::filename::FileKind;
use crate::format::header::{FileHeader, Magic, features};
use crate::format::key::SeqNo;
use crate::log::wal::{self, ManifestLogs, SyncedLog};
use crate::log::{LogWriter, NewRecord};
use crate::tree::manifest::{self, ManifestState, ManifestWriter};
use crate::vfs::{FileSystem, MemoryFileSystem, ReadableFile, read_small_file};

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;
/// Where logs are in memory.
const DIR: &str = ".";

/// What logs have of one keyspace after its last flush.
pub(super) struct LogPart {
    /// The log, if there is anything after the last flush.
    file: Option<(FileKind, Vec<u8>)>,
}

/// A record of the new log.
struct PartRecord {
    payload: Vec<u8>,
    count: u32,
}

impl LogPart {
    /// Reads the logs of a store up to number `seqno`, and has `state` name the new log in place of
    /// them.
    pub(super) fn take(logs: &[KeptLog], seqno: SeqNo, keyspace: u32, state: &mut ManifestState) -> Result<LogPart> {
        let (flushed, number) = (state.flushed_seqno, state.take_number());
        let (records, features) = records(logs, keyspace, state)?;
        (state.min_log, state.synced_log) = (number, None);
        if seqno == flushed {
            return Ok(LogPart { file: None });
        }
        if flushed + records.iter().map(|record| u64::from(record.count)).sum::<u64>() != seqno {
            let last = logs.last().map_or(0, |log| log.number);
            return Err(Error::corruption(&FileKind::Wal(last).path(Path::new(DIR)), 0, "it lacks the last writes"));
        }
        state.synced_log = Some(SyncedLog { number, seqno });
        let (memory, path) = (MemoryFileSystem::new(), FileKind::Wal(number).path(Path::new(DIR)));
        let header = FileHeader { features, number, first: flushed + 1, synced: flushed, ..FileHeader::default() };
        let mut writer = LogWriter::create(&memory, &path, Magic::Wal, header)?;
        for PartRecord { payload, count } in &records {
            writer.append([NewRecord { payload, payload_crc: crc(payload), count: *count }], 0)?;
        }
        writer.append_marker(seqno)?;
        writer.sync()?;
        drop(writer);
        let bytes = read_small_file(&memory, &path, usize::MAX).during("read", &path)?;
        Ok(LogPart { file: Some((FileKind::Wal(number), bytes)) })
    }

    pub(super) fn file(self) -> Option<(FileKind, Vec<u8>)> {
        self.file
    }
}

/// The records with all operations on one keyspace after those that `state` has in tables, and what
/// their reader needs.
fn records(logs: &[KeptLog], keyspace: u32, state: &ManifestState) -> Result<(Vec<PartRecord>, u32)> {
    let (memory, dir) = (MemoryFileSystem::new(), Path::new(DIR));
    for KeptLog { number, len, file } in logs {
        let path = FileKind::Wal(*number).path(dir);
        let copy = memory.create(&path).during("create", &path)?;
        read_whole(&**file, &path, *len, &mut |bytes| copy.append(bytes).during("write", &path))?;
    }
    let numbers: Vec<u64> = logs.iter().map(|log| log.number).collect();
    let known = ManifestLogs { flushed: state.flushed_seqno, synced_log: state.synced_log };
    // Of the other batches, only the number of operations is needed.
    let (mut records, mut passed, mut needed) = (Vec::new(), 0_u32, features::UNLOGGED);
    let pass = |records: &mut Vec<PartRecord>, passed: &mut u32| {
        let count = std::mem::take(passed);
        if count > 0 {
            records.push(PartRecord { payload: LoggedPart::none_of(count).payload.into_owned(), count });
        }
    };
    wal::recover(&memory, dir, &numbers, known, false, &mut |group| {
        group.batches().try_for_each(|batch| {
            let corrupt = |rule: Malformed| batch.corruption(dir, rule);
            let part = batch.part(|of| of == keyspace).map_err(corrupt)?;
            if part.has_operations {
                pass(&mut records, &mut passed);
                records.push(PartRecord { payload: part.payload.into_owned(), count: batch.count() });
                for operation in batch.operations() {
                    needed |= match operation.map_err(corrupt)? {
                        LogOp::Write(operation) => operation.kind.features(),
                        LogOp::Ingest(_) => features::INGEST | features::RANGE_DELETE,
                    };
                }
            } else if let Some(sum) = passed.checked_add(batch.count()) {
                passed = sum;
            } else {
                pass(&mut records, &mut passed);
                passed = batch.count();
            }
            Ok(())
        })
    })?;
    pass(&mut records, &mut passed);
    Ok((records, needed))
}

impl StoreCopy {
    /// Takes every keyspace out of the copy but the one called `name`, and returns the tables and
    /// value files that it needs: they alone are still to be written. `CURRENT`, the manifest and
    /// the logs have been written.
    ///
    /// The default keyspace stays in it, with what the logs have of it. Fails with
    /// [`Error::InvalidArgument`] if the copy has no such keyspace.
    pub fn keep_keyspace(&self, name: &str) -> Result<Vec<FileKind>> {
        let (fs, dir) = (&*self.fs, self.dir());
        let number = manifest::read_current(fs, dir)?.ok_or_else(|| Error::NotFound(dir.to_owned()))?;
        let mut state = manifest::load_number(fs, dir, number)?.state;
        let Some(id) = state.keyspaces.iter().find(|(_, keyspace)| keyspace.name == name).map(|(id, _)| *id) else {
            let names: Vec<String> = state.keyspaces.values().map(|keyspace| format!("{:?}", keyspace.name)).collect();
            return Err(Error::invalid(format_args!(
                "there is no keyspace {name:?} in it; it has {}",
                names.join(", ")
            )));
        };
        state.keep_only(id);
        let new = state.take_number();
        ManifestWriter::create(fs, dir, new, &state)?;
        let old = FileKind::Manifest(number).path(dir);
        fs.remove(&old).during("remove", &old)?;
        let kept = &state.keyspaces[&id];
        let tables = kept.tables().map(|(_, table)| FileKind::Table(table.number));
        Ok(tables.chain(kept.values.keys().map(|number| FileKind::Values(*number))).collect())
    }
}

/// Gives the first `len` bytes of a file to `take`; returns their checksum.
pub(super) fn read_whole(
    file: &dyn ReadableFile,
    path: &Path,
    len: u64,
    take: &mut impl FnMut(&[u8]) -> Result<()>,
) -> Result<u32> {
    let mut piece = vec![0; usize::try_from(len).unwrap_or(PIECE).min(PIECE)];
    let (mut checksum, mut offset) = (FileChecksum::default(), 0);
    while offset < len {
        let wanted = usize::try_from(len - offset).unwrap_or(PIECE).min(PIECE);
        let wanted = &mut piece[..wanted];
        let read = file.read_at(wanted, offset).during("read", path)?;
        if read < wanted.len() {
            return Err(Error::corruption(path, offset + read as u64, "the file is shorter than it was"));
        }
        checksum.update(wanted);
        take(wanted)?;
        offset += read as u64;
    }
    Ok(checksum.finish())
}
