//! Memory and open files of a process, where the system reports them.

use std::fmt;
use std::fs;

use crate::text::{counted, size};

/// The maximum seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Resident, in bytes.
    pub(super) memory: u64,
    pub(super) files: u64,
}

impl Usage {
    /// Measures process `id`. Figures that the system does not report count as 0.
    pub(super) fn note(&mut self, id: u32) {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        self.memory = self.memory.max(kib.unwrap_or(0) * 1024);
        self.files = self.files.max(entries(&format!("/proc/{id}/fd")).unwrap_or(0));
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {} at most", size(self.memory), counted(self.files, "open file"))
    }
}

/// Files that this process has open.
pub(super) fn open_files() -> Option<u64> {
    entries("/proc/self/fd")
}

fn entries(dir: &str) -> Option<u64> {
    Some(fs::read_dir(dir).ok()?.count() as u64)
}
