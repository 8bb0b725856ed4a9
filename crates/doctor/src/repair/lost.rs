//! The directory `lost`: files that a repair takes out of the store, and its reports.
//!
//! | name | content |
//! |---|---|
//! | `lost/000012.sst`, … | files that were damaged, or that other files have replaced |
//! | `lost/uncertain/000007.sst`, … | tables that may or may not belong to the store |
//! | `lost/CURRENT-000130` | a copy of a damaged CURRENT |
//! | `lost/repair-000130.txt` | the report of the repair that made manifest 130 |
//! | `lost/moves-000130.txt` | its [moves](tamis_tree::manifest::moves), until they are done |
//! | `lost/new/` | tables being written; empty except after an interruption |
//!
//! No file in it is replaced: if a name is taken, the file gets a suffix, as in `000012.sst.2`.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::GREATEST_COUNTED;
use super::report::MovedFile;
use crate::error::{IoContext, Result};
use crate::format::filename::FileKind;
pub(crate) use crate::tree::manifest::moves::LOST;
use crate::tree::manifest::moves::{self, Move, UNCERTAIN};
use crate::vfs::{FileSystem, read_small_file};

/// Largest CURRENT that is copied.
const MAX_CURRENT_LEN: usize = 64 << 20;

/// The directory that a file is moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostDir {
    Lost,
    Uncertain,
}

impl LostDir {
    fn path(self) -> PathBuf {
        match self {
            LostDir::Lost => LOST.into(),
            LostDir::Uncertain => Path::new(LOST).join(UNCERTAIN),
        }
    }
}

/// The names that are taken in the directories for moved files.
pub(super) struct TakenNames(BTreeSet<PathBuf>);

impl TakenNames {
    pub(super) fn list(fs: &dyn FileSystem, dir: &Path) -> Result<TakenNames> {
        let mut taken = BTreeSet::new();
        for lost_dir in [LostDir::Lost, LostDir::Uncertain] {
            taken.extend(list(fs, &dir.join(lost_dir.path()))?.iter().map(|name| lost_dir.path().join(name)));
        }
        Ok(TakenNames(taken))
    }

    /// Chooses a free name in `lost_dir` for a file, and takes it.
    pub(super) fn take(&mut self, lost_dir: LostDir, kind: FileKind) -> Move {
        let path = lost_dir.path().join(kind.name());
        let numbered = (2..).map(|n| lost_dir.path().join(format!("{}.{n}", kind.name())));
        let free = [path].into_iter().chain(numbered).find(|path| !self.0.contains(path));
        let to = free.unwrap_or_default();
        self.0.insert(to.clone());
        (kind, to)
    }
}

/// Converts moves to the form in which a report states them.
pub(super) fn moved_files(moves: &[Move]) -> Vec<MovedFile> {
    moves.iter().map(|(kind, to)| MovedFile { name: kind.name(), to: to.clone() }).collect()
}

/// The directory in which new tables are written before they are moved into the store.
pub(super) fn new_tables_dir(dir: &Path) -> PathBuf {
    dir.join(LOST).join("new")
}

/// The greatest number in a name below `lost`.
pub(super) fn greatest_number(fs: &dyn FileSystem, dir: &Path) -> Result<u64> {
    let mut greatest = 0;
    for dir in [dir.join(LOST), dir.join(LostDir::Uncertain.path()), new_tables_dir(dir)] {
        greatest = list(fs, &dir)?.iter().filter_map(|name| number_in(name)).fold(greatest, u64::max);
    }
    Ok(greatest)
}

/// The number in the name of a file below `lost`, unless it is too large to be counted.
fn number_in(name: &str) -> Option<u64> {
    let moved = FileKind::parse(name).or_else(|| FileKind::parse(name.rsplit_once('.')?.0));
    let of_repair = || {
        let (kind, number) = name.strip_suffix(".txt").unwrap_or(name).split_once('-')?;
        ["repair", "moves", "CURRENT"].contains(&kind).then(|| number.parse().ok()).flatten()
    };
    moved.and_then(FileKind::number).or_else(of_repair).filter(|number| *number <= GREATEST_COUNTED)
}

/// The names in a directory, which need not exist.
fn list(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<String>> {
    match fs.list(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        names => names.during("list", dir),
    }
}

/// Creates the directories durably, and removes new tables that an interrupted repair left.
pub(super) fn prepare(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    let lost = dir.join(LOST);
    for made in [dir.join(LostDir::Uncertain.path()), new_tables_dir(dir)] {
        fs.create_dir(&made).during("create", &made)?;
    }
    let new = new_tables_dir(dir);
    for name in list(fs, &new)? {
        let path = new.join(name);
        fs.remove(&path).during("remove", &path)?;
    }
    fs.sync_dir(&lost).during("sync", &lost)?;
    fs.sync_dir(dir).during("sync", dir)
}

/// Moves finished tables into the store, durably.
pub(super) fn install_new(fs: &dyn FileSystem, dir: &Path, tables: &[u64]) -> Result<()> {
    let new = new_tables_dir(dir);
    for &number in tables {
        let (from, to) = (FileKind::Table(number).path(&new), FileKind::Table(number).path(dir));
        fs.rename(&from, &to).during("move", &from)?;
    }
    fs.sync_dir(&new).during("sync", &new)?;
    fs.sync_dir(dir).during("sync", dir)
}

/// Writes the report and the moves of the repair that makes manifest `number`. If CURRENT is
/// damaged, copies it before it is overwritten.
pub(super) fn write_report(
    fs: &dyn FileSystem,
    dir: &Path,
    number: u64,
    report: &str,
    moves: &[Move],
    copy_current: bool,
) -> Result<()> {
    let lost = dir.join(LOST);
    let write = |name: String, bytes: &[u8]| -> Result<()> {
        let path = lost.join(name);
        let file = fs.create(&path).during("create", &path)?;
        file.append(bytes).during("write", &path)?;
        file.sync().during("sync", &path)
    };
    if copy_current {
        let current = FileKind::Current.path(dir);
        match read_small_file(fs, &current, MAX_CURRENT_LEN) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => {}
            bytes => write(format!("CURRENT-{number:06}"), &bytes.during("read", &current)?)?,
        }
    }
    write(format!("repair-{number:06}.txt"), report.as_bytes())?;
    moves::write(fs, dir, number, moves)?;
    fs.sync_dir(&lost).during("sync", &lost)
}
