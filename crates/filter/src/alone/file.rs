//! Encoded filters in files and streams. Each begins with a header of 64 bytes that states the
//! total length.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::hasher::{FilterHash, HashFunction, KeyHasher};
use crate::header::HEADER_LEN;
use tamis_base::error::{Error, IoContext, Result};
use tamis_base::format::{Decoded, Malformed};
use tamis_vfs::{FileSystem, ReadableFile, WritableFile};

/// Reads the total length, header included, from a header.
pub(super) type LenOf = fn(&[u8; HEADER_LEN]) -> Decoded<u64>;

/// Why bytes are not the filter that they should be.
#[derive(Debug)]
pub(super) enum Refused {
    Malformed(Malformed),
    /// Descriptions of the hash that made the filter, and of the one that should have.
    OtherHash {
        found: String,
        wanted: String,
    },
}

impl From<Malformed> for Refused {
    fn from(malformed: Malformed) -> Refused {
        Refused::Malformed(malformed)
    }
}

impl Refused {
    pub(super) fn into_error(self, file: Option<&Path>) -> Error {
        let file = file.map(Path::to_owned);
        match self {
            Refused::Malformed(Malformed(rule)) => Error::Filter { file, rule },
            Refused::OtherHash { found, wanted } => Error::OtherHash { file, found, wanted },
        }
    }
}

fn describe(name: &str, seed: u64) -> String {
    format!("{name} with seed {seed}")
}

/// The function of this crate that a header names.
pub(super) fn hasher_of_crate(name: &str, seed: u64) -> Result<KeyHasher, Refused> {
    match HashFunction::from_name(name) {
        Some(function) => Ok(KeyHasher::new(function, seed)?),
        None => {
            let wanted = "one of xxh3, siphash13 and murmur3".to_owned();
            Err(Refused::OtherHash { found: describe(name, seed), wanted })
        }
    }
}

/// `hasher`, if it is the one that the header names.
pub(super) fn same_hasher<H: FilterHash>(hasher: H) -> impl FnOnce(&str, u64) -> Result<H, Refused> {
    move |name, seed| {
        if (name, seed) == (hasher.name(), hasher.seed()) {
            return Ok(hasher);
        }
        let (found, wanted) = (describe(name, seed), describe(hasher.name(), hasher.seed()));
        Err(Refused::OtherHash { found, wanted })
    }
}

/// The methods by which filters go to streams and files: for an `impl` with `to_bytes`.
macro_rules! write_methods {
    () => {
        /// Writes what [`to_bytes`](Self::to_bytes) returns.
        pub fn write_to(&self, mut out: impl std::io::Write) -> std::io::Result<()> {
            out.write_all(&self.to_bytes())
        }

        /// Replaces the file at `path` with this filter, durably and atomically: after a crash it
        /// holds the old filter or the new one.
        pub fn save(&self, path: impl AsRef<std::path::Path>) -> $crate::Result<()> {
            self.save_to(&tamis_vfs::OsFileSystem::new(), path)
        }

        /// Like [`save`](Self::save), in another file system.
        pub fn save_to(&self, fs: &dyn tamis_vfs::FileSystem, path: impl AsRef<std::path::Path>) -> $crate::Result<()> {
            $crate::alone::file::save(fs, path.as_ref(), &self.to_bytes())
        }
    };
}

/// The methods by which filters come from bytes, streams and files. `$len_of` reads the length from
/// a header, `$decode` makes the filter.
macro_rules! read_methods {
    ($len_of:path, $decode:path) => {
        /// Decodes the bytes of [`to_bytes`](Self::to_bytes). Any other bytes are an
        /// [`Error::Filter`](crate::Error::Filter) that names the broken rule.
        pub fn from_bytes(bytes: &[u8]) -> $crate::Result<Self> {
            $decode(bytes).map_err(|refused| refused.into_error(None))
        }

        /// Reads one filter from a stream, and nothing after it. Bytes that are no filter are an
        /// error of kind `InvalidData` that holds an [`Error::Filter`](crate::Error::Filter).
        pub fn read_from(mut input: impl std::io::Read) -> std::io::Result<Self> {
            $crate::alone::file::read(&mut input, $len_of, $decode)
        }

        /// Reads the filter in the file at `path`.
        pub fn load(path: impl AsRef<std::path::Path>) -> $crate::Result<Self> {
            Self::load_from(&tamis_vfs::OsFileSystem::new(), path)
        }

        /// Like [`load`](Self::load), from another file system.
        pub fn load_from(fs: &dyn tamis_vfs::FileSystem, path: impl AsRef<std::path::Path>) -> $crate::Result<Self> {
            $crate::alone::file::load(fs, path.as_ref(), $len_of, $decode)
        }
    };
}

/// The methods by which filters with a hash of the program come from bytes and files. `$decode`
/// makes the filter, with the hasher that its second argument allows.
macro_rules! read_methods_with_hasher {
    ($len_of:path, $decode:path) => {
        /// Decodes a filter that `hasher` made. One that another hash made is an
        /// [`Error::OtherHash`](crate::Error::OtherHash).
        pub fn from_bytes_with(bytes: &[u8], hasher: H) -> $crate::Result<Self> {
            let hasher = $crate::alone::file::same_hasher(hasher);
            $decode(bytes, hasher).map_err(|refused| refused.into_error(None))
        }

        /// Reads the filter in the file at `path`, which `hasher` made.
        pub fn load_with(path: impl AsRef<std::path::Path>, hasher: H) -> $crate::Result<Self> {
            let hasher = $crate::alone::file::same_hasher(hasher);
            let fs = tamis_vfs::OsFileSystem::new();
            $crate::alone::file::load(&fs, path.as_ref(), $len_of, |bytes| $decode(bytes, hasher))
        }
    };
}

pub(super) use {read_methods, read_methods_with_hasher, write_methods};

/// Bytes per call of [`WritableFile::append`].
const CHUNK: usize = 1 << 20;

/// Replaces the file at `path` durably: after a crash it holds the old bytes or the new ones. Of a
/// symbolic link the target is replaced. What is no regular file, as a device, is not.
pub(super) fn save(fs: &dyn FileSystem, path: &Path, bytes: &[u8]) -> Result<()> {
    if path.file_name().is_none() {
        return Err(Error::invalid(format_args!("{} does not name a file", path.display())));
    }
    let path = &*fs.absolute(path).during("resolve", path)?;
    match fs.is_regular(path) {
        Ok(true) => {}
        Ok(false) => return Err(Error::invalid(format_args!("{} is no regular file", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).during("examine", path),
    }
    let (temp, dir) = (temp_path(path), path.parent().unwrap_or(Path::new("")));
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
fn temp_path(path: &Path) -> PathBuf {
    static SAVED: AtomicU64 = AtomicU64::new(0);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{}.tmp", std::process::id(), SAVED.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
}

/// Reads and decodes a whole file. Reads only the header if the file's length is not the one it
/// states.
pub(super) fn load<T>(
    fs: &dyn FileSystem,
    path: &Path,
    len_of: LenOf,
    decode: impl FnOnce(&[u8]) -> Result<T, Refused>,
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
    decode(&bytes).map_err(|refused| refused.into_error(Some(path)))
}

/// Reads one filter from a stream: the header, then as many bytes as it states. Memory grows only
/// as bytes arrive.
pub(super) fn read<T>(
    input: &mut dyn Read,
    len_of: LenOf,
    decode: impl FnOnce(&[u8]) -> Result<T, Refused>,
) -> io::Result<T> {
    let refused = |refused: Refused| io::Error::new(io::ErrorKind::InvalidData, refused.into_error(None));
    let damaged = |malformed| refused(Refused::Malformed(malformed));
    let mut bytes = Vec::new();
    input.take(HEADER_LEN as u64).read_to_end(&mut bytes)?;
    let header = bytes.first_chunk().ok_or_else(|| damaged(SHORTER_THAN_HEADER))?;
    let len = len_of(header).map_err(damaged)?;
    input.take(len.saturating_sub(HEADER_LEN as u64)).read_to_end(&mut bytes)?;
    decode(&bytes).map_err(refused)
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
