//! Files as a whole, and errors that name them.

use std::io;
use std::path::Path;

/// The error with the name of the file.
pub(crate) fn of_file(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Replaces a file as a whole: a kill leaves the old one or the new one.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_extension("new");
    let done = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    done.map_err(|error| of_file(path, error))
}
