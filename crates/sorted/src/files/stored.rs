//! [`StoredFile`]: how bytes of a table's file or of a value file are read.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{FilePool, ReadMode};
use crate::error::{Error, IoContext, Result};
use crate::format::filename::FileKind;
use crate::sync::OnceLock;
use crate::vfs::{PageReader, ReadableFile, is_out_of_descriptors};

/// Whether the reason for a failed read passes: the process lacks descriptors or memory. It says
/// nothing of the file.
pub fn is_passing(error: &Error) -> bool {
    let lacks_memory = |source: &io::Error| source.kind() == io::ErrorKind::OutOfMemory;
    lacks_descriptors(error) || matches!(error, Error::Io { source, .. } if lacks_memory(source))
}

/// Whether a read failed for want of descriptors.
pub fn lacks_descriptors(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if is_out_of_descriptors(source))
}

/// A complete file of tables or of values.
pub struct StoredFile {
    pool: Arc<FilePool>,
    number: u64,
    path: PathBuf,
    /// The open file, if it is kept: its name may be removed.
    kept: OnceLock<Arc<dyn ReadableFile>>,
    /// Reads without system calls, from the first [`StoredFile::fill_block`] on.
    pages: OnceLock<Option<Box<dyn PageReader>>>,
}

impl StoredFile {
    pub fn new(pool: &Arc<FilePool>, kind: fn(u64) -> FileKind, number: u64) -> StoredFile {
        let path = kind(number).path(&pool.dir);
        StoredFile { pool: Arc::clone(pool), number, path, kept: OnceLock::new(), pages: OnceLock::new() }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file and keeps it open.
    pub fn keep_open(&self) -> Result<()> {
        if self.kept.get().is_none() {
            self.keep(self.pool.fs.open(&self.path).during("open", &self.path)?);
        }
        Ok(())
    }

    /// Reads from `file`.
    pub fn keep(&self, file: Arc<dyn ReadableFile>) {
        self.kept.get_or_init(|| file);
    }

    /// The file, if it is kept open.
    pub fn kept(&self) -> Option<&Arc<dyn ReadableFile>> {
        self.kept.get()
    }

    pub fn open(&self) -> Result<Arc<dyn ReadableFile>> {
        match self.kept.get() {
            Some(file) => Ok(Arc::clone(file)),
            None => self.pool.get(self.number, || self.pool.fs.open(&self.path)).during("open", &self.path),
        }
    }

    /// Length as the file system reports it.
    pub fn len(&self) -> Result<u64> {
        self.open()?.len().during("read", &self.path)
    }

    /// Fills `bytes` from `offset`, unverified. If the file ends before, `rule` is broken. Calls
    /// `before_wait` first if the read would wait for the device.
    pub fn fill(
        &self,
        bytes: &mut [u8],
        offset: u64,
        before_wait: Option<&mut dyn FnMut()>,
        rule: &'static str,
    ) -> Result<()> {
        let file = self.open()?;
        if let Some(before_wait) = before_wait {
            if file.try_read_at(bytes, offset) {
                return Ok(());
            }
            before_wait();
        }
        if file.read_at(bytes, offset).during("read", &self.path)? < bytes.len() {
            return Err(Error::corruption(&self.path, offset, rule));
        }
        Ok(())
    }

    /// As [`StoredFile::fill`], for one of many short reads.
    pub fn fill_block(
        &self,
        bytes: &mut [u8],
        offset: u64,
        before_wait: Option<&mut dyn FnMut()>,
        rule: &'static str,
    ) -> Result<()> {
        match self.pages() {
            Some(pages) if pages.try_read_at(bytes, offset) => Ok(()),
            _ => self.fill(bytes, offset, before_wait, rule),
        }
    }

    fn pages(&self) -> Option<&dyn PageReader> {
        if self.pages.get().is_none() && self.pool.read_mode == ReadMode::Auto {
            // If it cannot be opened, the read reports that.
            let pages = self.open().ok()?.page_reader();
            self.pages.get_or_init(|| pages);
        }
        self.pages.get()?.as_deref()
    }

    /// Hints to the file system that `part` will be read soon, if the file is open.
    pub fn will_need(&self, part: Range<u64>) {
        if !part.is_empty()
            && let Some(file) = self.kept.get().cloned().or_else(|| self.pool.get_if_open(self.number))
        {
            file.will_need(part);
        }
    }
}
