#[cfg(feature = "lz4")]
pub(super) mod golden;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Error;
use crate::filter::FilterState;
use crate::format::header::of_version;
use crate::format::record::MARKER_LEN;
use crate::inspect::*;
use crate::options::{KeyspaceOptions, Options, WalMode};
use crate::vfs::FileSystem;
use crate::vfs::SimFileSystem;

const DIR: &str = "/store";

fn options(fs: &SimFileSystem) -> Options {
    let keyspace = KeyspaceOptions::new().block_size(512);
    Options::new().file_system(Arc::new(fs.clone())).hash_seed(7).default_keyspace(keyspace)
}

/// A closed store with tables in two levels, two keyspaces, tombstones and overwritten keys.
fn sample_store() -> SimFileSystem {
    let fs = SimFileSystem::new();
    let db = options(&fs).open(DIR).unwrap();
    let users = db.keyspace("users").unwrap();
    for i in 0..100 {
        db.put(format!("key{i:03}"), format!("value {i}")).unwrap();
        users.put(format!("user{i:03}"), "x").unwrap();
    }
    db.compact_range(..).unwrap();
    // Few enough tombstones that the table stays where the flush puts it.
    for i in 0..9 {
        db.put(format!("key{i:03}"), "new").unwrap();
    }
    db.delete("key009").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    fs
}

fn inspector(fs: &SimFileSystem) -> Inspector {
    Inspector::on(Arc::new(fs.clone()))
}

fn verify(fs: &SimFileSystem) -> (Verified, Vec<Finding>) {
    let mut faults = Vec::new();
    let verified = inspector(fs).verify(Path::new(DIR), &mut |fault| faults.push(fault.clone())).unwrap();
    (verified, faults)
}

/// The first file that `wanted` selects.
fn find(fs: &SimFileSystem, wanted: impl Fn(FileKind) -> bool) -> PathBuf {
    let files = inspector(fs).files(Path::new(DIR)).unwrap();
    files.into_iter().find(|file| wanted(file.kind)).expect("there is such a file").path
}

/// The table of several blocks in the last level.
fn large_table(fs: &SimFileSystem) -> PathBuf {
    let files = inspector(fs).files(Path::new(DIR)).unwrap().into_iter().filter(|file| is_table(file.kind));
    let blocks = |path: &Path| inspector(fs).table(path).unwrap().blocks().count();
    files.max_by_key(|file| blocks(&file.path)).expect("there is a table").path
}

fn is_table(kind: FileKind) -> bool {
    matches!(kind, FileKind::Table(_))
}

#[test]
fn table_is_described_block_by_block_and_entry_by_entry() {
    let fs = sample_store();
    let files = inspector(&fs).files(Path::new(DIR)).unwrap();
    let tables: Vec<TableFile> =
        files.iter().filter(|file| is_table(file.kind)).map(|file| inspector(&fs).table(&file.path).unwrap()).collect();
    let of = |entries: u64| {
        tables.iter().find(|table| table.properties().entries == entries && table.properties().keyspace == 0)
    };
    let (large, small) = (of(100).expect("compacted"), of(10).expect("flushed later"));

    let properties = large.properties();
    assert_eq!((properties.keys, properties.tombstones, properties.block_size), (100, 0, 512));
    assert_eq!((&properties.smallest[..], &properties.largest[..]), (&b"key000"[..], &b"key099"[..]));
    assert_eq!(properties.size, fs.file_len(FileKind::Table(properties.number).path(Path::new(DIR))).unwrap());
    let FilterState::Usable(filter) = large.filter() else { panic!("{:?}", large.filter()) };
    assert_eq!((filter.policy_id, filter.keys, filter.probes), (1, 100, 7));

    let blocks: Vec<DataBlock> = large.blocks().map(Result::unwrap).collect();
    assert!(blocks.len() > 1);
    assert_eq!(blocks.len() as u64, properties.data_blocks);
    assert_eq!(blocks.iter().map(|block| block.entries).sum::<u64>(), 100);
    assert_eq!(blocks.first().unwrap().first_key, b"key000");
    assert_eq!(blocks.last().unwrap().last_key, b"key099");

    let entries: Vec<Entry> = large.entries().map(Result::unwrap).collect();
    assert_eq!(entries.len(), 100);
    assert_eq!((&entries[7].key[..], entries[7].value.as_deref()), (&b"key007"[..], Some(&b"value 7"[..])));
    let entries: Vec<Entry> = small.entries().map(Result::unwrap).collect();
    assert_eq!(entries[8].value.as_deref(), Some(&b"new"[..]));
    assert_eq!((&entries[9].key[..], entries[9].value.as_deref()), (&b"key009"[..], None));
}

#[test]
fn damaged_block_is_an_error_and_the_others_follow_it() {
    let fs = sample_store();
    let path = large_table(&fs);
    let table = inspector(&fs).table(&path).unwrap();
    let second = table.blocks().nth(1).unwrap().unwrap();
    fs.corrupt(&path, second.handle.offset + 20, 1).unwrap();
    let damaged: Vec<bool> = inspector(&fs).table(&path).unwrap().blocks().map(|block| block.is_err()).collect();
    assert!(damaged.len() > 2);
    assert!(damaged.iter().enumerate().all(|(i, &damaged)| damaged == (i == 1)));
}

#[test]
fn log_of_a_running_store_is_read_record_by_record() {
    let fs = SimFileSystem::new();
    let db = options(&fs).open(DIR).unwrap();
    db.put("apple", "1").unwrap();
    db.delete("pear").unwrap();
    db.sync().unwrap();
    let mut log = inspector(&fs).log(&find(&fs, |kind| matches!(kind, FileKind::Wal(_)))).unwrap();
    assert_eq!(log.header().unwrap().first, 1);
    let mut contents = Vec::new();
    while let Some(record) = log.next_record().unwrap() {
        contents.push(record.content);
    }
    let [Content::Batch(put), Content::Batch(delete), Content::SyncMarker] = &contents[..] else {
        panic!("{contents:?}")
    };
    let plain = |operations: &[LoggedOperation]| match operations {
        [of] => (of.seqno, of.keyspace, of.key.clone(), of.kind, of.value.clone(), of.deadline),
        _ => panic!("{operations:?}"),
    };
    assert_eq!(plain(put), (1, 0, b"apple".to_vec(), WriteKind::Put, Some(b"1".to_vec()), None));
    assert_eq!(plain(delete), (2, 0, b"pear".to_vec(), WriteKind::Delete, None, None));
    assert_eq!(log.end(), Some(&LogEnd::Clean));
}

#[test]
fn manifest_edits_are_described() {
    let fs = sample_store();
    let number = inspector(&fs).current(&FileKind::Current.path(Path::new(DIR))).unwrap();
    let mut log = inspector(&fs).log(&FileKind::Manifest(number).path(Path::new(DIR))).unwrap();
    let mut words = String::new();
    while let Some(record) = log.next_record().unwrap() {
        if let Content::Edit(changes) = record.content {
            changes.iter().for_each(|change| words += &format!("{change}\n"));
        }
    }
    for expected in [
        "the hash seed is 0x0000000000000007",
        "is \"users\"",
        "is added to level 6 of keyspace 0",
        "100 entries of 100 keys",
    ] {
        assert!(words.contains(expected), "{expected} is missing in\n{words}");
    }
}

#[test]
fn files_must_have_the_names_that_they_have_in_a_store() {
    let inspector = inspector(&sample_store());
    for path in ["/store/words.sst", "/store/LOCK", "/store"] {
        assert!(matches!(inspector.table(Path::new(path)), Err(Error::InvalidArgument(_))), "{path}");
    }
    assert!(matches!(inspector.log(Path::new("/store/000001.sst")), Err(Error::InvalidArgument(_))));
    assert!(matches!(inspector.current(Path::new("/store/CURRENT")), Ok(1..)));
    assert!(matches!(inspector.current(Path::new("/nowhere/CURRENT")), Err(Error::Io { .. })));
}

#[test]
fn sound_store_has_no_faults() {
    let (verified, faults) = verify(&sample_store());
    assert_eq!(faults, []);
    assert_eq!((verified.tables, verified.entries), (3, 210));
    assert!(verified.edits > 1);
}

#[test]
fn issue_13_a_store_that_is_being_written_has_no_torn_tail_and_no_leftovers() {
    let fs = SimFileSystem::new();
    let db = options(&fs).open(DIR).unwrap();
    db.put("apple", "1").unwrap();
    // A half-written record, and a table that no version names yet.
    let log = find(&fs, |kind| matches!(kind, FileKind::Wal(_)));
    let len = fs.file_len(&log).unwrap();
    fs.corrupt(&log, len - 1, 1).unwrap();
    fs.write(Path::new(DIR).join("000999.sst"), *b"half").unwrap();
    let (verified, faults) = verify(&fs);
    assert_eq!((verified.being_written, verified.notes, faults), (true, 0, vec![]));
    let (verified, faults) = verify(&fs.kill());
    let kinds: Vec<FindingKind> = faults.iter().map(|fault| fault.kind).collect();
    assert_eq!((verified.being_written, kinds), (false, vec![FindingKind::TornTail, FindingKind::Leftover]));
}

#[test]
fn damage_anywhere_is_found_with_its_file() {
    let sound = sample_store();
    for file in inspector(&sound).files(Path::new(DIR)).unwrap() {
        // The lock file has no content to damage; a log without records has only its header to
        // lose.
        if matches!(file.kind, FileKind::Lock | FileKind::Wal(_)) {
            continue;
        }
        let len = sound.file_len(&file.path).unwrap();
        // A step that hits every bit and every structure, and keeps the test fast.
        let step = if is_table(file.kind) { 5 } else { 1 };
        for offset in (0..len).step_by(step) {
            let fs = sound.kill();
            fs.corrupt(&file.path, offset, 1 << (offset % 8)).unwrap();
            let (verified, faults) = verify(&fs);
            // Nothing follows the manifest's last sync marker: damaged, it looks as if it was never
            // written.
            let last_marker = matches!(file.kind, FileKind::Manifest(_)) && offset >= len - MARKER_LEN as u64;
            assert_eq!(verified.damaged > 0, !last_marker, "{:?} {offset}: {faults:?}", file.kind);
            assert!(faults.iter().any(|fault| fault.file == file.path), "{:?} {offset}: {faults:?}", file.kind);
        }
    }
}

/// Gives a file the header of a later version, with a valid checksum; returns its path.
fn put_later_version(fs: &SimFileSystem, kind: impl Fn(FileKind) -> bool) -> PathBuf {
    let path = find(fs, kind);
    let bytes = fs.read(&path).unwrap();
    let (header, rest) = bytes.split_first_chunk().unwrap();
    FileSystem::remove(fs, &path).unwrap();
    fs.write(&path, [&of_version(*header, 2)[..], rest].concat()).unwrap();
    path
}

#[test]
fn a_manifest_of_a_later_version_cannot_be_checked_and_is_not_damaged() {
    let fs = sample_store().kill();
    let path = put_later_version(&fs, |kind| matches!(kind, FileKind::Manifest(_)));
    let (verified, faults) = verify(&fs);
    assert_eq!((verified.damaged, verified.unchecked), (0, 1), "{faults:?}");
    assert_eq!((faults[0].kind, &faults[0].file), (FindingKind::Unsupported, &path));
}

/// The manifest has the checksum of the table as it was written.
#[test]
fn a_table_that_has_become_one_of_a_later_version_is_damaged() {
    let fs = sample_store().kill();
    let path = put_later_version(&fs, is_table);
    let (verified, faults) = verify(&fs);
    assert_eq!((verified.damaged, verified.unchecked), (1, 0), "{faults:?}");
    assert_eq!((faults[0].kind, &faults[0].file), (FindingKind::Damaged, &path));
}

#[test]
fn every_bad_block_of_a_table_is_reported() {
    let fs = sample_store();
    let path = large_table(&fs);
    let blocks: Vec<DataBlock> = inspector(&fs).table(&path).unwrap().blocks().map(Result::unwrap).collect();
    for block in [&blocks[0], &blocks[2]] {
        fs.corrupt(&path, block.handle.offset, 1).unwrap();
    }
    let (verified, faults) = verify(&fs);
    assert_eq!(verified.damaged, 2, "{faults:?}");
    let offsets: Vec<u64> = faults.iter().map(|fault| fault.offset).collect();
    assert_eq!(offsets, [blocks[0].handle.offset, blocks[2].handle.offset]);
}

#[test]
fn missing_and_surplus_files_are_reported() {
    let fs = sample_store();
    let path = find(&fs, is_table);
    let bytes = fs.read(&path).unwrap();
    fs.write(Path::new(DIR).join("000999.sst"), bytes).unwrap();
    fs.write(Path::new(DIR).join("CURRENT.tmp"), *b"half").unwrap();
    fs.write(Path::new(DIR).join("notes.txt"), *b"mine").unwrap();
    let (verified, faults) = verify(&fs);
    assert_eq!((verified.damaged, verified.notes), (0, 3));
    let kinds: Vec<FindingKind> = faults.iter().map(|fault| fault.kind).collect();
    assert_eq!(kinds, [FindingKind::Leftover, FindingKind::Leftover, FindingKind::Foreign]);

    FileSystem::remove(&fs, &path).unwrap();
    let (verified, faults) = verify(&fs);
    assert_eq!(verified.damaged, 1);
    assert_eq!((faults[0].kind, &faults[0].file), (FindingKind::Missing, &path));
}

#[test]
fn prepared_end_of_a_log_is_no_damage_and_other_bytes_in_it_are_noted() {
    let fs = SimFileSystem::new();
    let db = options(&fs).open(DIR).unwrap();
    db.put("apple", "1").unwrap();
    let killed = fs.kill();
    let path = find(&killed, |kind| matches!(kind, FileKind::Wal(_)));
    let mut log = inspector(&killed).log(&path).unwrap();
    let end = std::iter::from_fn(|| log.next_record().unwrap()).map(|r| r.offset + 10 + r.payload_len).last().unwrap();
    assert_eq!(log.end(), Some(&LogEnd::Clean));
    let len = killed.file_len(&path).unwrap();
    assert!(end < len, "{end} {len}");
    assert_eq!(verify(&killed).1, []);
    for at in [end, end + 9, len - 1] {
        let torn = killed.kill();
        torn.corrupt(&path, at, 1).unwrap();
        let (verified, faults) = verify(&torn);
        assert_eq!((verified.damaged, verified.notes, verified.batches), (0, 1, 1));
        assert_eq!((faults[0].kind, faults[0].offset), (FindingKind::TornTail, end));
    }
}

#[test]
fn torn_tail_is_a_note_and_damage_before_a_sync_is_not() {
    let fs = SimFileSystem::new();
    let db = options(&fs).wal_mode(WalMode::Write).open(DIR).unwrap();
    db.put("apple", "1").unwrap();
    db.sync().unwrap();
    db.put("pear", "2").unwrap();
    let killed = fs.kill();
    let path = find(&killed, |kind| matches!(kind, FileKind::Wal(_)));
    assert_eq!(verify(&killed).1, []);

    let len = killed.file_len(&path).unwrap();
    let torn = killed.kill();
    torn.truncate(&path, len - 1).unwrap();
    let (verified, faults) = verify(&torn);
    assert_eq!((verified.damaged, verified.notes, verified.batches), (0, 1, 1));
    assert_eq!((faults[0].kind, &faults[0].file), (FindingKind::TornTail, &path));

    let damaged = killed.kill();
    damaged.corrupt(&path, 70, 1).unwrap();
    let (verified, faults) = verify(&damaged);
    assert_eq!((verified.damaged, faults[0].offset), (1, 64), "{faults:?}");
}

#[test]
fn without_a_manifest_each_table_is_checked_by_itself() {
    let fs = sample_store();
    fs.corrupt(Path::new(DIR).join("CURRENT"), 0, 1).unwrap();
    let (verified, _) = verify(&fs);
    assert_eq!((verified.damaged, verified.tables, verified.entries), (1, 3, 210));
    fs.corrupt(find(&fs, is_table), 100, 1).unwrap();
    assert_eq!(verify(&fs).0.damaged, 2);
}

#[test]
fn without_a_store_there_is_nothing_to_check() {
    let fs = SimFileSystem::new();
    let check = || inspector(&fs).verify(Path::new(DIR), &mut |_| ());
    assert!(matches!(check(), Err(Error::NotFound(_))));
    FileSystem::create_dir(&fs, Path::new(DIR)).unwrap();
    assert!(matches!(check(), Err(Error::NotFound(_))));
}
