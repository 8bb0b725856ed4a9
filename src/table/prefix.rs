//! [`PrefixProbe`]: which tables a scan can leave out because their filters know of no key with its prefix.

use super::resident::TableFilter;
use super::{Table, TableMeta};
use crate::error::Result;
use crate::filter::KeyHash;
use crate::format::key::SeqNo;
use crate::iter::InternalCursor;
use crate::options::{FilterMode, PrefixExtractor};
use crate::stats::ReadEvent;
use std::sync::Arc;

/// The question of a scan all of whose keys have one prefix, in the extractor's sense: is there such a key in a table?
#[derive(Debug)]
pub(crate) struct PrefixProbe {
    extractor: PrefixExtractor,
    prefix: Box<[u8]>,
    /// Under the store's seed.
    hash: KeyHash,
    mode: FilterMode,
}

impl PrefixProbe {
    /// `extractor` must take `prefix` from every key that the scan returns.
    pub(crate) fn new(extractor: PrefixExtractor, prefix: &[u8], seed: u64, mode: FilterMode) -> PrefixProbe {
        PrefixProbe { extractor, prefix: prefix.into(), hash: KeyHash::of_prefix(seed, prefix), mode }
    }

    /// Whether keys with the prefix can be in a table's range.
    pub(crate) fn is_in_range(&self, meta: &TableMeta) -> bool {
        *meta.largest >= *self.prefix && (*meta.smallest <= *self.prefix || meta.smallest.starts_with(&self.prefix))
    }
}

impl Table {
    /// Whether the scan has to look into this table. "No" is certain; it takes a usable filter that holds the prefixes of the same
    /// extractor.
    ///
    /// In the mode `Shadow` it always has to, and a "no" of the filter for a prefix that is there is an error.
    pub(crate) fn may_hold_prefix(self: &Arc<Table>, probe: &PrefixProbe) -> Result<bool> {
        let resident = self.resident()?;
        let filter = match &resident.filter {
            TableFilter::Usable(filter) if probe.mode != FilterMode::Ignore => filter,
            _ => return Ok(true),
        };
        if filter.prefixes() != Some(probe.extractor) {
            return Ok(true);
        }
        let seed = resident.footer.seed;
        let hash = if probe.hash.seed() == seed { probe.hash } else { KeyHash::of_prefix(seed, &probe.prefix) };
        let counters = &self.fetcher().counters;
        counters.count(ReadEvent::PrefixProbe);
        if filter.may_contain(hash) {
            return Ok(true);
        }
        counters.count(ReadEvent::PrefixSkip);
        if probe.mode == FilterMode::Use {
            return Ok(false);
        }
        let mut cursor = self.cursor(false).uncounted();
        cursor.seek(&probe.prefix, SeqNo::MAX)?;
        if cursor.valid() && cursor.key().starts_with(&probe.prefix) {
            let offset = resident.footer.filter.unwrap_or_default().offset;
            return Err(self.fetcher().corrupt(offset, "the filter denies the prefix of a key that the table holds"));
        }
        Ok(true)
    }
}
