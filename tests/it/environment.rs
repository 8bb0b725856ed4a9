//! Do stores that share an environment stay apart, and keep its limits together?

#[cfg(target_os = "linux")]
mod process;

use std::collections::{HashSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tamis::vfs::{Fault, FaultMode, FileSystem, SimFileSystem};
use tamis::{
    Compression, Db, Environment, EnvironmentOptions, Error, Executor, Job, KeyspaceOptions, Options, Priority,
    RateLimit, SteppedExecutor,
};

use crate::support::{Watchdog, stepped_options};

const LEAST_RATE: u64 = 64 << 10;

/// An environment whose background work waits to be stepped.
fn stepped(options: EnvironmentOptions) -> (Environment, Arc<SteppedExecutor>) {
    let executor = Arc::new(SteppedExecutor::new());
    (Environment::new(options.executor(executor.clone())).unwrap(), executor)
}

fn options(fs: &SimFileSystem, environment: &Environment) -> Options {
    stepped_options(fs).0.environment(environment)
}

fn step_all(executor: &SteppedExecutor) {
    while executor.step() {}
}

/// Puts values of 1,000 bytes under the keys from `from` on.
fn fill(db: &Db, from: u32, count: u32) -> tamis::Result<()> {
    (from..from + count).try_for_each(|n| db.put(n.to_be_bytes(), [7; 1000]).map(drop))
}

/// Above its budget, an environment may have twice each store's share, and what memtables take at
/// first; and the sort order of one that is flushed, 16 bytes for each entry of 1,000.
fn budget_and_slack(environment: &Environment) -> usize {
    let stats = environment.stats();
    let share = (stats.memtable_budget / 8 / stats.stores.max(1)).max(16 << 10);
    let first = (stats.memtable_budget / 16 / stats.stores.max(1)).max(16 << 10);
    stats.memtable_budget + stats.stores * (2 * share + first) + stats.memtable_budget / 50
}

#[test]
fn equal_blocks_of_two_stores_are_never_taken_for_each_other() {
    let fs = SimFileSystem::new();
    let (environment, executor) = stepped(EnvironmentOptions::new().cache_size(32 << 10));
    let keyspace = || KeyspaceOptions::new().compression(Compression::None).block_size(512);
    let open = |name: &str| options(&fs, &environment).default_keyspace(keyspace()).open(name).unwrap();
    let check = |db: &Db, name: &str| {
        for n in 0..200u32 {
            let expected = format!("{name}/{n}").repeat(5);
            assert_eq!(db.get(n.to_be_bytes()).unwrap().unwrap(), expected.as_bytes());
        }
    };
    let names = ["/one", "/two", "/three"];
    let mut stores = names.map(open);
    for (db, name) in stores.iter().zip(names) {
        (0..200u32).for_each(|n| _ = db.put(n.to_be_bytes(), format!("{name}/{n}").repeat(5)).unwrap());
        db.flush().unwrap();
    }
    step_all(&executor);
    // The files of all of them have the same numbers.
    let tables = |db: &Db| -> Vec<u64> {
        let stats = db.stats();
        stats.keyspaces[0].levels.iter().flat_map(|level| level.tables.iter().map(|table| table.number)).collect()
    };
    assert!(!tables(&stores[0]).is_empty() && stores.iter().all(|db| tables(db) == tables(&stores[0])));
    for round in 0..6 {
        stores.iter().zip(names).for_each(|(db, name)| check(db, name));
        assert!(environment.stats().cache <= 32 << 10);
        let at = round % 3;
        stores[at].clone().close().unwrap();
        stores[at] = open(names[at]);
        let own: usize = stores.iter().map(|db| db.stats().memory.cache).sum();
        assert!(own > 0 && own <= environment.stats().cache, "{own}");
    }
}

#[test]
fn the_largest_memtable_is_flushed_when_memtables_take_half_of_the_budget() {
    let fs = SimFileSystem::new();
    let (environment, executor) = stepped(EnvironmentOptions::new().memtable_budget(1 << 20));
    let stores: Vec<Db> = (0..8).map(|n| options(&fs, &environment).open(format!("/{n}")).unwrap()).collect();
    // The store with the largest memtable is not the one that writes last.
    fill(&stores[3], 0, 300).unwrap();
    for db in stores.iter().filter(|db| db.path() != Path::new("/3")) {
        fill(db, 0, 40).unwrap();
    }
    step_all(&executor);
    let flushes: Vec<u64> = stores.iter().map(|db| db.stats().flushes).collect();
    assert_eq!(flushes, [0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(environment.stats().sealed_early, 1);
    assert!(environment.stats().memtables < 1 << 19, "{:?}", environment.stats());
}

#[test]
fn memtables_keep_the_budget_at_every_step_although_no_job_runs() {
    let _watchdog = Watchdog::new("environment");
    let fs = SimFileSystem::new();
    for stores in [1, 3, 16] {
        let (environment, executor) = stepped(EnvironmentOptions::new().memtable_budget(2 << 20));
        let open = |n| options(&fs, &environment).memtable_size(1 << 20).open(format!("/{stores}-{n}")).unwrap();
        let stores: Vec<Db> = (0..stores).map(open).collect();
        let most = budget_and_slack(&environment);
        assert!(most < 4 << 20);
        let mut random = fastrand::Rng::with_seed(3);
        let mut highest = 0;
        for n in 0..12_000 {
            // Only writers that wait run jobs.
            fill(&stores[random.usize(0..stores.len())], n, 1).unwrap();
            let taken = environment.stats().memtables;
            assert!(taken <= most, "{taken} of {most} after {n} puts");
            highest = highest.max(taken);
        }
        assert!(highest > 1 << 20, "the budget is used: {highest}");
        step_all(&executor);
        for db in &stores {
            db.clone().close().unwrap();
        }
        assert!(environment.stats().memtables <= 4096 * stores.len(), "{:?}", environment.stats());
        assert_eq!((environment.stats().stores, environment.stats().open_files > 0), (0, false));
    }
}

/// A single large write, and values that are stored outside of a memtable's chunks.
#[test]
fn large_values_count_against_the_budget() {
    let fs = SimFileSystem::new();
    let (environment, _executor) = stepped(EnvironmentOptions::new().memtable_budget(4 << 20));
    let stores: Vec<Db> = (0..4).map(|n| options(&fs, &environment).open(format!("/{n}")).unwrap()).collect();
    let most = budget_and_slack(&environment);
    for n in 0..200u32 {
        let db = &stores[n as usize % 4];
        let value = vec![1; if n == 100 { 6 << 20 } else { 100_000 }];
        db.put(n.to_be_bytes(), &value).unwrap();
        let taken = environment.stats().memtables;
        // The value itself comes on top; one of 6 MiB and its key take four chunks.
        assert!(taken <= most + value.len() + if n >= 100 { 8 << 20 } else { 0 }, "{taken} after {n}");
    }
    for n in 0..200u32 {
        let value = stores[n as usize % 4].get(n.to_be_bytes()).unwrap().unwrap();
        assert_eq!(value.len(), if n == 100 { 6 << 20 } else { 100_000 });
    }
}

#[test]
fn stores_whose_disk_fails_or_is_full_hold_up_no_other() {
    let _watchdog = Watchdog::new("environment");
    for case in ["failing", "full", "poisoned"] {
        let (bad, good) = (SimFileSystem::new(), SimFileSystem::new());
        let (environment, executor) = stepped(EnvironmentOptions::new().memtable_budget(1 << 20));
        let open = |fs: &SimFileSystem, name: &str| options(fs, &environment).open(name).unwrap();
        let (sick, healthy) = (open(&bad, "/sick"), open(&good, "/healthy"));
        fill(&sick, 0, 400).unwrap();
        match case {
            "failing" => bad.set_fault(Some(Fault { at: 1, mode: FaultMode::Io, sticky: true })),
            "full" => bad.set_capacity(Some(0)),
            _ => {
                bad.set_fault(Some(Fault { at: 1, mode: FaultMode::Io, sticky: true }));
                assert!(sick.sync().is_err() && matches!(sick.put("k", "v"), Err(Error::Poisoned(_))));
            }
        }
        let refused = (400..5000).find_map(|n| fill(&sick, n, 1).err());
        assert!(refused.is_some(), "{case}: its memory is bounded");
        fill(&healthy, 0, 5000).unwrap();
        step_all(&executor);
        assert!(healthy.stats().flushes > 2 && healthy.stats().background_error.is_none());
        assert!(matches!(healthy.put("k", "v"), Ok(5001)));
        let taken = environment.stats().memtables;
        assert!(taken < 3 << 20, "{case}: {taken}");
        bad.set_fault(None);
        bad.set_capacity(None);
        let is_poisoned = matches!(sick.put("k", "v"), Err(Error::Poisoned(_)));
        assert_eq!(is_poisoned, ["failing", "poisoned"].contains(&case), "{case}");
        if !is_poisoned {
            fill(&sick, 0, 5000).unwrap();
            assert!(sick.stats().background_error.is_none());
        }
        let closed = sick.close();
        assert_eq!(closed.is_ok(), !is_poisoned, "{case}: {closed:?}");
        // What the sick store had is the other's again.
        step_all(&executor);
        assert!(environment.stats().memtables < 1 << 20, "{case}: {:?}", environment.stats());
        healthy.close().unwrap();
        assert_eq!(options(&good, &environment).open("/healthy").unwrap().iter().count(), 5001);
    }
}

#[test]
fn a_failed_flush_is_tried_again_although_nobody_writes() {
    let _watchdog = Watchdog::new("environment");
    let fs = SimFileSystem::new();
    let environment = Environment::new(EnvironmentOptions::new()).unwrap();
    let db = options(&fs, &environment).open("/db").unwrap();
    fill(&db, 0, 100).unwrap();
    fs.set_capacity(Some(0));
    assert!(db.flush().is_err());
    // Fails once more at least.
    thread::sleep(Duration::from_millis(200));
    fs.set_capacity(None);
    while db.stats().flushes == 0 {
        thread::sleep(Duration::from_millis(1));
    }
}

/// An executor may drop jobs with a delay, as this one does.
#[test]
fn a_failed_flush_is_tried_again_when_another_store_needs_the_memory() {
    let _watchdog = Watchdog::new("environment");
    let fs = SimFileSystem::new();
    let (environment, executor) = stepped(EnvironmentOptions::new().memtable_budget(1 << 20));
    let open = |name: &str| options(&fs, &environment).open(name).unwrap();
    let (sick, healthy) = (open("/sick"), open("/healthy"));
    fill(&sick, 0, 400).unwrap();
    fs.set_capacity(Some(0));
    assert!(sick.flush().is_err());
    fs.set_capacity(None);
    for n in 0.. {
        fill(&healthy, n, 1).unwrap();
        step_all(&executor);
        if sick.stats().flushes > 0 {
            break;
        }
    }
    assert!(sick.stats().background_error.is_none());
}

#[test]
fn a_store_that_fails_to_open_gives_its_seat_back() {
    let fs = SimFileSystem::new();
    let (environment, _executor) = stepped(EnvironmentOptions::new());
    let open = || options(&fs, &environment).open("/db");
    fill(&open().unwrap(), 0, 100).unwrap();
    for mode in [FaultMode::Io, FaultMode::ReadError] {
        for at in 1.. {
            fs.set_fault(Some(Fault { at, mode, sticky: true }));
            let opened = open();
            fs.set_fault(None);
            assert_eq!(environment.stats().stores, usize::from(opened.is_ok()), "{mode:?} {at}");
            if let Ok(db) = opened {
                assert!(at > 2, "{mode:?}: opening fails at each of its calls");
                assert_eq!(db.iter().count(), 100);
                break;
            }
        }
    }
}

/// An executor whose threads are always busy. Callers may step through its compactions.
#[derive(Default)]
struct Busy {
    is_stepped: bool,
    compactions: Mutex<VecDeque<Job>>,
}

impl Executor for Busy {
    fn spawn(&self, priority: Priority, job: Job) {
        if self.is_stepped && priority == Priority::Low {
            self.compactions.lock().push_back(job);
        }
    }

    fn parallelism(&self) -> usize {
        2
    }

    fn step(&self) -> bool {
        let job = self.compactions.lock().pop_front();
        job.map(|job| job()).is_some()
    }
}

#[test]
fn a_writer_that_steps_runs_no_flush_of_another_store() {
    let _watchdog = Watchdog::new("environment");
    let fs = SimFileSystem::new();
    let executor = Arc::new(Busy { is_stepped: true, ..Busy::default() });
    let environment = Environment::new(EnvironmentOptions::new().executor(executor)).unwrap();
    let open = |name: &str| options(&fs, &environment).memtable_size(64 << 10).open(name).unwrap();
    let (busy, other) = (open("/busy"), open("/other"));
    fill(&other, 0, 100).unwrap();
    (0..).find(|n| fill(&busy, 100 * n, 100).is_err() || busy.stats().compactions > 0).unwrap();
    assert!(busy.stats().background_error.is_none());
    assert_eq!(other.stats().flushes, 0, "a writer waits for no other store's disk");
}

#[test]
fn a_writer_does_the_work_of_its_own_store_alone() {
    let _watchdog = Watchdog::new("environment");
    let fs = SimFileSystem::new();
    // More than flushes in memory need.
    let max = 1_000_000_000_000_000;
    for end in ["closed", "poisoned"] {
        let limit = RateLimit::Auto { max };
        let environment = EnvironmentOptions::new().executor(Arc::new(Busy::default())).rate_limit(limit);
        let environment = Environment::new(environment).unwrap();
        let open =
            |name: &str| options(&fs, &environment).memtable_size(64 << 10).open(format!("/{name}{end}")).unwrap();
        let (busy, other) = (open("busy"), open("other"));
        // Seals a memtable, whose flush waits for a thread.
        fill(&other, 0, 100).unwrap();
        // The writer has to wait, and so to flush and to compact.
        (0..).find(|n| fill(&busy, 100 * n, 100).is_err() || busy.stats().compactions > 0).unwrap();
        assert_eq!(other.stats().flushes, 0, "a writer waits for no other store's disk");
        assert_eq!(environment.stats().rate_limit, Some(max as f64), "its level 0 is long");
        if end == "closed" {
            busy.clone().close().unwrap();
        } else {
            fs.set_fault(Some(Fault { at: 1, mode: FaultMode::Io, sticky: true }));
            assert!(busy.sync().is_err() && matches!(busy.put("k", "v"), Err(Error::Poisoned(_))));
            fs.set_fault(None);
        }
        assert!(environment.stats().rate_limit < Some(max as f64), "{end}: it compacts nothing any more");
        assert_eq!(other.iter().count(), 100);
    }
}

#[test]
fn stores_and_environment_are_dropped_in_any_order() {
    let fs = SimFileSystem::new();
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..30 {
        // With threads of its own.
        let environment = Environment::new(EnvironmentOptions::new()).unwrap();
        let mut stores: Vec<Option<Db>> = (0..5)
            .map(|n| {
                let db = options(&fs, &environment).open(format!("/{n}")).unwrap();
                fill(&db, round, 3).unwrap();
                Some(db)
            })
            .collect();
        let held = stores[2].as_ref().map(|db| (db.iter(), db.snapshot()));
        let mut environment = Some(environment);
        let mut order: Vec<usize> = (0..=5).collect();
        random.shuffle(&mut order);
        for n in order {
            match n {
                5 => drop(environment.take()),
                n => drop(stores[n].take()),
            }
        }
        let (entries, snapshot) = held.unwrap();
        assert_eq!(entries.count(), 3 + round as usize);
        drop(snapshot);
    }
}

#[test]
fn a_store_is_still_opened_once_and_any_kind_of_open_takes_part() {
    let fs = SimFileSystem::new();
    let (environment, executor) = stepped(EnvironmentOptions::new());
    let one = options(&fs, &environment).open("/one").unwrap();
    assert!(matches!(options(&fs, &environment).open("/one"), Err(Error::Locked { .. })));
    fill(&one, 0, 10).unwrap();
    let reader = options(&fs, &environment).open_read_only("/one").unwrap();
    let in_memory = Options::new().environment(&environment).open_in_memory().unwrap();
    in_memory.put("k", "v").unwrap();
    in_memory.flush().unwrap();
    assert_eq!((reader.iter().count(), one.iter().count(), in_memory.iter().count()), (10, 10, 1));
    assert_eq!(environment.stats().stores, 2, "a reader flushes nothing");
    let stats = environment.stats();
    assert!(stats.reader_memtables > 0);
    drop(reader);
    let memtables = environment.stats().memtables;
    assert_eq!((environment.stats().reader_memtables, memtables), (0, stats.memtables), "outside the budget");
    one.flush().unwrap();
    one.close().unwrap();
    assert_eq!(environment.stats().stores, 1);
    options(&fs, &environment).open("/one").unwrap();
    step_all(&executor);
    assert!(matches!(options(&fs, &environment).create_if_missing(false).open("/none"), Err(Error::NotFound(_))));
}

#[test]
fn options_of_an_environment_are_checked_and_take_precedence() {
    for bad in [
        EnvironmentOptions::new().memtable_budget(1000),
        EnvironmentOptions::new().max_open_files(7),
        EnvironmentOptions::new().rate_limit(RateLimit::Fixed(1)),
    ] {
        assert!(matches!(Environment::new(bad), Err(Error::InvalidArgument(_))));
    }
    let fs = SimFileSystem::new();
    let limit = RateLimit::Fixed(1 << 20);
    let given = EnvironmentOptions::new().cache_size(1 << 20).max_open_files(9).rate_limit(limit);
    let (environment, _) = stepped(given);
    let of_store = options(&fs, &environment).cache_size(7 << 20).max_open_files(100).rate_limit(RateLimit::None);
    let (one, two) = (of_store.open("/one").unwrap(), options(&fs, &environment).open("/two").unwrap());
    let stats = environment.stats();
    assert_eq!((stats.cache_limit, stats.open_files_limit, stats.rate_limit), (1 << 20, 9, Some((1 << 20) as f64)));
    // The limit is that of all.
    one.set_rate_limit(RateLimit::Fixed(2 << 20)).unwrap();
    assert_eq!(two.stats().rate_limit, Some((2 << 20) as f64));
    environment.set_rate_limit(RateLimit::None).unwrap();
    assert_eq!(one.stats().rate_limit, None);
    assert!(matches!(environment.set_rate_limit(RateLimit::Fixed(1)), Err(Error::InvalidArgument(_))));
}

#[test]
fn open_files_of_all_stores_keep_the_limit() {
    let fs = SimFileSystem::new();
    let (environment, executor) = stepped(EnvironmentOptions::new().max_open_files(8).cache_size(0));
    let stores: Vec<Db> = (0..10).map(|n| options(&fs, &environment).open(format!("/{n}")).unwrap()).collect();
    for db in &stores {
        fill(db, 0, 10).unwrap();
        db.flush().unwrap();
    }
    step_all(&executor);
    for _ in 0..3 {
        for db in &stores {
            assert!(db.get(3u32.to_be_bytes()).unwrap().is_some());
            assert!(environment.stats().open_files <= 8);
        }
    }
    assert_eq!(environment.stats().open_files, 8);
    drop(stores);
    assert_eq!(environment.stats().open_files, 0);
}

#[test]
fn figures_of_what_is_shared_are_counted_once() {
    let fs = SimFileSystem::new();
    let (environment, executor) = stepped(EnvironmentOptions::new().cache_size(1 << 20));
    let stores: Vec<Db> = (0..5).map(|n| options(&fs, &environment).open(format!("/{n}")).unwrap()).collect();
    for db in &stores {
        fill(db, 0, 50).unwrap();
        db.flush().unwrap();
        step_all(&executor);
        (0..50u32).for_each(|n| assert!(db.get(n.to_be_bytes()).unwrap().is_some()));
        fill(db, 50, 5).unwrap();
    }
    let sum = |name: &str, purpose: &str| -> f64 {
        let of_stores = stores.iter().flat_map(|db| db.stats().metrics());
        let wanted = of_stores.filter(|metric| metric.name == name);
        wanted.filter(|m| purpose.is_empty() || m.labels.iter().any(|label| label.1 == purpose)).map(|m| m.value).sum()
    };
    let stats = environment.stats();
    assert_eq!((sum("tamis_cache_limit_bytes", ""), sum("tamis_memory_bytes", "pool")), (0.0, 0.0));
    assert_eq!(sum("tamis_memory_bytes", "memtables"), stats.memtables as f64);
    assert_eq!(sum("tamis_memory_bytes", "cache"), stats.cache as f64);
    let text = stats.to_prometheus();
    assert!(text.contains("\ntamis_environment_stores 5\n"), "{text}");
    assert!(text.contains(&format!("tamis_environment_memory_bytes{{purpose=\"memtables\"}} {}\n", stats.memtables)));
    assert!(text.contains("# TYPE tamis_environment_sealed_early_total counter\n"));
    // A store that shares nothing has all of it among its own.
    let alone = stepped_options(&fs).0.open("/alone").unwrap().stats();
    assert_eq!(alone.memory.cache_limit, 64 << 20);
}

/// Runs `test` while a compaction of a minute has one of the environment's threads.
fn during_a_long_compaction(options: Options, test: impl FnOnce()) {
    let keyspace = KeyspaceOptions::new().compression(Compression::None);
    // What closing waits for is an eighth of a table: less than a compaction.
    let busy = options.default_keyspace(keyspace).memtable_size(4 << 20).table_size(1 << 20).open("/busy").unwrap();
    thread::scope(|scope| {
        for _ in 0..2 {
            fill(&busy, 0, 1000).unwrap();
            busy.flush().unwrap();
        }
        let compaction = scope.spawn(|| busy.compact_range(..));
        while busy.stats().rate_limited_time.is_zero() && !compaction.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        test();
        assert!(!compaction.is_finished());
        busy.clone().close().unwrap();
        let result = compaction.join().unwrap();
        assert!(matches!(result, Err(Error::Closed)), "{result:?}");
    });
}

#[test]
fn a_flush_waits_for_no_compaction_of_another_store() {
    let _watchdog = Watchdog::new("environment");
    for threads in [1, 2] {
        let fs = SimFileSystem::new();
        let limit = RateLimit::Fixed(LEAST_RATE);
        // Half of it is more than the busy store takes.
        let shared = EnvironmentOptions::new().rate_limit(limit).memtable_budget(8 << 20);
        let environment = Environment::new(shared.background_threads(threads)).unwrap();
        let open =
            |name: &str, memtable_size| options(&fs, &environment).memtable_size(memtable_size).open(name).unwrap();
        let (small, large) = (open("/small", 64 << 10), open("/large", 64 << 20));
        during_a_long_compaction(options(&fs, &environment), || {
            // Seals two memtables, and then waits for nothing.
            fill(&small, 0, 130).unwrap();
            while small.stats().flushes < 2 {
                thread::sleep(Duration::from_millis(1));
            }
            // Takes half of the budget, so that a job is to seal the memtable.
            fill(&large, 0, 5000).unwrap();
            while large.stats().flushes == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        });
    }
}

#[test]
fn one_thread_calls_the_listeners_of_all_stores() {
    let _watchdog = Watchdog::new("environment");
    let fs = SimFileSystem::new();
    let (environment, _executor) = stepped(EnvironmentOptions::new());
    let told: Arc<Mutex<Vec<(usize, thread::ThreadId)>>> = Arc::default();
    let open = |n: usize| {
        let told = Arc::clone(&told);
        let listener = move |_: &tamis::Event| {
            told.lock().push((n, thread::current().id()));
            assert!(n != 3, "a listener that panics");
        };
        options(&fs, &environment).on_event(listener).open(format!("/{n}")).unwrap()
    };
    let stores: Vec<Db> = (0..8).map(open).collect();
    for db in &stores {
        db.put("k", "v").unwrap();
        db.flush().unwrap();
    }
    for (n, db) in stores.into_iter().enumerate() {
        db.close().unwrap();
        let told = told.lock();
        let own = told.iter().filter(|(store, _)| *store == n).count();
        assert!(own >= 2, "closing waits for the store's own events: {own}");
    }
    let told = told.lock();
    assert_eq!(told.iter().map(|(_, thread)| thread).collect::<HashSet<_>>().len(), 1);
    assert!(!environment.stats().delivers_events, "the thread ends with the last listener");
}

#[test]
fn a_listener_may_close_other_stores_and_a_slow_one_loses_nothing_of_others() {
    let _watchdog = Watchdog::new("environment");
    let fs = SimFileSystem::new();
    let (environment, _executor) = stepped(EnvironmentOptions::new());
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let told = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&told);
    let other = options(&fs, &environment).on_event(move |_| _ = counter.fetch_add(1, Ordering::Relaxed));
    let other = other.open("/other").unwrap();
    let closing = Mutex::new(Some(other.clone()));
    let slow = options(&fs, &environment).on_event(move |_| {
        let _ = wait.lock().recv();
        if let Some(other) = closing.lock().take() {
            other.close().unwrap();
        }
    });
    let slow = slow.open("/slow").unwrap();
    slow.put("k", "v").unwrap();
    slow.flush().unwrap();
    other.put("k", "v").unwrap();
    other.flush().unwrap();
    drop(go);
    slow.close().unwrap();
    // The listener has closed it, and did not wait for events that come after its own.
    assert!(matches!(other.put("k", "v"), Err(Error::Closed)));
    other.close().unwrap();
    let start = Instant::now();
    while told.load(Ordering::Relaxed) < 2 && start.elapsed() < Duration::from_secs(60) {
        thread::yield_now();
    }
    assert!(told.load(Ordering::Relaxed) >= 2);
}

/// Many stores opened, written to, read, flushed and closed by many threads at once.
#[test]
fn stores_come_and_go_on_many_threads() {
    let _watchdog = Watchdog::new("environment");
    const STORES: usize = 256;
    let fs = SimFileSystem::new();
    let limits = EnvironmentOptions::new().memtable_budget(1 << 20).cache_size(256 << 10).max_open_files(32);
    let environment = Environment::new(limits).unwrap();
    let next = AtomicUsize::new(0);
    let events = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        for seed in 0..8 {
            let (fs, environment, next, events) = (&fs, &environment, &next, &events);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= 2 * STORES {
                        return;
                    }
                    // Each store twice, by two threads: the second open may come too early.
                    let events = Arc::clone(events);
                    let listener = move |_: &tamis::Event| _ = events.fetch_add(1, Ordering::Relaxed);
                    let options = options(fs, environment).memtable_size(32 << 10).on_event(listener);
                    let (path, tag) = (format!("/{}", n % STORES), u8::try_from(n % 251).unwrap());
                    let db = loop {
                        match options.clone().open(&path) {
                            Err(Error::Locked { .. }) => thread::yield_now(),
                            opened => break opened.unwrap(),
                        }
                    };
                    let former = db.iter().count();
                    assert_eq!(former, if former == 0 { 0 } else { 40 });
                    for key in 0..40u32 {
                        db.put(key.to_be_bytes(), vec![tag; random.usize(0..2000)]).unwrap();
                        if random.u8(0..20) == 0 {
                            db.flush().unwrap();
                        }
                        let value = db.get(key.to_be_bytes()).unwrap().unwrap();
                        assert!(value.iter().all(|byte| *byte == tag));
                    }
                    if random.bool() { db.close().unwrap() } else { drop(db) }
                }
            });
        }
    });
    // A thread of the environment may look at the last stores a moment longer.
    let mut stats = environment.stats();
    while (stats.stores, stats.open_files, stats.memtables, stats.delivers_events) != (0, 0, 0, false) {
        thread::yield_now();
        stats = environment.stats();
    }
    assert!(events.load(Ordering::Relaxed) > 0 && stats.cache <= stats.cache_limit);
    let names = fs.list(Path::new("/")).unwrap();
    assert_eq!(names.len(), STORES);
}
