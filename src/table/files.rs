//! [`FilePool`]: table files held open, within a limit.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::clock::Clock;
use crate::error::{IoContext, Result};
use crate::format::filename::FileKind;
use crate::vfs::{FileSystem, ReadableFile};

/// Open files by table number. Only reads from disk come here, so that one lock does. A reader keeps its file open while it reads,
/// also when the pool has let go of it.
pub(crate) struct FilePool {
    files: Mutex<Clock<u64, Arc<dyn ReadableFile>>>,
}

impl FilePool {
    pub(crate) fn new(max_open_files: usize) -> FilePool {
        FilePool { files: Mutex::new(Clock::new(max_open_files)) }
    }

    /// Files that the pool holds open.
    pub(crate) fn open_files(&self) -> usize {
        self.files.lock().used()
    }

    /// The file of table `number` in `dir`.
    pub(super) fn get(&self, fs: &dyn FileSystem, dir: &Path, number: u64) -> Result<Arc<dyn ReadableFile>> {
        if let Some(file) = self.files.lock().get(&number) {
            return Ok(Arc::clone(file));
        }
        // Opened without the lock; should two readers do so at once, the later file stays.
        let path = FileKind::Table(number).path(dir);
        let mut opened = fs.open(&path);
        if opened.as_ref().is_err_and(is_out_of_descriptors) {
            self.files.lock().retain(|_| false);
            opened = fs.open(&path);
        }
        let file = opened.during("open", &path)?;
        self.files.lock().insert(number, Arc::clone(&file), 1);
        Ok(file)
    }

    /// Lets go of the file of a table.
    pub(super) fn remove(&self, number: u64) {
        self.files.lock().remove(&number);
    }
}

/// Whether the process, or the system, has too many files open: other parts of the program may have taken what the limit allowed
/// the pool, and the pool can give its own back.
fn is_out_of_descriptors(error: &std::io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
