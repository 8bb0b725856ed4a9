//! Bits of values: what SETBIT, BITFIELD, BITCOUNT, BITPOS and BITOP do to bytes.
//!
//! Bit 0 is the highest bit of the first byte. Bits behind the end of a value are zero.

use serde::{Deserialize, Serialize};

use super::reply::Reply;

/// A number of up to 64 bits in a value, and what to do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BitField {
    /// Its first bit.
    pub offset: u64,
    /// How many bits it has: 1 to 64, or 63 if it has no sign.
    pub bits: u8,
    /// Whether the first bit is a sign.
    pub signed: bool,
    /// What to do.
    pub action: FieldAction,
}

/// What to do with a [`BitField`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FieldAction {
    /// Answer it.
    Get,
    /// Write it and answer the one before.
    Set(i64, Overflow),
    /// Add to it and answer the sum.
    Add(i64, Overflow),
}

/// What becomes of a number that has more bits than its field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Overflow {
    /// The upper bits are lost.
    #[default]
    Wrap,
    /// It becomes the nearest one that fits.
    Saturate,
    /// The field stays as it is.
    Fail,
}

/// How BITOP combines values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BitOperator {
    /// Bits that all have.
    And,
    /// Bits that any has.
    Or,
    /// Bits that an odd number of them has.
    Xor,
    /// Bits that the only one lacks.
    Not,
}

/// A part of a value. Negative positions count from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The first byte or bit.
    pub start: i64,
    /// The last one; `None`: the last of the value.
    pub end: Option<i64>,
    /// Whether positions are those of bits.
    pub bits: bool,
}

impl BitField {
    /// How many bytes a value must have to hold the field.
    pub fn end(&self) -> usize {
        let bytes = self.offset.saturating_add(u64::from(self.bits)).div_ceil(8);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Whether it changes the value.
    pub fn writes(&self) -> bool {
        self.action != FieldAction::Get
    }

    fn range(&self) -> (i128, i128) {
        let all = 1_i128 << self.bits;
        if self.signed { (-all / 2, all / 2 - 1) } else { (0, all - 1) }
    }

    fn positions(&self) -> impl Iterator<Item = u64> + use<> {
        self.offset..self.offset + u64::from(self.bits)
    }

    /// Reads the field.
    pub(super) fn get(&self, value: &[u8]) -> i64 {
        let raw = self.positions().fold(0_i128, |raw, at| raw << 1 | i128::from(bit(value, at)));
        clamp(self.wrap(raw))
    }

    fn wrap(&self, number: i128) -> i128 {
        let all = 1_i128 << self.bits;
        let low = number.rem_euclid(all);
        if self.signed && low >= all / 2 { low - all } else { low }
    }

    /// Does what is to be done. `None`: the number does not fit. The value is long enough.
    pub(super) fn apply(&self, value: &mut [u8]) -> Option<i64> {
        let old = self.get(value);
        let (number, overflow) = match self.action {
            FieldAction::Get => return Some(old),
            FieldAction::Set(number, overflow) if self.signed => (i128::from(number), overflow),
            FieldAction::Set(number, overflow) => (i128::from(number.cast_unsigned()), overflow),
            FieldAction::Add(delta, overflow) => (i128::from(old) + i128::from(delta), overflow),
        };
        let (least, most) = self.range();
        let new = match overflow {
            _ if (least..=most).contains(&number) => number,
            Overflow::Wrap => self.wrap(number),
            Overflow::Saturate => number.clamp(least, most),
            Overflow::Fail => return None,
        };
        for (at, shift) in self.positions().zip((0..self.bits).rev()) {
            put_bit(value, at, new >> shift & 1 == 1);
        }
        Some(if let FieldAction::Set(..) = self.action { old } else { clamp(new) })
    }
}

fn clamp(number: i128) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn bit(value: &[u8], at: u64) -> bool {
    let byte = usize::try_from(at / 8).ok().and_then(|byte| value.get(byte)).copied().unwrap_or(0);
    byte >> (7 - at % 8) & 1 == 1
}

fn put_bit(value: &mut [u8], at: u64, on: bool) {
    if let Some(byte) = usize::try_from(at / 8).ok().and_then(|byte| value.get_mut(byte)) {
        let mask = 1 << (7 - at % 8);
        *byte = if on { *byte | mask } else { *byte & !mask };
    }
}

/// Positions that count from the end if they are negative, as a range of what there is.
pub(super) fn range_of(start: i64, end: i64, len: usize) -> std::ops::Range<usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    if start < 0 && end < 0 && start > end {
        return 0..0;
    }
    let position = |at: i64| if at < 0 { (at.saturating_add(len)).max(0) } else { at };
    let (start, end) = (position(start), position(end).min(len - 1));
    let place = |at: i64| usize::try_from(at).unwrap_or(0);
    if start > end { 0..0 } else { place(start)..place(end + 1) }
}

impl Span {
    /// The bits of a value that are in the span.
    fn of(&self, value: &[u8]) -> std::ops::Range<u64> {
        let unit = if self.bits { 1 } else { 8 };
        let range = range_of(self.start, self.end.unwrap_or(-1), value.len() * 8 / unit);
        (range.start * unit) as u64..(range.end * unit) as u64
    }

    /// Bytes that are in the span as a whole, and its bits before and behind them.
    fn parts<'a>(&self, value: &'a [u8]) -> (std::ops::Range<u64>, &'a [u8], std::ops::Range<u64>) {
        let bits = self.of(value);
        let (first, last) = (bits.start.div_ceil(8), bits.end / 8);
        if first >= last {
            return (bits.clone(), &[], bits.end..bits.end);
        }
        let place = |byte: u64| usize::try_from(byte).unwrap_or(usize::MAX);
        let bytes = value.get(place(first)..place(last)).unwrap_or_default();
        (bits.start..first * 8, bytes, last * 8..bits.end)
    }
}

/// How many bits of a span are set.
pub(super) fn count(value: &[u8], span: Span) -> u64 {
    let (before, bytes, behind) = span.parts(value);
    let some = before.chain(behind).filter(|at| bit(value, *at)).count() as u64;
    some + bytes.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

/// The first bit of a span that is set or not set. Behind a value whose end nobody named, zeros
/// follow.
pub(super) fn position(value: &[u8], set: bool, span: Span) -> i64 {
    let (mut before, bytes, mut behind) = span.parts(value);
    let start = before.end;
    let skipped = if set { 0 } else { 0xff };
    let found = before
        .find(|at| bit(value, *at) == set)
        .or_else(|| {
            let byte = bytes.iter().position(|byte| *byte != skipped)? as u64;
            (start + byte * 8..start + byte * 8 + 8).find(|at| bit(value, *at) == set)
        })
        .or_else(|| behind.find(|at| bit(value, *at) == set));
    match found {
        Some(at) => i64::try_from(at).unwrap_or(i64::MAX),
        None if !set && span.end.is_none() && !span.of(value).is_empty() => {
            i64::try_from(value.len() * 8).unwrap_or(i64::MAX)
        }
        None => -1,
    }
}

/// Puts a further value to those that were combined before.
pub(super) fn combine(so_far: &mut Vec<u8>, operator: BitOperator, value: &[u8], is_first: bool) {
    if is_first {
        so_far.extend(value.iter().map(|byte| if operator == BitOperator::Not { !byte } else { *byte }));
        return;
    }
    so_far.resize(so_far.len().max(value.len()), 0);
    let padded = value.iter().copied().chain(std::iter::repeat(0));
    for (byte, other) in so_far.iter_mut().zip(padded) {
        match operator {
            BitOperator::And | BitOperator::Not => *byte &= other,
            BitOperator::Or => *byte |= other,
            BitOperator::Xor => *byte ^= other,
        }
    }
}

/// What fields of bits answer: an array, or the only field.
pub(super) fn replies(fields: &[BitField], single: bool, mut field: impl FnMut(&BitField) -> Option<i64>) -> Reply {
    let mut replies = fields.iter().map(|it| field(it).map_or(Reply::Nil, Reply::Integer));
    if single { replies.next().unwrap_or(Reply::Nil) } else { Reply::Array(replies.collect()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slow_bits(value: &[u8], span: Span) -> Vec<(i64, bool)> {
        span.of(value).map(|at| (i64::try_from(at).unwrap(), bit(value, at))).collect()
    }

    proptest! {
        #[test]
        fn counts_and_positions_are_those_of_single_bits(
            value in prop::collection::vec(prop::sample::select(vec![0_u8, 255, 1, 128, 60]), 0..12),
            start in -100..100_i64, end in prop::option::of(-100..100_i64), bits in any::<bool>(), set in any::<bool>(),
        ) {
            let span = Span { start, end, bits };
            let all = slow_bits(&value, span);
            prop_assert_eq!(count(&value, span), all.iter().filter(|(_, on)| *on).count() as u64);
            let end = if !set && end.is_none() && !all.is_empty() { value.len() as i64 * 8 } else { -1 };
            let expected = all.iter().find(|(_, on)| *on == set).map_or(end, |(at, _)| *at);
            prop_assert_eq!(position(&value, set, span), expected);
        }

        #[test]
        fn a_field_holds_what_was_written_and_leaves_the_rest(
            value in prop::collection::vec(any::<u8>(), 17), offset in 0..64_u64, bits in 1..64_u8,
            signed in any::<bool>(), number in any::<i64>(), delta in any::<i64>(),
        ) {
            let field = |action| BitField { offset, bits, signed, action };
            let mut changed = value.clone();
            let before = field(FieldAction::Get).get(&value);
            let set = field(FieldAction::Set(number, Overflow::Wrap));
            prop_assert_eq!(set.apply(&mut changed), Some(before));
            let low = |number: i64| number.cast_unsigned() & ((1 << bits) - 1);
            prop_assert_eq!(low(set.get(&changed)), low(number));
            for at in (0..offset).chain(offset + u64::from(bits)..136) {
                prop_assert_eq!(bit(&changed, at), bit(&value, at), "bit {}", at);
            }
            let old = set.get(&changed);
            let sum = field(FieldAction::Add(delta, Overflow::Wrap)).apply(&mut changed).unwrap();
            prop_assert_eq!(low(sum), low(old.wrapping_add(delta)));
        }
    }

    #[test]
    fn numbers_that_do_not_fit_wrap_saturate_or_fail() {
        let check = |bits, signed, action: fn(Overflow) -> FieldAction, expected: [Option<i64>; 3]| {
            for (overflow, expected) in [Overflow::Wrap, Overflow::Saturate, Overflow::Fail].into_iter().zip(expected) {
                let field = BitField { offset: 0, bits, signed, action: action(overflow) };
                let mut value = vec![0; 8];
                let reply = field.apply(&mut value);
                assert_eq!(reply.map(|_| field.get(&value)), expected, "{field:?}");
            }
        };
        check(8, false, |it| FieldAction::Add(257, it), [Some(1), Some(255), None]);
        check(8, false, |it| FieldAction::Add(-1, it), [Some(255), Some(0), None]);
        check(8, true, |it| FieldAction::Set(200, it), [Some(-56), Some(127), None]);
        check(8, true, |it| FieldAction::Add(-129, it), [Some(127), Some(-128), None]);
        check(8, false, |it| FieldAction::Set(-1, it), [Some(255), Some(255), None]);
        check(64, true, |it| FieldAction::Set(i64::MIN, it), [Some(i64::MIN); 3]);
        check(63, false, |it| FieldAction::Set(i64::MAX, it), [Some(i64::MAX); 3]);
    }
}
