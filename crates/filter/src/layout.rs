//! A filter's layout as a value: the common interface of `split` and `standard`.

use super::line::{Fill, LINE_BITS, ReadLine, SetBits};
use super::split::{self, Groups};
use super::standard;

/// A layout and its probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Split(Groups),
    Standard { probes: u8 },
}

impl Layout {
    pub(super) fn probes(self) -> u8 {
        match self {
            Layout::Split(groups) => groups.probes(),
            Layout::Standard { probes } => probes,
        }
    }

    /// Probes in each line that a look-up may touch; none in the standard layout, whose probes are
    /// anywhere.
    pub(super) fn groups(self) -> impl Iterator<Item = u8> {
        let groups = match self {
            Layout::Split(groups) => Some(groups),
            Layout::Standard { .. } => None,
        };
        groups.into_iter().flat_map(Groups::iter)
    }

    /// Sets the bits of a key and returns how many of them were unset.
    #[inline]
    pub(super) fn insert<S: SetBits + ?Sized>(self, lines: &mut S, hash: u64) -> u64 {
        match self {
            Layout::Split(groups) => split::insert(groups, lines, hash),
            Layout::Standard { probes } => standard::insert(probes.into(), lines, hash),
        }
    }

    /// Whether all bits of a key are set: the portable definition, without vectors.
    #[inline(never)]
    pub(super) fn may_contain<L: ReadLine>(self, lines: &[L], hash: u64) -> bool {
        match self {
            Layout::Split(groups) => split::may_contain(groups, lines, hash),
            Layout::Standard { probes } => standard::may_contain(probes.into(), lines, hash),
        }
    }

    /// The exact false-positive rate of these bits.
    pub(super) fn exact_fpr(self, fill: &Fill) -> f64 {
        match self {
            Layout::Split(groups) => split::exact_fpr(groups, fill),
            Layout::Standard { probes } => standard::exact_fpr(probes.into(), fill),
        }
    }

    /// The rate expected of `keys` keys in `lines` lines.
    pub(super) fn model_fpr(self, keys: u64, lines: u64) -> f64 {
        let keys_per_line = keys as f64 / lines as f64;
        match self {
            Layout::Split(groups) => split::model_fpr(groups, keys_per_line),
            Layout::Standard { probes } => standard::model_fpr(probes.into(), keys_per_line / LINE_BITS as f64),
        }
    }

    /// The expected share of bits that `keys` keys set in `lines` lines.
    pub(super) fn model_fill(self, keys: u64, lines: u64) -> f64 {
        let keys_per_line = keys as f64 / lines as f64;
        match self {
            Layout::Split(groups) => split::model_fill(groups, keys_per_line),
            Layout::Standard { probes } => standard::model_fill(probes.into(), keys_per_line / LINE_BITS as f64),
        }
    }

    /// The number of keys, estimated from the bits; infinite when all are set.
    pub(super) fn estimated_keys(self, fill: &Fill) -> f64 {
        match self {
            Layout::Split(groups) => split::estimated_keys(groups, fill),
            Layout::Standard { probes } => standard::estimated_keys(probes.into(), fill),
        }
    }
}
