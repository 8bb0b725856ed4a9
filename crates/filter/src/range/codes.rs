//! [`Codes`]: the cells of the keys of each data block of a table, to be asked.
//!
//! | field | |
//! |---|---|
//! | low | varint length, bytes: not greater than the keys of the first block |
//! | segments | to the end; each: blocks, length of the rest (varints), and the rest, below |
//!
//! A segment is its cells per key (varint), its alphabets, a directory, and the codes of its
//! blocks. The directory has, for each group of [`GROUP`] blocks, the offset of its first code in 4
//! bytes, and 2 bytes per block: the number of keys in the low [`COUNT_BITS`] bits, and how they
//! are placed: 0 in order, w > 0 folded in units of 2^(2w − 2). For [`MANY`] keys and more, the
//! code begins with their number in 4 bytes. A block without keys in the directory is "maybe".

use std::ops::Range;

use super::alphabet::{Alphabets, Value};
use super::cells::{Cells, Shape};
use super::scale::{MAX_PER_KEY, Scale, Span, cells_of};
use tamis_base::format::coding::{Decoder, get_u16, get_u32};
use tamis_base::format::{Decoded, Malformed};
use tamis_base::memory::pool::TableArray;

/// Blocks that share an offset. Part of the format.
pub(super) const GROUP: usize = 16;
const GROUP_LEN: usize = 4 + 2 * GROUP;
pub(super) const COUNT_BITS: u32 = 10;
/// The first number of keys that does not fit its bits.
pub(super) const MANY: u16 = (1 << COUNT_BITS) - 1;

/// A data block, as its table's index knows it.
#[derive(Clone, Copy, Debug)]
pub struct BlockRange<'a> {
    /// Its number in the table.
    pub index: usize,
    /// Not greater than its keys: the separator before it. Not used for the first block, whose
    /// bound the filter has.
    pub low: &'a [u8],
    /// Not less than its keys: the separator after it.
    pub high: &'a [u8],
}

/// Cells of blocks.
pub(crate) struct Codes {
    bytes: TableArray<u8>,
    low: Range<usize>,
    segments: Box<[Segment]>,
}

struct Segment {
    /// Its first block.
    first: usize,
    per_key: u32,
    alphabets: Alphabets,
    directory: Range<usize>,
    codes: Range<usize>,
}

/// A block's keys, placed.
struct Placed<'a> {
    alphabets: &'a Alphabets,
    low: &'a [u8],
    high: &'a [u8],
    span: Span,
    scale: Scale,
    cells: Cells<'a>,
}

impl Codes {
    /// Of `blocks` blocks, in `bytes` from `start` on.
    pub(crate) fn decode(bytes: TableArray<u8>, start: usize, blocks: u32) -> Decoded<Codes> {
        let mut from = Decoder::new(bytes.get(start..).unwrap_or_default());
        let at = |from: &Decoder<'_>| bytes.len() - from.remaining();
        let low = from.bytes()?.len();
        let low = at(&from) - low..at(&from);
        let (mut segments, mut first) = (Vec::new(), 0usize);
        while !from.is_empty() {
            let count = usize::try_from(from.varint()?).unwrap_or(usize::MAX);
            let len = from.bytes()?.len();
            let end = at(&from);
            let mut inner = Decoder::new(&bytes[end - len..end]);
            let here = |inner: &Decoder<'_>| end - inner.remaining();
            let per_key = inner.varint_u32()?;
            if !(2..=MAX_PER_KEY).contains(&per_key) {
                return Err(Malformed("the cells per key of a range filter are out of range"));
            }
            let alphabets = Alphabets::decode(&mut inner)?;
            let start = here(&inner);
            inner.take(directory_len(count).ok_or(Malformed("a segment is shorter than its directory"))?)?;
            let (directory, codes) = (start..here(&inner), here(&inner)..end);
            if directory.is_empty() {
                return Err(Malformed("a segment of a range filter has no blocks"));
            }
            segments.push(Segment { first, per_key, alphabets, directory, codes });
            first += count;
        }
        if first as u64 != u64::from(blocks) {
            return Err(Malformed("the segments of a range filter have another number of blocks"));
        }
        Ok(Codes { bytes, low, segments: segments.into_boxed_slice() })
    }

    /// Bytes of memory beside the struct itself.
    pub(crate) fn memory(&self) -> usize {
        let alphabets = self.segments.iter().map(|segment| segment.alphabets.memory()).sum::<usize>();
        self.bytes.len() + size_of_val(&*self.segments) + alphabets
    }

    /// Of the blocks, those whose keys are folded.
    pub(crate) fn folded(&self) -> usize {
        let of = |segment: &Segment| {
            let directory = &self.bytes[segment.directory.clone()];
            (0..).map_while(|block| entry(directory, block)).filter(|&(_, way)| way > 0).count()
        };
        self.segments.iter().map(of).sum()
    }

    /// Whether each block has a code where it should be, and all of them `keys` keys.
    pub(crate) fn are_whole(&self, keys: u64) -> bool {
        let mut sum = 0;
        let is_whole = |segment: &Segment| {
            let directory = &self.bytes[segment.directory.clone()];
            let mut end = 0;
            for block in 0.. {
                let Some((count, _)) = entry(directory, block) else { break };
                let count = u32::from(count);
                let Some(cells) = cells_of(count, segment.per_key).filter(|_| count < MANY.into()) else {
                    return false;
                };
                if block % GROUP == 0 && offset(directory, block / GROUP) != Some(end) {
                    return false;
                }
                end += shape_of(count, cells, segment.per_key).len();
                sum += u64::from(count);
            }
            end == segment.codes.len()
        };
        self.segments.iter().all(is_whole) && sum == keys
    }

    /// The block with its lower bound.
    fn bounded<'a>(&'a self, block: BlockRange<'a>) -> BlockRange<'a> {
        let low = if block.index == 0 { &self.bytes[self.low.clone()] } else { block.low };
        BlockRange { low, ..block }
    }

    /// Whether the block may hold a key that is at least `from` and less than `until`, if given.
    pub(crate) fn may_hold(&self, block: BlockRange<'_>, from: &[u8], until: Option<&[u8]>) -> bool {
        let block = self.bounded(block);
        if !block.overlaps(from, until) {
            return false;
        }
        let Some(placed) = self.placed(block) else { return true };
        let Some(to) = placed.to(until) else { return false };
        let from = placed.from(from);
        from <= to && placed.scale.any(from, to, &placed.cells)
    }

    /// A lower bound of the block's first key that is at least `from`, in `bound`; at least `from`
    /// itself. `false` if there is no such key.
    pub(crate) fn next(&self, block: BlockRange<'_>, from: &[u8], bound: &mut Vec<u8>) -> bool {
        let block = self.bounded(block);
        let Some(least) = block.least(from, bound) else { return false };
        let Some(placed) = self.placed(block) else { return true };
        let from = placed.from(from);
        if from > placed.span.len() {
            return false;
        }
        let next = placed.scale.next(from, &placed.cells);
        let Some(value) = next.filter(|&value| value <= placed.span.len()) else { return false };
        bound.clear();
        // Beyond the separator, the next key may be of another segment, with other alphabets: less
        // than the bound.
        if !placed.string(value, false, bound) || bound.as_slice() > block.high {
            return false;
        }
        if bound.as_slice() < least {
            bound.clear();
            bound.extend_from_slice(least);
        }
        true
    }

    /// An upper bound of the block's last key that is less than `until`, if given, in `bound`. It
    /// exceeds the key and is at most `until`. `false` if there is no such key.
    pub(crate) fn before(&self, block: BlockRange<'_>, until: Option<&[u8]>, bound: &mut Vec<u8>) -> bool {
        let block = self.bounded(block);
        if !block.most(until, bound) {
            return false;
        }
        let Some(placed) = self.placed(block) else { return true };
        let Some(to) = placed.to(until) else { return false };
        let before = placed.scale.before(to, &placed.cells);
        let Some(value) = before else { return false };
        bound.clear();
        let has_string = value < placed.span.len() && placed.string(value + 1, true, bound);
        if !has_string || until.is_some_and(|until| bound.as_slice() > until) || bound.as_slice() > block.high {
            block.most(until, bound);
        }
        true
    }

    fn placed<'a>(&'a self, block: BlockRange<'a>) -> Option<Placed<'a>> {
        let at = self.segments.partition_point(|segment| segment.first <= block.index).checked_sub(1)?;
        let segment = &self.segments[at];
        let directory = &self.bytes[segment.directory.clone()];
        let codes = &self.bytes[segment.codes.clone()];
        let (cells, way, code) = find(directory, codes, block.index - segment.first, segment.per_key)?;
        let BlockRange { low, high, .. } = block;
        let span = Span::new(&segment.alphabets, way, cells, low, high);
        let scale = Scale::of(way, &span, segment.per_key, cells);
        Some(Placed { alphabets: &segment.alphabets, low, high, span, scale, cells: code })
    }
}

impl<'a> BlockRange<'a> {
    /// Whether its bounds leave room for a key from `from` to before `until`.
    pub(super) fn overlaps(self, from: &[u8], until: Option<&[u8]>) -> bool {
        from <= self.high && until.is_none_or(|until| until > self.low.max(from))
    }

    /// Puts the least key that it may hold from `from` on into `bound`.
    pub(super) fn least(self, from: &'a [u8], bound: &mut Vec<u8>) -> Option<&'a [u8]> {
        bound.clear();
        if from > self.high {
            return None;
        }
        let least = from.max(self.low);
        bound.extend_from_slice(least);
        Some(least)
    }

    /// Puts a string that exceeds the keys that it may hold before `until` into `bound`. `false` if
    /// it holds none.
    pub(super) fn most(self, until: Option<&[u8]>, bound: &mut Vec<u8>) -> bool {
        bound.clear();
        match until {
            Some(until) if until <= self.low => return false,
            Some(until) if until <= self.high => bound.extend_from_slice(until),
            _ => {
                bound.extend_from_slice(self.high);
                bound.push(0);
            }
        }
        true
    }
}

/// The shape of the code of `cells` cells, `count` of which hold a key.
pub(super) fn shape_of(count: u32, cells: u32, per_key: u32) -> Shape {
    Shape::new(count as usize, cells, per_key)
}

/// Bytes of a directory of `blocks` blocks.
fn directory_len(blocks: usize) -> Option<usize> {
    blocks.checked_mul(2)?.checked_add(blocks.div_ceil(GROUP).checked_mul(4)?)
}

/// Where the codes of a group of blocks begin.
fn offset(directory: &[u8], group: usize) -> Option<usize> {
    usize::try_from(get_u32(directory.get(group * GROUP_LEN..)?.first_chunk()?)).ok()
}

/// The number of keys of a block, and how they are placed.
fn entry(directory: &[u8], block: usize) -> Option<(u16, u8)> {
    let at = block / GROUP * GROUP_LEN + 4 + block % GROUP * 2;
    let entry = get_u16(directory.get(at..)?.first_chunk()?);
    Some((entry & MANY, (entry >> COUNT_BITS).try_into().ok()?))
}

/// The cells of a block, how its keys are placed, and their code; `None` if it has none.
fn find<'a>(directory: &[u8], codes: &'a [u8], block: usize, per_key: u32) -> Option<(u32, u8, Cells<'a>)> {
    let group = block / GROUP;
    let mut codes = codes.get(offset(directory, group)?..)?;
    for here in group * GROUP.. {
        let (count, way) = entry(directory, here)?;
        let mut count = u32::from(count);
        if count == MANY.into() {
            let (head, rest) = codes.split_first_chunk()?;
            (count, codes) = (get_u32(head), rest);
        }
        if count == 0 {
            if here == block {
                return None;
            }
            continue;
        }
        let cells = cells_of(count, per_key)?;
        let shape = shape_of(count, cells, per_key);
        let (code, rest) = codes.split_at_checked(shape.len())?;
        if here == block {
            return Some((cells, way, Cells::new(code, shape)));
        }
        codes = rest;
    }
    None
}

impl Placed<'_> {
    /// The least number of a key that is at least `from`.
    fn from(&self, from: &[u8]) -> Value {
        if from <= self.low { 0 } else { self.span.from(self.alphabets, from, &self.scale) }
    }

    /// The greatest number of a key that is less than `until`.
    fn to(&self, until: Option<&[u8]>) -> Option<Value> {
        match until {
            Some(until) if until <= self.high => self.span.to(self.alphabets, until, &self.scale),
            _ => Some(self.span.len()),
        }
    }

    /// The string of a number of the block, appended to what its keys begin with.
    fn string(&self, value: Value, above: bool, out: &mut Vec<u8>) -> bool {
        let skip = self.span.skip();
        out.extend_from_slice(self.low.get(..skip).unwrap_or_default());
        self.span.string(self.alphabets, value, above, &self.scale, out)
    }
}
