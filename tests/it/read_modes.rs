//! Is a file that fails while the store is open an error, in every way to read that promises so?

use std::fs;
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tamis::{Compression, Db, Error, KeyspaceOptions, Options, ReadMode, Result};

const KEYS: usize = 2000;
/// Values of this length and above are in value files.
const SEPARATE: u32 = 500;

fn key(n: usize) -> String {
    format!("key{n:05}")
}

/// Every tenth value is in a value file.
fn value(n: usize) -> Vec<u8> {
    format!("value of {n} ").repeat(if n.is_multiple_of(10) { 60 } else { 5 }).into_bytes()
}

fn options(mode: ReadMode, compression: Compression) -> Options {
    let keyspace = KeyspaceOptions::new().compression(compression).separate_values(SEPARATE);
    // Without a cache, every read of a block is one from disk.
    Options::new().cache_size(0).read_mode(mode).default_keyspace(keyspace)
}

/// A store of [`KEYS`] in files, each of which has been read once.
fn store(dir: &Path, mode: ReadMode, compression: Compression) -> Db {
    let db = options(mode, compression).open(dir).unwrap();
    for n in 0..KEYS {
        db.put(key(n), value(n)).unwrap();
    }
    db.compact_range(..).unwrap();
    for n in 0..KEYS {
        assert_eq!(db.get(key(n)).unwrap().unwrap(), value(n));
    }
    db
}

/// The files of a store with this extension.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// Reads every key in every way: each read gives the right value or an error that names a file of
/// `damaged`. Returns how many failed.
fn failures(db: &Db, damaged: &[PathBuf]) -> usize {
    let check = |read: Result<bool>| match read {
        Ok(is_right) => {
            assert!(is_right);
            0
        }
        Err(Error::Corruption { file, .. } | Error::Io { path: file, .. }) => {
            assert!(damaged.contains(&file), "{file:?} is not one of {damaged:?}");
            1
        }
        Err(other) => panic!("{other}"),
    };
    let keys: Vec<String> = (0..KEYS).map(key).collect();
    let mut failed = 0;
    for (n, key) in keys.iter().enumerate() {
        failed += check(db.get(key).map(|found| found.is_some_and(|found| found == value(n))));
        failed += check(db.read(key, |found| found == value(n)).map(|found| found == Some(true)));
        let mut entries = db.iter();
        entries.seek(key);
        let is_right = |entry: (tamis::Value, tamis::Value)| entry.0 == key.as_bytes() && entry.1 == value(n);
        failed += check(entries.next().transpose().map(|entry| entry.is_some_and(is_right)));
    }
    for (chunk, keys) in keys.chunks(100).enumerate() {
        let all = db.multi_get(keys);
        failed +=
            check(all.map(|all| {
                all.iter().enumerate().all(|(i, found)| found.as_deref() == Some(&*value(100 * chunk + i)))
            }));
    }
    failed
}

/// What happens to a file: its path, and its length.
type Damage = fn(&Path, u64);

#[test]
fn a_file_that_fails_while_it_is_open_is_an_error() {
    let shortened: Damage = |path, len| OpenOptions::new().write(true).open(path).unwrap().set_len(len / 2).unwrap();
    let emptied: Damage = |path, _| OpenOptions::new().write(true).open(path).unwrap().set_len(0).unwrap();
    let changed: Damage = |path, len| {
        let mut file = OpenOptions::new().write(true).open(path).unwrap();
        for offset in (100..len).step_by(usize::try_from(len / 40).unwrap()) {
            file.seek(SeekFrom::Start(offset)).unwrap();
            file.write_all(&[0xAA; 9]).unwrap();
        }
    };
    for mode in [ReadMode::Auto, ReadMode::Pread] {
        for compression in [Compression::None, Compression::Lz4] {
            for extension in ["sst", "val"] {
                for (name, damage) in [("shortened", shortened), ("emptied", emptied), ("changed", changed)] {
                    let dir = tempfile::tempdir().unwrap();
                    let dir = dir.path().canonicalize().unwrap().join("db");
                    let db = store(&dir, mode, compression);
                    let damaged = files(&dir, extension);
                    assert_eq!(failures(&db, &damaged), 0);
                    for path in &damaged {
                        damage(path, fs::metadata(path).unwrap().len());
                    }
                    // Twice: what the first failure leaves behind is no value either.
                    for _ in 0..2 {
                        let failed = failures(&db, &damaged);
                        assert!(failed > KEYS / 20, "{mode:?} {compression:?} {extension} {name}: {failed} failed");
                    }
                }
            }
        }
    }
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn files_are_mapped_if_the_mode_says_so() {
    for (mode, mapped) in [(ReadMode::Auto, true), (ReadMode::Pread, false), (ReadMode::Mmap, true)] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap().join("db");
        let db = store(&dir, mode, Compression::None);
        let is_mapped = |path: &PathBuf| {
            let mappings = fs::read_to_string("/proc/self/maps").unwrap();
            mappings.lines().any(|line| line.ends_with(path.to_str().unwrap()))
        };
        let tables = files(&dir, "sst");
        assert!(!tables.is_empty());
        assert_eq!(tables.iter().all(is_mapped), mapped, "{mode:?}");
        assert_eq!(files(&dir, "val").iter().all(is_mapped), mode == ReadMode::Auto, "{mode:?}");
        // A mapping goes with its table, also if the table is replaced.
        db.put(key(1), value(2)).unwrap();
        db.compact_range(..).unwrap();
        assert!(!tables.iter().any(is_mapped), "{mode:?}");
        let tables = files(&dir, "sst");
        drop(db);
        assert!(!tables.iter().any(is_mapped), "{mode:?}");
    }
}
