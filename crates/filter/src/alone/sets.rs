//! Two Bloom filters together: equality, union, intersection, and how many keys these have.

use super::bloom::BloomFilter;
use super::store::{LineStore, count_ones};
use crate::hasher::FilterHash;
use crate::line::Fill;
use crate::shape::BloomSize;
use tamis_base::error::{Error, Result};

#[expect(private_bounds, reason = "the places of lines are those of this crate")]
impl<H: FilterHash, L: LineStore> BloomFilter<H, L> {
    /// Whether the two can be united and intersected: equal size, layout, probes, hash and seed.
    pub fn is_compatible<M: LineStore>(&self, other: &BloomFilter<H, M>) -> bool {
        self.check_compatible(other).is_ok()
    }

    fn check_compatible<M: LineStore>(&self, other: &BloomFilter<H, M>) -> Result<()> {
        let difference = if self.bits() != other.bits() {
            "size"
        } else if self.layout() != other.layout() {
            "layout"
        } else if self.size.layout != other.size.layout {
            "number of probes per key"
        } else if self.hasher().name() != other.hasher().name() {
            "hash function"
        } else if self.hasher().seed() != other.hasher().seed() {
            "seed"
        } else {
            return Ok(());
        };
        Err(Error::invalid(format_args!("the filters differ in their {difference}")))
    }

    /// The number of distinct keys in this filter or in `other`, which must be
    /// [compatible](BloomFilter::is_compatible): the
    /// [estimate](BloomFilter::estimated_keys) of their union, which is not made.
    pub fn estimated_union<M: LineStore>(&self, other: &BloomFilter<H, M>) -> Result<f64> {
        self.check_compatible(other)?;
        let fill = Fill::of_union(self.store.lines(), other.store.lines());
        Ok(self.size.layout.estimated_keys(&fill))
    }

    /// The number of distinct keys both in this filter and in `other`, which must be
    /// [compatible](BloomFilter::is_compatible). At least 0; infinite or not a number if all bits
    /// of one are set.
    ///
    /// ```
    /// use tamis_filter::BloomFilter;
    ///
    /// let mut a = BloomFilter::with_rate(20_000, 0.01)?;
    /// let mut b = a.clone();
    /// a.extend((0..10_000u32).map(u32::to_be_bytes));
    /// b.extend((7_000..20_000u32).map(u32::to_be_bytes));
    /// assert!((a.estimated_intersection(&b)? - 3000.0).abs() < 150.0);
    /// assert!((a.estimated_union(&b)? - 20_000.0).abs() < 150.0);
    /// # Ok::<(), tamis_filter::Error>(())
    /// ```
    ///
    /// It is n(A) + n(B) − n(A ∪ B), of [estimates](BloomFilter::estimated_keys): the
    /// estimate of Swamidass and Baldi ("Mathematical correction for fingerprint similarity
    /// measures to improve chemical retrieval", 2007). That of Papapetrou, Siberski and Nejdl
    /// ("Cardinality estimation and dynamic length adaptation for Bloom filters", 2010), from
    /// the bits of A ∧ B, is the same number. The estimate of the
    /// [intersection](BloomFilter::intersection) as a filter is larger, by the bits that
    /// different keys have in common.
    ///
    /// Its standard error, in keys, is √(m · (eᵘ − eᵃ − eᵇ + 2eᶜ − 1 − c)) / d.
    /// There a, b, u and c are d/m times the keys in A, in B, in A ∪ B and in A ∩ B, and m and
    /// d are those of the [estimate](BloomFilter::estimated_keys). With m = 10 bits per key of A,
    /// k = 7 and B of its size: 0.25 √n for equal sets of n keys, 0.46 √n for sets without
    /// common keys. A few hundred common keys in sets of millions therefore do not show.
    pub fn estimated_intersection<M: LineStore>(&self, other: &BloomFilter<H, M>) -> Result<f64> {
        let union = self.estimated_union(other)?;
        Ok(self.estimated_keys() + other.estimated_keys() - union).map(|keys| if keys < 0.0 { 0.0 } else { keys })
    }
}

impl<H: FilterHash> BloomFilter<H> {
    /// Adds all keys of `other`, which must be [compatible](BloomFilter::is_compatible). The result
    /// has the bits of a filter to which the keys of both were added, and denies no key of either.
    pub fn union_with(&mut self, other: &BloomFilter<H>) -> Result<()> {
        self.combine(other, |a, b| a | b)
    }

    /// Keeps the bits that are also set in `other`, which must be
    /// [compatible](BloomFilter::is_compatible). The result denies no key that is in both sets, and
    /// every key that one of the two denies. Its rate is higher than that of a filter of the common
    /// keys alone, because other keys leave bits in common. For the same reason the estimate of its
    /// keys is rather an upper bound; see
    /// [`estimated_intersection`](BloomFilter::estimated_intersection).
    pub fn intersect_with(&mut self, other: &BloomFilter<H>) -> Result<()> {
        self.combine(other, |a, b| a & b)
    }

    fn combine(&mut self, other: &BloomFilter<H>, combine: impl Fn(u64, u64) -> u64) -> Result<()> {
        self.check_compatible(other)?;
        for (line, other) in self.store.lines.iter_mut().zip(&other.store.lines) {
            for (word, other) in line.0.iter_mut().zip(other.0) {
                *word = combine(*word, other);
            }
        }
        self.store.ones = count_ones(&self.store.lines);
        // The lesser capacity, so that the order of the two does not matter.
        self.set_size(BloomSize { millibits: self.size.millibits.max(other.size.millibits), ..self.size });
        Ok(())
    }
}

impl<H: FilterHash + Clone> BloomFilter<H> {
    /// A new filter of the keys of both; see [`union_with`](BloomFilter::union_with).
    pub fn union(&self, other: &BloomFilter<H>) -> Result<BloomFilter<H>> {
        let mut union = self.clone();
        union.union_with(other)?;
        Ok(union)
    }

    /// A new filter of the common bits of both; see
    /// [`intersect_with`](BloomFilter::intersect_with).
    pub fn intersection(&self, other: &BloomFilter<H>) -> Result<BloomFilter<H>> {
        let mut intersection = self.clone();
        intersection.intersect_with(other)?;
        Ok(intersection)
    }
}

impl<H: FilterHash> PartialEq for BloomFilter<H> {
    fn eq(&self, other: &BloomFilter<H>) -> bool {
        self.is_compatible(other) && self.store.lines == other.store.lines
    }
}

impl<H: FilterHash> Eq for BloomFilter<H> {}
