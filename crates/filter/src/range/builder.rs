//! [`RangeBuilder`]: writes a [`RangeFilter`](super::reader::RangeFilter) in the order of keys.
//!
//! The alphabets of a segment are known when its last key is. The builder keeps the segment's keys
//! until then, and begins a new segment after the block that fills one: its memory is bounded by
//! [`SEGMENT_BYTES`] and a block.

use super::alphabet::{Alphabets, SHORTEST, Value};
use super::cells;
use super::coder::Coder;
use super::codes::{COUNT_BITS, GROUP, MANY, shape_of};
use super::count::Counts;
use super::header::{self, Kind, RangeHeader};
use super::info::{RangeInfo, RangeRates};
use super::scale::{MAX_PER_KEY, Scale, Span, cells_of};
use tamis_base::format::coding::{Decoder, low_byte, put_bytes, put_u16, put_u32, put_varint};
use tamis_base::format::key::common_prefix_len;

/// One in so many distances between neighbours is shorter than a short one.
const SHORT: usize = 8;
/// A block is folded if a short distance is at most this fraction of the mean one. Of keys that are
/// spread evenly, it is less in 2 of 10,000 blocks.
const CLUSTERED: u64 = 64;
/// A folded block has this many units to a short distance, as a binary logarithm.
const UNITS_LOG2: u32 = 4;
/// Ranges near a key begin this fraction of the mean gap after it.
const NEAR: u32 = 10;
/// In a folded block, the mean gap is the one within clusters. One in so many distances tells it:
/// of keys that are spread evenly, it is ln (16/15) = 0.065 of the mean, and a tenth of the mean is
/// one and a half of it.
const SHORTER: usize = 16;
const NEAR_OF_SHORTER: (Value, Value) = (3, 2);
/// Keys of a segment.
const SEGMENT_KEYS: usize = 32 << 10;
/// Bytes of keys of a segment.
const SEGMENT_BYTES: usize = 2 << 20;
/// Bits per key that a filter may have, in thousandths: two cells per key, and the most.
const MILLIBITS: std::ops::RangeInclusive<u32> = 3000..=18_000;
/// Thousandths of a bit per key that directory and alphabets may take from the cells. Blocks of few
/// keys and small tables take more bits per key than requested instead of having no cells.
const MAX_OVERHEAD: u64 = 2000;
/// Longest lower bound of the first block that is stored.
const MAX_LOW: usize = 64;

/// Builds the range filter of a table: `add` in the order of keys, and `end_block` after the last
/// of each data block; then `finish`.
pub struct RangeBuilder {
    millibits: u32,
    number: u64,
    /// What follows the header.
    payload: Vec<u8>,
    segment: Segment,
    /// The separator before the segment's first block.
    low: Vec<u8>,
    blocks: u32,
    /// Bytes that the filter takes for the segment's separators.
    stored: usize,
    /// Why there will be no filter.
    broken: Option<&'static str>,
    counts: Counts,
    coder: Coder,
    scratch: Scratch,
    tally: Tally,
}

/// Why a builder made no filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoRangeFilter {
    /// There are no keys.
    NoKeys,
    /// It would not help: one of these rates exceeds 25 %.
    Rates(RangeRates),
    /// The keys or separators are not in order, or the last block was not ended. To be reported:
    /// the fault is in this process or its memory.
    Broken(&'static str),
}

/// A finished range filter.
#[derive(Debug)]
pub struct RangeBlock {
    /// The block as it goes to disk, without the trailer of a table's blocks.
    pub bytes: Vec<u8>,
    /// Its parameters and rates.
    pub info: RangeInfo,
}

/// Keys and blocks that are not coded yet.
#[derive(Default)]
struct Segment {
    /// The keys, concatenated.
    keys: Vec<u8>,
    /// For each key, its end, and how many bytes it has in common with the key before it.
    ends: Vec<(u32, u32)>,
    /// Separators, concatenated.
    separators: Vec<u8>,
    /// For each block, the keys up to its end, and the end of its separator.
    blocks: Vec<(u32, u32)>,
}

#[derive(Default)]
struct Scratch {
    linear: Vec<u64>,
    numbers: Vec<Value>,
    distances: Vec<Value>,
    cells: Vec<u32>,
    directory: Vec<u8>,
    codes: Vec<u8>,
    alphabets: Vec<u8>,
}

/// What rates and information follow from.
#[derive(Default)]
struct Tally {
    keys: u64,
    folded: usize,
    /// Keys in cells with other keys.
    shared: u64,
    /// Strings near keys, and those in cells with keys.
    asked_near: u64,
    near: u64,
}

impl Segment {
    fn start(&self, i: usize) -> usize {
        i.checked_sub(1).map_or(0, |before| self.ends[before].0 as usize)
    }

    fn key(&self, i: usize) -> &[u8] {
        &self.keys[self.start(i)..self.ends[i].0 as usize]
    }

    /// Keys that are in no block yet.
    fn open_keys(&self) -> usize {
        self.ends.len() - self.blocks.last().map_or(0, |&(keys, _)| keys as usize)
    }

    fn separator(&self, block: usize) -> &[u8] {
        let start = block.checked_sub(1).map_or(0, |before| self.blocks[before].1 as usize);
        &self.separators[start..self.blocks[block].1 as usize]
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.ends.clear();
        self.separators.clear();
        self.blocks.clear();
    }
}

impl RangeBuilder {
    /// A builder for the table `number`. All of the filter takes `bits_per_key`, from 3 to 18; more
    /// if blocks have few keys, or the table has few.
    pub fn new(bits_per_key: f32, number: u64) -> RangeBuilder {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let millibits = (f64::from(bits_per_key) * 1000.0).round() as u32;
        RangeBuilder {
            millibits: millibits.clamp(*MILLIBITS.start(), *MILLIBITS.end()),
            number,
            payload: Vec::new(),
            segment: Segment::default(),
            low: Vec::new(),
            blocks: 0,
            stored: 0,
            broken: None,
            counts: Counts::new(),
            coder: Coder::new(),
            scratch: Scratch::default(),
            tally: Tally::default(),
        }
    }

    /// Adds a key to the block. It is not less than the key before; one that equals it counts once.
    pub fn add(&mut self, key: &[u8]) {
        let segment = &mut self.segment;
        let shared = match segment.ends.len().checked_sub(1) {
            None => 0,
            Some(last) => {
                let before = segment.key(last);
                let shared = common_prefix_len(before, key);
                if segment.open_keys() > 0 && key.get(shared) <= before.get(shared) {
                    // Equal, or out of order.
                    if shared < before.len() {
                        self.broken = Some("keys are not in order");
                    }
                    return;
                }
                shared
            }
        };
        if segment.open_keys() == 0 {
            if self.blocks == 0 && segment.blocks.is_empty() {
                let low = &key[..key.len().min(MAX_LOW)];
                self.low.extend_from_slice(low);
                put_bytes(&mut self.payload, low);
            }
            let low = match segment.blocks.len().checked_sub(1) {
                Some(last) => segment.separator(last),
                None => &self.low,
            };
            if key < low {
                self.broken = Some("a key is less than the separator before it");
                return;
            }
        }
        if u32::try_from(segment.keys.len() + key.len()).is_err() {
            self.broken = Some("the keys of a block exceed 4 GiB");
            return;
        }
        segment.keys.extend_from_slice(key);
        segment.ends.push((low_u32(segment.keys.len()), low_u32(shared)));
    }

    /// Ends a block. Its keys are at most `separator`, those of later blocks at least.
    pub fn end_block(&mut self, separator: &[u8]) {
        self.end_stored_block(separator, 0);
    }

    /// Ends a block whose separator takes `stored` bytes of the filter.
    pub(crate) fn end_stored_block(&mut self, separator: &[u8], stored: usize) {
        self.stored += stored;
        let segment = &mut self.segment;
        let is_empty = segment.open_keys() == 0;
        let least = match (segment.ends.len().checked_sub(1), segment.blocks.len().checked_sub(1)) {
            (Some(last), _) if !is_empty => segment.key(last),
            (_, Some(last)) => segment.separator(last),
            _ => &self.low,
        };
        if separator < least {
            self.broken = Some("a separator is less than what is before it");
            return;
        }
        if u32::try_from(segment.separators.len() + separator.len()).is_err() {
            self.broken = Some("the separators of a segment exceed 4 GiB");
            return;
        }
        if self.blocks == 0 && segment.blocks.is_empty() && is_empty {
            // A block without keys comes first: anything is a lower bound of what it holds.
            put_bytes(&mut self.payload, b"");
        }
        segment.separators.extend_from_slice(separator);
        segment.blocks.push((low_u32(segment.ends.len()), low_u32(segment.separators.len())));
        if segment.ends.len() >= SEGMENT_KEYS || segment.keys.len() + segment.separators.len() >= SEGMENT_BYTES {
            self.end_segment();
        }
    }

    /// Keys so far, each counted once per block that holds it.
    pub fn key_count(&self) -> u64 {
        self.tally.keys + self.segment.ends.len() as u64
    }

    /// Bytes of memory that the builder takes, with those of the block that it will make.
    pub fn memory(&self) -> usize {
        let Segment { keys, ends, separators, blocks } = &self.segment;
        let segment = keys.capacity() + separators.capacity() + 8 * (ends.capacity() + blocks.capacity());
        let Scratch { linear, numbers, distances, cells, directory, codes, alphabets } = &self.scratch;
        let scratch = 8 * linear.capacity() + 16 * (numbers.capacity() + distances.capacity()) + 4 * cells.capacity();
        let scratch = scratch + directory.capacity() + codes.capacity() + alphabets.capacity();
        let tables = self.counts.memory() + self.coder.memory();
        let of_open_keys = ends.len() * self.millibits as usize / 8000;
        size_of::<RangeBuilder>() + segment + scratch + tables + 2 * (self.payload.capacity() + of_open_keys)
    }

    /// The filter, if the keys allow one that helps.
    pub fn finish(self) -> Result<RangeBlock, NoRangeFilter> {
        let block = self.finish_regardless()?;
        if block.info.rates.are_useful() { Ok(block) } else { Err(NoRangeFilter::Rates(block.info.rates)) }
    }

    /// The filter, whatever its rates.
    pub fn finish_regardless(self) -> Result<RangeBlock, NoRangeFilter> {
        let (header, payload, folded) = self.finish_codes(Kind::Table).map_err(NoRangeFilter::Broken)?;
        if header.keys == 0 {
            return Err(NoRangeFilter::NoKeys);
        }
        let bytes = header::encode(&header, &payload);
        let info = header.info(bytes.len(), folded);
        Ok(RangeBlock { bytes, info })
    }

    /// Header and codes of a filter of this kind, and how many blocks are folded.
    pub(crate) fn finish_codes(mut self, kind: Kind) -> Result<(RangeHeader, Vec<u8>, usize), &'static str> {
        if self.segment.open_keys() > 0 {
            self.broken = Some("the last block was not ended");
        }
        self.end_segment();
        if let Some(reason) = self.broken {
            return Err(reason);
        }
        if self.payload.is_empty() {
            // No blocks: anything is a lower bound of what they hold.
            put_bytes(&mut self.payload, b"");
        }
        let Tally { keys, folded, shared, asked_near, near } = self.tally;
        let rates = RangeRates::new(keys, shared, (asked_near, near));
        let RangeBuilder { millibits, number, blocks, payload, .. } = self;
        let header = RangeHeader { kind, extractor: 0, number, keys, millibits, blocks, rates };
        Ok((header, payload, folded))
    }

    fn end_segment(&mut self) {
        let RangeBuilder { segment, scratch, coder, tally, .. } = self;
        let (count, block_count) = (segment.ends.len(), segment.blocks.len());
        if block_count == 0 {
            return;
        }
        if self.broken.is_some() {
            segment.clear();
            return;
        }
        let prefix = match count.checked_sub(1) {
            Some(last) => &segment.key(0)[..common_prefix_len(segment.key(0), segment.key(last))],
            None => &[],
        };
        let mut before = &[][..];
        for (i, &(end, shared)) in segment.ends.iter().enumerate() {
            let key = &segment.keys[segment.start(i) + prefix.len()..end as usize];
            self.counts.add(before, key, (shared as usize).saturating_sub(prefix.len()));
            before = key;
        }
        scratch.alphabets.clear();
        self.counts.take(before, |counts, is_open| Alphabets::write(prefix, counts, is_open, &mut scratch.alphabets));
        let Ok(alphabets) = Alphabets::decode(&mut Decoder::new(&scratch.alphabets)) else {
            self.broken = Some("the alphabets cannot be read back");
            return;
        };
        let bytes = scratch.alphabets.len() + std::mem::take(&mut self.stored);
        let per_key = per_key_of(self.millibits, count, block_count, bytes);
        coder.begin_segment(&alphabets);
        scratch.directory.clear();
        scratch.codes.clear();
        let mut start = 0;
        for (i, &(end, _)) in segment.blocks.iter().enumerate() {
            let low = i.checked_sub(1).map_or(self.low.as_slice(), |before| segment.separator(before));
            let (keys, high) = (start..end as usize, segment.separator(i));
            start = end as usize;
            if i % GROUP == 0 {
                put_u32(&mut scratch.directory, low_u32(scratch.codes.len()));
            }
            let count = low_u32(keys.len());
            let Some(cells) = cells_of(count, per_key) else {
                put_u16(&mut scratch.directory, 0);
                continue;
            };
            let block = Block { segment, keys, alphabets: &alphabets, low, high, per_key, cells };
            let way = block.place(coder, scratch, tally);
            let short = u16::try_from(count).unwrap_or(MANY).min(MANY);
            put_u16(&mut scratch.directory, u16::from(way) << COUNT_BITS | short);
            if short == MANY {
                put_u32(&mut scratch.codes, count);
            }
            cells::encode(&scratch.cells, shape_of(count, cells, per_key), &mut scratch.codes);
        }
        tally.keys += count as u64;
        put_varint(&mut self.payload, block_count as u64);
        let mut head = Vec::new();
        put_varint(&mut head, per_key.into());
        let parts = [&head, &scratch.alphabets, &scratch.directory, &scratch.codes];
        put_varint(&mut self.payload, parts.iter().map(|part| part.len() as u64).sum());
        parts.iter().for_each(|part| self.payload.extend_from_slice(part));
        self.blocks = self.blocks.saturating_add(low_u32(block_count));
        self.low.clear();
        self.low.extend_from_slice(segment.separator(block_count - 1));
        segment.clear();
    }
}

/// Keys and segments are counted by 32 bits: a segment ends at far fewer.
fn low_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Cells per key with which a segment takes `millibits` per key, of which `bytes` are no codes.
fn per_key_of(millibits: u32, keys: usize, blocks: usize, bytes: usize) -> u32 {
    // Of each block, the directory's bits and, on average, half a byte that its code does not fill.
    let overhead = (bytes as u64 + 8) * 8 + blocks as u64 * (16 + 2 + 4);
    let overhead = (overhead * 1000 / (keys as u64).max(1)).min(MAX_OVERHEAD);
    let left = u64::from(millibits).saturating_sub(overhead).max(3000);
    // For 2^r · (1 + f) cells, r + 2 + f bits.
    let (bits, fraction) = (left / 1000, left % 1000);
    let cells = (1u64 << (bits - 2)) * (1000 + fraction) / 1000;
    u32::try_from(cells).unwrap_or(MAX_PER_KEY).clamp(2, MAX_PER_KEY)
}

/// A block to be coded.
struct Block<'a> {
    segment: &'a Segment,
    keys: std::ops::Range<usize>,
    alphabets: &'a Alphabets,
    low: &'a [u8],
    high: &'a [u8],
    per_key: u32,
    cells: u32,
}

impl Block<'_> {
    /// The numbers of its keys, in order.
    #[inline]
    fn numbers(&self, coder: &mut Coder, span: &Span, shortest: Value, mut each: impl FnMut(Value)) {
        let prefix = self.alphabets.prefix_len();
        coder.begin_block(span.skip().saturating_sub(prefix));
        let mut start = self.segment.start(self.keys.start);
        for &(end, shared) in &self.segment.ends[self.keys.clone()] {
            let key = &self.segment.keys[start + prefix..end as usize];
            start = end as usize;
            let number = coder.number(key, (shared as usize).saturating_sub(prefix), shortest, span.precision());
            each(span.inside(number));
        }
    }

    /// Puts its cells into `scratch.cells`, and returns how they are placed, as in the directory:
    /// folded, in units of a fraction of a short distance between neighbours, if that is a fraction
    /// of the mean one.
    fn place(&self, coder: &mut Coder, scratch: &mut Scratch, tally: &mut Tally) -> u8 {
        let Scratch { linear, cells, .. } = scratch;
        let count = self.keys.len();
        let span = Span::new(self.alphabets, 0, self.cells, self.low, self.high);
        let scale = Scale::of(0, &span, self.per_key, self.cells);
        linear.clear();
        self.numbers(coder, &span, scale.shortest(), |number| linear.push(scale.linear(number).0));
        let (_, span) = scale.linear(0);
        let short = span / (count as u64 * CLUSTERED);
        let shorts = linear.windows(2).filter(|pair| pair[1] - pair[0] <= short).count();
        if count > 1 && shorts > (count - 2) / SHORT {
            return self.fold(coder, scratch, tally);
        }
        cells.clear();
        cells.extend(linear.iter().map(|&linear| scale.cell_of_linear(linear)));
        let (mut shared, mut before) = (0, false);
        for pair in cells.windows(2) {
            let is_shared = pair[0] == pair[1];
            shared += u64::from(is_shared) + u64::from(is_shared && !before);
            before = is_shared;
        }
        tally.shared += shared;
        // Strings near keys are in the cell so many cells later.
        let (step, mut later) = ((self.per_key / NEAR).max(1), 0);
        for &cell in cells.iter() {
            while cells.get(later).is_some_and(|&later| later < cell + step) {
                later += 1;
            }
            tally.near += u64::from(cells.get(later) == Some(&(cell + step)));
        }
        tally.asked_near += count as u64;
        0
    }

    fn fold(&self, coder: &mut Coder, scratch: &mut Scratch, tally: &mut Tally) -> u8 {
        let Scratch { numbers, distances, cells, .. } = scratch;
        let span = Span::new(self.alphabets, 1, self.cells, self.low, self.high);
        numbers.clear();
        self.numbers(coder, &span, SHORTEST, |number| numbers.push(number));
        distances.clear();
        distances.extend(numbers.windows(2).map(|pair| pair[1].abs_diff(pair[0])));
        let (_, &mut short, _) = distances.select_nth_unstable((numbers.len() - 2) / SHORT);
        let unit = short.max(1).ilog2().saturating_sub(UNITS_LOG2);
        let way = low_byte(u64::from(unit / 2 + 1));
        let scale = Scale::of(way, &span, self.per_key, self.cells);
        cells.clear();
        cells.extend(numbers.iter().map(|&number| scale.cell(number)));
        cells.sort_unstable();
        let shared = cells.chunk_by(|a, b| a == b).filter(|cell| cell.len() > 1);
        tally.shared += shared.map(|cell| cell.len() as u64).sum::<u64>();
        let (_, &mut shorter, _) = distances.select_nth_unstable((numbers.len() - 2) / SHORTER);
        let near = shorter * NEAR_OF_SHORTER.0 / NEAR_OF_SHORTER.1;
        let asked = numbers.iter().map(|&number| number + near).filter(|&number| number <= span.len());
        for number in asked {
            tally.asked_near += 1;
            tally.near += u64::from(cells.binary_search(&scale.cell(number)).is_ok());
        }
        tally.folded += 1;
        way
    }
}
