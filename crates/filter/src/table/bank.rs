//! [`FilterBank`]: the filters of all tables of a version, asked together for one key.
//!
//! In the split layout, a key's first group of probes falls on the same four bits of a line in
//! every filter; only the line differs. The bank computes these bits once for all filters. A read
//! first prefetches the lines of all filters that it will ask, so that it waits for memory once,
//! and then tests them. That refuses fifteen of sixteen absent keys; for the rest, the read asks
//! the filter itself.
//!
//! Measured: in a store of 100 M keys in three levels, gets of absent keys take half the time that
//! they take when the read asks each filter as it comes to the table. To remove the bank, let
//! `Version::get` ask every table.

use std::ops::Range;

use super::reader::Filter;
use crate::hash::KeyHash;
use crate::line::FilterLine;
use crate::split::{FirstGroup, line_index};
use tamis_base::memory::pool::TableArray;
use tamis_base::memory::prefetch::prefetch;
use tamis_base::sync::OnceLock;

/// The filters of a version, as the module header says. Where the bank says no, the filter says no.
pub struct FilterBank {
    seed: u64,
    /// The lines of each filter, by the index of its table in the version. Unset until the table is
    /// open; empty if the bank cannot ask the filter.
    lines: Box<[OnceLock<TableArray<FilterLine>>]>,
}

/// The line that one filter reads first for a key; `None` if the bank cannot ask the filter.
#[derive(Clone, Copy, Default)]
pub struct FirstProbes<'b>(Option<&'b FilterLine>);

impl FirstProbes<'_> {
    /// Whether the filter denies the key, whose hash is `hash`. If not, ask the filter itself. Not
    /// inlined: reads that do not ask would compute the probes, too.
    #[inline(never)]
    pub fn deny(self, hash: KeyHash) -> bool {
        self.0.is_some_and(|line| !FirstGroup::new(hash.value()).is_in(line))
    }
}

impl FilterBank {
    /// Most filters per call of [`ask`](FilterBank::ask).
    pub const AT_ONCE: usize = u64::BITS as usize;

    /// A bank of `len` filters, for hashes under `seed`.
    pub fn new(seed: u64, len: usize) -> FilterBank {
        FilterBank { seed, lines: (0..len).map(|_| OnceLock::new()).collect() }
    }

    /// The seed of the hashes that it asks for.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Prefetches the line that the filter at `index` reads first. Until the bank knows the filter,
    /// it calls `filter`, which returns `None` if the table is not open, and `Some(None)` if it has
    /// no usable filter.
    #[inline]
    pub fn prefetch<'f>(
        &self,
        index: usize,
        hash: KeyHash,
        filter: impl FnOnce() -> Option<Option<&'f Filter>>,
    ) -> FirstProbes<'_> {
        let Some(known) = self.lines.get(index) else { return FirstProbes(None) };
        let lines = known.get().or_else(|| self.learn(known, filter()));
        let line = lines.and_then(|lines| line_in(lines, hash));
        if let Some(line) = line {
            prefetch(line);
        }
        FirstProbes(line)
    }

    #[cold]
    fn learn<'b>(
        &self,
        lines: &'b OnceLock<TableArray<FilterLine>>,
        filter: Option<Option<&Filter>>,
    ) -> Option<&'b TableArray<FilterLine>> {
        let found = filter?.and_then(|filter| filter.lines_of_full_group(self.seed));
        // Racing readers store the same lines.
        Some(lines.get_or_init(|| found.cloned().unwrap_or_default()))
    }

    /// Asks the filters at `indexes`, at most [`AT_ONCE`](FilterBank::AT_ONCE). Bit i is 0 if the
    /// i-th of them denies the key, and 1 if that filter must be asked itself. There is no branch
    /// per filter, so that no answer is mispredicted.
    #[inline]
    pub fn ask(&self, indexes: Range<usize>, hash: KeyHash) -> u64 {
        let (group, mut maybe) = (FirstGroup::new(hash.value()), 0);
        for (i, known) in self.lines.get(indexes).unwrap_or_default().iter().take(Self::AT_ONCE).enumerate() {
            let may_contain = line_of(known, hash).is_none_or(|line| group.is_in(line));
            maybe |= u64::from(may_contain) << i;
        }
        maybe
    }
}

/// The line that the filter with these lines reads first.
#[inline]
fn line_of(lines: &OnceLock<TableArray<FilterLine>>, hash: KeyHash) -> Option<&FilterLine> {
    line_in(lines.get()?, hash)
}

#[inline]
fn line_in(lines: &[FilterLine], hash: KeyHash) -> Option<&FilterLine> {
    lines.get(line_index(hash.value(), lines.len()))
}

#[cfg(test)]
mod tests {
    use super::super::builder::FilterBuilder;
    use super::*;
    use crate::FilterPolicy;
    use crate::fuse;

    const SEED: u64 = 7;

    fn filter(policy: FilterPolicy, seed: u64, keys: std::ops::Range<u32>) -> Filter {
        let mut builder = FilterBuilder::new(policy, seed);
        keys.for_each(|key| builder.add(KeyHash::new(seed, &key.to_be_bytes())));
        Filter::open(&builder.finish().unwrap().bytes, seed)
    }

    #[test]
    fn a_bank_denies_most_of_what_its_filters_deny_and_nothing_else() {
        let bloom = |bits_per_key| FilterPolicy::Bloom { bits_per_key };
        let n = if cfg!(miri) { 20 } else { 2000 };
        // Fewer keys would make a Bloom filter.
        let fuse_keys = u32::try_from(fuse::MIN_KEYS).unwrap();
        // The bank can ask only the first three.
        const TOGETHER: usize = 3;
        let filters = [
            Some(filter(bloom(10.0), SEED, 0..n)),
            Some(filter(bloom(20.0), SEED, n..3 * n)),
            Some(filter(bloom(6.0), SEED, 0..1)),
            Some(filter(bloom(3.0), SEED, 0..n)),
            Some(filter(bloom(10.0), SEED + 1, 0..n)),
            Some(filter(bloom(10.0), SEED, 0..0)),
            Some(filter(FilterPolicy::BinaryFuse { fingerprint_bits: 8 }, SEED, 0..fuse_keys)),
            Some(Filter::open(b"damaged", SEED)),
            None,
        ];
        // Repeated, so that they exceed one call and stand at different indexes.
        let places: Vec<usize> = (0..FilterBank::AT_ONCE + 20).map(|i| i * 7 % filters.len()).collect();
        let bank = FilterBank::new(SEED, places.len());
        let (mut by_bank, mut by_filter) = ([0; 9], [0; 9]);
        for key in 0..5 * n {
            let hash = KeyHash::new(SEED, &key.to_be_bytes());
            for (start, places) in (0..).step_by(FilterBank::AT_ONCE).zip(places.chunks(FilterBank::AT_ONCE)) {
                let range = start..start + places.len();
                for (index, &at) in range.clone().zip(places) {
                    // A table that is not open yet is asked itself.
                    if key == 0 {
                        assert!(!bank.prefetch(index, hash, || None).deny(hash));
                    }
                    let first = bank.prefetch(index, hash, || Some(filters[at].as_ref()));
                    assert_eq!(first.deny(hash), bank.ask(index..index + 1, hash) == 0);
                }
                let maybe = bank.ask(range, hash);
                assert_eq!(maybe.checked_shr(u32::try_from(places.len()).unwrap()).unwrap_or_default(), 0);
                for (i, &at) in places.iter().enumerate() {
                    let may_contain = filters[at].as_ref().is_none_or(|filter| filter.may_contain(hash));
                    let says_no = maybe >> i & 1 == 0;
                    assert!(!says_no || !may_contain, "{at}");
                    by_bank[at] += u32::from(says_no);
                    by_filter[at] += u32::from(!may_contain);
                }
            }
            assert!(!bank.prefetch(places.len(), hash, || None).deny(hash));
        }
        for at in 0..TOGETHER {
            assert!(
                by_bank[at] > by_filter[at] / 10 * 9 && by_filter[at] > n,
                "{at}: {} {}",
                by_bank[at],
                by_filter[at]
            );
        }
        assert_eq!(by_bank[TOGETHER..], [0; 6]);
    }
}
