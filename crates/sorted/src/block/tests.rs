//! Tests of blocks against a sorted list of their entries.

use std::sync::Arc;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use super::*;
use crate::format::Decoded;
use crate::format::checksum::crc;
use crate::format::key::{MAX_SEQNO, SeqNo, ValueKind, Window, compare_entries, head16};
use crate::vfs::Mapping;

type BlockModel = Vec<(Vec<u8>, SeqNo, ValueKind, Vec<u8>)>;

/// Any function of the key can serve as fingerprint; this one has few values, so they collide.
fn fingerprint(key: &[u8]) -> u8 {
    crc(key).to_le_bytes()[0] % 8
}

fn build(model: &BlockModel) -> BlockRef {
    let (mut builder, mut twin, mut at_first) = (BlockBuilder::new(), BlockBuilder::new(), true);
    for (key, seqno, kind, value) in model {
        assert!(builder.add(key, *seqno, *kind, value, fingerprint(key), usize::MAX));
        // The builder knows a block's size before it adds an entry.
        let (size, mut add) = (builder.size(), |limit| twin.add(key, *seqno, *kind, value, fingerprint(key), limit));
        assert!(at_first || !add(size - 1));
        assert!(add(size));
        assert_eq!(twin.size(), size);
        at_first = false;
    }
    let size = builder.size();
    let mut bytes = vec![0xaa; 3];
    builder.finish(&mut bytes);
    assert!(bytes.len() - 3 <= size, "{} exceeds the estimate of {size}", bytes.len() - 3);
    assert!(builder.is_empty());
    BlockRef::copy_of(&bytes[3..]).unwrap()
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..6),
        vec(prop_oneof![Just(0u8), Just(1), Just(0xff)], 0..8),
        (0u32..200).prop_map(|n| format!("tenant/customer/{n:08}").into_bytes()),
    ]
}

fn model() -> impl Strategy<Value = BlockModel> {
    let version = prop_oneof![1..40u64, Just(MAX_SEQNO)];
    let entry = (key(), btree_set(version, 1..6));
    (vec(entry, 1..40), vec(vec(any::<u8>(), 0..12), 1..8)).prop_map(|(keys, values)| {
        let mut model: BlockModel = Vec::new();
        for (key, versions) in keys {
            for seqno in versions {
                let value = &values[model.len() % values.len()];
                let (kind, value) =
                    if value.len() == 3 { (ValueKind::Delete, Vec::new()) } else { (ValueKind::Put, value.clone()) };
                model.push((key.clone(), seqno, kind, value));
            }
        }
        model.sort_by(|a, b| compare_entries((&a.0, a.1), (&b.0, b.1)));
        model.dedup_by(|a, b| (&a.0, a.1) == (&b.0, b.1));
        model
    })
}

/// The keys of the model, and keys between, before and after them.
fn probes(model: &BlockModel) -> Vec<Vec<u8>> {
    let mut probes = vec![Vec::new(), b"tenant/cust".to_vec(), vec![0xff; 9]];
    for (key, ..) in model {
        probes.push(key.clone());
        probes.push([key, &[0][..]].concat());
        probes.push(key[..key.len().saturating_sub(1)].to_vec());
    }
    probes
}

fn check_at(cursor: &BlockCursor, expected: Option<&(Vec<u8>, SeqNo, ValueKind, Vec<u8>)>) {
    assert_eq!(cursor.valid(), expected.is_some());
    if let Some((key, seqno, kind, value)) = expected {
        assert_eq!(cursor.key(), key);
        assert_eq!(cursor.seqno(), *seqno);
        assert_eq!(cursor.kind(), *kind);
        assert_eq!(cursor.value(), value);
        assert_eq!(cursor.head(), head16(key));
    }
}

/// A file that holds a block between other bytes.
#[derive(Debug)]
struct Surrounded(Vec<u8>);

impl Mapping for Surrounded {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A block in a mapped file, with `before` bytes in front of it and `after` bytes after it.
fn in_file(bytes: &[u8], before: usize, after: usize) -> Decoded<CursorBlock> {
    let file = [&vec![0xa5; before], bytes, &vec![0x5a; after]].concat();
    CursorBlock::in_file(Arc::new(Surrounded(file)), before, bytes.len())
}

fn check_get(block: Block<'_>, model: &BlockModel, key: &[u8], window: Window) {
    let hit = block.get(key, fingerprint(key), window).unwrap();
    let versions = || model.iter().filter(|entry| entry.0 == key);
    match versions().find(|entry| entry.1 <= window.newest) {
        Some((_, seqno, ..)) if *seqno < window.oldest => assert_eq!(hit, BlockHit::Covered),
        Some((_, seqno, kind, value)) => {
            let BlockHit::Found { seqno: found, kind: found_kind, value: found_value } = hit else {
                panic!("{key:?} in {window:?} gives {hit:?}");
            };
            assert_eq!((found, found_kind, found_value), (*seqno, *kind, &value[..]));
            let start = block.start_of(found_value) as usize;
            assert_eq!(block.bytes()[start..][..found_value.len()], value[..]);
        }
        None if versions().next().is_some() => assert_eq!(hit, BlockHit::Newer),
        None => assert_eq!(hit, BlockHit::Absent),
    }
}

fn check(model: &BlockModel) {
    let block = build(model);
    block.verify(fingerprint).unwrap();
    let bytes = block.block().bytes().to_vec();
    check_kept(block.into(), model);
    for (before, after) in [(0, 0), (7, 3), (64, 200)] {
        check_kept(in_file(&bytes, before, after).unwrap(), model);
    }
}

fn check_kept(kept: CursorBlock, model: &BlockModel) {
    let block = kept.block();
    assert_eq!(block.len(), model.len());
    for key in probes(model) {
        for snapshot in [0, 1, 5, 20, 39, MAX_SEQNO - 1, MAX_SEQNO] {
            check_get(block, model, &key, Window::up_to(snapshot));
            check_get(block, model, &key, Window::above(snapshot / 2, snapshot));
        }
    }
    let mut cursor = BlockCursor::new(kept);
    assert!(!cursor.valid());
    cursor.seek_to_first().unwrap();
    for entry in model {
        check_at(&cursor, Some(entry));
        cursor.next().unwrap();
    }
    check_at(&cursor, None);
    cursor.seek_to_last().unwrap();
    for entry in model.iter().rev() {
        check_at(&cursor, Some(entry));
        cursor.prev().unwrap();
    }
    check_at(&cursor, None);

    // Repeat with `advance` and `retreat`, which stop at the ends of the block.
    cursor.seek_to_first().unwrap();
    for (i, entry) in model.iter().enumerate() {
        check_at(&cursor, Some(entry));
        assert_eq!(cursor.left(true), model.len() - 1 - i);
        assert!(!cursor.is_first_of_key() || model[i - 1].0 != entry.0);
        assert_eq!(cursor.advance(), i + 1 < model.len());
    }
    for (i, entry) in model.iter().enumerate().rev() {
        check_at(&cursor, Some(entry));
        assert_eq!(cursor.left(false), i);
        assert_eq!(cursor.retreat(), i > 0);
    }

    check_fast_steps(&mut cursor, model, true);
    check_fast_steps(&mut cursor, model, false);

    for key in probes(model) {
        for snapshot in [0, 1, 5, 20, 39, MAX_SEQNO - 1, MAX_SEQNO] {
            cursor.seek(&key, snapshot).unwrap();
            let bound = (&key[..], snapshot);
            let expected = model.iter().find(|entry| compare_entries((&entry.0, entry.1), bound).is_ge());
            check_at(&cursor, expected);
        }
    }
}

/// Goes through the block by fast steps, and by `advance` or `retreat` where there is none.
fn check_fast_steps(cursor: &mut BlockCursor, model: &BlockModel, forward: bool) {
    if forward {
        cursor.seek_to_first().unwrap()
    } else {
        cursor.seek_to_last().unwrap()
    }
    let entries: Vec<_> = if forward { model.iter().collect() } else { model.iter().rev().collect() };
    for (i, entry) in entries.iter().enumerate() {
        check_at(cursor, Some(entry));
        let is_last = i + 1 == entries.len();
        if cursor.fast_step(forward) {
            let (key, _, kind, value) = entries[i + 1];
            assert_eq!((cursor.key(), *kind, cursor.value()), (&key[..], ValueKind::Put, &value[..]));
            cursor.end_fast_steps().unwrap();
        } else {
            check_at(cursor, Some(entry));
            assert_eq!(if forward { cursor.advance() } else { cursor.retreat() }, !is_last);
        }
    }

    // The remaining entries come before a bound if the last of them does.
    if forward {
        cursor.seek_to_first().unwrap()
    } else {
        cursor.seek_to_last().unwrap()
    }
    let last = head16(&entries[entries.len() - 1].0);
    for bound in probes(model).iter().map(|key| head16(key)).chain([0, last - last.min(1), last, u128::MAX]) {
        let left = cursor.left_before(bound, forward);
        let is_before = if forward { last < bound } else { last > bound };
        assert!(left == 0 || is_before && left == entries.len() - 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn block_answers_like_a_sorted_list(model in model()) {
        check(&model);
    }

    #[test]
    fn reading_arbitrary_bytes_never_panics(bytes in vec(any::<u8>(), 0..200), n in 0u8..12) {
        // The prepended header usually gets the bytes past the directory checks.
        let mut framed = vec![n % 2, 0, n / 4, 0, n, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        framed.extend_from_slice(&bytes);
        for bytes in [bytes, framed] {
            exercise(bytes);
        }
    }

    #[test]
    fn reading_a_damaged_block_never_panics(model in model(), at: prop::sample::Index, to: u8, cut: prop::sample::Index) {
        let good = build(&model).block().bytes().to_vec();
        let mut bytes = good.clone();
        bytes[at.index(good.len())] = to;
        exercise(bytes.clone());
        bytes.truncate(cut.index(good.len()));
        exercise(bytes);
    }
}

/// Whatever the bytes are, no call panics.
fn exercise(bytes: Vec<u8>) {
    let block = BlockRef::copy_of(&bytes);
    assert_eq!(in_file(&bytes, 5, 9).is_ok(), block.is_ok());
    let Ok(block) = block else { return };
    let _ = block.verify(fingerprint);
    exercise_kept(block.into());
    exercise_kept(in_file(&bytes, 5, 9).unwrap());
}

fn exercise_kept(kept: CursorBlock) {
    let block = kept.block();
    let keys = [&b""[..], b"\0", b"tenant/customer/00000007"].map(|key| [block.prefix(), key].concat());
    for (key, fingerprint) in keys.iter().flat_map(|key| (0..=255).map(move |fingerprint| (key, fingerprint))) {
        let _ = block.get(key, fingerprint, Window::up_to(9));
    }
    let mut cursor = BlockCursor::new(kept);
    for key in keys {
        if cursor.seek(&key, 9).is_ok() && cursor.valid() {
            let _ = (cursor.key(), cursor.value());
            let _ = cursor.prev();
        }
        let mut steps = cursor.seek_to_first();
        while steps.is_ok() && cursor.valid() {
            let _ = (cursor.key(), cursor.value());
            steps = cursor.next();
        }
        for forward in [false, true] {
            let _ = if forward { cursor.seek_to_first() } else { cursor.seek_to_last() };
            while cursor.valid() && cursor.fast_step(forward) {
                let _ = (cursor.key(), cursor.value());
            }
            let _ = cursor.end_fast_steps();
        }
    }
}

#[test]
fn all_steps_in_a_usual_block_are_fast() {
    let entry = |i: u32| (format!("{i:016}").into_bytes(), u64::from(i * i % 1000), ValueKind::Put, vec![b'v'; 100]);
    let model: BlockModel = (1000..1034).map(entry).collect();
    let mut cursor = BlockCursor::new(build(&model));
    for (forward, nearest, farthest) in [(true, &model[33].0, u128::MAX), (false, &model[0].0, 0)] {
        if forward {
            cursor.seek_to_first().unwrap()
        } else {
            cursor.seek_to_last().unwrap()
        }
        assert_eq!(cursor.left_before(farthest, forward), 33);
        assert_eq!(cursor.left_before(head16(nearest), forward), 0);
        assert_eq!((0..40).filter(|_| cursor.fast_step(forward)).count(), 33);
        assert_eq!(cursor.key(), nearest);
    }
}

#[test]
fn values_beyond_64_kib_widen_the_offsets() {
    let entry = |key: &[u8], seqno, len: usize| (key.to_vec(), seqno, ValueKind::Put, vec![7; len]);
    let model = vec![entry(b"a", 9, 70_000), entry(b"b", 1, 5), entry(b"c", 3, 0)];
    assert_eq!(build(&model).block().bytes()[0], WIDE_OFFSETS);
    check(&model);
    // The longest block with narrow offsets, and one byte more.
    let around = |len| vec![entry(b"a", 1, 1), entry(b"b", 1, len)];
    let overhead = build(&around(60_000)).block().bytes().len() - 60_000;
    for (extra, flags) in [(0, 0), (1, WIDE_OFFSETS)] {
        let model = around(65_536 - overhead + extra);
        assert_eq!(build(&model).block().bytes()[0], flags);
        check(&model);
    }
}

#[test]
fn keys_longer_than_the_longest_prefix_are_found() {
    let entry = |key: Vec<u8>, seqno| (key, seqno, ValueKind::Put, b"v".to_vec());
    let long = vec![0xff; MAX_PREFIX_LEN + 10];
    check(&vec![entry(long.clone(), 5), entry(long.clone(), 2)]);
    check(&vec![entry(long.clone(), 5), entry([&long[..], b"x"].concat(), 2)]);
}

#[test]
fn a_single_large_value_is_laid_out_like_any_other() {
    // Lengths around the one from which a value is moved, and a key longer than the longest prefix.
    for (key_len, value_len) in [(0, 1 << 20), (5, (1 << 20) - 6), (5, (1 << 20) - 5), (70_000, 3 << 20)] {
        let value: Vec<u8> = (0..value_len).map(|i: u32| i.to_le_bytes()[0] ^ i.to_le_bytes()[1]).collect();
        check(&vec![(vec![b'k'; key_len], 9, ValueKind::Put, value)]);
    }
}

#[test]
fn one_empty_key_with_an_empty_value_makes_a_block() {
    check(&vec![(Vec::new(), 1, ValueKind::Delete, Vec::new())]);
}

#[test]
fn common_prefix_and_wide_sequence_numbers_are_encoded_in_the_fewest_bytes() {
    let model: BlockModel = (0..32u32)
        .map(|i| {
            let key = format!("a/rather/long/common/prefix/{i:04}").into_bytes();
            (key, (1 << 50) + u64::from(i % 8), ValueKind::Put, vec![1])
        })
        .collect();
    let block = build(&model);
    // Per entry: 7 bytes of directory, 3 of varints, 2 digits, 1 of value; the header and 30 bytes
    // of prefix once.
    assert_eq!(block.block().bytes().len(), 16 + 30 + 32 * (7 + 3 + 2 + 1));
}
