//! [`Table`]: look-ups in one SSTable.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::fetch::{Fetcher, ReadAhead};
use super::properties::Properties;
use super::resident::{Resident, TableFilter};
use super::{TableContext, TableCursor, TableMeta};
use crate::block::{Block, BlockHit};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::explain::{FilterAnswer, Found, ReadTrace, Untraced};
use crate::filter::{FilterState, KeyHash};
use crate::format::Malformed;
use crate::format::key::{SeqNo, ValueKind};
use crate::options::FilterMode;
use crate::stats::{FilterLedger, FilterRates, ReadCounters, ReadEvent};
use crate::value::Value;

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

/// A version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableHit {
    pub(crate) seqno: SeqNo,
    pub(crate) kind: ValueKind,
    pub(crate) value: Value,
}

/// What index and blocks say of a key.
enum Lookup {
    Found(TableHit),
    /// The table has only versions that are newer than the snapshot.
    Newer,
    Absent,
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
    /// [`ReadStats`](crate::stats::ReadStats).
    pub(crate) fn get(&self, read: &PointRead<'_>, trace: &mut impl ReadTrace) -> Result<Option<TableHit>> {
        let resident = self.open(trace)?;
        let seed = resident.footer.seed;
        let hash = if read.hash.seed() == seed { read.hash } else { KeyHash::new(seed, read.key) };
        let read = &PointRead { hash, ..*read };
        let answer = match &resident.filter {
            _ if read.mode.filters == FilterMode::Ignore => FilterAnswer::Skipped,
            TableFilter::None => FilterAnswer::Skipped,
            TableFilter::Degraded(_) => FilterAnswer::Degraded,
            TableFilter::Usable(filter) if filter.may_contain(hash) => FilterAnswer::Maybe,
            TableFilter::Usable(_) => FilterAnswer::No,
        };
        trace.filter(answer);
        if answer == FilterAnswer::No && read.mode.filters == FilterMode::Use {
            self.count(ReadEvent::Negative);
            trace.leave(Found::Absent);
            return Ok(None);
        }
        let counting = if answer == FilterAnswer::No { Counting::AvoidableRead } else { Counting::Read };
        let lookup = self.look_up(resident, read, counting, trace)?;
        match (answer, &lookup) {
            (FilterAnswer::Skipped, _) => self.count(ReadEvent::Skipped),
            (FilterAnswer::Degraded, _) => self.count(ReadEvent::Degraded),
            (FilterAnswer::Maybe, Lookup::Absent) => self.count_false_positive(),
            (FilterAnswer::Maybe, _) => self.count(ReadEvent::TruePositive),
            (FilterAnswer::No, Lookup::Absent) => self.count(ReadEvent::Negative),
            (FilterAnswer::No, _) => {
                let offset = resident.footer.filter.unwrap_or_default().offset;
                let rule = "the filter denies a key that the table holds";
                return Err(self.fetcher.corrupt(offset, rule));
            }
        }
        trace.leave(match &lookup {
            Lookup::Found(hit) if hit.kind == ValueKind::Put => Found::Value(hit.value.len()),
            Lookup::Found(_) => Found::Deleted,
            Lookup::Newer => Found::Newer,
            Lookup::Absent => Found::Absent,
        });
        Ok(lookup.hit())
    }

    fn look_up(
        &self,
        resident: &Resident,
        read: &PointRead<'_>,
        counting: Counting,
        trace: &mut impl ReadTrace,
    ) -> Result<Lookup> {
        let PointRead { key, hash, snapshot, mode } = *read;
        let mut lookup = Lookup::Absent;
        for i in resident.index.find(key)..resident.index.len() {
            let (block, cached) = self.block(resident, i, mode.fill_cache, counting, None)?;
            let handle = resident.index.handle(i);
            trace.block(handle.offset, handle.stored_len(), cached);
            let hit =
                block.get(key, hash.fingerprint(), snapshot).map_err(|malformed| self.malformed_block(i, malformed))?;
            match hit {
                BlockHit::Found { seqno, kind, value_start, value_len } => {
                    let value = Value::part_of(&block, value_start, value_len);
                    return Ok(Lookup::Found(TableHit { seqno, kind, value }));
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

    /// The data block at position `i`, which must be less than the number of blocks, and whether the cache had it.
    pub(super) fn block(
        &self,
        resident: &Resident,
        i: usize,
        fill_cache: bool,
        counting: Counting,
        ahead: Option<&mut ReadAhead>,
    ) -> Result<(Arc<Block>, bool)> {
        let handle = resident.index.handle(i);
        let cache = self.fetcher.context.cache();
        let id = (self.meta.number, handle.offset);
        if let Some(block) = cache.get(id) {
            if counting != Counting::Uncounted {
                self.count(ReadEvent::CacheHit);
            }
            return Ok((block, true));
        }
        // A long scan would push out what other reads come back to.
        let keep = fill_cache && !ahead.as_ref().is_some_and(|ahead| ahead.is_long());
        let longest = resident.properties.largest_block;
        let bytes = self.fetcher.data_block(handle, longest, ahead)?;
        if counting != Counting::Uncounted {
            self.count(ReadEvent::BlockRead);
            self.fetcher.counters.add(ReadEvent::BlockBytes, handle.stored_len());
        }
        if counting == Counting::AvoidableRead {
            self.count(ReadEvent::AvoidableRead);
            self.fetcher.counters.add(ReadEvent::AvoidableBytes, handle.stored_len());
        }
        let block = Block::new(bytes).map_err(|malformed| self.malformed_block(i, malformed))?;
        let block = Arc::new(block);
        if keep {
            cache.insert(id, Arc::clone(&block));
        }
        Ok((block, false))
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

    /// A cursor over the table's entries, at first invalid. A long scan reads ahead, and does not keep what it reads in the cache;
    /// without `fill_cache` no scan does.
    pub(crate) fn cursor(self: &Arc<Table>, fill_cache: bool) -> TableCursor {
        TableCursor::new(Arc::clone(self), fill_cache)
    }

    /// Says that the table belongs to no current version. Its file is removed when the last reference goes. What the cache holds of it
    /// is left to be evicted: no other table will ever have its number.
    pub(crate) fn mark_obsolete(&self) {
        self.obsolete.store(true, Ordering::Release);
    }

    /// The error of a data block that verifies but does not follow the format.
    pub(super) fn malformed_block(&self, i: usize, malformed: Malformed) -> Error {
        let offset = self.resident.get().map_or(0, |resident| resident.index.handle(i).offset);
        self.fetcher.corrupt(offset, malformed)
    }

    pub(super) fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    fn count(&self, event: ReadEvent) {
        self.fetcher.counters.count(event);
    }

    /// Counts a false positive. Each time their number has doubled, in one shard of the counters, it is compared with the design.
    fn count_false_positive(&self) {
        let count = self.fetcher.counters.count(ReadEvent::FalsePositive);
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
    fn open(&self, trace: &mut impl ReadTrace) -> Result<&Resident> {
        if let Some(resident) = self.resident.get() {
            return Ok(resident);
        }
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
        if self.obsolete.load(Ordering::Acquire) {
            let context = &self.fetcher.context;
            context.files.remove(self.meta.number);
            context.remove_file(self.meta.number);
        }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("meta", &self.meta).finish_non_exhaustive()
    }
}

impl Lookup {
    fn hit(self) -> Option<TableHit> {
        match self {
            Lookup::Found(hit) => Some(hit),
            Lookup::Newer | Lookup::Absent => None,
        }
    }
}
