//! Backups of [tamis] stores: a repository of many generations, in a directory.
//!
//! Each table and value file is in the repository once, however many generations have it. A backup
//! reads an open store, whose writes go on, and copies only what the repository lacks; checksums
//! are compared while copying. Any generation can be restored, and all can be verified without
//! restoring. What is interrupted at any moment, by a power cut too, leaves all generations as they
//! were.
//!
//! ```
//! # fn main() -> tamis::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let (store, copy) = (dir.path().join("db"), dir.path().join("copy"));
//! # let backups = dir.path().join("backups");
//! use tamis::Db;
//! use tamis_backup::Repository;
//!
//! let db = Db::open(&store)?;
//! db.put("apple", "1")?;
//! let repository = Repository::create(&backups)?;
//! let monday = repository.backup(&db)?;
//! db.put("apple", "2")?;
//! repository.backup(&db)?;
//! repository.restore(monday.generation, &copy)?;
//! assert_eq!(Db::open(&copy)?.get("apple")?.as_deref(), Some(&b"1"[..]));
//! repository.prune(1)?; // keep the last one
//! # Ok(()) }
//! ```
//!
//! # What is in a repository
//!
//! | name | content |
//! |---|---|
//! | `REPOSITORY` | a line of text, which says that this is one; made last |
//! | `LOCK` | held by a process that backs up or prunes |
//! | `data/9c..-000012.sst-4096-89abcdef` | a table or value file: branch, name, length, checksum |
//! | `data/g00000007-CURRENT` | a file that generation 7 alone has: `CURRENT`, manifest, logs |
//! | `gen/00000007` | generation 7: its files and their hashes; see `generation` |
//!
//! A generation exists once its file in `gen` does, which is renamed into place after all else is
//! durable. Files are immutable. A table is known by the branch and the number that wrote it (see
//! [`ImageFile::branch`](tamis::ImageFile::branch)), so that it is found again without being read.
//!
//! Backups and prunes hold the lock. Restores, verifications and listings take none. A restore that
//! a prune overtakes fails, and leaves nothing.

mod directory;
mod generation;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tamis::inspect::FileKind;
use tamis::vfs::{FileLock, FileSystem, OsFileSystem};
use tamis::{Db, Error, ImageFile, Result, StoreCopy, StoreImage};
use xxhash_rust::xxh3::Xxh3;

use directory::{Directory, Folder};
pub use generation::{Generation, StoredFile};

/// Content of `REPOSITORY`.
const MARKER: &[u8] = b"tamis backup repository 1\n";
const MARKER_NAME: &str = "REPOSITORY";

/// A directory of backups.
#[derive(Clone)]
pub struct Repository {
    fs: Arc<dyn FileSystem>,
    directory: Directory,
}

/// What a backup has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// Number of the new generation.
    pub generation: u64,
    /// The sequence number of the last write in it.
    pub seqno: tamis::SeqNo,
    /// Of keyspaces without a log it has the writes up to this sequence number.
    pub flushed_seqno: tamis::SeqNo,
    /// Files of the generation.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were copied; the repository had the others.
    pub copied_files: usize,
    /// Their bytes.
    pub copied_bytes: u64,
}

/// A fault that [`Repository::verify`] has found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The damaged or missing file.
    pub file: PathBuf,
    /// The generations that cannot be restored for it.
    pub generations: Vec<u64>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; generations {:?}", self.file.display(), self.what, self.generations)
    }
}

/// What [`Repository::verify`] has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Generations.
    pub generations: usize,
    /// Files, each read once.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Faults.
    pub faults: usize,
}

/// What [`Repository::prune`] has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// Generations.
    pub generations: usize,
    /// Files that no generation needs any more, those of interrupted backups included.
    pub files: usize,
}

impl Repository {
    /// Opens the repository in `dir`, and creates it if the directory is absent or empty.
    pub fn create(dir: impl AsRef<Path>) -> Result<Repository> {
        Repository::create_on(Arc::new(OsFileSystem::new()), dir)
    }

    /// Opens the repository in `dir`.
    pub fn open(dir: impl AsRef<Path>) -> Result<Repository> {
        Repository::open_on(Arc::new(OsFileSystem::new()), dir)
    }

    /// [`create`](Repository::create) in another file system than the operating system's. Stores
    /// are restored to that one, too.
    pub fn create_on(file_system: Arc<dyn FileSystem>, dir: impl AsRef<Path>) -> Result<Repository> {
        let directory = Directory::new(Arc::clone(&file_system), dir.as_ref())?;
        let repository = Repository { fs: file_system, directory };
        if repository.is_marked()? {
            return Ok(repository);
        }
        repository.check_empty()?;
        repository.directory.create()?;
        let _lock = repository.directory.lock()?;
        // Another process may have created it until now.
        if !repository.is_marked()? {
            repository.check_empty()?;
            repository.directory.write(Folder::Root, MARKER_NAME, |put| put(MARKER))?;
            repository.directory.sync(Folder::Root)?;
        }
        Ok(repository)
    }

    /// [`open`](Repository::open) in another file system than the operating system's.
    pub fn open_on(file_system: Arc<dyn FileSystem>, dir: impl AsRef<Path>) -> Result<Repository> {
        let directory = Directory::new(Arc::clone(&file_system), dir.as_ref())?;
        let repository = Repository { fs: file_system, directory };
        match repository.is_marked()? {
            true => Ok(repository),
            false => Err(invalid(format_args!("there is no backup repository in {}", dir.as_ref().display()))),
        }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        self.directory.root()
    }

    fn is_marked(&self) -> Result<bool> {
        match self.directory.len(Folder::Root, MARKER_NAME)? {
            None => return Ok(false),
            Some(len) if len == MARKER.len() as u64 => {}
            Some(_) => return Err(self.damaged(Folder::Root, MARKER_NAME, "it is no repository of a known version")),
        }
        match self.read_small(Folder::Root, MARKER_NAME)? == MARKER {
            true => Ok(true),
            false => Err(self.damaged(Folder::Root, MARKER_NAME, "it is no repository of a known version")),
        }
    }

    /// Refuses a directory with anything in it but what an interrupted creation left.
    fn check_empty(&self) -> Result<()> {
        let ours = ["LOCK", "REPOSITORY.tmp", "data", "gen", "lost+found"];
        let mut others = self.directory.list_all(Folder::Root)?;
        others.retain(|name| !ours.contains(&name.as_str()));
        others.extend(self.directory.list_all(Folder::Data)?);
        others.extend(self.directory.list_all(Folder::Generations)?);
        match others.first() {
            None => Ok(()),
            Some(name) => Err(invalid(format_args!(
                "{} holds {name}; a backup repository is created in an absent or an empty directory",
                self.path().display()
            ))),
        }
    }

    /// Makes a new generation of a store, as it is now. When this returns, it survives a power cut.
    ///
    /// Writes to the store go on. It keeps the files that are being copied until this returns. Of
    /// keyspaces without a log the generation has what is in tables; call [`Db::flush`] first to
    /// have all. Stores that were created with the same
    /// [`Options::hash_seed`](tamis::Options::hash_seed) must not share a repository.
    ///
    /// After an error, or a kill, no generation is made, and the next backup goes on with the files
    /// that were copied.
    pub fn backup(&self, db: &Db) -> Result<Backup> {
        let _lock = self.lock()?;
        let generations = self.generations()?;
        let number = generations.last().map_or(1, |last| last.number + 1);
        let image = db.image()?;
        // Hashes of files that are there, by name.
        let known: BTreeMap<&str, u64> =
            generations.iter().flat_map(|of| &of.files).map(|file| (file.name.as_str(), file.hash)).collect();
        let (mut files, mut copied_files, mut copied_bytes) = (Vec::new(), 0, 0);
        for file in image.files() {
            let name = name_of(file, number);
            let hash = match self.find(file, &name, &known)? {
                Some(hash) => hash,
                None => {
                    copied_files += 1;
                    copied_bytes += file.size;
                    self.copy(&image, file, &name)?
                }
            };
            files.push(StoredFile { kind: file.kind, size: file.size, hash, name });
        }
        self.directory.sync(Folder::Data)?;
        let (seqno, flushed_seqno) = (image.seqno(), image.flushed_seqno());
        let generation = Generation { number, created: SystemTime::now(), seqno, flushed_seqno, files };
        let text = generation.encode();
        self.directory.write(Folder::Generations, &generation_name(number), |put| put(text.as_bytes()))?;
        self.directory.sync(Folder::Generations)?;
        let (files, bytes) = (generation.files.len(), generation.bytes());
        Ok(Backup { generation: number, seqno, flushed_seqno, files, bytes, copied_files, copied_bytes })
    }

    /// The hash of a file of a store, if the repository has it.
    fn find(&self, file: &ImageFile, name: &str, known: &BTreeMap<&str, u64>) -> Result<Option<u64>> {
        if !is_shared(file.kind) || self.directory.len(Folder::Data, name)? != Some(file.size) {
            return Ok(None);
        }
        if let Some(hash) = known.get(name) {
            return Ok(Some(*hash));
        }
        // An interrupted backup has copied it, and no generation says its hash.
        let (hash, _) = self.hash(name)?;
        Ok((Some(low(hash)) == file.checksum).then_some(hash))
    }

    fn copy(&self, image: &StoreImage, file: &ImageFile, name: &str) -> Result<u64> {
        self.directory.write(Folder::Data, name, |put| {
            let mut hash = Xxh3::new();
            image.read(file.kind, |bytes| {
                hash.update(bytes);
                put(bytes)
            })?;
            Ok(hash.digest())
        })
    }

    /// Hash and length of a file of a store.
    fn hash(&self, name: &str) -> Result<(u64, u64)> {
        let (mut hash, mut len) = (Xxh3::new(), 0);
        self.directory.read(Folder::Data, name, &mut |bytes| {
            hash.update(bytes);
            len += bytes.len() as u64;
            Ok(())
        })?;
        Ok((hash.digest(), len))
    }

    /// All generations, oldest first. One that cannot be read is an error;
    /// [`verify`](Repository::verify) finds all of those.
    pub fn generations(&self) -> Result<Vec<Generation>> {
        self.numbers()?.into_iter().map(|number| self.generation(number)).collect()
    }

    fn numbers(&self) -> Result<Vec<u64>> {
        let names = self.directory.list(Folder::Generations)?;
        let number = |name: &String| name.parse().ok().filter(|number| generation_name(*number) == *name);
        let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The generation of this number.
    pub fn generation(&self, number: u64) -> Result<Generation> {
        let name = generation_name(number);
        if self.directory.len(Folder::Generations, &name)?.is_none() {
            return Err(invalid(format_args!("{} has no generation {number}", self.path().display())));
        }
        let text = self.read_small(Folder::Generations, &name)?;
        Generation::decode(number, &text).map_err(|rule| self.damaged(Folder::Generations, &name, rule))
    }

    /// Makes a store of a generation in `dir`, which must be absent or empty, or hold a restore
    /// that was interrupted. When this returns, the store survives a power cut. Until then, opening
    /// it fails with [`Error::Incomplete`].
    ///
    /// Every file is compared with its hash. If one differs, the restore fails with
    /// [`Error::Corruption`], and leaves nothing.
    pub fn restore(&self, number: u64, dir: impl AsRef<Path>) -> Result<Generation> {
        let generation = self.generation(number)?;
        StoreCopy::make(Arc::clone(&self.fs), dir, |copy| {
            for file in &generation.files {
                copy.write(file.kind, |put| {
                    let (mut hash, mut len) = (Xxh3::new(), 0);
                    self.directory.read(Folder::Data, &file.name, &mut |bytes| {
                        hash.update(bytes);
                        len += bytes.len() as u64;
                        put(bytes)
                    })?;
                    self.compare(file, (hash.digest(), len))
                })?;
            }
            Ok(())
        })?;
        Ok(generation)
    }

    fn compare(&self, file: &StoredFile, (hash, len): (u64, u64)) -> Result<()> {
        match (len == file.size, hash == file.hash) {
            (true, true) => Ok(()),
            (false, _) => Err(self.damaged(Folder::Data, &file.name, "its length is not the generation's")),
            (true, false) => Err(self.damaged(Folder::Data, &file.name, "its hash is not the generation's")),
        }
    }

    /// Reads every file that a generation needs, each once, and compares it with its hash. Each
    /// fault goes to `report`.
    ///
    /// Generations that a [`prune`](Repository::prune) removes meanwhile are reported as faults.
    pub fn verify(&self, report: &mut dyn FnMut(&Fault)) -> Result<Verified> {
        let mut verified = Verified::default();
        let mut fault = |verified: &mut Verified, file, generations, what: String| {
            verified.faults += 1;
            report(&Fault { file, generations, what });
        };
        // Hashes that differ between generations are two files, of which one is damaged.
        let mut needed: BTreeMap<(String, u64), (StoredFile, Vec<u64>)> = BTreeMap::new();
        for number in self.numbers()? {
            verified.generations += 1;
            match self.generation(number) {
                Ok(generation) => {
                    for file in generation.files {
                        let key = (file.name.clone(), file.hash);
                        needed.entry(key).or_insert_with(|| (file, Vec::new())).1.push(number);
                    }
                }
                Err(error) => {
                    let path = self.directory.path(Folder::Generations, &generation_name(number));
                    fault(&mut verified, path, vec![number], error.to_string());
                }
            }
        }
        for (file, generations) in needed.into_values() {
            verified.files += 1;
            let read = self.hash(&file.name).and_then(|found| {
                verified.bytes += found.1;
                self.compare(&file, found)
            });
            if let Err(error) = read {
                let path = self.directory.path(Folder::Data, &file.name);
                fault(&mut verified, path, generations, error.to_string());
            }
        }
        Ok(verified)
    }

    /// Removes all generations but the last `keep`, and the files that only they had. At least one
    /// generation is kept.
    ///
    /// Fails without removing any file of a store if a generation that stays cannot be read.
    pub fn prune(&self, keep: usize) -> Result<Pruned> {
        let _lock = self.lock()?;
        let numbers = self.numbers()?;
        let (old, kept) = numbers.split_at(numbers.len().saturating_sub(keep.max(1)));
        let kept = kept.iter().map(|number| self.generation(*number)).collect::<Result<Vec<_>>>()?;
        // A generation goes before its files do.
        for number in old {
            self.directory.remove(Folder::Generations, &generation_name(*number))?;
        }
        self.directory.sync(Folder::Generations)?;
        let needed: BTreeSet<&str> = kept.iter().flat_map(|of| &of.files).map(|file| file.name.as_str()).collect();
        let mut files = 0;
        for name in self.directory.list(Folder::Data)?.iter().filter(|name| !needed.contains(name.as_str())) {
            self.directory.remove(Folder::Data, name)?;
            files += 1;
        }
        Ok(Pruned { generations: old.len(), files })
    }

    /// Takes the lock, and removes what the last holder was writing.
    fn lock(&self) -> Result<Box<dyn FileLock>> {
        let lock = self.directory.lock()?;
        self.directory.remove_unfinished()?;
        Ok(lock)
    }

    fn read_small(&self, folder: Folder, name: &str) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        self.directory.read(folder, name, &mut |bytes| {
            content.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(content)
    }

    fn damaged(&self, folder: Folder, name: &str, rule: &str) -> Error {
        Error::Corruption { file: self.directory.path(folder, name), offset: 0, rule: rule.to_owned() }
    }
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repository").field("path", &self.path()).finish()
    }
}

/// Whether generations share a file of this kind.
fn is_shared(kind: FileKind) -> bool {
    matches!(kind, FileKind::Table(_) | FileKind::Values(_))
}

/// The name in the repository of a file of generation `number`.
fn name_of(file: &ImageFile, number: u64) -> String {
    match file.checksum.filter(|_| is_shared(file.kind)) {
        Some(checksum) => format!("{:016x}-{}-{}-{checksum:08x}", file.branch, file.kind.name(), file.size),
        None => format!("g{}-{}", generation_name(number), file.kind.name()),
    }
}

fn generation_name(number: u64) -> String {
    format!("{number:08}")
}

/// The checksum that a store's manifest has of a file of this hash.
#[expect(clippy::cast_possible_truncation, reason = "32 bits are what the manifest holds")]
fn low(hash: u64) -> u32 {
    hash as u32
}

fn invalid(what: impl fmt::Display) -> Error {
    Error::InvalidArgument(what.to_string())
}
