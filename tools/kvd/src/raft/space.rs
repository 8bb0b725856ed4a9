//! [`Space`]: what a node does when its disk is nearly full.
//!
//! Below a reserve, the node is *low*: as a leader it hands its leads over to nodes with space, and
//! takes no writes that grow. It takes none either while a majority of the voters is low. Reads and
//! deletes go on, for which the reserve is there, and the log keeps no more than it must. Below a
//! quarter of the reserve, a follower takes no entries that grow: it falls behind, and the others go
//! on. With space again, it catches up. The reserve above that quarter is for entries that were
//! under way when the leader became low: without it, they could keep deletes behind them from all.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use openraft::EntryPayload;
use tamis::vfs::{FileSystem, OsFileSystem};
use tokio::time::sleep;

use super::cluster::Cluster;
use super::group::Group;
use super::library::Entry;
use crate::error::{Error, Result};
use crate::machine::Request;
use crate::replica::NodeId;

/// Between two looks at the disk.
const ROUND: Duration = Duration::from_millis(250);

/// Tells how many bytes a disk has free.
#[derive(Clone)]
pub struct FreeSpace(Arc<dyn Fn(&Path) -> io::Result<u64> + Send + Sync>);

impl FreeSpace {
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

/// How much space a node's disk has, by the last look.
#[derive(Debug)]
pub(super) struct Space {
    reserve: u64,
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

    /// Fails if this node has no space for what other nodes send.
    fn check(&self) -> Result<()> {
        let free = self.free.load(Ordering::Relaxed);
        match free < self.reserve / 4 {
            true => Err(Error::Config(format!("this node has no space: {free} bytes are free on its disk"))),
            false => Ok(()),
        }
    }

    /// Fails if this node has no space for entries that another node sends.
    pub(super) fn check_entries(&self, entries: &[Entry]) -> Result<()> {
        let grows = |entry: &Entry| match &entry.payload {
            EntryPayload::Normal(proposal) => {
                proposal.entry().is_ok_and(|entry| entry.requests.iter().any(Request::grows))
            }
            EntryPayload::Blank | EntryPayload::Membership(_) => false,
        };
        if entries.iter().any(grows) { self.check() } else { Ok(()) }
    }

    /// Fails if this node has no space for a snapshot.
    pub(super) fn check_snapshot(&self) -> Result<()> {
        self.check()
    }

    /// Notes how much is free. Returns whether the node has become low, or is no more.
    fn note(&self, free: u64) -> bool {
        self.free.store(free, Ordering::Relaxed);
        // Not to and fro with each file that comes and goes.
        let enough = if self.is_low() { self.reserve + self.reserve / 8 } else { self.reserve };
        let is_low = free < enough;
        self.is_low.swap(is_low, Ordering::Relaxed) != is_low
    }
}

impl Cluster {
    /// Looks at the disk, for ever.
    pub(super) async fn look_at_space(self: Arc<Self>) {
        let mut failed = false;
        loop {
            match super::blocking(|| (self.settings.free_space.0)(&self.settings.dir)) {
                Ok(free) => self.note_space(free),
                Err(error) if !failed => {
                    failed = true;
                    tracing::warn!(%error, "cannot tell how much space the disk has");
                }
                Err(_) => {}
            }
            for (_, group) in self.member_groups() {
                let has_space = !self.space.is_low() && self.others_have_space(&group);
                group.has_space.store(has_space, Ordering::Relaxed);
            }
            sleep(ROUND).await;
        }
    }

    fn note_space(&self, free: u64) {
        if self.space.note(free) {
            let reserve = self.space.reserve;
            match self.space.is_low() {
                true => tracing::warn!(free, reserve, "the disk is nearly full: writes that grow are refused"),
                false => tracing::info!(free, reserve, "the disk has space again"),
            }
        }
    }

    /// Whether a majority of a group's voters has space. Who does not answer counts as if it had.
    fn others_have_space(&self, group: &Group) -> bool {
        let voters = group.voters();
        let low = voters.iter().filter(|voter| self.is_low(**voter)).count();
        2 * (voters.len() - low) > voters.len()
    }

    /// Whether a node's disk is nearly full, as far as this one knows.
    pub(super) fn is_low(&self, node: NodeId) -> bool {
        if node == self.settings.id { self.space.is_low() } else { self.others.is_low(node) }
    }

    /// Whether the leads of this node should go to others, some of which have space.
    pub(super) fn should_leave_for_space(&self, group: &Group) -> bool {
        self.space.is_low() && group.voters().iter().any(|voter| !self.is_low(*voter))
    }
}
