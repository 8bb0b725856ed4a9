//! How a caller's file comes into the store's directory.
//!
//! What a path names may be anything, and may be replaced at any time. Therefore a file is checked
//! under the name that it has in the store, after it got there; what is checked before saves work.

use std::path::Path;

use super::{IngestMode, unfit};
use crate::db::store::Store;
use crate::error::{IoContext, Result};
use crate::format::filename::FileKind;
use crate::format::header::IDENTITY_BIT;
use crate::sorted::table::stated_number;
use crate::tree::manifest;
use crate::vfs::{FileSystem, ReadableFile, WritableFile};

/// Bytes of a file that are copied at a time.
const COPY_LEN: usize = 1 << 20;

impl Store {
    /// Links or copies a file to the name of table `number`; returns whether it was copied. After
    /// an error there is no such name, or it is another file's.
    pub(super) fn take(&self, source: &Path, number: u64, mode: IngestMode) -> Result<bool> {
        self.check_lock()?;
        check_identity(self.fs(), source, source)?;
        if mode == IngestMode::Move && manifest::owns_name(self.fs(), source)? {
            return Err(unfit(source, "it is a file of a store, from which none can be moved: ingest it by copy"));
        }
        let path = FileKind::Table(number).path(self.dir());
        let is_linked = mode != IngestMode::Copy && self.link(source, &path)?;
        if !is_linked {
            self.copy(source, &path)?;
        }
        // Once more, of the file that the store has now: another one may have been put in its
        // place.
        check_identity(self.fs(), &path, source).inspect_err(|_| self.tables.remove_file(number))?;
        Ok(!is_linked)
    }

    /// Gives a file the name `path`; returns whether it could.
    fn link(&self, source: &Path, path: &Path) -> Result<bool> {
        if self.fs().hard_link(source, path).is_err() {
            return Ok(false);
        }
        // The program that wrote the file may not have synced it.
        if self.fs().sync_file(path).is_ok() {
            return Ok(true);
        }
        self.fs().remove(path).during("remove", path)?;
        Ok(false)
    }

    fn copy(&self, source: &Path, path: &Path) -> Result<()> {
        let from = self.fs().open(source).during("open", source)?;
        self.check_space(from.len().during("read", source)?)?;
        let to = self.fs().create(path).during("create", path)?;
        let copied = copy_content(&*from, source, &*to, path);
        if copied.is_err() {
            // Closed first: some systems remove no open file.
            drop(to);
            let _ = self.fs().remove(path);
        }
        copied
    }
}

/// Refuses a table that a store has written: it has the store's numbers. The file at `path` is
/// known to the caller as `source`.
fn check_identity(fs: &dyn FileSystem, path: &Path, source: &Path) -> Result<()> {
    match stated_number(fs, path)? {
        Some(number) if number & IDENTITY_BIT == 0 => {
            Err(unfit(source, "it is a table of a store, and none that SstWriter has written"))
        }
        _ => Ok(()),
    }
}

fn copy_content(from: &dyn ReadableFile, source: &Path, to: &dyn WritableFile, path: &Path) -> Result<()> {
    let (mut buffer, mut offset) = (vec![0; COPY_LEN], 0);
    loop {
        let read = from.read_at(&mut buffer, offset).during("read", source)?;
        if read == 0 {
            return to.sync().during("sync", path);
        }
        to.append(&buffer[..read]).during("write", path)?;
        to.begin_sync();
        offset += read as u64;
    }
}
