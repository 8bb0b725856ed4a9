//! Does a reader see a sound store beside a process that writes to it?
//!
//! The reader takes no lock and reads files in pieces, while the writer appends, syncs, flushes,
//! compacts and removes. Each test lets the writer act between two pieces, so that the reader meets
//! every combination of old and new.
//!
//! `TAMIS_SEEDS` sets the number of readers, `TAMIS_OPENS` the number of opens beside threads;
//! `TAMIS_SEED` runs one seed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tamis::inspect::Inspector;
use tamis::vfs::SimFileSystem;
use tamis::{Db, Executor, KeyspaceOptions, Options, Result, SteppedExecutor, WriteBatch, WriteOptions};

use crate::interrupted::Interrupted;
use crate::support::{WAL_MODES, count_from_env, for_each_seed, stepped_options};

const DIR: &str = "/db";

/// A store of ascending numbers, each written to one of several keyspaces.
struct NumberWriter {
    fs: SimFileSystem,
    rng: fastrand::Rng,
    db: Option<Db>,
    executor: Arc<SteppedExecutor>,
    /// Number of numbers written.
    count: u32,
    keyspaces: u32,
}

impl NumberWriter {
    fn new(seed: u64) -> NumberWriter {
        let fs = SimFileSystem::new();
        let mut writer = NumberWriter {
            fs,
            rng: fastrand::Rng::with_seed(seed),
            db: None,
            executor: Arc::default(),
            count: 0,
            keyspaces: 0,
        };
        writer.open();
        writer
    }

    fn open(&mut self) {
        let (options, executor) = stepped_options(&self.fs);
        let mode = WAL_MODES[usize::from(self.rng.u8(0..4) == 0)];
        let separate = [None, Some(300)][self.rng.usize(0..2)];
        let keyspace = KeyspaceOptions::new().separate_values(separate);
        let options = options.memtable_size(4096 << self.rng.u32(0..4)).table_size(8192).wal_mode(mode);
        let options = options.default_keyspace(keyspace);
        self.db = Some(options.open(DIR).unwrap());
        self.executor = executor;
    }

    fn put(&mut self, sync: bool) {
        let db = self.db.as_ref().unwrap();
        let mut batch = WriteBatch::new();
        for _ in 0..self.rng.u32(1..3) {
            let value = vec![0xa5; self.rng.usize(0..700)];
            match self.keyspaces {
                late @ 1.. if self.rng.bool() => {
                    let keyspace = db.keyspace(&format!("late{}", self.rng.u32(0..late))).unwrap();
                    batch.put_in(&keyspace, self.count.to_be_bytes(), value);
                }
                _ => batch.put(self.count.to_be_bytes(), value),
            }
            self.count += 1;
        }
        db.write_with(batch, WriteOptions::new().sync(sync)).unwrap();
    }

    fn act(&mut self) {
        let db = self.db.clone().unwrap();
        match self.rng.u8(0..100) {
            0..50 => self.put(false),
            50..75 => self.put(true),
            75..80 => db.sync().unwrap(),
            80..92 => drop(self.executor.step()),
            92..95 => db.flush().unwrap(),
            95..97 => {
                db.keyspace(&format!("late{}", self.keyspaces)).unwrap();
                self.keyspaces += 1;
                self.put(true);
            }
            97 => db.compact_range(..).unwrap(),
            _ => {
                drop(db);
                self.db.take().unwrap().close().unwrap();
                self.open();
            }
        }
    }
}

/// The numbers in all keyspaces, in order.
fn numbers(db: &Db) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for name in db.keyspace_names()? {
        let Some(keyspace) = db.existing_keyspace(&name)? else { continue };
        for entry in keyspace.iter() {
            numbers.push(u32::from_be_bytes(entry?.0[..].try_into().unwrap()));
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// A writer that acts at one in `interval` interruptions, and the file system that interrupts.
fn interrupted(seed: u64) -> (Arc<Mutex<NumberWriter>>, Interrupted) {
    let mut writer = NumberWriter::new(seed);
    for _ in 0..writer.rng.u32(5..60) {
        writer.act();
    }
    let interval = [8, 20, 60][writer.rng.usize(0..3)];
    let fs = writer.fs.clone();
    let writer = Arc::new(Mutex::new(writer));
    let shared = Arc::clone(&writer);
    let interrupt = Arc::new(move || {
        let mut writer = shared.lock().unwrap();
        if writer.rng.u8(0..interval) == 0 {
            writer.act();
        }
        Ok(())
    });
    (writer, Interrupted { fs, interrupt })
}

fn reader_options(fs: Interrupted) -> Options {
    let executor: Arc<dyn Executor> = Arc::new(SteppedExecutor::new());
    Options::new().file_system(Arc::new(fs)).executor(executor)
}

#[test]
fn issue_13_open_beside_a_writer_finds_a_moment_of_the_store_and_no_damage() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 600), |seed| {
        let (writer, fs) = interrupted(seed);
        let before = writer.lock().unwrap().count;
        let reader = reader_options(fs).open_read_only(DIR).unwrap();
        let after = writer.lock().unwrap().count;
        // Open tables stay readable, whatever the writer removes.
        let found = numbers(&reader).unwrap();
        assert!((before..=after).contains(&u32::try_from(found.len()).unwrap()), "{before} {} {after}", found.len());
        assert!(found.iter().copied().eq(0..found.len().try_into().unwrap()), "{found:?}");
    });
}

#[test]
fn issue_13_verification_beside_a_writer_finds_nothing_to_report() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 300), |seed| {
        let (_writer, fs) = interrupted(seed);
        let mut faults = Vec::new();
        let verified = Inspector::on(Arc::new(fs)).verify(Path::new(DIR), &mut |fault| faults.push(fault.to_string()));
        let verified = verified.unwrap();
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!((verified.damaged, verified.unchecked, verified.notes), (0, 0, 0));
    });
}

/// On the real file system, beside one thread that puts and one that syncs.
#[test]
fn issue_13_opens_beside_threads_that_put_and_sync_find_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new().memtable_size(1 << 20).open(dir.path()).unwrap();
    let (done, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0u64.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                db.put(n.to_be_bytes(), [7; 1000]).unwrap();
                written.store(n + 1, Ordering::Release);
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                db.sync().unwrap();
            }
        });
        let done = OnDrop(&done);
        for _ in 0..count_from_env("TAMIS_OPENS", 100) {
            let least = written.load(Ordering::Acquire);
            let reader = Options::new().open_read_only(dir.path()).unwrap();
            let last = reader.last_seqno();
            assert!(last >= least, "{last} of {least}");
            assert!(last == 0 || reader.contains_key((last - 1).to_be_bytes()).unwrap());
            assert!(!reader.contains_key(last.to_be_bytes()).unwrap());
        }
        drop(done);
    });
}

/// Stops the threads, also when a test fails.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
