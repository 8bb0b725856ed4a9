//! [`PagedFilter`]: the filter of an open table for which there is no room as a whole.
//!
//! A table is opened with its whole filter in memory while the budget has room for it
//! (`MemoryBudget::has_room`): asking it then costs an access to memory. Otherwise its lines are
//! read in pages through the block cache, where those that are used often stay. An absent key needs
//! one page, as a rule, and a key that is there two.
//!
//! Opening the table reads and verifies the whole block in either case. Of a paged filter, a
//! checksum of each page stays, bound to file and offset as on disk: a page that is read again is
//! what was verified, or the filter counts as damaged from then on and means "maybe".
//!
//! Where most look-ups find their key, a page that is not in memory is read for one look-up of
//! [`SAMPLE`] only: the data block most likely would be read, too, and decides alone. The sample
//! tells when that ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::fetch::{Fetcher, SHORT};
use super::footer::BlockHandle;
use crate::block::Frame;
use crate::cache::BlockSlots;
use crate::error::{Error, Result};
use crate::filter::{FilterOutline, KeyHash};
use crate::format::checksum::bound_crc;
use crate::report::event::Event;
use crate::report::stats::ReadEvent;
use crate::sync::OnceLock;
use crate::trace::FilterAnswer;

/// Bytes of a page. Only the last one of a filter is shorter.
const PAGE_LEN: usize = 4096;
const LINE_LEN: usize = FilterOutline::LINE_LEN;
/// See the module.
const SAMPLE: usize = 16;

pub(super) struct PagedFilter {
    pub(super) outline: FilterOutline,
    /// Offset of the first line in the file, and the bytes of all lines.
    start: u64,
    len: usize,
    /// Of each page.
    checksums: Box<[u32]>,
    /// The pages in the cache.
    slots: Arc<BlockSlots>,
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

impl PagedFilter {
    /// `block` is the verified block at `handle` of which `outline` is.
    pub(super) fn new(
        fetcher: &Fetcher,
        number: u64,
        handle: BlockHandle,
        block: &[u8],
        outline: FilterOutline,
    ) -> PagedFilter {
        let lines = block.get(FilterOutline::LINES_AT..).unwrap_or_default();
        let start = handle.offset + FilterOutline::LINES_AT as u64;
        let checksums: Box<[u32]> = lines
            .chunks(PAGE_LEN)
            .zip((start..).step_by(PAGE_LEN))
            .map(|(page, offset)| bound_crc(fetcher.identity, offset, page))
            .collect();
        let context = &fetcher.context;
        let slots = BlockSlots::new(&context.cache_owner, number, checksums.len(), &context.memory);
        PagedFilter {
            outline,
            start,
            len: lines.len(),
            checksums,
            slots: Arc::new(slots),
            expected: AtomicUsize::new(0),
            failure: OnceLock::new(),
        }
    }

    /// Asks the filter. If the caller `expects` that the key is there, mostly without reading pages
    /// that are not in memory.
    pub(super) fn ask(&self, fetcher: &Fetcher, hash: KeyHash, expects: bool) -> FilterAnswer {
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
        let (page, at) = (i / (PAGE_LEN / LINE_LEN), i % (PAGE_LEN / LINE_LEN) * LINE_LEN);
        let line_in = |page: &[u8]| page.get(at..).and_then(|rest| rest.first_chunk()).copied();
        let cached = fetcher.context.epoch().pin(|pin| {
            let frame = self.slots.get(page, pin)?.framed();
            frame.set_referenced();
            line_in(frame.bytes())
        });
        match cached {
            Some(line) => Ok(line),
            None if may_read => self.read(fetcher, page, line_in).map_err(NoLine::Failed),
            None => Err(NoLine::Absent),
        }
    }

    /// Reads a page, and returns what `find` finds in it.
    #[cold]
    fn read<T>(&self, fetcher: &Fetcher, page: usize, find: impl FnOnce(&[u8]) -> Option<T>) -> Result<T> {
        let cache = fetcher.context.cache();
        let before = page * PAGE_LEN;
        let (offset, len) = (self.start + before as u64, self.len.saturating_sub(before).min(PAGE_LEN));
        let admitted = cache.admit(&self.slots, page, len);
        let keep = admitted.is_some();
        let mut frame = admitted.unwrap_or_else(|| Frame::new(len));
        let bytes = &mut frame.bytes_mut()[..len];
        fetcher.file.fill_block(bytes, offset, None, SHORT)?;
        fetcher.counters.count(ReadEvent::FilterRead);
        let found = find(bytes);
        match (self.checksums.get(page), found) {
            (Some(checksum), Some(found)) if *checksum == bound_crc(fetcher.identity, offset, bytes) => {
                if keep {
                    cache.insert(&self.slots, page, &frame.into_bytes());
                } else {
                    frame.spare();
                }
                Ok(found)
            }
            _ => Err(fetcher.corrupt(offset, "a page of the filter is not as it was when the table was opened")),
        }
    }

    /// The error for a filter that answers "maybe" to every key.
    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// The pages in the cache.
    pub(super) fn slots(&self) -> &BlockSlots {
        &self.slots
    }

    /// Bytes of memory without those of the cache.
    pub(super) fn memory(&self) -> usize {
        size_of::<PagedFilter>() + size_of_val(&*self.checksums) + self.slots.memory()
    }
}
