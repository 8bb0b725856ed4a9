//! [`ValueScan`]: reads a value file from front to back and checks all of it.

use std::sync::Arc;

use super::file::{ValueFile, ValueFiles};
use super::record::{RECORD_FRONT, ValuesFooter, record_len};
use super::{FIXED_LEN, FOOTER_LEN, ValueFileMeta};
use crate::error::Result;
use crate::format::checksum::FileChecksum;
use crate::format::header::{FILE_HEADER_LEN, FileHeader, Magic};
use crate::format::key::MAX_VALUE_LEN;

/// Reads the records of a value file in order.
///
/// ```text
/// scan = new next_record* finish        finish after next_record has returned None
/// ```
pub struct ValueScan {
    file: Arc<ValueFile>,
    checksum: FileChecksum,
    offset: u64,
    /// Where the records end.
    end: u64,
    count: u64,
    footer: ValuesFooter,
}

/// The longest value.
#[expect(clippy::cast_possible_truncation, reason = "1 GiB")]
const LONGEST: u32 = MAX_VALUE_LEN as u32;

/// A record that has been verified.
pub struct ScannedValue {
    pub offset: u64,
    /// Bytes of the record.
    pub len: u64,
    pub keyspace: u32,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl ValueScan {
    /// Checks header and footer of a file.
    pub fn new(files: &Arc<ValueFiles>, number: u64) -> Result<ValueScan> {
        let file = files.hold(number);
        let size = file.len()?;
        if size < FIXED_LEN {
            return Err(file.corrupt(0, "a value file is shorter than its header and footer"));
        }
        let header = file.bytes(0, FILE_HEADER_LEN as u64)?;
        FileHeader::decode(&header, Magic::Values, number, file.path())?;
        let end = size - FOOTER_LEN as u64;
        let footer = ValuesFooter::decode(&file.bytes(end, FOOTER_LEN as u64)?, number, size);
        let footer = footer.map_err(|malformed| file.corrupt(end, malformed))?;
        let mut checksum = FileChecksum::default();
        checksum.update(&header);
        Ok(ValueScan { file, checksum, offset: FILE_HEADER_LEN as u64, end, count: 0, footer })
    }

    /// The keyspace of all records.
    pub fn keyspace(&self) -> u32 {
        self.footer.keyspace
    }

    /// The next record, `None` after the last one.
    pub fn next_record(&mut self) -> Result<Option<ScannedValue>> {
        let (file, offset, left) = (&self.file, self.offset, self.end - self.offset);
        if left == 0 {
            return Ok(None);
        }
        let front = file.bytes(offset, left.min(RECORD_FRONT as u64))?;
        let len = record_len(&front).map_err(|malformed| file.corrupt(offset, malformed))?;
        if len > left {
            return Err(file.corrupt(offset, "a value reaches beyond the end of the file"));
        }
        let bytes = file.bytes(offset, len)?;
        let record = file.decode(&bytes, offset)?;
        if record.keyspace != self.footer.keyspace {
            return Err(file.corrupt(offset, "a value is of another keyspace than its file"));
        }
        let value = file.unpacked(&record, LONGEST, offset)?.unwrap_or_else(|| record.stored.to_vec());
        let found = ScannedValue { offset, len, keyspace: record.keyspace, key: record.key.to_vec(), value };
        self.checksum.update(&bytes);
        (self.offset, self.count) = (offset + len, self.count + 1);
        Ok(Some(found))
    }

    /// What the manifest should say of the file.
    pub fn finish(mut self) -> Result<ValueFileMeta> {
        if self.count != self.footer.count {
            return Err(self.file.corrupt(self.end, "a value file has another number of values than it states"));
        }
        self.checksum.update(&self.file.bytes(self.end, FOOTER_LEN as u64)?);
        let (number, size) = (self.file.number(), self.footer.size);
        Ok(ValueFileMeta { number, size, checksum: self.checksum.finish(), count: self.count })
    }

    /// Reads a whole file and compares it with what the manifest says of it.
    pub fn verify(files: &Arc<ValueFiles>, meta: &ValueFileMeta) -> Result<()> {
        let mut scan = ValueScan::new(files, meta.number)?;
        while scan.next_record()?.is_some() {}
        let file = files.hold(meta.number);
        let found = scan.finish()?;
        if (found.size, found.count) != (meta.size, meta.count) {
            return Err(file.corrupt(0, "length or count of a value file are not those in the manifest"));
        }
        match found.checksum == meta.checksum {
            true => Ok(()),
            false => Err(file.corrupt(0, "the checksum of the file is not the one in the manifest")),
        }
    }
}
