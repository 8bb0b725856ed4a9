//! Keyspaces do not cost each other: what is done to one takes the same work beside a hundred
//! others and beside thousands.

use tamis::vfs::SimFileSystem;
use tamis::{Db, Keyspace, KeyspaceOptions};

use crate::damage::allocations;
use crate::support::{count_from_env, stepped_options};

type Deed = fn(&Db, &Keyspace);

/// What is done to a store, and to one keyspace of it.
const DEEDS: [(&str, Deed); 8] = [
    ("create", |db, _| drop(db.keyspace("another").unwrap())),
    ("drop", |db, _| assert!(db.drop_keyspace("another").unwrap())),
    ("create and drop ten", |db, _| {
        let names: Vec<String> = (0..10).map(|i| format!("more {i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(db.keyspaces(&names).unwrap().len(), 10);
        assert_eq!(db.drop_keyspaces(&names).unwrap(), 10);
    }),
    ("open", |db, one| assert_eq!(db.existing_keyspace(one.name()).unwrap().unwrap().id(), one.id())),
    ("options", |db, one| {
        let options = KeyspaceOptions::new().block_size(8192);
        db.keyspace_with(one.name(), options).unwrap();
        db.keyspace_with(one.name(), KeyspaceOptions::new()).unwrap();
    }),
    ("snapshot", |db, one| {
        let snapshot = db.snapshot();
        one.put("a", "1").unwrap();
        drop(snapshot);
    }),
    ("put, flush and compactions", |db, one| {
        one.put("b", "2").unwrap();
        one.delete("a").unwrap();
        one.flush().unwrap();
        db.wait_for_compactions().unwrap();
    }),
    ("statistics of one", |_, one| assert!(one.stats().unwrap().size() > 0)),
];

/// The allocations of each deed in a store of `count` keyspaces, all of which have a table with
/// garbage, and every tenth also a range delete and a deadline.
fn work_beside(count: usize) -> Vec<(usize, usize)> {
    let fs = SimFileSystem::new();
    let (options, _executor) = stepped_options(&fs);
    let db = options.open("/db").unwrap();
    let names: Vec<String> = (0..count).map(|i| format!("keyspace {i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let keyspaces = db.keyspaces(&names).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1 << 30);
    for (i, keyspace) in keyspaces.iter().enumerate() {
        (0..4u8).for_each(|key| _ = keyspace.put([b'k', key], "value").unwrap());
        keyspace.delete("none").unwrap();
        if i % 10 == 0 {
            keyspace.put_with_expiry("later", "value", later).unwrap();
        }
    }
    db.flush().unwrap();
    for keyspace in keyspaces.iter().step_by(10) {
        keyspace.delete_range("k".."l").unwrap();
        keyspace.put("l", "1").unwrap();
    }
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    let one = &keyspaces[count / 2];
    // Twice: the first time, lists grow that never grow again.
    let all = || DEEDS.map(|(_, deed)| allocations(|| deed(&db, one))).to_vec();
    (0..4).for_each(|_| drop(all()));
    all()
}

#[test]
fn law2_keyspaces_do_not_cost_each_other_issue_29() {
    let most = usize::try_from(count_from_env("KEYSPACES", 1600)).unwrap();
    let sizes = [50, 200, 800, most];
    let work = sizes.map(work_beside);
    for (at, (name, _)) in DEEDS.iter().enumerate() {
        if std::env::var_os("KEYSPACES").is_some() {
            eprintln!("{name}: {:?}", work.each_ref().map(|work| work[at]));
        }
        let [least, rest @ ..] = work.each_ref().map(|work| work[at]);
        for (size, more) in sizes[1..].iter().zip(rest) {
            assert!(
                more.0 <= least.0 + least.0 / 4 + 20 && more.1 <= 2 * least.1 + (16 << 10),
                "{name}: {} allocations of {} bytes beside {size} keyspaces, {} of {} bytes beside {}",
                more.0,
                more.1,
                least.0,
                least.1,
                sizes[0],
            );
        }
    }
}

#[test]
fn law2_keyspaces_are_created_and_dropped_together_issue_29() {
    let fs = SimFileSystem::new();
    let names = ["a", "b", "c"];
    let open = || stepped_options(&fs).0.open("/db").unwrap();
    let db = open();
    assert_eq!(db.keyspaces(&[]).unwrap().len(), 0);
    assert!(db.keyspaces(&["a", "b", "a"]).is_err());
    assert!(db.keyspaces(&["a", ""]).is_err());
    assert_eq!(db.keyspace_names().unwrap(), ["default"], "a refused call creates none");
    let made = db.keyspaces(&names).unwrap();
    assert_eq!(made.iter().map(Keyspace::name).collect::<Vec<_>>(), names);
    made.iter().for_each(|keyspace| _ = keyspace.put("k", keyspace.name()).unwrap());
    // Those that exist are opened, with other options or the ones that they have.
    let options = KeyspaceOptions::new().block_size(8192);
    let again = db.keyspaces_with(&[("c", options.clone()), ("d", options.clone())]).unwrap();
    assert_eq!((again[0].id(), again[0].options().unwrap()), (made[2].id(), options));
    db.close().unwrap();

    let db = open();
    assert_eq!(db.keyspace_names().unwrap(), ["default", "a", "b", "c", "d"]);
    for keyspace in db.keyspaces(&names).unwrap() {
        assert_eq!(keyspace.get("k").unwrap().as_deref(), Some(keyspace.name().as_bytes()));
    }
    assert!(db.drop_keyspaces(&["a", "default"]).is_err());
    assert_eq!(db.drop_keyspaces(&["a", "a", "no", "c"]).unwrap(), 2);
    assert_eq!(db.drop_keyspaces(&["no"]).unwrap(), 0);
    db.close().unwrap();
    assert_eq!(open().keyspace_names().unwrap(), ["default", "b", "d"]);
}

#[test]
fn law2_keyspaces_of_one_edit_are_all_there_after_a_power_cut_or_none_issue_29() {
    let (mut all, mut none) = (0, 0);
    for seed in 0..60 {
        let fs = SimFileSystem::new();
        let db = stepped_options(&fs).0.open("/db").unwrap();
        db.put("k", "v").unwrap();
        fs.crash_at(Some(seed / 4));
        let made = db.keyspaces(&["a", "b", "c"]).is_ok();
        let fs = fs.crash(seed);
        drop(db);
        let db = stepped_options(&fs).0.open("/db").unwrap();
        let count = db.keyspace_names().unwrap().len() - 1;
        assert!([0, 3].contains(&count) && (count == 3 || !made), "seed {seed}: {count} of 3");
        if count == 3 { all += 1 } else { none += 1 }
    }
    assert!(all > 0 && none > 0, "{all} and {none}");
}
