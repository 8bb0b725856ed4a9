//! A whole file in memory, to be read.
//!
//! A page that is not in memory is read by the processor's access to it, and an error of the device comes as SIGBUS. It is for whoever
//! maps a file to choose that.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::vfs::Mapping;

/// Pages of a file, mapped to be read, and unmapped when this is dropped.
#[derive(Debug)]
pub(super) struct MappedFile {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, is no thread's own, and is only read.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps all of `file`.
    ///
    /// # Safety
    ///
    /// That of [`ReadableFile::map`](crate::vfs::ReadableFile::map).
    pub(super) unsafe fn new(file: &File) -> io::Result<MappedFile> {
        let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at a place that the kernel chooses; nothing else refers to it. No bytes are none to it, but an error.
        let base = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // From here on it is unmapped when it is dropped.
        let mapped = MappedFile { base, len };
        // Otherwise the system would read much around each page that is not in memory.
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
        // SAFETY: the mapping is `len` bytes long, as the file is, and lives as long as this value. That nobody changes the bytes
        // meanwhile, nor cuts the file short, whoever called `new` has promised.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    fn will_need(&self, part: Range<usize>) {
        // It is a hint.
        let _ = self.advise(part, Advice::WillNeed);
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, and no reference into it outlives this value.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use crate::vfs::{FileSystem, Mapping, OsFileSystem};

    fn map(path: &Path) -> Option<Arc<dyn Mapping>> {
        // SAFETY: the tests do not change what they have mapped.
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
        // Any part may be asked for, also one that is not there.
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
