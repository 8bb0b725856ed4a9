//! [`Janitor`]: removes the files of tables that no version names and no reader holds any more.
//!
//! A table becomes obsolete when an edit drops it, and its file can go when the last view, cursor
//! or compaction lets go of it. That happens on any thread, under any lock, and also after the
//! store was closed, when the directory may hold another store. A destructor therefore only [hands
//! in](Janitor::hand_in) the number. Files are removed by the thread that has installed an edit, or
//! by a job of the executor: only between [`start`](Janitor::start) and
//! [`stop`](Janitor::stop), which a store calls while it holds its lock.
//!
//! A removal that fails is not repeated: opening the store removes every table that the manifest
//! does not name.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Graveyard;
use crate::exec::{Executor, Priority};
use crate::vfs::{FileLock, FileSystem};

/// One for each open store. Without [`start`](Janitor::start), as in a store opened read-only, it
/// removes nothing.
pub(crate) struct Janitor {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    graveyard: Arc<Graveyard>,
    /// Held while files are removed, so that `stop` waits for that. Taken before `list`.
    removing: Mutex<()>,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    /// Tables that nobody holds any more.
    numbers: Vec<u64>,
    /// There exactly while files may be removed.
    license: Option<License>,
    /// Whether a job has been queued and has not begun.
    queued: bool,
}

struct License {
    /// Runs the removal of what readers hand in.
    executor: Arc<dyn Executor>,
    lock: Arc<dyn FileLock>,
}

impl Janitor {
    pub(super) fn new(fs: Arc<dyn FileSystem>, dir: PathBuf, graveyard: Arc<Graveyard>) -> Janitor {
        Janitor { fs, dir, graveyard, removing: Mutex::default(), list: Mutex::default() }
    }

    /// Allows files to be removed until [`stop`](Janitor::stop), as long as the store's lock is in
    /// force.
    pub(crate) fn start(&self, executor: Arc<dyn Executor>, lock: Arc<dyn FileLock>) {
        self.list.lock().license = Some(License { executor, lock });
    }

    /// Removes what was handed in, and nothing from then on.
    pub(crate) fn stop(&self) {
        let removing = self.removing.lock();
        self.remove_listed();
        let license = self.list.lock().license.take();
        // Without the locks: an executor may wait for its threads when it is dropped.
        drop(removing);
        drop(license);
    }

    /// Takes the number of a table that nobody holds any more. Touches no file: the caller may hold
    /// any lock.
    pub(super) fn hand_in(self: &Arc<Self>, number: u64) {
        let mut list = self.list.lock();
        let Some(executor) = list.license.as_ref().map(|license| Arc::clone(&license.executor)) else { return };
        list.numbers.push(number);
        if std::mem::replace(&mut list.queued, true) {
            return;
        }
        drop(list);
        let janitor = Arc::clone(self);
        // With other small work, so that it does not wait for the end of a long compaction if there
        // are several threads. With one thread, each edit that the compaction installs removes what
        // was handed in.
        executor.spawn(Priority::Help, Box::new(move || janitor.remove([])));
    }

    /// Removes the files of these tables, which nobody holds any more, and of all that were handed
    /// in.
    pub(crate) fn remove(&self, numbers: impl IntoIterator<Item = u64>) {
        let _removing = self.removing.lock();
        self.list.lock().numbers.extend(numbers);
        self.remove_listed();
    }

    /// The caller holds `removing`.
    fn remove_listed(&self) {
        let mut list = self.list.lock();
        list.queued = false;
        let numbers = std::mem::take(&mut list.numbers);
        let lock = list.license.as_ref().map(|license| Arc::clone(&license.lock));
        drop(list);
        if numbers.is_empty() || lock.is_none_or(|lock| !lock.is_in_force()) {
            return;
        }
        for number in numbers {
            self.graveyard.remove_file(&*self.fs, &self.dir, number);
        }
    }
}
