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

use crate::exec::{Executor, Priority};
use crate::format::filename::FileKind;
use crate::vfs::FileSystem;

/// One for each open store. Without [`start`](Janitor::start), as in a store opened read-only, it
/// removes nothing.
pub(crate) struct Janitor {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    /// Held while files are removed, so that `stop` waits for that. Taken before `list`.
    removing: Mutex<()>,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    /// Tables that nobody holds any more.
    numbers: Vec<u64>,
    /// Runs the removal of what readers hand in. There is one exactly while files may be removed.
    executor: Option<Arc<dyn Executor>>,
    /// Whether a job has been queued and has not begun.
    queued: bool,
}

impl Janitor {
    pub(super) fn new(fs: Arc<dyn FileSystem>, dir: PathBuf) -> Janitor {
        Janitor { fs, dir, removing: Mutex::default(), list: Mutex::default() }
    }

    /// Allows files to be removed. The caller holds the store's lock until [`stop`](Janitor::stop)
    /// has returned.
    pub(crate) fn start(&self, executor: Arc<dyn Executor>) {
        self.list.lock().executor = Some(executor);
    }

    /// Removes what was handed in, and nothing from then on.
    pub(crate) fn stop(&self) {
        let removing = self.removing.lock();
        self.remove_listed();
        let executor = self.list.lock().executor.take();
        // Without the locks: an executor may wait for its threads when it is dropped.
        drop(removing);
        drop(executor);
    }

    /// Takes the number of a table that nobody holds any more. Touches no file: the caller may hold
    /// any lock.
    pub(super) fn hand_in(self: &Arc<Self>, number: u64) {
        let mut list = self.list.lock();
        let Some(executor) = list.executor.clone() else { return };
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
        let is_allowed = list.executor.is_some();
        drop(list);
        for number in numbers.into_iter().filter(|_| is_allowed) {
            let _ = self.fs.remove(&FileKind::Table(number).path(&self.dir));
        }
    }
}
