//! [`ValueFiles`]: reads values, and removes the files that no table needs any more.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::record::{StoredRecord, decode_record};
use crate::compress::Compression;
use crate::compress::{decompress_into, from_code, highest_code, raw_len};
use crate::error::{Error, Result};
use crate::files::{FilePool, Janitor, StoredFile, is_passing};
use crate::format::filename::FileKind;
use crate::format::pointer::ValuePointer;
use crate::memory::budget::MemoryBudget;
use crate::operator::ReadValue;
use crate::sync::{Mutex, OnceLock};
use crate::vfs::ReadableFile;

/// The rule that a file breaks which is shorter than a record.
pub(super) const SHORT: &str = "the file ends inside a value";

/// The value files of a store to which open tables point.
pub struct ValueFiles {
    pool: Arc<FilePool>,
    janitor: Arc<Janitor>,
    budget: Arc<MemoryBudget>,
    known: Mutex<HashMap<u64, Weak<ValueFile>>>,
    /// Files with a value that a compaction could not read. They are not emptied.
    unreadable: Mutex<HashSet<u64>>,
    /// Records read for point reads, scans and compactions, and their bytes.
    reads: AtomicU64,
    bytes_read: AtomicU64,
}

/// A value file. The tables whose entries point to it keep it; an obsolete one is removed when the
/// last of them is dropped.
pub struct ValueFile {
    files: Arc<ValueFiles>,
    file: StoredFile,
    /// Length as the file system reports it.
    len: OnceLock<u64>,
    is_obsolete: AtomicBool,
}

/// A value as it was read, with what precedes it in its record.
#[derive(Default)]
pub struct SeparateValue {
    bytes: Vec<u8>,
    start: usize,
}

impl SeparateValue {
    /// What an entry stores in front of its pointer, for reads that need no value.
    pub fn prefix(bytes: &[u8]) -> SeparateValue {
        SeparateValue { bytes: bytes.to_vec(), start: 0 }
    }

    /// Without the first `len` bytes, which must be there.
    pub fn without(mut self, len: usize) -> SeparateValue {
        self.start = (self.start + len).min(self.bytes.len());
        self
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// What was read, and where the value begins in it; it goes to the end.
    pub fn into_parts(self) -> (Vec<u8>, usize) {
        (self.bytes, self.start)
    }
}

impl ValueFiles {
    /// What scans read ahead is charged to `budget`.
    pub fn new(pool: &Arc<FilePool>, janitor: &Arc<Janitor>, budget: &Arc<MemoryBudget>) -> Arc<ValueFiles> {
        let (known, unreadable, reads, bytes_read) = Default::default();
        let (pool, janitor, budget) = (Arc::clone(pool), Arc::clone(janitor), Arc::clone(budget));
        Arc::new(ValueFiles { pool, janitor, budget, known, unreadable, reads, bytes_read })
    }

    /// That of the store.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// The file of this number, for a table whose entries point to it.
    pub fn hold(self: &Arc<Self>, number: u64) -> Arc<ValueFile> {
        let mut known = self.known.lock();
        if let Some(file) = known.get(&number).and_then(Weak::upgrade) {
            return file;
        }
        let file = Arc::new(ValueFile::new(self, number));
        known.insert(number, Arc::downgrade(&file));
        file
    }

    /// Removes a file that no version has ever named; like [`TableContext::remove_file`].
    ///
    /// [`TableContext::remove_file`]: crate::table::TableContext::remove_file
    pub fn remove_new(&self, number: u64) {
        self.pool.remove(number);
        let _ = self.pool.fs.remove(&FileKind::Values(number).path(&self.pool.dir));
    }

    /// Notes that no version needs these files. Those that no reader holds are removed now, the
    /// others when the last reader is done.
    pub fn retire(&self, numbers: &[u64]) {
        let mut free = Vec::new();
        for &number in numbers {
            let held = self.known.lock().get(&number).and_then(Weak::upgrade);
            match held {
                // If this is the last reference by now, dropping it hands the file in.
                Some(file) => file.is_obsolete.store(true, Ordering::Release),
                None => {
                    self.pool.remove(number);
                    free.push(FileKind::Values(number));
                }
            }
        }
        if !numbers.is_empty() {
            self.janitor.remove(free);
        }
    }

    /// Notes that a compaction could not read a value in a file, unless the reason passes.
    pub fn note_unreadable(&self, number: u64, error: &Error) {
        if !is_passing(error) {
            self.unreadable.lock().insert(number);
        }
    }

    /// Number of files in which a compaction could not read a value.
    pub fn unreadable_count(&self) -> usize {
        self.unreadable.lock().len()
    }

    /// Whether a compaction could not read a value in a file.
    pub fn is_unreadable(&self, number: u64) -> bool {
        self.unreadable.lock().contains(&number)
    }

    /// Records read so far, and their bytes.
    pub fn reads(&self) -> (u64, u64) {
        (self.reads.load(Ordering::Relaxed), self.bytes_read.load(Ordering::Relaxed))
    }

    /// Reads the value of `key` to which the entry of a table points. The caller holds the table.
    pub fn read(&self, key: &[u8], pointer: &[u8]) -> Result<SeparateValue> {
        let (file, pointer) = self.pointed(pointer)?;
        file.read(key, pointer)
    }

    /// The file to which a pointer leads. Counts a read of the value.
    pub(super) fn pointed(&self, pointer: &[u8]) -> Result<(Arc<ValueFile>, ValuePointer)> {
        let pointer =
            ValuePointer::decode(pointer).map_err(|malformed| Error::corruption(&self.pool.dir, 0, malformed))?;
        let held = self.known.lock().get(&pointer.file).and_then(Weak::upgrade);
        let file = held.ok_or_else(|| {
            let path = FileKind::Values(pointer.file).path(&self.pool.dir);
            Error::corruption(&path, pointer.offset, "a table points to a value file that it does not name")
        })?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(pointer.record_len.into(), Ordering::Relaxed);
        Ok((file, pointer))
    }
}

impl ReadValue for ValueFiles {
    fn read_value(&self, key: &[u8], pointer: &[u8]) -> Result<Vec<u8>> {
        // The record has what the entry would store.
        let (mut bytes, start) = self.read(key, pointer)?.into_parts();
        bytes.drain(..start);
        Ok(bytes)
    }
}

impl ValueFile {
    pub(super) fn new(files: &Arc<ValueFiles>, number: u64) -> ValueFile {
        ValueFile {
            file: StoredFile::new(&files.pool, FileKind::Values, number),
            files: Arc::clone(files),
            len: OnceLock::new(),
            is_obsolete: AtomicBool::new(false),
        }
    }

    pub(super) fn corrupt(&self, offset: u64, rule: impl fmt::Display) -> Error {
        Error::corruption(self.path(), offset, rule)
    }

    /// The file, if it is kept open.
    pub fn kept(&self) -> Option<(FileKind, &Arc<dyn ReadableFile>)> {
        self.file.kept().map(|file| (FileKind::Values(self.number()), file))
    }

    /// How its bytes are read.
    pub fn file(&self) -> &StoredFile {
        &self.file
    }

    pub(super) fn len(&self) -> Result<u64> {
        match self.len.get() {
            Some(len) => Ok(*len),
            None => {
                let len = self.file.len()?;
                Ok(*self.len.get_or_init(|| len))
            }
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.file.number()
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// A buffer for `len` bytes at `offset`, which the file must have.
    fn buffer(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let size = self.len()?;
        let is_within = offset.checked_add(len).is_some_and(|end| end <= size);
        match usize::try_from(len).ok().filter(|_| is_within) {
            Some(len) => Ok(vec![0; len]),
            None => Err(self.corrupt(offset, "a value reaches beyond the end of the file")),
        }
    }

    /// Reads `len` bytes at `offset`, unverified. Calls `before_wait` first if that would wait for
    /// the device.
    pub(super) fn bytes_ahead(&self, offset: u64, len: u64, before_wait: &mut dyn FnMut()) -> Result<Vec<u8>> {
        let mut bytes = self.buffer(offset, len)?;
        self.file.fill_block(&mut bytes, offset, Some(before_wait), SHORT)?;
        Ok(bytes)
    }

    /// Reads `len` bytes at `offset`, unverified.
    pub(super) fn bytes(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = self.buffer(offset, len)?;
        self.file.fill_block(&mut bytes, offset, None, SHORT)?;
        Ok(bytes)
    }

    fn read(&self, key: &[u8], pointer: ValuePointer) -> Result<SeparateValue> {
        let bytes = self.bytes(pointer.offset, pointer.record_len.into())?;
        Ok(match self.value_in(&bytes, key, pointer)? {
            (start, None) => SeparateValue { bytes, start },
            (_, Some(bytes)) => SeparateValue { bytes, start: 0 },
        })
    }

    /// Verifies a record, which must be that of `key`. Returns where its value begins or, if that
    /// is compressed, the value.
    pub(super) fn value_in(&self, bytes: &[u8], key: &[u8], pointer: ValuePointer) -> Result<(usize, Option<Vec<u8>>)> {
        let record = self.decode(bytes, pointer.offset)?;
        if *record.key != *key {
            return Err(self.corrupt(pointer.offset, "a table points to the value of another key"));
        }
        let start = record.stored_start;
        let unpacked = self.unpacked(&record, pointer.value_len, pointer.offset)?;
        if unpacked.as_ref().map_or(bytes.len() - start, Vec::len) != pointer.value_len as usize {
            return Err(self.corrupt(pointer.offset, "a value has another length than its pointer states"));
        }
        Ok((start, unpacked))
    }

    pub(super) fn decode<'b>(&self, bytes: &'b [u8], offset: u64) -> Result<StoredRecord<'b>> {
        decode_record(bytes, (self.number(), offset)).map_err(|malformed| self.corrupt(offset, malformed))
    }

    /// The value of a record, of at most `longest` bytes; `None` if it is stored as it is.
    pub(super) fn unpacked(&self, record: &StoredRecord<'_>, longest: u32, offset: u64) -> Result<Option<Vec<u8>>> {
        let malformed = |malformed| self.corrupt(offset, malformed);
        match from_code(record.compression) {
            Some(Compression::None) => Ok(None),
            Some(compression) => {
                let len = raw_len(compression, record.stored, longest).map_err(malformed)?;
                let mut value = vec![0; len];
                decompress_into(compression, record.stored, &mut value).map_err(malformed)?;
                Ok(Some(value))
            }
            None => Err(Error::Unsupported {
                file: self.path().to_owned(),
                what: "block compression",
                found: record.compression.into(),
                known: highest_code().into(),
            }),
        }
    }
}

impl Drop for ValueFile {
    fn drop(&mut self) {
        let mut known = self.files.known.lock();
        // Another table may have opened it anew meanwhile.
        if known.get(&self.number()).is_some_and(|file| file.strong_count() == 0) {
            known.remove(&self.number());
        }
        drop(known);
        if *self.is_obsolete.get_mut() {
            self.files.pool.remove(self.number());
            self.files.janitor.hand_in(FileKind::Values(self.number()));
        }
    }
}

impl fmt::Debug for ValueFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueFile").field("path", &self.path()).finish_non_exhaustive()
    }
}
