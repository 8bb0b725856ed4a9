//! {ways in of a directory} × {kinds of path}: a store, and a copy of one, is made in a directory
//! that is free, wherever links lead to it, or nothing changes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tamis::{Db, Error};

use crate::support::Watchdog;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Absent,
    Empty,
    /// A link to an empty directory.
    Link,
    /// `..` after a link: what the text says is another directory.
    Above,
    Dangling,
    File,
    Pipe,
    Foreign,
    Store,
    LinkToStore,
    WithinStore,
}

const PLACES: [Place; 11] = [
    Place::Absent,
    Place::Empty,
    Place::Link,
    Place::Above,
    Place::Dangling,
    Place::File,
    Place::Pipe,
    Place::Foreign,
    Place::Store,
    Place::LinkToStore,
    Place::WithinStore,
];

impl Place {
    fn make(self, dir: &Path, store: &Path) -> PathBuf {
        let path = dir.join("given");
        match self {
            Place::Absent => {}
            Place::Empty => fs::create_dir(&path).unwrap(),
            Place::Link => {
                fs::create_dir_all(dir.join("far/real")).unwrap();
                symlink("far/real", &path).unwrap();
            }
            Place::Above => {
                fs::create_dir_all(dir.join("far/real")).unwrap();
                symlink("far/real", dir.join("link")).unwrap();
                return dir.join("link/../given");
            }
            Place::Dangling => symlink("nothing", &path).unwrap(),
            Place::File => fs::write(&path, "file").unwrap(),
            Place::Pipe => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
            Place::Foreign => {
                fs::create_dir(&path).unwrap();
                fs::write(path.join("letter"), "text").unwrap();
            }
            Place::Store => return store.to_owned(),
            Place::LinkToStore => symlink(store, &path).unwrap(),
            Place::WithinStore => return store.join("copy"),
        }
        path
    }
}

/// Names below a directory, and content.
fn listing(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        let content = if kind.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if kind.is_dir() {
            found.extend(listing(&path));
        }
        found.push((path, content));
    }
    found.sort();
    found
}

#[test]
fn a_checkpoint_goes_to_a_free_directory_or_changes_nothing() {
    let _watchdog = Watchdog::new("a checkpoint in any place");
    for place in PLACES {
        let dir = tempfile::tempdir().unwrap();
        let (store, outside) = (dir.path().join("store"), dir.path().join("outside"));
        fs::create_dir(&outside).unwrap();
        let db = Db::open(&store).unwrap();
        db.put("a", "1").unwrap();
        db.flush().unwrap();
        let path = place.make(&outside, &store);
        let before = (listing(&outside), listing(&store));
        let made = db.checkpoint(&path);
        let is_free = matches!(place, Place::Absent | Place::Empty | Place::Link | Place::Above | Place::WithinStore);
        assert_eq!(made.is_ok(), is_free, "{place:?}: {made:?}");
        if !is_free {
            assert_eq!((listing(&outside), listing(&store)), before, "{place:?}");
        }
        db.close().unwrap();
        if is_free {
            let copy = Db::open(&path).unwrap();
            assert_eq!(copy.get("a").unwrap().as_deref(), Some(&b"1"[..]), "{place:?}");
        }
        assert_eq!(Db::open(&store).unwrap().get("a").unwrap().as_deref(), Some(&b"1"[..]), "{place:?}");
    }
}

/// A store is one, whichever way leads to it, and stays where it was when that way changes.
#[test]
fn a_store_behind_links_is_locked_once_and_keeps_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    fs::create_dir(&real).unwrap();
    symlink("real", &link).unwrap();
    let db = Db::open(link.join("store")).unwrap();
    db.put("a", "1").unwrap();
    for path in [real.join("store"), link.join("../link/store"), link.join("store/../store")] {
        assert!(matches!(Db::open(&path), Err(Error::Locked { .. })), "{path:?}");
    }
    // Deployments replace such links while the store is open.
    fs::create_dir_all(dir.path().join("other")).unwrap();
    fs::remove_file(&link).unwrap();
    symlink("other", &link).unwrap();
    db.flush().unwrap();
    db.put("b", "2").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    assert!(fs::read_dir(dir.path().join("other")).unwrap().next().is_none());
    assert_eq!(Db::open(real.join("store")).unwrap().iter().count(), 2);
}

/// Taking the lock writes to the lock file: a link there would have another file overwritten.
#[test]
fn a_lock_behind_a_link_leaves_the_target_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    Db::open(&store).unwrap().close().unwrap();
    let precious = dir.path().join("precious");
    fs::write(&precious, "content").unwrap();
    for target in [precious.clone(), dir.path().join("absent")] {
        fs::remove_file(store.join("LOCK")).unwrap();
        symlink(&target, store.join("LOCK")).unwrap();
        assert!(Db::open(&store).is_err());
        assert!(Db::open_read_only(&store).is_ok());
    }
    assert_eq!(fs::read(&precious).unwrap(), b"content");
    assert!(!dir.path().join("absent").exists());
}
