//! Where a store may be: what a directory holds if its `CURRENT` is absent or unreadable.
//!
//! A store is created in an absent or an empty directory, and nowhere else. A directory also counts
//! as empty if it holds only what an interrupted creation left, and `lost+found`. A look changes
//! nothing.

use std::io;
use std::path::Path;

use super::current;
use crate::error::{Error, IoContext, Result};
use crate::format::filename::FileKind;
use crate::format::header::{FILE_HEADER_LEN, Magic};
use crate::vfs::FileSystem;

/// What the file systems of the ext family put into their root.
const LOST_AND_FOUND: &str = "lost+found";
/// Names that an error lists before it only counts.
const LISTED: usize = 3;

/// The number of the manifest in force; `None` if `dir` is free for a new store. Refuses a
/// directory that holds anything else.
pub(crate) fn find(fs: &dyn FileSystem, dir: &Path) -> Result<Option<u64>> {
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
            return Err(not_a_store(dir, "it is not a directory"));
        }
        found => return found,
    };
    // Another process may have created the store between the two looks.
    match current::read(fs, dir) {
        Ok(Some(number)) => Ok(Some(number)),
        _ => Err(error),
    }
}

/// A store comes to life with its `CURRENT`, so that without one there can be no table and no entry
/// in a log.
fn refuse_content(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    let content = Content::of(fs, dir)?;
    if let Some(kind) = content.data {
        let rule = format!("there is no CURRENT, but {} has data", kind.name());
        return Err(Error::corruption(&FileKind::Current.path(dir), 0, rule));
    }
    match content.foreign.is_empty() {
        true => Ok(()),
        false => Err(not_a_store(dir, content.in_words())),
    }
}

/// A `CURRENT` that cannot be read is damage if it, or any file beside it, begins as only ours do.
fn refuse_foreign(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    let start = beginning(fs, &FileKind::Current.path(dir))?;
    let content = Content::of(fs, dir)?;
    if start.starts_with(current::START.as_bytes()) || content.has_magic {
        return Ok(());
    }
    Err(match start.starts_with(b"MANIFEST") {
        true => not_a_store(dir, content.kin()),
        false => not_a_store(dir, "its CURRENT was written by another program"),
    })
}

fn not_a_store(dir: &Path, found: impl Into<String>) -> Error {
    Error::NotAStore { dir: dir.to_owned(), found: found.into() }
}

/// Files of a directory, apart from `CURRENT`.
#[derive(Default)]
struct Content {
    /// A table of ours, or a log of ours that is longer than its header.
    data: Option<FileKind>,
    /// Whether a file begins with magic bytes of ours.
    has_magic: bool,
    /// Names of other files, sorted.
    foreign: Vec<String>,
}

impl Content {
    fn of(fs: &dyn FileSystem, dir: &Path) -> Result<Content> {
        let mut names = match fs.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::default()),
            names => names.during("list", dir)?,
        };
        names.sort_unstable();
        let mut content = Content::default();
        for name in names {
            match FileKind::parse(&name) {
                Some(FileKind::Current | FileKind::CurrentTemp | FileKind::Lock) => {}
                Some(kind @ FileKind::Manifest(_)) => content.add(fs, dir, kind, Magic::Manifest)?,
                Some(kind @ FileKind::Wal(_)) => content.add(fs, dir, kind, Magic::Wal)?,
                Some(kind @ FileKind::Table(_)) => content.add(fs, dir, kind, Magic::Table)?,
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
        let is_empty_table = start.is_empty() && matches!(kind, FileKind::Table(_));
        if is_empty_table || start[same..].iter().any(|byte| *byte != 0) {
            self.foreign.push(kind.name());
            return Ok(());
        }
        let has_data = match kind {
            FileKind::Table(_) => true,
            FileKind::Wal(_) => {
                fs.open(&path).and_then(|file| file.len()).during("open", &path)? > FILE_HEADER_LEN as u64
            }
            _ => false,
        };
        self.data = self.data.or(has_data.then_some(kind));
        Ok(())
    }

    fn in_words(&self) -> String {
        let listed = self.foreign.iter().take(LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
        match self.foreign.len().saturating_sub(LISTED) {
            0 => format!("it holds {listed}"),
            more => format!("it holds {listed} and {more} more"),
        }
    }

    /// Whose files they are if `CURRENT` holds no more than the name of a manifest.
    fn kin(&self) -> &'static str {
        let is_rocksdb = |name: &String| name == "IDENTITY" || name.starts_with("OPTIONS-");
        match self.foreign.iter().any(is_rocksdb) {
            true => "it is a RocksDB store, by its files",
            false => "it is a LevelDB store, by its CURRENT",
        }
    }
}

/// The first bytes of a file, as many as a file's magic has. A directory begins with none of ours.
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
    use crate::vfs::SimFileSystem;

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
    fn a_file_is_no_store() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        crate::write::log::testing::put_file(&path, b"text");
        let error = find(&crate::vfs::OsFileSystem, &path).unwrap_err();
        assert!(matches!(error, Error::NotAStore { .. }), "{error}");
    }
}
