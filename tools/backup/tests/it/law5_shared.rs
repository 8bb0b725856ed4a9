//! Law 5: where several owners share a place, none harms another. Here the place is a repository,
//! and the owners are stores, copies of each other among them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{Db, Error, Executor, Options, SteppedExecutor};
use tamis_backup::{Base, Follow, FollowOptions, Point, Repository, StoreId};
use xxhash_rust::xxh3::xxh3_64;

use crate::memory::MemoryStorage;

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

fn contents(db: &Db) -> Contents {
    db.iter().map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
}

/// No generation is made by time.
fn following() -> FollowOptions {
    FollowOptions::new().generation_every(Duration::MAX)
}

fn options(fs: &SimFileSystem) -> Options {
    let executor: Arc<dyn Executor> = Arc::new(SteppedExecutor::new());
    Options::new().file_system(Arc::new(fs.clone())).executor(executor).memtable_size(8 << 10)
}

/// A store, and what the repository must have of it.
struct Owner {
    dir: String,
    db: Db,
    /// Known from its first generation on.
    id: Option<StoreId>,
    generations: BTreeMap<u64, Contents>,
    /// With how many generations it keeps.
    follow: Option<(Follow, Option<usize>)>,
}

impl Owner {
    fn new(dir: String, db: Db) -> Owner {
        Owner { dir, db, id: None, generations: BTreeMap::new(), follow: None }
    }

    fn keep(&mut self, keep: usize) {
        while self.generations.len() > keep {
            self.generations.pop_first();
        }
    }
}

struct World {
    fs: SimFileSystem,
    repository: Repository,
    owners: Vec<Owner>,
    rng: fastrand::Rng,
    restored: u32,
}

impl World {
    fn new(seed: u64, is_directory: bool) -> World {
        let fs = SimFileSystem::new();
        let system: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let repository = match is_directory {
            true => Repository::create_on(system, "/backups").unwrap(),
            false => Repository::create_in(system, Arc::new(MemoryStorage::default())).unwrap(),
        };
        let mut world = World { fs, repository, owners: Vec::new(), rng: fastrand::Rng::with_seed(seed), restored: 0 };
        for i in 0..2 {
            world.open(format!("/store{i}"));
        }
        world
    }

    fn open(&mut self, dir: String) {
        let db = options(&self.fs).open(&dir).unwrap();
        self.owners.push(Owner::new(dir, db));
    }

    /// Does something on behalf of one store, or of all.
    fn act(&mut self) {
        let at = self.rng.usize(0..self.owners.len());
        let World { fs, repository, owners, rng, restored } = self;
        let count = owners.len();
        let owner = &mut owners[at];
        match rng.u32(0..24) {
            0..8 => {
                let key = format!("key{}", rng.u32(0..20));
                owner.db.put(key, format!("{at} {}", rng.u64(..))).unwrap();
                if rng.bool() {
                    owner.db.flush().unwrap();
                }
            }
            8..12 => {
                let made = repository.backup(&owner.db).unwrap();
                assert_eq!(*owner.id.get_or_insert(made.store), made.store, "a store has one id");
                owner.generations.insert(made.generation, contents(&owner.db));
            }
            12 | 13 => {
                let keep = if rng.bool() { Some(rng.usize(1..3)) } else { None };
                let follow_options = keep.map_or(following(), |keep| following().keep(keep));
                let follow = Follow::begin(repository, &owner.db, follow_options).unwrap();
                let generation = follow.status().generation;
                owner.follow = Some((follow, keep));
                owner.id = Some(repository.generation(generation).unwrap().store);
                owner.generations.insert(generation, contents(&owner.db));
                owner.keep(keep.unwrap_or(usize::MAX));
            }
            14..18 => {
                let Some((follow, keep)) = &mut owner.follow else { return };
                let (base, restarts) = (follow.status().generation, follow.status().restarts);
                let is_lost = !owner.generations.contains_key(&base);
                owner.db.sync().unwrap();
                follow.step(Duration::ZERO).unwrap();
                let status = follow.status().clone();
                assert_eq!(status.restarts, restarts + u64::from(is_lost), "{status:?}");
                assert_eq!(status.seqno, owner.db.last_seqno());
                if is_lost {
                    assert!(status.restarted_for.is_some_and(|why| why.contains("was removed")));
                    let keep = keep.unwrap_or(usize::MAX);
                    owner.generations.insert(status.generation, contents(&owner.db));
                    owner.keep(keep);
                }
                // What the status says is true.
                let dir = format!("/restored{restored}");
                *restored += 1;
                let (point, base) = (Point::Seqno(status.seqno), Base::Generation(status.generation));
                repository.restore_to(point, base, &dir).unwrap();
                assert_eq!(contents(&options(fs).open(&dir).unwrap()), contents(&owner.db));
            }
            18 | 19 => {
                let Some(id) = owner.id else { return };
                let keep = rng.usize(0..3);
                repository.prune_store(id, keep).unwrap();
                owner.keep(keep);
            }
            20 => {
                let keep = rng.usize(0..3);
                repository.prune(keep).unwrap();
                owners.iter_mut().for_each(|owner| owner.keep(keep.max(1)));
            }
            21 if count < 5 => {
                // A copy, which is a store of its own from now on.
                let copy = format!("{}c{count}", owner.dir);
                owner.db.checkpoint(&copy).unwrap();
                self.open(copy);
            }
            22 if count < 5 && !owner.generations.is_empty() => {
                let (number, dir) = (*owner.generations.keys().next().unwrap(), format!("{}r{count}", owner.dir));
                repository.restore(number, &dir).unwrap();
                self.open(dir);
            }
            _ => {
                // As another process would.
                owner.follow = None;
                let path = owner.dir.clone();
                let mut closed = self.owners.swap_remove(at);
                closed.db.close().unwrap();
                closed.db = options(&self.fs).open(path).unwrap();
                self.owners.push(closed);
            }
        }
    }

    fn check(&mut self) {
        let mut found: BTreeMap<StoreId, Vec<u64>> = BTreeMap::new();
        for generation in self.repository.generations().unwrap() {
            found.entry(generation.store).or_default().push(generation.number);
        }
        let expected = self.owners.iter().filter(|owner| !owner.generations.is_empty());
        let expected: BTreeMap<StoreId, Vec<u64>> =
            expected.map(|owner| (owner.id.unwrap(), owner.generations.keys().copied().collect())).collect();
        assert_eq!(found, expected);
        assert_eq!(self.repository.stores().unwrap().len(), expected.len());
        let last = self.repository.last(Base::OnlyStore);
        assert_eq!(last.is_ok(), expected.len() == 1, "{last:?}");
    }

    /// Every generation can be restored.
    fn check_contents(&mut self) {
        self.repository.verify(&mut |fault| panic!("{fault}")).unwrap();
        for (at, owner) in self.owners.iter().enumerate() {
            for (number, expected) in &owner.generations {
                let dir = format!("/check{at}-{number}-{}", self.restored);
                self.restored += 1;
                self.repository.restore(*number, &dir).unwrap();
                assert_eq!(contents(&options(&self.fs).open(&dir).unwrap()), *expected, "generation {number}");
            }
        }
    }
}

#[test]
fn each_store_has_the_generations_that_its_own_operations_left() {
    for seed in 0..3 {
        for is_directory in [true, false] {
            let mut world = World::new(seed, is_directory);
            for step in 0..60 {
                world.act();
                world.check();
                if step % 20 == 19 {
                    world.check_contents();
                }
            }
        }
    }
}

/// The trial of issue 29, fault 23.
#[test]
fn two_stores_that_keep_one_generation_each_have_one_each() {
    let fs = SimFileSystem::new();
    let repository = Repository::create_on(Arc::new(fs.clone()), "/backups").unwrap();
    let names = ["one", "two"];
    let stores = names.map(|name| options(&fs).open(format!("/{name}")).unwrap());
    let mut follows = stores.each_ref().map(|db| Follow::begin(&repository, db, following().keep(1)).unwrap());
    for round in 0..3 {
        for ((db, follow), name) in stores.iter().zip(&mut follows).zip(names) {
            db.put("name", format!("{name}{round}")).unwrap();
            db.sync().unwrap();
            follow.step(Duration::ZERO).unwrap();
            assert_eq!((follow.status().restarts, follow.status().seqno), (0, db.last_seqno()));
        }
    }
    let stored = repository.stores().unwrap();
    assert_eq!(stored.iter().map(|store| (store.generations, &*store.path)).collect::<Vec<_>>().len(), 2);
    let now = Point::Time(SystemTime::now() + Duration::from_secs(1));
    // Which one is meant has to be said.
    for refused in
        [repository.restore_to(now, Base::OnlyStore, "/x").map(drop), repository.last(Base::OnlyStore).map(drop)]
    {
        let Err(Error::InvalidArgument(why)) = refused else { panic!("not refused") };
        assert!(stored.iter().all(|store| why.contains(&store.id.to_string()) && why.contains(&store.path)), "{why}");
    }
    for store in &stored {
        let dir = format!("/copy-{}", store.id);
        repository.restore_to(now, Base::Store(store.id), &dir).unwrap();
        let name = options(&fs).open(&dir).unwrap().get("name").unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(&name), format!("{}2", store.path.trim_start_matches('/')));
    }
}

/// Rewrites a record as version 1 had it.
fn downgrade(fs: &SimFileSystem, path: &Path) {
    let text = String::from_utf8(fs.read(path).unwrap()).unwrap();
    let lines = text.lines().filter(|line| !["kept", "store", "hash"].iter().any(|key| line.starts_with(key)));
    let old: String = lines.map(|line| format!("{}\n", line.replace("generation 2", "generation 1"))).collect();
    fs.write(path, format!("{old}hash {:016x}\n", xxh3_64(old.as_bytes()))).unwrap();
}

#[test]
fn records_that_name_no_store_count_for_the_store_that_wrote_their_files() {
    let fs = SimFileSystem::new();
    let repository = Repository::create_on(Arc::new(fs.clone()), "/backups").unwrap();
    let stores = ["/one", "/two"].map(|dir| options(&fs).open(dir).unwrap());
    for round in 0..3 {
        for db in &stores {
            db.put("round", round.to_string()).unwrap();
            db.flush().unwrap();
            repository.backup(db).unwrap();
        }
    }
    let before: Vec<_> = repository.generations().unwrap().iter().map(|of| (of.number, of.store)).collect();
    (1..=6).for_each(|number| downgrade(&fs, Path::new(&format!("/backups/gen/{number:08}"))));
    let after: Vec<_> = repository.generations().unwrap().iter().map(|of| (of.number, of.store)).collect();
    assert_eq!(after, before);
    let made = repository.backup(&stores[0]).unwrap();
    repository.prune_store(made.store, 2).unwrap();
    let left: Vec<u64> = repository.generations().unwrap().iter().map(|of| of.number).collect();
    assert_eq!(left, [2, 4, 5, 6, 7]);
    repository.verify(&mut |fault| panic!("{fault}")).unwrap();
}

/// However many generations others make, an old one that is kept costs one record.
#[test]
fn records_stay_few_beside_an_old_generation() {
    let fs = SimFileSystem::new();
    let repository = Repository::create_on(Arc::new(fs.clone()), "/backups").unwrap();
    let [old, busy] = ["/old", "/busy"].map(|dir| options(&fs).open(dir).unwrap());
    old.put("a", "1").unwrap();
    let first = repository.backup(&old).unwrap().generation;
    for round in 0..30 {
        busy.put("round", round.to_string()).unwrap();
        let made = repository.backup(&busy).unwrap();
        repository.prune_store(made.store, 2).unwrap();
        let records = fs.list(Path::new("/backups/gen")).unwrap().len();
        assert!(records <= 4, "{records} records");
    }
    repository.restore(first, "/copy").unwrap();
    assert_eq!(options(&fs).open("/copy").unwrap().get("a").unwrap().as_deref(), Some(&b"1"[..]));
}
