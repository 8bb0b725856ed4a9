//! Does damage to any file lead to correct data or to an error that names the file?
//!
//! One small store that has everything: tables on several levels, plain and compressed, values with
//! deadlines, a manifest of several edits, a sealed log and one in use, both synced except for a
//! tail. The tests flip, cut, delete, swap and overwrite every file of it, and each time open the
//! store and read it in every way. They accept no panic, no wrong data, and no allocation driven by
//! a damaged length.
//! The one exception is a suffix: writes after the last sync may be gone, and so may the end of a
//! log that was cut short.
//!
//! `TAMIS_STRIDE=1` damages every byte.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tamis::inspect::{Content, Inspector};
use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{Compression, Cursor, Db, Error, Executor, KeyspaceOptions, Options, ReadOptions, Result, SteppedExecutor};
use tamis::{ReadMode, SeqNo, WalMode, WriteBatch};

use crate::support::{WAL_MODES, count_from_env};

mod aftermath;
mod forged;

/// An allocator that notes the largest single allocation of each thread.
struct WatchedAllocator;

#[global_allocator]
static WATCHED: WatchedAllocator = WatchedAllocator;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
    /// Allocations of this thread, and their bytes.
    static ALLOCATED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

fn note(len: usize) {
    // A thread that is ending notes nothing.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(len)));
    let _ = ALLOCATED.try_with(|all| all.set((all.get().0 + 1, all.get().1.saturating_add(len))));
}

/// How many allocations `body` makes in this thread, and of how many bytes.
pub(crate) fn allocations(body: impl FnOnce()) -> (usize, usize) {
    let before = ALLOCATED.get();
    body();
    let after = ALLOCATED.get();
    (after.0 - before.0, after.1 - before.1)
}

// SAFETY: all calls go to the system's allocator, unchanged.
unsafe impl GlobalAlloc for WatchedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Runs `body`, which must not allocate much more memory at once than the largest file has.
fn within_memory<R>(fs: &SimFileSystem, what: &dyn Debug, body: impl FnOnce() -> R) -> R {
    let file = fs.paths().iter().map(|path| fs.file_len(path).unwrap()).max().unwrap_or(0);
    LARGEST.set(0);
    let result = body();
    let largest = LARGEST.get();
    assert!(largest as u64 <= file + (64 << 10), "{what:?}: {largest} bytes at once");
    result
}

const DIR: &str = "/db";
const KEYSPACES: [&str; 2] = ["default", "plain"];

/// By keyspace and key.
type Contents = [BTreeMap<Vec<u8>, Vec<u8>>; 2];

struct Sound {
    fs: SimFileSystem,
    /// What the store holds after each write that a damaged log may end with.
    states: BTreeMap<SeqNo, Contents>,
    /// Everything up to here was synced, and the log in use says so at this offset.
    synced: SeqNo,
    synced_end: u64,
    /// The log in use.
    log: PathBuf,
}

fn options(fs: &SimFileSystem) -> Options {
    let executor: Arc<dyn Executor> = Arc::new(SteppedExecutor::new());
    Options::new()
        .file_system(Arc::new(fs.clone()))
        .executor(executor)
        .hash_seed(7)
        .memtable_size(4096)
        .table_size(4096)
        .cache_size(64 << 10)
        .default_keyspace(KeyspaceOptions::new().block_size(512))
}

/// The offset of the last record of a log, which is a marker.
fn last_marker(fs: &SimFileSystem, log: &Path) -> u64 {
    let mut log = Inspector::on(Arc::new(fs.clone())).log(log).unwrap();
    let mut last = None;
    while let Some(record) = log.next_record().unwrap() {
        last = Some(record);
    }
    let last = last.unwrap();
    assert_eq!(last.content, Content::SyncMarker);
    last.offset
}

struct BatchWriter<'a> {
    db: &'a Db,
    model: Contents,
    states: BTreeMap<SeqNo, Contents>,
    rng: fastrand::Rng,
}

impl BatchWriter<'_> {
    fn write(&mut self, count: usize) {
        let mut batch = WriteBatch::new();
        for _ in 0..count {
            let at = self.rng.usize(0..KEYSPACES.len());
            let keyspace = self.db.keyspace(KEYSPACES[at]).unwrap();
            let key = format!("key{:03}", self.rng.u32(0..600)).into_bytes();
            if self.rng.u8(0..6) == 0 {
                batch.delete_in(&keyspace, &key);
                self.model[at].remove(&key);
            } else {
                let value = format!("{:04}", self.rng.u32(0..10_000)).repeat(self.rng.usize(0..12)).into_bytes();
                match self.rng.u8(0..6) {
                    // In the year 2109.
                    0 => batch.put_with_expiry_in(&keyspace, &key, &value, UNIX_EPOCH + Duration::from_millis(1 << 42)),
                    _ => batch.put_in(&keyspace, &key, &value),
                }
                self.model[at].insert(key, value);
            }
        }
        let seqno = self.db.write(batch).unwrap();
        self.states.insert(seqno, self.model.clone());
    }

    fn fill(&mut self, writes: usize) {
        for _ in 0..writes {
            let count = if self.rng.bool() { 1 } else { 4 };
            self.write(count);
        }
    }
}

impl Sound {
    fn new() -> Sound {
        Sound::with_log(WalMode::Auto)
    }

    /// A sound store whose logs are written in `mode`.
    fn with_log(mode: WalMode) -> Sound {
        let fs = SimFileSystem::new();
        let db = options(&fs).wal_mode(mode).open(DIR).unwrap();
        let plain = KeyspaceOptions::new().compression(Compression::None).block_size(256);
        db.keyspace_with(KEYSPACES[1], plain).unwrap();
        let rng = fastrand::Rng::with_seed(1);
        let mut writer = BatchWriter { db: &db, model: Contents::default(), states: BTreeMap::new(), rng };
        writer.fill(300);
        for name in KEYSPACES {
            db.keyspace(name).unwrap().compact_range(..).unwrap();
        }
        writer.fill(40);
        db.flush().unwrap();
        assert_eq!(db.flushed_seqno(), db.last_seqno());
        // Nothing steps the executor, so the memtable sealed here is not flushed.
        let logs = |fs: &SimFileSystem| fs.paths().into_iter().filter(|p| p.extension() == Some("wal".as_ref()));
        while logs(&fs).count() < 2 {
            writer.fill(1);
        }
        writer.fill(5);
        db.sync().unwrap();
        let (log, synced) = (logs(&fs).next_back().unwrap(), db.synced_seqno());
        // The marker says so.
        let synced_end = last_marker(&fs, &log);
        writer.fill(6);
        let states = writer.states;
        let levels: Vec<usize> = db.stats().keyspaces[0].levels.iter().map(|level| level.tables.len()).collect();
        assert!(levels[0] > 0 && levels[6] > 1, "{levels:?}");
        Sound { fs: fs.kill(), states, synced, synced_end, log }
    }

    fn last(&self) -> SeqNo {
        *self.states.keys().next_back().unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.fs.paths().into_iter().filter(|path| !path.ends_with("LOCK")).collect()
    }

    /// The states in which the store may be after damage to `range` of a file.
    fn allowed(&self, path: &Path, damaged: Range<u64>) -> RangeInclusive<SeqNo> {
        let is_synced = path != self.log || damaged.start < self.synced_end;
        if is_synced { self.last()..=self.last() } else { self.synced..=self.last() }
    }

    /// Opens a damaged store in every way and reads everything. An open that was refused, or found
    /// nothing wrong, has destroyed nothing: with its file restored, the store is whole.
    fn check(&self, damage: &Damage) {
        let Damage { fs, what, allowed, .. } = damage;
        let mut errors = Vec::new();
        let mut refused = false;
        within_memory(fs, what, || {
            match options(fs).open_read_only(DIR) {
                Ok(db) => self.read(&db, damage, &mut errors),
                Err(error) => errors.push(error),
            }
            // Verified blocks are then read in the mapping.
            match options(fs).read_mode(ReadMode::Mmap).open_read_only(DIR) {
                Ok(db) => self.read(&db, damage, &mut errors),
                Err(error) => errors.push(error),
            }
            let found = options(fs).paranoid(true).open_read_only(DIR).err();
            let harmed =
                damage.sound.iter().any(|(path, bytes)| is_table(path) && fs.read(path).ok().as_ref() != Some(bytes));
            assert!(found.is_some() || (errors.is_empty() && !harmed), "{what}: not found on verification");
            errors.extend(found);
            match options(fs).open(DIR) {
                Ok(db) if *allowed.start() < self.last() => self.read(&db, damage, &mut errors),
                Ok(_) => {}
                Err(error) => {
                    refused = true;
                    errors.push(error);
                }
            }
        });
        for error in errors {
            let named = match &error {
                Error::Corruption { file, .. } | Error::Unsupported { file, .. } => file,
                error => panic!("{what}: {error}"),
            };
            assert!(damage.files.contains(named), "{what}: {error}");
        }
        if *allowed.start() == self.last() {
            // A successful open has written CURRENT and the manifest anew.
            damage.repair(|path| refused || is_table(path));
            let db = options(fs).open(DIR).unwrap_or_else(|error| panic!("{what}, repaired: {error}"));
            let mut errors = Vec::new();
            self.read(&db, damage, &mut errors);
            assert!(errors.is_empty(), "{what}, repaired: {errors:?}");
        }
    }

    fn read(&self, db: &Db, damage: &Damage, errors: &mut Vec<Error>) {
        let what = &damage.what;
        let seqno = db.last_seqno();
        assert!(damage.allowed.contains(&seqno), "{what}: the store ends at {seqno}");
        let model = self.states.get(&seqno).unwrap_or_else(|| panic!("{what}: part of a batch, up to {seqno}"));
        for (name, map) in KEYSPACES.iter().zip(model) {
            let keyspace = db.existing_keyspace(name).unwrap().unwrap_or_else(|| panic!("{what}: {name} is gone"));
            for n in (0..600).step_by(31) {
                for key in [format!("key{n:03}"), format!("key{n:03}x")] {
                    match keyspace.get(&key) {
                        Ok(value) => assert_eq!(value.as_deref(), map.get(key.as_bytes()).map(Vec::as_slice), "{what}"),
                        Err(error) => errors.push(error),
                    }
                }
            }
            let owned = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
            let (entries, reversed) = (map.iter().map(owned), map.iter().rev().map(owned));
            let read = |entry: Result<(tamis::Value, tamis::Value)>| entry.map(|(k, v)| (k.to_vec(), v.to_vec()));
            errors.extend(compare(what, entries.clone(), keyspace.iter().map(read)));
            errors.extend(compare(what, reversed, keyspace.iter().rev().map(read)));
            // Past the cache, with read-ahead.
            match keyspace.cursor_with(ReadOptions::new().fill_cache(false)) {
                Ok(cursor) => errors.extend(compare(what, entries, CursorWalk(Some(cursor)))),
                Err(error) => errors.push(error),
            }
        }
    }
}

type KeyValue = (Vec<u8>, Vec<u8>);

/// Entries read must equal the expected ones, up to the first error, which is returned.
fn compare(
    what: &str,
    mut expected: impl Iterator<Item = KeyValue>,
    read: impl Iterator<Item = Result<KeyValue>>,
) -> Option<Error> {
    for entry in read {
        match entry {
            Ok(entry) => assert_eq!(Some(entry), expected.next(), "{what}"),
            Err(error) => return Some(error),
        }
    }
    assert_eq!(expected.next(), None, "{what}");
    None
}

struct CursorWalk(Option<Cursor>);

impl Iterator for CursorWalk {
    type Item = Result<KeyValue>;

    fn next(&mut self) -> Option<Result<KeyValue>> {
        let cursor = self.0.as_mut()?;
        let moved = if cursor.is_valid() { cursor.next() } else { cursor.seek_to_first() };
        match moved {
            Ok(true) => Some(Ok((cursor.key()?.to_vec(), cursor.value()?.to_vec()))),
            Ok(false) => None,
            Err(error) => {
                self.0 = None;
                Some(Err(error))
            }
        }
    }
}

/// A damaged copy of a store.
struct Damage {
    fs: SimFileSystem,
    what: String,
    allowed: RangeInclusive<SeqNo>,
    /// The files that an error may name.
    files: Vec<PathBuf>,
    /// The damaged files' content before the damage.
    sound: Vec<(PathBuf, Vec<u8>)>,
}

impl Damage {
    fn new(sound: &Sound, what: String, allowed: RangeInclusive<SeqNo>, files: &[&Path]) -> Damage {
        Damage {
            fs: sound.fs.kill(),
            what,
            allowed,
            files: files.iter().map(|&path| path.to_owned()).collect(),
            sound: files.iter().map(|&path| (path.to_owned(), sound.fs.read(path).unwrap())).collect(),
        }
    }

    fn repair(&self, choose: impl Fn(&Path) -> bool) {
        for (path, bytes) in self.sound.iter().filter(|(path, _)| choose(path)) {
            self.fs.write(path, bytes.clone()).unwrap();
        }
    }
}

/// The offsets to damage in a file of `len` bytes: many at both ends, some between. There are
/// several files of each kind; `file` shifts the offsets, so that together they cover every offset
/// of headers and footers.
fn places(len: u64, file: usize) -> impl Iterator<Item = u64> {
    let stride = count_from_env("TAMIS_STRIDE", 37);
    (0..len).filter(move |at| {
        let stride = match *at {
            _ if len < 200 => 1,
            at if at < 64 || at + 96 >= len => stride.min(4),
            _ => stride,
        };
        (at + file as u64).is_multiple_of(stride)
    })
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sst")
}

/// Flips one byte at a time in the files that `choose` accepts.
fn flip(sound: &Sound, choose: impl Fn(&Path) -> bool) {
    for (file, path) in sound.files().iter().enumerate().filter(|(_, path)| choose(path)) {
        for at in places(sound.fs.file_len(path).unwrap(), file) {
            let mask = [0x01, 0x80, 0xff, 0x10][(at % 4) as usize];
            let what = format!("{} ^ {mask:#04x} at {at}", path.display());
            let damage = Damage::new(sound, what, sound.allowed(path, at..at + 1), &[path]);
            damage.fs.corrupt(path, at, mask).unwrap();
            sound.check(&damage);
        }
    }
}

#[test]
fn every_flipped_byte_of_a_table_is_found_or_harmless() {
    flip(&Sound::new(), is_table);
}

#[test]
fn every_flipped_byte_of_a_log_a_manifest_or_current_is_found_or_harmless() {
    for mode in WAL_MODES {
        flip(&Sound::with_log(mode), |path| !is_table(path));
    }
}

#[test]
fn every_cut_is_found_or_takes_the_end_of_a_log() {
    for mode in WAL_MODES {
        let sound = Sound::with_log(mode);
        // Tables do not know the log's mode.
        let files = sound.files().into_iter().filter(|path| mode == WAL_MODES[0] || !is_table(path));
        for (file, path) in files.enumerate() {
            let len = sound.fs.file_len(&path).unwrap();
            for at in places(len, file) {
                let what = format!("{} cut from {len} to {at}", path.display());
                let damage = Damage::new(&sound, what, sound.allowed(&path, at..len), &[&path]);
                damage.fs.truncate(&path, at).unwrap();

                sound.check(&damage);
            }
        }
    }
}

/// Also the newest log: without it, the rest looks like a sound store that ends earlier.
#[test]
fn issue_13_a_missing_file_is_found_and_named() {
    let sound = Sound::new();
    for path in sound.files() {
        let what = format!("{} removed", path.display());
        let damage = Damage::new(&sound, what, sound.allowed(&path, 0..u64::MAX), &[&path]);
        damage.fs.remove(&path).unwrap();
        sound.check(&damage);
    }
}

#[test]
fn swapped_files_are_found() {
    let sound = Sound::new();
    let files = sound.files();
    for (i, a) in files.iter().enumerate() {
        for b in &files[i + 1..] {
            let what = format!("{} and {} swapped", a.display(), b.display());
            let log = if *b == sound.log { b } else { a };
            let damage = Damage::new(&sound, what, sound.allowed(log, 0..u64::MAX), &[a, b]);
            damage.fs.write(a, sound.fs.read(b).unwrap()).unwrap();
            damage.fs.write(b, sound.fs.read(a).unwrap()).unwrap();
            sound.check(&damage);
        }
    }
}

#[test]
fn bytes_appended_to_a_file_are_found_or_harmless() {
    for mode in WAL_MODES {
        let sound = Sound::with_log(mode);
        for path in sound.files() {
            let content = sound.fs.read(&path).unwrap();
            let tails =
                [vec![0; 1], vec![0; 5000], vec![0xff; 300], content.clone(), content[content.len() / 2..].to_vec()];
            for tail in tails {
                let what = format!("{} followed by {} bytes", path.display(), tail.len());
                let damage = Damage::new(&sound, what, sound.allowed(&path, u64::MAX..u64::MAX), &[&path]);
                damage.fs.write(&path, [&content[..], &tail].concat()).unwrap();
                sound.check(&damage);
            }
        }
    }
}

#[test]
fn bytes_copied_from_elsewhere_are_found() {
    let sound = Sound::new();
    let mut rng = fastrand::Rng::with_seed(3);
    let files = sound.files();
    for _ in 0..count_from_env("TAMIS_CASES", 400) {
        let (from, to) = (&files[rng.usize(0..files.len())], &files[rng.usize(0..files.len())]);
        let (source, mut target) = (sound.fs.read(from).unwrap(), sound.fs.read(to).unwrap());
        let len = rng.usize(1..=source.len().min(target.len()));
        let (a, b) = (rng.usize(0..=source.len() - len), rng.usize(0..=target.len() - len));
        target[b..b + len].copy_from_slice(&source[a..a + len]);
        let what = format!("{len} bytes of {} at {a} to {} at {b}", from.display(), to.display());
        let damage = Damage::new(&sound, what, sound.allowed(to, b as u64..(b + len) as u64), &[to]);
        damage.fs.write(to, target).unwrap();
        sound.check(&damage);
    }
}
