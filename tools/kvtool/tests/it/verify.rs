//! `verify` of single files: their damage is found as the store's check finds it.

use std::fs;
use std::path::{Path, PathBuf};

use tamis::{KeyspaceOptions, Options};

use crate::sandbox::{CORRUPTION, DONE, IO, Sandbox, USAGE};

/// A store `db` with files of all kinds, as a kill leaves it.
fn with_all_files() -> Sandbox {
    let sandbox = Sandbox::new();
    let options = Options::new().default_keyspace(KeyspaceOptions::new().separate_values(1000));
    let db = options.open(sandbox.path("open")).unwrap();
    for i in 0..2000 {
        db.put(format!("key{i:05}"), format!("value {i}").repeat(5)).unwrap();
    }
    db.put("long", "x".repeat(5000)).unwrap();
    db.delete_range("key00100".."key00200").unwrap();
    db.flush().unwrap();
    for i in 0..20 {
        db.put(format!("logged{i}"), "1").unwrap();
    }
    db.sync().unwrap();
    fs::create_dir(sandbox.path("db")).unwrap();
    for (path, bytes) in sandbox.files("open") {
        fs::write(sandbox.path("db").join(path.file_name().unwrap()), bytes).unwrap();
    }
    db.close().unwrap();
    sandbox
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// The files of the store that have checksums.
fn checked(sandbox: &Sandbox) -> Vec<PathBuf> {
    let files = sandbox.files("db").into_keys();
    files.filter(|path| name(path) != "LOCK").collect()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn files_alone_have_what_the_store_has() {
    let sandbox = with_all_files();
    let whole = sandbox.json(&["verify", "db"]);
    let files = checked(&sandbox);
    let (mut counts, mut kinds) = ([0; 6], Vec::new());
    for path in &files {
        let path = path.to_str().unwrap();
        let found = sandbox.json(&["verify", path]);
        assert_eq!((&found["sound"], &found["notes"]), (&true.into(), &0.into()), "{path}: {found}");
        kinds.extend(path.rsplit_once('.').map(|(_, kind)| kind.to_owned()));
        for (count, field) in counts.iter_mut().zip(FIELDS) {
            *count += found[field].as_u64().unwrap();
        }
    }
    // With range deletes, there are two tables.
    assert_eq!(FIELDS.map(|field| whole[field].as_u64().unwrap()), counts);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    for kind in ["sst", "val", "wal"] {
        assert!(kinds.iter().any(|of| of == kind), "{kinds:?}");
    }
    let all: Vec<&str> = ["verify", "db"].into_iter().chain(files.iter().map(|path| path.to_str().unwrap())).collect();
    let said = sandbox.words(&all, DONE);
    assert_eq!(said.matches("no damage").count(), files.len() + 1, "{said}");
}

const FIELDS: [&str; 6] = ["edits", "batches", "tables", "entries", "value_files", "values"];

#[test]
fn all_damaged_blocks_of_a_table_are_reported_as_for_its_store() {
    let sandbox = with_all_files();
    let tables = checked(&sandbox).into_iter().filter(|path| name(path).ends_with(".sst"));
    let table = tables.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let len = usize::try_from(fs::metadata(&table).unwrap().len()).unwrap();
    flip(&table, len / 4);
    flip(&table, len / 2);
    let verify = |path: &str| String::from_utf8(sandbox.check(&["verify", path], CORRUPTION)).unwrap();
    let (of_store, of_file) = (verify("db"), verify(&format!("db/{}", name(&table))));
    assert_eq!(of_file.lines().count(), 2, "{of_file}");
    assert_eq!(of_store, of_file);
    // The other files are checked, too.
    let (manifest, table) = (manifest(&sandbox), table.to_str().unwrap());
    let said = sandbox.words(&["verify", table, &manifest], CORRUPTION);
    assert!(said.contains("damage: 2") && said.contains("no damage"), "{said}");
}

fn manifest(sandbox: &Sandbox) -> String {
    let files = checked(sandbox);
    files.iter().find(|path| name(path).starts_with("MANIFEST")).unwrap().display().to_string()
}

#[test]
fn a_flipped_bit_of_any_file_is_found() {
    let sandbox = with_all_files();
    for path in checked(&sandbox) {
        let bytes = fs::read(&path).unwrap();
        // Logs end in zeros that were prepared for more.
        let len = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        for at in [len / 5, len / 2] {
            flip(&path, at);
            let found = sandbox.check(&["verify", path.to_str().unwrap()], CORRUPTION);
            assert!(String::from_utf8(found).unwrap().contains(": damaged: "), "{} at {at}", path.display());
            fs::write(&path, &bytes).unwrap();
        }
    }
}

#[test]
fn what_is_no_file_of_a_store_is_refused() {
    let sandbox = with_all_files();
    fs::write(sandbox.path("db/notes.txt"), "mine").unwrap();
    for path in ["db/LOCK", "db/notes.txt"] {
        sandbox.words(&["verify", path], USAGE);
    }
    for path in ["db/000099.sst", "absent"] {
        sandbox.words(&["verify", path], IO);
    }
    sandbox.words(&["verify"], USAGE);
}
