//! A process that has no file descriptors left: what does a store do without, and what does it
//! give back?

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tamis::vfs::{FileLock, FileSystem, HeldDir, ReadableFile, SimFileSystem, WritableFile};
use tamis::{
    Db, Environment, EnvironmentOptions, Executor, IngestOptions, KeyspaceOptions, Options, SstWriter, SteppedExecutor,
    WriteOptions,
};

use crate::support::OpenedBy;

/// EMFILE.
fn no_descriptor() -> io::Error {
    io::Error::from_raw_os_error(24)
}

/// Descriptors of a process: those in use, and the most.
#[derive(Debug)]
struct Descriptors {
    used: AtomicUsize,
    most: AtomicUsize,
}

/// Holds a descriptor.
#[derive(Debug)]
struct Held<T>(T, Arc<Descriptors>);

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        self.1.used.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Descriptors {
    fn used(&self) -> usize {
        self.used.load(Ordering::SeqCst)
    }

    /// As if the rest of the process left that many.
    fn leave(&self, left: usize) {
        self.most.store(self.used().saturating_add(left), Ordering::SeqCst);
    }

    fn hold<T>(self: &Arc<Self>, open: impl FnOnce() -> io::Result<T>) -> io::Result<Held<T>> {
        if self.used() >= self.most.load(Ordering::SeqCst) {
            return Err(no_descriptor());
        }
        let opened = open()?;
        self.used.fetch_add(1, Ordering::SeqCst);
        Ok(Held(opened, Arc::clone(self)))
    }
}

/// The simulated file system in such a process.
#[derive(Clone, Debug)]
struct Scarce(SimFileSystem, Arc<Descriptors>);

impl FileSystem for Scarce {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        Ok(Box::new(self.1.hold(|| self.0.create(path))?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        Ok(Arc::new(self.1.hold(|| self.0.open(path))?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.hard_link(from, to)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.1.hold(|| self.0.sync_file(path)).map(drop)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.1.hold(|| self.0.list(dir)).map(|listed| listed.0.clone())
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        self.0.create_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.1.hold(|| self.0.sync_dir(dir)).map(drop)
    }

    fn hold_dir(&self, dir: &Path) -> io::Result<Option<Box<dyn HeldDir>>> {
        Ok(Some(Box::new(self.1.hold(|| Ok((self.0.clone(), dir.to_owned())))?)))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        let held = self.1.hold(|| self.0.lock(path))?;
        Ok(if held.0.is_some() { Some(Box::new(held)) } else { None })
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.0.free_space(dir)
    }
}

impl WritableFile for Held<Box<dyn WritableFile>> {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.append(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.0.reserve(len)
    }
}

impl ReadableFile for Held<Arc<dyn ReadableFile>> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
}

impl FileLock for Held<Option<Box<dyn FileLock>>> {
    fn is_in_force(&self) -> bool {
        self.0.as_ref().is_some_and(|lock| lock.is_in_force())
    }
}

impl HeldDir for Held<(SimFileSystem, PathBuf)> {
    fn sync(&self) -> io::Result<()> {
        self.0.0.sync_dir(&self.0.1)
    }
}

struct Store {
    db: Db,
    fs: Scarce,
    executor: Arc<SteppedExecutor>,
    /// The number of the last key written, and the first that may or may not be there.
    written: u64,
}

impl Store {
    /// A store of 600 keys in a few tables.
    fn new() -> Store {
        let descriptors = Descriptors { used: AtomicUsize::new(0), most: AtomicUsize::new(usize::MAX) };
        let fs = Scarce(SimFileSystem::new(), Arc::new(descriptors));
        let executor = Arc::new(SteppedExecutor::new());
        let db = Store::options(&fs, &executor).open("/db").unwrap();
        let mut store = Store { db, fs, executor, written: 0 };
        for _ in 0..6 {
            (0..100).for_each(|_| store.put(WriteOptions::new()).unwrap());
            store.db.flush().unwrap();
        }
        store.work();
        store
    }

    /// The store after a clean close: the first edit begins a manifest.
    fn reopened(self) -> Store {
        let Store { db, fs, executor, written } = self;
        db.close().unwrap();
        let db = Store::options(&fs, &executor).open("/db").unwrap();
        Store { db, fs, executor, written }
    }

    fn options(fs: &Scarce, executor: &Arc<SteppedExecutor>) -> Options {
        let (fs, executor) = (Arc::new(fs.clone()), Arc::clone(executor) as Arc<dyn Executor>);
        Options::new().file_system(fs).executor(executor).memtable_size(16 << 10).table_size(8 << 10).max_open_files(8)
    }

    fn key(number: u64) -> [u8; 8] {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
    }

    fn put(&mut self, options: WriteOptions) -> tamis::Result<()> {
        self.written += 1;
        self.db.put_with(Store::key(self.written), [7; 100], options).map(drop)
    }

    fn work(&self) {
        while self.executor.step() {}
    }

    /// Opens all tables.
    fn read_all(&self) {
        assert!((1..=600).all(|number| self.db.get(Store::key(number)).unwrap().is_some()));
    }
}

type Deed = fn(&mut Store) -> tamis::Result<()>;

/// What needs descriptors.
const DEEDS: [(&str, Deed); 11] = [
    ("synced put", |store| store.put(WriteOptions::new().sync(true))),
    ("put into a new log", |store| {
        store.db.flush()?;
        store.put(WriteOptions::new().sync(true))
    }),
    ("put until memtables are full", |store| (0..400).try_for_each(|_| store.put(WriteOptions::new()))),
    ("flush", |store| {
        store.put(WriteOptions::new())?;
        store.db.flush()
    }),
    ("compact", |store| store.db.compact_range(..)),
    ("keyspace", |store| store.db.keyspace(&format!("k{}", store.written)).map(drop)),
    ("rename", |store| {
        store.db.keyspace_with("old", KeyspaceOptions::new())?;
        store.db.rename_keyspace("old", "new")?;
        store.db.drop_keyspace("new").map(drop)
    }),
    ("delete range", |store| {
        store.put(WriteOptions::new())?;
        store.db.delete_range(Store::key(601)..=Store::key(601))?;
        store.db.flush()
    }),
    ("renew filters", |store| store.db.remake_filters(|_| ()).map(drop)),
    ("ingest", |store| {
        store.written += 1;
        let (path, format) = (format!("/in{}", store.written), store.db.sst_format().unwrap());
        // Another process writes the file.
        let mut writer = SstWriter::create_in(Arc::new(store.fs.0.clone()), &path, &format).unwrap();
        writer.put(Store::key(store.written), [7; 100]).unwrap();
        writer.finish().unwrap();
        store.db.ingest([path], IngestOptions::new()).map(drop)
    }),
    ("checkpoint", |store| {
        store.put(WriteOptions::new())?;
        store.db.checkpoint(format!("/copy{}", store.written)).map(drop)
    }),
];

#[test]
fn files_of_tables_are_closed_for_what_needs_a_descriptor() {
    for (name, deed) in DEEDS {
        let mut store = Store::new();
        let used = store.fs.1.used();
        store.read_all();
        assert!(store.fs.1.used() > used + 2, "{name}: no tables are open");
        store.fs.1.leave(0);
        deed(&mut store).unwrap_or_else(|error| panic!("{name}: {error}"));
        store.work();
        assert!(store.db.stats().background_error.is_none(), "{name}");
    }
}

#[test]
fn a_lack_of_descriptors_fails_what_needs_one_and_nothing_after() {
    for (name, deed) in DEEDS {
        for (left, is_reopened) in (0..6).flat_map(|left| [(left, false), (left, true)]) {
            let mut store = Store::new();
            if is_reopened {
                store = store.reopened();
            }
            store.fs.1.leave(left);
            let result = deed(&mut store);
            store.work();
            if let Err(error) = &result {
                assert!(!error.is_poisoned() && !error.is_corruption(), "{name} with {left}: {error}");
                assert!(error.to_string().contains("os error 24"), "{name} with {left}: {error}");
            }
            store.fs.1.leave(1000);
            let scene = |error| panic!("{name} after {left} descriptors were left: {error}");
            deed(&mut store).unwrap_or_else(scene);
            store.put(WriteOptions::new().sync(true)).unwrap_or_else(scene);
            store.db.wait_for_compactions().unwrap_or_else(scene);
            assert!(store.db.stats().background_error.is_none(), "{name}");
            store.read_all();
            let store = store.reopened();
            store.read_all();
            assert!(store.db.get(Store::key(store.written)).unwrap().is_some(), "{name} with {left}");
            store.db.close().unwrap();
            assert_eq!(store.fs.1.used(), 0, "{name} with {left}: descriptors are kept");
        }
    }
}

/// Files that a store of the environment does not use are closed for another one that opens.
#[test]
fn a_store_is_opened_although_another_has_all_descriptors() {
    for is_read_only in [false, true] {
        let Store { db, fs, executor, .. } = Store::new();
        db.put("in the log", "value").unwrap();
        let killed = Scarce(fs.0.kill(), Arc::clone(&fs.1));
        drop(db);
        let environment = Environment::new(EnvironmentOptions::new().max_open_files(100)).unwrap();
        let options = || Store::options(&killed, &executor).environment(&environment);
        let other = options().table_size(4 << 10).open("/other").unwrap();
        (0..1000).for_each(|number| _ = other.put(Store::key(number), [7; 100]).unwrap());
        other.compact_range(..).unwrap();
        let used = killed.1.used();
        assert!((0..1000).all(|number| other.get(Store::key(number)).unwrap().is_some()));
        assert!(killed.1.used() >= used + 20, "{} files are open", killed.1.used() - used);
        killed.1.leave(0);
        let opened = if is_read_only { options().open_read_only("/db") } else { options().open("/db") };
        let opened = opened.unwrap_or_else(|error| panic!("read-only: {is_read_only}: {error}"));
        assert!(opened.get("in the log").unwrap().is_some() && opened.get(Store::key(1)).unwrap().is_some());
        opened.close().unwrap();
        other.close().unwrap();
    }
}

/// A table of which a read fails for a moment.
#[derive(Debug)]
struct Failing(Arc<dyn ReadableFile>, Arc<AtomicUsize>);

impl ReadableFile for Failing {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // Counts down: the read that comes to 0 fails.
        match self.1.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(1))) {
            Ok(1) => Err(no_descriptor()),
            _ => self.0.read_at(buf, offset),
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
}

#[test]
fn a_filter_that_could_not_be_read_for_a_moment_is_read_later() {
    let Store { db, fs, .. } = Store::new();
    db.close().unwrap();
    let mut failures = 0;
    for failing in 1..8 {
        let left = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&left);
        let opened = OpenedBy::new(fs.0.clone(), move |file| {
            Arc::new(Failing(file, Arc::clone(&counted))) as Arc<dyn ReadableFile>
        });
        let db = Options::new().file_system(Arc::new(opened)).cache_size(0).open("/db").unwrap();
        left.store(failing, Ordering::SeqCst);
        failures += usize::from(db.get(Store::key(1)).is_err());
        left.store(0, Ordering::SeqCst);
        assert!(db.get(Store::key(1)).unwrap().is_some());
        let before = db.stats().reads().block_reads;
        for number in 1_000_000..1_001_000 {
            assert!(db.get(Store::key(number)).unwrap().is_none());
        }
        let blocks = db.stats().reads().block_reads - before;
        assert!(blocks < 100, "{blocks} blocks for 1000 absent keys after read {failing} failed");
        db.close().unwrap();
    }
    assert!(failures >= 3, "{failures} gets failed");
}
