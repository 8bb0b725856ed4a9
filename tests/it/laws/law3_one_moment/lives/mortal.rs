//! A file system for a writer that is killed, with a call-back at each of its changes.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tamis::vfs::{FileLock, FileSystem, ReadableFile, SimFileSystem, Window, WritableFile};

/// Called before each change, with the file's path.
pub(super) type Hook = Box<dyn FnMut(&Path) + Send>;

const DEAD: u64 = u64::MAX;

/// From the change on with which the countdown ends, every change fails. A lock never keeps the
/// next writer out.
#[derive(Clone)]
pub(super) struct Mortal {
    pub(super) fs: SimFileSystem,
    /// Changes that are left; 0 for any number.
    left: Arc<AtomicU64>,
    /// Taken while it runs: what it changes itself calls nothing.
    hook: Arc<Mutex<Option<Hook>>>,
}

impl fmt::Debug for Mortal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mortal").finish_non_exhaustive()
    }
}

impl Mortal {
    pub(super) fn new(fs: &SimFileSystem) -> Mortal {
        Mortal { fs: fs.clone(), left: Arc::default(), hook: Arc::default() }
    }

    pub(super) fn set_hook(&self, hook: Option<Hook>) {
        *self.hook.lock() = hook;
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

    pub(super) fn is_dead(&self) -> bool {
        self.left.load(Ordering::Relaxed) == DEAD
    }

    /// Fails if the writer is dead.
    fn live(&self, path: &Path) -> io::Result<()> {
        if !self.is_dead() {
            let hook = self.hook.lock().take();
            if let Some(mut hook) = hook {
                hook(path);
                self.hook.lock().get_or_insert(hook);
            }
        }
        let dead = || Err(io::Error::other("killed"));
        let counted = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| match left {
            0 | DEAD => None,
            1 => Some(DEAD),
            left => Some(left - 1),
        });
        match counted {
            Ok(1) => dead(),
            Ok(_) => Ok(()),
            Err(left) if left == DEAD => dead(),
            Err(_) => Ok(()),
        }
    }
}

#[derive(Debug)]
struct NoLock;

impl FileLock for NoLock {}

struct MortalFile {
    file: Box<dyn WritableFile>,
    path: PathBuf,
    fs: Mortal,
}

impl WritableFile for MortalFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let was_dead = self.fs.is_dead();
        self.fs.live(&self.path).inspect_err(|_| {
            // The last change is made in part.
            if !was_dead {
                let _ = self.file.append(&bytes[..bytes.len() * 2 / 3]);
            }
        })?;
        self.file.append(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.fs.live(&self.path)?;
        self.file.sync()
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.fs.live(&self.path)?;
        self.file.reserve(len)
    }

    fn prepare(&self, len: u64) -> io::Result<bool> {
        self.fs.live(&self.path)?;
        self.file.prepare(len)
    }

    fn window(&self) -> io::Result<Option<Box<dyn Window>>> {
        let window = self.file.window()?;
        Ok(window.map(|window| {
            Box::new(MortalWindow { window, path: self.path.clone(), fs: self.fs.clone() }) as Box<dyn Window>
        }))
    }
}

struct MortalWindow {
    window: Box<dyn Window>,
    path: PathBuf,
    fs: Mortal,
}

impl Window for MortalWindow {
    fn append(&mut self, head: &[u8], body: &[u8]) -> bool {
        self.fs.live(&self.path).is_ok() && self.window.append(head, body)
    }
}

impl FileSystem for Mortal {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        self.live(path)?;
        Ok(Box::new(MortalFile { file: self.fs.create(path)?, path: path.to_owned(), fs: self.clone() }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        self.fs.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.live(to)?;
        self.fs.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.live(to)?;
        self.fs.hard_link(from, to)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.live(path)?;
        self.fs.sync_file(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.live(path)?;
        self.fs.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        self.live(dir)?;
        self.fs.create_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.live(dir)?;
        self.fs.sync_dir(dir)
    }

    fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        Ok(Some(Box::new(NoLock)))
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.fs.free_space(dir)
    }
}
