//! Stores that are open read-only, and how they follow the process that writes.
//!
//! `follow` reads the files; this makes what it has read visible. Every view of such a store has a
//! number of its own, its horizon, and reads see it up to that number: a view and its number become
//! visible at once.
//!
//! A snapshot of such a store keeps its view: compactions of the other process do not know of it.
//! Gets in a store that is open for writing pay nothing for this (`Store::reads_plainly`).

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::Follower;
use super::reader_stats::ReaderStats;
use crate::db::Db;
use crate::db::clock::Clock;
use crate::db::open::{Phases, environment_of, new_tables, thrifty};
use crate::db::sequence::Sequence;
use crate::db::shape::Shape;
use crate::db::shape::view::ReadView;
use crate::db::stats::counters::OpeningStats;
use crate::db::store::{Opened, Store};
use crate::db::write::Writer;
use crate::db::write::logs::LiveLogs;
use crate::error::{Error, IoContext, Result};
use crate::format::key::SeqNo;
use crate::options::Options;
use crate::sync::time;
use crate::tree::manifest;

/// How long reading is tried again while the store changes. On a loaded machine, a writer with
/// small memtables replaced files faster than a hundred attempts in a row read them.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How long an automatic refresh does, which another one follows.
const SHORT_PATIENCE: Duration = Duration::from_millis(100);

/// Reads on until what has been read is of one moment.
///
/// The writer may remove logs, tables and the manifest while they are read. Only damage fails two
/// attempts in the same way: an error counts when the next attempt repeats it.
fn advance(follower: &mut Follower, dir: &Path, patience: Duration, check_open: impl Fn() -> Result<()>) -> Result<()> {
    let (begin, mut last_failure) = (time::now(), String::new());
    while time::since(begin) < patience {
        check_open()?;
        match follower.advance() {
            Ok(true) => return Ok(()),
            Ok(false) => last_failure.clear(),
            Err(error) => {
                let failure = error.to_string();
                if last_failure == failure {
                    return Err(error);
                }
                last_failure = failure;
            }
        }
    }
    Err(std::io::Error::from(ErrorKind::ResourceBusy)).during("read a consistent state of", dir)
}

impl Store {
    /// Opens the store in `dir` read-only. It takes no lock: another process may write meanwhile.
    pub(crate) fn open_read_only(given: &Path, options: Options) -> Result<Arc<Store>> {
        options.validate()?;
        let environment = environment_of(&options, 1);
        let options = thrifty(options.fitted(&environment), given);
        let events = environment.delivery().connect(&options.listener);
        let fs = &*options.file_system;
        let mut phases = Phases::begin();
        if manifest::find(fs, given)?.is_none() {
            return Err(Error::NotFound(given.to_owned()));
        }
        let dir = fs.absolute(given).during("resolve", given)?;
        let tables = new_tables(&options, &environment, &dir, &events);
        let options = Options { file_system: tables.shared_fs(), ..options };
        let mut follower = Follower::new(dir.clone(), options.clone(), environment.clone(), Arc::clone(&tables));
        advance(&mut follower, &dir, PATIENCE, || Ok(()))?;
        let clock = Arc::new(Clock::new(options.clock.clone(), follower.expired_by()));
        let view = follower.view(None, &clock)?;
        let Some(state) = follower.state() else { return Err(Error::NotFound(dir)) };
        if follower.has_deadlines() {
            clock.note_deadlines();
        }
        let (operations, last_seqno) = (follower.operations(), follower.last());
        let logs = LiveLogs::found(Vec::new(), options.keep_log);
        let store = Arc::new(Store::new(Opened {
            sequence: Sequence::new(last_seqno, state.flushed_seqno, state.flushed_seqno),
            writer: Writer::new(None, logs, environment.reader_seat(options.memtable_size), &view),
            shape: Shape::new(view, tables.epoch(), state.next_file_number, None),
            environment,
            clock,
            lock: None,
            seed: state.hash_seed,
            follower: Some(follower),
            tables,
            options,
            opening: OpeningStats { logs: phases.next(), operations, ..OpeningStats::default() },
        }));
        store.verify_if_paranoid()?;
        store.plan_refresh();
        Ok(store)
    }

    /// Follows the process that writes. Returns the last number that reads see now.
    pub(super) fn refresh(&self) -> Result<SeqNo> {
        self.gate.check_open()?;
        if !self.gate.is_read_only() {
            return Err(Error::invalid("a store that is open for writing has nothing to follow"));
        }
        self.refreshed(PATIENCE, |follower| Ok(follower.last()))
    }

    /// Refreshes, and calls `then` before the next refresh can begin.
    pub(crate) fn refreshed<R>(&self, patience: Duration, then: impl FnOnce(&Follower) -> Result<R>) -> Result<R> {
        let mut follower = self.following.follower.lock();
        let Some(follower) = follower.as_mut() else { return Err(Error::Closed) };
        let refreshed = self.refresh_with(follower, patience);
        self.following.refreshes.lock().note(&refreshed);
        refreshed.and_then(|()| then(follower))
    }

    fn refresh_with(&self, follower: &mut Follower, patience: Duration) -> Result<()> {
        advance(follower, self.dir(), patience, || self.gate.check_open())?;
        if !follower.has_changed() {
            return Ok(());
        }
        self.clock.raise(follower.expired_by());
        if follower.has_deadlines() {
            self.clock.note_deadlines();
        }
        let view = follower.view(Some(&self.shape.view()), &self.clock)?;
        let last = follower.last();
        // Before the view: reads in a view see what is visible, up to its horizon.
        self.sequence.note_logged(last);
        self.sequence.publish(last);
        self.sequence.note_flushed(follower.state().map_or(0, |state| state.flushed_seqno));
        self.show(view);
        self.writer.wake_readers();
        Ok(())
    }

    /// Replaces the view. Counts what it no longer has.
    fn show(&self, view: ReadView) {
        let former = self.shape.view();
        let mut retired = self.report.counters().retired();
        let mut gone = Vec::new();
        for tree in former.trees.iter() {
            let kept = view.tree(tree.id).map(|tree| &tree.version);
            if kept.is_some_and(|version| Arc::ptr_eq(version, &tree.version)) {
                continue;
            }
            let staying = kept.into_iter().flat_map(|version| version.tables());
            let staying: HashSet<u64> = staying.map(|(_, table)| table.meta().number).collect();
            let tables = tree.version.tables().filter(|(_, table)| !staying.contains(&table.meta().number));
            let tables: Vec<_> = tables.map(|(level, table)| (level, Arc::clone(table))).collect();
            if kept.is_some() {
                for (level, table) in &tables {
                    retired.add(tree.id, u8::try_from(*level).unwrap_or(u8::MAX), table);
                }
            } else {
                let tables: Vec<_> = tables.iter().map(|(_, table)| Arc::clone(table)).collect();
                retired.drop_keyspace(tree.id, &tables, &tree.gaps.counters);
            }
            gone.extend(tables.into_iter().map(|(_, table)| table));
        }
        self.change_view(|current| *current = view);
        drop(retired);
        gone.iter().for_each(|table| self.report.counters().held().add_table(table));
    }

    /// Has the store refreshed after the time that the options say, and so on.
    fn plan_refresh(self: &Arc<Self>) {
        let Some(interval) = self.options.refresh_every else { return };
        self.do_later(interval, |store| {
            if store.gate.check_open().is_ok() {
                // Also after a panic.
                let _again = NextRefresh(store);
                // The statistics have the error, and the next time is another attempt.
                let _ = store.refreshed(SHORT_PATIENCE, |_| Ok(()));
            }
        });
    }

    /// The last number that reads see.
    pub(crate) fn visible(&self) -> SeqNo {
        match self.gate.is_read_only() {
            true => self.shape.with_view(|view, _| view.visible(&self.sequence)),
            false => self.sequence.visible(),
        }
    }

    /// How fresh the store is, and what it keeps; `None` if it is open for writing.
    pub(crate) fn reader_stats(&self) -> Option<ReaderStats> {
        if !self.gate.is_read_only() {
            return None;
        }
        let mut stats = ReaderStats::default();
        for tree in self.shape.view().trees.iter() {
            let ranges = tree.version.ranges().tables().iter().map(|ranges| ranges.meta().size);
            let tables = tree.version.tables().map(|(_, table)| table.meta().size);
            let values = tree.version.values().values().map(|file| file.size);
            for size in ranges.chain(tables).chain(values) {
                (stats.files, stats.bytes) = (stats.files + 1, stats.bytes + size);
            }
        }
        let refreshes = self.following.refreshes.lock();
        Some(ReaderStats {
            refreshes: refreshes.count,
            age: time::since(refreshes.last),
            error: refreshes.error.clone(),
            ..stats
        })
    }
}

/// Plans the next refresh when it is dropped.
struct NextRefresh<'a>(&'a Arc<Store>);

impl Drop for NextRefresh<'_> {
    fn drop(&mut self) {
        self.0.plan_refresh();
    }
}

impl Db {
    /// Shows what another process has written to the store since it was opened read-only or
    /// refreshed last: all that is in its tables and its log, synced or not. Returns the sequence
    /// number of the last write that reads see now.
    ///
    /// Reads go on meanwhile. Those that begin later see the store as of one moment during the
    /// call. Snapshots, iterators and cursors stay at their moment, and keep its files open. After
    /// an error the store is as it was; the next call tries again.
    ///
    /// Of keyspaces without a log it shows what is in tables; see
    /// [`KeyspaceOptions::wal`](crate::KeyspaceOptions::wal).
    ///
    /// The process that writes takes no notice: it does not wait, and what it removes stays on disk
    /// only as long as this process has it open. [`Options::refresh_every`] calls this regularly.
    ///
    /// Fails with [`Error::HistoryChanged`] if the store was replaced by another one or lost what
    /// was read from it, with [`Error::TooManyFiles`] if the process may open no more files, and
    /// with [`Error::InvalidArgument`] if the store is open for writing.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let path = dir.path().join("db");
    /// use tamis::Db;
    ///
    /// let writer = Db::open(&path)?; // perhaps in another process
    /// writer.put("apple", "1")?;
    /// let reader = Db::open_read_only(&path)?;
    /// let seqno = writer.put("apple", "2")?;
    /// assert_eq!(reader.get("apple")?.as_deref(), Some(&b"1"[..]));
    /// assert_eq!(reader.refresh()?, seqno);
    /// assert_eq!(reader.get("apple")?.as_deref(), Some(&b"2"[..]));
    /// # Ok(()) }
    /// ```
    pub fn refresh(&self) -> Result<SeqNo> {
        self.store().refresh()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::read::tree_of;
    use crate::vfs::MemoryFileSystem;

    #[test]
    fn a_view_keeps_its_range_deletes_while_others_are_read() {
        let options = Options::new().file_system(Arc::new(MemoryFileSystem::new()));
        let writer = options.clone().open("/db").unwrap();
        writer.put("a", "1").unwrap();
        writer.delete_range("a".."b").unwrap();
        let reader = options.open_read_only("/db").unwrap();
        let store = reader.store();
        // A thread has loaded the view and not used it yet.
        let view = store.shape.view();
        for _ in 0..3 {
            writer.delete_range("a".."c").unwrap();
            reader.refresh().unwrap();
        }
        let tree = tree_of(&view, 0, "default").unwrap();
        let visible = || view.visible(&store.sequence);
        assert_eq!(view.window(tree, b"a", None, visible), crate::format::key::Window::above(2, 2));
        assert!(view.covers(tree, None, visible).1.is_some_and(|covers| covers.cover(b"a") == 2));
        // Views that nobody has are forgotten.
        let views = || store.following.follower.lock().as_mut().unwrap().views_in_use();
        assert_eq!(views(), [2, 5]);
        drop(view);
        assert_eq!(views(), [5]);
    }
}
