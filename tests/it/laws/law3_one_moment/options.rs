//! A change of an option does not tear what was there before from what comes after.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tamis::operator::{Append, CompactionDecision};
use tamis::vfs::SimFileSystem;
use tamis::{
    Db, Executor, FilterBudget, FilterPolicy, Keyspace, KeyspaceOptions, LevelFilters, Options, PrefixExtractor,
    ThreadPool, WriteOptions,
};

use crate::support::stepped_options;

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

fn contents(keyspace: &Keyspace) -> Contents {
    let forward: Vec<_> = keyspace.iter().map(Result::unwrap).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
    let mut backward: Vec<_> =
        keyspace.iter().rev().map(Result::unwrap).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
    backward.reverse();
    assert_eq!(forward, backward);
    for (key, value) in &forward {
        assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(&value[..]));
        let prefix = &key[..2];
        assert!(keyspace.prefix(prefix).any(|entry| entry.unwrap().0.to_vec() == *key));
    }
    forward.into_iter().collect()
}

fn put(keyspace: &Keyspace, from: u32, to: u32, sync: bool) {
    for n in from..to {
        keyspace.put_with(format!("{:02}:{n}", n % 7), [b'v'; 40], WriteOptions::new().sync(sync)).unwrap();
    }
}

fn wal(wal: bool) -> KeyspaceOptions {
    KeyspaceOptions::new().wal(wal)
}

/// Writes numbered 0 to 3 to one keyspace, with a change of `wal` after each.
#[test]
fn whatever_has_a_log_survives_with_all_that_was_before_it() {
    for first in [true, false] {
        for flush in 0..8u32 {
            for power_cut in [false, true] {
                let fs = SimFileSystem::new();
                let db = stepped_options(&fs).0.memtable_size(64 << 10).open("/db").unwrap();
                let other = db.keyspace_with("other", wal(false)).unwrap();
                let mut is_logged = first;
                for n in 0..4u8 {
                    let keyspace = db.keyspace_with("k", wal(is_logged)).unwrap();
                    keyspace.put_with([n], "v", WriteOptions::new().sync(is_logged)).unwrap();
                    other.put([n], "v").unwrap();
                    if flush & (1 << n) != 0 {
                        db.flush().unwrap();
                    }
                    let killed = if power_cut { fs.crash(u64::from(n)) } else { fs.kill() };
                    let case = format!("first {first}, flushes {flush:b}, after {n}, power cut {power_cut}");
                    let found = stepped_options(&killed).0.open("/db").unwrap();
                    let keys = |name: &str| {
                        let keyspace = found.keyspace(name).unwrap();
                        keyspace.keys(..).map(|key| key.unwrap()[0]).collect::<Vec<u8>>()
                    };
                    let there = keys("k");
                    assert!(there.iter().copied().eq(0..u8::try_from(there.len()).unwrap()), "{case}: {there:?}");
                    assert!(!is_logged || there.len() == usize::from(n) + 1, "{case}: {there:?}");
                    if !is_logged {
                        // Both are as of one number, at which `k` is one write ahead at most.
                        let ahead = there.len() - keys("other").len();
                        assert!(ahead <= 1, "{case}: {ahead}");
                    }
                    is_logged = !is_logged;
                    if n == 3 {
                        continue;
                    }
                }
            }
        }
    }
}

/// Writers that go on while the option changes.
#[test]
fn a_change_of_the_log_beside_writers_leaves_no_hole() {
    const WRITERS: u8 = 3;
    for round in 0..6u64 {
        let fs = SimFileSystem::new();
        let threads: Arc<dyn Executor> = Arc::new(ThreadPool::new(2));
        let options: Options = stepped_options(&fs).0.executor(threads);
        let db = options.memtable_size(16 << 10).open("/db").unwrap();
        let keyspace = db.keyspace_with("k", wal(false)).unwrap();
        let changed = AtomicU64::new(0);
        let killed = std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (keyspace, changed) = (&keyspace, &changed);
                scope.spawn(move || {
                    let mut after = 0;
                    for n in 0u32.. {
                        keyspace.put([&[writer][..], &n.to_be_bytes()].concat(), [7; 30]).unwrap();
                        after += changed.load(Ordering::Relaxed);
                        if after > 50 {
                            break;
                        }
                    }
                });
            }
            (0..round * 200).for_each(|_| std::thread::yield_now());
            db.keyspace_with("k", wal(true)).unwrap();
            changed.store(1, Ordering::Relaxed);
            (0..round * 20).for_each(|_| std::thread::yield_now());
            fs.kill()
        });
        let found = stepped_options(&killed).0.open("/db").unwrap();
        let keyspace = found.keyspace("k").unwrap();
        for writer in 0..WRITERS {
            let numbers: Vec<u32> =
                keyspace.prefix([writer]).map(|e| u32::from_be_bytes(e.unwrap().0[1..].try_into().unwrap())).collect();
            assert!(numbers.iter().copied().eq(0..u32::try_from(numbers.len()).unwrap()), "{round}: {numbers:?}");
        }
    }
}

/// Every option of a keyspace but the log: the one before and the one after.
fn changes() -> Vec<(&'static str, KeyspaceOptions, KeyspaceOptions)> {
    let new = KeyspaceOptions::new;
    let keep = |_: &[u8], _: &[u8]| CompactionDecision::Keep;
    let fuse = FilterPolicy::BinaryFuse { fingerprint_bits: 8 };
    let pairs = [
        ("filter", new().filter(FilterPolicy::None), new().filter(fuse)),
        (
            "level filters",
            new(),
            new().level_filters(LevelFilters::Budget(FilterBudget::bits_per_key(6.0).absent(0.5))),
        ),
        ("block size", new().block_size(256), new().block_size(1 << 16)),
        ("prefix", new(), new().prefix(PrefixExtractor::Fixed(2))),
        ("prefixes", new().prefix(PrefixExtractor::Fixed(2)), new().prefix(PrefixExtractor::UpTo(b':'))),
        ("separate values", new(), new().separate_values(16)),
        ("length of separate values", new().separate_values(16), new().separate_values(64)),
        ("compression", new(), new().compression(tamis::Compression::None)),
    ];
    let both_ways = pairs.into_iter().flat_map(|(name, a, b)| [(name, a.clone(), b.clone()), (name, b, a)]);
    // These stay once they are there.
    let once =
        [("merge operator", new(), new().merge_operator(Append)), ("filter", new(), new().compaction_filter(keep))];
    both_ways.chain(once).collect()
}

#[test]
fn a_change_of_any_option_keeps_what_is_there() {
    for (name, before, after) in changes() {
        for flush in 0..4u32 {
            let fs = SimFileSystem::new();
            let open = |options: &KeyspaceOptions| {
                let db = stepped_options(&fs).0.memtable_size(4096).table_size(4096).open("/db").unwrap();
                let keyspace = db.keyspace_with("k", options.clone()).unwrap();
                (db, keyspace)
            };
            let (db, keyspace) = open(&before);
            put(&keyspace, 0, 60, false);
            keyspace.delete("03:3").unwrap();
            if flush & 1 != 0 {
                db.flush().unwrap();
            }
            let (snapshot, former) = (db.snapshot().keyspace(&keyspace), contents(&keyspace));
            let keyspace = db.keyspace_with("k", after.clone()).unwrap();
            assert_eq!(contents(&keyspace), former, "{name}");
            put(&keyspace, 40, 100, false);
            keyspace.delete_range("05:".."05;").unwrap();
            if flush & 2 != 0 {
                db.compact_range(..).unwrap();
                keyspace.compact_range(..).unwrap();
            }
            let then = contents(&keyspace);
            assert!(then.len() == 85 && then.values().all(|value| *value == [b'v'; 40]), "{name}: {}", then.len());
            let seen: Contents = snapshot.iter().map(Result::unwrap).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
            assert_eq!(seen, former, "{name}, of a snapshot");
            drop((snapshot, keyspace));
            let fs = fs.kill();
            drop(db);
            let db = stepped_options(&fs).0.open("/db").unwrap();
            let keyspace = db.keyspace_with("k", after.clone()).unwrap();
            assert_eq!(contents(&keyspace), then, "{name}, reopened");
            keyspace.compact_range(..).unwrap();
            assert_eq!(contents(&keyspace), then, "{name}, reopened and compacted");
        }
    }
}

/// Deadlines stay with the puts that have them.
#[test]
fn a_change_of_the_ttl_is_for_later_puts() {
    let time = |millis: u64| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
    let ttl = |millis: u64| (millis > 0).then(|| Duration::from_millis(millis));
    for (first, then) in [(0, 100), (100, 0), (100, 300), (300, 100)] {
        for flushes in 0..4 {
            let (fs, clock) = (SimFileSystem::new(), Arc::new(AtomicU64::new(0)));
            let open = |fs: &SimFileSystem, millis| {
                let clock = Arc::clone(&clock);
                let options = stepped_options(fs).0.memtable_size(64 << 10);
                let db: Db = options.clock(move || time(clock.load(Ordering::Relaxed))).open("/db").unwrap();
                let keyspace = db.keyspace_with("k", KeyspaceOptions::new().ttl(ttl(millis))).unwrap();
                (db, keyspace)
            };
            let (db, keyspace) = open(&fs, first);
            keyspace.put("a", "1").unwrap();
            if flushes & 1 != 0 {
                db.flush().unwrap();
            }
            let keyspace = db.keyspace_with("k", KeyspaceOptions::new().ttl(ttl(then))).unwrap();
            keyspace.put("b", "1").unwrap();
            if flushes & 2 != 0 {
                keyspace.compact_range(..).unwrap();
            }
            let fs = fs.kill();
            drop((db, keyspace));
            for now in [99, 100, 299, 300] {
                clock.store(now, Ordering::Relaxed);
                let (_db, keyspace) = open(&fs, then);
                let is_there = |ttl: u64| ttl == 0 || now < ttl;
                let found = ["a", "b"].map(|key| keyspace.get(key).unwrap().is_some());
                assert_eq!(found, [is_there(first), is_there(then)], "{first} {then} {now}");
            }
        }
    }
}
