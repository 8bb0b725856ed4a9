//! The system's cache of file pages.

use std::fs::File;
use std::path::Path;

use crate::failure::{Attempt, Result};

/// Drops the pages of a store's tables from the system's cache, where the system can do that, so that they are read from the device
/// again. Nothing is lost: what was not yet written there is written first.
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

/// A hint: a system that does not follow it shows that by reading nothing from the device.
#[cfg(target_os = "linux")]
fn drop_pages(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
fn drop_pages(_file: &File) {}
