//! [`Repository::backup`]: makes a generation.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use tamis::inspect::FileKind;
use tamis::vfs::FileLock;
use tamis::{Db, Error, ImageFile, Keyspace, ProgressMeter, Result, SeqNo, StoreImage};
use xxhash_rust::xxh3::Xxh3;

use crate::journal::{Journal, record_name, token};
use crate::record::StoreId;
use crate::record::{Generation, Record, StoredFile, shown, shown_name};
use crate::storage::{Storage, is_absent};
use crate::{DATA, Repository, damaged, invalid};

/// How often a backup goes on after other writers have written a record before it.
const ATTEMPTS: usize = 100;

/// What a backup has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// Number of the new generation.
    pub generation: u64,
    /// Which store it is of.
    pub store: StoreId,
    /// The sequence number of the last write in it.
    pub seqno: SeqNo,
    /// Of keyspaces without a log it has the writes up to this sequence number.
    pub flushed_seqno: SeqNo,
    /// Files of the generation.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were copied; the repository had the others.
    pub copied_files: usize,
    /// Their bytes.
    pub copied_bytes: u64,
}

/// When and for what an image is backed up.
pub(crate) struct Occasion<'a> {
    /// When it was taken.
    pub(crate) time: SystemTime,
    /// Where the store is.
    pub(crate) path: &'a Path,
    /// The timeline with what follows it, if not 0.
    pub(crate) timeline: u64,
    /// The repository's lock, if it has one.
    pub(crate) lock: Option<&'a dyn FileLock>,
    /// Set when nobody needs the generation any more.
    pub(crate) is_cancelled: &'a AtomicBool,
}

impl Repository {
    /// Makes a new generation of a store, as it is now. When this returns, it survives a power cut.
    ///
    /// Writes to the store go on. It keeps the files that are being copied until this returns. Of
    /// keyspaces without a log the generation has what is in tables; call [`Db::flush`] first to
    /// have all. Stores that were created with the same
    /// [`Options::hash_seed`](tamis::Options::hash_seed) must not share a repository: their files
    /// cannot be told apart. A backup is refused if it finds a file that shows this.
    ///
    /// After an error, or a kill, no generation is made, and the next backup goes on with the files
    /// that were copied. After an error of an object store, it may be there all the same.
    pub fn backup(&self, db: &Db) -> Result<Backup> {
        self.back_up_now(db, || db.image())
    }

    /// Makes a new generation of one keyspace of a store alone, as it is now, like
    /// [`backup`](Repository::backup). Tables that the repository has, from backups of the keyspace
    /// or of the whole store, are not copied again.
    ///
    /// A restore makes a store of it, which has this keyspace, and an empty default one;
    /// [`restore_keyspace`](Repository::restore_keyspace) adds it to another store. It counts as a
    /// store of its own, with its own [`StoreId`]: generations of the whole store and of other
    /// keyspaces are kept and pruned apart. Call [`Keyspace::flush`] first: what its last flush has
    /// not written is copied by way of memory.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use tamis_backup::{KeyspaceAt, Repository};
    ///
    /// let users = db.keyspace("users")?;
    /// users.put("7", "Ann")?;
    /// users.flush()?;
    /// let repository = Repository::create(dir.path().join("backups"))?;
    /// let made = repository.backup_keyspace(&db, &users)?;
    /// users.delete("7")?;
    ///
    /// let from = KeyspaceAt::generation(made.generation, "users");
    /// repository.restore_keyspace(from, &db, "users of May", dir.path().join("scratch"))?;
    /// assert!(db.keyspace("users of May")?.contains_key("7")?);
    /// # Ok(()) }
    /// ```
    pub fn backup_keyspace(&self, db: &Db, keyspace: &Keyspace) -> Result<Backup> {
        self.back_up_now(db, || keyspace.image())
    }

    fn back_up_now(&self, db: &Db, image: impl FnOnce() -> Result<StoreImage>) -> Result<Backup> {
        let lock = self.storage.begin()?;
        let image = image()?;
        let (time, is_cancelled) = (SystemTime::now(), &AtomicBool::new(false));
        self.back_up(&image, Occasion { time, path: db.path(), timeline: 0, lock: lock.as_deref(), is_cancelled })
    }

    /// Makes a generation of an image. The caller has begun to write.
    pub(crate) fn back_up(&self, image: &StoreImage, occasion: Occasion<'_>) -> Result<Backup> {
        let storage = &*self.storage;
        let Occasion { time, path, timeline, lock, is_cancelled } = occasion;
        let keyspace = image.keyspace();
        let store = keyspace.map_or(StoreId(image.branch()), |name| StoreId::of_keyspace(image.branch(), name));
        let (path, keyspace) = (shown(path), keyspace.map(shown_name));
        let (seqno, flushed_seqno) = (image.seqno(), image.flushed_seqno());
        let meter = self.progress.meter(image.files().map(|file| file.size).sum());
        let (secured, copied_files, copied_bytes) = Default::default();
        let mut copy = Copy { storage, image, is_cancelled, meter, secured, copied_files, copied_bytes };
        let mut journal = self.journal()?;
        for _ in 0..ATTEMPTS {
            let files = copy.files(&journal).inspect_err(|_| copy.discard())?;
            let number = journal.newest + 1;
            let (token, standing, path, keyspace) = (token(), journal.standing.clone(), path.clone(), keyspace.clone());
            let generation = Generation {
                number,
                time,
                seqno,
                flushed_seqno,
                files,
                store,
                path,
                keyspace,
                token,
                standing,
                timeline,
            };
            let (files, bytes) = (generation.files.len(), generation.bytes());
            let appended = journal.append(storage, &Record::Generation(generation)).inspect_err(|_| {
                // Without a lock, the record may still appear.
                if lock.is_some() && is_missing(storage, number) {
                    copy.discard();
                }
            });
            if appended? {
                let Copy { copied_files, copied_bytes, .. } = copy;
                return Ok(Backup {
                    generation: number,
                    store,
                    seqno,
                    flushed_seqno,
                    files,
                    bytes,
                    copied_files,
                    copied_bytes,
                });
            }
            let later = self.journal()?;
            copy.give_up(journal.newest, &later);
            journal = later;
        }
        Err(Error::Locked { path: self.path(), holder: "other backups, which were faster each time".into() })
    }
}

/// Brings the files of an image into a repository.
struct Copy<'a> {
    storage: &'a dyn Storage,
    image: &'a StoreImage,
    is_cancelled: &'a AtomicBool,
    meter: ProgressMeter,
    /// Files that this backup has uploaded or verified, and that no record need name.
    secured: BTreeMap<FileKind, StoredFile>,
    copied_files: usize,
    copied_bytes: u64,
}

impl Copy<'_> {
    /// The files of the image, all of which are in the repository when the record after `journal`
    /// is written. See `journal` for the rules.
    fn files(&mut self, journal: &Journal) -> Result<Vec<StoredFile>> {
        let generations = journal.generations().map(|(_, generation)| generation.map_err(Error::clone));
        let generations = generations.collect::<Result<Vec<_>>>()?;
        let named: BTreeMap<&str, &StoredFile> =
            generations.iter().flat_map(|of| &of.files).map(|file| (file.name.as_str(), file)).collect();
        let listed = self.storage.list(DATA)?;
        let present: BTreeMap<&str, u64> = listed.iter().map(|file| (file.name.as_str(), file.size)).collect();
        let mut files = Vec::new();
        for file in self.image.files() {
            let stored = match self.secured.get(&file.kind) {
                Some(secured) => secured.clone(),
                None => self.bring(file, journal.newest, &named, &present)?,
            };
            files.push(stored);
        }
        self.meter.finish();
        Ok(files)
    }

    /// Brings a file of the image into the repository, unless it is there.
    fn bring(
        &mut self,
        file: &ImageFile,
        newest: u64,
        named: &BTreeMap<&str, &StoredFile>,
        present: &BTreeMap<&str, u64>,
    ) -> Result<StoredFile> {
        let Some(checksum) = file.checksum.filter(|_| is_shared(file.kind)) else {
            let name = format!("{DATA}/{:016x}-{}", token(), file.kind.name());
            return self.upload(file, name);
        };
        let origin = format!("{DATA}/{:016x}-{}-", file.branch, file.kind.name());
        let content = format!("{origin}{}-{checksum:08x}-", file.size);
        let own = format!("{content}{newest}");
        let is_whole = |name: &str| present.get(name) == Some(&file.size);
        let mut damaged = None;
        let of_origin = named.range(origin.as_str()..).take_while(|(name, _)| name.starts_with(&origin));
        for (name, stored) in of_origin {
            match (name.starts_with(&content), is_whole(name)) {
                (true, true) => {
                    self.meter.add(file.size);
                    return Ok((*stored).clone());
                }
                (true, false) => damaged = Some(stored.name.clone()),
                (false, _) => {
                    return Err(invalid(format_args!(
                        "{} is in the repository with other content, and so of another store: stores that were \
                         created with the same hash seed need a repository each",
                        file.kind.name()
                    )));
                }
            }
        }
        if let Some(name) = damaged {
            // For the generations that name it, too.
            return self.upload(file, name);
        }
        if is_whole(&own) {
            // An interrupted backup has copied it, and no generation says its hash.
            let (hash, size) = hash_of(self.storage, &own)?;
            if low(hash) == checksum && size == file.size {
                self.meter.add(size);
                return Ok(self.secure(StoredFile { kind: file.kind, size, hash, name: own }));
            }
        }
        self.upload(file, own)
    }

    fn upload(&mut self, file: &ImageFile, name: String) -> Result<StoredFile> {
        let mut digest = 0;
        self.storage.put(&name, &mut |put| {
            let mut hash = Xxh3::new();
            self.image.read(file.kind, |bytes| {
                if self.is_cancelled.load(Ordering::Relaxed) {
                    return Err(Error::Closed);
                }
                hash.update(bytes);
                self.meter.add(bytes.len() as u64);
                put(bytes)
            })?;
            digest = hash.digest();
            Ok(())
        })?;
        self.copied_files += 1;
        self.copied_bytes += file.size;
        Ok(self.secure(StoredFile { kind: file.kind, size: file.size, hash: digest, name }))
    }

    fn secure(&mut self, file: StoredFile) -> StoredFile {
        self.secured.insert(file.kind, file.clone());
        file
    }

    /// Removes what no later backup could use. No record names it.
    fn discard(&self) {
        let own = self.secured.values().filter(|file| !is_shared(file.kind)).map(|file| file.name.clone());
        // What cannot be removed is left to prunes.
        let _ = self.storage.remove(&own.collect::<Vec<_>>());
    }

    /// Gives up the files that the prunes after record `read` have named. A record that is not
    /// there may have named any.
    fn give_up(&mut self, read: u64, journal: &Journal) {
        for number in read + 1..=journal.newest {
            match journal.records.get(&number) {
                Some(Ok(Record::Generation(_))) => {}
                Some(Ok(Record::Prune(prune))) => self.secured.retain(|_, file| !prune.removed.contains(&file.name)),
                Some(Err(_)) | None => self.secured.clear(),
            }
        }
    }
}

/// Whether it is certain that there is no record of this number.
fn is_missing(storage: &dyn Storage, number: u64) -> bool {
    storage.read(&record_name(number), &mut |_| Ok(())).is_err_and(|error| is_absent(&error))
}

/// Whether generations share a file of this kind.
fn is_shared(kind: FileKind) -> bool {
    matches!(kind, FileKind::Table(_) | FileKind::Values(_))
}

/// The checksum that a store's manifest has of a file of this hash.
#[expect(clippy::cast_possible_truncation, reason = "32 bits are what the manifest holds")]
fn low(hash: u64) -> u32 {
    hash as u32
}

/// Hash and length of an object.
pub(crate) fn hash_of(storage: &dyn Storage, name: &str) -> Result<(u64, u64)> {
    let (mut hash, mut len) = (Xxh3::new(), 0);
    storage.read(name, &mut |bytes| {
        hash.update(bytes);
        len += bytes.len() as u64;
        Ok(())
    })?;
    Ok((hash.digest(), len))
}

/// Compares what was read of a file with what its generation says.
pub(crate) fn compare(storage: &dyn Storage, file: &StoredFile, (hash, len): (u64, u64)) -> Result<()> {
    match (len == file.size, hash == file.hash) {
        (true, true) => Ok(()),
        (false, _) => Err(damaged(storage, &file.name, "its length is not the generation's")),
        (true, false) => Err(damaged(storage, &file.name, "its hash is not the generation's")),
    }
}
