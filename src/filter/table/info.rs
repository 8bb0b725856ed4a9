//! What a filter is and how good it is, for properties, statistics and tools.

use crate::filter::PrefixExtractor;
use crate::filter::fuse;
use crate::filter::header::{Content, HEADER_LEN, Header};
use crate::filter::line::{Fill, LINE_BITS, LINE_LEN, Line};
use crate::filter::sizing::{clamp_millibits, probe_count, stand_in_millibits};
use crate::filter::standard;

/// What a filter is and how good it is, measured on its own bits.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FilterInfo {
    /// Policy number as in the block's header: 1 split-line Bloom (which may stand in for a binary fuse), 2 standard Bloom, 4 binary
    /// fuse, 255 no keys, 0 given up.
    pub policy_id: u8,
    /// Bits per key asked for, in thousandths; of a fingerprint in a binary fuse.
    pub millibits: u32,
    /// Distinct keys, and distinct prefixes of them if the filter holds those.
    pub keys: u64,
    /// What takes the prefixes that it holds.
    pub prefixes: Option<PrefixExtractor>,
    /// Probes per key, k.
    pub probes: u8,
    /// Probes in each line that a look-up may touch; empty unless the layout is the split one.
    pub groups: Vec<u8>,
    /// Lines of 64 bytes.
    pub lines: u64,
    /// Length of the block, header included.
    pub bytes: u64,
    /// Share of the bits that are set.
    pub fill_ratio: f64,
    /// False-positive rate that was asked for: that of a textbook Bloom filter, (1 − e^(−k·n/m))^k, with the bits per key asked for.
    pub design_fpr: f64,
    /// False-positive rate of these very bits.
    pub expected_fpr: f64,
    /// Rate that as many keys in as many lines have on average.
    pub model_fpr: f64,
    /// The number of keys that the bits speak for: near `keys`, or something is wrong. Infinite when all bits are set. Fingerprints do
    /// not tell: it is `keys`.
    pub estimated_keys: f64,
}

/// The filter of a table.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FilterState {
    /// The table was written without one.
    None,
    /// It can be used.
    Usable(FilterInfo),
    /// It cannot be used, for this reason, and means "maybe" for every key.
    Degraded(String),
}

impl FilterInfo {
    pub(super) fn new(header: &Header, lines: &[Line]) -> FilterInfo {
        // Without lines every key gets the same answer, which is "maybe" for all or none of the absent ones.
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
            Content::AlwaysMaybe => constant(1.0),
            Content::Empty => constant(0.0),
            Content::Lines(layout) => {
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
            Content::Fuse(shape) => FilterInfo {
                probes: fuse::PLACES,
                lines: lines.len() as u64,
                bytes,
                fill_ratio: Fill::of(lines).ratio(),
                estimated_keys: header.keys as f64,
                ..constant(shape.fpr())
            },
        }
    }

    /// Whether a table that was written under the policy of this code and these thousandths of bits per key may have such a filter: one
    /// by that policy, or the Bloom filter that stands in for a binary fuse.
    pub(crate) fn is_of(&self, policy: u64, millibits: u32) -> bool {
        let stands_in = policy == 4 && (self.policy_id, self.millibits) == (1, stand_in_millibits(millibits));
        stands_in || (u64::from(self.policy_id), self.millibits) == (policy, millibits)
    }

    /// Bits really spent per key, header aside; 0 without keys.
    pub fn bits_per_key(&self) -> f64 {
        if self.keys == 0 {
            return 0.0;
        }
        (self.lines * LINE_BITS) as f64 / self.keys as f64
    }
}

/// The textbook rate at `millibits` thousandths of bits per key, with the number of probes that is best there.
fn textbook_fpr(millibits: u32) -> f64 {
    let millibits = clamp_millibits(millibits);
    standard::model_fpr(probe_count(millibits), 1000.0 / f64::from(millibits))
}
