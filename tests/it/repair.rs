//! Does a repair save everything that can be saved, and report the rest?

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis::inspect::{Content, Inspector, ManifestChange};
use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{
    Compression, Db, Error, Executor, KeyspaceOptions, LossKind, Options, RepairBasis, SteppedExecutor, repair,
};

use crate::support::stepped_options;
use repaired::{DIR, files, known_losses, lose_manifests, manifests, of_kind, repair_options, repaired};

mod cut_flush;
mod interrupted;
mod lost;
mod power;
mod repaired;
mod salvage;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(fs: &SimFileSystem) -> (Options, Arc<SteppedExecutor>) {
    let (options, executor) = stepped_options(fs);
    let keyspace = KeyspaceOptions::new().block_size(256).compression(Compression::None);
    (options.memtable_size(4096).table_size(4096).cache_size(0).default_keyspace(keyspace), executor)
}

fn open(fs: &SimFileSystem) -> Db {
    options(fs).0.open(DIR).unwrap()
}

fn contents(db: &Db) -> Map {
    contents_of(db, "default")
}

fn contents_of(db: &Db, keyspace: &str) -> Map {
    let Some(keyspace) = db.existing_keyspace(keyspace).unwrap() else { return Map::new() };
    let mut map = Map::new();
    for entry in keyspace.iter() {
        let (key, value) = entry.unwrap();
        assert_eq!(keyspace.get(&key).unwrap().as_deref(), Some(&*value), "gets and scans agree");
        map.insert(key.to_vec(), value.to_vec());
    }
    map
}

/// The store still works: its contents stay, and new writes take effect.
fn check_usable(fs: &SimFileSystem) -> Map {
    let (options_of, executor) = options(fs);
    let db = options_of.open(DIR).unwrap();
    let before = contents(&db);
    let mut expected = before.clone();
    for key in before.keys().step_by(3) {
        db.delete(key).unwrap();
        expected.remove(key);
    }
    db.put("new", "value").unwrap();
    expected.insert(b"new".to_vec(), b"value".to_vec());
    db.sync().unwrap();
    assert_eq!(contents(&db), expected);
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    while executor.step() {}
    assert_eq!(contents(&db), expected);
    drop(db);
    let db = open(&fs.kill());
    assert_eq!(contents(&db), expected);
    before
}

/// A file system with the same files, all of them durable.
fn settled(fs: &SimFileSystem) -> SimFileSystem {
    let settled = SimFileSystem::new();
    files(fs).into_iter().for_each(|(path, bytes)| settled.write(path, bytes).unwrap());
    settled
}

fn key(i: usize) -> Vec<u8> {
    format!("key{i:04}").into_bytes()
}

fn value(i: usize) -> Vec<u8> {
    format!("value{i:04}").repeat(3).into_bytes()
}

/// A store of `count` keys in the last level, as a kill leaves it.
fn compacted(count: usize) -> (SimFileSystem, Map) {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    let map: Map = (0..count).map(|i| (key(i), value(i))).collect();
    map.iter().for_each(|(key, value)| _ = db.put(key, value).unwrap());
    db.compact_range(..).unwrap();
    db.close().unwrap();
    (fs.kill(), map)
}

#[test]
fn sound_store_is_left_unchanged() {
    let (fs, map) = compacted(300);
    let report = repaired(&fs);
    assert!(report.is_sound() && report.manifest == 0, "{report}");
    assert_eq!(check_usable(&fs), map);
}

#[test]
fn directory_without_a_store_is_refused_and_left_alone() {
    let fs = SimFileSystem::new();
    assert!(matches!(repair(DIR, repair_options(&fs)), Err(Error::NotFound(_))));
    fs.write("/db/foreign.txt", *b"text").unwrap();
    assert!(matches!(repair(DIR, repair_options(&fs)), Err(Error::NotFound(_))));
    assert_eq!(fs.paths(), [Path::new("/db/foreign.txt")]);
}

#[test]
fn directory_of_files_with_our_names_is_refused_and_a_single_table_of_ours_is_not() {
    let foreign = SimFileSystem::new();
    foreign.write("/db/CURRENT", *b"MANIFEST-000004\n").unwrap();
    foreign.write("/db/MANIFEST-000004", *b"\x56\xf9\xb8\xf8\x1c\0\x01leveldb.BytewiseComparator").unwrap();
    foreign.write("/db/000008.sst", vec![0; 5000]).unwrap();
    foreign.write("/db/LOCK", *b"mine").unwrap();
    for dry_run in [true, false] {
        let result = repair(DIR, repair_options(&foreign).dry_run(dry_run));
        assert!(matches!(result, Err(Error::NotAStore { .. })), "{result:?}");
        assert_eq!(foreign.read("/db/LOCK").unwrap(), b"mine");
    }
    // A store may consist of a single table, and that table may lack its beginning.
    let (fs, map) = compacted(100);
    lose_manifests(&fs);
    of_kind(&fs, "wal").iter().for_each(|path| fs.remove(path).unwrap());
    fs.write("/db/CURRENT", *b"garbage").unwrap();
    for path in of_kind(&fs, "sst") {
        fs.corrupt(&path, 2, 1).unwrap();
    }
    repaired(&fs);
    assert_eq!(contents(&open(&fs)), map);
}

#[test]
fn store_that_is_open_is_refused() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    db.put("key", "value").unwrap();
    assert!(matches!(repair(DIR, repair_options(&fs)), Err(Error::Locked { .. })));
    drop(db);
    assert!(repair(DIR, repair_options(&fs)).unwrap().is_sound());
}

#[test]
fn store_of_a_later_version_is_refused_and_one_with_a_damaged_version_is_not() {
    let (fs, map) = compacted(100);
    for path in of_kind(&fs, "sst").into_iter().chain(manifests(&fs)) {
        let damaged = fs.kill();
        damaged.corrupt(&path, 8, 3).unwrap();
        repaired(&damaged);
        assert_eq!(check_usable(&damaged), map);
        // A later version, with a matching checksum.
        let mut bytes = fs.read(&path).unwrap();
        bytes[8] = 2;
        let mut bound = crc32fast::Hasher::new();
        bound.update(&bytes[16..24]);
        bound.update(&[0; 8]);
        bound.update(&bytes[..60]);
        bytes[60..64].copy_from_slice(&bound.finalize().to_le_bytes());
        let later = fs.kill();
        later.write(&path, bytes).unwrap();
        let before = files(&later);
        assert!(matches!(repair(DIR, repair_options(&later)), Err(Error::Unsupported { .. })), "{path:?}");
        assert_eq!(files(&later), before);
    }
}

#[test]
fn current_is_rebuilt() {
    let (fs, map) = compacted(300);
    for damage in 0..3 {
        let fs = fs.kill();
        match damage {
            0 => fs.remove(Path::new("/db/CURRENT")).unwrap(),
            1 => fs.write("/db/CURRENT", *b"garbage").unwrap(),
            _ => fs.corrupt("/db/CURRENT", 9, 1).unwrap(),
        }
        let kept = fs.read("/db/CURRENT").ok();
        let report = repaired(&fs);
        assert_eq!(report.basis, RepairBasis::Manifest);
        assert!(!report.has_losses() && !report.is_sound(), "{report}");
        let copy = format!("/db/lost/CURRENT-{:06}", report.manifest);
        assert_eq!(fs.read(copy).ok(), kept, "a damaged one is kept");
        assert_eq!(check_usable(&fs), map);
    }
}

#[test]
fn missing_manifest_is_rebuilt_from_tables() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    let words = KeyspaceOptions::new().compression(Compression::Lz4).block_size(512);
    let words = db.keyspace_with("words", words).unwrap();
    let mut map = Map::new();
    for i in 0..400 {
        db.put(key(i), value(i)).unwrap();
        words.put(key(i), "word").unwrap();
        map.insert(key(i), value(i));
        if i == 200 {
            db.compact_range(..).unwrap();
            words.compact_range(..).unwrap();
        }
    }
    db.flush().unwrap();
    for i in (0..400).step_by(7) {
        db.delete(key(i)).unwrap();
        map.remove(&key(i));
    }
    db.sync().unwrap();
    let fs = fs.kill();
    lose_manifests(&fs);
    let report = repaired(&fs);
    assert_eq!(report.basis, RepairBasis::Tables);
    assert!(known_losses(&report).is_empty(), "{report}");
    assert!(report.entries_from_logs > 0 && report.tables_rewritten == 0 && report.notes.is_empty(), "{report}");
    let db = open(&fs);
    assert_eq!(contents_of(&db, "words").len(), 400);
    assert_eq!(db.keyspace_names().unwrap(), ["default", "words"]);
    drop(db);
    assert_eq!(check_usable(&fs), map);
}

/// Keys are put and flushed, every third one is deleted and flushed, and everything is compacted:
/// no tombstone is left. Returns the store, its contents, and the removed tables and logs.
fn with_elided_tombstones() -> (SimFileSystem, Map, BTreeMap<PathBuf, Vec<u8>>) {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    let mut map = Map::new();
    let mut seen = BTreeMap::new();
    for i in 0..100 {
        db.put(key(i), value(i)).unwrap();
        map.insert(key(i), value(i));
    }
    seen.extend(files(&fs));
    db.flush().unwrap();
    seen.extend(files(&fs));
    for i in (0..100).step_by(3) {
        db.delete(key(i)).unwrap();
        map.remove(&key(i));
    }
    seen.extend(files(&fs));
    db.flush().unwrap();
    seen.extend(files(&fs));
    db.compact_range(..).unwrap();
    db.close().unwrap();
    let there = files(&fs);
    seen.retain(|path, _| !there.contains_key(path) && path.extension().is_some());
    (fs.kill(), map, seen)
}

#[test]
fn deleted_keys_stay_deleted_whatever_tables_and_logs_are_left_behind() {
    let (fs, map, seen) = with_elided_tombstones();
    assert!(seen.len() >= 4, "{:?}", seen.keys());
    for manifest in 0..3 {
        for chosen in 0..1u32 << seen.len() {
            let fs = fs.kill();
            for (i, (path, bytes)) in seen.iter().enumerate() {
                if chosen & 1 << i != 0 {
                    fs.write(path, bytes.clone()).unwrap();
                }
            }
            let newest = manifests(&fs).pop().unwrap();
            match manifest {
                0 => fs.remove(&newest).unwrap(),
                1 => fs.truncate(&newest, 100).unwrap(),
                _ => fs.remove(Path::new("/db/CURRENT")).unwrap(),
            }
            let report = repaired(&fs);
            assert_eq!(contents(&open(&fs)), map, "{chosen:b}\n{report}");
            assert!(known_losses(&report).is_empty(), "{chosen:b}\n{report}");
        }
    }
}

#[test]
fn unfinished_compaction_has_no_effect() {
    let fs = SimFileSystem::new();
    let (options_of, _) = options(&fs);
    let db = options_of.open(DIR).unwrap();
    let mut map = Map::new();
    for i in 0..300 {
        db.put(key(i), value(i)).unwrap();
        map.insert(key(i), value(i));
    }
    db.flush().unwrap();
    for i in (0..300).step_by(3) {
        db.delete(key(i)).unwrap();
        map.remove(&key(i));
    }
    db.flush().unwrap();
    for call in 1.. {
        let cut = fs.kill();
        let db = open(&cut);
        cut.crash_at(Some(call));
        let result = db.compact_range(..);
        let Some(point) = cut.crash_point() else {
            result.unwrap();
            break;
        };
        drop(db);
        for seed in 0..2 {
            let fs = point.crash(seed);
            let Ok(truth) = options(&fs.kill()).0.open(DIR) else { panic!("it can be opened") };
            assert_eq!(contents(&truth), map);
            lose_manifests(&fs);
            let report = repaired(&fs);
            let found = contents(&open(&fs));
            for key in map.keys().chain(found.keys()) {
                let is_known = known_losses(&report).iter().any(|loss| loss.covers("default", key));
                assert!(found.get(key) == map.get(key) || is_known, "{:?}\n{report}", key.escape_ascii().to_string());
            }
        }
    }
}

#[test]
fn damaged_block_takes_its_own_keys_and_no_others() {
    for compression in [Compression::None, Compression::Lz4] {
        let fs = SimFileSystem::new();
        let keyspace = KeyspaceOptions::new().block_size(256).compression(compression);
        let db = options(&fs).0.default_keyspace(keyspace).open(DIR).unwrap();
        let map: Map = (0..200).map(|i| (key(i), value(i))).collect();
        map.iter().for_each(|(key, value)| _ = db.put(key, value).unwrap());
        db.compact_range(..).unwrap();
        db.close().unwrap();
        let (fs, mut most) = (fs.kill(), 0);
        for path in of_kind(&fs, "sst") {
            let table = Inspector::on(Arc::new(fs.clone())).table(&path).unwrap();
            let blocks: Vec<_> = table.blocks().map(Result::unwrap).collect();
            most = most.max(blocks.len());
            for (i, block) in blocks.iter().enumerate() {
                let fs = fs.kill();
                fs.corrupt(&path, block.handle.offset + 20, 0x10).unwrap();
                let report = repaired(&fs);
                let [loss] = report.losses.as_slice() else { panic!("{report}") };
                assert_eq!((loss.kind, loss.entries), (LossKind::Lost, Some(block.entries)));
                assert!(
                    report.basis == RepairBasis::Manifest && report.tables_rewritten == u64::from(blocks.len() > 1),
                    "{report}"
                );
                let found = contents(&open(&fs));
                let lost = |key: &[u8]| (&block.first_key[..]..=&block.last_key[..]).contains(&key);
                for (key, value) in &map {
                    assert_eq!(found.get(key), (!lost(key)).then_some(value));
                    assert!(!lost(key) || loss.covers("default", key), "{loss}");
                }
                let around = blocks.get(i.wrapping_sub(2)).into_iter().chain(blocks.get(i + 2));
                for other in around {
                    assert!(!loss.covers("default", &other.first_key), "{loss}");
                }
                check_usable(&fs);
            }
        }
        assert!(most > 3);
    }
}

#[test]
fn table_without_index_properties_or_footer_loses_nothing() {
    for compression in [Compression::None, Compression::Lz4] {
        let fs = SimFileSystem::new();
        let keyspace = KeyspaceOptions::new().block_size(256).compression(compression);
        let db = options(&fs).0.default_keyspace(keyspace).open(DIR).unwrap();
        let map: Map = (0..100).map(|i| (key(i), value(i))).collect();
        map.iter().for_each(|(key, value)| _ = db.put(key, value).unwrap());
        db.compact_range(..).unwrap();
        db.close().unwrap();
        let fs = fs.kill();
        let path = of_kind(&fs, "sst").remove(0);
        let table = Inspector::on(Arc::new(fs.clone())).table(&path).unwrap();
        let properties = table.properties();
        let filter = properties.filter_block.unwrap().offset;
        let len = fs.file_len(&path).unwrap();
        let places =
            [0, 30, filter + 3, properties.properties_block.offset, properties.index_block.offset + 5, len - 50];
        for lose in [false, true] {
            for at in places {
                let fs = fs.kill();
                fs.corrupt(&path, at, 0x10).unwrap();
                if lose {
                    lose_manifests(&fs);
                }
                let report = repaired(&fs);
                let found = contents(&open(&fs));
                if lose && at == properties.properties_block.offset {
                    // Nothing says which keyspace it belongs to.
                    assert!(fs.paths().contains(&Path::new("/db/lost/uncertain").join(path.file_name().unwrap())));
                    continue;
                }
                assert_eq!(found, map, "{at}: {report}");
                assert!(known_losses(&report).iter().all(|loss| loss.kind == LossKind::Uncertain), "{at}: {report}");
            }
        }
        // Cut where the data blocks end.
        fs.truncate(&path, filter).unwrap();
        repaired(&fs);
        assert_eq!(contents(&open(&fs)), map);
    }
}

#[test]
fn missing_table_is_reported_with_its_range() {
    let (fs, map) = compacted(400);
    let tables = of_kind(&fs, "sst");
    assert!(tables.len() > 2);
    for path in tables {
        let fs = fs.kill();
        let table = Inspector::on(Arc::new(fs.clone())).table(&path).unwrap();
        let (smallest, largest) = (table.properties().smallest.clone(), table.properties().largest.clone());
        fs.remove(&path).unwrap();
        let report = repaired(&fs);
        let [loss] = report.losses.as_slice() else { panic!("{report}") };
        assert_eq!((&loss.from, &loss.to), (&Some(smallest), &Some(largest)));
        assert_eq!((loss.kind, loss.entries), (LossKind::Lost, Some(table.properties().entries)));
        let mut expected = map.clone();
        expected.retain(|key, _| !loss.covers("default", key));
        assert_eq!(check_usable(&fs), expected);
    }
}

/// A store with edits of every kind in one manifest, some of which name tables that are gone.
fn with_history() -> (SimFileSystem, Map) {
    let fs = SimFileSystem::new();
    let (options_of, executor) = options(&fs);
    let db = options_of.open(DIR).unwrap();
    let mut map = Map::new();
    for round in 0..4 {
        for i in 0..150 {
            db.put(key(i), value(i + round)).unwrap();
            map.insert(key(i), value(i + round));
        }
        for i in (round..150).step_by(5) {
            db.delete(key(i)).unwrap();
            map.remove(&key(i));
        }
        db.flush().unwrap();
        if round % 2 == 1 {
            db.compact_range(..).unwrap();
        }
        if round == 2 {
            db.keyspace("other").unwrap().put("key", "value").unwrap();
        }
        while executor.step() {}
    }
    db.sync().unwrap();
    (fs.kill(), map)
}

#[test]
fn flipped_bit_in_any_record_of_the_manifest_loses_nothing() {
    let (fs, map) = with_history();
    let path = manifests(&fs).pop().unwrap();
    let mut log = Inspector::on(Arc::new(fs.clone())).log(&path).unwrap();
    let mut places = vec![9, 30];
    while let Some(record) = log.next_record().unwrap() {
        places.extend([record.offset + 5, record.offset + 12]);
        if record.payload_len > 20 {
            places.push(record.offset + 40);
        }
    }
    assert!(places.len() > 20);
    let len = fs.file_len(&path).unwrap();
    for at in places.into_iter().filter(|at| *at < len) {
        for current in [true, false] {
            let fs = fs.kill();
            fs.corrupt(&path, at, 1).unwrap();
            if !current {
                fs.remove(Path::new("/db/CURRENT")).unwrap();
            }
            let report = repaired(&fs);
            let found = contents(&open(&fs));
            assert_eq!(found, map, "{at}: {report}");
            // The content of the damaged edit is unknown; it may have removed a table, for
            // instance.
            assert!(known_losses(&report).iter().all(|loss| loss.kind == LossKind::Uncertain), "{at}: {report}");
            assert_eq!(contents_of(&open(&fs), "other").len(), 1, "{at}: {report}");
        }
    }
}

#[test]
fn manifest_that_was_cut_loses_nothing() {
    let (fs, map) = with_history();
    let path = manifests(&fs).pop().unwrap();
    let len = fs.file_len(&path).unwrap();
    for cut in (0..len).step_by(31) {
        let fs = fs.kill();
        fs.truncate(&path, cut).unwrap();
        let report = repaired(&fs);
        assert_eq!(contents(&open(&fs)), map, "{cut}: {report}");
        assert_eq!(contents_of(&open(&fs), "other").len(), 1, "{cut}: {report}");
    }
}

#[test]
fn of_two_manifests_the_one_in_force_counts() {
    let (fs, map) = with_history();
    let old = manifests(&fs).pop().unwrap();
    let bytes = fs.read(&old).unwrap();
    let db = open(&fs);
    db.put("later", "1").unwrap();
    db.flush().unwrap();
    drop(db);
    let fs = fs.kill();
    fs.write(&old, bytes).unwrap();
    let mut expected = map;
    expected.insert(b"later".to_vec(), b"1".to_vec());
    for lose_current in [false, true] {
        let fs = fs.kill();
        if lose_current {
            fs.remove(Path::new("/db/CURRENT")).unwrap();
        }
        repaired(&fs);
        assert_eq!(contents(&open(&fs)), expected);
    }
    // Without the newer manifest, the repair uses the older one and the tables.
    for newer in manifests(&fs).into_iter().filter(|path| *path != old) {
        fs.remove(&newer).unwrap();
    }
    let report = repaired(&fs);
    assert_eq!(report.basis, RepairBasis::DamagedManifest);
    assert_eq!(contents(&open(&fs)), expected, "{report}");
}

#[test]
fn log_with_damage_in_the_middle_is_read_past_the_damage() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    db.put("in a table", "1").unwrap();
    db.flush().unwrap();
    for i in 0..30 {
        db.put(key(i), value(i)).unwrap();
    }
    db.sync().unwrap();
    let fs = fs.kill();
    let path = of_kind(&fs, "wal").pop().unwrap();
    let mut log = Inspector::on(Arc::new(fs.clone())).log(&path).unwrap();
    let mut records = Vec::new();
    while let Some(record) = log.next_record().unwrap() {
        if let Content::Batch(operations) = record.content {
            records.push((record.offset, operations[0].key.clone()));
        }
    }
    for (lost, (offset, lost_key)) in records.iter().enumerate() {
        let fs = fs.kill();
        fs.corrupt(&path, offset + 15, 0x20).unwrap();
        assert!(options(&fs.kill()).0.open(DIR).is_err());
        let report = repaired(&fs);
        assert!(report.losses.iter().any(|loss| loss.covers("default", lost_key) && loss.bytes > 0), "{report}");
        let found = contents(&open(&fs));
        assert_eq!(found.len(), 30, "{lost}: {report}");
        assert!(!found.contains_key(lost_key) && found.contains_key(&b"in a table"[..]));
        check_usable(&fs);
    }
    // The header of the log is damaged; all its records still verify.
    fs.corrupt(&path, 30, 1).unwrap();
    repaired(&fs);
    assert_eq!(contents(&open(&fs)).len(), 31);
}

#[test]
fn lost_synced_entries_are_reported_although_the_manifest_is_damaged() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    db.put("in a table", "1").unwrap();
    db.flush().unwrap();
    (0..30).for_each(|i| _ = db.put(key(i), value(i)).unwrap());
    db.sync().unwrap();
    let fs = fs.kill();
    fs.truncate(of_kind(&fs, "wal").pop().unwrap(), 500).unwrap();
    fs.corrupt(manifests(&fs).pop().unwrap(), 70, 1).unwrap();
    let report = repaired(&fs);
    assert!(!contents(&open(&fs)).contains_key(&key(29)));
    assert!(known_losses(&report).iter().any(|loss| loss.covers("default", &key(29))), "{report}");
}

/// The first edit of the store's newest manifest.
fn first_edit(fs: &SimFileSystem) -> Vec<ManifestChange> {
    let path = manifests(fs).pop().unwrap();
    match Inspector::on(Arc::new(fs.clone())).log(&path).unwrap().next_record().unwrap().unwrap().content {
        Content::Edit(changes) => changes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tables_written_in_the_order_of_their_keys_leave_level_0() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    for i in 0..400 {
        db.put(key(i), value(i)).unwrap();
        if i % 50 == 49 {
            db.flush().unwrap();
        }
    }
    drop(db);
    let fs = fs.kill();
    lose_manifests(&fs);
    repaired(&fs);
    let level = |change| if let ManifestChange::AddTable(table) = change { Some(table.level) } else { None };
    let levels: Vec<_> = first_edit(&fs).into_iter().filter_map(level).collect();
    assert!(levels.len() >= 8 && levels.iter().all(|level| *level > 0), "{levels:?}");
    assert_eq!(check_usable(&fs).len(), 400);
}

#[test]
fn lost_name_is_replaced_by_one_that_no_other_keyspace_has() {
    let fs = SimFileSystem::new();
    let db = open(&fs);
    let words = db.keyspace("words").unwrap();
    db.flush().unwrap();
    let id = id_of(&fs, "words");
    let other = db.keyspace(&format!("keyspace-{id}")).unwrap();
    other.put("key", "of the other").unwrap();
    db.put("key", "of the default").unwrap();
    db.flush().unwrap();
    words.put("key", "of words").unwrap();
    db.sync().unwrap();
    let fs = fs.kill();
    lose_manifests(&fs);
    let report = repaired(&fs);
    assert!(report.notes.iter().any(|note| note.contains(&format!("keyspace {id} are lost"))), "{report}");
    let of = |name: &str| contents_of(&open(&fs), name).remove(&b"key"[..]);
    assert_eq!(of(&format!("keyspace-{id}")).as_deref(), Some(&b"of the other"[..]));
    assert_eq!(of(&format!("keyspace-{id}.2")).as_deref(), Some(&b"of words"[..]));
}

/// The id of a keyspace, by the newest manifest.
fn id_of(fs: &SimFileSystem, wanted: &str) -> u32 {
    let path = manifests(fs).pop().unwrap();
    let mut log = Inspector::on(Arc::new(fs.clone())).log(&path).unwrap();
    while let Some(record) = log.next_record().unwrap() {
        let Content::Edit(changes) = record.content else { continue };
        for change in changes {
            match change {
                ManifestChange::Keyspace { id, name, .. } if name == wanted => return id,
                _ => {}
            }
        }
    }
    panic!("there is no keyspace {wanted}");
}

/// A block that compresses to a thousandth or less is treated like any other.
#[cfg(feature = "zstd")]
#[test]
fn block_of_zeros_survives_damage_to_its_neighbour() {
    let fs = SimFileSystem::new();
    let keyspace = KeyspaceOptions::new().block_size(256).compression(Compression::Zstd);
    let db = options(&fs).0.memtable_size(1 << 20).default_keyspace(keyspace).open(DIR).unwrap();
    (0..40).for_each(|i| _ = db.put(key(i), value(i)).unwrap());
    db.put("zeros", vec![0; 100_000]).unwrap();
    db.compact_range(..).unwrap();
    db.close().unwrap();
    let path = of_kind(&fs, "sst").remove(0);
    let len = fs.file_len(&path).unwrap();
    for (at, lose) in [(80, false), (80, true), (len - 50, false), (len - 50, true)] {
        let fs = fs.kill();
        fs.corrupt(&path, at, 1).unwrap();
        if lose {
            lose_manifests(&fs);
        }
        let report = repaired(&fs);
        assert_eq!(open(&fs).get("zeros").unwrap().map(|value| value.len()), Some(100_000), "{at} {lose}: {report}");
    }
}
