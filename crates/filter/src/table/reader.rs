//! [`Filter`]: a filter block in memory.

use std::fmt;
use std::sync::Arc;

use super::info::FilterInfo;
use super::outline::FilterOutline;
use crate::PrefixExtractor;
use crate::avx2::Avx2;
use crate::fuse::{self, FuseShape};
use crate::hash::{KeyHash, remix};
use crate::hasher::HashFunction;
use crate::header::{self, FilterContent};
use crate::layout::Layout;
use crate::line::FilterLine;
use crate::split::{self, GROUP_MAX, Groups};
use tamis_base::format::Malformed;
use tamis_base::memory::pool::{TableArray, TableMemory};
use tamis_base::memory::prefetch::prefetch;

/// A filter with its own copy of the bits, in whole cache lines.
pub struct Filter {
    seed: u64,
    probing: Probing,
    /// `None` if and only if the filter is degraded.
    info: Option<FilterInfo>,
}

/// How the filter answers; chosen once, when it is opened.
enum Probing {
    /// Always "maybe", for this reason.
    Maybe(&'static str),
    /// Always "no".
    No,
    Split {
        groups: Groups,
        /// Shared with the banks that the filter is part of.
        lines: TableArray<FilterLine>,
        avx2: Option<Avx2>,
    },
    Fuse {
        shape: FuseShape,
        lines: TableArray<FilterLine>,
    },
}

impl Filter {
    /// Opens a block for look-ups with hashes under `seed`. A block that does not verify, is
    /// unknown, or was built under another seed becomes a filter that always answers "maybe" and is
    /// [`degraded`](Filter::degraded).
    pub fn open(block: &[u8], seed: u64) -> Filter {
        Filter::open_in(None, block, seed)
    }

    /// [`open`](Filter::open), with the lines in `memory` if that is given.
    pub fn open_in(memory: Option<&Arc<TableMemory>>, block: &[u8], seed: u64) -> Filter {
        let degraded = |reason| Filter { seed, probing: Probing::Maybe(reason), info: None };
        let (header, lines) = match header::decode(block) {
            Ok(decoded) => decoded,
            Err(Malformed(rule)) => return degraded(rule),
        };
        if header.hash != HashFunction::Xxh3.name() {
            return degraded("the filter uses another hash function than tables");
        }
        if header.keys == 0 && matches!(header.content, FilterContent::Lines(_) | FilterContent::Fuse(_)) {
            return degraded("the filter has lines but no keys");
        }
        if header.seed != seed {
            return degraded("the filter was built under another hash seed");
        }
        let lines = TableArray::new(memory, lines.iter().map(FilterLine::decode));
        let info = FilterInfo::new(&header, &lines);
        let probing = match header.content {
            FilterContent::AlwaysMaybe => return degraded("the filter was given up when it was built"),
            FilterContent::Empty => Probing::No,
            FilterContent::Lines(Layout::Split(groups)) => Probing::Split { groups, lines, avx2: Avx2::detect() },
            FilterContent::Lines(Layout::Standard { .. }) => {
                return degraded("the filter has a layout that only stand-alone filters have");
            }
            FilterContent::Fuse(shape) => Probing::Fuse { shape, lines },
        };
        Filter { seed, probing, info: Some(info) }
    }

    /// Whether the table may hold the key. "No" is certain.
    #[inline]
    pub fn may_contain(&self, hash: KeyHash) -> bool {
        if hash.seed() != self.seed {
            return true;
        }
        match &self.probing {
            Probing::Split { groups, lines, avx2: Some(avx2) } => avx2.may_contain(*groups, lines, hash.value()),
            Probing::Split { groups, lines, avx2: None } => split::may_contain(*groups, lines, hash.value()),
            Probing::Fuse { shape, lines } => fuse::may_contain(*shape, lines, hash.value()),
            Probing::Maybe(_) => true,
            Probing::No => false,
        }
    }

    /// Prefetches the line that [`may_contain`](Filter::may_contain) reads first. Split layout
    /// only.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        if let Probing::Split { lines, .. } = &self.probing
            && let Some(line) = lines.get(split::line_index(hash.value(), lines.len()))
        {
            prefetch(line);
        }
    }

    /// Prefetches all lines that [`may_contain`](Filter::may_contain) reads unless it says no.
    /// Split layout only.
    #[inline]
    pub fn prefetch_all(&self, hash: KeyHash) {
        if let Probing::Split { groups, lines, .. } = &self.probing {
            let mut g = hash.value();
            for _ in groups.iter() {
                if let Some(line) = lines.get(split::line_index(g, lines.len())) {
                    prefetch(line);
                }
                g = remix(g);
            }
        }
    }

    /// The lines of the filter, if it has the split layout, its hashes are under `seed`, and its
    /// first group is full.
    pub(super) fn lines_of_full_group(&self, seed: u64) -> Option<&TableArray<FilterLine>> {
        match &self.probing {
            Probing::Split { groups, lines, .. } if self.seed == seed && groups.first() == GROUP_MAX => Some(lines),
            _ => None,
        }
    }

    /// The extractor of the prefixes that the filter holds beside keys, under
    /// [`KeyHash::of_prefix`]; `None` if it holds none.
    pub fn prefixes(&self) -> Option<PrefixExtractor> {
        self.info.as_ref().and_then(|info| info.prefixes)
    }

    /// Whether the filter denies `key`, whose hash is `hash`, or its prefix.
    pub fn denies(&self, key: &[u8], hash: KeyHash) -> bool {
        let prefix = self.prefixes().and_then(|extractor| extractor.extract(key));
        !self.may_contain(hash)
            || prefix.is_some_and(|prefix| !self.may_contain(KeyHash::of_prefix(hash.seed(), prefix)))
    }

    /// The filter without its lines, if it is usable and has the split layout.
    pub fn outline(&self) -> Option<FilterOutline> {
        match &self.probing {
            Probing::Split { groups, lines, .. } => {
                Some(FilterOutline::new(self.seed, *groups, lines.len(), self.info.clone()?))
            }
            _ => None,
        }
    }

    /// Why the filter answers "maybe" to every key, if it does. To be reported, because every
    /// look-up pays for it.
    pub fn degraded(&self) -> Option<&'static str> {
        match self.probing {
            Probing::Maybe(reason) => Some(reason),
            _ => None,
        }
    }

    /// The filter's parameters and quality; `None` when it is degraded.
    pub fn info(&self) -> Option<&FilterInfo> {
        self.info.as_ref()
    }

    /// Bytes of memory that the filter takes.
    pub fn memory(&self) -> usize {
        let lines = match &self.probing {
            Probing::Maybe(_) | Probing::No => 0,
            Probing::Split { lines, .. } | Probing::Fuse { lines, .. } => size_of_val(&**lines),
        };
        size_of::<Filter>() + lines
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filter").field("info", &self.info).field("degraded", &self.degraded()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::builder::FilterBuilder;
    use super::*;
    use crate::FilterPolicy;

    fn block(seed: u64, keys: u32) -> Vec<u8> {
        let mut builder = FilterBuilder::new(FilterPolicy::DEFAULT, seed);
        for key in 0..keys {
            builder.add(KeyHash::new(seed, &key.to_be_bytes()));
        }
        builder.finish().unwrap().bytes
    }

    #[test]
    fn a_foreign_seed_means_maybe() {
        let block = block(1, 100);
        let filter = Filter::open(&block, 2);
        let reason = "the filter was built under another hash seed";
        assert_eq!(filter.degraded(), Some(reason));
        assert!(filter.info().is_none());
        let filter = Filter::open(&block, 1);
        let all_maybe = |seed| (1000..1100u32).all(|key| filter.may_contain(KeyHash::new(seed, &key.to_be_bytes())));
        assert!(all_maybe(2));
        assert!(!all_maybe(1));
    }

    #[test]
    fn a_split_filter_uses_avx2_where_the_processor_has_it() {
        let filter = Filter::open(&block(1, 100), 1);
        let Probing::Split { avx2, .. } = &filter.probing else { panic!("the default filter has the split layout") };
        assert_eq!(avx2.is_some(), Avx2::detect().is_some());
    }

    #[test]
    fn a_filter_of_no_keys_says_no() {
        let filter = Filter::open(&block(1, 0), 1);
        assert_eq!(filter.degraded(), None);
        assert!(!filter.may_contain(KeyHash::new(1, b"key")));
        assert_eq!(filter.info().map(|info| info.policy_id), Some(255));
    }

    #[test]
    fn memory_counts_the_lines() {
        let filter = Filter::open(&block(1, 1000), 1);
        assert_eq!(filter.memory(), size_of::<Filter>() + 20 * 64);
        assert_eq!(Filter::open(&[], 1).memory(), size_of::<Filter>());
    }
}
