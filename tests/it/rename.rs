//! Does a keyspace have one name, the old one or the new one, whatever happens?

use std::sync::Arc;

use tamis::vfs::{Fault, FaultMode, SimFileSystem};
use tamis::{Db, Error, KeyspaceOptions, Options};

fn options(fs: &SimFileSystem) -> Options {
    Options::new().file_system(Arc::new(fs.clone()))
}

fn sample(fs: &SimFileSystem) -> Db {
    let db = options(fs).open("/db").unwrap();
    let old = db.keyspace_with("old", KeyspaceOptions::new().block_size(512)).unwrap();
    db.keyspace("other").unwrap().put("k", "other").unwrap();
    old.put("flushed", "1").unwrap();
    db.flush().unwrap();
    old.put("logged", "2").unwrap();
    db.sync().unwrap();
    db
}

/// The keyspace is there under one of the names.
#[track_caller]
fn check(db: &Db, names: &[&str]) {
    let found: Vec<_> = names.iter().filter_map(|name| db.existing_keyspace(name).unwrap()).collect();
    assert_eq!(found.len(), 1, "{:?}", db.keyspace_names());
    assert_eq!((found[0].iter().count(), found[0].options().unwrap().block_size), (2, 512));
    assert_eq!(db.keyspace("other").unwrap().get("k").unwrap().unwrap(), "other");
    assert_eq!(db.keyspace_names().unwrap().len(), 3);
}

#[test]
fn handles_readers_and_the_next_process_find_it() {
    let fs = SimFileSystem::new();
    let db = sample(&fs);
    let (handle, reader) = (db.keyspace("old").unwrap(), options(&fs).open_read_only("/db").unwrap());
    check(&reader, &["old"]);
    let snapshot = db.snapshot();
    db.rename_keyspace("old", "new").unwrap();
    check(&db, &["new"]);
    assert!(db.existing_keyspace("old").unwrap().is_none());
    reader.refresh().unwrap();
    check(&reader, &["new"]);
    handle.put("logged", "3").unwrap();
    let new = db.keyspace("new").unwrap();
    assert_eq!((new.id(), new.get("logged").unwrap().unwrap()), (handle.id(), b"3"[..].into()));
    assert_eq!(snapshot.keyspace(&new).get("logged").unwrap().unwrap(), "2");
    assert_eq!(db.stats().keyspaces.iter().filter(|keyspace| keyspace.name == "new").count(), 1);
    // The old name is free.
    db.keyspace("old").unwrap().put("k", "v").unwrap();
    db.drop_keyspace("old").unwrap();
    db.flush().unwrap();
    check(&db, &["new"]);
    drop((handle, new, snapshot));
    db.close().unwrap();
    check(&options(&fs).open("/db").unwrap(), &["new"]);
    check(&options(&fs.crash(3)).open("/db").unwrap(), &["new"]);
}

#[test]
fn what_cannot_be_is_refused() {
    let fs = SimFileSystem::new();
    let db = sample(&fs);
    for (name, new) in [("absent", "new"), ("old", "other"), ("default", "new"), ("old", "default"), ("old", "")] {
        let error = db.rename_keyspace(name, new).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    db.rename_keyspace("old", "old").unwrap();
    check(&db, &["old"]);
}

#[test]
fn any_call_may_fail_and_the_power_too() {
    for at in 1.. {
        let fs = SimFileSystem::new();
        let db = sample(&fs);
        fs.crash_at(Some(at));
        let renamed = db.rename_keyspace("old", "new");
        let Some(cut) = fs.crash_point() else {
            renamed.unwrap();
            assert!(at > 3);
            break;
        };
        check(&options(&cut.kill()).open("/db").unwrap(), &["old", "new"]);
        check(&options(&cut.crash(at)).open("/db").unwrap(), &["old", "new"]);
    }
    for at in 1.. {
        let fs = SimFileSystem::new();
        let db = sample(&fs);
        fs.set_fault(Some(Fault { at, mode: FaultMode::Io, sticky: false }));
        let renamed = db.rename_keyspace("old", "new");
        let is_hit = fs.fault_hit();
        fs.set_fault(None);
        let _ = db.close();
        let names = if renamed.is_ok() { &["new"][..] } else { &["old", "new"] };
        check(&options(&fs).open("/db").unwrap(), names);
        if !is_hit {
            break;
        }
    }
}
