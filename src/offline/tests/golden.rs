//! Stores of format 1 as annotated hex: in `tests/golden/store` one with every kind of file, in
//! `ranges` one with range deletes, in `values` one with value files, in `ingest` one with ingested
//! tables, and in `filters` one with range filters.
//!
//! The stored files can be opened and read, which must hold for ever; the encoders of today write
//! them byte for byte; and the examples in docs/FORMAT.md are part of them. Until format 1 is
//! released, a change of the format changes the files (CONTRIBUTING.md has the command) and then
//! the examples. After that the files stay. If encoders then write other bytes that readers of
//! format 1 understand, only the second test gets its own files.
//!
//! Tables with binary fuse filters are missing, because a fuse filter takes 10,000 keys:
//! `filter::tests::fuse` pins a block.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::exec::SteppedExecutor;
use crate::filter::{BloomFilter, FilterState, RangeFilterState, ScalableBloomFilter};
use crate::filter::{FilterPolicy, PrefixExtractor, RangeFilterPolicy};
use crate::format::coding::Decoder;
use crate::format::header::IDENTITY_BIT;
use crate::inspect::*;
use crate::log::testing::unhex;
use crate::options::{Compression, FilterBudget, KeyspaceOptions, LevelFilters, Options, WalMode};
use crate::vfs::{FileSystem, OsFileSystem, SimFileSystem, read_small_file};
use crate::{Db, FilterMode, IngestMode, IngestOptions, ReadOptions, SstWriter, WriteBatch};

const DIR: &str = "/store";
/// Number of zeros after the last record of the newest log, like those prepared for more records.
const ZEROS: usize = 64;

fn options(fs: &SimFileSystem) -> Options {
    let keyspace = KeyspaceOptions::new().compression(Compression::Lz4).block_size(256);
    Options::new()
        .file_system(Arc::new(fs.clone()))
        .executor(Arc::new(SteppedExecutor::new()))
        .wal_mode(WalMode::Write)
        .hash_seed(0x1122_3344_5566_7788)
        .default_keyspace(keyspace)
}

/// The golden store, as the encoders write it now: a flushed part, and two logs left by killed
/// processes.
pub(crate) fn golden_store() -> SimFileSystem {
    let fs = SimFileSystem::new();
    let db = options(&fs).open(DIR).unwrap();
    let plain = |filter| KeyspaceOptions::new().compression(Compression::None).filter(filter).block_size(256);
    let prefixed = plain(FilterPolicy::Bloom { bits_per_key: 8.5 }).prefix(PrefixExtractor::UpTo(b':'));
    let users = db.keyspace_with("users", prefixed).unwrap();
    let bare = db.keyspace_with("bare", plain(FilterPolicy::None)).unwrap();
    let each = LevelFilters::Each(vec![FilterPolicy::DEFAULT, FilterPolicy::None]);
    let fused = plain(FilterPolicy::BinaryFuse { fingerprint_bits: 7 }).level_filters(each);
    let fused = db.keyspace_with("fuse", fused).unwrap();
    let budget =
        plain(FilterPolicy::DEFAULT).level_filters(LevelFilters::Budget(FilterBudget::bytes(4096).absent(0.5)));
    let budget = budget.prefix(PrefixExtractor::Fixed(3));
    db.keyspace_with("budget", budget).unwrap();
    for i in 0..12 {
        db.put(format!("key{i:03}"), "a value that comes again, and again, and again").unwrap();
        users.put(format!("user{}:{i}", i / 4), i.to_string()).unwrap();
        bare.put(format!("{i}"), "").unwrap();
        fused.put([i], [i; 3]).unwrap();
    }
    db.flush().unwrap();
    // The last level is compressed.
    db.compact_range(..).unwrap();
    db.delete("key003").unwrap();
    users.put("user1:5", "changed").unwrap();
    db.flush().unwrap();
    db.put("key004", "in the first log").unwrap();
    let mut batch = WriteBatch::new();
    batch.put_in(&users, "user9:0", "of a batch");
    batch.delete_in(&bare, "7");
    batch.put("", "the empty key");
    db.write(batch).unwrap();
    db.sync().unwrap();
    db.put("key005", "behind the sync").unwrap();
    let killed = fs.kill();
    drop(db);
    let db = options(&killed).open(DIR).unwrap();
    // No sync here: a sync would make the store flush the first log.
    db.put("key006", "in the second log").unwrap();
    let fs = killed.kill();
    drop(db);
    let newest = Inspector::on(Arc::new(fs.clone())).files(Path::new(DIR)).unwrap();
    let mut logs = newest.iter().filter(|file| matches!(file.kind, FileKind::Wal(_)));
    let (_, newest) = (logs.next().unwrap(), logs.next().unwrap());
    let mut log = fs.read(&newest.path).unwrap();
    log.resize(log.len() + ZEROS, 0);
    fs.write(&newest.path, log).unwrap();
    fs
}

/// A store with a range table, and with range deletes in its log.
pub(crate) fn ranges_store() -> SimFileSystem {
    let fs = SimFileSystem::new();
    let db = options(&fs).open(DIR).unwrap();
    (0..12).for_each(|i| _ = db.put(format!("key{i:03}"), "v").unwrap());
    db.flush().unwrap();
    db.delete_range("key003".."key004").unwrap();
    db.put("key020", "newer than the range").unwrap();
    db.flush().unwrap();
    let mut batch = WriteBatch::new();
    batch.delete_range("key008".."key010");
    batch.put("key009", "back");
    batch.delete_range("key011".."key020");
    batch.delete_range("key021"..);
    db.write(batch).unwrap();
    db.sync().unwrap();
    fs.kill()
}

/// A store with two value files, to which tables point; values are compressed where that helps.
pub(crate) fn values_store() -> SimFileSystem {
    let fs = SimFileSystem::new();
    let keyspace = KeyspaceOptions::new().compression(Compression::Lz4).block_size(256).separate_values(16);
    let db = options(&fs).default_keyspace(keyspace).open(DIR).unwrap();
    (0..3).for_each(|i| _ = db.put(format!("key{i:03}"), format!("value {i} is stored apart")).unwrap());
    db.put("short", "v").unwrap();
    db.put("repeated", "again ".repeat(30)).unwrap();
    db.flush().unwrap();
    db.put("key001", "value 1 has been replaced").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    fs
}

/// A store with range filters: of keys in order and in clusters, and of keys that allow none.
pub(crate) fn filters_store() -> SimFileSystem {
    let fs = SimFileSystem::new();
    let keyspace = KeyspaceOptions::new().block_size(256).compression(Compression::None);
    let keyspace = keyspace.range_filter(RangeFilterPolicy::Ordered { bits_per_key: 12.5 });
    let db = options(&fs).default_keyspace(keyspace).open(DIR).unwrap();
    (0..24u32).for_each(|i| _ = db.put(format!("key{:06}", i * i * 997), "v").unwrap());
    (0..24u32).for_each(|i| _ = db.put(format!("user{:03}:{:08}", i / 8 * 7, i / 8 * 7_000_000 + i), "").unwrap());
    db.flush().unwrap();
    (0..3u32).for_each(|i| _ = db.put(format!("key{:06}", i * 5), "newer").unwrap());
    db.flush().unwrap();
    db.close().unwrap();
    fs
}

/// A store with two ingested tables over one of its own. One of them has range deletes. The log has
/// the ingest too.
pub(crate) fn ingest_store() -> SimFileSystem {
    let fs = SimFileSystem::new();
    let db = options(&fs).open(DIR).unwrap();
    (0..8).for_each(|i| _ = db.put(format!("key{i:03}"), "v").unwrap());
    db.flush().unwrap();
    let format = db.sst_format().unwrap();
    // An identity is drawn, but for files that must be the same in each run.
    let writer = |path: &str, bits| {
        let identity = IDENTITY_BIT | bits;
        SstWriter::with_identity(Arc::new(fs.clone()), Path::new(path), &format, identity).unwrap()
    };
    let (mut ranges, mut writer) = (writer("/ranges.sst", 0x1111_2222_3333_4444), writer("/new.sst", 0x5555_6666));
    ranges.delete_range("key001".."key003").unwrap();
    ranges.delete_range("key007".."key008").unwrap();
    ranges.finish().unwrap();
    for i in 4..12 {
        match i {
            6 => writer.delete("key006").unwrap(),
            7 => {}
            _ => writer.put(format!("key{i:03}"), "ingested").unwrap(),
        }
    }
    writer.finish().unwrap();
    db.ingest(["/ranges.sst", "/new.sst"], IngestOptions::new().mode(IngestMode::Move)).unwrap();
    db.put("key005", "newer than the ingest").unwrap();
    db.sync().unwrap();
    fs.kill()
}

fn golden_bloom() -> BloomFilter {
    let mut filter = BloomFilter::builder().seed(7).with_bits_per_key(100, 10.0).unwrap();
    filter.extend((0..100u32).map(u32::to_be_bytes));
    filter
}

fn golden_scalable() -> ScalableBloomFilter {
    let mut filter = ScalableBloomFilter::builder().seed(7).with_rate(20, 0.01).unwrap();
    filter.extend((0..100u32).map(u32::to_be_bytes));
    filter
}

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
fn encoded_files(store: &str) -> Vec<(String, Vec<u8>, String)> {
    let fs = match store {
        "store" => golden_store(),
        "ranges" => ranges_store(),
        "values" => values_store(),
        "filters" => filters_store(),
        _ => ingest_store(),
    };
    let inspector = Inspector::on(Arc::new(fs.clone()));
    let files = inspector.files(Path::new(DIR)).unwrap();
    let mut encoded: Vec<_> = files
        .into_iter()
        .filter(|file| file.kind != FileKind::Lock)
        .map(|file| {
            let bytes = fs.read(&file.path).unwrap();
            let text = annotated(&inspector, &file, &bytes);
            (file.kind.name(), bytes, text)
        })
        .collect();
    if store != "store" {
        return encoded;
    }
    for (name, bytes) in [("words.bloom", golden_bloom().to_bytes()), ("words.scalable", golden_scalable().to_bytes())]
    {
        let mut hex = Hex::new(&bytes, name);
        if name == "words.scalable" {
            hex.fields(&SCALABLE_HEADER);
        }
        while hex.at < bytes.len() {
            hex.filter(usize::MAX);
        }
        encoded.push((name.to_owned(), bytes.clone(), hex.text));
    }
    encoded
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
fn check_rewritten(fs: &SimFileSystem, check: impl Fn(&Db)) {
    check(&options(fs).open_read_only(DIR).unwrap());
    for _ in 0..2 {
        let db = options(fs).open(DIR).unwrap();
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
    check_rewritten(&fs, check);
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
    check_rewritten(&fs, check);
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
    check_rewritten(&fs, check);
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
    check_rewritten(&fs, check);
}

#[test]
fn golden_store_is_opened_and_read() {
    let files = golden_files("store");
    let (fs, _) = sound("store");
    for kind in ["CURRENT", "MANIFEST-", ".wal", ".sst", ".bloom", ".scalable"] {
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
    // As a store: read only, then written to, then read again.
    let db = options(&fs).open_read_only(DIR).unwrap();
    check_contents(&db);
    db.close().unwrap();
    for _ in 0..2 {
        let db = options(&fs).open(DIR).unwrap();
        check_contents(&db);
        db.compact_range(..).unwrap();
        check_contents(&db);
        db.close().unwrap();
    }
    // The stand-alone filters.
    let file = |wanted: &str| files.iter().find(|(name, _)| name == wanted).unwrap().1.clone();
    let bloom = BloomFilter::from_bytes(&file("words.bloom")).unwrap();
    let scalable = ScalableBloomFilter::from_bytes(&file("words.scalable")).unwrap();
    assert!((0..100u32).all(|key| bloom.contains(key.to_be_bytes()) && scalable.contains(key.to_be_bytes())));
    assert!((100..1100u32).filter(|key| bloom.contains(key.to_be_bytes())).count() < 30);
    assert_eq!((bloom.to_bytes(), scalable.to_bytes()), (file("words.bloom"), file("words.scalable")));
}

#[test]
fn golden_stores_are_what_the_encoders_write() {
    check_encoded("store");
    check_encoded("ranges");
    check_encoded("values");
    check_encoded("ingest");
    check_encoded("filters");
}

fn check_encoded(store: &str) {
    let encoded = encoded_files(store);
    if std::env::var_os("TAMIS_WRITE_GOLDEN").is_some() {
        let (fs, dir) = (OsFileSystem::new(), golden_dir(store));
        let _ = fs.create_dir(&dir);
        for name in fs.list(&dir).unwrap() {
            fs.remove(&dir.join(name)).unwrap();
        }
        for (name, _, text) in &encoded {
            fs.create(&dir.join(format!("{name}.hex"))).unwrap().append(text.as_bytes()).unwrap();
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

/// Annotated hex of a file, written from front to back.
struct Hex<'a> {
    bytes: &'a [u8],
    at: usize,
    text: String,
}

const SCALABLE_HEADER: [(usize, &str); 12] = [
    (4, "magic \"SBF1\""),
    (1, "format version"),
    (1, "growth"),
    (2, "zero"),
    (4, "number of filters"),
    (4, "zero"),
    (8, "keys of the first filter"),
    (8, "rate"),
    (8, "tightening"),
    (8, "length of all"),
    (8, "hash of the filters"),
    (8, "zero, checksum"),
];

const RANGE_HEADER: [(usize, &str); 13] = [
    (4, "magic \"RNG1\""),
    (1, "format version"),
    (1, "kind"),
    (2, "zero"),
    (8, "file number"),
    (8, "keys"),
    (4, "thousandths of bits per key"),
    (4, "blocks"),
    (4, "rate of fresh ranges in 10^-9"),
    (4, "rate of ranges near keys in 10^-9"),
    (8, "length"),
    (8, "hash of the codes"),
    (8, "zero, checksum"),
];

const FILTER_HEADER: [(usize, &str); 13] = [
    (4, "magic \"FLT1\""),
    (1, "format version"),
    (1, "policy"),
    (1, "hash function"),
    (1, "flags"),
    (8, "seed"),
    (8, "keys, 0 if not counted"),
    (4, "thousandths of bits per key"),
    (4, "probes, groups, prefix extractor"),
    (8, "probes per group"),
    (8, "lines"),
    (8, "hash of the lines"),
    (8, "rate in 10^-9, checksum"),
];

impl<'a> Hex<'a> {
    fn new(bytes: &'a [u8], what: &str) -> Hex<'a> {
        let text = format!("# {what}, format 1; `src/offline/inspect/tests/golden.rs` says how it is made.\n");
        Hex { bytes, at: 0, text }
    }

    /// Prints the next `len` bytes in rows, with the comment in the first row.
    fn put(&mut self, len: usize, comment: &str) {
        let end = self.at.saturating_add(len).min(self.bytes.len());
        let comment: String = comment.chars().take(56).collect();
        for (i, row) in self.bytes[self.at..end].chunks(20).enumerate() {
            let digits: String = row.iter().map(|byte| format!("{byte:02x}")).collect();
            let comment = if i == 0 { &comment } else { "" };
            let _ = writeln!(self.text, "{}", format!("{digits:<40} # {comment}").trim_end_matches([' ', '#']));
        }
        self.at = end;
    }

    fn to(&mut self, end: usize, comment: &str) {
        self.put(end.saturating_sub(self.at), comment);
    }

    fn title(&mut self, title: &str) {
        let _ = writeln!(self.text, "# {title}, at {}", self.at);
    }

    fn fields(&mut self, fields: &[(usize, &str)]) {
        fields.iter().for_each(|(len, comment)| self.put(*len, comment));
    }

    fn file_header(&mut self) {
        self.fields(&[
            (8, "magic"),
            (4, "format version"),
            (4, "required features"),
            (8, "file number"),
            (8, "first ordinal"),
            (8, "synced"),
            (8, "previous log"),
            (8, "its length"),
            (4, "zero"),
            (4, "checksum"),
        ]);
    }

    /// Prints a filter block that ends at `end` or with its lines.
    fn filter(&mut self, end: usize) {
        self.title("filter");
        let lines = self.bytes.get(self.at + 40..self.at + 48).and_then(|field| field.first_chunk());
        let lines = lines.map_or(0, |field| usize::try_from(u64::from_le_bytes(*field)).unwrap());
        self.fields(&FILTER_HEADER);
        self.to(end.min(self.at + 64 * lines), "lines");
    }

    fn tagged_fields(&mut self, end: usize) {
        while self.at < end {
            let mut fields = Decoder::new(&self.bytes[self.at..end]);
            let left = fields.remaining();
            let Ok(Some((tag, _))) = fields.field() else { return };
            self.put(left - fields.remaining(), &format!("tag {tag}"));
        }
    }
}

fn annotated(inspector: &Inspector, file: &StoreFile, bytes: &[u8]) -> String {
    let mut hex = Hex::new(bytes, &file.kind.name());
    match file.kind {
        FileKind::Wal(_) | FileKind::Manifest(_) => annotate_log(&mut hex, inspector, file),
        FileKind::Table(_) => annotate_table(&mut hex, &inspector.table(&file.path).unwrap()),
        FileKind::Values(_) => {
            hex.file_header();
            for record in inspector.values(&file.path).unwrap().map(|record| record.unwrap()) {
                assert_eq!(record.offset, hex.at as u64);
                let (end, key) = (hex.at + usize::try_from(record.len).unwrap(), record.key.escape_ascii());
                hex.put(4, "checksum of the record");
                hex.put(end - hex.at, &format!("length, keyspace, key \"{key}\", compression, value"));
            }
            hex.fields(&[(8, "number of records"), (8, "file length"), (4, "keyspace"), (4, "checksum"), (8, "magic")]);
        }
        _ => {
            let lines: Vec<usize> = bytes.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::len).collect();
            lines.into_iter().for_each(|len| {
                let line = String::from_utf8_lossy(&bytes[hex.at..hex.at + len]).trim_end().to_owned();
                hex.put(len, &line);
            });
        }
    }
    hex.to(bytes.len(), "zeros, prepared for more records");
    hex.text
}

fn annotate_log(hex: &mut Hex<'_>, inspector: &Inspector, file: &StoreFile) {
    hex.file_header();
    let mut log = inspector.log(&file.path).unwrap();
    let mut records = Vec::new();
    while let Some(record) = log.next_record().unwrap() {
        records.push(record);
    }
    for (i, record) in records.iter().enumerate() {
        let payload = usize::try_from(record.payload_len).unwrap();
        let start = usize::try_from(record.offset).unwrap();
        assert_eq!(start, hex.at);
        hex.title(&format!(
            "record {i}, first ordinal {}, count {}, synced {}",
            record.first, record.count, record.synced
        ));
        hex.put(4, "checksum of the header");
        hex.put(4, "checksum of the payload");
        let mut fields = Decoder::new(&hex.bytes[hex.at..]);
        let left = fields.remaining();
        let stated = fields.varint().unwrap() & 1 == 1;
        fields.varint().unwrap();
        hex.put(left - fields.remaining(), "count and statement, length of the payload");
        if stated {
            hex.fields(&[(8, "file number"), (8, "synced")]);
        }
        let end = hex.at + payload;
        match &record.content {
            Content::Edit(_) => hex.tagged_fields(end),
            Content::Batch(operations) => {
                let keys: Vec<_> = operations.iter().map(|op| op.key.escape_ascii().to_string()).collect();
                hex.put(payload, &format!("operations on {keys:?}"));
            }
            _ => {}
        }
        assert_eq!(hex.at, end);
    }
}

fn annotate_table(hex: &mut Hex<'_>, table: &TableFile) {
    let properties = table.properties();
    let place = |handle: Handle| {
        let start = usize::try_from(handle.offset).unwrap();
        (start, start + handle.len as usize)
    };
    hex.file_header();
    for (i, block) in table.blocks().map(Result::unwrap).enumerate() {
        let (start, end) = place(block.handle);
        hex.to(start, "zeros up to a page");
        hex.title(&format!("data block {i} of {} entries", block.entries));
        hex.to(end, &format!("{:?}", block.compression));
        hex.put(5, "trailer");
    }
    if let Some(filter) = properties.filter_block {
        hex.filter(place(filter).1);
        hex.put(5, "trailer");
    }
    if let Some(filter) = properties.range_filter_block {
        let end = place(filter).1;
        hex.title("range filter");
        hex.fields(&RANGE_HEADER);
        hex.to(end, "codes");
        hex.put(5, "trailer");
    }
    hex.title("properties");
    hex.tagged_fields(place(properties.properties_block).1);
    hex.put(5, "trailer");
    hex.title("index");
    hex.to(place(properties.index_block).1, "");
    hex.put(5, "trailer");
    hex.title("footer");
    hex.fields(&[
        (8, "file number"),
        (8, "file size"),
        (8, "entries"),
        (8, "hash seed"),
        (12, "index"),
        (12, "filter"),
        (12, "properties"),
        (12, "zero"),
        (4, "format version"),
        (4, "checksum"),
        (8, "magic \"tamisftr\""),
    ]);
}
