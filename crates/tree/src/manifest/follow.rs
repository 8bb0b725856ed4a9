//! [`FollowedManifest`]: a manifest that another process appends to, read as it grows.

use std::path::Path;

use super::{ManifestState, load_and_keep};
use crate::error::Result;
use crate::format::Malformed;
use crate::log::LogCursor;
use crate::manifest::VersionEdit;
use crate::sorted::operator::NamedOperator;
use crate::vfs::FileSystem;

/// A manifest, and the state that it describes as far as it has been read.
pub struct FollowedManifest {
    log: LogCursor,
    state: ManifestState,
}

impl FollowedManifest {
    /// Reads manifest `number`.
    pub fn load(fs: &dyn FileSystem, dir: &Path, number: u64) -> Result<FollowedManifest> {
        let (loaded, log) = load_and_keep(fs, dir, number)?;
        Ok(FollowedManifest { log: LogCursor::at_end_of(log), state: loaded.state })
    }

    pub fn number(&self) -> u64 {
        self.log.reader().number()
    }

    pub fn state(&self) -> &ManifestState {
        &self.state
    }

    /// Puts the merge operators that `named` finds in place of their names.
    pub fn find_operators(&mut self, named: impl Fn(&str) -> NamedOperator) {
        self.state.find_operators(named);
    }

    /// Applies the edits that were appended since, and returns them. After an error the manifest
    /// must be read anew. Fails if bytes behind the last edit stay as they are and turn out to be
    /// damaged.
    pub fn read_on(&mut self, fs: &dyn FileSystem, dir: &Path) -> Result<Vec<VersionEdit>> {
        let mut edits = Vec::new();
        let known = self.log.reader().header().map_or(0, |header| header.features);
        let end = self.log.read_on(&mut |record| {
            let edit = VersionEdit::decode(record.payload)?;
            if record.count != 1 || edit.features() & !known != 0 {
                return Err(Malformed("it is not one edit whose features the header requires").into());
            }
            self.state.apply(&edit)?;
            edits.push(edit);
            Ok(())
        })?;
        if self.log.is_unclear(&end)? {
            load_and_keep(fs, dir, self.number())?;
        }
        Ok(edits)
    }
}
