//! Format 1 as annotated hex, in `tests/golden`: stores that together have every kind of file and
//! every required feature (`golden/stores.rs` says which), and filters without a store.
//!
//! These files stay as they are: format 1 is final (docs/FORMAT.md). They can be opened and read,
//! which must hold for ever; and what they hold is written back byte for byte by the encoders of
//! today, of which the examples in docs/FORMAT.md are part. If encoders come to write other bytes
//! that readers of format 1 understand, the second test gets a directory of its own.
//!
//! Tables with binary fuse filters are missing, because a fuse filter takes 10,000 keys:
//! `filter::tests::fuse` pins a block.

pub(crate) mod stores;

mod annotated;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use annotated::{annotated, annotated_filter};
use stores::{DIR, FILTERS, STORES, merging, options};

use crate::filter::{BloomFilter, FilterState, FuseFilter, OrderedFilter, RangeFilterState, ScalableBloomFilter};
use crate::format::header::IDENTITY_BIT;
use crate::inspect::*;
use crate::log::testing::unhex;
use crate::options::{Compression, Options};
use crate::vfs::{FileSystem, OsFileSystem, SimFileSystem, read_small_file};
use crate::{Db, FilterMode, ReadOptions};

/// Where the files of a golden store are.
fn golden_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The golden files by name, without `.hex`.
fn golden_files(store: &str) -> Vec<(String, Vec<u8>)> {
    let (fs, dir) = (OsFileSystem::new(), golden_dir(store));
    let mut names = fs.list(&dir).unwrap();
    names.sort();
    let read = |name: String| {
        let text = read_small_file(&fs, &dir.join(&name), 1 << 20).unwrap();
        (name.strip_suffix(".hex").unwrap().to_owned(), unhex(&String::from_utf8(text).unwrap()))
    };
    names.into_iter().map(read).collect()
}

/// The files as the encoders write them: name, bytes, annotated hex.
fn encoded_files(store: &str, fs: &SimFileSystem) -> Vec<(String, Vec<u8>, String)> {
    let inspector = Inspector::on(Arc::new(fs.clone()));
    let files = inspector.files(Path::new(DIR)).unwrap();
    let files = files.into_iter().filter(|file| file.kind != FileKind::Lock).map(|file| {
        let bytes = fs.read(&file.path).unwrap();
        let text = annotated(&inspector, &file, &bytes);
        (file.kind.name(), bytes, text)
    });
    let filters = FILTERS.iter().filter(|_| store == "store").map(|(name, filter)| {
        let bytes = filter();
        let text = annotated_filter(name, &bytes);
        ((*name).to_owned(), bytes, text)
    });
    files.chain(filters).collect()
}

/// Key and value.
type Pair = (Vec<u8>, Vec<u8>);

/// The content of the golden store, by keyspace.
fn expected() -> Vec<(&'static str, Vec<Pair>)> {
    let pair = |key: &str, value: &str| (key.as_bytes().to_vec(), value.as_bytes().to_vec());
    let mut default = vec![pair("", "the empty key")];
    default.extend((0..12).filter(|i| *i != 3).map(|i| match i {
        4 => pair("key004", "in the first log"),
        5 => pair("key005", "behind the sync"),
        6 => pair("key006", "in the second log"),
        _ => pair(&format!("key{i:03}"), "a value that comes again, and again, and again"),
    }));
    let mut users: Vec<_> = (0..12)
        .map(|i| pair(&format!("user{}:{i}", i / 4), &if i == 5 { "changed".to_owned() } else { i.to_string() }))
        .chain([pair("user9:0", "of a batch")])
        .collect();
    users.sort();
    let mut bare: Vec<_> = (0..12).filter(|i| *i != 7).map(|i| pair(&i.to_string(), "")).collect();
    bare.sort();
    let fuse = (0..12u8).map(|i| (vec![i], vec![i; 3])).collect();
    vec![("bare", bare), ("budget", Vec::new()), ("default", default), ("fuse", fuse), ("users", users)]
}

fn check_contents(db: &Db) {
    let mut names = db.keyspace_names().unwrap();
    names.sort();
    assert_eq!(names, expected().iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for (name, entries) in expected() {
        let keyspace = db.existing_keyspace(name).unwrap().unwrap();
        let found: Vec<_> =
            keyspace.iter().map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()).collect();
        assert_eq!(found, entries, "{name}");
        for (key, value) in entries {
            assert_eq!(keyspace.get(&key).unwrap().as_deref(), Some(&value[..]), "{name}");
        }
        for absent in ["key003", "key999", "7", "user1:99"] {
            assert!(!keyspace.contains_key(absent).unwrap(), "{name}");
        }
    }
    let users = db.existing_keyspace("users").unwrap().unwrap();
    assert_eq!(users.prefix("user1:").count(), 4);
    assert_eq!(users.prefix("user8:").count(), 0);
}

/// The files of a golden store in memory.
fn loaded(files: &[(String, Vec<u8>)]) -> SimFileSystem {
    let fs = SimFileSystem::new();
    fs.create_dir(Path::new(DIR)).unwrap();
    for (name, bytes) in files.iter().filter(|(name, _)| FileKind::parse(name).is_some()) {
        fs.write(Path::new(DIR).join(name), bytes.clone()).unwrap();
    }
    fs
}

/// Checks what the store holds: opened read-only, and before and after compactions.
fn check_rewritten(options: &Options, check: impl Fn(&Db)) {
    check(&options.clone().open_read_only(DIR).unwrap());
    for _ in 0..2 {
        let db = options.clone().open(DIR).unwrap();
        check(&db);
        db.compact_range(..).unwrap();
        check(&db);
        db.close().unwrap();
    }
}

/// The golden store called `name`, in which `verify` must find no fault.
fn sound(name: &str) -> (SimFileSystem, Verified) {
    let fs = loaded(&golden_files(name));
    let mut faults = Vec::new();
    let inspector = Inspector::on(Arc::new(fs.clone()));
    let verified = inspector.verify(Path::new(DIR), &mut |fault| faults.push(fault.clone())).unwrap();
    assert_eq!((verified.damaged, &faults), (0, &Vec::new()));
    (fs, verified)
}

fn properties_of_tables(fs: &SimFileSystem) -> Vec<TableProperties> {
    let inspector = Inspector::on(Arc::new(fs.clone()));
    let files = inspector.files(Path::new(DIR)).unwrap();
    let tables = files.iter().filter(|file| matches!(file.kind, FileKind::Table(_)));
    tables.map(|file| inspector.table(&file.path).unwrap().properties().clone()).collect()
}

#[test]
fn golden_range_deletes_are_read() {
    let (fs, _) = sound("ranges");
    assert_eq!(properties_of_tables(&fs).iter().map(|table| table.range_deletes).sum::<u64>(), 1);
    let check = |db: &Db| {
        let keys: Vec<_> = db.iter().map(|entry| String::from_utf8(entry.unwrap().0.to_vec()).unwrap()).collect();
        let expected = [0, 1, 2, 4, 5, 6, 7, 9, 10, 20].map(|i| format!("key{i:03}"));
        assert_eq!(keys, expected);
    };
    check_rewritten(&options(&fs), check);
}

#[test]
fn golden_range_filters_are_read() {
    let (fs, _) = sound("filters");
    let inspector = Inspector::on(Arc::new(fs.clone()));
    let tables =
        inspector.files(Path::new(DIR)).unwrap().into_iter().filter(|file| matches!(file.kind, FileKind::Table(_)));
    let states: Vec<_> = tables.map(|file| inspector.table(&file.path).unwrap().range_filter().clone()).collect();
    let [RangeFilterState::Usable(large), RangeFilterState::Usable(small)] = &states[..] else { panic!("{states:?}") };
    assert_eq!((large.keys, large.millibits, small.keys), (48, 12_500, 3));
    assert!(large.folded > 0 && large.folded < large.blocks, "{large:?}");
    let check = |db: &Db| {
        assert_eq!(db.iter().count(), 50);
        let shadow = ReadOptions::new().filters(FilterMode::Shadow);
        let keys_in = |from: &str, to: &str| {
            let [forward, backward] = [false, true].map(|backward| {
                let range = db.range_with(from..to, shadow);
                let all = if backward { range.rev().collect() } else { range.collect::<crate::Result<Vec<_>>>() };
                all.unwrap().len()
            });
            assert_eq!(forward, backward);
            forward
        };
        assert_eq!([keys_in("key000998", "key003987"), keys_in("user000:00000008", "user007:07000008")], [0, 0]);
        assert_eq!([keys_in("key1", "key2"), keys_in("user", "uses")], [4, 24]);
    };
    check_rewritten(&options(&fs), check);
}

#[test]
fn golden_values_are_read() {
    let (fs, verified) = sound("values");
    assert_eq!((verified.value_files, verified.values), (2, 5));
    let check = |db: &Db| {
        let entries = db.iter().map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
        let text = |value: &str| value.as_bytes().to_vec();
        let expected = [
            (text("key000"), text("value 0 is stored apart")),
            (text("key001"), text("value 1 has been replaced")),
            (text("key002"), text("value 2 is stored apart")),
            (text("repeated"), text(&"again ".repeat(30))),
            (text("short"), text("v")),
        ];
        assert_eq!(entries.collect::<Vec<_>>(), expected);
    };
    check_rewritten(&options(&fs), check);
}

#[test]
fn golden_ingested_tables_are_read() {
    let (fs, _) = sound("ingest");
    assert_eq!(properties_of_tables(&fs).iter().filter(|table| table.number & IDENTITY_BIT != 0).count(), 2);
    let check = |db: &Db| {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let found: Vec<_> = db.iter().map(|entry| entry.map(|(k, v)| (text(&k), text(&v))).unwrap()).collect();
        let expected = [0, 3, 4, 5, 8, 9, 10, 11].into_iter().map(|i| match i {
            5 => (i, "newer than the ingest"),
            i if i < 4 => (i, "v"),
            _ => (i, "ingested"),
        });
        assert_eq!(
            found,
            expected.map(|(i, value): (i32, &str)| (format!("key{i:03}"), value.into())).collect::<Vec<_>>()
        );
    };
    check_rewritten(&options(&fs), check);
}

#[test]
fn golden_store_is_opened_and_read() {
    let files = golden_files("store");
    let (fs, _) = sound("store");
    for kind in ["CURRENT", "MANIFEST-", ".wal", ".sst"] {
        assert!(files.iter().any(|(name, _)| name.contains(kind)), "there is no {kind}");
    }
    // File by file.
    let inspector = Inspector::on(Arc::new(fs.clone()));
    let mut policies = Vec::new();
    for file in inspector.files(Path::new(DIR)).unwrap() {
        if let FileKind::Table(_) = file.kind {
            let table = inspector.table(&file.path).unwrap();
            assert!(!matches!(table.filter(), FilterState::Degraded(_)), "{:?}", table.filter());
            policies.push((table.properties().filter_policy, table.properties().compression.unwrap()));
        }
    }
    for policy in [(0, Compression::None), (1, Compression::Lz4), (1, Compression::None)] {
        assert!(policies.contains(&policy), "no table has {policy:?}: {policies:?}");
    }
    check_rewritten(&options(&fs), check_contents);
}

#[test]
fn golden_merges_and_deadlines_are_read() {
    let (fs, verified) = sound("merges");
    assert_eq!((verified.value_files, verified.values), (1, 1));
    let tables = properties_of_tables(&fs);
    assert!(tables.iter().any(|table| table.operands > 0) && tables.iter().any(|table| table.deadlines.is_some()));
    check_rewritten(&merging(&fs), |db| {
        let number = |n: u64| n.to_be_bytes().to_vec();
        let bytes = |text: &str| text.as_bytes().to_vec();
        let found: Vec<_> = db.iter().map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()).collect();
        let expected = [
            (bytes("code"), bytes("271")),
            (bytes("letter"), bytes("stored apart until then")),
            (bytes("page 6"), number(66)),
            (bytes("page 7"), number(777)),
        ];
        assert_eq!(found, expected);
        assert!(expected.iter().all(|(key, value)| db.get(key).unwrap().as_deref() == Some(value)));
        assert_eq!(db.get("past").unwrap(), None);
        let cache = db.existing_keyspace("cache").unwrap().unwrap();
        assert_eq!(cache.get("word").unwrap().as_deref(), Some(&b"in no log"[..]));
    });
}

#[test]
fn golden_filters_without_a_store_are_read() {
    let files = golden_files("store");
    let file = |wanted: &str| files.iter().find(|(name, _)| name == wanted).unwrap().1.clone();
    let bloom = BloomFilter::from_bytes(&file("words.bloom")).unwrap();
    let scalable = ScalableBloomFilter::from_bytes(&file("words.scalable")).unwrap();
    let fuse = FuseFilter::from_bytes(&file("words.fuse")).unwrap();
    let ordered = OrderedFilter::from_bytes(&file("words.ordered")).unwrap();
    let has = |key: u32| {
        [bloom.contains(key.to_be_bytes()), scalable.contains(key.to_be_bytes()), fuse.contains(key.to_be_bytes())]
    };
    assert!((0..100).all(|key| has(key) == [true; 3]));
    assert!((100..1100).filter(|key| has(*key) != [false; 3]).count() < 60);
    assert!((0..100u32).all(|i| ordered.may_contain((i * i).to_be_bytes())));
    let between = |i: u32| ordered.may_contain_range((i * i + 1).to_be_bytes()..((i + 1) * (i + 1)).to_be_bytes());
    assert!((1..99).filter(|i| between(*i)).count() < 10);
    let again = [bloom.to_bytes(), scalable.to_bytes(), fuse.to_bytes(), ordered.to_bytes()];
    assert_eq!(again, ["bloom", "scalable", "fuse", "ordered"].map(|kind| file(&format!("words.{kind}"))));
}

#[test]
fn golden_stores_are_what_the_encoders_write() {
    STORES.iter().for_each(|(name, store)| check_encoded(name, &store()));
    // Those of a log and a manifest alone belong to other crates.
    let mut known = OsFileSystem::new().list(&golden_dir("")).unwrap();
    known.retain(|name| !name.ends_with(".hex"));
    assert!(known.iter().all(|name| STORES.iter().any(|(store, _)| store == name)), "{known:?}");
}

fn check_encoded(store: &str, fs: &SimFileSystem) {
    let encoded = encoded_files(store, fs);
    if std::env::var_os("TAMIS_WRITE_GOLDEN").is_some() {
        let (fs, dir) = (OsFileSystem::new(), golden_dir(store));
        let _ = fs.create_dir(&dir);
        let there = fs.list(&dir).unwrap();
        for (name, _, text) in &encoded {
            let name = format!("{name}.hex");
            if !there.contains(&name) {
                fs.create(&dir.join(name)).unwrap().append(text.as_bytes()).unwrap();
            }
        }
    }
    let golden = golden_files(store);
    let mut names: Vec<&str> = encoded.iter().map(|(name, ..)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, golden.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>());
    for (name, bytes, text) in &encoded {
        assert_eq!(unhex(text), *bytes, "the annotation of {name} is complete");
        let (_, stored) = golden.iter().find(|(golden, _)| golden == name).unwrap();
        assert!(stored == bytes, "{name} is not what the encoders write; the head of this file says what to do");
    }
}

/// The blocks of text in docs/FORMAT.md: a file's name, then lines of its annotated hex.
#[test]
fn golden_store_has_the_examples_of_the_format_document() {
    let document = include_str!("../../../docs/FORMAT.md");
    let examples: Vec<_> =
        document.split("```text\n").skip(1).map(|rest| rest.split_once("\n```").unwrap().0).collect();
    assert!(examples.len() >= 3);
    for example in examples {
        let (name, lines) = example.split_once('\n').unwrap();
        let path = golden_dir("store").join(format!("{name}.hex"));
        let golden = String::from_utf8(read_small_file(&OsFileSystem::new(), &path, 1 << 20).unwrap()).unwrap();
        assert!(golden.contains(&format!("{lines}\n")), "docs/FORMAT.md shows other bytes than {name}:\n{lines}");
    }
}
