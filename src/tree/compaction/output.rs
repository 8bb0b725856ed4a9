//! Writes sorted entries to tables, for flushes and compactions.

use std::sync::Arc;

use super::retention::Retention;
use crate::error::Result;
use crate::format::key::common_prefix_len;
use crate::format::key::{MAX_SEQNO, SeqNo, ValueKind};
use crate::sorted::iter::{MergeCursor, Stamped};
use crate::sorted::table::{Origin, Table, TableBuilder, TableContext, TableMeta, TableOptions};

/// What the store provides for writing tables.
pub(crate) struct OutputContext<'a> {
    pub(crate) tables: &'a Arc<TableContext>,
    pub(crate) options: TableOptions,
    /// Size at which a table ends and the next begins.
    pub(crate) table_size: u64,
    /// Live snapshots, ascending.
    pub(crate) snapshots: Vec<SeqNo>,
    /// Takes the next file number.
    pub(crate) new_number: &'a dyn Fn() -> u64,
    /// Called every [`YIELD_INTERVAL`] bytes; true cancels the write. It may do more urgent work
    /// before it returns.
    pub(crate) cancelled: &'a dyn Fn() -> bool,
    /// Reads each new table back and compares checksums.
    pub(crate) paranoid: bool,
    /// Origin of the tables. The writer fills in each table's key range and the tables that are
    /// dead by then.
    pub(crate) origin: Origin,
}

/// What the levels below the output say of a key; see [`write_run`].
pub(crate) trait LowerLevels {
    /// Whether a level below the output may hold an older version of `key`. Keys come in ascending
    /// order.
    fn may_hold(&mut self, key: &[u8]) -> bool;

    /// Whether to begin a new table with `key`, because the current one overlaps too much of the
    /// next level.
    fn cut_before(&mut self, key: &[u8]) -> bool;

    /// Called when a table has ended, for any reason.
    fn table_ended(&mut self);
}

/// The levels below are unknown, as in a flush: every tombstone stays, and one run is one table.
pub(crate) struct Unknown;

impl LowerLevels for Unknown {
    fn may_hold(&mut self, _key: &[u8]) -> bool {
        true
    }

    fn cut_before(&mut self, _key: &[u8]) -> bool {
        false
    }

    fn table_ended(&mut self) {}
}

/// Bytes of entries read between two calls of `cancelled`. An urgent flush waits this long.
const YIELD_INTERVAL: usize = 256 << 10;
/// Bytes that an entry counts for in addition to its key and value.
const ENTRY_COST: usize = 64;

/// A range of the key space: from the first key, inclusive, to the second, exclusive. `None` is an
/// open end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part<'a> {
    pub(crate) from: Option<&'a [u8]>,
    pub(crate) to: Option<&'a [u8]>,
}

impl Part<'_> {
    pub(crate) fn overlaps(&self, table: &TableMeta) -> bool {
        self.from.is_none_or(|from| *from <= *table.largest) && self.to.is_none_or(|to| *table.smallest < *to)
    }
}

/// Writes to new tables those entries of `cursor` in `part` that must be kept. Each table is
/// synced, the directory is not.
///
/// Returns `None` if cancelled. Unless all entries were read and written, the new tables are
/// removed again.
pub(crate) fn write_run(
    cursor: &mut impl MergeCursor,
    part: Part<'_>,
    context: &OutputContext<'_>,
    lower: &mut impl LowerLevels,
) -> Result<Option<Vec<TableMeta>>> {
    let from = part.from.map(<[u8]>::to_vec);
    let mut writer = RunWriter { context, builder: None, from, done: Vec::new() };
    match writer.write_all(cursor, part, lower) {
        Ok(true) => Ok(Some(writer.done)),
        Ok(false) => {
            writer.abandon();
            Ok(None)
        }
        Err(error) => {
            writer.abandon();
            Err(error)
        }
    }
}

struct RunWriter<'a> {
    context: &'a OutputContext<'a>,
    builder: Option<TableBuilder<'a>>,
    /// Start of the key range of the current table, or of the next one.
    from: Option<Vec<u8>>,
    done: Vec<TableMeta>,
}

impl<'a> RunWriter<'a> {
    /// Returns false if it was cancelled.
    fn write_all(
        &mut self,
        cursor: &mut impl MergeCursor,
        part: Part<'_>,
        lower: &mut impl LowerLevels,
    ) -> Result<bool> {
        let mut retention = Retention::new(self.context.snapshots.clone());
        // Whether the current table has a version of the current key: all of them go to one table.
        let mut in_table = false;
        let mut since_yield = 0;
        // Tombstones of the current key that hide no kept version so far.
        let mut tombstones: Vec<SeqNo> = Vec::new();
        match part.from {
            Some(from) => cursor.seek(from, MAX_SEQNO)?,
            None => cursor.seek_to_first()?,
        }
        while cursor.valid() {
            let (key, seqno, kind) = (cursor.key(), cursor.seqno(), cursor.kind());
            since_yield += ENTRY_COST + key.len() + cursor.value().len();
            if since_yield >= YIELD_INTERVAL {
                since_yield = 0;
                if (self.context.cancelled)() {
                    return Ok(false);
                }
            }
            if retention.enter(key) {
                if part.to.is_some_and(|to| key >= to) {
                    break;
                }
                in_table = false;
                tombstones.clear();
            }
            let mut keep = retention.must_keep(seqno);
            if keep && kind == ValueKind::Delete && !lower.may_hold(key) {
                // It is written only if an older version of the key is.
                tombstones.push(seqno);
                keep = false;
            }
            if keep {
                if !in_table {
                    let cut = lower.cut_before(key);
                    if cut || self.is_full() {
                        self.finish_before(key)?;
                        lower.table_ended();
                    }
                    in_table = true;
                }
                for tombstone in tombstones.drain(..) {
                    self.builder()?.add(key, tombstone, ValueKind::Delete, &[])?;
                }
                self.builder()?.add(key, seqno, kind, cursor.value())?;
            }
            cursor.next()?;
        }
        self.finish_table(part.to.map(<[u8]>::to_vec))?;
        Ok(true)
    }

    fn is_full(&self) -> bool {
        self.builder.as_ref().is_some_and(|builder| builder.estimated_size() >= self.context.table_size)
    }

    fn builder(&mut self) -> Result<&mut TableBuilder<'a>> {
        let none = match &mut self.builder {
            Some(builder) => return Ok(builder),
            none => none,
        };
        let tables = self.context.tables;
        let number = (self.context.new_number)();
        Ok(none.insert(TableBuilder::new(tables.fs(), tables.dir(), number, self.context.options)?))
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
        let Some(mut builder) = self.builder.take() else { return Ok(()) };
        let from = std::mem::replace(&mut self.from, to.clone());
        let dead = self.context.tables.graveyard().numbers();
        builder.set_origin(&Origin { dead, from, to, ..self.context.origin.clone() });
        let meta = builder.finish()?;
        self.done.push(meta.clone());
        if self.context.paranoid {
            Table::new(Arc::clone(self.context.tables), meta).verify()?;
        }
        Ok(())
    }

    fn abandon(&mut self) {
        if let Some(builder) = self.builder.take() {
            builder.abandon();
        }
        for meta in self.done.drain(..) {
            self.context.tables.remove_file(meta.number);
        }
    }
}
