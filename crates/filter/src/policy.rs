//! [`FilterPolicy`], [`RangeFilterPolicy`]: which filters a table carries.

use tamis_base::error::{Error, Result};

/// Fingerprint sizes of a binary fuse filter, in bits. Part of the format.
pub const FINGERPRINT_BITS: [u8; 8] = [4, 5, 6, 7, 8, 10, 12, 16];

/// Which filter each table of a keyspace carries.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum FilterPolicy {
    /// No filter: every look-up in a table reads a block.
    None,
    /// A split-line Bloom filter: the textbook false-positive rate at one cache line per absent
    /// key. The default, at 10 bits per key (k = 7, 0.82 % false positives).
    Bloom {
        /// Bits per distinct key, 1 to 24; fractions count.
        bits_per_key: f32,
    },
    /// A binary fuse filter: 2^-r false positives at 1.13 to 1.25 times r bits per key. r = 7 has
    /// the rate of the default in four fifths of its memory, r = 8 half the rate in nine tenths.
    ///
    /// For tables that live long: building takes about 25 bytes of memory per key of the table, and
    /// several times as long as a Bloom filter. A look-up touches three cache lines, so that an
    /// absent key costs more when the filters exceed the processor's caches.
    ///
    /// A table of fewer than 10,000 keys gets a split-line Bloom filter of the same rate instead.
    BinaryFuse {
        /// Bits of a fingerprint, r: 4, 5, 6, 7, 8, 10, 12 or 16.
        fingerprint_bits: u8,
    },
}

impl FilterPolicy {
    /// The default: 10 bits per key.
    pub const DEFAULT: FilterPolicy = FilterPolicy::bloom(10.0);

    /// A split-line Bloom filter of this many bits per key, 1 to 24; see [`FilterPolicy::Bloom`]
    /// and, for a false-positive rate, [`FilterPolicy::bloom_with_rate`]. The range is checked when
    /// the policy is used.
    pub const fn bloom(bits_per_key: f32) -> FilterPolicy {
        FilterPolicy::Bloom { bits_per_key }
    }

    /// A binary fuse filter with fingerprints of 4, 5, 6, 7, 8, 10, 12 or 16 bits; see
    /// [`FilterPolicy::BinaryFuse`]. The size is checked when the policy is used.
    pub const fn binary_fuse(fingerprint_bits: u8) -> FilterPolicy {
        FilterPolicy::BinaryFuse { fingerprint_bits }
    }

    /// Bits per key in thousandths, those of a fingerprint in a binary fuse filter; 0 for no
    /// filter.
    #[expect(clippy::cast_possible_truncation, reason = "at most 24,000 when valid, and a float cast saturates")]
    #[doc(hidden)]
    pub fn millibits(self) -> u32 {
        match self {
            FilterPolicy::None => 0,
            FilterPolicy::Bloom { bits_per_key } => (f64::from(bits_per_key) * 1000.0).round() as u32,
            FilterPolicy::BinaryFuse { fingerprint_bits } => 1000 * u32::from(fingerprint_bits),
        }
    }

    /// Bits per key; 0 for no filter. For a binary fuse, those of a large one.
    pub fn bits_per_key(self) -> f32 {
        match self {
            FilterPolicy::None => 0.0,
            FilterPolicy::Bloom { bits_per_key } => bits_per_key,
            FilterPolicy::BinaryFuse { fingerprint_bits } => f32::from(fingerprint_bits) * 1.125,
        }
    }

    /// The Bloom filter of `millibits` thousandths of bits per key; none for 0.
    #[doc(hidden)]
    pub fn of_millibits(millibits: u32) -> FilterPolicy {
        match millibits {
            0 => FilterPolicy::None,
            _ => FilterPolicy::Bloom { bits_per_key: millibits as f32 / 1000.0 },
        }
    }

    /// The policy's number in properties and manifest. Part of the format.
    #[doc(hidden)]
    pub fn code(self) -> u8 {
        match self {
            FilterPolicy::None => 0,
            FilterPolicy::Bloom { .. } => 1,
            FilterPolicy::BinaryFuse { .. } => 4,
        }
    }

    /// Refuses sizes that no filter has.
    #[doc(hidden)]
    pub fn validate(self) -> Result<()> {
        match self {
            FilterPolicy::None => Ok(()),
            FilterPolicy::Bloom { bits_per_key } => {
                if (1.0..=24.0).contains(&bits_per_key) {
                    Ok(())
                } else {
                    Err(Error::invalid(format_args!("a filter takes 1 to 24 bits per key, not {bits_per_key}")))
                }
            }
            FilterPolicy::BinaryFuse { fingerprint_bits } => check_fingerprint_bits(fingerprint_bits),
        }
    }
}

pub(super) fn check_fingerprint_bits(bits: u8) -> Result<()> {
    if FINGERPRINT_BITS.contains(&bits) {
        Ok(())
    } else {
        Err(Error::invalid(format_args!("a fingerprint has 4, 5, 6, 7, 8, 10, 12 or 16 bits, not {bits}")))
    }
}

impl Default for FilterPolicy {
    fn default() -> FilterPolicy {
        FilterPolicy::DEFAULT
    }
}

/// Which range filter each table of a keyspace carries.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RangeFilterPolicy {
    /// No range filter: a scan reads a block of each run whose tables may hold its first key.
    #[default]
    None,
    /// Codes in key order of all keys. They answer for a range of keys "certainly empty" or
    /// "maybe", and bound a run's next key, so that a scan opens only the runs that may come next.
    ///
    /// A table whose keys allow no useful code gets none: one that would wrongly say "maybe" to
    /// more than a quarter of short empty ranges.
    Ordered {
        /// Bits per distinct key, 3 to 18, everything included unless blocks have fewer than eleven
        /// keys; fractions count. 12 bits wrongly say "maybe" to 0.14 % of short empty ranges of
        /// evenly spread keys, 10 bits to 0.5 %.
        bits_per_key: f32,
    },
}

/// Bits per key that a range filter may have.
const RANGE_BITS: std::ops::RangeInclusive<f32> = 3.0..=18.0;

impl RangeFilterPolicy {
    /// Ordered codes of 12 bits per key.
    pub const ORDERED: RangeFilterPolicy = RangeFilterPolicy::ordered(12.0);

    /// Ordered codes of this many bits per key, 3 to 18; see [`RangeFilterPolicy::Ordered`]. The
    /// range is checked when the policy is used.
    pub const fn ordered(bits_per_key: f32) -> RangeFilterPolicy {
        RangeFilterPolicy::Ordered { bits_per_key }
    }

    /// Bits per key; 0 for no filter.
    pub fn bits_per_key(self) -> f32 {
        match self {
            RangeFilterPolicy::None => 0.0,
            RangeFilterPolicy::Ordered { bits_per_key } => bits_per_key,
        }
    }

    /// Bits per key in thousandths; 0 for no filter.
    #[expect(clippy::cast_possible_truncation, reason = "at most 18,000 when valid, and a float cast saturates")]
    #[doc(hidden)]
    pub fn millibits(self) -> u32 {
        (f64::from(self.bits_per_key()) * 1000.0).round() as u32
    }

    /// Ordered codes of `millibits` thousandths of bits per key; none for 0. `None` if no filter
    /// has so many.
    #[doc(hidden)]
    pub fn of_millibits(millibits: u64) -> Option<RangeFilterPolicy> {
        let bits_per_key = f32::from(u16::try_from(millibits).ok()?) / 1000.0;
        match millibits {
            0 => Some(RangeFilterPolicy::None),
            _ => RANGE_BITS.contains(&bits_per_key).then_some(RangeFilterPolicy::Ordered { bits_per_key }),
        }
    }

    /// Refuses sizes that no filter has.
    #[doc(hidden)]
    pub fn validate(self) -> Result<()> {
        match self {
            RangeFilterPolicy::Ordered { bits_per_key } if !RANGE_BITS.contains(&bits_per_key) => {
                Err(Error::invalid(format_args!("a range filter takes 3 to 18 bits per key, not {bits_per_key}")))
            }
            _ => Ok(()),
        }
    }
}
