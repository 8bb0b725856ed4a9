//! What do reads cost, by the store's count and by the file system's? Which files stay, which
//! limits hold, which deletes free space?

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tamis::vfs::{FileSystem, ReadableFile, SimFileSystem};
use tamis::{Compression, Db, Error, Executor, FilterMode, FilterPolicy, KeyspaceOptions, Options, ReadOptions};
use tamis::{ReadStats, SteppedExecutor, Value, WriteBatch};

use crate::support::{OpenedBy, count_entries};

const DIR: &str = "/db";

struct Bench {
    fs: SimFileSystem,
    executor: Arc<SteppedExecutor>,
}

impl Bench {
    fn new() -> Bench {
        Bench { fs: SimFileSystem::new(), executor: Arc::new(SteppedExecutor::new()) }
    }

    fn options(&self) -> Options {
        let executor: Arc<dyn Executor> = self.executor.clone();
        Options::new()
            .file_system(Arc::new(self.fs.clone()))
            .executor(executor)
            .hash_seed(7)
            .memtable_size(4096)
            .table_size(16 << 10)
            .cache_size(0)
    }

    fn open(&self) -> Db {
        self.options().open(DIR).unwrap()
    }

    /// Runs all work that is due.
    fn step(&self) {
        while self.executor.step() {}
    }

    /// A store of three or more levels with tables, filled by random writes.
    fn deep(&self, options: KeyspaceOptions) -> Db {
        let db = self.options().default_keyspace(options).open(DIR).unwrap();
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..9000 {
            db.put(format!("key{:05}", rng.u32(0..20_000)), [rng.u8(..); 100]).unwrap();
            self.step();
        }
        db.flush().unwrap();
        self.step();
        // A compaction may just have emptied level 0. A run of less than a memtable stays.
        while db.stats().keyspaces[0].levels.iter().filter(|level| !level.tables.is_empty()).count() < 3 {
            for _ in 0..20 {
                db.put(format!("key{:05}", rng.u32(0..20_000)), [rng.u8(..); 50]).unwrap();
            }
            db.flush().unwrap();
            self.step();
        }
        db
    }
}

fn reads(db: &Db) -> ReadStats {
    db.stats().reads()
}

/// Looks up absent keys within every table's range; returns the reads that this added.
fn look_up_missing(db: &Db, options: ReadOptions) -> ReadStats {
    let before = reads(db);
    for n in 0..20_000 {
        assert!(db.get_with(format!("key{n:05}!"), options).unwrap().is_none());
    }
    reads(db) - before
}

#[test]
fn get_reads_no_block_when_filter_says_absent() {
    let bench = Bench::new();
    let db = bench.options().memtable_size(1 << 20).open(DIR).unwrap();
    for n in 0..200 {
        db.put(format!("key{n:03}"), "value").unwrap();
    }
    db.flush().unwrap();
    let (mut denied, mut passed) = (0, 0);
    // The first look-up loads index and filter.
    assert!(db.get("key000").unwrap().is_some());
    for n in 0..2000 {
        let (before, called) = (reads(&db), bench.fs.reads());
        assert!(db.get(format!("key{:03}/{n}", n % 199)).unwrap().is_none());
        let (after, called) = (reads(&db), bench.fs.reads() - called);
        let blocks = after.block_reads - before.block_reads;
        assert_eq!(blocks, called, "each block is one read, and there are no others");
        assert_eq!(after.probes - before.probes, 1);
        match after.negatives - before.negatives {
            1 => {
                assert_eq!(blocks, 0);
                denied += 1;
            }
            _ => {
                assert_eq!((after.false_positives - before.false_positives, blocks), (1, 1));
                passed += 1;
            }
        }
    }
    assert!(denied > 1900 && passed > 0, "{denied} {passed}");
}

#[test]
fn missing_key_costs_a_hundredth_of_a_block_per_level_with_filters_and_one_without() {
    let bench = Bench::new();
    let db = bench.deep(KeyspaceOptions::new().block_size(1024));
    // First load every table's index and filter.
    look_up_missing(&db, ReadOptions::new());
    let ignored = look_up_missing(&db, ReadOptions::new().filters(FilterMode::Ignore));
    assert_eq!(ignored.probes, 0);

    let calls = bench.fs.reads();
    let used = look_up_missing(&db, ReadOptions::new());
    assert_eq!(used.block_reads, bench.fs.reads() - calls, "the file system counts the same");
    assert!(used.probes > 3 * 15_000, "{used:?}");
    assert!(used.block_reads as f64 <= 0.01 * used.probes as f64, "{used:?}");
    assert!(used.block_reads > 0, "{used:?}");
    assert_eq!(used.block_reads, used.false_positives);
    assert_eq!(ignored.skipped, used.probes);
    assert!(ignored.block_reads >= used.probes, "{ignored:?} {used:?}");

    let shadow = look_up_missing(&db, ReadOptions::new().filters(FilterMode::Shadow));
    let (mut expected, blocks) = (used, ignored);
    (expected.block_reads, expected.block_bytes) = (blocks.block_reads, blocks.block_bytes);
    (expected.avoidable_reads, expected.avoidable_bytes) =
        (blocks.block_reads - used.block_reads, blocks.block_bytes - used.block_bytes);
    assert_eq!(shadow, expected, "counts like `Use`, reads like `Ignore`, and reports the difference");
}

#[test]
fn every_look_up_falls_into_one_class() {
    let bench = Bench::new();
    let db = bench.deep(KeyspaceOptions::new());
    let mut found = 0;
    for n in 0..20_000 {
        found += u64::from(db.get(format!("key{n:05}")).unwrap().is_some());
    }
    let stats = reads(&db);
    assert_eq!(stats.true_positives, found);
    assert_eq!(stats.probes, stats.negatives + stats.true_positives + stats.false_positives);
    assert_eq!((stats.skipped, stats.degraded), (0, 0));
    // Counts survive the tables that compaction replaces.
    db.compact_range(..).unwrap();
    let classes = |stats: ReadStats| (stats.negatives, stats.true_positives, stats.false_positives, stats.look_ups());
    assert_eq!(classes(reads(&db)), classes(stats));
    // A dropped keyspace's counts do not go to another one.
    let other = db.keyspace("other").unwrap();
    other.put("key", "value").unwrap();
    db.flush().unwrap();
    assert!(other.get("key").unwrap().is_some());
    db.drop_keyspace("other").unwrap();
    assert_eq!(classes(db.stats().keyspaces[0].reads()), classes(stats));
}

#[test]
fn tables_keep_the_filter_they_were_written_with() {
    let bench = Bench::new();
    let policies = [
        FilterPolicy::DEFAULT,
        FilterPolicy::None,
        FilterPolicy::Bloom { bits_per_key: 5.0 },
        FilterPolicy::Bloom { bits_per_key: 20.0 },
        FilterPolicy::BinaryFuse { fingerprint_bits: 6 },
    ];
    let mut model = BTreeMap::new();
    for (round, policy) in policies.into_iter().cycle().take(10).enumerate() {
        let options = KeyspaceOptions::new().filter(policy);
        let db = bench.options().default_keyspace(options.clone()).open(DIR).unwrap();
        assert_eq!(db.default_keyspace().options().unwrap(), options);
        for n in (round..300).step_by(3) {
            model.insert(format!("key{n:03}"), format!("{round}"));
            db.put(format!("key{n:03}"), format!("{round}")).unwrap();
        }
        db.flush().unwrap();
        for n in 0..320 {
            let key = format!("key{n:03}");
            let value = db.get_with(&key, ReadOptions::new().filters(FilterMode::Shadow)).unwrap();
            assert_eq!(value.as_deref(), model.get(&key).map(String::as_bytes));
        }
        if round == 6 {
            db.compact_range(..).unwrap();
        }
    }
}

/// A table that is open for reading, and counted.
#[derive(Debug)]
struct Counted {
    file: Arc<dyn ReadableFile>,
    open: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ReadableFile for Counted {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> bool {
        self.file.try_read_at(buf, offset)
    }

    fn will_need(&self, part: Range<u64>) {
        self.file.will_need(part);
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

#[test]
fn no_more_tables_are_open_than_allowed() {
    let bench = Bench::new();
    drop(bench.deep(KeyspaceOptions::new().compression(Compression::None)));
    let (open, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let counts = (Arc::clone(&open), Arc::clone(&most));
    let fs = OpenedBy::new(bench.fs.clone(), move |file| {
        let open = counts.0.fetch_add(1, Ordering::Relaxed) + 1;
        counts.1.fetch_max(open, Ordering::Relaxed);
        Arc::new(Counted { file, open: Arc::clone(&counts.0) })
    });
    let db = bench.options().file_system(Arc::new(fs)).max_open_files(8).open(DIR).unwrap();
    let tables: usize = db.stats().keyspaces[0].levels.iter().map(|level| level.tables.len()).sum();
    assert!(tables > 20, "{tables}");
    for n in (0..20_000).step_by(7) {
        db.get(format!("key{n:05}")).unwrap();
    }
    let iters: Vec<_> = (0..5).map(|_| db.iter()).collect();
    let counts: Vec<usize> = iters.into_iter().map(count_entries).collect();
    assert!(counts.iter().all(|&count| count == counts[0]));
    db.compact_range(..).unwrap();
    // One more while a file is opened beside those that are held.
    let most = most.load(Ordering::Relaxed);
    assert!((8..=9).contains(&most), "{most}");
    drop(db);
    assert_eq!(open.load(Ordering::Relaxed), 0);
}

#[test]
fn keys_and_values_of_any_allowed_size_come_back() {
    let bench = Bench::new();
    let mut rng = fastrand::Rng::with_seed(3);
    let mut noise = |len: usize| (0..len).map(|_| rng.u8(..)).collect::<Vec<u8>>();
    let entries = BTreeMap::from([
        (vec![], noise(3)),
        (b"empty value".to_vec(), vec![]),
        (noise(1 << 20), noise(10)),
        (vec![0xff; 1 << 20], vec![1; 5 << 20]),
        (vec![0xff; (1 << 20) - 1], noise(3 << 20)),
        (vec![0], noise(70_000)),
    ]);
    let check = |db: &Db| {
        for (key, value) in &entries {
            assert!(db.get(key).unwrap().as_deref() == Some(&value[..]));
        }
        let owned = |(key, value): (Value, Value)| (key.to_vec(), value.to_vec());
        assert!(db.iter().map(|entry| owned(entry.unwrap())).eq(entries.clone()));
        assert!(db.iter().rev().map(|entry| owned(entry.unwrap())).eq(entries.clone().into_iter().rev()));
    };
    let db = bench.open();
    for (key, value) in &entries {
        db.put(key, value).unwrap();
    }
    check(&db);
    let killed = bench.fs.kill();
    check(&bench.options().file_system(Arc::new(killed)).open(DIR).unwrap());
    db.flush().unwrap();
    check(&db);
    db.compact_range(..).unwrap();
    check(&db);

    let too_long = vec![1; (1 << 20) + 1];
    assert!(matches!(db.put(&too_long, ""), Err(Error::InvalidArgument(_))));
    assert!(matches!(db.delete(&too_long), Err(Error::InvalidArgument(_))));
    assert!(db.get(&too_long).unwrap().is_none());
    let mut batch = WriteBatch::new();
    batch.put("fine", "value");
    batch.put(&too_long, "");
    batch.put("fine too", "value");
    assert!(matches!(db.write(batch), Err(Error::InvalidArgument(_))));
    assert!(db.get("fine").unwrap().is_none(), "a batch is refused as a whole");
}

#[test]
fn batch_with_a_keyspace_of_another_store_is_refused() {
    let (one, two) = (Bench::new(), Bench::new());
    let (one, two) = (one.open(), two.open());
    let mut batch = WriteBatch::new();
    batch.put("key", "value");
    batch.put_in(&one.keyspace("more").unwrap(), "key", "value");
    two.keyspace("more").unwrap();
    assert!(matches!(two.write(batch.clone()), Err(Error::InvalidArgument(_))));
    assert!(two.get("key").unwrap().is_none());
    one.write(batch.clone()).unwrap();
    batch.put_in(&two.keyspace("more").unwrap(), "key", "value");
    assert!(matches!(one.write(batch), Err(Error::InvalidArgument(_))));
}

fn tables_size(fs: &SimFileSystem) -> u64 {
    let tables = fs.paths().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "sst"));
    tables.map(|path| fs.file_len(path).unwrap()).sum()
}

#[test]
fn deletes_give_their_space_back_by_themselves() {
    let bench = Bench::new();
    let db = bench.open();
    let key = |n: u32| format!("key{:05}", n.wrapping_mul(7919) % 5000);
    for n in 0..5000 {
        db.put(key(n), [n.to_le_bytes()[0]; 100]).unwrap();
        bench.step();
    }
    let full = tables_size(&bench.fs);
    assert!(full > 100_000, "{full}");
    for n in 0..5000 {
        db.delete(key(n)).unwrap();
        bench.step();
    }
    db.flush().unwrap();
    bench.step();
    let left = tables_size(&bench.fs);
    assert!(left < full / 50, "{left} of {full}");
    assert_eq!(count_entries(db.iter()), 0);
}

#[test]
fn only_files_in_use_stay_and_strays_are_removed_on_open() {
    let bench = Bench::new();
    let db = bench.deep(KeyspaceOptions::new());
    let in_use = |db: &Db| {
        let levels = db.stats().keyspaces.into_iter().flat_map(|keyspace| keyspace.levels);
        let tables = levels.flat_map(|level| level.tables).map(|table| format!("{:06}.sst", table.number));
        let mut names: Vec<String> = tables.chain(["CURRENT".into(), "LOCK".into()]).collect();
        names.sort();
        names
    };
    // All but the log and the manifest.
    let there = |fs: &SimFileSystem| {
        let names = fs.list(Path::new(DIR)).unwrap().into_iter();
        let mut names: Vec<String> = names.filter(|n| !n.ends_with(".wal") && !n.starts_with("MANIFEST-")).collect();
        names.sort();
        names
    };
    assert_eq!(there(&bench.fs), in_use(&db));
    // Files that a reader holds are removed after it drops them, by the next work.
    let mut iter = db.iter();
    assert!(iter.next().is_some());
    db.compact_range(..).unwrap();
    assert!(there(&bench.fs).len() > in_use(&db).len());
    drop(iter);
    db.put("key", "value").unwrap();
    db.flush().unwrap();
    assert_eq!(there(&bench.fs), in_use(&db));

    let fs = bench.fs.kill();
    for stray in ["900000.sst", "000001.sst", "000001.wal", "MANIFEST-000000", "MANIFEST-900001", "CURRENT.tmp"] {
        fs.write(Path::new(DIR).join(stray), "left by a crash").unwrap();
    }
    fs.write(Path::new(DIR).join("notes.txt"), "not ours").unwrap();
    let db = bench.options().file_system(Arc::new(fs.clone())).open(DIR).unwrap();
    fs.remove(&Path::new(DIR).join("notes.txt")).unwrap();
    assert_eq!(there(&fs), in_use(&db));
    let rest = fs.list(Path::new(DIR)).unwrap().len() - there(&fs).len();
    assert_eq!(rest, 1, "a manifest, and no log before the first write: {:?}", fs.paths());
}

#[test]
fn read_only_handle_changes_nothing() {
    let bench = Bench::new();
    let db = bench.deep(KeyspaceOptions::new());
    db.put("key", "in the log").unwrap();
    let fs = bench.fs.kill();
    let content = || fs.paths().into_iter().map(|path| (path.clone(), fs.read(&path).unwrap())).collect::<Vec<_>>();
    let before = content();
    {
        let db = bench.options().file_system(Arc::new(fs.clone())).open_read_only(DIR).unwrap();
        assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"in the log"[..]));
        assert!(count_entries(db.iter().rev()) > 1000);
        let refused = [
            db.put("key", "other").map(drop),
            db.delete("key").map(drop),
            db.flush(),
            db.sync(),
            db.compact_range(..),
            db.keyspace("new").map(drop),
            db.drop_keyspace("default").map(drop),
        ];
        for result in refused {
            assert!(matches!(result, Err(Error::ReadOnly(_))), "{result:?}");
        }
        db.close().unwrap();
    }
    assert_eq!(fs.mutations(), 0);
    assert!(content() == before);
    assert!(matches!(bench.options().open_read_only("/nothing"), Err(Error::NotFound(_))));
}

#[test]
fn writes_continue_when_nothing_steps_the_executor() {
    let bench = Bench::new();
    let db = bench.open();
    for n in 0..20_000u32 {
        db.put(n.wrapping_mul(0x9e37_79b1).to_be_bytes(), [1; 100]).unwrap();
    }
    let stats = db.stats();
    assert!(stats.flushes > 100 && stats.compactions > 0, "{stats:?}");
    assert!(stats.delayed_writes > 0, "{stats:?}");
    // Writes stop at 48 runs. On a slow machine the throttle, which goes by the clock, does not
    // stop them earlier. Two memtables may wait for their flush by then.
    assert!(stats.keyspaces[0].levels[0].tables.len() <= 50, "{stats:?}");
}

#[test]
fn many_keys_in_one_read_are_counted_as_one_by_one_and_read_each_block_once() {
    let bench = Bench::new();
    let db = bench.deep(KeyspaceOptions::new().block_size(512));
    let mut rng = fastrand::Rng::with_seed(5);
    // Several keys of each block, some twice, and absent ones.
    let keys: Vec<String> = (0..30_000).map(|_| format!("key{:05}", rng.u32(0..40_000))).collect();
    for filters in [FilterMode::Use, FilterMode::Ignore, FilterMode::Shadow] {
        let options = ReadOptions::new().filters(filters);
        let start = db.stats().reads();
        let single: Vec<Option<Value>> = keys.iter().map(|key| db.get_with(key, options).unwrap()).collect();
        let between = db.stats().reads();
        let many = db.default_keyspace().multi_get_with(&keys, options).unwrap();
        assert!(many == single);
        let (one_by_one, together) = (between - start, db.stats().reads() - between);
        let classes = |mut stats: ReadStats| {
            (stats.cache_hits, stats.block_reads, stats.block_bytes) = (0, 0, 0);
            (stats.avoidable_reads, stats.avoidable_bytes) = (0, 0);
            stats
        };
        assert_eq!(classes(together), classes(one_by_one), "{filters:?}");
        // Nothing is cached: one by one, each key costs its block.
        assert!(together.block_reads < one_by_one.block_reads / 2, "{together:?} {one_by_one:?}");
    }
    let blocks = |keys: &[String]| {
        let before = db.stats().reads();
        db.multi_get(keys).unwrap();
        (db.stats().reads() - before).block_reads
    };
    let neighbours: Vec<String> = single_block_keys(&db);
    assert_eq!((neighbours.len(), blocks(&neighbours)), (4, 1));
    assert_eq!(blocks(&[]), 0);
}

/// Keys that are in one block: all that a look-up of each reads is the same block.
fn single_block_keys(db: &Db) -> Vec<String> {
    let block_of = |key: &str| {
        let explained = db.explain(key).unwrap();
        let last = explained.steps.last()?.clone();
        (explained.block_reads() == 1).then(|| Some((last.source, last.blocks.first()?.offset)))?
    };
    let keys: Vec<String> = (0..20_000).map(|n| format!("key{n:05}")).collect();
    let present = keys.into_iter().filter(|key| db.contains_key(key).unwrap());
    let mut found: Vec<(_, String)> = Vec::new();
    for key in present {
        let Some(block) = block_of(&key) else { continue };
        if found.first().is_some_and(|(first, _)| *first != block) {
            found.clear();
        }
        found.push((block, key));
        if found.len() == 4 {
            break;
        }
    }
    found.into_iter().map(|(_, key)| key).collect()
}
