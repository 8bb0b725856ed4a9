//! Numbers of keys: an arithmetic code that keeps order. At each position, the symbols that occur
//! in some set of keys share an interval by how often they occur.
//!
//! A constant position takes nothing, a decimal digit a tenth, and a byte that few keys have a
//! sliver: keys that are spread evenly over what they can be have numbers that are. The end of a
//! key is a symbol before all bytes. Shares are powers of two, so that an even spread has one
//! alphabet.
//!
//! [`Alphabets::number`] takes any string to the least number of a string over the alphabets that
//! is not less. It never decreases with the string: no key between two strings has a number outside
//! theirs.

use tamis_base::format::coding::{Decoder, low_byte, put_bytes, put_varint};
use tamis_base::format::{Decoded, Malformed};

/// A number of a key: at most [`ROOT`].
pub(super) type Value = u128;
pub(super) const ROOT: Value = 1 << 110;
/// Intervals of symbols are cut from this many parts.
const PARTS_LOG2: u32 = 14;
/// A shorter interval is not divided: every symbol has a part of a longer one.
const SHORTEST: Value = 1 << (PARTS_LOG2 + 1);
/// Positions with an alphabet of their own. Later ones take every byte alike. Part of the format.
const MAX_POSITIONS: usize = 64;
/// Greatest binary logarithm of a symbol's weight.
const MAX_WEIGHT_LOG2: u8 = 12;

/// Symbols that occur at a position, and their shares.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Alphabet {
    bytes: [u64; 4],
    /// Symbols before the first byte of each word: the end of keys counts as one.
    before: [u16; 4],
    /// Whether a key ends here.
    end: bool,
    /// Binary logarithms of the symbols' weights.
    weights: Vec<u8>,
    /// Where the part of each symbol begins; after the last, all parts.
    starts: Vec<u16>,
}

impl Alphabet {
    /// Of these symbols; `None` if there are none, or the weights do not fit.
    fn new(bytes: [u64; 4], end: bool, weights: Vec<u8>) -> Option<Alphabet> {
        let (mut before, mut sum) = ([0; 4], u16::from(end));
        for (before, word) in before.iter_mut().zip(bytes) {
            *before = sum;
            sum += u16::from(low_byte(word.count_ones().into()));
        }
        let total: u64 = weights.iter().map(|&weight| 1 << weight.min(MAX_WEIGHT_LOG2)).sum();
        if sum == 0 || weights.len() != sum.into() || total > 1 << PARTS_LOG2 {
            return None;
        }
        let (mut starts, mut weight_before) = (Vec::with_capacity(weights.len() + 1), 0u64);
        for &weight in &weights {
            starts.push(u16::try_from((weight_before << PARTS_LOG2) / total).ok()?);
            weight_before += 1 << weight.min(MAX_WEIGHT_LOG2);
        }
        starts.push(1 << PARTS_LOG2);
        Some(Alphabet { bytes, before, end, weights, starts })
    }

    /// Symbols with these counts: the end of keys, then the bytes.
    fn of_counts(counts: &[u32; 257]) -> Option<Alphabet> {
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
        Alphabet::new(bytes, counts[0] > 0, weights)
    }

    /// Every byte, and the end of keys, alike; or the end only.
    fn uniform(bytes: [u64; 4]) -> Alphabet {
        let count = 1 + bytes.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        let made = Alphabet::new(bytes, true, vec![0; count]);
        made.unwrap_or_else(|| unreachable!("257 weights of 1 fit"))
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
        let mut left = symbol.checked_sub(self.end.into())?;
        for (&word, high) in self.bytes.iter().zip(0u8..) {
            let here = word.count_ones() as usize;
            if left < here {
                let word = (0..left).fold(word, |word, _| word & (word - 1));
                return Some(high * 64 + low_byte(word.trailing_zeros().into()));
            }
            left -= here;
        }
        None
    }

    /// Where the interval of a symbol begins, of `width` in all.
    #[inline]
    fn start(&self, symbol: usize, width: Value) -> Value {
        (width * Value::from(self.starts[symbol])) >> PARTS_LOG2
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let has = |byte: u8| self.bytes[usize::from(byte / 64)] >> (byte % 64) & 1 == 1;
        let first = |&byte: &u8| has(byte) && (byte == 0 || !has(byte - 1));
        let firsts: Vec<u8> = (0..=255).filter(first).collect();
        let is_even = self.weights.iter().all(|weight| *weight == self.weights[0]);
        put_varint(out, (firsts.len() as u64) << 2 | u64::from(is_even) << 1 | u64::from(self.end));
        for first in firsts {
            let last = (first..=255).take_while(|&byte| has(byte)).last().unwrap_or(first);
            out.extend([first, last]);
        }
        let weights = if is_even { &self.weights[..1] } else { &self.weights[..] };
        out.extend(weights.chunks(2).map(|pair| pair[0] | pair.get(1).map_or(0, |weight| weight << 4)));
    }

    fn decode(from: &mut Decoder<'_>) -> Decoded<Alphabet> {
        let head = from.varint()?;
        let (mut bytes, mut count) = ([0u64; 4], usize::from(head & 1 == 1));
        // At most 128 runs fit between 256 bytes.
        for _ in 0..(head >> 2).min(128) {
            let &[first, last] = from.array()?;
            for byte in first..=last {
                bytes[usize::from(byte / 64)] |= 1 << (byte % 64);
            }
        }
        count += bytes.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        let is_even = head & 2 == 2;
        let packed = from.take(if is_even { 1 } else { count.div_ceil(2) })?;
        let weight = |i: usize| packed[i / 2] >> (i % 2 * 4) & 15;
        let weights = (0..count).map(|i| weight(if is_even { 0 } else { i })).collect();
        Alphabet::new(bytes, head & 1 == 1, weights).ok_or(Malformed("an alphabet's weights do not fit its symbols"))
    }
}

/// The alphabets of a set of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Alphabets {
    /// What all keys begin with: positions count from its end.
    prefix: Vec<u8>,
    distinct: Vec<Alphabet>,
    /// Index into `distinct` of each position's alphabet.
    positions: Vec<u8>,
    /// Of positions beyond `positions`.
    rest: Alphabet,
}

/// The number of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) value: Value,
    /// Whether keys less than the string have lesser numbers. Otherwise they may have the string's.
    pub(super) decided: bool,
}

impl Alphabets {
    /// The alphabets of `keys`, all of which begin with `prefix`.
    pub(super) fn of<'k>(prefix: &[u8], keys: impl Iterator<Item = &'k [u8]>) -> Alphabets {
        let (mut counts, mut ends, mut longest) = (Vec::<[u32; 257]>::new(), [0u32; MAX_POSITIONS + 1], 0);
        for key in keys {
            let key = key.get(prefix.len()..).unwrap_or_default();
            let head = &key[..key.len().min(MAX_POSITIONS)];
            if counts.len() < head.len() {
                counts.resize(head.len(), [0; 257]);
            }
            for (counts, byte) in counts.iter_mut().zip(head) {
                counts[usize::from(*byte) + 1] += 1;
            }
            ends[head.len()] += 1;
            longest = longest.max(key.len());
        }
        let (mut distinct, mut positions) = (Vec::new(), Vec::new());
        for (mut counts, ends) in counts.into_iter().zip(ends) {
            counts[0] = ends;
            let Some(alphabet) = Alphabet::of_counts(&counts) else { break };
            let at = distinct.iter().position(|other| *other == alphabet).unwrap_or_else(|| {
                distinct.push(alphabet);
                distinct.len() - 1
            });
            positions.push(low_byte(at as u64));
        }
        let is_whole = positions.len() == longest;
        let rest = Alphabet::uniform(if is_whole { [0; 4] } else { [!0; 4] });
        Alphabets { prefix: prefix.to_vec(), distinct, positions, rest }
    }

    #[inline]
    fn at(&self, position: usize) -> &Alphabet {
        self.positions.get(position).and_then(|&i| self.distinct.get(usize::from(i))).unwrap_or(&self.rest)
    }

    /// The number of `key`, whose first `skip` bytes are those of all strings whose numbers are
    /// compared.
    #[inline]
    pub(super) fn number(&self, skip: usize, key: &[u8]) -> Number {
        if let Some(prefix) = self.prefix.get(skip..)
            && !prefix.is_empty()
        {
            let key = key.get(skip..).unwrap_or_default();
            let head = &key[..key.len().min(prefix.len())];
            if head != prefix {
                // Before or after all keys.
                return Number { value: if head < prefix { 0 } else { ROOT }, decided: true };
            }
        }
        let key = key.get(self.prefix.len()..).unwrap_or_default();
        let (mut value, mut width) = (0, ROOT);
        for position in skip.saturating_sub(self.prefix.len()).. {
            if width < SHORTEST {
                break;
            }
            let alphabet = self.at(position);
            let Some(&byte) = key.get(position) else {
                return Number { value, decided: true };
            };
            let (symbol, is_symbol) = alphabet.symbol(byte);
            let start = alphabet.start(symbol, width);
            value += start;
            if !is_symbol {
                // The string lies between two symbols, or after all.
                return Number { value, decided: true };
            }
            width = alphabet.start(symbol + 1, width) - start;
        }
        Number { value, decided: false }
    }

    /// Appends a string, but for its first `skip` bytes, that is at most every key with a number
    /// from `value` on. If `above`, one that exceeds the keys with lesser numbers. `false` if there
    /// is none.
    pub(super) fn string(&self, skip: usize, value: Value, above: bool, out: &mut Vec<u8>) -> bool {
        let (len, mut value) = (out.len(), value);
        loop {
            if value >= ROOT {
                return false;
            }
            out.truncate(len);
            out.extend_from_slice(self.prefix.get(skip..).unwrap_or_default());
            let (mut low, mut width) = (0, ROOT);
            for position in skip.saturating_sub(self.prefix.len()).. {
                if width < SHORTEST {
                    break;
                }
                let alphabet = self.at(position);
                let last = alphabet.weights.len() - 1;
                // The last symbol that begins at or before the number.
                let symbol = first_without(last, |i| low + alphabet.start(i + 1, width) <= value);
                let start = alphabet.start(symbol, width);
                (low, width) = (low + start, alphabet.start(symbol + 1, width) - start);
                match alphabet.byte(symbol) {
                    Some(byte) => out.push(byte),
                    None => {
                        // A key that ends here may equal the string, and have a lesser number.
                        if above && low < value {
                            out.push(0);
                        }
                        return true;
                    }
                }
            }
            if !above || low == value {
                return true;
            }
            // Keys of the interval may have lesser numbers, and exceed the string: take the next.
            value = low + width;
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.prefix);
        put_varint(out, self.distinct.len() as u64);
        self.distinct.iter().for_each(|alphabet| alphabet.encode(out));
        self.rest.encode(out);
        put_bytes(out, &self.positions);
    }

    pub(super) fn decode(from: &mut Decoder<'_>) -> Decoded<Alphabets> {
        let prefix = from.bytes()?.to_vec();
        let count = from.varint()?;
        if count > MAX_POSITIONS as u64 {
            return Err(Malformed("more alphabets than positions"));
        }
        let distinct = (0..count).map(|_| Alphabet::decode(from)).collect::<Decoded<Vec<_>>>()?;
        let rest = Alphabet::decode(from)?;
        // Others would have numbers of any length.
        if rest != Alphabet::uniform([0; 4]) && rest != Alphabet::uniform([!0; 4]) {
            return Err(Malformed("the last alphabet takes neither all bytes nor none"));
        }
        let positions = from.bytes()?.to_vec();
        if positions.len() > MAX_POSITIONS {
            return Err(Malformed("more positions than a code has"));
        }
        Ok(Alphabets { prefix, distinct, positions, rest })
    }
}

/// The first of the numbers below `end` for which `holds` does not, or `end`.
fn first_without(end: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low.midpoint(high);
        if holds(middle) { low = middle + 1 } else { high = middle }
    }
    low
}
