//! A whole file in memory, for reading.
//!
//! An access to a page that is not in memory reads it from the device, and a device error comes as
//! SIGBUS. The caller that maps a file accepts that.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::Mapping;

/// Pages of a file, mapped for reading and unmapped on drop.
#[derive(Debug)]
pub(super) struct MappedFile {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, to no thread, and is only read.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps all of `file`.
    ///
    /// # Safety
    ///
    /// As for [`ReadableFile::map`](crate::ReadableFile::map).
    pub(super) unsafe fn new(file: &File) -> io::Result<MappedFile> {
        let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else refers to it. A
        // length of 0 is an error of the call.
        let base = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // From here on, drop unmaps it.
        let mapped = MappedFile { base, len };
        // Otherwise the system would read ahead around each page that is not in memory.
        mapped.advise(0..len, Advice::Random)?;
        Ok(mapped)
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

impl Mapping for MappedFile {
    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is as long as the file, `len` bytes, and lives as long as this value.
        // The caller of `new` has promised that the bytes do not change and the file is not
        // shortened.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    fn will_need(&self, part: Range<usize>) {
        // Only a hint: errors do not matter.
        let _ = self.advise(part, Advice::WillNeed);
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new`, and no reference into it outlives this value.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use crate::{FileSystem, Mapping, OsFileSystem};

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
    fn an_empty_file_is_not_mapped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        OsFileSystem.create(&path).unwrap();
        assert!(map(&path).is_none());
    }
}
