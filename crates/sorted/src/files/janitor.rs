//! [`Janitor`]: removes the files of tables and values that no version names and no reader holds
//! any more.
//!
//! A table becomes obsolete when an edit drops it. Its file can be removed when the last view,
//! cursor or compaction releases it. That can happen on any thread, under any lock, and even
//! after the store was closed, when the directory may hold another store. A destructor therefore
//! only [hands in](Janitor::hand_in) the file. Files are removed by the thread that
//! installed an edit, or by a job of the executor. Both remove files only between
//! [`start`](Janitor::start) and [`stop`](Janitor::stop), which a store calls while it holds its
//! lock.
//!
//! A failed removal is not retried: the next open of the store removes every table that the
//! manifest does not name.

use std::path::PathBuf;
use std::sync::Arc;

use super::Graveyard;
use crate::exec::{Executor, Priority};
use crate::format::filename::FileKind;
use crate::sync::Mutex;
use crate::vfs::{FileLock, FileSystem};

/// One per open store. Without [`start`](Janitor::start), as in a store opened read-only, it
/// removes nothing.
pub struct Janitor {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    graveyard: Arc<Graveyard>,
    /// Held while files are removed; `stop` waits for it. Taken before `list`.
    removing: Mutex<()>,
    list: Mutex<FileList>,
}

#[derive(Default)]
struct FileList {
    /// Tables and value files that no reader holds any more.
    files: Vec<FileKind>,
    /// `Some` exactly while files may be removed.
    license: Option<License>,
    /// Whether a job is queued and has not begun.
    queued: bool,
}

struct License {
    /// Runs the removal of tables that readers hand in.
    executor: Arc<dyn Executor>,
    lock: Arc<dyn FileLock>,
}

impl Janitor {
    pub fn new(fs: Arc<dyn FileSystem>, dir: PathBuf, graveyard: Arc<Graveyard>) -> Janitor {
        Janitor { fs, dir, graveyard, removing: Mutex::default(), list: Mutex::default() }
    }

    /// Allows files to be removed until [`stop`](Janitor::stop), as long as the store's lock is in
    /// force.
    pub fn start(&self, executor: Arc<dyn Executor>, lock: Arc<dyn FileLock>) {
        self.list.lock().license = Some(License { executor, lock });
    }

    /// Removes the files of all tables handed in, and none from then on.
    pub fn stop(&self) {
        let removing = self.removing.lock();
        self.remove_listed();
        let license = self.list.lock().license.take();
        // Dropped without the locks: dropping an executor may wait for its threads.
        drop(removing);
        drop(license);
    }

    /// Takes a file that no reader holds any more. Does no I/O: the caller may hold
    /// any lock.
    pub fn hand_in(self: &Arc<Self>, file: FileKind) {
        let mut list = self.list.lock();
        let Some(executor) = list.license.as_ref().map(|license| Arc::clone(&license.executor)) else { return };
        list.files.push(file);
        if std::mem::replace(&mut list.queued, true) {
            return;
        }
        drop(list);
        let janitor = Arc::clone(self);
        executor.spawn(Priority::Medium, Box::new(move || janitor.remove([])));
    }

    /// Removes these files, which no reader holds any more, and all that have been handed in.
    pub fn remove(&self, files: impl IntoIterator<Item = FileKind>) {
        let _removing = self.removing.lock();
        self.list.lock().files.extend(files);
        self.remove_listed();
    }

    /// The caller holds `removing`.
    fn remove_listed(&self) {
        let mut list = self.list.lock();
        list.queued = false;
        let files = std::mem::take(&mut list.files);
        let lock = list.license.as_ref().map(|license| Arc::clone(&license.lock));
        drop(list);
        if files.is_empty() || lock.is_none_or(|lock| !lock.is_in_force()) {
            return;
        }
        for file in files {
            match file {
                FileKind::Table(number) => self.graveyard.remove_file(&*self.fs, &self.dir, number),
                _ => _ = self.fs.remove(&file.path(&self.dir)),
            }
        }
    }
}
