//! Encoded stand-alone filters: in bytes, streams and files, sound and damaged.

use std::io::{Cursor, ErrorKind};
use std::path::Path;

use super::alone::{HASHES, builders, random};
use super::*;
use crate::header::HEADER_LEN;
use crate::{BloomFilter, ScalableBloomFilter};
use proptest::prelude::*;
use tamis_base::error::Error;
use tamis_vfs::{Fault, FaultMode, FileSystem, SimFileSystem};

const PLANETS: [&str; 4] = ["Mercury", "Venus", "Earth", "Mars"];

fn bloom() -> BloomFilter {
    let mut filter = BloomFilter::builder().seed(5).with_rate(50, 0.01).unwrap();
    filter.extend((0..40).map(random));
    filter
}

fn scalable() -> ScalableBloomFilter {
    let mut filter = ScalableBloomFilter::builder().seed(5).with_rate(10, 0.01).unwrap();
    filter.extend((0..100).map(random));
    assert!(filter.filters() > 2);
    filter
}

/// Recomputes the checksums of an encoded scalable filter, but not those of its parts.
fn seal(bytes: &mut [u8]) {
    let hash = xxhash_rust::xxh3::xxh3_64(&bytes[HEADER_LEN..]);
    bytes[48..56].copy_from_slice(&hash.to_le_bytes());
    let checksum = tamis_base::format::checksum::crc(&bytes[..60]);
    bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
}

#[track_caller]
pub(super) fn refused<T: std::fmt::Debug>(decoded: crate::Result<T>) -> &'static str {
    match decoded {
        Err(Error::Filter { file: None, rule }) => rule,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    let (one, many) = (bloom().to_bytes(), scalable().to_bytes());
    for bit in 0..one.len() * 8 {
        let mut bytes = one.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        refused(BloomFilter::from_bytes(&bytes));
        assert_eq!(BloomFilter::read_from(&bytes[..]).unwrap_err().kind(), ErrorKind::InvalidData);
    }
    for bit in 0..many.len() * 8 {
        let mut bytes = many.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        refused(ScalableBloomFilter::from_bytes(&bytes));
        assert_eq!(ScalableBloomFilter::read_from(&bytes[..]).unwrap_err().kind(), ErrorKind::InvalidData);
        // With the outer checksums recomputed, those of the parts still fail.
        seal(&mut bytes);
        if bit >= HEADER_LEN * 8 {
            refused(ScalableBloomFilter::from_bytes(&bytes));
        }
    }
}

#[test]
fn every_other_length_is_refused() {
    let (one, many) = (bloom().to_bytes(), scalable().to_bytes());
    for len in 0..one.len() {
        refused(BloomFilter::from_bytes(&one[..len]));
        assert_eq!(BloomFilter::read_from(&one[..len]).unwrap_err().kind(), ErrorKind::InvalidData);
    }
    for len in 0..many.len() {
        refused(ScalableBloomFilter::from_bytes(&many[..len]));
        assert_eq!(ScalableBloomFilter::read_from(&many[..len]).unwrap_err().kind(), ErrorKind::InvalidData);
    }
    for more in [1, 64] {
        refused(BloomFilter::from_bytes(&[one.clone(), vec![0; more]].concat()));
        refused(ScalableBloomFilter::from_bytes(&[many.clone(), vec![0; more]].concat()));
    }
    refused(BloomFilter::from_bytes(&many));
    refused(ScalableBloomFilter::from_bytes(&one));
}

#[test]
fn rules_behind_valid_checksums_are_checked() {
    let one = bloom().to_bytes();
    let murmur = BloomFilter::builder().hash(crate::HashFunction::Murmur3).with_bits(512, 7).unwrap().to_bytes();
    let no_keys = build(split(10.0), &[]).bytes;
    for (bytes, offset, value, rule) in [
        (&one, 24..28, 0, "the filter's bits per key are 0"),
        (&murmur, 12..13, 1, "a seed of murmur3 has 32 bits"),
        (&no_keys, 24..25, 0x10, "the filter is no Bloom filter, or has no lines"),
        (&one, 16..17, 1, "the filter is a table's: it counts its keys"),
        (&one, 64..65, 0, "the rate in the filter's header does not match its bits"),
        (&one, 58..59, 0xff, "the rate in the filter's header does not match its bits"),
    ] {
        let mut bytes = bytes.clone();
        bytes[offset].fill(value);
        seal(&mut bytes);
        assert_eq!(refused(BloomFilter::from_bytes(&bytes)), rule);
    }
    const SIZE: &str = "a part of the scalable filter has another size than the header states";
    let many = scalable().to_bytes();
    for (offset, value, rule) in [
        (0, b's', "the scalable filter lacks its magic bytes"),
        (4, 2, "the scalable filter is of an unknown version"),
        (5, 3, "the scalable filter's size, rate, growth or tightening is out of range"),
        (6, 1, "the reserved bytes of the scalable filter are not zero"),
        (8, 0, "the scalable filter does not have 1 to 64 filters"),
        (8, 65, "the scalable filter does not have 1 to 64 filters"),
        (8, 1, "the scalable filter has more filters than its header states"),
        (8, 9, "the scalable filter has fewer filters than its header states"),
        (12, 1, "the reserved bytes of the scalable filter are not zero"),
        (16, 0, "the scalable filter's size, rate, growth or tightening is out of range"),
        (16, 200, SIZE),
        (23, 0xff, SIZE),
        (30, 1, SIZE),
        (31, 0x7f, "the scalable filter's size, rate, growth or tightening is out of range"),
        (31, 0xff, "the scalable filter's size, rate, growth or tightening is out of range"),
        (38, 0xb0, "the scalable filter's size, rate, growth or tightening is out of range"),
        (39, 0x40, "the scalable filter's size, rate, growth or tightening is out of range"),
        (47, 1, "the scalable filter's length does not match its header"),
        (56, 1, "the reserved bytes of the scalable filter are not zero"),
        (64, b'f', "the filter block lacks its magic bytes"),
    ] {
        let mut bytes = many.clone();
        bytes[offset] = value;
        seal(&mut bytes);
        assert_eq!(refused(ScalableBloomFilter::from_bytes(&bytes)), rule, "{offset}");
    }
}

#[test]
fn incompatible_parts_are_refused() {
    let part = |builder: crate::BloomBuilder| builder.with_rate(10, 0.001).unwrap().to_bytes();
    let builder = BloomFilter::builder();
    let other = builder.layout(crate::BloomLayout::Standard);
    for other in [builder.seed(1), builder.hash(crate::HashFunction::SipHash13), other] {
        let mut bytes = scalable().to_bytes()[..HEADER_LEN].to_vec();
        bytes.extend(part(builder));
        bytes.extend(part(other));
        let len = bytes.len() as u64;
        bytes[8] = 2;
        bytes[16] = 1;
        bytes[40..48].copy_from_slice(&len.to_le_bytes());
        seal(&mut bytes);
        let rule = "the parts of the scalable filter differ in hash or layout";
        assert_eq!(refused(ScalableBloomFilter::from_bytes(&bytes)), rule);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The lines, whose hash is in the header, were also computed by a second implementation, in
/// another language and with other hash libraries.
#[test]
fn golden_headers_of_four_planets() {
    let lines_and_crc =
        [("dfa4972c0e7058ed", "1c7786ed"), ("35b9508284311572", "89edba5e"), ("f18f362602d45552", "5da186a3")];
    for ((function, id), (lines, crc)) in HASHES.into_iter().zip(["01", "02", "03"]).zip(lines_and_crc) {
        let mut filter = BloomFilter::builder().hash(function).seed(1).with_bits(512, 7).unwrap();
        filter.extend(PLANETS);
        let fields = [
            "464c5431",         // magic
            "0101",             // version, policy
            id,                 // hash
            "01",               // flags
            "0100000000000000", // seed
            "0000000000000000", // keys, which it does not count
            "73270000",         // thousandths of bits per key: 7 / ln 2
            "07020000",         // probes, groups, extractor
            "0403000000000000", // probes per group
            "0100000000000000", // lines
            lines,              // hash of the lines
            "01000000",         // rate, 10^-9
            crc,                // CRC
        ];
        assert_eq!(hex(&filter.to_bytes()[..HEADER_LEN]), fields.concat(), "{function}");
    }
}

#[test]
fn golden_header_of_a_scalable_filter() {
    let mut filter = ScalableBloomFilter::builder().growth(4).seed(1).with_rate(2, 0.01).unwrap();
    filter.extend(PLANETS);
    let fields = [
        "53424631",         // magic
        "0104",             // version, growth
        "0000",             //
        "0200000000000000", // filters
        "0200000000000000", // first capacity
        "7b14ae47e17a843f", // rate
        "333333333333eb3f", // tightening
        "4001000000000000", // length
        "39f7d0897a367917", // hash of the filters
        "00000000",         //
        "0237df60",         // CRC
    ];
    assert_eq!(hex(&filter.to_bytes()[..HEADER_LEN]), fields.concat());
}

#[test]
fn streams_hold_one_filter_after_the_other() {
    let (one, many) = (bloom(), scalable());
    let mut stream = Vec::new();
    one.write_to(&mut stream).unwrap();
    many.write_to(&mut stream).unwrap();
    one.write_to(&mut stream).unwrap();
    let mut stream = Cursor::new(stream);
    assert_eq!(BloomFilter::read_from(&mut stream).unwrap(), one);
    assert_eq!(ScalableBloomFilter::read_from(&mut stream).unwrap(), many);
    assert_eq!(BloomFilter::read_from(&mut stream).unwrap(), one);
    let error = BloomFilter::read_from(&mut stream).unwrap_err();
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    assert!(matches!(inner, Some(Error::Filter { file: None, .. })), "{error}");
}

#[test]
fn a_header_that_claims_a_huge_length_takes_no_memory() {
    let mut bytes = bloom().to_bytes();
    bytes[40..48].copy_from_slice(&(1u64 << 28).to_le_bytes());
    seal(&mut bytes);
    assert_eq!(BloomFilter::read_from(&bytes[..]).unwrap_err().kind(), ErrorKind::InvalidData);
    let mut bytes = scalable().to_bytes();
    bytes[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
    seal(&mut bytes);
    assert_eq!(ScalableBloomFilter::read_from(&bytes[..]).unwrap_err().kind(), ErrorKind::InvalidData);
}

#[test]
fn files_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("words.bloom");
    for builder in builders() {
        let mut filter = builder.with_rate(1000, 0.01).unwrap();
        filter.extend((0..700).map(random));
        filter.save(&path).unwrap();
        let loaded = BloomFilter::load(&path).unwrap();
        assert_eq!(filter.encoded_len(), filter.to_bytes().len() as u64);
        assert_eq!((loaded.to_bytes(), &loaded), (filter.to_bytes(), &filter));
    }
    scalable().save(&path).unwrap();
    assert_eq!(scalable().encoded_len(), scalable().to_bytes().len() as u64);
    assert_eq!(ScalableBloomFilter::load(&path).unwrap(), scalable());
    let error = BloomFilter::load(&path).unwrap_err();
    assert!(error.is_corruption(), "{error}");
    assert!(error.to_string().contains("words.bloom is not a sound filter"), "{error}");
    let missing = BloomFilter::load(dir.path().join("missing")).unwrap_err();
    assert!(matches!(missing, Error::Io { operation: "open", .. }), "{missing}");
    assert!(matches!(bloom().save("/"), Err(Error::InvalidArgument(_))));
    let mut left: Vec<_> = tamis_vfs::OsFileSystem::new().list(dir.path()).unwrap();
    left.sort();
    assert_eq!(left, ["words.bloom"]);
}

/// A file system with an old filter saved in directory `d`.
fn with_old() -> (SimFileSystem, &'static Path, BloomFilter) {
    let (fs, path) = (SimFileSystem::new(), Path::new("/d/f.bloom"));
    fs.create_dir(Path::new("/d")).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    let old = BloomFilter::with_rate(10, 0.01).unwrap();
    old.save_to(&fs, path).unwrap();
    (fs, path, old)
}

#[test]
fn a_crash_leaves_the_old_filter_or_the_new_one() {
    let new = bloom();
    let mut seen = [false; 2];
    for k in 1.. {
        let (fs, path, old) = with_old();
        fs.crash_at(Some(k));
        let saved = new.save_to(&fs, path);
        let Some(after) = fs.crash_point() else {
            saved.unwrap();
            assert!(k > 5, "it creates, writes, syncs, renames and syncs");
            break;
        };
        assert!(matches!(saved, Err(Error::Io { .. })), "{saved:?}");
        for seed in 0..20 {
            let loaded = BloomFilter::load_from(&after.crash(seed), path).unwrap();
            assert!(loaded == old || loaded == new, "{k}, {seed}");
            seen[usize::from(loaded == new)] = true;
        }
    }
    assert_eq!(seen, [true; 2]);
    let (fs, path, _) = with_old();
    new.save_to(&fs, path).unwrap();
    for seed in 0..20 {
        assert_eq!(BloomFilter::load_from(&fs.crash(seed), path).unwrap(), new, "durable when `save` returns");
    }
}

#[test]
fn a_failed_save_leaves_the_old_filter_and_nothing_else() {
    for mode in [FaultMode::Io, FaultMode::NoSpace, FaultMode::ShortWrite] {
        for at in 1..=3 {
            let (fs, path, old) = with_old();
            fs.set_fault(Some(Fault { at, mode, sticky: false }));
            let saved = bloom().save_to(&fs, path);
            assert_eq!(saved.is_err(), fs.fault_hit(), "{mode:?} at {at}");
            if saved.is_err() {
                assert_eq!(BloomFilter::load_from(&fs, path).unwrap(), old);
            }
            assert_eq!(fs.list(Path::new("/d")).unwrap(), ["f.bloom"], "{mode:?} at {at}");
        }
    }
    let (fs, path, _) = with_old();
    for at in 1..=3 {
        fs.set_fault(Some(Fault { at, mode: FaultMode::ReadError, sticky: true }));
        let loaded = BloomFilter::load_from(&fs, path);
        assert!(matches!(loaded, Err(Error::Io { .. })), "{loaded:?}");
    }
}

proptest! {
    #[test]
    fn overwritten_fields_that_verify_do_not_panic(
        edits in proptest::collection::vec((0usize..256, any::<u8>()), 0..8),
        len in 0usize..600,
    ) {
        for bytes in [bloom().to_bytes(), scalable().to_bytes()] {
            let mut bytes = bytes;
            let end = bytes.len();
            for &(offset, value) in &edits {
                bytes[offset % end] = value;
            }
            bytes.truncate(end.min(HEADER_LEN + len));
            seal(&mut bytes);
            if let Ok(mut filter) = BloomFilter::from_bytes(&bytes) {
                filter.insert("key");
                prop_assert!(filter.contains("key"));
                prop_assert!(filter.capacity() > 0 && !filter.to_string().is_empty());
            }
            if let Ok(mut filter) = ScalableBloomFilter::from_bytes(&bytes) {
                filter.insert("key");
                prop_assert!(filter.contains("key"));
                prop_assert!(filter.capacity() > 0 && !filter.to_string().is_empty());
            }
        }
    }
}
