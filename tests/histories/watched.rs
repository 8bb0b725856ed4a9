//! A file system for a writer that is killed, at whose calls others may act.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;
use tamis::vfs::{FileLock, FileSystem, ReadableFile, SimFileSystem, Window, WritableFile};

/// What a thread is about to call: whether others may use the store meanwhile, because it holds no
/// lock.
pub(super) struct Call {
    pub(super) is_free: bool,
}

thread_local! {
    /// Of a thread beside which others act: it tells them of each call, and waits for its turn.
    static TURN: RefCell<Option<(Sender<Call>, Receiver<()>)>> = const { RefCell::new(None) };
}

/// Lets others act now, if the thread is one that does.
pub(super) fn give_turn(is_free: bool) {
    TURN.with_borrow(|turn| {
        if let Some((calls, go)) = turn
            && calls.send(Call { is_free }).is_ok()
        {
            go.recv().expect("the thread that acts has not panicked");
        }
    });
}

/// Runs `work` in a thread of its own, and `act` before each of its calls.
pub(super) fn beside<R: Send>(work: impl FnOnce() -> R + Send, mut act: impl FnMut(&Call)) -> R {
    let ((calls, called), (go, wait)) = (channel(), channel());
    std::thread::scope(|scope| {
        let is_quiet = super::QUIET.get();
        let worker = scope.spawn(move || {
            super::QUIET.set(is_quiet);
            TURN.set(Some((calls, wait)));
            let result = work();
            TURN.set(None);
            result
        });
        // Dropped by a panic of `act`, before the scope waits for the thread.
        let go = go;
        while let Ok(call) = called.recv() {
            act(&call);
            let _ = go.send(());
        }
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

const DEAD: u64 = u64::MAX;

/// A call that changes something: what it does to which file, and whether it has succeeded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    pub(super) what: &'static str,
    pub(super) path: PathBuf,
    pub(super) ok: bool,
}

impl Event {
    /// What is done, and to which sort of file.
    pub(super) fn kind(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        format!("{} {}", self.what, name.replace(|char: char| char.is_ascii_digit(), ""))
    }

    /// Whether it writes or syncs a log or a manifest, puts a manifest in force, or makes names
    /// durable, in the store of this directory.
    pub(super) fn makes_durable(&self, dir: &Path) -> bool {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let is_log = name.ends_with(".wal");
        let is_manifest = name.starts_with("MANIFEST") || name.starts_with("CURRENT");
        match self.what {
            "sync dir" => self.path == dir,
            _ if self.path.parent() != Some(dir) => false,
            "append" | "sync" => is_log || is_manifest,
            "create" | "rename" => is_manifest,
            _ => false,
        }
    }
}

/// From the change on with which the countdown ends, every change fails. A lock never keeps the
/// next writer out.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) fs: SimFileSystem,
    /// Changes that are left; 0 for any number.
    left: Arc<AtomicU64>,
    /// The calls of all processes so far.
    pub(super) events: Arc<Mutex<Vec<Event>>>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").finish_non_exhaustive()
    }
}

impl Watched {
    pub(super) fn new(fs: &SimFileSystem) -> Watched {
        Watched { fs: fs.clone(), left: Arc::default(), events: Arc::default() }
    }

    /// For the next process.
    pub(super) fn next(&self, fs: &SimFileSystem) -> Watched {
        Watched { events: Arc::clone(&self.events), ..Watched::new(fs) }
    }

    /// Has the writer killed at the `changes`-th change from now.
    pub(super) fn doom(&self, changes: u64) {
        if self.left.load(Ordering::Relaxed) == 0 {
            self.left.store(changes, Ordering::Relaxed);
        }
    }

    pub(super) fn kill(&self) {
        self.left.store(DEAD, Ordering::Relaxed);
    }

    /// It lives on, if it has not died yet.
    pub(super) fn spare(&self) {
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| (left != DEAD).then_some(0));
    }

    pub(super) fn is_dead(&self) -> bool {
        self.left.load(Ordering::Relaxed) == DEAD
    }

    /// Carries out a change, unless the writer is dead or dies of it.
    fn change<T>(&self, what: &'static str, path: &Path, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if !self.is_dead() {
            // Tables are written without a lock.
            let is_free = path.extension().is_some_and(|kind| kind == "sst" || kind == "val");
            give_turn(is_free && what != "remove");
        }
        let counted = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| match left {
            0 | DEAD => None,
            1 => Some(DEAD),
            left => Some(left - 1),
        });
        let result = match counted {
            Ok(1) | Err(DEAD) => Err(io::Error::other("killed")),
            _ => make(),
        };
        // The dead do nothing.
        if counted != Err(DEAD) {
            self.events.lock().push(Event { what, path: path.to_owned(), ok: result.is_ok() });
        }
        result
    }
}

#[derive(Debug)]
struct NoLock;

impl FileLock for NoLock {}

struct WatchedFile {
    file: Box<dyn WritableFile>,
    path: PathBuf,
    fs: Watched,
}

impl WritableFile for WatchedFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let was_dead = self.fs.is_dead();
        self.fs.change("append", &self.path, || self.file.append(bytes)).inspect_err(|_| {
            // The last change is made in part.
            if !was_dead && self.fs.is_dead() {
                let _ = self.file.append(&bytes[..bytes.len() * 2 / 3]);
            }
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.fs.change("sync", &self.path, || self.file.sync())
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.file.reserve(len)
    }

    fn prepare(&self, len: u64) -> io::Result<bool> {
        self.fs.change("prepare", &self.path, || self.file.prepare(len))
    }

    fn window(&self) -> io::Result<Option<Box<dyn Window>>> {
        let window = self.file.window()?;
        Ok(window.map(|window| {
            Box::new(WatchedWindow { window, path: self.path.clone(), fs: self.fs.clone() }) as Box<dyn Window>
        }))
    }
}

struct WatchedWindow {
    window: Box<dyn Window>,
    path: PathBuf,
    fs: Watched,
}

impl Window for WatchedWindow {
    fn append(&mut self, head: &[u8], body: &[u8]) -> bool {
        self.fs.change("store", &self.path, || Ok(self.window.append(head, body))).unwrap_or(false)
    }
}

impl FileSystem for Watched {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        let file = self.change("create", path, || self.fs.create(path))?;
        Ok(Box::new(WatchedFile { file, path: path.to_owned(), fs: self.clone() }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        self.fs.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change("rename", to, || self.fs.rename(from, to))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change("link", to, || self.fs.hard_link(from, to))
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.change("sync", path, || self.fs.sync_file(path))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change("remove", path, || self.fs.remove(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        self.change("create dir", dir, || self.fs.create_dir(dir))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.change("sync dir", dir, || self.fs.sync_dir(dir))
    }

    fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        Ok(Some(Box::new(NoLock)))
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.fs.free_space(dir)
    }
}
