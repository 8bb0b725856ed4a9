//! Does the change feed give every batch once, in order, and say so when it cannot? Does a follower
//! stay equal to its source?

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tamis::operator::Add;
use tamis::vfs::SimFileSystem;
use tamis::{
    ChangeBatch, Changes, Db, Error, KeyspaceOptions, Operation, OperationKind, Options, Result, SeqNo, WalMode,
    WriteBatch,
};

use crate::support::{WAL_MODES, Watchdog, stepped_options};

const LONG: Duration = Duration::from_secs(100);

fn options(fs: &SimFileSystem) -> Options {
    stepped_options(fs).0.memtable_size(4096)
}

fn open(fs: &SimFileSystem) -> Db {
    options(fs).open("/db").unwrap()
}

mod faults;
mod killed;

/// Sequence number, keyspace, key and value of an operation.
type Listed = (SeqNo, String, Vec<u8>, Option<Vec<u8>>);

fn listed(batch: &ChangeBatch) -> Vec<Listed> {
    let of = |Operation { seqno, keyspace, kind, .. }: Operation<'_>| match kind {
        OperationKind::Put { key, value } => (seqno, keyspace.to_owned(), key.to_vec(), Some(value.to_vec())),
        OperationKind::Delete { key } => (seqno, keyspace.to_owned(), key.to_vec(), None),
        other => panic!("{other:?}"),
    };
    batch.operations().map(of).collect()
}

/// First and last number of each batch that the feed gives out now.
fn numbers(changes: &mut Changes) -> Vec<(SeqNo, SeqNo)> {
    changes.map(|batch| batch.unwrap()).map(|batch| (batch.first_seqno(), batch.last_seqno())).collect()
}

/// Fills a memtable and more, in batches of three.
fn fill(db: &Db, batches: u8) {
    for i in 0..batches {
        let mut batch = WriteBatch::new();
        (0..3).for_each(|j| batch.put([b'f', j], [i; 100]));
        db.write(batch).unwrap();
    }
}

#[test]
fn batches_come_whole_and_in_order_with_numbers_and_keyspaces() {
    for mode in WAL_MODES {
        let db = options(&SimFileSystem::new()).wal_mode(mode).open("/db").unwrap();
        let users = db.keyspace("users").unwrap();
        let gone = db.keyspace("gone").unwrap();
        let mut changes = db.changes_since(0).unwrap().visible();
        assert!(changes.next().is_none());
        db.put("a", "1").unwrap();
        let mut batch = WriteBatch::new();
        batch.put_in(&users, "id7", "Ann");
        batch.put_in(&gone, "x", "y");
        batch.delete("a");
        db.write(batch).unwrap();
        let owned = |(seqno, keyspace, key, value): (u64, &str, &str, Option<&str>)| {
            (seqno, keyspace.to_owned(), key.as_bytes().to_vec(), value.map(|value| value.as_bytes().to_vec()))
        };
        assert_eq!(listed(&changes.next().unwrap().unwrap()), [(1, "default", "a", Some("1"))].map(owned));
        db.drop_keyspace("gone").unwrap();
        let batch = changes.next().unwrap().unwrap();
        assert_eq!((batch.first_seqno(), batch.last_seqno(), changes.seqno()), (2, 4, 4));
        assert_eq!(listed(&batch), [(2, "users", "id7", Some("Ann")), (4, "default", "a", None)].map(owned));
        assert!(changes.next().is_none());
        // The end is not final.
        db.delete("b").unwrap();
        assert_eq!(numbers(&mut changes), [(5, 5)]);
    }
}

#[test]
fn merges_come_as_operands_and_need_their_operator() {
    let with_operator = || KeyspaceOptions::new().merge_operator(Add::LITTLE);
    let db = open(&SimFileSystem::new());
    let sums = db.keyspace_with("sums", with_operator()).unwrap();
    let mut changes = db.changes_since(0).unwrap().visible();
    sums.merge("k", 5u64.to_le_bytes()).unwrap();
    sums.merge("k", 7u64.to_le_bytes()).unwrap();
    let batches: Vec<ChangeBatch> = changes.by_ref().map(Result::unwrap).collect();
    let kinds: Vec<_> = batches.iter().flat_map(|batch| batch.operations().map(|operation| operation.kind)).collect();
    let merge = |operand| OperationKind::Merge { key: b"k", operand };
    assert_eq!(kinds, [merge(&5u64.to_le_bytes()), merge(&7u64.to_le_bytes())]);
    let copy = open(&SimFileSystem::new());
    let refused = copy.write(batches[0].to_write_batch(&copy).unwrap()).unwrap_err();
    assert!(matches!(&refused, Error::InvalidArgument(what) if what.contains("no merge operator")), "{refused}");
    let copied = copy.keyspace_with("sums", with_operator()).unwrap();
    for batch in &batches {
        copy.write(batch.to_write_batch(&copy).unwrap()).unwrap();
    }
    assert_eq!(copied.get("k").unwrap().as_deref(), Some(&12u64.to_le_bytes()[..]));
}

#[test]
fn the_feed_gives_out_what_is_durable_unless_asked_for_more() {
    let db = open(&SimFileSystem::new());
    db.put("a", "1").unwrap();
    let (mut durable, mut visible) = (db.changes_since(0).unwrap(), db.changes_since(0).unwrap().visible());
    assert_eq!((numbers(&mut durable), numbers(&mut visible)), (vec![], vec![(1, 1)]));
    db.sync().unwrap();
    assert_eq!((numbers(&mut durable), numbers(&mut visible)), (vec![(1, 1)], vec![]));
    db.put("b", "2").unwrap();
    // A reader that waits has a sync made.
    let batch = durable.next_timeout(LONG).unwrap().unwrap();
    assert_eq!((batch.last_seqno(), db.synced_seqno()), (2, 2));
    assert!(durable.next_timeout(Duration::ZERO).unwrap().is_none());
}

#[test]
fn the_feed_crosses_rotations_and_flushes() {
    for mode in WAL_MODES {
        let db = options(&SimFileSystem::new()).wal_mode(mode).open("/db").unwrap();
        let (mut live, mut late) = (db.changes_since(0).unwrap().visible(), db.changes_since(0).unwrap());
        let mut seen = Vec::new();
        for i in 0..100 {
            fill(&db, 1);
            if i % 7 == 0 {
                seen.extend(numbers(&mut live));
            }
            if i % 30 == 0 {
                db.flush().unwrap();
            }
        }
        assert!(db.stats().log.files > 5 && db.stats().log.kept_bytes > 0, "{:?}", db.stats().log);
        seen.extend(numbers(&mut live));
        let expected: Vec<_> = (0..100).map(|i| (3 * i + 1, 3 * i + 3)).collect();
        assert_eq!(seen, expected);
        db.sync().unwrap();
        assert_eq!(numbers(&mut late), expected);
        assert_eq!(numbers(&mut db.changes_since(150).unwrap()), expected[50..]);
        drop((live, late));
        db.put("x", "y").unwrap();
        db.flush().unwrap();
        assert_eq!((db.stats().log.kept_bytes, db.stats().log.pins), (0, 0), "nobody needs them");
        let gone = db.changes_since(150).unwrap_err();
        assert!(matches!(gone, Error::LogGone { wanted: 151, oldest: 302 }), "{gone}");
        assert!(db.changes_since(301).unwrap().next().is_none());
    }
}

#[test]
fn positions_that_make_no_sense_are_refused() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    fill(&db, 3);
    db.sync().unwrap();
    assert!(matches!(db.changes_since(10), Err(Error::Diverged { since: 10, last: 9 })));
    assert!(matches!(db.pin_log(SeqNo::MAX), Err(Error::Diverged { since: SeqNo::MAX, last: 9 })));
    assert!(db.changes_since(9).unwrap().next().is_none());
    let mut within = db.changes_since(4).unwrap();
    let error = within.next().unwrap().unwrap_err();
    assert!(matches!(&error, Error::InvalidArgument(what) if what.contains("from 4 to 6")), "{error}");
    assert!(within.next().is_none());
    assert_eq!(numbers(&mut db.changes_since(6).unwrap()), [(7, 9)]);
}

#[test]
fn a_read_only_store_gives_out_what_it_found_in_the_logs() {
    for mode in WAL_MODES {
        let fs = SimFileSystem::new();
        let options = || options(&fs).wal_mode(mode);
        let db = options().open("/db").unwrap();
        let pin = db.pin_log(0).unwrap();
        fill(&db, 60);
        db.flush().unwrap();
        fill(&db, 10);
        let beside = options().open_read_only("/db").unwrap();
        let expected: Vec<_> = (0..70).map(|i| (3 * i + 1, 3 * i + 3)).collect();
        let mut changes = beside.changes_since(0).unwrap();
        assert_eq!(numbers(&mut changes), expected);
        // What is written now is for the next one to find.
        fill(&db, 2);
        assert_eq!(changes.next_timeout(Duration::from_millis(1)).unwrap().map(|batch| batch.first_seqno()), None);
        assert_eq!(numbers(&mut beside.changes_since(207).unwrap()), expected[69..]);
        assert!(matches!(beside.changes_since(211), Err(Error::Diverged { since: 211, last: 210 })));
        assert!(matches!(beside.pin_log(0), Err(Error::ReadOnly(_))));
        assert!(matches!(beside.follow(), Err(Error::ReadOnly(_))));
        let (mut early, later) = (beside.changes_since(0).unwrap(), options().open_read_only("/db").unwrap());
        assert_eq!(numbers(&mut later.changes_since(210).unwrap()), [(211, 213), (214, 216)]);
        drop(pin);
        db.flush().unwrap();
        let gone = early.find_map(Result::err).expect("the logs were removed");
        assert!(matches!(gone, Error::LogGone { wanted: 1, .. }), "{gone}");
        let now = options().open_read_only("/db").unwrap();
        assert!(matches!(now.changes_since(0), Err(Error::LogGone { wanted: 1, oldest: 217 })));
        assert!(now.changes_since(216).unwrap().next().is_none());
    }
}

#[test]
fn a_read_only_store_gives_out_what_a_refresh_found_before_the_first_read() {
    for (mode, before) in WAL_MODES.into_iter().flat_map(|mode| [0, 5].map(|before| (mode, before))) {
        let fs = SimFileSystem::new();
        let options = || options(&fs).wal_mode(mode);
        let db = options().open("/db").unwrap();
        let pin = db.pin_log(0).unwrap();
        fill(&db, before);
        let beside = options().open_read_only("/db").unwrap();
        let last = db.last_seqno();
        let (mut unread, mut polled) = (beside.changes_since(last).unwrap(), beside.changes_since(last).unwrap());
        assert_eq!(numbers(&mut polled), []);
        let mut expected = Vec::new();
        for round in 0..4 {
            let next = db.last_seqno() + 1;
            fill(&db, 1);
            expected.push((next, next + 2));
            if round == 2 {
                db.flush().unwrap();
            }
            beside.refresh().unwrap();
            assert_eq!(numbers(&mut polled), expected[round..], "{mode:?}, {before} batches, round {round}");
        }
        assert_eq!(numbers(&mut unread), expected, "{mode:?}, {before} batches");
        drop(pin);
    }
}

/// A feed that is made looks for the logs, and so does one that finds more: the older list must not
/// take the place of the newer one.
#[test]
fn feeds_of_a_read_only_store_lose_no_log_to_each_other() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    let pin = db.pin_log(0).unwrap();
    fill(&db, 1);
    let beside = options(&fs).open_read_only("/db").unwrap();
    let mut feed = beside.changes_since(0).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    drop(beside.changes_since(beside.last_seqno()).unwrap());
                }
            });
        }
        let told: Result<Vec<_>> = (0..3000)
            .map(|_| {
                fill(&db, 1);
                beside.refresh()?;
                feed.by_ref().try_for_each(|batch| batch.map(drop)).map(|()| feed.seqno())
            })
            .collect();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(told.unwrap().last(), Some(&db.last_seqno()));
    });
    drop(pin);
}

#[test]
fn a_reader_ahead_of_its_source_has_another_history() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    fill(&db, 3);
    db.sync().unwrap();
    let mut changes = db.changes_since(0).unwrap().visible();
    assert_eq!(numbers(&mut changes).last(), Some(&(7, 9)));
    let copy = fs.kill();
    // Restored from a copy: the reader has what was written since.
    fill(&db, 1);
    assert_eq!(numbers(&mut changes), [(10, 12)]);
    let db = open(&copy);
    let error = db.changes_since(changes.seqno()).unwrap_err();
    assert!(matches!(error, Error::Diverged { since: 12, last: 9 }), "{error}");
    assert!(error.to_string().contains("after number 12") && error.to_string().contains("number 9"), "{error}");
    assert_eq!(db.stats().log.pins, 0);
    assert!(matches!(db.pin_log(12), Err(Error::Diverged { .. })));
    assert!(db.changes_since(9).unwrap().next().is_none());
    fill(&db, 1);
    assert!(db.changes_since(12).is_ok(), "a store of another history that is as long is not found out");
}

#[test]
fn logs_are_kept_up_to_a_size_and_found_again() {
    let fs = SimFileSystem::new();
    let options = |bytes| options(&fs).keep_log(bytes, Duration::MAX);
    let db = options(20_000).open("/db").unwrap();
    fill(&db, 200);
    db.flush().unwrap();
    let stats = db.stats().log;
    assert!((12_000..=20_000).contains(&stats.kept_bytes), "{stats:?}");
    let Err(Error::LogGone { oldest, .. }) = db.changes_since(0) else { panic!("200 batches are longer") };
    let kept = numbers(&mut db.changes_since(oldest - 1).unwrap());
    assert_eq!((kept[0].0, kept.last().unwrap().1), (oldest, 600));
    assert!(db.changes_since(oldest - 2).is_err());
    db.close().unwrap();
    // A little more, for zeros that the last log was prepared with.
    let db = options(24_000).open("/db").unwrap();
    assert_eq!(numbers(&mut db.changes_since(oldest - 1).unwrap()), kept);
    fill(&db, 1);
    db.sync().unwrap();
    assert_eq!(numbers(&mut db.changes_since(600).unwrap()), [(601, 603)]);
    db.flush().unwrap();
    db.close().unwrap();
    // Without the option, opening removes them.
    let db = self::options(&fs).open("/db").unwrap();
    assert_eq!(db.stats().log.kept_bytes, 0);
    assert!(matches!(db.changes_since(600), Err(Error::LogGone { wanted: 601, oldest: 604 })));
    // An age of nothing: what an earlier flush has kept goes with the next one.
    db.close().unwrap();
    let db = self::options(&fs).keep_log(u64::MAX, Duration::ZERO).open("/db").unwrap();
    fill(&db, 100);
    db.flush().unwrap();
    assert!(db.stats().log.files <= 2, "{:?}", db.stats().log);
}

#[test]
fn a_pin_keeps_the_log_until_it_is_dropped_or_exceeds_its_limit() {
    let fs = SimFileSystem::new();
    let db = options(&fs).max_pinned_log(30_000).open("/db").unwrap();
    fill(&db, 2);
    let pin = db.pin_log(3).unwrap();
    fill(&db, 40);
    db.flush().unwrap();
    assert_eq!(db.stats().log.oldest_pin, Some(3));
    assert_eq!(numbers(&mut db.changes_since(3).unwrap()).len(), 41);
    pin.advance(60);
    pin.advance(30);
    assert_eq!(pin.seqno(), 60);
    fill(&db, 1);
    db.flush().unwrap();
    assert!(db.changes_since(3).is_err() && db.changes_since(60).is_ok());
    let mut slow = db.changes_since(60).unwrap();
    assert_eq!(slow.next().unwrap().unwrap().last_seqno(), 63);
    fill(&db, 200);
    db.flush().unwrap();
    assert!(pin.is_revoked() && db.stats().log.kept_bytes <= 30_000);
    let error = slow.find_map(Result::err).expect("its logs are gone");
    assert!(matches!(error, Error::LogGone { .. }), "{error}");
    assert!(slow.next().is_none());
    // What is revoked keeps nothing any more, though nobody has dropped it.
    fill(&db, 1);
    db.flush().unwrap();
    assert_eq!((db.stats().log.kept_bytes, db.stats().log.oldest_pin), (0, None));
    drop((slow, pin));
    // A reader that is within the newest log when it is revoked.
    fill(&db, 2);
    let mut early = db.changes_since(db.last_seqno() - 6).unwrap().visible();
    early.next().unwrap().unwrap();
    for _ in 0..2 {
        fill(&db, 250);
        db.flush().unwrap();
    }
    let error = early.find_map(Result::err).expect("the next log is gone");
    assert!(matches!(error, Error::LogGone { .. }), "{error}");
}

#[test]
fn a_number_within_a_batch_is_refused_each_time() {
    let db = options(&SimFileSystem::new()).open("/db").unwrap();
    fill(&db, 3);
    db.sync().unwrap();
    let mut changes = db.changes_since(4).unwrap();
    for _ in 0..3 {
        assert!(matches!(changes.next_timeout(Duration::ZERO), Err(Error::InvalidArgument(_))));
    }
}

#[test]
fn damage_to_a_kept_log_is_reported_with_its_place() {
    let fs = SimFileSystem::new();
    let options = || options(&fs).keep_log(1 << 20, Duration::MAX).wal_mode(WalMode::Write);
    let db = options().open("/db").unwrap();
    fill(&db, 30);
    db.flush().unwrap();
    let mut logs: Vec<_> = fs.paths().into_iter().filter(|path| path.extension().is_some_and(|e| e == "wal")).collect();
    logs.sort();
    fs.corrupt(&logs[1], 500, 1).unwrap();
    let mut changes = db.changes_since(0).unwrap();
    let error = changes.find_map(Result::err).expect("a record is damaged");
    assert!(matches!(&error, Error::Corruption { file, offset, .. } if *file == logs[1] && *offset < 500), "{error}");
    db.close().unwrap();
    // For a log of an earlier process it may also be a suffix that a power cut took.
    let db = options().open("/db").unwrap();
    let error = db.changes_since(0).unwrap().find_map(Result::err).expect("a record is damaged");
    let Error::LogGone { wanted, oldest } = error else { panic!("{error}") };
    assert!(wanted < oldest);
    assert!(db.changes_since(oldest - 1).unwrap().all(|batch| batch.is_ok()));
}

#[test]
fn a_waiting_reader_is_woken_by_writes_and_by_the_end_of_the_store() {
    let _watchdog = Watchdog::new("a_waiting_reader_is_woken_by_writes_and_by_the_end_of_the_store");
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new().memtable_size(64 << 10).open(dir.path().join("db")).unwrap();
    const BATCHES: u64 = 3000;
    std::thread::scope(|scope| {
        let readers: Vec<_> = [false, true]
            .into_iter()
            .map(|visible| {
                let changes = db.changes_since(0).unwrap();
                let mut changes = if visible { changes.visible() } else { changes };
                scope.spawn(move || {
                    let mut last = 0;
                    loop {
                        match changes.next_timeout(LONG) {
                            Ok(batch) => {
                                let batch = batch.expect("there is more to come");
                                assert_eq!(batch.first_seqno(), last + 1);
                                last = batch.last_seqno();
                            }
                            Err(Error::Closed) => return last,
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        for i in 0..BATCHES {
            let mut batch = WriteBatch::new();
            batch.put(i.to_be_bytes(), [1; 100]);
            batch.put("last", i.to_be_bytes());
            db.write(batch).unwrap();
            if i % 500 == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        // Both have everything before the store is closed.
        let mut end = db.changes_since(2 * BATCHES - 2).unwrap();
        assert_eq!(end.next_timeout(LONG).unwrap().unwrap().last_seqno(), 2 * BATCHES);
        while db.stats().log.oldest_pin.is_some_and(|seqno| seqno < 2 * BATCHES) {
            std::thread::sleep(Duration::from_millis(1));
        }
        db.clone().close().unwrap();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), 2 * BATCHES);
        }
    });
}

type Content = BTreeMap<(String, Vec<u8>), Vec<u8>>;

/// Keyspace of a follower that holds its position.
const POSITION: &str = "position";

fn content(db: &Db) -> Content {
    let names = db.keyspace_names().unwrap().into_iter().filter(|name| name != POSITION);
    let entries = names.flat_map(|name| {
        let keyspace = db.keyspace(&name).unwrap();
        keyspace.iter().map(move |entry| (name.clone(), entry.unwrap())).collect::<Vec<_>>()
    });
    entries.map(|(name, (key, value))| ((name, key.to_vec()), value.to_vec())).collect()
}

/// A store that follows another one, and keeps its position with the data.
struct Follower {
    db: Db,
}

impl Follower {
    fn seqno(&self) -> SeqNo {
        let position = self.db.keyspace(POSITION).unwrap().get("").unwrap();
        position.map_or(0, |bytes| SeqNo::from_be_bytes(bytes.as_ref().try_into().unwrap()))
    }

    fn write(&self, mut batch: WriteBatch, seqno: SeqNo) {
        batch.put_in(&self.db.keyspace(POSITION).unwrap(), "", seqno.to_be_bytes());
        self.db.write(batch).unwrap();
    }

    /// Applies up to `most` batches. Begins anew, with a copy, if the log is gone; returns whether
    /// it did.
    fn catch_up(&self, source: &Db, most: usize) -> bool {
        let apply = || -> Result<()> {
            for batch in source.changes_since(self.seqno())?.take(most) {
                let batch = batch?;
                self.write(batch.to_write_batch(&self.db)?, batch.last_seqno());
            }
            Ok(())
        };
        match apply() {
            Ok(()) => return false,
            Err(Error::LogGone { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        let (snapshot, _) = source.follow().unwrap();
        let mut batch = WriteBatch::new();
        for (name, key) in content(&self.db).into_keys() {
            batch.delete_in(&self.db.keyspace(&name).unwrap(), key);
        }
        for name in source.keyspace_names().unwrap() {
            let (keyspace, copy) = (source.keyspace(&name).unwrap(), self.db.keyspace(&name).unwrap());
            for entry in snapshot.keyspace(&keyspace).iter() {
                let (key, value) = entry.unwrap();
                batch.put_in(&copy, key, value);
            }
        }
        self.write(batch, snapshot.seqno());
        true
    }
}

#[test]
fn kept_logs_are_bounded_in_number_by_the_bytes_that_are_allowed() {
    // The limit in bytes: of kept logs, of pinned ones; the files that it allows.
    for (kept, pinned, most) in [(1 << 20, 0, 1000), (1051 << 14, 1 << 20, 1051), (0, 1 << 30, 1100)] {
        let options = options(&SimFileSystem::new()).keep_log(kept, Duration::MAX).max_pinned_log(pinned);
        let db = options.open("/db").unwrap();
        let pin = db.pin_log(0).unwrap();
        for _ in 0..1100 {
            db.put("k", "v").unwrap();
            db.flush().unwrap();
        }
        let stats = db.stats().log;
        assert!(stats.kept_bytes < 200_000, "{stats:?}");
        assert_eq!(pin.is_revoked(), most < 1100, "{stats:?}");
        assert!((most..=most + 1).contains(&stats.files), "{most}: {stats:?}");
        let since = if most < 1100 { 100 } else { 0 };
        assert_eq!(numbers(&mut db.changes_since(since).unwrap()).len() as u64, 1100 - since);
    }
}

#[test]
fn a_reader_that_has_read_all_needs_no_log() {
    let fs = SimFileSystem::new();
    let db = options(&fs).max_pinned_log(1000).open("/db").unwrap();
    let mut changes = db.changes_since(0).unwrap();
    for i in 0..3u64 {
        fill(&db, 10);
        db.sync().unwrap();
        assert_eq!(numbers(&mut changes).len(), 10);
        // The flush seals the log, and no write begins the next one.
        db.flush().unwrap();
        assert_eq!((db.stats().log.kept_bytes, db.stats().log.oldest_pin), (0, Some(30 * (i + 1))));
    }
}

#[test]
fn batches_that_are_applied_as_one_make_the_same_store() {
    let open = || options(&SimFileSystem::new()).memtable_size(1 << 20).open("/db").unwrap();
    let (db, copy) = (open(), open());
    let other = db.keyspace("other").unwrap();
    let start = db.last_seqno();
    for i in 0..200u32 {
        db.put(format!("k{:02}", i % 50), i.to_be_bytes()).unwrap();
        match i % 4 {
            0 => _ = db.delete_range(format!("k{:02}", i % 40)..format!("k{:02}", i % 40 + 3)).unwrap(),
            1 => _ = other.put(i.to_be_bytes(), "other").unwrap(),
            2 => _ = db.delete(format!("k{:02}", i % 7)).unwrap(),
            _ => {
                let mut batch = WriteBatch::new();
                batch.put("both", i.to_be_bytes());
                batch.put_in(&other, "both", i.to_be_bytes());
                db.write(batch).unwrap();
            }
        }
    }
    db.sync().unwrap();
    let batches: Vec<_> = db.changes_since(start).unwrap().map(|batch| batch.unwrap()).collect();
    assert!(batches.len() >= 400);
    for run in batches.chunks(97) {
        let mut all = WriteBatch::new();
        run.iter().for_each(|batch| batch.append_to(&mut all, &copy).unwrap());
        copy.write(all).unwrap();
    }
    for name in ["default", "other"] {
        let entries = |db: &Db| {
            let keyspace = db.keyspace(name).unwrap();
            keyspace
                .iter()
                .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
                .collect::<Vec<_>>()
        };
        assert!(!entries(&db).is_empty());
        assert_eq!(entries(&copy), entries(&db), "{name}");
    }
}
