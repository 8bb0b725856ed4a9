//! Helpers for several modules of these tests.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tamis::vfs::{FileLock, FileSystem, ReadableFile, SimFileSystem, WritableFile};
use tamis::{Db, Executor, Job, Options, Priority, SteppedExecutor, WalMode};

/// The number in environment variable `name`, or `default`.
pub(crate) fn count_from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Runs `case` for `count` seeds; a failure prints its seed. `TAMIS_SEED` runs that one alone.
pub(crate) fn for_each_seed(count: u64, case: impl Fn(u64)) {
    if let Ok(seed) = std::env::var("TAMIS_SEED") {
        return case(seed.parse().expect("a number"));
    }
    for seed in 0..count {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(seed))) {
            eprintln!("failed with TAMIS_SEED={seed}");
            resume_unwind(panic);
        }
    }
}

/// Prints where a test was when it panicked.
pub struct Scene(pub String);

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// The watchdog's limit: the slowest test takes seconds, on a loaded machine a minute.
const PATIENCE: Duration = Duration::from_secs(300);

/// Ends the process if the test takes too long, so that a deadlock is reported.
pub(crate) struct Watchdog(Arc<AtomicBool>);

impl Watchdog {
    pub(crate) fn new(test: &'static str) -> Watchdog {
        let done = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&done);
        std::thread::spawn(move || {
            let start = Instant::now();
            while !watched.load(Ordering::Relaxed) {
                if start.elapsed() > PATIENCE {
                    let _ = writeln!(io::stderr(), "{test} hangs");
                    std::process::abort();
                }
                std::thread::park_timeout(Duration::from_millis(100));
            }
        });
        Watchdog(done)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs an ignored test of this binary in a process of its own, which gets the directory in the
/// variable `variable`. Kills it `delay` after it has written `lines` lines to standard error;
/// returns all of them. A busy machine then kills it no earlier in its work than an idle one.
pub(crate) fn kill_child(test: &str, variable: &str, dir: &Path, lines: usize, delay: Duration) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test, "--test-threads=1"])
        .env(variable, dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut said: Vec<String> = output.by_ref().take(lines).map(Result::unwrap).collect();
    std::thread::sleep(delay);
    child.kill().unwrap();
    said.extend(output.map(Result::unwrap));
    child.wait().unwrap();
    assert!(!said.iter().any(|line| line.contains("panicked")), "{said:?}");
    said
}

/// Both ways of writing a log.
pub(crate) const WAL_MODES: [WalMode; 2] = [WalMode::Auto, WalMode::Write];

/// Options of a store in `fs` without threads or chance: background work waits to be stepped.
pub(crate) fn stepped_options(fs: &SimFileSystem) -> (Options, Arc<SteppedExecutor>) {
    let executor = Arc::new(SteppedExecutor::new());
    let shared: Arc<dyn Executor> = executor.clone();
    (Options::new().file_system(Arc::new(fs.clone())).executor(shared).hash_seed(7), executor)
}

/// An executor whose jobs run only when stepped, and whose delayed jobs the test runs.
#[derive(Default)]
pub struct Delaying {
    jobs: SteppedExecutor,
    delayed: Mutex<Vec<(Duration, Job)>>,
}

impl Delaying {
    /// The delayed jobs of which none has run.
    pub fn take_delayed(&self) -> Vec<(Duration, Job)> {
        std::mem::take(&mut *self.delayed.lock())
    }
}

impl Executor for Delaying {
    fn spawn(&self, priority: Priority, job: Job) {
        self.jobs.spawn(priority, job);
    }

    fn spawn_after(&self, delay: Duration, job: Job) {
        self.delayed.lock().push((delay, job));
    }

    fn parallelism(&self) -> usize {
        1
    }

    fn step(&self) -> bool {
        self.jobs.step()
    }
}

/// Bytes that the files take, including reserved ones.
pub fn taken(fs: &SimFileSystem) -> u64 {
    const CAPACITY: u64 = 1 << 40;
    fs.set_capacity(Some(CAPACITY));
    CAPACITY - fs.free_space(Path::new("/")).unwrap()
}

/// A store in `/db` with memtables of 4 KiB, whose background work waits to be stepped.
pub fn open_plain(fs: &SimFileSystem) -> tamis::Result<(Db, Arc<SteppedExecutor>)> {
    open_in_mode(fs, WalMode::Auto)
}

/// Like [`open_plain`], with a log that is written in `mode`.
pub fn open_in_mode(fs: &SimFileSystem, mode: WalMode) -> tamis::Result<(Db, Arc<SteppedExecutor>)> {
    let (options, executor) = stepped_options(fs);
    Ok((options.memtable_size(4096).wal_mode(mode).open("/db")?, executor))
}

/// Number of entries, none of which may be an error.
pub fn count_entries(mut entries: impl Iterator<Item = tamis::Result<(tamis::Value, tamis::Value)>>) -> usize {
    entries.try_fold(0, |count, entry| entry.map(|_| count + 1)).unwrap()
}

/// The simulated file system with a wrapper around each opened table, or other kind of file.
pub(crate) struct OpenedBy<W> {
    fs: SimFileSystem,
    extension: &'static str,
    wrap: W,
}

impl<W: Fn(Arc<dyn ReadableFile>) -> Arc<dyn ReadableFile>> OpenedBy<W> {
    pub(crate) fn new(fs: SimFileSystem, wrap: W) -> OpenedBy<W> {
        OpenedBy::of_kind("sst", fs, wrap)
    }

    pub(crate) fn of_kind(extension: &'static str, fs: SimFileSystem, wrap: W) -> OpenedBy<W> {
        OpenedBy { fs, extension, wrap }
    }
}

impl<W> fmt::Debug for OpenedBy<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedBy").finish_non_exhaustive()
    }
}

impl<W: Fn(Arc<dyn ReadableFile>) -> Arc<dyn ReadableFile> + Send + Sync> FileSystem for OpenedBy<W> {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        self.fs.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        let file = self.fs.open(path)?;
        if path.extension().is_none_or(|extension| extension != self.extension) {
            return Ok(file);
        }
        Ok((self.wrap)(file))
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

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        self.fs.is_locked(path)
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.fs.free_space(dir)
    }
}
