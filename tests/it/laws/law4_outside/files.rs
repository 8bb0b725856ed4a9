//! {ways in of a file} × {kinds of path}: what a caller's path names is looked at, and nothing but
//! a regular file is ever taken, replaced or removed. What a store has taken stays, whatever
//! becomes of the path.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tamis::filter::BloomFilter;
use tamis::inspect::{FindingKind, Inspector};
use tamis::{Db, IngestMode, IngestOptions, SstWriter};

use crate::support::Watchdog;

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Regular,
    /// A second name of a regular file.
    HardLink,
    Symlink,
    /// A link to a link, through another directory and `..`.
    Chain,
    Dangling,
    Loop,
    Directory,
    Pipe,
    Device,
    Missing,
    /// A table in the directory of the store itself.
    OwnTable,
}

const KINDS: [Kind; 11] = [
    Kind::Regular,
    Kind::HardLink,
    Kind::Symlink,
    Kind::Chain,
    Kind::Dangling,
    Kind::Loop,
    Kind::Directory,
    Kind::Pipe,
    Kind::Device,
    Kind::Missing,
    Kind::OwnTable,
];

impl Kind {
    /// Whether it leads to a regular file.
    fn is_file(self) -> bool {
        matches!(self, Kind::Regular | Kind::HardLink | Kind::Symlink | Kind::Chain | Kind::OwnTable)
    }

    /// Makes such a path in `dir`; a file that it leads to is made by `make`.
    fn path(self, dir: &Path, db: &Db, make: &dyn Fn(&Path)) -> PathBuf {
        fs::create_dir_all(dir.join("sub")).unwrap();
        let (path, target) = (dir.join("given"), dir.join("target"));
        match self {
            Kind::Regular => make(&path),
            Kind::HardLink => {
                make(&target);
                fs::hard_link(&target, &path).unwrap();
            }
            Kind::Symlink => {
                make(&target);
                symlink("target", &path).unwrap();
            }
            Kind::Chain => {
                make(&target);
                symlink("../target", dir.join("sub/link")).unwrap();
                symlink("sub/../sub/link", &path).unwrap();
            }
            Kind::Dangling => symlink("target", &path).unwrap(),
            Kind::Loop => symlink("given", &path).unwrap(),
            Kind::Directory => fs::create_dir(&path).unwrap(),
            Kind::Pipe => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
            Kind::Device => return PathBuf::from("/dev/null"),
            Kind::Missing => {}
            Kind::OwnTable => {
                // An ingest gives it an identity as only `SstWriter` does.
                let table = dir.join("own.sst");
                make(&table);
                db.ingest([&table], IngestOptions::new()).unwrap();
                return newest_table(db.path());
            }
        }
        path
    }
}

fn newest_table(dir: &Path) -> PathBuf {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|extension| extension == "sst")).max().unwrap()
}

/// What is found at a path and below it, without following links.
fn state(path: &Path) -> Vec<(PathBuf, String)> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Vec::new() };
    let kind = metadata.file_type();
    let what = match kind {
        kind if kind.is_symlink() => format!("link to {}", fs::read_link(path).unwrap().display()),
        kind if kind.is_file() => format!("{:?}", fs::read(path).unwrap()),
        kind if kind.is_fifo() => "pipe".into(),
        kind if kind.is_dir() => "directory".into(),
        _ => "device".into(),
    };
    let mut found = vec![(path.to_owned(), what)];
    if kind.is_dir() {
        let mut below: Vec<PathBuf> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        below.sort();
        found.extend(below.iter().flat_map(|path| state(path)));
    }
    found
}

/// The kinds of what `verify` reports.
fn findings(dir: &Path) -> Vec<FindingKind> {
    let mut kinds = Vec::new();
    Inspector::new().verify(dir, &mut |finding| kinds.push(finding.kind)).unwrap();
    kinds
}

#[test]
fn an_ingest_takes_the_content_of_a_regular_file_and_nothing_else() {
    let _watchdog = Watchdog::new("an ingest of any path");
    for mode in [IngestMode::Link, IngestMode::Copy, IngestMode::Move] {
        for kind in KINDS {
            let case = format!("{mode:?} of {kind:?}");
            let dir = tempfile::tempdir().unwrap();
            let (store, outside) = (dir.path().join("store"), dir.path().join("outside"));
            let db = Db::open(&store).unwrap();
            let format = db.sst_format().unwrap();
            let make = |path: &Path| {
                let mut writer = SstWriter::create(path, &format).unwrap();
                writer.put("key", "value").unwrap();
                writer.finish().unwrap();
            };
            let path = kind.path(&outside, &db, &make);
            let (before, own_before) = (state(&outside), state(&path));
            let taken = db.ingest([&path], IngestOptions::new().mode(mode));
            let may_be_taken = kind.is_file() && (kind, mode) != (Kind::OwnTable, IngestMode::Move);
            assert_eq!(taken.is_ok(), may_be_taken, "{case}: {taken:?}");
            let is_removed = may_be_taken && mode == IngestMode::Move;
            assert_eq!(fs::symlink_metadata(&path).is_ok(), !own_before.is_empty() && !is_removed, "{case}");
            let after: Vec<_> = before.iter().filter(|(of, _)| !is_removed || *of != path).cloned().collect();
            assert_eq!(state(&outside), after, "{case}");
            // Nothing outside is needed any more.
            let copy = dir.path().join("copy");
            db.checkpoint(&copy).unwrap();
            db.close().unwrap();
            fs::remove_dir_all(&outside).unwrap();
            for dir in [&store, &copy] {
                let db = Db::open(dir).unwrap();
                let found = db.get("key").unwrap();
                assert_eq!(found.is_some(), may_be_taken || kind == Kind::OwnTable, "{case}");
                db.close().unwrap();
                assert_eq!(findings(dir), [], "{case}");
            }
        }
    }
}

#[test]
fn a_writer_creates_its_file_or_changes_nothing() {
    let _watchdog = Watchdog::new("a writer to any path");
    for kind in KINDS {
        for is_finished in [true, false] {
            let case = format!("{kind:?}, finished: {is_finished}");
            let dir = tempfile::tempdir().unwrap();
            let (store, outside) = (dir.path().join("store"), dir.path().join("outside"));
            let db = Db::open(&store).unwrap();
            db.put("a", "1").unwrap();
            db.flush().unwrap();
            let make = |path: &Path| {
                let mut writer = SstWriter::create(path, &db.sst_format().unwrap()).unwrap();
                writer.put("key", "value").unwrap();
                writer.finish().unwrap();
            };
            let path = kind.path(&outside, &db, &make);
            let before = (state(&outside), state(&path));
            let created = SstWriter::create(&path, &db.sst_format().unwrap());
            assert_eq!(created.is_ok(), kind == Kind::Missing, "{case}: {created:?}");
            if let Ok(mut writer) = created {
                writer.put("key", "other").unwrap();
                if is_finished {
                    writer.finish().unwrap();
                    db.ingest([&path], IngestOptions::new().mode(IngestMode::Move)).unwrap();
                }
            }
            assert_eq!((state(&outside), state(&path)), before, "{case}");
            // A name that the store may give to a file of its own, now or later.
            let name = store.join("000099.sst");
            assert!(SstWriter::create(&name, &db.sst_format().unwrap()).is_err() && !name.exists(), "{case}");
        }
    }
}

#[test]
fn a_file_under_the_name_of_the_next_table_survives_a_failed_ingest() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let db = Db::open(&store).unwrap();
    let path = dir.path().join("new.sst");
    let mut writer = SstWriter::create(&path, &db.sst_format().unwrap()).unwrap();
    writer.put("key", "value").unwrap();
    writer.finish().unwrap();
    let names: Vec<PathBuf> = (1..50).map(|number| store.join(format!("{number:06}.sst"))).collect();
    names.iter().for_each(|name| fs::write(name, "another's").unwrap());
    for mode in [IngestMode::Link, IngestMode::Copy, IngestMode::Move] {
        assert!(db.ingest([&path], IngestOptions::new().mode(mode)).is_err());
    }
    assert!(names.iter().all(|name| fs::read(name).unwrap() == b"another's") && path.exists());
}

#[test]
fn a_filter_is_saved_where_a_link_leads_and_never_over_a_device() {
    let _watchdog = Watchdog::new("a filter in any place");
    let mut filter = BloomFilter::with_rate(10, 0.01).unwrap();
    filter.insert("key");
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path().join("store")).unwrap();
        if kind == Kind::OwnTable {
            continue;
        }
        let outside = dir.path().join("outside");
        let path = kind.path(&outside, &db, &|path| fs::write(path, "old").unwrap());
        let before = (state(&outside), state(&path));
        let saved = filter.save(&path);
        let may_save = kind.is_file() || matches!(kind, Kind::Missing | Kind::Dangling);
        assert_eq!(saved.is_ok(), may_save, "{kind:?}: {saved:?}");
        if !may_save {
            assert_eq!((state(&outside), state(&path)), before, "{kind:?}");
            assert!(BloomFilter::load(&path).is_err(), "{kind:?}");
            continue;
        }
        assert!(BloomFilter::load(&path).unwrap().contains("key"), "{kind:?}");
        let is_link = matches!(kind, Kind::Symlink | Kind::Chain | Kind::Dangling);
        assert_eq!(fs::symlink_metadata(&path).unwrap().is_symlink(), is_link, "{kind:?}");
        if is_link {
            assert!(BloomFilter::load(outside.join("target")).unwrap().contains("key"), "{kind:?}");
        }
    }
}

/// Each file of a store in turn is another thing: no reader waits for it, and `verify` names it.
#[test]
fn a_store_file_that_is_no_regular_file_is_reported_and_waits_for_nobody() {
    let _watchdog = Watchdog::new("a store with other things than files");
    let dir = tempfile::tempdir().unwrap();
    let original = dir.path().join("store");
    let db = Db::open(&original).unwrap();
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    db.put("b", "2").unwrap();
    let copy = dir.path().join("copy");
    db.checkpoint(&copy).unwrap();
    db.close().unwrap();
    let names: Vec<String> = store_names(&copy);
    for (case, name) in names.iter().enumerate() {
        for kind in [Kind::Symlink, Kind::Pipe, Kind::Directory, Kind::Device] {
            let dir = dir.path().join(format!("{case}-{kind:?}"));
            fs::create_dir(&dir).unwrap();
            for name in &names {
                fs::copy(copy.join(name), dir.join(name)).unwrap();
            }
            let (path, away) = (dir.join(name), dir.join("away"));
            match kind {
                Kind::Symlink => {
                    fs::rename(&path, &away).unwrap();
                    symlink(&away, &path).unwrap();
                }
                Kind::Pipe => {
                    fs::remove_file(&path).unwrap();
                    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
                }
                Kind::Directory => {
                    fs::remove_file(&path).unwrap();
                    fs::create_dir(&path).unwrap();
                }
                _ => {
                    fs::remove_file(&path).unwrap();
                    symlink("/dev/zero", &path).unwrap();
                }
            }
            let mut is_named = false;
            let verified = Inspector::new().verify(&dir, &mut |finding| {
                is_named |= finding.kind == FindingKind::NotRegular && finding.file == path;
            });
            // Without CURRENT nothing says that it is a store.
            assert!(is_named || verified.is_err(), "{name} is {kind:?}");
            let read = |db: Db| db.get("a").and_then(|_| db.get("b"));
            let read_only = Db::open_read_only(&dir).and_then(read);
            let written = Db::open(&dir).and_then(read);
            let is_lock = name == "LOCK";
            let is_sound = kind == Kind::Symlink || is_lock;
            assert_eq!(read_only.is_ok(), is_sound, "{name} is {kind:?}: {read_only:?}");
            assert_eq!(written.is_ok(), kind == Kind::Symlink && !is_lock, "{name} is {kind:?}: {written:?}");
        }
    }
}

/// Names of the files of a store.
fn store_names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
