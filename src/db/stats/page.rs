//! The statistics page: a file by which a store that is open tells other processes its statistics.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::db::store::Store;
use crate::format::filename::FileKind;
use crate::sync::time;
use crate::vfs::FileSystem;

/// The shortest time between two pages.
const SHORTEST: Duration = Duration::from_millis(10);

/// What a page begins with.
const START: &str = "# HELP tamis_page_time_seconds ";

/// Whether a file is a page, or the beginning of one.
pub(crate) fn begins_as_page(fs: &dyn FileSystem, path: &Path) -> bool {
    let mut start = [0; START.len()];
    let read = fs.open(path).and_then(|file| file.read_at(&mut start, 0));
    read.is_ok_and(|len| START.as_bytes().starts_with(&start[..len]))
}

impl Store {
    /// Writes the page if the options ask for it, and again after the time that they say.
    pub(crate) fn publish_stats(self: &Arc<Self>) {
        if let Some(interval) = self.options.publish_stats {
            self.publish_after(Duration::ZERO, interval);
        }
    }

    fn publish_after(self: &Arc<Self>, delay: Duration, interval: Duration) {
        self.do_later(delay, move |store| {
            let page = store.report.page_turn();
            // After that it is removed, and another process may have its own.
            if store.gate.check_open().is_ok() && store.gate.is_lock_in_force() {
                // The next page is another attempt.
                let _ = store.write_page(interval);
                drop(page);
                store.publish_after(interval.max(SHORTEST), interval);
            }
        });
    }

    fn write_page(&self, interval: Duration) -> io::Result<()> {
        let since_1970 = time::system_time().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seconds, interval) = (since_1970.as_secs_f64(), interval.as_secs_f64());
        let page = format!(
            "{START}When this was written, since 1970.\n\
             # TYPE tamis_page_time_seconds gauge\n\
             tamis_page_time_seconds {seconds:.3}\n\
             # HELP tamis_page_interval_seconds How often it is written.\n\
             # TYPE tamis_page_interval_seconds gauge\n\
             tamis_page_interval_seconds {interval}\n{}",
            self.stats().to_prometheus()
        );
        let fs = &*self.options.file_system;
        let (path, temp) = (FileKind::Stats.path(self.dir()), FileKind::StatsTemp.path(self.dir()));
        // What an interruption has left. If this fails, so does `create`.
        let _ = fs.remove(&temp);
        fs.create(&temp)?.append(page.as_bytes())?;
        fs.rename(&temp, &path)
    }

    /// Removes the page: what it says no longer holds.
    pub(crate) fn remove_stats_page(&self) {
        if self.options.publish_stats.is_some() && self.gate.is_lock_in_force() {
            let _page = self.report.page_turn();
            for kind in [FileKind::Stats, FileKind::StatsTemp] {
                // What is left goes with the next opening.
                let _ = self.options.file_system.remove(&kind.path(self.dir()));
            }
        }
    }
}
