//! A repair that fails, or is interrupted, at any call.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tamis::vfs::{Fault, FaultMode, SimFileSystem};
use tamis::{Executor, repair};

use super::{
    DIR, Map, compacted, contents, files, key, lose_manifests, of_kind, open, options, repair_options, repaired,
    settled, value,
};
use crate::support::Scene;

/// Damaged stores. Three have a damaged table and log: with a manifest, without one, and with a
/// damaged CURRENT. In the fourth only CURRENT is damaged.
fn damaged() -> Vec<SimFileSystem> {
    let fs = SimFileSystem::new();
    let (options_of, executor) = options(&fs);
    let db = options_of.open(DIR).unwrap();
    for i in 0..250 {
        db.put(key(i), value(i)).unwrap();
        if i == 120 {
            db.compact_range(..).unwrap();
        }
    }
    while executor.step() {}
    db.sync().unwrap();
    for i in 250..260 {
        db.put(key(i), value(i)).unwrap();
    }
    db.sync().unwrap();
    let fs = settled(&fs);
    let tables = of_kind(&fs, "sst");
    fs.corrupt(&tables[0], 300, 1).unwrap();
    let log = of_kind(&fs, "wal").pop().unwrap();
    fs.corrupt(&log, 90, 1).unwrap();
    let without = fs.kill();
    lose_manifests(&without);
    let no_current = fs.kill();
    no_current.write("/db/CURRENT", *b"garbage").unwrap();
    // Only CURRENT is damaged: a repair takes a single number.
    let (current_alone, _) = compacted(300);
    let current_alone = settled(&current_alone);
    current_alone.write("/db/CURRENT", *b"garbage").unwrap();
    vec![fs, without, no_current, current_alone]
}

/// The contents after an uninterrupted repair.
fn expected(fs: &SimFileSystem) -> Map {
    let fs = fs.kill();
    assert!(!repaired(&fs).is_sound());
    contents(&open(&fs))
}

#[test]
fn repair_that_is_interrupted_anywhere_is_completed_by_the_next_one() {
    for fs in damaged() {
        let expected = expected(&fs);
        let before = files(&fs);
        for call in 1.. {
            let _scene = Scene(format!("the power went at call {call}"));
            let cut = fs.kill();
            cut.crash_at(Some(call));
            let result = repair(DIR, repair_options(&cut));
            let Some(point) = cut.crash_point() else {
                result.unwrap();
                break;
            };
            assert!(result.is_err());
            for next in [if call % 4 == 0 { point.kill() } else { point.crash(call) }, point.crash(call + 1000)] {
                let names: Vec<_> = next.paths();
                let report = repaired(&next);
                check_kept(&before, &next);
                assert!(contents(&open(&next)) == expected, "{names:?}\n{report}");
                // The losses were reported, by this repair or the one before.
                let told = |path: &std::path::PathBuf| path.to_string_lossy().contains("lost/repair-");
                assert!(files(&next).iter().any(|(path, text)| told(path) && text.starts_with(b"rebuilt from")));
            }
        }
    }
}

/// No content of `before` is gone, except CURRENT.
fn check_kept(before: &BTreeMap<PathBuf, Vec<u8>>, fs: &SimFileSystem) {
    let after = files(fs);
    for (path, bytes) in before.iter().filter(|(path, _)| !path.ends_with("CURRENT")) {
        assert!(after.values().any(|kept| kept == bytes), "{path:?} is gone");
    }
}

#[test]
fn opening_after_an_interrupted_repair_removes_no_file_that_the_repair_would_keep() {
    let mut opened = 0;
    for fs in damaged() {
        let (expected, mut before) = (expected(&fs), files(&fs));
        let moved = repair(DIR, repair_options(&fs).dry_run(true)).unwrap().moved;
        before.retain(|path, _| moved.iter().any(|moved| path.ends_with(&moved.name)));
        for call in 1.. {
            let _scene = Scene(format!("the power went at call {call}"));
            let cut = fs.kill();
            cut.crash_at(Some(call));
            let _ = repair(DIR, repair_options(&cut));
            let Some(point) = cut.crash_point() else { break };
            for next in [point.kill(), point.crash(call)] {
                let Ok(db) = options(&next).0.open(DIR) else { continue };
                opened += 1;
                assert_eq!(contents(&db), expected);
                drop(db);
                check_kept(&before, &next);
                let lost = files(&next).into_keys().filter(|path| path.starts_with("/db/lost"));
                assert!(!lost.map(|path| path.display().to_string()).any(|path| path.contains("moves")));
            }
        }
    }
    assert!(opened > 8, "{opened}");
}

#[test]
fn repair_that_fails_anywhere_is_completed_by_the_next_one() {
    for fs in damaged() {
        let expected = expected(&fs);
        for mode in [FaultMode::Io, FaultMode::NoSpace, FaultMode::ShortWrite, FaultMode::ReadError] {
            // Reads are many: test only some of them.
            let step = if mode == FaultMode::ReadError { 17 } else { 1 };
            for at in (1..).step_by(step) {
                let _scene = Scene(format!("call {at} failed: {mode:?}"));
                let struck = fs.kill();
                struck.set_fault(Some(Fault { at, mode, sticky: at % 2 == 0 }));
                let result = repair(DIR, repair_options(&struck));
                struck.set_fault(None);
                if !struck.fault_hit() {
                    break;
                }
                // Some failures change nothing: of a removal, or of a write-back hint.
                let _ = result;
                let next = if at % 3 == 0 { struck.kill() } else { struck.crash(at) };
                let report = repaired(&next);
                assert!(contents(&open(&next)) == expected, "{report}");
            }
        }
    }
}
