//! [`MappedCopies`]: reads of a file that need no system call while its pages are in memory.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use tamis_base::sync::{thread_local, time};

use super::guard;
use super::mapped::Region;
use crate::PageReader;

/// Longer reads are left to the system call: its price is small beside them, and it prefetches.
const LONGEST: usize = 32 << 10;

/// A copy that takes so long has waited for a device, or for the processor.
const STALL: Duration = Duration::from_micros(30);
/// One copy of so many is timed, since a look at the clock costs a tenth of a copy.
const TIMED: u32 = 16;
/// At one timed copy of so many, the thread looks whether the guard is in force.
const CHECKED: u32 = 64;
/// After a stall, this many reads of the thread are left to the system call. For pages that are not
/// in memory it is the better way: it reads all of a block at once, where a copy waits for each
/// page, and [`ReadableFile::try_read_at`](crate::ReadableFile::try_read_at) finds out beforehand.
const CALLS_AFTER_STALL: u32 = 256;

thread_local! {
    static PACE: Pace = const { Pace { until_timed: Cell::new(0), until_checked: Cell::new(0), calls: Cell::new(0) } };
}

/// Which reads of a thread are copies.
struct Pace {
    /// Copies until the next one that is timed.
    until_timed: Cell<u32>,
    /// Timed copies until the next look at the guard.
    until_checked: Cell<u32>,
    /// Reads that are left to the system call.
    calls: Cell<u32>,
}

impl Pace {
    /// Whether the next read is a copy; if so, when it begins, if it is to be timed.
    #[inline]
    fn begin(&self) -> Option<Option<Instant>> {
        if let Some(fewer) = self.calls.get().checked_sub(1) {
            self.calls.set(fewer);
            return None;
        }
        if let Some(fewer) = self.until_timed.get().checked_sub(1) {
            self.until_timed.set(fewer);
            return Some(None);
        }
        match self.until_checked.get().checked_sub(1) {
            Some(fewer) => self.until_checked.set(fewer),
            None if guard::is_in_force() => self.until_checked.set(CHECKED - 1),
            None => {
                self.calls.set(CALLS_AFTER_STALL);
                return None;
            }
        }
        self.until_timed.set(TIMED - 1);
        Some(Some(time::now()))
    }

    /// Notes when a timed copy began. If it stalled, the next one is timed, too.
    fn end(&self, begun: Instant) {
        if time::since(begun) >= STALL {
            self.calls.set(CALLS_AFTER_STALL);
            self.until_timed.set(0);
        }
    }
}

/// A file mapped for copies. Unlike [`MappedFile`](super::mapped::MappedFile) it bears a device
/// that fails, and a file that somebody writes to or shortens.
#[derive(Debug)]
pub(super) struct MappedCopies {
    region: Region,
    /// Whether a page could not be read. From then on every read is a system call, which reports
    /// the error.
    broken: AtomicBool,
}

impl MappedCopies {
    /// `None` where copies are not known to be safe, or no faster.
    pub(super) fn new(file: &File) -> Option<MappedCopies> {
        if !(is_known_to_behave(file).ok()? && has_room() && guard::is_in_force()) {
            return None;
        }
        Some(MappedCopies { region: Region::new(file).ok()?, broken: AtomicBool::new(false) })
    }
}

impl PageReader for MappedCopies {
    #[inline]
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> bool {
        let Ok(start) = usize::try_from(offset) else { return false };
        let is_within = start.checked_add(buf.len()).is_some_and(|end| end <= self.region.len());
        if !is_within || buf.is_empty() || buf.len() > LONGEST || self.broken.load(Ordering::Relaxed) {
            return false;
        }
        PACE.with(|pace| {
            let Some(begun) = pace.begin() else { return false };
            // SAFETY: the bytes lie in the region, which gives out no references and has this one
            // mark. `new` and `begin` have made sure of the handler.
            let copied = unsafe { guard::copy(&self.region, start, buf, &self.broken) };
            if let Some(begun) = begun {
                pace.end(begun);
            }
            copied
        })
    }
}

/// Whether the file lies where mapped pages are those that reads copy: in the page cache of a local
/// file system. Over a network, errors are ordinary and pages may be stale; ZFS has a cache of its
/// own, whose content a mapping doubles.
fn is_known_to_behave(file: &File) -> io::Result<bool> {
    const KNOWN: [u32; 7] = [
        0xEF53,      // ext2, ext3, ext4
        0x5846_5342, // XFS
        0x9123_683E, // Btrfs
        0xF2F5_2010, // F2FS
        0xCA45_1A4E, // bcachefs
        0x0102_1994, // tmpfs
        0x794C_7630, // overlayfs
    ];
    // The field's width differs between processors; the numbers have 32 bits.
    Ok(u32::try_from(rustix::fs::fstatfs(file)?.f_type).is_ok_and(|kind| KNOWN.contains(&kind)))
}

/// Whether the address space is not limited: what is left of it belongs to the program's memory.
fn has_room() -> bool {
    getrlimit(Resource::As).current.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 64 << 10;
    const PAGES: u8 = 4;
    const LEN: usize = PAGES as usize * PAGE;

    /// A file of pages whose bytes are 1, 2, ...
    fn file() -> File {
        use std::io::Write;
        let mut file = tempfile::tempfile().unwrap();
        (1..=PAGES).for_each(|page| file.write_all(&[page; PAGE]).unwrap());
        file
    }

    /// What is at `offset`, unless it is left to the system call again and again.
    fn read(copies: &MappedCopies, offset: usize, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        let copied = (0..=CALLS_AFTER_STALL).any(|_| copies.try_read_at(&mut bytes, offset as u64));
        copied.then_some(bytes)
    }

    #[test]
    fn copies_are_the_files_bytes() {
        let copies = MappedCopies::new(&file()).unwrap();
        assert_eq!(read(&copies, PAGE - 1, 2).unwrap(), [1, 2]);
        assert_eq!(read(&copies, 0, LONGEST).unwrap(), [1; LONGEST]);
        assert_eq!(read(&copies, LEN - 2, 2).unwrap(), [PAGES; 2]);
        for (offset, len) in [(0, 0), (0, LONGEST + 1), (LEN - 1, 2), (LEN, 1), (usize::MAX, 1)] {
            assert_eq!(read(&copies, offset, len), None, "{offset} {len}");
        }
    }

    #[test]
    fn a_page_that_cannot_be_read_ends_the_copies_and_not_the_process() {
        let file = file();
        let copies = MappedCopies::new(&file).unwrap();
        assert!(read(&copies, 0, 1).is_some());
        file.set_len(PAGE as u64).unwrap();
        assert_eq!(read(&copies, 2 * PAGE - 10, 20), None);
        // The page reads as zeros now.
        assert_eq!(read(&copies, 2 * PAGE - 10, 20), None);
        assert_eq!(read(&copies, 0, 1), None);
        assert!(copies.broken.load(Ordering::Relaxed));
    }

    #[test]
    fn no_thread_takes_the_zeros_of_anothers_fault_for_bytes() {
        for _ in 0..200 {
            let file = file();
            let copies = MappedCopies::new(&file).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        while !copies.broken.load(Ordering::Relaxed) {
                            for page in 0..PAGES {
                                let mut bytes = [0; 3 << 10];
                                if copies.try_read_at(&mut bytes, u64::from(page) * PAGE as u64 + 100) {
                                    assert_eq!(bytes, [page + 1; 3 << 10]);
                                }
                            }
                        }
                    });
                }
                // The system zeroes what follows the end in its page: that is no fault.
                file.set_len(PAGE as u64).unwrap();
            });
        }
    }

    #[test]
    fn after_a_stall_reads_are_left_to_the_system_call_for_a_while() {
        let copies = MappedCopies::new(&file()).unwrap();
        PACE.with(|pace| pace.calls.set(CALLS_AFTER_STALL));
        let mut byte = [0];
        let left = (0..CALLS_AFTER_STALL).filter(|_| !copies.try_read_at(&mut byte, 0)).count();
        assert_eq!(left, CALLS_AFTER_STALL as usize);
        assert!(copies.try_read_at(&mut byte, 0));
        assert_eq!(byte, [1]);
        // After a stall, one copy in so many is made, and is timed.
        PACE.with(|pace| {
            let begun = || (0..1000).filter_map(|_| pace.begin()).collect::<Vec<_>>();
            assert!(begun().iter().flatten().count() >= 1000 / TIMED as usize);
            let long_ago = time::now().checked_sub(STALL).unwrap();
            pace.end(long_ago);
            assert_eq!(begun().len(), 1000 - CALLS_AFTER_STALL as usize);
            pace.end(long_ago);
            pace.calls.set(0);
            assert!(pace.begin().unwrap().is_some());
        });
    }
}
