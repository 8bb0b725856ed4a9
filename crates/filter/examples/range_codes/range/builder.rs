//! [`OrderedBuilder`]: writes an [`OrderedFilter`](super::OrderedFilter) in the order of keys.
//!
//! The alphabets of a segment are known when its last key is. The builder keeps the segment's keys
//! until then, and begins a new segment after the block that fills one: its memory is bounded by
//! [`SEGMENT_BYTES`] and a block.

use super::alphabet::{Alphabets, Value};
use super::cells;
use super::ordered::{BLOCK_COUNT_BITS, GROUP, MAGIC, MAX_BLOCK_KEYS, shape_of};
use super::scale::{MAX_PER_KEY, Scale, Span};
use tamis_base::format::coding::{low_byte, put_u16, put_u32, put_varint};
use tamis_base::format::key::common_prefix_len;

/// One in so many distances between neighbours is shorter than a short one.
const SHORT: usize = 8;
/// A block is folded if a short distance is at most this fraction of the mean one. Of keys that are
/// spread evenly, it is less in 2 of 10,000 blocks.
const CLUSTERED: Value = 64;
/// A folded block has this many units to a short distance, as a binary logarithm.
const UNITS_LOG2: u32 = 4;
/// Keys of a segment.
const SEGMENT_KEYS: usize = 32 << 10;
/// Bytes of keys of a segment.
const SEGMENT_BYTES: usize = 2 << 20;

/// Builds an [`OrderedFilter`](super::OrderedFilter). `add` and `end_block` in the order of keys:
/// `(add+ end_block)* finish`.
pub(crate) struct OrderedBuilder {
    per_key: u32,
    segment: Segment,
    /// The separator before the segment's first block.
    low: Vec<u8>,
    segments: Vec<(u32, Vec<u8>)>,
    blocks: u32,
    folds: bool,
    scratch: Scratch,
    keys: u64,
    /// Keys in cells with other keys.
    shared: u64,
}

#[derive(Default)]
struct Segment {
    /// The keys, concatenated, and their ends.
    keys: Vec<u8>,
    ends: Vec<usize>,
    /// For each block, the keys up to its end and its separator.
    blocks: Vec<(usize, Vec<u8>)>,
}

#[derive(Default)]
struct Scratch {
    numbers: Vec<Value>,
    distances: Vec<Value>,
    cells: Vec<u32>,
}

impl Segment {
    fn key(&self, i: usize) -> &[u8] {
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[start..self.ends[i]]
    }

    /// The blocks: their keys, and their separators.
    fn blocks<'s>(&'s self, low: &'s [u8]) -> impl Iterator<Item = (std::ops::Range<usize>, &'s [u8], &'s [u8])> {
        let starts = std::iter::once((0, low)).chain(self.blocks.iter().map(|(end, high)| (*end, high.as_slice())));
        starts.zip(&self.blocks).map(|((start, low), (end, high))| (start..*end, low, high.as_slice()))
    }
}

impl OrderedBuilder {
    /// `per_key` cells per key: a filter takes about log2(`per_key`) + 2 bits per key, and 2.25
    /// bytes per block. The first block's keys are at least `low`.
    pub(crate) fn new(per_key: u32, low: &[u8]) -> OrderedBuilder {
        OrderedBuilder {
            per_key: per_key.clamp(2, MAX_PER_KEY),
            segment: Segment::default(),
            low: low.to_vec(),
            segments: Vec::new(),
            blocks: 0,
            folds: true,
            scratch: Scratch::default(),
            keys: 0,
            shared: 0,
        }
    }

    /// Whether blocks of clustered keys are folded; they are by default.
    pub(crate) fn folds(mut self, folds: bool) -> OrderedBuilder {
        self.folds = folds;
        self
    }

    /// Adds a key to the block; it is greater than those before it.
    pub(crate) fn add(&mut self, key: &[u8]) {
        self.segment.keys.extend_from_slice(key);
        self.segment.ends.push(self.segment.keys.len());
    }

    /// Ends a block. Its keys are at most `separator`, those of the next block greater.
    pub(crate) fn end_block(&mut self, separator: &[u8]) {
        self.segment.blocks.push((self.segment.ends.len(), separator.to_vec()));
        if self.segment.ends.len() >= SEGMENT_KEYS || self.segment.keys.len() >= SEGMENT_BYTES {
            self.end_segment();
        }
    }

    /// Bytes that the builder holds.
    pub(crate) fn memory(&self) -> usize {
        let separators = self.segment.blocks.iter().map(|(_, separator)| separator.len() + 40).sum::<usize>();
        let done = self.segments.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        self.segment.keys.len() + 8 * self.segment.ends.len() + separators + done
    }

    /// The filter's bytes, and the rate of false positives to expect of short ranges at strings
    /// that are spread like the keys: the share of keys that are in the cell of another. Each such
    /// key is a string to which a filter without it says "maybe".
    pub(crate) fn finish(mut self) -> (Vec<u8>, f64) {
        self.end_segment();
        let mut out = MAGIC.to_vec();
        put_u32(&mut out, self.per_key);
        put_u32(&mut out, self.blocks);
        put_varint(&mut out, self.segments.len() as u64);
        for (blocks, bytes) in self.segments {
            put_varint(&mut out, blocks.into());
            put_varint(&mut out, bytes.len() as u64);
            out.extend(bytes);
        }
        (out, self.shared as f64 / self.keys.max(1) as f64)
    }

    fn end_segment(&mut self) {
        let segment = std::mem::take(&mut self.segment);
        let Some((_, last)) = segment.blocks.last() else { return };
        let low = std::mem::replace(&mut self.low, last.clone());
        let count = segment.ends.len();
        let prefix = match count.checked_sub(1) {
            Some(last) => &segment.key(0)[..common_prefix_len(segment.key(0), segment.key(last))],
            None => &[],
        };
        let alphabets = Alphabets::of(prefix, (0..count).map(|i| segment.key(i)));
        let mut out = Vec::new();
        alphabets.encode(&mut out);
        let (mut directory, mut codes) = (Vec::new(), Vec::new());
        for (i, (keys, low, high)) in segment.blocks(&low).enumerate() {
            if i % GROUP == 0 {
                put_u32(&mut directory, u32::try_from(codes.len()).unwrap_or(u32::MAX));
            }
            let Some(count) = u16::try_from(keys.len()).ok().filter(|&count| count <= MAX_BLOCK_KEYS) else {
                put_u16(&mut directory, 0);
                continue;
            };
            let span = Span::new(&alphabets, low, high);
            let Scratch { numbers, distances, cells } = &mut self.scratch;
            numbers.clear();
            numbers.extend(keys.map(|i| span.number(&alphabets, segment.key(i)).value));
            let clustered = span.len() / (Value::from(count) * CLUSTERED).max(1);
            let way = if self.folds { way_of(numbers, distances, clustered) } else { 0 };
            let scale = Scale::of(way, &span, self.per_key, count);
            cells.clear();
            cells.extend(numbers.iter().map(|&number| scale.cell(number)));
            cells.sort_unstable();
            put_u16(&mut directory, u16::from(way) << BLOCK_COUNT_BITS | count);
            cells::encode(cells, shape_of(count, self.per_key), &mut codes);
            self.keys += u64::from(count);
            let shared = cells.chunk_by(|a, b| a == b).filter(|cell| cell.len() > 1);
            self.shared += shared.map(|cell| cell.len() as u64).sum::<u64>();
        }
        out.extend(directory);
        out.extend(codes);
        let blocks = u32::try_from(segment.blocks.len()).unwrap_or(u32::MAX);
        self.blocks = self.blocks.saturating_add(blocks);
        self.segments.push((blocks, out));
    }
}

/// How to place a block's `numbers`, as in the directory: folded, in units of a fraction of a short
/// distance between neighbours, if such a distance is at most `clustered`.
fn way_of(numbers: &[Value], distances: &mut Vec<Value>, clustered: Value) -> u8 {
    distances.clear();
    distances.extend(numbers.windows(2).map(|pair| pair[1].abs_diff(pair[0])));
    let Some(short) = distances.len().checked_sub(1).map(|last| last / SHORT) else { return 0 };
    let (_, &mut short, _) = distances.select_nth_unstable(short);
    if short > clustered {
        return 0;
    }
    let unit = short.max(1).ilog2().saturating_sub(UNITS_LOG2);
    low_byte(u64::from(unit / 2 + 1))
}
