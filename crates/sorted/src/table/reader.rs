//! [`Table`]: look-ups in one SSTable.

mod blocks;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fetch::{Fetcher, ReadHint};
use super::footer::BlockHandle;
use super::paged::PagedFilter;
use super::planned::{BlockAddress, PlannedRead, PlannedReads};
use super::properties::Properties;
use super::resident::{Resident, ResidentBlock, TableFilter};
use super::{TableContext, TableMeta};
use crate::block::BlockHit;
use crate::error::{Error, Result};
use crate::filter::{Filter, FilterState, KeyHash};
use crate::format::Malformed;
use crate::format::filename::FileKind;
use crate::format::key::{SeqNo, ValueKind, Window};
use crate::format::pointer::split_separate;
use crate::memory::epoch::Pin;
use crate::report::event::Event;
use crate::report::stats::{FilterLedger, FilterRates, ReadCounters, ReadEvent};
use crate::sync::{Mutex, OnceLock};
use crate::trace::{FilterAnswer, Found, ReadTrace, Untraced};
use crate::value::FoundValue;
use crate::values::{SeparateValue, ValueFile};
use crate::vfs::ReadableFile;

/// How a read uses the filters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterMode {
    /// Ask the filter first, and believe its "no".
    #[default]
    Use,
    /// Do not ask: search every table whose key range holds the key. For measuring what filters
    /// save.
    Ignore,
    /// Ask, count the answer, and search the table in any case. A "no" for a key that is in the
    /// table is an error that names the table.
    Shadow,
}

/// A table of some version. There is one per file, shared by the versions that contain it.
///
/// The first look-up reads filter, index and properties, which then stay resident. A failed open is
/// not remembered: the next look-up retries.
pub struct Table {
    meta: TableMeta,
    /// Whether it is one of range deletes.
    holds_ranges: bool,
    fetcher: Fetcher,
    /// The value files to which entries point.
    values: Box<[Arc<ValueFile>]>,
    resident: OnceLock<Resident>,
    /// Held while `resident` is read, so that racing first look-ups read it once.
    opening: Mutex<()>,
    obsolete: AtomicBool,
    /// Whether an excess of false positives has been reported.
    excess_reported: AtomicBool,
}

/// A point read.
#[derive(Clone, Copy, Debug)]
pub struct PointRead<'a> {
    pub key: &'a [u8],
    /// The key's hash under the store's seed. Recomputed for a table with another seed.
    pub hash: KeyHash,
    pub window: Window,
    pub mode: ReadFlags,
}

impl PointRead<'_> {
    /// Whether the table holds nothing newer than the range delete that covers the key: neither it
    /// nor its filter is asked. A read without a range delete does not touch the table for this.
    #[inline]
    pub fn is_all_covered(&self, table: &Table) -> bool {
        self.window.is_covered() && table.meta.largest_seqno < self.window.oldest
    }
}

/// How a read uses filters and the block cache.
#[derive(Clone, Copy, Debug)]
pub struct ReadFlags {
    pub filters: FilterMode,
    pub fill_cache: bool,
    /// Whether values in value files are wanted.
    pub values: bool,
}

impl ReadFlags {
    /// For reads of whole tables: no filter is asked, and the cache stays as it is.
    pub const UNFILTERED: ReadFlags = ReadFlags { filters: FilterMode::Ignore, fill_cache: false, values: true };
}

/// Which counters a read of a block updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counting {
    /// None: the read is not a user's.
    Uncounted,
    Read,
    /// Those of a read that the filter would have avoided, too.
    AvoidableRead,
}

/// A version of a key, valid while the reader is pinned.
pub struct TableHit<'p> {
    /// For tests only: reads of cached keys were a sixth slower with it.
    #[cfg(test)]
    pub seqno: SeqNo,
    pub kind: ValueKind,
    pub value: FoundValue<'p>,
}

impl<'p> TableHit<'p> {
    #[cfg_attr(not(test), expect(unused_variables, reason = "see `seqno`"))]
    fn new(seqno: SeqNo, kind: ValueKind, value: FoundValue<'p>) -> TableHit<'p> {
        TableHit {
            #[cfg(test)]
            seqno,
            kind,
            value,
        }
    }

    /// What a trace says of it.
    fn found(&self) -> Found {
        match (Found::stored(self.kind, self.value.len()), &self.value) {
            (Found::Value(len), FoundValue::Separate(_)) => Found::SeparateValue(len),
            (found, _) => found,
        }
    }
}

impl<'p> Lookup<'p> {
    #[inline]
    fn of<'b>(hit: BlockHit<'b>, found: impl FnOnce(&'b [u8]) -> FoundValue<'p>) -> Lookup<'p> {
        match hit {
            BlockHit::Found { seqno, kind, value } => Lookup::Found(TableHit::new(seqno, kind, found(value))),
            BlockHit::Covered => Lookup::Covered,
            BlockHit::Newer => Lookup::Newer,
            BlockHit::Absent => Lookup::Absent,
        }
    }
}

/// What index and blocks hold for a key.
enum Lookup<'p> {
    Found(TableHit<'p>),
    /// See [`BlockHit::Covered`].
    Covered,
    /// Only versions newer than the snapshot.
    Newer,
    Absent,
}

/// Ends a read that has found nothing.
#[inline]
fn leave<'p>(trace: &mut impl ReadTrace, found: Found) -> Option<TableHit<'p>> {
    trace.leave(found);
    None
}

/// A point read in a table whose filter did not end it.
///
/// ```text
/// probe = Table::probe locate (prefetch_block prefetch_entry?)? will_need? finish
/// ```
#[derive(Clone, Copy)]
pub struct Probe<'p> {
    table: &'p Table,
    resident: &'p Resident,
    read: PointRead<'p>,
    answer: FilterAnswer,
    /// Position of the first block that may hold the key.
    position: usize,
}

impl Table {
    pub fn new(context: Arc<TableContext>, meta: TableMeta) -> Table {
        let values = meta.references.iter().map(|reference| context.values().hold(reference.file));
        Table {
            values: values.collect(),
            fetcher: Fetcher::new(context, meta.number, meta.size, meta.ingested),
            meta,
            holds_ranges: false,
            resident: OnceLock::new(),
            opening: Mutex::new(()),
            obsolete: AtomicBool::new(false),
            excess_reported: AtomicBool::new(false),
        }
    }

    pub fn meta(&self) -> &TableMeta {
        &self.meta
    }

    /// What the table states about itself.
    pub fn properties(&self) -> Result<&Properties> {
        Ok(&self.resident()?.properties)
    }

    /// This table as one of range deletes or, by default, of entries. It opens only if it is that.
    pub fn of_ranges(mut self, holds_ranges: bool) -> Table {
        self.holds_ranges = holds_ranges;
        self
    }

    /// Whether the table is one of range deletes.
    pub fn holds_ranges(&self) -> bool {
        self.holds_ranges
    }

    /// Whether a compaction could not read a value in this value file of the store.
    pub fn is_unreadable(&self, value_file: u64) -> bool {
        self.fetcher.context.values().is_unreadable(value_file)
    }

    /// How many value files of the store [are unreadable](Table::is_unreadable).
    pub fn unreadable_value_files(&self) -> usize {
        self.fetcher.context.values().unreadable_count()
    }

    /// Reads the value of a key to which an entry of this table points.
    pub fn separate_value(&self, key: &[u8], pointer: &[u8]) -> Result<SeparateValue> {
        self.fetcher.context.values().read(key, pointer)
    }

    pub fn path(&self) -> &Path {
        self.fetcher.path()
    }

    /// Opens the files of the table and of its values, and keeps them open as long as the table
    /// lives: another process may remove their names.
    pub fn keep_open(&self) -> Result<()> {
        self.fetcher.file.keep_open()?;
        self.values.iter().try_for_each(|file| file.file().keep_open())
    }

    /// The files that are kept open: the table's and those of its values, by kind.
    pub fn kept_files(&self) -> impl Iterator<Item = (FileKind, &Arc<dyn ReadableFile>)> {
        let own = self.fetcher.file.kept().map(|file| (FileKind::Table(self.meta.number), file));
        own.into_iter().chain(self.values.iter().filter_map(|file| file.kept()))
    }

    /// State of the filter.
    pub fn filter_state(&self) -> Result<FilterState> {
        Ok(self.resident()?.filter.state())
    }

    /// State of the filter, if the table is open.
    pub fn known_filter_state(&self) -> Option<FilterState> {
        self.opened().map(|resident| resident.filter.state())
    }

    /// Counts of reads in this table since it was created, and the theoretical rates of its filter.
    pub fn ledger(&self) -> FilterLedger {
        self.fetcher.counters.ledger()
    }

    /// The counters behind [`ledger`](Table::ledger), which may outlive the table.
    pub fn counters(&self) -> Arc<ReadCounters> {
        Arc::clone(&self.fetcher.counters)
    }

    /// Bytes of memory of index, filter and properties; 0 before the first look-up.
    pub fn resident_bytes(&self) -> usize {
        self.resident.get().map_or(0, Resident::memory)
    }

    /// The newest version of the key that the read can see. `expects_hit` is what
    /// [`expects_hit`](Table::expects_hit) says. Each look-up that succeeds is counted in exactly
    /// one class of [`ReadStats`](crate::report::stats::ReadStats).
    #[inline]
    pub fn get<'p>(
        &'p self,
        read: &PointRead<'p>,
        expects_hit: bool,
        pin: &'p Pin<'_>,
        trace: &mut impl ReadTrace,
    ) -> Result<Option<TableHit<'p>>> {
        let resident = self.open(trace)?;
        // For keys that usually exist, prefetch the filter's lines and search the index meanwhile,
        // so that the cache misses overlap.
        let mut expected = None;
        if expects_hit {
            if read.mode.filters != FilterMode::Ignore {
                resident.prefetch_filter(read.hash);
            }
            expected = resident.find_resident(read.key);
        }
        match self.probe_in(resident, read, trace) {
            Some(mut probe) => {
                match expected {
                    Some(position) => probe.position = position,
                    None => probe.locate()?,
                }
                probe.finish(pin, None, trace)
            }
            None => Ok(None),
        }
    }

    /// Asks the filter. `None` if the read uses filters and this one says no.
    #[inline]
    pub fn probe<'p>(&'p self, read: &PointRead<'p>, trace: &mut impl ReadTrace) -> Result<Option<Probe<'p>>> {
        Ok(self.probe_in(self.open(trace)?, read, trace))
    }

    #[inline(always)]
    fn probe_in<'p>(
        &'p self,
        resident: &'p Resident,
        read: &PointRead<'p>,
        trace: &mut impl ReadTrace,
    ) -> Option<Probe<'p>> {
        let seed = resident.footer.seed;
        let hash = if read.hash.seed() == seed { read.hash } else { KeyHash::new(seed, read.key) };
        let read = PointRead { hash, ..*read };
        let answer = match &resident.filter {
            _ if read.mode.filters == FilterMode::Ignore => FilterAnswer::Skipped,
            TableFilter::None => FilterAnswer::Skipped,
            TableFilter::Degraded(_) => FilterAnswer::Degraded,
            TableFilter::Usable(filter) if filter.may_contain(hash) => FilterAnswer::Maybe,
            TableFilter::Usable(_) => FilterAnswer::No,
            TableFilter::Paged(filter) => self.ask_pages(filter, hash, read.mode.filters),
        };
        if answer == FilterAnswer::No && read.mode.filters == FilterMode::Use {
            self.deny(trace);
            return None;
        }
        trace.filter(answer);
        Some(Probe { table: self, resident, read, answer, position: 0 })
    }

    /// Asks a filter that is not in memory as a whole.
    #[cold]
    #[inline(never)]
    fn ask_pages(&self, filter: &PagedFilter, hash: KeyHash, mode: FilterMode) -> FilterAnswer {
        filter.ask(&self.fetcher, hash, mode == FilterMode::Use && self.expects_hit())
    }

    /// Ends a [`Table::get`] whose filter says no. Also for callers that asked the filter by other
    /// means.
    #[inline]
    pub fn deny(&self, trace: &mut impl ReadTrace) {
        trace.filter(FilterAnswer::No);
        self.fetcher.counters.count_look_up(ReadEvent::Negative);
        trace.leave(Found::Absent);
    }

    /// Whether most of this thread's recent look-ups in the table found their keys.
    #[inline]
    pub fn expects_hit(&self) -> bool {
        self.fetcher.counters.expects_hit()
    }

    /// `None` if the table is not open; else its filter, if that is usable.
    pub fn opened_filter(&self) -> Option<Option<&Filter>> {
        Some(match &self.resident.get()?.filter {
            TableFilter::Usable(filter) => Some(filter),
            TableFilter::None | TableFilter::Paged(_) | TableFilter::Degraded(_) => None,
        })
    }

    /// Prefetches what [`Table::probe`] reads and, for keys that usually exist, what
    /// [`Probe::locate`] reads.
    #[inline]
    pub fn prefetch_probe(&self, read: &PointRead<'_>) {
        match self.resident.get() {
            Some(resident) if self.expects_hit() => {
                resident.prefetch_filter(read.hash);
                resident.index.prefetch(read.key);
            }
            _ => {
                if let Some(Some(filter)) = self.opened_filter() {
                    filter.prefetch(read.hash);
                }
            }
        }
    }

    /// The data block at position `i`, if it is in memory.
    #[inline(always)]
    fn block_in_memory<'p>(
        &self,
        resident: &'p Resident,
        i: usize,
        counting: Counting,
        pin: &'p Pin<'_>,
    ) -> Option<ResidentBlock<'p>> {
        let block = resident.in_memory(i, pin)?;
        block.prefetch();
        if let ResidentBlock::Cached(block) = block {
            block.framed().set_referenced();
        }
        if counting != Counting::Uncounted {
            self.count(ReadEvent::CacheHit);
        }
        Some(block)
    }

    /// Adds keys to `samples` that cut the table into pieces of about `step` bytes.
    pub fn sample_keys(&self, step: u64, samples: &mut Vec<Vec<u8>>) -> Result<()> {
        let index = self.resident()?.whole_index(&self.fetcher)?;
        let mut piece = 0;
        for i in 0..index.len() {
            piece += index.handle(i).stored_len();
            if piece >= step {
                samples.push(index.separator(i).to_vec());
                piece = 0;
            }
        }
        Ok(())
    }

    /// Marks the table as obsolete: no current version contains it. Returns its number if this was
    /// the last reference: the caller may remove the file. Otherwise the last holder hands the
    /// number to the janitor.
    pub fn retire(self: Arc<Table>) -> Option<u64> {
        self.fetcher.context.graveyard().bury(self.meta.number);
        self.obsolete.store(true, Ordering::Release);
        let mut last = Arc::into_inner(self)?;
        *last.obsolete.get_mut() = false;
        last.fetcher.context.files.remove(last.meta.number);
        Some(last.meta.number)
    }

    /// The error for a data block that verifies but breaks the format.
    pub(super) fn malformed_block(&self, i: usize, malformed: Malformed) -> Error {
        let handle = self.resident.get().and_then(|resident| resident.index.handle(&self.fetcher, i).ok());
        self.fetcher.corrupt(handle.unwrap_or_default().offset, malformed)
    }

    /// The hit with the value to which it points, if that is wanted.
    #[cold]
    #[inline(never)]
    fn read_value<'p>(&self, key: &[u8], mut hit: TableHit<'p>, wanted: bool) -> Result<TableHit<'p>> {
        let Some((prefix, pointer)) = split_separate(hit.kind, hit.value.bytes()) else { return Ok(hit) };
        let value = if wanted { self.separate_value(key, pointer)? } else { SeparateValue::prefix(prefix) };
        (hit.kind, hit.value) = (hit.kind.whole(), FoundValue::Separate(Box::new(value)));
        Ok(hit)
    }

    #[cold]
    fn denied(&self, resident: &Resident) -> Error {
        let offset = resident.footer.filter.unwrap_or_default().offset;
        self.fetcher.corrupt(offset, "the filter denies a key that the table holds")
    }

    pub(super) fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    #[inline]
    fn count(&self, event: ReadEvent) {
        self.fetcher.counters.count(event);
    }

    /// Counts a false positive. Each time the count in one shard of the counters reaches a power of
    /// two, compares the rate with the design.
    fn count_false_positive(&self) {
        let count = self.fetcher.counters.count_look_up(ReadEvent::FalsePositive);
        if !count.is_power_of_two() || self.excess_reported.load(Ordering::Relaxed) {
            return;
        }
        let ledger = self.ledger();
        if ledger.is_excessive() && !self.excess_reported.swap(true, Ordering::Relaxed) {
            let (table, ledger) = (self.fetcher.path().to_owned(), Box::new(ledger));
            self.fetcher.context.events.send(|| Event::FilterExcessive { table, ledger });
        }
    }

    pub(super) fn resident(&self) -> Result<&Resident> {
        self.open(&mut Untraced)
    }

    /// The table's resident parts, if it is open.
    pub(super) fn opened(&self) -> Option<&Resident> {
        self.resident.get()
    }

    /// The table's resident parts. Tells `trace` if they had to be read.
    #[inline]
    pub(super) fn open(&self, trace: &mut impl ReadTrace) -> Result<&Resident> {
        match self.resident.get() {
            Some(resident) => Ok(resident),
            None => self.read_resident(trace),
        }
    }

    #[cold]
    fn read_resident(&self, trace: &mut impl ReadTrace) -> Result<&Resident> {
        let opening = self.opening.lock();
        if let Some(resident) = self.resident.get() {
            return Ok(resident);
        }
        let resident = Resident::read(&self.fetcher, &self.meta, self.holds_ranges)?;
        // What fails later is told then.
        let failures = [resident.filter.failure(), resident.range_filter.failure()].map(|failure| failure.cloned());
        let resident = self.resident.get_or_init(|| resident);
        drop(opening);
        trace.opened(resident.opening_len());
        if let Some(info) = resident.filter.info() {
            let (keys, design, expected) = (info.keys, info.design_fpr, info.expected_fpr);
            self.fetcher.counters.expect(FilterRates { keys, design, expected });
        }
        if let Some(rates) = resident.range_filter.rates(&resident.properties) {
            self.fetcher.counters.expect_of_ranges(f64::from(rates.fresh) / 1e9);
        }
        for reason in failures.into_iter().flatten() {
            let table = self.fetcher.path().to_owned();
            self.fetcher.context.events.send(|| Event::FilterDegraded { table, reason });
        }
        Ok(resident)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let context = &self.fetcher.context;
        if let Some(resident) = self.resident.get() {
            context.cache.forget(&resident.slots);
            if let TableFilter::Paged(filter) = &resident.filter {
                context.cache.forget(filter.slots());
            }
            if let Some(slots) = resident.index.slots() {
                context.cache.forget(slots);
            }
        }
        if self.obsolete.load(Ordering::Acquire) {
            context.files.remove(self.meta.number);
            context.janitor.hand_in(FileKind::Table(self.meta.number));
        }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("meta", &self.meta).finish_non_exhaustive()
    }
}

impl PlannedRead for Probe<'_> {
    fn address(&self) -> BlockAddress {
        (self.table.meta.number, self.position)
    }

    fn block_len(&self) -> u64 {
        self.handle().map_or(0, BlockHandle::stored_len)
    }

    fn will_need(&self) {
        if let Some(handle) = self.handle()
            && let Some(end) = handle.end()
        {
            self.table.fetcher.file.will_need(handle.offset..end);
        }
    }
}

impl<'p> Probe<'p> {
    /// Finds the block that may hold the key.
    #[inline]
    pub fn locate(&mut self) -> Result<()> {
        self.position = self.resident.find(&self.table.fetcher, self.read.key)?;
        Ok(())
    }

    /// The handle of that block, if it is in memory.
    fn handle(&self) -> Option<BlockHandle> {
        self.resident.index.known_handle(&self.table.fetcher, self.position)
    }

    /// Prefetches the block if it is in memory. Returns false if the block must be read from the
    /// file.
    #[inline]
    pub fn prefetch_block(&self, pin: &Pin<'_>) -> bool {
        match self.resident.in_memory(self.position, pin) {
            Some(block) => {
                block.prefetch();
                true
            }
            None => self.position == self.resident.index.len(),
        }
    }

    /// Prefetches the entry in that block.
    #[inline]
    pub fn prefetch_entry(&self, pin: &Pin<'_>) {
        if let Some(Ok(block)) = self.resident.in_memory(self.position, pin).map(ResidentBlock::block) {
            block.prefetch_entry(self.read.hash.fingerprint());
        }
    }

    /// The newest version of the key that the read can see; counts the look-up. `blocks`, if given,
    /// provides a block that is not in memory.
    #[inline]
    pub fn finish(
        self,
        pin: &'p Pin<'_>,
        blocks: Option<&mut PlannedReads<'_, Probe<'_>>>,
        trace: &mut impl ReadTrace,
    ) -> Result<Option<TableHit<'p>>> {
        let lookup = self.look_up(pin, blocks, trace)?;
        let Probe { table, resident, read, answer, .. } = self;
        match (answer, &lookup) {
            // A paged filter that was expected to say "maybe" is asked again.
            (FilterAnswer::Skipped, Lookup::Absent) => {
                table.fetcher.counters.count_look_up(ReadEvent::SkippedAbsent);
            }
            (FilterAnswer::Skipped, _) => table.count(ReadEvent::Skipped),
            (FilterAnswer::Degraded, _) => table.count(ReadEvent::Degraded),
            (FilterAnswer::Maybe, Lookup::Absent) => table.count_false_positive(),
            (FilterAnswer::Maybe, _) => _ = table.fetcher.counters.count_look_up(ReadEvent::TruePositive),
            (FilterAnswer::No, Lookup::Absent) => _ = table.fetcher.counters.count_look_up(ReadEvent::Negative),
            (FilterAnswer::No, _) => return Err(table.denied(resident)),
        }
        let hit = match lookup {
            Lookup::Found(hit) if hit.kind.is_separate() => table.read_value(read.key, hit, read.mode.values)?,
            Lookup::Found(hit) => hit,
            Lookup::Covered => return Ok(leave(trace, Found::DeletedByRange)),
            Lookup::Newer => return Ok(leave(trace, Found::Newer)),
            Lookup::Absent => return Ok(leave(trace, Found::Absent)),
        };
        trace.leave(hit.found());
        Ok(Some(hit))
    }

    #[inline]
    fn look_up(
        self,
        pin: &'p Pin<'_>,
        mut blocks: Option<&mut PlannedReads<'_, Probe<'_>>>,
        trace: &mut impl ReadTrace,
    ) -> Result<Lookup<'p>> {
        if self.position >= self.resident.index.len() {
            return Ok(Lookup::Absent);
        }
        match self.look_up_in(self.position, pin, blocks.as_deref_mut(), trace)? {
            Lookup::Newer => self.look_further(pin, blocks, trace),
            lookup => Ok(lookup),
        }
    }

    /// Goes on after a block that holds only newer versions. Older ones can follow in the next
    /// block only if the separator is the key itself.
    #[cold]
    #[inline(never)]
    fn look_further(
        self,
        pin: &'p Pin<'_>,
        mut blocks: Option<&mut PlannedReads<'_, Probe<'_>>>,
        trace: &mut impl ReadTrace,
    ) -> Result<Lookup<'p>> {
        let index = &self.resident.index;
        for i in self.position + 1..index.len() {
            if index.compare_separator(&self.table.fetcher, i - 1, self.read.key)?.is_ne() {
                break;
            }
            match self.look_up_in(i, pin, blocks.as_deref_mut(), trace)? {
                found @ (Lookup::Found(_) | Lookup::Covered) => return Ok(found),
                Lookup::Newer => {}
                Lookup::Absent => break,
            }
        }
        Ok(Lookup::Newer)
    }

    /// Looks the key up in the block at position `i`.
    #[inline(always)]
    fn look_up_in(
        &self,
        i: usize,
        pin: &'p Pin<'_>,
        blocks: Option<&mut PlannedReads<'_, Probe<'_>>>,
        trace: &mut impl ReadTrace,
    ) -> Result<Lookup<'p>> {
        let Probe { table, resident, read: PointRead { key, hash, window, .. }, .. } = *self;
        match table.block_in_memory(resident, i, self.counting(), pin) {
            Some(block) => {
                let hit = block.block().and_then(|block| block.get(key, hash.fingerprint(), window));
                self.trace_block(i, true, trace);
                Ok(Lookup::of(hit.map_err(|malformed| table.malformed_block(i, malformed))?, |value| {
                    block.found(value)
                }))
            }
            None => self.look_up_in_file(i, blocks, trace),
        }
    }

    /// Looks the key up in the block at position `i`, which is not in memory.
    #[cold]
    #[inline(never)]
    fn look_up_in_file(
        self,
        i: usize,
        blocks: Option<&mut PlannedReads<'_, Probe<'_>>>,
        trace: &mut impl ReadTrace,
    ) -> Result<Lookup<'p>> {
        let Probe { table, resident, read: PointRead { key, hash, window, mode }, .. } = self;
        let read = |hint: ReadHint<'_>| table.read_block(resident, i, mode.fill_cache, self.counting(), hint);
        let block = match blocks {
            Some(blocks) => blocks.get_or((table.meta.number, i), read)?,
            None => read(ReadHint::None)?,
        };
        self.trace_block(i, false, trace);
        let hit = block.block().get(key, hash.fingerprint(), window);
        let hit = hit.map_err(|malformed| table.malformed_block(i, malformed))?;
        Ok(Lookup::of(hit, |value| FoundValue::read(&block, value)))
    }

    #[inline]
    fn counting(&self) -> Counting {
        if self.answer == FilterAnswer::No { Counting::AvoidableRead } else { Counting::Read }
    }

    #[inline]
    fn trace_block(&self, i: usize, cached: bool, trace: &mut impl ReadTrace) {
        // The block has been read: its handle was there.
        let handle = || self.resident.index.handle(&self.table.fetcher, i).unwrap_or_default();
        trace.block(|| (handle().offset, handle().stored_len()), cached);
    }
}
