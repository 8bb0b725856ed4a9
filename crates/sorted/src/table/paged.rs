//! [`PagedFilter`]: the filter of an open table, in [`Pages`]. An absent key needs one page, as a
//! rule, and a key that is there two.
//!
//! A page that fails its checksum means "maybe" for every key from then on.
//!
//! Where most look-ups find their key, a page that is not in memory is read for one look-up of
//! [`SAMPLE`] only: the data block most likely would be read, too, and decides alone. The sample
//! tells when that ends.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::fetch::Fetcher;
use super::footer::BlockHandle;
use super::pages::{Pages, Whole};
use crate::cache::BlockSlots;
use crate::error::Error;
use crate::filter::{Filter, FilterOutline, KeyHash};
use crate::memory::budget::MemoryUse;
use crate::report::event::Event;
use crate::report::stats::ReadEvent;
use crate::sync::OnceLock;
use crate::trace::FilterAnswer;

const LINE_LEN: usize = FilterOutline::LINE_LEN;
/// See the module.
const SAMPLE: usize = 16;

pub(super) struct PagedFilter {
    pub(super) outline: FilterOutline,
    pages: Pages<Filter>,
    /// Look-ups while most found their key.
    expected: AtomicUsize,
    /// Why a page could not be read.
    failure: OnceLock<Error>,
}

/// Why there is no line.
enum NoLine {
    /// It is not in memory and was not to be read.
    Absent,
    Failed(Error),
}

impl Whole for Filter {
    const USE: MemoryUse = MemoryUse::Filters;
    const EVENT: ReadEvent = ReadEvent::FilterRead;
    const RULE: &str = "a page of the filter is not as it was when the table was opened";

    fn decode(fetcher: &Fetcher, seed: u64, block: &[u8]) -> Option<Filter> {
        let filter = Filter::open_in(Some(&fetcher.context.memory), block, seed);
        filter.degraded().is_none().then_some(filter)
    }

    fn memory(&self) -> usize {
        Filter::memory(self)
    }
}

impl PagedFilter {
    /// `block` is the verified block at `handle` of which `outline` is.
    pub(super) fn new(
        fetcher: &Fetcher,
        (number, seed): (u64, u64),
        handle: BlockHandle,
        block: &[u8],
        outline: FilterOutline,
    ) -> PagedFilter {
        let pages = Pages::new(fetcher, number, seed, handle, block, block.len());
        PagedFilter { outline, pages, expected: AtomicUsize::new(0), failure: OnceLock::new() }
    }

    /// Asks the filter. If the caller `expects` that the key is there, mostly without reading pages
    /// that are not in memory.
    pub(super) fn ask(&self, fetcher: &Fetcher, hash: KeyHash, expects: bool) -> FilterAnswer {
        if let Some(filter) = self.pages.whole() {
            return if filter.may_contain(hash) { FilterAnswer::Maybe } else { FilterAnswer::No };
        }
        if self.failure.get().is_some() {
            return FilterAnswer::Degraded;
        }
        let may_read = !expects || self.expected.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLE);
        match self.outline.may_contain(hash, |i| self.line(fetcher, i, may_read)) {
            Ok(true) => FilterAnswer::Maybe,
            Ok(false) => FilterAnswer::No,
            Err(NoLine::Absent) => FilterAnswer::Skipped,
            Err(NoLine::Failed(error)) => {
                // Another error, such as too many open files, may pass.
                if let Error::Corruption { .. } = error {
                    self.fail(fetcher, error);
                }
                FilterAnswer::Degraded
            }
        }
    }

    /// Notes that the filter is damaged, and reports it the first time.
    fn fail(&self, fetcher: &Fetcher, reason: Error) {
        let mut is_first = false;
        let reason = self.failure.get_or_init(|| {
            is_first = true;
            reason
        });
        if is_first {
            let (table, reason) = (fetcher.path().to_owned(), reason.clone());
            fetcher.context.events().send(|| Event::FilterDegraded { table, reason });
        }
    }

    fn line(&self, fetcher: &Fetcher, i: usize, may_read: bool) -> Result<[u8; LINE_LEN], NoLine> {
        let mut line = [0; LINE_LEN];
        match self.pages.copy(fetcher, FilterOutline::LINES_AT + i * LINE_LEN, &mut line, may_read) {
            Ok(true) => Ok(line),
            Ok(false) => Err(NoLine::Absent),
            Err(error) => Err(NoLine::Failed(error)),
        }
    }

    /// The error for a filter that answers "maybe" to every key.
    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// The pages in the cache.
    pub(super) fn slots(&self) -> &BlockSlots {
        self.pages.slots()
    }

    /// Bytes of memory without those of the cache, and of the whole filter.
    pub(super) fn memory(&self) -> usize {
        size_of::<PagedFilter>() + self.pages.memory()
    }
}
