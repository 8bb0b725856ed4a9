//! Every combination of damage over random histories, compared with a model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{Compression, Db, Executor, Iter, KeyspaceOptions, LossKind, SteppedExecutor, WriteBatch};

use super::{
    DIR, Map, check_usable, contents_of, has_traceless_edit, known_losses, lose_manifests, manifests, of_kind, options,
    repaired,
};
use crate::support::{Scene, count_from_env, for_each_seed};

const KEYSPACES: [&str; 2] = ["default", "words"];
const KEYS: u32 = 160;

/// All values that a key ever had, by keyspace and key.
type Past = BTreeMap<(usize, Vec<u8>), BTreeSet<Vec<u8>>>;

struct RandomStore {
    rng: fastrand::Rng,
    fs: SimFileSystem,
    past: Past,
    /// Keep tables alive, so that a kill leaves them behind.
    readers: Vec<Iter>,
}

impl RandomStore {
    fn key(&mut self) -> Vec<u8> {
        format!("key{:03}", self.rng.u32(0..KEYS)).into_bytes()
    }

    fn open(&mut self) -> (Db, std::sync::Arc<SteppedExecutor>) {
        let (options, executor) = options(&self.fs);
        let db = options.open(DIR).unwrap();
        let words = KeyspaceOptions::new().block_size(256).compression(Compression::Lz4).separate_values(16);
        db.keyspace_with(KEYSPACES[1], words).unwrap();
        (db, executor)
    }

    fn write(&mut self, db: &Db) {
        let mut batch = WriteBatch::new();
        for _ in 0..self.rng.usize(1..5) {
            let at = self.rng.usize(0..KEYSPACES.len());
            let keyspace = db.existing_keyspace(KEYSPACES[at]).unwrap().unwrap();
            let key = self.key();
            if self.rng.u8(0..3) == 0 {
                batch.delete_in(&keyspace, &key);
            } else {
                let value = format!("{:05}", self.rng.u32(0..100_000)).repeat(self.rng.usize(1..8)).into_bytes();
                batch.put_in(&keyspace, &key, &value);
                self.past.entry((at, key)).or_default().insert(value);
            }
        }
        db.write(batch).unwrap();
    }

    fn run(seed: u64) -> RandomStore {
        let rng = fastrand::Rng::with_seed(seed);
        let mut history = RandomStore { rng, fs: SimFileSystem::new(), past: Past::new(), readers: Vec::new() };
        let (mut db, mut executor) = history.open();
        for _ in 0..history.rng.usize(40..220) {
            match history.rng.u32(0..40) {
                0 => db.flush().unwrap(),
                1 => {
                    let name = KEYSPACES[history.rng.usize(0..2)];
                    let keyspace = db.existing_keyspace(name).unwrap().unwrap();
                    let (from, to) = (history.key(), history.key());
                    if history.rng.bool() {
                        keyspace.compact_range(..).unwrap()
                    } else {
                        keyspace.compact_range(from..to).unwrap()
                    }
                }
                2 => db.sync().unwrap(),
                3..8 => _ = (0..history.rng.usize(1..6)).take_while(|_| executor.step()).count(),
                8 => {
                    let mut iter = db.iter();
                    let _ = iter.next();
                    history.readers.push(iter);
                }
                9 if history.rng.u32(0..3) == 0 => {
                    if history.rng.bool() {
                        history.readers.clear();
                        db.close().unwrap();
                    } else {
                        history.readers.clear();
                        history.fs = history.fs.kill();
                        drop(db);
                    }
                    (db, executor) = history.open();
                }
                _ => (0..history.rng.usize(1..8)).for_each(|_| history.write(&db)),
            }
        }
        // As a kill or a power cut leaves it.
        let cut = if history.rng.bool() { history.fs.kill() } else { history.fs.crash(seed) };
        history.readers.clear();
        drop(db);
        history.fs = cut;
        history
    }

    /// Damages one or more files. Returns whether a loss might leave no trace.
    fn damage(&mut self, fs: &SimFileSystem, logs_only: bool) -> bool {
        let mut hidden = false;
        for _ in 0..self.rng.usize(1..4) {
            let kind = self.rng.u32(if logs_only { 0..2 } else { 2..8 });
            let files = match kind {
                0 | 1 => of_kind(fs, "wal"),
                2 | 3 => manifests(fs),
                4 => vec![PathBuf::from("/db/CURRENT")],
                7 if self.rng.bool() => of_kind(fs, "val"),
                _ => of_kind(fs, "sst"),
            };
            let Some(path) = files.get(self.rng.usize(0..files.len().max(1))) else { continue };
            let Ok(len @ 1..) = fs.file_len(path) else { continue };
            match self.rng.u32(0..6) {
                0 if kind > 1 => {
                    fs.remove(path).unwrap();
                    hidden |= kind > 4;
                }
                1 if kind > 1 => {
                    fs.truncate(path, self.rng.u64(0..len)).unwrap();
                    hidden |= kind > 4;
                }
                2 => {
                    // A sector.
                    let mut bytes = fs.read(path).unwrap();
                    let start = self.rng.usize(0..bytes.len()) / 512 * 512;
                    let end = bytes.len().min(start + 512);
                    bytes[start..end].fill(0);
                    fs.write(path, bytes).unwrap();
                    hidden |= kind > 4;
                }
                _ => {
                    fs.corrupt(path, self.rng.u64(0..len), 1 << self.rng.u32(0..8)).unwrap();
                    hidden |= kind > 4;
                }
            }
        }
        hidden
    }
}

fn all_contents(db: &Db) -> [Map; 2] {
    KEYSPACES.map(|name| contents_of(db, name))
}

/// Repairs a damaged copy of a history's store, and compares it with the undamaged store, opened.
fn check(seed: u64) {
    let mut history = RandomStore::run(seed);
    let fs = history.fs.kill();
    // The expected result after damage to the logs alone: that of opening, if it finds no fault.
    let damaged_logs = fs.kill();
    let spares_logs = history.rng.u32(0..3) > 0;
    if !spares_logs {
        history.damage(&damaged_logs, true);
    }
    let truth = [&damaged_logs, &fs].into_iter().find_map(|fs| options(&fs.kill()).0.open(DIR).ok());
    let truth = all_contents(&truth.unwrap());
    let damaged = damaged_logs.kill();
    let spares_others = history.rng.u32(0..8) == 0;
    let hidden = !spares_others && history.damage(&damaged, false);
    let before_last_edit = manifests(&damaged).pop().map(|path| {
        let with_manifest = damaged_logs.kill();
        with_manifest.write(&path, damaged.read(&path).unwrap()).unwrap();
        with_manifest
    });
    let report = repaired(&damaged);
    // Damage to an edit that nothing states as durable looks like a torn write. Opening then finds
    // no fault and shows what was synced.
    let by_manifest = before_last_edit.and_then(|fs| options(&fs).0.open(DIR).ok()).map(|db| all_contents(&db));
    let scene = Scene(format!("{report}"));
    assert!(!(spares_logs && spares_others) || (report.is_sound() && !report.has_losses()), "nothing was damaged");
    // An unknowable loss counts as reported only where no evidence could reveal more.
    let excused = |loss: &&tamis::Loss| loss.kind != LossKind::Unknowable || hidden || has_traceless_edit(&fs);
    let losses: Vec<_> = report.losses.iter().filter(excused).collect();
    let db = options(&damaged.kill()).0.open(DIR).unwrap();
    let found = all_contents(&db);
    for (at, name) in KEYSPACES.iter().enumerate() {
        for key in found[at].keys().chain(truth[at].keys()).collect::<BTreeSet<_>>() {
            let (now, before) = (found[at].get(key), truth[at].get(key));
            let shown = key.escape_ascii().to_string();
            let is_as_opened = by_manifest.as_ref().is_some_and(|opened| opened[at].get(key) == now);
            if now != before && !is_as_opened {
                assert!(
                    losses.iter().any(|loss| loss.covers(name, key)),
                    "{name} {shown}: {now:?} instead of {before:?}"
                );
            }
            let past = history.past.get(&(at, key.clone()));
            assert!(now.is_none_or(|now| past.is_some_and(|past| past.contains(now))), "{name} {shown}: never written");
        }
    }
    drop(db);
    check_usable(&damaged);
    drop(scene);
    assert!(damaged.list(Path::new(DIR)).is_ok());
}

/// Loses all manifests and nothing else. Tables and logs suffice to tell dead tables, including
/// inputs of compactions, from live ones.
fn check_without_manifests(seed: u64) {
    let history = RandomStore::run(seed);
    let fs = history.fs.kill();
    let truth = all_contents(&options(&fs.kill()).0.open(DIR).unwrap());
    if has_traceless_edit(&fs) {
        return;
    }
    lose_manifests(&fs);
    let report = repaired(&fs);
    let _scene = Scene(format!("{report}"));
    // A power cut may leave a hole between two logs, which opening takes for the end.
    let is_of_log = |loss: &&tamis::Loss| loss.file.as_ref().is_some_and(|file| file.extension().unwrap() == "wal");
    let losses = known_losses(&report);
    assert!(losses.iter().all(is_of_log));
    let found = all_contents(&options(&fs.kill()).0.open(DIR).unwrap());
    assert!(!losses.is_empty() || found == truth);
}

#[test]
fn tables_and_logs_hold_all_facts_of_lost_manifests() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 120), check_without_manifests);
}

#[test]
fn keys_outside_the_reported_ranges_are_unchanged() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 120), check);
}
