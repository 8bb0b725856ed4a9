//! What a handle has read once it reads again, as long as it lives: whatever is written, expires,
//! is scanned by others, or is dropped by compactions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use tamis::operator::CompactionDecision;
use tamis::vfs::SimFileSystem;
use tamis::{Db, Keyspace, KeyspaceOptions, Snapshot};

use crate::support::stepped_options;

fn time(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// The first of the cases, step by step.
#[test]
fn deadlines_that_pass_change_nothing_for_a_transaction() {
    let (fs, clock) = (SimFileSystem::new(), Arc::new(AtomicU64::new(0)));
    let shown = Arc::clone(&clock);
    let options = stepped_options(&fs).0.clock(move || time(shown.load(Ordering::Relaxed)));
    let db = options.open("/db").unwrap();
    (0..100u8).for_each(|key| _ = db.put_with_expiry([key], "v", time(50)).unwrap());
    let (tx, snapshot) = (db.begin(), db.snapshot());
    let check = || {
        assert_eq!((tx.range(..).count(), snapshot.iter().count()), (100, 100));
        assert!(tx.get([7]).unwrap().is_some() && snapshot.get([7]).unwrap().is_some());
    };
    check();
    clock.store(50, Ordering::Relaxed);
    check();
    assert_eq!(db.iter().count(), 0);
    check();
    db.compact_range(..).unwrap();
    check();
    assert_eq!((db.iter().count(), db.get([7]).unwrap()), (0, None));
    drop((tx, snapshot));
    db.compact_range(..).unwrap();
    assert!(db.stats().keyspaces[0].levels.iter().all(|level| level.tables.is_empty()));
}

/// A snapshot taken while a compaction with a filter runs sees what was there, before and after.
#[test]
fn a_compaction_filter_changes_nothing_for_a_snapshot_taken_while_it_runs() {
    static DB: OnceLock<(Db, Keyspace)> = OnceLock::new();
    type Taken = (Snapshot, Vec<(Vec<u8>, Vec<u8>)>);
    static TAKEN: Mutex<Vec<Taken>> = Mutex::new(Vec::new());
    let read = |snapshot: &Snapshot| -> Vec<(Vec<u8>, Vec<u8>)> {
        snapshot.iter().map(Result::unwrap).map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
    };
    let filter = move |key: &[u8], _: &[u8]| {
        let (db, keyspace) = DB.get().unwrap();
        if key[0].is_multiple_of(16) {
            let snapshot = db.snapshot().keyspace(keyspace);
            let contents = read(&snapshot);
            TAKEN.lock().unwrap().push((snapshot, contents));
        }
        match key[0] % 3 {
            0 => CompactionDecision::Keep,
            1 => CompactionDecision::Drop,
            _ => CompactionDecision::Replace(b"replaced".to_vec()),
        }
    };
    let fs = SimFileSystem::new();
    let db = stepped_options(&fs).0.table_size(4096).open("/db").unwrap();
    let keyspace = db.keyspace_with("k", KeyspaceOptions::new().compaction_filter(filter)).unwrap();
    (0..96u8).for_each(|key| _ = keyspace.put([key], "v").unwrap());
    assert!(DB.set((db.clone(), keyspace.clone())).is_ok());
    keyspace.compact_range(..).unwrap();
    // Others note the gaps that the filter has left.
    assert_eq!((keyspace.iter().count(), keyspace.iter().rev().count()), (64, 64));
    // Later writes are not seen.
    keyspace.put([200], "later").unwrap();
    db.flush().unwrap();
    let taken = std::mem::take(&mut *TAKEN.lock().unwrap());
    assert!(taken.len() >= 6);
    for (snapshot, contents) in &taken {
        assert_eq!((contents.len(), read(snapshot) == *contents), (96, true));
        let mut backward: Vec<_> = snapshot.iter().rev().map(Result::unwrap).collect();
        backward.reverse();
        assert!(backward.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).eq(contents.iter().cloned()));
        for key in 0..96u8 {
            assert_eq!(snapshot.get([key]).unwrap().as_deref(), Some(&b"v"[..]), "{key}");
        }
        let keys: Vec<[u8; 1]> = (0..96).map(|key| [key]).collect();
        assert!(snapshot.multi_get(&keys).unwrap().iter().all(Option::is_some));
    }
}
