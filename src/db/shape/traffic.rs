//! [`Traffic`]: what flushes and compactions have read from the levels of a keyspace and written to
//! them.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::tree::version::LEVELS;

/// Bytes of tables and value files by level, since the store was opened. It goes with its keyspace.
#[derive(Default)]
pub(crate) struct Traffic([LevelTraffic; LEVELS]);

#[derive(Default)]
struct LevelTraffic {
    read: AtomicU64,
    written: AtomicU64,
}

impl Traffic {
    pub(crate) fn add_read(&self, level: u8, bytes: u64) {
        self.level(level).map(|level| level.read.fetch_add(bytes, Ordering::Relaxed));
    }

    pub(crate) fn add_written(&self, level: u8, bytes: u64) {
        self.level(level).map(|level| level.written.fetch_add(bytes, Ordering::Relaxed));
    }

    /// Bytes read and written.
    pub(crate) fn of_level(&self, level: u8) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.level(level).map_or((0, 0), |level| (load(&level.read), load(&level.written)))
    }

    fn level(&self, level: u8) -> Option<&LevelTraffic> {
        self.0.get(usize::from(level))
    }
}
