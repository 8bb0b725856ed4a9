//! Everything that is tried again after a conflict is tried a bounded number of times; what is no
//! conflict is none.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tamis::vfs::MemoryFileSystem;
use tamis::{ByteOrder, Change, Db, Error, KeyspaceOptions, Options, Result};

/// How often the store runs a closure that always meets a conflict.
const ATTEMPTS: u32 = 32;
/// Something is repeated for ever if it is repeated so often.
const FOR_EVER: u32 = 500;

fn options() -> Options {
    Options::new().file_system(Arc::new(MemoryFileSystem::new())).memtable_size(64 << 10)
}

fn is_conflict<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Conflict { .. }))
}

/// Writes many keys beside the one that is updated, so that memtables are sealed.
fn write_others(db: &Db) {
    (0u32..1500).for_each(|n| _ = db.put(n.to_be_bytes(), [7; 100]).unwrap());
}

#[test]
fn what_others_write_beside_a_key_is_no_conflict() {
    type Deed = (&'static str, fn(&Db));
    let beside: [Deed; 4] = [
        ("flush", |db| db.flush().unwrap()),
        ("others", write_others),
        ("flush and compact", |db| {
            db.put("other", "1").unwrap();
            db.compact_range(..).unwrap();
        }),
        ("a value written again", |db| {
            let value = db.get("key").unwrap();
            db.flush().unwrap();
            _ = value.map(|value| db.put("key", value).unwrap());
            db.flush().unwrap();
        }),
    ];
    for (name, beside) in beside {
        for before in [None, Some("1")] {
            let db = options().open("/db").unwrap();
            before.into_iter().for_each(|value| _ = db.put("key", value).unwrap());
            let mut runs = 0;
            let updated = db.update("key", |value| {
                runs += 1;
                assert!(runs < FOR_EVER, "{name}");
                assert_eq!(value, before.map(str::as_bytes), "{name}");
                beside(&db);
                Change::Put(b"2".to_vec())
            });
            assert_eq!(updated.unwrap().before.as_deref(), before.map(str::as_bytes), "{name}");
            assert_eq!((db.get("key").unwrap().as_deref(), runs), (Some(&b"2"[..]), 1), "{name}");
            // As in a transaction.
            let mut runs = 0;
            db.transact(|tx| {
                runs += 1;
                assert!(runs < FOR_EVER, "{name}");
                let value = tx.get("absent")?;
                beside(&db);
                tx.put("absent", "1");
                Ok::<_, Error>(value)
            })
            .unwrap();
            assert_eq!(runs, 1, "{name}");
        }
    }
}

#[test]
fn a_change_that_is_hidden_by_flushes_is_a_conflict() {
    let hide: [fn(&Db); 2] = [|db| db.flush().unwrap(), |db| db.compact_range(..).unwrap()];
    for hide in hide {
        for (first, then) in [(Some("1"), None), (None, Some("1")), (Some("1"), Some("2"))] {
            let db = options().open("/db").unwrap();
            let set = |value: Option<&str>| match value {
                Some(value) => db.put("key", value).unwrap(),
                None => db.delete("key").unwrap(),
            };
            set(first);
            let mut seen = Vec::new();
            db.update("key", |value| {
                seen.push(value.map(<[u8]>::to_vec));
                if seen.len() == 1 {
                    set(then);
                    hide(&db);
                }
                Change::Put(b"3".to_vec())
            })
            .unwrap();
            assert_eq!(seen, [first, then].map(|value| value.map(|value| value.as_bytes().to_vec())));
        }
    }
}

/// Each run of a closure meets a write to what it has read.
#[test]
fn after_a_bounded_number_of_conflicts_the_caller_gets_it() {
    let db = options().open("/db").unwrap();
    let keyspace = db.keyspace("other").unwrap();
    let runs = Cell::new(0);
    let conflict = |write: &dyn Fn(u32)| {
        runs.set(runs.get() + 1);
        assert!(runs.get() < FOR_EVER);
        write(runs.get());
    };
    let is_bounded = |result: Result<()>| {
        let conflicted = is_conflict(result);
        assert_eq!((runs.take(), conflicted), (ATTEMPTS, true));
    };
    is_bounded(
        db.update("key", |_| {
            conflict(&|n| _ = db.put("key", n.to_be_bytes()).unwrap());
            Change::Delete
        })
        .map(drop),
    );
    is_bounded(
        keyspace
            .update("key", |_| {
                // Within: takes the turn of nobody else.
                conflict(&|_| _ = keyspace.fetch_add("key", 1u64, ByteOrder::Big).unwrap());
                Change::Put(b"12345678".to_vec())
            })
            .map(drop),
    );
    is_bounded(db.transact(|tx| {
        let _ = tx.get("key")?;
        conflict(&|n| _ = db.put("key", n.to_be_bytes()).unwrap());
        tx.put("key", "mine");
        Ok(())
    }));
    // Nothing is left behind: the next ones succeed at once.
    db.update("key", |_| Change::Put(b"1".to_vec())).unwrap();
    db.fetch_add("n", 1u64, ByteOrder::Big).unwrap();
    db.transact(|tx| tx.get("key").map(drop)).unwrap();
}

/// A clock that does something whenever one thread looks at it.
struct Hook {
    tick: AtomicU64,
    thread: OnceLock<std::thread::ThreadId>,
    calls: AtomicU64,
    act: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// A store whose clock is `Hook`'s, and a keyspace of it in which every put expires some day.
fn hooked() -> (Arc<Hook>, Db, tamis::Keyspace) {
    let hook = Arc::new(Hook {
        tick: AtomicU64::new(1000),
        thread: OnceLock::new(),
        calls: AtomicU64::new(0),
        act: OnceLock::new(),
    });
    let shown = Arc::clone(&hook);
    let options = options().clock(move || {
        if shown.thread.get() == Some(&std::thread::current().id()) {
            let calls = shown.calls.fetch_add(1, Ordering::Relaxed);
            if calls < u64::from(FOR_EVER) {
                shown.act.get().unwrap()();
            }
        }
        SystemTime::UNIX_EPOCH + Duration::from_millis(shown.tick.fetch_add(1, Ordering::Relaxed))
    });
    let db = options.open("/db").unwrap();
    let keyspace = db.keyspace_with("k", KeyspaceOptions::new().ttl(Duration::from_secs(1 << 20))).unwrap();
    (hook, db, keyspace)
}

/// Has `act` done by another thread whenever this one looks at the clock, as long as `work` runs.
fn with_hook<R>(hook: &Hook, act: impl Fn() + Send + Sync + 'static, work: impl FnOnce() -> R) -> R {
    let act = Arc::new(act);
    let other = move || {
        let act = Arc::clone(&act);
        std::thread::spawn(move || act()).join().unwrap();
    };
    assert!(hook.act.set(Box::new(other)).is_ok());
    hook.thread.set(std::thread::current().id()).unwrap();
    work()
}

#[test]
fn a_premise_that_is_stale_again_and_again_becomes_a_conflict() {
    let (hook, db, keyspace) = hooked();
    keyspace.put("key", "1").unwrap();
    let other = db.clone();
    // Between the read of the key and the commit.
    let flush = move || {
        other.put("other", "1").unwrap();
        other.flush().unwrap();
    };
    let mut runs = 0;
    let update = || {
        keyspace.update("key", |_| {
            runs += 1;
            Change::Delete
        })
    };
    with_hook(&hook, flush, update).unwrap();
    // The hook ends some time.
    assert!(hook.calls.load(Ordering::Relaxed) > u64::from(FOR_EVER));
    assert!((2..ATTEMPTS).contains(&runs), "{runs}");
}

#[test]
fn pops_have_a_bound() {
    let (hook, _db, keyspace) = hooked();
    keyspace.put("1", "first").unwrap();
    let other = keyspace.clone();
    let calls = Arc::new(AtomicU64::new(0));
    let replace = move || _ = other.put("0", calls.fetch_add(1, Ordering::Relaxed).to_be_bytes()).unwrap();
    let popped = with_hook(&hook, replace, || keyspace.pop_first());
    assert!(is_conflict(popped));
    assert!(hook.calls.load(Ordering::Relaxed) < u64::from(FOR_EVER));
}

#[test]
fn filters_are_renewed_a_bounded_number_of_times() {
    let db = options().open("/db").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put("key", "1").unwrap();
    db.flush().unwrap();
    let mut rounds = 0;
    let result = keyspace.renew_filters(|_| {
        rounds += 1;
        assert!(rounds < FOR_EVER);
        db.keyspace_with("k", KeyspaceOptions::new().block_size(256 + rounds)).unwrap();
    });
    assert!(matches!(result, Err(Error::InvalidArgument(_))), "{result:?}");
    assert_eq!(rounds, ATTEMPTS);
    assert!(keyspace.renew_filters(|_| {}).is_ok());
}
