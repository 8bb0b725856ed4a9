//! Does a pause stop background work and removals, and does everything go on afterwards?

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{Db, Error, Executor, Options, ThreadPool};

use crate::support::{Watchdog, stepped_options};

fn options(fs: &SimFileSystem) -> Options {
    let threads: Arc<dyn Executor> = Arc::new(ThreadPool::new(2));
    stepped_options(fs).0.executor(threads).memtable_size(16 << 10).table_size(16 << 10)
}

fn tables(fs: &SimFileSystem) -> Vec<String> {
    let mut names = fs.list(Path::new("/db")).unwrap();
    names.retain(|name| name.ends_with(".sst"));
    names.sort();
    names
}

fn put(db: &Db, from: u32, to: u32) {
    (from..to).for_each(|n| _ = db.put(n.to_be_bytes(), [7; 100]).unwrap());
}

#[test]
fn nothing_changes_the_tables_during_a_pause() {
    let _watchdog = Watchdog::new("pause");
    let fs = SimFileSystem::new();
    let db = options(&fs).open("/db").unwrap();
    put(&db, 0, 2000);
    let iter = db.iter();
    let pause = db.pause_background().unwrap();
    let before = tables(&fs);
    assert!(!before.is_empty());
    // What the iterator alone keeps, and what a range delete covers, must stay as well.
    drop(iter);
    put(&db, 2000, 2100);
    db.delete_range(..).unwrap();
    assert!(matches!(db.flush(), Err(Error::Paused)));
    assert!(matches!(db.compact_range(..), Err(Error::Paused)));
    assert!(matches!(db.wait_for_compactions(), Err(Error::Paused)));
    thread::sleep(Duration::from_millis(100));
    assert_eq!(tables(&fs), before);
    // The files can be copied, with the log.
    let copy = fs.kill();
    assert!(options(&copy).open("/db").unwrap().is_empty().unwrap());
    drop(pause);
    db.compact_range(..).unwrap();
    db.wait_for_compactions().unwrap();
    assert_eq!(tables(&fs).len(), 0);
}

#[test]
fn other_threads_wait_for_the_end_of_a_pause() {
    let _watchdog = Watchdog::new("pause");
    let fs = SimFileSystem::new();
    let db = options(&fs).open("/db").unwrap();
    put(&db, 0, 100);
    let (first, second) = (db.pause_background().unwrap(), db.pause_background().unwrap());
    // The thread that has paused gets an error once memtables are full.
    let refused = (0u32..).find_map(|n| db.put(n.to_be_bytes(), [7; 100]).err()).unwrap();
    assert!(matches!(refused, Error::Paused), "{refused}");
    thread::scope(|scope| {
        let others = [
            scope.spawn(|| put(&db, 0, 2000)),
            scope.spawn(|| db.flush().unwrap()),
            scope.spawn(|| db.compact_range(..).unwrap()),
        ];
        thread::sleep(Duration::from_millis(50));
        drop(first);
        thread::sleep(Duration::from_millis(150));
        assert!(others.iter().all(|other| !other.is_finished()), "there is another pause");
        drop(second);
    });
    db.wait_for_compactions().unwrap();
    assert_eq!(db.iter().count(), 2000);
}

#[test]
fn a_store_can_be_closed_during_a_pause() {
    let _watchdog = Watchdog::new("pause");
    let fs = SimFileSystem::new();
    let db = options(&fs).open("/db").unwrap();
    put(&db, 0, 100);
    let pause = db.pause_background().unwrap();
    db.close().unwrap();
    drop(pause);
    let db = options(&fs).open("/db").unwrap();
    assert_eq!((db.iter().count(), tables(&fs).len()), (100, 1));
    drop(options(&fs).open_read_only("/db").unwrap().pause_background().unwrap_err());
}

#[test]
fn pauses_beside_writers_and_compactions_end() {
    let _watchdog = Watchdog::new("pause");
    let fs = SimFileSystem::new();
    let db = options(&fs).open("/db").unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = || {
            for round in 0u32.. {
                put(&db, 0, 500);
                if done.load(Ordering::Relaxed) {
                    break;
                }
                if round % 8 == 0 {
                    db.compact_range(..).unwrap();
                }
            }
        };
        scope.spawn(writer);
        scope.spawn(writer);
        for _ in 0..50 {
            let pause = db.pause_background().unwrap();
            let before = tables(&fs);
            thread::sleep(Duration::from_millis(2));
            assert_eq!(tables(&fs), before);
            drop(pause);
        }
        done.store(true, Ordering::Relaxed);
    });
    db.wait_for_compactions().unwrap();
    assert_eq!(db.iter().count(), 500);
}
