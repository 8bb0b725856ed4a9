//! 256 stores in one environment against maps: random operations, and stores that are closed,
//! killed and reopened in random order.

use std::collections::BTreeMap;

use tamis::vfs::SimFileSystem;
use tamis::{Db, Environment, EnvironmentOptions, Executor, KeyspaceOptions, WriteBatch};

use super::{budget_and_slack, options, stepped};
use crate::support::{Scene, count_from_env, for_each_seed};

const STORES: usize = 256;

struct Member {
    fs: SimFileSystem,
    db: Option<Db>,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Member {
    fn open(&mut self, environment: &Environment) -> &Db {
        let fs = &self.fs;
        self.db.get_or_insert_with(|| {
            let keyspace = KeyspaceOptions::new().block_size(512);
            let options = options(fs, environment).default_keyspace(keyspace);
            options.memtable_size(64 << 10).table_size(16 << 10).open("/db").unwrap()
        })
    }
}

#[test]
fn stores_of_one_environment_are_what_their_maps_are() {
    for_each_seed(count_from_env("TAMIS_ENVIRONMENTS", 2), |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let limits = EnvironmentOptions::new()
            .memtable_budget(1 << 20 << random.u8(0..2))
            .cache_size([0, 64 << 10, 1 << 20][random.usize(0..3)])
            .max_open_files(8 + random.usize(0..20));
        let (environment, executor) = stepped(limits);
        let new = |_| Member { fs: SimFileSystem::new(), db: None, model: BTreeMap::new() };
        let mut members: Vec<Member> = (0..STORES).map(new).collect();
        for step in 0..20_000 {
            let _scene = Scene(format!("seed {seed}, step {step}"));
            // A few stores are busy, and all have their turn.
            let at = if random.bool() { random.usize(0..8) } else { random.usize(0..STORES) };
            act(&mut members[at], &environment, &mut random);
            if random.u8(0..8) == 0 {
                executor.step();
            }
            let (taken, most) = (environment.stats().memtables, budget_and_slack(&environment));
            assert!(taken <= most, "{taken} bytes of {most}");
            assert!(environment.stats().cache <= environment.stats().cache_limit);
        }
        while executor.step() {}
        let open: Vec<&Db> = members.iter().filter_map(|member| member.db.as_ref()).collect();
        let own: usize = open.iter().map(|db| db.stats().memory.memtables).sum();
        let (stats, most) = (environment.stats(), budget_and_slack(&environment));
        assert!(stats.stores == open.len() && own <= stats.memtables && own <= most, "{own} of {stats:?}");
        assert!(stats.sealed_early > 0, "the budget has been felt: {stats:?}");
        for (n, member) in members.iter_mut().enumerate() {
            let _scene = Scene(format!("seed {seed}, store {n} at the end"));
            let entries = member.open(&environment).iter().map(|entry| entry.unwrap());
            assert!(entries.map(|(key, value)| (key.to_vec(), value.to_vec())).eq(member.model.clone()));
            member.db.take().unwrap().close().unwrap();
        }
        assert_eq!((environment.stats().memtables, environment.stats().open_files), (0, 0));
    });
}

fn act(member: &mut Member, environment: &Environment, random: &mut fastrand::Rng) {
    let key = random.u16(0..300).to_be_bytes().to_vec();
    let db = member.open(environment).clone();
    match random.u8(0..40) {
        0 => db.flush().unwrap(),
        1 => {
            drop(member.db.take());
            db.close().unwrap();
        }
        2 => {
            // The process ends for this store alone. What was written is in its log.
            let killed = member.fs.kill();
            drop((member.db.take(), db));
            member.fs = killed;
        }
        3 => db.wait_for_compactions().unwrap(),
        4..10 => assert_eq!(db.get(&key).unwrap().as_deref(), member.model.get(&key).map(Vec::as_slice)),
        10..14 => {
            db.delete(&key).unwrap();
            member.model.remove(&key);
        }
        14 => {
            let mut batch = WriteBatch::new();
            for n in 0..random.u16(1..40) {
                let (key, value) = (n.to_be_bytes().to_vec(), vec![random.u8(..); 100]);
                batch.put(&key, &value);
                member.model.insert(key, value);
            }
            db.write(batch).unwrap();
        }
        _ => {
            let value = vec![random.u8(..); random.usize(1..2000)];
            db.put(&key, &value).unwrap();
            member.model.insert(key, value);
        }
    }
}
