//! Reads the intact edits of a damaged manifest, for `repair`.

use std::path::Path;

use super::VersionEdit;
use super::state::ManifestState;
use crate::error::Result;
use crate::format::filename::FileKind;
use crate::format::header::{FILE_HEADER_LEN, Magic};
use crate::vfs::FileSystem;
use crate::write::log::open_damaged;

/// The edits of a manifest that verify.
#[derive(Debug)]
pub(crate) struct SalvagedManifest {
    /// Each edit, with whether everything between it and the edit before it was read.
    pub(crate) edits: Vec<(bool, VersionEdit)>,
    /// Whether the first edit of the file verifies and states a whole version.
    pub(crate) has_base: bool,
    /// The first offset that does not verify, and why.
    pub(crate) damage: Option<(u64, String)>,
}

/// Reads manifest `number`, skipping damaged parts.
pub(crate) fn salvage(fs: &dyn FileSystem, dir: &Path, number: u64) -> Result<SalvagedManifest> {
    let path = FileKind::Manifest(number).path(dir);
    let mut log = open_damaged(fs, &path, Magic::Manifest, number)?;
    let mut found = SalvagedManifest { edits: Vec::new(), has_base: false, damage: None };
    if let Err(rule) = log.header() {
        found.damage = Some((0, rule.to_owned()));
    }
    let mut next_offset = FILE_HEADER_LEN as u64;
    let mut follows = true;
    for span in log.spans()? {
        if span.offset > next_offset {
            follows = false;
            found.damage.get_or_insert((next_offset, "no record verifies here".into()));
        }
        next_offset = span.end;
        log.read_span(&span, 1, &mut |record| {
            if record.count == 0 {
                return Ok(());
            }
            match VersionEdit::decode(record.payload) {
                Ok(edit) => {
                    let is_first = record.offset == FILE_HEADER_LEN as u64;
                    found.has_base |= is_first && ManifestState::from_snapshot(&edit).is_ok();
                    found.edits.push((std::mem::replace(&mut follows, true), edit));
                }
                Err(rule) => {
                    follows = false;
                    found.damage.get_or_insert((record.offset, rule.0.to_owned()));
                }
            }
            Ok(())
        })?;
    }
    if next_offset < log.len() && log.states_durable_after(next_offset, 1)? {
        found.damage.get_or_insert((next_offset, "no record verifies from here on".into()));
    }
    Ok(found)
}
