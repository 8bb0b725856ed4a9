//! [`TableRangeFilter`]: the range filter of an open table.
//!
//! It stays in memory as a whole, beside the whole index: bounds of blocks are separators. If the
//! budget had no room for it when the table was opened, the budget is asked again every [`ASKED`]
//! questions, and the answer is "maybe" until there is room.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::extras::Extras;
use super::fetch::Fetcher;
use super::footer::BlockHandle;
use super::properties::Properties;
use super::table_index::TableIndex;
use crate::error::{Error, Result};
use crate::filter::{RangeFilter, RangeFilterState, RangeInfo, RangeRates};
use crate::memory::budget::{MemoryCharge, MemoryUse};
use crate::report::event::Event;
use crate::sync::OnceLock;

/// See the module.
const ASKED: usize = 256;

/// `None` if the table was written without one, or its builder declined.
pub(super) struct TableRangeFilter(Option<Box<RangeFilterBlock>>);

struct RangeFilterBlock {
    handle: BlockHandle,
    /// Bytes of memory that it takes, as far as is known.
    needs: AtomicUsize,
    /// Set once there was room for it. The error if it is damaged, of a later version or of another
    /// table: it answers "maybe" for every range.
    loaded: OnceLock<Result<(RangeFilter, MemoryCharge)>>,
    asked: AtomicUsize,
}

impl TableRangeFilter {
    /// Of a table with these properties, whose extra blocks begin at `start`.
    pub(super) fn read(fetcher: &Fetcher, properties: &Properties, start: u64, index: &TableIndex) -> TableRangeFilter {
        let mut extras = properties.extras.handles(start);
        let handle = extras.find(|(kind, _)| *kind == Extras::RANGE_FILTER).map(|(_, handle)| handle);
        // The builder declines only what would not help.
        let is_missing = handle.is_none() && properties.range_filter.is_some_and(|request| request.rates.are_useful());
        if handle.is_none() && !is_missing {
            return TableRangeFilter(None);
        }
        let (needs, handle) = (handle.map_or(0, |handle| handle.len as usize), handle.unwrap_or_default());
        let block =
            RangeFilterBlock { handle, needs: needs.into(), loaded: OnceLock::new(), asked: AtomicUsize::new(0) };
        if is_missing {
            let error = fetcher.corrupt(start, "the range filter that the properties describe is missing");
            let _ = block.loaded.set(Err(error));
        } else if index.known().is_some() {
            block.load(fetcher, properties);
        }
        TableRangeFilter(Some(Box::new(block)))
    }

    /// The filter, if it can be asked now.
    #[inline]
    pub(super) fn get(&self, fetcher: &Fetcher, properties: &Properties, index: &TableIndex) -> Option<&RangeFilter> {
        let block = self.0.as_ref()?;
        match block.loaded.get() {
            Some(loaded) => loaded.as_ref().ok().map(|(filter, _)| filter),
            None => block.load_later(fetcher, properties, index),
        }
    }

    /// Whether [`get`](TableRangeFilter::get) may return a filter.
    #[inline]
    pub(super) fn may_be_asked(&self) -> bool {
        self.0.as_ref().is_some_and(|block| block.loaded.get().is_none_or(Result::is_ok))
    }

    /// The whole filter, for a read of the whole table. Fails if it is unusable.
    pub(super) fn whole(&self, fetcher: &Fetcher, properties: &Properties) -> Result<Option<RangeFilter>> {
        match (self.failure(), self.handle()) {
            (Some(error), _) => Err(error.clone()),
            (None, handle) => handle.map(|handle| open(fetcher, properties, handle)).transpose(),
        }
    }

    pub(super) fn handle(&self) -> Option<BlockHandle> {
        self.0.as_ref().map(|block| block.handle)
    }

    fn loaded(&self) -> Option<&Result<(RangeFilter, MemoryCharge)>> {
        self.0.as_ref()?.loaded.get()
    }

    /// The error for a filter that answers "maybe" to every range.
    pub(super) fn failure(&self) -> Option<&Error> {
        self.loaded()?.as_ref().err()
    }

    fn info(&self) -> Option<&RangeInfo> {
        self.loaded()?.as_ref().ok()?.0.info()
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.charged() + self.0.as_ref().map_or(0, |_| size_of::<RangeFilterBlock>())
    }

    /// Those of them that are charged here.
    pub(super) fn charged(&self) -> usize {
        self.loaded().and_then(|loaded| loaded.as_ref().ok()).map_or(0, |(filter, _)| filter.memory())
    }

    /// The rates of a filter that is sound, as far as is known.
    pub(super) fn rates(&self, properties: &Properties) -> Option<RangeRates> {
        self.0.as_ref().filter(|_| self.failure().is_none())?;
        properties.range_filter.map(|request| request.rates)
    }

    /// The state to report to users.
    pub(super) fn state(&self, properties: &Properties) -> RangeFilterState {
        match (self.failure(), self.info(), properties.range_filter) {
            (Some(error), ..) => RangeFilterState::Degraded(rule_of(error)),
            (_, Some(info), _) => RangeFilterState::Usable(info.clone()),
            (.., Some(request)) if self.0.is_some() => RangeFilterState::Waiting(request.rates),
            (.., Some(request)) => RangeFilterState::Declined(request.rates),
            (.., None) => RangeFilterState::None,
        }
    }
}

impl RangeFilterBlock {
    #[cold]
    fn load_later(&self, fetcher: &Fetcher, properties: &Properties, index: &TableIndex) -> Option<&RangeFilter> {
        let is_turn = self.asked.fetch_add(1, Ordering::Relaxed) % ASKED == ASKED - 1;
        if is_turn
            && index.known().is_some()
            && self.load(fetcher, properties)
            && let Some(Err(reason)) = self.loaded.get()
        {
            let (table, reason) = (fetcher.path().to_owned(), reason.clone());
            fetcher.context.events.send(|| Event::FilterDegraded { table, reason });
        }
        self.loaded.get()?.as_ref().ok().map(|(filter, _)| filter)
    }

    /// Reads and checks the filter, if there is room for it. Whether this has settled what it is: a
    /// failure to read may pass.
    fn load(&self, fetcher: &Fetcher, properties: &Properties) -> bool {
        let mut charge = MemoryCharge::new(fetcher.context.budget(), MemoryUse::Filters, 0);
        if !charge.try_resize(self.needs.load(Ordering::Relaxed)) {
            return false;
        }
        let loaded = match open(fetcher, properties, self.handle) {
            Ok(filter) => {
                self.needs.store(filter.memory(), Ordering::Relaxed);
                if !charge.try_resize(filter.memory()) {
                    return false;
                }
                Ok((filter, charge))
            }
            Err(error) if error.is_corruption() => Err(error),
            Err(_) => return false,
        };
        self.loaded.set(loaded).is_ok()
    }
}

/// What the error says that is broken.
pub(super) fn rule_of(error: &Error) -> String {
    match error {
        Error::Corruption { rule, .. } => rule.clone(),
        error => error.to_string(),
    }
}

/// Reads and checks the filter. One that is sound in itself is still rejected unless it fits the
/// table's properties.
fn open(fetcher: &Fetcher, properties: &Properties, handle: BlockHandle) -> Result<RangeFilter> {
    let block = fetcher.meta_block(handle)?;
    let filter = RangeFilter::open_in(Some(&fetcher.context.memory), &block, properties.number);
    let corrupt = |rule| fetcher.corrupt(handle.offset, rule);
    if let Some(rule) = filter.degraded() {
        return Err(corrupt(rule));
    }
    let Some(info) = filter.info() else { return Err(corrupt("the range filter says nothing of itself")) };
    let request = properties.range_filter;
    let rules = [
        (
            request.is_some_and(|request| (request.millibits, request.rates) == (info.millibits, info.rates)),
            "the range filter is not the one that the properties describe",
        ),
        (
            u64::from(info.blocks) == properties.data_blocks,
            "the range filter has another number of data blocks than the table",
        ),
        (
            (properties.keys..=properties.entries).contains(&info.keys),
            "the range filter's number of keys does not fit the table",
        ),
    ];
    match rules.iter().find(|(holds, _)| !holds) {
        Some((_, rule)) => Err(corrupt(rule)),
        None => Ok(filter),
    }
}
