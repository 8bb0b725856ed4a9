//! The size of a stand-alone filter: its layout, probes and lines, from a number of keys and a
//! rate, or from bits.
//!
//! The textbook takes m = ⌈−n ln p / (ln 2)²⌉ bits and k = m/n · ln 2 probes for n keys at
//! rate p. Sizing starts there, and adds whole lines until the model of the layout keeps the rate.
//! Logarithms may differ in their last digit between platforms, and with them, rarely, the number
//! of lines. To make equal filters on two machines, size them by bits.

use std::f64::consts::LN_2;
use std::fmt;

use super::layout::Layout;
use super::line::LINE_BITS;
use super::sizing::{MAX_LINES, MAX_PROBES, clamp_millibits, compensated_millibits, lines_for, probe_count};
use super::split::Groups;
use tamis_base::error::{Error, Result};
use tamis_base::format::coding::low_byte;

/// Most probes that [`Groups::for_probes`] makes for the split layout.
const MAX_SPLIT_PROBES: u32 = 25;

/// Rate of the split layout, relative to its model. The model takes the bits drawn into a line as
/// independent; lines vary a little more than that. Filters of a million keys, at 1 % and 0.1 %
/// under three hashes, were 0.3 to 0.7 % above the model.
pub(super) const SPLIT_EXCESS: f64 = 1.005;

/// Where a filter puts the bits of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BloomLayout {
    /// In groups of at most four, each group within 64 bytes: most absent keys touch one cache
    /// line.
    #[default]
    Split,
    /// Anywhere, as in the textbook; for comparison.
    Standard,
}

impl BloomLayout {
    fn max_probes(self) -> u32 {
        match self {
            BloomLayout::Split => MAX_SPLIT_PROBES,
            BloomLayout::Standard => MAX_PROBES,
        }
    }

    fn with_probes(self, k: u32) -> Layout {
        let k = k.clamp(1, self.max_probes());
        match self {
            BloomLayout::Split => Layout::Split(Groups::for_probes(k)),
            BloomLayout::Standard => Layout::Standard { probes: low_byte(k.into()) },
        }
    }
}

impl fmt::Display for BloomLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            BloomLayout::Split => "split",
            BloomLayout::Standard => "standard",
        })
    }
}

/// The size of a Bloom filter, before it is made: how many bits and probes it has, and which rate
/// to expect. [`BloomFilter::with_hasher`](crate::BloomFilter::with_hasher) makes it.
///
/// ```
/// use tamis_filter::{BloomLayout, BloomSize};
///
/// // From a rate to bits …
/// let size = BloomSize::for_rate(BloomLayout::Split, 1_000_000, 0.01)?;
/// assert_eq!((size.bits(), size.k(), size.bytes()), (9_660_416, 7, 1_207_552));
/// // … and from bits to a rate.
/// let size = BloomSize::for_bits(BloomLayout::Split, 8_000_000, 6)?;
/// assert_eq!(format!("{:.3}", size.rate(1_000_000)), "0.022");
/// assert_eq!(format!("{:.3}", size.rate(2_000_000)), "0.221");
/// # Ok::<(), tamis_filter::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BloomSize {
    pub(super) layout: Layout,
    pub(super) lines: u64,
    /// Bits per key when the filter is full, in thousandths; not 0.
    pub(super) millibits: u32,
}

impl BloomSize {
    /// The fewest lines of 512 bits that hold `keys` keys at a rate of at most `rate`, by the model
    /// of the layout: between 0 and 1, both excluded.
    pub fn for_rate(kind: BloomLayout, keys: u64, rate: f64) -> Result<BloomSize> {
        check_rate(rate)?;
        check_keys(keys)?;
        // Keys with equal hashes cannot be told apart.
        let collisions = 2.0 * keys as f64 / 2f64.powi(64);
        if rate < collisions {
            return Err(Error::invalid(format_args!("a 64-bit hash cannot reach a rate of {rate:e} with {keys} keys")));
        }
        let (bits, k) = textbook(keys, rate);
        let layout = kind.with_probes(k);
        let shape = |lines| BloomSize { layout, lines, millibits: millibits(lines, keys) };
        let holds = |lines| shape(lines).full_rate() <= rate;
        let (mut enough, mut too_few) = (bits.div_ceil(LINE_BITS), 0);
        if enough > MAX_LINES {
            return Err(too_large(keys, rate));
        }
        while !holds(enough) {
            too_few = enough;
            enough += enough / 8 + 1;
            if too_few == MAX_LINES {
                return Err(too_large(keys, rate));
            }
            enough = enough.min(MAX_LINES);
        }
        while too_few > 0 && enough - too_few > 1 {
            let middle = too_few.midpoint(enough);
            *if holds(middle) { &mut enough } else { &mut too_few } = middle;
        }
        Ok(shape(enough))
    }

    /// `bits_per_key` bits for each of `keys` keys, 1 to 24, and the best number of probes. As in
    /// tables, the split layout takes up to 1 % more to reach the rate of the textbook.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1,000 to 24,000")]
    pub fn for_bits_per_key(kind: BloomLayout, keys: u64, bits_per_key: f64) -> Result<BloomSize> {
        if !(1.0..=24.0).contains(&bits_per_key) {
            return Err(Error::invalid(format_args!("a filter takes 1 to 24 bits per key, not {bits_per_key}")));
        }
        check_keys(keys)?;
        let asked = clamp_millibits((bits_per_key * 1000.0).round() as u32);
        let layout = kind.with_probes(probe_count(asked));
        let spent = match kind {
            BloomLayout::Split => compensated_millibits(asked),
            BloomLayout::Standard => asked,
        };
        let lines = match u64::try_from(lines_for(keys, spent)) {
            Ok(lines) if lines <= MAX_LINES => lines,
            _ => {
                let what = format_args!(
                    "{keys} keys at {bits_per_key} bits per key do not fit into the 2^37 bits of a filter"
                );
                return Err(Error::invalid(what));
            }
        };
        Ok(BloomSize { layout, lines, millibits: millibits(lines, keys) })
    }

    /// At least `bits` bits, in whole lines of 512, and `k` probes: at most 25 in the split layout,
    /// 32 in the standard one. Full when half of the bits are set: k is then the best number of
    /// probes.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 32 / ln 2 · 1000")]
    pub fn for_bits(kind: BloomLayout, bits: u64, k: u32) -> Result<BloomSize> {
        if !(1..=MAX_LINES * LINE_BITS).contains(&bits) {
            return Err(Error::invalid(format_args!("a filter takes 1 to 2^37 bits, not {bits}")));
        }
        if !(1..=kind.max_probes()).contains(&k) {
            let most = kind.max_probes();
            return Err(Error::invalid(format_args!("a filter of this layout takes 1 to {most} probes, not {k}")));
        }
        let millibits = (f64::from(k) * 1000.0 / LN_2).round() as u32;
        Ok(BloomSize { layout: kind.with_probes(k), lines: bits.div_ceil(LINE_BITS), millibits })
    }

    /// Bits in the filter, a multiple of 512.
    pub fn bits(&self) -> u64 {
        self.lines * LINE_BITS
    }

    /// Probes per key.
    pub fn k(&self) -> u32 {
        self.layout.probes().into()
    }

    /// The layout.
    pub fn layout(&self) -> BloomLayout {
        match self.layout {
            Layout::Split(_) => BloomLayout::Split,
            Layout::Standard { .. } => BloomLayout::Standard,
        }
    }

    /// Bytes of the filter's lines. A file has 64 bytes more, and 128 if its hash is not one of
    /// [`HashFunction`](crate::HashFunction).
    pub fn bytes(&self) -> u64 {
        self.bits() / 8
    }

    /// The number of keys for which the filter is made.
    pub fn capacity(&self) -> u64 {
        let keys = u128::from(self.bits()) * 1000 / u128::from(self.millibits);
        u64::try_from(keys).map_or(u64::MAX, |keys| keys.max(1))
    }

    /// The rate to expect of the filter when it holds `keys` keys.
    pub fn rate(&self, keys: u64) -> f64 {
        self.rate_at(keys as f64 / self.bits() as f64, self.layout.model_fpr(keys, self.lines))
    }

    /// The rate to expect of the full filter, of thousandths of bits per key rather than of a whole
    /// number of keys.
    fn full_rate(&self) -> f64 {
        let model = self.layout.model_fpr(1000 * LINE_BITS, self.millibits.into());
        self.rate_at(1000.0 / f64::from(self.millibits), model)
    }

    /// The rate to expect where the layout's model says `model`.
    fn rate_at(&self, keys_per_bit: f64, model: f64) -> f64 {
        let rate = match self.layout {
            Layout::Split(_) => model * SPLIT_EXCESS,
            // Keys whose probes all agree (see `standard`): they dominate in tiny filters.
            Layout::Standard { .. } => model + 4.0 * keys_per_bit / self.bits() as f64,
        };
        rate.min(1.0)
    }
}

/// The textbook's m and k for `keys` keys, at least 1, at a rate between 0 and 1.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and a float cast saturates")]
fn textbook(keys: u64, rate: f64) -> (u64, u32) {
    let bits = (keys as f64 * -rate.ln() / (LN_2 * LN_2)).ceil();
    let k = (bits / keys as f64 * LN_2).round();
    (bits as u64, (k as u32).max(1))
}

/// Bits per key in thousandths, rounded down: a filter never holds fewer keys than it was made for.
fn millibits(lines: u64, keys: u64) -> u32 {
    let millibits = u128::from(lines) * u128::from(LINE_BITS) * 1000 / u128::from(keys);
    u32::try_from(millibits).unwrap_or(u32::MAX).max(1)
}

pub(super) fn check_rate(rate: f64) -> Result<()> {
    if rate > 0.0 && rate < 1.0 {
        Ok(())
    } else {
        Err(Error::invalid(format_args!("a false-positive rate must lie between 0 and 1; {rate} does not")))
    }
}

fn check_keys(keys: u64) -> Result<()> {
    if keys > 0 { Ok(()) } else { Err(Error::invalid("a filter must be made for at least one key")) }
}

fn too_large(keys: u64, rate: f64) -> Error {
    Error::invalid(format_args!("{keys} keys at a rate of {rate:e} do not fit into the 2^37 bits of a filter"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [BloomLayout; 2] = [BloomLayout::Split, BloomLayout::Standard];

    #[test]
    fn textbook_gives_the_published_sizes() {
        for (keys, rate, bits, k) in [
            (1_000, 0.01, 9_586, 7),
            (1_000_000, 0.01, 9_585_059, 7),
            (1_000_000, 0.001, 14_377_588, 10),
            (1_000, 0.1, 4_793, 3),
            (1, 0.9, 1, 1),
        ] {
            assert_eq!(textbook(keys, rate), (bits, k), "{keys} keys at {rate}");
        }
    }

    #[test]
    fn the_fewest_lines_that_keep_the_rate_are_taken() {
        for kind in KINDS {
            for keys in [1, 2, 10, 100, 1000, 123_456, 1_000_000, 100_000_000] {
                for rate in [0.9, 0.5, 0.1, 0.01, 0.001, 1e-6, 1e-9] {
                    let shape = BloomSize::for_rate(kind, keys, rate).unwrap();
                    assert!(shape.full_rate() <= rate, "{kind:?}, {keys} keys at {rate}: {shape:?}");
                    let (bits, k) = textbook(keys, rate);
                    assert_eq!(u32::from(shape.layout.probes()), k.min(kind.max_probes()));
                    let least = bits.div_ceil(512);
                    assert!(shape.lines >= least);
                    let fewer =
                        BloomSize { lines: shape.lines - 1, millibits: millibits(shape.lines - 1, keys), ..shape };
                    assert!(
                        shape.lines == least || fewer.full_rate() > rate,
                        "{kind:?}, {keys} keys at {rate}: {shape:?}"
                    );
                    let many = if kind == BloomLayout::Split { 1000 } else { 1_000_000 };
                    if keys >= many && (1e-7..0.6).contains(&rate) {
                        let most = least as f64 * 1.03 + 3.0;
                        assert!(shape.lines as f64 <= most, "{kind:?}, {keys} keys at {rate}: {shape:?}, {least}");
                    }
                }
            }
        }
    }

    #[test]
    fn lines_of_the_published_sizes() {
        let lines = |(keys, rate)| {
            let lines = |kind| BloomSize::for_rate(kind, keys, rate).unwrap().lines;
            (lines(BloomLayout::Split), lines(BloomLayout::Standard))
        };
        let sizes = [(1_000, 0.01), (1_000_000, 0.01), (1_000_000, 0.001), (1_000, 0.1)].map(lines);
        // 18,721 and 28,082 lines hold the textbook's bits, whose k is not a whole number.
        assert_eq!(sizes, [(19, 19), (18_868, 18_737), (28_260, 28_083), (10, 10)]);
    }

    #[test]
    fn invalid_arguments_are_refused() {
        let refused = |shape: Result<BloomSize>| assert!(matches!(shape, Err(Error::InvalidArgument(_))), "{shape:?}");
        for kind in KINDS {
            for rate in [0.0, 1.0, -0.1, 1.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                refused(BloomSize::for_rate(kind, 1000, rate));
            }
            refused(BloomSize::for_rate(kind, 0, 0.01));
            refused(BloomSize::for_rate(kind, u64::MAX, 0.01));
            refused(BloomSize::for_rate(kind, u64::MAX, 1.0 - f64::EPSILON));
            refused(BloomSize::for_rate(kind, 1 << 34, 0.01));
            refused(BloomSize::for_rate(kind, 1, f64::MIN_POSITIVE));
            refused(BloomSize::for_rate(kind, 1_000_000_000, 1e-12));
            for bits_per_key in [0.0, 0.999, 24.001, f64::NAN, f64::INFINITY, -1.0] {
                refused(BloomSize::for_bits_per_key(kind, 1000, bits_per_key));
            }
            refused(BloomSize::for_bits_per_key(kind, 0, 10.0));
            refused(BloomSize::for_bits_per_key(kind, 1 << 34, 10.0));
            refused(BloomSize::for_bits_per_key(kind, u64::MAX, 10.0));
            refused(BloomSize::for_bits(kind, 0, 7));
            refused(BloomSize::for_bits(kind, (1 << 37) + 1, 7));
            refused(BloomSize::for_bits(kind, u64::MAX, 7));
            refused(BloomSize::for_bits(kind, 1000, 0));
            refused(BloomSize::for_bits(kind, 1000, kind.max_probes() + 1));
        }
        assert_eq!(BloomSize::for_bits(BloomLayout::Split, 1 << 37, 7).unwrap().lines, MAX_LINES);
        assert!(BloomSize::for_rate(BloomLayout::Split, 13_000_000_000, 0.01).is_ok());
    }

    #[test]
    fn the_rate_for_bits_is_that_for_which_they_were_made() {
        for kind in KINDS {
            for keys in [100, 10_000, 1_000_000] {
                for rate in [0.1, 0.01, 0.001] {
                    let size = BloomSize::for_rate(kind, keys, rate).unwrap();
                    assert!(size.capacity() >= keys && size.rate(keys) <= rate * 1.000_01, "{size:?}");
                    assert!((size.rate(size.capacity()) / size.full_rate() - 1.0).abs() < 0.02, "{size:?}");
                    let same = BloomSize::for_bits(kind, size.bits(), size.k()).unwrap();
                    assert_eq!((same.rate(keys), same.bytes()), (size.rate(keys), size.bits() / 8));
                    assert!(size.rate(0) < 1e-9 && size.rate(2 * keys) > size.rate(keys));
                    assert!((0.999..=1.0).contains(&size.rate(u64::MAX)));
                }
            }
        }
    }

    #[test]
    fn bits_per_key_are_those_of_tables() {
        let shape = BloomSize::for_bits_per_key(BloomLayout::Split, 1_000_000, 10.0).unwrap();
        assert_eq!((shape.lines, shape.layout.probes(), shape.millibits), (19_686, 7, 10_079));
        let shape = BloomSize::for_bits_per_key(BloomLayout::Standard, 1_000_000, 10.0).unwrap();
        assert_eq!((shape.lines, shape.layout.probes()), (19_532, 7));
    }
}
