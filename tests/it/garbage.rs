//! Does a store that becomes idle drop deleted data by itself?
//!
//! The ignored tests use the real file system, at the sizes of the defaults: `cargo test --release
//! --test it garbage -- --ignored --nocapture --test-threads 1`. `TAMIS_KEYS` and `TAMIS_MEMTABLE`
//! set their size, `TAMIS_DIR` the directory of their stores.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tamis::vfs::SimFileSystem;
use tamis::{Compression, Db, Executor, KeyspaceOptions, Options};

use crate::support::{Scene, count_from_env, stepped_options};

const SIZES: [usize; 5] = [0, 20, 100, 1000, 16_000];
const MEMTABLE: usize = 64 << 10;

/// Whether to delete a key, given the key and the number of keys.
type Pattern = fn(u64, u64) -> bool;

const PATTERNS: [(&str, Pattern); 3] = [
    ("all but ten", |key, _| key >= 10),
    ("every second", |key, _| key.is_multiple_of(2)),
    ("a range", |key, count| (count / 3..count * 2 / 3).contains(&key)),
];

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// Puts keys in random order.
fn fill(db: &Db, count: u64, size: usize) {
    let mut order: Vec<u64> = (0..count).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    let value = vec![7; size];
    for n in order {
        db.put(key(n), &value).unwrap();
    }
}

fn delete(db: &Db, count: u64, pattern: Pattern) {
    for n in (0..count).filter(|n| pattern(*n, count)) {
        db.delete(key(n)).unwrap();
    }
}

/// A sliding window: puts keys at its end and deletes them at its beginning.
fn slide(db: &Db, window: u64, count: u64, size: usize) {
    let value = vec![7; size];
    for n in 0..count {
        db.put(key(n), &value).unwrap();
        if let Some(oldest) = n.checked_sub(window) {
            db.delete(key(oldest)).unwrap();
        }
    }
}

fn size(db: &Db) -> u64 {
    db.stats().keyspaces[0].size()
}

/// The store takes hardly more space than a full compaction leaves.
fn check(db: &Db, memtable: usize, what: &str) {
    assert_eq!(db.stats().compaction_debt, 0, "{what}");
    let space = size(db);
    db.compact_range(..).unwrap();
    let least = size(db);
    println!("{what}: {space} bytes when idle, {least} after a full compaction");
    assert!(space * 5 <= least * 6 + memtable as u64 * 5, "{what}: {space} of {least}");
}

fn uncompressed(options: Options) -> Options {
    options.default_keyspace(KeyspaceOptions::new().compression(Compression::None))
}

#[test]
fn deleted_data_leave_an_idle_store_issue_13() {
    let open = |fs: &SimFileSystem| {
        let (options, executor) = stepped_options(fs);
        let options = uncompressed(options).memtable_size(MEMTABLE).table_size(MEMTABLE as u64);
        (options.open("/db").unwrap(), executor)
    };
    for size in SIZES {
        let count = (8 * MEMTABLE / (size + 20)) as u64;
        for (name, pattern) in PATTERNS {
            for reopened in [false, true] {
                let what = format!("{count} values of {size} bytes, deleted {name}, reopened {reopened}");
                let _scene = Scene(what.clone());
                let fs = SimFileSystem::new();
                let (mut db, mut executor) = open(&fs);
                fill(&db, count, size);
                db.flush().unwrap();
                while executor.step() {}
                delete(&db, count, pattern);
                db.flush().unwrap();
                if reopened {
                    db.close().unwrap();
                    (db, executor) = open(&fs);
                }
                while executor.step() {}
                let left = (0..count).filter(|n| !pattern(*n, count)).count();
                assert_eq!(db.iter().count(), left);
                check(&db, MEMTABLE, &what);
                assert_eq!(db.iter().count(), left);
            }
        }
        let (db, executor) = open(&SimFileSystem::new());
        slide(&db, count, 4 * count, size);
        db.flush().unwrap();
        while executor.step() {}
        check(&db, MEMTABLE, &format!("a window of {count} values of {size} bytes"));
    }
}

#[test]
fn keys_put_and_deleted_under_a_snapshot_leave_no_tombstones() {
    for seen in [false, true] {
        let (options, _executor) = stepped_options(&SimFileSystem::new());
        let db = uncompressed(options).open("/db").unwrap();
        if seen {
            fill(&db, 1000, 10);
        }
        let snapshot = db.snapshot();
        fill(&db, 1000, 10);
        delete(&db, 1000, |_, _| true);
        let newer = db.snapshot();
        db.flush().unwrap();
        db.compact_range(..).unwrap();
        let levels = &db.stats().keyspaces[0].levels;
        let entries: u64 = levels.iter().flat_map(|level| &level.tables).map(|table| table.entries).sum();
        assert_eq!(entries, if seen { 2000 } else { 0 });
        assert_eq!(snapshot.iter().count(), if seen { 1000 } else { 0 });
        assert_eq!((newer.iter().count(), db.iter().count()), (0, 0));
    }
}

fn memtable() -> usize {
    usize::try_from(count_from_env("TAMIS_MEMTABLE", 64 << 20)).unwrap()
}

/// A store in a directory of the real file system, which is removed on drop.
struct Real {
    db: Option<Db>,
    dir: PathBuf,
}

impl Real {
    fn new(name: &str) -> Real {
        let above = std::env::var_os("TAMIS_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let dir = above.join(format!("tamis-{name}-{}", std::process::id()));
        let memtable = memtable();
        let options = uncompressed(Options::new()).memtable_size(memtable).table_size(memtable as u64);
        Real { db: Some(options.open(&dir).unwrap()), dir }
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    /// Waits until no work is left, for 15 seconds at most.
    fn wait_until_idle(&self) -> Duration {
        let start = Instant::now();
        while self.db().stats().compaction_debt > 0 && start.elapsed() < Duration::from_secs(15) {
            std::thread::sleep(Duration::from_millis(20));
        }
        start.elapsed()
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        drop(self.db.take());
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
#[ignore = "takes minutes and gigabytes; cargo test --release --test it garbage -- --ignored --nocapture"]
fn deleted_data_leave_a_real_store_within_15_seconds() {
    for size in SIZES {
        let count = count_from_env("TAMIS_KEYS", 1_000_000).min(320_000_000 / size.max(1) as u64);
        for (name, pattern) in PATTERNS {
            let store = Real::new("space");
            fill(store.db(), count, size);
            store.db().flush().unwrap();
            delete(store.db(), count, pattern);
            store.db().flush().unwrap();
            let rested = store.wait_until_idle();
            let what = format!("{count} values of {size} bytes, deleted {name}, after {rested:.1?}");
            check(store.db(), memtable(), &what);
        }
    }
}

#[test]
#[ignore = "takes minutes and gigabytes; cargo test --release --test it garbage -- --ignored --nocapture"]
fn a_window_of_ten_million_entries_leaves_nothing_behind_within_15_seconds() {
    let window = count_from_env("TAMIS_KEYS", 10_000_000);
    let store = Real::new("window");
    slide(store.db(), window, 3 * window, 100);
    store.db().flush().unwrap();
    let rested = store.wait_until_idle();
    check(store.db(), memtable(), &format!("a window of {window} entries, after {rested:.1?}"));
}

/// Time that this thread was runnable but not running: the second figure of `schedstat`.
fn time_waited_for_a_processor() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

/// Prints the latency of puts during a full compaction, and the causes of slow ones. `TAMIS_BUSY`
/// threads keep processors busy.
#[test]
#[ignore = "takes minutes and gigabytes; cargo test --release --test it garbage -- --ignored --nocapture"]
fn how_long_puts_take_while_everything_is_compacted() {
    const SLOW: Duration = Duration::from_millis(2);
    let count = count_from_env("TAMIS_KEYS", 20_000_000);
    let busy = count_from_env("TAMIS_BUSY", 0);
    let store = Real::new("latency");
    fill(store.db(), count, 100);
    let ended = AtomicBool::new(false);
    let mut times = Vec::new();
    let stalls_before = store.db().stats().write_stalls;
    std::thread::scope(|scope| {
        for _ in 0..busy {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        scope.spawn(|| {
            store.db().compact_range(..).unwrap();
            ended.store(true, Ordering::Relaxed);
        });
        let mut rng = fastrand::Rng::with_seed(2);
        let value = [8; 100];
        let (mut runs, mut slow, mut not_run) = (0, Duration::ZERO, Duration::ZERO);
        let mut not_run_before = time_waited_for_a_processor();
        while !ended.load(Ordering::Relaxed) {
            let start = Instant::now();
            store.db().put(key(rng.u64(0..count)), value).unwrap();
            let took = start.elapsed();
            times.push(took);
            if took > SLOW {
                let waited = time_waited_for_a_processor();
                slow += took;
                not_run += waited - not_run_before;
                not_run_before = waited;
            } else if times.len().is_multiple_of(1000) {
                not_run_before = time_waited_for_a_processor();
            }
            if times.len().is_multiple_of(100_000) {
                runs = runs.max(store.db().stats().keyspaces[0].levels[0].tables.len());
            }
        }
        println!("at most {runs} runs in level 0; puts over {SLOW:?} took {slow:.2?}, {not_run:.2?} not run");
    });
    let stalls = store.db().stats().write_stalls;
    for ((cause, before), (_, after)) in stalls_before.by_cause().into_iter().zip(stalls.by_cause()) {
        let (count, total) = (after.count - before.count, after.total - before.total);
        println!("{cause}: {count} waits, {total:.2?}, longest {:.2?}", after.longest);
    }
    times.sort_unstable();
    let at = |per_100_000: usize| times[(times.len() - 1) * per_100_000 / 100_000];
    println!(
        "{} puts: median {:?}, p99.9 {:?}, p99.99 {:?}, max {:?}; {} over 100 ms",
        times.len(),
        at(50_000),
        at(99_900),
        at(99_990),
        at(100_000),
        times.iter().filter(|time| **time > Duration::from_millis(100)).count()
    );
}
