//! Do long operations tell how far they are: never less than before, and all of it at the end?

use std::path::Path;
use std::sync::{Arc, Mutex};

use tamis::inspect::{FileKind, Inspector};
use tamis::{Db, KeyspaceOptions, Options, Progress, ProgressListener, RepairOptions};

/// Notes what it is told.
#[derive(Default)]
struct Told(Arc<Mutex<Vec<Progress>>>);

impl Told {
    fn listener(&self) -> ProgressListener {
        let told = Arc::clone(&self.0);
        ProgressListener::new(move |progress| told.lock().unwrap().push(progress))
    }

    /// The bytes in all, of an operation that took at least this many steps.
    #[track_caller]
    fn total(&self, steps: usize) -> u64 {
        let told = std::mem::take(&mut *self.0.lock().unwrap());
        assert!(told.len() > steps, "{told:?}");
        assert!(told.is_sorted_by_key(|progress| progress.done), "{told:?}");
        assert!(told.iter().all(|progress| progress.total == told[0].total), "{told:?}");
        let last = told[told.len() - 1];
        assert_eq!((told[0].done, last.done), (0, last.total));
        last.total
    }
}

fn store(dir: &Path) -> Db {
    let options = KeyspaceOptions::new().separate_values(4000);
    let db = Options::new().table_size(64 << 10).default_keyspace(options).open(dir).unwrap();
    for i in 0..20_000u32 {
        db.put(format!("key{i:06}"), (0..20).map(|j| (i % 251) as u8 ^ j).collect::<Vec<u8>>()).unwrap();
    }
    db.put("long", vec![7; 5000]).unwrap();
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    db
}

#[test]
fn verify_tells_its_progress() {
    let (dir, told) = (tempfile::tempdir().unwrap(), Told::default());
    store(dir.path()).close().unwrap();
    let inspector = Inspector::new().on_progress(told.listener());
    let verified = inspector.verify(dir.path(), &mut |_| {}).unwrap();
    assert!(told.total(4) > verified.bytes);
    let files = inspector.files(dir.path()).unwrap();
    for file in files.iter().filter(|file| !matches!(file.kind, FileKind::Lock)) {
        inspector.verify_file(&file.path, &mut |_| {}).unwrap();
        assert!(told.total(0) > 0);
    }
}

#[test]
fn repair_tells_its_progress() {
    let (dir, told) = (tempfile::tempdir().unwrap(), Told::default());
    store(dir.path()).close().unwrap();
    let options = RepairOptions::new().on_progress(told.listener());
    for has_manifest in [true, false] {
        let files = Inspector::new().files(dir.path()).unwrap();
        if !has_manifest {
            for file in files.iter().filter(|file| matches!(file.kind, FileKind::Manifest(_) | FileKind::Current)) {
                std::fs::remove_file(&file.path).unwrap();
            }
        }
        let report = tamis::repair(dir.path(), options.clone()).unwrap();
        assert_eq!(report.is_sound(), has_manifest);
        let tables = files.iter().filter(|file| matches!(file.kind, FileKind::Table(_)));
        assert_eq!(told.total(2), tables.map(|file| std::fs::metadata(&file.path).unwrap().len()).sum::<u64>());
    }
}

#[test]
fn a_checkpoint_tells_its_progress_whether_it_links_or_copies() {
    let (dir, told) = (tempfile::tempdir().unwrap(), Told::default());
    let path = dir.path().join("db");
    let writer = store(&path);
    let reader = Db::open_read_only(&path).unwrap();
    for (db, name) in [(&writer, "linked"), (&reader, "copied")] {
        let made = db.checkpoint_with(dir.path().join(name), &told.listener()).unwrap();
        assert_eq!(made.linked > 0, name == "linked");
        assert_eq!(told.total(2), made.files.iter().map(|file| file.size).sum::<u64>());
    }
}
