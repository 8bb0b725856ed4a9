//! Does background work start as soon as it is due, and does urgent work wait for nothing long?

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use tamis::operator::CompactionDecision;
use tamis::vfs::{ReadableFile, SimFileSystem};
use tamis::{
    Compression, Db, Error, Executor, FilterPolicy, Keyspace, KeyspaceOptions, Options, SteppedExecutor, ThreadPool,
    WriteBatch,
};

use crate::support::{Delaying, OpenedBy, stepped_options};

const DIR: &str = "/db";
/// Number of runs at which level 0 is compacted.
const TRIGGER: usize = 12;

/// Runs a closure once, at the next read of a table's file, on the reading thread.
#[derive(Default)]
struct ReadHook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl ReadHook {
    fn set(&self, act: impl FnOnce() + Send + 'static) {
        *self.0.lock() = Some(Box::new(act));
    }
}

struct HookedFile {
    file: Arc<dyn ReadableFile>,
    hook: Arc<ReadHook>,
}

impl fmt::Debug for HookedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl ReadableFile for HookedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // Unlocked before the call: the closure may read tables too.
        let act = self.hook.0.lock().take();
        if let Some(act) = act {
            act();
        }
        self.file.read_at(buf, offset)
    }

    fn will_need(&self, part: Range<u64>) {
        self.file.will_need(part);
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

/// A file system whose tables are read with the hook.
#[expect(clippy::type_complexity, reason = "the type of a closure has no shorter name")]
fn hooked(hook: &Arc<ReadHook>) -> Arc<OpenedBy<impl Fn(Arc<dyn ReadableFile>) -> Arc<dyn ReadableFile> + use<>>> {
    let hook = Arc::clone(hook);
    let wrap = move |file| Arc::new(HookedFile { file, hook: Arc::clone(&hook) }) as Arc<dyn ReadableFile>;
    Arc::new(OpenedBy::new(SimFileSystem::new(), wrap))
}

fn with_memtables_of(options: Options, bytes: usize) -> Options {
    let keyspace = KeyspaceOptions::new().compression(Compression::None);
    options.memtable_size(bytes).default_keyspace(keyspace)
}

/// Writes about `bytes` bytes to keys in random order.
fn write(db: &Db, bytes: usize, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..bytes / 1000 {
        db.put(rng.u64(..).to_be_bytes(), [rng.u8(..); 950]).unwrap();
    }
}

fn runs(db: &Db) -> usize {
    db.stats().keyspaces[0].levels[0].tables.len()
}

/// Writes until a compaction is due and waits to be stepped. Some entries stay in memory, so that
/// the store is not idle.
fn fill_level_0(db: &Db, executor: &SteppedExecutor) {
    for seed in 0.. {
        if runs(db) == TRIGGER {
            break;
        }
        write(db, 2000, seed);
        while runs(db) < TRIGGER && executor.step() {}
    }
    assert!(executor.pending() > 0 && db.stats().compaction_debt > 0);
}

/// Holds a thread until the test releases it, or for a minute.
fn gate() -> (impl FnOnce() + Send, Receiver<()>, Sender<()>) {
    let ((enter, entered), (release, released)) = (channel(), channel::<()>());
    let hold = move || {
        let _ = enter.send(());
        let _ = released.recv_timeout(Duration::from_secs(60));
    };
    (hold, entered, release)
}

/// The only thread for compactions is held in one, of this store or of another one.
#[test]
fn a_flush_waits_for_no_compaction_issue_13() {
    for other_store in [false, true] {
        with_held_pool(|compacted, other| {
            let written = if other_store { other } else { compacted };
            let flushes = written.stats().flushes;
            write(&written, (64 << 10) * 3 / 2, 77);
            // No caller waits for it, so that none does it.
            wait_until(|| written.stats().flushes > flushes);
            // Writers wait when several memtables are full.
            write(&written, 5 * (64 << 10), 78);
            written.flush().unwrap();
            assert!(written.stats().flushes > flushes + 4);
        });
    }
}

/// Gives background work time, a minute at most.
#[track_caller]
fn wait_until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("not within a minute");
}

#[test]
fn work_that_came_due_during_a_claim_starts_when_it_ends_issue_13() {
    let hook = Arc::new(ReadHook::default());
    let (options, executor) = stepped_options(&SimFileSystem::new());
    let keyspace = KeyspaceOptions::new().compression(Compression::None).filter(FilterPolicy::None);
    let options = options.memtable_size(64 << 10).default_keyspace(keyspace).file_system(hooked(&hook));
    let db = options.open(DIR).unwrap();
    fill_level_0(&db, &executor);
    // While the compaction runs, a rebuild of filters claims the keyspace until nothing runs, and
    // then finds all filters correct.
    let writer = db.clone();
    hook.set(move || {
        for run in 100..108 {
            write(&writer, 32 << 10, run);
            writer.flush().unwrap();
        }
    });
    assert_eq!(db.rebuild_filters(FilterPolicy::None, |_| {}).unwrap().wanted, 0);
    assert!(runs(&db) >= 8 && db.stats().compaction_debt > 0);
    assert!(executor.pending() > 0, "{} runs stay", runs(&db));
    while executor.step() {}
    assert!(runs(&db) < 2, "{} runs stay", runs(&db));
}

#[test]
fn the_end_of_a_snapshot_reclaims_what_it_held_issue_13() {
    let (options, executor) = stepped_options(&SimFileSystem::new());
    let db = with_memtables_of(options, 64 << 10).open(DIR).unwrap();
    for key in 0..1000u32 {
        db.put(key.to_be_bytes(), [7; 500]).unwrap();
    }
    let (snapshot, newer) = (db.snapshot(), db.snapshot());
    for key in 0..990u32 {
        db.delete(key.to_be_bytes()).unwrap();
    }
    let newest = db.snapshot();
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    while executor.step() {}
    let size = || db.stats().keyspaces[0].size();
    let held = size();
    assert!(held > 500_000);
    assert_eq!(snapshot.iter().count(), 1000);
    // A snapshot that is not the oldest keeps nothing alone. Neither does one of two snapshots of
    // the same moment.
    drop(newest);
    assert_eq!(executor.pending(), 0);
    drop(snapshot);
    assert_eq!(executor.pending(), 0);
    drop(newer);
    while executor.step() {}
    assert!(size() < 20_000, "{} bytes are left of {held}", size());
    assert_eq!((db.iter().count(), db.stats().compaction_debt), (10, 0));
}

#[test]
fn a_dropped_keyspace_slows_down_no_writes_issue_13() {
    let (options, executor) = stepped_options(&SimFileSystem::new());
    let db = with_memtables_of(options, 64 << 10).open(DIR).unwrap();
    let keyspace = db.keyspace("to be dropped").unwrap();
    let mut rng = fastrand::Rng::with_seed(3);
    // Flushes are done by the waiting thread, compactions by none.
    while db.stats().write_pressure == 0.0 {
        keyspace.put(rng.u64(..).to_be_bytes(), [1; 950]).unwrap();
        db.flush().unwrap();
    }
    assert!(executor.pending() > 0);
    assert!(db.drop_keyspace("to be dropped").unwrap());
    assert_eq!(db.stats().write_pressure, 0.0);
}

/// While one compaction runs, no other may start, whether a caller waits for its end or not. Runs
/// that arrive meanwhile are merged among themselves during it.
#[test]
fn level_0_is_merged_during_a_long_compaction_issue_13() {
    for requested in [false, true] {
        with_held_compaction(requested, |compacted, _| {
            for run in 100..100 + 2 * TRIGGER as u64 {
                write(&compacted, 8 << 10, run);
                compacted.flush().unwrap();
            }
            // Without merges among them, all new runs would stand beside the compaction's inputs.
            wait_until(|| runs(&compacted) < 2 * TRIGGER);
            assert_eq!(compacted.stats().background_error.map(|error| error.to_string()), None);
        });
    }
}

/// Holds a compaction of one store on the only thread of a pool that compacts, and calls `check`
/// with that store and another one on that pool.
fn with_held_pool(check: impl FnOnce(Db, Db)) {
    with_held_compaction(false, check);
}

/// Likewise; the compaction is one that a caller has requested, or an automatic one.
fn with_held_compaction(requested: bool, check: impl FnOnce(Db, Db)) {
    let (hook, pool) = (Arc::new(ReadHook::default()), Arc::new(ThreadPool::new(1)));
    let open = |fs| {
        let options = Options::new().executor(Arc::clone(&pool) as Arc<dyn Executor>).hash_seed(7);
        with_memtables_of(options, 64 << 10).file_system(fs).open(DIR).unwrap()
    };
    let compacted = open(hooked(&hook));
    let (hold, entered, release) = gate();
    hook.set(hold);
    for run in 0..(TRIGGER - usize::from(requested)) as u64 {
        write(&compacted, 32 << 10, run);
        compacted.flush().unwrap();
    }
    let caller = requested.then(|| {
        let db = compacted.clone();
        std::thread::spawn(move || db.compact_range(..).unwrap())
    });
    entered.recv().unwrap();
    check(compacted.clone(), open(Arc::new(SimFileSystem::new())));
    release.send(()).unwrap();
    caller.into_iter().for_each(|caller| caller.join().unwrap());
    compacted.close().unwrap();
}

#[test]
fn writers_do_not_wait_for_a_compaction_of_another_store_however_many_runs_they_make() {
    with_held_pool(|_, db| {
        for run in 0..60 {
            write(&db, 80 << 10, run);
            db.flush().unwrap();
        }
    });
}

#[test]
fn neither_close_nor_wait_for_compactions_waits_for_another_store() {
    with_held_pool(|_, db| {
        write(&db, 32 << 10, 1);
        db.flush().unwrap();
        db.wait_for_compactions().unwrap();
        db.close().unwrap();
    });
    // The store's own compaction has not started.
    with_held_pool(|_, db| {
        for run in 0..TRIGGER as u64 {
            write(&db, 32 << 10, run);
            db.flush().unwrap();
        }
        db.close().unwrap();
    });
}

/// Many writes between two looks keep level 0 as it is; few do not.
#[test]
fn a_store_that_takes_few_writes_is_merged_as_an_idle_one() {
    const MEMTABLE: usize = 64 << 10;
    let executor = Arc::new(Delaying::default());
    let options = Options::new().executor(executor.clone()).file_system(Arc::new(SimFileSystem::new())).hash_seed(7);
    let db = with_memtables_of(options, MEMTABLE).open(DIR).unwrap();
    let work = || while executor.step() {};
    let look = || {
        let planned = executor.take_delayed();
        assert_eq!(planned.iter().map(|(delay, _)| delay.as_secs()).collect::<Vec<_>>(), [10], "one look");
        planned.into_iter().for_each(|(_, look)| look());
        work();
    };
    for round in 0..3 {
        let flushes = db.stats().flushes;
        write(&db, MEMTABLE * 11 / 2, 100 * round);
        work();
        let (full, after) = (runs(&db), db.stats().flushes);
        assert!(full >= 5 && after >= flushes + 5, "{full} runs after {} flushes", after - flushes);
        for seed in 1..4 {
            write(&db, MEMTABLE / 32, 100 * round + seed);
            look();
            assert_eq!(runs(&db), full, "many writes");
        }
        write(&db, MEMTABLE / 64, 100 * round + 4);
        look();
        assert!(runs(&db) <= 1, "{} runs are left", runs(&db));
        assert_eq!(db.stats().flushes, after, "the memtable stays");
        assert!(executor.take_delayed().is_empty(), "nothing is left to do");
    }
    write(&db, MEMTABLE * 11 / 2, 4);
    work();
    let look = executor.take_delayed();
    db.close().unwrap();
    look.into_iter().for_each(|(_, look)| look());
    assert!(executor.take_delayed().is_empty());
}

/// One that fails stops writes to itself, once its level 0 is full, and to no other.
#[test]
fn a_keyspace_whose_compactions_fail_stops_no_writes_to_others() {
    let (options, executor) = stepped_options(&SimFileSystem::new());
    let db = with_memtables_of(options, 4 << 10).open(DIR).unwrap();
    let is_failing = Arc::new(AtomicBool::new(true));
    let fails = Arc::clone(&is_failing);
    let filter = move |_: &[u8], _: &[u8]| {
        assert!(!fails.load(Ordering::Relaxed), "a panic that is part of the test");
        CompactionDecision::Keep
    };
    let failing = db.keyspace_with("failing", KeyspaceOptions::new().compaction_filter(filter)).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut put = |keyspace: &Keyspace| {
        while executor.step() {}
        keyspace.put(rng.u64(..).to_be_bytes(), [7; 500])
    };
    let stops = 4 * TRIGGER;
    let runs = |name: &str| {
        let stats = db.stats();
        stats.keyspaces.iter().find(|keyspace| *keyspace.name == *name).unwrap().levels[0].tables.len()
    };
    let (mut accepted, mut refused) = (0, 0);
    while refused < 20 {
        match put(&failing) {
            Ok(_) => accepted += 1,
            Err(error) => {
                assert!(matches!(error, Error::CompactionFilter { .. }), "{error}");
                refused += 1;
            }
        }
        assert!(accepted < 8 * stops + 20, "{} runs", runs("failing"));
        let full = refused == 0 || runs("failing") >= stops;
        assert!(full, "refused with {} runs", runs("failing"));
    }
    // Other keyspaces are written to as ever, and compacted.
    for _ in 0..8 * 2 * stops {
        put(db.default_keyspace()).unwrap();
    }
    assert!(runs("default") < 2 * TRIGGER && db.stats().write_pressure == 0.0);
    let mut batch = WriteBatch::new();
    batch.put("key", "of the healthy one");
    batch.put_in(&failing, "key", "of the failing one");
    assert!(matches!(db.write(batch), Err(Error::CompactionFilter { .. })));
    assert_eq!(db.get("key").unwrap(), None);
    is_failing.store(false, Ordering::Relaxed);
    // Once it has backed off.
    wait_until(|| put(&failing).is_ok());
    db.wait_for_compactions().unwrap();
    assert!(runs("failing") < TRIGGER && db.stats().background_error.is_none());
    db.close().unwrap();
}

/// While a writer has the failing compaction tried again, others write.
#[test]
fn an_attempt_that_will_fail_stops_no_writes_to_others() {
    let options = Options::new().executor(Arc::new(ThreadPool::new(2))).hash_seed(7);
    let db = with_memtables_of(options, 4 << 10).file_system(Arc::new(SimFileSystem::new())).open(DIR).unwrap();
    let hold = Arc::new(Mutex::new(None::<Box<dyn FnOnce() + Send>>));
    let held = Arc::clone(&hold);
    let filter = move |_: &[u8], _: &[u8]| -> CompactionDecision {
        let wait = held.lock().take();
        if let Some(wait) = wait {
            wait();
        }
        panic!("a panic that is part of the test")
    };
    let failing = db.keyspace_with("failing", KeyspaceOptions::new().compaction_filter(filter)).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    while failing.put(rng.u64(..).to_be_bytes(), [7; 500]).is_ok() {}
    let (enter, entered, release) = gate();
    *hold.lock() = Some(Box::new(enter));
    std::thread::scope(|scope| {
        // Until one is refused that has waited for an attempt.
        let writer = scope.spawn(|| while hold.lock().is_some() && failing.put("key", "value").is_err() {});
        entered.recv().unwrap();
        let flushes = db.stats().flushes;
        for _ in 0..1000 {
            db.put(rng.u64(..).to_be_bytes(), [7; 500]).unwrap();
        }
        assert!(db.stats().flushes > flushes + 50 && db.stats().write_pressure < 1.0);
        release.send(()).unwrap();
        writer.join().unwrap();
    });
    db.close().unwrap();
}

/// A writer that waits for one keyspace does not fail with another.
#[test]
fn a_stalled_writer_fails_by_no_other_keyspace() {
    let (options, executor) = stepped_options(&SimFileSystem::new());
    let db = with_memtables_of(options, 4 << 10).open(DIR).unwrap();
    let filter = |_: &[u8], _: &[u8]| -> CompactionDecision { panic!("a panic that is part of the test") };
    let failing = db.keyspace_with("failing", KeyspaceOptions::new().compaction_filter(filter)).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    for n in 0..2 * TRIGGER * 8 {
        failing.put(rng.u64(..).to_be_bytes(), [7; 500]).unwrap();
        // Only flushes are done, and what a writer waits for.
        if n % 8 == 0 {
            db.flush().unwrap();
        }
    }
    for _ in 0..6 * TRIGGER * 8 {
        db.put(rng.u64(..).to_be_bytes(), [7; 500]).unwrap();
    }
    while executor.step() {}
    assert!(matches!(db.stats().background_error, Some(Error::CompactionFilter { .. })));
    db.close().unwrap();
}
