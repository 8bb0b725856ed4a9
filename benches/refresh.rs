//! How far a reader is behind the process that writes, and what a refresh costs.
//!
//! ```text
//! TAMIS_SECONDS=30 cargo bench --bench refresh
//! ```
//!
//! Another process, this program again, puts values of 100 bytes under random keys, every ninth
//! with the time of its put: 100,000 a second, and then as many as it can. The reader looks at the
//! newest time that it sees. `TAMIS_SECONDS` sets how long each way to follow is measured (default
//! 5), `TAMIS_DIR` the directory. The cost of a refresh without news is measured when the writer
//! has ended, with the calls that it makes of the file system. No figure makes this program fail.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark")]

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tamis::vfs::{FileLock, FileSystem, OsFileSystem, ReadableFile, WritableFile};
use tamis::{Db, Options};
use tamis_figures::{Table, command};

const WRITER: &str = "TAMIS_BENCH_WRITER";
const RATE: &str = "TAMIS_BENCH_RATE";
const NEWEST: &str = "newest";
const KEYS: u64 = 1_000_000;

fn nanoseconds() -> u64 {
    u64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos()).unwrap()
}

fn options() -> Options {
    Options::new().memtable_size(16 << 20)
}

/// Puts `rate` values a second.
fn write_for_ever(dir: &Path, rate: f64) -> ! {
    let db = options().open(dir).unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    let (begin, mut puts) = (Instant::now(), 0_f64);
    loop {
        let due = Duration::from_secs_f64(puts / rate);
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
        puts += 9.0;
        for _ in 0..8 {
            db.put(rng.u64(..KEYS).to_be_bytes(), [7; 100]).unwrap();
        }
        db.put(NEWEST, nanoseconds().to_le_bytes()).unwrap();
    }
}

/// Age of the newest value that the reader sees.
fn lag(db: &Db) -> Duration {
    let newest = db.get(NEWEST).unwrap().unwrap();
    let at = u64::from_le_bytes(newest[..].try_into().unwrap());
    Duration::from_nanos(nanoseconds().saturating_sub(at))
}

/// Median, p99 and the greatest, in milliseconds.
fn quantiles(mut times: Vec<Duration>) -> [String; 3] {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 1000].as_secs_f64() * 1e3;
    [500, 990, 1000].map(|part| format!("{:.3}", at(part)))
}

/// Counts the calls of a reader.
#[derive(Clone, Debug)]
struct Counting {
    fs: OsFileSystem,
    calls: Arc<AtomicU64>,
}

impl Counting {
    fn count(&self) -> &OsFileSystem {
        self.calls.fetch_add(1, Ordering::Relaxed);
        &self.fs
    }
}

#[derive(Debug)]
struct CountingFile(Arc<dyn ReadableFile>, Counting);

impl ReadableFile for CountingFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.1.count();
        self.0.read_at(buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.1.count();
        self.0.len()
    }
}

impl FileSystem for Counting {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        self.count().create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        Ok(Arc::new(CountingFile(self.count().open(path)?, self.clone())))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.count().rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.count().remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.count().list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        self.count().create_dir(dir)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        self.fs.absolute(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.count().sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.count().lock(path)
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.count().free_space(dir)
    }
}

fn main() {
    if let Ok(dir) = std::env::var(WRITER) {
        write_for_ever(Path::new(&dir), std::env::var(RATE).unwrap().parse().unwrap());
    }
    let time = Duration::from_secs(std::env::var("TAMIS_SECONDS").map_or(5, |text| text.parse().unwrap()));
    let dir = match std::env::var("TAMIS_DIR") {
        Ok(dir) => tempfile::tempdir_in(dir).unwrap(),
        Err(_) => tempfile::tempdir().unwrap(),
    };
    let path = dir.path().join("db");
    let heads = ["refreshed", "puts per second", "age, ms: median", "p99", "greatest"];
    let command = command("cargo bench --bench refresh", &["TAMIS_SECONDS"]);
    let mut ages = Table::new("refresh/ages", &command, &heads);
    let mut cost = Table::new("refresh/cost", &command, &["a refresh, ms", "median", "p99", "greatest"]);
    for rate in [1e5, f64::INFINITY] {
        measure(&path, rate, time, &mut ages, &mut cost);
    }
    ages.show();
    cost.show();

    let counting = Counting { fs: OsFileSystem::new(), calls: Arc::default() };
    let reader = options().file_system(Arc::new(counting.clone())).open_read_only(&path).unwrap();
    let files = OsFileSystem::new().list(&path).unwrap().len();
    reader.refresh().unwrap();
    let (calls, begin) = (counting.calls.load(Ordering::Relaxed), Instant::now());
    const ROUNDS: u32 = 10_000;
    (0..ROUNDS).for_each(|_| _ = reader.refresh().unwrap());
    let calls = (counting.calls.load(Ordering::Relaxed) - calls) as f64 / f64::from(ROUNDS);
    println!("a refresh without news: {:?}, {calls:.1} calls, {files} files", begin.elapsed() / ROUNDS);
}

/// Follows a writer in several ways: the ages of the newest value that a reader sees, and the cost
/// of a refresh.
fn measure(path: &Path, rate: f64, time: Duration, ages: &mut Table, cost: &mut Table) {
    let mut writer = Command::new(std::env::current_exe().unwrap());
    let mut writer = writer.env(WRITER, path).env(RATE, rate.to_string()).stdin(Stdio::null()).spawn().unwrap();
    let reader = loop {
        match options().open_read_only(path) {
            Ok(db) if db.contains_key(NEWEST).unwrap() && lag(&db) < time => break db,
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let (begin, mut lags, mut times) = (Instant::now(), Vec::new(), Vec::new());
    let before = reader.last_seqno();
    while begin.elapsed() < time {
        let start = Instant::now();
        reader.refresh().unwrap();
        times.push(start.elapsed());
        lags.push(lag(&reader));
    }
    let puts = (reader.last_seqno() - before) as f64 / begin.elapsed().as_secs_f64();
    let load = if rate.is_finite() { "at 100,000 puts per second" } else { "at full load" };
    let age = |name: &str, puts: f64, lags| [name.to_owned(), format!("{puts:.0}")].into_iter().chain(quantiles(lags));
    ages.row(age(&format!("in a loop, {load}"), puts, lags));
    cost.row([format!("in a loop, {load}")].into_iter().chain(quantiles(times)));
    drop(reader);
    for interval in [1, 10, 100] {
        let interval = Duration::from_millis(interval);
        let reader = options().refresh_every(interval).open_read_only(path).unwrap();
        let (begin, mut lags) = (Instant::now(), Vec::new());
        let before = reader.last_seqno();
        while begin.elapsed() < time {
            std::thread::sleep(Duration::from_micros(fastrand::u64(500..1500)));
            lags.push(lag(&reader));
        }
        let puts = (reader.last_seqno() - before) as f64 / begin.elapsed().as_secs_f64();
        ages.row(age(&format!("every {interval:?}, {load}"), puts, lags));
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
}
