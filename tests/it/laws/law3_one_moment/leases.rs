//! A write that depends on a value with a deadline commits before that deadline, however long it
//! has waited.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{Change, Db, Error, KeyspaceOptions};

use crate::support::stepped_options;

fn time(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

fn tables(fs: &SimFileSystem) -> usize {
    let mut names = fs.list(Path::new("/db")).unwrap();
    names.retain(|name| name.ends_with(".sst"));
    names.len()
}

/// What depends on the lease; returns whether it was written.
type Write = fn(&Db) -> bool;

const WRITES: [(&str, Write); 4] = [
    ("update", |db| {
        let updated = db.update("lease", |lease| match lease {
            Some(_) => Change::Put(b"mine".to_vec()),
            None => Change::Keep,
        });
        updated.unwrap().seqno.is_some()
    }),
    ("swap", |db| db.compare_and_swap("lease", Some("held"), Some("mine")).unwrap().is_ok()),
    ("transaction", |db| {
        let mut tx = db.begin();
        let _ = tx.get("lease").unwrap();
        tx.put("other", "done under the lease");
        match tx.commit() {
            Ok(_) => true,
            Err(Error::Conflict { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }),
    ("transaction over a range", |db| {
        let mut tx = db.begin();
        assert!(tx.range(..).any(|entry| &*entry.unwrap().0 == b"lease"));
        tx.put("other", "done under the lease");
        match tx.commit() {
            Ok(_) => true,
            Err(Error::Conflict { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }),
];

/// The lease expires as soon as the writer has waited for a flush.
#[test]
fn a_lease_that_expires_while_its_holder_waits_for_room_is_none() {
    for (name, write) in WRITES {
        for wal in [true, false] {
            let waited = (0..80).filter(|n| expires_meanwhile(name, write, wal, *n)).count();
            assert!(waited > 0, "{name}: no write has waited");
        }
    }
}

/// Writes under a lease after `fill` other entries. Returns whether the lease expired meanwhile.
fn expires_meanwhile(name: &str, write: Write, wal: bool, fill: u32) -> bool {
    let fs = SimFileSystem::new();
    let (armed, before) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clock = {
        let (fs, armed, before) = (fs.clone(), Arc::clone(&armed), Arc::clone(&before));
        move || match armed.load(Ordering::Relaxed) && tables(&fs) > before.load(Ordering::Relaxed) {
            true => time(200),
            false => time(50),
        }
    };
    let options = stepped_options(&fs).0.memtable_size(4096).clock(clock);
    let db = options.default_keyspace(KeyspaceOptions::new().wal(wal)).open("/db").unwrap();
    db.put_with_expiry("lease", "held", time(100)).unwrap();
    // Two full memtables wait, and the third is filled by degrees.
    (0..60 + fill).for_each(|n| _ = db.put(n.to_be_bytes(), [7; 100]).unwrap());
    before.store(tables(&fs), Ordering::Relaxed);
    armed.store(true, Ordering::Relaxed);
    let is_written = write(&db);
    let is_expired = tables(&fs) > before.load(Ordering::Relaxed);
    assert_eq!(is_written, !is_expired, "{name}, {wal}, {fill}");
    is_expired
}
