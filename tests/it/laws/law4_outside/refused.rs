//! A store in a file system that refuses writes can be copied as it can be read.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use tamis::vfs::{FileLock, FileSystem, ReadableFile, SimFileSystem, WritableFile};
use tamis::{Db, Error, Options};

use crate::support::count_entries;

/// Refuses writes below `/mount`.
#[derive(Clone, Debug)]
struct Refusing {
    fs: SimFileSystem,
    error: ErrorKind,
    /// Whether the lock file may be written all the same.
    may_lock: bool,
}

impl Refusing {
    fn check(&self, path: &Path) -> io::Result<()> {
        if path.starts_with("/mount") { Err(self.error.into()) } else { Ok(()) }
    }
}

impl FileSystem for Refusing {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        self.check(path)?;
        self.fs.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        self.fs.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(from)?;
        self.fs.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(to)?;
        self.fs.hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.check(path)?;
        self.fs.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        if self.fs.list(dir).is_ok() {
            return Ok(false);
        }
        self.check(dir)?;
        self.fs.create_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.fs.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        if !self.may_lock {
            self.check(path)?;
        }
        self.fs.lock(path)
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        self.fs.is_locked(path)
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.fs.free_space(dir)
    }
}

const STORE: &str = "/mount/store";

fn options(fs: impl FileSystem + 'static) -> Options {
    Options::new().file_system(Arc::new(fs))
}

/// A store with a table and, unless it was closed, a log.
fn sample(is_closed: bool) -> SimFileSystem {
    let fs = SimFileSystem::new();
    fs.create_dir(Path::new("/mount")).unwrap();
    let db = options(fs.clone()).open(STORE).unwrap();
    for (i, is_last) in [(1, false), (2, true)] {
        db.put(format!("key{i}"), "value").unwrap();
        if !is_last {
            db.flush().unwrap();
        }
    }
    if is_closed {
        db.close().unwrap();
        return fs.kill();
    }
    let killed = fs.kill();
    drop(db);
    killed
}

#[test]
fn a_store_that_can_only_be_read_can_be_copied() {
    for error in [ErrorKind::ReadOnlyFilesystem, ErrorKind::PermissionDenied] {
        for (is_closed, may_lock) in [(true, false), (false, false), (true, true), (false, true)] {
            let case = format!("{error}, closed: {is_closed}, lock: {may_lock}");
            let fs = sample(is_closed);
            let refusing = Refusing { fs: fs.clone(), error, may_lock };
            let db = options(refusing.clone()).open_to_copy(STORE).unwrap();
            assert!(db.is_read_only() || may_lock, "{case}");
            // A failed flush is of the source, not of the copy.
            let _ = db.flush();
            assert_eq!(db.checkpoint("/copy").unwrap().seqno, 2, "{case}");
            let mut bytes = 0;
            let image = db.image().unwrap();
            for file in image.files() {
                image
                    .read(file.kind, |piece| {
                        bytes += piece.len() as u64;
                        Ok(())
                    })
                    .unwrap();
            }
            assert_eq!(bytes, image.files().map(|file| file.size).sum::<u64>(), "{case}");
            drop((image, db));
            let copy = options(refusing).open("/copy").unwrap();
            assert_eq!(count_entries(copy.iter()), 2, "{case}");
        }
    }
}

#[test]
fn a_store_that_another_one_writes_can_be_copied_and_an_absent_one_is_not_made() {
    let fs = SimFileSystem::new();
    let writer = options(fs.clone()).open("/db").unwrap();
    writer.put("a", "1").unwrap();
    let db = options(fs.clone()).open_to_copy("/db").unwrap();
    assert!(db.is_read_only());
    db.checkpoint("/copy").unwrap();
    writer.put("b", "2").unwrap();
    drop(db);
    writer.close().unwrap();
    let db = options(fs.clone()).open_to_copy("/db").unwrap();
    assert!(!db.is_read_only());
    assert_eq!(count_entries(db.iter()), 2);
    drop(db);
    assert_eq!(count_entries(options(fs.clone()).open("/copy").unwrap().iter()), 1);
    assert!(matches!(options(fs.clone()).open_to_copy("/none"), Err(Error::NotFound(_))));
    assert!(fs.list(Path::new("/none")).is_err());
    assert!(matches!(Db::open_to_copy("/no such directory"), Err(Error::NotFound(_))));
}
