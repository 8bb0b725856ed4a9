//! [`TableRangeFilter`]: the range filter of an open table.
//!
//! It stays in memory as a whole. If the budget had no room for it when the table was opened, every
//! [`ASKED`] questions the budget is asked again, and the answer is "maybe" until there is room.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::extras::Extras;
use super::fetch::Fetcher;
use super::footer::BlockHandle;
use super::properties::Properties;
use crate::error::{Error, Result};
use crate::filter::{RangeFilter, RangeFilterState, RangeInfo};
use crate::memory::budget::{MemoryCharge, MemoryUse};
use crate::sync::OnceLock;

/// See the module.
const ASKED: usize = 256;

pub(super) enum TableRangeFilter {
    /// The table was written without a range filter, or its builder declined.
    None,
    Usable(BlockHandle, RangeFilter),
    /// There has been no room for it.
    Waiting(Box<Waiting>),
    /// It is damaged, unreadable, of a later version or of another table, for this reason. It
    /// answers "maybe" for every range.
    Degraded(BlockHandle, Error),
}

pub(super) struct Waiting {
    handle: BlockHandle,
    info: RangeInfo,
    /// Bytes of memory.
    memory: usize,
    asked: AtomicUsize,
    loaded: OnceLock<(RangeFilter, MemoryCharge)>,
}

impl TableRangeFilter {
    /// Of a table with these properties, whose extra blocks begin at `start`. `charge` has what the
    /// table's other filter takes.
    pub(super) fn read(
        fetcher: &Fetcher,
        properties: &Properties,
        start: u64,
        charge: &mut MemoryCharge,
    ) -> TableRangeFilter {
        let mut extras = properties.extras.handles(start);
        let Some((_, handle)) = extras.find(|(kind, _)| *kind == Extras::RANGE_FILTER) else {
            // The builder declines only what would not help.
            return match properties.range_filter {
                Some(request) if request.rates.are_useful() => {
                    let error = fetcher.corrupt(start, "the range filter that the properties describe is missing");
                    TableRangeFilter::Degraded(BlockHandle::default(), error)
                }
                _ => TableRangeFilter::None,
            };
        };
        let other = charge.bytes();
        match open(fetcher, properties, handle) {
            Err(error) => TableRangeFilter::Degraded(handle, error),
            Ok((filter, _)) if charge.try_resize(other + filter.memory()) => TableRangeFilter::Usable(handle, filter),
            Ok((filter, info)) => TableRangeFilter::Waiting(Box::new(Waiting {
                handle,
                info,
                memory: filter.memory(),
                asked: AtomicUsize::new(0),
                loaded: OnceLock::new(),
            })),
        }
    }

    /// The filter, if it can be asked now.
    #[inline]
    pub(super) fn get(&self, fetcher: &Fetcher, properties: &Properties) -> Option<&RangeFilter> {
        match self {
            TableRangeFilter::Usable(_, filter) => Some(filter),
            TableRangeFilter::Waiting(waiting) => waiting.get(fetcher, properties),
            TableRangeFilter::None | TableRangeFilter::Degraded(..) => None,
        }
    }

    /// Whether [`get`](TableRangeFilter::get) may return a filter.
    #[inline]
    pub(super) fn may_be_asked(&self) -> bool {
        matches!(self, TableRangeFilter::Usable(..) | TableRangeFilter::Waiting(_))
    }

    /// The whole filter, for a read of the whole table. Fails if it is unusable.
    pub(super) fn whole(&self, fetcher: &Fetcher, properties: &Properties) -> Result<Option<RangeFilter>> {
        match (self, self.handle()) {
            (TableRangeFilter::Degraded(_, error), _) => Err(error.clone()),
            (_, Some(handle)) => Ok(Some(open(fetcher, properties, handle)?.0)),
            (_, None) => Ok(None),
        }
    }

    pub(super) fn handle(&self) -> Option<BlockHandle> {
        match self {
            TableRangeFilter::None => None,
            TableRangeFilter::Usable(handle, _) | TableRangeFilter::Degraded(handle, _) => Some(*handle),
            TableRangeFilter::Waiting(waiting) => Some(waiting.handle),
        }
    }

    /// The error for a filter that answers "maybe" to every range.
    pub(super) fn failure(&self) -> Option<&Error> {
        match self {
            TableRangeFilter::Degraded(_, error) => Some(error),
            _ => None,
        }
    }

    /// Bytes of memory. Those of a filter for which there was room later are charged apart.
    pub(super) fn memory(&self) -> usize {
        match self {
            TableRangeFilter::Usable(_, filter) => filter.memory(),
            TableRangeFilter::Waiting(waiting) => {
                size_of::<Waiting>() + waiting.loaded.get().map_or(0, |(filter, _)| filter.memory())
            }
            TableRangeFilter::None | TableRangeFilter::Degraded(..) => 0,
        }
    }

    /// The parameters of a sound filter.
    pub(super) fn info(&self) -> Option<&RangeInfo> {
        match self {
            TableRangeFilter::Usable(_, filter) => filter.info(),
            TableRangeFilter::Waiting(waiting) => Some(&waiting.info),
            TableRangeFilter::None | TableRangeFilter::Degraded(..) => None,
        }
    }

    /// The state to report to users.
    pub(super) fn state(&self, properties: &Properties) -> RangeFilterState {
        match (self, self.info()) {
            (TableRangeFilter::Degraded(_, error), _) => RangeFilterState::Degraded(rule_of(error)),
            (TableRangeFilter::Waiting(waiting), Some(info)) if waiting.loaded.get().is_none() => {
                RangeFilterState::Waiting(info.clone())
            }
            (_, Some(info)) => RangeFilterState::Usable(info.clone()),
            (_, None) => match properties.range_filter {
                Some(request) => RangeFilterState::Declined(request.rates),
                None => RangeFilterState::None,
            },
        }
    }
}

impl Waiting {
    #[cold]
    fn get(&self, fetcher: &Fetcher, properties: &Properties) -> Option<&RangeFilter> {
        if self.loaded.get().is_none() && self.asked.fetch_add(1, Ordering::Relaxed) % ASKED == ASKED - 1 {
            let mut charge = MemoryCharge::new(fetcher.context.budget(), MemoryUse::Filters, 0);
            // A failure is left to the next time.
            if charge.try_resize(self.memory)
                && let Ok((filter, _)) = open(fetcher, properties, self.handle)
            {
                let _ = self.loaded.set((filter, charge));
            }
        }
        self.loaded.get().map(|(filter, _)| filter)
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
fn open(fetcher: &Fetcher, properties: &Properties, handle: BlockHandle) -> Result<(RangeFilter, RangeInfo)> {
    let block = fetcher.meta_block(handle)?;
    let filter = RangeFilter::open_in(Some(&fetcher.context.memory), &block, properties.number);
    let corrupt = |rule| fetcher.corrupt(handle.offset, rule);
    if let Some(rule) = filter.degraded() {
        return Err(corrupt(rule));
    }
    let Some(info) = filter.info().cloned() else { return Err(corrupt("the range filter says nothing of itself")) };
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
        None => Ok((filter, info)),
    }
}
