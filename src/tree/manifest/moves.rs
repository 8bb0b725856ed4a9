//! The moves of a repair: files that it takes out of the store once its manifest is in force.
//!
//! The list is written to `lost/moves-000130.txt` before manifest 130 comes into force, and removed
//! when all files have been moved. Until then, opening the store must finish the moves: the store
//! needs none of these files, but the repair's report says that they are in `lost`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{IoContext, Result};
use crate::format::filename::FileKind;
use crate::vfs::{FileSystem, read_small_file};

/// The directory that receives files that no longer belong to the store.
pub(crate) const LOST: &str = "lost";
/// The subdirectory of `lost` for tables that may or may not belong to the store.
pub(crate) const UNCERTAIN: &str = "uncertain";

const PREFIX: &str = "moves-";
/// Enough for more than twenty million moves.
const MAX_LEN: usize = 1 << 30;

/// A file, and its destination relative to the store's directory.
pub(crate) type Move = (FileKind, PathBuf);

/// Writes the moves of the repair that creates manifest `number`. The caller syncs `lost`.
pub(crate) fn write(fs: &dyn FileSystem, dir: &Path, number: u64, moves: &[Move]) -> Result<()> {
    let path = dir.join(LOST).join(format!("{PREFIX}{number:06}.txt"));
    let lines = moves.iter().map(|(kind, to)| format!("{}\t{}\n", kind.name(), to.display()));
    let file = fs.create(&path).during("create", &path)?;
    file.append(lines.collect::<String>().as_bytes()).during("write", &path)?;
    file.sync().during("sync", &path)
}

/// Unfinished moves of interrupted repairs, for those of `files` that the store does not need, in
/// the order of `files`.
pub(crate) fn unfinished(
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
pub(crate) fn finish(fs: &dyn FileSystem, dir: &Path, moves: &[Move]) -> Result<()> {
    for (kind, to) in moves {
        let (from, to) = (kind.path(dir), dir.join(to));
        fs.rename(&from, &to).during("move", &from)?;
    }
    let lost = dir.join(LOST);
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
