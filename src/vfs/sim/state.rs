//! What a simulated disk holds: directories, files, and for both what of it is durable.
//!
//! Files are only appended to, so one image serves as the volatile and as the durable one: a file is what syncs have settled,
//! followed by the appends since, and then by prepared zeros. What an append wrote over was zero, so that an append, or a sector of it,
//! that did not reach the disk is a zero whether the file was that long before or not. Names have two maps, and between them the list of operations that no directory sync has covered.
//!
//! Invariants: a file has at most one name in each of the two trees. The durable names are those of some past moment, but for
//! operations on different names, which directory syncs may put in another order. Every inode in a map of names or in a pending
//! operation is in `dirs` or in `files`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

pub(super) type Inode = u64;

pub(super) const ROOT: Inode = 0;

#[derive(Clone)]
pub(super) struct State {
    pub(super) dirs: BTreeMap<Inode, Dir>,
    pub(super) files: BTreeMap<Inode, File>,
    /// Oldest first.
    pub(super) pending: Vec<NameOp>,
    pub(super) next_inode: Inode,
    /// Files that somebody holds the lock on.
    pub(super) locked: BTreeSet<Inode>,
    pub(super) capacity: Option<u64>,
}

#[derive(Clone, Default)]
pub(super) struct Dir {
    pub(super) names: BTreeMap<String, Inode>,
    pub(super) durable: BTreeMap<String, Inode>,
}

/// Names that change together: one for a creation or a removal, two for a renaming, which is atomic by that.
#[derive(Clone)]
pub(super) struct NameOp(pub(super) Vec<Binding>);

/// From now on `name` in `dir` means `inode`, or nothing.
#[derive(Clone)]
pub(super) struct Binding {
    pub(super) dir: Inode,
    pub(super) name: String,
    pub(super) inode: Option<Inode>,
}

/// `data = settled part, appends since the last sync, prepared zeros`. Copies share the data until one of them appends.
#[derive(Clone, Default)]
pub(super) struct File {
    pub(super) data: Arc<Vec<u8>>,
    /// Where the appends end.
    pub(super) end: usize,
    /// The same at the last sync, failed or not.
    pub(super) settled: usize,
    /// The length that prepared zeros had at a sync: the file on the disk is no shorter.
    pub(super) prepared: usize,
    /// So many bytes have their place on the disk, written or not.
    pub(super) reserved: usize,
    /// Ranges of the settled part whose sync failed. They are clean as far as later syncs are concerned, and on no disk.
    pub(super) lost: Vec<Range<usize>>,
    /// The appends since the last sync.
    pub(super) appends: Vec<Append>,
    /// Whether the file has a volatile name.
    pub(super) linked: bool,
    /// How many handles are open.
    pub(super) handles: usize,
}

/// Bytes that were added to a file. They begin where the append before them ends.
#[derive(Clone, Copy)]
pub(super) struct Append {
    pub(super) end: usize,
    /// How many of the first bytes came into memory after all others.
    pub(super) head_len: usize,
}

impl File {
    /// A file with a name, wholly on disk.
    pub(super) fn durable(data: Arc<Vec<u8>>) -> File {
        File { end: data.len(), settled: data.len(), data, linked: true, ..File::default() }
    }

    fn append(&mut self, bytes: &[u8], head_len: usize) {
        if !bytes.is_empty() {
            let data = Arc::make_mut(&mut self.data);
            let over = bytes.len().min(data.len() - self.end);
            data[self.end..self.end + over].copy_from_slice(&bytes[..over]);
            data.extend_from_slice(&bytes[over..]);
            self.end += bytes.len();
            self.appends.push(Append { end: self.end, head_len });
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

    /// The file system has told of the failure once and forgets about it: what was dirty stays readable, but will never be written.
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

    /// Bytes that it takes on the disk.
    fn taken(&self) -> usize {
        self.reserved.max(self.data.len())
    }
}

impl State {
    pub(super) fn new() -> State {
        State {
            dirs: BTreeMap::from([(ROOT, Dir::default())]),
            files: BTreeMap::new(),
            pending: Vec::new(),
            next_inode: ROOT + 1,
            locked: BTreeSet::new(),
            capacity: None,
        }
    }

    /// What the next process finds when this one has been killed.
    pub(super) fn after_kill(&self) -> State {
        let mut state = self.clone();
        state.locked.clear();
        for file in state.files.values_mut() {
            file.handles = 0;
        }
        state.collect();
        state
    }

    pub(super) fn file(&self, inode: Inode) -> io::Result<&File> {
        self.files.get(&inode).ok_or(ErrorKind::NotFound.into())
    }

    pub(super) fn file_mut(&mut self, inode: Inode) -> io::Result<&mut File> {
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

    /// The file at `path`, and where its name is.
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
        self.files.insert(inode, File::durable(Arc::new(Vec::new())));
        self.change_names(vec![bind(dir, name, Some(inode))]);
        Ok(inode)
    }

    /// Creates the directory and those above it; returns whether there was anything to create.
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
        if (from_dir, from_name) == (to_dir, to_name) {
            return Ok(());
        }
        if let Some(replaced) = self.lookup(to_dir, to_name) {
            if self.dirs.contains_key(&replaced) {
                return Err(ErrorKind::IsADirectory.into());
            }
            self.file_mut(replaced)?.linked = false;
        }
        self.change_names(vec![bind(from_dir, from_name, None), bind(to_dir, to_name, Some(inode))]);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let (inode, dir, name) = self.find_file(path)?;
        self.file_mut(inode)?.linked = false;
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

    /// Appends as much as there is room for, the first `head_len` bytes last.
    pub(super) fn append(&mut self, inode: Inode, bytes: &[u8], head_len: usize) -> io::Result<()> {
        let room = usize::try_from(self.free_space()).unwrap_or(usize::MAX);
        let file = self.file_mut(inode)?;
        let room = room.saturating_add(file.taken() - file.end);
        let fits = bytes.get(..room).unwrap_or(bytes);
        file.append(fits, head_len);
        if fits.len() < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Keeps room for a file of `len` bytes.
    pub(super) fn reserve(&mut self, inode: Inode, len: u64) -> io::Result<()> {
        let (free, len) = (self.free_space(), usize::try_from(len).unwrap_or(usize::MAX));
        let file = self.file_mut(inode)?;
        if len.saturating_sub(file.taken()) as u64 > free {
            // As on a real one, what was reserved before is given back.
            file.reserved = 0;
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.reserved = file.reserved.max(len);
        Ok(())
    }

    /// Lengthens a file to `len` bytes by zeros, or by as many as there is room for.
    pub(super) fn prepare(&mut self, inode: Inode, len: usize) -> io::Result<()> {
        let room = usize::try_from(self.free_space()).unwrap_or(usize::MAX);
        let file = self.file_mut(inode)?;
        let old_len = file.data.len();
        let room = room.saturating_add(file.taken() - old_len);
        let more = len.saturating_sub(old_len);
        if more > 0 {
            Arc::make_mut(&mut file.data).resize(old_len + more.min(room), 0);
        }
        if more > room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    pub(super) fn free_space(&self) -> u64 {
        let Some(capacity) = self.capacity else {
            return u64::MAX;
        };
        let taken = self.files.values().filter(|file| file.linked || file.handles > 0);
        capacity.saturating_sub(taken.map(|file| file.taken() as u64).sum())
    }

    /// Puts a file there with content, name and all directories above it durable.
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

    /// Makes the pending operations durable that are `wanted`, and those earlier ones without which they would make no sense: the
    /// creation of what was then renamed, also in another directory.
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

    /// Forgets files that have no name left, no crash can give one back to, and nobody has open.
    fn collect(&mut self) {
        let State { dirs, files, pending, .. } = self;
        files.retain(|inode, file| {
            let mut durable = dirs.values().flat_map(|dir| dir.durable.values());
            let mut bindings = pending.iter().flat_map(|op| &op.0);
            file.linked || file.handles > 0 || durable.any(|i| i == inode) || bindings.any(|b| b.inode == Some(*inode))
        });
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

/// The names on the way from the root, which relative paths start from too.
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
