//! While a writer waits for room, nothing else does: it holds no lock that others need.
//!
//! Debug builds also check every wait of a store (`db/locks.rs`), and so do all other tests.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use parking_lot::Condvar;
use tamis::vfs::{FileLock, FileSystem, ReadableFile, SimFileSystem, WritableFile};
use tamis::{
    Change, Db, Error, Event, Executor, IngestOptions, KeyspaceOptions, Options, Result, SstWriter, StallCause,
    ThreadPool, WriteBatch, WriteOptions,
};

use crate::support::{Watchdog, stepped_options};

/// A disk that creates no table in `/db` while it hangs: a flush that has begun does not end.
#[derive(Clone, Debug, Default)]
struct Hanging {
    fs: SimFileSystem,
    hangs: Arc<(parking_lot::Mutex<bool>, Condvar)>,
}

impl Hanging {
    fn hang(&self, hangs: bool) {
        *self.hangs.0.lock() = hangs;
        self.hangs.1.notify_all();
    }
}

impl FileSystem for Hanging {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        if path.starts_with("/db") && path.extension().is_some_and(|extension| extension == "sst") {
            let mut hangs = self.hangs.0.lock();
            self.hangs.1.wait_while(&mut hangs, |hangs| *hangs);
        }
        self.fs.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        self.fs.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.hard_link(from, to)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.fs.sync_file(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.fs.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        self.fs.create_dir(dir)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        self.fs.absolute(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.fs.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.fs.lock(path)
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.fs.free_space(dir)
    }
}

/// A store of small memtables, and what tells that a writer waits for a flush.
fn store(fs: &Hanging) -> (Db, Receiver<()>) {
    let (stalled, stalls) = channel();
    let stalled = Mutex::new(stalled);
    let threads: Arc<dyn Executor> = Arc::new(ThreadPool::new(2));
    let options: Options = stepped_options(&fs.fs).0.executor(threads).memtable_size(16 << 10);
    let options = options.file_system(Arc::new(fs.clone()));
    let options = options.on_event(move |event| {
        if let Event::StallBegan { cause: StallCause::Flush } = event {
            let _ = stalled.lock().unwrap().send(());
        }
    });
    (options.open("/db").unwrap(), stalls)
}

/// What a thread may do beside a writer that waits.
type Action = fn(&Db) -> Result<()>;

/// Those that need no room come to an end, and so do reads.
const FREE: [(&str, Action); 10] = [
    ("get", |db| db.get("k").map(drop)),
    ("iterate", |db| db.iter().try_for_each(|entry| entry.map(drop))),
    ("snapshot", |db| db.snapshot().get("k").map(drop)),
    ("keep", |db| db.update("k", |_| Change::Keep).map(drop)),
    ("sync", Db::sync),
    ("image", |db| db.image().map(drop)),
    ("checkpoint", |db| db.checkpoint("/copy").map(drop)),
    ("create a keyspace", |db| db.keyspace("new").map(drop)),
    ("change a keyspace", |db| db.keyspace_with("new", KeyspaceOptions::new().block_size(1024)).map(drop)),
    ("drop a keyspace", |db| db.drop_keyspace("new").map(drop)),
];

/// Those that wait for the disk like the writer, and go on with it.
const WAITING: [(&str, Action); 10] = [
    ("put", |db| db.put("k", "v").map(drop)),
    ("put and sync", |db| db.put_with("k", "v", WriteOptions::new().sync(true)).map(drop)),
    ("delete", |db| db.delete("k").map(drop)),
    ("delete a range", |db| db.delete_range("a".."b").map(drop)),
    ("batch", |db| {
        let mut batch = WriteBatch::new();
        batch.put("k", "v");
        db.write(batch).map(drop)
    }),
    ("update", |db| db.update("k", |_| Change::Put(b"v".to_vec())).map(drop)),
    ("transact", |db| {
        db.transact(|tx| {
            let _ = tx.get("k")?;
            tx.put("k", "v");
            Ok::<(), Error>(())
        })
    }),
    ("flush", Db::flush),
    ("compact", |db| db.compact_range(..)),
    ("wait for compactions", Db::wait_for_compactions),
];

/// Calls `check` while another thread waits for a flush that does not end.
fn beside_a_waiting_writer(check: impl FnOnce(&Db, &Hanging)) {
    let disk = Hanging::default();
    let (db, stalls) = store(&disk);
    db.put("k", "v").unwrap();
    disk.hang(true);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0u32..).find_map(|n| db.put(n.to_be_bytes(), [7; 100]).err()).unwrap());
        stalls.recv().unwrap();
        check(&db, &disk);
        disk.hang(false);
        let _ = db.clone().close();
        assert!(matches!(writer.join().unwrap(), Error::Closed));
    });
}

#[test]
fn a_writer_that_waits_for_room_keeps_nothing_from_being_done() {
    let _watchdog = Watchdog::new("a_writer_that_waits_for_room_keeps_nothing_from_being_done");
    beside_a_waiting_writer(|db, disk| {
        std::thread::scope(|scope| {
            let waiting = WAITING.map(|(name, action)| (name, scope.spawn(move || action(db))));
            for (name, action) in FREE {
                action(db).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            disk.hang(false);
            for (name, ended) in waiting {
                ended.join().unwrap().unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        });
    });
}

#[test]
fn a_store_closes_while_a_writer_waits_for_room() {
    let _watchdog = Watchdog::new("a_store_closes_while_a_writer_waits_for_room");
    beside_a_waiting_writer(|db, disk| {
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| db.clone().close());
            // Reads are refused as soon as closing has begun.
            while db.get("k").is_ok() {
                std::thread::yield_now();
            }
            disk.hang(false);
            closing.join().unwrap().unwrap();
        });
    });
}

/// Writers wait for the ingest, and the ingest for a flush. Nobody else does.
#[test]
fn an_ingest_that_waits_for_a_flush_keeps_nothing_from_being_done() {
    let _watchdog = Watchdog::new("an_ingest_that_waits_for_a_flush_keeps_nothing_from_being_done");
    let disk = Hanging::default();
    let (db, _stalls) = store(&disk);
    disk.create_dir(Path::new("/files")).unwrap();
    let mut writer = SstWriter::create_in(Arc::new(disk.clone()), "/files/new.sst", &db.sst_format().unwrap()).unwrap();
    writer.put("k", "ingested").unwrap();
    writer.finish().unwrap();
    db.put("k", "v").unwrap();
    disk.hang(true);
    std::thread::scope(|scope| {
        let ingest = scope.spawn(|| db.ingest(["/files/new.sst"], IngestOptions::new()));
        for (name, action) in FREE {
            action(&db).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        disk.hang(false);
        ingest.join().unwrap().unwrap();
        assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"ingested"[..]));
    });
    db.close().unwrap();
}

/// Room goes to those that wait in their order, so that a large batch is not overtaken for ever.
#[test]
fn all_writers_that_wait_for_room_come_to_their_turn() {
    let _watchdog = Watchdog::new("all_writers_that_wait_for_room_come_to_their_turn");
    const WRITERS: u32 = 6;
    const WRITES: u32 = 120;
    let (db, _stalls) = store(&Hanging::default());
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let db = &db;
            scope.spawn(move || {
                for n in 0..WRITES {
                    // One of them fills three quarters of a memtable with each write.
                    let len = if writer == 0 { 12 << 10 } else { 100 };
                    let key = [writer.to_be_bytes(), n.to_be_bytes()].concat();
                    match n % 3 {
                        0 => _ = db.put(key, vec![7; len]).unwrap(),
                        1 => _ = db.update(key, |_| Change::Put(vec![7; len])).unwrap(),
                        _ => _ = db.put_if_absent(key, vec![7; len]).unwrap().unwrap(),
                    }
                }
            });
        }
    });
    assert_eq!(db.iter().count(), (WRITERS * WRITES) as usize);
    db.close().unwrap();
}
