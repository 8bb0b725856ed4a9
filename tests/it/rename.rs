//! Does a keyspace have one name, the old one or the new one, whatever happens?

use std::sync::Arc;

use tamis::vfs::{Fault, FaultMode, SimFileSystem};
use tamis::{Changes, Db, Error, KeyspaceOptions, OperationKind, Options, ProgressListener};

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

/// The feed told later writes by the name that a keyspace had when the feed first met it: to a
/// follower they were writes to the keyspace that has that name now.
#[test]
fn a_feed_names_keyspaces_as_they_are_called() {
    let fs = SimFileSystem::new();
    let db = sample(&fs);
    let reader = options(&fs).open_read_only("/db").unwrap();
    let since = db.last_seqno() - 1;
    let mut feeds = [db.changes_since(since).unwrap().visible(), reader.changes_since(since).unwrap()];
    let told = |feed: &mut Changes| -> Vec<(String, Vec<u8>)> {
        reader.refresh().unwrap();
        let batches: Vec<_> = feed.map(Result::unwrap).collect();
        let operations = batches.iter().flat_map(|batch| batch.operations());
        let told = operations.map(|operation| match operation.kind {
            OperationKind::Put { key, .. } => (operation.keyspace.to_owned(), key.to_vec()),
            kind => panic!("{kind:?}"),
        });
        told.collect()
    };
    let pair = |keyspace: &str, key: &str| (keyspace.to_owned(), key.as_bytes().to_vec());
    for feed in &mut feeds {
        assert_eq!(told(feed).last(), Some(&pair("old", "logged")));
    }
    let former = db.keyspace("old").unwrap();
    db.rename_keyspace("old", "former").unwrap();
    former.put("1", "").unwrap();
    db.keyspace("old").unwrap().put("2", "").unwrap();
    for feed in &mut feeds {
        assert_eq!(told(feed), [pair("former", "1"), pair("old", "2")]);
    }
    // Keyspaces that come and go.
    for i in 0..200 {
        let name = i.to_string();
        db.keyspace(&name).unwrap().put("3", "").unwrap();
        former.put("4", "").unwrap();
        for feed in &mut feeds {
            assert_eq!(told(feed), [pair(&name, "3"), pair("former", "4")]);
        }
        former.put("5", "").unwrap();
        db.keyspace(&name).unwrap().put("6", "").unwrap();
        db.drop_keyspace(&name).unwrap();
        for feed in &mut feeds {
            assert_eq!(told(feed), [pair("former", "5")]);
        }
    }
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

#[test]
fn copies_to_one_name_do_not_meet() {
    let fs = SimFileSystem::new();
    let db = sample(&fs);
    let (old, other) = (db.keyspace("old").unwrap(), db.keyspace("other").unwrap());
    // A second copy begins while the first one goes on.
    let (within, source) = (db.clone(), other.clone());
    let refused = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = Arc::clone(&refused);
    let listener = ProgressListener::new(move |_| {
        let copied = within.copy_keyspace(&source, "copy", &ProgressListener::default());
        assert!(matches!(copied, Err(Error::InvalidArgument(_))), "{copied:?}");
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(db.copy_keyspace(&old, "copy", &listener).unwrap().keys, 2);
    assert!(refused.load(std::sync::atomic::Ordering::Relaxed) > 0);
    drop(listener);
    // What was there when it returned is there after a power cut.
    let after = options(&fs.crash(1)).open("/db").unwrap();
    assert_eq!(after.keyspace("copy").unwrap().iter().count(), 2);
    // What a copy has left is not dropped while it is copied.
    let left = db.keyspace("x (being copied)").unwrap();
    left.put("k", "v").unwrap();
    let copied = db.copy_keyspace(&left, "x", &ProgressListener::default());
    assert!(matches!(copied, Err(Error::InvalidArgument(_))), "{copied:?}");
    assert_eq!(left.get("k").unwrap().unwrap(), "v");
    // The next one has its turn.
    assert_eq!(db.copy_keyspace(&other, "y", &ProgressListener::default()).unwrap().keys, 1);
}

#[test]
fn a_rename_that_finds_no_space_changes_nothing() {
    let fs = SimFileSystem::new();
    let db = sample(&fs);
    let names: Vec<String> = (0..4000).map(|i| format!("{}{i}", "k".repeat(200))).collect();
    db.keyspaces(&names.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    let used: u64 = fs.paths().iter().map(|path| fs.file_len(path).unwrap_or(0)).sum();
    for extra in [0, 100_000, 500_000, 1 << 20, 3 << 19] {
        fs.set_capacity(Some(used + extra));
        if let Err(error) = db.rename_keyspace("old", "new") {
            assert!(error.is_no_space(), "{error}");
            fs.set_capacity(None);
            db.put("k", "v").unwrap();
            assert!(db.existing_keyspace("new").unwrap().is_none());
        } else {
            db.rename_keyspace("new", "old").unwrap_or_default();
        }
    }
    fs.set_capacity(None);
    db.put("k", "v").unwrap();
}

#[test]
fn an_image_by_an_old_handle_has_the_new_name() {
    let fs = SimFileSystem::new();
    let db = sample(&fs);
    let handle = db.keyspace("old").unwrap();
    db.rename_keyspace("old", "new").unwrap();
    assert_eq!(handle.image().unwrap().keyspace(), Some("new"));
}
