//! A second store of the same tables.

use std::fs;
use std::path::Path;

use crate::failure::{Attempt, Result};

/// Makes `to` a store with the content of `from`, which is left as it is.
///
/// Tables are never written again once they are there, so a hard link does; where there can be none, they are copied. All else is
/// copied, and first: it names no table that is made later. Should another process remove one meanwhile, this fails.
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
