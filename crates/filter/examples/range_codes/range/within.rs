//! [`PrefixRangeFilter`]: prefixes and, within each, where its keys are.
//!
//! A key is placed at `hash(prefix) + number(rest) / 2^unit`, modulo the cells. The keys of a
//! prefix keep their order and distances, and prefixes lie anywhere. A range within one prefix asks
//! for the cells from its start to its end: absent prefixes and gaps between keys are told apart at
//! one cell in `per_key`.
//!
//! The cells are cut into regions of [`REGION`] keys on average, each with a code of its own, so
//! that an answer reads one or two cache lines. Segments are those of the order of keys, each with
//! its alphabets, as in `builder`.

use super::alphabet::{Alphabets, ROOT, Value};
use super::cells::{self, Cells, Shape};
use tamis_base::format::coding::{low_byte, put_bytes, put_u32, put_varint};
use tamis_base::format::key::prefix_successor;
use tamis_filter::KeyHash;

/// Keys of a region, on average.
const REGION: u32 = 32;
/// Regions that share an offset.
const GROUP: usize = 16;
const SEGMENT_KEYS: usize = 64 << 10;
const SEGMENT_BYTES: usize = 4 << 20;
/// A cell is this fraction of a short distance between neighbours, as a binary logarithm.
const UNITS_LOG2: u32 = 4;

/// Builds a [`PrefixRangeFilter`]. Keys in order: `add* finish`.
pub(crate) struct PrefixRangeBuilder<E> {
    per_key: u32,
    extract: E,
    seed: u64,
    keys: Vec<u8>,
    ends: Vec<usize>,
    segments: Vec<Segment>,
}

/// Answers for ranges within one prefix.
pub(crate) struct PrefixRangeFilter<E> {
    per_key: u32,
    extract: E,
    seed: u64,
    segments: Vec<Segment>,
}

struct Segment {
    /// Its last key.
    last: Vec<u8>,
    alphabets: Alphabets,
    unit: u8,
    /// Keys of each region.
    counts: Vec<u16>,
    /// Offset of the first code of each group of regions.
    offsets: Vec<u32>,
    codes: Vec<u8>,
    /// Whether a region had too many keys: the segment answers "maybe".
    is_degraded: bool,
}

impl<E: Fn(&[u8]) -> Option<&[u8]>> PrefixRangeBuilder<E> {
    /// `per_key` cells per key, of the prefixes that `extract` finds. Every key that
    /// begins with a prefix has it.
    pub(crate) fn new(per_key: u32, extract: E, seed: u64) -> PrefixRangeBuilder<E> {
        let per_key = per_key.clamp(2, 1 << 16);
        PrefixRangeBuilder { per_key, extract, seed, keys: Vec::new(), ends: Vec::new(), segments: Vec::new() }
    }

    /// Adds a key, greater than those before it.
    pub(crate) fn add(&mut self, key: &[u8]) {
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len());
        if self.ends.len() >= SEGMENT_KEYS || self.keys.len() >= SEGMENT_BYTES {
            self.end_segment();
        }
    }

    /// The filter.
    pub(crate) fn finish(mut self) -> PrefixRangeFilter<E> {
        self.end_segment();
        let PrefixRangeBuilder { per_key, extract, seed, segments, .. } = self;
        PrefixRangeFilter { per_key, extract, seed, segments }
    }

    fn end_segment(&mut self) {
        let (keys, ends) = (std::mem::take(&mut self.keys), std::mem::take(&mut self.ends));
        let starts = std::iter::once(&0).chain(&ends);
        let all = starts.zip(&ends).map(|(&start, &end)| &keys[start..end]);
        let Some(last) = all.clone().last() else { return };
        // Ranges beyond those of one prefix are not asked for: keys without one are left out.
        let extract = &self.extract;
        let parts = all.filter_map(|key| Some(key.split_at(extract(key)?.len())));
        let alphabets = Alphabets::of(&[], parts.clone().map(|(_, rest)| rest));
        let numbers: Vec<(u64, Value)> = parts
            .map(|(prefix, rest)| {
                let hash = KeyHash::of_prefix(self.seed, prefix).value();
                (hash, alphabets.number(0, rest).value)
            })
            .collect();
        let mut distances = [0u32; 128];
        for pair in numbers.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            distances[pair[1].1.saturating_sub(pair[0].1).max(1).ilog2() as usize] += 1;
        }
        // Distances are below this for one in four; without neighbours, there is one key a prefix.
        let (mut left, mut short) = (distances.iter().sum::<u32>() / 4, 0u32);
        while short < 109 && left >= distances[short as usize] {
            left -= distances[short as usize];
            short += 1;
        }
        if short == 109 {
            short = ROOT.ilog2();
        }
        let unit = low_byte(short.saturating_sub(UNITS_LOG2).into());
        let regions = u32::try_from(numbers.len()).unwrap_or(u32::MAX).div_ceil(REGION).max(1);
        let region_cells = REGION * self.per_key;
        let cells = u64::from(regions) * u64::from(region_cells);
        let mut places: Vec<u64> = numbers.iter().map(|&(hash, number)| place(hash, number >> unit, cells)).collect();
        places.sort_unstable();
        let mut segment = Segment {
            last: last.to_vec(),
            alphabets,
            unit,
            counts: Vec::new(),
            offsets: Vec::new(),
            codes: Vec::new(),
            is_degraded: false,
        };
        let (mut rest, mut inside) = (places.as_slice(), Vec::<u32>::new());
        for region in 0..u64::from(regions) {
            let start = region * u64::from(region_cells);
            let count = rest.partition_point(|&place| place < start + u64::from(region_cells));
            let (here, after) = rest.split_at(count);
            rest = after;
            inside.clear();
            inside.extend(here.iter().map(|&place| u32::try_from(place - start).unwrap_or(u32::MAX)));
            if segment.counts.len().is_multiple_of(GROUP) {
                segment.offsets.push(u32::try_from(segment.codes.len()).unwrap_or(u32::MAX));
            }
            segment.is_degraded |= count > 0xffff;
            segment.counts.push(u16::try_from(count).unwrap_or(0));
            cells::encode(&inside, Shape::new(count, region_cells, self.per_key), &mut segment.codes);
        }
        self.segments.push(segment);
    }
}

/// Where a key with this hash of its prefix is, of `cells` cells.
fn place(hash: u64, at: Value, cells: u64) -> u64 {
    narrow((Value::from(hash) + at) % Value::from(cells))
}

impl<E: Fn(&[u8]) -> Option<&[u8]>> PrefixRangeFilter<E> {
    /// Whether there may be a key that is at least `from` and less than `until`. Always `true` if
    /// the keys of the range may have several prefixes, or none.
    pub(crate) fn may_hold(&self, from: &[u8], until: &[u8]) -> bool {
        if until <= from {
            return false;
        }
        let Some(prefix) = (self.extract)(from) else { return true };
        let rest_of = |key: &[u8]| key.get(prefix.len()..).map(<[u8]>::to_vec);
        let end = match until.strip_prefix(prefix) {
            Some(rest) => Some(rest),
            // The end of the prefix, or beyond it.
            None if prefix_successor(prefix).is_some_and(|end| end.as_slice() == until) => None,
            None => return true,
        };
        let hash = KeyHash::of_prefix(self.seed, prefix).value();
        let first = self.segments.partition_point(|segment| segment.last.as_slice() < from);
        let rest = rest_of(from).unwrap_or_default();
        for segment in &self.segments[first..] {
            if segment.may_hold(self.per_key, hash, &rest, end) {
                return true;
            }
            // All keys of later segments are greater than this one's last.
            if segment.last.as_slice() >= until {
                break;
            }
        }
        false
    }

    /// Bytes as encoded.
    pub(crate) fn encoded_len(&self) -> usize {
        let of = |segment: &Segment| {
            let mut out = Vec::new();
            segment.encode(&mut out);
            out.len()
        };
        32 + self.segments.iter().map(of).sum::<usize>()
    }
}

impl Segment {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.last);
        self.alphabets.encode(out);
        out.extend([self.unit, self.is_degraded.into()]);
        put_varint(out, self.counts.len() as u64);
        self.counts.iter().for_each(|&count| put_varint(out, count.into()));
        self.offsets.iter().for_each(|&offset| put_u32(out, offset));
        out.extend(&self.codes);
    }

    fn may_hold(&self, per_key: u32, hash: u64, from: &[u8], until: Option<&[u8]>) -> bool {
        let from = self.alphabets.number(0, from).value;
        let to = match until.map(|until| self.alphabets.number(0, until)) {
            Some(number) if number.decided => match number.value.checked_sub(1) {
                Some(to) => to,
                None => return false,
            },
            Some(number) => number.value,
            None => ROOT - 1,
        };
        if from > to {
            return false;
        }
        let (from, to) = (from >> self.unit, to >> self.unit);
        let region_cells = u64::from(REGION * per_key);
        let cells = self.counts.len() as u64 * region_cells;
        // A longer range passes in any case.
        if self.is_degraded || to - from >= Value::from(16 * per_key).min(cells.into()) {
            return true;
        }
        let mut start = place(hash, from, cells);
        let mut left = narrow(to - from);
        loop {
            let (region, inside) = (start / region_cells, start % region_cells);
            let here = left.min(region_cells - 1 - inside);
            if self.is_occupied(region, inside, inside + here, per_key) {
                return true;
            }
            if here == left {
                return false;
            }
            (start, left) = ((start + here + 1) % cells, left - here - 1);
        }
    }

    fn is_occupied(&self, region: u64, first: u64, last: u64, per_key: u32) -> bool {
        let shape = |&count: &u16| Shape::new(count.into(), REGION * per_key, per_key);
        let found = || {
            let region = usize::try_from(region).ok()?;
            let group = region / GROUP;
            let before = self.counts.get(group * GROUP..region)?.iter().map(|count| shape(count).len());
            let offset = *self.offsets.get(group)? as usize + before.sum::<usize>();
            let shape = shape(self.counts.get(region)?);
            let code = self.codes.get(offset..)?.get(..shape.len())?;
            Some(Cells::new(code, shape).first_from(u32::try_from(first).ok()?))
        };
        match found() {
            Some(found) => found.is_some_and(|found| u64::from(found) <= last),
            None => true,
        }
    }
}

/// The low 64 bits.
#[expect(clippy::cast_possible_truncation, reason = "less")]
fn narrow(number: Value) -> u64 {
    number as u64
}
