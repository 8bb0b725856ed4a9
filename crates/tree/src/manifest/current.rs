//! `CURRENT`: the file that names the manifest in force.
//!
//! ```text
//! tamis 1
//! MANIFEST-000003
//! crc32 89abcdef
//! ```
//!
//! Every format version keeps the first and the last line, and the maximum length.

use std::io;
use std::path::Path;

use crate::error::{Error, IoContext, Result};
use crate::format::checksum::crc;
use crate::format::filename::FileKind;
use crate::format::header::FORMAT_VERSION;
use crate::vfs::{FileSystem, read_small_file};

/// Maximum length of `CURRENT` in any version. Part of the format.
const MAX_LEN: usize = 4096;

/// The first bytes of every `CURRENT`. Part of the format.
pub(super) const START: &str = "tamis ";

/// The number of the manifest in force, or `None` if there is no `CURRENT`.
pub fn read(fs: &dyn FileSystem, dir: &Path) -> Result<Option<u64>> {
    let path = FileKind::Current.path(dir);
    match read_small_file(fs, &path, MAX_LEN) {
        Ok(bytes) => decode(&bytes, &path).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(Error::corruption(&path, 0, "CURRENT is too long"))
        }
        Err(error) => Err(error).during("read", &path),
    }
}

/// Whether a `CURRENT` exists and begins as tamis writes it.
pub fn begins_as_ours(fs: &dyn FileSystem, dir: &Path) -> Result<bool> {
    let path = FileKind::Current.path(dir);
    let mut start = [0; START.len()];
    match fs.open(&path).and_then(|file| file.read_at(&mut start, 0)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        read => Ok(read.during("read", &path)? == start.len() && start == *START.as_bytes()),
    }
}

/// Puts manifest `number` in force. The manifest and its directory entry must already be durable.
pub(super) fn switch(fs: &dyn FileSystem, dir: &Path, number: u64) -> Result<()> {
    let (path, temp) = (FileKind::Current.path(dir), FileKind::CurrentTemp.path(dir));
    // Removes the leftover of an interrupted switch. If this fails, so does `create`.
    let _ = fs.remove(&temp);
    let file = fs.create(&temp).during("create", &temp)?;
    file.append(encode(number).as_bytes()).during("write", &temp)?;
    file.sync().during("sync", &temp)?;
    fs.rename(&temp, &path).during("replace", &path)?;
    fs.sync_dir(dir).during("sync", dir)
}

fn encode(number: u64) -> String {
    let lines = format!("{START}{FORMAT_VERSION}\n{}\n", FileKind::Manifest(number).name());
    format!("{lines}{}", checksum_line(&lines))
}

/// The manifest number in the content of `CURRENT`.
fn decode(bytes: &[u8], path: &Path) -> Result<u64> {
    let corrupt = |rule| Error::corruption(path, 0, rule);
    let text = std::str::from_utf8(bytes).map_err(|_| corrupt("CURRENT is not text"))?;
    let (version, rest) = text
        .split_once('\n')
        .and_then(|(first, rest)| Some((first.strip_prefix(START)?, rest)))
        .ok_or_else(|| corrupt("CURRENT does not begin with its version"))?;
    let checked = text.len().saturating_sub(last_line(text).len());
    if last_line(text) != checksum_line(&text[..checked]) {
        return Err(corrupt("the checksum of CURRENT does not match"));
    }
    match version.parse::<u32>() {
        Ok(FORMAT_VERSION) => {}
        Ok(found) => {
            return Err(Error::Unsupported {
                file: path.to_owned(),
                what: "format version",
                found: found.into(),
                known: FORMAT_VERSION.into(),
            });
        }
        Err(_) => return Err(corrupt("the version in CURRENT is not a number")),
    }
    let name = rest.split_once('\n').and_then(|(name, _)| FileKind::parse(name));
    match name {
        Some(FileKind::Manifest(number)) if text == encode(number) => Ok(number),
        _ => Err(corrupt("CURRENT does not name a manifest")),
    }
}

fn last_line(text: &str) -> &str {
    text.split_inclusive('\n').next_back().unwrap_or_default()
}

fn checksum_line(checked: &str) -> String {
    format!("crc32 {:08x}\n", crc(checked.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::testing::{get_file, put_file};
    use crate::vfs::OsFileSystem;

    #[test]
    fn content_is_that_of_the_format() {
        assert_eq!(encode(3), "tamis 1\nMANIFEST-000003\ncrc32 3ef3e4eb\n");
        for number in [1, 999_999, 1_000_000, 1 << 55] {
            let text = encode(number);
            assert!(text.len() <= MAX_LEN);
            let decoded = decode(text.as_bytes(), Path::new("CURRENT"));
            assert_eq!(decoded.unwrap(), number);
        }
    }

    #[test]
    fn anything_but_the_written_bytes_is_refused() {
        let good = encode(3).into_bytes();
        let refused = |bytes: &[u8]| {
            let error = decode(bytes, Path::new("CURRENT")).unwrap_err();
            assert!(matches!(error, Error::Corruption { .. }), "{error}");
        };
        for len in 0..good.len() {
            refused(&good[..len]);
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            refused(&bad);
        }
        refused(&[&good[..], b"\n"].concat());
        // More than the lines of this version, under the right checksum.
        let longer = "tamis 1\nMANIFEST-000003\nmore\n";
        refused(format!("{longer}{}", checksum_line(longer)).as_bytes());
    }

    #[test]
    fn later_version_is_named_as_such() {
        for content in ["tamis 2\n", "tamis 2\nwhatever\nin more lines\n"] {
            let text = format!("{content}{}", checksum_line(content));
            let error = decode(text.as_bytes(), Path::new("CURRENT")).unwrap_err();
            assert!(matches!(error, Error::Unsupported { found: 2, known: 1, .. }));
        }
        assert!(decode(b"tamis 2\nwhatever\n", Path::new("CURRENT")).unwrap_err().is_corruption());
    }

    #[test]
    fn the_beginning_tells_whose_file_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let begins = || begins_as_ours(&OsFileSystem, dir.path()).unwrap();
        assert!(!begins(), "there is none");
        for (content, ours) in
            [(&b"tamis 1\n"[..], true), (b"tamis ", true), (b"tamis", false), (b"MANIFEST-1\n", false)]
        {
            put_file(&dir.path().join("CURRENT"), content);
            assert_eq!(begins(), ours);
        }
    }

    #[test]
    fn switch_replaces_what_an_interrupted_one_left() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&OsFileSystem, dir.path()).unwrap(), None);
        put_file(&dir.path().join("CURRENT.tmp"), b"half");
        switch(&OsFileSystem, dir.path(), 3).unwrap();
        switch(&OsFileSystem, dir.path(), 7).unwrap();
        assert_eq!(read(&OsFileSystem, dir.path()).unwrap(), Some(7));
        assert_eq!(get_file(&dir.path().join("CURRENT")), encode(7).into_bytes());
        put_file(&dir.path().join("CURRENT"), &[b'x'; MAX_LEN + 1]);
        assert!(read(&OsFileSystem, dir.path()).unwrap_err().is_corruption());
    }
}
