//! What a filter is and how good it is, for properties, statistics and tools.

use super::fuse;
use super::header::{Content, HEADER_LEN, Header};
use super::line::{Fill, LINE_BITS, LINE_LEN, Line};
use super::sizing::stand_in_millibits;
use crate::options::PrefixExtractor;

/// Description of one filter, measured on its own bits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FilterInfo {
    /// Policy number as in the block's header: 1 split-line Bloom, 2 standard Bloom, 4 binary fuse, 255 no keys, 0 given up.
    pub(crate) policy_id: u8,
    /// Bits per key asked for, in thousandths; of a fingerprint in a binary fuse.
    pub(crate) millibits: u32,
    /// Distinct keys, and distinct prefixes of them if the filter holds those.
    pub(crate) keys: u64,
    /// What takes the prefixes that it holds.
    pub(crate) prefixes: Option<PrefixExtractor>,
    /// Probes per key.
    pub(crate) probes: u8,
    /// Probes in each line that a look-up may touch; empty unless the layout is the split one.
    pub(crate) groups: Vec<u8>,
    pub(crate) lines: u64,
    /// Length of the block, header included.
    pub(crate) bytes: u64,
    /// Share of the bits that are set.
    pub(crate) fill_ratio: f64,
    /// False-positive rate of these very bits.
    pub(crate) expected_fpr: f64,
    /// Rate that as many keys in as many lines have on average.
    pub(crate) model_fpr: f64,
    /// The number of keys that the bits speak for: near `keys`, or something is wrong. Infinite when all bits are set. Fingerprints do not
    /// tell: it is `keys`.
    pub(crate) estimated_keys: f64,
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
    pub(crate) fn bits_per_key(&self) -> f64 {
        if self.keys == 0 {
            return 0.0;
        }
        (self.lines * LINE_BITS) as f64 / self.keys as f64
    }
}
