//! [`LogWriter`]: appends records to a new log.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, IoContext, Result};
use crate::format::checksum::crc;
use crate::format::header::{FILE_HEADER_LEN, FileHeader, Magic};
use crate::format::key::MAX_SEQNO;
use crate::format::record::{RECORD_HEADER_LEN, RecordHeader};
use crate::vfs::{FileSystem, WritableFile};

/// The buffer that gathers an append keeps this much; what one long record needed beyond it is given back.
const KEPT_BUFFER_LEN: usize = 1 << 20;

/// A record to append. The payload's checksum is the caller's, who can compute it outside of the lock that appends are made under.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogRecord<'a> {
    pub(crate) payload: &'a [u8],
    pub(crate) payload_crc: u32,
    /// Ordinals that the record takes, at least 1.
    pub(crate) count: u32,
}

/// Writes one log from its creation on.
///
/// After a failed append or sync nothing is known of the end of the file, so that every later call returns that first error.
pub(crate) struct LogWriter {
    file: Arc<dyn WritableFile>,
    path: PathBuf,
    number: u64,
    len: u64,
    next: u64,
    /// The highest ordinal that the header or a record states to be durable.
    stated: u64,
    /// Goes out with the first append.
    header: [u8; FILE_HEADER_LEN],
    buffer: Vec<u8>,
    failed: Option<Error>,
}

impl LogWriter {
    /// Creates the file. Its header goes out with the first append: a header says where every older log ends, and must not do so
    /// when the log is given up for a failure to write it. The file's name is not durable yet.
    pub(crate) fn create(fs: &dyn FileSystem, path: &Path, magic: Magic, header: FileHeader) -> Result<LogWriter> {
        assert!(header.synced < header.first, "a log begins behind what is durable");
        let file: Arc<dyn WritableFile> = fs.create(path).during("create", path)?.into();
        Ok(LogWriter {
            file,
            path: path.to_owned(),
            number: header.number,
            len: 0,
            next: header.first,
            stated: header.synced,
            header: header.encode(magic),
            buffer: Vec::new(),
            failed: None,
        })
    }

    /// Appends `records` by one write and returns the ordinals they took. `synced` is the highest ordinal known to be durable.
    pub(crate) fn append(&mut self, records: &[LogRecord<'_>], synced: u64) -> Result<Range<u64>> {
        assert!(synced < self.next, "what is not yet written cannot be durable");
        let first = self.next;
        let mut next = first;
        self.begin_buffer();
        for record in records {
            debug_assert_eq!(record.payload_crc, crc(record.payload));
            let payload_len = u32::try_from(record.payload.len())
                .map_err(|_| Error::invalid("a log record takes less than 4 GiB"))?;
            if record.count == 0 {
                return Err(Error::invalid("a log record must not be empty"));
            }
            let header = RecordHeader {
                payload_len,
                payload_crc: record.payload_crc,
                count: record.count,
                file_number: self.number,
                first: next,
                synced,
            };
            next += u64::from(record.count);
            if next > MAX_SEQNO + 1 {
                return Err(Error::invalid("the sequence numbers are used up"));
            }
            self.buffer.reserve(RECORD_HEADER_LEN + record.payload.len());
            self.push_header(&header);
            self.buffer.extend_from_slice(record.payload);
        }
        self.flush_buffer()?;
        self.next = next;
        self.stated = self.stated.max(synced);
        Ok(first..next)
    }

    /// Appends a sync marker: a record that says no more than that everything up to `synced` is durable.
    pub(crate) fn append_marker(&mut self, synced: u64) -> Result<()> {
        assert!(synced < self.next, "what is not yet written cannot be durable");
        let header = RecordHeader {
            payload_len: 0,
            payload_crc: crc(&[]),
            count: 0,
            file_number: self.number,
            first: self.next,
            synced,
        };
        self.begin_buffer();
        self.push_header(&header);
        self.flush_buffer()?;
        self.stated = self.stated.max(synced);
        Ok(())
    }

    /// Makes everything appended so far durable. Whoever syncs by way of [`LogWriter::file`] keeps the failure himself.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.check()?;
        let result = self.file.sync().during("sync", &self.path);
        self.remember(result)
    }

    /// The file, for another thread to sync while appends go on.
    pub(crate) fn file(&self) -> Arc<dyn WritableFile> {
        Arc::clone(&self.file)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Bytes of all appends that succeeded, the file header included.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The ordinal that the next record will begin with.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The highest ordinal that the file states to be durable.
    pub(crate) fn stated(&self) -> u64 {
        if self.len == 0 { 0 } else { self.stated }
    }

    fn begin_buffer(&mut self) {
        self.buffer.clear();
        if self.len == 0 {
            self.buffer.extend_from_slice(&self.header);
        }
    }

    /// Adds a header as it will stand in the file, behind what the buffer holds already.
    fn push_header(&mut self, header: &RecordHeader) {
        let offset = self.len + self.buffer.len() as u64;
        self.buffer.extend_from_slice(&header.encode(offset));
    }

    fn flush_buffer(&mut self) -> Result<()> {
        self.check()?;
        let result = self.file.append(&self.buffer).during("write", &self.path);
        self.remember(result)?;
        self.len += self.buffer.len() as u64;
        self.buffer.clear();
        self.buffer.shrink_to(KEPT_BUFFER_LEN);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn remember(&mut self, result: Result<()>) -> Result<()> {
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Fails the call after the first `good` ones, and only that one.
    struct FailsOnce {
        good: usize,
        calls: AtomicUsize,
    }

    impl FailsOnce {
        fn call(&self) -> io::Result<()> {
            if self.calls.fetch_add(1, Ordering::Relaxed) == self.good {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            Ok(())
        }
    }

    impl WritableFile for FailsOnce {
        fn append(&self, _: &[u8]) -> io::Result<()> {
            self.call()
        }

        fn sync(&self) -> io::Result<()> {
            self.call()
        }

        fn reserve(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
    }

    fn writer_that_fails_after(good: usize) -> LogWriter {
        LogWriter {
            file: Arc::new(FailsOnce { good, calls: AtomicUsize::new(0) }),
            path: "000008.wal".into(),
            number: 8,
            len: 64,
            next: 1,
            stated: 0,
            header: [0; FILE_HEADER_LEN],
            buffer: Vec::new(),
            failed: None,
        }
    }

    fn record(payload: &[u8]) -> LogRecord<'_> {
        LogRecord { payload, payload_crc: crc(payload), count: 1 }
    }

    #[test]
    fn first_failure_is_the_answer_to_every_later_call() {
        for fail_sync in [false, true] {
            let mut log = writer_that_fails_after(1);
            assert_eq!(log.append(&[record(b"a")], 0).unwrap(), 1..2);
            let failure = if fail_sync { log.sync().unwrap_err() } else { log.append(&[record(b"b")], 0).unwrap_err() };
            assert!(failure.is_no_space());
            let later = [log.append(&[record(b"c")], 0).map(drop), log.append_marker(0), log.sync()];
            for result in later {
                assert_eq!(result.unwrap_err().to_string(), failure.to_string());
            }
            assert_eq!((log.len(), log.next()), (64 + 41, 2));
        }
    }

    #[test]
    fn refused_record_takes_no_ordinal_and_writes_nothing() {
        let mut log = writer_that_fails_after(usize::MAX);
        let empty = LogRecord { count: 0, ..record(b"") };
        assert!(log.append(&[record(b"a"), empty], 0).is_err());
        log.next = MAX_SEQNO;
        assert!(log.append(&[record(b"a"), record(b"b")], 0).is_err());
        assert_eq!(log.len(), 64);
        assert_eq!(log.append(&[record(b"a")], 0).unwrap().start, MAX_SEQNO);
    }

    #[test]
    fn buffer_of_a_long_record_is_given_back() {
        let mut log = writer_that_fails_after(usize::MAX);
        log.append(&[record(&vec![7; 3 * KEPT_BUFFER_LEN])], 0).unwrap();
        assert!(log.buffer.capacity() <= KEPT_BUFFER_LEN);
    }
}
