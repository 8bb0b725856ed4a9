//! Writes tables and reads them where a store has them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{SstFormat, SstWriter};
use crate::error::Error;
use crate::format::header::{IDENTITY_BIT, features};
use crate::format::key::{SeqNo, ValueKind};
use crate::operator::Add;
use crate::options::{KeyspaceOptions, ReadMode};
use crate::sorted::iter::{InternalCursor, MergeCursor, Stamped};
use crate::sorted::range_table::RangeTable;
use crate::sorted::table::{Ingested, Table, TableContext, TableMeta};
use crate::vfs::{FileSystem, SimFileSystem};

const PATH: &str = "/db/000012.sst";

fn file_system() -> SimFileSystem {
    let fs = SimFileSystem::new();
    fs.create_dir(Path::new("/db")).unwrap();
    fs
}

fn format(options: KeyspaceOptions) -> SstFormat {
    SstFormat::new(77, 3, "words", options)
}

fn writer(fs: &SimFileSystem, options: KeyspaceOptions) -> SstWriter {
    SstWriter::create_in(Arc::new(fs.clone()), PATH, &format(options)).unwrap()
}

fn context(fs: &SimFileSystem, mode: ReadMode) -> Arc<TableContext> {
    Arc::new(TableContext::new(Arc::new(fs.clone()), Path::new("/db"), 1 << 20, 8).with_read_mode(mode))
}

/// The table as if it had been ingested with this number.
fn ingested(fs: &SimFileSystem, seqno: SeqNo, mode: ReadMode) -> Arc<Table> {
    let alone = Table::alone(context(fs, ReadMode::Pread), 12, true).unwrap();
    let identity = alone.meta().ingested.unwrap().identity;
    let ingested = Some(Ingested { identity, seqno });
    let meta = TableMeta { smallest_seqno: seqno, largest_seqno: seqno, ingested, ..alone.meta().clone() };
    Arc::new(Table::new(context(fs, mode), meta).of_ranges(alone.holds_ranges()))
}

/// Key, sequence number and kind of each entry.
fn entries(table: &Arc<Table>) -> Vec<(Vec<u8>, SeqNo, ValueKind)> {
    let mut cursor = table.cursor(true);
    cursor.seek_to_first().unwrap();
    let mut entries = Vec::new();
    while cursor.valid() {
        entries.push((cursor.key().to_vec(), cursor.seqno(), cursor.kind()));
        cursor.next().unwrap();
    }
    entries
}

#[test]
fn every_entry_has_the_number_of_its_ingest() {
    let fs = file_system();
    let mut writer = writer(&fs, KeyspaceOptions::new().block_size(300).merge_operator(Add::LITTLE));
    for i in 0..100u32 {
        match i % 4 {
            0 => writer.put(i.to_be_bytes(), vec![7; 50]).unwrap(),
            1 => writer.delete(i.to_be_bytes()).unwrap(),
            2 => writer.merge(i.to_be_bytes(), 5u64.to_le_bytes()).unwrap(),
            _ => writer.put_with_expiry(i.to_be_bytes(), "x", SystemTime::UNIX_EPOCH + Duration::from_secs(9)).unwrap(),
        }
    }
    let info = writer.finish().unwrap();
    assert_eq!((info.entries, info.bytes), (100, fs.file_len(PATH).unwrap()));
    assert_eq!((&info.smallest[..], &info.greatest[..]), (&0u32.to_be_bytes()[..], &99u32.to_be_bytes()[..]));

    for (seqno, mode) in [(1, ReadMode::Pread), (90, ReadMode::Mmap), ((1 << 56) - 1, ReadMode::Auto)] {
        let table = ingested(&fs, seqno, mode);
        table.verify().unwrap();
        let meta = table.meta();
        assert!(meta.ingested.is_some_and(|of| of.identity & IDENTITY_BIT != 0));
        assert_eq!((meta.keys, meta.tombstones, meta.deadlines.count), (100, 25, 25));
        assert_eq!(table.footer().unwrap().features, features::INGEST | features::MERGE | features::EXPIRY);
        let kinds = [ValueKind::Put, ValueKind::Delete, ValueKind::Merge, ValueKind::ExpiringPut];
        let expected = (0..100u32).map(|i| (i.to_be_bytes().to_vec(), seqno, kinds[i as usize % 4]));
        assert_eq!(entries(&table), expected.collect::<Vec<_>>());
    }
}

#[test]
fn two_files_of_equal_content_have_other_identities() {
    let fs = file_system();
    let identity = || {
        let mut writer = writer(&fs, KeyspaceOptions::new());
        writer.put("a", "1").unwrap();
        writer.finish().unwrap();
        let identity = ingested(&fs, 1, ReadMode::Pread).meta().ingested.unwrap().identity;
        fs.remove(Path::new(PATH)).unwrap();
        identity
    };
    assert_ne!(identity(), identity());
}

#[test]
fn keys_out_of_order_are_refused_with_their_position() {
    let fs = file_system();
    let mut writer = writer(&fs, KeyspaceOptions::new());
    writer.put("b", "1").unwrap();
    writer.delete("d").unwrap();
    for key in ["d", "c", "", "b"] {
        match writer.put(key, "2").unwrap_err() {
            Error::Unsorted { file, position, key: refused, last } => {
                assert_eq!((file.to_str(), position), (Some(PATH), 2));
                assert_eq!((&refused[..], &last[..]), (key.as_bytes(), &b"d"[..]));
            }
            error => panic!("{error}"),
        }
    }
    assert!(matches!(writer.merge("e", "1"), Err(Error::InvalidArgument(_))), "there is no operator");
    assert!(matches!(writer.put(vec![b'e'; (1 << 20) + 1], ""), Err(Error::InvalidArgument(_))));
    writer.put("e", "3").unwrap();
    assert_eq!(writer.finish().unwrap().entries, 3);
    assert_eq!(entries(&ingested(&fs, 5, ReadMode::Pread)).len(), 3);
}

#[test]
fn a_file_that_is_not_finished_is_removed() {
    let fs = file_system();
    drop(writer(&fs, KeyspaceOptions::new()));
    assert!(matches!(writer(&fs, KeyspaceOptions::new()).finish(), Err(Error::InvalidArgument(_))), "no entries");
    assert_eq!(fs.paths(), Vec::<std::path::PathBuf>::new());
    let mut first = writer(&fs, KeyspaceOptions::new());
    let taken = SstWriter::create_in(Arc::new(fs.clone()), PATH, &format(KeyspaceOptions::new()));
    assert!(matches!(taken, Err(Error::Io { .. })), "nothing is overwritten");
    first.put("a", "1").unwrap();
    first.finish().unwrap();
}

#[test]
fn the_manifest_must_know_that_a_table_has_no_numbers() {
    let fs = file_system();
    let mut writer = writer(&fs, KeyspaceOptions::new());
    writer.put("a", "1").unwrap();
    writer.finish().unwrap();
    let good = ingested(&fs, 9, ReadMode::Pread).meta().clone();
    let of = good.ingested.unwrap();
    let other = Some(Ingested { identity: of.identity ^ 1, ..of });
    for meta in [
        TableMeta { ingested: None, ..good.clone() },
        TableMeta { ingested: other, ..good.clone() },
        TableMeta { ingested: Some(Ingested { seqno: 8, ..of }), ..good.clone() },
    ] {
        assert!(matches!(Table::new(context(&fs, ReadMode::Pread), meta).verify(), Err(Error::Corruption { .. })));
    }
    Table::new(context(&fs, ReadMode::Pread), good).verify().unwrap();
}

#[test]
fn range_deletes_are_joined_and_have_a_file_of_their_own() {
    let fs = file_system();
    let mut writer = writer(&fs, KeyspaceOptions::new());
    // An empty range deletes nothing.
    writer.delete_range("x".."a").unwrap();
    assert_eq!(writer.entries(), 0);
    for (from, to) in [("b", "d"), ("c", "e"), ("c", "cc"), ("e", "f"), ("g", "h")] {
        writer.delete_range(from..to).unwrap();
    }
    match writer.delete_range("f".."z").unwrap_err() {
        Error::Unsorted { position: 2, key, last, .. } => assert_eq!((key, last), (b"f".to_vec(), b"g".to_vec())),
        error => panic!("{error}"),
    }
    assert!(matches!(writer.put("z", "1"), Err(Error::InvalidArgument(_))), "a file has one kind");
    let long = vec![b'z'; (1 << 20) + 1];
    assert!(matches!(writer.delete_range(&long[..]..), Err(Error::InvalidArgument(_))));
    writer.delete_range("i"..).unwrap();
    writer.delete_range("j".."k").unwrap();
    assert_eq!(writer.entries(), 3);
    let info = writer.finish().unwrap();
    assert_eq!((info.entries, info.range_deletes), (0, 3));
    assert_eq!((info.smallest, info.greatest), (b"b".to_vec(), b"i".to_vec()));

    let table = ingested(&fs, 9, ReadMode::Pread);
    table.verify().unwrap();
    assert_eq!(table.footer().unwrap().features, features::INGEST | features::RANGE_DELETE);
    assert_eq!(table.filter_state().unwrap(), crate::filter::FilterState::None);
    let ranges = RangeTable::load(Arc::clone(&table)).unwrap();
    let as_entries = Table::new(Arc::clone(table.context()), table.meta().clone());
    assert!(matches!(as_entries.verify(), Err(Error::Corruption { rule, .. }) if rule.contains("range deletes")));
    let found: Vec<_> = ranges.fragments().map(|of| (of.start.to_vec(), of.stored_end().to_vec(), of.seqno)).collect();
    let range = |from: &str, to: &str| (from.as_bytes().to_vec(), to.as_bytes().to_vec(), 9);
    assert_eq!(found, [range("b", "f"), range("g", "h"), range("i", "")]);

    fs.remove(Path::new(PATH)).unwrap();
    let mut writer = self::writer(&fs, KeyspaceOptions::new());
    writer.put("a", "1").unwrap();
    assert!(matches!(writer.delete_range("b".."c"), Err(Error::InvalidArgument(_))), "a file has one kind");
    writer.put("b", "2").unwrap();
    assert_eq!(writer.finish().unwrap().entries, 2);
}
