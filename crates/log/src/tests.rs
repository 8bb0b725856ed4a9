//! Tests of writing, reading and replaying logs together, on files of the real file system.

use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;
use tempfile::TempDir;

use super::reader::{End, LogReader, Step};
use super::replay::{ApplyError, Replayed, replay};
use super::testing::{get_file, put_file};
use super::writer::{LogWriter, NewRecord};
use tamis_base::error::{Error, Result};
use tamis_base::format::Malformed;
use tamis_base::format::checksum::crc;
use tamis_base::format::filename::FileKind;
use tamis_base::format::header::{FILE_HEADER_LEN, FileHeader, Magic, of_version};
use tamis_base::format::key::MAX_SEQNO;
use tamis_base::format::record::RecordHeader;
use tamis_vfs::{Fault, FaultMode, FileSystem, OsFileSystem, SimFileSystem, read_small_file};

mod salvage;

/// What replay applied: the first ordinal and the payload of each record.
type AppliedRecords = Vec<(u64, Vec<u8>)>;

/// A directory of logs.
struct TestLogs {
    dir: TempDir,
    numbers: Vec<u64>,
}

impl TestLogs {
    fn new() -> TestLogs {
        TestLogs { dir: tempfile::tempdir().unwrap(), numbers: Vec::new() }
    }

    fn path(&self, number: u64) -> PathBuf {
        FileKind::Wal(number).path(self.dir.path())
    }

    /// Begins log `number` with ordinal `first`. Its header states everything up to `synced` to be
    /// durable.
    fn create(&mut self, number: u64, first: u64, synced: u64) -> LogWriter {
        self.numbers.push(number);
        let header = FileHeader { number, first, synced, ..FileHeader::default() };
        LogWriter::create(&OsFileSystem, &self.path(number), Magic::Wal, header).unwrap()
    }

    /// Creates log `number` with only its header.
    fn create_empty(&mut self, number: u64, first: u64, synced: u64) {
        self.numbers.push(number);
        let header = FileHeader { number, first, synced, ..FileHeader::default() };
        put_file(&self.path(number), &header.encode(Magic::Wal));
    }

    fn replay(&self, expected: u64) -> Result<(AppliedRecords, Replayed)> {
        let logs: Vec<_> = self.numbers.iter().map(|&n| (n, self.path(n))).collect();
        let mut applied = AppliedRecords::new();
        let (replayed, _) = replay(&OsFileSystem, Magic::Wal, &logs, expected, 0, &mut |record| {
            applied.push((record.first, record.payload.to_vec()));
            Ok(())
        })?;
        Ok((applied, replayed))
    }

    /// Checks that a replay from ordinal 1 on applies the records that begin with `firsts` and ends
    /// as `torn` says.
    #[track_caller]
    fn check(&self, firsts: &[u64], torn: Option<(u64, u64)>) {
        let (applied, replayed) = self.replay(1).unwrap();
        let applied: Vec<_> = applied.iter().map(|(first, _)| *first).collect();
        assert_eq!(applied, firsts);
        let torn = torn.map(|(number, offset)| (self.path(number), offset));
        assert_eq!(replayed.torn, torn);
    }

    /// Checks that replay reports damage at `offset` of log `number`.
    #[track_caller]
    fn check_corrupt(&self, number: u64, offset: u64) {
        check_corrupt(self.replay(1).map(drop), &self.path(number), offset);
    }
}

#[track_caller]
fn check_corrupt(result: Result<()>, path: &Path, at: u64) {
    match result {
        Err(Error::Corruption { file, offset, .. }) => {
            assert_eq!((file.as_path(), offset), (path, at));
        }
        other => panic!("{other:?} is not corruption"),
    }
}

/// Appends a record that takes `count` ordinals; returns its offset.
fn append(log: &mut LogWriter, payload: &[u8], count: u32, synced: u64) -> u64 {
    // The first append brings the file header, too.
    let offset = log.len().max(FILE_HEADER_LEN as u64);
    let payload_crc = crc(payload);
    let record = NewRecord { payload, payload_crc, count };
    log.append([record], synced).unwrap();
    offset
}

/// Four records of 1, 2, 1 and 3 ordinals; returns the offset of each, and where the last ends.
fn append_four(log: &mut LogWriter) -> [u64; 5] {
    let synced = log.next() - 1;
    [
        append(log, b"one", 1, synced),
        append(log, b"two and three", 2, synced),
        append(log, b"", 1, synced),
        append(log, b"five to seven", 3, synced),
        log.len(),
    ]
}

const FOUR_FIRSTS: [u64; 4] = [1, 2, 4, 5];

#[test]
fn log_cut_at_any_length_yields_the_records_before_the_cut() {
    let mut logs = TestLogs::new();
    let offsets = append_four(&mut logs.create(8, 1, 0));
    let bytes = get_file(&logs.path(8));
    let check_like = |content: &[u8]| {
        // The records that are equal in both are whole.
        let same = |end: u64| {
            let end = usize::try_from(end).unwrap();
            content.len() >= end && content[..end] == bytes[..end]
        };
        let whole = offsets[1..].iter().filter(|&&end| same(end)).count();
        let end = if same(offsets[0]) { offsets[whole] } else { 0 };
        put_file(&logs.path(8), content);
        // Zeros up to the end may have been prepared.
        let rest = &content[usize::try_from(end).unwrap()..];
        let torn = (end == 0 || rest.iter().any(|&byte| byte != 0)).then_some((8, end));
        logs.check(&FOUR_FIRSTS[..whole], torn);
    };
    for len in 0..=bytes.len() {
        check_like(&bytes[..len]);
        // Again, padded with zeros by the file system.
        let mut padded = bytes[..len].to_vec();
        padded.resize(bytes.len() + 100, 0);
        check_like(&padded);
    }
}

#[test]
fn only_zeros_are_a_clean_end() {
    let mut logs = TestLogs::new();
    let end = append_four(&mut logs.create(8, 1, 0))[4];
    let bytes = get_file(&logs.path(8));
    for (rest, is_clean) in [(&[0; 40][..], true), (&[0, 7, 0, 7, 0], false), (&[0xff], false), (&[0, 1], false)] {
        put_file(&logs.path(8), &[&bytes[..], rest].concat());
        logs.check(&FOUR_FIRSTS, (!is_clean).then_some((8, end)));
    }
}

#[test]
fn flipped_byte_without_proof_ends_the_log() {
    let mut logs = TestLogs::new();
    let offsets = append_four(&mut logs.create(8, 1, 0));
    let bytes = get_file(&logs.path(8));
    for i in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[i] ^= 0x10;
        put_file(&logs.path(8), &damaged);
        match i {
            0..FILE_HEADER_LEN => logs.check(&[], Some((8, 0))),
            _ => {
                let hit = offsets.iter().rposition(|&at| at <= i as u64).unwrap();
                logs.check(&FOUR_FIRSTS[..hit], Some((8, offsets[hit])));
            }
        }
    }
}

#[test]
fn flipped_byte_before_a_sync_marker_is_corruption() {
    let mut logs = TestLogs::new();
    let mut log = logs.create(8, 1, 0);
    let offsets = append_four(&mut log);
    log.append_marker(7).unwrap();
    logs.check(&FOUR_FIRSTS, None);
    let bytes = get_file(&logs.path(8));
    for i in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[i] ^= 0x10;
        put_file(&logs.path(8), &damaged);
        let hit = offsets.iter().rposition(|&at| at <= i as u64);
        match hit {
            None => logs.check_corrupt(8, 0),
            // The marker itself: nothing is missing.
            Some(4) => logs.check(&FOUR_FIRSTS, Some((8, offsets[4]))),
            Some(hit) => logs.check_corrupt(8, offsets[hit]),
        }
    }
}

#[test]
fn damage_is_corruption_only_if_what_is_lost_was_durable() {
    for (synced, corrupt) in [(3, false), (4, true)] {
        let mut logs = TestLogs::new();
        let mut log = logs.create(8, 1, 0);
        let offsets = append_four(&mut log);
        append(&mut log, b"eight", 1, synced);
        let mut bytes = get_file(&logs.path(8));
        bytes[usize::try_from(offsets[2]).unwrap()] ^= 1;
        put_file(&logs.path(8), &bytes);
        match corrupt {
            true => logs.check_corrupt(8, offsets[2]),
            false => logs.check(&[1, 2], Some((8, offsets[2]))),
        }
    }
}

#[test]
fn proof_reaches_back_from_later_logs() {
    // The proof is nowhere, in the next header, in the next log's record, or in that record after a
    // damaged header.
    for (header, record, damage_header, corrupt) in
        [(0, 4, false, false), (5, 5, false, true), (4, 5, false, true), (4, 5, true, true), (4, 4, true, false)]
    {
        let mut logs = TestLogs::new();
        let offsets = append_four(&mut logs.create(8, 1, 0));
        let mut log = logs.create(9, 8, header);
        append(&mut log, b"eight", 1, record);
        let bytes = get_file(&logs.path(8));
        let cut = usize::try_from(offsets[3]).unwrap();
        put_file(&logs.path(8), &bytes[..cut]);
        if damage_header {
            let mut bytes = get_file(&logs.path(9));
            bytes[60] ^= 1;
            put_file(&logs.path(9), &bytes);
        }
        // Log 8 is sound up to its end, so reading stops at a header that does not verify.
        let (number, offset) = if damage_header { (9, 0) } else { (8, offsets[3]) };
        match corrupt {
            true => logs.check_corrupt(number, offset),
            false => logs.check(&[1, 2, 4], Some((number, offset))),
        }
    }
}

#[test]
fn durable_entries_that_appear_while_the_log_is_read_are_no_damage() {
    let mut logs = TestLogs::new();
    let mut log = logs.create(8, 1, 0);
    let [_, second, _, fourth, _] = append_four(&mut log);
    append(&mut log, b"eight", 1, 7);
    let whole = get_file(&logs.path(8));
    let without = |offsets: &[u64]| {
        let mut bytes = whole.clone();
        offsets.iter().for_each(|&at| bytes[usize::try_from(at).unwrap()] ^= 1);
        put_file(&logs.path(8), &bytes);
    };
    without(&[second, fourth]);
    let mut applied = Vec::new();
    let files = [(8, logs.path(8))];
    // An open file keeps its content: each reading finds what the one before it made.
    let replayed = replay(&OsFileSystem, Magic::Wal, &files, 1, 0, &mut |record| {
        applied.push(record.first);
        without(&[fourth][..usize::from(record.first == 1)]);
        Ok(())
    });
    let Replayed { next, synced, torn, .. } = replayed.unwrap().0;
    assert_eq!((next, synced, torn), (9, 7, None));
    assert_eq!(applied, [1, 2, 4, 5, 8]);
}

#[test]
fn several_logs_are_one_sequence() {
    let mut logs = TestLogs::new();
    let mut log = logs.create(3, 1, 0);
    append_four(&mut log);
    log.append_marker(7).unwrap();
    logs.create_empty(5, 8, 7);
    let mut log = logs.create(6, 8, 7);
    append_four(&mut log);
    let (applied, replayed) = logs.replay(1).unwrap();
    assert_eq!(
        applied,
        [1, 2, 4, 5, 8, 9, 11, 12].map(|first| {
            let payload = match first % 7 {
                1 => &b"one"[..],
                2 => b"two and three",
                4 => b"",
                _ => b"five to seven",
            };
            (first, payload.to_vec())
        })
    );
    assert_eq!((replayed.next, replayed.synced, replayed.torn), (15, 7, None));
}

#[test]
fn missing_log_ends_the_sequence_or_is_corruption() {
    for (synced, corrupt) in [(7, false), (8, true)] {
        let mut logs = TestLogs::new();
        let end = append_four(&mut logs.create(3, 1, 0))[4];
        append(&mut logs.create(5, 9, synced), b"nine", 1, synced);
        match corrupt {
            true => logs.check_corrupt(3, end),
            false => logs.check(&FOUR_FIRSTS, Some((3, end))),
        }
        // Without the log before it, the gap is found where the next log begins.
        logs.numbers.remove(0);
        logs.check_corrupt(5, 0);
    }
    let mut logs = TestLogs::new();
    append(&mut logs.create(5, 9, 0), b"nine", 1, 0);
    logs.check(&[], Some((5, 0)));
}

#[test]
fn logs_that_end_before_what_is_known_to_be_durable_are_corrupt() {
    let mut logs = TestLogs::new();
    let end = append_four(&mut logs.create(8, 1, 0))[4];
    let files = [(8, logs.path(8))];
    let replay_to = |durable: u64| replay(&OsFileSystem, Magic::Wal, &files, 1, durable, &mut |_| Ok(())).map(drop);
    replay_to(7).unwrap();
    check_corrupt(replay_to(8), &logs.path(8), end);
}

#[test]
fn missing_log_is_named_and_not_the_sound_one_before_it() {
    let mut logs = TestLogs::new();
    append_four(&mut logs.create(3, 1, 0));
    let header = FileHeader { number: 5, first: 9, synced: 8, previous: 4, ..FileHeader::default() };
    let mut log = LogWriter::create(&OsFileSystem, &logs.path(5), Magic::Wal, header).unwrap();
    append(&mut log, b"nine", 1, 8);
    logs.numbers.push(5);
    logs.check_corrupt(4, 0);
}

#[test]
fn a_torn_marker_at_the_end_of_a_log_loses_no_entry() {
    // The marker that seals a log is not synced: a power cut may tear it although the next log was
    // synced.
    let mut logs = TestLogs::new();
    let mut log = logs.create(3, 1, 0);
    let end = append_four(&mut log)[4];
    log.append_marker(7).unwrap();
    append(&mut logs.create(4, 8, 7), b"eight", 1, 7);
    logs.create_empty(5, 9, 8);
    let bytes = get_file(&logs.path(3));
    let end = usize::try_from(end).unwrap();
    for len in end..bytes.len() {
        put_file(&logs.path(3), &bytes[..len]);
        logs.check(&[1, 2, 4, 5, 8], None);
    }
}

#[test]
fn log_made_by_a_recovery_supersedes_what_that_recovery_did_not_replay() {
    let mut logs = TestLogs::new();
    let offsets = append_four(&mut logs.create(5, 1, 0));
    append(&mut logs.create(6, 8, 0), b"eight", 1, 0);
    let bytes = get_file(&logs.path(5));
    let cut = usize::try_from(offsets[3]).unwrap();
    put_file(&logs.path(5), &bytes[..cut + 5]);
    logs.check(&[1, 2, 4], Some((5, offsets[3])));

    let mut log = logs.create(7, 5, 0);
    append(&mut log, b"five", 1, 0);
    append(&mut log, b"six", 1, 5);
    logs.check(&[1, 2, 4, 5, 6], None);

    // If a superseded log had stated that more was durable, the recovery would have failed.
    let header = FileHeader { number: 6, first: 8, synced: 5, ..FileHeader::default() };
    put_file(&logs.path(6), &header.encode(Magic::Wal));
    logs.check_corrupt(5, offsets[3]);
}

#[test]
fn entries_after_the_end_of_a_sealed_log_are_ignored() {
    // An append of several records failed after the first was in the file. The writer continued in
    // a new log.
    let mut logs = TestLogs::new();
    let mut log = logs.create(5, 1, 0);
    append_four(&mut log);
    append(&mut log, b"failed", 1, 0);
    let mut log = logs.create(6, 8, 7);
    append(&mut log, b"eight", 1, 7);
    let (applied, _) = logs.replay(1).unwrap();
    assert_eq!(applied.last(), Some(&(8, b"eight".to_vec())));
    logs.check(&[1, 2, 4, 5, 8], None);
}

#[test]
fn record_that_reaches_into_the_next_log_is_corruption() {
    let mut logs = TestLogs::new();
    let offsets = append_four(&mut logs.create(5, 1, 0));
    logs.create_empty(6, 7, 0);
    logs.check_corrupt(5, offsets[3]);
}

#[test]
fn known_entries_are_skipped() {
    let mut logs = TestLogs::new();
    let offsets = append_four(&mut logs.create(5, 1, 0));
    for (expected, applied) in [(1, 4), (2, 3), (4, 2), (5, 1), (8, 0), (20, 0)] {
        let (records, replayed) = logs.replay(expected).unwrap();
        assert_eq!(records.len(), applied, "{expected}");
        assert_eq!(replayed.next, expected.max(8));
    }
    // No batch is partly in tables.
    check_corrupt(logs.replay(3).map(drop), &logs.path(5), offsets[1]);
    check_corrupt(logs.replay(7).map(drop), &logs.path(5), offsets[3]);
}

#[test]
fn damage_to_known_entries_loses_nothing() {
    let mut logs = TestLogs::new();
    let mut log = logs.create(5, 1, 0);
    let offsets = append_four(&mut log);
    log.append_marker(7).unwrap();
    let mut bytes = get_file(&logs.path(5));
    bytes[70] ^= 1;
    put_file(&logs.path(5), &bytes);
    check_corrupt(logs.replay(7).map(drop), &logs.path(5), offsets[0]);
    let (applied, replayed) = logs.replay(8).unwrap();
    assert_eq!((applied.len(), replayed.next), (0, 8));

    append(&mut logs.create(6, 8, 7), b"eight", 1, 7);
    let (applied, replayed) = logs.replay(8).unwrap();
    assert_eq!((applied.len(), replayed.next), (1, 9));
    assert_eq!(replayed.torn, None);
}

#[test]
fn a_log_that_the_next_one_left_empty_counts_and_is_not_void() {
    // What its header says of earlier logs holds. Of a void log, which begins behind the next one,
    // nothing does.
    for (first, synced) in [(8, 7), (9, 0)] {
        let mut logs = TestLogs::new();
        append_four(&mut logs.create(5, 1, 0));
        logs.create_empty(6, first, synced);
        logs.create_empty(7, 8, 0);
        let (applied, replayed) = logs.replay(1).unwrap();
        let end = Some((7, FILE_HEADER_LEN as u64));
        assert_eq!((applied.len(), replayed), (4, Replayed { next: 8, synced, torn: None, end }));
    }
}

#[test]
fn new_log_with_a_torn_header_is_empty() {
    let mut logs = TestLogs::new();
    append_four(&mut logs.create(5, 1, 0));
    logs.numbers.push(6);
    for torn in [&b""[..], b"tami", b"tamiswal", &[0; 64], b"tamiswal\0\0\0\0"] {
        put_file(&logs.path(6), torn);
        logs.check(&FOUR_FIRSTS, Some((6, 0)));
    }
    append(&mut logs.create(7, 8, 7), b"eight", 1, 7);
    logs.check(&[1, 2, 4, 5, 8], None);
}

#[test]
fn later_version_is_refused_in_any_log() {
    let mut logs = TestLogs::new();
    append_four(&mut logs.create(5, 1, 0));
    logs.create_empty(6, 8, 0);
    for number in [5, 6] {
        let good = get_file(&logs.path(number));
        let (header, records) = good.split_first_chunk().unwrap();
        let later = [&of_version(*header, 2)[..], records].concat();
        put_file(&logs.path(number), &later);
        let error = logs.replay(1).unwrap_err();
        assert!(matches!(error, Error::Unsupported { found: 2, .. }), "{error}");
        put_file(&logs.path(number), &good);
    }
}

#[test]
fn failure_to_apply_names_the_record() {
    let mut logs = TestLogs::new();
    let offsets = append_four(&mut logs.create(5, 1, 0));
    let files = [(5, logs.path(5))];
    let run = |error: fn() -> ApplyError| {
        replay(&OsFileSystem, Magic::Wal, &files, 1, 0, &mut |record| match record.first {
            4 => Err(error()),
            _ => Ok(()),
        })
        .map(drop)
    };
    let malformed = run(|| Malformed("a rule").into());
    check_corrupt(malformed, &logs.path(5), offsets[2]);
    let failed = run(|| Error::Closed.into());
    assert!(matches!(failed, Err(Error::Closed)));
}

#[test]
fn no_logs_are_nothing_to_replay() {
    let (applied, replayed) = TestLogs::new().replay(9).unwrap();
    assert!(applied.is_empty());
    let expected = Replayed { next: 9, synced: 0, torn: None, end: None };
    assert_eq!(replayed, expected);
}

#[test]
fn records_longer_than_the_window_are_read() {
    let mut logs = TestLogs::new();
    let mut log = logs.create(5, 1, 0);
    let payloads: Vec<Vec<u8>> = [700_000, 700_000, 3, 2_500_000, 0, 1 << 20, 11]
        .iter()
        .zip(0u8..)
        .map(|(&len, fill)| vec![fill; len])
        .collect();
    for payload in &payloads {
        append(&mut log, payload, 1, 0);
    }
    let (applied, _) = logs.replay(1).unwrap();
    assert!(applied.iter().map(|(_, payload)| payload).eq(&payloads));

    let damaged = (FILE_HEADER_LEN + 2 * 4 + 1 + 3 + 700_000) as u64;
    // A proof is found far after the damage, also where two windows meet.
    append(&mut log, b"last", 1, 2);
    let mut bytes = get_file(&logs.path(5));
    bytes[700_200] ^= 1;
    put_file(&logs.path(5), &bytes);
    logs.check_corrupt(5, damaged);
    let meet = damaged + (1 << 20);
    bytes.truncate(usize::try_from(meet + 96).unwrap());
    for at in (meet - 45..meet + 2).chain([meet + 70]) {
        let marker = RecordHeader { payload_len: 0, payload_crc: 0, count: 0, synced: 2 }.encode(5, at);
        let mut bytes = bytes.clone();
        let start = usize::try_from(at).unwrap();
        bytes[start..start + marker.as_slice().len()].copy_from_slice(marker.as_slice());
        put_file(&logs.path(5), &bytes);
        logs.check_corrupt(5, damaged);
    }
}

/// Reads log 5 with a reader.
fn read_all(path: &Path) -> Result<(Vec<u64>, End)> {
    let mut reader = LogReader::open(&OsFileSystem, path, Magic::Wal, 5)?;
    let mut firsts = Vec::new();
    loop {
        match reader.read()? {
            Step::Record(record) => firsts.push(record.first),
            Step::End(end) => return Ok((firsts, end)),
        }
    }
}

#[test]
fn record_that_breaks_a_rule_although_its_checksum_matches_ends_the_log() {
    let good = RecordHeader { payload_len: 0, payload_crc: 0, count: 1, synced: 0 };
    let mut logs = TestLogs::new();
    logs.create_empty(5, 1, 0);
    let start = get_file(&logs.path(5));
    let check = |header: RecordHeader, rule: &str| {
        put_file(&logs.path(5), &[&start[..], header.encode(5, 64).as_slice(), b"tail"].concat());
        let (firsts, end) = read_all(&logs.path(5)).unwrap();
        assert!(firsts.is_empty());
        match end {
            End::Bad { offset: 64, reason } => assert!(reason.contains(rule), "{reason}"),
            other => panic!("{other:?}"),
        }
    };
    // The length is compared with the file before memory is allocated: 4 GiB would be noticed here.
    let payload_len = u32::MAX;
    check(RecordHeader { payload_len, ..good }, "cut short");
    check(RecordHeader { payload_len: 4, ..good }, "checksum of the payload");
    check(RecordHeader { count: 0, payload_len: 4, synced: 1, ..good }, "marker");
    check(RecordHeader { count: 0, ..good }, "does not verify");
    check(RecordHeader { synced: 1, ..good }, "durable before");
    let last = FileHeader { number: 5, first: MAX_SEQNO, ..FileHeader::default() };
    let start = last.encode(Magic::Wal);
    for (count, whole) in [(1, true), (2, false)] {
        let header = RecordHeader { count, ..good };
        put_file(&logs.path(5), &[&start[..], header.encode(5, 64).as_slice()].concat());
        let (_, end) = read_all(&logs.path(5)).unwrap();
        assert_eq!(end == End::Clean, whole, "{end:?}");
    }
}

#[test]
fn what_is_durable_is_stated_when_it_grows_and_in_every_interval() {
    let mut logs = TestLogs::new();
    let mut log = logs.create(5, 1, 0);
    for n in 0..100u64 {
        append(&mut log, &[7; 1000], 1, n - n % 10);
    }
    let mut reader = LogReader::open(&OsFileSystem, &logs.path(5), Magic::Wal, 5).unwrap();
    let (mut stated, mut interval, mut statements) = (0, 0, 0);
    while let Step::Record(record) = reader.read().unwrap() {
        let synced = (record.first - 1) / 10 * 10;
        let is_new = synced > stated || (synced > 0 && record.offset / 4096 > interval);
        assert_eq!(record.synced, if is_new { synced } else { 0 }, "record {}", record.first);
        statements += u64::from(is_new);
        (stated, interval) = (synced, record.offset / 4096);
    }
    assert!((23..40).contains(&statements), "{statements}");

    // Damage to two intervals, one with a statement in it, is not taken for a torn tail.
    let mut bytes = get_file(&logs.path(5));
    bytes[64 + 20 * 1010..][..8 << 10].fill(0xa5);
    put_file(&logs.path(5), &bytes);
    let error = logs.replay(1).unwrap_err();
    assert!(matches!(error, Error::Corruption { .. }), "{error}");
}

#[test]
fn header_that_calls_its_own_records_durable_is_corruption() {
    let logs = TestLogs { numbers: vec![5], ..TestLogs::new() };
    let header = FileHeader { number: 5, first: 1, synced: 1, ..FileHeader::default() };
    put_file(&logs.path(5), &header.encode(Magic::Wal));
    logs.check_corrupt(5, 0);
}

#[test]
fn a_log_begins_at_most_behind_the_last_ordinal() {
    let logs = TestLogs::new();
    for (first, is_sound) in [(MAX_SEQNO + 1, true), (MAX_SEQNO + 2, false)] {
        let header = FileHeader { number: 5, first, ..FileHeader::default() };
        put_file(&logs.path(5), &header.encode(Magic::Wal));
        match is_sound {
            true => assert_eq!(read_all(&logs.path(5)).unwrap(), (Vec::new(), End::Clean)),
            false => check_corrupt(read_all(&logs.path(5)).map(drop), &logs.path(5), 0),
        }
    }
}

/// The payloads of all records of log 5, how it ends, and where.
fn read_log(fs: &dyn FileSystem, path: &Path) -> (Vec<Vec<u8>>, End, u64) {
    let mut reader = LogReader::open(fs, path, Magic::Wal, 5).unwrap();
    let mut payloads = Vec::new();
    loop {
        match reader.read().unwrap() {
            Step::Record(record) => payloads.push(record.payload.to_vec()),
            Step::End(end) => break (payloads, end, reader.offset()),
        }
    }
}

/// Writes records as log 5, lazily where marked; returns its length.
fn write_log(fs: &dyn FileSystem, path: &Path, step: Option<u64>, records: &[(Vec<u8>, bool)]) -> Result<u64> {
    let header = FileHeader { number: 5, first: 1, ..FileHeader::default() };
    let mut log = LogWriter::create(fs, path, Magic::Wal, header)?;
    if let Some(step) = step {
        log = log.with_prepared_space(step);
    }
    for (payload, lazily) in records {
        let record = NewRecord { payload, payload_crc: crc(payload), count: 1 };
        match lazily {
            true => log.append_lazily([record, record], 0)?,
            false => log.append([record, record], 0)?,
        };
    }
    Ok(log.len())
}

#[test]
fn log_is_written_without_preparation_where_that_fails() {
    let records: Vec<_> = (0..200u8).map(|n| (vec![n; 100], n % 5 > 0)).collect();
    let path = Path::new("/000005.wal");
    let fs = SimFileSystem::new();
    write_log(&fs, path, None, &records).unwrap();
    let whole = read_log(&fs, path);
    let mut struck = 0;
    // A failed preparation never fails an append.
    for at in 1..400 {
        let fs = SimFileSystem::new();
        fs.set_fault(Some(Fault { at, mode: FaultMode::NoSpace, sticky: false }));
        // Otherwise the fault struck an append.
        if write_log(&fs, path, Some(4096), &records).is_ok() {
            struck += u64::from(fs.fault_hit());
            assert_eq!(read_log(&fs, path), whole);
        }
    }
    assert!(struck > 10, "{struck}");
}

/// A process killed while it stores a record leaves part of the payload without a header, then part
/// of the header.
#[test]
fn half_stored_record_is_not_read() {
    let path = Path::new("/000005.wal");
    let fs = SimFileSystem::new();
    let len = write_log(&fs, path, Some(4096), &[(b"one".to_vec(), true)]).unwrap();
    let before = read_log(&fs, path);
    assert_eq!((before.1.clone(), before.2), (End::Clean, len));
    let payload = b"half";
    let header = RecordHeader { payload_len: 4, payload_crc: crc(payload), count: 1, synced: 0 }.encode(5, len);
    let header = header.as_slice();
    let start = usize::try_from(len).unwrap();
    let mut bytes = fs.read(path).unwrap();
    let body = start + header.len()..start + header.len() + payload.len();
    let order = body.zip(payload).chain((start..).zip(header)).map(|(at, byte)| (at, *byte));
    let last = order.clone().filter(|(_, byte)| *byte != 0).last().unwrap();
    for (at, byte) in order {
        let whole = (at, byte) == last;
        bytes[at] = byte;
        fs.write(path, bytes.clone()).unwrap();
        let (payloads, end, offset) = read_log(&fs, path);
        if whole {
            assert_eq!((payloads.last().map(Vec::as_slice), end), (Some(&payload[..]), End::Clean));
            return;
        }
        assert!(matches!(end, End::Bad { offset, .. } if offset == len), "{end:?}");
        assert_eq!((&payloads, offset), (&before.0, len));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn stores_and_calls_make_the_same_log(
        records in vec((vec(any::<u8>(), 0..700), any::<bool>()), 0..60),
        step in 1000u64..9000,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("000005.wal");
        let sim = SimFileSystem::new();
        sim.create_dir(dir.path()).unwrap();
        let plain = Path::new("/000005.wal");
        let len = write_log(&sim, plain, None, &records).unwrap();
        let expected = sim.read(plain).unwrap();
        prop_assert_eq!(len, expected.len() as u64);
        for fs in [&sim as &dyn FileSystem, &OsFileSystem] {
            prop_assert_eq!(write_log(fs, &path, Some(step), &records).unwrap(), len);
            let bytes = read_small_file(fs, &path, 1 << 20).unwrap();
            let (content, rest) = bytes.split_at(expected.len());
            prop_assert!(content == expected);
            prop_assert!(rest.iter().all(|&byte| byte == 0));
            prop_assert!(rest.len() as u64 <= step.max(4096) + 4096);
            if len > 0 {
                prop_assert_eq!(read_log(fs, &path), read_log(&sim, plain));
            }
        }
    }

    #[test]
    fn groups_in_several_logs_come_back(
        groups in vec(vec((vec(any::<u8>(), 0..100), 1u32..5), 0..5), 1..12),
        rotate in 1usize..5,
    ) {
        let mut logs = TestLogs::new();
        let mut log = logs.create(1, 1, 0);
        let mut expected = AppliedRecords::new();
        for (i, group) in groups.iter().enumerate() {
            if i % rotate == rotate - 1 {
                let next = log.next();
                log.append_marker(next - 1).unwrap();
                log = logs.create(i as u64 + 2, next, next - 1);
            }
            let records: Vec<_> = group
                .iter()
                .map(|(payload, count)| NewRecord { payload, payload_crc: crc(payload), count: *count })
                .collect();
            let mut first = log.next();
            let taken = log.append(records, first - 1).unwrap();
            prop_assert_eq!(taken.start, first);
            for (payload, count) in group {
                expected.push((first, payload.clone()));
                first += u64::from(*count);
            }
            prop_assert_eq!(taken.end, first);
        }
        let (applied, replayed) = logs.replay(1).unwrap();
        prop_assert_eq!(applied, expected);
        prop_assert_eq!((replayed.next, replayed.torn), (log.next(), None));
    }

    #[test]
    fn arbitrary_bytes_never_panic(tail in vec(any::<u8>(), 0..300), edits in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6)) {
        let mut logs = TestLogs::new();
        append_four(&mut logs.create(5, 1, 0));
        append_four(&mut logs.create(6, 8, 3));
        for number in [5, 6] {
            let mut bytes = get_file(&logs.path(number));
            bytes.extend(&tail);
            for (at, byte) in &edits {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            put_file(&logs.path(number), &bytes);
        }
        let _ = logs.replay(1);
        put_file(&logs.path(5), &tail);
        let _ = logs.replay(1);
    }
}
