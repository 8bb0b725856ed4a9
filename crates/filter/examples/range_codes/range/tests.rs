//! No range that holds a key is denied, and no bound excludes a key, whatever the keys.

use super::*;
use proptest::prelude::*;
use tamis_base::format::key::common_prefix_len;
use tamis_filter::PrefixExtractor;

/// The separator of a table's index: the shortest string from `last` on that is less than `next`.
fn separator<'a>(last: &'a [u8], next: &'a [u8]) -> &'a [u8] {
    let len = common_prefix_len(last, next) + 1;
    if len < last.len() && len < next.len() { &next[..len] } else { last }
}

/// A filter of some keys, and the blocks that a table would have.
struct Table {
    keys: Vec<Vec<u8>>,
    filter: OrderedFilter,
    /// First key and end of each block.
    blocks: Vec<std::ops::Range<usize>>,
    separators: Vec<Vec<u8>>,
}

impl Table {
    fn new(keys: Vec<Vec<u8>>, lens: &[usize], per_key: u32, folds: bool, low: &[u8]) -> Table {
        let (mut blocks, mut separators, mut start) = (Vec::new(), Vec::new(), 0);
        let mut builder = OrderedBuilder::new(per_key, low).folds(folds);
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
        separators.insert(0, low.to_vec());
        Table { keys, filter: OrderedFilter::decode(&builder.finish().0).unwrap(), blocks, separators }
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

            let is_some = self.filter.before(block, until, &mut bound);
            if let Some(last) = keys.iter().rfind(inside) {
                prop_assert!(is_some, "before {until:?} in {block:?}");
                prop_assert!(bound > *last, "before {until:?} in {block:?}: {bound:?} <= {last:?}");
            }
            prop_assert!(!is_some || until.is_none_or(|until| bound.as_slice() <= until));
        }
        Ok(())
    }
}

/// Keys of many kinds: any bytes, few symbols, the ends of the alphabet, shared beginnings, long.
fn key() -> impl Strategy<Value = Vec<u8>> {
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
fn near(key: &[u8]) -> Vec<Vec<u8>> {
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

fn sorted(mut keys: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
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
        per_key in prop_oneof![Just(2u32), 3u32..40, Just(256), 257u32..4096],
        folds: bool,
        has_low: bool,
        common in common(),
        others in proptest::collection::vec(key(), 0..12),
        picked in proptest::collection::vec(any::<proptest::sample::Index>(), 12),
    ) {
        let keys = sorted(keys.into_iter().map(|key| [&common, key.as_slice()].concat()).collect());
        let low = if has_low { keys[0].clone() } else { Vec::new() };
        let table = Table::new(keys, &lens, per_key, folds, &low);
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
    fn no_range_of_a_prefix_with_a_key_is_denied(
        keys in proptest::collection::vec(key(), 1..200),
        per_key in prop_oneof![Just(2u32), 3u32..40, Just(256), 257u32..4096],
        extractor in prop_oneof![
            Just(PrefixExtractor::UpTo(b':')), Just(PrefixExtractor::UpTo(0)), Just(PrefixExtractor::UpTo(b'a')),
            (1u16..9).prop_map(PrefixExtractor::Fixed),
        ],
        picked in proptest::collection::vec(any::<proptest::sample::Index>(), 12),
    ) {
        let keys = sorted(keys);
        let mut builder = PrefixRangeBuilder::new(per_key, |key| extractor.extract(key), 3);
        keys.iter().for_each(|key| builder.add(key));
        let filter = builder.finish();
        let ends: Vec<Vec<u8>> = picked.iter().flat_map(|i| near(i.get::<Vec<u8>>(&keys))).collect();
        for from in &ends {
            for until in ends.iter().chain(&near(from)) {
                let holds = keys.iter().any(|key| (from..until).contains(&key));
                prop_assert!(filter.may_hold(from, until) || !holds, "{from:?} to {until:?}");
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
        let mut builder = OrderedBuilder::new(200, b"");
        for key in &keys {
            builder.add(key);
            if key.len() % 3 == 0 {
                builder.end_block(key);
            }
        }
        builder.end_block(&keys[keys.len() - 1]);
        let (mut bytes, _) = builder.finish();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if is_cut {
            bytes.truncate(len.index(bytes.len()));
        }
        if let Ok(filter) = OrderedFilter::decode(&bytes) {
            let mut bound = Vec::new();
            for (low, high) in [(&asked[0], &asked[1]), (&asked[1], &asked[0])] {
                let block = BlockRange { index, low, high };
                filter.may_hold(block, &asked[2], Some(&asked[3]));
                filter.next(block, &asked[2], &mut bound);
                filter.before(block, Some(&asked[3]), &mut bound);
            }
            filter.folded();
        }
    }
}
