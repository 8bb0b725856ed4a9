//! [`Store`]: what all handles of an open store share: its rooms, and the few operations that every
//! one of them needs. Module [`super::locks`] says in which order its locks are taken.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::clock::Clock;
use super::follow::{Follower, Following};
use super::gate::Gate;
use super::sequence::Sequence;
use super::shape::Shape;
use super::stats::counters::OpeningStats;
use super::stats::report::Report;
use super::work::Workers;
use super::write::Writer;
use crate::environment::Environment;
use crate::error::{Error, IoContext, Result};
use crate::exec::Executor;
use crate::format::filename::FileKind;
use crate::options::Options;
use crate::rate::RateLimiter;
use crate::report::delivery::Events;
use crate::report::event::Event;
use crate::sorted::table::TableContext;
use crate::sync::atomic::AtomicBool;
use crate::vfs::{FileLock, FileSystem};

pub(crate) struct Store {
    pub(super) options: Options,
    pub(super) environment: Environment,
    pub(super) tables: Arc<TableContext>,
    /// Hash seed of the filters.
    pub(super) seed: u64,
    pub(super) gate: Gate,
    pub(super) clock: Arc<Clock>,
    pub(super) sequence: Sequence,

    pub(super) shape: Shape,
    pub(super) writer: Writer,
    pub(super) workers: Workers,
    pub(super) following: Following,
    pub(super) report: Report,
    /// Whether point reads see what is visible and are not timed.
    pub(super) reads_plainly: bool,
    /// Whether a keyspace is being copied into the store: one at a time, since they go by names.
    pub(super) is_copying: AtomicBool,
}

impl Drop for Store {
    fn drop(&mut self) {
        // If opening or closing failed half-way, the lock file is released with this value; after
        // that nothing may remove files.
        self.tables.janitor().stop();
    }
}

/// The parts of a [`Store`] that opening determines.
pub(super) struct Opened {
    pub(super) options: Options,
    pub(super) environment: Environment,
    pub(super) tables: Arc<TableContext>,
    pub(super) seed: u64,
    pub(super) clock: Arc<Clock>,
    pub(super) sequence: Sequence,
    pub(super) shape: Shape,
    pub(super) writer: Writer,
    /// `None` if the store is opened read-only.
    pub(super) lock: Option<Arc<dyn FileLock>>,
    /// Of a store that is opened read-only.
    pub(super) follower: Option<Follower>,
    pub(super) opening: OpeningStats,
}

impl Store {
    pub(super) fn new(opened: Opened) -> Store {
        Store {
            reads_plainly: opened.follower.is_none() && opened.options.slow_operation.is_none(),
            gate: Gate::new(opened.tables.dir().to_owned(), opened.lock),
            clock: opened.clock,
            sequence: opened.sequence,
            shape: opened.shape,
            writer: opened.writer,
            workers: Workers::new(RateLimiter::new(opened.environment.rate())),
            following: Following::new(opened.follower),
            report: Report::new(opened.tables.events().clone(), opened.opening),
            seed: opened.seed,
            tables: opened.tables,
            options: opened.options,
            environment: opened.environment,
            is_copying: AtomicBool::default(),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        self.tables.dir()
    }

    pub(super) fn fs(&self) -> &dyn FileSystem {
        self.tables.fs()
    }

    pub(super) fn executor(&self) -> &Arc<dyn Executor> {
        self.environment.executor()
    }

    /// What the listener is told.
    pub(super) fn events(&self) -> &Events {
        self.tables.events()
    }

    /// Refuses all writes from now on because of `cause`; returns `cause`.
    pub(super) fn poison(&self, cause: Error) -> Error {
        if self.gate.poison(&cause) {
            self.events().send(|| Event::Poisoned { error: cause.clone() });
        }
        self.workers.calm();
        // Waiters check for poison when they are woken.
        self.workers.wake();
        // A reader of the change feed that has caught up looks for poison, too.
        self.writer.wake_readers();
        cause
    }

    /// Fails and poisons the store if its directory is no longer the locked one: it was removed,
    /// and another store may have been opened in its place. Called before files are created or
    /// removed.
    pub(super) fn check_lock(&self) -> Result<()> {
        if !self.gate.is_lock_in_force() {
            let gone = io::Error::new(io::ErrorKind::NotFound, "removed while the store was open");
            let gone = Err(gone).during("keep the lock on", &FileKind::Lock.path(self.dir()));
            return gone.map_err(|error| self.poison(error));
        }
        Ok(())
    }

    /// Makes the names of new tables durable. A failure poisons the store: a later success would
    /// not prove that these names survive.
    pub(super) fn sync_dir(&self) -> Result<()> {
        let graveyard = self.tables.graveyard();
        let unlinked = graveyard.unlinked();
        self.fs().sync_dir(self.dir()).during("sync", self.dir()).map_err(|error| self.poison(error))?;
        graveyard.forget(&unlinked);
        Ok(())
    }

    /// Size of level 0 at which it is compacted.
    pub(super) fn base_size(&self) -> u64 {
        self.options.memtable_size as u64 * crate::tree::compaction::picker::L0_TRIGGER as u64
    }
}
