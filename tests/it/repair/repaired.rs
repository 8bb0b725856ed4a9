//! What holds of every repair.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis::inspect::{FileKind, FindingKind, Inspector};
use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{LossKind, RepairOptions, RepairReport, repair};

pub(crate) const DIR: &str = "/db";

pub(crate) fn repair_options(fs: &SimFileSystem) -> RepairOptions {
    RepairOptions::new().file_system(Arc::new(fs.clone()))
}

/// All files but LOCK, with their contents.
pub(crate) fn files(fs: &SimFileSystem) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs.paths().into_iter().filter(|path| !path.ends_with("LOCK"));
    paths.map(|path| (path.clone(), fs.read(&path).unwrap())).collect()
}

/// Repairs the store and checks what holds of every repair: no content is gone, no number is
/// reused, a second repair finds nothing to do, and the store can be opened, written to, verified
/// and opened again.
pub(crate) fn repaired(fs: &SimFileSystem) -> RepairReport {
    let before = files(fs);
    let dry = repair(DIR, repair_options(fs).dry_run(true)).unwrap();
    assert_eq!(files(fs), before, "a dry run changes nothing");
    let report = repair(DIR, repair_options(fs)).unwrap();
    assert_eq!(
        (&dry.losses, &dry.moved),
        (&report.losses, &report.moved),
        "a dry run reports the losses and moves of a repair"
    );
    let after = files(fs);
    let is_unfinished = |path: &Path| {
        let is_list = path.display().to_string().starts_with("/db/lost/moves-");
        is_list || path.starts_with("/db/lost/new") || path.ends_with("CURRENT.tmp")
    };
    for (path, bytes) in before.iter().filter(|(path, _)| !is_unfinished(path)) {
        let is_there = after.values().any(|kept| kept == bytes);
        assert!(is_there || path.ends_with("CURRENT"), "{path:?} is gone");
    }
    let numbers = |paths: &BTreeMap<PathBuf, Vec<u8>>| -> Vec<u64> {
        let name = |path: &PathBuf| path.file_name()?.to_str().and_then(FileKind::parse)?.number();
        paths.keys().filter_map(name).collect()
    };
    let most = numbers(&before).into_iter().filter(|number| *number <= 1 << 55).max().unwrap_or(0);
    for number in numbers(&after) {
        assert!(number > most || numbers(&before).contains(&number));
    }
    let again = repair(DIR, repair_options(fs)).unwrap();
    assert!(again.is_sound() && !again.has_losses(), "{again}");
    assert_eq!(files(fs), after, "a second repair changes nothing");
    let mut found = Vec::new();
    let verified = Inspector::on(Arc::new(fs.clone())).verify(Path::new(DIR), &mut |fault| {
        // A repair whose last call has failed may leave a torn tail of the manifest.
        let is_left = fault.kind == FindingKind::Leftover && !report.is_sound();
        if fault.kind.is_damage() || is_left {
            found.push(fault.to_string());
        }
    });
    verified.unwrap();
    assert!(found.is_empty(), "{found:?}\n{report}");
    report
}

pub(crate) fn of_kind(fs: &SimFileSystem, extension: &str) -> Vec<PathBuf> {
    let is_kind = |path: &PathBuf| {
        path.parent() == Some(Path::new(DIR)) && path.extension().is_some_and(|found| found == extension)
    };
    fs.paths().into_iter().filter(is_kind).collect()
}

pub(crate) fn manifests(fs: &SimFileSystem) -> Vec<PathBuf> {
    let is_manifest =
        |path: &PathBuf| path.parent() == Some(Path::new(DIR)) && path.to_string_lossy().contains("MANIFEST");
    fs.paths().into_iter().filter(is_manifest).collect()
}

pub(crate) fn lose_manifests(fs: &SimFileSystem) {
    manifests(fs).iter().for_each(|path| fs.remove(path).unwrap());
}

/// The losses except unknowable ones, which only say that something may be hidden.
pub(crate) fn known_losses(report: &RepairReport) -> Vec<&tamis::Loss> {
    report.losses.iter().filter(|loss| loss.kind != LossKind::Unknowable).collect()
}
