//! The files of a store that is repaired.

use std::collections::BTreeSet;
use std::path::Path;

use super::GREATEST_COUNTED;
use crate::format::filename::FileKind;
use crate::report::progress::{ProgressListener, ProgressMeter};
use crate::vfs::FileSystem;

/// The files of a store's directory, ordered by kind and number.
pub(super) struct Files {
    pub(super) all: Vec<FileKind>,
    numbers: BTreeSet<u64>,
    /// Counts the bytes of the tables that have been checked.
    pub(super) meter: ProgressMeter,
}

impl Files {
    pub(super) fn new(all: Vec<FileKind>) -> Files {
        let numbers = all.iter().filter_map(|kind| kind.number()).collect();
        Files { all, numbers, meter: ProgressMeter::default() }
    }

    /// Has `listener` told which part of the tables has been checked. A file without a length will
    /// be found damaged.
    pub(super) fn measured(self, fs: &dyn FileSystem, dir: &Path, listener: &ProgressListener) -> Files {
        if !listener.is_set() {
            return self;
        }
        let size = |number| fs.open(&FileKind::Table(number).path(dir)).and_then(|file| file.len()).unwrap_or(0);
        let total = self.tables().into_iter().map(size).sum();
        Files { meter: listener.meter(total), ..self }
    }

    /// Whether a file of any kind has that number.
    pub(super) fn has_number(&self, number: u64) -> bool {
        self.numbers.contains(&number)
    }

    fn numbers_of(&self, of: impl Fn(FileKind) -> Option<u64>) -> Vec<u64> {
        self.all.iter().filter_map(|&kind| of(kind)).collect()
    }

    pub(super) fn manifests(&self) -> Vec<u64> {
        self.numbers_of(|kind| if let FileKind::Manifest(number) = kind { Some(number) } else { None })
    }

    pub(super) fn logs(&self) -> Vec<u64> {
        self.numbers_of(|kind| if let FileKind::Wal(number) = kind { Some(number) } else { None })
    }

    pub(super) fn tables(&self) -> Vec<u64> {
        self.numbers_of(|kind| if let FileKind::Table(number) = kind { Some(number) } else { None })
    }

    pub(super) fn values(&self) -> Vec<u64> {
        self.numbers_of(|kind| if let FileKind::Values(number) = kind { Some(number) } else { None })
    }

    /// The greatest number in a file name, up to [`GREATEST_COUNTED`].
    pub(super) fn greatest(&self) -> u64 {
        self.numbers.range(..=GREATEST_COUNTED).next_back().copied().unwrap_or(0)
    }
}
