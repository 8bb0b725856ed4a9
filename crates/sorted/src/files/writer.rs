//! [`FileWriter`]: writes a table or value file from its beginning to its end.

use std::path::{Path, PathBuf};

use crate::error::{IoContext, Result};
use crate::format::checksum::FileChecksum;
use crate::format::header::{FileHeader, Magic};
use crate::vfs::{FileSystem, WritableFile};

/// Bytes buffered before they are appended to the file, unless a rate limit asks for less.
pub const WRITE_LEN: usize = 1 << 20;

/// What is charged for a file being written grows by this many bytes at a time.
pub const CHARGE_STEP: usize = 64 << 10;

/// A file being written. Its user appends to `buffer`, and calls
/// [`append_if_full`](FileWriter::append_if_full) between records, so that one `write` takes about
/// `write_len` bytes. Written bytes go to the device while the rest is made, so that the final
/// sync waits for little.
pub struct FileWriter {
    file: Box<dyn WritableFile>,
    path: PathBuf,
    number: u64,
    /// Bytes not yet appended.
    pub buffer: Vec<u8>,
    /// Bytes that are appended, and written back to the device, at a time.
    pub write_len: usize,
    /// Bytes already in the file, without the buffer.
    appended: u64,
    /// Checksum of the appended bytes.
    checksum: FileChecksum,
}

impl FileWriter {
    /// Creates the file, which begins with a header that states `number`.
    pub fn create(fs: &dyn FileSystem, path: PathBuf, magic: Magic, number: u64) -> Result<FileWriter> {
        let header = FileHeader { number, ..FileHeader::default() };
        Ok(FileWriter {
            file: fs.create(&path).during("create", &path)?,
            path,
            number,
            buffer: header.encode(magic).to_vec(),
            write_len: WRITE_LEN,
            appended: 0,
            checksum: FileChecksum::default(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number that the header states.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// File offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.appended + self.buffer.len() as u64
    }

    /// Appends the buffer to the file if it is long enough.
    pub fn append_if_full(&mut self) -> Result<()> {
        if self.buffer.len() >= self.write_len { self.append() } else { Ok(()) }
    }

    /// Appends the buffer to the file and syncs it. Returns the checksum of the whole file.
    pub fn finish(&mut self) -> Result<u32> {
        self.append()?;
        self.file.sync().during("sync", &self.path)?;
        Ok(self.checksum.finish())
    }

    fn append(&mut self) -> Result<()> {
        self.checksum.update(&self.buffer);
        self.file.append(&self.buffer).during("write", &self.path)?;
        self.file.begin_sync();
        self.appended += self.buffer.len() as u64;
        self.buffer.clear();
        self.buffer.shrink_to(2 * WRITE_LEN);
        Ok(())
    }
}
