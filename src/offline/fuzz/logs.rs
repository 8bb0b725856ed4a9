//! Targets for logs and their content.

use std::path::Path;

use super::files;
use crate::error::{Result, expect_typed};
use crate::format::checksum::{bound_crc, crc};
use crate::format::coding::{Decoder, set_u32, set_u64};
use crate::format::filename::FileKind;
use crate::format::header::{FILE_HEADER_LEN, FileHeader, Magic, features};
use crate::format::key::SeqNo;
use crate::format::record::RecordHeader;
use crate::log::reader::{LogReader, Step};
use crate::log::wal::{self, ManifestLogs};
use crate::tree::manifest::{self, ManifestState, VersionEdit};
use crate::vfs::{FileSystem, SimFileSystem};
use tamis_log::op::{LogOp, LogOps, Write, encode_op, put_ingest};

const DIR: &str = "/db";

/// A file system with a directory for a store.
pub(super) fn file_system() -> SimFileSystem {
    let fs = SimFileSystem::new();
    fs.create_dir(Path::new(DIR)).expect("a directory");
    fs.sync_dir(Path::new("/")).expect("synced");
    fs
}

fn put(fs: &SimFileSystem, kind: FileKind, bytes: &[u8]) {
    fs.write(kind.path(Path::new(DIR)), bytes).expect("a file");
}

/// Corrects the header of log `number`, and the checksums of its records up to the first one that
/// is not whole.
pub(super) fn seal_log(bytes: &mut [u8], magic: Magic, number: u64) {
    let Some(header) = bytes.first_chunk_mut::<FILE_HEADER_LEN>() else { return };
    let field = |at: usize| Decoder::new(&header[at..]).u64().expect("within the header");
    let (first, synced) = (field(24) % (1 << 40), field(32) % (1 << 40));
    let (previous, previous_len) = (field(40), field(48));
    let features = Decoder::new(&header[12..]).u32().expect("within the header") & features::KNOWN;
    *header = FileHeader { features, number, first, synced, previous, previous_len }.encode(magic);
    let mut offset = FILE_HEADER_LEN;
    while let Some(len) = seal_record(&mut bytes[offset..], number, offset as u64) {
        offset += len;
    }
}

/// Corrects the checksums of the record at the start of `bytes`. Returns its length if the record
/// is whole.
fn seal_record(bytes: &mut [u8], number: u64, offset: u64) -> Option<usize> {
    let mut fields = Decoder::new(bytes);
    fields.take(8).ok()?;
    let (marked_count, payload_len) = (fields.varint().ok()?, fields.varint_u32().ok()? as usize);
    if marked_count == 0 && payload_len == 0 {
        // Zeros prepared for more records.
        return None;
    }
    let statement = bytes.len() - fields.remaining();
    let is_stated = marked_count & 1 == 1;
    let header_len = statement + if is_stated { 16 } else { 0 };
    let end = header_len.checked_add(payload_len).filter(|&end| end <= bytes.len())?;
    if is_stated {
        set_u64(bytes, statement, number);
    }
    let payload_crc = crc(&bytes[header_len..end]);
    set_u32(bytes, 4, payload_crc);
    let header_crc = bound_crc(number, offset, &bytes[4..header_len]);
    set_u32(bytes, 0, header_crc);
    Some(end)
}

/// Reads the records of one log.
pub(super) fn log_records(sealed: bool, data: &[u8]) -> bool {
    const NUMBER: u64 = 8;
    let mut bytes = data.to_vec();
    if sealed {
        seal_log(&mut bytes, Magic::Wal, NUMBER);
    }
    let fs = file_system();
    put(&fs, FileKind::Wal(NUMBER), &bytes);
    let path = FileKind::Wal(NUMBER).path(Path::new(DIR));
    let Some(mut reader) = expect_typed(LogReader::open(&fs, &path, Magic::Wal, NUMBER)) else { return false };
    let Ok(header) = reader.header().copied().map_err(str::to_owned) else { return false };
    let (mut offset, mut next) = (FILE_HEADER_LEN, header.first);
    assert_eq!(bytes[..offset], header.encode(Magic::Wal));
    while let Step::Record(record) = reader.read().expect("a file system without faults") {
        assert_eq!((record.offset, record.first), (offset as u64, next));
        assert!(record.synced < record.first);
        let payload_len = u32::try_from(record.payload.len()).expect("the header holds 32 bits");
        let (count, synced) = (record.count, record.synced);
        let again = RecordHeader { payload_len, payload_crc: crc(record.payload), count, synced };
        let again = [again.encode(NUMBER, record.offset).as_slice(), record.payload].concat();
        assert_eq!(bytes[offset..offset + again.len()], again, "one record has one encoding");
        offset += again.len();
        next += u64::from(count);
    }
    let is_clean = bytes[offset..].iter().all(|&byte| byte == 0);
    let statement = reader.find_synced(next).expect("a file system without faults");
    assert!(statement.is_none_or(|(at, synced)| synced >= next && at <= bytes.len() as u64));
    is_clean && offset > FILE_HEADER_LEN
}

/// Replays several logs. The first byte is the sequence number up to which every entry is in
/// tables.
pub(super) fn log_replay(sealed: bool, data: &[u8]) -> bool {
    let Some((&flushed, data)) = data.split_first() else { return false };
    let fs = file_system();
    let mut numbers = Vec::new();
    for (number, (_, step, file)) in (3u64..).zip(files(data)).take(8) {
        let number = number + u64::from(step % 4) * 8;
        let mut file = file.to_vec();
        if sealed {
            seal_log(&mut file, Magic::Wal, number);
        }
        put(&fs, FileKind::Wal(number), &file);
        numbers.push(number);
    }
    numbers.sort_unstable();
    numbers.dedup();
    let known = ManifestLogs { flushed: flushed.into(), synced_log: None };
    let recover = || {
        let mut seqnos: Vec<SeqNo> = Vec::new();
        let end = wal::recover(&fs, Path::new(DIR), &numbers, known, false, &mut |group| {
            for batch in group.batches() {
                for op in batch.operations() {
                    let op = op.map_err(|rule| batch.corruption(Path::new(DIR), rule))?;
                    seqnos.push(batch.first + u64::from(op.index()));
                }
            }
            Ok(())
        });
        (expect_typed(end.map(|(end, _)| end)), seqnos)
    };
    let (end, seqnos) = recover();
    assert!(seqnos.is_sorted_by(|a, b| a < b) && seqnos.first().is_none_or(|first| *first > flushed.into()));
    let Some(end) = end else { return false };
    assert!(end.last_seqno >= seqnos.last().copied().unwrap_or(0));
    assert!(end.last_seqno >= u64::from(flushed));
    assert_eq!(recover(), (Some(end.clone()), seqnos.clone()));
    end.torn.is_none() && !seqnos.is_empty()
}

/// Decodes the payload of a WAL record. The first byte is the number of operations.
pub(super) fn batch(_sealed: bool, data: &[u8]) -> bool {
    let Some((&count, payload)) = data.split_first() else { return false };
    let operations: Result<Vec<_>, _> = LogOps::new(payload, count.into()).collect();
    let Ok(operations) = operations else { return false };
    assert!(operations.len() <= usize::from(count));
    assert!(
        operations.is_sorted_by(|a, b| a.index() < b.index()) && operations.iter().all(|op| op.index() < count.into())
    );
    if operations.len() < usize::from(count) {
        return true;
    }
    let mut again = Vec::new();
    for op in operations {
        match op {
            LogOp::Write(op) => {
                let write = Write::of(op.kind, op.value);
                encode_op(&mut again, op.keyspace, op.key, write).map(drop).expect("within the limits");
            }
            LogOp::Ingest(ingest) => put_ingest(&mut again, ingest.keyspace, ingest.edit).expect("within the limits"),
        }
    }
    assert_eq!(again, payload, "one batch has one encoding");
    true
}

/// Decodes the payload of a manifest record.
pub(super) fn manifest_edit(_sealed: bool, data: &[u8]) -> bool {
    let Ok(edit) = VersionEdit::decode(data) else { return false };
    let bytes = edit.encode();
    assert_eq!(VersionEdit::decode(&bytes).as_ref(), Ok(&edit));
    if let Ok(state) = ManifestState::from_snapshot(&edit) {
        assert_eq!(ManifestState::from_snapshot(&state.snapshot_edit()), Ok(state));
    }
    true
}

/// Reads `CURRENT`.
pub(super) fn current(sealed: bool, data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    if sealed {
        seal_current(&mut bytes);
    }
    let fs = file_system();
    put(&fs, FileKind::Current, &bytes);
    let Some(number) = expect_typed(manifest::read_current(&fs, Path::new(DIR))) else { return false };
    let number = number.expect("CURRENT exists");
    let name = FileKind::Manifest(number).name();
    let lines = format!("tamis 1\n{name}\n");
    assert_eq!(bytes, format!("{lines}crc32 {:08x}\n", crc(lines.as_bytes())).as_bytes(), "one number, one encoding");
    true
}

/// Replaces what follows the second line by a checksum of the first two lines.
pub(super) fn seal_current(bytes: &mut Vec<u8>) {
    let end = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(1).map(|(at, _)| at + 1);
    if let Some(end) = end {
        bytes.truncate(end);
        bytes.extend_from_slice(format!("crc32 {:08x}\n", crc(&bytes[..end])).as_bytes());
    }
}

/// Loads a manifest in force.
pub(super) fn manifest(sealed: bool, data: &[u8]) -> bool {
    const NUMBER: u64 = 3;
    let mut bytes = data.to_vec();
    if sealed {
        seal_log(&mut bytes, Magic::Manifest, NUMBER);
    }
    let fs = file_system();
    put(&fs, FileKind::Manifest(NUMBER), &bytes);
    let mut current = b"tamis 1\nMANIFEST-000003\n".to_vec();
    seal_current(&mut current);
    put(&fs, FileKind::Current, &current);
    let Some(loaded) = expect_typed(manifest::load(&fs, Path::new(DIR))) else { return false };
    let loaded = loaded.expect("CURRENT exists");
    assert_eq!(loaded.number, NUMBER);
    assert_eq!(ManifestState::from_snapshot(&loaded.state.snapshot_edit()).as_ref(), Ok(&loaded.state));
    loaded.is_durable
}
