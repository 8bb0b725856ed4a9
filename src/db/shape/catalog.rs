//! [`Catalog`]: the manifest in force, and file numbers.
//!
//! Every change of the set of tables is one version edit and goes through `Store::install`: durable
//! in the manifest, then visible in a new view. Only then are files removed. No file number is used
//! twice.

use std::path::Path;

use crate::db::locks::{LockRank, Ranked, RankedMutex};
use crate::error::{Error, Result};
use crate::format::filename::FileKind;
use crate::sync::MappedMutexGuard;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::tree::manifest::{ManifestState, ManifestWriter, VersionEdit};
use crate::vfs::FileSystem;

/// What the largest usual edit takes on disk, if it does not begin a new manifest.
const LARGE_EDIT_LEN: u64 = 1 << 20;
/// Space on disk beside an edit's bytes: the rest of a block, the headers of records, CURRENT, and
/// what directories grow by.
const EDIT_OVERHEAD: u64 = 4 << 10;
const MANIFEST_OVERHEAD: u64 = 16 << 10;
/// A manifest is rewritten when it exceeds both this and four times its initial length, and when an
/// edit uses a feature that its header does not require.
const ROTATION_LEN: u64 = 4 << 20;

/// The manifest in force and the state it describes.
pub(crate) struct Manifest {
    pub(crate) number: u64,
    /// `None` for a manifest found on opening: the first edit begins a new one.
    writer: Option<ManifestWriter>,
    pub(crate) state: ManifestState,
    /// Length at which it is rewritten.
    rotate_at: u64,
}

impl Manifest {
    /// The manifest found in force, which describes `state`.
    pub(crate) fn found(number: u64, state: ManifestState) -> Manifest {
        Manifest { number, writer: None, state, rotate_at: 0 }
    }

    /// Creates a manifest that begins with `state`, and puts it in force.
    pub(crate) fn create(fs: &dyn FileSystem, dir: &Path, number: u64, state: ManifestState) -> Result<Manifest> {
        let mut manifest = Manifest::found(number, state);
        manifest.begin(fs, dir, number)?;
        Ok(manifest)
    }

    /// The manifest that takes `edit` as its next one; `None` if a new one must state it.
    fn writer_of(&mut self, edit: &VersionEdit) -> Option<&mut ManifestWriter> {
        let rotate_at = self.rotate_at;
        self.writer.as_mut().filter(|writer| writer.len() < rotate_at && writer.admits(edit))
    }

    /// Whether a new manifest begins with `edit`, or without one.
    pub(super) fn begins_anew(&mut self, edit: Option<&VersionEdit>) -> bool {
        edit.is_none_or(|edit| self.writer_of(edit).is_none())
    }

    /// Bytes of disk space for writing `edit` or, without one, for stating all in a new manifest.
    pub(super) fn space_for(&mut self, edit: Option<&VersionEdit>) -> u64 {
        let len = edit.map_or(0, |edit| edit.encode().len()) as u64;
        if !self.begins_anew(edit) {
            return len + EDIT_OVERHEAD;
        }
        len + self.state.snapshot_edit().encode().len() as u64 + MANIFEST_OVERHEAD
    }

    /// Switches to a new manifest. If that cannot be put in force, nothing changes.
    fn begin(&mut self, fs: &dyn FileSystem, dir: &Path, number: u64) -> Result<()> {
        let writer = ManifestWriter::create(fs, dir, number, &self.state)?;
        self.rotate_at = (4 * writer.len()).max(ROTATION_LEN);
        (self.number, self.writer) = (number, Some(writer));
        Ok(())
    }
}

/// The manifest, locked for an edit.
pub(super) type LockedManifest<'a> = Ranked<MappedMutexGuard<'a, Manifest>>;

/// The manifest of an open store, and the next file number.
pub(crate) struct Catalog {
    /// `None` if the store is closed or read-only.
    manifest: RankedMutex<Option<Manifest>>,
    next_file: AtomicU64,
}

impl Catalog {
    pub(super) fn new(manifest: Option<Manifest>, next_file: u64) -> Catalog {
        Catalog { manifest: RankedMutex::new(LockRank::Catalog, manifest), next_file: AtomicU64::new(next_file) }
    }

    /// Takes a file number that was never used before.
    pub(crate) fn new_file_number(&self) -> u64 {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    /// The next file number. All greater ones are unused too.
    pub(crate) fn next_file_number(&self) -> u64 {
        self.next_file.load(Ordering::Relaxed)
    }

    /// Locks the manifest for one edit, until the edit is visible.
    pub(crate) fn lock(&self) -> Result<LockedManifest<'_>> {
        self.manifest.lock().try_map(Option::as_mut).ok_or(Error::Closed)
    }

    /// Whether an edit has been written since opening.
    pub(crate) fn has_new_manifest(&self) -> bool {
        self.lock().is_ok_and(|manifest| manifest.writer.is_some())
    }

    /// Bytes of disk space that suffice for nearly any edit.
    pub(crate) fn ample_space(&self) -> u64 {
        let needed = self.lock().map_or(0, |mut manifest| manifest.space_for(Some(&VersionEdit::default())));
        LARGE_EDIT_LEN + 2 * needed
    }

    /// Appends an edit to the manifest, or begins a new one with it, and makes it durable. Returns
    /// the value files that are no longer needed.
    pub(super) fn write(
        &self,
        manifest: &mut Manifest,
        fs: &dyn FileSystem,
        dir: &Path,
        edit: &VersionEdit,
    ) -> Result<Vec<u64>> {
        let old = FileKind::Manifest(manifest.number).path(dir);
        let len = manifest.writer.as_ref().map_or(0, ManifestWriter::len);
        let dead = manifest.state.apply(edit).map_err(|rule| Error::corruption(&old, len, rule))?;
        match manifest.writer_of(edit) {
            Some(writer) => writer.append(edit)?,
            None => self.restate(manifest, fs, dir)?,
        }
        Ok(dead)
    }

    /// Begins a new manifest, which states what the state is by now.
    pub(super) fn restate(&self, manifest: &mut Manifest, fs: &dyn FileSystem, dir: &Path) -> Result<()> {
        let old = FileKind::Manifest(manifest.number).path(dir);
        let number = self.new_file_number();
        manifest.state.next_file_number = self.next_file_number();
        manifest.begin(fs, dir, number)?;
        // If this fails, the next open removes the old manifest.
        let _ = fs.remove(&old);
        Ok(())
    }

    /// Refuses all further edits.
    pub(crate) fn close(&self) {
        *self.manifest.lock() = None;
    }
}
