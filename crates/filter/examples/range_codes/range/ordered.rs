//! [`OrderedFilter`]: cells of the keys of each data block of a table.
//!
//! | field | |
//! |---|---|
//! | magic, version | 5 bytes |
//! | cells per key, blocks | 4 bytes each |
//! | segments | varint; each: blocks, bytes (varints), then as below |
//!
//! A segment is its alphabets, a directory, and the codes of its blocks. The directory has, for
//! each group of [`GROUP`] blocks, the offset of its first code in 4 bytes, and 2 bytes per block:
//! the number of keys in the low [`BLOCK_COUNT_BITS`] bits, and how they are placed: 0 in order,
//! w > 0 folded in units of 2^(2w − 2). A block without keys in the directory is "maybe".

use super::alphabet::{Alphabets, Number, Value};
use super::cells::{Cells, Shape};
use super::scale::{MAX_PER_KEY, Scale, Span};
use tamis_base::format::coding::{Decoder, get_u16, get_u32};
use tamis_base::format::{Decoded, Malformed};

pub(super) const MAGIC: [u8; 5] = *b"RNG1\x01";
/// Blocks that share an offset.
pub(super) const GROUP: usize = 16;
const GROUP_LEN: usize = 4 + 2 * GROUP;
pub(super) const BLOCK_COUNT_BITS: u32 = 10;
pub(super) const MAX_BLOCK_KEYS: u16 = (1 << BLOCK_COUNT_BITS) - 1;

/// A data block, as its table's index knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRange<'a> {
    /// Its number in the table.
    pub index: usize,
    /// Not greater than its keys: the separator before it. For the first block, the `low` of the
    /// builder.
    pub low: &'a [u8],
    /// Not less than its keys: the separator after it.
    pub high: &'a [u8],
}

/// Answers for ranges of keys of a table's blocks.
pub(crate) struct OrderedFilter {
    per_key: u32,
    segments: Vec<Segment>,
}

struct Segment {
    /// Its first block.
    first: usize,
    alphabets: Alphabets,
    directory: Vec<u8>,
    codes: Vec<u8>,
}

/// A block's keys, placed.
struct Placed<'a> {
    alphabets: &'a Alphabets,
    span: Span,
    scale: Scale,
    cells: Cells<'a>,
}

impl OrderedFilter {
    /// The filter in `bytes`, which are those of [`OrderedBuilder::finish`](super::OrderedBuilder).
    pub(crate) fn decode(bytes: &[u8]) -> Decoded<OrderedFilter> {
        let mut from = Decoder::new(bytes);
        if *from.array::<5>()? != MAGIC {
            return Err(Malformed("not an ordered range filter"));
        }
        let (per_key, blocks, count) = (from.u32()?, from.u32()?, from.varint()?);
        if !(2..=MAX_PER_KEY).contains(&per_key) {
            return Err(Malformed("the cells per key are out of range"));
        }
        let (mut segments, mut first) = (Vec::new(), 0usize);
        for _ in 0..count {
            let blocks = usize::try_from(from.varint()?).unwrap_or(usize::MAX);
            let mut inner = Decoder::new(from.bytes()?);
            let alphabets = Alphabets::decode(&mut inner)?;
            let too_many = Malformed("a segment is shorter than its directory");
            let groups = blocks.div_ceil(GROUP).checked_mul(4).ok_or(too_many)?;
            let len = blocks.checked_mul(2).and_then(|entries| entries.checked_add(groups)).ok_or(too_many)?;
            let directory = inner.take(len)?.to_vec();
            let codes = inner.take(inner.remaining())?.to_vec();
            segments.push(Segment { first, alphabets, directory, codes });
            first = first.checked_add(blocks).ok_or(too_many)?;
        }
        from.finish()?;
        if first as u64 != u64::from(blocks) {
            return Err(Malformed("the segments have another number of blocks"));
        }
        Ok(OrderedFilter { per_key, segments })
    }

    /// Of the blocks, those whose keys are folded.
    pub(crate) fn folded(&self) -> usize {
        let blocks = |s: &Segment| (s.first..s.first + blocks_of(s.directory.len())).collect::<Vec<_>>();
        let entry = |s: &Segment, block: usize| s.entry(block - s.first).is_some_and(|(_, way)| way > 0);
        self.segments.iter().map(|s| blocks(s).into_iter().filter(|&block| entry(s, block)).count()).sum()
    }

    /// Whether the block may hold a key that is at least `from` and less than `until`, if given.
    pub(crate) fn may_hold(&self, block: BlockRange<'_>, from: &[u8], until: Option<&[u8]>) -> bool {
        if from > block.high || until.is_some_and(|until| until <= block.low.max(from)) {
            return false;
        }
        let Some(placed) = self.placed(block) else { return true };
        let Some(to) = placed.to(block, until) else { return false };
        let from = placed.from(block, from);
        from <= to && placed.scale.any(from, to, &placed.cells)
    }

    /// A lower bound of the block's first key that is at least `from`, in `bound`; at least `from`
    /// itself. `false` if there is no such key.
    pub(crate) fn next(&self, block: BlockRange<'_>, from: &[u8], bound: &mut Vec<u8>) -> bool {
        bound.clear();
        if from > block.high {
            return false;
        }
        let least = from.max(block.low);
        let Some(placed) = self.placed(block) else {
            bound.extend_from_slice(least);
            return true;
        };
        let from = placed.from(block, from);
        if from > placed.span.len() {
            return false;
        }
        let next = placed.scale.next(from, &placed.cells);
        let Some(value) = next.filter(|&value| value <= placed.span.len()) else { return false };
        placed.string(block, value, false, bound);
        if bound.as_slice() < least {
            bound.clear();
            bound.extend_from_slice(least);
        }
        true
    }

    /// An upper bound of the block's last key that is less than `until`, if given, in `bound`. It
    /// exceeds the key and is at most `until`. `false` if there is no such key.
    pub(crate) fn before(&self, block: BlockRange<'_>, until: Option<&[u8]>, bound: &mut Vec<u8>) -> bool {
        bound.clear();
        if until.is_some_and(|until| until <= block.low) {
            return false;
        }
        let most = |bound: &mut Vec<u8>| match until {
            Some(until) if until <= block.high => bound.extend_from_slice(until),
            _ => {
                bound.extend_from_slice(block.high);
                bound.push(0);
            }
        };
        let Some(placed) = self.placed(block) else {
            most(bound);
            return true;
        };
        let Some(to) = placed.to(block, until) else { return false };
        let before = placed.scale.before(to, &placed.cells);
        let Some(value) = before else { return false };
        let has_string = value < placed.span.len() && placed.string(block, value + 1, true, bound);
        if !has_string || until.is_some_and(|until| bound.as_slice() > until) || bound.as_slice() > block.high {
            bound.clear();
            most(bound);
        }
        true
    }

    fn placed(&self, block: BlockRange<'_>) -> Option<Placed<'_>> {
        let at = self.segments.partition_point(|segment| segment.first <= block.index).checked_sub(1)?;
        let segment = self.segments.get(at)?;
        let (count, way, offset) = segment.find(block.index - segment.first, self.per_key)?;
        let shape = shape_of(count, self.per_key);
        let code = segment.codes.get(offset..)?.get(..shape.len())?;
        let span = Span::new(&segment.alphabets, block.low, block.high);
        let scale = Scale::of(way, &span, self.per_key, count);
        Some(Placed { alphabets: &segment.alphabets, span, scale, cells: Cells::new(code, shape) })
    }
}

/// The shape of the code of a block with `count` keys.
pub(super) fn shape_of(count: u16, per_key: u32) -> Shape {
    Shape::new(count.into(), u32::from(count) * per_key, per_key)
}

/// The number of blocks in a directory of `len` bytes.
fn blocks_of(len: usize) -> usize {
    let (groups, rest) = (len / GROUP_LEN, len % GROUP_LEN);
    groups * GROUP + rest.saturating_sub(4) / 2
}

impl Segment {
    /// The number of keys of a block, and how they are placed.
    fn entry(&self, block: usize) -> Option<(u16, u8)> {
        let at = block / GROUP * GROUP_LEN + 4 + block % GROUP * 2;
        let entry = get_u16(self.directory.get(at..)?.first_chunk()?);
        let count = entry & ((1 << BLOCK_COUNT_BITS) - 1);
        Some((count, (entry >> BLOCK_COUNT_BITS).try_into().ok()?))
    }

    /// The number of keys of a block, how they are placed, and the offset of their code; `None` if
    /// it has none.
    fn find(&self, block: usize, per_key: u32) -> Option<(u16, u8, usize)> {
        let (count, way) = self.entry(block)?;
        if count == 0 {
            return None;
        }
        let group = block / GROUP;
        let offset = get_u32(self.directory.get(group * GROUP_LEN..)?.first_chunk()?);
        let before = (group * GROUP..block).filter_map(|block| self.entry(block));
        let before = before.map(|(count, _)| shape_of(count, per_key).len()).sum::<usize>();
        Some((count, way, usize::try_from(offset).ok()?.checked_add(before)?))
    }
}

impl Placed<'_> {
    /// The least number of a key that is at least `from`.
    fn from(&self, block: BlockRange<'_>, from: &[u8]) -> Value {
        if from <= block.low { 0 } else { self.span.number(self.alphabets, from).value }
    }

    /// The greatest number of a key that is less than `until`.
    fn to(&self, block: BlockRange<'_>, until: Option<&[u8]>) -> Option<Value> {
        let len = self.span.len();
        match until {
            Some(until) if until <= block.high => {
                let Number { value, decided } = self.span.number(self.alphabets, until);
                if decided { Some(value.checked_sub(1)?.min(len)) } else { Some(value.min(len)) }
            }
            _ => Some(len),
        }
    }

    /// The string of a number of the block, appended to what its keys begin with.
    fn string(&self, block: BlockRange<'_>, value: Value, above: bool, out: &mut Vec<u8>) -> bool {
        let skip = self.span.skip();
        out.extend_from_slice(block.low.get(..skip).unwrap_or_default());
        self.span.string(self.alphabets, value, above, out)
    }
}
