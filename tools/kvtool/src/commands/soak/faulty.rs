//! [`FaultyFileSystem`]: the real file system, on which one call fails.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use tamis::vfs::{FileLock, FileSystem, OsFileSystem, ReadableFile, Window, WritableFile};

/// How a call fails. Reads never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum FaultKind {
    /// A call that changes something fails and does nothing.
    Call,
    /// From a call on, there is no space left, for some calls.
    Full,
    /// A sync fails. What it should have made durable is there, as long as there is power.
    Sync,
    /// An append writes a part of its bytes and fails.
    Short,
}

/// Calls for which a full disk stays full.
const FULL_CALLS: u64 = 20;

/// Counts the calls that a fault may hit, and hits those from `at` on.
#[derive(Debug)]
struct Plan {
    kind: FaultKind,
    at: u64,
    calls: AtomicU64,
}

impl Plan {
    /// Fails if this call, which `kinds` may hit, is the one.
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
    plan: Arc<Plan>,
}

impl FaultyFileSystem {
    /// The call number `at` of those that `kind` is about fails.
    pub(super) fn new(kind: FaultKind, at: u64) -> FaultyFileSystem {
        FaultyFileSystem { plan: Arc::new(Plan { kind, at, calls: AtomicU64::new(0) }) }
    }

    pub(super) fn was_hit(&self) -> bool {
        self.plan.was_hit()
    }
}

impl FileSystem for FaultyFileSystem {
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        self.plan.check(&[FaultKind::Call, FaultKind::Full])?;
        let file = OsFileSystem.create(path)?;
        Ok(Box::new(FaultyFile { file, plan: Arc::clone(&self.plan) }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        OsFileSystem.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.plan.check(&[FaultKind::Call])?;
        OsFileSystem.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.plan.check(&[FaultKind::Call])?;
        OsFileSystem.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        OsFileSystem.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        OsFileSystem.create_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.plan.check(&[FaultKind::Call, FaultKind::Sync])?;
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
    plan: Arc<Plan>,
}

impl WritableFile for FaultyFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let result = self.plan.check(&[FaultKind::Call, FaultKind::Full, FaultKind::Short]);
        if result.is_err() && self.plan.kind == FaultKind::Short {
            self.file.append(&bytes[..bytes.len() / 2])?;
        }
        result.and_then(|()| self.file.append(bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.plan.check(&[FaultKind::Call, FaultKind::Sync])?;
        self.file.sync()
    }

    fn begin_sync(&self) {
        self.file.begin_sync();
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.plan.check(&[FaultKind::Full])?;
        self.file.reserve(len)
    }

    fn prepare(&self, len: u64) -> io::Result<bool> {
        self.plan.check(&[FaultKind::Full])?;
        self.file.prepare(len)
    }

    /// Stores to mapped memory pass no call that could fail. They have their part in the rounds
    /// that end in a kill.
    fn window(&self) -> io::Result<Option<Box<dyn Window>>> {
        Ok(None)
    }
}
