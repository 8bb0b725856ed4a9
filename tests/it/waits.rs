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
struct CallRecord {
    /// Whether files start uncached: data are in memory only after a prefetch or read.
    uncached: bool,
    /// Steps of [`STEP`] bytes that are in memory, by file and number; parts are rounded outward.
    in_memory: BTreeSet<(usize, u64)>,
    /// Whether every read fails.
    fails: bool,
    /// Prefetched parts that were not read yet: lengths by file and offset.
    in_flight: BTreeMap<(usize, u64), u64>,
    most_in_flight: usize,
    most_bytes_in_flight: u64,
    /// Number of prefetches, and of those that repeat one in flight.
    prefetches: usize,
    repeated: usize,
    /// Reads that may wait, and those of them that were not prefetched.
    waits: usize,
    late_waits: usize,
    /// Reads that found their data in memory.
    hits: usize,
}

impl fmt::Debug for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallRecord { prefetches, repeated, most_in_flight, waits, late_waits, hits, in_flight, .. } = self;
        let never_read = in_flight.len();
        write!(f, "{prefetches} prefetched, {repeated} twice, {never_read} in vain, {most_in_flight} at most; ")?;
        write!(f, "{waits} waits, {late_waits} of them not prefetched; {hits} at once")
    }
}

const STEP: u64 = 64;

impl CallRecord {
    fn load(&mut self, id: usize, part: Range<u64>) {
        self.in_memory.extend((part.start / STEP..part.end.div_ceil(STEP)).map(|step| (id, step)));
    }

    /// Whether all of it is in memory.
    fn has(&self, id: usize, part: Range<u64>) -> bool {
        (part.start / STEP..part.end.div_ceil(STEP)).all(|step| self.in_memory.contains(&(id, step)))
    }
}

/// A file that starts uncached, with the record of its calls.
#[derive(Debug)]
struct UncachedFile {
    file: Arc<dyn ReadableFile>,
    id: usize,
    record: Arc<Mutex<CallRecord>>,
}

impl ReadableFile for UncachedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut record = self.record.lock();
        let part = offset..offset + buf.len() as u64;
        record.waits += 1;
        record.in_flight.remove(&(self.id, offset));
        if record.uncached && !record.has(self.id, part.clone()) {
            record.late_waits += 1;
        }
        record.load(self.id, part);
        if record.fails {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.file.read_at(buf, offset)
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> bool {
        let mut record = self.record.lock();
        if record.uncached && !record.has(self.id, offset..offset + buf.len() as u64) {
            buf.fill(0xee);
            return false;
        }
        record.in_flight.remove(&(self.id, offset));
        record.hits += 1;
        self.file.read_at(buf, offset).is_ok_and(|read| read == buf.len())
    }

    fn will_need(&self, part: Range<u64>) {
        assert!(part.start < part.end && part.end <= self.file.len().unwrap());
        let mut record = self.record.lock();
        record.prefetches += 1;
        record.repeated += usize::from(record.in_flight.insert((self.id, part.start), part.end - part.start).is_some());
        record.most_in_flight = record.most_in_flight.max(record.in_flight.len());
        record.most_bytes_in_flight = record.most_bytes_in_flight.max(record.in_flight.values().sum());
        record.load(self.id, part);
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

fn key(n: usize) -> String {
    format!("key{n:05}")
}

fn value(n: usize) -> [u8; 100] {
    [(n as u64).to_le_bytes()[0]; 100]
}

/// A store of 5000 keys in one level, without cache, with the record of its files' calls; all
/// tables are open.
fn store(compression: Compression, table_size: u64) -> (Db, Arc<Mutex<CallRecord>>) {
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
fn reopen(fs: &SimFileSystem, options: Options) -> (Db, Arc<Mutex<CallRecord>>) {
    let record = Arc::new(Mutex::new(CallRecord::default()));
    let (shared, ids) = (Arc::clone(&record), Mutex::new(0));
    let uncached = OpenedBy::new(fs.clone(), move |file| {
        let mut id = ids.lock();
        *id += 1;
        Arc::new(UncachedFile { file, id: *id, record: Arc::clone(&shared) })
    });
    let db = options.file_system(Arc::new(uncached)).open("/db").unwrap();
    assert!(count_entries(db.iter()) > 0);
    (db, record)
}

/// Reads keys in one call and checks the values. Returns the number of blocks read, and the record.
fn read(db: &Db, record: &Mutex<CallRecord>, uncached: bool, keys: &[usize]) -> (usize, CallRecord) {
    *record.lock() = CallRecord { uncached, ..CallRecord::default() };
    let before = db.stats().reads();
    let values = db.multi_get(&keys.iter().map(|&n| key(n)).collect::<Vec<_>>()).unwrap();
    for (&n, value) in keys.iter().zip(values) {
        let expected = (n < 5000).then(|| self::value(n));
        assert_eq!(value.as_deref(), expected.as_ref().map(|value| &value[..]), "{n}");
    }
    let blocks = (db.stats().reads() - before).block_reads;
    (blocks.try_into().unwrap(), std::mem::take(&mut *record.lock()))
}

#[test]
fn blocks_of_many_keys_are_prefetched_before_the_first_wait() {
    for compression in [Compression::None, Compression::Lz4] {
        let (db, record) = store(compression, 64 << 10);
        let mut rng = fastrand::Rng::with_seed(1);
        for count in [2, 3, 60, 1000, 4000] {
            let keys: Vec<usize> = (0..count).map(|_| rng.usize(0..6000)).collect();
            let (blocks, record) = read(&db, &record, true, &keys);
            assert_eq!(record.waits + record.hits, blocks);
            assert!(record.late_waits <= 1, "{record:?}");
            assert_eq!(record.prefetches, blocks - record.late_waits);
            assert_eq!((record.repeated, record.in_flight.len()), (0, 0), "{record:?}");
            // Of 128 keys, several are in one block.
            assert!(record.most_in_flight <= 128 && (count < 1000 || record.most_in_flight >= 30), "{record:?}");
        }
    }
}

#[test]
fn blocks_in_memory_and_single_blocks_are_not_prefetched() {
    let (db, record) = store(Compression::None, 64 << 10);
    let many: Vec<usize> = (0..6000).step_by(3).collect();
    let (blocks, cached) = read(&db, &record, false, &many);
    assert!(blocks > 500);
    assert_eq!((cached.prefetches, cached.waits + cached.hits), (0, blocks), "{cached:?}");
    let (blocks, alone) = read(&db, &record, true, &[17]);
    assert_eq!((blocks, alone.prefetches, alone.late_waits), (1, 0, 1), "{alone:?}");
}

#[test]
fn long_scans_read_ahead_once_they_have_waited() {
    let (db, record) = store(Compression::None, 1 << 20);
    let tables: usize = db.stats().keyspaces[0].levels.iter().map(|level| level.tables.len()).sum();
    assert_eq!(tables, 1);
    for backward in [false, true] {
        for uncached in [false, true] {
            *record.lock() = CallRecord { uncached, ..CallRecord::default() };
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
            let record = std::mem::take(&mut *record.lock());
            if uncached {
                // A scan reads some blocks one by one before it counts as long. From then on each
                // read was prefetched, and all but the last prefetch the next one.
                assert!(record.late_waits < 20, "{record:?}");
                assert!(record.prefetches > 3 && record.waits - record.late_waits == record.prefetches, "{record:?}");
            } else {
                assert_eq!(record.prefetches, 0, "{record:?}");
            }
        }
    }
}

#[test]
fn prefetched_bytes_in_flight_are_bounded() {
    let fs = SimFileSystem::new();
    let options = || {
        let keyspace = KeyspaceOptions::new().compression(Compression::None);
        stepped_options(&fs).0.cache_size(0).default_keyspace(keyspace)
    };
    let db = options().open("/db").unwrap();
    let long_value = |n: usize| vec![(n as u64).to_le_bytes()[0]; 3 << 20];
    for n in 0..20 {
        db.put(key(n), long_value(n)).unwrap();
    }
    db.compact_range(..).unwrap();
    db.close().unwrap();
    let (db, record) = reopen(&fs, options());
    *record.lock() = CallRecord { uncached: true, ..CallRecord::default() };
    let values = db.multi_get(&(0..20).map(key).collect::<Vec<_>>()).unwrap();
    assert!(values.iter().enumerate().all(|(n, value)| value.as_deref() == Some(&long_value(n)[..])));
    let record = record.lock();
    assert_eq!((record.prefetches, record.waits, record.late_waits), (20, 20, 0), "{record:?}");
    // The last of them may begin below the limit.
    assert!((2..=3).contains(&record.most_in_flight) && record.most_bytes_in_flight <= (8 + 4) << 20, "{record:?}");
}

#[test]
fn compactions_read_ahead() {
    let (db, record) = store(Compression::None, 1 << 20);
    for n in (0..5000).step_by(2) {
        db.put(key(n), value(n)).unwrap();
    }
    db.flush().unwrap();
    *record.lock() = CallRecord { uncached: true, ..CallRecord::default() };
    db.compact_range(..).unwrap();
    let merged = std::mem::take(&mut *record.lock());
    assert!(merged.prefetches > 2 && merged.late_waits < merged.waits, "{merged:?}");
    assert_eq!(count_entries(db.iter()), 5000);
}

#[test]
fn errors_are_those_of_the_read_that_waits() {
    let (db, record) = store(Compression::None, 64 << 10);
    *record.lock() = CallRecord { uncached: true, fails: true, ..CallRecord::default() };
    let keys: Vec<String> = (0..5000).step_by(100).map(key).collect();
    assert!(matches!(db.multi_get(&keys), Err(Error::Io { .. })));
    assert!(matches!(db.iter().last(), Some(Err(Error::Io { .. }))));
    assert!(record.lock().prefetches > 0);
    *record.lock() = CallRecord { uncached: true, ..CallRecord::default() };
    assert!(db.multi_get(&keys).unwrap().iter().all(Option::is_some));
    assert_eq!(count_entries(db.iter()), 5000);
}
