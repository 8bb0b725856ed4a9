//! Writes sorted entries to tables, for flushes and compactions.
//!
//! The versions of each key come from new to old. In this order, the writer
//!
//! - leaves out what range deletes have deleted for all snapshots (`Sweep`),
//! - leaves out what no reader sees (`retention`),
//! - writes a value that has expired as a delete,
//! - combines operands within a stripe, unless others of them may be below,
//! - asks the compaction filter about a value that is the newest of its key, that no snapshot sees,
//!   and that no table above may hold,
//! - writes long values to value files, and values of files that are being emptied anew,
//! - holds back a tombstone until an older version follows, unless one may be below.
//!
//! All versions of a key go to one table. A value apart that cannot be read stays as it is, and so
//! do the operands above it: reads of that key will say why, and other keys are not held up.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use super::retention::Retention;
use crate::error::{Error, Result};
use crate::format::deadline::{DEADLINE_LEN, Deadline, put_expiring, split_expiring};
use crate::format::effect::{Effect, Put, ValuePlace};
use crate::format::key::{MAX_SEQNO, MAX_VALUE_LEN, SeqNo, ValueKind, common_prefix_len};
use crate::format::pointer::{ValuePointer, split_separate};
use crate::format::span::KeySpan;
use crate::manifest::LEVEL_COUNT;
use crate::options::{Compression, KeyspaceOptions};
use crate::sorted::iter::{MergeCursor, Stamped};
use crate::sorted::operator::{CompactionDecision, CompactionHook, NamedOperator, OperandChain, Resolved};
use crate::sorted::ranges::{RangeSource, Sweep, drops, least_above};
use crate::sorted::table::{Origin, Table, TableBuilder, TableContext, TableMeta, TableOptions};
use crate::sorted::values::{SeparateValue, ValueFileMeta, ValueScan, ValueWriter};

/// What the store provides for writing tables.
pub struct OutputContext<'a> {
    pub tables: &'a Arc<TableContext>,
    pub options: TableOptions,
    /// Size at which a table ends and the next begins; [`u64::MAX`] for one table of all, whatever
    /// else it takes.
    pub table_size: u64,
    /// Bytes of memory at which a table ends and the next begins.
    pub table_memory: usize,
    /// Bytes of memory that a table is charged for from its beginning, so that what it will take is
    /// not given to others.
    pub reserved: usize,
    /// Bytes written at a time.
    pub write_len: usize,
    /// Live snapshots, ascending.
    pub snapshots: Vec<SeqNo>,
    /// The range deletes that are durable when the tables are, numbered up to `cleared`: what they
    /// delete is left out.
    pub ranges: Vec<Arc<dyn RangeSource>>,
    pub cleared: SeqNo,
    /// Combines operands of merges. Without it they are written as they are.
    pub operator: Option<NamedOperator>,
    /// Decides what becomes of values that are the newest of their keys.
    pub hook: CompactionHook,
    /// Values whose deadline is not later are written as deletes; 0 for none.
    pub now: Deadline,
    pub values: ValuePolicy,
    /// The keyspace's name, for errors.
    pub keyspace: &'a str,
    /// Takes the next file number.
    pub new_number: &'a dyn Fn() -> u64,
    /// Called every `YIELD_INTERVAL` bytes, with the bytes read and written since the last call.
    /// It may wait.
    pub turn: &'a dyn Fn(usize) -> Turn,
    /// Reads each new table back and compares checksums.
    pub paranoid: bool,
    /// Origin of the tables. The writer fills in each table's key range and the tables that are
    /// dead by then.
    pub origin: Origin,
}

/// Whether a write of tables goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    GoOn,
    /// It ends before the next key.
    Stop,
    /// It ends at once, and leaves nothing.
    Abandon,
}

/// Which values go to value files.
#[derive(Clone, Debug)]
pub struct ValuePolicy {
    /// Length from which they do.
    pub separate_from: Option<u32>,
    pub compression: Compression,
    /// Value files that are emptied: values in them are written anew.
    pub leaving: Arc<HashSet<u64>>,
    /// Whether that is why the tables are written: a value that cannot be read is an error then,
    /// and otherwise stays where it is.
    pub must_move: bool,
}

impl ValuePolicy {
    /// The policy of a keyspace, by which no value file is emptied.
    pub fn of(options: &KeyspaceOptions) -> ValuePolicy {
        let (separate_from, compression) = (options.separate_values, options.compression);
        ValuePolicy { separate_from, compression, leaving: Arc::default(), must_move: false }
    }
}

/// What has been written. All files are synced, the directory is not.
#[derive(Debug, Default)]
pub struct Written {
    pub tables: Vec<TableMeta>,
    pub values: Vec<ValueFileMeta>,
    /// The first key that was left, if the write was stopped.
    pub stopped_at: Option<Vec<u8>>,
}

impl Written {
    pub fn append(&mut self, mut other: Written) {
        self.tables.append(&mut other.tables);
        self.values.append(&mut other.values);
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        self.tables.iter().map(|meta| meta.size).sum::<u64>() + self.values.iter().map(|meta| meta.size).sum::<u64>()
    }

    /// Removes the files, which no version has ever named.
    pub fn remove(&self, context: &TableContext) {
        self.tables.iter().for_each(|meta| context.remove_file(meta.number));
        self.values.iter().for_each(|meta| context.values().remove_new(meta.number));
    }
}

/// What the levels below the output say of a key; see [`write_run`].
pub trait LowerLevels {
    /// Whether a level below the output may hold an older version of `key`. Keys come in ascending
    /// order.
    fn may_hold(&mut self, key: &[u8]) -> bool;

    /// Whether a level below the output may hold a version of `key` numbered `seqno` or later.
    /// Keys come in ascending order.
    ///
    /// Versions below are older, except for what a compaction in stages has written of inputs that
    /// stayed.
    fn may_hold_since(&mut self, key: &[u8], seqno: SeqNo) -> bool;

    /// Whether a table that stays, at the output level or above it, may hold a version of `key`
    /// numbered `seqno` or less. Keys come in ascending order. Asked only if there is a compaction
    /// filter.
    fn may_stay_above(&mut self, key: &[u8], seqno: SeqNo) -> bool;

    /// Whether to begin a new table with `key`, because the current one overlaps too much of the
    /// next level.
    fn cut_before(&mut self, key: &[u8]) -> bool;

    /// Called when a table has ended, for any reason.
    fn table_ended(&mut self);
}

/// Everything below is older and unknown, as for a flush: every tombstone stays, and one run is one
/// table.
pub struct UnknownLevels;

impl LowerLevels for UnknownLevels {
    fn may_hold(&mut self, _key: &[u8]) -> bool {
        true
    }

    fn may_hold_since(&mut self, _key: &[u8], _seqno: SeqNo) -> bool {
        false
    }

    fn may_stay_above(&mut self, _key: &[u8], _seqno: SeqNo) -> bool {
        false
    }

    fn cut_before(&mut self, _key: &[u8]) -> bool {
        false
    }

    fn table_ended(&mut self) {}
}

/// Bytes of entries read between two calls of `turn`. An urgent flush waits this long.
const YIELD_INTERVAL: usize = 256 << 10;
/// Bytes of operands that a writer collects before it combines them, unless their result is as
/// long.
const CHAIN_LEN: usize = 1 << 20;
/// Length at which a value file ends and the next begins.
const VALUE_FILE_LEN: u64 = 64 << 20;
/// A table ends when its entries point to this many times the size of a table. Emptying a value
/// file rewrites tables whole, and reads the values in the order of their keys.
const REFERENCED_SIZE: u64 = 8;
/// A table ends when its entries point to this many value files: the manifest lists them.
const MAX_REFERENCES: usize = 4096;
/// Bytes that an entry counts for in addition to its key and value.
const ENTRY_COST: usize = 64;

/// Writes to new tables those entries of `cursor` in `part` that must be kept, and their values to
/// value files as the context's policy says.
///
/// Returns `None` if the write was abandoned. The new files are removed then, and after an error.
pub fn write_run(
    cursor: &mut impl MergeCursor,
    part: KeySpan<&[u8]>,
    context: &OutputContext<'_>,
    lower: &mut impl LowerLevels,
) -> Result<Option<Written>> {
    let from = part.lower.map(<[u8]>::to_vec);
    let (done, current, cleared) = (Vec::new(), CurrentKey::default(), context.cleared);
    let (fs, dir, budget) = (context.tables.fs(), context.tables.dir(), context.tables.budget());
    let (keyspace, compression) = (context.options.keyspace, context.values.compression);
    let values = ValueWriter::new(fs, dir, keyspace, compression, VALUE_FILE_LEN, context.write_len, budget);
    let (since_yield, written) = (0, 0);
    let mut writer = RunWriter { context, builder: None, values, from, done, current, cleared, since_yield, written };
    let written = writer.write_all(cursor, part, lower).and_then(|end| match end {
        RunEnd::Abandoned => Ok(None),
        RunEnd::Whole => Ok(Some((writer.values.finish()?, None))),
        RunEnd::Before(key) => Ok(Some((writer.values.finish()?, Some(key)))),
    });
    match written {
        Ok(Some((values, stopped_at))) => {
            let written = Written { tables: writer.done, values, stopped_at };
            if context.paranoid {
                let verify = |file| ValueScan::verify(context.tables.values(), file);
                written.values.iter().try_for_each(verify).inspect_err(|_| written.remove(context.tables))?;
            }
            Ok(Some(written))
        }
        Ok(None) => {
            writer.abandon();
            Ok(None)
        }
        Err(error) => {
            writer.abandon();
            Err(error)
        }
    }
}

/// How far a write has come.
enum RunEnd {
    Whole,
    /// Stopped before this key.
    Before(Vec<u8>),
    Abandoned,
}

struct RunWriter<'a> {
    context: &'a OutputContext<'a>,
    builder: Option<TableBuilder<'a>>,
    values: ValueWriter<'a>,
    /// Start of the key range of the current table, or of the next one.
    from: Option<Vec<u8>>,
    done: Vec<TableMeta>,
    current: CurrentKey,
    /// What new tables have as [`TableMeta::cleared`]: less than the context's once an entry has
    /// been kept for a snapshot.
    cleared: SeqNo,
    /// Bytes of entries read, and of entries written, since the last call of `turn`.
    since_yield: usize,
    written: usize,
}

/// The key whose versions are being written.
#[derive(Default)]
struct CurrentKey {
    /// Whether the current table has a version of it: all of them go to one table.
    in_table: bool,
    /// The number of its newest version in the input.
    newest: SeqNo,
    /// Tombstones that hide no kept version so far.
    tombstones: Vec<SeqNo>,
    /// The newest versions of a stripe, if they begin with an operand, and their key.
    chain: OperandChain,
    chain_key: Vec<u8>,
    /// Bytes of the chain when it was last combined.
    combined_len: usize,
    /// Whether a part of the chain has been written as it was: the rest must be as well.
    is_split: bool,
    /// The oldest number that an operand written so far stands for. A memtable may have combined
    /// operands on both sides of a snapshot. What the snapshot sees of them must not be combined
    /// with anything older: readers of the operand skip it.
    boundary: SeqNo,
}

impl CurrentKey {
    /// Goes on to the next key, whose newest version is `newest`. The chain of the last one has
    /// ended.
    fn begin(&mut self, newest: SeqNo) {
        self.in_table = false;
        self.tombstones.clear();
        (self.newest, self.boundary) = (newest, 0);
    }
}

impl<'a> RunWriter<'a> {
    fn write_all(
        &mut self,
        cursor: &mut impl MergeCursor,
        part: KeySpan<&[u8]>,
        lower: &mut impl LowerLevels,
    ) -> Result<RunEnd> {
        let mut retention = Retention::new(self.context.snapshots.clone());
        let has_ranges = !self.context.ranges.is_empty();
        let mut ranges = has_ranges.then(|| Sweep::new(self.context.ranges.clone()));
        match part.lower {
            Some(from) => cursor.seek(from, MAX_SEQNO)?,
            None => cursor.seek_to_first()?,
        }
        let (mut has_key, mut stops) = (false, false);
        while cursor.valid() {
            let (key, seqno, kind, stored) = (cursor.key(), cursor.seqno(), cursor.kind(), cursor.value());
            match self.count_read(key.len() + stored.len()) {
                Turn::GoOn => {}
                Turn::Stop => stops = true,
                Turn::Abandon => return Ok(RunEnd::Abandoned),
            }
            if retention.enter(key) {
                self.end_chain(lower, true)?;
                if part.upper.is_some_and(|to| key >= to) {
                    break;
                }
                if stops && has_key {
                    let key = key.to_vec();
                    self.finish_table(Some(key.clone()))?;
                    return Ok(RunEnd::Before(key));
                }
                has_key = true;
                self.current.begin(seqno);
            }
            let is_deleted = match &mut ranges {
                Some(ranges) => self.is_deleted(ranges, &retention, key, seqno)?,
                None => false,
            };
            if !is_deleted && !self.is_hidden(lower, &mut retention, seqno)? {
                self.write_version(lower, key, seqno, kind, stored)?;
            }
            cursor.next()?;
        }
        self.end_chain(lower, true)?;
        self.finish_table(part.upper.map(<[u8]>::to_vec))?;
        // A rate limit counts the rest, too: small tables are made of parts that are less than an
        // interval.
        self.turn();
        Ok(RunEnd::Whole)
    }

    /// Whether range deletes have deleted a version of `key` for all snapshots. If not, notes for
    /// which of them it is kept.
    #[inline]
    fn is_deleted(&mut self, ranges: &mut Sweep, retention: &Retention, key: &[u8], seqno: SeqNo) -> Result<bool> {
        let numbers = ranges.numbers(key);
        if !drops(numbers, seqno, &self.context.snapshots) {
            self.cleared = least_above(numbers, seqno).map_or(self.cleared, |least| self.cleared.min(least - 1));
            return Ok(false);
        }
        // Everything older in this stripe is deleted as well.
        let chain = &mut self.current.chain;
        if !chain.is_empty() && !chain.is_complete() && retention.is_in_stripe(seqno) {
            chain.push(seqno, ValueKind::Delete, &[])?;
        }
        Ok(true)
    }

    /// Whether a newer version of its stripe hides a version of the current key. If not, ends the
    /// chain of operands unless they change this version.
    #[inline]
    fn is_hidden(&mut self, lower: &mut impl LowerLevels, retention: &mut Retention, seqno: SeqNo) -> Result<bool> {
        let CurrentKey { chain, boundary, .. } = &self.current;
        if retention.must_keep(seqno) {
            self.end_chain(lower, false)?;
        } else if chain.is_empty() || chain.is_complete() {
            return Ok(true);
        } else if seqno < *boundary && *boundary <= chain.newest() {
            self.end_chain(lower, false)?;
        }
        Ok(false)
    }

    /// Writes a version that is kept, or adds it to the operands that change it.
    #[inline]
    fn write_version(
        &mut self,
        lower: &mut impl LowerLevels,
        key: &[u8],
        seqno: SeqNo,
        kind: ValueKind,
        stored: &[u8],
    ) -> Result<()> {
        let is_alone = self.current.chain.is_empty();
        match Effect::of(kind, stored) {
            Effect::Put(put) if put.has_expired(self.context.now) => {
                self.write_version(lower, key, seqno, ValueKind::Delete, &[])
            }
            Effect::Put(put) if is_alone || put.deadline.is_some() => {
                // With a deadline it stays apart from what was merged into it: only the value
                // expires.
                self.end_chain(lower, false)?;
                self.write_value(lower, key, seqno, kind, stored)
            }
            Effect::Put(Put { value: ValuePlace::ValueFile(pointer), .. }) if self.context.operator.is_some() => {
                match self.read_value(key, pointer)? {
                    Some(value) => self.extend_chain(lower, key, seqno, ValueKind::Put, value.bytes()),
                    None => {
                        // What is merged into it stays as it is, too.
                        self.end_chain(lower, false)?;
                        self.write_value(lower, key, seqno, kind, stored)
                    }
                }
            }
            Effect::Delete if is_alone => self.write_delete(lower, key, seqno),
            _ => self.extend_chain(lower, key, seqno, kind, stored),
        }
    }

    /// Writes a value of the current key that has not expired, or what the compaction filter makes
    /// of it. A value that replaces it gets its deadline.
    #[inline]
    fn write_value(
        &mut self,
        lower: &mut impl LowerLevels,
        key: &[u8],
        seqno: SeqNo,
        kind: ValueKind,
        stored: &[u8],
    ) -> Result<()> {
        if self.context.hook.is_set() {
            return self.write_decided(lower, key, seqno, kind, stored);
        }
        self.write(lower, key, seqno, kind, stored)
    }

    /// Writes what the compaction filter makes of a value. It is not asked about a value that a
    /// table above may hold as well, or change by an operand that is combined here already.
    #[cold]
    fn write_decided(
        &mut self,
        lower: &mut impl LowerLevels,
        key: &[u8],
        seqno: SeqNo,
        kind: ValueKind,
        stored: &[u8],
    ) -> Result<()> {
        let newest_snapshot = self.context.snapshots.last().copied().unwrap_or(0);
        let is_newest = seqno == self.current.newest && seqno > newest_snapshot;
        if !is_newest || lower.may_stay_above(key, seqno) {
            return self.write(lower, key, seqno, kind, stored);
        }
        let separate;
        let whole = match split_separate(kind, stored) {
            Some((_, pointer)) => match self.read_value(key, pointer)? {
                Some(read) => {
                    separate = read;
                    separate.bytes()
                }
                None => return self.write(lower, key, seqno, kind, stored),
            },
            None => stored,
        };
        let (value, deadline) = match kind.whole() {
            ValueKind::ExpiringPut => {
                let (deadline, value) = split_expiring(whole);
                (value, Some(deadline))
            }
            _ => (whole, None),
        };
        let longest = MAX_VALUE_LEN - deadline.map_or(0, |_| DEADLINE_LEN);
        let is_sound = |made: &CompactionDecision| match made {
            CompactionDecision::Replace(value) => value.len() <= longest,
            CompactionDecision::Keep | CompactionDecision::Drop => true,
        };
        match (self.context.hook.decide(key, value).filter(is_sound), deadline) {
            (Some(CompactionDecision::Keep), _) => self.write(lower, key, seqno, kind, stored),
            (Some(CompactionDecision::Replace(value)), None) => self.write(lower, key, seqno, ValueKind::Put, &value),
            (Some(CompactionDecision::Replace(value)), Some(deadline)) => {
                let mut stored = Vec::new();
                put_expiring(&mut stored, deadline, &value);
                self.write(lower, key, seqno, ValueKind::ExpiringPut, &stored)
            }
            (Some(CompactionDecision::Drop), _) => self.write_delete(lower, key, seqno),
            (None, _) => Err(Error::CompactionFilter { keyspace: self.context.keyspace.to_owned(), key: key.to_vec() }),
        }
    }

    /// Counts an entry that was read, and takes a turn when it is time for one.
    #[inline]
    fn count_read(&mut self, len: usize) -> Turn {
        self.since_yield += ENTRY_COST + len;
        if self.since_yield < YIELD_INTERVAL { Turn::GoOn } else { self.turn() }
    }

    /// Reports what has been read and written since the last call.
    fn turn(&mut self) -> Turn {
        (self.context.turn)(std::mem::take(&mut self.since_yield) + std::mem::take(&mut self.written))
    }

    /// Reads the value to which an entry points. `None` if it cannot be read: the entry stays as it
    /// is, so that reads of its key will say why, and its file is not emptied. Fails if the value
    /// must move to another file.
    fn read_value(&mut self, key: &[u8], pointer: &[u8]) -> Result<Option<SeparateValue>> {
        let values = self.context.tables.values();
        let error = match values.read(key, pointer) {
            Ok(value) => {
                self.since_yield += value.bytes().len();
                return Ok(Some(value));
            }
            Err(error) => error,
        };
        if let Ok(pointer) = ValuePointer::decode(pointer) {
            values.note_unreadable(pointer.file, &error);
        }
        if self.context.values.must_move && self.is_leaving(pointer) { Err(error) } else { Ok(None) }
    }

    /// Writes a tombstone of the current key. If no older version can be below, holds it back until
    /// one follows: without that, it hides nothing.
    fn write_delete(&mut self, lower: &mut impl LowerLevels, key: &[u8], seqno: SeqNo) -> Result<()> {
        if lower.may_hold(key) {
            return self.write(lower, key, seqno, ValueKind::Delete, &[]);
        }
        self.current.tombstones.push(seqno);
        Ok(())
    }

    /// Writes an entry of the current key.
    #[inline]
    fn write(
        &mut self,
        lower: &mut impl LowerLevels,
        key: &[u8],
        seqno: SeqNo,
        kind: ValueKind,
        value: &[u8],
    ) -> Result<()> {
        self.written += key.len() + value.len();
        if !self.current.in_table {
            let cut = lower.cut_before(key);
            if cut || self.is_full() {
                self.finish_before(key)?;
                lower.table_ended();
            }
            self.current.in_table = true;
        }
        if !self.current.tombstones.is_empty() {
            for tombstone in std::mem::take(&mut self.current.tombstones) {
                self.builder()?.add(key, tombstone, ValueKind::Delete, &[])?;
            }
        }
        match split_separate(kind, value) {
            Some((_, pointer)) if self.is_leaving(pointer) => match self.read_value(key, pointer)? {
                Some(moved) => {
                    self.written += moved.bytes().len();
                    self.add(key, seqno, kind.whole(), moved.bytes())
                }
                None => self.builder()?.add(key, seqno, kind, value),
            },
            Some(_) => self.builder()?.add(key, seqno, kind, value),
            None => self.add(key, seqno, kind, value),
        }
    }

    /// Adds an entry that has its value; the value goes to a value file if it is long enough.
    #[inline]
    fn add(&mut self, key: &[u8], seqno: SeqNo, kind: ValueKind, stored: &[u8]) -> Result<()> {
        match (self.context.values.separate_from, kind) {
            (Some(least), ValueKind::Put) if stored.len() >= least as usize => {
                self.add_separate(key, seqno, ValueKind::SeparatePut, &[], stored)
            }
            (Some(least), ValueKind::ExpiringPut) if stored.len() >= least as usize + DEADLINE_LEN => {
                let deadline = &stored[..DEADLINE_LEN];
                self.add_separate(key, seqno, ValueKind::SeparateExpiringPut, deadline, stored)
            }
            _ => self.builder()?.add(key, seqno, kind, stored),
        }
    }

    /// Whether the value must leave the file to which an entry points.
    fn is_leaving(&self, pointer: &[u8]) -> bool {
        let leaving = &self.context.values.leaving;
        !leaving.is_empty() && ValuePointer::decode(pointer).is_ok_and(|pointer| leaving.contains(&pointer.file))
    }

    /// Writes `stored` to a value file, and adds an entry of `kind` with `prefix` and the pointer.
    fn add_separate(&mut self, key: &[u8], seqno: SeqNo, kind: ValueKind, prefix: &[u8], stored: &[u8]) -> Result<()> {
        let pointer = self.values.add(key, stored, self.context.new_number)?;
        let entry = [prefix, pointer].concat();
        self.builder()?.add(key, seqno, kind, &entry)
    }

    /// Adds a version to the chain of operands. A chain that grows too long is combined, or
    /// written as far as it is known.
    fn extend_chain(
        &mut self,
        lower: &mut impl LowerLevels,
        key: &[u8],
        seqno: SeqNo,
        kind: ValueKind,
        stored: &[u8],
    ) -> Result<()> {
        let CurrentKey { chain, chain_key, is_split, combined_len, .. } = &mut self.current;
        chain_key.clear();
        chain_key.extend_from_slice(key);
        if chain.len() > CHAIN_LEN.max(2 * *combined_len) {
            let may_combine = !*is_split && !lower.may_hold_since(chain_key, chain.oldest());
            if may_combine && chain.shorten(self.context.operator.as_ref(), chain_key) {
                *combined_len = chain.len();
            } else {
                // The last version stays: the next one may replace it.
                *is_split = true;
                self.write_chain(lower, 1)?;
            }
        }
        self.current.chain.push(seqno, kind, stored)
    }

    /// Writes the chain of operands, if there is one: combined, if that is possible. `is_last` says
    /// that the inputs hold no older version of the key.
    #[inline]
    fn end_chain(&mut self, lower: &mut impl LowerLevels, is_last: bool) -> Result<()> {
        if self.current.chain.is_empty() { Ok(()) } else { self.write_combined(lower, is_last) }
    }

    /// Writes the chain of operands as [`end_chain`](RunWriter::end_chain) does.
    #[cold]
    fn write_combined(&mut self, lower: &mut impl LowerLevels, is_last: bool) -> Result<()> {
        let key = std::mem::take(&mut self.current.chain_key);
        let chain = &self.current.chain;
        let is_whole = is_last && !chain.is_complete() && !lower.may_hold(&key);
        // If the operands are below as well, combined with others, they must stay recognisable.
        let is_separate = is_whole || chain.is_complete() || !lower.may_hold_since(&key, chain.oldest());
        let resolved = match self.context.operator.as_ref() {
            // The operands of a chain that cannot be combined are kept: reads will say why.
            Some(operator) if is_separate && !self.current.is_split => {
                chain.resolve(Some(operator), "", &key, is_whole).ok()
            }
            _ => None,
        };
        let newest = chain.newest();
        if !matches!(resolved, Some(Resolved::Value(_))) {
            self.current.boundary = chain.oldest();
        }
        self.current.chain_key = key;
        match resolved {
            Some(resolved) => {
                let key = std::mem::take(&mut self.current.chain_key);
                match resolved {
                    Resolved::Value(value) => self.write_value(lower, &key, newest, ValueKind::Put, &value)?,
                    Resolved::Operand(stored) => self.write(lower, &key, newest, ValueKind::Merge, &stored)?,
                }
                self.current.chain_key = key;
            }
            None => self.write_chain(lower, 0)?,
        }
        self.current.chain.clear();
        (self.current.combined_len, self.current.is_split) = (0, false);
        Ok(())
    }

    /// Writes the versions in the chain as they are, all but the last `count`.
    fn write_chain(&mut self, lower: &mut impl LowerLevels, count: usize) -> Result<()> {
        let key = std::mem::take(&mut self.current.chain_key);
        for (seqno, kind, stored) in self.current.chain.take_newest(count) {
            self.write(lower, &key, seqno, kind, &stored)?;
        }
        self.current.chain_key = key;
        Ok(())
    }

    fn is_full(&self) -> bool {
        let (table_size, referenced) =
            (self.context.table_size, self.context.table_size.saturating_mul(REFERENCED_SIZE));
        self.builder.as_ref().is_some_and(|builder| {
            let values = builder.references();
            builder.estimated_size() >= table_size
                || table_size < u64::MAX
                    && (builder.growing_memory() >= self.context.table_memory
                        || values.bytes() >= referenced
                        || values.len() >= MAX_REFERENCES)
        })
    }

    fn builder(&mut self) -> Result<&mut TableBuilder<'a>> {
        let none = match &mut self.builder {
            Some(builder) => return Ok(builder),
            none => none,
        };
        let tables = self.context.tables;
        let number = (self.context.new_number)();
        let builder = TableBuilder::new(tables.fs(), tables.dir(), number, self.context.options)?;
        let mut builder = builder.charging(tables.budget(), self.context.reserved);
        builder.set_write_len(self.context.write_len);
        Ok(none.insert(builder))
    }

    /// Ends the current table, if any, before one that begins with `key`.
    fn finish_before(&mut self, key: &[u8]) -> Result<()> {
        // The shortest key between the two tables.
        let last = self.builder.as_ref().and_then(TableBuilder::last_key);
        let bound = last.map(|last| key[..key.len().min(common_prefix_len(last, key) + 1)].to_vec());
        if bound.is_some() { self.finish_table(bound) } else { Ok(()) }
    }

    /// Ends the current table, if any. Its key range ends before `to`.
    fn finish_table(&mut self, to: Option<Vec<u8>>) -> Result<()> {
        if self.builder.is_some() {
            // A table that is whole points to value files that are whole.
            self.values.end_file()?;
        }
        let Some(mut builder) = self.builder.take() else { return Ok(()) };
        let from = std::mem::replace(&mut self.from, to.clone());
        let dead = self.context.tables.graveyard().numbers();
        builder.set_origin(&Origin { dead, from, to, ..self.context.origin.clone() });
        let mut meta = TableMeta { cleared: self.cleared, ..builder.finish()? };
        let is_last = usize::from(self.context.origin.level) + 1 == LEVEL_COUNT;
        let combines = self.context.operator.as_ref().is_none_or(NamedOperator::is_known);
        if is_last && combines && self.context.snapshots.first().is_none_or(|oldest| meta.largest_seqno <= *oldest) {
            // What could be left out has been.
            meta.kept = meta.hidden_entries();
        }
        self.done.push(meta.clone());
        if self.context.paranoid {
            Table::new(Arc::clone(self.context.tables), meta).verify()?;
        }
        Ok(())
    }

    fn abandon(&mut self) {
        self.values.abandon();
        if let Some(builder) = self.builder.take() {
            builder.abandon();
        }
        for meta in self.done.drain(..) {
            self.context.tables.remove_file(meta.number);
        }
    }
}
