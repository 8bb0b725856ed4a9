//! [`FaultyFileSystem`]: the real file system with one injected fault.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use tamis::vfs::{FileLock, FileSystem, OsFileSystem, ReadableFile, Window, WritableFile};

/// How a call fails. Reads never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum FaultKind {
    /// A call that changes files fails without effect.
    Call,
    /// The disk is full for [`FULL_CALLS`] calls.
    Full,
    /// A sync fails. The data stay in the system's cache, so they survive unless power fails.
    Sync,
    /// An append writes part of its bytes and fails.
    Short,
}

/// Number of calls for which the disk stays full.
const FULL_CALLS: u64 = 20;

/// Counts the calls that the fault may hit. It hits call `at`; a full disk also hits the calls
/// after it.
#[derive(Debug)]
struct InjectedFault {
    kind: FaultKind,
    at: u64,
    calls: AtomicU64,
}

impl InjectedFault {
    /// Fails if the fault hits this call, which only faults of `kinds` may hit.
    fn check(&self, kinds: &[FaultKind]) -> io::Result<()> {
        if !kinds.contains(&self.kind) {
            return Ok(());
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let hit = match self.kind {
            FaultKind::Full => (self.at..self.at + FULL_CALLS).contains(&call),
            _ => call == self.at,
        };
        match (hit, self.kind) {
            (false, _) => Ok(()),
            (true, FaultKind::Full) => Err(io::ErrorKind::StorageFull.into()),
            (true, _) => Err(io::Error::other("injected fault")),
        }
    }

    fn was_hit(&self) -> bool {
        self.calls.load(Ordering::Relaxed) >= self.at
    }
}

#[derive(Clone, Debug)]
pub(super) struct FaultyFileSystem {
    fault: Arc<InjectedFault>,
}

impl FaultyFileSystem {
    /// Call number `at` fails, counted among the calls that a fault of `kind` may hit.
    pub(super) fn new(kind: FaultKind, at: u64) -> FaultyFileSystem {
        FaultyFileSystem { fault: Arc::new(InjectedFault { kind, at, calls: AtomicU64::new(0) }) }
    }

    pub(super) fn was_hit(&self) -> bool {
        self.fault.was_hit()
    }
}

impl FileSystem for FaultyFileSystem {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        self.fault.check(&[FaultKind::Call, FaultKind::Full])?;
        let file = OsFileSystem.create(path)?;
        Ok(Box::new(FaultyFile { file, fault: Arc::clone(&self.fault) }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        OsFileSystem.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fault.check(&[FaultKind::Call])?;
        OsFileSystem.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.fault.check(&[FaultKind::Call])?;
        OsFileSystem.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        OsFileSystem.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        OsFileSystem.create_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.fault.check(&[FaultKind::Call, FaultKind::Sync])?;
        OsFileSystem.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        OsFileSystem.lock(path)
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        OsFileSystem.free_space(dir)
    }
}

struct FaultyFile {
    file: Box<dyn WritableFile>,
    fault: Arc<InjectedFault>,
}

impl WritableFile for FaultyFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let result = self.fault.check(&[FaultKind::Call, FaultKind::Full, FaultKind::Short]);
        if result.is_err() && self.fault.kind == FaultKind::Short {
            self.file.append(&bytes[..bytes.len() / 2])?;
        }
        result.and_then(|()| self.file.append(bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.fault.check(&[FaultKind::Call, FaultKind::Sync])?;
        self.file.sync()
    }

    fn begin_sync(&self) {
        self.file.begin_sync();
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.fault.check(&[FaultKind::Full])?;
        self.file.reserve(len)
    }

    fn prepare(&self, len: u64) -> io::Result<bool> {
        self.fault.check(&[FaultKind::Full])?;
        self.file.prepare(len)
    }

    /// No window: stores to mapped memory make no call that could fail. Rounds that end in a kill
    /// test them.
    fn window(&self) -> io::Result<Option<Box<dyn Window>>> {
        Ok(None)
    }
}
