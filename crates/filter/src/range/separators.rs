//! [`Separators`]: the bounds of the blocks of a filter that is alone. A table has those of its
//! index instead.
//!
//! | field | |
//! |---|---|
//! | offsets | where each group of [`GROUP`] begins in the strings, 4 bytes each |
//! | strings | each: a byte of two nibbles, and more bytes |
//!
//! The low nibble of a string is the number of bytes that it shares with the one before it in its
//! group, the high one how many follow. To a nibble of 15 a varint is added, which comes next: that
//! of the low nibble first. Strings increase, and each shares as many bytes as it can.

use std::ops::Range;

use super::codes::GROUP;
use tamis_base::format::coding::{Decoder, get_u32, low_byte, put_u32, put_varint};
use tamis_base::format::key::common_prefix_len;
use tamis_base::format::{Decoded, Malformed};
use tamis_base::memory::pool::TableArray;

/// The greatest nibble.
const MANY: u64 = 15;

/// Writes separators in order.
#[derive(Default)]
pub(crate) struct SeparatorsBuilder {
    offsets: Vec<u8>,
    strings: Vec<u8>,
    last: Vec<u8>,
    count: usize,
}

impl SeparatorsBuilder {
    /// Adds a separator that exceeds the one before. Returns how many bytes it takes; `None` if all
    /// take more than 4 GiB.
    pub(crate) fn add(&mut self, separator: &[u8]) -> Option<usize> {
        let (offset, before) = (self.strings.len(), self.offsets.len() + self.strings.len());
        let mut shared = common_prefix_len(&self.last, separator);
        if self.count.is_multiple_of(GROUP) {
            put_u32(&mut self.offsets, u32::try_from(offset).ok()?);
            shared = 0;
        }
        let rest = &separator[shared..];
        let lens = [shared as u64, rest.len() as u64];
        let [low, high] = lens.map(|len| len.min(MANY));
        self.strings.push(low_byte(high << 4 | low));
        lens.iter().filter(|len| **len >= MANY).for_each(|len| put_varint(&mut self.strings, len - MANY));
        self.strings.extend_from_slice(rest);
        self.last.truncate(shared);
        self.last.extend_from_slice(rest);
        self.count += 1;
        Some(self.offsets.len() + self.strings.len() - before)
    }

    /// Appends all of them.
    pub(crate) fn finish(self, out: &mut Vec<u8>) {
        out.extend(self.offsets);
        out.extend(self.strings);
    }

    /// Bytes of memory beside the struct itself.
    pub(crate) fn memory(&self) -> usize {
        self.offsets.capacity() + self.strings.capacity() + self.last.capacity()
    }
}

/// Separators, the greatest key of each block at most.
pub(crate) struct Separators {
    bytes: TableArray<u8>,
    offsets: usize,
    strings: Range<usize>,
    count: usize,
}

/// A block's bounds.
#[derive(Default)]
pub(crate) struct Between {
    /// The block.
    pub(crate) index: usize,
    /// The separator before it; empty if there is none.
    pub(crate) low: Vec<u8>,
    /// The separator after it.
    pub(crate) high: Vec<u8>,
}

impl Separators {
    /// The `count` separators in a part of `bytes`. They are checked: reads do not fail.
    pub(crate) fn decode(bytes: TableArray<u8>, part: Range<usize>, count: u32) -> Decoded<Separators> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let strings = part.start.saturating_add(count.div_ceil(GROUP).saturating_mul(4));
        if strings > part.end {
            return Err(Malformed("the separators of a range filter are cut off"));
        }
        let separators = Separators { bytes, offsets: part.start, strings: strings..part.end, count };
        separators.check()?;
        Ok(separators)
    }

    fn check(&self) -> Decoded<()> {
        const ORDER: Malformed = Malformed("the separators of a range filter are not in order");
        let strings = &self.bytes[self.strings.clone()];
        let (mut from, mut last) = (Decoder::new(strings), Vec::new());
        for i in 0..self.count {
            let is_first = i % GROUP == 0;
            if is_first && self.offset(i / GROUP) != Some(strings.len() - from.remaining()) {
                return Err(Malformed("a group of separators does not begin where its offset says"));
            }
            let (shared, rest) = string(&mut from)?;
            let follows = match (is_first, last.get(shared)) {
                // The empty string may be the first of all.
                (true, _) => shared == 0 && (i == 0 || last.as_slice() < rest),
                (false, next) => shared <= last.len() && rest.first() > next,
            };
            if !follows {
                return Err(ORDER);
            }
            last.truncate(shared);
            last.extend_from_slice(rest);
        }
        from.finish()
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Where a group begins in the strings.
    fn offset(&self, group: usize) -> Option<usize> {
        usize::try_from(get_u32(self.bytes.get(self.offsets + 4 * group..self.strings.start)?.first_chunk()?)).ok()
    }

    /// At the strings of a group.
    fn group(&self, group: usize) -> Decoder<'_> {
        let strings = &self.bytes[self.strings.clone()];
        Decoder::new(self.offset(group).and_then(|offset| strings.get(offset..)).unwrap_or_default())
    }

    /// Finds the first block whose separator is at least `key`, if there is one.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Between> {
        let groups = self.count.div_ceil(GROUP);
        let (mut low, mut high) = (0, groups);
        while low < high {
            let middle = low.midpoint(high);
            let first = string(&mut self.group(middle)).map_or(&[][..], |(_, first)| first);
            if first < key { low = middle + 1 } else { high = middle }
        }
        let mut found = Between::default();
        // The last group that begins before the key.
        let Some(group) = low.checked_sub(1) else { return self.load(&mut found, 0).then_some(found) };
        let mut from = self.group(group);
        for index in group * GROUP..self.count.min((group + 1) * GROUP) {
            std::mem::swap(&mut found.low, &mut found.high);
            found.high.clone_from(&found.low);
            extend(&mut from, &mut found.high);
            if found.high.as_slice() >= key {
                found.index = index;
                return Some(found);
            }
        }
        std::mem::swap(&mut found.low, &mut found.high);
        found.index = low * GROUP;
        self.separator(found.index, &mut found.high).then_some(found)
    }

    /// Goes to a block, if there is such.
    pub(crate) fn load(&self, at: &mut Between, index: usize) -> bool {
        at.index = index;
        at.low.clear();
        if let Some(before) = index.checked_sub(1) {
            self.separator(before, &mut at.low);
        }
        self.separator(index, &mut at.high)
    }

    /// Goes to the next block, if there is one.
    pub(crate) fn advance(&self, at: &mut Between) -> bool {
        at.index += 1;
        std::mem::swap(&mut at.low, &mut at.high);
        self.separator(at.index, &mut at.high)
    }

    fn separator(&self, index: usize, out: &mut Vec<u8>) -> bool {
        out.clear();
        if index >= self.count {
            return false;
        }
        let mut from = self.group(index / GROUP);
        (0..=index % GROUP).for_each(|_| extend(&mut from, out));
        true
    }
}

/// What the next string shares with the one before, and what follows.
fn string<'a>(from: &mut Decoder<'a>) -> Decoded<(usize, &'a [u8])> {
    let head = from.u8()?;
    let mut len = |nibble: u8| -> Decoded<usize> {
        let more = if u64::from(nibble) == MANY { from.varint()? } else { 0 };
        Ok(usize::try_from(more.saturating_add(nibble.into())).unwrap_or(usize::MAX))
    };
    let (shared, rest) = (len(head & 15)?, len(head >> 4)?);
    Ok((shared, from.take(rest)?))
}

/// Makes the string before the next one.
fn extend(from: &mut Decoder<'_>, out: &mut Vec<u8>) {
    if let Ok((shared, rest)) = string(from) {
        out.truncate(shared);
        out.extend_from_slice(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(separators: &[Vec<u8>]) -> Vec<u8> {
        let (mut builder, mut out) = (SeparatorsBuilder::default(), vec![9; 3]);
        let bytes: usize = separators.iter().map(|separator| builder.add(separator).unwrap()).sum();
        builder.finish(&mut out);
        assert_eq!(out.len(), bytes + 3);
        out
    }

    fn decoded(bytes: &[u8], count: usize) -> Decoded<Separators> {
        let array = TableArray::new(None, bytes.iter().copied());
        Separators::decode(array, 3..bytes.len(), u32::try_from(count).unwrap())
    }

    proptest! {
        #[test]
        fn a_key_finds_its_block_and_its_neighbours(
            separators in proptest::collection::btree_set(
                prop_oneof![
                    proptest::collection::vec(any::<u8>(), 0..4),
                    proptest::collection::vec(0u8..2, 0..40),
                    any::<u16>().prop_map(|i| format!("tenant/{i:05}/0123456789").into_bytes()),
                ],
                0..80,
            ),
            asked in proptest::collection::vec(proptest::collection::vec(0u8..4, 0..20), 8),
            edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let separators: Vec<Vec<u8>> = separators.into_iter().collect();
            let mut bytes = encoded(&separators);
            let all = decoded(&bytes, separators.len()).unwrap();
            let low = |i: usize| i.checked_sub(1).map_or(&[][..], |before| &separators[before]);
            for key in separators.iter().chain(&asked) {
                let at = separators.partition_point(|separator| separator < key);
                match all.find(key) {
                    None => prop_assert_eq!(at, separators.len()),
                    Some(mut found) => {
                        prop_assert_eq!((found.index, &*found.low, &found.high), (at, low(at), &separators[at]));
                        prop_assert_eq!(all.advance(&mut found), at + 1 < separators.len());
                        prop_assert_eq!(&*found.low, low(at + 1));
                        prop_assert!(all.load(&mut found, at));
                        prop_assert_eq!((&*found.low, &found.high), (low(at), &separators[at]));
                    }
                }
            }
            prop_assert!(decoded(&bytes, separators.len() + 1).is_err());
            bytes.push(0);
            prop_assert!(decoded(&bytes, separators.len()).is_err());
            bytes.pop();
            // What decodes after an edit is in order, and has one encoding.
            for (at, value) in edits.iter().take(if bytes.len() > 3 { 4 } else { 0 }) {
                let at = 3 + at.index(bytes.len() - 3);
                bytes[at] = *value;
                if let Ok(all) = decoded(&bytes, separators.len()) {
                    let mut found = Between::default();
                    let each = (0..all.len()).map(|i| { all.load(&mut found, i); found.high.clone() });
                    let again: Vec<Vec<u8>> = each.collect();
                    prop_assert!(again.is_sorted_by(|a, b| a < b));
                    prop_assert_eq!(encoded(&again), bytes.clone());
                }
            }
        }
    }
}
