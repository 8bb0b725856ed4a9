//! A flush that was cut off between the tables of two keyspaces: the one table is no proof that the
//! entries of the other keyspace are in tables.

use std::path::PathBuf;

use tamis::vfs::{FileSystem, SimFileSystem};

use super::{Map, check_usable, contents_of, key, known_losses, lose_manifests, of_kind, open, repaired, value};
use crate::support::Scene;

/// Writes of each keyspace in the memtable that is flushed.
const COUNT: usize = 30;

/// A store that is killed at `call` of a flush, with the contents of its keyspaces. Their writes
/// take turns; the last one belongs to the keyspace whose table is written first.
fn cut_at(call: u64) -> Option<(SimFileSystem, [Map; 2])> {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    let keyspaces = [db.keyspace("default").unwrap(), db.keyspace("words").unwrap()];
    let mut maps = [Map::new(), Map::new()];
    let mut put = |at: usize, i: usize| {
        keyspaces[at].put(key(i), value(i)).unwrap();
        maps[at].insert(key(i), value(i));
    };
    (0..10).for_each(|i| (0..2).for_each(|at| put(at, i)));
    db.flush().unwrap();
    (10..10 + COUNT).for_each(|i| [1, 0].into_iter().for_each(|at| put(at, i)));
    db.sync().unwrap();
    fs.crash_at(Some(call));
    let _ = db.flush();
    fs.crash_point().map(|point| (point.kill(), maps))
}

/// The log that the flush was to make needless, if the flush has written one table, but not both.
fn log_of_cut_flush(fs: &SimFileSystem) -> Option<PathBuf> {
    let logs = of_kind(fs, "wal");
    let [log, _] = logs.as_slice() else { return None };
    (of_kind(fs, "sst").len() == 3).then(|| log.clone())
}

/// Every write that is gone is in a log that the report names.
fn check(fs: &SimFileSystem, maps: &[Map; 2], log: &PathBuf) -> bool {
    lose_manifests(fs);
    let report = repaired(fs);
    let db = open(fs);
    let found = ["default", "words"].map(|name| contents_of(&db, name));
    drop(db);
    let is_told = known_losses(&report).iter().any(|loss| loss.file.as_ref() == Some(log));
    assert!(is_told || found == *maps, "lost in silence:\n{report}");
    check_usable(fs);
    found != *maps
}

#[test]
fn entries_of_a_keyspace_whose_table_is_missing_are_replayed_or_reported() {
    let (mut cuts, mut lost) = (0, 0);
    for call in 1.. {
        let Some((fs, maps)) = cut_at(call) else { break };
        let Some(log) = log_of_cut_flush(&fs) else { continue };
        cuts += 1;
        let _scene = Scene(format!("killed at call {call}"));
        assert!(!check(&fs.kill(), &maps, &log), "nothing is lost without damage");
        let bytes = fs.read(&log).unwrap();
        let len = bytes.len() as u64;
        for part in 1..8 {
            let at = len * part / 8;
            let cut = fs.kill();
            cut.truncate(&log, at).unwrap();
            lost += u32::from(check(&cut, &maps, &log));
            let zeroed = fs.kill();
            let start = usize::try_from(at).unwrap();
            zeroed.write(&log, [&bytes[..start], &vec![0; bytes.len() - start][..]].concat()).unwrap();
            check(&zeroed, &maps, &log);
            let headless = fs.kill();
            headless.corrupt(&log, 9, 1).unwrap();
            headless.corrupt(&log, at, 1).unwrap();
            lost += u32::from(check(&headless, &maps, &log));
        }
    }
    assert!(cuts > 0 && lost > 0, "{cuts} {lost}");
}

/// A flush writes the entries first and then the ranges. A power cut may take the names of the one
/// table and not of the other.
#[test]
fn table_of_ranges_is_no_proof_that_the_entries_before_them_are_in_tables() {
    let (mut cuts, mut lost) = (0, 0);
    for call in 1.. {
        let fs = SimFileSystem::new();
        let db = open(&fs);
        // The first range delete needs a log, and thus a memtable, of its own.
        db.delete_range(key(90)..key(91)).unwrap();
        (0..10).for_each(|i| _ = db.put(key(i), value(i)).unwrap());
        db.flush().unwrap();
        let before = of_kind(&fs, "sst");
        (10..10 + COUNT).for_each(|i| _ = db.put(key(i), value(i)).unwrap());
        db.delete_range(key(2)..key(4)).unwrap();
        db.sync().unwrap();
        let map = contents_of(&db, "default");
        let log = &of_kind(&fs, "wal")[0];
        fs.crash_at(Some(call));
        let _ = db.flush();
        let Some(point) = fs.crash_point() else { break };
        let fs = point.kill();
        let mut new = of_kind(&fs, "sst");
        new.retain(|path| !before.contains(path));
        let [entries, _] = &new[..] else { continue };
        if !of_kind(&fs, "wal").contains(log) {
            break;
        }
        cuts += 1;
        let _scene = Scene(format!("killed at call {call}"));
        fs.remove(entries).unwrap();
        lose_manifests(&fs);
        let len = fs.read(log).unwrap().len() as u64;
        for part in 1..=8 {
            let cut = fs.kill();
            cut.truncate(log, len * part / 8).unwrap();
            let report = repaired(&cut);
            let found = contents_of(&open(&cut), "default");
            let is_told = known_losses(&report).iter().any(|loss| loss.file.as_ref() == Some(log));
            assert!(is_told || found == map, "lost in silence, {part}:\n{report}");
            lost += u32::from(found != map);
        }
    }
    assert!(cuts > 0 && lost > 0, "{cuts} {lost}");
}
