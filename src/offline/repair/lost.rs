//! The directory `lost`, into which a repair moves what no longer belongs to the store, and the
//! reports in it.
//!
//! | name | content |
//! |---|---|
//! | `lost/000012.sst`, … | files that were damaged, or that something else has replaced |
//! | `lost/uncertain/000007.sst`, … | tables that may or may not belong to the store |
//! | `lost/CURRENT-000130` | a copy of a damaged CURRENT |
//! | `lost/repair-000130.txt` | the report of the repair that made manifest 130 |
//! | `lost/moves-000130.txt` | its [moves](crate::tree::manifest::moves), until they have been done |
//! | `lost/new/` | tables being written; empty but for an interruption |
//!
//! Nothing that is there is replaced: a file whose name is taken gets another one behind its own,
//! as in `000012.sst.2`.

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

/// Longest CURRENT that is kept.
const MAX_CURRENT_LEN: usize = 64 << 20;

/// Where a file goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Lost,
    Uncertain,
}

impl Place {
    fn dir(self) -> PathBuf {
        match self {
            Place::Lost => LOST.into(),
            Place::Uncertain => Path::new(LOST).join(UNCERTAIN),
        }
    }
}

/// The names that are taken in the directories for moved files.
pub(super) struct Taken(BTreeSet<PathBuf>);

impl Taken {
    pub(super) fn list(fs: &dyn FileSystem, dir: &Path) -> Result<Taken> {
        let mut taken = BTreeSet::new();
        for place in [Place::Lost, Place::Uncertain] {
            taken.extend(list(fs, &dir.join(place.dir()))?.iter().map(|name| place.dir().join(name)));
        }
        Ok(Taken(taken))
    }

    /// What moving a file to `place` comes to.
    pub(super) fn take(&mut self, place: Place, kind: FileKind) -> Move {
        let path = place.dir().join(kind.name());
        let numbered = (2..).map(|n| place.dir().join(format!("{}.{n}", kind.name())));
        let free = [path].into_iter().chain(numbered).find(|path| !self.0.contains(path));
        let to = free.unwrap_or_default();
        self.0.insert(to.clone());
        (kind, to)
    }
}

/// How a report states moves.
pub(super) fn in_report(moves: &[Move]) -> Vec<MovedFile> {
    moves.iter().map(|(kind, to)| MovedFile { name: kind.name(), to: to.clone() }).collect()
}

/// Where new tables are written before they get their place.
pub(super) fn dir_of_new(dir: &Path) -> PathBuf {
    dir.join(LOST).join("new")
}

/// The greatest number in a name below `lost`.
pub(super) fn greatest_number(fs: &dyn FileSystem, dir: &Path) -> Result<u64> {
    let mut greatest = 0;
    for dir in [dir.join(LOST), dir.join(Place::Uncertain.dir()), dir_of_new(dir)] {
        greatest = list(fs, &dir)?.iter().filter_map(|name| number_in(name)).fold(greatest, u64::max);
    }
    Ok(greatest)
}

/// The number in the name of a file below `lost`, unless it is too great to be counted.
fn number_in(name: &str) -> Option<u64> {
    let moved = FileKind::parse(name).or_else(|| FileKind::parse(name.rsplit_once('.')?.0));
    let of_repair = || {
        let (kind, number) = name.strip_suffix(".txt").unwrap_or(name).split_once('-')?;
        ["repair", "moves", "CURRENT"].contains(&kind).then(|| number.parse().ok()).flatten()
    };
    moved.and_then(FileKind::number).or_else(of_repair).filter(|number| *number <= GREATEST_COUNTED)
}

/// Names in a directory that need not exist.
fn list(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<String>> {
    match fs.list(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        names => names.during("list", dir),
    }
}

/// Makes the directories, durably, and clears what an interrupted repair has left of new tables.
pub(super) fn prepare(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    let lost = dir.join(LOST);
    for made in [dir.join(Place::Uncertain.dir()), dir_of_new(dir)] {
        fs.create_dir(&made).during("create", &made)?;
    }
    let new = dir_of_new(dir);
    for name in list(fs, &new)? {
        let path = new.join(name);
        fs.remove(&path).during("remove", &path)?;
    }
    fs.sync_dir(&lost).during("sync", &lost)?;
    fs.sync_dir(dir).during("sync", dir)
}

/// Brings finished tables to their place, durably.
pub(super) fn place_new(fs: &dyn FileSystem, dir: &Path, tables: &[u64]) -> Result<()> {
    let new = dir_of_new(dir);
    for &number in tables {
        let (from, to) = (FileKind::Table(number).path(&new), FileKind::Table(number).path(dir));
        fs.rename(&from, &to).during("move", &from)?;
    }
    fs.sync_dir(&new).during("sync", &new)?;
    fs.sync_dir(dir).during("sync", dir)
}

/// Keeps report and moves of the repair that makes manifest `number`, and a copy of CURRENT, if that
/// is damaged and so must not be written over without one.
pub(super) fn keep_report(
    fs: &dyn FileSystem,
    dir: &Path,
    number: u64,
    report: &str,
    moves: &[Move],
    keep_current: bool,
) -> Result<()> {
    let lost = dir.join(LOST);
    let write = |name: String, bytes: &[u8]| -> Result<()> {
        let path = lost.join(name);
        let file = fs.create(&path).during("create", &path)?;
        file.append(bytes).during("write", &path)?;
        file.sync().during("sync", &path)
    };
    if keep_current {
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
