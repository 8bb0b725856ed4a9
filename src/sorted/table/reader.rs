//! [`Table`]: look-ups in one SSTable.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::fetch::{Fetcher, ReadHint};
use super::planned::{BlockAddress, PlannedRead, PlannedReads};
use super::properties::Properties;
use super::resident::{Near, Resident, TableFilter};
use super::{TableContext, TableMeta};
use crate::error::{Error, Result};
use crate::filter::{Filter, FilterState, KeyHash};
use crate::format::Malformed;
use crate::format::key::{SeqNo, ValueKind};
use crate::memory::epoch::Pin;
use crate::options::{Compression, FilterMode};
use crate::report::event::Event;
use crate::report::explain::{FilterAnswer, Found, ReadTrace, Untraced};
use crate::report::stats::{FilterLedger, FilterRates, ReadCounters, ReadEvent};
use crate::sorted::block::{BlockHit, BlockRef, Frame, HeldBlock, KeptBlock};
use crate::sorted::value::FoundValue;

/// A table of some version. There is one for each file, shared by the versions that contain it.
///
/// Nothing is read before the first look-up, which makes filter, index and properties resident for good. A failure to do so is
/// not remembered: the next look-up tries again.
pub(crate) struct Table {
    meta: TableMeta,
    fetcher: Fetcher,
    resident: OnceLock<Resident>,
    /// Held while `resident` is being filled, so that many first look-ups read it once.
    opening: Mutex<()>,
    obsolete: AtomicBool,
    /// Whether an excess of false positives has been reported.
    excess_told: AtomicBool,
}

/// A point read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointRead<'a> {
    pub(crate) key: &'a [u8],
    /// The key's hash under the store's seed; for a table that was written under another seed it is computed again.
    pub(crate) hash: KeyHash,
    /// Versions with greater sequence numbers are not seen.
    pub(crate) snapshot: SeqNo,
    pub(crate) mode: ReadMode,
}

/// How a read goes through tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadMode {
    pub(crate) filters: FilterMode,
    pub(crate) fill_cache: bool,
}

/// In which counters a look at a block goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counting {
    /// In none: it is no reader's.
    Uncounted,
    Read,
    /// In those of a read that the filter would have saved too.
    AvoidableRead,
}

/// A version of a key, for as long as the reader is pinned.
pub(crate) struct TableHit<'p> {
    /// No read asks for it, but the tests do.
    #[cfg(test)]
    pub(crate) seqno: SeqNo,
    pub(crate) kind: ValueKind,
    pub(crate) value: FoundValue<'p>,
}

/// What index and blocks say of a key.
enum Lookup<'p> {
    Found(TableHit<'p>),
    /// The table has only versions that are newer than the snapshot.
    Newer,
    Absent,
}

/// A point read on its way through a table whose filter did not end it.
///
/// ```text
/// probe = Table::probe locate (prefetch_block prefetch_entry?)? will_need? finish
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Probe<'p> {
    table: &'p Table,
    resident: &'p Resident,
    read: PointRead<'p>,
    answer: FilterAnswer,
    /// Of the first block that may hold the key.
    position: usize,
}

impl Table {
    pub(crate) fn new(context: Arc<TableContext>, meta: TableMeta) -> Table {
        Table {
            fetcher: Fetcher::new(context, meta.number, meta.size),
            meta,
            resident: OnceLock::new(),
            opening: Mutex::new(()),
            obsolete: AtomicBool::new(false),
            excess_told: AtomicBool::new(false),
        }
    }

    pub(crate) fn meta(&self) -> &TableMeta {
        &self.meta
    }

    /// What the table says of itself.
    pub(crate) fn properties(&self) -> Result<&Properties> {
        Ok(&self.resident()?.properties)
    }

    /// What the filter is.
    pub(crate) fn filter_state(&self) -> Result<FilterState> {
        Ok(self.resident()?.filter.state())
    }

    /// What the filter is, if the table has been looked into.
    pub(crate) fn known_filter_state(&self) -> Option<FilterState> {
        self.resident.get().map(|resident| resident.filter.state())
    }

    /// What reads asked of this table since it was made, beside what theory says of its filter.
    pub(crate) fn ledger(&self) -> FilterLedger {
        self.fetcher.counters.ledger()
    }

    /// The counters behind [`ledger`](Table::ledger). Whoever keeps them has the counts also when the table is gone.
    pub(crate) fn counters(&self) -> Arc<ReadCounters> {
        Arc::clone(&self.fetcher.counters)
    }

    /// Bytes that index, filter and properties take in memory; 0 before the first look-up.
    pub(crate) fn resident_bytes(&self) -> usize {
        self.resident.get().map_or(0, Resident::memory)
    }

    /// The newest version of the key that the read can see. A look-up that ends without error is counted in exactly one class of
    /// [`ReadStats`](crate::report::stats::ReadStats).
    #[inline]
    pub(crate) fn get<'p>(
        &'p self,
        read: &PointRead<'p>,
        pin: &'p Pin<'_>,
        trace: &mut impl ReadTrace,
    ) -> Result<Option<TableHit<'p>>> {
        let resident = self.open(trace)?;
        // If the key is most likely there, the search for its block and that for the filter's lines are one wait.
        let expected = self.is_usually_found().then(|| {
            if read.mode.filters != FilterMode::Ignore {
                resident.prefetch_filter(read.hash);
            }
            resident.find(read.key)
        });
        match self.probe(read, trace)? {
            Some(mut probe) => {
                match expected {
                    Some(position) => probe.position = position,
                    None => probe.locate(),
                }
                probe.finish(pin, None, trace)
            }
            None => Ok(None),
        }
    }

    /// Asks the filter; `None` if its word is taken that the key is not there.
    #[inline]
    pub(crate) fn probe<'p>(&'p self, read: &PointRead<'p>, trace: &mut impl ReadTrace) -> Result<Option<Probe<'p>>> {
        let resident = self.open(trace)?;
        let seed = resident.footer.seed;
        let hash = if read.hash.seed() == seed { read.hash } else { KeyHash::new(seed, read.key) };
        let read = PointRead { hash, ..*read };
        let answer = match &resident.filter {
            _ if read.mode.filters == FilterMode::Ignore => FilterAnswer::Skipped,
            TableFilter::None => FilterAnswer::Skipped,
            TableFilter::Degraded(_) => FilterAnswer::Degraded,
            TableFilter::Usable(filter) if filter.may_contain(hash) => FilterAnswer::Maybe,
            TableFilter::Usable(_) => FilterAnswer::No,
        };
        if answer == FilterAnswer::No && read.mode.filters == FilterMode::Use {
            self.deny(trace);
            return Ok(None);
        }
        trace.filter(answer);
        Ok(Some(Probe { table: self, resident, read, answer, position: 0 }))
    }

    /// All that is left of [`Table::get`] when the filter says no and its word is taken. Also for whoever asked the filter otherwise.
    #[inline]
    pub(crate) fn deny(&self, trace: &mut impl ReadTrace) {
        trace.filter(FilterAnswer::No);
        self.fetcher.counters.count_look_up(ReadEvent::Negative);
        trace.leave(Found::Absent);
    }

    /// Whether this thread's look-ups in the table lately found their keys more often than not.
    #[inline]
    pub(crate) fn is_usually_found(&self) -> bool {
        self.fetcher.counters.is_usually_found()
    }

    /// `None` if the table has not been looked into; else its filter, if it has a usable one.
    pub(crate) fn opened_filter(&self) -> Option<Option<&Filter>> {
        Some(match &self.resident.get()?.filter {
            TableFilter::Usable(filter) => Some(filter),
            TableFilter::None | TableFilter::Degraded(_) => None,
        })
    }

    /// Brings nearer what [`Table::probe`] and, if that most likely finds something, [`Probe::locate`] will wait for.
    #[inline]
    pub(crate) fn prefetch_probe(&self, read: &PointRead<'_>) {
        match self.resident.get() {
            Some(resident) if self.is_usually_found() => {
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

    /// The data block at position `i`, which must be less than the number of blocks, for keeps, if it is in memory. `former` may be a
    /// block that is not needed any more.
    pub(super) fn kept_block(
        &self,
        resident: &Resident,
        i: usize,
        counting: Counting,
        former: Option<KeptBlock>,
    ) -> Result<Option<KeptBlock>> {
        self.fetcher.context.epoch().pin(|pin| match self.near_block(resident, i, counting, pin) {
            None => Ok(None),
            Some(Near::Cached(block)) => Ok(Some(block.counted().into())),
            Some(Near::Mapped(block)) => {
                let kept = block.kept(former.and_then(KeptBlock::into_file));
                kept.map(Some).map_err(|malformed| self.malformed_block(i, malformed))
            }
        })
    }

    /// The data block at position `i`, if it is in memory.
    #[inline]
    fn near_block<'p>(
        &self,
        resident: &'p Resident,
        i: usize,
        counting: Counting,
        pin: &'p Pin<'_>,
    ) -> Option<Near<'p>> {
        let near = resident.near(i, pin)?;
        near.prefetch();
        if let Near::Cached(block) = near {
            block.framed().set_referenced();
        }
        if counting != Counting::Uncounted {
            self.count(ReadEvent::CacheHit);
        }
        Some(near)
    }

    /// Reads the data block at position `i`.
    #[cold]
    #[inline(never)]
    pub(super) fn read_block(
        &self,
        resident: &Resident,
        i: usize,
        fill_cache: bool,
        counting: Counting,
        hint: ReadHint<'_>,
    ) -> Result<BlockRef> {
        let handle = resident.index.handle(i);
        let cache = self.fetcher.context.cache();
        // A long scan would push out what other reads come back to. What is mapped needs no place in the cache.
        let is_long = matches!(&hint, ReadHint::Scan(ahead) if ahead.is_long());
        let mut keep = fill_cache && !is_long && resident.mapped.is_none();
        let frame = |len| {
            let admitted = if keep { cache.admit(&resident.slots, i, len) } else { None };
            keep = admitted.is_some();
            admitted.unwrap_or_else(|| Frame::new(len))
        };
        let (compression, block) = self.fetcher.data_block(handle, &resident.properties, hint, frame)?;
        if let Some(mapped) = &resident.mapped
            && compression == Compression::None
        {
            mapped.set_verified(i);
        }
        if counting != Counting::Uncounted {
            self.count(ReadEvent::BlockRead);
            self.fetcher.counters.add(ReadEvent::BlockBytes, handle.stored_len());
        }
        if counting == Counting::AvoidableRead {
            self.count(ReadEvent::AvoidableRead);
            self.fetcher.counters.add(ReadEvent::AvoidableBytes, handle.stored_len());
        }
        if keep {
            cache.insert(&resident.slots, i, &block);
        }
        Ok(block)
    }

    /// Adds to `samples` keys that cut the table into pieces of about `step` bytes.
    pub(crate) fn sample_keys(&self, step: u64, samples: &mut Vec<Vec<u8>>) -> Result<()> {
        let index = &self.resident()?.index;
        let mut piece = 0;
        for i in 0..index.len() {
            piece += index.handle(i).stored_len();
            if piece >= step {
                samples.push(index.separator(i));
                piece = 0;
            }
        }
        Ok(())
    }

    /// Says that the table belongs to no current version. Returns its number if nobody else holds
    /// it: its file can be removed. Otherwise the last one to let go hands the number to the
    /// janitor.
    pub(crate) fn retire(self: Arc<Table>) -> Option<u64> {
        self.fetcher.context.graveyard().bury(self.meta.number);
        self.obsolete.store(true, Ordering::Release);
        let mut last = Arc::into_inner(self)?;
        *last.obsolete.get_mut() = false;
        last.fetcher.context.files.remove(last.meta.number);
        Some(last.meta.number)
    }

    /// The error of a data block that verifies but does not follow the format.
    pub(super) fn malformed_block(&self, i: usize, malformed: Malformed) -> Error {
        let offset = self.resident.get().map_or(0, |resident| resident.index.handle(i).offset);
        self.fetcher.corrupt(offset, malformed)
    }

    pub(super) fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    #[inline]
    fn count(&self, event: ReadEvent) {
        self.fetcher.counters.count(event);
    }

    /// Counts a false positive. Each time their number has doubled, in one shard of the counters, it is compared with the design.
    fn count_false_positive(&self) {
        let count = self.fetcher.counters.count_look_up(ReadEvent::FalsePositive);
        if !count.is_power_of_two() || self.excess_told.load(Ordering::Relaxed) {
            return;
        }
        let ledger = self.ledger();
        if ledger.is_excessive() && !self.excess_told.swap(true, Ordering::Relaxed) {
            let (table, ledger) = (self.fetcher.path.clone(), Box::new(ledger));
            self.fetcher.context.listener.tell(&Event::FilterExcessive { table, ledger });
        }
    }

    pub(super) fn resident(&self) -> Result<&Resident> {
        self.open(&mut Untraced)
    }

    /// What stays in memory of the table; `trace` is told if it had to be read.
    #[inline]
    fn open(&self, trace: &mut impl ReadTrace) -> Result<&Resident> {
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
        let resident = Resident::read(&self.fetcher, &self.meta)?;
        let resident = self.resident.get_or_init(|| resident);
        drop(opening);
        trace.opened(resident.footer.opening_len());
        match &resident.filter {
            TableFilter::Usable(filter) => {
                if let Some(info) = filter.info() {
                    let (keys, design, expected) = (info.keys, info.design_fpr, info.expected_fpr);
                    self.fetcher.counters.expect(FilterRates { keys, design, expected });
                }
            }
            // Told without the lock: the listener may read the table.
            TableFilter::Degraded(reason) => {
                let (table, reason) = (self.fetcher.path.clone(), reason.clone());
                self.fetcher.context.listener.tell(&Event::FilterDegraded { table, reason });
            }
            TableFilter::None => {}
        }
        Ok(resident)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let context = &self.fetcher.context;
        if let Some(resident) = self.resident.get() {
            context.cache.forget(&resident.slots);
        }
        if self.obsolete.load(Ordering::Acquire) {
            context.files.remove(self.meta.number);
            context.janitor.hand_in(self.meta.number);
        }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("meta", &self.meta).finish_non_exhaustive()
    }
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
}

impl PlannedRead for Probe<'_> {
    fn address(&self) -> BlockAddress {
        (self.table.meta.number, self.position)
    }

    fn block_len(&self) -> u64 {
        self.resident.index.handle(self.position).stored_len()
    }

    fn will_need(&self) {
        let handle = self.resident.index.handle(self.position);
        if let Some(end) = handle.end() {
            self.table.fetcher.will_need(handle.offset..end);
        }
    }
}

impl<'p> Probe<'p> {
    /// Finds the block that may hold the key.
    #[inline]
    pub(crate) fn locate(&mut self) {
        self.position = self.resident.find(self.read.key);
    }

    /// Brings that block nearer, if it is in memory; returns whether it is, or there is none to look at.
    #[inline]
    pub(crate) fn prefetch_block(&self, pin: &Pin<'_>) -> bool {
        match self.resident.near(self.position, pin) {
            Some(near) => {
                near.prefetch();
                true
            }
            None => self.position == self.resident.index.len(),
        }
    }

    /// Brings the entry in that block nearer.
    #[inline]
    pub(crate) fn prefetch_entry(&self, pin: &Pin<'_>) {
        if let Some(block) = self.resident.near(self.position, pin).and_then(Near::block) {
            block.prefetch_entry(self.read.hash.fingerprint());
        }
    }

    /// The newest version of the key that the read can see; counts the look-up. `blocks` is asked for a block that is not in the cache.
    #[inline]
    pub(crate) fn finish(
        self,
        pin: &'p Pin<'_>,
        blocks: Option<&mut PlannedReads<'_, Probe<'_>>>,
        trace: &mut impl ReadTrace,
    ) -> Result<Option<TableHit<'p>>> {
        let lookup = self.look_up(pin, blocks, trace)?;
        let table = self.table;
        match (self.answer, &lookup) {
            (FilterAnswer::Skipped, _) => table.count(ReadEvent::Skipped),
            (FilterAnswer::Degraded, _) => table.count(ReadEvent::Degraded),
            (FilterAnswer::Maybe, Lookup::Absent) => table.count_false_positive(),
            (FilterAnswer::Maybe, _) => _ = table.fetcher.counters.count_look_up(ReadEvent::TruePositive),
            (FilterAnswer::No, Lookup::Absent) => _ = table.fetcher.counters.count_look_up(ReadEvent::Negative),
            (FilterAnswer::No, _) => return Err(self.denied()),
        }
        trace.leave(match &lookup {
            Lookup::Found(hit) if hit.kind == ValueKind::Put => Found::Value(hit.value.bytes().len()),
            Lookup::Found(_) => Found::Deleted,
            Lookup::Newer => Found::Newer,
            Lookup::Absent => Found::Absent,
        });
        Ok(match lookup {
            Lookup::Found(hit) => Some(hit),
            Lookup::Newer | Lookup::Absent => None,
        })
    }

    #[cold]
    fn denied(&self) -> Error {
        let offset = self.resident.footer.filter.unwrap_or_default().offset;
        self.table.fetcher.corrupt(offset, "the filter denies a key that the table holds")
    }

    #[inline]
    fn look_up(
        &self,
        pin: &'p Pin<'_>,
        mut blocks: Option<&mut PlannedReads<'_, Probe<'_>>>,
        trace: &mut impl ReadTrace,
    ) -> Result<Lookup<'p>> {
        let (table, resident) = (self.table, self.resident);
        let PointRead { key, hash, snapshot, mode } = self.read;
        let counting = if self.answer == FilterAnswer::No { Counting::AvoidableRead } else { Counting::Read };
        let mut lookup = Lookup::Absent;
        for i in self.position..resident.index.len() {
            let malformed = |malformed| table.malformed_block(i, malformed);
            let (block, cached) = match table.near_block(resident, i, counting, pin) {
                Some(Near::Cached(block)) => (HeldBlock::Borrowed(block), true),
                Some(Near::Mapped(block)) => (HeldBlock::Mapped(block.block().map_err(malformed)?), true),
                None => {
                    let read = |hint: ReadHint<'_>| table.read_block(resident, i, mode.fill_cache, counting, hint);
                    let block = match blocks.as_deref_mut() {
                        Some(blocks) => blocks.get_or((table.meta.number, i), read)?,
                        None => read(ReadHint::None)?,
                    };
                    (HeldBlock::Counted(block), false)
                }
            };
            let handle = resident.index.handle(i);
            trace.block(handle.offset, handle.stored_len(), cached);
            let hit = block.block().get(key, hash.fingerprint(), snapshot);
            match hit.map_err(malformed)? {
                BlockHit::Found { seqno, kind, start, len } => {
                    let value = FoundValue::in_block(block, start, len);
                    return Ok(Lookup::Found(TableHit::new(seqno, kind, value)));
                }
                BlockHit::Absent => break,
                BlockHit::Newer => lookup = Lookup::Newer,
            }
            // Older versions can follow in the next block only if the key itself stands between the two.
            if resident.index.compare_separator(i, key).is_ne() {
                break;
            }
        }
        Ok(lookup)
    }
}
