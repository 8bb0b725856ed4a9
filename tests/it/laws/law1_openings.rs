//! Law 1, where a store is never open for long: every opening comes on with the compactions that
//! are due, so that a fixed number of openings settles the store, however short they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tamis::vfs::SimFileSystem;
use tamis::{Db, Executor, Job, KeyspaceOptions, Options, Priority, SteppedExecutor, ThreadPool};

use crate::support::{Watchdog, stepped_options};
use crate::trace::{Trace, TracedCall};

const TABLE_SIZE: u64 = 128 << 10;
/// A task looks whether it is to end every 256 KiB.
const BLOCK: u64 = 256 << 10;

/// Stops a store's background work at a write of a table, until the store is being closed.
#[derive(Default)]
struct Stop {
    writes_left: AtomicI64,
    is_reached: AtomicBool,
    is_idle: AtomicBool,
    is_closing: AtomicBool,
}

impl Stop {
    fn write(&self) {
        if self.writes_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.is_reached.store(true, Ordering::SeqCst);
        }
        while self.is_reached.load(Ordering::SeqCst) && !self.is_closing.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }
}

/// Learns from the first step of a closing store that its background work is to end.
struct StoppingExecutor {
    inner: Arc<dyn Executor>,
    stop: Arc<Stop>,
}

impl Executor for StoppingExecutor {
    fn spawn(&self, priority: Priority, job: Job) {
        self.inner.spawn(priority, job);
    }

    fn parallelism(&self) -> usize {
        self.inner.parallelism()
    }

    fn step(&self) -> bool {
        if self.stop.is_reached.load(Ordering::SeqCst) {
            self.stop.is_closing.store(true, Ordering::SeqCst);
        }
        self.inner.step()
    }
}

fn sized(options: Options) -> Options {
    options.memtable_size(512 << 10).table_size(TABLE_SIZE)
}

/// Opens the store and closes it at the write of a table with this number; returns whether all
/// work was done before. Without threads, a store that does nothing any more is closed as well.
fn open_until(fs: &SimFileSystem, write: u64, threads: usize) -> tamis::Result<bool> {
    let stop = Arc::new(Stop::default());
    stop.writes_left.store(i64::try_from(write).unwrap(), Ordering::SeqCst);
    let at_write = Arc::clone(&stop);
    let hooked = Trace::with_hook(fs, move |call, name| {
        if call == TracedCall::Append && name.ends_with(".sst") {
            at_write.write();
        }
        Ok(())
    });
    let inner: Arc<dyn Executor> = match threads {
        0 => Arc::new(SteppedExecutor::new()),
        threads => Arc::new(ThreadPool::new(threads)),
    };
    let executor = StoppingExecutor { inner: Arc::clone(&inner), stop: Arc::clone(&stop) };
    let options = sized(Options::new()).hash_seed(7).executor(Arc::new(executor)).file_system(Arc::new(hooked));
    let db = options.open("/db")?;
    std::thread::scope(|scope| {
        let (closing, db) = (db.clone(), &db);
        let stop = &stop;
        let closer = scope.spawn(move || {
            while !stop.is_reached.load(Ordering::SeqCst) && !stop.is_idle.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            closing.close()
        });
        let mut rests = 0;
        while !stop.is_reached.load(Ordering::SeqCst) {
            if !inner.step() {
                rests += 1;
                let is_done = db.stats().compaction_debt == 0;
                if is_done || threads == 0 && rests == 100 {
                    break;
                }
            }
            std::thread::yield_now();
        }
        stop.is_idle.store(true, Ordering::SeqCst);
        closer.join().unwrap()
    })?;
    Ok(!stop.is_reached.load(Ordering::SeqCst))
}

/// What the store holds, as a reader finds it.
fn content(fs: &SimFileSystem) -> Vec<(Vec<u8>, Vec<u8>)> {
    let db = Options::new().file_system(Arc::new(fs.clone())).open_read_only("/db").unwrap();
    let entry = |entry: tamis::Result<(tamis::Value, tamis::Value)>| {
        let (key, value) = entry.unwrap();
        (key.to_vec(), value.to_vec())
    };
    let forward: Vec<_> = db.iter().map(entry).collect();
    let mut backward: Vec<_> = db.iter().rev().map(entry).collect();
    backward.reverse();
    assert!(forward == backward, "{} entries forward, {} backward", forward.len(), backward.len());
    forward
}

/// Bytes of all tables and value files.
fn size(fs: &SimFileSystem) -> u64 {
    let files = fs.paths().into_iter().filter(|path| path.extension().is_some_and(|e| e == "sst" || e == "val"));
    files.map(|path| fs.file_len(path).unwrap()).sum()
}

fn tables(fs: &SimFileSystem) -> usize {
    fs.paths().iter().filter(|path| path.extension().is_some_and(|extension| extension == "sst")).count()
}

/// A store of `base` rounds of writes in the last level and `above` in level 0, none of it
/// compacted since, as a process leaves it that was over before a compaction began.
fn with_debt(base: u32, above: u32, keyspace: &KeyspaceOptions) -> SimFileSystem {
    let fs = SimFileSystem::new();
    let (options, _) = stepped_options(&fs);
    let db = sized(options).default_keyspace(keyspace.clone()).open("/db").unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    let mut round = |db: &Db| {
        for _ in 0..100 {
            let key = format!("key {:06}", rng.u32(0..2000));
            let written = match rng.u32(0..8) {
                0 => db.delete(key),
                1 => db.delete_range(format!("{key}a")..format!("{key}z")),
                _ => db.put(key, vec![rng.u8(..); rng.usize(0..6000)]),
            };
            written.unwrap();
        }
        db.flush().unwrap();
    };
    for _ in 0..base {
        round(&db);
    }
    db.compact_range(..).unwrap();
    for _ in 0..above {
        round(&db);
    }
    db.close().unwrap();
    fs
}

/// Opens the store again and again until it is settled; returns after how many openings it is.
/// Nothing may change meanwhile, and nothing may be left over.
fn settle(fs: &SimFileSystem, write: impl Fn(u64) -> u64, threads: usize) -> u64 {
    let expected = content(fs);
    let debt = size(fs);
    let most = 10 + 8 * debt / BLOCK;
    for opening in 0..most {
        let is_settled = open_until(fs, write(opening), threads).unwrap();
        assert!(content(fs) == expected, "after opening {opening}");
        if is_settled {
            let settled = tables(fs);
            // A store that had the time once.
            assert!(open_until(fs, u64::from(u32::MAX), threads).unwrap());
            assert_eq!(tables(fs), settled, "files were left over");
            return opening;
        }
    }
    panic!("{most} openings did not settle {debt} bytes in {} tables", tables(fs));
}

#[test]
fn a_fixed_number_of_openings_settles_a_store_however_soon_it_is_closed() {
    let _watchdog = Watchdog::new("openings that are closed soon");
    let plain = KeyspaceOptions::new();
    let separated = KeyspaceOptions::new().separate_values(Some(5000));
    // Into an empty level; into the last level, in several stages; merged with values apart.
    for (base, above, keyspace) in [(0, 14, &plain), (30, 14, &plain), (10, 14, &separated)] {
        for threads in [0, 3] {
            let fs = with_debt(base, above, keyspace);
            let before = size(&fs);
            let openings = settle(&fs, |opening| 1 + opening % 2, threads);
            assert!(openings > 1, "{base} {above} {threads}: one opening was enough");
            println!("{base} {above} {threads}: {openings} openings for {before} bytes");
        }
    }
}

#[test]
fn an_opening_that_is_killed_loses_nothing_of_what_earlier_ones_have_finished() {
    let _watchdog = Watchdog::new("openings that are killed");
    let mut fs = with_debt(20, 14, &KeyspaceOptions::new());
    let expected = content(&fs);
    for opening in 0.. {
        if open_until(&fs, 2, 0).unwrap() {
            break;
        }
        // A process that is killed, or loses power, at each of its writes in turn.
        fs.crash_at(Some(1 + opening % 40));
        let _ = open_until(&fs, 2, 0);
        let died = fs.crash_point();
        fs.crash_at(None);
        if let Some(died) = died {
            fs = if opening % 2 == 0 { died.kill() } else { died.crash(opening) };
        }
        assert!(content(&fs) == expected, "after opening {opening}");
        assert!(opening < 500, "the store is never settled");
    }
}
