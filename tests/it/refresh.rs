//! A reader that follows the process that writes: what it is refused, what it keeps, and damage.
//!
//! That it sees only what that process has had, random histories show (`tests/histories`).

#[cfg(unix)]
mod descriptors;
mod processes;

use std::path::PathBuf;

use tamis::vfs::{FileSystem, OsFileSystem, SimFileSystem};
use tamis::{Db, Error, Options};

use crate::support::stepped_options;

#[test]
fn a_store_of_another_history_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let [path, copy, old] = ["db", "copy", "old"].map(|name| dir.path().join(name));
    let db = Db::open(&path).unwrap();
    db.put("k", "1").unwrap();
    db.checkpoint(&copy).unwrap();
    db.put("k", "2").unwrap();
    assert!(matches!(db.refresh(), Err(Error::InvalidArgument(_))));
    let reader = Db::open_read_only(&path).unwrap();
    db.close().unwrap();
    let fs = OsFileSystem::new();
    fs.rename(&path, &old).unwrap();
    fs.rename(&copy, &path).unwrap();
    let shows = |value: &str| assert_eq!(reader.get("k").unwrap().as_deref(), Some(value.as_bytes()));
    for _ in 0..2 {
        let error = reader.refresh().unwrap_err();
        assert!(matches!(error, Error::HistoryChanged { seqno: 2, .. }), "{error}");
        shows("2");
    }
    // What is there now has been written since, and more.
    let db = Db::open(&path).unwrap();
    (0..5).for_each(|_| _ = db.put("k", "3").unwrap());
    assert!(matches!(reader.refresh(), Err(Error::HistoryChanged { .. })));
    shows("2");
    assert_eq!(Db::open_read_only(&path).unwrap().get("k").unwrap().as_deref(), Some(&b"3"[..]));
    let handle = reader.clone();
    reader.close().unwrap();
    assert!(matches!(handle.refresh(), Err(Error::Closed)));
}

#[test]
fn a_copy_that_has_grown_beyond_its_original_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let [path, copy, old] = ["db", "copy", "old"].map(|name| dir.path().join(name));
    let db = Db::open(&path).unwrap();
    let fill = |db: &Db, value: &str| {
        db.put("k", value).unwrap();
        db.flush().unwrap();
    };
    fill(&db, "0");
    db.checkpoint(&copy).unwrap();
    (1..4).for_each(|_| fill(&db, "of the original"));
    let reader = Db::open_read_only(&path).unwrap();
    db.close().unwrap();
    let fs = OsFileSystem::new();
    fs.rename(&path, &old).unwrap();
    fs.rename(&copy, &path).unwrap();
    let db = Db::open(&path).unwrap();
    (1..20).for_each(|_| fill(&db, "of the copy"));
    assert!(matches!(reader.refresh(), Err(Error::HistoryChanged { .. })));
    assert_eq!(reader.get("k").unwrap().as_deref(), Some(&b"of the original"[..]));
}

/// Files of `dir` that this process has open although their names are gone.
#[cfg(target_os = "linux")]
fn nameless(dir: &std::path::Path) -> usize {
    let fds = OsFileSystem::new().list(std::path::Path::new("/proc/self/fd")).unwrap();
    let open = fds.iter().filter_map(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok());
    open.filter(|path| path.starts_with(dir) && path.to_str().unwrap().ends_with("(deleted)")).count()
}

#[cfg(target_os = "linux")]
#[test]
fn a_reader_keeps_removed_files_until_its_last_view_of_them_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap().join("db");
    let keyspace = tamis::KeyspaceOptions::new().separate_values(200);
    let db = Options::new().memtable_size(64 << 10).default_keyspace(keyspace).open(&path).unwrap();
    let fill = |value: u8| {
        for i in 0..2000u32 {
            db.put(i.to_be_bytes(), vec![value; 100 + (i as usize % 3) * 100]).unwrap();
        }
        db.compact_range(..).unwrap();
        db.wait_for_compactions().unwrap();
    };
    fill(1);
    let reader = Options::new().max_open_files(8).open_read_only(&path).unwrap();
    let stats = reader.stats().reader.unwrap();
    assert!(stats.files > 1 && stats.bytes > 10_000, "{stats:?}");
    let all_are = |iter: tamis::Iter, value: u8| {
        let mut count = 0;
        for entry in iter {
            assert_eq!(entry.unwrap().1[0], value);
            count += 1;
        }
        assert_eq!(count, 2000);
    };
    fill(2);
    assert!(nameless(&path) >= stats.files);
    all_are(reader.iter(), 1);
    let (snapshot, iter) = (reader.snapshot(), reader.iter());
    reader.refresh().unwrap();
    all_are(reader.iter(), 2);
    all_are(snapshot.iter(), 1);
    assert!(nameless(&path) > 0);
    drop(snapshot);
    all_are(iter, 1);
    // A view that was replaced while a thread read in it is freed with the next one.
    let _ = reader.stats();
    assert_eq!(nameless(&path), 0);
    fill(3);
    assert!(nameless(&path) > 0);
    drop(reader);
    assert_eq!(nameless(&path), 0);
}

#[test]
fn damage_in_the_manifest_is_reported() {
    let fs = SimFileSystem::new();
    let db = stepped_options(&fs).0.open("/db").unwrap();
    let flush = |n: u32| {
        db.put(n.to_be_bytes(), "value").unwrap();
        db.flush().unwrap();
    };
    flush(0);
    let reader = stepped_options(&fs).0.open_read_only("/db").unwrap();
    let is_manifest = |path: &PathBuf| path.to_string_lossy().contains("MANIFEST");
    let manifest = fs.paths().into_iter().find(is_manifest).unwrap();
    let before = fs.read(&manifest).unwrap();
    flush(1);
    let after = fs.read(&manifest).unwrap();
    let edit = (0..after.len()).find(|at| before.get(*at) != Some(&after[*at])).unwrap();
    fs.corrupt(&manifest, edit as u64 + 12, 1).unwrap();
    // The record behind it says that it was durable once.
    let error = (0..10).find_map(|_| reader.refresh().err()).unwrap();
    assert!(matches!(&error, Error::Corruption { file, .. } if *file == manifest), "{error}");
    assert_eq!(reader.get(0u32.to_be_bytes()).unwrap().as_deref(), Some(&b"value"[..]), "the reader stays as it was");
}
