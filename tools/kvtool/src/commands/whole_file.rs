//! [`write_whole`]: a file that is replaced when its new content is complete and durable.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempPath};

use crate::failure::{Failure, Result};

const BUFFER: usize = 1 << 16;

/// A complete file, and where it is to stand.
pub(super) struct Written {
    temporary: TempPath,
    path: PathBuf,
}

impl Written {
    pub(super) fn put_in_place(self) -> Result<()> {
        let Written { temporary, path } = self;
        temporary.persist(&path).map_err(|error| cannot_write(&path, error.error))?;
        sync_dir_of(&path).map_err(|source| cannot_write(&path, source))
    }
}

/// Writes the file that is to stand at `path`, durably. A device or pipe is written to at once.
pub(super) fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<()>,
) -> Result<Option<Written>> {
    let failed = |source| cannot_write(path, source);
    let existing = fs::metadata(path).ok();
    if existing.as_ref().is_some_and(|existing| !existing.is_file()) {
        let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
        let mut out = BufWriter::with_capacity(BUFFER, file);
        write(&mut out)?;
        out.flush().map_err(failed)?;
        return Ok(None);
    }
    // The file that a link points to is replaced, not the link.
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (file, temporary) = new_file_beside(&place).map_err(failed)?.into_parts();
    if let Some(existing) = existing {
        file.set_permissions(existing.permissions()).map_err(failed)?;
    }
    let mut out = BufWriter::with_capacity(BUFFER, file);
    write(&mut out)?;
    let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
    // The content is durable before the name points to it.
    file.sync_all().map_err(failed)?;
    Ok(Some(Written { temporary, path: place }))
}

pub(super) fn cannot_write(path: &Path, source: io::Error) -> Failure {
    Failure::Io { what: format!("cannot write {}", path.display()), source }
}

/// A temporary file in the directory of `path`, with the permissions of a new file.
fn new_file_beside(path: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".kvtool-unfinished-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(dir_of(path))
}

/// The directory that holds `path`.
fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the name of a new file durable.
#[cfg(unix)]
fn sync_dir_of(path: &Path) -> io::Result<()> {
    File::open(dir_of(path))?.sync_all()
}

/// A rename needs no sync here.
#[cfg(not(unix))]
fn sync_dir_of(_path: &Path) -> io::Result<()> {
    Ok(())
}
