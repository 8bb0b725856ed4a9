//! Do reads prefetch blocks before they wait for them?

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use tamis::vfs::{ReadableFile, SimFileSystem};
use tamis::{Compression, Db, Error, KeyspaceOptions, Options, Value};

use crate::support::{OpenedBy, count_entries, stepped_options};

/// Calls on the tables' files since the test last took the record.
#[derive(Default)]
struct Log {
    /// Whether files start uncached: data are in memory only after a prefetch or read.
    distant: bool,
    /// Steps of [`STEP`] bytes that are in memory, by file and number; parts are rounded outward.
    near: BTreeSet<(usize, u64)>,
    /// Whether every read fails.
    fails: bool,
    /// Prefetched parts that were not read yet: lengths by file and offset.
    asked: BTreeMap<(usize, u64), u64>,
    most_asked: usize,
    most_bytes_asked: u64,
    /// Number of prefetches, and of those that repeat one in flight.
    asks: usize,
    repeated: usize,
    /// Reads that may wait, and those of them that were not prefetched.
    waits: usize,
    unasked_waits: usize,
    /// Reads that found their data in memory.
    at_once: usize,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Log { asks, repeated, most_asked, waits, unasked_waits, at_once, asked, .. } = self;
        let never_read = asked.len();
        write!(f, "{asks} asked, {repeated} twice, {never_read} in vain, {most_asked} at most; ")?;
        write!(f, "{waits} waits, {unasked_waits} of them unasked; {at_once} at once")
    }
}

const STEP: u64 = 64;

impl Log {
    fn bring(&mut self, id: usize, part: Range<u64>) {
        self.near.extend((part.start / STEP..part.end.div_ceil(STEP)).map(|step| (id, step)));
    }

    /// Whether all of it is in memory.
    fn has(&self, id: usize, part: Range<u64>) -> bool {
        (part.start / STEP..part.end.div_ceil(STEP)).all(|step| self.near.contains(&(id, step)))
    }
}

/// A file that starts uncached, with the record of its calls.
#[derive(Debug)]
struct Distant {
    file: Arc<dyn ReadableFile>,
    id: usize,
    log: Arc<Mutex<Log>>,
}

impl ReadableFile for Distant {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut log = self.log.lock();
        let part = offset..offset + buf.len() as u64;
        log.waits += 1;
        log.asked.remove(&(self.id, offset));
        if log.distant && !log.has(self.id, part.clone()) {
            log.unasked_waits += 1;
        }
        log.bring(self.id, part);
        if log.fails {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.file.read_at(buf, offset)
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> bool {
        let mut log = self.log.lock();
        if log.distant && !log.has(self.id, offset..offset + buf.len() as u64) {
            buf.fill(0xee);
            return false;
        }
        log.asked.remove(&(self.id, offset));
        log.at_once += 1;
        self.file.read_at(buf, offset).is_ok_and(|read| read == buf.len())
    }

    fn will_need(&self, part: Range<u64>) {
        assert!(part.start < part.end && part.end <= self.file.len().unwrap());
        let mut log = self.log.lock();
        log.asks += 1;
        log.repeated += usize::from(log.asked.insert((self.id, part.start), part.end - part.start).is_some());
        log.most_asked = log.most_asked.max(log.asked.len());
        log.most_bytes_asked = log.most_bytes_asked.max(log.asked.values().sum());
        log.bring(self.id, part);
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

fn key(n: usize) -> String {
    format!("key{n:05}")
}

fn value(n: usize) -> [u8; 100] {
    [n.to_le_bytes()[0]; 100]
}

/// A store of 5000 keys in one level, without cache, with the record of its files' calls; all
/// tables are open.
fn store(compression: Compression, table_size: u64) -> (Db, Arc<Mutex<Log>>) {
    let fs = SimFileSystem::new();
    let options = |fs: &SimFileSystem| {
        let keyspace = KeyspaceOptions::new().block_size(512).compression(compression);
        stepped_options(fs).0.table_size(table_size).cache_size(0).default_keyspace(keyspace)
    };
    let db = options(&fs).open("/db").unwrap();
    for n in 0..5000 {
        db.put(key(n), value(n)).unwrap();
    }
    db.compact_range(..).unwrap();
    db.close().unwrap();
    reopen(&fs, options(&fs))
}

/// Opens a store whose files record their calls, and reads all its tables.
fn reopen(fs: &SimFileSystem, options: Options) -> (Db, Arc<Mutex<Log>>) {
    let log = Arc::new(Mutex::new(Log::default()));
    let (shared, ids) = (Arc::clone(&log), Mutex::new(0));
    let distant = OpenedBy::new(fs.clone(), move |file| {
        let mut id = ids.lock();
        *id += 1;
        Arc::new(Distant { file, id: *id, log: Arc::clone(&shared) })
    });
    let db = options.file_system(Arc::new(distant)).open("/db").unwrap();
    assert!(count_entries(db.iter()) > 0);
    (db, log)
}

/// Reads keys in one call and checks the values. Returns the number of blocks read, and the record.
fn read(db: &Db, log: &Mutex<Log>, distant: bool, keys: &[usize]) -> (usize, Log) {
    *log.lock() = Log { distant, ..Log::default() };
    let before = db.stats().reads();
    let values = db.multi_get(&keys.iter().map(|&n| key(n)).collect::<Vec<_>>()).unwrap();
    for (&n, value) in keys.iter().zip(values) {
        let expected = (n < 5000).then(|| self::value(n));
        assert_eq!(value.as_deref(), expected.as_ref().map(|value| &value[..]), "{n}");
    }
    let blocks = (db.stats().reads() - before).block_reads;
    (blocks.try_into().unwrap(), std::mem::take(&mut *log.lock()))
}

#[test]
fn blocks_of_many_keys_are_asked_for_before_the_first_is_waited_for() {
    for compression in [Compression::None, Compression::Lz4] {
        let (db, log) = store(compression, 64 << 10);
        let mut rng = fastrand::Rng::with_seed(1);
        for count in [2, 3, 60, 1000, 4000] {
            let keys: Vec<usize> = (0..count).map(|_| rng.usize(0..6000)).collect();
            let (blocks, log) = read(&db, &log, true, &keys);
            assert_eq!(log.waits + log.at_once, blocks);
            assert!(log.unasked_waits <= 1, "{log:?}");
            assert_eq!(log.asks, blocks - log.unasked_waits);
            assert_eq!((log.repeated, log.asked.len()), (0, 0), "{log:?}");
            // Of 128 keys, several are in one block.
            assert!(log.most_asked <= 128 && (count < 1000 || log.most_asked >= 30), "{log:?}");
        }
    }
}

#[test]
fn nothing_is_asked_for_that_is_at_hand_or_alone() {
    let (db, log) = store(Compression::None, 64 << 10);
    let many: Vec<usize> = (0..6000).step_by(3).collect();
    let (blocks, at_hand) = read(&db, &log, false, &many);
    assert!(blocks > 500);
    assert_eq!((at_hand.asks, at_hand.waits + at_hand.at_once), (0, blocks), "{at_hand:?}");
    let (blocks, alone) = read(&db, &log, true, &[17]);
    assert_eq!((blocks, alone.asks, alone.unasked_waits), (1, 0, 1), "{alone:?}");
}

#[test]
fn long_scans_ask_for_what_they_come_to_once_they_have_waited() {
    let (db, log) = store(Compression::None, 1 << 20);
    let tables: usize = db.stats().keyspaces[0].levels.iter().map(|level| level.tables.len()).sum();
    assert_eq!(tables, 1);
    for backward in [false, true] {
        for distant in [false, true] {
            *log.lock() = Log { distant, ..Log::default() };
            let entries: Vec<(Value, Value)> = if backward {
                db.iter().rev().map(Result::unwrap).collect()
            } else {
                db.iter().map(Result::unwrap).collect()
            };
            assert_eq!(entries.len(), 5000);
            for (i, (found, value)) in entries.iter().enumerate() {
                let n = if backward { 4999 - i } else { i };
                assert!(*found == key(n) && *value == self::value(n), "{n}");
            }
            let log = std::mem::take(&mut *log.lock());
            if distant {
                // A scan reads some blocks one by one before it counts as long. From then on each
                // read was prefetched, and all but the last prefetch the next one.
                assert!(log.unasked_waits < 20, "{log:?}");
                assert!(log.asks > 3 && log.waits - log.unasked_waits == log.asks, "{log:?}");
            } else {
                assert_eq!(log.asks, 0, "{log:?}");
            }
        }
    }
}

#[test]
fn no_more_bytes_are_asked_for_than_stay_in_memory() {
    let fs = SimFileSystem::new();
    let options = || {
        let keyspace = KeyspaceOptions::new().compression(Compression::None);
        stepped_options(&fs).0.cache_size(0).default_keyspace(keyspace)
    };
    let db = options().open("/db").unwrap();
    let long_value = |n: usize| vec![n.to_le_bytes()[0]; 3 << 20];
    for n in 0..20 {
        db.put(key(n), long_value(n)).unwrap();
    }
    db.compact_range(..).unwrap();
    db.close().unwrap();
    let (db, log) = reopen(&fs, options());
    *log.lock() = Log { distant: true, ..Log::default() };
    let values = db.multi_get(&(0..20).map(key).collect::<Vec<_>>()).unwrap();
    assert!(values.iter().enumerate().all(|(n, value)| value.as_deref() == Some(&long_value(n)[..])));
    let log = log.lock();
    assert_eq!((log.asks, log.waits, log.unasked_waits), (20, 20, 0), "{log:?}");
    // The last of them may begin below the limit.
    assert!((2..=3).contains(&log.most_asked) && log.most_bytes_asked <= (8 + 4) << 20, "{log:?}");
}

#[test]
fn compactions_ask_for_what_they_come_to() {
    let (db, log) = store(Compression::None, 1 << 20);
    for n in (0..5000).step_by(2) {
        db.put(key(n), value(n)).unwrap();
    }
    db.flush().unwrap();
    *log.lock() = Log { distant: true, ..Log::default() };
    db.compact_range(..).unwrap();
    let merged = std::mem::take(&mut *log.lock());
    assert!(merged.asks > 2 && merged.unasked_waits < merged.waits, "{merged:?}");
    assert_eq!(count_entries(db.iter()), 5000);
}

#[test]
fn errors_are_those_of_the_read_that_waits() {
    let (db, log) = store(Compression::None, 64 << 10);
    *log.lock() = Log { distant: true, fails: true, ..Log::default() };
    let keys: Vec<String> = (0..5000).step_by(100).map(key).collect();
    assert!(matches!(db.multi_get(&keys), Err(Error::Io { .. })));
    assert!(matches!(db.iter().last(), Some(Err(Error::Io { .. }))));
    assert!(log.lock().asks > 0);
    *log.lock() = Log { distant: true, ..Log::default() };
    assert!(db.multi_get(&keys).unwrap().iter().all(Option::is_some));
    assert_eq!(count_entries(db.iter()), 5000);
}
