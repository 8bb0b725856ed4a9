//! Whole files in memory, for reading.
//!
//! An access to a page that is not in memory reads it from the device, and a device error comes as
//! SIGBUS. Who reads a [`MappedFile`] in place accepts that.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::Mapping;

/// Most files that a process maps at once. Linux allows 65,530 mappings by default, and the rest of
/// the program needs some too. LevelDB maps 1,000 files.
const MOST: usize = 16 << 10;

/// One of the [`MOST`] mappings.
#[derive(Debug)]
struct Permit(&'static AtomicUsize);

impl Permit {
    fn new(given: &'static AtomicUsize) -> Option<Permit> {
        // Relaxed: it is a count and publishes nothing.
        let more = |count| (count < MOST).then_some(count + 1);
        given.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Permit(given))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Pages of a file, mapped for reading and unmapped on drop.
#[derive(Debug)]
pub(super) struct Region {
    base: NonNull<u8>,
    len: usize,
    _permit: Permit,
}

// SAFETY: the mapping belongs to this value alone, to no thread, and is only read.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps all of `file`.
    pub(super) fn new(file: &File) -> io::Result<Region> {
        static GIVEN: AtomicUsize = AtomicUsize::new(0);
        let permit = Permit::new(&GIVEN).ok_or(io::ErrorKind::OutOfMemory)?;
        let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else refers to it. A
        // length of 0 is an error of the call.
        let base = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // From here on, drop unmaps it.
        let region = Region { base, len, _permit: permit };
        // Otherwise the system would read ahead around each page that is not in memory.
        region.advise(0..len, Advice::Random)?;
        Ok(region)
    }

    /// The first byte. What it points to is not promised to be readable, or to stay.
    #[cfg(all(target_os = "linux", target_pointer_width = "64", not(miri), not(shuttle)))]
    pub(super) fn start(&self) -> *const u8 {
        self.base.as_ptr()
    }

    #[cfg(all(target_os = "linux", target_pointer_width = "64", not(miri), not(shuttle)))]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn advise(&self, part: Range<usize>, advice: Advice) -> io::Result<()> {
        let page = rustix::param::page_size();
        let start = part.start - part.start % page;
        let end = part.end.min(self.len);
        if start < end {
            // SAFETY: `start..end` lies in the mapping, and advice changes no content.
            unsafe { madvise(self.base.as_ptr().add(start).cast(), end - start, advice)? };
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new`, and no reference into it outlives this value.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A mapped file that is read in place.
#[derive(Debug)]
pub(super) struct MappedFile(Region);

impl MappedFile {
    /// Maps all of `file`.
    ///
    /// # Safety
    ///
    /// As for [`ReadableFile::map`](crate::ReadableFile::map).
    pub(super) unsafe fn new(file: &File) -> io::Result<MappedFile> {
        Region::new(file).map(MappedFile)
    }
}

impl Mapping for MappedFile {
    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the region is as long as the file, `len` bytes, and lives as long as this value.
        // The caller of `new` has promised that the bytes do not change and the file is not
        // shortened.
        unsafe { std::slice::from_raw_parts(self.0.base.as_ptr(), self.0.len) }
    }

    fn will_need(&self, part: Range<usize>) {
        // Only a hint: errors do not matter.
        let _ = self.0.advise(part, Advice::WillNeed);
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::{FileSystem, OsFileSystem};

    fn map(path: &Path) -> Option<Arc<dyn Mapping>> {
        // SAFETY: the tests do not change files that they have mapped.
        unsafe { OsFileSystem.open(path).unwrap().map() }
    }

    #[test]
    fn a_mapped_file_outlives_its_handle_and_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table");
        let content: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        OsFileSystem.create(&path).unwrap().append(&content).unwrap();
        let mapped = map(&path).unwrap();
        OsFileSystem.remove(&path).unwrap();
        // Any part is allowed, even beyond the end.
        for part in [0..1, 5000..9000, 0..content.len(), content.len() - 1..usize::MAX, usize::MAX..usize::MAX] {
            mapped.will_need(part);
        }
        assert_eq!(mapped.bytes(), content);
    }

    #[test]
    fn no_more_files_are_mapped_than_a_process_can_bear() {
        static GIVEN: AtomicUsize = AtomicUsize::new(0);
        let mut given: Vec<Permit> = std::iter::from_fn(|| Permit::new(&GIVEN)).collect();
        assert_eq!(given.len(), MOST);
        given.pop();
        given.extend(Permit::new(&GIVEN));
        assert_eq!(given.len(), MOST);
        assert!(Permit::new(&GIVEN).is_none());
    }

    #[test]
    fn an_empty_file_is_not_mapped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        OsFileSystem.create(&path).unwrap();
        assert!(map(&path).is_none());
    }
}
