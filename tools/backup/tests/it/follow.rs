//! Points in time: every state after a batch can be reached, and no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tamis::operator::Append;
use tamis::vfs::{FileSystem, MemoryFileSystem, SimFileSystem};
use tamis::{
    Db, Error, Executor, IngestOptions, KeyspaceOptions, Options, SeqNo, SstWriter, SteppedExecutor, WriteBatch,
};
use tamis_backup::{Base, Follow, FollowOptions, Point, Repository, Storage};

use crate::memory::{MemoryStorage, Trouble};

type Contents = BTreeMap<(String, Vec<u8>), Vec<u8>>;

fn contents(db: &Db) -> Contents {
    let mut contents = Contents::new();
    for name in db.keyspace_names().unwrap() {
        let keyspace = db.existing_keyspace(&name).unwrap().unwrap();
        contents.insert((name.clone(), Vec::new()), Vec::new());
        for entry in keyspace.iter() {
            let (key, value) = entry.unwrap();
            contents.insert((name.clone(), key.to_vec()), value.to_vec());
        }
    }
    contents
}

fn options(fs: &SimFileSystem) -> (Options, Arc<SteppedExecutor>) {
    let executor = Arc::new(SteppedExecutor::new());
    let shared: Arc<dyn Executor> = executor.clone();
    let appends = KeyspaceOptions::new().merge_operator(Append);
    let options = Options::new().file_system(Arc::new(fs.clone())).executor(shared).default_keyspace(appends);
    (options.memtable_size(8 << 10).table_size(8 << 10).paranoid(true), executor)
}

/// No segment ends by time, and no generation is made but those that are needed.
fn only_segments() -> FollowOptions {
    FollowOptions::new().generation_every(Duration::MAX).segments(Duration::from_secs(1), 2000)
}

/// What a store was after each number. A keyspace may come or go without one.
type States = BTreeMap<SeqNo, Vec<Contents>>;

fn note(states: &mut States, db: &Db) {
    states.entry(db.last_seqno()).or_default().push(contents(db));
}

/// One write or another.
fn write(db: &Db, rng: &mut fastrand::Rng, executor: &SteppedExecutor) {
    let (key, value) = (format!("k{:02}", rng.u32(0..60)), "v".repeat(rng.usize(0..200)));
    let far = SystemTime::now() + Duration::from_secs(100_000);
    let values = db.keyspace_with("values", KeyspaceOptions::new().separate_values(64)).unwrap();
    match rng.u32(0..20) {
        0 => drop(db.delete_range(key.clone()..format!("{key}9")).unwrap()),
        1..4 => drop(db.merge(key, "m").unwrap()),
        4..6 => drop(db.put_with_expiry(key, value, far).unwrap()),
        6..8 => drop(db.delete(key).unwrap()),
        8 => db.flush().unwrap(),
        9 => drop(executor.step()),
        _ => {
            let mut batch = WriteBatch::new();
            batch.put(&key, &value);
            batch.put_in(&values, &key, &value);
            batch.delete_in(&values, format!("k{:02}", rng.u32(0..60)));
            db.write(batch).unwrap();
        }
    }
}

/// Restores every number from `first` to `last`; returns how many can be reached. What is reached
/// is the last state up to the number.
fn check(repository: &Repository, fs: &SimFileSystem, states: &States, first: SeqNo, last: SeqNo) -> (u64, u64) {
    let (mut reached, mut missed) = (0, 0);
    for seqno in first..=last {
        let dir = format!("/at{seqno}");
        match repository.restore_to(Point::Seqno(seqno), Base::OnlyStore, &dir) {
            Ok(restored) => {
                let (end, expected) = states.range(..=seqno).next_back().unwrap();
                let copy = options(fs).0.create_if_missing(false).open(&dir).unwrap();
                assert_eq!((restored.seqno, copy.last_seqno()), (*end, *end), "as of {seqno}");
                assert!(expected.contains(&contents(&copy)), "as of {seqno}");
                copy.close().unwrap();
                reached += 1;
            }
            Err(Error::InvalidArgument(_)) => missed += 1,
            Err(error) => panic!("{error}"),
        }
        fs.paths().iter().filter(|path| path.starts_with(&dir)).for_each(|path| fs.remove(path).unwrap());
    }
    (reached, missed)
}

/// A store with some writes that is followed from then on.
struct Followed {
    fs: SimFileSystem,
    rng: fastrand::Rng,
    states: States,
    db: Db,
    executor: Arc<SteppedExecutor>,
    repository: Repository,
    follow: Follow,
    /// The last write that no segment has.
    first: u64,
}

impl Followed {
    fn begin(seed: u64) -> Followed {
        let (fs, mut rng, mut states) = (SimFileSystem::new(), fastrand::Rng::with_seed(seed), States::new());
        let (options, executor) = options(&fs);
        let db = options.open("/db").unwrap();
        let repository = Repository::create_on(Arc::new(fs.clone()), "/backups").unwrap();
        write(&db, &mut rng, &executor);
        note(&mut states, &db);
        let follow = Follow::begin(&repository, &db, only_segments()).unwrap();
        let first = follow.status().seqno;
        Followed { fs, rng, states, db, executor, repository, follow, first }
    }
}

#[test]
fn every_batch_can_be_reached() {
    for seed in 0..8 {
        let Followed { fs, mut rng, mut states, db, executor, repository, mut follow, first } = Followed::begin(seed);
        for _ in 0..60 {
            write(&db, &mut rng, &executor);
            note(&mut states, &db);
            if rng.u8(0..4) == 0 {
                db.sync().unwrap();
                follow.step(Duration::ZERO).unwrap();
            }
        }
        db.sync().unwrap();
        while follow.status().seqno < db.synced_seqno() {
            follow.step(Duration::ZERO).unwrap();
        }
        let last = db.last_seqno();
        assert_eq!((follow.status().restarts, follow.status().seqno), (0, last));
        assert!(follow.status().segments > 3);
        assert_eq!(check(&repository, &fs, &states, first, last), (last - first + 1, 0), "seed {seed}");
        let verified = repository.verify(&mut |fault| panic!("{fault}")).unwrap();
        assert_eq!(verified.segments as u64, follow.status().segments);
        // What follows no generation any more goes; the rest stays within reach.
        let made = repository.backup(&db).unwrap();
        assert!(repository.prune(2).unwrap().segments == 0);
        assert_eq!(check(&repository, &fs, &states, last, last), (1, 0));
        assert_eq!(repository.prune(1).unwrap().segments as u64, follow.status().segments);
        assert_eq!(repository.generations().unwrap()[0].number, made.generation);
        assert_eq!(check(&repository, &fs, &states, last, last), (1, 0));
    }
}

#[test]
fn what_the_feed_does_not_tell_begins_a_timeline() {
    for seed in 0..6 {
        let Followed { fs, mut rng, mut states, db, executor, repository, mut follow, first } = Followed::begin(seed);
        for round in 0..40 {
            match rng.u8(0..8) {
                0 => drop(db.drop_keyspace("passing").unwrap()),
                1 | 2 => drop(db.keyspace("passing").unwrap().put("key", format!("{round}")).unwrap()),
                3 => {
                    let file = format!("/tables/{round}.sst");
                    fs.create_dir("/tables".as_ref()).unwrap();
                    let format = db.sst_format().unwrap();
                    let mut writer = SstWriter::create_in(Arc::new(fs.clone()), &file, &format).unwrap();
                    writer.put("k30", format!("ingested {round}")).unwrap();
                    writer.finish().unwrap();
                    db.ingest([file], IngestOptions::new()).unwrap();
                }
                _ => write(&db, &mut rng, &executor),
            }
            note(&mut states, &db);
            if rng.bool() {
                db.sync().unwrap();
                follow.step(Duration::ZERO).unwrap();
            }
        }
        db.sync().unwrap();
        while follow.status().seqno < db.synced_seqno() {
            follow.step(Duration::ZERO).unwrap();
        }
        let (last, status) = (follow.status().seqno, follow.status().clone());
        assert_eq!(last, db.last_seqno());
        let (reached, _) = check(&repository, &fs, &states, first, last);
        assert!(status.restarts > 2 && reached > 5, "seed {seed}: {status:?}, {reached} reached");
        assert_eq!(repository.generations().unwrap().len() as u64, status.restarts + 1);
        assert_eq!(repository.verify(&mut |fault| panic!("{fault}")).unwrap().faults, 0);
    }
}

/// A keyspace that comes and goes between two steps is in no list of keyspaces.
#[test]
fn a_keyspace_that_was_there_between_two_steps_begins_a_timeline() {
    for ingests in [false, true] {
        let fs = SimFileSystem::new();
        let db = options(&fs).0.open("/db").unwrap();
        let repository = Repository::create_on(Arc::new(fs.clone()), "/backups").unwrap();
        db.put("a", "1").unwrap();
        let mut follow = Follow::begin(&repository, &db, only_segments()).unwrap();
        // Takes file numbers, which are those of keyspaces, too.
        for value in ["1", "2"] {
            db.put("a", value).unwrap();
            db.flush().unwrap();
        }
        db.keyspace("other").unwrap();
        follow.step(Duration::ZERO).unwrap();
        db.flush().unwrap();
        let passing = db.keyspace("passing").unwrap();
        if ingests {
            let mut writer =
                SstWriter::create_in(Arc::new(fs.clone()), "/file.sst", &passing.sst_format().unwrap()).unwrap();
            writer.put("k", "v").unwrap();
            writer.finish().unwrap();
            passing.ingest(["/file.sst"], IngestOptions::new()).unwrap();
        } else {
            passing.put("k", "v").unwrap();
        }
        db.drop_keyspace("passing").unwrap();
        let last = db.put("b", "2").unwrap();
        db.sync().unwrap();
        let before = follow.status().restarts;
        while follow.status().seqno < last {
            follow.step(Duration::ZERO).unwrap();
        }
        assert_eq!(follow.status().restarts, before + 1);
        repository.restore_to(Point::Seqno(last), Base::OnlyStore, "/restored").unwrap();
        assert_eq!(contents(&options(&fs).0.open("/restored").unwrap()), contents(&db));
    }
}

/// A copy that was written to has numbers of its own, also where they follow those of its original.
#[test]
fn a_copy_in_the_place_of_a_store_begins_a_timeline() {
    let fs = SimFileSystem::new();
    let open = |dir: &str| options(&fs).0.keep_log(1 << 20, Duration::MAX).open(dir).unwrap();
    let db = open("/db");
    let repository = Repository::create_on(Arc::new(fs.clone()), "/backups").unwrap();
    db.put("a", "1").unwrap();
    db.checkpoint("/copy").unwrap();
    let mut follow = Follow::begin(&repository, &db, only_segments()).unwrap();
    db.put("b", "of the original").unwrap();
    db.sync().unwrap();
    follow.step(Duration::ZERO).unwrap();
    let copy = open("/copy");
    for key in ["c", "d", "e"] {
        copy.put(key, "of the copy").unwrap();
    }
    copy.sync().unwrap();
    follow.reopen(&copy).unwrap();
    while follow.status().seqno < copy.last_seqno() {
        follow.step(Duration::ZERO).unwrap();
    }
    assert_eq!(follow.status().restarts, 1);
    let (last, base) = (Point::Seqno(copy.last_seqno()), Base::Generation(follow.status().generation));
    repository.restore_to(last, base, "/restored").unwrap();
    assert_eq!(contents(&options(&fs).0.open("/restored").unwrap()), contents(&copy));
}

/// A follower in the process that writes, or in another one.
fn both(fs: &SimFileSystem, db: &Db) -> [Db; 2] {
    [db.clone(), options(fs).0.open_read_only("/db").unwrap()]
}

#[test]
fn a_follower_in_another_process_misses_nothing_that_is_written_meanwhile() {
    let Followed { fs, mut rng, mut states, db, executor, repository, .. } = Followed::begin(1);
    let pin = db.pin_log(db.last_seqno()).unwrap();
    let [_, reader] = both(&fs, &db);
    let mut follow = Follow::begin(&repository, &reader, only_segments()).unwrap();
    let (first, generation) = (follow.status().seqno, follow.status().generation);
    for round in 0..60 {
        let before = db.last_seqno();
        write(&db, &mut rng, &executor);
        note(&mut states, &db);
        if round % 3 == 0 {
            follow.step(Duration::ZERO).unwrap();
            assert!(follow.status().seqno > before || db.last_seqno() == before);
        }
    }
    while follow.status().seqno < db.last_seqno() {
        follow.step(Duration::ZERO).unwrap();
    }
    let status = follow.status();
    assert_eq!((status.restarts, status.generation), (0, generation), "{status:?}");
    let (reached, missed) = check(&repository, &fs, &states, first, status.seqno);
    assert!(reached > 50 && missed == 0, "{reached} reached, {missed} missed");
    drop(pin);
}

#[test]
fn other_options_begin_a_timeline() {
    for of_reader in [false, true] {
        let fs = SimFileSystem::new();
        let db = options(&fs).0.open("/db").unwrap();
        let repository = Repository::create_on(Arc::new(fs.clone()), "/backups").unwrap();
        let pin = db.pin_log(0).unwrap();
        let (visits, state) = (db.keyspace("visits").unwrap(), KeyspaceOptions::new());
        db.keyspace_with("state", state.clone().wal(false)).unwrap();
        let mut follow = Follow::begin(&repository, &both(&fs, &db)[usize::from(of_reader)], only_segments()).unwrap();
        let mut step = || {
            let restarts = follow.status().restarts;
            db.sync().unwrap();
            while follow.status().seqno < db.last_seqno() {
                follow.step(Duration::ZERO).unwrap();
            }
            follow.status().restarts - restarts
        };
        visits.put("home", "0").unwrap();
        assert_eq!(step(), 0);
        let appends = db.keyspace_with("visits", KeyspaceOptions::new().merge_operator(Append)).unwrap();
        let merged = appends.merge("home", "1").unwrap();
        assert_eq!(step(), 1);
        db.keyspace("state").unwrap().put("a", "not logged").unwrap();
        let logged = db.keyspace_with("state", state.wal(true)).unwrap().put("b", "logged").unwrap();
        assert_eq!(step(), 1);
        for seqno in [merged, logged] {
            let restored = repository.restore_to(Point::Seqno(seqno), Base::OnlyStore, format!("/{seqno}")).unwrap();
            assert_eq!(restored.seqno, seqno);
            let copy = options(&fs).0.open(format!("/{seqno}")).unwrap();
            let visits = copy.keyspace_with("visits", KeyspaceOptions::new().merge_operator(Append)).unwrap();
            assert_eq!(visits.get("home").unwrap().as_deref(), Some(&b"01"[..]));
            let state = copy.keyspace("state").unwrap();
            assert_eq!(state.contains_key("a").unwrap(), state.contains_key("b").unwrap(), "as of {seqno}");
        }
        drop(pin);
    }
}

#[test]
fn keyspaces_without_a_log_are_as_in_the_generation() {
    let fs = SimFileSystem::new();
    let db = options(&fs).0.open("/db").unwrap();
    let repository = Repository::create_on(Arc::new(fs.clone()), "/backups").unwrap();
    let state = db.keyspace_with("state", KeyspaceOptions::new().wal(false)).unwrap();
    state.put("key", "flushed").unwrap();
    db.flush().unwrap();
    let mut follow = Follow::begin(&repository, &db, only_segments()).unwrap();
    state.put("key", "alone").unwrap();
    let mut batch = WriteBatch::new();
    batch.put("key", "one");
    batch.put_in(&state, "key", "with one");
    batch.put("other", "one");
    let one = db.write(batch).unwrap();
    state.put("key", "later").unwrap();
    let two = db.put("key", "two").unwrap();
    state.put("key", "last").unwrap();
    db.sync().unwrap();
    while follow.status().seqno < two {
        follow.step(Duration::ZERO).unwrap();
    }
    for (seqno, value) in [(one, "one"), (two, "two")] {
        let restored = repository.restore_to(Point::Seqno(seqno), Base::OnlyStore, format!("/{value}")).unwrap();
        let copy = options(&fs).0.open(format!("/{value}")).unwrap();
        assert_eq!((restored.seqno, copy.last_seqno()), (seqno, seqno));
        assert_eq!(copy.get("key").unwrap().as_deref(), Some(value.as_bytes()));
        assert_eq!(copy.get("other").unwrap().as_deref(), Some(&b"one"[..]));
        assert_eq!(copy.keyspace("state").unwrap().get("key").unwrap().as_deref(), Some(&b"flushed"[..]));
    }
}

#[test]
fn a_restored_store_goes_on_beside_its_original() {
    let fs = SimFileSystem::new();
    let db = options(&fs).0.open("/db").unwrap();
    let repository = Repository::create_on(Arc::new(fs.clone()), "/backups").unwrap();
    let mut follow = Follow::begin(&repository, &db, only_segments()).unwrap();
    let fork = db.put("key", "old").unwrap();
    db.put("key", "new").unwrap();
    db.sync().unwrap();
    follow.step(Duration::ZERO).unwrap();
    repository.restore_to(Point::Seqno(fork), Base::OnlyStore, "/fork").unwrap();
    let forked = options(&fs).0.open("/fork").unwrap();
    let mut of_fork = Follow::begin(&repository, &forked, only_segments()).unwrap();
    for (store, follow, value) in [(&forked, &mut of_fork, "forked"), (&db, &mut follow, "newer")] {
        store.put("key", value).unwrap();
        store.flush().unwrap();
        store.sync().unwrap();
        follow.step(Duration::ZERO).unwrap();
        repository.backup(store).unwrap();
    }
    repository.verify(&mut |fault| panic!("{fault}")).unwrap();
    for (generation, value) in [(1, "newer"), (2, "forked"), (3, "forked"), (4, "newer")] {
        let dir = format!("/{generation}");
        let point = Point::Time(SystemTime::now());
        repository.restore_to(point, Base::Generation(generation), &dir).unwrap();
        let found = options(&fs).0.open(&dir).unwrap().get("key").unwrap();
        assert_eq!(found.as_deref(), Some(value.as_bytes()), "from generation {generation}");
    }
}

#[test]
fn a_time_gives_what_was_written_until_then() {
    let fs = SimFileSystem::new();
    let db = options(&fs).0.open("/db").unwrap();
    let repository = Repository::create_on(Arc::new(fs.clone()), "/backups").unwrap();
    let before = SystemTime::now();
    std::thread::sleep(Duration::from_millis(2));
    let mut follow = Follow::begin(&repository, &db, only_segments()).unwrap();
    let mut moments = Vec::new();
    for n in 0..10u32 {
        std::thread::sleep(Duration::from_millis(2));
        if n % 3 != 1 {
            db.put(n.to_be_bytes(), "value").unwrap();
            db.sync().unwrap();
            follow.step(Duration::ZERO).unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
        moments.push((SystemTime::now(), contents(&db)));
    }
    for (at, (time, expected)) in moments.iter().enumerate() {
        let dir = format!("/moment{at}");
        let restored = repository.restore_to(Point::Time(*time), Base::OnlyStore, &dir).unwrap();
        assert!(restored.time <= *time);
        assert_eq!(contents(&options(&fs).0.open(&dir).unwrap()), *expected);
    }
    assert!(matches!(
        repository.restore_to(Point::Time(before), Base::OnlyStore, "/x"),
        Err(Error::InvalidArgument(_))
    ));
    let far = SystemTime::now() + Duration::from_secs(1000);
    let restored = repository.restore_to(Point::Time(far), Base::Generation(1), "/last").unwrap();
    assert_eq!((restored.seqno, restored.generation.number), (db.last_seqno(), 1));
    let reach = repository.reach().unwrap();
    assert_eq!((reach.len(), reach[0].generation, reach[0].until, reach[0].seqno), (1, 1, restored.time, 7));
}

/// A store in memory with a follower that writes to `storage`, and batches of which the store has a
/// prefix.
fn followed(storage: &MemoryStorage) -> (Db, Repository, Arc<dyn FileSystem>) {
    let fs: Arc<dyn FileSystem> = Arc::new(MemoryFileSystem::new());
    let db = Options::new().file_system(Arc::clone(&fs)).open("/db").unwrap();
    let storage: Arc<dyn Storage> = Arc::new(storage.clone());
    (db, Repository::create_in(Arc::clone(&fs), storage).unwrap(), fs)
}

#[test]
fn a_call_that_fails_is_made_up_for() {
    for trouble in [Trouble::Nothing, Trouble::Done] {
        for at in 1.. {
            let storage = MemoryStorage::default();
            let (db, repository, fs) = followed(&storage);
            let mut follow = Follow::begin(&repository, &db, only_segments()).unwrap();
            let mut failures = 0;
            storage.set_trouble(at, trouble);
            for n in 0..6u32 {
                if n == 3 {
                    db.keyspace("new").unwrap();
                }
                let last = db.put(n.to_be_bytes(), "value").unwrap();
                db.sync().unwrap();
                while follow.status().seqno < last {
                    failures += usize::from(follow.step(Duration::ZERO).is_err());
                }
            }
            let is_hit = storage.end_trouble();
            assert_eq!(failures, usize::from(is_hit), "{trouble:?} {at}");
            assert_eq!(repository.verify(&mut |fault| panic!("{fault}")).unwrap().faults, 0);
            let newest = repository.reach().unwrap().into_iter().map(|reach| reach.seqno).max();
            assert_eq!(newest, Some(db.last_seqno()));
            repository.restore_to(Point::Time(SystemTime::now()), Base::OnlyStore, "/copy").unwrap();
            let copy = Options::new().file_system(Arc::clone(&fs)).open("/copy").unwrap();
            assert_eq!(contents(&copy), contents(&db), "{trouble:?} {at}");
            if !is_hit {
                assert!(at > 10);
                break;
            }
        }
    }
}

#[test]
fn damaged_segments_are_found_and_never_replayed() {
    let storage = MemoryStorage::default();
    let (db, repository, _) = followed(&storage);
    let mut follow = Follow::begin(&repository, &db, only_segments()).unwrap();
    for n in 0..4u32 {
        db.put(n.to_be_bytes(), "value").unwrap();
        db.sync().unwrap();
        follow.step(Duration::ZERO).unwrap();
    }
    let segments: Vec<String> = storage.names().into_iter().filter(|name| name.starts_with("log/")).collect();
    assert_eq!(segments.len(), 4);
    let restore = |seqno, dir: &str| repository.restore_to(Point::Seqno(seqno), Base::OnlyStore, dir);
    for (at, name) in segments.iter().enumerate() {
        let mut whole = Vec::new();
        storage.spoil(name, |object| {
            whole = object.clone();
            Some(object)
        });
        let mut damages: Vec<Option<Vec<u8>>> = (0..whole.len()).map(|len| Some(whole[..len].to_vec())).collect();
        damages.extend((0..whole.len()).map(|byte| {
            let mut damaged = whole.clone();
            damaged[byte] ^= 4;
            Some(damaged)
        }));
        // One that is missing shows by those after it.
        damages.extend((at < 3).then_some(None));
        for (number, damaged) in damages.into_iter().enumerate() {
            let is_gone = damaged.is_none();
            if is_gone {
                storage.spoil(name, |_| None);
            } else {
                storage.spoil(name, |_| damaged);
            }
            let mut faults = 0;
            repository.verify(&mut |_| faults += 1).unwrap();
            assert_eq!(faults, 1, "{name} {number}");
            let dir = format!("/{at}/{number}");
            let failed = restore(at as u64 + 1, &dir).unwrap_err();
            assert!(failed.is_corruption(), "{failed}");
            assert_eq!(restore(at as u64, &format!("{dir}/before")).unwrap().seqno, at as u64);
            put_back(&storage, name, &whole);
        }
    }
    assert_eq!(restore(4, "/whole").unwrap().seqno, 4);
}

fn put_back(storage: &MemoryStorage, name: &str, whole: &[u8]) {
    storage.remove(&[name.to_owned()]).unwrap();
    storage.put(name, &mut |put| put(whole)).unwrap();
}

#[test]
fn a_power_cut_of_the_repository_leaves_what_was_followed() {
    for at in 1.. {
        let (fs, backups) = (SimFileSystem::new(), SimFileSystem::new());
        let db = options(&fs).0.open("/db").unwrap();
        let repository = Repository::create_on(Arc::new(backups.clone()), "/backups").unwrap();
        let mut follow = Follow::begin(&repository, &db, only_segments()).unwrap();
        backups.crash_at(Some(at));
        for n in 0..5u32 {
            db.put(n.to_be_bytes(), "value").unwrap();
            db.sync().unwrap();
            if follow.step(Duration::ZERO).is_err() {
                break;
            }
        }
        let followed = follow.status().seqno;
        let cut = backups.crash_point();
        for seed in 0..3 {
            let after = cut.as_ref().unwrap_or(&backups).crash(seed);
            let repository = Repository::open_on(Arc::new(after.clone()), "/backups").unwrap();
            assert_eq!(repository.verify(&mut |fault| panic!("{fault}")).unwrap().faults, 0);
            let reach = repository.reach().unwrap().pop().unwrap();
            assert!(reach.seqno >= followed, "{at}: {reach:?}, {followed} followed");
            // Another follower goes on, with the leftovers of the first one in its way.
            let mut next = Follow::begin(&repository, &db, only_segments()).unwrap();
            let last = db.put("later", "value").unwrap();
            db.sync().unwrap();
            next.step(Duration::ZERO).unwrap();
            assert_eq!(repository.restore_to(Point::Seqno(last), Base::OnlyStore, "/copy").unwrap().seqno, last);
        }
        if cut.is_none() {
            assert!(at > 10);
            break;
        }
    }
}

#[test]
fn a_thread_follows_writers_and_makes_generations() {
    let storage = MemoryStorage::default();
    let (db, repository, fs) = followed(&storage);
    let every = FollowOptions::new().generation_every(Duration::ZERO).segments(Duration::from_millis(5), 1 << 20);
    let follower = repository.follow(&db, every.keep(2)).unwrap();
    let mut n = 0u64;
    // Until all that can happen has happened.
    while follower.status().generation < 6 || follower.status().segments < 20 || follower.status().restarts < 1 {
        assert!(!follower.has_ended());
        let mut batch = WriteBatch::new();
        batch.put(format!("k{n:08}"), "v".repeat(50));
        n += 1;
        batch.put("count", n.to_string());
        db.write(batch).unwrap();
        if n == 500 {
            db.keyspace("new").unwrap();
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    follower.stop().unwrap();
    repository.verify(&mut |fault| panic!("{fault}")).unwrap();
    let restored = repository.restore_to(Point::Time(SystemTime::now()), Base::OnlyStore, "/copy").unwrap();
    assert_eq!(restored.seqno, db.last_seqno());
    let copy = Options::new().file_system(Arc::clone(&fs)).open("/copy").unwrap();
    assert_eq!(contents(&copy), contents(&db));
    // Any earlier time has a prefix.
    let reach = repository.reach().unwrap();
    for share in 0..5 {
        let span = reach.last().unwrap().until.duration_since(reach[0].from).unwrap();
        let dir = format!("/share{share}");
        repository.restore_to(Point::Time(reach[0].from + span * share / 5), Base::OnlyStore, &dir).unwrap();
        let copy = Options::new().file_system(Arc::clone(&fs)).open(&dir).unwrap();
        let count = copy.get("count").unwrap().map_or(0, |n| std::str::from_utf8(&n).unwrap().parse().unwrap());
        assert_eq!(copy.prefix("k").count(), count);
    }
    // A store that is closed ends it.
    let follower = repository.follow(&db, every).unwrap();
    db.close().unwrap();
    assert!(matches!(follower.stop(), Err(Error::Closed)));
}
