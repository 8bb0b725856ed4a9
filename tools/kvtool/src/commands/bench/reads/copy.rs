//! Copies a store, sharing its tables by hard links.

use std::fs;
use std::path::Path;

use crate::failure::{Attempt, Result};

/// Makes `to` a copy of the store `from`, which is not changed.
///
/// Tables are immutable, so a hard link suffices; where linking fails, they are copied. All other
/// files are copied first, so they name no table that is created later. Fails if another process
/// removes a table meanwhile.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to).attempt(format_args!("cannot create {}", to.display()))?;
    let what = format!("cannot read {}", from.display());
    let (mut tables, mut others) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(from).attempt(&what)? {
        let entry = entry.attempt(&what)?;
        let is_table = Path::new(&entry.file_name()).extension().is_some_and(|extension| extension == "sst");
        // The lock is the other store's.
        if entry.file_type().attempt(&what)?.is_file() && entry.file_name() != "LOCK" {
            if is_table { tables.push(entry) } else { others.push(entry) }
        }
    }
    for entry in others.into_iter().chain(tables) {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let is_table = source.extension().is_some_and(|extension| extension == "sst");
        if !is_table || fs::hard_link(&source, &target).is_err() {
            fs::copy(&source, &target).attempt(format_args!("cannot copy {}", source.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_but_the_lock_are_in_the_copy() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("directory")).unwrap();
        let files = ["CURRENT", "MANIFEST-000003", "000008.wal", "000007.sst"];
        for name in files.iter().chain(&["LOCK"]) {
            fs::write(from.join(name), name).unwrap();
        }
        copy(&from, &to).unwrap();
        let mut names: Vec<_> = fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["000007.sst", "000008.wal", "CURRENT", "MANIFEST-000003"]);
        for name in files {
            assert_eq!(fs::read(to.join(name)).unwrap(), name.as_bytes());
        }
        // What may be written to is the copy's own.
        fs::write(to.join("000008.wal"), "more").unwrap();
        assert_eq!(fs::read(from.join("000008.wal")).unwrap(), b"000008.wal");
        assert!(copy(&from, &to).is_err(), "there is a store already");
    }
}
