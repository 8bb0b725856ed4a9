//! The operating system's figures for this process and for files: processor time, memory, reads and
//! writes, space.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Result;

/// The counters of the process at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// By the wall clock.
    pub at: Instant,
    /// Processor time of all threads.
    pub cpu: Duration,
    /// Reads and writes.
    pub io: Io,
}

/// Reads and writes of the process since its start; zeros where the system does not count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Io {
    /// System calls that read.
    pub read_calls: u64,
    /// Bytes that these calls returned, including those from the system's cache.
    pub bytes_read: u64,
    /// Bytes read from a device.
    pub device_read: u64,
    /// Bytes of dirtied pages, which go to a device; through mappings too. A page written twice
    /// before its write-back counts once.
    pub device_written: u64,
    /// Bytes that system calls have written.
    pub bytes_written: u64,
}

impl Moment {
    /// Now.
    pub fn now() -> Moment {
        Moment { at: Instant::now(), cpu: cpu_time(), io: Io::now() }
    }
}

impl Io {
    fn now() -> Io {
        let mut text = String::new();
        let read = File::open("/proc/self/io").and_then(|mut file| file.read_to_string(&mut text));
        if read.is_err() {
            return Io::default();
        }
        Io::parse(&text)
    }

    fn parse(text: &str) -> Io {
        let figure = |name: &str| -> u64 {
            let mut lines = text.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(found, _)| *found == name).and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
        };
        Io {
            read_calls: figure("syscr"),
            bytes_read: figure("rchar"),
            device_read: figure("read_bytes"),
            device_written: figure("write_bytes"),
            bytes_written: figure("wchar"),
        }
    }

    /// The difference between `earlier` and this.
    pub fn since(self, earlier: Io) -> Io {
        Io {
            read_calls: self.read_calls.saturating_sub(earlier.read_calls),
            bytes_read: self.bytes_read.saturating_sub(earlier.bytes_read),
            device_read: self.device_read.saturating_sub(earlier.device_read),
            device_written: self.device_written.saturating_sub(earlier.device_written),
            bytes_written: self.bytes_written.saturating_sub(earlier.bytes_written),
        }
    }

    /// Bytes written, for write amplification. System calls do not show what is written through
    /// mappings, as LMDB does; dirtied pages do not show a log that is recycled while its pages
    /// are still dirty, as RocksDB's when tuned.
    pub fn written(self) -> u64 {
        self.device_written.max(self.bytes_written)
    }
}

/// Processor time of all threads of this process.
pub fn cpu_time() -> Duration {
    cpu_time::ProcessTime::now().as_duration()
}

/// Bytes that a file occupies on its device; its length where the system does not report them.
fn allocated(metadata: &fs::Metadata) -> u64 {
    #[cfg(unix)]
    {
        std::os::unix::fs::MetadataExt::blocks(metadata) * 512
    }
    #[cfg(not(unix))]
    {
        metadata.len()
    }
}

/// Waits until this process uses hardly any processor time, so that the engine's background work is
/// idle. Returns how long the work lasted.
pub fn wait_until_idle() -> Duration {
    const WINDOW: Duration = Duration::from_millis(50);
    /// Quiet windows in a row, because an engine may pause between two compactions.
    const QUIET: u32 = 4;
    const PATIENCE: Duration = Duration::from_secs(300);
    let start = Instant::now();
    let (mut quiet, mut busy_until) = (0, Duration::ZERO);
    while quiet < QUIET && start.elapsed() < PATIENCE {
        let before = cpu_time();
        std::thread::sleep(WINDOW);
        if cpu_time() - before > WINDOW / 20 {
            quiet = 0;
            busy_until = start.elapsed();
        } else {
            quiet += 1;
        }
    }
    busy_until
}

/// Peak resident set in bytes since the process started or since [`reset_peak_memory`]; 0 where the
/// system does not report it.
pub fn peak_memory() -> u64 {
    status("VmHWM:")
}

/// Current resident memory without file pages.
pub fn anonymous_memory() -> u64 {
    status("RssAnon:")
}

fn status(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Resets [`peak_memory`], where the system supports it.
pub fn reset_peak_memory() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Bytes that the files below `dir` occupy on disk. Files removed meanwhile count as 0.
pub fn disk_usage(dir: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => sum += disk_usage(&entry.path())?,
            Ok(metadata) => sum += allocated(&metadata),
            Err(_) => {}
        }
    }
    Ok(sum)
}

/// Drops the pages of the files below `dir` from the system's cache, so that the next reads come
/// from the device. Loses nothing: dirty pages are synced first. No process may have the files
/// mapped.
pub fn drop_pages(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            drop_pages(&path)?;
        } else {
            let file = File::open(&path)?;
            file.sync_all()?;
            #[cfg(target_os = "linux")]
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

/// Makes the file system of `dir` write its dirty pages, so that earlier work is not part of the
/// measurement.
pub fn settle_file_system(dir: &Path) -> Result<()> {
    #[cfg(target_os = "linux")]
    rustix::fs::syncfs(File::open(dir)?)?;
    #[cfg(not(target_os = "linux"))]
    let _ = dir;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_named_lines() {
        let text = "rchar: 4096\nwchar: 7\nsyscr: 3\nsyscw: 1\nread_bytes: 512\nwrite_bytes: 8192\n";
        let io = Io { read_calls: 3, bytes_read: 4096, device_read: 512, device_written: 8192, bytes_written: 7 };
        assert_eq!(Io::parse(text), io);
        assert_eq!(io.since(Io::default()), io);
        assert_eq!(Io::parse("nothing"), Io::default());
        assert_eq!((io.written(), Io { bytes_written: 9000, ..io }.written()), (8192, 9000));
    }

    #[test]
    fn disk_usage_counts_files_in_directories() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("inner")).unwrap();
        fs::write(dir.path().join("inner").join("file"), vec![1; 100_000]).unwrap();
        let usage = disk_usage(dir.path()).unwrap();
        assert!((100_000..200_000).contains(&usage), "{usage}");
        drop_pages(dir.path()).unwrap();
    }
}
