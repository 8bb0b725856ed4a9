//! Does a compaction in parts, by one thread or several, have the result of one in a single part: a
//! whole stage or nothing? May it be interrupted between stages?

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tamis::inspect::{FileKind, Inspector};
use tamis::vfs::{Fault, FaultMode, FileSystem, SimFileSystem};
use tamis::{
    Compression, Cursor, Db, Error, Executor, KeyspaceOptions, Options, RepairOptions, Snapshot, SteppedExecutor,
    ThreadPool,
};

use crate::support::{Scene, stepped_options};
use crate::trace::{Trace, TracedCall};

const DIR: &str = "/db";
const KEYS: u32 = 1500;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Options with tables of `bytes` bytes. With large tables, a compaction has a single part.
fn with_tables_of(options: Options, bytes: u64) -> Options {
    let keyspace = KeyspaceOptions::new().block_size(512).compression(Compression::None);
    options.memtable_size(16 << 10).table_size(bytes).cache_size(0).default_keyspace(keyspace)
}

/// Writes keys in random order, some of them several times, deletes some in the end, and gives one
/// more versions than a part has entries.
fn fill(db: &Db) {
    let mut rng = fastrand::Rng::with_seed(11);
    let seen = db.snapshot();
    for i in 0..3 * KEYS {
        let key = rng.u32(0..KEYS);
        match i % 7 {
            0 => db.delete(key.to_be_bytes()).unwrap(),
            1 => db.put(77u32.to_be_bytes(), i.to_string()).unwrap(),
            _ => db.put(key.to_be_bytes(), format!("{i:060}")).unwrap(),
        };
    }
    drop(seen);
    db.flush().unwrap();
}

fn entries(db: &Db) -> Pairs {
    db.iter().map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec()))).collect::<Result<_, _>>().unwrap()
}

/// Numbers of the store's tables, in key order if it is compacted.
fn tables(db: &Db) -> Vec<u64> {
    let levels = &db.stats().keyspaces[0].levels;
    levels.iter().flat_map(|level| level.tables.iter().map(|table| table.number)).collect()
}

fn table_files(fs: &SimFileSystem) -> usize {
    fs.paths().iter().filter(|path| path.extension().is_some_and(|extension| extension == "sst")).count()
}

/// Checks that everything is in the last level, in tables that do not overlap, and nothing else
/// exists.
fn check_compacted(db: &Db, at_least: usize) {
    let stats = db.stats();
    let (last, above) = stats.keyspaces[0].levels.split_last().unwrap();
    assert!(above.iter().all(|level| level.tables.is_empty()));
    assert!(last.tables.len() >= at_least, "{}", last.tables.len());
    assert!(last.tables.is_sorted_by(|a, b| a.largest < b.smallest));
    assert_eq!(last.entries(), db.iter().count() as u64, "no old version and no tombstone is left");
}

#[test]
fn parts_produce_the_entries_of_a_single_part() {
    let mut all = Vec::new();
    for (bytes, threads, at_least) in [(1 << 30, 0, 1), (4096, 0, 10), (4096, 3, 10), (4096, 6, 10)] {
        let fs = SimFileSystem::new();
        let (mut options, _executor) = stepped_options(&fs);
        if threads > 0 {
            options = options.executor(Arc::new(ThreadPool::new(threads)));
        }
        let db = with_tables_of(options, bytes).open(DIR).unwrap();
        fill(&db);
        let before = entries(&db);
        db.compact_range(..).unwrap();
        assert_eq!(entries(&db), before);
        check_compacted(&db, at_least);
        let live = tables(&db).len();
        // A thread that has just ended its part may still hold its inputs. Without threads, none
        // does.
        if threads == 0 {
            assert_eq!(table_files(&fs), live);
        }
        db.close().unwrap();
        assert_eq!(table_files(&fs), live);
        let (options, _executor) = stepped_options(&fs);
        let db = with_tables_of(options, bytes).open(DIR).unwrap();
        assert_eq!(entries(&db), before);
        all.push(before);
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_compaction_in_parts_is_done_whole_or_not_at_all() {
    let filled = SimFileSystem::new();
    let (options, executor) = stepped_options(&filled);
    let db = with_tables_of(options, 4096).open(DIR).unwrap();
    fill(&db);
    while executor.step() {}
    let (expected, before) = (entries(&db), tables(&db));
    db.close().unwrap();
    for at in (1..).step_by(3) {
        let fault =
            Fault { at, mode: [FaultMode::Io, FaultMode::NoSpace][usize::try_from(at % 2).unwrap()], sticky: false };
        let _scene = Scene(format!("{fault:?}"));
        let fs = filled.kill();
        let (options, executor) = stepped_options(&fs);
        let db = with_tables_of(options, 4096).open(DIR).unwrap();
        while executor.step() {}
        assert_eq!(tables(&db), before, "opening changes none");
        fs.set_fault(Some(fault));
        let result = db.compact_range(..);
        let was_hit = fs.fault_hit();
        fs.set_fault(None);
        assert_eq!(entries(&db), expected);
        match result {
            // A file that could not be removed stays behind.
            Ok(()) => {}
            Err(Error::Poisoned(_) | Error::Io { .. }) => {
                assert_eq!(tables(&db), before);
                // The outputs of finished parts are removed, unless only the manifest, once read
                // again, tells whether they count.
                if db.put("k", "v").is_ok() {
                    db.delete("k").unwrap();
                    assert_eq!(table_files(&fs), before.len());
                    db.compact_range(..).unwrap();
                    check_compacted(&db, 10);
                    assert_eq!(table_files(&fs), tables(&db).len());
                }
            }
            Err(error) => panic!("{error}"),
        }
        drop(db);
        for next in [fs.kill(), fs.crash(at)] {
            let (options, _executor) = stepped_options(&next);
            let db = with_tables_of(options, 4096).open(DIR).unwrap();
            assert_eq!(entries(&db), expected);
            db.compact_range(..).unwrap();
            check_compacted(&db, 10);
            assert_eq!(table_files(&next), tables(&db).len());
        }
        if !was_hit {
            return;
        }
    }
}

/// A store with a full last level, and above it newer versions and tombstones of some of its keys.
/// Also a snapshot from before these (valid while the store is open), and the contents that
/// snapshot and store see. A compaction of it takes several stages.
fn two_layers(fs: &SimFileSystem) -> (Db, Arc<SteppedExecutor>, Snapshot, [Pairs; 2]) {
    let (options, executor) = stepped_options(fs);
    let db = with_tables_of(options, 4096).memtable_size(4 << 10).open(DIR).unwrap();
    for key in 0..KEYS {
        db.put(key.to_be_bytes(), format!("{key:0250}")).unwrap();
    }
    db.compact_range(..).unwrap();
    let (snapshot, older) = (db.snapshot(), entries(&db));
    let mut rng = fastrand::Rng::with_seed(12);
    for i in 0..KEYS / 4 {
        let key = rng.u32(0..KEYS).to_be_bytes();
        if i % 3 == 0 { db.delete(key) } else { db.put(key, format!("{i:050}")) }.unwrap();
    }
    db.flush().unwrap();
    let newer = entries(&db);
    (db, executor, snapshot, [older, newer])
}

fn seen_by(snapshot: &Snapshot) -> Pairs {
    snapshot
        .iter()
        .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())))
        .collect::<Result<_, _>>()
        .unwrap()
}

fn check_verified(fs: &SimFileSystem) {
    let mut faults = Vec::new();
    let report = &mut |fault: &tamis::inspect::Finding| faults.push(fault.to_string());
    let verified = Inspector::on(Arc::new(fs.clone())).verify(Path::new(DIR), report).unwrap();
    assert_eq!(verified.damaged, 0, "{faults:?}");
}

/// Moves a cursor back and forth and compares the entries it finds.
fn check_walk(mut cursor: Cursor, expected: &Pairs, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut at: Option<usize> = None;
    for _ in 0..300 {
        at = match (rng.u8(0..20), at) {
            (0, _) | (_, None) => {
                let key = rng.u32(0..KEYS).to_be_bytes();
                cursor.seek(key).unwrap();
                Some(expected.partition_point(|(k, _)| **k < key[..])).filter(|&at| at < expected.len())
            }
            (step, Some(at)) if step % 2 == 0 => {
                cursor.next().unwrap();
                Some(at + 1).filter(|&at| at < expected.len())
            }
            (_, Some(at)) => {
                cursor.prev().unwrap();
                at.checked_sub(1)
            }
        };
        let found = cursor.key().zip(cursor.value()).map(|(key, value)| (key.to_vec(), value.to_vec()));
        assert_eq!(found.as_ref(), at.map(|at| &expected[at]));
    }
}

/// Writes to existing keys, with flushes, and lets background work run.
fn write_on(db: &Db, executor: &SteppedExecutor, expected: &mut Pairs, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for i in 0..600 {
        let at = rng.usize(0..expected.len());
        expected[at].1 = i.to_string().into_bytes();
        db.put(&expected[at].0, &expected[at].1).unwrap();
        if i % 40 == 39 {
            db.flush().unwrap();
            while i % 120 == 119 && executor.step() {}
        }
    }
}

/// Wherever it is interrupted, finished stages stay. The levels above keep entries that are partly
/// below as well. These change no answer: not then, not during further background work, and not
/// after a full compaction.
#[test]
fn a_compaction_in_stages_may_be_interrupted_anywhere() {
    let (mut whole, mut in_part) = (0, 0);
    for at in (1..).step_by(11) {
        let fault =
            Fault { at, mode: [FaultMode::Io, FaultMode::NoSpace][usize::from(at % 2 == 0)], sticky: at % 3 == 0 };
        let _scene = Scene(format!("{fault:?}"));
        let fs = SimFileSystem::new();
        let (db, _executor, snapshot, [older, newer]) = two_layers(&fs);
        let before = tables(&db);
        fs.set_fault(Some(fault));
        let result = db.compact_range(..);
        let was_hit = fs.fault_hit();
        fs.set_fault(None);
        check_walk(db.cursor().unwrap(), &newer, at);
        check_walk(snapshot.cursor().unwrap(), &older, at);
        assert_eq!((entries(&db), seen_by(&snapshot)), (newer.clone(), older));
        let kept = tables(&db).iter().filter(|table| before.contains(table)).count();
        match result {
            Ok(()) => whole += 1,
            Err(_) if kept < before.len() => in_part += 1,
            Err(_) => {}
        }
        drop((db, snapshot));
        for next in [fs.kill(), fs.crash(at)] {
            let (options, executor) = stepped_options(&next);
            let db = with_tables_of(options, 4096).memtable_size(4 << 10).open(DIR).unwrap();
            assert_eq!(entries(&db), newer);
            check_verified(&next);
            let mut expected = newer.clone();
            write_on(&db, &executor, &mut expected, at);
            check_walk(db.cursor().unwrap(), &expected, at);
            assert_eq!(entries(&db), expected);
            check_verified(&next);
            db.compact_range(..).unwrap();
            assert_eq!(entries(&db), expected);
            check_compacted(&db, 20);
        }
        if !was_hit {
            break;
        }
    }
    assert!(whole > 0 && in_part > 20, "{whole} {in_part}");
}

/// An edit that does not fit stops the compaction and not the store: it goes on when there is
/// space, and no file is left over.
#[test]
fn a_compaction_in_stages_goes_on_when_the_disk_was_too_full_for_its_edits() {
    let mut refused = 0;
    for at in 1.. {
        let _scene = Scene(format!("full before the edit after directory sync {at}"));
        let fs = SimFileSystem::new();
        let (db, _executor, snapshot, [_, newer]) = two_layers(&fs);
        drop(snapshot);
        db.close().unwrap();
        // Not in the middle of an edit.
        let (syncs, in_manifest, full) = (AtomicUsize::new(0), AtomicBool::new(false), fs.clone());
        let trace = Trace::with_hook(&fs, move |call, name| {
            if call == TracedCall::Create {
                in_manifest.store(["MANIFEST", "CURRENT"].iter().any(|of| name.starts_with(of)), Ordering::Relaxed);
            }
            let is_tables = call == TracedCall::SyncDir && !in_manifest.load(Ordering::Relaxed);
            if is_tables && syncs.fetch_add(1, Ordering::Relaxed) + 1 == at {
                full.set_capacity(Some(0));
            }
            Ok(())
        });
        let options = |fs: Arc<dyn FileSystem>| {
            let (options, executor) = stepped_options(&SimFileSystem::new());
            (with_tables_of(options, 4096).memtable_size(4 << 10).file_system(fs), executor)
        };
        let (opened, _executor) = options(Arc::new(trace));
        let db = opened.open(DIR).unwrap();
        let result = db.compact_range(..);
        let killed = fs.kill();
        for fs in [&fs, &killed] {
            fs.set_capacity(None);
        }
        let done = match result {
            Ok(()) => true,
            Err(error) => {
                assert!(error.is_no_space() && !error.is_poisoned(), "{error}");
                refused += 1;
                false
            }
        };
        let (reopened, _other_executor) = options(Arc::new(killed.clone()));
        for (db, fs) in [(db, &fs), (reopened.open(DIR).unwrap(), &killed)] {
            assert_eq!(entries(&db), newer);
            db.wait_for_compactions().unwrap();
            db.compact_range(..).unwrap();
            assert_eq!(entries(&db), newer);
            check_compacted(&db, 20);
            assert_eq!(table_files(fs), tables(&db).len());
            db.close().unwrap();
            check_verified(fs);
        }
        if done && refused > 0 {
            break;
        }
    }
    assert!(refused > 3, "{refused}");
}

#[test]
fn a_compaction_needs_the_space_of_a_stage_and_not_of_all_its_inputs() {
    let fs = SimFileSystem::new();
    let (db, _executor, snapshot, [_, newer]) = two_layers(&fs);
    drop(snapshot);
    let size = |fs: &SimFileSystem| fs.paths().iter().map(|path| fs.file_len(path).unwrap_or(0)).sum::<u64>();
    let (before, last) = (size(&fs), db.stats().keyspaces[0].levels.last().unwrap().size());
    // A stage reads sixteen tables of 4 KiB and some more. Before it begins, there must also be
    // space for a full level 0.
    let space = 2 * 16 * 4096 + 12 * 4096;
    assert!(2 * space < last, "{last}");
    fs.set_capacity(Some(before + space));
    db.compact_range(..).unwrap();
    assert_eq!(entries(&db), newer);
    check_compacted(&db, 20);
}

#[test]
fn a_tables_data_go_to_the_device_before_its_end_is_written() {
    let trace = Trace::new(&SimFileSystem::new());
    let (options, _executor) = stepped_options(&SimFileSystem::new());
    let db = options.file_system(Arc::new(trace.clone())).memtable_size(8 << 20).open(DIR).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    for key in 0..4000u32 {
        db.put(key.to_be_bytes(), [rng.u64(..); 128].map(u64::to_be_bytes).as_flattened()).unwrap();
    }
    db.flush().unwrap();
    let of_tables = trace.events().into_iter().filter(|event| event.name.ends_with(".sst"));
    let calls: Vec<TracedCall> = of_tables.map(|event| event.call).collect();
    // A table of 4 MB, a MiB at a time.
    assert_eq!(calls.first(), Some(&TracedCall::Create));
    let (last, appended) = calls[1..].split_last().unwrap();
    assert_eq!(*last, TracedCall::Sync);
    assert!(appended.len() >= 6, "{calls:?}");
    assert!(appended.chunks(2).all(|pair| pair == [TracedCall::Append, TracedCall::BeginSync]), "{calls:?}");
}

/// A store with a full last level, a run of all keys' newer versions above it, and a newer run of
/// the first keys only: it ends before the others do.
fn narrow_over_wide(fs: &SimFileSystem) -> (Db, Arc<SteppedExecutor>, Pairs) {
    let (options, executor) = stepped_options(fs);
    let db = with_tables_of(options, 4096).memtable_size(1 << 20).open(DIR).unwrap();
    for key in 0..KEYS {
        db.put(key.to_be_bytes(), format!("{key:0250}")).unwrap();
    }
    db.compact_range(..).unwrap();
    (0..KEYS).step_by(4).for_each(|key| _ = db.put(key.to_be_bytes(), "wide").unwrap());
    db.flush().unwrap();
    for key in (0..KEYS / 8).step_by(8) {
        db.put(key.to_be_bytes(), "narrow").unwrap();
        db.delete((key + 4).to_be_bytes()).unwrap();
    }
    db.flush().unwrap();
    let entries = entries(&db);
    (db, executor, entries)
}

/// Fails a compaction in stages at one file-system call after the other, kills the store, harms its
/// files, and repairs them. Calls `check` with what the store held and what it holds then. `harm`
/// returns false if there was nothing to harm. Returns how many cases there were.
fn repaired(harm: impl Fn(&SimFileSystem, &Path) -> bool, mut check: impl FnMut(&Pairs, &Pairs)) -> usize {
    const STEP: usize = 44;
    let mut cases = 0;
    for at in (1..).step_by(STEP) {
        let fs = SimFileSystem::new();
        let (db, _executor, held) = narrow_over_wide(&fs);
        let mut runs = tables(&db);
        runs.sort_unstable();
        let wide = FileKind::Table(runs[runs.len() - 2]).path(Path::new(DIR));
        fs.set_fault(Some(Fault { at, mode: FaultMode::Io, sticky: true }));
        let result = db.compact_range(..);
        fs.set_fault(None);
        drop(db);
        if result.is_ok() {
            break;
        }
        let fs = fs.kill();
        if harm(&fs, &wide) {
            let (options, _executor) = stepped_options(&fs);
            tamis::repair(DIR, RepairOptions::default().file_system(Arc::new(fs.clone()))).unwrap();
            let db = with_tables_of(options, 4096).memtable_size(4 << 10).open(DIR).unwrap();
            check(&held, &entries(&db));
            cases += 1;
        }
    }
    cases
}

/// Without manifests, the tables alone tell what is alive.
#[test]
fn a_compaction_in_stages_leaves_tables_that_tell_what_is_alive() {
    let remove_manifests = |fs: &SimFileSystem, _: &Path| {
        for path in fs.paths() {
            let name = path.file_name().unwrap().to_str().unwrap();
            if name == "CURRENT" || name.starts_with("MANIFEST") {
                fs.remove(&path).unwrap();
            }
        }
        true
    };
    let cases = repaired(remove_manifests, |held, found| assert_eq!(held, found));
    assert!(cases > 8, "{cases}");
}

/// A damaged block of an input costs its own keys: what is left of the table brings back nothing.
#[test]
fn a_damaged_input_of_a_compaction_in_stages_brings_nothing_back() {
    let damage = |fs: &SimFileSystem, table: &Path| match fs.file_len(table) {
        Ok(len) => fs.corrupt(table, len / 2, 1).is_ok(),
        Err(_) => false,
    };
    let mut harmed = 0;
    repaired(damage, |held, found| {
        let known: BTreeSet<_> = held.iter().map(|(key, _)| key).collect();
        assert!(found.iter().all(|(key, _)| known.contains(key)));
        harmed += usize::from(held != found);
    });
    assert!(harmed > 0, "no case lost anything");
}
