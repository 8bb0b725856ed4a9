//! A file system over the one in memory that lists the mutating calls, and lets a test interfere.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tamis::vfs::{FileLock, FileSystem, ReadableFile, SimFileSystem, Window, WritableFile};

/// One mutating call on a file or directory, and whether it succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    pub call: TracedCall,
    /// File name; for a rename the new one.
    pub name: String,
    pub ok: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracedCall {
    Create,
    Append,
    BeginSync,
    Sync,
    Rename,
    Remove,
    SyncDir,
}

/// Clones share the list.
#[derive(Clone)]
pub struct Trace {
    fs: SimFileSystem,
    events: Arc<Mutex<Vec<TraceEvent>>>,
    hook: Arc<CallHook>,
}

/// Called before each call, with the file's name: it may wait, fail the call, or panic.
type CallHook = dyn Fn(TracedCall, &str) -> io::Result<()> + Send + Sync;

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("fs", &self.fs).finish_non_exhaustive()
    }
}

impl Trace {
    pub fn new(fs: &SimFileSystem) -> Trace {
        Trace::with_hook(fs, |_, _| Ok(()))
    }

    pub fn with_hook(
        fs: &SimFileSystem,
        hook: impl Fn(TracedCall, &str) -> io::Result<()> + Send + Sync + 'static,
    ) -> Trace {
        Trace { fs: fs.clone(), events: Arc::default(), hook: Arc::new(hook) }
    }

    pub fn events(&self) -> Vec<TraceEvent> {
        self.events.lock().unwrap().clone()
    }

    fn note<T>(&self, call: TracedCall, path: &Path, carry_out: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let result = (self.hook)(call, &name).and_then(|()| carry_out());
        self.events.lock().unwrap().push(TraceEvent { call, name, ok: result.is_ok() });
        result
    }
}

impl FileSystem for Trace {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        let file = self.note(TracedCall::Create, path, || self.fs.create(path))?;
        Ok(Box::new(TracedFile { file, path: path.to_owned(), trace: self.clone() }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        self.fs.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note(TracedCall::Rename, to, || self.fs.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.note(TracedCall::Remove, path, || self.fs.remove(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        self.fs.create_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.note(TracedCall::SyncDir, dir, || self.fs.sync_dir(dir))
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

struct TracedFile {
    file: Box<dyn WritableFile>,
    path: PathBuf,
    trace: Trace,
}

impl WritableFile for TracedFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.trace.note(TracedCall::Append, &self.path, || self.file.append(bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.trace.note(TracedCall::Sync, &self.path, || self.file.sync())
    }

    fn begin_sync(&self) {
        let _ = self.trace.note(TracedCall::BeginSync, &self.path, || Ok(()));
        self.file.begin_sync();
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.file.reserve(len)
    }

    fn prepare(&self, len: u64) -> io::Result<bool> {
        self.file.prepare(len)
    }

    /// Stores to memory are no calls.
    fn window(&self) -> io::Result<Option<Box<dyn Window>>> {
        self.file.window()
    }
}
