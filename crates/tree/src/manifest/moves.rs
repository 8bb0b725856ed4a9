//! The moves of a repair: files that it takes out of the store once its manifest is in force.
//!
//! The repair writes the list to `lost/moves-000130.txt` before manifest 130 comes into force. Each
//! line is a file's name, a tab, and its destination relative to the store's directory. The list is
//! removed when all files have been moved. Until then, opening the store must finish the moves: the
//! store needs none of these files, but the repair's report says that they are in `lost`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{IoContext, Result};
use crate::format::filename::FileKind;
use crate::vfs::{FileSystem, read_small_file};

/// The directory that receives files that no longer belong to the store.
pub const LOST: &str = "lost";
/// The subdirectory of `lost` for tables that may or may not belong to the store.
pub const UNCERTAIN: &str = "uncertain";

const PREFIX: &str = "moves-";
/// Enough for more than twenty million moves.
const MAX_LEN: usize = 1 << 30;

/// A file, and its destination relative to the store's directory.
pub type Move = (FileKind, PathBuf);

/// Writes the moves of the repair that creates manifest `number`. The caller syncs `lost`.
pub fn write(fs: &dyn FileSystem, dir: &Path, number: u64, moves: &[Move]) -> Result<()> {
    let path = dir.join(LOST).join(format!("{PREFIX}{number:06}.txt"));
    let lines = moves.iter().map(|(kind, to)| format!("{}\t{}\n", kind.name(), to.display()));
    let file = fs.create(&path).during("create", &path)?;
    file.append(lines.collect::<String>().as_bytes()).during("write", &path)?;
    file.sync().during("sync", &path)
}

/// Unfinished moves of interrupted repairs, sorted by file name, for those of `files` that the
/// store does not need. `files` must be sorted.
pub fn unfinished(
    fs: &dyn FileSystem,
    dir: &Path,
    files: &[FileKind],
    is_needed: impl Fn(FileKind) -> bool,
) -> Result<Vec<Move>> {
    let mut moves: BTreeMap<String, Move> = BTreeMap::new();
    for path in lists(fs, dir)? {
        let bytes = read_small_file(fs, &path, MAX_LEN).during("read", &path)?;
        let text = String::from_utf8_lossy(&bytes);
        for (name, to) in text.lines().filter_map(|line| line.split_once('\t')) {
            let Some(kind) =
                FileKind::parse(name).filter(|kind| files.binary_search(kind).is_ok() && !is_needed(*kind))
            else {
                continue;
            };
            if is_below_lost(Path::new(to), name) {
                moves.entry(name.to_owned()).or_insert_with(|| (kind, to.into()));
            }
        }
    }
    Ok(moves.into_values().collect())
}

/// Whether a repair moves the file called `name` to `to`. Lines of a torn list may say anything.
fn is_below_lost(to: &Path, name: &str) -> bool {
    let has_name = to.file_name().and_then(|to| to.to_str()).is_some_and(|to| to.starts_with(name));
    has_name && to.parent().is_some_and(|to| to == Path::new(LOST) || to == Path::new(LOST).join(UNCERTAIN))
}

/// Carries out moves durably, then removes all lists, also those finished before.
pub fn finish(fs: &dyn FileSystem, dir: &Path, moves: &[Move]) -> Result<()> {
    let lost = dir.join(LOST);
    if !moves.is_empty() {
        // Somebody may have removed it since, if it was empty.
        let uncertain = lost.join(UNCERTAIN);
        fs.create_dir(&uncertain).during("create", &uncertain)?;
    }
    for (kind, to) in moves {
        let (from, to) = (kind.path(dir), dir.join(to));
        fs.rename(&from, &to).during("move", &from)?;
    }
    if !moves.is_empty() {
        for synced in [lost.join(UNCERTAIN), lost.clone(), dir.to_owned()] {
            fs.sync_dir(&synced).during("sync", &synced)?;
        }
    }
    for path in lists(fs, dir)? {
        fs.remove(&path).during("remove", &path)?;
    }
    Ok(())
}

/// Paths of the existing lists.
fn lists(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<PathBuf>> {
    let lost = dir.join(LOST);
    let names = match fs.list(&lost) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        names => names.during("list", &lost)?,
    };
    let mut lists: Vec<PathBuf> =
        names.iter().filter(|name| name.starts_with(PREFIX)).map(|name| lost.join(name)).collect();
    lists.sort_unstable();
    Ok(lists)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::{Fault, FaultMode, SimFileSystem};

    const TABLE: FileKind = FileKind::Table(7);
    const OTHER: FileKind = FileKind::Table(8);
    const LOG: FileKind = FileKind::Wal(9);

    /// A store of three files, made durable.
    fn store() -> (SimFileSystem, &'static Path) {
        let (fs, dir) = (SimFileSystem::new(), Path::new("/db"));
        for dir in [dir.to_owned(), dir.join(LOST), dir.join(LOST).join(UNCERTAIN)] {
            fs.create_dir(&dir).unwrap();
        }
        for kind in [TABLE, OTHER, LOG] {
            let file = fs.create(&kind.path(dir)).unwrap();
            file.append(kind.name().as_bytes()).unwrap();
            file.sync().unwrap();
        }
        for dir in [Path::new("/").to_owned(), dir.to_owned(), dir.join(LOST)] {
            fs.sync_dir(&dir).unwrap();
        }
        (fs, dir)
    }

    fn moves() -> Vec<Move> {
        vec![(TABLE, "lost/000007.sst".into()), (LOG, "lost/uncertain/000009.wal.2".into())]
    }

    fn unfinished_of(fs: &SimFileSystem) -> Vec<Move> {
        unfinished(fs, Path::new("/db"), &[LOG, TABLE, OTHER], |_| false).unwrap()
    }

    #[test]
    fn moves_are_written_and_found_again() {
        let (fs, dir) = store();
        assert_eq!(unfinished_of(&fs), []);
        write(&fs, dir, 130, &moves()).unwrap();
        fs.sync_dir(&dir.join(LOST)).unwrap();
        let fs = fs.crash(0);
        let text = String::from_utf8(fs.read("/db/lost/moves-000130.txt").unwrap()).unwrap();
        assert_eq!(text, "000007.sst\tlost/000007.sst\n000009.wal\tlost/uncertain/000009.wal.2\n");
        assert_eq!(unfinished_of(&fs), moves());
        // Files that are gone, or that the store needs, stay.
        assert_eq!(unfinished(&fs, dir, &[TABLE], |_| false).unwrap(), moves()[..1]);
        assert_eq!(unfinished(&fs, dir, &[LOG, TABLE], |kind| kind == TABLE).unwrap(), moves()[1..]);
    }

    #[test]
    fn lines_that_no_repair_writes_move_nothing() {
        let (fs, dir) = store();
        let lines = [
            "000007.sst",
            "000007.sst\t",
            "000007.sst\t000007.sst",
            "000007.sst\t/db/lost/000007.sst",
            "000007.sst\t../lost/000007.sst",
            "000007.sst\tlost/..",
            "000007.sst\tlost/000008.sst",
            "000007.sst\tlost/deeper/000007.sst",
            "000007.sst\tuncertain/000007.sst",
            "words\tlost/words",
        ];
        fs.write(dir.join(LOST).join("moves-000130.txt"), lines.join("\n")).unwrap();
        assert_eq!(unfinished_of(&fs), []);
    }

    #[test]
    fn of_several_lists_the_oldest_counts() {
        let (fs, dir) = store();
        fs.write(dir.join(LOST).join("moves-000131.txt"), "000007.sst\tlost/000007.sst.2\n").unwrap();
        write(&fs, dir, 130, &moves()).unwrap();
        assert_eq!(unfinished_of(&fs), moves());
    }

    #[test]
    fn finished_moves_survive_a_power_cut_and_leave_no_list() {
        let (fs, dir) = store();
        write(&fs, dir, 130, &moves()).unwrap();
        fs.write(dir.join(LOST).join("report-000130.txt"), "a report").unwrap();
        finish(&fs, dir, &moves()).unwrap();
        assert_eq!(fs.list(&dir.join(LOST)).unwrap(), ["000007.sst", "report-000130.txt", "uncertain"]);
        for seed in 0..20 {
            let fs = fs.crash(seed);
            assert_eq!(fs.read("/db/lost/000007.sst").unwrap(), b"000007.sst");
            assert_eq!(fs.read("/db/lost/uncertain/000009.wal.2").unwrap(), b"000009.wal");
            assert!(fs.file_len(TABLE.path(dir)).is_err() && fs.file_len(LOG.path(dir)).is_err());
            assert!(fs.file_len(OTHER.path(dir)).is_ok());
        }
    }

    #[test]
    fn a_directory_that_somebody_has_removed_is_made_again() {
        let (fs, dir) = (SimFileSystem::new(), Path::new("/db"));
        fs.create_dir(&dir.join(LOST)).unwrap();
        fs.create(&TABLE.path(dir)).unwrap();
        let moves = [(TABLE, Path::new(LOST).join(TABLE.name()))];
        write(&fs, dir, 130, &moves).unwrap();
        finish(&fs, dir, &moves).unwrap();
        assert!(fs.file_len(dir.join(LOST).join(TABLE.name())).is_ok());
    }

    #[test]
    fn no_moves_need_no_sync() {
        let (fs, dir) = store();
        let before = fs.mutations();
        finish(&fs, dir, &[]).unwrap();
        assert_eq!(fs.mutations(), before);
    }

    #[test]
    fn a_store_without_lost_files_has_no_moves_and_an_unreadable_one_fails() {
        let fs = SimFileSystem::new();
        fs.create_dir(Path::new("/db")).unwrap();
        assert_eq!(unfinished_of(&fs), []);
        finish(&fs, Path::new("/db"), &[]).unwrap();
        let (fs, dir) = store();
        fs.set_fault(Some(Fault { at: 1, mode: FaultMode::ReadError, sticky: true }));
        assert!(unfinished(&fs, dir, &[TABLE], |_| false).is_err());
    }
}
