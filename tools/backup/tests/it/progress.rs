//! Do backups, restores and checks tell how far they are?

use std::sync::{Arc, Mutex};

use tamis::{Db, ProgressListener};
use tamis_backup::Repository;

#[test]
fn numbers_never_fall_and_end_with_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = {
        let told = Arc::clone(&told);
        ProgressListener::new(move |progress| told.lock().unwrap().push((progress.done, progress.total)))
    };
    let check = |bytes: u64, what: &str| {
        let told = std::mem::take(&mut *told.lock().unwrap());
        assert!(told.len() > 2 && told.is_sorted(), "{what}: {told:?}");
        assert!(told.iter().all(|(_, total)| *total == bytes), "{what} of {bytes}: {told:?}");
        assert_eq!((told[0].0, told[told.len() - 1].0), (0, bytes), "{what}: {told:?}");
    };
    let db = Db::open(dir.path().join("db")).unwrap();
    let repository = Repository::create(dir.path().join("backups")).unwrap().on_progress(listener);
    for round in 0..2 {
        for i in 0..5000 {
            db.put(format!("key{i:06}"), format!("value {round}").repeat(9)).unwrap();
        }
        db.flush().unwrap();
        let made = repository.backup(&db).unwrap();
        assert!(round == 0 || made.copied_files < made.files, "the second one copies less");
        check(made.bytes, "a backup");
    }
    let restored = repository.restore(2, dir.path().join("restored")).unwrap();
    check(restored.bytes(), "a restore");
    let verified = repository.verify(&mut |_| {}).unwrap();
    check(verified.bytes, "a check");
}
