//! The parameters and the rates of a range filter, for properties, statistics and tools.

/// A filter whose worse rate exceeds this, in parts per 10^9, is not written. One of four reads
/// that it should save would be done, and keys whose distances it cannot tell now are such that
/// later keys will be no better.
const MAX_RATE: u32 = 250_000_000;

/// Rates of false positives that a builder predicts from its own keys, in parts per 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RangeRates {
    /// Of short empty ranges that begin at strings spread like the keys: the share of keys that are
    /// in the cell of another. Each such key is a string to which a filter without it says "maybe".
    /// Keys that are spread more evenly than by chance have a lower share than such ranges: the
    /// rate is then that near keys.
    pub fresh: u32,
    /// Of short empty ranges that begin a tenth of the mean gap after a key. The mean gap is the
    /// one around the key: of keys that cluster, the gap within the cluster.
    pub near: u32,
}

impl RangeRates {
    /// Shares of the keys, in parts per 10^9. `near` is a share of those that were asked for.
    pub(super) fn new(keys: u64, shared: u64, (asked, near): (u64, u64)) -> RangeRates {
        let share = |part: u64, all: u64| {
            let share = u128::from(part) * 1_000_000_000 / u128::from(all.max(1));
            u32::try_from(share).unwrap_or(1_000_000_000)
        };
        RangeRates { fresh: share(shared, keys), near: share(near, asked) }
    }

    /// These rates.
    #[doc(hidden)]
    pub fn of(fresh: u32, near: u32) -> RangeRates {
        RangeRates { fresh, near }
    }

    /// Whether a filter of these rates is worth its memory: neither exceeds 25 %.
    pub fn are_useful(self) -> bool {
        self.fresh.max(self.near) <= MAX_RATE
    }
}

/// The parameters of a range filter and its quality.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RangeInfo {
    /// Keys; of a table, each counted once per data block that holds it.
    pub keys: u64,
    /// Blocks of keys; of a table, its data blocks.
    pub blocks: u32,
    /// Of these, the blocks whose keys cluster, and are placed by distance.
    pub folded: u32,
    /// Requested bits per key, everything included, in thousandths.
    pub millibits: u32,
    /// Length of the filter, header included.
    pub bytes: u64,
    /// What its builder predicted.
    pub rates: RangeRates,
}

impl RangeInfo {
    /// Bits per key, everything included; 0 without keys.
    pub fn bits_per_key(&self) -> f64 {
        if self.keys == 0 { 0.0 } else { self.bytes as f64 * 8.0 / self.keys as f64 }
    }
}

/// State of a table's range filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RangeFilterState {
    /// The table was written without one.
    #[default]
    None,
    /// The builder declined: one of these rates exceeds 25 %.
    Declined(RangeRates),
    /// Scans ask it.
    Usable(RangeInfo),
    /// There has been no room within the limit of memory for a filter of these rates, or for the
    /// table's index. Every range means "maybe" until there is.
    Waiting(RangeRates),
    /// It is damaged or of a later version, for this reason. Every range means "maybe".
    Degraded(String),
}

impl RangeFilterState {
    /// The parameters of a filter that scans ask.
    pub fn info(&self) -> Option<&RangeInfo> {
        match self {
            RangeFilterState::Usable(info) => Some(info),
            _ => None,
        }
    }
}
