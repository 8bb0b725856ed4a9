//! Replays the seeds in `tests/corpus`, and a few thousand mutations of them, on a stable
//! toolchain.
//!
//! A seed is a file that the encoders wrote, after a first byte of 0. After a change of a format,
//! write the seeds again:
//!
//! ```sh
//! TAMIS_WRITE_SEEDS=1 cargo test -p tamis --lib fuzz
//! ```
//!
//! Inputs with which a run of `cargo fuzz` found something stay in `tests/corpus` beside the seeds,
//! under names with `found-`.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::filter::FilterPolicy;
use crate::filter::{
    BloomFilter, BloomLayout, BloomSize, FuseFilter, HashFunction, OrderedFilter, ScalableBloomFilter,
};
use crate::format::checksum::crc;
use crate::format::filename::FileKind;
use crate::format::header::{FileHeader, Magic};
use crate::format::record::RecordHeader;
use crate::offline::inspect::{Inspector, TableFile};
use crate::offline::tests::golden::stores::STORES;
use crate::options::Compression;
use crate::vfs::{FileSystem, OsFileSystem, SimFileSystem, read_small_file};

const DIR: &str = "/store";
/// Number of mutations of each target's seeds, in total.
const MUTATIONS: usize = 3000;
/// Fewer for a whole store, which takes a thousand times as long as a footer.
const STORE_MUTATIONS: usize = 250;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target)
}

/// The checked-in inputs of a target, by name.
fn inputs(target: &str) -> BTreeMap<String, Vec<u8>> {
    let dir = corpus(target);
    let names = OsFileSystem::new().list(&dir).unwrap_or_default();
    let read = |name: &String| read_small_file(&OsFileSystem::new(), &dir.join(name), 1 << 20).unwrap();
    names.iter().map(|name| (name.clone(), read(name))).collect()
}

fn sealed(bytes: &[u8]) -> Vec<u8> {
    [&[0], bytes].concat()
}

fn trimmed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(end + 8);
    bytes
}

/// All seeds: target, name, bytes.
fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut seeds = Vec::new();
    let mut add = |target, name: &str, bytes: &[u8]| seeds.push((target, name.to_owned(), sealed(bytes)));
    for (name, store) in STORES {
        let (prefix, fs) = (if name == "store" { String::new() } else { format!("{name}-") }, store());
        let inspector = Inspector::on(Arc::new(fs.clone()));
        // All files; and logs and tables only, without a manifest.
        let (mut archive, mut alone) = (Vec::new(), Vec::new());
        for file in inspector.files(Path::new(DIR)).unwrap() {
            let bytes = trimmed_log(&fs, file.kind, &file.path);
            let name = format!("{prefix}{}", file.kind.name());
            let number = file.kind.number().unwrap_or_default().to_le_bytes()[0];
            let code = match file.kind {
                FileKind::Current => {
                    add("current", &name, &bytes);
                    0
                }
                FileKind::Manifest(_) => {
                    add("manifest", &name, &bytes);
                    for (i, (_, payload)) in records(&inspector, &file.path, &bytes).into_iter().enumerate() {
                        add("manifest_edit", &format!("{name}-{i}"), &payload);
                    }
                    1
                }
                FileKind::Wal(_) => {
                    add("log_records", &name, &bytes);
                    for (i, (count, payload)) in records(&inspector, &file.path, &bytes).into_iter().enumerate() {
                        add("batch", &format!("{name}-{i}"), &[&[count], &payload[..]].concat());
                    }
                    2
                }
                FileKind::Table(_) => {
                    add("table", &name, &bytes);
                    for (target, part) in parts(&inspector.table(&file.path).unwrap(), &bytes) {
                        add(target, &name, &part);
                    }
                    3
                }
                FileKind::Values(_) => 4,
                _ => continue,
            };
            put_file(&mut archive, code, number, &bytes);
            if code > 1 {
                put_file(&mut alone, code, number, &bytes);
            }
        }
        add("store", &format!("{prefix}golden"), &archive);
        add("repair", &format!("{prefix}golden"), &archive);
        // Without it, nothing tells when a table was ingested.
        if prefix != "ingest-" {
            add("repair", &format!("{prefix}without-manifest"), &alone);
        }
    }
    add("log_replay", "three-logs", &replay_of_new_logs());
    add("log_replay", "stating", &replay_of_stating_logs());
    for layout in [BloomLayout::Split, BloomLayout::Standard] {
        for hash in [HashFunction::Xxh3, HashFunction::SipHash13, HashFunction::Murmur3] {
            let builder = BloomFilter::builder().layout(layout).hash(hash).seed(5);
            let mut filter = builder.with_rate(50, 0.01).unwrap();
            filter.extend((0..40u32).map(u32::to_be_bytes));
            add("bloom_filter", &format!("{layout}-{hash}"), &filter.to_bytes());
        }
        let builder = ScalableBloomFilter::builder().layout(layout).seed(5);
        let mut filter = builder.with_rate(10, 0.01).unwrap();
        filter.extend((0..60u32).map(u32::to_be_bytes));
        add("scalable_filter", &layout.to_string(), &filter.to_bytes());
    }
    let keys = || (0..40u32).map(u32::to_be_bytes);
    let named = filter::fuzz::NamedHash::new();
    let size = BloomSize::for_rate(BloomLayout::Split, 50, 0.01).unwrap();
    let mut bloom = BloomFilter::with_hasher(size, named.clone()).unwrap();
    bloom.extend(keys());
    add("bloom_filter", "split-named", &bloom.to_bytes());
    for bits in [4, 7, 16] {
        add("fuse_filter", &bits.to_string(), &FuseFilter::from_keys(keys(), bits).unwrap().to_bytes());
    }
    add("fuse_filter", "named", &FuseFilter::with_hasher(keys(), 8, named).unwrap().to_bytes());
    for (name, policy, keys) in
        [("split", FilterPolicy::DEFAULT, 60), ("none", FilterPolicy::Bloom { bits_per_key: 1.0 }, 0)]
    {
        add("filter_block", name, &filter::fuzz::block_of(policy, keys));
    }
    add("filter_block", "fuse", &filter::fuzz::small_fuse(7));
    let ordered = filter::fuzz::ordered_keys();
    for per_block in [10, 300] {
        add("range_filter", &per_block.to_string(), &filter::fuzz::range_block(per_block));
    }
    for keys in [ordered.len(), 40, 1, 0] {
        let filter = OrderedFilter::from_keys(&ordered[..keys], 12.0).unwrap();
        add("ordered_filter", &keys.to_string(), &filter.to_bytes());
    }
    seeds
}

fn trimmed_log(fs: &SimFileSystem, kind: FileKind, path: &Path) -> Vec<u8> {
    let bytes = fs.read(path).unwrap();
    match kind {
        FileKind::Wal(_) | FileKind::Manifest(_) => trimmed(bytes),
        _ => bytes,
    }
}

/// Count and payload of each record of a log, without sync markers.
fn records(inspector: &Inspector, path: &Path, bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut log = inspector.log(path).unwrap();
    let number = log.kind().number().unwrap();
    let mut records = Vec::new();
    while let Some(record) = log.next_record().unwrap() {
        let record_bytes = &bytes[usize::try_from(record.offset).unwrap()..];
        let (header, header_len) = RecordHeader::decode(record_bytes, number, record.offset).unwrap();
        if header.count > 0 {
            let payload = &record_bytes[header_len..][..header.payload_len as usize];
            records.push((u8::try_from(header.count).unwrap(), payload.to_vec()));
        }
    }
    records
}

fn put_file(archive: &mut Vec<u8>, kind: u8, number: u8, bytes: &[u8]) {
    archive.extend_from_slice(&[kind, number]);
    archive.extend_from_slice(&u32::try_from(bytes.len()).unwrap().to_le_bytes());
    archive.extend_from_slice(bytes);
}

/// The parts of a table, by target.
fn parts(table: &TableFile, bytes: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let part = |handle: crate::offline::inspect::Handle| {
        let start = usize::try_from(handle.offset).unwrap();
        bytes[start..start + handle.len as usize].to_vec()
    };
    let properties = table.properties();
    let mut parts = vec![
        ("properties", part(properties.properties_block)),
        ("index", part(properties.index_block)),
        ("footer", bytes[bytes.len() - 96..].to_vec()),
    ];
    let block = table.blocks().next().unwrap().unwrap();
    if block.compression == Compression::None {
        parts.push(("data_block", part(block.handle)));
    }
    parts
}

/// A log of one entry for each of `records`. Each record states that everything up to its second
/// number is durable; one without a key is a sync marker.
fn log_of(header: FileHeader, records: &[(Option<u8>, u64)]) -> Vec<u8> {
    let mut log = header.encode(Magic::Wal).to_vec();
    for &(key, synced) in records {
        let payload = key.map_or(Vec::new(), |key| vec![1, 0, 1, key, 1, b'v']);
        let (payload_len, count) = (u32::try_from(payload.len()).unwrap(), u32::from(key.is_some()));
        let record = RecordHeader { payload_len, payload_crc: crc(&payload), count, synced };
        log.extend_from_slice(record.encode(header.number, log.len() as u64).as_slice());
        log.extend_from_slice(&payload);
    }
    log
}

/// Three logs. The second one begins where the first one ends, the third one before the end of the
/// second one. Sealing gives each log its own number.
fn replay_of_new_logs() -> Vec<u8> {
    let mut replay = vec![0];
    for (first, keys) in [(1u64, 0..3u8), (4, 3..5), (5, 5..6)] {
        let header = FileHeader { number: 3, first, ..Default::default() };
        let records: Vec<_> = keys.map(|key| (Some(key), 0)).collect();
        put_file(&mut replay, 2, 0, &log_of(header, &records));
    }
    replay
}

/// Logs that state how far they are durable and which log came before them, with zeros prepared for
/// more records. The third one is void: it begins behind the end that was found by the recovery
/// that made the fourth one.
fn replay_of_stating_logs() -> Vec<u8> {
    let mut replay = vec![0];
    let header = |first, synced, previous| FileHeader { number: 3, first, synced, previous, ..Default::default() };
    let logs = [
        log_of(header(1, 0, 0), &[(Some(0), 0), (Some(1), 1), (None, 2), (Some(2), 0)]),
        log_of(header(4, 3, 3), &[(Some(3), 3), (None, 4), (Some(4), 4), (Some(5), 4)]),
        log_of(header(8, 4, 4), &[(Some(7), 4)]),
        log_of(header(6, 5, 4), &[(Some(6), 5)]),
    ];
    for mut log in logs {
        log.extend_from_slice(&[0; 100]);
        put_file(&mut replay, 2, 0, &log);
    }
    replay
}

#[test]
fn seeds_are_accepted() {
    if std::env::var_os("TAMIS_WRITE_SEEDS").is_some() {
        write_seeds();
    }
    for (target, _) in TARGETS {
        let inputs = inputs(target);
        assert!(!inputs.is_empty(), "{target} has no seeds");
        for (name, input) in &inputs {
            let accepted = run(target, input);
            let is_seed = !name.starts_with("found-");
            assert!(
                accepted || !is_seed,
                "{target}/{name} is refused: has the format changed? See the head of this file."
            );
        }
    }
    // What the encoders write now is accepted too.
    for (target, name, seed) in seeds() {
        assert!(run(target, &seed), "{target}/{name}");
    }
}

fn write_seeds() {
    let fs = OsFileSystem::new();
    let root = corpus("");
    let _ = fs.create_dir(&root);
    for (target, _) in TARGETS {
        let dir = corpus(target);
        let _ = fs.create_dir(&dir);
        for name in inputs(target).keys().filter(|name| !name.starts_with("found-")) {
            fs.remove(&dir.join(name)).unwrap();
        }
    }
    for (target, name, seed) in seeds() {
        fs.create(&corpus(target).join(name)).unwrap().append(&seed).unwrap();
    }
}

/// Changes `input` in one to four places; some changes copy bytes from `others`.
fn mutate(rng: &mut fastrand::Rng, input: &mut Vec<u8>, others: &[&Vec<u8>]) {
    for _ in 0..rng.usize(1..=4) {
        let len = input.len();
        if len < 2 {
            return input.extend((0..64).map(|_| rng.u8(..)));
        }
        // Rarely change the first byte, which selects the mode.
        let at = if rng.usize(..100) == 0 { 0 } else { rng.usize(1..len) };
        let piece = at..(at + 1 + rng.usize(..16)).min(len);
        match rng.usize(..10) {
            0 | 1 => input[at] ^= 1 << rng.usize(..8),
            2 => input[at] = *rng.choice(&[0, 1, 0x7f, 0x80, 0xfe, 0xff]).unwrap(),
            3 => input[at] = input[at].wrapping_add(rng.u8(..16).wrapping_sub(8)),
            4 => piece.for_each(|i| input[i] = rng.u8(..)),
            5 => {
                let bytes = [0, u64::MAX, 1 << 31, 1 << 56, len as u64][rng.usize(..5)].to_le_bytes();
                let width = [2, 4, 8][rng.usize(..3)].min(len - at);
                input[at..at + width].copy_from_slice(&bytes[..width]);
            }
            6 => _ = input.drain(piece),
            7 => {
                let copy = input[piece].to_vec();
                let to = rng.usize(1..=len);
                input.splice(to..to, copy);
            }
            8 => input.truncate(at.max(1)),
            _ => {
                let other = others[rng.usize(..others.len())];
                let start = rng.usize(..other.len());
                let end = (start + 1 + rng.usize(..64)).min(other.len());
                let to = (at + end - start).min(len);
                input.splice(at..to, other[start..end].iter().copied());
            }
        }
    }
}

/// Runs a target, and prints the input if it panics. Returns whether the input was accepted.
fn run_named(target: &str, input: &[u8]) -> bool {
    let mut accepted = false;
    let run = AssertUnwindSafe(|| allocation_counter::measure(|| accepted = run(target, input)));
    let allocated = catch_unwind(run).unwrap_or_else(|panic| {
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("{target} panicked with {} bytes: {hex}", input.len());
        resume_unwind(panic)
    });
    // A multiple of the input, and buffers of fixed size, of which a store has more.
    let (times, more) = match target {
        "store" | "repair" => (512, 32 << 20),
        "table" => (512, 2 << 20),
        _ => (64, 64 << 10),
    };
    let limit = times * input.len() as u64 + more;
    assert!(allocated.bytes_max <= limit, "{target} took {} bytes for {}", allocated.bytes_max, input.len());
    accepted
}

fn check_mutations(target: &str, mutations: usize) {
    let inputs = inputs(target);
    let seeds: Vec<&Vec<u8>> = inputs.values().collect();
    let mut rng = fastrand::Rng::with_seed(13);
    let (mut accepted, mut refused) = (0, 0);
    for i in 0..mutations {
        let mut input = seeds[i % seeds.len()].clone();
        mutate(&mut rng, &mut input, &seeds);
        *if run_named(target, &input) { &mut accepted } else { &mut refused } += 1;
    }
    println!("{target}: {accepted} mutations accepted, {refused} refused");
    assert!(accepted > 0 && refused > 0, "{target}: {accepted} accepted, {refused} refused");
}

/// Declares a test for each target, so that they run in parallel.
macro_rules! mutation_tests {
    ($($target:ident: $mutations:expr,)*) => {
        mod mutations_keep_the_promises_of {
            use super::*;
            $(#[test]
            fn $target() {
                check_mutations(stringify!($target), $mutations);
            })*
        }

        #[test]
        fn every_target_has_a_test() {
            let tested = [$(stringify!($target)),*];
            assert_eq!(TARGETS.map(|(target, _)| target), tested);
        }
    };
}

mutation_tests! {
    current: MUTATIONS,
    log_records: MUTATIONS,
    log_replay: MUTATIONS,
    batch: MUTATIONS,
    manifest_edit: MUTATIONS,
    manifest: MUTATIONS,
    data_block: MUTATIONS,
    index: MUTATIONS,
    properties: MUTATIONS,
    footer: MUTATIONS,
    filter_block: MUTATIONS,
    bloom_filter: MUTATIONS,
    fuse_filter: MUTATIONS,
    scalable_filter: MUTATIONS,
    range_filter: MUTATIONS,
    ordered_filter: MUTATIONS,
    table: MUTATIONS,
    store: STORE_MUTATIONS,
    repair: STORE_MUTATIONS,
}
