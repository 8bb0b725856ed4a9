//! Law 2 beside damage: a value that cannot be read costs its key alone, whatever is merged into
//! it. Compactions keep it as it is, and hold nothing up.

use tamis::operator::{Append, CompactionDecision, MergeError, MergeOperator};
use tamis::vfs::SimFileSystem;
use tamis::{Db, KeyspaceOptions, Snapshot};

use crate::support::stepped_options;

/// As [`Append`], but of the caller's own: a memtable does not combine its operands.
struct Concat;

impl MergeOperator for Concat {
    fn name(&self) -> &str {
        "test.concat"
    }

    fn merge(&self, _key: &[u8], operands: &[&[u8]], out: &mut Vec<u8>) -> Result<(), MergeError> {
        out.extend(operands.concat());
        Ok(())
    }
}

/// What happens to the store after the damage.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Nothing: reads alone.
    None,
    /// Flushes, until level 0 is merged because it is full.
    Level0,
    /// A compaction that a caller asks for.
    Range,
    /// The file of the value is emptied, because the others in it are dead.
    ValueGarbage,
}

fn key(i: u32) -> String {
    format!("key {i:03}")
}

fn open(fs: &SimFileSystem, keyspace: &KeyspaceOptions) -> Db {
    let options = stepped_options(fs).0.memtable_size(1 << 20).table_size(64 << 10).cache_size(0);
    options.default_keyspace(keyspace.clone()).open("/db").unwrap()
}

/// Damages the values of some keys; returns these keys.
fn damage(fs: &SimFileSystem, db: &Db) -> Vec<u32> {
    for path in fs.paths().iter().filter(|path| path.extension().is_some_and(|extension| extension == "val")) {
        fs.corrupt(path, fs.file_len(path).unwrap() / 2, 0x55).unwrap();
    }
    (0..100).filter(|&i| db.get(key(i)).is_err()).collect()
}

fn check(db: &Db, damaged: &[u32], expected: impl Fn(u32) -> Vec<u8>, scene: &str) {
    for i in 0..100 {
        match db.get(key(i)) {
            Err(error) => assert!(damaged.contains(&i) && error.is_corruption(), "{scene}: {error}"),
            Ok(value) => assert!(!damaged.contains(&i) && value.as_deref() == Some(&expected(i)[..]), "{scene}: {i}"),
        }
        let together = db.multi_get(&[key(i)]);
        assert_eq!(together.is_err(), damaged.contains(&i), "{scene}");
        let mut forward = db.range(key(i)..=key(i));
        assert_eq!(forward.next().unwrap().is_err(), damaged.contains(&i), "{scene}");
        let mut backward = db.range(key(i)..=key(i)).rev();
        assert_eq!(backward.next().unwrap().is_err(), damaged.contains(&i), "{scene}");
    }
}

fn case(work: Work, keyspace: &KeyspaceOptions, has_snapshot: bool, scene: &str) {
    let fs = SimFileSystem::new();
    let db = open(&fs, keyspace);
    let value = |i: u32| vec![u8::try_from(i).unwrap(); 2000];
    for i in 0..100 {
        db.put(key(i), value(i)).unwrap();
    }
    db.flush().unwrap();
    let damaged = damage(&fs, &db);
    assert_eq!(damaged.len(), 1, "{scene}");
    let snapshot: Option<Snapshot> = has_snapshot.then(|| db.snapshot());
    let mut expected: Vec<Vec<u8>> = (0..100).map(value).collect();
    let mut round = |db: &Db, operand: u8| {
        for i in 0..100 {
            db.merge(key(i), [operand]).unwrap();
            expected[i as usize].push(operand);
        }
        db.flush().unwrap();
    };
    round(&db, b'a');
    match work {
        Work::None => {}
        Work::Level0 => (0..20).for_each(|_| {
            round(&db, b'b');
            db.wait_for_compactions().unwrap();
        }),
        Work::Range => {
            db.compact_range(..).unwrap();
            round(&db, b'c');
            db.compact_range(..).unwrap();
        }
        Work::ValueGarbage => {
            for i in (0..100).filter(|i| !damaged.contains(i)) {
                db.put(key(i), value(i)).unwrap();
                expected[i as usize] = value(i);
            }
            db.compact_range(..).unwrap();
        }
    }
    // Emptying the file fails once, and says so.
    assert!(db.wait_for_compactions().is_ok() || matches!(work, Work::ValueGarbage), "{scene}");
    db.wait_for_compactions().unwrap();
    check(&db, &damaged, |i| expected[i as usize].clone(), scene);
    let stats = db.stats();
    let runs = stats.keyspaces[0].levels[0].tables.len();
    assert!(stats.compaction_debt == 0 && runs < 12, "{scene}: {runs} runs in level 0, {}", stats.compaction_debt);
    drop(snapshot);
    db.close().unwrap();
    let db = open(&fs, keyspace);
    let _ = db.wait_for_compactions();
    db.compact_range(..).unwrap();
    check(&db, &damaged, |i| expected[i as usize].clone(), scene);
    // A new value mends it.
    for &i in &damaged {
        db.put(key(i), "new").unwrap();
        db.merge(key(i), "er").unwrap();
    }
    db.compact_range(..).unwrap();
    assert!(damaged.iter().all(|&i| db.get(key(i)).unwrap().as_deref() == Some(b"newer")), "{scene}");
}

#[test]
fn a_damaged_value_below_operands_costs_its_key_alone() {
    for work in [Work::None, Work::Level0, Work::Range, Work::ValueGarbage] {
        for own in [false, true] {
            for (has_filter, has_snapshot) in [(false, false), (true, false), (false, true)] {
                let keyspace = KeyspaceOptions::new().separate_values(Some(1000));
                let keyspace = if own { keyspace.merge_operator(Concat) } else { keyspace.merge_operator(Append) };
                let keyspace = match has_filter {
                    true => keyspace.compaction_filter(|_: &[u8], _: &[u8]| CompactionDecision::Keep),
                    false => keyspace,
                };
                let scene = format!("{work:?}, own {own}, filter {has_filter}, snapshot {has_snapshot}");
                case(work, &keyspace, has_snapshot, &scene);
            }
        }
    }
}
