//! [`LogWriter`]: appends records to a new log, by system calls or, where the file system offers
//! mapped windows, by stores to memory.
//!
//! The file is the same either way. A record that is synced at once goes by a call: a sync makes
//! the kernel protect the pages of a window, so that alternating stores and syncs cost several
//! times as much (526 µs against 119, measured).
//!
//! The window lies ahead of the log's end, over zeros that were written, mapped and populated in
//! advance (`crates/vfs/src/os/ahead.rs`). It has at most 512 KiB in a WAL.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::tail::LogTail;
use tamis_base::error::{Error, IoContext, Result};
use tamis_base::format::checksum::crc;
use tamis_base::format::header::{FileHeader, Magic};
use tamis_base::format::key::MAX_SEQNO;
use tamis_base::format::record::{MAX_RECORD_HEADER_LEN, RecordHeader};
use tamis_base::sync::time;
use tamis_vfs::{FileSystem, Window, WritableFile};

/// Most bytes that the append buffer keeps; what one long record needed beyond it is freed.
const KEPT_BUFFER_LEN: usize = 1 << 20;
/// From this length on, a payload is appended by a call of its own instead of being copied into the
/// buffer: a value of 300 MB takes 300 MB less.
const LARGE_PAYLOAD: usize = 1 << 20;

/// A record to append. The caller computes the checksum, outside of the lock that guards appends.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    pub payload: &'a [u8],
    pub payload_crc: u32,
    /// Ordinals that the record takes, at least 1.
    pub count: u32,
}

/// A record states what is durable if it is the first to say so, or the first record in each
/// interval of this many bytes. Damage to one statement, and to what it covers, then leaves the
/// next.
const STATEMENT_INTERVAL: u64 = 4 << 10;

/// Bytes prepared ahead of a new log. A longer log prepares as much as it has, up to the owner's
/// limit.
const FIRST_STEP: u64 = 64 << 10;
/// Prepared space ends at a multiple of this.
const STEP_UNIT: u64 = 4 << 10;
/// Bytes after a synced record that go by calls; at most one step. Writing them takes about as long
/// as the extra time of a sync after stores.
const CALLS_AFTER_SYNC: u64 = 64 << 10;

/// Writes one log, from its creation on.
///
/// After a failed append or sync the state of the file's end is unknown, so every later call
/// returns that first error.
pub struct LogWriter {
    file: Arc<dyn WritableFile>,
    path: PathBuf,
    number: u64,
    len: u64,
    next: u64,
    /// The highest ordinal that the header or a record states to be durable.
    stated: u64,
    /// Number of the [`STATEMENT_INTERVAL`] in which it was last stated.
    stated_interval: u64,
    /// Written with the first append.
    header: FileHeader,
    magic: Magic,
    buffer: Vec<u8>,
    prepared_space: Option<PreparedSpace>,
    tail: Arc<LogTail>,
    /// Time that appends have spent in calls of the file system.
    waited: Duration,
    failed: Option<Error>,
}

/// File space and memory prepared ahead of the records. All of it is best effort: if the file
/// system or the device refuses, the log is written without it.
struct PreparedSpace {
    /// Most bytes prepared at once.
    step: u64,
    /// Length of the file when it was last prepared.
    prepared: u64,
    can_prepare: bool,
    window: Option<Box<dyn Window>>,
    can_map: bool,
    /// Log length up to which no window is used.
    calls_until: u64,
}

/// Adds the time that `call` takes to `waited`.
fn timed<R>(waited: &mut Duration, call: impl FnOnce() -> R) -> R {
    let start = time::now();
    let result = call();
    *waited += time::since(start);
    result
}

impl PreparedSpace {
    /// Drops the window until the log is about [`CALLS_AFTER_SYNC`] longer than `len`.
    fn use_calls(&mut self, len: u64) {
        self.window = None;
        self.calls_until = len + CALLS_AFTER_SYNC.min(self.step);
    }

    /// Whether a record of `need` bytes after `len` that is not synced at once has its window.
    #[inline]
    fn is_ready(&self, len: u64, need: u64) -> bool {
        self.window.is_some() && len + need <= self.prepared
    }

    /// Prepares for `need` bytes after `len`; with `lazily`, they are not to be synced at once.
    /// Adds the time spent in the file system to `waited`.
    fn prepare(&mut self, file: &dyn WritableFile, len: u64, need: u64, lazily: bool, waited: &mut Duration) {
        // An append longer than a step is written directly, without writing zeros first.
        if self.can_prepare && len + need > self.prepared && need <= self.step {
            self.window = None;
            let step = len.clamp(FIRST_STEP.min(self.step), self.step).max(need);
            let end = (len + step).next_multiple_of(STEP_UNIT);
            self.can_prepare = matches!(timed(waited, || file.prepare(end)), Ok(true));
            if self.can_prepare {
                self.prepared = end;
            }
        }
        if !lazily {
            self.use_calls(len + need);
        } else if self.can_map && self.window.is_none() && len >= self.calls_until && len + need <= self.prepared {
            self.window = timed(waited, || file.window()).unwrap_or(None);
            self.can_map = self.window.is_some();
        }
    }
}

impl LogWriter {
    /// Creates the file; its name is not durable yet. The header is written with the first append:
    /// it states where every older log ends, and must not do so if the log is given up because that
    /// append fails.
    pub fn create(fs: &dyn FileSystem, path: &Path, magic: Magic, header: FileHeader) -> Result<LogWriter> {
        assert!(header.synced < header.first, "a log begins after everything durable");
        let file: Arc<dyn WritableFile> = fs.create(path).during("create", path)?.into();
        Ok(LogWriter {
            file,
            path: path.to_owned(),
            number: header.number,
            len: 0,
            next: header.first,
            stated: header.synced,
            stated_interval: 0,
            header,
            magic,
            buffer: Vec::new(),
            prepared_space: None,
            tail: Arc::default(),
            waited: Duration::ZERO,
            failed: None,
        })
    }

    /// Prepares the file ahead of its records, up to `step` bytes at a time, where the file system
    /// gains from that.
    pub fn with_prepared_space(mut self, step: u64) -> LogWriter {
        self.prepared_space =
            Some(PreparedSpace { step, prepared: 0, can_prepare: true, window: None, can_map: true, calls_until: 0 });
        self
    }

    /// Has the file's header state `features`, too. Nothing has been appended yet.
    pub fn require(&mut self, features: u32) {
        assert_eq!(self.len, 0, "the header has been written");
        self.header.features |= features;
    }

    /// Appends `records`, by one write unless there are large ones. Returns their ordinals.
    /// `synced` is the highest ordinal known to be durable.
    pub fn append<'a>(
        &mut self,
        records: impl IntoIterator<Item = NewRecord<'a>, IntoIter: Clone>,
        synced: u64,
    ) -> Result<Range<u64>> {
        self.write(records.into_iter(), synced, false)
    }

    /// [`append`](LogWriter::append) for records that no caller wants synced at once. They may be
    /// stored without a system call.
    pub fn append_lazily<'a>(
        &mut self,
        records: impl IntoIterator<Item = NewRecord<'a>, IntoIter: Clone>,
        synced: u64,
    ) -> Result<Range<u64>> {
        self.write(records.into_iter(), synced, true)
    }

    fn write<'a>(
        &mut self,
        records: impl Iterator<Item = NewRecord<'a>> + Clone,
        synced: u64,
        lazily: bool,
    ) -> Result<Range<u64>> {
        assert!(synced < self.next, "an unwritten ordinal cannot be durable");
        self.check()?;
        let first = self.next;
        let (next, need) = self.measure(records.clone())?;
        if let Some(prepared_space) = &mut self.prepared_space
            && !(lazily && prepared_space.is_ready(self.len, need))
        {
            prepared_space.prepare(&*self.file, self.len, need, lazily, &mut self.waited);
        }
        self.begin_buffer();
        for record in records {
            debug_assert_eq!(record.payload_crc, crc(record.payload));
            let header = RecordHeader {
                // Checked by `measure`.
                payload_len: u32::try_from(record.payload.len()).unwrap_or(u32::MAX),
                payload_crc: record.payload_crc,
                count: record.count,
                synced: self.statement(synced),
            };
            if self.buffer.is_empty() && self.append_to_window(&header, record.payload) {
                continue;
            }
            if record.payload.len() >= LARGE_PAYLOAD {
                self.push_header(&header);
                self.flush_buffer()?;
                self.append_by_call(record.payload)?;
                continue;
            }
            self.buffer.reserve(MAX_RECORD_HEADER_LEN + record.payload.len());
            self.push_header(&header);
            self.buffer.extend_from_slice(record.payload);
        }
        if !self.buffer.is_empty() {
            self.flush_buffer()?;
        }
        self.next = next;
        self.tail.publish(self.len, next);
        Ok(first..next)
    }

    /// What the next record states to be durable, or 0 if a nearby record states it.
    fn statement(&mut self, synced: u64) -> u64 {
        let interval = self.end() / STATEMENT_INTERVAL;
        if synced <= self.stated && interval == self.stated_interval {
            return 0;
        }
        self.stated = self.stated.max(synced);
        self.stated_interval = interval;
        synced
    }

    /// Offset of the next header.
    fn end(&self) -> u64 {
        self.len + self.buffer.len() as u64
    }

    /// The ordinal after `records`, and the most bytes that they take in the file. An error if they
    /// must not be written.
    fn measure<'a>(&self, records: impl Iterator<Item = NewRecord<'a>>) -> Result<(u64, u64)> {
        let (mut next, mut need) = (self.next, 0);
        for record in records {
            if u32::try_from(record.payload.len()).is_err() {
                return Err(Error::invalid("a log record takes less than 4 GiB"));
            }
            if record.count == 0 {
                return Err(Error::invalid("a log record must not be empty"));
            }
            need += (MAX_RECORD_HEADER_LEN + record.payload.len()) as u64;
            next += u64::from(record.count);
        }
        if next > MAX_SEQNO + 1 {
            return Err(Error::invalid("the sequence numbers are used up"));
        }
        Ok((next, need))
    }

    /// Appends a record through the window, if there is one with enough space left.
    fn append_to_window(&mut self, header: &RecordHeader, payload: &[u8]) -> bool {
        let Some(prepared_space) = &mut self.prepared_space else { return false };
        let Some(window) = &mut prepared_space.window else { return false };
        let head = header.encode(self.number, self.len);
        if window.append(head.as_slice(), payload) {
            self.len += (head.as_slice().len() + payload.len()) as u64;
            true
        } else {
            prepared_space.window = None;
            false
        }
    }

    /// Appends a sync marker: a record that only states everything up to `synced` to be durable.
    pub fn append_marker(&mut self, synced: u64) -> Result<()> {
        assert!(synced < self.next, "an unwritten ordinal cannot be durable");
        self.check()?;
        if synced == 0 {
            return Ok(());
        }
        let header = RecordHeader { payload_len: 0, payload_crc: crc(&[]), count: 0, synced };
        if let Some(prepared_space) = &mut self.prepared_space {
            prepared_space.use_calls(self.len);
        }
        self.begin_buffer();
        self.push_header(&header);
        self.flush_buffer()?;
        self.stated = self.stated.max(synced);
        self.tail.publish(self.len, self.next);
        Ok(())
    }

    /// Makes everything appended so far durable. A thread that syncs through [`LogWriter::file`]
    /// must handle a failure itself.
    pub fn sync(&mut self) -> Result<()> {
        self.check()?;
        let result = self.file.sync().during("sync", &self.path);
        self.keep_failure(result)
    }

    /// The file, for another thread to sync during appends.
    pub fn file(&self) -> Arc<dyn WritableFile> {
        Arc::clone(&self.file)
    }

    /// Tells other threads how far the log has been written.
    pub fn tail(&self) -> Arc<LogTail> {
        Arc::clone(&self.tail)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes of all successful appends, including the file header.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// How long appends have waited for the file system since the last call.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// The first ordinal of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The highest ordinal that the file states to be durable.
    pub fn stated(&self) -> u64 {
        if self.len == 0 { 0 } else { self.stated }
    }

    fn begin_buffer(&mut self) {
        self.buffer.clear();
        if self.len == 0 {
            self.buffer.extend_from_slice(&self.header.encode(self.magic));
        }
    }

    /// Adds a header, encoded for its offset in the file, to the buffer.
    fn push_header(&mut self, header: &RecordHeader) {
        let head = header.encode(self.number, self.end());
        self.buffer.extend_from_slice(head.as_slice());
    }

    fn flush_buffer(&mut self) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        self.append_by_call(&buffer)?;
        buffer.clear();
        buffer.shrink_to(KEPT_BUFFER_LEN);
        self.buffer = buffer;
        Ok(())
    }

    fn append_by_call(&mut self, bytes: &[u8]) -> Result<()> {
        self.check()?;
        let appended = timed(&mut self.waited, || self.file.append(bytes));
        let result = appended.during("write", &self.path);
        self.keep_failure(result)?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn keep_failure(&mut self, result: Result<()>) -> Result<()> {
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

    /// Fails only the call after the first `good` ones.
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
            stated_interval: 0,
            header: FileHeader::default(),
            magic: Magic::Wal,
            buffer: Vec::new(),
            prepared_space: None,
            tail: Arc::default(),
            waited: Duration::ZERO,
            failed: None,
        }
    }

    fn record(payload: &[u8]) -> NewRecord<'_> {
        NewRecord { payload, payload_crc: crc(payload), count: 1 }
    }

    #[test]
    fn first_failure_is_the_answer_to_every_later_call() {
        for fail_sync in [false, true] {
            let mut log = writer_that_fails_after(1);
            assert_eq!(log.append([record(b"a")], 0).unwrap(), 1..2);
            let failure = if fail_sync { log.sync().unwrap_err() } else { log.append([record(b"b")], 0).unwrap_err() };
            assert!(failure.is_no_space());
            let later = [log.append([record(b"c")], 0).map(drop), log.append_marker(0), log.sync()];
            for result in later {
                assert_eq!(result.unwrap_err().to_string(), failure.to_string());
            }
            assert_eq!((log.len(), log.next()), (64 + 11, 2));
        }
    }

    #[test]
    fn refused_record_takes_no_ordinal_and_writes_nothing() {
        let mut log = writer_that_fails_after(usize::MAX);
        let empty = NewRecord { count: 0, ..record(b"") };
        assert!(log.append([record(b"a"), empty], 0).is_err());
        log.next = MAX_SEQNO;
        assert!(log.append([record(b"a"), record(b"b")], 0).is_err());
        assert_eq!(log.len(), 64);
        assert_eq!(log.append([record(b"a")], 0).unwrap().start, MAX_SEQNO);
    }

    #[test]
    fn a_log_states_nothing_before_its_header_is_written() {
        let mut log = LogWriter { len: 0, next: 6, stated: 5, ..writer_that_fails_after(usize::MAX) };
        assert_eq!((log.stated(), log.number()), (0, 8));
        log.append([record(b"a")], 5).unwrap();
        assert_eq!(log.stated(), 5);
        log.append_marker(6).unwrap();
        assert_eq!(log.stated(), 6);
    }

    #[test]
    fn buffer_of_a_long_record_is_given_back() {
        let mut log = writer_that_fails_after(usize::MAX);
        let long = vec![7; LARGE_PAYLOAD - 1];
        log.append([record(&long), record(&long), record(&long)], 0).unwrap();
        assert!(log.buffer.capacity() <= KEPT_BUFFER_LEN);
    }
}
