//! Does a store in memory behave like one on disk, and give its memory back?

use std::path::Path;
use std::sync::Arc;

use tamis::vfs::{FileSystem, MemoryFileSystem};
use tamis::{Compression, Error, KeyspaceOptions, Options, ReadMode, SteppedExecutor};

fn options(memory: &MemoryFileSystem) -> Options {
    let options = Options::new().file_system(Arc::new(memory.clone())).memtable_size(64 << 10).table_size(64 << 10);
    options.executor(Arc::new(SteppedExecutor::new()))
}

#[test]
fn a_store_in_memory_survives_reopening_and_is_locked() {
    let memory = MemoryFileSystem::new();
    for mode in [ReadMode::Auto, ReadMode::Mmap] {
        let name = format!("store {mode:?}");
        let plain = KeyspaceOptions::new().compression(Compression::None);
        let options = options(&memory).read_mode(mode).default_keyspace(plain);
        let db = options.clone().open(&name).unwrap();
        assert!(matches!(options.clone().open(&name), Err(Error::Locked { .. })));
        for i in 0..3000u32 {
            db.put(i.to_be_bytes(), [7; 100]).unwrap();
        }
        db.sync().unwrap();
        // Not closed: the last writes are in the log alone.
        drop(db.iter());
        let beside = options.clone().open_read_only(&name).unwrap();
        assert_eq!(beside.keys(..).count(), 3000);
        drop(beside);
        db.close().unwrap();
        let db = options.open(&name).unwrap();
        assert_eq!(db.keys(..).count(), 3000);
        assert_eq!(db.get(2999u32.to_be_bytes()).unwrap().as_deref(), Some(&[7; 100][..]));
    }
}

#[test]
fn what_is_deleted_is_freed() {
    let memory = MemoryFileSystem::new();
    let db = options(&memory).open("db").unwrap();
    let plain = KeyspaceOptions::new().compression(Compression::None);
    let keyspace = db.keyspace_with("big", plain).unwrap();
    for i in 0..10_000u32 {
        keyspace.put(i.to_be_bytes(), [1; 100]).unwrap();
    }
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    let full = memory.used();
    assert!(full > 1_000_000, "{full} bytes");
    drop(keyspace);
    db.drop_keyspace("big").unwrap();
    db.put("k", "v").unwrap();
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    assert!(memory.used() < 10_000, "{} bytes", memory.used());
    drop(db);
    assert!(memory.used() > 0, "the files stay until the file system is dropped");
}

#[test]
fn a_full_memory_fails_like_a_full_disk_and_heals() {
    let memory = MemoryFileSystem::limited_to(1 << 20);
    let ballast = memory.create(Path::new("ballast")).unwrap();
    ballast.append(&[0; 400 << 10]).unwrap();
    let plain = KeyspaceOptions::new().compression(Compression::None);
    let db = options(&memory).default_keyspace(plain).open("db").unwrap();
    let mut written = 0u32;
    let mut write = || match db.put(written.to_be_bytes(), [1; 1000]) {
        Ok(_) => {
            written += 1;
            Ok(written)
        }
        Err(error) => Err((written, error)),
    };
    let (held, full) = loop {
        if let Err(failed) = write() {
            break failed;
        }
    };
    assert!(full.is_no_space(), "{full}");
    assert!(held > 100 && memory.used() <= 1 << 20);
    drop(ballast);
    memory.remove(Path::new("ballast")).unwrap();
    write().unwrap();
    assert_eq!(db.keys(..).count(), held as usize + 1);
    db.close().unwrap();
    assert_eq!(options(&memory).open("db").unwrap().keys(..).count(), held as usize + 1);
}
