//! [`FilterBank`]: the filters of several tables, asked for one key together.
//!
//! The first group of probes falls on the same four bits of a line in every filter of the split layout; only which line it is differs
//! from filter to filter. So the bits are told once for all filters. All lines are asked of memory before the first is looked at, so that they
//! are waited for at the same time; and they are looked at without a branch, so that nothing is begun anew when an answer surprises. That
//! refuses fifteen of sixteen absent keys; of the rest the filter itself is asked, whose next line is on its way by then.

use super::hash::{KeyHash, remix};
use super::line::Line;
use super::reader::Filter;
use super::split::{FirstGroup, line_index};
use crate::pool::Array;
use crate::prefetch::prefetch;

/// See the module. Where it says no, the filter says no.
pub(crate) struct FilterBank {
    seed: u64,
    /// Those of each filter; none of one that cannot be asked so.
    lines: Box<[Array<Line>]>,
}

impl FilterBank {
    /// So many filters are asked at once.
    pub(crate) const AT_ONCE: usize = u64::BITS as usize;

    /// A bank for hashes under `seed`. A table without a filter has its place, too.
    pub(crate) fn new<'f>(seed: u64, filters: impl Iterator<Item = Option<&'f Filter>>) -> FilterBank {
        let lines = |filter: Option<&Filter>| filter.and_then(|filter| filter.lines_of_full_group(seed)).cloned();
        FilterBank { seed, lines: filters.map(|filter| lines(filter).unwrap_or_default()).collect() }
    }

    /// A bit for each of the filters from `start` on, at most [`AT_ONCE`](FilterBank::AT_ONCE): whether the filter has to be asked itself. If
    /// not, it says no.
    #[inline]
    pub(crate) fn ask(&self, start: usize, hash: KeyHash) -> u64 {
        if hash.seed() != self.seed {
            return u64::MAX;
        }
        let behind = self.lines.get(start..).unwrap_or_default();
        let lines = &behind[..behind.len().min(Self::AT_ONCE)];
        let g = hash.value();
        lines.iter().for_each(|lines| prefetch_line(lines, g));
        let (group, mut maybe) = (FirstGroup::new(g), 0);
        for (i, lines) in lines.iter().enumerate() {
            let may_contain = lines.get(line_index(g, lines.len())).is_none_or(|line| group.is_in(line));
            maybe |= u64::from(may_contain) << i;
        }
        let (g, mut rest) = (remix(g), maybe);
        while let Some(lines) = lines.get(rest.trailing_zeros() as usize) {
            prefetch_line(lines, g);
            rest &= rest - 1;
        }
        maybe
    }
}

/// Asks for the line that `g` chooses, if there are any.
#[inline]
fn prefetch_line(lines: &[Line], g: u64) {
    if let Some(line) = lines.get(line_index(g, lines.len())) {
        prefetch(line);
    }
}

#[cfg(test)]
mod tests {
    use super::super::builder::FilterBuilder;
    use super::super::fuse;
    use super::*;
    use crate::options::FilterPolicy;

    const SEED: u64 = 7;

    fn filter(policy: FilterPolicy, seed: u64, keys: std::ops::Range<u32>) -> Filter {
        let mut builder = FilterBuilder::new(policy, seed);
        keys.for_each(|key| builder.add(KeyHash::new(seed, &key.to_be_bytes())));
        Filter::open(&builder.finish().unwrap().bytes, seed)
    }

    #[test]
    fn a_bank_says_no_where_its_filters_do_nearly_always_and_nowhere_else() {
        let bloom = |bits_per_key| FilterPolicy::Bloom { bits_per_key };
        let n = if cfg!(miri) { 20 } else { 2000 };
        // With fewer keys it were a Bloom filter.
        let fuse_keys = u32::try_from(fuse::MIN_KEYS).unwrap();
        // The first ones can be asked together.
        const TOGETHER: usize = 3;
        let filters = [
            Some(filter(bloom(10.0), SEED, 0..n)),
            Some(filter(bloom(20.0), SEED, n..3 * n)),
            Some(filter(bloom(6.0), SEED, 0..1)),
            Some(filter(bloom(3.0), SEED, 0..n)),
            Some(filter(bloom(10.0), SEED + 1, 0..n)),
            Some(filter(bloom(10.0), SEED, 0..0)),
            Some(filter(FilterPolicy::StandardBloom { bits_per_key: 10.0 }, SEED, 0..n)),
            Some(filter(FilterPolicy::BinaryFuse { fingerprint_bits: 8 }, SEED, 0..fuse_keys)),
            Some(Filter::open(b"damaged", SEED)),
            None,
        ];
        // So often that not all are asked at once, and that they stand at different places.
        let places: Vec<usize> = (0..FilterBank::AT_ONCE + 20).map(|i| i * 7 % filters.len()).collect();
        let bank = FilterBank::new(SEED, places.iter().map(|&at| filters[at].as_ref()));
        let (mut by_bank, mut by_filter) = ([0; 10], [0; 10]);
        for key in 0..5 * n {
            let hash = KeyHash::new(SEED, &key.to_be_bytes());
            for (start, places) in (0..).step_by(FilterBank::AT_ONCE).zip(places.chunks(FilterBank::AT_ONCE)) {
                let maybe = bank.ask(start, hash);
                assert_eq!(maybe.checked_shr(u32::try_from(places.len()).unwrap()).unwrap_or_default(), 0);
                for (i, &at) in places.iter().enumerate() {
                    let may_contain = filters[at].as_ref().is_none_or(|filter| filter.may_contain(hash));
                    let says_no = maybe >> i & 1 == 0;
                    assert!(!says_no || !may_contain, "{at}");
                    by_bank[at] += u32::from(says_no);
                    by_filter[at] += u32::from(!may_contain);
                }
            }
            assert_eq!(bank.ask(0, KeyHash::new(SEED + 1, &key.to_be_bytes())), u64::MAX);
            assert_eq!(bank.ask(places.len() + 1, hash), 0);
        }
        for at in 0..TOGETHER {
            assert!(
                by_bank[at] > by_filter[at] / 10 * 9 && by_filter[at] > n,
                "{at}: {} {}",
                by_bank[at],
                by_filter[at]
            );
        }
        assert_eq!(by_bank[TOGETHER..], [0; 7]);
    }
}
