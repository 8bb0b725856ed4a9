//! Does a reader follow the process that writes, and never see what that process never had?
//!
//! The writer acts between any two pieces that the reader reads. Each refresh shows a state that
//! the writer has had, none shows an older one than the refresh before, and snapshots stay as they
//! were.
//!
//! `TAMIS_SEEDS` sets the number of histories; `TAMIS_SEED` runs one seed.

#[cfg(unix)]
mod descriptors;
mod history;
mod processes;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tamis::vfs::{FileSystem, OsFileSystem, SimFileSystem};
use tamis::{Db, Error, Executor, Options, Snapshot, SteppedExecutor};

use self::history::{DIR, History, Map, State, contents, shown, unlogged};
use crate::interrupted::Interrupted;
use crate::support::{count_from_env, for_each_seed, stepped_options};

/// A reader, and how far it has come.
struct Reader {
    db: Db,
    /// Position of the state that it has shown last.
    seen: usize,
    /// With what they have shown first.
    snapshots: Vec<(Snapshot, State, Map)>,
}

fn reader_options(fs: Interrupted) -> Options {
    let executor: Arc<dyn Executor> = Arc::new(SteppedExecutor::new());
    Options::new().file_system(Arc::new(fs)).executor(executor).memtable_size(8 << 10)
}

impl Reader {
    /// Expects that the reader shows a state of the history, and not one before the last.
    fn check(&mut self, history: &Mutex<History>) {
        let found = contents(&self.db, None).unwrap();
        let of_unlogged = unlogged(&self.db, None).unwrap();
        let flushed = self.db.flushed_seqno();
        let history = history.lock().unwrap();
        let at = history.states.iter().skip(self.seen).position(|state| state.is_shown_as(&found));
        let Some(at) = at else {
            let last = &history.states[self.seen..];
            let of_number: Vec<&State> =
                last.iter().filter(|state| (state.logged..=state.seqno).contains(&found.seqno)).collect();
            panic!("shown: {found:?}\nof that number: {of_number:?}\nlast: {:?}", last.last());
        };
        self.seen += at;
        let expected = history.unlogged.iter().rfind(|(seqno, _)| *seqno <= flushed).unwrap();
        assert_eq!(of_unlogged, expected.1, "of the keyspace without a log, flushed to {flushed}");
        drop(history);
        for (name, map) in &found.keyspaces {
            let keyspace = self.db.existing_keyspace(name).unwrap().unwrap();
            let keys: Vec<Vec<u8>> = keyspace.keys(..).map(|key| key.unwrap().to_vec()).collect();
            for (key, value) in keys.iter().zip(keyspace.multi_get(&keys).unwrap()) {
                assert_eq!(value, keyspace.get(key).unwrap());
                assert_eq!(shown(name, &value.unwrap()), map[&key.escape_ascii().to_string()]);
            }
            assert_eq!(keyspace.get("absent").unwrap(), None);
        }
        for (snapshot, state, rest) in &self.snapshots {
            let mut now = contents(&self.db, Some(snapshot));
            if let Err(Error::KeyspaceDropped(_)) = now {
                continue;
            }
            // Keyspaces that were created or dropped since have other handles.
            let state_now = now.as_mut().unwrap();
            state_now.keyspaces.retain(|name, _| state.keyspaces.contains_key(name));
            let known = state.keyspaces.iter().filter(|(name, _)| state_now.keyspaces.contains_key(*name));
            assert!(known.eq(state_now.keyspaces.iter()), "{state:?} {state_now:?}");
            assert_eq!(unlogged(&self.db, Some(snapshot)).unwrap(), *rest);
        }
    }

    fn take_snapshot(&mut self) {
        let snapshot = self.db.snapshot();
        let (state, rest) = (contents(&self.db, None).unwrap(), unlogged(&self.db, None).unwrap());
        self.snapshots.push((snapshot, state, rest));
    }
}

#[test]
fn each_refresh_shows_a_later_state_that_the_writer_has_had() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 300), |seed| {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let history = Arc::new(Mutex::new(History::new(seed)));
        let act = |count: u32| (0..count).for_each(|_| history.lock().unwrap().act());
        act(rng.u32(0..40));
        // 0 for a writer that stands still while the reader reads.
        let interval = [0, 6, 20, 60][rng.usize(..4)];
        let (shared, counter) = (Arc::clone(&history), AtomicU64::new(seed));
        let interrupt = move || {
            let count = counter.fetch_add(1, Ordering::Relaxed);
            if interval > 0 && fastrand::Rng::with_seed(count).u64(..interval) == 0 {
                shared.lock().unwrap().act();
            }
            Ok(())
        };
        let fs = Interrupted { fs: history.lock().unwrap().fs.clone(), interrupt: Arc::new(interrupt) };
        let db = reader_options(fs).open_read_only(DIR).unwrap();
        let mut reader = Reader { db, seen: 0, snapshots: Vec::new() };
        reader.check(&history);
        for _ in 0..rng.u32(5..25) {
            act([0, 1, 3, 30][rng.usize(..4)]);
            let before = reader.db.last_seqno();
            let least = history.lock().unwrap().states.len() - 1;
            let seqno = reader.db.refresh().unwrap();
            assert!(seqno >= before && seqno == reader.db.last_seqno());
            reader.check(&history);
            if interval == 0 {
                // What only keyspaces without a log have since is not counted yet.
                let history = history.lock().unwrap();
                let (shown, last) = (&history.states[reader.seen], &history.states[least]);
                assert_eq!(shown.keyspaces, last.keyspaces, "all that was written is shown");
            }
            match rng.u8(0..6) {
                0 => reader.take_snapshot(),
                1 => drop(reader.snapshots.pop()),
                _ => {}
            }
        }
    });
}

#[test]
fn a_store_of_another_history_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let [path, copy, old] = ["db", "copy", "old"].map(|name| dir.path().join(name));
    let db = Db::open(&path).unwrap();
    db.put("k", "1").unwrap();
    db.checkpoint(&copy).unwrap();
    db.put("k", "2").unwrap();
    assert!(matches!(db.refresh(), Err(Error::InvalidArgument(_))));
    let reader = Db::open_read_only(&path).unwrap();
    db.close().unwrap();
    let fs = OsFileSystem::new();
    fs.rename(&path, &old).unwrap();
    fs.rename(&copy, &path).unwrap();
    let shows = |value: &str| assert_eq!(reader.get("k").unwrap().as_deref(), Some(value.as_bytes()));
    for _ in 0..2 {
        let error = reader.refresh().unwrap_err();
        assert!(matches!(error, Error::HistoryChanged { seqno: 2, .. }), "{error}");
        shows("2");
    }
    // What is there now has been written since, and more.
    let db = Db::open(&path).unwrap();
    (0..5).for_each(|_| _ = db.put("k", "3").unwrap());
    assert!(matches!(reader.refresh(), Err(Error::HistoryChanged { .. })));
    shows("2");
    assert_eq!(Db::open_read_only(&path).unwrap().get("k").unwrap().as_deref(), Some(&b"3"[..]));
    let handle = reader.clone();
    reader.close().unwrap();
    assert!(matches!(handle.refresh(), Err(Error::Closed)));
}

#[test]
fn a_copy_that_has_grown_beyond_its_original_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let [path, copy, old] = ["db", "copy", "old"].map(|name| dir.path().join(name));
    let db = Db::open(&path).unwrap();
    let fill = |db: &Db, value: &str| {
        db.put("k", value).unwrap();
        db.flush().unwrap();
    };
    fill(&db, "0");
    db.checkpoint(&copy).unwrap();
    (1..4).for_each(|_| fill(&db, "of the original"));
    let reader = Db::open_read_only(&path).unwrap();
    db.close().unwrap();
    let fs = OsFileSystem::new();
    fs.rename(&path, &old).unwrap();
    fs.rename(&copy, &path).unwrap();
    let db = Db::open(&path).unwrap();
    (1..20).for_each(|_| fill(&db, "of the copy"));
    assert!(matches!(reader.refresh(), Err(Error::HistoryChanged { .. })));
    assert_eq!(reader.get("k").unwrap().as_deref(), Some(&b"of the original"[..]));
}

/// Files of `dir` that this process has open although their names are gone.
#[cfg(target_os = "linux")]
fn nameless(dir: &std::path::Path) -> usize {
    let fds = OsFileSystem::new().list(std::path::Path::new("/proc/self/fd")).unwrap();
    let open = fds.iter().filter_map(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok());
    open.filter(|path| path.starts_with(dir) && path.to_str().unwrap().ends_with("(deleted)")).count()
}

#[cfg(target_os = "linux")]
#[test]
fn a_reader_keeps_removed_files_until_its_last_view_of_them_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap().join("db");
    let keyspace = tamis::KeyspaceOptions::new().separate_values(200);
    let db = Options::new().memtable_size(64 << 10).default_keyspace(keyspace).open(&path).unwrap();
    let fill = |value: u8| {
        for i in 0..2000u32 {
            db.put(i.to_be_bytes(), vec![value; 100 + (i as usize % 3) * 100]).unwrap();
        }
        db.compact_range(..).unwrap();
        db.wait_for_compactions().unwrap();
    };
    fill(1);
    let reader = Options::new().max_open_files(8).open_read_only(&path).unwrap();
    let stats = reader.stats().reader.unwrap();
    assert!(stats.files > 1 && stats.bytes > 10_000, "{stats:?}");
    let all_are = |iter: tamis::Iter, value: u8| {
        let mut count = 0;
        for entry in iter {
            assert_eq!(entry.unwrap().1[0], value);
            count += 1;
        }
        assert_eq!(count, 2000);
    };
    fill(2);
    assert!(nameless(&path) >= stats.files);
    all_are(reader.iter(), 1);
    let (snapshot, iter) = (reader.snapshot(), reader.iter());
    reader.refresh().unwrap();
    all_are(reader.iter(), 2);
    all_are(snapshot.iter(), 1);
    assert!(nameless(&path) > 0);
    drop(snapshot);
    all_are(iter, 1);
    // A view that was replaced while a thread read in it is freed with the next one.
    let _ = reader.stats();
    assert_eq!(nameless(&path), 0);
    fill(3);
    assert!(nameless(&path) > 0);
    drop(reader);
    assert_eq!(nameless(&path), 0);
}

#[test]
fn a_refresh_that_fails_leaves_the_reader_as_it_was() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 40), |seed| {
        // Calls that the reader may still make before one fails; 0 for any number.
        let left = Arc::new(AtomicU64::new(0));
        let (shared, failed) = (Arc::clone(&left), Arc::new(AtomicBool::new(false)));
        let has_failed = Arc::clone(&failed);
        let interrupt = move || match shared.load(Ordering::Relaxed) {
            0 => Ok(()),
            1 => {
                has_failed.store(true, Ordering::Relaxed);
                Err(io::Error::other("the fault of the test"))
            }
            calls => {
                shared.store(calls - 1, Ordering::Relaxed);
                Ok(())
            }
        };
        let history = Mutex::new(History::new(seed));
        let act = |count: u32| (0..count).for_each(|_| history.lock().unwrap().act());
        act(20);
        let fs = Interrupted { fs: history.lock().unwrap().fs.clone(), interrupt: Arc::new(interrupt) };
        let db = reader_options(fs).open_read_only(DIR).unwrap();
        let mut reader = Reader { db, seen: 0, snapshots: Vec::new() };
        reader.check(&history);
        for round in 0.. {
            act([1, 3, 30][round % 3]);
            let shown = contents(&reader.db, None).unwrap();
            failed.store(false, Ordering::Relaxed);
            left.store(round as u64 + 1, Ordering::Relaxed);
            let refreshed = reader.db.refresh();
            left.store(0, Ordering::Relaxed);
            if refreshed.is_err() {
                assert!(matches!(refreshed, Err(Error::Io { .. })), "{refreshed:?}");
                assert_eq!(contents(&reader.db, None).unwrap(), shown);
                assert!(reader.db.stats().reader.unwrap().error.is_some());
                // Now and then, several refreshes fail one after the other.
                if round % 4 > 0 {
                    reader.db.refresh().unwrap();
                }
            }
            reader.check(&history);
            if !failed.load(Ordering::Relaxed) && round > 60 {
                break;
            }
        }
    });
}

#[test]
fn damage_in_the_manifest_is_reported() {
    let fs = SimFileSystem::new();
    let db = stepped_options(&fs).0.open("/db").unwrap();
    let flush = |n: u32| {
        db.put(n.to_be_bytes(), "value").unwrap();
        db.flush().unwrap();
    };
    flush(0);
    let reader = stepped_options(&fs).0.open_read_only("/db").unwrap();
    let is_manifest = |path: &PathBuf| path.to_string_lossy().contains("MANIFEST");
    let manifest = fs.paths().into_iter().find(is_manifest).unwrap();
    let before = fs.read(&manifest).unwrap();
    flush(1);
    let after = fs.read(&manifest).unwrap();
    let edit = (0..after.len()).find(|at| before.get(*at) != Some(&after[*at])).unwrap();
    fs.corrupt(&manifest, edit as u64 + 12, 1).unwrap();
    // The record behind it says that it was durable once.
    let error = (0..10).find_map(|_| reader.refresh().err()).unwrap();
    assert!(matches!(&error, Error::Corruption { file, .. } if *file == manifest), "{error}");
    assert_eq!(reader.get(0u32.to_be_bytes()).unwrap().as_deref(), Some(&b"value"[..]), "the reader stays as it was");
}
