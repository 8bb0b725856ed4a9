//! Files that are damaged, or written for something else.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis::inspect::Inspector;
use tamis::vfs::{Fault, FaultMode, FileSystem, SimFileSystem};
use tamis::{
    Db, Environment, EnvironmentOptions, Error, IngestMode, IngestOptions, KeyspaceOptions, LossKind, PrefixExtractor,
    RepairOptions, SstFormat, SstWriter, repair,
};

use super::{check_sound, file_system, get, ingest, open, write, write_ranges};
use crate::support::stepped_options;

/// Expects that nothing comes of an ingest of these files.
#[track_caller]
fn refused(fs: &SimFileSystem, db: &Db, files: &[&str]) -> Error {
    let (paths, last) = (fs.paths(), db.last_seqno());
    let error = db.ingest(files.iter().map(|file| Path::new("/in").join(file)), IngestOptions::new()).unwrap_err();
    assert_eq!((fs.paths(), db.last_seqno()), (paths, last), "{error}");
    error
}

#[track_caller]
fn check_unfit(fs: &SimFileSystem, db: &Db, files: &[&str], named: &str, words: &str) {
    match refused(fs, db, files) {
        Error::Unfit { file, rule } => {
            assert!(file == Path::new("/in").join(named) && rule.contains(words), "{}: {rule}", file.display());
        }
        error => panic!("{error}"),
    }
}

#[test]
fn files_that_do_not_fit_are_refused_by_name() {
    let fs = file_system();
    let db = open(&fs);
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    let format = db.sst_format().unwrap();
    write(&fs, &format, "one", [10, 20], Some("x"));
    write(&fs, &format, "two", [20, 30], Some("x"));
    check_unfit(&fs, &db, &["two", "one"], "two", "/in/one");
    check_unfit(&fs, &db, &["one", "one"], "one", "overlap");

    let other = stepped_options(&fs).0.hash_seed(8).open("/other").unwrap();
    write(&fs, &other.sst_format().unwrap(), "seed", [1], Some("x"));
    check_unfit(&fs, &db, &["one", "seed"], "seed", "seed");

    // Of a copy of the store, by their seed, whose default keyspace has other options.
    let written_with = |name: &str, options: KeyspaceOptions| {
        let copy = stepped_options(&fs).0.default_keyspace(options).open(Path::new("/").join(name)).unwrap();
        let path = Path::new("/in").join(name);
        let mut writer = SstWriter::create_in(Arc::new(fs.clone()), path, &copy.sst_format().unwrap()).unwrap();
        match name {
            "merge" => writer.merge("a", 1u64.to_le_bytes()).unwrap(),
            _ => writer.put("a", "x").unwrap(),
        }
        writer.finish().unwrap();
    };
    written_with("prefix", KeyspaceOptions::new().prefix(PrefixExtractor::Fixed(2)));
    check_unfit(&fs, &db, &["prefix"], "prefix", "prefix extractor");
    written_with("merge", KeyspaceOptions::new().merge_operator(tamis::operator::Add::LITTLE));
    check_unfit(&fs, &db, &["merge"], "merge", "merge operator");

    let others = db.keyspace("others").unwrap();
    write(&fs, &others.sst_format().unwrap(), "others", [1], Some("x"));
    write_ranges(&fs, &others.sst_format().unwrap(), "others ranges", Some(1..2));
    check_unfit(&fs, &db, &["others"], "others", "keyspace \"others\"");
    check_unfit(&fs, &db, &["one", "others ranges"], "others ranges", "keyspace \"others\"");
    drop(others);
    db.drop_keyspace("others").unwrap();
    let others = db.keyspace("others").unwrap();
    match others.ingest(["/in/others"], IngestOptions::new()).unwrap_err() {
        Error::Unfit { rule, .. } => assert!(rule.contains("dropped"), "{rule}"),
        error => panic!("{error}"),
    }

    let table =
        fs.paths().into_iter().find(|path| path.starts_with("/db") && path.extension().is_some_and(|e| e == "sst"));
    fs.write("/in/table", fs.read(table.unwrap()).unwrap()).unwrap();
    check_unfit(&fs, &db, &["table"], "table", "SstWriter");
    fs.write("/in/text", "a line of text\n".repeat(100)).unwrap();
    assert!(matches!(refused(&fs, &db, &["text"]), Error::Corruption { file, .. } if file == Path::new("/in/text")));
    assert!(matches!(refused(&fs, &db, &["none"]), Error::Io { path, .. } if path == Path::new("/in/none")));
    assert!(matches!(refused(&fs, &db, &[]), Error::InvalidArgument(_)));
    assert!(matches!(SstFormat::of_store_in(Arc::new(fs.clone()), "/db", "no"), Err(Error::InvalidArgument(_))));
    let of_store = SstFormat::of_store_in(Arc::new(fs.clone()), "/db", "others").unwrap();
    assert_eq!(
        (of_store.clone(), SstFormat::decode(&of_store.encode()).unwrap()),
        (others.sst_format().unwrap(), of_store)
    );
    db.ingest(["/in/one"], IngestOptions::new()).unwrap();
    let db = stepped_options(&fs).0.open_read_only("/db").unwrap();
    assert!(matches!(db.ingest(["/in/one"], IngestOptions::new()), Err(Error::ReadOnly(_))));
}

#[test]
fn a_file_with_any_damage_is_refused() {
    let fs = file_system();
    for paranoid in [false, true] {
        let db = stepped_options(&fs).0.paranoid(paranoid).open("/db").unwrap();
        check_damage(&fs, &db, if paranoid { "one" } else { "two" });
    }
}

fn check_damage(fs: &SimFileSystem, db: &Db, name: &str) {
    let path = write(fs, &db.sst_format().unwrap(), name, 0..200, Some("some value"));
    check_damaged(fs, db, name, &path);
    assert_eq!(get(db, 199).as_deref(), Some("some value"));
    let (ranges, keys) = (format!("{name} ranges"), (0..400).step_by(2));
    let path = write_ranges(fs, &db.sst_format().unwrap(), &ranges, keys.map(|key| key..key + 1));
    check_damaged(fs, db, &ranges, &path);
    assert_eq!(db.iter().count(), 100);
}

fn check_damaged(fs: &SimFileSystem, db: &Db, name: &str, path: &Path) {
    let good = fs.read(path).unwrap();
    for offset in (0..good.len()).step_by(7).chain(0..64).chain(good.len() - 600..good.len()) {
        fs.corrupt(path, offset as u64, 1 << (offset % 8)).unwrap();
        let error = refused(fs, db, &[name]);
        assert!(matches!(&error, Error::Corruption { file, .. } if *file == path), "offset {offset}: {error}");
        fs.corrupt(path, offset as u64, 1 << (offset % 8)).unwrap();
    }
    for len in (0..good.len()).step_by(101) {
        fs.write("/in/cut", &good[..len]).unwrap();
        assert!(refused(fs, db, &["cut"]).is_corruption(), "{len} bytes");
    }
    fs.write("/in/long", [&good[..], b"more"].concat()).unwrap();
    assert!(refused(fs, db, &["long"]).is_corruption());
    db.ingest([path], IngestOptions::new()).unwrap();
}

#[test]
fn a_read_error_or_a_full_disk_leaves_nothing_behind() {
    let fs = file_system();
    let db = open(&fs);
    write(&fs, &db.sst_format().unwrap(), "file", 0..2000, Some("some value"));
    for at in 1.. {
        fs.set_fault(Some(Fault { at, mode: FaultMode::ReadError, sticky: true }));
        let paths = fs.paths();
        let result = db.ingest(["/in/file"], IngestOptions::new());
        fs.set_fault(None);
        if result.is_ok() {
            assert!(at > 5);
            break;
        }
        assert_eq!(fs.paths(), paths);
    }
    let used: u64 = fs.paths().iter().map(|path| fs.file_len(path).unwrap()).sum();
    fs.set_capacity(Some(used + (1 << 20)));
    let paths = fs.paths();
    let error = db.ingest(["/in/file"], IngestOptions::new().mode(IngestMode::Copy)).unwrap_err();
    assert!(error.is_no_space() && fs.paths() == paths, "{error}");
    fs.set_capacity(None);
    db.ingest(["/in/file"], IngestOptions::new().mode(IngestMode::Copy)).unwrap();
}

/// What the log and the manifest say of the tables takes more space than is left.
#[test]
fn an_ingest_finds_no_space_for_its_edit_before_it_is_logged() {
    let fs = file_system();
    let (format, long) = (open(&fs).sst_format().unwrap(), [b'k'; 8 << 10]);
    let files: Vec<PathBuf> = (0..60).map(|i| Path::new("/in").join(i.to_string())).collect();
    for (i, path) in (0u8..).zip(&files) {
        let mut writer = SstWriter::create_in(Arc::new(fs.clone()), path, &format).unwrap();
        writer.put([&[i], &long[..]].concat(), "value").unwrap();
        writer.put([&[i], &long[..], b"z"].concat(), "value").unwrap();
        writer.finish().unwrap();
    }
    let empty = fs.kill();
    let mut refused = 0;
    for space in (0..).map(|i| (1 << 20) + i * (100 << 10)) {
        let fs = empty.kill();
        let db = open(&fs);
        let used: u64 = fs.paths().iter().map(|path| fs.file_len(path).unwrap()).sum();
        fs.set_capacity(Some(used + space));
        let result = db.ingest(&files, IngestOptions::new());
        fs.set_capacity(None);
        db.put("after", "a failure").unwrap_or_else(|error| panic!("{space} bytes: {error}, after {result:?}"));
        match result {
            Ok(_) => break,
            Err(error) => assert!(error.is_no_space(), "{error}"),
        }
        refused += 1;
    }
    assert!(refused > 5, "{refused}");
}

#[test]
fn a_refused_file_is_not_held_open() {
    let fs = file_system();
    let environment = Environment::new(EnvironmentOptions::new()).unwrap();
    let db = stepped_options(&fs).0.environment(&environment).open("/db").unwrap();
    write(&fs, &db.sst_format().unwrap(), "file", 0..2000, Some("some value"));
    fs.corrupt(Path::new("/in/file"), 3000, 1).unwrap();
    let open = environment.stats().open_files;
    for mode in [IngestMode::Copy, IngestMode::Move] {
        db.ingest(["/in/file"], IngestOptions::new().mode(mode)).unwrap_err();
        assert_eq!(environment.stats().open_files, open);
    }
}

#[test]
fn damage_and_loss_of_an_ingested_table_are_reported() {
    let fs = file_system();
    let db = open(&fs);
    ingest(&fs, db.default_keyspace(), "file", 0..1000);
    db.close().unwrap();
    let table =
        fs.paths().into_iter().find(|path| path.starts_with("/db") && path.extension().is_some_and(|e| e == "sst"));
    let table = table.unwrap();
    // The name in /in is the same file.
    fs.corrupt(&table, 3000, 1).unwrap();
    let db = open(&fs);
    let error = db.iter().find_map(|entry| entry.err()).unwrap();
    assert!(matches!(&error, Error::Corruption { file, .. } if *file == table), "{error}");
    let rescued = db.default_keyspace().salvage(..).unwrap().filter(|entry| entry.is_ok()).count();
    assert!((500..1000).contains(&rescued));
    drop(db);
    let report = repair("/db", RepairOptions::new().file_system(Arc::new(fs.clone()))).unwrap();
    assert_eq!((report.tables_rewritten, report.losses.len()), (1, 1), "{report:?}");
    let db = open(&fs);
    assert_eq!(db.iter().filter(|entry| entry.is_ok()).count(), rescued);
    assert_eq!(get(&db, 0).as_deref(), Some("file"));
    drop(db);
    check_sound(&fs);

    fs.remove(
        &fs.paths()
            .into_iter()
            .find(|path| path.starts_with("/db") && path.extension().is_some_and(|e| e == "sst"))
            .unwrap(),
    )
    .unwrap();
    assert!(stepped_options(&fs).0.open("/db").is_err_and(|error| error.is_corruption()));
}

#[test]
fn a_repair_without_a_manifest_keeps_ingested_tables_that_logs_know() {
    let fs = file_system();
    let db = open(&fs);
    db.put("put", "1").unwrap();
    db.put(250u32.to_be_bytes(), "deleted").unwrap();
    db.flush().unwrap();
    // It is in the log alone when the ingest has a greater number.
    db.put("logged", "2").unwrap();
    let path = write(&fs, &db.sst_format().unwrap(), "file", 0..100, Some("x"));
    let ranges = write_ranges(&fs, &db.sst_format().unwrap(), "ranges", Some(200..300));
    db.ingest([&path, &ranges], IngestOptions::new().mode(IngestMode::Move)).unwrap();
    db.put(7u32.to_be_bytes(), "newer").unwrap();
    db.sync().unwrap();
    let fs = fs.kill();
    drop(db);
    for path in fs.paths().iter().filter(|path| path.to_str().unwrap().contains("MANIFEST")) {
        fs.remove(path).unwrap();
    }
    let report = repair("/db", RepairOptions::new().file_system(Arc::new(fs.clone()))).unwrap();
    assert!(report.losses.iter().all(|loss| loss.kind == LossKind::Unknowable), "{report:?}");
    let db = open(&fs);
    assert_eq!([5, 7].map(|key| get(&db, key).unwrap()), ["x", "newer"]);
    assert_eq!((get(&db, 250), db.get("put").unwrap().as_deref()), (None, Some(&b"1"[..])));
    assert_eq!(db.get("logged").unwrap().as_deref(), Some(&b"2"[..]));
    drop(db);
    check_sound(&fs);
}

/// The tables of a directory that ingests have brought into the store, with their contents.
fn stores_tables(fs: &SimFileSystem) -> Vec<PathBuf> {
    fs.paths()
        .into_iter()
        .filter(|path| path.parent() == Some(Path::new("/db")) && path.extension().is_some_and(|e| e == "sst"))
        .collect()
}

/// A store whose last ingest, of entries over range deletes, is in the log and not in the manifest.
/// Returns it with the two tables.
fn only_logged() -> (SimFileSystem, PathBuf, PathBuf) {
    for call in 1.. {
        let fs = file_system();
        let db = open(&fs);
        (0..50).for_each(|key: u32| _ = db.put(key.to_be_bytes(), "old").unwrap());
        let format = db.sst_format().unwrap();
        // The first ingest begins a log and a manifest that say so.
        db.ingest([write_ranges(&fs, &format, "first", Some(1000..1001))], IngestOptions::new()).unwrap();
        db.flush().unwrap();
        // What goes to level 0 begins a log, too.
        db.compact_range(..).unwrap();
        db.put(60u32.to_be_bytes(), "logged before").unwrap();
        // The first sync of a log is an edit of its own.
        db.sync().unwrap();
        let files =
            [write(&fs, &format, "puts", 100..1100, Some("new")), write_ranges(&fs, &format, "ranges", Some(5..8))];
        let manifest = |fs: &SimFileSystem| {
            Inspector::on(Arc::new(fs.clone())).verify(Path::new("/db"), &mut |_| ()).unwrap().edits
        };
        let (before, edits) = (stores_tables(&fs), manifest(&fs.kill()));
        fs.crash_at(Some(call));
        let _ = db.ingest(files, IngestOptions::new().mode(IngestMode::Copy));
        let Some(killed) = fs.crash_point() else { break };
        let is_logged = get(&stepped_options(&killed).0.open_read_only("/db").unwrap(), 100).is_some();
        if is_logged && manifest(&killed) == edits {
            let new: Vec<PathBuf> = stores_tables(&killed).into_iter().filter(|path| !before.contains(path)).collect();
            let [puts, ranges] = &new[..] else { panic!("{new:?}") };
            return (killed, puts.clone(), ranges.clone());
        }
    }
    panic!("no crash was between the record and the edit");
}

#[test]
fn a_repair_checks_tables_that_only_the_log_has_ingested() {
    let repaired = |fs: &SimFileSystem| repair("/db", RepairOptions::new().file_system(Arc::new(fs.clone()))).unwrap();
    let check = |fs: &SimFileSystem, puts: bool, ranges: bool| {
        let db = open(fs);
        assert_eq!(get(&db, 60).as_deref(), Some("logged before"));
        assert_eq!((get(&db, 100).is_some(), get(&db, 5).is_none()), (puts, ranges));
        assert_eq!(get(&db, 4).as_deref(), Some("old"));
        // What comes later is newer.
        ingest(fs, db.default_keyspace(), "later", [4, 60, 100]);
        assert_eq!([4, 60, 100].map(|key| get(&db, key).unwrap()), ["later"; 3]);
        drop(db);
        check_sound(fs);
        assert_eq!(get(&open(fs), 100).as_deref(), Some("later"));
    };
    let (fs, ..) = only_logged();
    assert!(repaired(&fs).is_sound());
    check(&fs, true, true);

    let (fs, puts, _) = only_logged();
    fs.corrupt(&puts, fs.file_len(&puts).unwrap() / 4, 1).unwrap();
    let report = repaired(&fs);
    assert_eq!((report.tables_rewritten, report.losses.len()), (1, 1), "{report:?}");
    let db = open(&fs);
    let is_kept = |key: &u32| get(&db, *key).is_some();
    let is_lost = |key: &u32| report.losses[0].covers("default", &key.to_be_bytes());
    assert!((100..1100).all(|key| is_kept(&key) || is_lost(&key)) && (100..1100).filter(is_kept).count() > 100);
    assert_eq!((get(&db, 60).as_deref(), get(&db, 5)), (Some("logged before"), None));
    drop(db);
    check_sound(&fs);

    for missing_puts in [false, true] {
        let (fs, puts, ranges) = only_logged();
        fs.remove(if missing_puts { &puts } else { &ranges }).unwrap();
        assert!(stepped_options(&fs).0.open("/db").is_err_and(|error| error.is_corruption()));
        let report = repaired(&fs);
        assert_eq!(report.losses.len(), 1, "{report:?}");
        let lost = |key: u32| report.losses[0].covers("default", &key.to_be_bytes());
        assert_eq!(
            [5, 10, 100, 1099, 1200].map(lost),
            if missing_puts { [false, false, true, true, false] } else { [true, false, false, false, false] }
        );
        check(&fs, !missing_puts, missing_puts);
    }
}

#[test]
fn a_repair_of_a_damaged_log_says_which_ingests_may_be_lost() {
    let (good, puts, _) = only_logged();
    let log = good.paths().into_iter().filter(|path| path.extension().is_some_and(|e| e == "wal")).max().unwrap();
    let bytes = good.read(&log).unwrap();
    let at = bytes.windows(4).position(|part| *part == 1099u32.to_be_bytes()).unwrap() as u64;
    let (mut kept, mut reported) = (0, 0);
    for offset in (64..at).step_by(5) {
        // The ingest is readable, or not.
        for has_ingest in [true, false] {
            let fs = good.kill();
            fs.corrupt(&log, offset, 1).unwrap();
            if !has_ingest {
                fs.corrupt(&log, at, 1).unwrap();
            }
            if stepped_options(&fs).0.open_read_only("/db").is_ok() {
                // It reads like a log that a power cut has cut.
                continue;
            }
            let report = repair("/db", RepairOptions::new().file_system(Arc::new(fs.clone()))).unwrap();
            let db = open(&fs);
            let is_kept = get(&db, 100).is_some();
            let is_reported = report.losses.iter().any(|loss| loss.file.as_ref() == Some(&puts));
            assert_ne!(is_kept, is_reported, "{offset}: {report:?}");
            (kept, reported) = (kept + u32::from(is_kept), reported + u32::from(is_reported));
            ingest(&fs, db.default_keyspace(), "later", [4, 60, 100]);
            assert_eq!([4, 60, 100].map(|key| get(&db, key).unwrap()), ["later"; 3]);
            drop(db);
            check_sound(&fs);
        }
    }
    assert!(kept > 0 && reported > 0, "{kept} {reported}");
}

#[test]
fn a_repair_without_manifest_and_log_keeps_ingested_tables_aside() {
    let fs = file_system();
    let db = open(&fs);
    db.put("put", "1").unwrap();
    db.put(250u32.to_be_bytes(), "deleted").unwrap();
    db.flush().unwrap();
    let path = write(&fs, &db.sst_format().unwrap(), "file", 0..100, Some("x"));
    let ranges = write_ranges(&fs, &db.sst_format().unwrap(), "ranges", Some(200..300));
    db.ingest([&path, &ranges], IngestOptions::new().mode(IngestMode::Move)).unwrap();
    db.close().unwrap();
    let is_gone = |path: &&PathBuf| ["MANIFEST", ".wal"].iter().any(|part| path.to_str().unwrap().contains(part));
    for path in fs.paths().iter().filter(is_gone) {
        fs.remove(path).unwrap();
    }
    let report = repair("/db", RepairOptions::new().file_system(Arc::new(fs.clone()))).unwrap();
    let uncertain: Vec<_> = report.losses.iter().filter(|loss| loss.kind == LossKind::Uncertain).collect();
    assert!(uncertain.len() == 2 && uncertain.iter().all(|loss| loss.to_string().contains("ingest it again")));
    assert!(report.notes.iter().any(|note| note.contains("range deletes")), "{report:?}");
    let db = open(&fs);
    assert_eq!((get(&db, 5), db.get("put").unwrap().as_deref()), (None, Some(&b"1"[..])));
    assert_eq!(get(&db, 250).as_deref(), Some("deleted"));
    let moved = report.moved.iter().map(|moved| Path::new("/db").join(&moved.to));
    let kept = moved.filter(|to| to.extension().is_some_and(|e| e == "sst"));
    db.ingest(kept, IngestOptions::new()).unwrap();
    assert_eq!((get(&db, 5).as_deref(), get(&db, 250)), (Some("x"), None));
    drop(db);
    check_sound(&fs);
}
