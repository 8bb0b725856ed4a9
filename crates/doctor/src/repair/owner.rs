//! Decides whether a directory is a store: a repair must not take apart another program's files
//! because their names look like ours.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, IoContext, Result};
use crate::format::filename::FileKind;
use crate::format::header::Magic;
use crate::sorted::table::{Table, TableContext};
use crate::tree::manifest;
use crate::vfs::FileSystem;

/// Refuses `dir`, whose `files` are named like a store's files, unless one of them begins or ends
/// as only ours do: `CURRENT`, a file with our magic bytes, a manifest with a good edit, or a table
/// with a good footer. Changes nothing.
pub(super) fn refuse_foreign(context: &Arc<TableContext>, files: &[FileKind]) -> Result<()> {
    let (fs, dir) = (context.fs(), context.dir());
    if manifest::begins_as_current(fs, dir)? {
        return Ok(());
    }
    for &kind in files {
        if has_magic(fs, dir, kind)? {
            return Ok(());
        }
    }
    for &kind in files {
        let is_ours = match kind {
            FileKind::Manifest(number) => !manifest::salvage(fs, dir, number)?.edits.is_empty(),
            FileKind::Table(number) => describes_itself(context, number)?,
            _ => false,
        };
        if is_ours {
            return Ok(());
        }
    }
    match manifest::find(fs, dir) {
        Err(error @ Error::NotAStore { .. }) => Err(error),
        _ => Err(Error::NotAStore { dir: dir.to_owned(), found: "no file in it was written by tamis".into() }),
    }
}

/// Whether the end of a table verifies: its footer and its properties.
fn describes_itself(context: &Arc<TableContext>, number: u64) -> Result<bool> {
    match Table::alone(Arc::clone(context), number, false) {
        Ok(_) | Err(Error::Unsupported { .. }) => Ok(true),
        Err(Error::Corruption { .. }) => Ok(false),
        Err(Error::Io { source, .. }) if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Whether a file begins with the magic bytes of its kind.
fn has_magic(fs: &dyn FileSystem, dir: &Path, kind: FileKind) -> Result<bool> {
    let magic = match kind {
        FileKind::Manifest(_) => Magic::Manifest,
        FileKind::Wal(_) => Magic::Wal,
        FileKind::Table(_) => Magic::Table,
        FileKind::Values(_) => Magic::Values,
        _ => return Ok(false),
    };
    let path = kind.path(dir);
    let mut start = [0; Magic::LEN];
    match fs.open(&path).and_then(|file| file.read_at(&mut start, 0)) {
        // A running store may have removed it; a directory is no table.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory) => Ok(false),
        read => Ok(read.during("read", &path)? == start.len() && start == *magic.bytes()),
    }
}
