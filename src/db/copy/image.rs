//! [`StoreImage`]: the files of a store at one moment, kept while they are copied.
//!
//! The cut is made under the commit lock and the manifest's lock at once: what the manifest says
//! and where the logs end are of one moment, so that no drop of a keyspace is without the writes
//! before it. Writers wait for an edit that is being written, and no longer. From then on:
//!
//! - Tables and value files never change. The image holds the versions that name them, as an
//!   iterator does, and so keeps each of its files.
//! - In a store that is open read-only, the image is of what a refresh has just read: that is of
//!   one moment, too. Another process may remove the files, so they are read as the reader has them
//!   open.
//! - Logs grow. The image has those that recovery needs open, since they may be removed, and knows
//!   how long they were.
//! - The manifest is written anew, in memory: it states the version, requires the logs (tag 9), and
//!   says that what is written to the copy is of a branch of its own.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::part::{LogPart, read_whole};
use crate::db::StoreHandle;
use crate::db::follow::refresh::PATIENCE;
use crate::db::keyspace::Keyspace;
use crate::db::store::Store;
use crate::db::write::commit::Commit;
use crate::db::write::logs::KeptLog;
use crate::error::{Error, IoContext, Result};
use crate::format::checksum::FileChecksum;
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::log::wal::SyncedLog;
use crate::tree::manifest::{Branch, ManifestState, ManifestWriter};
use crate::tree::version::Version;
use crate::vfs::{MemoryFileSystem, ReadableFile, read_small_file};

/// The files of a store at one moment, as [`Db::image`](crate::Db::image) takes it.
///
/// It is a store: its files, put into a directory under their names, open as the store was at
/// sequence number [`seqno`](StoreImage::seqno). [`Db::checkpoint`](crate::Db::checkpoint) does
/// that; this is for programs that copy elsewhere.
///
/// The image keeps its files from being removed, and the store open, until it is dropped. Writes go
/// on meanwhile. The image of a store that is open read-only keeps them open, so that they stay
/// readable when the process that writes has removed them.
///
/// ```
/// # fn main() -> tamis::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = tamis::Db::open(dir.path().join("db"))?;
/// db.put("apple", "1")?;
/// let image = db.image()?;
/// let mut copied = 0;
/// for file in image.files() {
///     image.read(file.kind, |bytes| {
///         copied += bytes.len() as u64; // send them somewhere
///         Ok(())
///     })?;
/// }
/// assert_eq!(copied, image.files().map(|file| file.size).sum());
/// # Ok(()) }
/// ```
pub struct StoreImage {
    /// Hold the tables, which hold their value files. Dropped before the store may close.
    _versions: Vec<(u32, Arc<Version>)>,
    /// The keyspace that it has, if it is of one alone.
    keyspace: Option<Arc<str>>,
    seqno: SeqNo,
    flushed_seqno: SeqNo,
    branch: u64,
    files: Vec<(ImageFile, ImageContent)>,
    handle: Arc<StoreHandle>,
}

/// A file of a [`StoreImage`] or of a [`Checkpoint`](crate::Checkpoint).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageFile {
    /// Its kind and number, and by that its name.
    pub kind: FileKind,
    /// Its length in bytes.
    pub size: u64,
    /// The low 32 bits of its XXH3 (64 bits, seed 0). Of tables and value files, what the manifest
    /// says; their content was not read for it. `None` for a log that has not been read.
    pub checksum: Option<u32>,
    /// Tells the files of a store from those of its copies, which have the same numbers: a table or
    /// value file of this branch and number is the same file in all of them. Stores created with
    /// the same [`Options::hash_seed`](crate::Options::hash_seed) have the same branch.
    pub branch: u64,
}

enum ImageContent {
    /// A table or a value file, as long as it has its name.
    InStore,
    Open(Arc<dyn ReadableFile>),
    Bytes(Vec<u8>),
}

/// What the store was at the moment of the cut.
struct Cut {
    state: ManifestState,
    seqno: SeqNo,
    /// Of the keyspaces, by their ids.
    versions: Vec<(u32, Arc<Version>)>,
    /// Those that recovery needs.
    logs: Vec<KeptLog>,
}

impl StoreImage {
    /// Takes an image of a store, or of one of its keyspaces: its id and name.
    pub(crate) fn new(handle: &Arc<StoreHandle>, only: Option<(u32, &Arc<str>)>) -> Result<StoreImage> {
        let store = &handle.store;
        let Cut { mut state, seqno, mut versions, logs } =
            if store.gate.is_read_only() { store.cut_read_only()? } else { store.cut()? };
        let flushed_seqno = state.flushed_seqno;
        let mut part = None;
        if let Some((id, name)) = only {
            if !state.keyspaces.contains_key(&id) {
                return Err(Error::KeyspaceDropped(name.to_string()));
            }
            versions.retain(|(of, _)| *of == id);
            state.keep_only(id);
            part = Some(LogPart::take(&logs, seqno, id, &mut state)?);
        }
        let all = || versions.iter().map(|(_, version)| version);
        let tables = all().flat_map(|version| version.tables());
        let ranges = all().flat_map(|version| version.ranges().tables()).map(|ranges| ranges.table());
        let tables = tables.map(|(_, table)| table).chain(ranges);
        let kept: HashMap<FileKind, Arc<dyn ReadableFile>> =
            tables.flat_map(|table| table.kept_files()).map(|(kind, file)| (kind, Arc::clone(file))).collect();
        let content = |kind| kept.get(&kind).map_or(ImageContent::InStore, |file| ImageContent::Open(Arc::clone(file)));
        // Their tables are in no version, and what is in them is in their inputs.
        state.unfinished.clear();
        let (first, own_branch) = (state.next_file_number, state.own_branch());
        // A copy that nobody has opened for writing has not drawn its own.
        if state.branches.last().is_none_or(|branch| branch.id != 0) {
            state.branches.push(Branch::undrawn(first));
        }
        let manifest = state.take_number();
        let mut files = Vec::new();
        let mut add = |kind, size, checksum, branch, content| {
            files.push((ImageFile { kind, size, checksum, branch }, content));
        };
        for keyspace in state.keyspaces.values() {
            for (_, table) in keyspace.tables() {
                let (kind, branch) = (FileKind::Table(table.number), state.branch_of(table.number));
                add(kind, table.size, Some(table.checksum), branch, content(kind));
            }
            for file in keyspace.values.values().map(|file| &file.meta) {
                let (kind, branch) = (FileKind::Values(file.number), state.branch_of(file.number));
                add(kind, file.size, Some(file.checksum), branch, content(kind));
            }
        }
        match part {
            None => {
                for KeptLog { number, len, file } in logs {
                    add(FileKind::Wal(number), len, None, state.branch_of(number), ImageContent::Open(file));
                }
            }
            Some(part) => {
                if let Some((kind, bytes)) = part.file() {
                    add(kind, bytes.len() as u64, Some(checksum_of(&bytes)), 0, ImageContent::Bytes(bytes));
                }
            }
        }
        for (kind, bytes) in encode(&state, manifest)? {
            add(kind, bytes.len() as u64, Some(checksum_of(&bytes)), 0, ImageContent::Bytes(bytes));
        }
        // Its name by now: a handle may be older.
        let keyspace = only.map(|(id, _)| Arc::from(&*state.keyspaces[&id].name));
        let (handle, branch) = (Arc::clone(handle), own_branch);
        Ok(StoreImage { handle, _versions: versions, keyspace, seqno, flushed_seqno, branch, files })
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        &self.handle.store
    }

    /// The sequence number of the last write in it.
    pub fn seqno(&self) -> SeqNo {
        self.seqno
    }

    /// Of keyspaces without a log it has the writes up to this sequence number.
    pub fn flushed_seqno(&self) -> SeqNo {
        self.flushed_seqno
    }

    /// Tells the store from its copies and their copies: each has a branch of its own from the time
    /// at which it is first opened for writing. Until then, a copy has that of its original. Stores
    /// created with the same [`Options::hash_seed`](crate::Options::hash_seed) have the same one.
    pub fn branch(&self) -> u64 {
        self.branch
    }

    /// The keyspace that it has, if it is [of one alone](crate::Keyspace::image).
    pub fn keyspace(&self) -> Option<&str> {
        self.keyspace.as_deref()
    }

    /// All of its files.
    pub fn files(&self) -> impl Iterator<Item = &ImageFile> {
        self.files.iter().map(|(file, _)| file)
    }

    /// Reads the file called `kind` from its beginning to its end, in pieces of up to 1 MiB.
    /// Returns its checksum; one that differs from [`ImageFile::checksum`] is
    /// [`Error::Corruption`], after all pieces.
    ///
    /// Fails with [`Error::Closed`] once the store is closed. An error of `take` ends it.
    pub fn read(&self, kind: FileKind, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<u32> {
        let Some((file, content)) = self.files.iter().find(|(file, _)| file.kind == kind) else {
            return Err(Error::invalid(format_args!("the image has no file {}", kind.name())));
        };
        let path = kind.path(self.store().dir());
        let open = || self.store().fs().open(&path).during("open", &path);
        let opened = match content {
            ImageContent::Bytes(bytes) => {
                take(bytes)?;
                return Ok(checksum_of(bytes));
            }
            ImageContent::Open(file) => Arc::clone(file),
            ImageContent::InStore => open().or_else(|error| self.check_source().and(Err(error)))?,
        };
        let checksum = read_whole(&*opened, &path, file.size, &mut take)?;
        if let ImageContent::InStore = content {
            self.check_source()?;
        }
        match file.checksum {
            Some(stated) if stated != checksum => {
                Err(Error::corruption(&path, 0, "the checksum of the whole file does not match"))
            }
            _ => Ok(checksum),
        }
    }

    /// Whether all tables and value files have their names as long as the store is open.
    pub(super) fn keeps_names(&self) -> bool {
        !self.store().gate.is_read_only()
    }

    /// Fails unless the files read by name until now were the store's: nobody else removes or
    /// replaces any as long as it is open.
    pub(super) fn check_source(&self) -> Result<()> {
        self.store().gate.check_open()?;
        self.store().check_lock()
    }
}

impl fmt::Debug for StoreImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreImage").field("seqno", &self.seqno).field("files", &self.files.len()).finish()
    }
}

impl Store {
    /// Notes what the store is now. Writers wait until an edit of the manifest that is being
    /// written is durable; nothing is written to the disk for this.
    fn cut(&self) -> Result<Cut> {
        self.gate.check_writable()?;
        let mut commit = self.writer.lock();
        let open: &mut Commit = commit.as_mut().ok_or(Error::Closed)?;
        // Otherwise the last number could be one that no log has.
        self.append_unlogged(open)?;
        let seqno = open.last_seqno();
        let manifest = self.shape.catalog().lock()?;
        let logs = self.writer.logs().lengths_from(manifest.state.min_log);
        let last_log = self.writer.logs().part(seqno).map(|part| part.number);
        drop(commit);

        // A log is removed after an edit, a table after its last version.
        self.gate.check_poison()?;
        let open_log = |(number, len): (u64, u64)| {
            let path = FileKind::Wal(number).path(self.dir());
            self.fs().open(&path).during("open", &path).map(|file| KeptLog { number, len, file })
        };
        let logs = logs.into_iter().map(open_log).collect::<Result<Vec<_>>>()?;
        let versions = self.shape.view().trees.iter().map(|tree| (tree.id, Arc::clone(&tree.version))).collect();
        let mut state = manifest.state.clone();
        drop(manifest);
        state.next_file_number = self.shape.catalog().next_file_number();
        if self.clock.has_deadlines() {
            state.expired_by = state.expired_by.max(self.clock.mark());
        }
        // The logs will be durable: without one, the copy is damaged.
        let last_log = last_log.filter(|_| seqno > state.flushed_seqno);
        state.synced_log = last_log.map(|number| SyncedLog { number, seqno });
        Ok(Cut { state, seqno, versions, logs })
    }
}

impl Store {
    /// Notes what the store is that another process may be writing, after a refresh.
    fn cut_read_only(&self) -> Result<Cut> {
        self.refreshed(PATIENCE, |follower| {
            let (state, logs) = follower.cut()?;
            let versions = self.shape.view().trees.iter().map(|tree| (tree.id, Arc::clone(&tree.version))).collect();
            Ok(Cut { state, seqno: follower.last(), versions, logs })
        })
    }
}

impl Keyspace {
    /// Takes an image of the keyspace alone: of a store that has it, with its options, and an empty
    /// default keyspace. Its files are those of the store's [image](crate::Db::image) that the
    /// keyspace needs, and a log with what was written to it since its last flush.
    ///
    /// That log is made in memory. It is short after a [`flush`](Keyspace::flush).
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use std::sync::Arc;
    /// use tamis::vfs::OsFileSystem;
    /// use tamis::{Db, StoreCopy};
    ///
    /// let users = db.keyspace("users")?;
    /// users.put("7", "Ann")?;
    /// db.put("apple", "red")?;
    /// let (image, target) = (users.image()?, dir.path().join("users alone"));
    /// StoreCopy::make(Arc::new(OsFileSystem), &target, |copy| {
    ///     image.files().try_for_each(|file| {
    ///         copy.write(file.kind, |put| image.read(file.kind, put)).map(drop)
    ///     })
    /// })?;
    /// let copy = Db::open(&target)?;
    /// assert!(copy.keyspace("users")?.contains_key("7")?);
    /// assert!(copy.is_empty()?);
    /// # Ok(()) }
    /// ```
    pub fn image(&self) -> Result<StoreImage> {
        StoreImage::new(&self.handle, Some((self.id, &self.name)))
    }
}

/// Manifest `number`, which states `state`, and the `CURRENT` that names it.
fn encode(state: &ManifestState, number: u64) -> Result<Vec<(FileKind, Vec<u8>)>> {
    let (memory, dir) = (MemoryFileSystem::new(), Path::new("."));
    ManifestWriter::create(&memory, dir, number, state)?;
    let read = |kind: FileKind| {
        let path = kind.path(dir);
        read_small_file(&memory, &path, usize::MAX).during("read", &path).map(|bytes| (kind, bytes))
    };
    [FileKind::Manifest(number), FileKind::Current].into_iter().map(read).collect()
}

fn checksum_of(bytes: &[u8]) -> u32 {
    let mut checksum = FileChecksum::default();
    checksum.update(bytes);
    checksum.finish()
}
