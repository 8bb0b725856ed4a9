//! Tests of reading logs past damage.

use super::super::Record;
use super::super::reader::RecordSpan;
use super::super::salvage::{LogGap, Needed, salvage};
use super::*;

/// The file's number, and a gap in it: offset, bytes, ordinals.
type Gap = (u64, u64, u64, Option<u64>);

const ALL: Needed = needed(1, 0);

const fn needed(expected: u64, elsewhere: u64) -> Needed {
    Needed { expected, elsewhere, certainly_elsewhere: elsewhere }
}

impl TestLogs {
    /// The first ordinals of the salvaged records, the gaps, and the ordinal after all.
    fn salvage(&self, needed: Needed) -> (Vec<u64>, Vec<LogGap>, u64) {
        let logs: Vec<_> = self.numbers.iter().map(|&n| (n, self.path(n))).collect();
        let mut firsts = Vec::new();
        let salvaged = salvage(&OsFileSystem, Magic::Wal, &logs, needed, &mut |record| {
            firsts.push(record.first);
            Ok(())
        });
        let salvaged = salvaged.unwrap();
        (firsts, salvaged.gaps, salvaged.next)
    }

    /// Checks what is salvaged, where nothing may be elsewhere that is not certainly there.
    #[track_caller]
    fn check_salvage(&self, needed: Needed, firsts: &[u64], gaps: &[Gap], next: u64) {
        let (found, told, after) = self.salvage(needed);
        assert!(told.iter().all(|gap| !gap.may_be_elsewhere));
        let number = |file: &Path| self.numbers.iter().find(|number| self.path(**number) == file).copied().unwrap();
        let told: Vec<Gap> = told.iter().map(|gap| (number(&gap.file), gap.offset, gap.bytes, gap.ordinals)).collect();
        assert_eq!((found.as_slice(), told.as_slice(), after), (firsts, gaps, next));
    }

    fn flip(&self, number: u64, at: u64) {
        let mut bytes = get_file(&self.path(number));
        bytes[usize::try_from(at).unwrap()] ^= 1;
        put_file(&self.path(number), &bytes);
    }

    fn cut(&self, number: u64, len: u64) {
        let bytes = get_file(&self.path(number));
        put_file(&self.path(number), &bytes[..usize::try_from(len).unwrap()]);
    }

    fn len(&self, number: u64) -> u64 {
        get_file(&self.path(number)).len() as u64
    }
}

/// Log 5 with ordinals 1 to 7, and log 6 with 8 to 14. Returns the offsets in log 5.
fn two_logs() -> (TestLogs, [u64; 5]) {
    let mut logs = TestLogs::new();
    let offsets = append_four(&mut logs.create(5, 1, 0));
    append_four(&mut logs.create(6, 8, 0));
    (logs, offsets)
}

#[test]
fn sound_logs_are_salvaged_whole() {
    let (logs, _) = two_logs();
    for (expected, firsts) in [
        (1, &[1, 2, 4, 5, 8, 9, 11, 12][..]),
        (2, &[2, 4, 5, 8, 9, 11, 12]),
        (5, &[5, 8, 9, 11, 12]),
        (8, &[8, 9, 11, 12]),
        (9, &[9, 11, 12]),
        (15, &[]),
    ] {
        logs.check_salvage(needed(expected, 0), firsts, &[], 15);
    }
    logs.check_salvage(needed(20, 0), &[], &[], 20);
}

#[test]
fn salvage_tells_of_each_hole_once_and_goes_on_behind_it() {
    let mut logs = TestLogs::new();
    let end = append_four(&mut logs.create(5, 1, 0))[4];
    for (number, first) in [(6, 30), (7, 40)] {
        append(&mut logs.create(number, first, 0), b"x", 10, 0);
    }
    logs.check_salvage(ALL, &[1, 2, 4, 5, 30, 40], &[(5, end, 0, Some(22))], 50);
}

#[test]
fn records_behind_a_hole_get_their_ordinals_from_the_next_log() {
    let (logs, [_, second, third, ..]) = two_logs();
    logs.flip(5, second);
    logs.check_salvage(ALL, &[1, 4, 5, 8, 9, 11, 12], &[(5, second, third - second, Some(2))], 15);
    // Nobody needs the log.
    logs.check_salvage(needed(8, 7), &[8, 9, 11, 12], &[], 15);
}

#[test]
fn records_between_two_holes_get_the_least_ordinals_possible() {
    let (logs, [first, second, third, fourth, _]) = two_logs();
    logs.flip(5, first);
    logs.flip(5, third);
    let gaps = [(5, first, second - first, None), (5, third, fourth - third, Some(2))];
    for elsewhere in [0, 3] {
        logs.check_salvage(needed(1, elsewhere), &[1, 5, 8, 9, 11, 12], &gaps, 15);
    }
}

#[test]
fn a_statement_behind_a_hole_raises_the_ordinals() {
    let mut logs = TestLogs::new();
    let mut log = logs.create(5, 1, 0);
    let [_, second, third, ..] = append_four(&mut log);
    append(&mut log, b"eight", 1, 6);
    logs.flip(5, second);
    // Everything up to 6 was durable, so that the last record is at least 7: 3 is then the least
    // for the two before it.
    logs.check_salvage(ALL, &[1, 3, 4, 7], &[(5, second, third - second, Some(1))], 8);
    // The next log says more.
    append(&mut logs.create(6, 10, 0), b"ten", 1, 0);
    logs.check_salvage(ALL, &[1, 5, 6, 9, 10], &[(5, second, third - second, Some(3))], 11);
}

#[test]
fn a_record_that_states_more_than_precedes_it_proves_a_gap() {
    let mut logs = TestLogs::new();
    let mut log = logs.create(5, 1, 0);
    append(&mut log, b"one", 1, 0);
    let header = RecordHeader { payload_len: 0, payload_crc: crc(&[]), count: 1, synced: 5 };
    let bytes = [&get_file(&logs.path(5))[..], header.encode(5, log.len()).as_slice()].concat();
    put_file(&logs.path(5), &bytes);
    logs.check_salvage(ALL, &[5, 6], &[(5, 64, 0, Some(4))], 7);
}

#[test]
fn a_torn_tail_is_no_loss_unless_something_in_it_was_durable() {
    // The records behind the hole state nothing of ordinal 2.
    let mut logs = TestLogs::new();
    let second = append_four(&mut logs.create(5, 1, 0))[1];
    logs.flip(5, second);
    logs.check_salvage(ALL, &[1], &[], 2);

    // The last of several spans does.
    let mut logs = TestLogs::new();
    let mut log = logs.create(5, 1, 0);
    let [_, second, third, fourth, eighth] = append_four(&mut log);
    append(&mut log, b"eight", 1, 6);
    logs.flip(5, second);
    logs.flip(5, fourth);
    let gaps = [(5, second, third - second, None), (5, fourth, eighth - fourth, Some(4))];
    logs.check_salvage(ALL, &[1, 2, 7], &gaps, 8);

    for (synced, torn) in [(3, true), (4, false), (5, false)] {
        let mut logs = TestLogs::new();
        let mut log = logs.create(5, 1, 0);
        let [_, _, third, fourth, _] = append_four(&mut log);
        append(&mut log, b"eight", 1, synced);
        logs.flip(5, third);
        // Of the last record, the header alone is left.
        let len = log.len() - 1;
        logs.cut(5, len);
        logs.flip(5, fourth);
        let gap = (5, third, len - third, None);
        logs.check_salvage(ALL, &[1, 2], if torn { &[] } else { std::slice::from_ref(&gap) }, 4);
    }
}

#[test]
fn a_span_behind_a_hole_counts_if_it_states_the_first_missing_ordinal() {
    for (synced, torn) in [(4, true), (5, false)] {
        let mut logs = TestLogs::new();
        let mut log = logs.create(5, 1, 0);
        let [.., fourth, eighth] = append_four(&mut log);
        append(&mut log, b"eight", 1, synced);
        logs.flip(5, fourth);
        match torn {
            true => logs.check_salvage(ALL, &[1, 2, 4], &[], 5),
            false => logs.check_salvage(ALL, &[1, 2, 4, 6], &[(5, fourth, eighth - fourth, Some(1))], 7),
        }
    }
}

#[test]
fn a_marker_behind_a_lost_record_tells_how_much_is_lost() {
    let mut logs = TestLogs::new();
    let mut log = logs.create(5, 1, 0);
    let [.., fourth, end] = append_four(&mut log);
    log.append_marker(7).unwrap();
    logs.check_salvage(ALL, &FOUR_FIRSTS, &[], 8);
    logs.flip(5, fourth);
    logs.check_salvage(ALL, &[1, 2, 4], &[(5, fourth, end - fourth, Some(3))], 8);
}

#[test]
fn a_hole_before_the_first_log_is_told() {
    let mut logs = TestLogs::new();
    append(&mut logs.create(7, 12, 0), b"x", 1, 0);
    for (elsewhere, missing) in [(0, Some(11)), (5, Some(6)), (10, Some(1)), (11, None), (30, None)] {
        let gaps: Vec<Gap> = missing.iter().map(|&missing| (7, 0, 0, Some(missing))).collect();
        logs.check_salvage(needed(1, elsewhere), &[12], &gaps, 13);
    }
}

#[test]
fn a_log_that_ends_early_has_a_gap_at_its_end() {
    let (logs, [.., fourth, _]) = two_logs();
    for len in [fourth + 2, fourth] {
        logs.cut(5, len);
        for (elsewhere, missing) in [(0, Some(3)), (5, Some(2)), (7, None)] {
            let gaps: Vec<Gap> = missing.iter().map(|&missing| (5, fourth, len - fourth, Some(missing))).collect();
            logs.check_salvage(needed(1, elsewhere), &[1, 2, 4, 8, 9, 11, 12], &gaps, 15);
        }
    }
}

#[test]
fn what_a_log_lacks_may_be_elsewhere() {
    let check = |logs: &TestLogs, elsewhere: u64, certainly: u64, expected: Option<(u64, u64, bool)>| {
        let needed = Needed { expected: 1, elsewhere, certainly_elsewhere: certainly };
        let (_, gaps, _) = logs.salvage(needed);
        let told: Vec<_> = gaps.iter().map(|gap| (gap.offset, gap.ordinals.unwrap(), gap.may_be_elsewhere)).collect();
        assert_eq!(told, expected.into_iter().collect::<Vec<_>>(), "{needed:?}");
    };
    // A log without its last three ordinals, 5 to 7.
    let (logs, [.., fourth, _]) = two_logs();
    logs.cut(5, fourth);
    for (certainly, missing) in [(0, Some(3)), (4, Some(3)), (5, Some(2)), (6, Some(1)), (7, None)] {
        check(&logs, 7, certainly, missing.map(|missing| (fourth, missing, true)));
    }
    check(&logs, 5, 0, Some((fourth, 2, false)));
    // One without a header.
    let (logs, [_, second, ..]) = two_logs();
    logs.flip(5, 20);
    logs.flip(5, second);
    check(&logs, 7, 0, Some((0, 7, true)));
    // The newest log ends with 7, but a table has 10.
    let mut logs = TestLogs::new();
    let end = append_four(&mut logs.create(5, 1, 0))[4];
    for (certainly, missing) in [(0, Some(3)), (8, Some(2)), (10, None)] {
        check(&logs, 10, certainly, missing.map(|missing| (end, missing, true)));
    }
    check(&logs, 7, 0, None);
}

#[test]
fn a_log_without_header_counts_if_the_next_one_begins_where_it_ends() {
    let (logs, [_, second, ..]) = two_logs();
    logs.flip(5, 20);
    logs.check_salvage(ALL, &[1, 2, 4, 5, 8, 9, 11, 12], &[], 15);
    logs.check_salvage(needed(8, 0), &[8, 9, 11, 12], &[], 15);
    // Otherwise it may be old.
    logs.flip(5, second);
    let len = logs.len(5);
    for (elsewhere, missing) in [(0, Some(7)), (6, Some(1)), (7, None)] {
        let gaps: Vec<Gap> = missing.iter().map(|&missing| (5, 0, len, Some(missing))).collect();
        logs.check_salvage(needed(1, elsewhere), &[8, 9, 11, 12], &gaps, 15);
    }
}

#[test]
fn a_log_without_header_is_not_taken_for_more_than_it_holds() {
    // The next log begins before, at and behind the least beginning.
    for (next, known) in [(6, false), (7, false), (8, true)] {
        let mut logs = TestLogs::new();
        append_four(&mut logs.create(5, 1, 0));
        append(&mut logs.create(6, next, 0), b"x", 1, 0);
        logs.flip(5, 20);
        let gap = [(5, 0, logs.len(5), Some(next - 1))];
        let (firsts, gaps) = if known { (&[1, 2, 4, 5, next][..], &[][..]) } else { (&[next][..], &gap[..]) };
        logs.check_salvage(ALL, firsts, gaps, next + 1);
    }
    // Its records state that more was durable before them.
    for (next, known) in [(10, false), (11, true)] {
        let mut logs = TestLogs::new();
        append(&mut logs.create(5, 10, 0), b"ten", 1, 9);
        append(&mut logs.create(6, next, 0), b"x", 1, 0);
        logs.flip(5, 20);
        let gap = [(5, 0, logs.len(5), Some(next - 1))];
        let missing = [(5, 0, 0, Some(9))];
        let (firsts, gaps) = if known { (&[10, next][..], &missing[..]) } else { (&[next][..], &gap[..]) };
        logs.check_salvage(ALL, firsts, gaps, next + 1);
    }
}

#[test]
fn records_of_the_newest_log_come_last_if_its_header_is_lost() {
    let (logs, _) = two_logs();
    logs.flip(6, 20);
    // Nothing says that they were durable.
    logs.check_salvage(ALL, &FOUR_FIRSTS, &[], 8);
    let mut logs = TestLogs::new();
    append_four(&mut logs.create(5, 1, 0));
    let mut log = logs.create(6, 8, 0);
    append_four(&mut log);
    log.append_marker(14).unwrap();
    logs.flip(6, 20);
    logs.check_salvage(ALL, &[1, 2, 4, 5, 8, 9, 11, 12], &[], 15);
    logs.check_salvage(needed(1, 10), &[1, 2, 4, 5, 11, 12, 14, 15], &[], 18);
    // Of two logs without a header, the newer one comes last.
    logs.flip(5, 20);
    logs.check_salvage(ALL, &[8, 9, 11, 12], &[(6, 64, 0, Some(7))], 15);
}

#[test]
fn void_logs_and_records_are_left_out() {
    let mut logs = TestLogs::new();
    append_four(&mut logs.create(5, 1, 0));
    append(&mut logs.create(6, 20, 0), b"void", 1, 0);
    append(&mut logs.create(7, 5, 0), b"five", 1, 0);
    logs.check_salvage(ALL, &[1, 2, 4, 5], &[], 8);

    // Behind a hole, nothing is left that log 6 does not have.
    let mut logs = TestLogs::new();
    let [_, _, third, ..] = append_four(&mut logs.create(5, 1, 0));
    append(&mut logs.create(6, 4, 0), b"four", 1, 0);
    logs.flip(5, third);
    logs.check_salvage(ALL, &[1, 2, 4], &[], 5);
}

#[test]
fn no_ordinal_is_above_the_last_one() {
    for (count, firsts, next) in [(1, &[MAX_SEQNO][..], MAX_SEQNO + 1), (2, &[], MAX_SEQNO)] {
        let mut logs = TestLogs::new();
        logs.create_empty(5, MAX_SEQNO, 0);
        let header = RecordHeader { payload_len: 0, payload_crc: crc(&[]), count, synced: 0 };
        let bytes = [&get_file(&logs.path(5))[..], header.encode(5, 64).as_slice()].concat();
        put_file(&logs.path(5), &bytes);
        logs.check_salvage(needed(MAX_SEQNO, 0), firsts, &[], next);
    }
}

#[test]
fn a_log_of_a_later_version_is_not_salvaged() {
    let (logs, _) = two_logs();
    let bytes = get_file(&logs.path(5));
    let (header, records) = bytes.split_first_chunk().unwrap();
    put_file(&logs.path(5), &[&of_version(*header, 2)[..], records].concat());
    let paths: Vec<_> = logs.numbers.iter().map(|&n| (n, logs.path(n))).collect();
    let error = salvage(&OsFileSystem, Magic::Wal, &paths, ALL, &mut |_| Ok(())).unwrap_err();
    assert!(matches!(error, Error::Unsupported { found: 2, .. }), "{error}");
}

#[test]
fn spans_are_records_that_follow_each_other() {
    let mut logs = TestLogs::new();
    let mut log = logs.create(5, 10, 0);
    let offsets = [(1, 0), (2, 9), (1, 11)].map(|(count, synced)| append(&mut log, b"payload", count, synced));
    let hole = log.len();
    log.append_marker(12).unwrap();
    let behind = append(&mut log, b"behind", 4, 13);
    let end = log.len();
    logs.flip(5, hole);
    let mut reader = LogReader::open(&OsFileSystem, &logs.path(5), Magic::Wal, 5).unwrap();
    let spans = reader.spans().unwrap();
    let expected = [
        RecordSpan { offset: 64, end: hole, count: 4, least_first: 9, synced: 11 },
        RecordSpan { offset: behind, end, count: 4, least_first: 14, synced: 13 },
    ];
    assert_eq!(spans, expected);
    let mut records = Vec::new();
    for (span, first) in spans.iter().zip([10, 14]) {
        let mut push = |record: &Record<'_>| {
            let payload = String::from_utf8(record.payload.to_vec()).unwrap();
            records.push((record.number, record.offset, record.first, record.count, record.synced, payload));
            Ok(())
        };
        reader.read_span(span, first, &mut push).unwrap();
    }
    let expected = [
        (offsets[0], 10, 1, 0, "payload"),
        (offsets[1], 11, 2, 9, "payload"),
        (offsets[2], 13, 1, 11, "payload"),
        (behind, 14, 4, 13, "behind"),
    ];
    assert_eq!(
        records,
        expected.map(|(at, first, count, synced, text)| (5, at, first, count, synced, text.to_owned()))
    );
}

#[test]
fn headers_that_no_writer_makes_are_no_records() {
    let good = RecordHeader { payload_len: 4, payload_crc: crc(b"text"), count: 1, synced: 1 };
    for (header, is_record) in [
        (good, true),
        (RecordHeader { payload_crc: 0, ..good }, false),
        (RecordHeader { payload_len: 5, ..good }, false),
        (RecordHeader { payload_len: u32::MAX, ..good }, false),
        (RecordHeader { count: 0, ..good }, false),
        (RecordHeader { count: 0, payload_len: 0, payload_crc: crc(&[]), ..good }, true),
        (RecordHeader { synced: MAX_SEQNO, ..good }, true),
        (RecordHeader { synced: MAX_SEQNO + 1, ..good }, false),
    ] {
        let mut logs = TestLogs::new();
        logs.create_empty(5, 1, 0);
        let bytes = [&get_file(&logs.path(5))[..], header.encode(5, 64).as_slice(), b"text"].concat();
        put_file(&logs.path(5), &bytes);
        let mut reader = LogReader::open(&OsFileSystem, &logs.path(5), Magic::Wal, 5).unwrap();
        assert_eq!(reader.spans().unwrap().len(), usize::from(is_record), "{header:?}");
    }
}

#[test]
fn a_record_is_found_wherever_windows_meet() {
    let meet = 64 + (1 << 20);
    for at in [meet - 48, meet - 1, meet, meet + 2, meet + 70].into_iter().chain(meet - 35..meet - 31) {
        let mut logs = TestLogs::new();
        logs.create_empty(5, 1, 0);
        let mut bytes = get_file(&logs.path(5));
        bytes.resize(at, 0xa5);
        let header = RecordHeader { payload_len: 4, payload_crc: crc(b"text"), count: 1, synced: 7 };
        let at = at as u64;
        bytes.extend_from_slice(header.encode(5, at).as_slice());
        bytes.extend_from_slice(b"text");
        let end = bytes.len() as u64;
        bytes.resize(bytes.len() + 100, 0xa5);
        put_file(&logs.path(5), &bytes);
        let mut reader = LogReader::open(&OsFileSystem, &logs.path(5), Magic::Wal, 5).unwrap();
        let expected = RecordSpan { offset: at, end, count: 1, least_first: 8, synced: 7 };
        assert_eq!(reader.spans().unwrap(), [expected]);
    }
}
