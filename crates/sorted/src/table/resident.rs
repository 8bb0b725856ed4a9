//! [`Resident`]: the parts of an open table that stay in memory.

use std::sync::Arc;

use super::fetch::Fetcher;
use super::footer::{BlockHandle, FOOTER_LEN, Footer};
use super::index::Index;
use super::mapped::{InPlace, Mapped};
use super::paged::PagedFilter;
use super::pages::WholeBlock;
use super::properties::{Properties, filter_hash};
use super::range_filter::{TableRangeFilter, rule_of};
use super::table_index::TableIndex;
use super::{Ingested, TableMeta};
use crate::block::{Block, BorrowedFrame};
use crate::cache::BlockSlots;
use crate::compress::Compression;
use crate::error::{Error, Result};
use crate::files::{ReadMode, lacks_descriptors};
use crate::filter::{Filter, FilterInfo, FilterState, KeyHash, PrefixExtractor};
use crate::format::Decoded;
use crate::format::header::{FILE_HEADER_LEN, FileHeader, Magic, features};
use crate::memory::budget::{MemoryCharge, MemoryUse};
use crate::memory::epoch::Pin;
use crate::value::FoundValue;

pub(super) struct Resident {
    pub(super) footer: Footer,
    pub(super) properties: Properties,
    pub(super) index: TableIndex,
    pub(super) filter: TableFilter,
    pub(super) range_filter: TableRangeFilter,
    /// The table's blocks in the cache; empty if the file is mapped.
    pub(super) slots: Arc<BlockSlots>,
    pub(super) mapped: Option<Mapped>,
    /// For all of this but the filters, and for the filters.
    charges: [MemoryCharge; 2],
}

/// A block that is in memory.
#[derive(Clone, Copy)]
pub(super) enum ResidentBlock<'p> {
    Cached(BorrowedFrame<'p>),
    Mapped(InPlace<'p>),
}

impl<'p> ResidentBlock<'p> {
    /// Prefetches the part of the block that a read touches first.
    #[inline]
    pub(super) fn prefetch(self) {
        match self {
            ResidentBlock::Cached(block) => block.prefetch(),
            ResidentBlock::Mapped(block) => block.prefetch(),
        }
    }

    #[inline]
    pub(super) fn block(self) -> Decoded<Block<'p>> {
        match self {
            ResidentBlock::Cached(block) => Ok(block.framed().block()),
            ResidentBlock::Mapped(block) => block.block(),
        }
    }

    /// A value in the block.
    #[inline]
    pub(super) fn found(self, bytes: &'p [u8]) -> FoundValue<'p> {
        match self {
            ResidentBlock::Cached(block) => FoundValue::Cached { bytes, block },
            ResidentBlock::Mapped(block) => FoundValue::Mapped { bytes, file: block.file() },
        }
    }
}

/// The filter of an open table.
pub(super) enum TableFilter {
    /// The table was written without a filter.
    None,
    Usable(Filter),
    /// The filter is usable, and there was no room for it as a whole.
    Paged(Box<PagedFilter>),
    /// The filter is damaged, unreadable, of a later version or of another table, for this reason.
    /// It answers "maybe" for every key.
    Degraded(Error),
}

impl Resident {
    /// Reads the resident parts and compares them with the manifest's record, and with what the
    /// manifest says that the table holds.
    pub(super) fn read(fetcher: &Fetcher, meta: &TableMeta, holds_ranges: bool) -> Result<Resident> {
        let (path, memory) = (fetcher.path(), &fetcher.context.memory);
        if fetcher.file.len()? != meta.size {
            return Err(fetcher.corrupt(0, "the file is not as long as the manifest says"));
        }
        let header = fetcher.bytes(0, FILE_HEADER_LEN as u64)?;
        let identity = Ingested::identity_of(meta.ingested, meta.number);
        FileHeader::decode(&header, Magic::Table, identity, path)?;
        // If the file is too short, the read reports it.
        let footer_offset = meta.size.saturating_sub(FOOTER_LEN as u64);
        let footer = fetcher.bytes(footer_offset, FOOTER_LEN as u64)?;
        let footer = Footer::decode(&footer, identity, footer_offset, path)?;
        let properties = Properties::decode(&fetcher.meta_block(footer.properties)?)
            .map_err(|malformed| fetcher.corrupt(footer.properties.offset, malformed))?
            .numbered(meta.ingested);
        let uses = [MemoryUse::Indexes, MemoryUse::Filters];
        let mut charges = uses.map(|of| MemoryCharge::new(fetcher.context.budget(), of, 0));
        let index = read_index(fetcher, meta.number, footer.index, &mut charges[0])?;
        let block = footer.filter.map_or(0, |handle| handle.len as usize);
        let filter = TableFilter::read(fetcher, &footer, &properties, charges[1].try_resize(block))?;
        charges[1].resize(filter.memory());
        let extras = footer.filter.map_or(Some(index.data_end()), BlockHandle::end);
        let extras = extras.ok_or_else(|| fetcher.corrupt(footer_offset, "the filter ends beyond the file"))?;
        let range_filter = TableRangeFilter::read(fetcher, &properties, extras, &index);
        // A mapped block cannot be given sequence numbers.
        let in_place = fetcher.context.files.read_mode == ReadMode::Mmap
            && properties.compression == u64::from(Compression::None.code())
            && !properties.is_unnumbered
            && index.resident().is_some();
        let mapped = match in_place {
            true => Mapped::new(&*fetcher.file.open()?, fetcher.size, index.len()),
            false => None,
        };
        let cached = if mapped.is_some() { 0 } else { index.len() };
        let slots = Arc::new(BlockSlots::new(&fetcher.context.cache_owner, meta.number, cached, memory));
        let mut resident = Resident { footer, properties, index, filter, range_filter, slots, mapped, charges };
        let of_filters = resident.filter_memory();
        resident.charges[1].resize(of_filters - resident.range_filter.charged());
        resident.charges[0].resize(resident.memory() - of_filters);
        if let Some(rule) = resident.gap(footer_offset) {
            return Err(fetcher.corrupt(footer_offset, rule));
        }
        if let Some(rule) = resident.contradiction(meta, holds_ranges) {
            return Err(fetcher.corrupt(footer.properties.offset, rule));
        }
        Ok(resident)
    }

    /// The rule that is broken if the blocks are not contiguous. Decoding the index has checked the
    /// data blocks.
    fn gap(&self, footer_offset: u64) -> Option<&'static str> {
        let Footer { filter, properties, index, .. } = self.footer;
        let mut end = Some(self.index.data_end());
        let extras_at = filter.map_or(end, BlockHandle::end).unwrap_or(u64::MAX);
        let extras = self.properties.extras.handles(extras_at).map(|(_, handle)| handle);
        for handle in filter.into_iter().chain(extras).chain([properties, index]) {
            if end != Some(handle.offset) {
                return Some("there is a gap or an overlap between the blocks after the data blocks");
            }
            end = handle.end();
        }
        (end != Some(footer_offset)).then_some("there is a gap or an overlap before the footer")
    }

    /// Whether the table is one of range deletes.
    pub(super) fn holds_ranges(&self) -> bool {
        self.properties.ranges > 0
    }

    /// The rule that is broken if the table contradicts itself or the manifest.
    fn contradiction(&self, meta: &TableMeta, holds_ranges: bool) -> Option<&'static str> {
        let Resident { footer, properties, .. } = self;
        let rules = [
            (
                properties.number == Ingested::identity_of(meta.ingested, meta.number),
                "the properties are those of another table",
            ),
            (
                properties.is_unnumbered == meta.ingested.is_some(),
                "the table has no sequence numbers, or the manifest says so, but not both",
            ),
            (
                footer.entries == meta.entries && properties.entries == meta.entries,
                "the number of entries is not the one in the manifest",
            ),
            (properties.keys == meta.keys, "the number of distinct keys is not the one in the manifest"),
            (properties.tombstones == meta.tombstones, "the number of tombstones is not the one in the manifest"),
            (properties.deadlines == meta.deadlines, "the deadlines are not those in the manifest"),
            (properties.references == meta.references, "the value files are not those in the manifest"),
            (
                properties.smallest == meta.smallest && properties.largest == meta.largest,
                "the range of keys is not the one in the manifest",
            ),
            (
                properties.smallest_seqno == meta.smallest_seqno && properties.largest_seqno == meta.largest_seqno,
                "the range of sequence numbers is not the one in the manifest",
            ),
            (properties.seed == footer.seed, "the hash seed in the properties is not the one in the footer"),
            (
                properties.data_blocks == self.index.len() as u64,
                "the number of data blocks is not the one in the index",
            ),
            (
                (properties.filter_policy != 0) == footer.filter.is_some(),
                "the properties and the footer disagree on whether there is a filter",
            ),
            (
                [0, properties.entries].contains(&properties.ranges)
                    && self.holds_ranges() == (footer.features & features::RANGE_DELETE != 0),
                "a table holds range deletes beside entries, or does not say so",
            ),
            (
                self.holds_ranges() == holds_ranges,
                "the manifest names a table of range deletes as one of entries, or the other way round",
            ),
        ];
        rules.iter().find(|(holds, _)| !holds).map(|(_, rule)| *rule)
    }

    /// The data block at position `i`, if it is in memory and verified.
    #[inline]
    pub(super) fn in_memory<'p>(&'p self, i: usize, pin: &'p Pin<'_>) -> Option<ResidentBlock<'p>> {
        match &self.mapped {
            None => self.slots.get(i, pin).map(ResidentBlock::Cached),
            Some(mapped) => mapped.get(self.index.resident()?, i).map(ResidentBlock::Mapped),
        }
    }

    /// Prefetches everything that the filter reads when it does not say no.
    #[inline]
    pub(super) fn prefetch_filter(&self, hash: KeyHash) {
        if let TableFilter::Usable(filter) = &self.filter {
            filter.prefetch_all(hash);
        }
    }

    /// [`TableIndex::find`]; also prefetches what locates the block.
    #[inline]
    pub(super) fn find(&self, fetcher: &Fetcher, key: &[u8]) -> Result<usize> {
        match self.find_resident(key) {
            Some(position) => Ok(position),
            None => self.index.find(fetcher, key),
        }
    }

    /// [`Resident::find`], if the index has been in memory from the beginning.
    #[inline]
    pub(super) fn find_resident(&self, key: &[u8]) -> Option<usize> {
        let index = self.index.resident()?;
        Some(index.find(key, |positions| match &self.mapped {
            None => self.slots.prefetch(positions),
            Some(_) => index.prefetch_handles(positions),
        }))
    }

    /// The whole index, for a read of the whole table.
    pub(super) fn whole_index(&self, fetcher: &Fetcher) -> Result<WholeBlock<'_, Index>> {
        self.index.read_whole(fetcher, self.footer.index)
    }

    fn filter_memory(&self) -> usize {
        self.filter.memory() + self.range_filter.memory()
    }

    /// Bytes read to open the table: everything but the data blocks.
    pub(super) fn opening_len(&self) -> u64 {
        FILE_HEADER_LEN as u64 + self.footer.size.saturating_sub(self.index.data_end())
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        let filter = self.filter_memory();
        let keys = self.properties.smallest.len() + self.properties.largest.len();
        let mapped = self.mapped.as_ref().map_or(0, Mapped::memory);
        size_of::<Resident>() + self.index.memory() + self.slots.memory() + mapped + filter + keys
    }
}

/// Reads and checks the index, and charges for it. It stays in memory if there is room for it.
fn read_index(fetcher: &Fetcher, number: u64, handle: BlockHandle, charge: &mut MemoryCharge) -> Result<TableIndex> {
    let block = fetcher.meta_block(handle)?;
    let malformed = |malformed| fetcher.corrupt(handle.offset, malformed);
    let index = Index::decode(&block, Some(&fetcher.context.memory)).map_err(malformed)?;
    let index = match charge.try_resize(index.memory()) {
        true => TableIndex::whole(index),
        false => TableIndex::paged(fetcher, number, handle, &block, index),
    };
    charge.resize(index.memory());
    Ok(index)
}

fn degraded_by(error: &Error) -> FilterState {
    FilterState::Degraded(rule_of(error))
}

/// The rule that is broken if a filter contradicts its table's properties.
fn filter_contradiction(properties: &Properties, info: &FilterInfo) -> Option<&'static str> {
    let keys = properties.keys;
    let max_keys = if info.prefixes.is_some() { keys.saturating_mul(2) } else { keys };
    // A binary fuse filter counts keys with equal hashes once. That happens now and then among a
    // billion keys.
    let min_keys = keys - keys / 1024;
    let rules = [
        (
            info.is_of(properties.filter_policy, properties.filter_millibits) && info.keys == properties.filter_keys,
            "the filter is not the one that the properties describe",
        ),
        ((min_keys..=max_keys).contains(&info.keys), "the filter's number of keys does not fit the table"),
    ];
    rules.iter().find(|(holds, _)| !holds).map(|(_, rule)| *rule)
}

impl TableFilter {
    /// A filter that is sound in itself is still rejected unless it is the one that the properties
    /// describe. Without `room`, its lines do not stay in memory, if it can be asked in pages.
    ///
    /// Fails only for want of descriptors. The caller forgets that it has tried.
    fn read(fetcher: &Fetcher, footer: &Footer, properties: &Properties, room: bool) -> Result<TableFilter> {
        let Some(handle) = footer.filter else {
            return Ok(TableFilter::None);
        };
        let block = match fetcher.meta_block(handle) {
            Ok(block) => block,
            Err(error) if lacks_descriptors(&error) => return Err(error),
            Err(error) => return Ok(TableFilter::Degraded(error)),
        };
        if properties.filter_hash.is_some_and(|hash| hash != filter_hash(&block)) {
            let rule = "the hash of the filter is not the one in the properties";
            return Ok(TableFilter::Degraded(fetcher.corrupt(handle.offset, rule)));
        }
        let of = (properties.number, footer.seed);
        let filter = Filter::open_in(Some(&fetcher.context.memory), &block, footer.seed);
        let mismatch = || filter.info().and_then(|info| filter_contradiction(properties, info));
        Ok(match filter.degraded().or_else(mismatch) {
            Some(reason) => TableFilter::Degraded(fetcher.corrupt(handle.offset, reason)),
            None => match filter.outline().filter(|_| !room) {
                Some(outline) => TableFilter::Paged(Box::new(PagedFilter::new(fetcher, of, handle, &block, outline))),
                None => TableFilter::Usable(filter),
            },
        })
    }

    /// The whole filter, if there is one, read anew if only pages of it are in memory. Fails if it
    /// is unusable.
    pub(super) fn whole(&self, fetcher: &Fetcher, resident: &Resident) -> Result<Option<WholeBlock<'_, Filter>>> {
        match self {
            TableFilter::None => Ok(None),
            TableFilter::Degraded(error) => Err(error.clone()),
            TableFilter::Usable(filter) => Ok(Some(WholeBlock::Resident(filter))),
            TableFilter::Paged(_) => match TableFilter::read(fetcher, &resident.footer, &resident.properties, true)? {
                TableFilter::Usable(filter) => Ok(Some(WholeBlock::Read(Box::new(filter)))),
                TableFilter::Degraded(error) => Err(error),
                TableFilter::None | TableFilter::Paged(_) => Ok(None),
            },
        }
    }

    /// Bytes of memory.
    fn memory(&self) -> usize {
        match self {
            TableFilter::Usable(filter) => filter.memory(),
            TableFilter::Paged(filter) => filter.memory(),
            TableFilter::None | TableFilter::Degraded(_) => 0,
        }
    }

    /// The extractor of the prefixes that a usable filter holds.
    pub(super) fn prefixes(&self) -> Option<PrefixExtractor> {
        match self {
            TableFilter::None | TableFilter::Degraded(_) => None,
            TableFilter::Usable(filter) => filter.prefixes(),
            TableFilter::Paged(filter) => filter.outline.prefixes(),
        }
    }

    /// Why the filter answers "maybe" to every key, as found when the table was opened.
    pub(super) fn failure(&self) -> Option<&Error> {
        match self {
            TableFilter::Degraded(error) => Some(error),
            TableFilter::None | TableFilter::Usable(_) | TableFilter::Paged(_) => None,
        }
    }

    /// The parameters of a usable filter.
    pub(super) fn info(&self) -> Option<&FilterInfo> {
        match self {
            TableFilter::None | TableFilter::Degraded(_) => None,
            TableFilter::Usable(filter) => filter.info(),
            TableFilter::Paged(filter) => Some(filter.outline.info()),
        }
    }

    /// The state to report to users.
    pub(super) fn state(&self) -> FilterState {
        match self {
            TableFilter::None => FilterState::None,
            TableFilter::Degraded(error) => degraded_by(error),
            TableFilter::Usable(_) => self.info().cloned().map_or(FilterState::None, FilterState::Usable),
            TableFilter::Paged(filter) => {
                filter.failure().map_or_else(|| FilterState::Usable(filter.outline.info().clone()), degraded_by)
            }
        }
    }
}
