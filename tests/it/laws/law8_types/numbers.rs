//! Every number that a caller gives may be 0, 1 or the greatest of its type: the call succeeds, or
//! fails with an error.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tamis::filter::{BloomFilter, BloomLayout, BloomSize, FilterPolicy, FuseFilter, ScalableBloomFilter};
use tamis::vfs::{FileSystem, MemoryFileSystem, SimFileSystem};
use tamis::{
    ByteOrder, Db, Environment, EnvironmentOptions, Error, Expiry, FilterBudget, KeyspaceOptions, LevelFilters,
    Options, RateLimit, StoreCopy, WriteOptions,
};

const U64: [u64; 6] = [0, 1, 2, 1 << 56, u64::MAX - 1, u64::MAX];
const USIZE: [usize; 4] = [0, 1, usize::MAX - 1, usize::MAX];
const F64: [f64; 7] = [0.0, 1.0, f64::MIN_POSITIVE, f64::MAX, f64::INFINITY, f64::NAN, -1.0];

/// A store in memory with one write.
fn store(options: Options) -> tamis::Result<Db> {
    let db = options.file_system(Arc::new(MemoryFileSystem::new())).open("/db")?;
    db.put("a", "1")?;
    Ok(db)
}

fn may_refuse<T>(result: tamis::Result<T>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(Error::InvalidArgument(_) | Error::Diverged { .. } | Error::LogGone { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn law8_a_log_of_a_copy_takes_any_numbers_issue_29() {
    let db = store(Options::new()).unwrap();
    let (image, fs) = (db.image().unwrap(), Arc::new(SimFileSystem::new()));
    db.put("b", "2").unwrap();
    db.sync().unwrap();
    let batch = db.changes_since(1).unwrap().next().unwrap().unwrap();
    let shared: Arc<dyn FileSystem> = fs.clone();
    StoreCopy::make(shared, "/copy", |copy| {
        for file in image.files() {
            copy.write(file.kind, |put| image.read(file.kind, put).map(drop))?;
        }
        for since in U64 {
            for (first, last) in U64.iter().flat_map(|first| U64.map(|last| (*first, last))) {
                // All but the one batch that follows is refused.
                if (since, first, last) != (1, 2, 2) {
                    let added = copy.log(since).add(first, last, batch.encoded());
                    assert!(
                        matches!(added, Err(Error::InvalidArgument(_))) || (since, first, last) == (0, 1, 1),
                        "{since}: {first} to {last}: {added:?}"
                    );
                }
            }
            copy.log(since).finish()?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn law8_feeds_and_pins_take_any_numbers_issue_29() {
    let db = store(Options::new().keep_log(1 << 20, Duration::MAX)).unwrap();
    for since in U64 {
        if let Some(mut changes) = may_refuse(db.changes_since(since)) {
            while may_refuse(changes.next_timeout(Duration::ZERO)).flatten().is_some() {}
        }
        let Some(pin) = may_refuse(db.pin_log(since)) else { continue };
        for advanced in U64 {
            pin.advance(advanced);
            assert!(pin.seqno() >= advanced);
            db.put("b", "2").unwrap();
            db.flush().unwrap();
        }
    }
}

#[test]
fn law8_options_take_any_numbers_issue_29() {
    for number in U64 {
        let size = usize::try_from(number).unwrap_or(usize::MAX);
        let small = u32::try_from(number).unwrap_or(u32::MAX);
        let times = [Duration::from_nanos(number), Duration::from_secs(number), Duration::MAX];
        let with = |options: Options| {
            if let Some(db) = may_refuse(store(options)) {
                assert_eq!(db.get("a").unwrap().as_deref(), Some(&b"1"[..]));
            }
        };
        with(Options::new().memtable_size(size));
        with(Options::new().table_size(number));
        with(Options::new().cache_size(size));
        with(Options::new().max_open_files(size));
        with(Options::new().background_threads(size));
        with(Options::new().max_pinned_log(number));
        with(Options::new().hash_seed(number));
        with(Options::new().rate_limit(RateLimit::Fixed(number)));
        for time in times {
            with(Options::new().keep_log(number, time));
            with(Options::new().slow_operation(time));
            // The write may have expired.
            _ = may_refuse(store(Options::new().default_keyspace(KeyspaceOptions::new().ttl(time))));
        }
        with(Options::new().default_keyspace(KeyspaceOptions::new().block_size(small)));
        with(Options::new().default_keyspace(KeyspaceOptions::new().separate_values(small)));
        let budget = LevelFilters::Budget(FilterBudget::bytes(number));
        with(Options::new().default_keyspace(KeyspaceOptions::new().level_filters(budget)));
        let environment = EnvironmentOptions::new().cache_size(size).max_open_files(size.max(8)).memtable_budget(size);
        if let Some(environment) = may_refuse(Environment::new(environment)) {
            with(Options::new().environment(&environment));
        }
    }
}

#[test]
fn law8_times_of_writes_and_reads_may_be_any_issue_29() {
    let db = store(Options::new()).unwrap();
    let far = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(i64::MAX.unsigned_abs() - 1));
    let before = SystemTime::UNIX_EPOCH.checked_sub(Duration::from_secs(1 << 40));
    for deadline in [Some(SystemTime::UNIX_EPOCH), far, before].into_iter().flatten() {
        db.put_with_expiry("b", "2", deadline).unwrap();
        assert_eq!(db.contains_key("b").unwrap(), deadline > SystemTime::now());
        may_refuse(db.put_with("c", "3", WriteOptions::new().expiry(Expiry::At(deadline))));
        db.flush().unwrap();
    }
    for delta in [0, 1, i64::MIN, i64::MAX] {
        may_refuse(db.fetch_add("n", delta, ByteOrder::Little));
    }
}

#[test]
fn law8_filters_take_any_numbers_issue_29() {
    for keys in U64 {
        for bits in [0, 1, 4, 16, 17, u8::MAX] {
            may_refuse(FuseFilter::bytes_for(keys, bits));
            may_refuse(FuseFilter::from_keys((0..keys.min(5)).map(u64::to_be_bytes), bits));
        }
        for kind in [BloomLayout::Split, BloomLayout::Standard] {
            for number in F64 {
                may_refuse(BloomSize::for_rate(kind, keys, number));
                may_refuse(BloomSize::for_bits_per_key(kind, keys, number));
            }
            for k in [0, 1, u32::MAX] {
                if let Some(size) = may_refuse(BloomSize::for_bits(kind, keys, k)) {
                    U64.iter().for_each(|keys| _ = size.rate(*keys));
                }
            }
        }
        for rate in F64 {
            may_refuse(ScalableBloomFilter::with_rate(keys, rate).map(drop));
            if keys < 1 << 20 {
                may_refuse(BloomFilter::with_rate(keys, rate).map(drop));
            }
        }
        for policy in [FilterPolicy::DEFAULT, FilterPolicy::BinaryFuse { fingerprint_bits: 8 }, FilterPolicy::None] {
            tamis::filter::filter_bytes(policy, keys);
        }
        let runs = [keys, 1, keys].map(|keys| tamis::filter::Run { keys, weight: 1.0 });
        U64.iter().for_each(|budget| _ = tamis::filter::allocate(&runs, *budget));
    }
    for size in USIZE {
        may_refuse(Environment::new(EnvironmentOptions::new().cache_size(size)));
    }
}
