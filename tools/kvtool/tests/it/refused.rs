//! Directories that hold no store, and files that are damaged or too new: the messages, and that no
//! file changes.

use std::fs;
use std::path::Path;

use crate::sandbox::{CORRUPTION, DONE, IO, NOT_FOUND, Sandbox};

const COMMANDS: [&[&str]; 18] = [
    &["put", "db", "k", "v"],
    &["get", "db", "k"],
    &["delete", "db", "k"],
    &["scan", "db"],
    &["changes", "db"],
    &["import", "db"],
    &["import", "db", "--dry-run"],
    &["export", "db"],
    &["stats", "db"],
    &["explain", "db", "k"],
    &["levels", "db"],
    &["keyspaces", "db"],
    &["compact", "db"],
    &["verify", "db"],
    &["filter", "rebuild", "db", "--bits", "9"],
    &["filter", "advise", "db"],
    &["repair", "db"],
    &["repair", "db", "--dry-run"],
];

#[test]
fn another_programs_directory_is_refused_and_left_as_it_is() {
    let manifest = b"\x56\xf9\xb8\xf8\x1c\0\x01\x01\x1aleveldb.BytewiseComparator";
    let leveldb: [(&str, &[u8]); 4] = [
        ("CURRENT", b"MANIFEST-000002\n"),
        ("MANIFEST-000002", manifest),
        ("000005.ldb", b"\0\x08\x04key"),
        ("LOCK", b"left by LevelDB"),
    ];
    let rocksdb: [(&str, &[u8]); 6] = [
        ("CURRENT", b"MANIFEST-000005\n"),
        ("MANIFEST-000005", manifest),
        ("000008.sst", b"\0\x0b\x04key1\x01\x05\0\0\0\0\0\0value1"),
        ("IDENTITY", b"0af5-11"),
        ("OPTIONS-000007", b"# This is a RocksDB option file."),
        ("LOCK", b""),
    ];
    for (clue, files) in [("LevelDB", &leveldb[..]), ("RocksDB", &rocksdb), ("000008.sst", &rocksdb[1..])] {
        let sandbox = Sandbox::new();
        fs::create_dir(sandbox.path("db")).unwrap();
        for (name, content) in files {
            fs::write(sandbox.path("db").join(name), content).unwrap();
        }
        let before = sandbox.files("db");
        for command in COMMANDS {
            let said = sandbox.words(command, IO);
            assert!(said.contains("db is not a tamis store: it ") && said.contains(clue), "{command:?}: {said}");
            assert_eq!(sandbox.files("db"), before, "{command:?}");
        }
    }
}

#[test]
fn a_store_is_created_only_in_an_absent_or_empty_directory() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path("db")).unwrap();
    sandbox.words(&["get", "db", "k"], IO);
    sandbox.text(&["put", "db", "k", "v"]);
    fs::create_dir(sandbox.path("other")).unwrap();
    fs::write(sandbox.path("other/notes.txt"), "mine").unwrap();
    let said = sandbox.words(&["put", "other", "k", "v"], IO);
    assert!(said.contains("it holds notes.txt") && said.contains("absent or an empty directory"), "{said}");
    assert_eq!(sandbox.files("other").len(), 1);
    let said = sandbox.words(&["get", "db/CURRENT", "k"], IO);
    assert!(said.contains("it is not a directory"), "{said}");
}

fn flip(path: &Path, offset: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[offset] ^= 2;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_flipped_bit_in_a_version_is_damage_to_every_command() {
    let manifest = |sandbox: &Sandbox| {
        let is_manifest = |name: &str| name.starts_with("MANIFEST");
        let mut files = sandbox.files("db").into_keys();
        files.find(|path| is_manifest(path.file_name().unwrap().to_str().unwrap())).unwrap()
    };
    // "tamis 1" becomes "tamis 3", and version 1 in headers becomes 3.
    for (file, offset) in [("CURRENT", 6), ("MANIFEST", 8), ("sst", 8), ("footer", 80)] {
        let sandbox = Sandbox::with_store(100, 3, &[]);
        let path = match file {
            "CURRENT" => sandbox.path("db/CURRENT"),
            "MANIFEST" => manifest(&sandbox),
            _ => sandbox.file("sst"),
        };
        let footer = usize::try_from(fs::metadata(&path).unwrap().len()).unwrap().saturating_sub(96);
        flip(&path, if file == "footer" { footer + offset } else { offset });
        for command in [&["get", "db", "key001"][..], &["scan", "db"], &["verify", "db"], &["compact", "db"]] {
            let output = sandbox.run(command, b"", CORRUPTION);
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert!(said.contains("damaged") && !said.contains("newer"), "{file} {command:?}: {said}");
        }
    }
}

#[test]
fn compact_fails_on_a_damaged_table() {
    for offset in [64 + 500, 8] {
        let sandbox = Sandbox::with_store(100, 3, &[]);
        sandbox.run(&["import", "db"], b"key050\tnew\n", DONE);
        let table = sandbox.files("db").into_keys().find(|path| path.extension().is_some_and(|e| e == "sst")).unwrap();
        flip(&table, offset);
        let said = sandbox.words(&["compact", "db"], CORRUPTION);
        assert!(said.contains("damaged"), "{said}");
        sandbox.check(&["compact", "db", "--from", "key050"], CORRUPTION);
    }
    // A table already in the last level is not merged.
    let sandbox = Sandbox::with_store(100, 3, &[]);
    sandbox.words(&["compact", "db"], DONE);
    sandbox.words(&["compact", "db"], DONE);
    flip(&sandbox.file("sst"), 64 + 500);
    sandbox.words(&["compact", "db"], CORRUPTION);
    sandbox.words(&["compact", "db", "--from", "z"], DONE);
}

#[test]
fn an_absent_key_prints_no_message() {
    let sandbox = Sandbox::with_store(10, 3, &[]);
    assert_eq!(sandbox.words(&["get", "db", "absent"], NOT_FOUND), "");
}
