//! The figures of issue 29, on the real file system and at the sizes of the defaults. `TAMIS_KEYS`
//! sets the number of entries, `TAMIS_DIR` the directory of the stores.

use std::path::PathBuf;

use tamis::{Compression, Db, KeyspaceOptions, Options};

use crate::support::count_from_env;

/// A store of the default sizes on the real file system: its entries are put in order of their
/// numbers, some are deleted, and its size is printed.
fn check_real(name: &str, count: u64, entry: impl Fn(u64) -> (Vec<u8>, usize), delete: impl Fn(&Db)) {
    let above = std::env::var_os("TAMIS_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = above.join(format!("tamis-law1-{}-{}", name.replace(' ', "-"), std::process::id()));
    let open = || {
        let keyspace = KeyspaceOptions::new().compression(Compression::None);
        Options::new().default_keyspace(keyspace).open(&dir).unwrap()
    };
    let mut db = open();
    for i in 0..count {
        let (key, value_len) = entry(i);
        db.put(key, vec![(i % 251) as u8; value_len]).unwrap();
    }
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    let size = |db: &Db| db.stats().keyspaces[0].size();
    let before = size(&db);
    delete(&db);
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    let (rested, debt) = (size(&db), db.stats().compaction_debt);
    db.close().unwrap();
    db = open();
    db.wait_for_compactions().unwrap();
    let reopened = size(&db);
    db.compact_range(..).unwrap();
    let least = size(&db);
    db.close().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    println!("{name}: {before} bytes, {rested} after rest, {reopened} reopened, {least} compacted, debt {debt}");
    assert!(rested * 5 <= least * 6 + (5 << 20), "{name}: {rested} of {least}");
}

fn sensor_key(sensor: u64, i: u64) -> Vec<u8> {
    let time = 1_700_000_000_000 + 60_000 * i;
    [&sensor.to_be_bytes()[6..], &time.to_be_bytes()].concat()
}

#[test]
#[ignore = "takes a minute; cargo test --release --test it law1 -- --ignored --nocapture --test-threads 1"]
fn real_stores_give_back_what_was_deleted() {
    let count = count_from_env("TAMIS_KEYS", 1_000_000);
    let of_sensors = |name: &str, count: u64, sensors: u64, value_len: usize| {
        let each = count / sensors;
        let entry = move |i: u64| (sensor_key(i % sensors, i / sensors), value_len);
        check_real(name, count, entry, |db| {
            for sensor in 0..sensors {
                db.delete_range(sensor_key(sensor, 0)..sensor_key(sensor, each / 10 * 9)).unwrap();
            }
        });
    };
    of_sensors("the older nine tenths of 20 sensors", count, 20, 100);
    of_sensors("the older nine tenths of 100 sensors", 10 * count, 100, 8);
    check_real(
        "15 of 20 prefixes",
        count,
        |i| (format!("{:02}:{:08}", i % 20, i / 20).into_bytes(), 8),
        |db| {
            (0..15).for_each(|prefix| _ = db.delete_prefix(format!("{prefix:02}:")).unwrap());
        },
    );
    check_real(
        "every second of small entries",
        count,
        |i| (format!("{i:016}").into_bytes(), 20),
        |db| {
            (0..count).step_by(2).for_each(|i| _ = db.delete(format!("{i:016}")).unwrap());
        },
    );
}
