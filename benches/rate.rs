//! What reads wait for while a store compacts on a slow disk, with and without a rate limit.
//!
//! ```text
//! cargo bench --bench rate [-- DIRECTORY]
//! ```
//!
//! The disk is simulated over real files: it serves one request after the other at 60 MB/s, reads
//! of blocks when they are made, and what is written when it is written back or synced. A store of
//! a million values of 100 bytes without a cache is read at random while another thread overwrites
//! it as fast as 4 MB/s, which keeps compactions busy. No figure makes this program fail.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    reason = "a benchmark"
)]

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tamis::vfs::{FileLock, FileSystem, OsFileSystem, ReadableFile, WritableFile};
use tamis::{Db, KeyspaceOptions, Options, RateLimit};
use tamis_base::sync::Mutex;
use tamis_figures::{Table, command, median};

const KEYS: u32 = 1_000_000;
const VALUE_LEN: usize = 100;
const SECONDS: u64 = 20;
const ROUNDS: usize = 3;
/// Bytes per second.
const DEVICE: f64 = 60e6;
const WRITES: f64 = 4e6;

/// A device that serves one request at a time.
#[derive(Debug)]
struct Device {
    free_at: Mutex<Instant>,
    is_slow: AtomicBool,
}

impl Device {
    fn serve(&self, bytes: usize) {
        if !self.is_slow.load(Ordering::Relaxed) {
            return;
        }
        let until = {
            let mut free_at = self.free_at.lock();
            *free_at = (*free_at).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / DEVICE);
            *free_at
        };
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

#[derive(Debug)]
struct SlowDisk {
    fs: OsFileSystem,
    device: Arc<Device>,
}

#[derive(Debug)]
struct SlowReads(Arc<dyn ReadableFile>, Arc<Device>);

impl ReadableFile for SlowReads {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.1.serve(buf.len());
        self.0.read_at(buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
}

struct SlowWrites {
    file: Box<dyn WritableFile>,
    device: Arc<Device>,
    /// Appended and not written back.
    dirty: AtomicU64,
}

impl SlowWrites {
    fn write_back(&self) {
        self.device.serve(usize::try_from(self.dirty.swap(0, Ordering::Relaxed)).unwrap());
    }
}

impl WritableFile for SlowWrites {
    fn append(&self, data: &[u8]) -> io::Result<()> {
        self.dirty.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.file.append(data)
    }

    fn begin_sync(&self) {
        self.write_back();
    }

    fn sync(&self) -> io::Result<()> {
        self.write_back();
        Ok(())
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.file.reserve(len)
    }
}

impl FileSystem for SlowDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        let (file, device) = (self.fs.create(path)?, Arc::clone(&self.device));
        Ok(Box::new(SlowWrites { file, device, dirty: AtomicU64::new(0) }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        Ok(Arc::new(SlowReads(self.fs.open(path)?, Arc::clone(&self.device))))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.fs.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        self.fs.create_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.fs.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.fs.lock(path)
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.fs.free_space(dir)
    }
}

fn key(n: u32) -> [u8; 16] {
    let mut key = *b"key 000000000000";
    key[12..].copy_from_slice(&n.to_be_bytes());
    key
}

/// Overwrites random keys at [`WRITES`] until `done`; returns the latencies of the puts.
fn overwrite(db: &Db, done: &AtomicBool) -> Vec<Duration> {
    let mut rng = fastrand::Rng::with_seed(2);
    let (start, mut latencies) = (Instant::now(), Vec::new());
    while !done.load(Ordering::Relaxed) {
        let due = Duration::from_secs_f64((latencies.len() * (16 + VALUE_LEN)) as f64 / WRITES);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        let begin = Instant::now();
        db.put(key(rng.u32(0..KEYS)), [7; VALUE_LEN]).unwrap();
        latencies.push(begin.elapsed());
    }
    latencies
}

fn read(db: &Db) -> Vec<Duration> {
    let mut rng = fastrand::Rng::with_seed(3);
    let (start, mut latencies) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_secs(SECONDS) {
        let begin = Instant::now();
        db.get(key(rng.u32(0..KEYS))).unwrap().unwrap();
        latencies.push(begin.elapsed());
    }
    latencies
}

/// Median, p99, p99.9 and the longest, in seconds.
fn quantiles(mut latencies: Vec<Duration>) -> [f64; 4] {
    latencies.sort_unstable();
    [0.5, 0.99, 0.999, 1.0].map(|q| latencies[((latencies.len() - 1) as f64 * q) as usize].as_secs_f64())
}

/// Quantiles of the gets, the longest put, and the bytes that compactions read and wrote.
fn measure(dir: &Path, limit: RateLimit) -> [f64; 6] {
    let dir = tempfile::tempdir_in(dir).unwrap();
    let device = Arc::new(Device { free_at: Mutex::new(Instant::now()), is_slow: AtomicBool::new(false) });
    let fs: Arc<dyn FileSystem> = Arc::new(SlowDisk { fs: OsFileSystem, device: Arc::clone(&device) });
    let options = Options::new().file_system(fs).cache_size(0).memtable_size(2 << 20).table_size(2 << 20);
    let db = options.default_keyspace(KeyspaceOptions::new()).open(dir.path()).unwrap();
    let mut order: Vec<u32> = (0..KEYS).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    order.into_iter().for_each(|n| _ = db.put(key(n), [7; VALUE_LEN]).unwrap());
    db.compact_range(..).unwrap();
    db.wait_for_compactions().unwrap();
    let before = db.stats();
    db.set_rate_limit(limit).unwrap();
    device.is_slow.store(true, Ordering::Relaxed);
    let done = AtomicBool::new(false);
    let (reads, writes) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| overwrite(&db, &done));
        let reads = read(&db);
        done.store(true, Ordering::Relaxed);
        (reads, writer.join().unwrap())
    });
    let stats = db.stats();
    device.is_slow.store(false, Ordering::Relaxed);
    let compacted =
        stats.compacted_bytes_in + stats.compacted_bytes_out - before.compacted_bytes_in - before.compacted_bytes_out;
    let [half, p99, p999, longest] = quantiles(reads);
    [half, p99, p999, longest, quantiles(writes)[3], compacted as f64]
}

fn main() {
    let dir = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let dir = dir.map_or_else(std::env::temp_dir, Into::into);
    let limits = [
        ("no limit", RateLimit::None),
        ("40 MB/s", RateLimit::Fixed(40_000_000)),
        ("automatic, at most 60 MB/s", RateLimit::Auto { max: 60_000_000 }),
    ];
    let mut figures = limits.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for ((_, limit), figures) in limits.into_iter().zip(&mut figures) {
            figures.push(measure(&dir, limit));
        }
    }
    let heads = ["", "gets: median", "p99", "p99.9", "longest", "longest put", "compactions read and wrote"];
    let mut table = Table::new("rate/gets", &command("cargo bench --bench rate", &[]), &heads);
    for ((name, _), figures) in limits.into_iter().zip(figures) {
        let of = |column: usize| median(figures.iter().map(|figures| figures[column]));
        let millis = (1..5).map(|column| format!("{:.2} ms", of(column) * 1e3));
        let first = [name.to_owned(), format!("{:.0} µs", of(0) * 1e6)];
        table.row(first.into_iter().chain(millis).chain([format!("{:.0} MB", of(5) / 1e6)]));
    }
    table.show();
}
