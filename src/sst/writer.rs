//! [`SstWriter`]: writes sorted entries to a table.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::SstFormat;
use crate::error::{Error, IoContext, Result};
use crate::fork::Process;
use crate::format::deadline::{deadline_at, put_expiring};
use crate::format::header::IDENTITY_BIT;
use crate::format::key::{MAX_KEY_LEN, MAX_OPERAND_LEN, ValueKind};
use crate::format::random_bits;
use crate::format::span::KeySpan;
use crate::operator::put_operand;
use crate::sorted::ranges::Fragment;
use crate::sorted::table::{Origin, TableBuilder};
use crate::tree::manifest::{self, RANGE_LEVEL};
use crate::vfs::{FileSystem, OsFileSystem};

/// Writes sorted entries to a table file, without an open store. [`Keyspace::ingest`] then adds the
/// file to a keyspace, which costs a fraction of putting the entries.
///
/// Keys must ascend as bytes, each once. An entry is a put, a delete or a merge. Long values stay
/// in the table; a compaction moves them to value files where
/// [`KeyspaceOptions::separate_values`](crate::KeyspaceOptions::separate_values) says so. A
/// [`ttl`](crate::KeyspaceOptions::ttl) does not apply.
///
/// A file has entries or [range deletes](SstWriter::delete_range), not both. To replace what a
/// keyspace has in a range, write two files and ingest them together.
///
/// The writer streams: it takes a few megabytes, and one bit to two bytes per key for filter and
/// index. End a file at some 64 MiB and begin the next one: several files are ingested together,
/// and smaller ones are compacted in smaller steps.
///
/// A writer that is dropped before [`finish`](SstWriter::finish) removes its file.
///
/// ```
/// # fn main() -> tamis::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = tamis::Db::open(dir.path().join("db"))?;
/// use tamis::{IngestOptions, SstWriter};
///
/// let path = dir.path().join("users.sst");
/// let mut writer = SstWriter::create(&path, &db.sst_format()?)?;
/// writer.put("id1", "Ann")?;
/// writer.put("id2", "Bob")?;
/// writer.delete("id3")?;
/// let info = writer.finish()?;
/// assert_eq!(info.entries, 3);
///
/// db.ingest([&path], IngestOptions::new())?;
/// assert_eq!(db.get("id2")?.as_deref(), Some(&b"Bob"[..]));
/// # Ok(()) }
/// ```
///
/// [`Keyspace::ingest`]: crate::Keyspace::ingest
pub struct SstWriter {
    fs: Arc<dyn FileSystem>,
    /// As the caller has given it.
    path: PathBuf,
    /// The file, wherever the working directory and symbolic links are moved meanwhile.
    place: PathBuf,
    format: SstFormat,
    /// `None` once the file is finished or has failed.
    builder: Option<TableBuilder<'static>>,
    /// The last range of a file of range deletes: the next one may extend it.
    range: Option<LastRange>,
    /// Whether the file is to be removed when the writer is dropped.
    is_unfinished: bool,
    /// The process that has begun the file.
    process: Process,
    /// Buffer for a value as it is stored.
    stored: Vec<u8>,
}

struct LastRange {
    start: Vec<u8>,
    /// Exclusive; `None` is the end of the key space.
    end: Option<Vec<u8>>,
}

impl LastRange {
    fn add_to(&self, builder: &mut TableBuilder<'_>) -> Result<()> {
        builder.add_range(&Fragment { start: &*self.start, end: self.end.as_deref(), seqno: 0 })
    }
}

/// A file that [`SstWriter::finish`] has completed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SstInfo {
    /// The file.
    pub path: PathBuf,
    /// Number of entries, tombstones included.
    pub entries: u64,
    /// Number of range deletes. Either this or the number of entries is 0.
    pub range_deletes: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// The smallest key; of range deletes, the first key of the first one.
    pub smallest: Vec<u8>,
    /// The greatest key; of range deletes, the first key of the last one.
    pub greatest: Vec<u8>,
}

impl SstWriter {
    /// Creates the file at `path`, whose name is free to choose. Fails if it exists, if only as a
    /// symbolic link, and with [`Error::InvalidArgument`] if it is one that a store in that
    /// directory may give to a file of its own.
    pub fn create(path: impl AsRef<Path>, format: &SstFormat) -> Result<SstWriter> {
        SstWriter::create_in(Arc::new(OsFileSystem::new()), path, format)
    }

    /// Like [`create`](SstWriter::create), in `file_system`.
    pub fn create_in(
        file_system: Arc<dyn FileSystem>,
        path: impl AsRef<Path>,
        format: &SstFormat,
    ) -> Result<SstWriter> {
        SstWriter::with_identity(file_system, path.as_ref(), format, random_bits() | IDENTITY_BIT)
    }

    /// Creates a file that states `identity` in place of its number.
    pub(crate) fn with_identity(
        file_system: Arc<dyn FileSystem>,
        path: &Path,
        format: &SstFormat,
        identity: u64,
    ) -> Result<SstWriter> {
        format.options().validate()?;
        let Some(name) = path.file_name() else {
            return Err(Error::invalid(format_args!("{} does not name a file", path.display())));
        };
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let place = file_system.absolute(dir).during("resolve", dir)?.join(name);
        if manifest::owns_name(&*file_system, &place)? {
            let (name, dir) = (name.display(), dir.display());
            return Err(Error::invalid(format_args!(
                "the store in {dir} may give the name {name} to a file of its own; choose another one"
            )));
        }
        let mut builder = TableBuilder::unnumbered(&*file_system, &place, identity, format.table_options())?;
        builder.set_origin(&format.origin());
        Ok(SstWriter {
            path: path.to_owned(),
            place,
            format: format.clone(),
            builder: Some(builder),
            range: None,
            is_unfinished: true,
            process: Process::current(),
            stored: Vec::new(),
            fs: file_system,
        })
    }

    /// Adds a key with its value.
    ///
    /// Fails with [`Error::Unsorted`] if the key does not come after the one before it, and with
    /// [`Error::InvalidArgument`] if key or value are too long. The writer can then go on with
    /// another key. After any other error it has failed.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.add(key.as_ref(), ValueKind::Put, value.as_ref())
    }

    /// Adds a key whose value expires at `deadline`; see
    /// [`Keyspace::put_with_expiry`](crate::Keyspace::put_with_expiry). Fails like
    /// [`put`](SstWriter::put).
    pub fn put_with_expiry(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        deadline: SystemTime,
    ) -> Result<()> {
        self.add_stored(key.as_ref(), ValueKind::ExpiringPut, |stored| {
            put_expiring(stored, deadline_at(deadline), value.as_ref());
        })
    }

    /// Adds a delete of a key that the keyspace may have. Fails like [`put`](SstWriter::put).
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.add(key.as_ref(), ValueKind::Delete, &[])
    }

    /// Adds an operand that is merged into the value that the keyspace has; see
    /// [`operator`](crate::operator). Fails like [`put`](SstWriter::put), and with
    /// [`Error::InvalidArgument`] if the keyspace has no merge operator or the operator refuses the
    /// operand. An operator that does not come with this crate, of a format that was read from
    /// bytes or from a store, is not asked.
    pub fn merge(&mut self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        let Some(operator) = &self.format.options().merge_operator else {
            let name = self.format.keyspace();
            return Err(Error::invalid(format_args!("the keyspace {name:?} has no merge operator")));
        };
        if operand.len() > MAX_OPERAND_LEN {
            let len = operand.len();
            return Err(Error::invalid(format_args!("an operand takes up to {MAX_OPERAND_LEN} bytes, not {len}")));
        }
        let checked = operator.check(key, operand);
        checked.map_err(|why| Error::invalid(format_args!("an operand of key {}: {why}", key.escape_ascii())))?;
        self.add_stored(key, ValueKind::Merge, |stored| put_operand(stored, 0, 0, operand))
    }

    /// Number of entries or of range deletes so far.
    pub fn entries(&self) -> u64 {
        self.builder.as_ref().map_or(0, TableBuilder::entries) + u64::from(self.range.is_some())
    }

    /// Approximate length in bytes of the file if it were finished now, without its filter.
    pub fn estimated_size(&self) -> u64 {
        self.builder.as_ref().map_or(0, TableBuilder::estimated_size)
    }

    fn add_stored(&mut self, key: &[u8], kind: ValueKind, put: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut stored = std::mem::take(&mut self.stored);
        stored.clear();
        put(&mut stored);
        let added = self.add(key, kind, &stored);
        self.stored = stored;
        added
    }

    fn failed_before(&self) -> Error {
        Error::invalid(format_args!("writing {} has failed before", self.path.display()))
    }

    fn is_mixed(&self) -> Error {
        let file = self.path.display();
        Error::invalid(format_args!("{file} would have entries and range deletes: write two files"))
    }

    /// Adds a delete of a range, which must not begin before the one before it. Ranges that overlap
    /// or touch become one.
    pub(crate) fn delete_span(&mut self, span: KeySpan<Vec<u8>>) -> Result<()> {
        if span.is_empty() {
            return Ok(());
        }
        let range = LastRange { start: span.lower.unwrap_or_default(), end: span.upper };
        if range.start.len().max(range.end.as_ref().map_or(0, Vec::len)) > MAX_KEY_LEN {
            return Err(Error::invalid("a bound of a range is longer than 1 MiB"));
        }
        let Some(mut builder) = self.builder.take() else { return Err(self.failed_before()) };
        match &mut self.range {
            None if builder.entries() > 0 => {
                self.builder = Some(builder);
                return Err(self.is_mixed());
            }
            None => {
                builder = builder.with_options(self.format.table_options().for_ranges());
                builder.set_origin(&Origin { level: RANGE_LEVEL, ..self.format.origin() });
                self.range = Some(range);
            }
            Some(last) if range.start < last.start => {
                let (position, last) = (builder.entries() + 1, last.start.clone());
                self.builder = Some(builder);
                return Err(Error::Unsorted { file: self.path.clone(), position, key: range.start, last });
            }
            Some(last) if last.end.as_ref().is_none_or(|end| range.start <= *end) => {
                last.end = match (last.end.take(), range.end) {
                    (Some(a), Some(b)) => Some(a.max(b)),
                    _ => None,
                };
            }
            Some(last) => {
                last.add_to(&mut builder)?;
                *last = range;
            }
        }
        self.builder = Some(builder);
        Ok(())
    }

    fn add(&mut self, key: &[u8], kind: ValueKind, value: &[u8]) -> Result<()> {
        if self.range.is_some() {
            return Err(self.is_mixed());
        }
        let Some(builder) = &mut self.builder else { return Err(self.failed_before()) };
        if let Some(last) = builder.last_key()
            && last >= key
        {
            let (position, last) = (builder.entries(), last.to_vec());
            return Err(Error::Unsorted { file: self.path.clone(), position, key: key.to_vec(), last });
        }
        let added = builder.add(key, 0, kind, value);
        if !matches!(added, Ok(()) | Err(Error::InvalidArgument(_))) {
            self.builder = None;
        }
        added
    }

    /// Completes the file and makes it and its name durable.
    ///
    /// Fails with [`Error::InvalidArgument`] if there is nothing in it, and then removes the file,
    /// as after any other error.
    pub fn finish(mut self) -> Result<SstInfo> {
        let Some(mut builder) = self.builder.take() else { return Err(self.failed_before()) };
        if let Some(last) = &self.range {
            last.add_to(&mut builder)?;
        }
        let meta = builder.finish()?;
        let (entries, range_deletes) = if self.range.is_some() { (0, meta.entries) } else { (meta.entries, 0) };
        let dir = self.place.parent().unwrap_or(Path::new(""));
        self.fs.sync_dir(dir).during("sync", dir)?;
        self.is_unfinished = false;
        Ok(SstInfo {
            path: self.path.clone(),
            entries,
            range_deletes,
            bytes: meta.size,
            smallest: meta.smallest.into_vec(),
            greatest: meta.largest.into_vec(),
        })
    }
}

impl Drop for SstWriter {
    fn drop(&mut self) {
        // A fork has a copy of the writer: the file is its parent's.
        if self.is_unfinished && self.process.is_current() {
            // Closed first: some systems remove no open file.
            self.builder = None;
            let _ = self.fs.remove(&self.place);
        }
    }
}

impl fmt::Debug for SstWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SstWriter").field("path", &self.path).field("entries", &self.entries()).finish_non_exhaustive()
    }
}
