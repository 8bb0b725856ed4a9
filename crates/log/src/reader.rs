//! [`LogReader`]: the records of one log in order, up to the first that does not verify.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis_base::error::{Error, IoContext, Result};
use tamis_base::format::checksum::crc;
use tamis_base::format::header::{FILE_HEADER_LEN, FileHeader, Magic};
use tamis_base::format::key::MAX_SEQNO;
use tamis_base::format::record::{MAX_RECORD_HEADER_LEN, RecordHeader};
use tamis_vfs::{FileSystem, ReadableFile};

mod salvage;

pub(super) use salvage::RecordSpan;

/// Bytes read from the file at a time. Only a longer record with a verified header takes more.
const WINDOW_LEN: usize = 1 << 20;

/// Bytes read at a time from a log that is read as it grows: usually there are a few records and
/// then zeros.
const TAIL_WINDOW_LEN: usize = 64 << 10;

/// One record. A sync marker has a count of 0 and no payload.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    pub file: &'a Path,
    /// The log's number.
    pub number: u64,
    pub offset: u64,
    pub first: u64,
    pub count: u32,
    pub synced: u64,
    pub payload: &'a [u8],
}

impl Record<'_> {
    /// The error for a record that breaks `rule` although its checksums match.
    pub fn corruption(&self, rule: impl std::fmt::Display) -> Error {
        Error::corruption(self.file, self.offset, rule)
    }
}

/// The outcome of [`LogReader::read`].
#[derive(Debug)]
pub enum Step<'a> {
    Record(Record<'a>),
    End(End),
}

/// How the records of a log end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// At the end of the file, or at zeros up to there, which were prepared for more records.
    Clean,
    /// At bytes that are not the next record. The reader cannot tell a torn tail from damage.
    Bad { offset: u64, reason: String },
}

/// Reads a log, beginning with its header.
pub struct LogReader {
    file: Arc<dyn ReadableFile>,
    path: PathBuf,
    number: u64,
    len: u64,
    /// The file's header, or the rule that it breaks.
    header: Result<FileHeader, String>,
    next: u64,
    offset: u64,
    window: ReadWindow,
}

/// A part of the file in memory.
struct ReadWindow {
    start: u64,
    /// Bytes from `start` on. Those after `len` are unspecified; the allocation is kept for reuse.
    bytes: Vec<u8>,
    len: usize,
    /// Bytes to read at a time.
    wanted: usize,
}

impl LogReader {
    /// Opens log `number` and reads its header. A header that does not verify is no error: the log
    /// ends before its first record. A header of a later format version is an error. So is a sound
    /// header of another log, which no interrupted creation leaves behind.
    pub fn open(fs: &dyn FileSystem, path: &Path, magic: Magic, number: u64) -> Result<LogReader> {
        let file = fs.open(path).during("open", path)?;
        let len = file.len().during("read the length of", path)?;
        let mut bytes = [0; FILE_HEADER_LEN];
        let read = file.read_at(&mut bytes, 0).during("read", path)?;
        if let Some(found) = FileHeader::sound_number(&bytes[..read], magic)
            && found != number
        {
            let rule = format!("the file holds log number {found}, not the one in its name");
            return Err(Error::corruption(path, 0, rule));
        }
        let header = match FileHeader::decode(&bytes[..read], magic, number, path) {
            Ok(header) if header.synced >= header.first => {
                let rule = "the log says that its first record was durable before it was written";
                return Err(Error::corruption(path, 0, rule));
            }
            Ok(header) if header.first > MAX_SEQNO + 1 => {
                return Err(Error::corruption(path, 0, "the log begins beyond the last sequence number"));
            }
            Ok(header) => Ok(header),
            Err(Error::Corruption { rule, .. }) => Err(rule),
            Err(error) => return Err(error),
        };
        Ok(LogReader {
            file,
            path: path.to_owned(),
            number,
            len,
            next: header.as_ref().map_or(0, |header| header.first),
            offset: header.as_ref().map_or(0, |_| FILE_HEADER_LEN as u64),
            header,
            window: ReadWindow::new(WINDOW_LEN),
        })
    }

    /// Another reader of the file, at the same place, to read the log as it grows. It has no memory
    /// of the file, and takes little.
    pub fn at_tail(&self) -> LogReader {
        LogReader {
            file: Arc::clone(&self.file),
            path: self.path.clone(),
            header: self.header.clone(),
            window: ReadWindow::new(TAIL_WINDOW_LEN),
            ..*self
        }
    }

    /// Looks at the file again, which may have grown since it was read. Returns whether something
    /// follows the last record; it may be a part of a record that is being written.
    pub fn look_again(&mut self) -> Result<bool> {
        // What lies after the last record was read too early.
        self.window.cut(self.offset);
        let mut start = [0; MAX_RECORD_HEADER_LEN];
        let read = self.file.read_at(&mut start, self.offset).during("read", &self.path)?;
        if start[..read].iter().all(|byte| *byte == 0) {
            return Ok(false);
        }
        self.len = self.file.len().during("read the length of", &self.path)?;
        Ok(true)
    }

    /// Whether zeros or nothing at all follow the last record, as far as a record's header reaches.
    /// Cheaper than [`read`](LogReader::read), which looks at all that follows.
    pub fn is_at_zeros(&mut self) -> Result<bool> {
        self.fill_header(self.offset)?;
        let bytes = self.window.from(self.offset);
        Ok(bytes.iter().take(MAX_RECORD_HEADER_LEN).all(|byte| *byte == 0))
    }

    /// Opens log `number`, whose header breaks `rule`, to [salvage](crate::salvage) its
    /// records.
    pub fn open_headless(fs: &dyn FileSystem, path: &Path, number: u64, rule: &str) -> Result<LogReader> {
        let file = fs.open(path).during("open", path)?;
        let len = file.len().during("read the length of", path)?;
        let (path, header) = (path.to_owned(), Err(rule.to_owned()));
        Ok(LogReader { file, path, number, len, header, next: 0, offset: 0, window: ReadWindow::new(WINDOW_LEN) })
    }

    /// The file's header, or the rule that it breaks.
    pub fn header(&self) -> Result<&FileHeader, &str> {
        self.header.as_ref().map_err(String::as_str)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The log's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The file, which stays readable when its name is removed.
    pub fn file(&self) -> &Arc<dyn ReadableFile> {
        &self.file
    }

    /// Allows reading up to `len`. Bytes beyond it are never read: a writer may be changing them.
    pub fn limit(&mut self, len: u64) {
        self.len = len;
    }

    /// Continues with the record at `offset`, whose first ordinal is `next`.
    pub fn skip_to(&mut self, next: u64, offset: u64) {
        (self.next, self.offset) = (next, offset);
    }

    /// The first ordinal of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Offset of the next record; everything before it has been verified.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the next record. At the end, every call returns the end again.
    // Inlined: a record that is returned through memory is copied several times on its way.
    #[inline(always)]
    pub fn read(&mut self) -> Result<Step<'_>> {
        if let Err(rule) = &self.header {
            return Ok(self.bad(rule));
        }
        if self.offset >= self.len {
            return Ok(Step::End(End::Clean));
        }
        let whole = self.fill_header(self.offset)?;
        let window = self.window.from(self.offset);
        let Some((header, header_len)) = RecordHeader::decode(window, self.number, self.offset) else {
            return Ok(if self.rest_is_zero()? {
                Step::End(End::Clean)
            } else if whole {
                self.bad("the header of the record does not verify")
            } else {
                self.bad("the header of the record does not verify, or is cut short")
            });
        };
        let (first, offset) = (self.next, self.offset);
        let payload_len = header.payload_len as usize;
        let next = first.saturating_add(header.count.into());
        let broken = if header.count == 0 && payload_len > 0 {
            Some("a sync marker has a payload")
        } else if header.synced >= first {
            Some("the record says that it was durable before it was written")
        } else if next > MAX_SEQNO + 1 {
            Some("the record goes beyond the last sequence number")
        } else if !self.fill(offset, header_len + payload_len)? {
            Some("the payload of the record is cut short")
        } else {
            None
        };
        if let Some(reason) = broken {
            return Ok(self.bad(reason));
        }
        let payload = self.window.part(offset, header_len, payload_len);
        if crc(payload) != header.payload_crc {
            return Ok(self.bad("the checksum of the payload does not match"));
        }
        self.offset += (header_len + payload_len) as u64;
        self.next = next;
        let RecordHeader { count, synced, .. } = header;
        Ok(Step::Record(Record { file: &self.path, number: self.number, offset, first, count, synced, payload }))
    }

    /// Searches the unread rest for a statement that ordinal `durable` or a later one was once
    /// durable. It checks the file header if no record has been read, and every offset for a record
    /// header that verifies there. Returns the statement's offset and ordinal.
    ///
    /// Consumes the reader, because the search moves its window.
    pub fn find_synced(mut self, durable: u64) -> Result<Option<(u64, u64)>> {
        if self.offset <= FILE_HEADER_LEN as u64
            && let Ok(header) = &self.header
            && header.synced >= durable
        {
            return Ok(Some((0, header.synced)));
        }
        if self.rest_is_zero()? {
            return Ok(None);
        }
        let mut offset = self.offset;
        while offset < self.len {
            let whole = self.fill_header(offset)?;
            let bytes = self.window.from(offset);
            // Near the end of a window, unless it is the last, a header may be cut off.
            let count = if whole { bytes.len() - MAX_RECORD_HEADER_LEN + 1 } else { bytes.len() };
            for (at, i) in (offset..).zip(0..count) {
                if let Some(synced) = RecordHeader::statement(&bytes[i..], self.number, at)
                    && synced >= durable
                {
                    return Ok(Some((at, synced)));
                }
            }
            if count == 0 {
                break;
            }
            offset += count as u64;
        }
        Ok(None)
    }

    /// Whether the rest of the file, from the next record on, is all zeros. No record, whole or
    /// partial, looks like that.
    fn rest_is_zero(&mut self) -> Result<bool> {
        let mut offset = self.offset;
        while self.fill(offset, 1)? {
            let bytes = self.window.from(offset);
            // In chunks without a branch per byte, which compilers vectorize.
            if !bytes.chunks(1 << 10).all(|piece| piece.iter().fold(0, |all, byte| all | byte) == 0) {
                return Ok(false);
            }
            offset += bytes.len() as u64;
        }
        Ok(true)
    }

    #[cold]
    fn bad(&self, reason: &str) -> Step<'static> {
        Step::End(End::Bad { offset: self.offset, reason: reason.to_owned() })
    }

    /// Loads the longest header possible at `offset` into the window. Returns false if the file
    /// ends earlier; the window then holds what there is.
    fn fill_header(&mut self, offset: u64) -> Result<bool> {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        Ok(self.fill(offset, left.min(MAX_RECORD_HEADER_LEN))? && left >= MAX_RECORD_HEADER_LEN)
    }

    /// Loads the `need` bytes at `offset` into the window. Returns false if the file is too short,
    /// which is checked before any allocation.
    #[inline]
    fn fill(&mut self, offset: u64, need: usize) -> Result<bool> {
        if self.window.from(offset).len() >= need { Ok(true) } else { self.read_window(offset, need) }
    }

    #[cold]
    fn read_window(&mut self, offset: u64, need: usize) -> Result<bool> {
        let left = self.len.saturating_sub(offset);
        if left < need as u64 {
            return Ok(false);
        }
        let kept = self.window.from(offset).len();
        let ReadWindow { start, bytes, len, wanted } = &mut self.window;
        bytes.copy_within(*len - kept..*len, 0);
        (*start, *len) = (offset, kept);
        bytes.resize(usize::try_from(left).unwrap_or(usize::MAX).min(need.max(*wanted)), 0);
        bytes.shrink_to(*wanted);
        *len += self.file.read_at(&mut bytes[kept..], offset + kept as u64).during("read", &self.path)?;
        Ok(*len >= need)
    }
}

impl ReadWindow {
    fn new(wanted: usize) -> ReadWindow {
        ReadWindow { start: 0, bytes: Vec::new(), len: 0, wanted }
    }

    /// Forgets the bytes from file offset `offset` on.
    fn cut(&mut self, offset: u64) {
        let kept = usize::try_from(offset.saturating_sub(self.start)).unwrap_or(usize::MAX);
        self.len = self.len.min(kept);
    }

    /// The window's bytes from file offset `offset` on.
    fn from(&self, offset: u64) -> &[u8] {
        let skipped = offset.checked_sub(self.start);
        skipped
            .and_then(|skipped| usize::try_from(skipped).ok())
            .and_then(|skipped| self.bytes.get(skipped..self.len))
            .unwrap_or_default()
    }

    /// The `len` bytes at `offset + skip`, empty if the window does not hold all of them.
    fn part(&self, offset: u64, skip: usize, len: usize) -> &[u8] {
        self.from(offset).get(skip..skip + len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::put_file;
    use tamis_vfs::OsFileSystem;

    /// A log of one record header, which claims a payload of `claimed` bytes, and of `payload`.
    fn open_log(claimed: u32, payload: &[u8]) -> (tempfile::TempDir, LogReader) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("000005.wal");
        let file_header = FileHeader { number: 5, first: 1, ..FileHeader::default() };
        let header = RecordHeader { payload_len: claimed, payload_crc: crc(payload), count: 1, synced: 0 };
        put_file(&path, &[&file_header.encode(Magic::Wal)[..], header.encode(5, 64).as_slice(), payload].concat());
        let reader = LogReader::open(&OsFileSystem, &path, Magic::Wal, 5).unwrap();
        (dir, reader)
    }

    #[test]
    fn claimed_length_allocates_no_more_than_the_file_has() {
        let (_dir, mut reader) = open_log(u32::MAX, b"short");
        assert!(matches!(reader.read().unwrap(), Step::End(End::Bad { offset: 64, .. })));
        assert!(reader.window.bytes.capacity() <= WINDOW_LEN);
    }

    #[test]
    fn window_grows_for_a_verified_record_only() {
        let payload = vec![7; 2 * WINDOW_LEN];
        let (_dir, mut reader) = open_log(u32::try_from(payload.len()).unwrap(), &payload);
        match reader.read().unwrap() {
            Step::Record(record) => assert_eq!(record.payload, payload),
            Step::End(end) => panic!("{end:?}"),
        }
        let (_dir, mut reader) = open_log(u32::MAX, &payload);
        assert!(matches!(reader.read().unwrap(), Step::End(End::Bad { offset: 64, .. })));
        assert!(reader.window.bytes.capacity() <= WINDOW_LEN);
    }
}
