//! [`Graveyard`]: dead tables, whose files may still be found although no version names them.
//!
//! An edit takes a table out of its version. Later the last reader releases it and the file is
//! unlinked. Later still a sync of the directory makes that durable. A crash in between leaves the
//! file behind, or brings it back. The manifest therefore lists dead tables. Every new table lists
//! them too, because `repair` may have to do without a manifest.
//!
//! ```text
//! bury (edit durable)  →  removed (file unlinked)  →  forget (directory synced)
//! ```

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use crate::format::filename::FileKind;
use crate::sync::Mutex;
use crate::vfs::FileSystem;

/// Numbers of dead tables. There are few: most files are unlinked at once, and every flush syncs
/// the directory.
#[derive(Debug, Default)]
pub struct Graveyard {
    /// For each dead table: whether its file has been unlinked.
    unlinked: Mutex<BTreeMap<u64, bool>>,
}

impl Graveyard {
    /// Notes that no version names table `number`, and that none ever will.
    pub fn bury(&self, number: u64) {
        self.unlinked.lock().entry(number).or_insert(false);
    }

    /// Unlinks the file of table `number`. If that fails, the next open of the store retries.
    pub fn remove_file(&self, fs: &dyn FileSystem, dir: &Path, number: u64) {
        match fs.remove(&FileKind::Table(number).path(dir)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {}
            _ => self.removed(number),
        }
    }

    /// Notes that the file of table `number` has been unlinked.
    fn removed(&self, number: u64) {
        self.unlinked.lock().insert(number, true);
    }

    /// All dead tables, ascending.
    pub fn numbers(&self) -> Vec<u64> {
        self.unlinked.lock().keys().copied().collect()
    }

    /// Tables whose unlinking becomes durable by a sync of the directory that begins after this
    /// call.
    pub fn unlinked(&self) -> Vec<u64> {
        self.unlinked.lock().iter().filter(|(_, unlinked)| **unlinked).map(|(number, _)| *number).collect()
    }

    /// Forgets tables that [`unlinked`](Graveyard::unlinked) returned before a successful sync of
    /// the directory.
    pub fn forget(&self, numbers: &[u64]) {
        let mut unlinked = self.unlinked.lock();
        numbers.iter().for_each(|number| _ = unlinked.remove(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::{Fault, FaultMode, SimFileSystem};

    #[test]
    fn a_buried_table_is_listed_before_its_file_is_removed() {
        let graveyard = Graveyard::default();
        graveyard.bury(7);
        assert_eq!((graveyard.numbers(), graveyard.unlinked()), (vec![7], vec![]));
    }

    #[test]
    fn a_table_counts_as_unlinked_once_its_file_is_gone() {
        let (fs, dir) = (SimFileSystem::new(), Path::new("/"));
        fs.create(&FileKind::Table(7).path(dir)).unwrap();
        let graveyard = Graveyard::default();
        graveyard.bury(7);
        fs.set_fault(Some(Fault { at: 1, mode: FaultMode::Io, sticky: false }));
        graveyard.remove_file(&fs, dir, 7);
        assert!(graveyard.unlinked().is_empty(), "the removal failed");
        // The first of these removes the file, the second finds none.
        for number in [7, 8] {
            graveyard.remove_file(&fs, dir, number);
        }
        assert_eq!(graveyard.unlinked(), [7, 8]);
        assert!(fs.file_len(FileKind::Table(7).path(dir)).is_err());
    }

    #[test]
    fn a_table_is_listed_until_its_unlinking_is_durable() {
        let graveyard = Graveyard::default();
        graveyard.bury(7);
        graveyard.bury(9);
        graveyard.removed(7);
        let unlinked = graveyard.unlinked();
        graveyard.removed(9);
        assert_eq!((unlinked.as_slice(), graveyard.numbers()), (&[7][..], vec![7, 9]));
        graveyard.forget(&unlinked);
        assert_eq!(graveyard.numbers(), [9], "it was unlinked while the directory was synced");
        graveyard.bury(9);
        assert_eq!(graveyard.unlinked(), [9], "it stays unlinked");
    }
}
