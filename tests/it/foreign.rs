//! A directory that holds anything but a store is refused and left unchanged: nothing is created in
//! it, not even a lock.
#![allow(clippy::disallowed_methods, reason = "the files of other programs are written as they would")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tamis::inspect::Inspector;
use tamis::{Db, Error, Options};

/// The files of LevelDB 1.23 after one put, shortened.
const LEVELDB: [(&str, &[u8]); 5] = [
    ("000003.log", b"\x49\xa9\x3d\x61\x17\0\x01\x01\0\0\0\0\0\0\0\x01\0\0\0\x01\x03key\x05value"),
    ("CURRENT", b"MANIFEST-000002\n"),
    ("LOCK", b""),
    ("LOG", b"2026/01/01-00:00:00.000000 7f Delete type=3 #1\n"),
    ("MANIFEST-000002", b"\x56\xf9\xb8\xf8\x1c\0\x01\x01\x1aleveldb.BytewiseComparator\x02\x03\x09\0\x03\x04\x04\0"),
];

/// The files of RocksDB, shortened. Its tables have names like ours.
const ROCKSDB: [(&str, &[u8]); 6] = [
    ("000008.sst", b"\0\x10\x05key\x01\0\0\0\0\0\0\0value"),
    ("CURRENT", b"MANIFEST-000005\n"),
    ("IDENTITY", b"2f6ab3ff-7d1a-4a55-9f4e-4a0c3ab1d2c1"),
    ("LOCK", b""),
    ("MANIFEST-000005", b"\x56\xf9\xb8\xf8\x1c\0\x01\x01\x1aleveldb.BytewiseComparator"),
    ("OPTIONS-000007", b"# This is a RocksDB option file.\n"),
];

type FileContents = BTreeMap<String, Vec<u8>>;

fn files(dir: &Path) -> FileContents {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// Every way to open a directory with `content` is refused, names `seen`, and changes nothing.
fn check_refused(content: &[(&str, &[u8])], seen: &str) {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in content {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let before = files(dir.path());
    let verified = Inspector::new().verify(dir.path(), &mut |fault| panic!("{fault}"));
    let errors = [
        Db::open(dir.path()).map(drop),
        Db::open_read_only(dir.path()).map(drop),
        Options::new().create_if_missing(false).open(dir.path()).map(drop),
        verified.map(drop),
    ];
    for error in errors.map(Result::unwrap_err) {
        assert!(matches!(&error, Error::NotAStore { found, .. } if found.contains(seen)), "{error}");
        assert!(error.to_string().contains("is not a tamis store"), "{error}");
    }
    assert_eq!(files(dir.path()), before);
}

#[test]
fn directories_of_other_stores_are_refused_and_left_unchanged() {
    check_refused(&LEVELDB, "LevelDB");
    check_refused(&ROCKSDB, "RocksDB");
    // Without their CURRENT.
    check_refused(&LEVELDB[2..], "LOG");
    check_refused(&ROCKSDB[..1], "000008.sst");
}

#[test]
fn directories_of_other_files_are_refused_and_left_unchanged() {
    check_refused(&[("notes.txt", b"mine")], "notes.txt");
    check_refused(&[("CURRENT", b"electricity\n")], "CURRENT");
}

#[test]
fn a_store_is_created_in_an_absent_or_an_empty_directory() {
    let dir = tempfile::tempdir().unwrap();
    // The root of a file system.
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    for path in [dir.path().to_owned(), dir.path().join("absent/below")] {
        assert!(matches!(Db::open_read_only(&path), Err(Error::NotFound(_))));
        let db = Db::open(&path).unwrap();
        db.put("k", "v").unwrap();
        db.close().unwrap();
        assert_eq!(Db::open_read_only(&path).unwrap().get("k").unwrap().as_deref(), Some(&b"v"[..]));
    }
}

#[test]
fn a_file_is_no_store() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(Db::open(file.path()), Err(Error::NotAStore { .. })));
    assert!(matches!(Db::open_read_only(file.path()), Err(Error::NotAStore { .. })));
}
