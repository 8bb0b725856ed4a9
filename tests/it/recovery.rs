//! With an executor for several jobs, two threads replay a long log. The result equals that of one
//! thread, byte for byte, whatever the log holds and whichever call fails.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tamis::vfs::{Fault, FaultMode, SimFileSystem};
use tamis::{Db, Executor, Job, Options, Priority, SteppedExecutor, WriteBatch, WriteOptions};

use crate::support::{Scene, stepped_options};

/// Number of entries, and bytes of a value: a log of 1.5 MiB.
const ENTRIES: u32 = 1500;
const VALUE_LEN: usize = 1000;
/// Bytes of a batch that is longer than one thread passes to the other at a time.
const LONG_BATCH: usize = 400 << 10;
const LOG: &str = "/db/000001.wal";

/// An executor that is stepped, but claims to run several jobs at a time.
#[derive(Default)]
struct WideExecutor(SteppedExecutor);

impl Executor for WideExecutor {
    fn spawn(&self, priority: Priority, job: Job) {
        self.0.spawn(priority, job);
    }

    fn parallelism(&self) -> usize {
        2
    }

    fn step(&self) -> bool {
        self.0.step()
    }
}

/// A store whose process was killed with everything in its log, half of it synced.
fn killed() -> SimFileSystem {
    let fs = SimFileSystem::new();
    let (options, _executor) = stepped_options(&fs);
    let db = options.memtable_size(16 << 20).open("/db").unwrap();
    let other = db.keyspace("other").unwrap();
    for i in 0..ENTRIES {
        let mut batch = WriteBatch::new();
        // Keys repeat.
        let key = (u64::from(i) * 7919 % 1000).to_be_bytes();
        let value = vec![i.to_le_bytes()[0]; VALUE_LEN];
        match i % 10 {
            0 => batch.delete(key),
            1..5 => other.put(key, value.clone()).map(drop).unwrap(),
            _ => batch.put(key, value),
        }
        if i == ENTRIES / 3 {
            (0..LONG_BATCH / VALUE_LEN).for_each(|i| batch.put((i as u64).to_be_bytes(), vec![5; VALUE_LEN]));
        }
        if !batch.is_empty() {
            db.write_with(batch, WriteOptions::new().sync(i == ENTRIES / 2)).unwrap();
        }
    }
    fs.kill()
}

/// The entries of both keyspaces.
fn content(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
    let other = db.existing_keyspace("other").unwrap().expect("it was made before the first entry");
    let entries = db.iter().chain(other.iter()).map(|entry| entry.unwrap());
    entries.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// Everything in a file system.
fn files(fs: &SimFileSystem) -> BTreeMap<PathBuf, Vec<u8>> {
    fs.paths().into_iter().map(|path| (path.clone(), fs.read(&path).unwrap())).collect()
}

#[derive(Debug, PartialEq)]
struct OpenedStore {
    content: Vec<(Vec<u8>, Vec<u8>)>,
    last_seqno: u64,
}

/// The result of opening, and the files that it leaves behind.
type OpenOutcome = (Result<OpenedStore, String>, BTreeMap<PathBuf, Vec<u8>>);

fn open(fs: &SimFileSystem, executor: Arc<dyn Executor>, memtable_size: usize, fault: Option<Fault>) -> OpenOutcome {
    let options = Options::new().file_system(Arc::new(fs.clone())).executor(executor);
    fs.set_fault(fault);
    let db = options.memtable_size(memtable_size).open("/db");
    fs.set_fault(None);
    let files = files(fs);
    let opened = db.map(|db| OpenedStore { content: content(&db), last_seqno: db.last_seqno() });
    (opened.map_err(|error| error.to_string()), files)
}

/// Opens a store in two ways, with the same fault, and returns their common outcome.
fn open_both(fs: &SimFileSystem, memtable_size: usize, fault: Option<Fault>) -> OpenOutcome {
    let alone = open(&fs.kill(), Arc::new(SteppedExecutor::new()), memtable_size, fault);
    let together = open(&fs.kill(), Arc::new(WideExecutor::default()), memtable_size, fault);
    assert!(alone == together, "{} and {}", summary(&alone), summary(&together));
    alone
}

/// A short form of an outcome.
fn summary((opened, files): &OpenOutcome) -> String {
    let opened = opened.as_ref().map(|opened| (opened.content.len(), opened.last_seqno));
    let files: Vec<_> = files.iter().map(|(path, bytes)| (path, bytes.len())).collect();
    format!("{opened:?} {files:?}")
}

#[test]
fn two_threads_recover_what_one_does() {
    let fs = killed();
    let mut contents = Vec::new();
    for (memtable_size, tables) in [(64 << 10, 20..60), (1 << 20, 1..3), (16 << 20, 0..1)] {
        let (opened, files) = open_both(&fs, memtable_size, None);
        let found = files.keys().filter(|path| path.extension().is_some_and(|extension| extension == "sst")).count();
        assert!(tables.contains(&found), "{found} tables");
        contents.push(opened.unwrap());
        // A read-only open keeps everything in memory, in several memtables.
        let read_only = |executor: Arc<dyn Executor>| {
            let options = Options::new().file_system(Arc::new(fs.kill())).executor(executor);
            content(&options.memtable_size(memtable_size).open_read_only("/db").unwrap())
        };
        let last = &contents[contents.len() - 1].content;
        assert!(
            read_only(Arc::new(SteppedExecutor::new())) == *last
                && read_only(Arc::new(WideExecutor::default())) == *last
        );
    }
    assert!(contents[0].content.len() > 1000 && contents[0].last_seqno > u64::from(ENTRIES));
    assert!(contents.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn two_threads_fail_as_one_does() {
    let fs = killed();
    let counted = fs.kill();
    let whole = open(&counted, Arc::new(WideExecutor::default()), 512 << 10, None).0.unwrap();
    let mut failures = 0;
    for (mode, calls) in [(FaultMode::ReadError, counted.reads()), (FaultMode::Io, counted.mutations())] {
        for at in 1..=calls {
            let _scene = Scene(format!("{mode:?} at {at} of {calls}"));
            let fault = Some(Fault { at, mode, sticky: false });
            match open_both(&fs, 512 << 10, fault).0 {
                Err(_) => failures += 1,
                // A failure to remove a file does no harm, and the fault also counts reads of the
                // content.
                Ok(opened) => assert!(opened == whole),
            }
            let struck = fs.kill();
            let _ = open(&struck, Arc::new(WideExecutor::default()), 512 << 10, fault);
            let (again, _) = open(&struck.kill(), Arc::new(WideExecutor::default()), 512 << 10, None);
            assert!(again.unwrap() == whole);
        }
    }
    assert!(failures > 20, "{failures} failures");
}

#[test]
fn two_threads_find_the_damage_that_one_does() {
    let fs = killed();
    let len = fs.file_len(LOG).unwrap();
    let (mut refused, mut lost) = (0, 0);
    for i in 0..40 {
        let offset = len * i / 40 + i;
        let damaged = fs.kill();
        damaged.corrupt(LOG, offset, 0x10).unwrap();
        match open_both(&damaged, 256 << 10, None).0 {
            Err(error) => {
                assert!(error.contains("000001.wal is damaged"), "{error}");
                refused += 1;
            }
            Ok(_) => lost += 1,
        }
        let cut = fs.kill();
        cut.truncate(LOG, offset).unwrap();
        let _ = open_both(&cut, 256 << 10, None);
    }
    // Damage to durable bytes is refused; bytes behind those are a torn tail.
    assert!(refused > 10 && lost > 10, "{refused} refused, {lost} lost");
}
