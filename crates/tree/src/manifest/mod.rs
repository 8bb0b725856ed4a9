//! The manifest: a log of version edits that records which files and keyspaces belong to a store.
//! `CURRENT` names the manifest in force.
//!
//! - A manifest stands alone: its first edit states the whole version. It is put in force only
//!   after that edit is durable.
//! - Every edit is durable before [`ManifestWriter::append`] returns. Only then may its effect be
//!   used and obsolete files be removed.
//! - A manifest found on opening is never appended to: the first edit after opening begins a new
//!   one. Until then the old manifest stays in force if it states that it is durable.

use std::io;
use std::path::Path;

use crate::error::{Error, IoContext, Result};
use crate::format::Malformed;
use crate::format::checksum::crc;
use crate::format::filename::FileKind;
use crate::format::header::{FILE_HEADER_LEN, FileHeader, Magic};
use crate::log::reader::LogReader;
use crate::log::{LogWriter, NewRecord, replay};
use crate::vfs::FileSystem;

mod branch;
mod current;
mod definition;
mod edit;
mod follow;
mod ingested;
pub mod moves;
mod place;
mod salvage;
mod state;
mod table_fields;
mod tag;
mod unfinished;

pub use branch::Branch;
pub use current::{begins_as_ours as begins_as_current, read as read_current};
pub use definition::{MAX_NAME_LEN, decode_definition, encode_definition};
pub use edit::{LEVEL_COUNT, RANGE_LEVEL, VersionEdit};
pub use follow::FollowedManifest;
pub use ingested::{ingested_tables, missing_tables, put_ingest, stated_tables};
pub use place::{LOST_AND_FOUND, find, owns_name, refuse_partial};
pub use salvage::salvage;
pub use state::{DEFAULT_KEYSPACE, KeyspaceState, MAX_KEYSPACES, ManifestState};
pub use unfinished::UnfinishedTask;

/// Ordinal of the first edit of a manifest. Part of the format.
const FIRST_EDIT: u64 = 1;

/// Writes one manifest, from its creation on.
pub struct ManifestWriter {
    log: LogWriter,
    /// What the header says that readers need.
    features: u32,
}

impl ManifestWriter {
    /// Creates manifest `number`, whose first edit states `state`, and puts it in force.
    ///
    /// After an error it is unknown which manifest is in force: reopen the store before writing to
    /// any.
    pub fn create(fs: &dyn FileSystem, dir: &Path, number: u64, state: &ManifestState) -> Result<ManifestWriter> {
        let path = FileKind::Manifest(number).path(dir);
        let edit = state.snapshot_edit();
        let features = edit.features();
        let header = FileHeader { number, features, first: FIRST_EDIT, ..FileHeader::default() };
        let mut writer = ManifestWriter { log: LogWriter::create(fs, &path, Magic::Manifest, header)?, features };
        writer.append_durably(&edit)?;
        fs.sync_dir(dir).during("sync", dir)?;
        current::switch(fs, dir, number)?;
        // Only now: the marker states that the manifest is durably in force.
        writer.mark()?;
        Ok(writer)
    }

    /// Appends an edit and makes it durable. After an error the manifest must not be appended to
    /// again.
    pub fn append(&mut self, edit: &VersionEdit) -> Result<()> {
        self.append_durably(edit)?;
        self.mark()
    }

    fn append_durably(&mut self, edit: &VersionEdit) -> Result<()> {
        debug_assert!(self.admits(edit));
        let payload = edit.encode();
        let record = NewRecord { payload: &payload, payload_crc: crc(&payload), count: 1 };
        let durable = self.log.next() - 1;
        self.log.append([record], durable)?;
        self.log.sync()
    }

    /// States that all edits are durable, so that damage to the last one is not mistaken for a torn
    /// tail.
    fn mark(&mut self) -> Result<()> {
        self.log.append_marker(self.log.next() - 1)
    }

    /// Whether the manifest's header says all that a reader of `edit` needs.
    pub fn admits(&self, edit: &VersionEdit) -> bool {
        edit.features() & !self.features == 0
    }

    /// File length in bytes. Decides when to begin a new manifest.
    pub fn len(&self) -> u64 {
        self.log.len()
    }
}

/// A manifest read from disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    pub state: ManifestState,
    pub number: u64,
    /// Whether the manifest is certainly durable and in force. If not, its last edit may have been
    /// read from the page cache and be lost in a power cut.
    pub is_durable: bool,
}

/// Reads the manifest in force. `None` if `dir` is absent or holds no store, or if creating the
/// store was interrupted.
pub fn load(fs: &dyn FileSystem, dir: &Path) -> Result<Option<Loaded>> {
    find(fs, dir)?.map(|number| load_number(fs, dir, number)).transpose()
}

/// Reads manifest `number` as if it were in force.
pub fn load_number(fs: &dyn FileSystem, dir: &Path, number: u64) -> Result<Loaded> {
    load_and_keep(fs, dir, number).map(|(loaded, _)| loaded)
}

/// [`load_number`] that also returns the manifest's log, to read on when it has grown.
fn load_and_keep(fs: &dyn FileSystem, dir: &Path, number: u64) -> Result<(Loaded, LogReader)> {
    let path = FileKind::Manifest(number).path(dir);
    let (mut state, mut features) = (None::<ManifestState>, 0);
    let logs = [(number, path.clone())];
    let replayed = replay(fs, Magic::Manifest, &logs, FIRST_EDIT, 0, &mut |record| {
        if record.count != 1 {
            return Err(Malformed("a manifest record does not hold exactly one version edit").into());
        }
        let edit = VersionEdit::decode(record.payload)?;
        features |= edit.features();
        match &mut state {
            Some(state) => _ = state.apply(&edit)?,
            None => state = Some(ManifestState::from_snapshot(&edit)?),
        }
        Ok(())
    });
    let is_stated = |features: u32| -> Result<bool> {
        // Most manifests use no feature, and need not be opened once more.
        let stated = LogReader::open(fs, &path, Magic::Manifest, number)?;
        Ok(stated.header().is_ok_and(|header| features & !header.features == 0))
    };
    let replayed = replayed.and_then(|replayed| match features == 0 || is_stated(features)? {
        true => Ok(replayed),
        false => Err(Error::corruption(&path, 0, "an edit uses a feature that the header does not require")),
    });
    let replayed = replayed.map(|(replayed, mut read)| (replayed, read.readers.pop()));
    match (replayed, state) {
        (Ok((replayed, Some(log))), Some(state)) => {
            let is_durable = replayed.torn.is_none() && replayed.synced + 1 == replayed.next;
            Ok((Loaded { state, number, is_durable }, log))
        }
        (Ok(_), _) => {
            let rule = "the manifest is in force, but its first version edit cannot be read";
            Err(Error::corruption(&path, FILE_HEADER_LEN as u64, rule))
        }
        (Err(Error::Io { source, .. }), _) if source.kind() == io::ErrorKind::NotFound => {
            let rule = "CURRENT names this manifest, but there is no such file";
            Err(Error::corruption(&path, 0, rule))
        }
        (Err(error), _) => Err(error),
    }
}

#[cfg(test)]
mod tests;
