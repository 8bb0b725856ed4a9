//! Writing sorted entries to tables, for flushes and compactions alike.

use std::sync::Arc;

use super::retention::Retention;
use crate::error::Result;
use crate::format::key::common_prefix_len;
use crate::format::key::{MAX_SEQNO, SeqNo, ValueKind};
use crate::sorted::iter::InternalCursor;
use crate::sorted::table::{Origin, Table, TableBuilder, TableContext, TableMeta, TableOptions};

/// What writing tables takes from the store.
pub(crate) struct OutputContext<'a> {
    pub(crate) tables: &'a Arc<TableContext>,
    pub(crate) options: TableOptions,
    /// Size at which one table ends and the next begins.
    pub(crate) table_size: u64,
    /// Live snapshots, ascending.
    pub(crate) snapshots: Vec<SeqNo>,
    /// Takes the next file number.
    pub(crate) new_number: &'a dyn Fn() -> u64,
    /// Called every [`YIELD_INTERVAL`] bytes: true means that the result is not wanted any more. It
    /// may do more urgent work before it returns.
    pub(crate) cancelled: &'a dyn Fn() -> bool,
    /// Reads each table back and compares checksums.
    pub(crate) paranoid: bool,
    /// Where the tables come from; which range each stands for, and what is dead by then, is filled in.
    pub(crate) origin: Origin,
}

/// What a level below says of a key; see [`write_run`].
pub(crate) trait Below {
    /// Whether an older version of `key` may be in a level below the output. Keys are asked in ascending order.
    fn may_hold(&mut self, key: &[u8]) -> bool;

    /// Whether a new table should begin with `key`, because the one being written overlaps too much of the level below.
    fn cut_before(&mut self, key: &[u8]) -> bool;

    /// A table has been ended, for whatever reason.
    fn table_ended(&mut self);
}

/// A flush knows nothing of what is below: every tombstone stays, and one run is one table.
pub(crate) struct Unknown;

impl Below for Unknown {
    fn may_hold(&mut self, _key: &[u8]) -> bool {
        true
    }

    fn cut_before(&mut self, _key: &[u8]) -> bool {
        false
    }

    fn table_ended(&mut self) {}
}

/// Bytes of entries that are read between two calls of `cancelled`. A flush that is due waits for
/// them.
const YIELD_INTERVAL: usize = 256 << 10;
/// What an entry counts beside its key and value.
const ENTRY_COST: usize = 64;

/// A part of the key space: from the first key on, and up to but without the second. An open end is `None`.
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

/// Writes what must live on of `cursor`'s entries in `part` to tables, each synced; the directory is not. Without an error, all
/// entries were read; `None` means that it was cancelled. What was written is removed again unless the whole succeeds.
pub(crate) fn write_run(
    cursor: &mut impl InternalCursor,
    part: Part<'_>,
    context: &OutputContext<'_>,
    below: &mut impl Below,
) -> Result<Option<Vec<TableMeta>>> {
    let from = part.from.map(<[u8]>::to_vec);
    let mut output = Output { context, builder: None, from, done: Vec::new() };
    match output.write_all(cursor, part, below) {
        Ok(true) => Ok(Some(output.done)),
        Ok(false) => {
            output.abandon();
            Ok(None)
        }
        Err(error) => {
            output.abandon();
            Err(error)
        }
    }
}

struct Output<'a> {
    context: &'a OutputContext<'a>,
    builder: Option<TableBuilder<'a>>,
    /// Where the range of the table begins that is being written, or will be next.
    from: Option<Vec<u8>>,
    done: Vec<TableMeta>,
}

impl<'a> Output<'a> {
    /// Returns whether it came to the end, and was not cancelled.
    fn write_all(&mut self, cursor: &mut impl InternalCursor, part: Part<'_>, below: &mut impl Below) -> Result<bool> {
        let mut retention = Retention::new(self.context.snapshots.clone());
        // Whether the table being written, if there is one, has a version of the current key: all of them go to one table.
        let mut in_table = false;
        let mut since_yield = 0;
        // Tombstones of the current key that hide nothing so far.
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
            let mut keep = retention.lives_on(seqno);
            if keep && kind == ValueKind::Delete && !below.may_hold(key) {
                // It is written only if something older of the key is.
                tombstones.push(seqno);
                keep = false;
            }
            if keep {
                if !in_table {
                    let cut = below.cut_before(key);
                    if cut || self.is_full() {
                        self.finish_before(key)?;
                        below.table_ended();
                    }
                    in_table = true;
                }
                for hiding in tombstones.drain(..) {
                    self.builder()?.add(key, hiding, ValueKind::Delete, &[])?;
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

    /// Ends the table, if one is being written, before one that begins with `key`.
    fn finish_before(&mut self, key: &[u8]) -> Result<()> {
        // The shortest that lies between the two.
        let last = self.builder.as_ref().and_then(TableBuilder::last_key);
        let bound = last.map(|last| key[..key.len().min(common_prefix_len(last, key) + 1)].to_vec());
        if bound.is_some() { self.finish_table(bound) } else { Ok(()) }
    }

    /// Ends the table, if one is being written. It stands for all keys before `to`.
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
