//! [`ValueWriter`]: writes values to value files.

use std::path::Path;
use std::sync::Arc;

use super::record::{ValuesFooter, put_record};
use super::{FIXED_LEN, FOOTER_LEN};
use crate::compress::Compression;
use crate::error::{Error, Result};
use crate::files::{CHARGE_STEP, FileWriter};
use crate::format::filename::FileKind;
use crate::format::header::Magic;
use crate::format::pointer::ValuePointer;
use crate::memory::budget::{MemoryBudget, MemoryCharge, MemoryUse};
use crate::vfs::FileSystem;

/// What the manifest records about a value file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueFileMeta {
    pub number: u64,
    /// File length in bytes.
    pub size: u64,
    /// Checksum of the whole file.
    pub checksum: u32,
    /// Number of records.
    pub count: u64,
}

impl ValueFileMeta {
    /// Bytes of the records.
    pub fn record_bytes(&self) -> u64 {
        self.size.saturating_sub(FIXED_LEN)
    }
}

/// Writes values to as many files as they need. [`finish`](ValueWriter::finish) syncs the files;
/// the caller makes their names durable.
///
/// ```text
/// writer = new add* (finish | abandon)        after an error: abandon
/// ```
pub struct ValueWriter<'a> {
    fs: &'a dyn FileSystem,
    dir: &'a Path,
    keyspace: u32,
    compression: Compression,
    /// Length at which a file ends and the next begins.
    file_size: u64,
    /// Bytes written at a time.
    write_len: usize,
    /// For the current file's buffer.
    charge: MemoryCharge,
    current: Option<OpenFile>,
    done: Vec<ValueFileMeta>,
    pointer: Vec<u8>,
}

/// The file being written.
struct OpenFile {
    file: FileWriter,
    /// Number of records.
    count: u64,
}

impl<'a> ValueWriter<'a> {
    pub fn new(
        fs: &'a dyn FileSystem,
        dir: &'a Path,
        keyspace: u32,
        compression: Compression,
        file_size: u64,
        write_len: usize,
        budget: &Arc<MemoryBudget>,
    ) -> ValueWriter<'a> {
        let (current, done, pointer) = Default::default();
        let charge = MemoryCharge::new(budget, MemoryUse::Jobs, 0);
        ValueWriter { fs, dir, keyspace, compression, file_size, write_len, charge, current, done, pointer }
    }

    /// Writes the value of a key; returns the encoded pointer to it. A new file, if one is needed,
    /// gets the number that `new_number` returns.
    pub fn add(&mut self, key: &[u8], value: &[u8], new_number: &dyn Fn() -> u64) -> Result<&[u8]> {
        if self.current.as_ref().is_some_and(|open| open.file.offset() >= self.file_size) {
            self.end_file()?;
        }
        let (fs, dir) = (self.fs, self.dir);
        let OpenFile { file, count } = match &mut self.current {
            Some(open) => open,
            none => none.insert(OpenFile::create(fs, dir, new_number(), self.write_len)?),
        };
        let (number, offset) = (file.number(), file.offset());
        let charge = &mut self.charge;
        let mut charge_for = |bytes: usize| charge.resize(bytes.next_multiple_of(CHARGE_STEP));
        charge_for(file.buffer.capacity().max(file.buffer.len() + key.len() + value.len()));
        put_record(&mut file.buffer, (number, offset), self.keyspace, key, value, self.compression);
        *count += 1;
        let lens = (u32::try_from(file.offset() - offset), u32::try_from(value.len()));
        let (Ok(record_len), Ok(value_len)) = lens else {
            return Err(Error::invalid("a value exceeds the limit of the format"));
        };
        file.append_if_full()?;
        charge_for(file.buffer.capacity());
        let pointer = ValuePointer { file: number, offset, record_len, value_len };
        self.pointer.clear();
        pointer.encode(&mut self.pointer);
        Ok(&self.pointer)
    }

    /// Completes and syncs the current file, if any, before a table that points to it is completed.
    pub fn end_file(&mut self) -> Result<()> {
        let Some(file) = &mut self.current else { return Ok(()) };
        self.done.push(file.finish(self.keyspace)?);
        self.current = None;
        self.charge.resize(0);
        Ok(())
    }

    /// Completes and syncs the files; returns what the manifest records about them.
    pub fn finish(&mut self) -> Result<Vec<ValueFileMeta>> {
        self.end_file()?;
        Ok(std::mem::take(&mut self.done))
    }

    /// Gives up and removes the files, best effort. Those that stay belong to no version; the next
    /// open of the store removes them.
    pub fn abandon(&mut self) {
        let unfinished = self.current.take().map(|open| open.file.number());
        for number in self.done.drain(..).map(|meta| meta.number).chain(unfinished) {
            let _ = self.fs.remove(&FileKind::Values(number).path(self.dir));
        }
    }
}

impl OpenFile {
    fn create(fs: &dyn FileSystem, dir: &Path, number: u64, write_len: usize) -> Result<OpenFile> {
        let mut file = FileWriter::create(fs, FileKind::Values(number).path(dir), Magic::Values, number)?;
        file.write_len = write_len;
        Ok(OpenFile { file, count: 0 })
    }

    fn finish(&mut self, keyspace: u32) -> Result<ValueFileMeta> {
        let OpenFile { file, count } = self;
        let count = *count;
        let (number, size) = (file.number(), file.offset() + FOOTER_LEN as u64);
        file.buffer.extend_from_slice(&ValuesFooter { count, size, keyspace }.encode(number));
        Ok(ValueFileMeta { number, size, checksum: file.finish()?, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::atomic::{AtomicUsize, Ordering};
    use crate::vfs::SimFileSystem;

    #[test]
    fn a_value_is_charged_before_it_is_in_the_buffer_and_no_longer_than_it_is() {
        const MIB: usize = 1 << 20;
        let (fs, budget) = (SimFileSystem::new(), MemoryBudget::new(4 * MIB));
        fs.create_dir(Path::new("/db")).unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        budget.on_excess(move || _ = counted.fetch_add(1, Ordering::Relaxed));
        budget.note_cache(0, 1);
        let dir = Path::new("/db");
        let mut writer = ValueWriter::new(&fs, dir, 0, Compression::None, 64 << 20, MIB, &budget);
        for (len, excess) in [(100, 0), (MIB / 2, 0), (9 * MIB, 1), (100, 1), (MIB, 1), (9 * MIB, 2)] {
            writer.add(b"key", &vec![7; len], &|| 5).unwrap();
            assert_eq!(calls.load(Ordering::Relaxed), excess, "{len}");
            assert!((100..=2 * MIB).contains(&budget.used(MemoryUse::Jobs)), "{len}");
        }
        writer.finish().unwrap();
        assert_eq!(budget.used(MemoryUse::Jobs), 0);
    }
}
