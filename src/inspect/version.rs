//! Is a file of a later version of the format, or is it of this one and its version number damaged? Readers look at the version before
//! anything else, checksums included, so they cannot tell; whoever has time can.

use std::path::Path;

use super::FileKind;
use crate::format::header::{FILE_HEADER_LEN, FORMAT_VERSION, FileHeader, Magic};
use crate::manifest;
use crate::vfs::{FileSystem, read_small_file};

/// Longest `CURRENT` that is looked at.
const MAX_CURRENT_LEN: usize = 4096;

/// Whether everything else in the header of `file` would be right if its version were the one that we know. What cannot be read is
/// not.
pub(super) fn is_damaged(fs: &dyn FileSystem, file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match FileKind::parse(name) {
        Some(FileKind::Current) => current_is_damaged(fs, file).unwrap_or(false),
        Some(FileKind::Wal(number)) => header_is_damaged(fs, file, Magic::Wal, number).unwrap_or(false),
        Some(FileKind::Manifest(number)) => header_is_damaged(fs, file, Magic::Manifest, number).unwrap_or(false),
        Some(FileKind::Table(number)) => header_is_damaged(fs, file, Magic::Table, number).unwrap_or(false),
        _ => false,
    }
}

fn header_is_damaged(fs: &dyn FileSystem, file: &Path, magic: Magic, number: u64) -> std::io::Result<bool> {
    let mut header = [0; FILE_HEADER_LEN];
    let read = fs.open(file)?.read_at(&mut header, 0)?;
    if header[8..12] == FORMAT_VERSION.to_le_bytes() {
        return Ok(false);
    }
    header[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    Ok(FileHeader::decode(&header[..read], magic, number, file).is_ok())
}

fn current_is_damaged(fs: &dyn FileSystem, file: &Path) -> std::io::Result<bool> {
    let text = String::from_utf8_lossy(&read_small_file(fs, file, MAX_CURRENT_LEN)?).into_owned();
    let Some((_, rest)) = text.split_once('\n') else { return Ok(false) };
    let repaired = format!("tamis {FORMAT_VERSION}\n{rest}");
    Ok(repaired != text && manifest::decode_current(repaired.as_bytes(), file).is_ok())
}
