//! [`Space`]: what a node does when its disk is nearly full.
//!
//! Below a reserve, the node is *low*: as a leader it hands its leads over to nodes with space, and
//! takes no writes that grow. It takes none either while a majority of the voters is low. Reads and
//! deletes go on, for which the reserve is there, and the log keeps no more than it must. A low
//! node takes no snapshot. Below a quarter of the reserve, a follower takes no entries that grow:
//! it falls behind, the others go on. With space again, it catches up. The reserve above that
//! quarter is for entries that were in the log when the leader became low: without it, they could
//! keep deletes behind them from all. What was only queued by then is refused.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use openraft::EntryPayload;
use rustix::fs::statvfs;
use tamis::vfs::{FileSystem, OsFileSystem};

use super::library::Entry;
use crate::error::{Error, Result};
use crate::machine::Request;

type Measure = dyn Fn(&Path) -> io::Result<u64> + Send + Sync;

/// Tells how many bytes a disk has free.
#[derive(Clone)]
pub struct FreeSpace(Arc<Measure>);

impl FreeSpace {
    /// How many bytes the disk of `dir` has free.
    pub(super) fn of(&self, dir: &Path) -> io::Result<u64> {
        (self.0)(dir)
    }

    /// By a function of a directory.
    pub fn new(measure: impl Fn(&Path) -> io::Result<u64> + Send + Sync + 'static) -> FreeSpace {
        FreeSpace(Arc::new(measure))
    }
}

/// As the operating system says.
impl Default for FreeSpace {
    fn default() -> FreeSpace {
        FreeSpace::new(|dir| OsFileSystem.free_space(dir))
    }
}

impl fmt::Debug for FreeSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FreeSpace")
    }
}

/// Bytes that stay free on the disk of a directory, unless it is said how many: fewer on a small
/// disk.
pub fn default_reserve(dir: &Path) -> u64 {
    const MOST: u64 = 256 << 20;
    // It may be about to be made.
    let disk =
        dir.ancestors().find_map(|dir| statvfs(if dir.as_os_str().is_empty() { Path::new(".") } else { dir }).ok());
    disk.map_or(MOST, |disk| MOST.min(disk.f_blocks.saturating_mul(disk.f_frsize) / 10))
}

/// How much space a node's disk has, by the last look.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) reserve: u64,
    free: AtomicU64,
    is_low: AtomicBool,
}

impl Space {
    /// `reserve`: with fewer bytes free, the node is low.
    pub(super) fn new(reserve: u64) -> Space {
        Space { reserve, free: AtomicU64::new(u64::MAX), is_low: AtomicBool::new(false) }
    }

    /// Bytes that are free, if that is known.
    pub(super) fn free(&self) -> Option<u64> {
        Some(self.free.load(Ordering::Relaxed)).filter(|free| *free != u64::MAX)
    }

    /// Whether less than the reserve is left.
    pub(super) fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed)
    }

    /// Fails if this node has no space for entries that another node sends.
    pub(super) fn check_entries(&self, entries: &[Entry]) -> Result<()> {
        let grows = |entry: &Entry| match &entry.payload {
            EntryPayload::Normal(proposal) => {
                proposal.entry().is_ok_and(|entry| entry.requests.iter().any(Request::grows))
            }
            EntryPayload::Blank | EntryPayload::Membership(_) => false,
        };
        let is_full = self.free.load(Ordering::Relaxed) < self.reserve / 4;
        if is_full && entries.iter().any(grows) { Err(self.refusal()) } else { Ok(()) }
    }

    /// Fails if this node has no space for another piece of a snapshot: all of the reserve stays
    /// for entries.
    pub(super) fn check_snapshot(&self) -> Result<()> {
        if self.is_low() { Err(self.refusal()) } else { Ok(()) }
    }

    fn refusal(&self) -> Error {
        let free = self.free.load(Ordering::Relaxed);
        Error::Config(format!("this node has no space: {free} bytes are free on its disk"))
    }

    /// Notes how much is free. Returns whether the node has become low, or is no more.
    pub(super) fn note(&self, free: u64) -> bool {
        self.free.store(free, Ordering::Relaxed);
        // Not to and fro with each file that comes and goes.
        let enough = if self.is_low() { self.reserve + self.reserve / 8 } else { self.reserve };
        let is_low = free < enough;
        self.is_low.swap(is_low, Ordering::Relaxed) != is_low
    }
}
