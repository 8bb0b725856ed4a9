//! From numbers to the cells of one block, and back.
//!
//! The block's keys have numbers between those of its separators. Two ways place them in `cells`
//! cells:
//!
//! - **In order**: linearly between the separators. For keys that are spread evenly within a block.
//! - **Folded**: in units of `2^unit`, each stretch of `2^fold` units moved by a hash of its number
//!   (Grafite's locality-preserving hash). For keys that cluster: cells are as fine as the
//!   distances within a cluster, whatever lies between clusters. It answers short ranges only.
//!
//! Numbers are narrow if the keys are placed in order and the narrow numbers of the separators are
//! far enough apart to be divided into fine cells; otherwise wide.

use super::alphabet::{Alphabets, Precision, SHORTEST, Value, WIDE_ROOT, low_word as narrow};
use super::cells::Cells;
use tamis_base::format::key::common_prefix_len;

/// Bits of a number that a linear scale multiplies by its cells.
const SPAN_BITS: u32 = 32;
/// A number placed in order stops at intervals of this fraction of a cell, as a binary logarithm.
const FINENESS_LOG2: u32 = 8;
/// Most cells per key. Part of the format.
pub(super) const MAX_PER_KEY: u32 = 1 << 16;
/// Most cells of a block. Part of the format.
const MAX_CELLS: u32 = 1 << 31;
/// Stretches of a folded scale in which a bound of the next key is looked for.
const BOUND_STRETCHES: u64 = 4;

/// Cells of a block with `count` keys, unless they are too many.
pub(super) fn cells_of(count: u32, per_key: u32) -> Option<u32> {
    count.checked_mul(per_key).filter(|cells| (1..=MAX_CELLS).contains(cells))
}

/// A number placed in order stops at intervals of this fraction of the span.
fn fineness_log2(cells: u32) -> u32 {
    cells.max(1).ilog2() + FINENESS_LOG2
}

/// The keys of a block, as a table's index knows them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Bytes that the separators, and all strings between them, begin with.
    skip: usize,
    low: Value,
    /// The greatest number of a key of the block.
    high: Value,
    precision: Precision,
}

impl Span {
    /// Of the block whose keys are at least `low` and at most `high`, placed as its directory entry
    /// has it.
    pub(super) fn new(alphabets: &Alphabets, way: u8, cells: u32, low: &[u8], high: &[u8]) -> Span {
        let skip = common_prefix_len(low, high);
        let span = |precision| {
            let number = |key| alphabets.number(skip, key, SHORTEST, precision);
            let low = number(low);
            // The number of a string that is no key may be that of the next key.
            Span { skip, low, high: number(high).max(low), precision }
        };
        let is_fine = |span: &Span| span.len() >> fineness_log2(cells) >= SHORTEST;
        Some(Precision::Narrow).filter(|_| way == 0).map(span).filter(is_fine).unwrap_or_else(|| span(Precision::Wide))
    }

    /// A number, counted from the first.
    #[inline]
    pub(super) fn inside(&self, number: Value) -> Value {
        number.saturating_sub(self.low)
    }

    /// The least number of a key of the block that is at least `from`, counted from the first.
    pub(super) fn from(&self, alphabets: &Alphabets, from: &[u8], scale: &Scale) -> Value {
        self.inside(alphabets.number(self.skip, from, scale.shortest, self.precision))
    }

    /// The greatest number of a key of the block that is less than `until`, counted from the first.
    pub(super) fn to(&self, alphabets: &Alphabets, until: &[u8], scale: &Scale) -> Option<Value> {
        let below = alphabets.below(self.skip, until, scale.shortest, self.precision)?;
        (below.end > self.low).then(|| self.inside(below.start).min(self.len()))
    }

    /// Appends [`Alphabets::string`] of a number, if there is one.
    pub(super) fn string(
        &self,
        alphabets: &Alphabets,
        value: Value,
        above: bool,
        scale: &Scale,
        out: &mut Vec<u8>,
    ) -> bool {
        alphabets.string(self.skip, value.saturating_add(self.low), above, (scale.shortest, self.precision), out)
    }

    /// That of all its numbers.
    pub(super) fn precision(&self) -> Precision {
        self.precision
    }

    /// Bytes that the separators, and all strings between them, begin with.
    pub(super) fn skip(&self) -> usize {
        self.skip
    }

    /// The greatest number, counted from the least.
    pub(super) fn len(&self) -> Value {
        self.high - self.low
    }
}

/// Places the numbers of a span in cells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    cells: u32,
    /// Numbers stop at intervals below this.
    shortest: Value,
    way: Way,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    /// `(number >> shift) · rise >> 32`, for numbers below `span`.
    InOrder { shift: u32, span: u64, rise: u64 },
    /// `(number >> unit) + hash(number >> unit >> fold)`, modulo `cells`.
    Folded { unit: u32, fold: u32 },
}

impl Scale {
    /// Of a block with these cells whose directory entry has `way`.
    pub(super) fn of(way: u8, span: &Span, per_key: u32, cells: u32) -> Scale {
        match way.checked_sub(1) {
            None => Scale::in_order(span, cells),
            Some(half) => {
                // A range that covers as many cells as a key has gets no useful answer.
                let fold = per_key.max(2).ilog2();
                let unit = (u32::from(half) * 2).min(WIDE_ROOT.ilog2() - 1 - fold);
                Scale { cells, shortest: SHORTEST, way: Way::Folded { unit, fold } }
            }
        }
    }

    fn in_order(span: &Span, cells: u32) -> Scale {
        let shortest = (span.len() >> fineness_log2(cells)).max(SHORTEST);
        let shift = (Value::BITS - span.len().leading_zeros()).saturating_sub(SPAN_BITS);
        let span = narrow(span.len() >> shift) + 1;
        Scale { cells, shortest, way: Way::InOrder { shift, span, rise: (u64::from(cells) << 32) / span } }
    }

    /// Numbers stop at intervals below this.
    pub(super) fn shortest(&self) -> Value {
        self.shortest
    }

    /// For a scale in order, the number of which a cell is a multiple, and how many there are.
    #[inline]
    pub(super) fn linear(&self, number: Value) -> (u64, u64) {
        match self.way {
            Way::InOrder { shift, span, .. } => (narrow(number >> shift).min(span - 1), span),
            Way::Folded { .. } => (0, 1),
        }
    }

    /// The cell of a [`linear`](Scale::linear) number.
    #[inline]
    pub(super) fn cell_of_linear(&self, linear: u64) -> u32 {
        match self.way {
            Way::InOrder { rise, .. } => ((linear * rise) >> 32) as u32,
            Way::Folded { .. } => 0,
        }
    }

    /// The cell of a number of the span.
    #[expect(clippy::cast_possible_truncation, reason = "below the number of cells")]
    #[inline]
    pub(super) fn cell(&self, number: Value) -> u32 {
        match self.way {
            Way::InOrder { shift, span, rise } => ((narrow(number >> shift).min(span - 1) * rise) >> 32) as u32,
            Way::Folded { unit, fold } => {
                let at = number >> unit;
                let inside = narrow(at & ((1 << fold) - 1));
                ((spread(at >> fold) + inside) % u64::from(self.cells.max(1))) as u32
            }
        }
    }

    /// Whether a number from `from` to `to` may be that of a key.
    pub(super) fn any(&self, from: Value, to: Value, cells: &Cells<'_>) -> bool {
        let Way::Folded { unit, fold } = self.way else { return cells.any(self.cell(from), self.cell(to)) };
        let (first, last) = (from >> unit >> fold, to >> unit >> fold);
        let piece = |from, to| {
            let (from, to) = (self.cell(from), self.cell(to));
            // Cells of a stretch wrap around.
            if from <= to { cells.any(from, to) } else { cells.any(from, u32::MAX) || cells.any(0, to) }
        };
        match last - first {
            0 => piece(from, to),
            1 => {
                let middle = last << fold << unit;
                piece(from, middle - 1) || piece(middle, to)
            }
            _ => true,
        }
    }

    /// A lower bound of the numbers of keys from `from` on; `None` if there is no such key.
    pub(super) fn next(&self, from: Value, cells: &Cells<'_>) -> Option<Value> {
        let (unit, fold) = match self.way {
            Way::InOrder { shift, rise, .. } => {
                // The least number with the cell.
                let start = |cell: u32| Value::from((u64::from(cell) << 32).div_ceil(rise.max(1))) << shift;
                return cells.first_from(self.cell(from)).map(|cell| start(cell).max(from));
            }
            Way::Folded { unit, fold } => (unit, fold),
        };
        let mut at = from;
        for _ in 0..BOUND_STRETCHES {
            let (cell, after) = (self.cell(at), ((at >> unit >> fold) + 1) << fold << unit);
            let found = cells.first_from(cell).or_else(|| Some(cells.first_from(0)? + self.cells))?;
            let units = (at >> unit) + Value::from(found - cell);
            if units < after >> unit {
                return Some((units << unit).max(at));
            }
            at = after;
        }
        Some(at)
    }

    /// An upper bound of the numbers of keys up to `to`; `None` if there is no such key.
    pub(super) fn before(&self, to: Value, cells: &Cells<'_>) -> Option<Value> {
        let (unit, fold) = match self.way {
            Way::InOrder { shift, rise, .. } => {
                // The greatest number with the cell is one less than the least of the next.
                let end = |cell: u32| {
                    let next = (u64::from(cell + 1) << 32).div_ceil(rise.max(1)).max(1);
                    (Value::from(next - 1) << shift) | ((1 << shift) - 1)
                };
                return cells.last_to(self.cell(to)).map(|cell| end(cell).min(to));
            }
            Way::Folded { unit, fold } => (unit, fold),
        };
        let mut at = to;
        for _ in 0..BOUND_STRETCHES {
            let (cell, start) = (self.cell(at), at >> unit >> fold << fold << unit);
            let steps = match cells.last_to(cell) {
                Some(found) => cell - found,
                None => cell + self.cells - cells.last_to(self.cells - 1)?,
            };
            if Value::from(steps) <= (at >> unit) - (start >> unit) {
                let units = (at >> unit) - Value::from(steps);
                return Some((units << unit | ((1 << unit) - 1)).min(at));
            }
            at = start.checked_sub(1)?;
        }
        Some(at)
    }
}

/// Spreads the numbers of stretches over 62 bits: the last step of SplitMix64. Part of the format.
fn spread(stretch: Value) -> u64 {
    let mut x = narrow(stretch ^ stretch >> 61).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) >> 2
}
