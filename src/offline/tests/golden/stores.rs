//! The golden stores and filters, as the encoders write them now.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::exec::SteppedExecutor;
use crate::filter::ScalableBloomFilter;
use crate::filter::{BloomFilter, FilterPolicy, FuseFilter, OrderedFilter, PrefixExtractor, RangeFilterPolicy};
use crate::format::header::IDENTITY_BIT;
use crate::inspect::*;
use crate::operator::Add;
use crate::options::{Compression, FilterBudget, KeyspaceOptions, LevelFilters, Options, WalMode};
use crate::vfs::SimFileSystem;
use crate::{IngestMode, IngestOptions, SstWriter, WriteBatch};

pub(super) const DIR: &str = "/store";
/// Number of zeros after the last record of the newest log, like those prepared for more records.
const ZEROS: usize = 64;

/// A name, and what makes the files or the bytes.
type Golden<T> = (&'static str, fn() -> T);

/// The golden stores by name, as the encoders write them now.
pub(crate) const STORES: [Golden<SimFileSystem>; 6] = [
    ("store", all_files),
    ("ranges", ranges),
    ("values", values),
    ("ingest", ingest),
    ("filters", filters),
    ("merges", merges),
];

/// Filters without a store, by the names of their files.
pub(super) const FILTERS: [Golden<Vec<u8>>; 4] = [
    ("words.bloom", || bloom().to_bytes()),
    ("words.scalable", || scalable().to_bytes()),
    ("words.fuse", || fuse().to_bytes()),
    ("words.ordered", || ordered().to_bytes()),
];

pub(super) fn options(fs: &SimFileSystem) -> Options {
    let keyspace = KeyspaceOptions::new().compression(Compression::Lz4).block_size(256);
    Options::new()
        .file_system(Arc::new(fs.clone()))
        .executor(Arc::new(SteppedExecutor::new()))
        .wal_mode(WalMode::Write)
        .hash_seed(0x1122_3344_5566_7788)
        .default_keyspace(keyspace)
}

/// A store with every kind of file but value files: a flushed part, and two logs left by killed
/// processes.
fn all_files() -> SimFileSystem {
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
fn ranges() -> SimFileSystem {
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
fn values() -> SimFileSystem {
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
fn filters() -> SimFileSystem {
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
fn ingest() -> SimFileSystem {
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

/// The options of the store with merges, whose clock stands still.
pub(super) fn merging(fs: &SimFileSystem) -> Options {
    let options = options(fs).clock(|| UNIX_EPOCH + Duration::from_secs(1_800_000_000));
    let keyspace = KeyspaceOptions::new().compression(Compression::None).block_size(256);
    options.default_keyspace(keyspace.separate_values(16).merge_operator(Add::BIG))
}

/// The year 2100, by which the clock of the store with merges never comes.
fn deadline() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(4_102_444_800)
}

/// A store with operands, with values that expire, one of them in a value file, and with a keyspace
/// without a log.
fn merges() -> SimFileSystem {
    let fs = SimFileSystem::new();
    let db = merging(&fs).open(DIR).unwrap();
    let cache = KeyspaceOptions::new().compression(Compression::None).wal(false);
    let cache = db.keyspace_with("cache", cache).unwrap();
    db.put("page 6", 6u64.to_be_bytes()).unwrap();
    db.merge("page 7", 7u64.to_be_bytes()).unwrap();
    db.put_with_expiry("code", "314", deadline()).unwrap();
    db.put_with_expiry("letter", "stored apart until then", deadline()).unwrap();
    cache.put("word", "in no log").unwrap();
    db.flush().unwrap();
    db.merge("page 6", 60u64.to_be_bytes()).unwrap();
    db.merge("page 7", 70u64.to_be_bytes()).unwrap();
    db.put_with_expiry("past", "", UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    db.flush().unwrap();
    db.merge("page 7", 700u64.to_be_bytes()).unwrap();
    db.put_with_expiry("code", "271", deadline()).unwrap();
    db.sync().unwrap();
    fs.kill()
}

pub(super) fn bloom() -> BloomFilter {
    let mut filter = BloomFilter::builder().seed(7).with_bits_per_key(100, 10.0).unwrap();
    filter.extend((0..100u32).map(u32::to_be_bytes));
    filter
}

pub(super) fn scalable() -> ScalableBloomFilter {
    let mut filter = ScalableBloomFilter::builder().seed(7).with_rate(20, 0.01).unwrap();
    filter.extend((0..100u32).map(u32::to_be_bytes));
    filter
}

pub(super) fn fuse() -> FuseFilter {
    FuseFilter::from_keys((0..100u32).map(u32::to_be_bytes), 8).unwrap()
}

pub(super) fn ordered() -> OrderedFilter {
    OrderedFilter::from_keys((0..100u32).map(|i| (i * i).to_be_bytes()), 12.0).unwrap()
}
