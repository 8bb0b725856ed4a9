//! Law 1 where lengths differ: a tenth of the entries has nearly all of the bytes, and goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tamis::vfs::SimFileSystem;
use tamis::{Compression, Db, Executor, Keyspace, KeyspaceOptions};

use crate::support::stepped_options;

const MEMTABLE: usize = 64 << 10;
const LONG: usize = 16_000;
const BEGIN: u64 = 1_000_000;

fn time(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

fn key(i: u32) -> Vec<u8> {
    format!("{i:08}").into_bytes()
}

/// Which entries are long.
type Long = fn(u32, u32) -> bool;

const LONG_ONES: [(&str, Long); 3] = [
    ("one in ten", |i, _| i.is_multiple_of(10)),
    ("the first tenth", |i, count| i < count / 10),
    ("one in a hundred", |i, _| i % 100 == 50),
];

#[derive(Clone, Copy, Debug)]
enum Way {
    Delete,
    Overwrite,
    DeleteRange,
    Expire,
    /// Of the short ones as many are deleted, too.
    DeleteBoth,
}

const WAYS: [Way; 5] = [Way::Delete, Way::Overwrite, Way::DeleteRange, Way::Expire, Way::DeleteBoth];

fn size(db: &Db) -> u64 {
    db.stats().keyspaces[0].size()
}

/// Fills a store, in one level or as it comes, does away with the long values, and lets it rest.
fn check(
    (count, is_long): (u32, &dyn Fn(u32) -> bool),
    way: Way,
    in_last_level: bool,
    separate: bool,
    reopened: bool,
) -> Result<(), String> {
    let (fs, clock) = (SimFileSystem::new(), Arc::new(AtomicU64::new(BEGIN)));
    let open = || {
        let (options, executor) = stepped_options(&fs);
        let separate = separate.then_some(500);
        let keyspace = KeyspaceOptions::new().compression(Compression::None).separate_values(separate);
        let clock = Arc::clone(&clock);
        let options = options.memtable_size(MEMTABLE).clock(move || time(clock.load(Ordering::Relaxed)));
        (options.default_keyspace(keyspace).open("/db").unwrap(), executor)
    };
    let (mut db, mut executor) = open();
    let mut rng = fastrand::Rng::with_seed(count.into());
    let mut put = |keyspace: &Keyspace, i: u32, len: usize| {
        let value: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
        match way {
            Way::Expire if is_long(i) => _ = keyspace.put_with_expiry(key(i), value, time(BEGIN + 1000)).unwrap(),
            _ => _ = keyspace.put(key(i), value).unwrap(),
        }
    };
    let mut order: Vec<u32> = (0..count).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    for &i in &order {
        put(db.default_keyspace(), i, if is_long(i) { LONG } else { 20 });
    }
    db.flush().unwrap();
    if in_last_level {
        db.compact_range(..).unwrap();
    }
    while executor.step() {}
    for &i in order.iter().filter(|i| is_long(**i)) {
        match way {
            Way::Delete | Way::DeleteBoth => _ = db.delete(key(i)).unwrap(),
            Way::Overwrite => _ = db.put(key(i), "").unwrap(),
            Way::DeleteRange => _ = db.delete_range(key(i)..key(i + 1)).unwrap(),
            Way::Expire => {}
        }
        if matches!(way, Way::DeleteBoth) {
            db.delete(key(i + 1)).unwrap();
        }
    }
    clock.store(BEGIN + 10_000, Ordering::Relaxed);
    db.flush().unwrap();
    if reopened {
        db.close().unwrap();
        (db, executor) = open();
        db.flush().unwrap();
    }
    while executor.step() {}
    let rested = size(&db);
    db.compact_range(..).unwrap();
    while executor.step() {}
    let least = size(&db);
    let deleted = |i: u32| match way {
        Way::Overwrite => false,
        Way::DeleteBoth => is_long(i) || i > 0 && is_long(i - 1),
        _ => is_long(i),
    };
    assert_eq!(db.keys(..).count(), (0..count).filter(|i| !deleted(*i)).count());
    match rested * 5 <= least * 6 + 5 * MEMTABLE as u64 {
        true => Ok(()),
        false => Err(format!("{rested} bytes, {least} compacted")),
    }
}

#[test]
fn long_values_among_short_ones_are_gone() {
    let (mut cells, mut failures) = (0u32, Vec::new());
    for count in [100, 250, 700, 1500] {
        for (which, is_long) in LONG_ONES {
            for way in WAYS {
                for in_last_level in [false, true] {
                    for separate in [false, true] {
                        cells += 1;
                        let reopened = cells.count_ones().is_multiple_of(2);
                        let cell = format!("{which} of {count}, {way:?}, last {in_last_level}, separate {separate}");
                        let entries = (count, &(|i| is_long(i, count)) as &dyn Fn(u32) -> bool);
                        let result = check(entries, way, in_last_level, separate, reopened);
                        failures.extend(result.err().map(|error| format!("{cell}, reopened {reopened}: {error}")));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {cells} cells:\n{}", failures.len(), failures.join("\n"));
}

/// All values are long, in two levels or more, and short ones replace them: what comes down last
/// stands in the upper ones.
#[test]
fn long_values_that_short_ones_replace_are_gone_from_each_level() {
    let fs = SimFileSystem::new();
    let (options, executor) = stepped_options(&fs);
    let keyspace = KeyspaceOptions::new().compression(Compression::None);
    let db = options.default_keyspace(keyspace).memtable_size(8 << 10).open("/db").unwrap();
    let mut order: Vec<u32> = (0..3000).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    for len in [1024, 8] {
        for &i in &order {
            db.put(key(i), vec![7; len]).unwrap();
            while executor.step() {}
        }
        db.flush().unwrap();
        while executor.step() {}
        let levels = db.stats().keyspaces[0].levels.iter().filter(|level| !level.tables.is_empty()).count();
        assert!(len == 8 || levels >= 2, "{levels} levels");
    }
    let rested = size(&db);
    db.compact_range(..).unwrap();
    assert!(rested * 5 <= size(&db) * 6 + (40 << 10), "{rested} bytes, {} compacted", size(&db));
}
