//! [`CopiedLog`]: what was written after a copy was made, as logs of the copy.
//!
//! Recovery replays these logs when the copy is first opened, as if its original had crashed after
//! the last batch: sequence numbers, keyspaces and operations of all kinds are the original's.

use std::fmt;

use super::StoreCopy;
use crate::batch::{LogOp, LogOps};
use crate::error::{Error, IoContext, Result};
use crate::format::checksum::crc;
use crate::format::filename::FileKind;
use crate::format::header::{FileHeader, Magic, features};
use crate::format::key::{MAX_SEQNO, SeqNo};
use crate::log::{LogWriter, NewRecord};

/// Adds batches of the change feed to a [`StoreCopy`]; see [`StoreCopy::log`].
pub struct CopiedLog<'a> {
    copy: &'a StoreCopy,
    /// Number of the last operation.
    last: SeqNo,
    log: Option<CopiedLogFile>,
}

struct CopiedLogFile {
    writer: LogWriter,
    /// What its header requires.
    features: u32,
}

impl StoreCopy {
    /// Adds what its original wrote after number `since`, the last write in the copy. The files of
    /// the copy have been written.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use std::sync::Arc;
    /// use tamis::vfs::OsFileSystem;
    /// use tamis::{Db, StoreCopy};
    ///
    /// let (image, target) = (db.image()?, dir.path().join("copy"));
    /// db.put("apple", "red")?;
    /// db.sync()?;
    /// StoreCopy::make(Arc::new(OsFileSystem), &target, |copy| {
    ///     for file in image.files() {
    ///         copy.write(file.kind, |put| image.read(file.kind, put).map(drop))?;
    ///     }
    ///     let mut log = copy.log(image.seqno());
    ///     for batch in db.changes_since(image.seqno())? {
    ///         let batch = batch?;
    ///         log.add(batch.first_seqno(), batch.last_seqno(), batch.encoded())?;
    ///     }
    ///     log.finish()
    /// })?;
    /// assert_eq!(Db::open(&target)?.get("apple")?.as_deref(), Some(&b"red"[..]));
    /// # Ok(()) }
    /// ```
    pub fn log(&self, since: SeqNo) -> CopiedLog<'_> {
        CopiedLog { copy: self, last: since, log: None }
    }
}

impl CopiedLog<'_> {
    /// Adds a batch, of these sequence numbers, as
    /// [`ChangeBatch::encoded`](crate::ChangeBatch::encoded) has returned it. Keyspaces must be
    /// those that the copy has.
    ///
    /// Fails with [`Error::InvalidArgument`] if the batch does not follow the last one, if it is
    /// damaged, or if it is an ingest, whose tables are not in it.
    pub fn add(&mut self, first: SeqNo, last: SeqNo, encoded: &[u8]) -> Result<()> {
        let follows = first.checked_sub(1) == Some(self.last) && first <= last && last <= MAX_SEQNO;
        let count = if follows { u32::try_from(last - self.last).ok() } else { None };
        let Some(count) = count else {
            return Err(Error::invalid(format_args!(
                "a batch from number {first} to {last} does not follow number {}",
                self.last
            )));
        };
        let needed = features_of(encoded, count)?;
        if self.log.as_ref().is_none_or(|log| needed & !log.features != 0) {
            let former = self.log.as_ref().map_or(0, |log| log.features);
            self.end_log()?;
            self.log = Some(self.begin_log(former | needed)?);
        }
        if let Some(log) = &mut self.log {
            let record = NewRecord { payload: encoded, payload_crc: crc(encoded), count };
            log.writer.append([record], 0)?;
        }
        self.last = last;
        Ok(())
    }

    /// Ends the log. It is durable when the copy is complete.
    pub fn finish(mut self) -> Result<()> {
        self.end_log()
    }

    fn begin_log(&self, features: u32) -> Result<CopiedLogFile> {
        let StoreCopy { fs, dir, .. } = self.copy;
        let names = fs.list(dir).during("list", dir)?;
        let kinds: Vec<FileKind> = names.iter().filter_map(|name| FileKind::parse(name)).collect();
        let number = kinds.iter().filter_map(|kind| kind.number()).max().map_or(1, |last| last + 1);
        let logs = kinds.iter().filter_map(|kind| if let FileKind::Wal(number) = kind { Some(*number) } else { None });
        let previous = logs.max();
        let previous_len = match previous.map(|number| FileKind::Wal(number).path(dir)) {
            Some(path) => fs.open(&path).and_then(|file| file.len()).during("open", &path)?,
            None => 0,
        };
        let (first, synced, previous) = (self.last + 1, self.last, previous.unwrap_or(0));
        let header = FileHeader { features, number, first, synced, previous, previous_len };
        let writer = LogWriter::create(&**fs, &FileKind::Wal(number).path(dir), Magic::Wal, header)?;
        Ok(CopiedLogFile { writer, features })
    }

    fn end_log(&mut self) -> Result<()> {
        let Some(CopiedLogFile { mut writer, .. }) = self.log.take() else { return Ok(()) };
        // So that what is missing later is damage, and no torn write.
        writer.append_marker(self.last)?;
        writer.sync()
    }
}

impl fmt::Debug for CopiedLog<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopiedLog").field("last", &self.last).finish_non_exhaustive()
    }
}

/// What a reader of a batch needs; checks all of the batch.
fn features_of(encoded: &[u8], count: u32) -> Result<u32> {
    let (mut needed, mut operations) = (0, 0);
    for operation in LogOps::new(encoded, count) {
        operations += 1;
        needed |= match operation.map_err(Error::invalid)? {
            LogOp::Write(operation) => operation.kind.features(),
            LogOp::Ingest(_) => return Err(Error::invalid("a batch with an ingest lacks its tables")),
        };
    }
    Ok(if operations < count { needed | features::UNLOGGED } else { needed })
}
