//! Who may hold a store, and what is left when it is closed.

use std::io::ErrorKind;
use std::process::{Command, Stdio};

use tamis::{Executor, ThreadPool};

use super::*;

/// Whether an operation succeeded; if not, the store must have been closed.
fn is_open<T>(result: Result<T>) -> bool {
    match result {
        Ok(_) => true,
        Err(Error::Closed) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn closing_while_other_threads_work_loses_nothing_and_stops_them() {
    let _watchdog = Watchdog::new("closing");
    for round in 0..15 {
        let fs = SimFileSystem::new();
        let db = options(Arc::new(fs.clone())).open("/db").unwrap();
        let writers = 2;
        // Puts by all writers, and rounds of the other threads' work.
        let (put, worked) = (AtomicU64::new(0), AtomicU64::new(0));
        let counts = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..writers)
                .map(|thread| {
                    let (db, put) = (db.clone(), &put);
                    scope.spawn(move || {
                        let mut n = 0;
                        while is_open(put_count(&db, thread, n + 1)) {
                            n += 1;
                            put.fetch_add(1, Ordering::Relaxed);
                        }
                        n
                    })
                })
                .collect();
            let work: [fn(&Db) -> bool; 5] = [
                |db| is_open(db.flush()),
                |db| is_open(db.compact_range(..)),
                |db| is_open(db.sync()),
                |db| is_open(db.keyspace("passing")) && is_open(db.drop_keyspace("passing")),
                |db| {
                    let mut iter = db.iter();
                    // An iterator made before the close continues after it, until it needs a table
                    // that the next open has removed. A later one returns the reason for failing.
                    let first = iter.next();
                    std::thread::yield_now();
                    match first {
                        Some(Err(Error::Io { source, .. })) if source.kind() == ErrorKind::NotFound => false,
                        first => first.is_none_or(is_open) && iter.all(|entry| entry.is_ok()),
                    }
                },
            ];
            for work in work {
                let (db, worked) = (db.clone(), &worked);
                scope.spawn(move || {
                    while work(&db) {
                        worked.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            // Each round closes at another moment of the other threads' work. If a thread has
            // panicked, closing stops the others.
            let is_under_way = || put.load(Ordering::Relaxed) > 20 * round && worked.load(Ordering::Relaxed) > round;
            while !is_under_way() && !workers.iter().any(|worker| worker.is_finished()) {
                std::thread::yield_now();
            }
            db.clone().close().unwrap();
            // The lock is free at once, and threads of the old handle can do no more harm.
            let reopened = options(Arc::new(fs.clone())).paranoid(true).open("/db").unwrap();
            let counts: Vec<u64> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            for (thread, &n) in counts.iter().enumerate() {
                let left = count_of(&reopened, thread);
                assert!(left == n || left == n + 1, "thread {thread}: {left} of {n}");
            }
            counts
        });
        assert!(matches!(db.get("k"), Err(Error::Closed)));
        assert!(matches!(db.snapshot().get("k"), Err(Error::Closed)));
        assert!(counts.iter().sum::<u64>() > 0);
    }
}

const LOCK_DIR: &str = "TAMIS_LOCK_DIR";

#[test]
#[ignore = "the second process of another test; cargo test --test it store_is_open_for_writing_once"]
fn second_process() {
    let Ok(dir) = std::env::var(LOCK_DIR) else { return };
    match Db::open(dir) {
        Ok(_) => println!("\nopened"),
        Err(Error::Locked { holder, .. }) => println!("\nlocked by {holder}"),
        Err(error) => println!("\n{error}"),
    }
}

fn in_second_process(dir: &Path) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "concurrency::handles::second_process", "--nocapture"])
        .env(LOCK_DIR, dir)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find(|line| line.starts_with("opened") || line.starts_with("locked")).expect(&text).to_owned()
}

#[test]
fn store_is_open_for_writing_once() {
    let _watchdog = Watchdog::new("locks");
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path()).unwrap();
    let locked = |holder: &str| match Db::open(dir.path()) {
        Err(Error::Locked { holder: named, .. }) => assert!(named.contains(holder), "{named}"),
        other => panic!("{other:?}"),
    };
    locked("this process");
    assert_eq!(in_second_process(dir.path()), format!("locked by process {}", std::process::id()));
    assert!(Db::open_read_only(dir.path()).is_ok());

    // Anything derived from the handle keeps the store open.
    let keyspace = db.keyspace("more").unwrap();
    let snapshot = keyspace.snapshot();
    drop(db);
    locked("this process");
    keyspace.put("key", "value").unwrap();
    drop(keyspace);
    locked("this process");
    assert_eq!(snapshot.get("key").unwrap(), None);
    drop(snapshot);
    assert_eq!(in_second_process(dir.path()), "opened");
    let db = Db::open(dir.path()).unwrap();
    assert!(db.keyspace("more").unwrap().contains_key("key").unwrap());
}

const RELATIVE_DIR: &str = "TAMIS_RELATIVE_DIR";

#[test]
#[ignore = "a process that changes its working directory; cargo test --test it relative_path"]
fn process_that_changes_its_directory() {
    let Ok(dir) = std::env::var(RELATIVE_DIR) else { return };
    let options = || Options::new().memtable_size(16 << 10).table_size(16 << 10).max_open_files(8);
    let cd = |dir: &Path| std::env::set_current_dir(dir).unwrap();
    let value = |round: u32, n: u32| format!("{round} {n} {}", "v".repeat(50));
    let (home, away) = (Path::new(&dir), &Path::new(&dir).join("away"));
    cd(home);
    let db = options().open("db").unwrap();
    db.put("first", "1").unwrap();
    cd(away);
    for round in 0..3 {
        for n in 0..2000u32 {
            db.put(n.to_be_bytes(), value(round, n)).unwrap();
        }
        db.sync().unwrap();
        db.compact_range(..).unwrap();
    }
    cd(home);
    let reader = options().open_read_only("db").unwrap();
    cd(away);
    for db in [db, reader] {
        for n in 0..2000u32 {
            assert_eq!(db.get(n.to_be_bytes()).unwrap().as_deref(), Some(value(2, n).as_bytes()));
        }
        assert_eq!(count_entries(db.iter()), 2001);
        db.close().unwrap();
    }
    let fs = OsFileSystem::new();
    assert!(fs.list(away).unwrap().is_empty() && fs.list(&away.join("db")).is_err());
    println!("\nleft nothing");
}

/// A process has one working directory, so another process changes it.
#[test]
fn store_opened_by_a_relative_path_stays_there_when_the_directory_changes_issue_13() {
    let _watchdog = Watchdog::new("relative path");
    let dir = tempfile::tempdir().unwrap();
    OsFileSystem::new().create_dir(&dir.path().join("away")).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "concurrency::handles::process_that_changes_its_directory", "--nocapture"])
        .env(RELATIVE_DIR, dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("left nothing"), "{output:?}");
    let db = Db::open(dir.path().join("db")).unwrap();
    assert_eq!(count_entries(db.iter()), 2001);
}

#[test]
fn iterators_outlive_the_handle_and_its_files() {
    outlive_the_handle(options(Arc::new(SimFileSystem::new())), Path::new("/db"));
}

#[test]
fn iterators_outlive_the_handle_and_its_mapped_files() {
    let dir = tempfile::tempdir().unwrap();
    outlive_the_handle(in_mapped_files(), &dir.path().join("db"));
}

fn outlive_the_handle(options: Options, dir: &Path) {
    let _watchdog = Watchdog::new("iterators");
    let pool: Arc<dyn Executor> = Arc::new(ThreadPool::new(1));
    let db = options.executor(Arc::clone(&pool)).open(dir).unwrap();
    for n in 0..2000u32 {
        db.put(n.to_be_bytes(), [5; 50]).unwrap();
    }
    let mut cursor = db.cursor().unwrap();
    cursor.seek_to_first().unwrap();
    let (mut iter, reversed, fresh) = (db.iter(), db.iter().rev(), db.range(1u32.to_be_bytes()..));
    assert!(iter.next().is_some());
    for n in 0..2000u32 {
        db.delete(n.to_be_bytes()).unwrap();
    }
    db.compact_range(..).unwrap();
    assert_eq!(count_entries(db.iter()), 0);
    db.close().unwrap();
    assert_eq!(count_entries(iter), 1999);
    assert_eq!(count_entries(reversed), 2000);
    assert_eq!(count_entries(fresh), 1999);
    let mut count = 1;
    while cursor.next().unwrap() {
        count += 1;
    }
    assert_eq!(count, 2000);
}
