//! Is a checkpoint the store as it was, whatever happens meanwhile and afterwards?

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tamis::inspect::{FileKind, Inspector};
use tamis::vfs::{
    Fault, FaultMode, FileLock, FileSystem, MemoryFileSystem, OsFileSystem, ReadableFile, SimFileSystem, WritableFile,
};
use tamis::{Checkpoint, Db, Error, Executor, KeyspaceOptions, Options, RepairOptions, StoreCopy, WriteBatch};
use xxhash_rust::xxh3::xxh3_64;

use crate::support::{Watchdog, count_entries, for_each_seed, stepped_options};

mod kill;

const TARGET: &str = "/copies/monday";

/// Entries by keyspace and key.
type Contents = BTreeMap<(String, Vec<u8>), Vec<u8>>;

/// All entries of a store, except those of keyspaces without a log.
fn logged(db: &Db) -> Contents {
    let mut contents = Contents::new();
    for name in db.keyspace_names().unwrap() {
        let keyspace = db.existing_keyspace(&name).unwrap().unwrap();
        if keyspace.options().unwrap().wal {
            contents.insert((name.clone(), Vec::new()), Vec::new());
            let entries = keyspace.iter().map(|entry| entry.unwrap());
            contents.extend(entries.map(|(key, value)| ((name.clone(), key.to_vec()), value.to_vec())));
        }
    }
    contents
}

fn of_keyspace(db: &Db, name: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let keyspace = db.existing_keyspace(name).unwrap().unwrap();
    keyspace.iter().map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
}

/// Writes, deletes and drops at random, and has tables made and merged.
fn churn(db: &Db, executor: &dyn Executor, rng: &mut fastrand::Rng, steps: usize) {
    let values = db.keyspace_with("values", KeyspaceOptions::new().separate_values(16)).unwrap();
    let state = db.keyspace_with("state", KeyspaceOptions::new().wal(false)).unwrap();
    for _ in 0..steps {
        let (key, value) = (format!("k{:03}", rng.u32(0..300)), "v".repeat(rng.usize(0..120)));
        match rng.u32(0..40) {
            0 => drop(db.delete_range(key.clone()..format!("{key}9")).unwrap()),
            1 => drop(db.drop_keyspace("passing").unwrap()),
            2..6 => drop(db.keyspace("passing").unwrap().put(key, value).unwrap()),
            6..16 => drop(values.put(key, value).unwrap()),
            16..20 => drop(state.put(key, value).unwrap()),
            20..24 => drop(db.delete(key).unwrap()),
            24 => db.flush().unwrap(),
            25 => db.sync().unwrap(),
            26 if rng.u8(0..4) == 0 => db.compact_range(..).unwrap(),
            27..30 => drop(executor.step()),
            _ => {
                let mut batch = WriteBatch::new();
                batch.put(&key, &value);
                batch.put_in(&values, &key, &value);
                db.write(batch).unwrap();
            }
        }
    }
}

/// The copy in `dir` is sound, and has the files that `checkpoint` lists, with their checksums.
fn check_files(fs: &SimFileSystem, dir: &str, checkpoint: &Checkpoint) {
    let verified = Inspector::on(Arc::new(fs.clone())).verify(Path::new(dir), &mut |fault| panic!("{fault}"));
    assert_eq!(verified.unwrap().damaged, 0);
    let mut listed: Vec<PathBuf> = checkpoint.files.iter().map(|file| file.kind.path(Path::new(dir))).collect();
    listed.push(FileKind::Lock.path(Path::new(dir)));
    listed.sort();
    let found: Vec<PathBuf> = fs.paths().into_iter().filter(|path| path.starts_with(dir)).collect();
    assert_eq!(found, listed);
    for file in &checkpoint.files {
        let bytes = fs.read(file.kind.path(Path::new(dir))).unwrap();
        let checksum = u32::try_from(xxh3_64(&bytes) & u64::from(u32::MAX)).unwrap();
        assert_eq!((bytes.len() as u64, Some(checksum)), (file.size, file.checksum), "{:?}", file.kind);
    }
}

/// A copy draws a number of its own when it is opened for writing. Until then, it may be copied.
#[test]
fn a_copy_or_repaired_store_that_nobody_has_opened_can_be_copied() {
    let fs = SimFileSystem::new();
    let options = stepped_options(&fs).0;
    let db = options.clone().open("/db").unwrap();
    db.put("key", "value").unwrap();
    db.flush().unwrap();
    db.put("in the log", "value").unwrap();
    db.checkpoint("/copied").unwrap();
    db.checkpoint("/repaired").unwrap();
    tamis::repair("/repaired", RepairOptions::new().file_system(Arc::new(fs.clone()))).unwrap();
    for original in ["/copied", "/repaired"] {
        let reader = options.clone().open_read_only(original).unwrap();
        let (whole, part) = (format!("{original} whole"), format!("{original} part"));
        reader.checkpoint(&whole).unwrap();
        let image = reader.default_keyspace().image().unwrap();
        StoreCopy::make(Arc::new(fs.clone()), &part, |copy| {
            image.files().try_for_each(|file| copy.write(file.kind, |put| image.read(file.kind, put).map(drop)))
        })
        .unwrap();
        for copy in [&whole, &part] {
            let copy = options.clone().paranoid(true).open(copy).unwrap();
            assert_eq!(count_entries(copy.iter()), 2, "{original}");
            copy.put("another", "value").unwrap();
            copy.close().unwrap();
        }
        reader.close().unwrap();
    }
}

#[test]
fn files_of_copies_of_one_copy_are_told_apart() {
    let fs = SimFileSystem::new();
    let (options, _) = stepped_options(&fs);
    let db = options.clone().open("/db").unwrap();
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    let image = db.image().unwrap();
    let mut branches = Vec::new();
    for dir in ["/one", "/two"] {
        StoreCopy::make(Arc::new(fs.clone()), dir, |copy| {
            image.files().try_for_each(|file| copy.write(file.kind, |put| image.read(file.kind, put).map(drop)))
        })
        .unwrap();
        let copy = options.clone().open(dir).unwrap();
        copy.put("b", dir).unwrap();
        copy.flush().unwrap();
        let of_tables = |db: &Db| {
            let image = db.image().unwrap();
            let tables = image.files().filter(|file| matches!(file.kind, FileKind::Table(_)));
            tables.map(|file| (file.kind, file.branch)).collect::<Vec<_>>()
        };
        let tables = of_tables(&copy);
        assert_eq!((tables[0], tables.len()), (of_tables(&db)[0], 2), "the table that both have");
        branches.push(tables[1].1);
        // Reopening changes none of that.
        drop(copy);
        assert_eq!(of_tables(&options.clone().open(dir).unwrap()), tables);
    }
    assert_ne!(branches[0], branches[1]);
}

/// The simulated file system, without hard links, but for one that closes a store.
#[derive(Debug)]
struct Linkless(SimFileSystem, Mutex<Option<Db>>);

impl FileSystem for Linkless {
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let db = self.1.lock().take().ok_or(io::ErrorKind::Unsupported)?;
        db.close().unwrap();
        self.0.hard_link(from, to)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        self.0.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        self.0.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.0.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        self.0.create_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.0.lock(path)
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.0.free_space(dir)
    }
}

/// A store with tables, value files, range deletes and a log, in a file system with or without
/// links.
fn sample(fs: &SimFileSystem, has_links: bool) -> Db {
    let file_system: Arc<dyn FileSystem> = match has_links {
        true => Arc::new(fs.clone()),
        false => Arc::new(Linkless(fs.clone(), Mutex::default())),
    };
    let (options, executor) = stepped_options(fs);
    let db = options.file_system(file_system).memtable_size(8 << 10).open("/db").unwrap();
    churn(&db, &*executor, &mut fastrand::Rng::with_seed(3), 300);
    db.put("last", "value").unwrap();
    db
}

fn opened(fs: &SimFileSystem, dir: &str) -> tamis::Result<Db> {
    stepped_options(fs).0.create_if_missing(false).paranoid(true).open(dir)
}

#[test]
fn without_links_files_are_copied_and_compared() {
    let fs = SimFileSystem::new();
    let db = sample(&fs, false);
    let checkpoint = db.checkpoint(TARGET).unwrap();
    assert_eq!(checkpoint.linked, 0);
    check_files(&fs, TARGET, &checkpoint);
    assert_eq!(logged(&opened(&fs, TARGET).unwrap()), logged(&db));
    // A damaged table is not copied silently.
    let table = checkpoint.files.iter().find(|file| matches!(file.kind, FileKind::Table(_))).unwrap();
    fs.corrupt(table.kind.path(Path::new("/db")), table.size / 2, 1).unwrap();
    assert!(db.checkpoint("/copies/tuesday").unwrap_err().is_corruption());
    fs.truncate(table.kind.path(Path::new("/db")), table.size / 2).unwrap();
    assert!(db.checkpoint("/copies/tuesday").unwrap_err().is_corruption());
    assert_eq!(fs.list(Path::new("/copies/tuesday")).unwrap(), ["LOCK"], "nothing else is left");
}

#[test]
fn any_call_may_fail_once() {
    for has_links in [true, false] {
        for mode in [FaultMode::Io, FaultMode::NoSpace, FaultMode::ShortWrite, FaultMode::ReadError] {
            let mut failures = 0;
            for at in 1.. {
                let fs = SimFileSystem::new();
                let db = sample(&fs, has_links);
                let before = logged(&db);
                fs.set_fault(Some(Fault { at, mode, sticky: false }));
                let made = db.checkpoint(TARGET);
                let is_hit = fs.fault_hit();
                fs.set_fault(None);
                failures += u64::from(made.is_err());
                match &made {
                    Ok(_) => assert_eq!(logged(&opened(&fs, TARGET).unwrap()), before),
                    Err(error) => assert!(is_hit && matches!(error, Error::Io { .. }), "{at} {mode:?}: {error}"),
                }
                // The original takes no harm, and a retry succeeds where the first attempt failed.
                db.put("more", "value").unwrap();
                if made.is_err() {
                    let is_complete = opened(&fs, TARGET).map(|copy| assert_eq!(logged(&copy), before)).is_ok();
                    if !is_complete {
                        db.checkpoint(TARGET).unwrap();
                        assert_eq!(logged(&opened(&fs, TARGET).unwrap()), logged(&db), "{at} {mode:?}");
                    }
                }
                if !is_hit {
                    assert!(made.is_ok() && failures > 5, "{failures} {mode:?}");
                    break;
                }
            }
        }
    }
}

#[test]
fn the_power_may_fail_at_any_call() {
    for has_links in [true, false] {
        let mut seen = [0; 3];
        for at in 1.. {
            let fs = SimFileSystem::new();
            let db = sample(&fs, has_links);
            // Nothing is asked of the original here, so that it survives whole.
            db.flush().unwrap();
            db.put("last", "of all").unwrap();
            db.sync().unwrap();
            let before = logged(&db);
            if has_links {
                // Otherwise most power cuts take the directory with all that is in it.
                durable_dir(&fs);
            }
            fs.crash_at(Some(at));
            let made = db.checkpoint(TARGET);
            let Some(cut) = fs.crash_point() else {
                assert!(made.is_ok() && seen.iter().all(|count| *count > 3), "{seen:?}");
                for seed in 0..20 {
                    assert_eq!(logged(&opened(&fs.crash(seed), TARGET).unwrap()), before);
                }
                break;
            };
            for seed in 0..16 {
                let crashed = cut.crash(seed);
                match opened(&crashed, TARGET) {
                    Ok(copy) => {
                        seen[0] += 1;
                        assert_eq!(logged(&copy), before, "{at} {seed}");
                    }
                    Err(error) => {
                        seen[match error {
                            Error::Incomplete(_) => 1,
                            Error::NotFound(_) => 2,
                            error => panic!("{at} {seed}: {error}"),
                        }] += 1;
                        // A retry clears what is there; every fourth cut tries it.
                        if (seed + at) % 4 == 0 {
                            let db = opened(&crashed, "/db").unwrap();
                            let checkpoint = db.checkpoint(TARGET).unwrap();
                            check_files(&crashed, TARGET, &checkpoint);
                            let copy = opened(&crashed.crash(seed), TARGET).unwrap();
                            assert_eq!((logged(&copy), logged(&db)), (before.clone(), before.clone()));
                        }
                    }
                }
            }
        }
    }
}

fn durable_dir(fs: &SimFileSystem) {
    fs.create_dir(Path::new(TARGET)).unwrap();
    ["/copies", "/"].iter().for_each(|dir| fs.sync_dir(Path::new(dir)).unwrap());
}

#[test]
fn the_power_may_fail_while_a_failed_copy_is_removed() {
    let (mut refused, mut free) = (0, 0);
    for at in 1.. {
        let fs = SimFileSystem::new();
        let db = sample(&fs, true);
        let image = db.image().unwrap();
        durable_dir(&fs);
        fs.crash_at(Some(at));
        let made = StoreCopy::make(Arc::new(fs.clone()), TARGET, |copy| {
            image.files().try_for_each(|file| copy.write(file.kind, |put| image.read(file.kind, put).map(drop)))?;
            Err::<(), _>(Error::Closed)
        });
        let Some(cut) = fs.crash_point() else {
            assert!(matches!(made, Err(Error::Closed)) && refused > 100 && free > 10, "{refused} {free}");
            break;
        };
        for seed in 0..20 {
            match opened(&cut.crash(seed), TARGET).unwrap_err() {
                Error::Incomplete(_) => refused += 1,
                Error::NotFound(_) => free += 1,
                error => panic!("{at} {seed}: {error}"),
            }
        }
    }
}

#[test]
fn a_store_that_is_closed_meanwhile_fails_the_checkpoint() {
    let fs = SimFileSystem::new();
    let linkless = Arc::new(Linkless(fs.clone(), Mutex::default()));
    let db = stepped_options(&fs).0.file_system(linkless.clone()).open("/db").unwrap();
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    *linkless.1.lock() = Some(db.clone());
    // Its files may be another store's by now, which was opened in the same place.
    assert!(matches!(db.checkpoint(TARGET), Err(Error::Closed)));
    assert!(matches!(opened(&fs, TARGET), Err(Error::NotFound(_))));
}

#[test]
fn a_full_disk_fails_the_checkpoint_and_gets_its_space_back() {
    let fs = SimFileSystem::new();
    let db = sample(&fs, false);
    let used: u64 = fs.paths().iter().map(|path| fs.file_len(path).unwrap()).sum();
    fs.set_capacity(Some(used + used / 2));
    let free = fs.free_space(Path::new("/")).unwrap();
    let error = db.checkpoint(TARGET).unwrap_err();
    assert!(error.is_no_space(), "{error}");
    assert!(fs.free_space(Path::new("/")).unwrap() + 100 > free, "all but the lock file");
    db.put("more", "value").unwrap();
    fs.set_capacity(None);
    db.checkpoint(TARGET).unwrap();
    assert_eq!(logged(&opened(&fs, TARGET).unwrap()), logged(&db));
}

#[test]
fn keyspaces_without_a_log_are_as_of_the_last_flush() {
    let fs = SimFileSystem::new();
    let (options, _) = stepped_options(&fs);
    let db = options.open("/db").unwrap();
    let state = db.keyspace_with("state", KeyspaceOptions::new().wal(false)).unwrap();
    state.put("a", "flushed").unwrap();
    db.flush().unwrap();
    state.put("a", "in memory").unwrap();
    let last = state.put("b", "in memory").unwrap();
    db.checkpoint("/copies/1").unwrap();
    let copy = opened(&fs, "/copies/1").unwrap();
    assert_eq!(of_keyspace(&copy, "state"), [(b"a".to_vec(), b"flushed".to_vec())]);
    assert_eq!(copy.last_seqno(), last, "their numbers are used");
    db.flush().unwrap();
    let checkpoint = db.checkpoint("/copies/2").unwrap();
    assert_eq!(checkpoint.flushed_seqno, last);
    assert_eq!(of_keyspace(&opened(&fs, "/copies/2").unwrap(), "state").len(), 2);
}

#[test]
fn a_copy_that_lacks_a_file_is_damaged() {
    let fs = SimFileSystem::new();
    let db = sample(&fs, true);
    let checkpoint = db.checkpoint(TARGET).unwrap();
    for file in &checkpoint.files {
        let path = file.kind.path(Path::new(TARGET));
        let bytes = fs.read(&path).unwrap();
        fs.remove(&path).unwrap();
        assert!(opened(&fs, TARGET).unwrap_err().is_corruption(), "{:?}", file.kind);
        fs.write(&path, bytes).unwrap();
    }
    assert_eq!(logged(&opened(&fs, TARGET).unwrap()), logged(&db));
}

#[test]
fn a_directory_in_use_is_left_alone() {
    let fs = SimFileSystem::new();
    let db = sample(&fs, true);
    fs.write("/full/notes.txt", "mine").unwrap();
    fs.write("/foreign/PARTIAL", "a foreign file").unwrap();
    fs.write("/foreign/000007.sst", "another").unwrap();
    fs.write("/marked/PARTIAL", "tamis: an unfinished copy of a store\n").unwrap();
    fs.write("/marked/notes.txt", "mine").unwrap();
    drop(stepped_options(&fs).0.open("/other").unwrap());
    let all = |fs: &SimFileSystem| {
        let paths = fs.paths().into_iter().filter(|path| !path.starts_with("/db"));
        paths.map(|path| (path.clone(), fs.read(path).unwrap())).collect::<Vec<_>>()
    };
    let before = all(&fs);
    for dir in ["/full", "/foreign", "/marked", "/other", "/db"] {
        let error = db.checkpoint(dir).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{dir}: {error}");
    }
    assert_eq!(all(&fs), before);
    assert!(matches!(db.checkpoint("/full/notes.txt"), Err(Error::Io { .. })));
    // Another copy is being made there.
    StoreCopy::make(Arc::new(fs.clone()), TARGET, |_| {
        assert!(matches!(db.checkpoint(TARGET), Err(Error::Locked { .. })));
        assert!(matches!(opened(&fs, TARGET), Err(Error::Incomplete(_))));
        let repaired = tamis::repair(TARGET, tamis::RepairOptions::new().file_system(Arc::new(fs.clone())));
        assert!(matches!(repaired, Err(Error::NotFound(_))));
        Err::<(), _>(Error::Closed)
    })
    .unwrap_err();
    db.checkpoint(TARGET).unwrap();
}

#[test]
fn only_an_open_store_is_copied() {
    let fs = SimFileSystem::new();
    let db = sample(&fs, true);
    let image = db.image().unwrap();
    let table = image.files().find(|file| matches!(file.kind, FileKind::Table(_))).unwrap().kind;
    let read = |kind| image.read(kind, |_| Ok(()));
    assert!(read(table).is_ok());
    assert!(matches!(read(FileKind::Table(999_999)), Err(Error::InvalidArgument(_))));
    let handle = db.clone();
    db.close().unwrap();
    assert!(matches!(handle.checkpoint(TARGET), Err(Error::Closed)));
    assert!(matches!(read(table), Err(Error::Closed)));
}

#[test]
fn a_reader_beside_the_writer_copies_what_was_written_until_then() {
    for_each_seed(40, |seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs = SimFileSystem::new();
        let (options, executor) = stepped_options(&fs);
        let db = options.clone().memtable_size(4096).open("/db").unwrap();
        churn(&db, &*executor, &mut rng, 60);
        let reader = stepped_options(&fs).0.open_read_only("/db").unwrap();
        churn(&db, &*executor, &mut rng, 60);
        // The log does not count what keyspaces without one have since its last record.
        db.put("last", "1").unwrap();
        let (expected, seqno) = (logged(&db), db.last_seqno());
        let image = reader.image().unwrap();
        assert_eq!((image.seqno(), reader.last_seqno()), (seqno, seqno));
        // The files are not there any more, but open.
        churn(&db, &*executor, &mut rng, 60);
        db.compact_range(..).unwrap();
        StoreCopy::make(Arc::new(fs.clone()), TARGET, |copy| {
            image.files().try_for_each(|file| copy.write(file.kind, |put| image.read(file.kind, put).map(drop)))
        })
        .unwrap();
        let copy = options.clone().open(TARGET).unwrap();
        assert_eq!((logged(&copy), copy.last_seqno()), (expected, seqno));
        let (now, seqno) = (logged(&db), db.put("last", "2").unwrap());
        let checkpoint = reader.checkpoint("/copies/tuesday").unwrap();
        assert_eq!((checkpoint.linked, checkpoint.seqno), (0, seqno));
        let copy = options.clone().open("/copies/tuesday").unwrap();
        assert_eq!(logged(&copy).len(), now.len());
        assert_eq!(copy.get("last").unwrap().as_deref(), Some(&b"2"[..]));
    });
}

#[test]
fn an_image_keeps_the_files_that_it_names() {
    let fs = SimFileSystem::new();
    let db = sample(&fs, true);
    let (image, before) = (db.image().unwrap(), logged(&db));
    // Everything is rewritten or dropped, and every log is removed.
    db.drop_keyspace("values").unwrap();
    for key in logged(&db).keys() {
        db.put(&key.1, "new").unwrap();
    }
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    db.wait_for_compactions().unwrap();
    StoreCopy::make(Arc::new(fs.clone()), TARGET, |copy| {
        image.files().try_for_each(|file| copy.write(file.kind, |put| image.read(file.kind, put).map(drop)))
    })
    .unwrap();
    assert_eq!(logged(&opened(&fs, TARGET).unwrap()), before);
    let count = || db.stats().held.tables;
    assert!(count() > 0);
    drop(image);
    assert_eq!(count(), 0);
}

#[test]
fn a_store_in_memory_has_checkpoints() {
    let fs: Arc<dyn FileSystem> = Arc::new(MemoryFileSystem::new());
    let options = Options::new().file_system(fs);
    let db = options.clone().open("db").unwrap();
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    db.put("b", "2").unwrap();
    assert_eq!(db.checkpoint("copy").unwrap().linked, 1);
    let copy = options.open("copy").unwrap();
    db.clear().unwrap();
    assert_eq!(logged(&copy).len(), 3);
}

/// The writes that make up batch `n` of the concurrent test.
fn batch_number(n: u64) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let mut rng = fastrand::Rng::with_seed(n);
    let write = |_| {
        let key = format!("k{:04}", rng.u32(0..2000)).into_bytes();
        (key, (rng.u8(0..4) > 0).then(|| format!("{n}/{}", "v".repeat(rng.usize(0..400))).into_bytes()))
    };
    (0..4).map(write).collect()
}

#[test]
fn checkpoints_beside_all_that_writes_and_removes_files() {
    let _watchdog = Watchdog::new("checkpoints_beside_all_that_writes_and_removes_files");
    let dir = tempfile::tempdir().unwrap();
    let separate = KeyspaceOptions::new().separate_values(200).block_size(512);
    let options = Options::new().memtable_size(64 << 10).table_size(32 << 10).default_keyspace(separate);
    let db = options.clone().open(dir.path().join("db")).unwrap();
    let is_done = AtomicBool::new(false);
    // The last number of each batch.
    let history = Mutex::new(vec![0]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1.. {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                let mut batch = WriteBatch::new();
                for (key, value) in batch_number(n) {
                    match value {
                        Some(value) => batch.put(key, value),
                        None => batch.delete(key),
                    }
                }
                if n % 1000 == 0 {
                    batch.delete_range("k0100".."k0200");
                }
                let mut history = history.lock();
                history.push(db.write(batch).unwrap());
            }
        });
        scope.spawn(|| {
            for round in 0.. {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                let passing = db.keyspace("passing").unwrap();
                passing.put("key", "value").unwrap();
                match round % 3 {
                    0 => db.flush().unwrap(),
                    1 => db.compact_range("k1".."k15").unwrap(),
                    _ => passing.clear().map(drop).unwrap(),
                }
                db.drop_keyspace("passing").unwrap();
            }
        });
        let (mut model, mut done) = (BTreeMap::<Vec<u8>, Vec<u8>>::new(), 0);
        for round in 0..25 {
            std::thread::sleep(std::time::Duration::from_millis(10));
            let target = dir.path().join(format!("{round}"));
            let checkpoint = db.checkpoint(&target).unwrap();
            let copy = options.clone().paranoid(true).open(&target).unwrap();
            let seqnos = history.lock().clone();
            while seqnos.get(done + 1).is_some_and(|seqno| *seqno <= checkpoint.seqno) {
                done += 1;
                for (key, value) in batch_number(done as u64) {
                    match value {
                        Some(value) => model.insert(key, value),
                        None => model.remove(&key),
                    };
                }
                if done.is_multiple_of(1000) {
                    model.retain(|key, _| key.as_slice() < b"k0100" || key.as_slice() >= b"k0200");
                }
            }
            let found: BTreeMap<Vec<u8>, Vec<u8>> = of_keyspace(&copy, "default").into_iter().collect();
            assert!(found == model, "round {round}, after batch {done}");
            drop(copy);
            std::fs::remove_dir_all(&target).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert!(db.stats().keyspaces[0].levels.iter().skip(1).any(|level| !level.tables.is_empty()), "there were merges");
}

#[test]
fn links_on_disk_share_their_content() {
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new().open(dir.path().join("db")).unwrap();
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    let checkpoint = db.checkpoint(dir.path().join("copy")).unwrap();
    let taken = OsFileSystem.hard_link(&dir.path().join("db/CURRENT"), &dir.path().join("copy/CURRENT"));
    assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let table = checkpoint.files.iter().find(|file| matches!(file.kind, FileKind::Table(_))).unwrap();
        let inode = |name: &str| table.kind.path(&dir.path().join(name)).metadata().unwrap().ino();
        assert_eq!((checkpoint.linked, inode("db")), (1, inode("copy")));
    }
}
