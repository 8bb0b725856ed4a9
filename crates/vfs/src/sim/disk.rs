//! The simulated disk: directories and files, and how much of both is durable.
//!
//! Files are only appended to, so one image serves as the volatile and the durable one: what syncs
//! have settled, then the appends since, then prepared zeros. An append only overwrites zeros.
//! Therefore an append, or a sector of it, that did not reach the disk reads as zeros, whether the
//! file was already that long or not. Names have two maps, and between them the list of operations
//! that no directory sync has covered.
//!
//! Invariants: `SimFile::links` counts a file's volatile names. The durable names are those of some
//! past moment, except that directory syncs may reorder operations on different names. Every inode
//! in a map of names or in a pending operation is in `dirs` or in `files`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

pub(super) type Inode = u64;

pub(super) const ROOT: Inode = 0;

#[derive(Clone)]
pub(super) struct Disk {
    pub(super) dirs: BTreeMap<Inode, Dir>,
    pub(super) files: BTreeMap<Inode, SimFile>,
    /// Oldest first.
    pub(super) pending: Vec<NameOp>,
    pub(super) next_inode: Inode,
    /// Files whose lock is held.
    pub(super) locked: BTreeSet<Inode>,
    pub(super) capacity: Option<u64>,
}

#[derive(Clone, Default)]
pub(super) struct Dir {
    pub(super) names: BTreeMap<String, Inode>,
    pub(super) durable: BTreeMap<String, Inode>,
}

/// Names that change together, atomically: two for a renaming, one otherwise.
#[derive(Clone)]
pub(super) struct NameOp(pub(super) Vec<Binding>);

/// From now on `name` in `dir` means `inode`, or nothing.
#[derive(Clone)]
pub(super) struct Binding {
    pub(super) dir: Inode,
    pub(super) name: String,
    pub(super) inode: Option<Inode>,
}

/// `data = settled part, appends since the last sync, prepared zeros`. Copies share the data until
/// one of them appends.
#[derive(Clone, Default)]
pub(super) struct SimFile {
    pub(super) data: Arc<Vec<u8>>,
    /// End of the appends.
    pub(super) end: usize,
    /// End of the appends at the last sync, failed or not.
    pub(super) settled: usize,
    /// Length with prepared zeros at the last sync that had any: the file on the disk is no
    /// shorter.
    pub(super) prepared: usize,
    /// Number of bytes allocated on the disk, written or not.
    pub(super) reserved: usize,
    /// Ranges of the settled part whose sync failed. Later syncs treat them as clean, but no disk
    /// has them.
    pub(super) lost: Vec<Range<usize>>,
    /// The appends since the last sync.
    pub(super) appends: Vec<UnsyncedAppend>,
    /// How many volatile names the file has.
    pub(super) links: usize,
    /// How many handles are open.
    pub(super) handles: usize,
}

/// Bytes that were added to a file, after the previous append.
#[derive(Clone, Copy)]
pub(super) struct UnsyncedAppend {
    pub(super) end: usize,
    /// How many of the first bytes were stored after all others.
    pub(super) head_len: usize,
}

impl SimFile {
    /// A file with one name, wholly on disk.
    pub(super) fn durable(data: Arc<Vec<u8>>) -> SimFile {
        SimFile { end: data.len(), settled: data.len(), data, links: 1, ..SimFile::default() }
    }

    fn append(&mut self, bytes: &[u8], head_len: usize) {
        if !bytes.is_empty() {
            let data = Arc::make_mut(&mut self.data);
            let over = bytes.len().min(data.len() - self.end);
            data[self.end..self.end + over].copy_from_slice(&bytes[..over]);
            data.extend_from_slice(&bytes[over..]);
            self.end += bytes.len();
            self.appends.push(UnsyncedAppend { end: self.end, head_len });
        }
    }

    pub(super) fn sync(&mut self) {
        if self.end < self.data.len() {
            self.prepared = self.data.len();
        }
        self.settle();
    }

    fn settle(&mut self) {
        self.settled = self.end;
        self.appends.clear();
    }

    /// The file system reports the failure once and forgets it: dirty data stays readable, but will
    /// never be written.
    pub(super) fn fail_sync(&mut self) {
        if self.settled < self.end {
            self.lost.push(self.settled..self.end);
        }
        self.settle();
    }

    pub(super) fn set_data(&mut self, data: Vec<u8>) {
        self.end = data.len();
        self.data = Arc::new(data);
        self.prepared = 0;
        self.lost.clear();
        self.settle();
    }

    pub(super) fn truncate(&mut self, len: usize) {
        Arc::make_mut(&mut self.data).truncate(len);
        self.end = self.end.min(len);
        self.settled = self.settled.min(len);
        self.prepared = self.prepared.min(len);
        for range in &mut self.lost {
            range.end = range.end.min(len);
        }
        self.lost.retain(|range| range.start < range.end);
        for append in &mut self.appends {
            append.end = len.min(append.end);
        }
        self.appends.retain(|append| append.end > self.settled);
    }

    pub(super) fn len(&self) -> u64 {
        self.data.len() as u64
    }

    /// Bytes allocated on the disk.
    fn taken(&self) -> usize {
        self.reserved.max(self.data.len())
    }
}

impl Disk {
    pub(super) fn new() -> Disk {
        Disk {
            dirs: BTreeMap::from([(ROOT, Dir::default())]),
            files: BTreeMap::new(),
            pending: Vec::new(),
            next_inode: ROOT + 1,
            locked: BTreeSet::new(),
            capacity: None,
        }
    }

    /// The state that the next process finds after a kill of this one.
    pub(super) fn after_kill(&self) -> Disk {
        let mut disk = self.clone();
        disk.locked.clear();
        for file in disk.files.values_mut() {
            file.handles = 0;
        }
        disk.collect();
        disk
    }

    pub(super) fn file(&self, inode: Inode) -> io::Result<&SimFile> {
        self.files.get(&inode).ok_or(ErrorKind::NotFound.into())
    }

    pub(super) fn file_mut(&mut self, inode: Inode) -> io::Result<&mut SimFile> {
        self.files.get_mut(&inode).ok_or(ErrorKind::NotFound.into())
    }

    /// The directory at `path`.
    pub(super) fn find_dir(&self, path: &Path) -> io::Result<Inode> {
        components(path)?.into_iter().try_fold(ROOT, |dir, name| self.child_dir(dir, name))
    }

    fn child_dir(&self, dir: Inode, name: &str) -> io::Result<Inode> {
        let inode = self.lookup(dir, name).ok_or(ErrorKind::NotFound)?;
        if !self.dirs.contains_key(&inode) {
            return Err(ErrorKind::NotADirectory.into());
        }
        Ok(inode)
    }

    /// The file at `path`, with its directory and its name there.
    pub(super) fn find_file<'p>(&self, path: &'p Path) -> io::Result<(Inode, Inode, &'p str)> {
        let (dir, name) = self.parent(path)?;
        let inode = self.lookup(dir, name).ok_or(ErrorKind::NotFound)?;
        if self.dirs.contains_key(&inode) {
            return Err(ErrorKind::IsADirectory.into());
        }
        Ok((inode, dir, name))
    }

    /// The directory that `path` is or would be in, and its name there.
    fn parent<'p>(&self, path: &'p Path) -> io::Result<(Inode, &'p str)> {
        let mut names = components(path)?;
        let name = names.pop().ok_or(ErrorKind::InvalidInput)?;
        let dir = names.into_iter().try_fold(ROOT, |dir, name| self.child_dir(dir, name))?;
        Ok((dir, name))
    }

    fn lookup(&self, dir: Inode, name: &str) -> Option<Inode> {
        self.dirs.get(&dir)?.names.get(name).copied()
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<Inode> {
        let (dir, name) = self.parent(path)?;
        if self.lookup(dir, name).is_some() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let inode = self.allocate_inode();
        self.files.insert(inode, SimFile::durable(Arc::new(Vec::new())));
        self.change_names(vec![bind(dir, name, Some(inode))]);
        Ok(inode)
    }

    /// Creates the directory and its parents; returns whether any was missing.
    pub(super) fn create_dir(&mut self, path: &Path) -> io::Result<bool> {
        let mut dir = ROOT;
        let mut created = false;
        for name in components(path)? {
            dir = match self.child_dir(dir, name) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let inode = self.allocate_inode();
                    self.dirs.insert(inode, Dir::default());
                    self.change_names(vec![bind(dir, name, Some(inode))]);
                    created = true;
                    inode
                }
                found => found?,
            };
        }
        Ok(created)
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (inode, from_dir, from_name) = self.find_file(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        if let Some(replaced) = self.lookup(to_dir, to_name) {
            if replaced == inode {
                return Ok(());
            }
            if self.dirs.contains_key(&replaced) {
                return Err(ErrorKind::IsADirectory.into());
            }
            self.file_mut(replaced)?.links -= 1;
        }
        self.change_names(vec![bind(from_dir, from_name, None), bind(to_dir, to_name, Some(inode))]);
        Ok(())
    }

    /// Gives a file a second name.
    pub(super) fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (inode, ..) = self.find_file(from)?;
        let (dir, name) = self.parent(to)?;
        if self.lookup(dir, name).is_some() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.file_mut(inode)?.links += 1;
        self.change_names(vec![bind(dir, name, Some(inode))]);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let (inode, dir, name) = self.find_file(path)?;
        self.file_mut(inode)?.links -= 1;
        self.change_names(vec![bind(dir, name, None)]);
        Ok(())
    }

    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let dir = self.find_dir(path)?;
        let names = self.dirs.get(&dir).map(|dir| dir.names.keys().cloned());
        Ok(names.into_iter().flatten().collect())
    }

    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let dir = self.find_dir(path)?;
        self.settle(|op| op.0.iter().any(|binding| binding.dir == dir));
        self.collect();
        Ok(())
    }

    /// Appends as many bytes as fit on the disk, the first `head_len` bytes last.
    pub(super) fn append(&mut self, inode: Inode, bytes: &[u8], head_len: usize) -> io::Result<()> {
        let available = usize::try_from(self.free_space()).unwrap_or(usize::MAX);
        let file = self.file_mut(inode)?;
        let available = available.saturating_add(file.taken() - file.end);
        let fits = bytes.get(..available).unwrap_or(bytes);
        file.append(fits, head_len);
        if fits.len() < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Reserves space for a file of `len` bytes.
    pub(super) fn reserve(&mut self, inode: Inode, len: u64) -> io::Result<()> {
        let (free, len) = (self.free_space(), usize::try_from(len).unwrap_or(usize::MAX));
        let file = self.file_mut(inode)?;
        if len.saturating_sub(file.taken()) as u64 > free {
            // As on a real file system, an earlier reservation is released.
            file.reserved = 0;
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.reserved = file.reserved.max(len);
        Ok(())
    }

    /// Lengthens a file with zeros to `len` bytes, or as far as space allows.
    pub(super) fn prepare(&mut self, inode: Inode, len: usize) -> io::Result<()> {
        let available = usize::try_from(self.free_space()).unwrap_or(usize::MAX);
        let file = self.file_mut(inode)?;
        let old_len = file.data.len();
        let available = available.saturating_add(file.taken() - old_len);
        let more = len.saturating_sub(old_len);
        if more > 0 {
            Arc::make_mut(&mut file.data).resize(old_len + more.min(available), 0);
        }
        if more > available {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    pub(super) fn free_space(&self) -> u64 {
        let Some(capacity) = self.capacity else {
            return u64::MAX;
        };
        let taken = self.files.values().filter(|file| file.links > 0 || file.handles > 0);
        capacity.saturating_sub(taken.map(|file| file.taken() as u64).sum())
    }

    /// Writes a file; its content, its name and its parent directories are durable at once.
    pub(super) fn write(&mut self, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
        self.create_dir(path.parent().unwrap_or(Path::new("")))?;
        let inode = match self.find_file(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => self.create(path)?,
            found => found?.0,
        };
        self.file_mut(inode)?.set_data(bytes);
        let mut dir = ROOT;
        for name in components(path)? {
            self.settle(|op| op.0.iter().any(|b| b.dir == dir && b.name == name));
            dir = self.lookup(dir, name).ok_or(ErrorKind::NotFound)?;
        }
        Ok(())
    }

    /// All files, as absolute paths.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        let mut dirs = vec![(PathBuf::from("/"), ROOT)];
        while let Some((path, dir)) = dirs.pop() {
            for (name, &inode) in self.dirs.get(&dir).into_iter().flat_map(|dir| &dir.names) {
                let path = path.join(name);
                if self.dirs.contains_key(&inode) {
                    dirs.push((path, inode));
                } else {
                    paths.push(path);
                }
            }
        }
        paths.sort();
        paths
    }

    fn allocate_inode(&mut self) -> Inode {
        let inode = self.next_inode;
        self.next_inode += 1;
        inode
    }

    fn change_names(&mut self, bindings: Vec<Binding>) {
        for binding in &bindings {
            if let Some(dir) = self.dirs.get_mut(&binding.dir) {
                binding.apply(&mut dir.names);
            }
        }
        self.pending.push(NameOp(bindings));
    }

    /// Makes the `wanted` pending operations durable, and the earlier ones that they depend on: for
    /// example the creation of a file that was then renamed, even to another directory.
    fn settle(&mut self, wanted: impl Fn(&NameOp) -> bool) {
        let mut names = BTreeSet::new();
        let mut chosen = vec![false; self.pending.len()];
        for (op, chosen) in self.pending.iter().zip(&mut chosen).rev() {
            let mut of_op = op.0.iter().map(|b| (b.dir, b.name.as_str()));
            *chosen = wanted(op) || of_op.any(|name| names.contains(&name));
            if *chosen {
                names.extend(op.0.iter().map(|b| (b.dir, b.name.as_str())));
            }
        }
        let mut chosen = chosen.into_iter();
        let (settled, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(|_| chosen.next() == Some(true));
        self.pending = rest;
        for binding in settled.iter().flat_map(|op| &op.0) {
            if let Some(dir) = self.dirs.get_mut(&binding.dir) {
                binding.apply(&mut dir.durable);
            }
        }
    }

    /// Frees files that have no name, cannot get one back by a crash, and are not open.
    fn collect(&mut self) {
        let unnamed = self.files.iter().filter(|(_, file)| file.links == 0 && file.handles == 0);
        let mut freed: BTreeSet<Inode> = unnamed.map(|(inode, _)| *inode).collect();
        let durable = self.dirs.values().flat_map(|dir| dir.durable.values().copied());
        let bound = self.pending.iter().flat_map(|op| &op.0).filter_map(|binding| binding.inode);
        for inode in durable.chain(bound) {
            freed.remove(&inode);
        }
        self.files.retain(|inode, _| !freed.contains(inode));
    }
}

impl Binding {
    pub(super) fn apply(&self, names: &mut BTreeMap<String, Inode>) {
        match self.inode {
            Some(inode) => names.insert(self.name.clone(), inode),
            None => names.remove(&self.name),
        };
    }
}

fn bind(dir: Inode, name: &str, inode: Option<Inode>) -> Binding {
    let name = name.to_owned();
    Binding { dir, name, inode }
}

/// The names from the root to `path`; relative paths start at the root, too.
fn components(path: &Path) -> io::Result<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
            Component::ParentDir => {
                names.pop();
            }
            Component::Normal(name) => names.push(name.to_str().ok_or(ErrorKind::InvalidInput)?),
        }
    }
    Ok(names)
}
