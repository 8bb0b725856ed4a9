//! [`Table`]: look-ups in one SSTable.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::fetch::{Fetcher, ReadAhead};
use super::properties::Properties;
use super::resident::{FilterState, Resident};
use super::{TableContext, TableCursor, TableMeta};
use crate::block::{Block, BlockHit};
use crate::error::{Error, Result};
use crate::filter::{FilterInfo, KeyHash};
use crate::format::Malformed;
use crate::format::key::{SeqNo, ValueKind};
use crate::options::FilterMode;
use crate::stats::{ReadEvent, ReadStats};
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
        }
    }

    pub(crate) fn meta(&self) -> &TableMeta {
        &self.meta
    }

    /// What the table says of itself.
    pub(crate) fn properties(&self) -> Result<&Properties> {
        Ok(&self.resident()?.properties)
    }

    /// What the filter is, if there is one and it can be used.
    pub(crate) fn filter_info(&self) -> Result<Option<&FilterInfo>> {
        Ok(match &self.resident()?.filter {
            FilterState::Usable(filter) => filter.info(),
            FilterState::None | FilterState::Degraded(_) => None,
        })
    }

    /// Why the filter cannot be used, if there is one and it cannot: look-ups pay for it, and somebody should know.
    pub(crate) fn filter_degraded(&self) -> Result<Option<&Error>> {
        Ok(match &self.resident()?.filter {
            FilterState::Degraded(error) => Some(error),
            FilterState::None | FilterState::Usable(_) => None,
        })
    }

    /// What reads asked of this table since it was made.
    pub(crate) fn counters(&self) -> ReadStats {
        self.fetcher.counters.read()
    }

    /// Bytes that index, filter and properties take in memory; 0 before the first look-up.
    pub(crate) fn resident_bytes(&self) -> usize {
        self.resident.get().map_or(0, Resident::memory)
    }

    /// The newest version of `key` with a sequence number of at most `snapshot`. `hash` is the key's hash under the store's seed;
    /// for a table that was written under another seed it is computed again.
    ///
    /// In the modes `Use` and `Shadow` a look-up that ends without error is counted in exactly one class; `Ignore` counts none,
    /// since it asks no filter although there may be one.
    pub(crate) fn get(
        &self,
        key: &[u8],
        hash: KeyHash,
        snapshot: SeqNo,
        mode: FilterMode,
        fill_cache: bool,
    ) -> Result<Option<TableHit>> {
        let resident = self.resident()?;
        let hash = if hash.seed() == resident.footer.seed { hash } else { KeyHash::new(resident.footer.seed, key) };
        let filter = match &resident.filter {
            FilterState::Usable(filter) if mode != FilterMode::Ignore => filter,
            _ => {
                let lookup = self.look_up(resident, key, hash, snapshot, fill_cache)?;
                if mode != FilterMode::Ignore {
                    self.count(ReadEvent::Unfiltered);
                }
                return Ok(lookup.hit());
            }
        };
        let maybe = filter.may_contain(hash);
        if !maybe && mode == FilterMode::Use {
            self.count(ReadEvent::Negative);
            return Ok(None);
        }
        let lookup = self.look_up(resident, key, hash, snapshot, fill_cache)?;
        self.count(match (maybe, &lookup) {
            (true, Lookup::Absent) => ReadEvent::FalsePositive,
            (true, _) => ReadEvent::TruePositive,
            (false, Lookup::Absent) => ReadEvent::Negative,
            (false, _) => {
                let offset = resident.footer.filter.unwrap_or_default().offset;
                let rule = "the filter denies a key that the table holds";
                return Err(self.fetcher.corrupt(offset, rule));
            }
        });
        Ok(lookup.hit())
    }

    fn look_up(
        &self,
        resident: &Resident,
        key: &[u8],
        hash: KeyHash,
        snapshot: SeqNo,
        fill_cache: bool,
    ) -> Result<Lookup> {
        let mut lookup = Lookup::Absent;
        for i in resident.index.find(key)..resident.index.len() {
            let block = self.block(resident, i, fill_cache, true, None)?;
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

    /// The data block at position `i`, which must be less than the number of blocks.
    pub(super) fn block(
        &self,
        resident: &Resident,
        i: usize,
        fill_cache: bool,
        counted: bool,
        ahead: Option<&mut ReadAhead>,
    ) -> Result<Arc<Block>> {
        let handle = resident.index.handle(i);
        let cache = self.fetcher.context.cache();
        let id = (self.meta.number, handle.offset);
        if let Some(block) = cache.get(id) {
            if counted {
                self.count(ReadEvent::CacheHit);
            }
            return Ok(block);
        }
        // A long scan would push out what other reads come back to.
        let keep = fill_cache && !ahead.as_ref().is_some_and(|ahead| ahead.is_long());
        let longest = resident.properties.largest_block;
        let bytes = self.fetcher.data_block(handle, longest, ahead)?;
        if counted {
            self.count(ReadEvent::BlockRead);
            self.fetcher.counters.add(ReadEvent::BlockBytes, handle.stored_len());
        }
        let block = Block::new(bytes).map_err(|malformed| self.malformed_block(i, malformed))?;
        let block = Arc::new(block);
        if keep {
            cache.insert(id, Arc::clone(&block));
        }
        Ok(block)
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

    pub(super) fn resident(&self) -> Result<&Resident> {
        if let Some(resident) = self.resident.get() {
            return Ok(resident);
        }
        let _opening = self.opening.lock();
        if let Some(resident) = self.resident.get() {
            return Ok(resident);
        }
        let resident = Resident::read(&self.fetcher, &self.meta)?;
        Ok(self.resident.get_or_init(|| resident))
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
