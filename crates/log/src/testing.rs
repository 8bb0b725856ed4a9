//! Helpers for tests of logs and of the files made of them.
#![allow(clippy::unwrap_used, reason = "for tests")]

use std::path::Path;

use tamis_vfs::{FileSystem, OsFileSystem, read_small_file};

/// Parses hexadecimal digits. Blanks, and comments from `#` to the end of a line, are skipped.
pub fn unhex(text: &str) -> Vec<u8> {
    let digits: String = text.lines().flat_map(|line| line.split('#').next()).flat_map(str::split_whitespace).collect();
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
}

/// Creates or replaces a file with exactly these bytes.
pub fn put_file(path: &Path, bytes: &[u8]) {
    let _ = OsFileSystem.remove(path);
    OsFileSystem.create(path).unwrap().append(bytes).unwrap();
}

pub fn get_file(path: &Path) -> Vec<u8> {
    read_small_file(&OsFileSystem, path, 1 << 26).unwrap()
}
