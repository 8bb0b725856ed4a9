//! The system's cache of file pages.

use std::fs::File;
use std::path::Path;

use crate::failure::{Attempt, Result};

/// Drops the pages of a store's tables from the system's cache, where the system supports it, so
/// that the next read comes from the device. Loses nothing: dirty pages are synced first.
pub(super) fn drop_from_cache(dir: &Path) -> Result<()> {
    let what = format!("cannot read {}", dir.display());
    for entry in std::fs::read_dir(dir).attempt(&what)? {
        let path = entry.attempt(&what)?.path();
        if path.extension().is_some_and(|extension| extension == "sst") {
            let file = File::open(&path).attempt(format_args!("cannot open {}", path.display()))?;
            file.sync_data().attempt(format_args!("cannot sync {}", path.display()))?;
            drop_pages(&file);
        }
    }
    Ok(())
}

/// A hint. If the system ignores it, the count of bytes from the device shows that.
#[cfg(target_os = "linux")]
fn drop_pages(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
fn drop_pages(_file: &File) {}
