//! No range that holds a key is denied, and no bound excludes a key, whatever the keys.

use super::builder::{NoRangeFilter, RangeBuilder};
use super::codes::BlockRange;
use super::reader::RangeFilter;
use proptest::prelude::*;
use tamis_base::format::coding::{put_bytes, put_varint, set_u32, set_u64};
use tamis_base::format::key::common_prefix_len;

/// The separator of a table's index: the shortest string from `last` on that is less than `next`.
fn separator<'a>(last: &'a [u8], next: &'a [u8]) -> &'a [u8] {
    let len = common_prefix_len(last, next) + 1;
    if len < last.len() && len < next.len() { &next[..len] } else { last }
}

/// A filter of some keys, and the blocks that a table would have.
struct Table {
    keys: Vec<Vec<u8>>,
    filter: RangeFilter,
    /// First key and end of each block.
    blocks: Vec<std::ops::Range<usize>>,
    separators: Vec<Vec<u8>>,
}

impl Table {
    fn new(keys: Vec<Vec<u8>>, lens: &[usize], bits: f32) -> Table {
        let (mut blocks, mut separators, mut start) = (Vec::new(), vec![Vec::new()], 0);
        let mut builder = RangeBuilder::new(bits, 7);
        for i in 0.. {
            if start == keys.len() {
                break;
            }
            let end = (start + lens[i % lens.len()]).min(keys.len());
            keys[start..end].iter().for_each(|key| builder.add(key));
            let last = &keys[end - 1];
            let after = keys.get(end).map_or(last.as_slice(), |next| separator(last, next));
            builder.end_block(after);
            blocks.push(start..end);
            separators.push(after.to_vec());
            start = end;
        }
        let block = builder.finish_regardless().unwrap();
        let filter = RangeFilter::open(&block.bytes, 7);
        assert_eq!((filter.degraded(), filter.info()), (None, Some(&block.info)));
        assert_eq!(block.info.keys, keys.len() as u64);
        Table { keys, filter, blocks, separators }
    }

    fn block(&self, index: usize) -> BlockRange<'_> {
        BlockRange { index, low: &self.separators[index], high: &self.separators[index + 1] }
    }

    fn check_range(&self, from: &[u8], until: Option<&[u8]>) -> Result<(), TestCaseError> {
        for (index, keys) in self.blocks.iter().enumerate() {
            let keys = &self.keys[keys.clone()];
            let inside = |key: &&Vec<u8>| until.is_none_or(|until| key.as_slice() < until);
            let first = keys.iter().find(|key| key.as_slice() >= from);
            let block = self.block(index);
            let maybe = self.filter.may_hold(block, from, until);
            prop_assert!(maybe || first.is_none_or(|key| !inside(&key)), "{from:?} to {until:?} in {block:?}");

            let mut bound = Vec::new();
            let is_some = self.filter.next(block, from, &mut bound);
            if let Some(first) = first {
                prop_assert!(is_some, "next from {from:?} in {block:?}");
                prop_assert!(bound <= *first, "next from {from:?} in {block:?}: {bound:?} > {first:?}");
            }
            prop_assert!(!is_some || bound.as_slice() >= from);
            // A seek from the bound goes on to the next block.
            let following = self.keys[self.blocks[index].start..].iter().find(|key| key.as_slice() >= from);
            if let (true, Some(following)) = (is_some, following) {
                prop_assert!(bound <= *following, "next from {from:?} in {block:?}: {bound:?} > {following:?}");
            }

            let is_some = self.filter.before(block, until, &mut bound);
            if let Some(last) = keys.iter().rfind(inside) {
                prop_assert!(is_some, "before {until:?} in {block:?}");
                prop_assert!(bound > *last, "before {until:?} in {block:?}: {bound:?} <= {last:?}");
            }
            prop_assert!(!is_some || until.is_none_or(|until| bound.as_slice() <= until));
            let preceding = self.keys[..self.blocks[index].end].iter().rfind(inside);
            if let (true, Some(preceding)) = (is_some, preceding) {
                prop_assert!(bound > *preceding, "before {until:?} in {block:?}: {bound:?} <= {preceding:?}");
            }
        }
        Ok(())
    }
}

/// Keys of many kinds: any bytes, few symbols, the ends of the alphabet, shared beginnings, long.
pub(crate) fn key() -> impl Strategy<Value = Vec<u8>> {
    let few = prop_oneof![Just(0u8), Just(255), Just(b'a'), Just(b'b'), Just(b'9')];
    let piece = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..6),
        proptest::collection::vec(few, 0..8),
        (0u64..10_000).prop_map(|number| format!("{number:06}").into_bytes()),
        any::<u64>().prop_map(|number| number.to_be_bytes().to_vec()),
        Just(b"user:".to_vec()),
        Just(vec![b'x'; 70]),
        Just(vec![0; 66]),
        Just(vec![255; 12]),
    ];
    proptest::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

/// Strings at and near some keys.
pub(crate) fn near(key: &[u8]) -> Vec<Vec<u8>> {
    let mut more = vec![key.to_vec(), [key, &[0]].concat(), [key, &[255]].concat(), [key, b"5"].concat()];
    if let Some((&last, rest)) = key.split_last() {
        more.push(rest.to_vec());
        more.push([rest, &[last.wrapping_add(1)]].concat());
        more.push([rest, &[last.wrapping_sub(1)]].concat());
        more.push([rest, &[last.wrapping_sub(1), 255, 255]].concat());
    }
    more
}

/// What all keys begin with.
fn common() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![Just(Vec::new()), Just(b"tenant/".to_vec()), Just(vec![0]), Just(vec![255; 3])]
}

pub(crate) fn sorted(mut keys: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    keys.sort_unstable();
    keys.dedup();
    keys
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn no_range_with_a_key_is_denied_and_no_bound_excludes_one(
        keys in proptest::collection::vec(key(), 1..120),
        lens in proptest::collection::vec(1usize..50, 1..4),
        bits in prop_oneof![Just(3.0f32), 3.0f32..18.0, Just(12.0)],
        common in common(),
        others in proptest::collection::vec(key(), 0..12),
        picked in proptest::collection::vec(any::<proptest::sample::Index>(), 12),
    ) {
        let keys = sorted(keys.into_iter().map(|key| [&common, key.as_slice()].concat()).collect());
        let table = Table::new(keys, &lens, bits);
        let mut ends: Vec<Vec<u8>> = picked.iter().flat_map(|i| near(i.get::<Vec<u8>>(&table.keys))).chain(others).collect();
        ends.extend([Vec::new(), common.clone()]);
        ends.extend(near(&common));
        for (i, from) in ends.iter().enumerate() {
            table.check_range(from, None)?;
            for until in ends.iter().skip(i % 3).step_by(3).chain(&near(from)) {
                table.check_range(from, Some(until))?;
            }
        }
    }

    #[test]
    fn bytes_of_other_filters_do_not_panic(
        keys in proptest::collection::vec(key(), 1..80),
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        len in any::<proptest::sample::Index>(),
        is_cut: bool,
        asked in proptest::collection::vec(key(), 4),
        index in 0usize..40,
    ) {
        let keys = sorted(keys);
        let mut builder = RangeBuilder::new(9.5, 7);
        for key in &keys {
            builder.add(key);
            if key.len() % 3 == 0 {
                builder.end_block(key);
            }
        }
        builder.end_block(&keys[keys.len() - 1]);
        let mut bytes = builder.finish_regardless().unwrap().bytes;
        for (at, value) in edits {
            let at = 64 + at.index(bytes.len() - 64);
            bytes[at] = value;
        }
        if is_cut {
            bytes.truncate(64 + len.index(bytes.len() - 64));
        }
        seal(&mut bytes);
        let filter = RangeFilter::open(&bytes, 7);
        assert!(filter.memory() <= 24 * bytes.len(), "{} of {}", filter.memory(), bytes.len());
        let mut bound = Vec::new();
        for (low, high) in [(&asked[0], &asked[1]), (&asked[1], &asked[0])] {
            let block = BlockRange { index, low, high };
            filter.may_hold(block, &asked[2], Some(&asked[3]));
            filter.next(block, &asked[2], &mut bound);
            filter.before(block, Some(&asked[3]), &mut bound);
        }
    }
}

/// The answers of a filter of few keys, and its bytes.
fn small() -> (Table, Vec<u8>) {
    let keys: Vec<Vec<u8>> = (0..40u32).map(|i| format!("key{:04}", i * i).into_bytes()).collect();
    let table = Table::new(keys.clone(), &[10], 10.0);
    let mut builder = RangeBuilder::new(10.0, 7);
    for (block, high) in keys.chunks(10).zip(&table.separators[1..]) {
        block.iter().for_each(|key| builder.add(key));
        builder.end_block(high);
    }
    (table, builder.finish().unwrap().bytes)
}

#[test]
fn every_flipped_bit_every_length_and_another_table_mean_maybe() {
    let (table, bytes) = small();
    let is_maybe = |bytes: &[u8], number: u64| {
        let filter = RangeFilter::open(bytes, number);
        let mut bound = Vec::new();
        let all = (0..4).all(|i| {
            let block = table.block(i);
            let from = [table.separators[i].as_slice(), b"!"].concat();
            filter.may_hold(block, &from, None)
                && filter.next(block, &from, &mut bound)
                && bound == from
                && filter.before(block, None, &mut bound)
                && bound > table.separators[i + 1]
        });
        filter.degraded().is_some() && filter.info().is_none() && all
    };
    assert!(!is_maybe(&bytes, 7));
    assert!(is_maybe(&bytes, 8));
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(is_maybe(&flipped, 7), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(is_maybe(&bytes[..len], 7), "length {len}");
    }
    assert!(is_maybe(&[bytes, vec![0]].concat(), 7));
}

#[test]
fn forged_alphabets_and_segments_take_little_memory() {
    let (_, bytes) = small();
    // No lower bound; then many segments of 64 alphabets of all bytes, or of the end of keys.
    for alphabet in [&[0b110, 0, 255, 0][..], &[0b011, 0], &[0b101, 0, 255]] {
        let weights = if alphabet[0] & 2 == 2 { 0 } else { 129 };
        let alphabets = [alphabet, &vec![0; weights]].concat().repeat(64);
        for (alphabets, count) in [(alphabets, 64u64), (Vec::new(), 0)] {
            let mut inner = vec![2, 0];
            put_varint(&mut inner, count << 1);
            inner.extend([&alphabets[..], &[0; 7]].concat());
            let mut forged = bytes[..64].to_vec();
            forged.push(0);
            for _ in 0..1000 {
                put_varint(&mut forged, 1);
                put_bytes(&mut forged, &inner);
            }
            set_u32(&mut forged, 28, 1000);
            seal(&mut forged);
            let filter = RangeFilter::open(&forged, 7);
            assert_eq!(filter.degraded(), None);
            assert!(filter.memory() <= 40 * forged.len(), "{} of {}", filter.memory(), forged.len());
        }
    }
}

/// What lies between the keys is known, up to the strings that keys could be.
#[test]
fn keys_at_even_distances_leave_nothing_between_them() {
    let integer = |n: u64| n.to_be_bytes().to_vec();
    let decimal = |n: u64| format!("user{n:012}").into_bytes();
    for (step, make) in [1, 3, 10, 64, 1000]
        .into_iter()
        .flat_map(|step| [(step, &integer as &dyn Fn(u64) -> Vec<u8>), (step, &decimal)])
    {
        let keys: Vec<Vec<u8>> = (0..5000).map(|i| make(i * step)).collect();
        let table = Table::new(keys, &[35], 12.0);
        let mut bound = Vec::new();
        for i in 1..4998 {
            let (key, next) = (&table.keys[i], &table.keys[i + 1]);
            let (first, last) = (make(i as u64 * step + 1), make((i as u64 + 1) * step - 1));
            let blocks = [i / 35, (i + 1) / 35].map(|index| table.block(index));
            for (from, until) in [(&first, next), (&first, &last), (&[&key[..], b"0"].concat(), next)] {
                assert!(blocks.iter().all(|&block| !table.filter.may_hold(block, from, Some(until))), "{step} {i}");
            }
            // The nearest key of each direction, wherever it is.
            let reached = blocks.iter().find(|&&block| table.filter.next(block, &first, &mut bound));
            assert!(
                reached.is_some_and(|block| block.index == blocks[1].index) && bound == *next,
                "{step} {i} {bound:?}"
            );
            let reached = blocks.iter().rev().find(|&&block| table.filter.before(block, Some(next), &mut bound));
            assert!(reached.is_some_and(|block| block.index == blocks[0].index), "{step} {i}");
            assert!(bound.strip_prefix(&key[..]) == Some(b"\0"), "{step} {i} {bound:?} {key:?}");
        }
    }
}

#[test]
fn large_blocks_empty_blocks_and_repeated_keys_are_answered() {
    let keys: Vec<Vec<u8>> = (0..6000u32).map(|i| (i * 7919).to_be_bytes().to_vec()).collect();
    let table = Table::new(keys.clone(), &[1022, 1023, 5000], 10.0);
    let (mut denied, mut asked) = (0, 0);
    for (index, range) in table.blocks.iter().enumerate() {
        for pair in keys[range.clone()].windows(2) {
            table.check_range(&pair[0], Some(&pair[1])).unwrap();
            let middle = u32::from_be_bytes(pair[0].as_slice().try_into().unwrap()) + 4000;
            let (from, until) = (middle.to_be_bytes(), (middle + 1).to_be_bytes());
            asked += 1;
            denied += u32::from(!table.filter.may_hold(table.block(index), &from, Some(&until)));
        }
    }
    assert!(denied * 100 > asked * 95, "{denied} of {asked}");

    let mut builder = RangeBuilder::new(10.0, 7);
    builder.end_block(b"");
    for key in [&b"a"[..], b"b", b"b", b"c"] {
        builder.add(key);
    }
    builder.end_block(b"c");
    builder.end_block(b"c");
    builder.add(b"c");
    builder.add(b"d");
    builder.end_block(b"e");
    let block = builder.finish_regardless().unwrap();
    assert_eq!((block.info.keys, block.info.blocks), (5, 4));
    let filter = RangeFilter::open(&block.bytes, 7);
    let separators = [&b""[..], b"", b"c", b"c", b"e"];
    for (index, held) in [(1, &b"a"[..]), (1, b"b"), (1, b"c"), (3, b"c"), (3, b"d")] {
        let block = BlockRange { index, low: separators[index], high: separators[index + 1] };
        assert!(filter.may_hold(block, held, Some(&[held, b"\0"].concat())), "{held:?} in {index}");
    }
}

/// Format 1 is final: readers of today read what this test has pinned, and builders write it. The
/// golden store has smaller filters.
#[test]
fn large_filters_are_written_as_ever() {
    let hash = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let numbers = sorted((0..40_000).map(|i| hash(i).to_be_bytes().to_vec()).collect());
    let events = |i: u64| format!("u{:06}:{:013}", hash(i) >> 52, 1_790_000_000_000 + (hash(i * 7) >> 44)).into_bytes();
    let events = sorted((0..40_000).map(events).collect());
    let long = sorted((0..3000).map(|i| [&[b'k'; 70][..], &hash(i).to_be_bytes()].concat()).collect());
    // Two segments; blocks of more keys than the directory has bits for; clusters; long keys.
    let pinned = [(numbers, 35), (events, 1100), (long, 20)].map(|(keys, len): (Vec<Vec<u8>>, usize)| {
        let mut builder = RangeBuilder::new(12.0, 7);
        for block in keys.chunks(len) {
            block.iter().for_each(|key| builder.add(key));
            builder.end_block(&block[block.len() - 1]);
        }
        let block = builder.finish_regardless().unwrap();
        (block.bytes.len(), block.info.folded, xxhash_rust::xxh3::xxh3_64(&block.bytes))
    });
    let expected = [
        (59_864, 0, 6_617_064_271_061_552_184),
        (60_220, 37, 14_911_170_197_110_595_109),
        (4591, 0, 5_761_676_851_009_659_511),
    ];
    assert_eq!(pinned, expected);
}

#[test]
fn keys_and_separators_out_of_order_make_no_filter() {
    let broken = |steps: &[(&[u8], bool)]| {
        let mut builder = RangeBuilder::new(10.0, 7);
        for &(bytes, is_key) in steps {
            if is_key { builder.add(bytes) } else { builder.end_block(bytes) }
        }
        matches!(builder.finish_regardless(), Err(NoRangeFilter::Broken(_)))
    };
    assert!(broken(&[(b"b", true), (b"a", true), (b"c", false)]));
    assert!(broken(&[(b"b", true), (b"a", false)]));
    assert!(broken(&[(b"b", true), (b"c", false), (b"b", true), (b"d", false)]));
    assert!(broken(&[(b"b", true), (b"c", false), (b"b", false)]));
    assert!(broken(&[(b"b", true)]));
    assert!(!broken(&[(b"b", true), (b"c", false)]));
    assert_eq!(RangeBuilder::new(10.0, 7).finish().unwrap_err(), NoRangeFilter::NoKeys);
}

#[test]
fn keys_that_the_code_cannot_tell_apart_get_no_filter() {
    let mut builder = RangeBuilder::new(12.0, 7);
    let keys = (0..2000u32).map(|i| {
        let start = u64::from(i / 4).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).to_be_bytes();
        [&start.repeat(3)[..], &i.to_be_bytes()].concat()
    });
    for block in sorted(keys.collect()).chunks(40) {
        block.iter().for_each(|key| builder.add(key));
        builder.end_block(&block[block.len() - 1]);
    }
    let Err(NoRangeFilter::Rates(rates)) = builder.finish() else { panic!("a useless filter") };
    assert!(rates.near > 250_000_000 && !rates.are_useful(), "{rates:?}");
}

/// Asks for ranges around keys of three kinds, each of which holds its key, and for their bounds.
fn check_ranges(checks: u64) {
    let mut rng = fastrand::Rng::with_seed(11);
    let numbers: Vec<Vec<u8>> = (0..20_000).map(|_| rng.u64(..).to_be_bytes().to_vec()).collect();
    let texts = (0..20_000).map(|_| format!("user{:04}:{:08}", rng.u32(0..300), rng.u32(0..100_000_000)).into_bytes());
    let texts: Vec<Vec<u8>> = texts.collect();
    let mixed = numbers.iter().chain(&texts).step_by(3).cloned().collect();
    // Several segments, and here and there a key of other symbols than its neighbours have.
    let decimals = (0..120_000).map(|_| format!("{:012}{}", rng.u64(..1 << 39), ["", "x", "!"][rng.usize(0..48) / 23]));
    let decimals = decimals.map(String::into_bytes).collect();
    let tables = [numbers, texts, mixed, decimals].map(|keys| Table::new(sorted(keys), &[35, 60], 12.0));
    let mut bound = Vec::new();
    for _ in 0..checks {
        let table = &tables[rng.usize(0..4)];
        let index = rng.usize(0..table.blocks.len());
        let (block, keys) = (table.block(index), &table.keys[table.blocks[index].clone()]);
        let at = rng.usize(0..keys.len());
        let (first, last) = (at - rng.usize(0..=at.min(2)), at + rng.usize(0..(keys.len() - at).min(2)));
        let mut from = keys[first].clone();
        from.truncate(rng.usize(0..=from.len()));
        if rng.bool() {
            from.clone_from(&keys[first]);
        }
        let mut until = keys[last].clone();
        until.push(rng.u8(..));
        assert!(table.filter.may_hold(block, &from, Some(&until)), "{from:?} to {until:?}");
        let next = keys.iter().find(|key| **key >= from).unwrap();
        assert!(table.filter.next(block, &from, &mut bound) && bound <= *next && bound >= from, "next from {from:?}");
        let before = keys.iter().rfind(|key| **key < until).unwrap();
        assert!(table.filter.before(block, Some(&until), &mut bound) && bound > *before, "before {until:?}");
        // Between the last key of the block and the first of the next one.
        let (last, following) = (&keys[keys.len() - 1], table.keys.get(table.blocks[index].end));
        let mut after = last[..rng.usize(0..=last.len())].to_vec();
        after.push(rng.u8(..));
        if after > *last && table.filter.next(block, &after, &mut bound) {
            assert!(following.is_none_or(|key| bound <= *key || after > *key), "next from {after:?}: {bound:?}");
        }
    }
}

#[test]
fn no_false_negative_in_a_million_checks() {
    check_ranges(1_000_000);
}

#[test]
#[ignore = "an hour: cargo test --release -p tamis-filter --lib range:: -- --ignored"]
fn no_false_negative_in_a_billion_checks() {
    check_ranges(1_000_000_000);
}

/// Makes edited bytes verify.
pub(crate) fn seal(bytes: &mut [u8]) {
    let len = bytes.len() as u64;
    set_u64(bytes, 40, len);
    crate::fuzz::seal(bytes);
}

/// The first key of a segment may have a symbol that no key of the segment before has: a bound in
/// the last block of that one must not exceed it.
#[test]
fn a_bound_is_at_most_the_first_key_of_the_next_segment() {
    let number = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1_000_000_000_000;
    let keys = sorted((0..40_000).map(|i| format!("{:012}", number(i)).into_bytes()).collect());
    let last = &keys[32_767];
    for len in 4..12 {
        let next = [&last[..len], b"bbb"].concat();
        let mut keys: Vec<_> = keys.iter().filter(|key| *key <= last || **key > next).cloned().collect();
        keys.insert(32_768, next.clone());
        let table = Table::new(keys, &[64], 12.0);
        let (from, mut bound) = ([&last[..len], b"a"].concat(), Vec::new());
        let is_some = table.filter.next(table.block(511), &from, &mut bound);
        assert!(!is_some || bound <= next, "{len}: {}", bound.escape_ascii());
        let is_some = table.filter.before(table.block(512), Some(&next), &mut bound);
        assert!(!is_some || bound > *last, "{len}: {}", bound.escape_ascii());
    }
}
