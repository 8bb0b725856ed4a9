//! Whether a directory holds a store, is free for a new one, or belongs to somebody else.
//!
//! A store is created only in an absent or empty directory. A directory also counts as empty if it
//! holds only `lost+found` and the leftovers of an interrupted creation. Nothing is modified here.

use std::io;
use std::path::Path;

use super::current;
use crate::error::{Error, IoContext, Result};
use crate::format::filename::FileKind;
use crate::format::header::{FILE_HEADER_LEN, Magic};
use crate::vfs::FileSystem;

/// Created by ext file systems in their root directory.
pub const LOST_AND_FOUND: &str = "lost+found";
/// Names listed in an error message; the rest are counted.
const LISTED: usize = 3;

/// The number of the manifest in force, or `None` if `dir` is free for a new store. Any other
/// content is refused.
pub fn find(fs: &dyn FileSystem, dir: &Path) -> Result<Option<u64>> {
    refuse_partial(fs, dir)?;
    let error = match current::read(fs, dir) {
        Ok(None) => match refuse_content(fs, dir) {
            Ok(()) => return Ok(None),
            Err(error) => error,
        },
        Err(error) if error.is_corruption() => match refuse_foreign(fs, dir) {
            Ok(()) => return Err(error),
            Err(error) => error,
        },
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotADirectory => {
            return Err(not_a_directory(dir));
        }
        found => return found,
    };
    // Another process may have created the store since `CURRENT` was read.
    match current::read(fs, dir) {
        Ok(Some(number)) => Ok(Some(number)),
        _ => Err(error),
    }
}

/// Whether a store's file may have the name `path`: it is that of such a file, beside a `CURRENT`.
pub fn owns_name(fs: &dyn FileSystem, path: &Path) -> Result<bool> {
    let is_ours = path.file_name().and_then(|name| FileKind::parse(name.to_str()?)).is_some();
    Ok(is_ours && current::begins_as_ours(fs, path.parent().unwrap_or(Path::new("")))?)
}

/// Refuses a directory into which a copy of a store was being put: only some of its files may be
/// there, or not all of them durably.
pub fn refuse_partial(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    let marker = FileKind::Partial.path(dir);
    match fs.open(&marker) {
        Ok(_) => Err(Error::Incomplete(dir.to_owned())),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(()),
        Err(error) => Err(error).during("open", &marker),
    }
}

/// Refuses a directory without `CURRENT` that holds data or foreign files. A store exists from its
/// first `CURRENT` on: without one there can be no table and no log entry.
fn refuse_content(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    let content = DirContent::of(fs, dir)?;
    if let Some(kind) = content.data {
        let rule = format!("there is no CURRENT, but {} has data", kind.name());
        return Err(Error::corruption(&FileKind::Current.path(dir), 0, rule));
    }
    match content.foreign.is_empty() {
        true => Ok(()),
        false => Err(not_a_store(dir, content.describe())),
    }
}

/// An unreadable `CURRENT` is damage if it or any file beside it begins as tamis files do.
/// Otherwise the directory belongs to another program and is refused.
fn refuse_foreign(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    let start = beginning(fs, &FileKind::Current.path(dir))?;
    let content = DirContent::of(fs, dir)?;
    if start.starts_with(current::START.as_bytes()) || content.has_magic {
        return Ok(());
    }
    Err(match start.starts_with(b"MANIFEST") {
        true => not_a_store(dir, content.foreign_program()),
        false => not_a_store(dir, "its CURRENT was written by another program"),
    })
}

fn not_a_store(dir: &Path, found: impl Into<String>) -> Error {
    Error::NotAStore { dir: dir.to_owned(), found: found.into() }
}

fn not_a_directory(dir: &Path) -> Error {
    not_a_store(dir, "it is not a directory")
}

/// The files of a directory other than `CURRENT`.
#[derive(Default)]
struct DirContent {
    /// A table, or a log longer than its header, if one of ours exists.
    data: Option<FileKind>,
    /// Whether any file begins with the magic bytes of tamis.
    has_magic: bool,
    /// Names of foreign files, sorted.
    foreign: Vec<String>,
}

impl DirContent {
    fn of(fs: &dyn FileSystem, dir: &Path) -> Result<DirContent> {
        let mut names = match fs.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(DirContent::default()),
            // On Windows the look for `CURRENT` in a file finds nothing, without an error.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Err(not_a_directory(dir)),
            names => names.during("list", dir)?,
        };
        names.sort_unstable();
        let mut content = DirContent::default();
        for name in names {
            match FileKind::parse(&name) {
                Some(kind @ FileKind::Manifest(_)) => content.add(fs, dir, kind, Magic::Manifest)?,
                Some(kind @ FileKind::Wal(_)) => content.add(fs, dir, kind, Magic::Wal)?,
                Some(kind @ FileKind::Table(_)) => content.add(fs, dir, kind, Magic::Table)?,
                Some(kind @ FileKind::Values(_)) => content.add(fs, dir, kind, Magic::Values)?,
                Some(FileKind::Stats | FileKind::StatsTemp) => content.foreign.push(name),
                Some(_) => {}
                None if name == LOST_AND_FOUND => {}
                None => content.foreign.push(name),
            }
        }
        Ok(content)
    }

    fn add(&mut self, fs: &dyn FileSystem, dir: &Path, kind: FileKind, magic: Magic) -> Result<()> {
        let path = kind.path(dir);
        let start = beginning(fs, &path)?;
        self.has_magic |= start == *magic.bytes();
        // A power cut may leave the file short, or zeros from some byte on. It may be empty, too,
        // but nothing says of an empty table that there ever was a store.
        let same = start.iter().zip(magic.bytes()).take_while(|(byte, ours)| byte == ours).count();
        let is_empty_table = start.is_empty() && matches!(kind, FileKind::Table(_) | FileKind::Values(_));
        if is_empty_table || start[same..].iter().any(|byte| *byte != 0) {
            self.foreign.push(kind.name());
            return Ok(());
        }
        let has_data = match kind {
            FileKind::Table(_) | FileKind::Values(_) => true,
            FileKind::Wal(_) => {
                fs.open(&path).and_then(|file| file.len()).during("open", &path)? > FILE_HEADER_LEN as u64
            }
            _ => false,
        };
        self.data = self.data.or(has_data.then_some(kind));
        Ok(())
    }

    fn describe(&self) -> String {
        let listed = self.foreign.iter().take(LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
        match self.foreign.len().saturating_sub(LISTED) {
            0 => format!("it holds {listed}"),
            more => format!("it holds {listed} and {more} more"),
        }
    }

    /// Which program's files these are, given a `CURRENT` that only names a manifest.
    fn foreign_program(&self) -> &'static str {
        let is_rocksdb = |name: &String| name == "IDENTITY" || name.starts_with("OPTIONS-");
        match self.foreign.iter().any(is_rocksdb) {
            true => "it is a RocksDB store, by its files",
            false => "it is a LevelDB store, by its CURRENT",
        }
    }
}

/// The first bytes of a file, at most as many as the magic has. A directory begins with none of
/// ours.
fn beginning(fs: &dyn FileSystem, path: &Path) -> Result<Vec<u8>> {
    let mut bytes = vec![0; Magic::LEN];
    match fs.open(path).and_then(|file| file.read_at(&mut bytes, 0)) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => bytes.fill(!0),
        read => bytes.truncate(read.during("read", path)?),
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::header::FileHeader;
    use crate::vfs::{Fault, FaultMode, SimFileSystem};

    const DIR: &str = "/store";

    fn look(files: &[(&str, &[u8])]) -> Result<Option<u64>> {
        let fs = SimFileSystem::new();
        fs.create_dir(Path::new(DIR)).unwrap();
        for (name, content) in files {
            fs.write(Path::new(DIR).join(name), *content).unwrap();
        }
        find(&fs, Path::new(DIR))
    }

    #[track_caller]
    fn check_foreign(files: &[(&str, &[u8])], seen: &str) {
        let error = look(files).unwrap_err();
        assert!(matches!(&error, Error::NotAStore { found, .. } if found.contains(seen)), "{error}");
    }

    #[test]
    fn absent_and_empty_directories_are_free() {
        assert_eq!(find(&SimFileSystem::new(), Path::new(DIR)).unwrap(), None);
        assert_eq!(look(&[]).unwrap(), None);
        assert_eq!(look(&[("lost+found", b"")]).unwrap(), None);
    }

    #[test]
    fn what_an_interrupted_creation_left_is_free() {
        let manifest = FileHeader { number: 2, first: 1, ..FileHeader::default() }.encode(Magic::Manifest);
        let log = FileHeader { number: 3, first: 1, ..FileHeader::default() }.encode(Magic::Wal);
        for manifest in [&manifest[..], &manifest[..5], &[0; 4096], b""] {
            let files: [(&str, &[u8]); 4] =
                [("LOCK", b"17\n"), ("MANIFEST-000002", manifest), ("CURRENT.tmp", b"tam"), ("000003.wal", &log)];
            assert_eq!(look(&files).unwrap(), None);
        }
    }

    #[test]
    fn other_directories_are_refused_with_what_was_seen() {
        check_foreign(&[("notes.txt", b"mine")], "notes.txt");
        check_foreign(&[("a", b""), ("b", b""), ("c", b""), ("d", b""), ("e", b"")], "a, b, c and 2 more");
        let leveldb: [(&str, &[u8]); 5] = [
            ("CURRENT", b"MANIFEST-000004\n"),
            ("MANIFEST-000004", b"\x56\xf9\xb8\xf8\x1c\0\x01leveldb.BytewiseComparator"),
            ("000005.ldb", b"\0\x08\x04key"),
            ("LOCK", b""),
            ("LOG", b"2026/01/01"),
        ];
        check_foreign(&leveldb, "LevelDB");
        check_foreign(&leveldb[1..], "000005.ldb, LOG, MANIFEST-000004");
        let rocksdb: [(&str, &[u8]); 5] = [
            ("CURRENT", b"MANIFEST-000005\n"),
            ("MANIFEST-000005", b"\x56\xf9\xb8\xf8\x1c\0\x01leveldb.BytewiseComparator"),
            ("000008.sst", b"\0\x0b\x04key1"),
            ("IDENTITY", b"0af5-11"),
            ("OPTIONS-000007", b"# This is a RocksDB option file."),
        ];
        check_foreign(&rocksdb, "RocksDB");
        check_foreign(&rocksdb[1..3], "000008.sst, MANIFEST-000005");
        check_foreign(&[("CURRENT", b"")], "CURRENT");
    }

    #[test]
    fn damaged_current_beside_files_of_ours_is_damage() {
        let manifest = FileHeader { number: 2, first: 1, ..FileHeader::default() }.encode(Magic::Manifest);
        for current in [&b"uamis 1\n"[..], b"MANIFEST-000002\n", b""] {
            assert!(look(&[("CURRENT", current), ("MANIFEST-000002", &manifest)]).unwrap_err().is_corruption());
        }
        assert!(look(&[("CURRENT", b"tamis 1\n")]).unwrap_err().is_corruption());
    }

    #[test]
    fn data_without_current_is_damage_also_beside_foreign_files() {
        let table = FileHeader { number: 7, ..FileHeader::default() }.encode(Magic::Table);
        assert!(look(&[("000007.sst", &table), ("notes.txt", b"mine")]).unwrap_err().is_corruption());
        assert!(look(&[("000007.wal", &[0; 65])]).unwrap_err().is_corruption());
    }

    #[test]
    fn names_of_ours_with_other_content_are_foreign() {
        check_foreign(&[("000007.sst", b"")], "000007.sst");
        check_foreign(&[("MANIFEST-000002", b"tamis of another kind")], "MANIFEST-000002");
        check_foreign(&[("000007.wal", b"\0\0\0is")], "000007.wal");
        let dir = tempfile::tempdir().unwrap();
        crate::vfs::OsFileSystem.create_dir(&dir.path().join("000007.sst")).unwrap();
        let error = find(&crate::vfs::OsFileSystem, dir.path()).unwrap_err();
        assert!(matches!(&error, Error::NotAStore { found, .. } if found.contains("000007.sst")), "{error}");
    }

    #[test]
    fn a_failed_read_is_not_taken_for_an_absent_file() {
        let fs = || {
            let fs = SimFileSystem::new();
            fs.create_dir(Path::new(DIR)).unwrap();
            fs
        };
        let store = fs();
        current::switch(&store, Path::new(DIR), 2).unwrap();
        let header = FileHeader { number: 2, first: 1, ..FileHeader::default() };
        let (empty_log, foreign, damaged) = (fs(), fs(), fs());
        empty_log.write("/store/000003.wal", header.encode(Magic::Wal)).unwrap();
        foreign.write("/store/CURRENT", "MANIFEST-000004\n").unwrap();
        foreign.write("/store/IDENTITY", "0af5-11").unwrap();
        damaged.write("/store/CURRENT", "tamis 1\n").unwrap();
        damaged.write("/store/MANIFEST-000002", header.encode(Magic::Manifest)).unwrap();
        for fs in [store, empty_log, foreign, damaged] {
            let whole = find(&fs, Path::new(DIR)).map_err(|error| error.to_string());
            for at in 1.. {
                fs.set_fault(Some(Fault { at, mode: FaultMode::ReadError, sticky: false }));
                let found = find(&fs, Path::new(DIR));
                if !fs.fault_hit() {
                    assert!(at > 1);
                    break;
                }
                let error = found.unwrap_err();
                assert!(matches!(error, Error::Io { .. }) || whole == Err(error.to_string()), "{at}: {error}");
            }
            fs.set_fault(Some(Fault { at: 1, mode: FaultMode::ReadError, sticky: false }));
            assert!(current::begins_as_ours(&fs, Path::new(DIR)).is_err());
        }
    }

    #[test]
    fn a_file_is_no_store() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        crate::log::testing::put_file(&path, b"text");
        let error = find(&crate::vfs::OsFileSystem, &path).unwrap_err();
        assert!(matches!(error, Error::NotAStore { .. }), "{error}");
    }
}
