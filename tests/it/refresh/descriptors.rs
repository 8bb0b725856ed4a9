//! Readers in a process that may open fewer files than the store has.

use std::process::Command;
use std::sync::Arc;

use tamis::{Db, Error, Options, SteppedExecutor};

/// Files that the process of the test may open, and keyspaces of the store, with a table each.
const LIMIT: usize = 64;
const KEYSPACES: usize = 2 * LIMIT;

#[test]
fn a_reader_that_may_not_open_all_files_says_so_and_stays_as_it_was() {
    let child = format!("ulimit -n {LIMIT} && exec \"$0\" refresh::descriptors::child --exact --ignored");
    let output = Command::new("sh").args(["-c", &child]).arg(std::env::current_exe().unwrap()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "the process that the other test of this module starts; cargo test --test it refresh::descriptors"]
fn child() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let options = || Options::new().executor(Arc::new(SteppedExecutor::new())).max_open_files(8);
    let db = options().open(&path).unwrap();
    let put = |name: &str, value: &str| db.keyspace(name).unwrap().put("key", value).unwrap();
    put("first", "old");
    db.flush().unwrap();
    let reader = options().open_read_only(&path).unwrap();
    let shows = |value: &str| {
        let keyspace = reader.existing_keyspace("first").unwrap().unwrap();
        assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(value.as_bytes()));
    };
    let is_refused = |refused: tamis::Result<()>| match refused {
        Err(Error::TooManyFiles { dir, files, .. }) => assert!(dir == path && files > KEYSPACES, "{files} files"),
        other => panic!("{other:?}"),
    };
    let names: Vec<String> = (0..KEYSPACES).map(|i| format!("other {i}")).collect();
    names.iter().for_each(|name| _ = put(name, "value"));
    put("first", "new");
    db.flush().unwrap();
    // A failed attempt gives its descriptors back: the next one and the writer need some.
    for _ in 0..3 {
        is_refused(reader.refresh().map(drop));
        shows("old");
        is_refused(options().open_read_only(&path).map(drop));
    }
    put("first", "newer");
    db.flush().unwrap();
    for name in &names {
        assert!(db.drop_keyspace(name).unwrap());
    }
    reader.refresh().unwrap();
    shows("newer");
    let again: Db = options().open_read_only(&path).unwrap();
    assert_eq!(again.keyspace_names().unwrap().len(), 2);
}
