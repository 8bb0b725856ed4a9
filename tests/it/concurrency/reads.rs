//! Reads that take no lock, while everything under them is replaced.

use tamis::ReadOptions;

use super::*;

const KEYS: u32 = 3000;

fn key(n: u32) -> String {
    format!("key{n:05}")
}

/// A value that names its key. A few values are long and are read without a copy.
fn value(n: u32, round: u32) -> Vec<u8> {
    let len = if n % 50 == 7 { 5000 } else { 40 + n as usize % 100 };
    let mut value = format!("{n} {round} ").repeat(len).into_bytes();
    value.truncate(len);
    value
}

fn check(n: u32, value: &[u8]) {
    assert!(value.starts_with(format!("{n} ").as_bytes()), "{n}: {:?}", value.escape_ascii().to_string());
    let whole = value.len() == if n % 50 == 7 { 5000 } else { 40 + n as usize % 100 };
    assert!(whole, "{n}: {}", value.len());
    // The pattern continues to the end, so that a reused block shows anywhere.
    let space = value.iter().enumerate().filter(|(_, byte)| **byte == b' ').nth(1).map(|(at, _)| at + 1);
    let (period, first) = (space.unwrap(), value.to_vec());
    assert!(first.chunks(period).all(|part| first.starts_with(part)), "{n}");
}

/// All kinds of point reads, while tables are compacted and dropped, and blocks evicted from a
/// cache of a few dozen.
#[test]
fn every_kind_of_read_sees_whole_values_while_tables_and_blocks_come_and_go() {
    let fs: Arc<dyn FileSystem> = Arc::new(SimFileSystem::new());
    read_while_tables_go(&*fs, Path::new("/db"), &options(Arc::clone(&fs)).cache_size(24 << 10));
}

/// All kinds of point reads over mapped files, which are unlinked meanwhile.
#[test]
fn every_kind_of_read_sees_whole_values_in_mapped_files_that_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    read_while_tables_go(&OsFileSystem::new(), &dir.path().join("db"), &in_mapped_files());
}

fn read_while_tables_go(fs: &dyn FileSystem, dir: &Path, options: &Options) {
    let _watchdog = Watchdog::new("reads while tables go");
    let db = options.clone().open(dir).unwrap();
    for n in 0..KEYS {
        db.put(key(n), value(n, 0)).unwrap();
    }
    db.compact_range(..).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let read: [fn(&Db, &mut fastrand::Rng); 4] = [
            |db, rng| {
                let n = rng.u32(0..KEYS);
                // Kept for a while: its block may be evicted meanwhile.
                let kept = db.get(key(n)).unwrap().unwrap();
                let other = rng.u32(0..KEYS);
                check(other, &db.get_with(key(other), ReadOptions::new().fill_cache(false)).unwrap().unwrap());
                check(n, &kept);
            },
            |db, rng| {
                let n = rng.u32(0..KEYS);
                let inner = rng.u32(0..KEYS);
                let nested = db.read(key(n), |value| {
                    check(inner, &db.get(key(inner)).unwrap().unwrap());
                    check(n, value);
                });
                assert!(nested.unwrap().is_some());
            },
            |db, rng| {
                let numbers: Vec<u32> = (0..40).map(|_| rng.u32(0..KEYS)).collect();
                let keys: Vec<String> = numbers.iter().map(|&n| key(n)).collect();
                for (n, value) in numbers.iter().zip(db.multi_get(&keys).unwrap()) {
                    check(*n, &value.unwrap());
                }
                assert!(!db.contains_key(format!("{}x", keys[0])).unwrap());
            },
            |db, rng| {
                let n = rng.u32(0..KEYS - 20);
                for (i, entry) in db.range(key(n)..).take(20).enumerate() {
                    check(n + u32::try_from(i).unwrap(), &entry.unwrap().1);
                }
            },
        ];
        for (seed, read) in read.into_iter().enumerate() {
            let (db, done) = (&db, &done);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed as u64);
                while !done.load(Ordering::Relaxed) {
                    read(db, &mut rng);
                    let memory = db.stats().memory;
                    assert!(memory.cache <= memory.cache_limit);
                }
            });
        }
        let writer = scope.spawn(|| {
            for round in 1..5 {
                for n in (0..KEYS).step_by(7) {
                    db.put(key(n), value(n, round)).unwrap();
                }
                db.compact_range(..).unwrap();
            }
        });
        let result = writer.join();
        done.store(true, Ordering::Relaxed);
        result.unwrap();
    });
    // All readers have ended: replaced tables are gone.
    db.close().unwrap();
    let files = fs.list(dir).unwrap().iter().filter(|name| name.ends_with(".sst")).count();
    let db = options.clone().open_read_only(dir).unwrap();
    let tables = db.stats().keyspaces[0].levels.iter().map(|level| level.tables.len()).sum::<usize>();
    assert_eq!(files, tables);
}
