//! Numbers of keys: an arithmetic code that keeps order. At each position, the symbols that occur
//! in some set of keys share an interval by how often they occur.
//!
//! A constant position takes nothing, a decimal digit a tenth, and a byte that few keys have a
//! sliver: keys that are spread evenly over what they can be have numbers that are. The end of a
//! key is a symbol before all bytes. Shares are powers of two, so that an even spread has one
//! alphabet.
//!
//! [`Alphabets::number`] takes any string to the least number of a string over the alphabets that
//! is not less, and [`Alphabets::below`] to the greatest of one that is less. They never decrease
//! with the string: every key between two strings has a number between these. A number may stop
//! where intervals are shorter than some length; this holds among numbers that stop at one length,
//! and have one [`Precision`].

use std::cmp::Ordering;
use std::ops::{Add, Range, Sub};

use tamis_base::format::coding::{Decoder, low_byte, put_bytes, put_varint};
use tamis_base::format::{Decoded, Malformed};

/// A number of a key: at most the root of its precision.
pub(super) type Value = u128;

/// How fine numbers are. Part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    /// 62 bits: half of the work.
    Narrow,
    /// 110 bits.
    Wide,
}

/// Integers by which numbers of one precision are computed.
pub(super) trait Integer: Copy + Ord + Default + Add<Output = Self> + Sub<Output = Self> {
    /// Length of the interval of all strings.
    const ROOT: Self;

    fn of(value: Value) -> Self;

    fn value(self) -> Value;

    /// Where part `part` of an interval of this length begins.
    fn cut(self, part: u16) -> Self;

    /// The part of an interval of `width` that `self` is in; one more or less, by rounding.
    fn part(self, width: Self) -> u64 {
        let (inside, width) = (self.value(), width.value());
        let shift = (Value::BITS - width.leading_zeros()).saturating_sub(32);
        (low_word(inside >> shift) << PARTS_LOG2) / low_word(width >> shift).max(1)
    }
}

impl Integer for u64 {
    const ROOT: u64 = 1 << 62;

    #[inline]
    fn of(value: Value) -> u64 {
        low_word(value)
    }

    #[inline]
    fn value(self) -> Value {
        self.into()
    }

    #[inline]
    fn cut(self, part: u16) -> u64 {
        low_word((Value::from(self) * Value::from(part)) >> PARTS_LOG2)
    }
}

impl Integer for u128 {
    const ROOT: u128 = WIDE_ROOT;

    #[inline]
    fn of(value: Value) -> u128 {
        value
    }

    #[inline]
    fn value(self) -> Value {
        self
    }

    #[inline]
    fn cut(self, part: u16) -> u128 {
        (self * u128::from(part)) >> PARTS_LOG2
    }
}

/// The low 64 bits.
#[expect(clippy::cast_possible_truncation, reason = "meant")]
#[inline]
pub(super) fn low_word(value: Value) -> u64 {
    value as u64
}

/// Length of the interval of all strings, of wide numbers.
pub(super) const WIDE_ROOT: Value = 1 << 110;
/// Intervals of symbols are cut from this many parts.
pub(super) const PARTS_LOG2: u32 = 14;
/// A shorter interval is never divided: every symbol has a part of a longer one.
pub(super) const SHORTEST: Value = 1 << (PARTS_LOG2 + 1);
/// Positions with an alphabet of their own. Later ones take every byte alike. Part of the format.
pub(super) const MAX_POSITIONS: usize = 64;
/// Greatest binary logarithm of a symbol's weight.
const MAX_WEIGHT_LOG2: u8 = 12;

/// Symbols that occur at a position, and the binary logarithms of their weights: an alphabet as it
/// is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Symbols {
    bytes: [u64; 4],
    /// Whether a key ends here.
    end: bool,
    weights: Vec<u8>,
}

impl Symbols {
    /// Symbols with these counts: the end of keys, then the bytes. There must be one.
    fn of_counts(counts: &[u32; 257]) -> Symbols {
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        let (mut bytes, mut weights) = ([0u64; 4], Vec::new());
        for (symbol, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            if let Some(byte) = symbol.checked_sub(1) {
                bytes[byte / 64] |= 1 << (byte % 64);
            }
            // Rounded in the logarithm, so that an even spread with its noise has one weight.
            let share = u64::from(count) * 4096 / total;
            weights.push(low_byte((share + share / 2).max(1).ilog2().into()));
        }
        Symbols { bytes, end: counts[0] > 0, weights }
    }

    fn are_even(&self) -> bool {
        self.weights.windows(2).all(|pair| pair[0] == pair[1])
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let has = |byte: u8| self.bytes[usize::from(byte / 64)] >> (byte % 64) & 1 == 1;
        let first = |&byte: &u8| has(byte) && (byte == 0 || !has(byte - 1));
        let firsts: Vec<u8> = (0..=255).filter(first).collect();
        let is_even = self.are_even();
        put_varint(out, (firsts.len() as u64) << 2 | u64::from(is_even) << 1 | u64::from(self.end));
        for first in firsts {
            let last = (first..=255).take_while(|&byte| has(byte)).last().unwrap_or(first);
            out.extend([first, last]);
        }
        let weights = if is_even { &self.weights[..1] } else { &self.weights[..] };
        out.extend(weights.chunks(2).map(|pair| pair[0] | pair.get(1).map_or(0, |weight| weight << 4)));
    }

    fn decode(from: &mut Decoder<'_>) -> Decoded<Symbols> {
        let head = from.varint()?;
        let mut bytes = [0u64; 4];
        // At most 128 runs fit between 256 bytes.
        for _ in 0..(head >> 2).min(128) {
            let &[first, last] = from.array()?;
            for byte in first..=last {
                bytes[usize::from(byte / 64)] |= 1 << (byte % 64);
            }
        }
        let end = head & 1 == 1;
        let count = usize::from(end) + bytes.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        let is_even = head & 2 == 2;
        let packed = from.take(if is_even { 1 } else { count.div_ceil(2) })?;
        let weight = |i: usize| packed[i / 2] >> (i % 2 * 4) & 15;
        let weights = (0..count).map(|i| weight(if is_even { 0 } else { i })).collect();
        Ok(Symbols { bytes, end, weights })
    }
}

/// An alphabet to compute with. It takes no memory of its own if its symbols are even.
#[derive(Debug)]
pub(super) struct Alphabet {
    bytes: [u64; 4],
    /// Symbols before the first byte of each word: the end of keys counts as one.
    before: [u8; 4],
    end: bool,
    parts: Parts,
}

/// Where the parts of symbols begin.
#[derive(Debug)]
enum Parts {
    /// All parts are those of this byte.
    One(u8),
    /// The parts of so many symbols have one length; the second is [`step`] of the first.
    Even(u16, u32),
    /// The part of each symbol; after the last, all parts.
    Uneven(Box<[u16]>),
}

/// `i * step(count) >> 16` is where the part of symbol `i` of `count` even ones begins.
const fn step(count: u32) -> u32 {
    (1u32 << (PARTS_LOG2 + 16)).div_ceil(count)
}

/// Of positions beyond those with an alphabet: no byte, or all bytes alike.
static ONLY_END: Alphabet = Alphabet { bytes: [0; 4], before: [1; 4], end: true, parts: Parts::Even(1, step(1)) };
static ALL: Alphabet =
    Alphabet { bytes: [!0; 4], before: [1, 65, 129, 193], end: true, parts: Parts::Even(257, step(257)) };

impl Alphabet {
    fn new(symbols: &Symbols) -> Decoded<Alphabet> {
        let &Symbols { bytes, end, ref weights } = symbols;
        let (mut before, mut sum) = ([0; 4], u64::from(end));
        for (before, word) in before.iter_mut().zip(bytes) {
            *before = low_byte(sum);
            sum += u64::from(word.count_ones());
        }
        let weight = |&weight: &u8| 1u32 << weight.min(MAX_WEIGHT_LOG2);
        let total: u32 = weights.iter().map(weight).sum();
        let count = u16::try_from(weights.len()).unwrap_or(0);
        if sum != count.into() || sum == 0 || total > 1 << PARTS_LOG2 {
            return Err(Malformed("an alphabet's weights do not fit its symbols"));
        }
        let lone = bytes.iter().zip(0u8..).find(|(word, _)| **word != 0);
        let parts = match lone {
            Some((word, high)) if count == 1 => Parts::One(high * 64 + low_byte(word.trailing_zeros().into())),
            _ if symbols.are_even() => Parts::Even(count, step(count.into())),
            _ => {
                let ends = weights.iter().scan(0, |sum, log2| {
                    *sum += weight(log2);
                    u16::try_from((*sum << PARTS_LOG2) / total).ok()
                });
                Parts::Uneven(std::iter::once(0).chain(ends).collect())
            }
        };
        Ok(Alphabet { bytes, before, end, parts })
    }

    /// The first symbol that is at least `byte`, and whether it is `byte`.
    #[inline]
    fn symbol(&self, byte: u8) -> (usize, bool) {
        let (word, bit) = (usize::from(byte / 64), byte % 64);
        let below = self.bytes[word] & ((1 << bit) - 1);
        (usize::from(self.before[word]) + below.count_ones() as usize, self.bytes[word] >> bit & 1 == 1)
    }

    /// The byte of a symbol; `None` for the end.
    fn byte(&self, symbol: usize) -> Option<u8> {
        if self.is_end(symbol) {
            return None;
        }
        let at = self.before.iter().rposition(|&before| usize::from(before) <= symbol)?;
        let (mut word, mut bit, mut left) = (self.bytes[at], 0, symbol - usize::from(self.before[at]));
        // Symbols are mostly a few runs of bytes.
        while word != 0 {
            let zeros = word.trailing_zeros();
            (word, bit) = (word >> zeros, bit + zeros);
            let ones = word.trailing_ones();
            if left < ones as usize {
                return Some(low_byte((64 * at + left) as u64 + u64::from(bit)));
            }
            left -= ones as usize;
            (word, bit) = (word.checked_shr(ones).unwrap_or(0), bit + ones);
        }
        None
    }

    /// Whether a symbol is the end of keys.
    fn is_end(&self, symbol: usize) -> bool {
        symbol < usize::from(self.end)
    }

    /// Number of symbols.
    fn len(&self) -> usize {
        match &self.parts {
            Parts::One(_) => 1,
            Parts::Even(count, _) => (*count).into(),
            Parts::Uneven(starts) => starts.len() - 1,
        }
    }

    /// Where the part of a symbol begins; for the number of symbols, all parts.
    #[inline]
    fn part(&self, symbol: usize) -> u16 {
        let even = |step: u32| u16::try_from((low_symbol(symbol) * step) >> 16).unwrap_or(1 << PARTS_LOG2);
        match &self.parts {
            Parts::One(_) => even(step(1)),
            Parts::Even(_, step) => even(*step),
            Parts::Uneven(starts) => starts.get(symbol).copied().unwrap_or(1 << PARTS_LOG2),
        }
    }

    /// Where the interval of a symbol begins, of `width` in all.
    #[inline]
    fn start<N: Integer>(&self, symbol: usize, width: N) -> N {
        width.cut(self.part(symbol))
    }

    /// The last symbol whose interval, of `width` in all, begins at or before `inside`.
    #[inline]
    fn symbol_at<N: Integer>(&self, inside: N, width: N) -> usize {
        let (part, last) = (inside.part(width), self.len() - 1);
        let guess = match &self.parts {
            Parts::One(_) => 0,
            Parts::Even(count, _) => ((part * u64::from(*count)) >> PARTS_LOG2) as usize,
            Parts::Uneven(starts) => starts.partition_point(|&start| u64::from(start) <= part).saturating_sub(1),
        };
        let mut symbol = guess.min(last);
        while symbol > 0 && self.start(symbol, width) > inside {
            symbol -= 1;
        }
        while symbol < last && self.start(symbol + 1, width) <= inside {
            symbol += 1;
        }
        symbol
    }

    /// Where the parts of a byte that is a symbol begin and end.
    pub(super) fn parts_of(&self, byte: u8) -> Option<(u16, u16)> {
        let (symbol, is_symbol) = self.symbol(byte);
        is_symbol.then(|| (self.part(symbol), self.part(symbol + 1)))
    }

    /// Whether all keys have the same byte here.
    pub(super) fn is_constant(&self) -> bool {
        matches!(self.parts, Parts::One(_))
    }
}

/// At most the 257 symbols that there are.
#[inline]
fn low_symbol(symbol: usize) -> u32 {
    u32::try_from(symbol).map_or(257, |symbol| symbol.min(257))
}

/// The numbers of the strings with a common beginning.
#[derive(Clone, Copy)]
struct Interval<N> {
    low: N,
    width: N,
}

impl<N: Integer> Interval<N> {
    fn range(self) -> Range<Value> {
        self.low.value()..(self.low + self.width).value()
    }

    /// The part of it that belongs to a symbol.
    #[inline]
    fn of(self, alphabet: &Alphabet, symbol: usize) -> Interval<N> {
        let start = alphabet.start(symbol, self.width);
        Interval { low: self.low + start, width: alphabet.start(symbol + 1, self.width) - start }
    }
}

/// The alphabets of a set of keys.
#[derive(Debug)]
pub(super) struct Alphabets {
    /// What all keys begin with: positions count from its end.
    prefix: Box<[u8]>,
    distinct: Box<[Alphabet]>,
    /// Index into `distinct` of each position's alphabet.
    positions: Box<[u8]>,
    /// Whether keys have more bytes than positions.
    is_open: bool,
}

impl Alphabets {
    /// Appends the alphabets of keys that begin with `prefix`: `counts` of symbols at each position
    /// after it, and whether some keys have more bytes.
    pub(super) fn write(prefix: &[u8], counts: &[[u32; 257]], is_open: bool, out: &mut Vec<u8>) {
        let (mut distinct, mut positions) = (Vec::new(), Vec::new());
        for symbols in counts.iter().map(Symbols::of_counts) {
            let at = distinct.iter().position(|other| *other == symbols).unwrap_or_else(|| {
                distinct.push(symbols);
                distinct.len() - 1
            });
            positions.push(low_byte(at as u64));
        }
        put_bytes(out, prefix);
        put_varint(out, (distinct.len() as u64) << 1 | u64::from(is_open));
        distinct.iter().for_each(|symbols| symbols.encode(out));
        put_bytes(out, &positions);
    }

    /// What [`write`](Alphabets::write) appended.
    pub(super) fn decode(from: &mut Decoder<'_>) -> Decoded<Alphabets> {
        let prefix = from.bytes()?;
        let head = from.varint()?;
        if head >> 1 > MAX_POSITIONS as u64 {
            return Err(Malformed("there are more alphabets than positions"));
        }
        let distinct = (0..head >> 1).map(|_| Alphabet::new(&Symbols::decode(from)?)).collect::<Decoded<Box<[_]>>>()?;
        let positions = from.bytes()?;
        if positions.len() > MAX_POSITIONS || positions.iter().any(|&i| usize::from(i) >= distinct.len()) {
            return Err(Malformed("the positions do not fit the alphabets"));
        }
        Ok(Alphabets { prefix: prefix.into(), distinct, positions: positions.into(), is_open: head & 1 == 1 })
    }

    /// Bytes of memory beside the struct itself.
    pub(super) fn memory(&self) -> usize {
        let parts = |alphabet: &Alphabet| match &alphabet.parts {
            Parts::Uneven(starts) => size_of_val(&**starts),
            _ => 0,
        };
        let parts = self.distinct.iter().map(parts).sum::<usize>();
        self.prefix.len() + self.positions.len() + size_of_val(&*self.distinct) + parts
    }

    pub(super) fn prefix_len(&self) -> usize {
        self.prefix.len()
    }

    pub(super) fn distinct(&self) -> &[Alphabet] {
        &self.distinct
    }

    /// Indices into [`distinct`](Alphabets::distinct).
    pub(super) fn positions(&self) -> &[u8] {
        &self.positions
    }

    /// That of the positions beyond [`positions`](Alphabets::positions).
    pub(super) fn rest(&self) -> &'static Alphabet {
        if self.is_open { &ALL } else { &ONLY_END }
    }

    #[inline]
    fn at(&self, position: usize) -> &Alphabet {
        self.positions.get(position).and_then(|&i| self.distinct.get(usize::from(i))).unwrap_or(self.rest())
    }

    /// The number of `key`, whose first `skip` bytes are those of all strings whose numbers are
    /// compared. It stops at intervals below `shortest`, which is at least [`SHORTEST`].
    #[inline]
    pub(super) fn number(&self, skip: usize, key: &[u8], shortest: Value, precision: Precision) -> Value {
        match precision {
            Precision::Narrow => self.number_by::<u64>(skip, key, shortest).value(),
            Precision::Wide => self.number_by::<u128>(skip, key, shortest),
        }
    }

    /// The interval of the greatest strings over the alphabets that are less than `until`, which is
    /// as the key of [`number`](Alphabets::number): their number is its start. `None` if there is
    /// no such string.
    #[inline]
    pub(super) fn below(
        &self,
        skip: usize,
        until: &[u8],
        shortest: Value,
        precision: Precision,
    ) -> Option<Range<Value>> {
        match precision {
            Precision::Narrow => self.below_by::<u64>(skip, until, shortest).map(Interval::range),
            Precision::Wide => self.below_by::<u128>(skip, until, shortest).map(Interval::range),
        }
    }

    /// How the rest of what all keys begin with compares to that of `key`, and where the positions
    /// with a number of `key` begin.
    fn compare_prefix(&self, skip: usize, key: &[u8]) -> (Ordering, usize) {
        let position = skip.saturating_sub(self.prefix.len());
        match self.prefix.get(skip..) {
            // A comparison of nothing at a dangling pointer is slow on some processors.
            None | Some([]) => (Ordering::Equal, position),
            Some(prefix) => {
                let key = key.get(skip..).unwrap_or_default();
                (prefix.cmp(&key[..key.len().min(prefix.len())]), position)
            }
        }
    }

    fn number_by<N: Integer>(&self, skip: usize, key: &[u8], shortest: Value) -> N {
        let (order, mut position) = self.compare_prefix(skip, key);
        match order {
            Ordering::Less => return N::ROOT,
            Ordering::Equal => (),
            Ordering::Greater => return N::default(),
        }
        let key = key.get(self.prefix.len()..).unwrap_or_default();
        let (mut value, mut width, shortest) = (N::default(), N::ROOT, N::of(shortest));
        while width >= shortest {
            let alphabet = self.at(position);
            let Some(&byte) = key.get(position) else { break };
            position += 1;
            if let Parts::One(constant) = alphabet.parts {
                match byte.cmp(&constant) {
                    Ordering::Less => break,
                    Ordering::Equal => continue,
                    Ordering::Greater => return value + width,
                }
            }
            let (symbol, is_symbol) = alphabet.symbol(byte);
            let start = alphabet.start(symbol, width);
            value = value + start;
            if !is_symbol {
                // The string lies between two symbols, or after all.
                break;
            }
            width = alphabet.start(symbol + 1, width) - start;
        }
        value
    }

    fn below_by<N: Integer>(&self, skip: usize, until: &[u8], shortest: Value) -> Option<Interval<N>> {
        let (order, mut position) = self.compare_prefix(skip, until);
        let mut all = Interval { low: N::default(), width: N::ROOT };
        let shortest = N::of(shortest);
        match order {
            Ordering::Less => return Some(self.greatest(position, all, shortest)),
            Ordering::Equal => (),
            Ordering::Greater => return None,
        }
        let until = until.get(self.prefix.len()..).unwrap_or_default();
        // The last position at which another symbol is less: that symbol, and the interval of all.
        let mut lesser = None;
        while all.width >= shortest {
            let alphabet = self.at(position);
            let Some(&byte) = until.get(position) else { break };
            position += 1;
            if let Parts::One(constant) = alphabet.parts {
                match byte.cmp(&constant) {
                    Ordering::Less => break,
                    Ordering::Equal => continue,
                    Ordering::Greater => return Some(self.greatest(position, all, shortest)),
                }
            }
            let (symbol, is_symbol) = alphabet.symbol(byte);
            if let Some(before) = symbol.checked_sub(1) {
                lesser = Some((position, before, all));
            }
            if !is_symbol {
                break;
            }
            all = all.of(alphabet, symbol);
        }
        if all.width < shortest {
            // Strings that are less have this number, too.
            return Some(all);
        }
        let (position, symbol, all) = lesser?;
        let alphabet = self.at(position - 1);
        let interval = all.of(alphabet, symbol);
        Some(if alphabet.is_end(symbol) { interval } else { self.greatest(position, interval, shortest) })
    }

    /// The interval of the greatest strings of one whose strings share what is before `position`.
    fn greatest<N: Integer>(&self, position: usize, mut all: Interval<N>, shortest: N) -> Interval<N> {
        for position in position.. {
            let alphabet = self.at(position);
            let last = alphabet.len() - 1;
            if all.width < shortest || alphabet.is_end(last) {
                break;
            }
            if !alphabet.is_constant() {
                all = all.of(alphabet, last);
            }
        }
        all
    }

    /// Ends a string with a greater symbol at the last position that has one, given its length
    /// before that and the symbol, and then with the least that there are. `false` if there is no
    /// greater one.
    fn follow(&self, greater: Option<(usize, usize, usize)>, out: &mut Vec<u8>) -> bool {
        let Some((len, position, symbol)) = greater else { return false };
        out.truncate(len);
        out.extend(self.at(position).byte(symbol));
        let rest = self.positions.get(position + 1..).unwrap_or_default();
        out.extend(rest.iter().map_while(|&i| self.distinct.get(usize::from(i))?.byte(0)));
        true
    }

    /// Appends a string, but for its first `skip` bytes, that is at most every key with a number
    /// from `value` on. If `above`, one that exceeds the keys with lesser numbers. `false` if there
    /// is none. Numbers stop at intervals below `shortest`.
    pub(super) fn string(
        &self,
        skip: usize,
        value: Value,
        above: bool,
        (shortest, precision): (Value, Precision),
        out: &mut Vec<u8>,
    ) -> bool {
        match precision {
            Precision::Narrow => {
                value < <u64 as Integer>::ROOT.into() && self.string_by::<u64>(skip, value, above, shortest, out)
            }
            Precision::Wide => self.string_by::<u128>(skip, value, above, shortest, out),
        }
    }

    fn string_by<N: Integer>(
        &self,
        skip: usize,
        value: Value,
        above: bool,
        shortest: Value,
        out: &mut Vec<u8>,
    ) -> bool {
        let (len, mut value, shortest) = (out.len(), N::of(value), N::of(shortest));
        loop {
            if value >= N::ROOT {
                return false;
            }
            out.truncate(len);
            out.extend_from_slice(self.prefix.get(skip..).unwrap_or_default());
            let mut all = Interval { low: N::default(), width: N::ROOT };
            // The last position with a greater symbol: the string's length, and that symbol.
            let mut greater = None;
            for position in skip.saturating_sub(self.prefix.len()).. {
                if all.width < shortest {
                    break;
                }
                let alphabet = self.at(position);
                if let Parts::One(constant) = alphabet.parts {
                    out.push(constant);
                    continue;
                }
                let symbol = alphabet.symbol_at(value - all.low, all.width);
                all = all.of(alphabet, symbol);
                if symbol + 1 < alphabet.len() {
                    greater = Some((out.len(), position, symbol + 1));
                }
                let byte = alphabet.byte(symbol);
                if byte.is_none() && (above || all.low == value) {
                    // The key that equals the string may have a lesser number.
                    if all.low < value {
                        out.push(0);
                    }
                    return true;
                }
                let Some(byte) = byte else {
                    // The key that equals the string has a lesser number: the next string that
                    // there is. Of dense keys, it is often the key sought.
                    return self.follow(greater, out);
                };
                out.push(byte);
            }
            if !above || all.low == value {
                return true;
            }
            // Keys of the interval may have lesser numbers, and exceed the string: take the next.
            value = all.low + all.width;
        }
    }
}
