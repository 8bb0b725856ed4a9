//! How a store continues after it has met damage.

use super::*;

fn content(fs: &SimFileSystem) -> BTreeMap<PathBuf, Vec<u8>> {
    fs.paths().into_iter().map(|path| (path.clone(), fs.read(&path).unwrap())).collect()
}

/// Expects the sound store, read without error.
fn check_whole(sound: &Sound, fs: &SimFileSystem, what: &str) {
    let last = sound.last();
    let damage = Damage::new(sound, what.to_owned(), last..=last, &[]);
    let mut errors = Vec::new();
    let db = options(fs).open(DIR).unwrap();
    sound.read(&db, &damage, &mut errors);
    assert!(errors.is_empty(), "{what}: {errors:?}");
}

#[test]
fn refused_open_leaves_the_directory_as_it_was() {
    let sound = Sound::new();
    // Recovery has written tables before it reads the second log.
    sound.fs.corrupt(&sound.log, 70, 1).unwrap();
    let before = content(&sound.fs);
    for _ in 0..3 {
        let error = options(&sound.fs).open(DIR).unwrap_err();
        assert!(error.is_corruption(), "{error}");
        assert_eq!(content(&sound.fs).keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    }
    sound.fs.corrupt(&sound.log, 70, 1).unwrap();
    check_whole(&sound, &sound.fs.clone(), "repaired");
}

#[test]
fn compaction_that_meets_damage_keeps_its_inputs() {
    let sound = Sound::new();
    let tables: Vec<PathBuf> = sound.files().into_iter().filter(|path| is_table(path)).collect();
    for path in &tables {
        let fs = sound.fs.kill();
        // In the first data block.
        fs.corrupt(path, 100, 0x40).unwrap();
        let db = options(&fs).open(DIR).unwrap();
        let results = KEYSPACES.map(|name| db.keyspace(name).unwrap().compact_range(..));
        let failures: Vec<&Error> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        let [Error::Corruption { file, offset: 64, .. }] = failures[..] else { panic!("{failures:?}") };
        assert_eq!(file, path);
        assert!(fs.read(path).is_ok(), "an input is gone");
        // The rest of the store still works.
        db.put("key000", "new").unwrap();
        db.delete("key000").unwrap();
        db.flush().unwrap();
        drop(db);
        fs.corrupt(path, 100, 0x40).unwrap();
        let db = options(&fs).open(DIR).unwrap();
        let whole = &sound.states[&sound.last()];
        for (name, map) in KEYSPACES.iter().zip(whole) {
            let keyspace = db.keyspace(name).unwrap();
            keyspace.compact_range(..).unwrap();
            let entries = keyspace.iter().map(|entry| entry.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec()));
            assert!(entries.eq(map.clone().into_iter().filter(|(key, _)| key != b"key000" || *name != "default")));
        }
    }
}

/// The manifest lost synced edits, which is damage. The log and the files in the directory must
/// reveal it.
#[test]
fn manifest_that_has_lost_its_end_is_found_after_a_clean_close() {
    let sound = Sound::new();
    let db = options(&sound.fs).open(DIR).unwrap();
    for n in 0..300 {
        db.put(format!("key{:03}", n % 100), format!("new {n}")).unwrap();
    }
    let entries = |db: &Db| db.iter().collect::<Result<Vec<_>>>().unwrap();
    let whole = entries(&db);
    db.close().unwrap();
    let fs = sound.fs.kill();
    let path = fs.paths().into_iter().find(|path| path.to_str().unwrap().contains("MANIFEST")).unwrap();
    let len = fs.file_len(&path).unwrap();
    let mut found = 0;
    for at in (0..len).rev().step_by(7) {
        let fs = fs.kill();
        fs.truncate(&path, at).unwrap();
        match options(&fs).open(DIR) {
            Ok(db) => assert_eq!(entries(&db), whole, "cut from {len} to {at}"),
            Err(error) => {
                let Error::Corruption { file, .. } = &error else { panic!("cut from {len} to {at}: {error}") };
                assert_eq!(file, &path, "cut from {len} to {at}: {error}");
                found += 1;
            }
        }
    }
    assert!(found > 10);
}

#[test]
fn entries_of_a_keyspace_that_the_manifest_has_lost_are_not_skipped() {
    let fs = SimFileSystem::new();
    let db = options(&fs).open(DIR).unwrap();
    let manifest = fs.paths().into_iter().find(|path| path.to_str().unwrap().contains("MANIFEST")).unwrap();
    let len = fs.file_len(&manifest).unwrap();
    db.keyspace("late").unwrap().put("key", "value").unwrap();
    let fs = fs.kill();
    fs.truncate(&manifest, len).unwrap();
    let error = options(&fs).open(DIR).unwrap_err();
    assert!(matches!(&error, Error::Corruption { file, .. } if *file == manifest), "{error}");
}

/// After opening, file numbers continue from the greatest number in the directory.
#[test]
fn stray_file_with_a_great_number_does_no_harm() {
    for name in ["36028797018963967.sst", "18446744073709551615.sst", "18446744073709551615.wal", "MANIFEST-999999"] {
        let fs = SimFileSystem::new();
        options(&fs).open(DIR).unwrap().put("key", "value").unwrap();
        fs.write(Path::new(DIR).join("kept"), "not ours").unwrap();
        fs.write(Path::new(DIR).join(name), "").unwrap();
        for _ in 0..2 {
            let db = options(&fs).open(DIR).unwrap();
            assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"value"[..]), "{name}");
            db.flush().unwrap();
        }
        assert!(fs.read(Path::new(DIR).join("kept")).is_ok());
    }
}

/// The leftovers of a kill during a flush say nothing about the manifest.
#[test]
fn a_missing_table_is_named_beside_the_leftovers_of_a_kill() {
    let sound = Sound::new();
    let is_table = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "sst");
    let missing = sound.files().into_iter().find(is_table).unwrap();
    let whole = sound.fs.read(&missing).unwrap();
    for leftover in [&whole[..whole.len() / 2], b""] {
        let fs = sound.fs.kill();
        FileSystem::remove(&fs, &missing).unwrap();
        fs.write(Path::new(DIR).join("000900.sst"), leftover).unwrap();
        let error = options(&fs).open(DIR).unwrap_err();
        assert!(matches!(&error, Error::Corruption { file, .. } if *file == missing), "{error}");
    }
}
