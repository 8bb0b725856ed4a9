//! The part of a file after its end, on Linux: zeros written in advance, and a window of mapped
//! memory onto them.
//!
//! A store to mapped memory cannot return an error; errors come as SIGBUS. Therefore a window
//! exists only where nothing is left that could fail:
//!
//! - Its pages are written before they are mapped, on a file system that overwrites in place. No
//!   store needs space or can exceed a quota.
//! - They are populated for writing before the window is handed out. A failure then (of the device,
//!   or for lack of memory) is an error of that call.
//! - They are used for at most [`LIFETIME`]. The kernel starts write-back some seconds after pages
//!   become dirty, and may take them away after that. An old window is dropped, and the next one
//!   populates the pages again.
//! - Nothing shortens a log while it is written, and the store's lock keeps other processes away.
//!
//! One risk remains: within this second the page is written back, and then its file system shuts
//! down because the device is gone; or, on XFS, the log is reflinked while the disk is full.
//!
//! To map and to unmap waits for every other thread that maps memory or has it populated, for
//! milliseconds at times, and a window is used up every millisecond or two. Therefore one mapping
//! serves all windows in the space reserved for a file. Their pages are given back in some MiB at a
//! time: each time, the processors that run other threads of the process are interrupted, and one
//! that does not answer at once, as on a busy virtual machine, stops the writer.
//!
//! Gain: a put without a sync takes 4 to 20 ns here and 600 ns in a system call. To remove it, let
//! the file system refuse to prepare space: logs are then written as with `WalMode::Write`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::time::{ClockId, clock_gettime};

use crate::Window;
use tamis_base::sync::{Mutex, OnceLock};

/// How long a window's populated pages are relied on. Write-back starts after five seconds by
/// default (`dirty_writeback_centisecs`).
const LIFETIME: Duration = Duration::from_secs(1);

/// File-system types from `statfs`: ext2, ext3 and ext4; XFS.
const EXT4_MAGIC: u64 = 0xef53;
const XFS_MAGIC: u64 = 0x5846_5342;

/// The pages of so much of a file are given back at a time.
const GIVEN_BACK: u64 = 4 << 20;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

#[derive(Default)]
pub(super) struct PreparedTail {
    /// Everything from the end to here is zero and allocated.
    prepared: AtomicU64,
    /// Whether the file system overwrites data in place.
    in_place: OnceLock<bool>,
    /// Length for which space is reserved.
    reserved: AtomicU64,
    /// The mapping that holds the last window.
    mapping: Mutex<Option<Arc<Mapping>>>,
}

impl PreparedTail {
    fn in_place(&self, file: &File) -> bool {
        *self.in_place.get_or_init(|| {
            let magic = rustix::fs::fstatfs(file).map(|stat| u64::try_from(stat.f_type).unwrap_or(0));
            matches!(magic, Ok(EXT4_MAGIC | XFS_MAGIC))
        })
    }

    /// Notes that space is reserved for a file of `len` bytes: windows will reach that far.
    pub(super) fn note_reserved(&self, len: u64) {
        self.reserved.store(len, Ordering::Relaxed);
    }

    /// Frees the blocks after `end`: what is prepared there reads as zeros without any.
    pub(super) fn release(&self, file: &File, end: u64) {
        let start = end.next_multiple_of(rustix::param::page_size() as u64);
        let zeros = self.prepared.load(Ordering::Relaxed).saturating_sub(start);
        if zeros > 0 {
            let _ = fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, zeros);
        }
        // Setting the length frees what is reserved beyond it.
        if self.reserved.load(Ordering::Relaxed) > 0 {
            let _ = file.metadata().and_then(|metadata| file.set_len(metadata.len()));
        }
    }

    pub(super) fn prepare(&self, file: &File, end: u64, len: u64) -> io::Result<bool> {
        if !self.in_place(file) {
            return Ok(false);
        }
        let mut at = self.prepared.load(Ordering::Relaxed).max(end);
        while at < len {
            let count = ZEROS.len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
            file.write_all_at(&ZEROS[..count], at)?;
            at += count as u64;
        }
        self.prepared.store(at, Ordering::Relaxed);
        Ok(true)
    }

    pub(super) fn window(&self, file: &File, end: &Arc<AtomicU64>) -> io::Result<Option<Box<dyn Window>>> {
        let page = rustix::param::page_size() as u64;
        let at = end.load(Ordering::Relaxed);
        let start = at - at % page;
        let len = usize::try_from(self.prepared.load(Ordering::Relaxed).saturating_sub(start)).unwrap_or(0);
        if len == 0 || !self.in_place(file) {
            return Ok(None);
        }
        let mapping = self.mapping(file, start, len)?;
        Ok(Some(Box::new(MappedWindow::new(mapping, start, len, Arc::clone(end))?)))
    }

    /// A mapping that has `len` bytes from `start`.
    fn mapping(&self, file: &File, start: u64, len: usize) -> io::Result<Arc<Mapping>> {
        let mut current = self.mapping.lock();
        if let Some(mapping) = current.as_ref().filter(|mapping| mapping.has(start, len)) {
            return Ok(Arc::clone(mapping));
        }
        // Not the old one and the new one at once.
        *current = None;
        let reserved = self.reserved.load(Ordering::Relaxed).saturating_sub(start);
        let whole = usize::try_from(reserved).unwrap_or(0).max(len);
        let mapping = Mapping::new(file, start, whole).or_else(|_| Mapping::new(file, start, len))?;
        Ok(Arc::clone(current.insert(Arc::new(mapping))))
    }
}

/// Addresses for a part of a file. Beyond the file's end they must not be used.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Offset in the file.
    start: u64,
    /// The pages before this offset in the file have been given back.
    given_back: AtomicU64,
}

// SAFETY: the mapping belongs to this value alone, and to no thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared mapping gives out its addresses only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `file` from `start`, a multiple of the page size.
    fn new(file: &File, start: u64, len: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else refers to it.
        let base =
            unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, start)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, len, start, given_back: AtomicU64::new(start) })
    }

    /// Where `start` is, which it has.
    fn offset(&self, start: u64) -> usize {
        usize::try_from(start - self.start).unwrap_or(usize::MAX)
    }

    /// Gives back the pages before `end`, if they are many. No window has them.
    fn give_back(&self, end: u64) {
        let from = self.given_back.load(Ordering::Relaxed);
        let len = end.saturating_sub(from);
        if len >= GIVEN_BACK {
            // The file has what was stored. The pages of a process that keeps all in memory stay.
            // SAFETY: these are pages of the mapping, to which no pointer is left.
            let _ = unsafe {
                let pages = self.base.as_ptr().add(self.offset(from));
                madvise(pages.cast(), usize::try_from(len).unwrap_or(0), Advice::LinuxDontNeed)
            };
            self.given_back.store(end, Ordering::Relaxed);
        }
    }

    fn has(&self, start: u64, len: usize) -> bool {
        start >= self.start && self.offset(start).checked_add(len).is_some_and(|end| end <= self.len)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new`, and no pointer into it outlives this value.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Pages of a mapping, populated.
struct MappedWindow {
    base: NonNull<u8>,
    len: usize,
    /// Offset in the file.
    start: u64,
    /// The end of the file's content.
    end: Arc<AtomicU64>,
    populated: Duration,
    mapping: Arc<Mapping>,
}

// SAFETY: the window's bytes belong to this value alone, and to no thread.
unsafe impl Send for MappedWindow {}

impl MappedWindow {
    /// Populates `len` bytes of a mapping, which has them, from `start`, a multiple of the page
    /// size. The file must be that long.
    fn new(mapping: Arc<Mapping>, start: u64, len: usize, end: Arc<AtomicU64>) -> io::Result<MappedWindow> {
        // SAFETY: the mapping has the window's bytes.
        let base = unsafe { mapping.base.add(mapping.offset(start)) };
        let window = MappedWindow { base, len, start, end, populated: now(), mapping };
        // SAFETY: these are pages of the mapping; populating them changes no content.
        unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxPopulateWrite)? };
        Ok(window)
    }
}

impl Window for MappedWindow {
    fn append(&mut self, head: &[u8], body: &[u8]) -> bool {
        let end = self.end.load(Ordering::Relaxed);
        let Some(at) = end.checked_sub(self.start).and_then(|at| usize::try_from(at).ok()) else { return false };
        let need = head.len() + body.len();
        if self.len.checked_sub(at).is_none_or(|left| left < need) || now().saturating_sub(self.populated) > LIFETIME {
            return false;
        }
        // SAFETY: `at + need` is at most `len`, the length of the window, which nothing else
        // writes to. The file is as long (see the module). The arguments do not overlap it: no
        // reference to mapped memory is ever given out.
        unsafe {
            let to = self.base.as_ptr().add(at);
            ptr::copy_nonoverlapping(body.as_ptr(), to.add(head.len()), body.len());
            // A kill preserves this thread's stores in the order that the compiler left them in.
            compiler_fence(Ordering::SeqCst);
            ptr::copy_nonoverlapping(head.as_ptr(), to, head.len());
        }
        self.end.store(end + need as u64, Ordering::Relaxed);
        true
    }
}

impl Drop for MappedWindow {
    fn drop(&mut self) {
        // The next window begins with the page of the end. The end may lie beyond this window.
        let end = self.end.load(Ordering::Relaxed).min(self.start + self.len as u64);
        self.mapping.give_back(end - end % rustix::param::page_size() as u64);
    }
}

/// A clock that costs next to nothing and is exact to a few milliseconds.
fn now() -> Duration {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::{FileSystem, OsFileSystem, read_small_file};

    #[test]
    fn windows_within_the_reserved_space_share_one_mapping() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let (tail, end) = (PreparedTail::default(), Arc::new(AtomicU64::new(0)));
        tail.note_reserved(1 << 20);
        let mut mappings = Vec::new();
        for step in 1..=20 {
            // The last ones lie beyond what is reserved.
            if !tail.prepare(&file, end.load(Ordering::Relaxed), step << 16).unwrap() {
                return; // This directory is on a file system that has no windows.
            }
            let mut window = tail.window(&file, &end).unwrap().unwrap();
            while window.append(&[1; 60], &[2; 4]) {}
            drop(window);
            mappings.extend(tail.mapping.lock().clone());
            assert_eq!(end.load(Ordering::Relaxed), step << 16);
        }
        assert!(mappings[..16].iter().all(|mapping| Arc::ptr_eq(mapping, &mappings[0])));
        assert_eq!((mappings[0].len, mappings[16].len), (1 << 20, 1 << 16));
        let content = read_small_file(&OsFileSystem, &path, 2 << 20).unwrap();
        let record = [[1; 60].as_slice(), &[2; 4]].concat();
        assert!(content.len() == 20 << 16 && content.chunks(64).all(|chunk| chunk == record));
    }

    #[test]
    fn pages_are_given_back_some_mib_at_a_time_and_the_file_keeps_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let (tail, end) = (PreparedTail::default(), Arc::new(AtomicU64::new(0)));
        tail.note_reserved(2 * GIVEN_BACK);
        let mut given_back = Vec::new();
        for step in 1..=(2 * GIVEN_BACK) >> 16 {
            if !tail.prepare(&file, end.load(Ordering::Relaxed), step << 16).unwrap() {
                return; // This directory is on a file system that has no windows.
            }
            let mut window = tail.window(&file, &end).unwrap().unwrap();
            while window.append(&[1; 60], &[2; 4]) {}
            drop(window);
            given_back.extend(tail.mapping.lock().as_ref().map(|mapping| mapping.given_back.load(Ordering::Relaxed)));
        }
        given_back.dedup();
        assert_eq!(given_back, [0, GIVEN_BACK, 2 * GIVEN_BACK]);
        let content = read_small_file(&OsFileSystem, &path, 64 << 20).unwrap();
        let record = [[1; 60].as_slice(), &[2; 4]].concat();
        assert!(content.chunks(64).all(|chunk| chunk == record));
    }

    /// However bytes are appended, they follow each other without gaps, with zeros after them.
    #[test]
    fn appends_and_window_stores_leave_no_gap() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = OsFileSystem.create(&path).unwrap();
        file.append(b"begin ").unwrap();
        if !file.prepare(10_000).unwrap() {
            return; // This directory is on a file system that has no windows.
        }
        let mut expected = b"begin ".to_vec();
        let mut window = file.window().unwrap().unwrap();
        for n in 0..200u8 {
            if n % 3 == 0 {
                file.append(&[n; 7]).unwrap();
            } else {
                assert!(window.append(&[n; 3], &[n; 4]));
            }
            expected.extend_from_slice(&[n; 7]);
            if n == 100 {
                file.sync().unwrap();
            }
        }
        let content = read_small_file(&OsFileSystem, &path, 1 << 20).unwrap();
        assert_eq!(content.len(), 10_000);
        assert_eq!(&content[..expected.len()], expected);
        assert!(content[expected.len()..].iter().all(|&byte| byte == 0));

        // What does not fit is refused as a whole. A system call appends it, even beyond the
        // prepared part.
        let rest = vec![9; 10_001 - expected.len()];
        assert!(!window.append(&rest[..5], &rest[5..]));
        assert!(window.append(&rest[..5], &rest[5..rest.len() - 1]));
        file.append(b"!").unwrap();
        assert!(!window.append(b"", b"!"));
        file.prepare(20_000).unwrap();
        drop(window);
        assert!(file.window().unwrap().unwrap().append(b"ab", b"cd"));
        expected.extend_from_slice(&rest[1..]);
        expected.extend_from_slice(b"!abcd");
        assert_eq!(read_small_file(&OsFileSystem, &path, 1 << 20).unwrap()[..expected.len()], expected);
    }

    #[test]
    fn only_prepared_zeros_are_mapped() {
        let dir = tempfile::tempdir().unwrap();
        let file = OsFileSystem.create(&dir.path().join("log")).unwrap();
        assert!(file.window().unwrap().is_none());
        file.append(&[1; 4096]).unwrap();
        assert!(file.window().unwrap().is_none());
    }
}
