//! The parameters and the quality of a table's filter, for properties, statistics and tools.

use crate::PrefixExtractor;
use crate::fuse;
use crate::header::{FilterContent, FilterHeader, HEADER_LEN};
use crate::line::{Fill, FilterLine, LINE_BITS, LINE_LEN};
use crate::sizing::{clamp_millibits, probe_count, stand_in_millibits};
use crate::standard;

/// The parameters of a filter and its quality, measured on its bits.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct FilterInfo {
    /// Policy number as in the block's header: 1 split-line Bloom (also in place of a small binary
    /// fuse), 4 binary fuse, 255 no keys, 0 given up.
    pub policy_id: u8,
    /// Requested bits per key, in thousandths; in a binary fuse, those of a fingerprint.
    pub millibits: u32,
    /// Distinct keys, and distinct prefixes of them if the filter holds those.
    pub keys: u64,
    /// The extractor of the prefixes that it holds.
    pub prefixes: Option<PrefixExtractor>,
    /// Probes per key, k.
    pub probes: u8,
    /// Probes in each line that a look-up may touch; empty for a binary fuse.
    pub groups: Vec<u8>,
    /// Lines of 64 bytes.
    pub lines: u64,
    /// Length of the block, header included.
    pub bytes: u64,
    /// Share of the bits that are set.
    pub fill_ratio: f64,
    /// Requested false-positive rate: that of a textbook Bloom filter, (1 − e^(−k·n/m))^k,
    /// with the requested bits per key.
    pub design_fpr: f64,
    /// Exact false-positive rate of the filter's bits.
    pub expected_fpr: f64,
    /// Expected rate of as many keys in as many lines.
    pub model_fpr: f64,
    /// The number of keys, estimated from the bits: near `keys`, or something is wrong. Infinite
    /// when all bits are set. Fingerprints allow no estimate: for them it is `keys`.
    pub estimated_keys: f64,
}

/// The filter of a table.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum FilterState {
    /// The table was written without a filter.
    None,
    /// The filter is usable.
    Usable(FilterInfo),
    /// The filter is unusable, for this reason, and means "maybe" for every key.
    Degraded(String),
}

impl FilterInfo {
    pub(super) fn new(header: &FilterHeader, lines: &[FilterLine]) -> FilterInfo {
        // Without lines, every key gets one answer: the rate is 1 for "maybe" and 0 for "no".
        let constant = |rate: f64| FilterInfo {
            policy_id: header.content.policy_id(),
            millibits: header.millibits,
            keys: header.keys,
            prefixes: header.prefixes,
            probes: 0,
            groups: Vec::new(),
            lines: 0,
            bytes: HEADER_LEN as u64,
            fill_ratio: rate,
            design_fpr: rate,
            expected_fpr: rate,
            model_fpr: rate,
            estimated_keys: 0.0,
        };
        let bytes = (HEADER_LEN + lines.len() * LINE_LEN) as u64;
        match header.content {
            FilterContent::AlwaysMaybe => constant(1.0),
            FilterContent::Empty => constant(0.0),
            FilterContent::Lines(layout) => {
                let fill = Fill::of(lines);
                FilterInfo {
                    probes: layout.probes(),
                    groups: layout.groups().collect(),
                    lines: fill.lines(),
                    bytes,
                    fill_ratio: fill.ratio(),
                    design_fpr: textbook_fpr(header.millibits),
                    expected_fpr: layout.exact_fpr(&fill),
                    model_fpr: layout.model_fpr(header.keys, fill.lines()),
                    estimated_keys: layout.estimated_keys(&fill),
                    ..constant(0.0)
                }
            }
            FilterContent::Fuse(shape) => FilterInfo {
                probes: fuse::ARITY,
                lines: lines.len() as u64,
                bytes,
                fill_ratio: Fill::of(lines).ratio(),
                estimated_keys: header.keys as f64,
                ..constant(shape.fpr())
            },
        }
    }

    /// Whether a table that was written under policy number `policy` at `millibits` may have this
    /// filter: one by that policy, or the Bloom filter that replaces a binary fuse.
    #[doc(hidden)]
    pub fn is_of(&self, policy: u64, millibits: u32) -> bool {
        let stands_in = policy == 4 && (self.policy_id, self.millibits) == (1, stand_in_millibits(millibits));
        stands_in || (u64::from(self.policy_id), self.millibits) == (policy, millibits)
    }

    /// Bits spent per key, without the header; 0 without keys.
    pub fn bits_per_key(&self) -> f64 {
        if self.keys == 0 {
            return 0.0;
        }
        (self.lines * LINE_BITS) as f64 / self.keys as f64
    }
}

/// The textbook rate at `millibits` thousandths of bits per key, with the best number of probes.
fn textbook_fpr(millibits: u32) -> f64 {
    let millibits = clamp_millibits(millibits);
    standard::model_fpr(probe_count(millibits), 1000.0 / f64::from(millibits))
}
