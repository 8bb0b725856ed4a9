//! [`FilterOutline`]: a filter whose lines are elsewhere, page by page.

use super::info::FilterInfo;
use crate::PrefixExtractor;
use crate::hash::{KeyHash, remix};
use crate::header::HEADER_LEN;
use crate::line::LINE_LEN;
use crate::split::{Groups, group_is_in, line_index};

/// What is left of a filter of the split layout when its lines have been dropped. The caller brings
/// the lines that a key needs: one for most keys that are absent, and two for the others.
pub struct FilterOutline {
    seed: u64,
    groups: Groups,
    info: FilterInfo,
    lines: usize,
}

impl FilterOutline {
    /// Offset of the first line in the filter's block.
    pub const LINES_AT: usize = HEADER_LEN;
    /// Bytes of a line.
    pub const LINE_LEN: usize = LINE_LEN;

    pub(super) fn new(seed: u64, groups: Groups, lines: usize, info: FilterInfo) -> FilterOutline {
        FilterOutline { seed, groups, info, lines }
    }

    /// Whether the table may hold the key; "no" is certain. `line` brings the line at an index,
    /// below the number of lines. Its failure is returned.
    pub fn may_contain<E>(
        &self,
        hash: KeyHash,
        mut line: impl FnMut(usize) -> Result<[u8; LINE_LEN], E>,
    ) -> Result<bool, E> {
        if hash.seed() != self.seed {
            return Ok(true);
        }
        let mut g = hash.value();
        for probes in self.groups.iter() {
            if !group_is_in(probes, &[line(line_index(g, self.lines))?], g) {
                return Ok(false);
            }
            g = remix(g);
        }
        Ok(true)
    }

    /// The extractor of the prefixes that the filter holds beside keys; `None` if it holds none.
    pub fn prefixes(&self) -> Option<PrefixExtractor> {
        self.info.prefixes
    }

    /// The filter's parameters and quality, measured when it was read.
    pub fn info(&self) -> &FilterInfo {
        &self.info
    }
}

#[cfg(test)]
mod tests {
    use super::super::builder::FilterBuilder;
    use super::super::reader::Filter;
    use super::*;
    use crate::{FilterPolicy, fuse};

    fn block(policy: FilterPolicy, keys: u32) -> Vec<u8> {
        let mut builder = FilterBuilder::new(policy, 7);
        (0..keys).for_each(|key| builder.add(KeyHash::new(7, &key.to_be_bytes())));
        builder.finish().unwrap().bytes
    }

    #[test]
    fn an_outline_answers_as_the_filter_does_and_asks_for_as_few_lines() {
        for bits_per_key in [1.0, 3.0, 6.0, 10.0, 24.0] {
            let block = block(FilterPolicy::Bloom { bits_per_key }, 500);
            let filter = Filter::open(&block, 7);
            let (outline, mut read) = (filter.outline().unwrap(), 0);
            for key in 0..3000u32 {
                let hash = KeyHash::new(7, &key.to_be_bytes());
                let answer = outline.may_contain(hash, |i| {
                    read += 1;
                    let at = FilterOutline::LINES_AT + i * LINE_LEN;
                    block[at..].first_chunk().copied().ok_or(())
                });
                assert_eq!(answer, Ok(filter.may_contain(hash)), "{bits_per_key} {key}");
            }
            assert!(bits_per_key != 10.0 || (3000..4400).contains(&read), "{read}");
            assert_eq!(outline.info(), filter.info().unwrap());
            assert_eq!(outline.may_contain(KeyHash::new(8, b"other"), |_| Err(())), Ok(true));
            assert_eq!(outline.may_contain(KeyHash::new(7, b"a"), |_| Err("failure")), Err("failure"));
        }
    }

    #[test]
    fn only_usable_filters_of_the_split_layout_have_an_outline() {
        let fuse_keys = u32::try_from(fuse::MIN_KEYS).unwrap();
        let fuse = block(FilterPolicy::BinaryFuse { fingerprint_bits: 8 }, fuse_keys);
        let bloom = block(FilterPolicy::DEFAULT, 100);
        for none in [Filter::open(&fuse, 7), Filter::open(&bloom, 8), Filter::open(&block(FilterPolicy::DEFAULT, 0), 7)]
        {
            assert!(none.outline().is_none());
        }
        assert!(Filter::open(&bloom, 7).outline().is_some());
    }
}
