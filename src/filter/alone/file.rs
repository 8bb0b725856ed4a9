//! Encoded filters in files and streams. Each begins with a header of 64 bytes that states the
//! total length.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, IoContext, Result};
use crate::filter::header::HEADER_LEN;
use crate::format::{Decoded, Malformed};
use crate::vfs::{FileSystem, ReadableFile, WritableFile};

/// Reads the total length, header included, from a header.
pub(super) type LenOf = fn(&[u8; HEADER_LEN]) -> Decoded<u64>;

/// Bytes per call of [`WritableFile::append`].
const CHUNK: usize = 1 << 20;

/// Replaces the file at `path` durably: after a crash it holds the old bytes or the new ones.
pub(super) fn save(fs: &dyn FileSystem, path: &Path, bytes: &[u8]) -> Result<()> {
    let (temp, dir) = (temp_path(path)?, path.parent().unwrap_or(Path::new("")));
    let file = fs.create(&temp).during("create", &temp)?;
    let replaced = write(&*file, &temp, bytes).and_then(|()| fs.rename(&temp, path).during("replace", path));
    if replaced.is_err() {
        // A temporary file that stays behind does no harm, and the first error says more.
        let _ = fs.remove(&temp);
    }
    replaced?;
    fs.sync_dir(dir).during("sync", dir)
}

fn write(file: &dyn WritableFile, path: &Path, bytes: &[u8]) -> Result<()> {
    for chunk in bytes.chunks(CHUNK) {
        file.append(chunk).during("write", path)?;
    }
    file.sync().during("sync", path)
}

/// A temporary name beside `path` that no other call uses.
fn temp_path(path: &Path) -> Result<PathBuf> {
    static SAVED: AtomicU64 = AtomicU64::new(0);
    let Some(name) = path.file_name() else {
        return Err(Error::invalid(format_args!("{} does not name a file", path.display())));
    };
    let mut name = name.to_owned();
    name.push(format!(".{}-{}.tmp", std::process::id(), SAVED.fetch_add(1, Ordering::Relaxed)));
    Ok(path.with_file_name(name))
}

/// Reads and decodes a whole file. Reads only the header if the file's length is not the one it
/// states.
pub(super) fn load<T>(
    fs: &dyn FileSystem,
    path: &Path,
    len_of: LenOf,
    decode: impl FnOnce(&[u8]) -> Decoded<T>,
) -> Result<T> {
    let damaged = |Malformed(rule)| Error::Filter { file: Some(path.to_owned()), rule };
    let file = fs.open(path).during("open", path)?;
    let mut header = [0; HEADER_LEN];
    if file.read_at(&mut header, 0).during("read", path)? < HEADER_LEN {
        return Err(damaged(SHORTER_THAN_HEADER));
    }
    let len = len_of(&header).map_err(damaged)?;
    if file.len().during("read", path)? != len {
        return Err(damaged(Malformed("the file's length does not match its filter's header")));
    }
    let mut bytes = Vec::new();
    FileReader { file: &*file, offset: 0 }.take(len).read_to_end(&mut bytes).during("read", path)?;
    decode(&bytes).map_err(damaged)
}

/// Reads one filter from a stream: the header, then as many bytes as it states. Memory grows only
/// as bytes arrive.
pub(super) fn read<T>(input: &mut dyn Read, len_of: LenOf, decode: impl FnOnce(&[u8]) -> Decoded<T>) -> io::Result<T> {
    let damaged = |Malformed(rule)| io::Error::new(io::ErrorKind::InvalidData, Error::Filter { file: None, rule });
    let mut bytes = Vec::new();
    input.take(HEADER_LEN as u64).read_to_end(&mut bytes)?;
    let header = bytes.first_chunk().ok_or_else(|| damaged(SHORTER_THAN_HEADER))?;
    let len = len_of(header).map_err(damaged)?;
    input.take(len.saturating_sub(HEADER_LEN as u64)).read_to_end(&mut bytes)?;
    decode(&bytes).map_err(damaged)
}

const SHORTER_THAN_HEADER: Malformed = Malformed("it is shorter than its header");

struct FileReader<'a> {
    file: &'a dyn ReadableFile,
    offset: u64,
}

impl Read for FileReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buf, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}
