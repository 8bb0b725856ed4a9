//! [`Faults`]: flags that make a node fail, for fault runs. They are there with the feature
//! `faults`, with which no release can be built.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Args;

use crate::machine::Version;
use crate::raft::{FreeSpace, Settings};
use crate::volatile::Volatile;

/// Between two looks at how wrong the clock is.
const LOOK: Duration = Duration::from_millis(20);

/// What is to go wrong.
#[derive(Debug, Args)]
pub(crate) struct Faults {
    /// Milliseconds by which each sync of the logs is delayed: a slow disk
    #[arg(long, default_value_t = 0, hide = true)]
    test_sync_delay_ms: u64,
    /// Lose what is not synced when the process is killed
    #[arg(long, hide = true)]
    test_power_cuts: bool,
    /// Do not sync the logs: a fault that tests must find
    #[arg(long, hide = true)]
    test_skip_sync: bool,
    /// Be a node of an older version
    #[arg(long, value_name = "NUMBER", hide = true)]
    test_version: Option<u8>,
    /// File that says how many bytes the disk has free
    #[arg(long, value_name = "FILE", hide = true)]
    test_free_space: Option<PathBuf>,
    /// File that says how many milliseconds the clock is ahead
    #[arg(long, value_name = "FILE", hide = true)]
    test_clock_error: Option<PathBuf>,
}

impl Faults {
    /// Settings of a node that fails so.
    pub(crate) fn apply(&self, mut settings: Settings) -> Settings {
        settings.sync_delay = Duration::from_millis(self.test_sync_delay_ms);
        settings.skip_sync = self.test_skip_sync;
        settings.version = self.test_version.map_or(settings.version, Version::new);
        if self.test_power_cuts {
            settings.store = settings.store.file_system(Arc::new(Volatile));
        }
        if let Some(file) = self.test_free_space.clone() {
            let read = move || std::fs::read_to_string(&file).ok()?.trim().parse().ok();
            settings.free_space = FreeSpace::new(move |_| Ok(read().unwrap_or(u64::MAX - 1)));
        }
        if let Some(file) = self.test_clock_error.clone() {
            let wall = settings.wall.clone();
            let error = move || std::fs::read_to_string(&file).ok()?.trim().parse().ok();
            wall.set_error(error().unwrap_or(0));
            thread::spawn(move || {
                loop {
                    thread::sleep(LOOK);
                    wall.set_error(error().unwrap_or(0));
                }
            });
        }
        settings
    }
}
