//! The write-ahead log: log files whose records are batches and whose ordinals are sequence
//! numbers.
//!
//! A batch is one record, so it is replayed as a whole or not at all. Recovered batches may not
//! have been durable: unless the logs prove that they are, no later write may be acknowledged as
//! synced until they are in tables.
//!
//! Log files are not recycled. To populate the pages of a file that was written back costs 523 ns
//! per record of 160 bytes, fresh zeros 40 to 90 ns.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::{Ahead, ApplyError, LogChain, LogWriter, Record, replay};
use tamis_base::error::{Error, Result};
use tamis_base::format::filename::FileKind;
use tamis_base::format::header::{FileHeader, Magic};
use tamis_base::format::key::SeqNo;
use tamis_base::sync::{Mutex, thread};
use tamis_vfs::FileSystem;

mod relay;

use relay::{Apply, Relay};
pub use relay::{BatchGroup, LogBatch};

/// How the write-ahead log is written. Neither a write's promise nor the files' format depends on
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum WalMode {
    /// The fastest way for the store's file system. On Linux with ext4 or XFS, writes without
    /// `sync` are stored to mapped memory of the log, in space prepared beforehand. That is several
    /// times as fast as a system call. Elsewhere like [`WalMode::Write`].
    #[default]
    Auto,
    /// System calls only, to a file that grows with them.
    Write,
}

/// Creates the WAL that `header` describes, for `memtable_size` bytes of entries. The directory and
/// the log before must be synced before the first synced write in it is acknowledged.
pub fn create(
    fs: &dyn FileSystem,
    dir: &Path,
    header: FileHeader,
    mode: WalMode,
    memtable_size: usize,
) -> Result<LogWriter> {
    let path = FileKind::Wal(header.number).path(dir);
    let log = LogWriter::create(fs, &path, Magic::Wal, header)?;
    Ok(match mode {
        WalMode::Auto => {
            let part = memtable_size as u64 / STEPS_PER_LOG;
            log.with_prepared_space(part.clamp(*STEP.start(), *STEP.end()))
        }
        WalMode::Write => log,
    })
}

/// Maximum length of a log of `memtable_size` bytes of entries, unless a single write takes more.
/// Record overhead is a quarter at most, or else the log fills up before the memtable.
pub fn log_size(memtable_size: usize) -> u64 {
    let memtable_size = memtable_size as u64;
    memtable_size.saturating_add(memtable_size / 4)
}

/// Bytes of a log prepared at a time. A step is a pause for the writer at that moment, and a window
/// of mapped memory.
const STEP: RangeInclusive<u64> = 4 << 10..=512 << 10;
const STEPS_PER_LOG: u64 = 128;

/// Where the logs end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalEnd {
    /// The last sequence number, recovered or already flushed.
    pub last_seqno: SeqNo,
    /// File and offset of a torn tail, if any.
    pub torn: Option<(PathBuf, u64)>,
    /// Number and length of the last log. Behind that may be prepared zeros, or a torn record.
    pub last_log: Option<(u64, u64)>,
    /// Manifest and logs prove that everything up to this sequence number was on stable storage.
    pub synced: SeqNo,
}

/// A log that holds synced entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncedLog {
    pub number: u64,
    /// Every entry up to this one was on stable storage; this one is in this log.
    pub seqno: SeqNo,
}

/// What the manifest states about the logs.
#[derive(Clone, Copy, Debug)]
pub struct ManifestLogs {
    /// Everything up to this sequence number is in tables.
    pub flushed: SeqNo,
    pub synced_log: Option<SyncedLog>,
}

/// Applies the batches after `flushed` from the logs `numbers` (ascending, all that the manifest
/// still needs). `apply` gets them in order, several at a time. If there are many and `threaded`
/// allows it, another thread applies them. Also returns the logs that were read, to
/// [read on](read_on) when they have grown.
pub fn recover<'a>(
    fs: &dyn FileSystem,
    dir: &Path,
    numbers: &[u64],
    known: ManifestLogs,
    threaded: bool,
    apply: &'a mut Apply<'a>,
) -> Result<(WalEnd, Option<LogChain>)> {
    let ManifestLogs { flushed, synced_log } = known;
    if let Some(log) = synced_log.filter(|log| !numbers.contains(&log.number)) {
        let rule = format!("there is no such file, although entry {} in it was on stable storage", log.seqno);
        return Err(Error::corruption(&FileKind::Wal(log.number).path(dir), 0, rule));
    }
    let durable = synced_log.map_or(0, |log| log.seqno);
    let logs: Vec<_> = numbers.iter().map(|&number| (number, FileKind::Wal(number).path(dir))).collect();
    let apply = Mutex::new(apply);
    let (replayed, read) = thread::scope(|scope| {
        let mut relay = Relay::new(scope, &apply, threaded);
        let add = &mut |record: &Record<'_>| relay.add(record).map_err(ApplyError::Failed);
        let replayed = replay(fs, Magic::Wal, &logs, flushed + 1, durable, add);
        relay.finish()?;
        replayed
    })?;
    let synced = replayed.synced.max(durable).max(flushed);
    let end = WalEnd { last_seqno: replayed.next - 1, torn: replayed.torn, last_log: replayed.end, synced };
    Ok((end, LogChain::of(read)))
}

/// Applies the batches that were written to the logs in `dir` since `chain` was read.
pub fn read_on(
    fs: &dyn FileSystem,
    dir: &Path,
    chain: &mut LogChain,
    list: &mut dyn FnMut() -> Result<Vec<u64>>,
    apply: &mut dyn FnMut(LogBatch<'_>) -> Result<()>,
) -> Result<Ahead> {
    let path = |number| (number, FileKind::Wal(number).path(dir));
    let list = &mut || Ok(list()?.into_iter().map(path).collect());
    chain.read_on(fs, Magic::Wal, list, &mut |record| Ok(apply(LogBatch::of(record))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tamis_base::format::checksum::crc;

    use crate::NewRecord;
    use crate::op::{LogOp, OpKind, Write, encode_op};
    use crate::testing::{get_file, unhex};
    use tamis_vfs::OsFileSystem;

    fn write(dir: &Path) {
        let header = FileHeader { features: 0, number: 8, first: 101, synced: 90, previous: 5, previous_len: 4096 };
        let mut log = create(&OsFileSystem, dir, header, WalMode::Write, 0).unwrap();
        let batch = |operations: &[(u32, &[u8], Write<'_>)]| {
            let mut payload = Vec::new();
            for &(keyspace, key, write) in operations {
                encode_op(&mut payload, keyspace, key, write).unwrap();
            }
            (payload, operations.len())
        };
        let first = batch(&[(0, b"apple", Write::Put(b"red")), (1, b"pear", Write::Delete)]);
        let second = batch(&[(300, b"", Write::Put(b""))]);
        let records = [&first, &second].map(|(payload, count)| NewRecord {
            payload,
            payload_crc: crc(payload),
            count: u32::try_from(*count).unwrap(),
        });
        assert_eq!(log.append(records, 100).unwrap(), 101..104);
        log.append_marker(103).unwrap();
    }

    /// What recovery applies: keyspace, key, value (`None` for a delete) and sequence number of
    /// each operation.
    type AppliedOperations = Vec<(u32, Vec<u8>, Option<Vec<u8>>, SeqNo)>;

    fn recover_all(dir: &Path, numbers: &[u64], flushed: SeqNo) -> Result<(AppliedOperations, WalEnd)> {
        let mut applied = AppliedOperations::new();
        let (end, _) =
            recover(&OsFileSystem, dir, numbers, ManifestLogs { flushed, synced_log: None }, true, &mut |group| {
                for batch in group.batches() {
                    for op in batch.operations() {
                        let op = op.map_err(|rule| batch.corruption(dir, rule))?;
                        let LogOp::Write(op) = op else { panic!("{op:?}") };
                        let value = (op.kind == OpKind::Put).then(|| op.value.to_vec());
                        applied.push((op.keyspace, op.key.to_vec(), value, batch.first + u64::from(op.index)));
                    }
                }
                Ok(())
            })?;
        Ok((applied, end))
    }

    #[test]
    fn golden_wal_is_written_and_read() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        let golden = unhex(include_str!("../../../tests/golden/000008.wal.hex"));
        assert_eq!(get_file(&dir.path().join("000008.wal")), golden);

        let (applied, end) = recover_all(dir.path(), &[8], 100).unwrap();
        let expected = [
            (0, b"apple".to_vec(), Some(b"red".to_vec()), 101),
            (1, b"pear".to_vec(), None, 102),
            (300, vec![], Some(vec![]), 103),
        ];
        assert_eq!(applied, expected);
        let expected = WalEnd { last_seqno: 103, torn: None, last_log: Some((8, golden.len() as u64)), synced: 103 };
        assert_eq!(end, expected);
    }

    #[test]
    fn flushed_batches_are_not_applied_again() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        for (flushed, ops) in [(100, 3), (102, 1), (103, 0), (500, 0)] {
            let (applied, end) = recover_all(dir.path(), &[8], flushed).unwrap();
            assert_eq!(applied.len(), ops);
            assert_eq!(end.last_seqno, flushed.max(103));
        }
        let error = recover_all(dir.path(), &[8], 101).unwrap_err();
        assert!(matches!(error, Error::Corruption { offset: 64, .. }), "{error}");
        let error = recover_all(dir.path(), &[8], 99).unwrap_err();
        assert!(matches!(error, Error::Corruption { offset: 0, .. }), "{error}");
    }

    #[test]
    fn malformed_batch_in_a_verified_record_is_corruption_there() {
        let payloads = [&b"\x01\x00\x01k\x01v"[..], b"\x07", b""];
        for payload in payloads {
            let dir = tempfile::tempdir().unwrap();
            let header = FileHeader { number: 4, first: 1, ..FileHeader::default() };
            let mut log = create(&OsFileSystem, dir.path(), header, WalMode::Write, 0).unwrap();
            let good = b"\x00\x00\x01k";
            for (payload, count) in [(&good[..], 1), (payload, 2)] {
                let record = NewRecord { payload, payload_crc: crc(payload), count };
                log.append([record], 0).unwrap();
            }
            match recover_all(dir.path(), &[4], 0).unwrap_err() {
                Error::Corruption { file, offset, .. } => {
                    assert_eq!((file.as_path(), offset), (log.path(), 64 + 10 + 4));
                }
                error => panic!("{error}"),
            }
        }
    }

    #[test]
    fn existing_file_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        let header = FileHeader { number: 8, first: 1, ..FileHeader::default() };
        let result = create(&OsFileSystem, dir.path(), header, WalMode::Write, 0);
        assert!(matches!(result, Err(Error::Io { .. })));
    }
}
