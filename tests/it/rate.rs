//! Does a rate limit hold compactions back, and nothing else?
//!
//! Times are compared with what the limit orders, never with how fast the machine is.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tamis::vfs::SimFileSystem;
use tamis::{Compression, Db, Error, Executor, FilterPolicy, KeyspaceOptions, Options, RateLimit, ThreadPool};

use crate::support::{Watchdog, stepped_options};
use crate::trace::{Trace, TraceEvent, TracedCall};

const LEAST: u64 = 64 << 10;

fn options(fs: &SimFileSystem, limit: RateLimit) -> Options {
    let threads: Arc<dyn Executor> = Arc::new(ThreadPool::new(2));
    let keyspace = KeyspaceOptions::new().compression(Compression::None);
    stepped_options(fs).0.executor(threads).default_keyspace(keyspace).rate_limit(limit)
}

/// Puts a million bytes, and flushes them.
fn fill(db: &Db) {
    for n in 0..1000u32 {
        db.put(n.to_be_bytes(), [7; 1000]).unwrap();
    }
    db.flush().unwrap();
}

#[test]
fn a_compaction_takes_the_time_that_the_limit_orders() {
    let _watchdog = Watchdog::new("rate");
    // In small tables, parts are shorter than what a compaction reads between two looks.
    for table_size in [8 << 20, 64 << 10] {
        let fs = SimFileSystem::new();
        // Two million bytes, read and written, take a second. The first of two parts is free.
        let db = options(&fs, RateLimit::Fixed(2_000_000)).table_size(table_size).open("/db").unwrap();
        fill(&db);
        let start = Instant::now();
        db.compact_range(..).unwrap();
        let elapsed = start.elapsed();
        assert!(elapsed > Duration::from_millis(500), "{table_size}: {elapsed:?}");
        let stats = db.stats();
        assert_eq!(stats.rate_limit, Some(2_000_000.0));
        // On a busy machine most of the time may pass by itself.
        assert!(!stats.rate_limited_time.is_zero(), "{table_size}: none of {elapsed:?}");
    }
}

#[test]
fn flushes_and_closing_wait_for_no_compaction_that_is_held_back() {
    let _watchdog = Watchdog::new("rate");
    let fs = SimFileSystem::new();
    // A minute of compaction. What closing waits for is an eighth of a table.
    let db = options(&fs, RateLimit::Fixed(LEAST)).table_size(1 << 20).open("/db").unwrap();
    (0..2).for_each(|_| fill(&db));
    thread::scope(|scope| {
        let compaction = scope.spawn(|| db.compact_range(..));
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(10));
            db.put("more", "value").unwrap();
            db.flush().unwrap();
        }
        assert!(!compaction.is_finished());
        db.clone().close().unwrap();
        assert!(matches!(compaction.join().unwrap(), Err(Error::Closed)));
    });
}

#[test]
fn a_limit_can_be_lifted_while_a_compaction_waits() {
    let _watchdog = Watchdog::new("rate");
    let fs = SimFileSystem::new();
    let db = options(&fs, RateLimit::Fixed(LEAST)).open("/db").unwrap();
    fill(&db);
    thread::scope(|scope| {
        scope.spawn(|| db.compact_range(..).unwrap());
        thread::sleep(Duration::from_millis(50));
        db.set_rate_limit(RateLimit::None).unwrap();
    });
    assert_eq!(db.stats().rate_limit, None);
    assert!(matches!(db.set_rate_limit(RateLimit::Fixed(1)), Err(Error::InvalidArgument(_))));
    assert!(matches!(options(&fs, RateLimit::Auto { max: 1 }).open("/other"), Err(Error::InvalidArgument(_))));
}

#[test]
fn an_automatic_limit_keeps_up_with_writes() {
    let _watchdog = Watchdog::new("rate");
    let fs = SimFileSystem::new();
    let limit = RateLimit::Auto { max: 1 << 30 };
    let db = options(&fs, limit).memtable_size(64 << 10).table_size(64 << 10).open("/db").unwrap();
    (0..5).for_each(|_| fill(&db));
    db.wait_for_compactions().unwrap();
    let stats = db.stats();
    assert!(stats.rate_limit.unwrap() >= (1 << 30) as f64 / 20.0 && stats.compaction_debt == 0);
    assert_eq!(db.iter().count(), 1000);
}

#[test]
fn files_are_written_in_pieces_of_what_the_limit_passes() {
    let _watchdog = Watchdog::new("rate");
    for (limit, pieces) in [(RateLimit::None, 1..4), (RateLimit::Fixed(16_000_000), 10..30)] {
        let fs = SimFileSystem::new();
        let trace = Trace::new(&fs);
        let db = options(&fs, limit).file_system(Arc::new(trace.clone())).open("/db").unwrap();
        let count = |kind: &str| {
            let is_one = |event: &&TraceEvent| event.call == TracedCall::Append && event.name.ends_with(kind);
            trace.events().iter().filter(is_one).count()
        };
        let since = |kind: &str, work: &dyn Fn()| {
            let before = count(kind);
            work();
            count(kind) - before
        };
        // A million bytes each.
        let flushed = since(".sst", &|| fill(&db));
        let other = KeyspaceOptions::new().compression(Compression::None).separate_values(500);
        let other = db.keyspace_with("other", other).unwrap();
        let apart = since(".val", &|| {
            (0..1000u32).for_each(|n| _ = other.put(n.to_be_bytes(), [7; 1000]).unwrap());
            db.flush().unwrap();
        });
        let policy = FilterPolicy::Bloom { bits_per_key: 14.5 };
        let refiltered = since(".sst", &|| assert!(db.rebuild_filters(policy, |_| {}).unwrap().replaced > 0));
        for written in [flushed, apart, refiltered] {
            assert!(pieces.contains(&written), "{limit:?}: {flushed} {apart} {refiltered}");
        }
    }
}
