//! What a power cut leaves of an undamaged store, and logs that have lost their header.

use std::path::{Path, PathBuf};

use tamis::repair;
use tamis::vfs::{FileSystem, SimFileSystem};

use super::{
    DIR, Map, check_usable, contents, key, known_losses, lose_manifests, of_kind, open, options, repair_options,
    repaired, value,
};
use crate::support::Scene;

/// A store that is flushing when the power goes at `call`: some writes were synced, the last ones
/// not. Returns what the cut leaves, or `None` if the flush ended before.
fn cut_flush(call: u64, unsynced: usize) -> Option<(SimFileSystem, Map)> {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    let mut map = Map::new();
    let put = |map: &mut Map, i: usize| {
        db.put(key(i), value(i)).unwrap();
        map.insert(key(i), value(i));
    };
    (0..40).for_each(|i| put(&mut map, i));
    db.flush().unwrap();
    (20..30).for_each(|i| put(&mut map, i));
    if unsynced < 40 {
        db.sync().unwrap();
    }
    (30..30 + unsynced).for_each(|i| put(&mut map, i));
    fs.crash_at(Some(call));
    let _ = db.flush();
    fs.crash_point().map(|point| (point, map))
}

#[test]
fn store_is_sound_after_a_power_cut_during_a_flush() {
    for unsynced in [20, 60] {
        for call in 1.. {
            let Some((point, _)) = cut_flush(call, unsynced) else { break };
            for seed in 0..6 {
                let _scene = Scene(format!("{unsynced} unsynced, the power went at call {call}, seed {seed}"));
                let fs = if seed == 0 { point.kill() } else { point.crash(seed) };
                let truth = contents(&open(&fs.kill()));
                let report = repaired(&fs);
                assert!(report.is_sound() && !report.has_losses(), "{report}");
                assert_eq!(contents(&open(&fs)), truth);
            }
        }
    }
}

#[test]
fn killed_store_without_current_is_repaired_by_its_manifest() {
    for call in 1.. {
        let Some((point, map)) = cut_flush(call, 20) else { break };
        let _scene = Scene(format!("killed at call {call}"));
        let fs = point.kill();
        fs.remove(Path::new("/db/CURRENT")).unwrap();
        let report = repaired(&fs);
        assert!(report.basis == tamis::RepairBasis::Manifest && !report.has_losses(), "{report}");
        assert_eq!(contents(&open(&fs)), map);
        // A table that had just been started is no loss either, even if the manifest is gone as
        // well.
        let begun = point.kill();
        lose_manifests(&begun);
        begun.write("/db/000099.sst", *b"").unwrap();
        let report = repaired(&begun);
        let of_begun = |loss: &&tamis::Loss| loss.file.as_ref().is_some_and(|file| file.ends_with("000099.sst"));
        assert!(!report.losses.iter().any(|loss| of_begun(&loss)), "{report}");
    }
}

#[test]
fn entries_of_an_unfinished_flush_are_in_the_log() {
    let mut torn = 0;
    for call in 1.. {
        let Some((point, map)) = cut_flush(call, 20) else { break };
        let fs = point.kill();
        let tables = of_kind(&fs, "sst");
        // The log of the flush is removed at its end.
        let [_, flushed] = tables.as_slice() else { continue };
        let log_holds_it = of_kind(&fs, "wal").iter().any(|log| fs.file_len(log).unwrap() > 1000);
        if !log_holds_it || !is_whole(&fs, flushed) {
            continue;
        }
        torn += 1;
        let _scene = Scene(format!("killed at call {call}"));
        fs.corrupt(flushed, 300, 1).unwrap();
        lose_manifests(&fs);
        let report = repaired(&fs);
        assert_eq!(contents(&open(&fs)), map, "{report}");
        assert!(known_losses(&report).is_empty(), "{report}");
        check_usable(&fs);
    }
    assert!(torn > 0);
}

fn is_whole(fs: &SimFileSystem, table: &Path) -> bool {
    let inspector = tamis::inspect::Inspector::on(std::sync::Arc::new(fs.clone()));
    inspector.table(table).is_ok()
}

/// A store whose recovery flushed the middle of a log of `count` synced entries, and that was then
/// killed with `behind` entries in the next log. A memtable takes about 50.
fn killed_behind_recovery(count: usize, behind: usize) -> (SimFileSystem, Map) {
    let (fs, mut map) = (SimFileSystem::new(), Map::new());
    let mut put = |db: &tamis::Db, i: usize| {
        let (key, value) = (key(i * 7 % 40), value(i));
        db.put(&key, &value).unwrap();
        map.insert(key, value);
    };
    let db = options(&fs).0.memtable_size(1 << 16).open(DIR).unwrap();
    for i in 0..count {
        put(&db, i);
        if i % 10 == 5 {
            db.sync().unwrap();
        }
    }
    db.sync().unwrap();
    let fs = fs.kill();
    drop(db);
    let db = open(&fs);
    (count..count + behind).for_each(|i| put(&db, i));
    (fs.kill(), map)
}

#[test]
fn entries_of_a_log_without_header_get_no_numbers_of_later_ones() {
    let (mut hurt, mut saved) = (0, 0);
    for (count, behind) in (40..160).step_by(15).flat_map(|count| [0, 5, 20].map(|behind| (count, behind))) {
        let (fs, map) = killed_behind_recovery(count, behind);
        assert_eq!(contents(&open(&fs.kill())), map);
        let logs: Vec<PathBuf> = of_kind(&fs, "wal");
        // Nothing says that the last log was ever durable, unless it is the only one.
        for log in &logs[..(logs.len() - 1).max(1)] {
            for lose in [false, true] {
                let _scene = Scene(format!("{count} and {behind}, {log:?} of {logs:?}, without manifest: {lose}"));
                let fs = fs.kill();
                fs.corrupt(log, 30, 1).unwrap();
                if lose {
                    lose_manifests(&fs);
                }
                let report = repair(DIR, repair_options(&fs)).unwrap();
                let found = contents(&open(&fs));
                hurt += 1;
                saved += usize::from(found == map);
                for key in map.keys().chain(found.keys()).filter(|key| found.get(*key) != map.get(*key)) {
                    let shown = key.escape_ascii().to_string();
                    let is_known = known_losses(&report).iter().any(|loss| loss.covers("default", key));
                    assert!(is_known, "{shown}: {:?}\n{report}", found.get(key));
                }
            }
        }
    }
    assert!(hurt > 20 && saved * 2 > hurt, "{saved} of {hurt}");
}
