//! Targets for a whole store directory.

use std::path::Path;
use std::sync::Arc;

use super::files;
use super::logs::{file_system, seal_current, seal_log};
use crate::error::{Result, expect_typed};
use crate::exec::SteppedExecutor;
use crate::format::filename::FileKind;
use crate::format::header::Magic;
use crate::offline::inspect::Inspector;
use crate::sorted::{table, values};
use crate::vfs::SimFileSystem;
use crate::{Db, LossKind, Options, RepairOptions};

const DIR: &str = "/db";
/// Maximum number of files in a directory; the others are ignored.
const MAX_FILES: usize = 24;

/// A directory with files of a store: `CURRENT` (kind 0), manifests (1), logs (2), tables (3),
/// value files (4).
fn forged(sealed: bool, data: &[u8]) -> SimFileSystem {
    let fs = file_system();
    for (kind, number, file) in files(data).into_iter().take(MAX_FILES) {
        let (number, mut file) = (u64::from(number), file.to_vec());
        let kind = match kind {
            0 => FileKind::Current,
            1 => FileKind::Manifest(number),
            2 => FileKind::Wal(number),
            3 => FileKind::Table(number),
            4 => FileKind::Values(number),
            _ => FileKind::CurrentTemp,
        };
        if sealed {
            match kind {
                FileKind::Current => seal_current(&mut file),
                FileKind::Manifest(number) => seal_log(&mut file, Magic::Manifest, number),
                FileKind::Wal(number) => seal_log(&mut file, Magic::Wal, number),
                FileKind::Table(number) => table::fuzz::seal_table(&mut file, number),
                FileKind::Values(number) => values::seal(&mut file, number),
                _ => {}
            }
        }
        fs.write(kind.path(Path::new(DIR)), file).expect("a file");
    }
    fs
}

/// Repairs a store. The result verifies, opens and can be read; a second repair has nothing to do.
pub(super) fn repair(sealed: bool, data: &[u8]) -> bool {
    let fs = forged(sealed, data);
    let run = |dry_run| {
        let options = RepairOptions::new().file_system(Arc::new(fs.clone())).dry_run(dry_run);
        crate::repair(DIR, options)
    };
    let planned = expect_typed(run(true));
    let Some(report) = expect_typed(run(false)) else { return false };
    let planned = planned.expect("a dry run succeeds if the repair does");
    assert_eq!((&planned.losses, &planned.moved), (&report.losses, &report.moved));
    let files = || -> Vec<_> { fs.paths().into_iter().map(|path| (fs.read(&path).ok(), path)).collect() };
    let after = files();
    let again = run(false).expect("it was repaired");
    assert!(again.is_sound() && !again.has_losses(), "{report}\nagain: {again}");
    assert!(files() == after, "a second repair changes nothing");
    let verified = Inspector::on(Arc::new(fs.clone())).verify(Path::new(DIR), &mut |finding| {
        assert!(!finding.kind.is_damage(), "{report}\nverify: {finding}");
    });
    verified.expect("it was repaired");
    let db = options(&fs).open(DIR).expect("it was repaired");
    entries(&db, false).expect("it was repaired");
    db.close().expect("nothing fails");
    report.losses.iter().all(|loss| loss.kind == LossKind::Unknowable)
}

/// Verifies a store, reads it and writes to it.
pub(super) fn store(sealed: bool, data: &[u8]) -> bool {
    let fs = forged(sealed, data);
    let mut faults = 0;
    let verified = Inspector::on(Arc::new(fs.clone())).verify(Path::new(DIR), &mut |_| faults += 1);
    let is_sound = verified.is_ok_and(|verified| verified.damaged == 0) && faults == 0;
    let before = expect_typed(read_only(&fs, is_sound));
    let after = expect_typed(use_store(&fs, is_sound));
    if !is_sound {
        return false;
    }
    let (before, mut after) = (before.expect("it verified"), after.expect("it verified"));
    let new = (NEW.to_owned(), b"value".to_vec());
    let at = after.iter().position(|entry| *entry == new);
    after.remove(at.expect("the new entry exists"));
    assert_eq!(before, after, "the old entries stay");
    true
}

/// The key that is put, after its keyspace's name.
const NEW: &str = "default/new key of the fuzz target";

fn options(fs: &SimFileSystem) -> Options {
    let options = Options::new().file_system(Arc::new(fs.clone())).executor(Arc::new(SteppedExecutor::new()));
    options.create_if_missing(false).memtable_size(1 << 16).cache_size(1 << 16).hash_seed(7)
}

/// All entries of all keyspaces, each key after its keyspace's name. Even with valid checksums, a
/// damaged store may show different entries to a scan, a backward scan and a look-up: `verify`
/// reports that.
fn entries(db: &Db, is_sound: bool) -> Result<Vec<(String, Vec<u8>)>> {
    let mut entries = Vec::new();
    for name in db.keyspace_names()? {
        let Some(keyspace) = db.existing_keyspace(&name)? else { continue };
        let found: Vec<_> = keyspace.iter().collect::<Result<_>>()?;
        let mut backward: Vec<_> = keyspace.iter().rev().collect::<Result<_>>()?;
        backward.reverse();
        assert!(!is_sound || found == backward, "{name}");
        let keys: Vec<&[u8]> = found.iter().map(|(key, _)| &key[..]).collect();
        let values = keyspace.multi_get(&keys)?;
        for ((key, value), again) in found.iter().zip(values) {
            assert!(!is_sound || again.as_ref() == Some(value), "{name}");
            entries.push((format!("{name}/{}", key.escape_ascii()), value.to_vec()));
        }
    }
    Ok(entries)
}

fn read_only(fs: &SimFileSystem, is_sound: bool) -> Result<Vec<(String, Vec<u8>)>> {
    let db = options(fs).open_read_only(DIR)?;
    let entries = entries(&db, is_sound)?;
    db.close()?;
    Ok(entries)
}

/// Opens the store, writes, compacts, and opens it again.
fn use_store(fs: &SimFileSystem, is_sound: bool) -> Result<Vec<(String, Vec<u8>)>> {
    let db = options(fs).open(DIR)?;
    let first = entries(&db, is_sound);
    db.put(NEW.trim_start_matches("default/"), "value")?;
    db.sync()?;
    db.flush()?;
    let compacted = db.compact_range(..);
    let _ = db.stats();
    let closed = db.close();
    first?;
    compacted?;
    closed?;
    let db = options(fs).open(DIR)?;
    let entries = entries(&db, is_sound)?;
    db.close()?;
    Ok(entries)
}
