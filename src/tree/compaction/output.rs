//! Writes sorted entries to tables, for flushes and compactions.

use std::sync::Arc;

use super::retention::Retention;
use crate::error::{Error, Result};
use crate::format::deadline::{Deadline, put_expiring, split_expiring};
use crate::format::key::{MAX_SEQNO, SeqNo, ValueKind, common_prefix_len};
use crate::format::span::KeySpan;
use crate::operator::{CompactionDecision, CompactionHook, NamedOperator, OperandChain, Resolved};
use crate::sorted::iter::{MergeCursor, Stamped};
use crate::sorted::ranges::{Covers, NO_SNAPSHOT, RangeSource, Stretch, drops, least_above};
use crate::sorted::table::{Origin, Table, TableBuilder, TableContext, TableMeta, TableOptions};

/// What the store provides for writing tables.
pub(crate) struct OutputContext<'a> {
    pub(crate) tables: &'a Arc<TableContext>,
    pub(crate) options: TableOptions,
    /// Size at which a table ends and the next begins.
    pub(crate) table_size: u64,
    /// Live snapshots, ascending.
    pub(crate) snapshots: Vec<SeqNo>,
    /// The range deletes that are durable when the tables are, numbered up to `cleared`: what they
    /// delete is left out.
    pub(crate) ranges: Vec<Arc<dyn RangeSource>>,
    pub(crate) cleared: SeqNo,
    /// Combines operands of merges. Without it they are written as they are.
    pub(crate) operator: Option<NamedOperator>,
    /// Decides what becomes of values that are the newest of their keys.
    pub(crate) hook: CompactionHook,
    /// Values whose deadline is not later are written as deletes; 0 for none.
    pub(crate) now: Deadline,
    /// The keyspace's name, for errors.
    pub(crate) keyspace: &'a str,
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
pub(crate) struct UnknownLevels;

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

/// Bytes of entries read between two calls of `cancelled`. An urgent flush waits this long.
const YIELD_INTERVAL: usize = 256 << 10;
/// Bytes of operands that a writer collects before it combines them, unless their result is as
/// long.
const CHAIN_LEN: usize = 1 << 20;
/// Bytes that an entry counts for in addition to its key and value.
const ENTRY_COST: usize = 64;

/// Writes to new tables those entries of `cursor` in `part` that must be kept. Each table is
/// synced, the directory is not.
///
/// Returns `None` if cancelled. Unless all entries were read and written, the new tables are
/// removed again.
pub(crate) fn write_run(
    cursor: &mut impl MergeCursor,
    part: KeySpan<&[u8]>,
    context: &OutputContext<'_>,
    lower: &mut impl LowerLevels,
) -> Result<Option<Vec<TableMeta>>> {
    let from = part.lower.map(<[u8]>::to_vec);
    let (done, current, cleared) = (Vec::new(), CurrentKey::default(), context.cleared);
    let mut writer = RunWriter { context, builder: None, from, done, current, cleared };
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
    current: CurrentKey,
    /// What new tables have as [`TableMeta::cleared`]: less than the context's once an entry has
    /// been kept for a snapshot.
    cleared: SeqNo,
}

/// The key whose versions are being written.
#[derive(Default)]
struct CurrentKey {
    /// Whether the current table has a version of it: all of them go to one table.
    in_table: bool,
    /// The number of its newest version in the input, 0 if unknown.
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

impl<'a> RunWriter<'a> {
    /// Returns false if it was cancelled.
    fn write_all(
        &mut self,
        cursor: &mut impl MergeCursor,
        part: KeySpan<&[u8]>,
        lower: &mut impl LowerLevels,
    ) -> Result<bool> {
        let mut retention = Retention::new(self.context.snapshots.clone());
        let ranges = Covers::new(self.context.ranges.clone(), NO_SNAPSHOT);
        let (has_ranges, mut stretch) = (!self.context.ranges.is_empty(), None::<Stretch>);
        let mut since_yield = 0;
        match part.lower {
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
                self.end_chain(lower, true)?;
                if part.upper.is_some_and(|to| key >= to) {
                    break;
                }
                self.current.in_table = false;
                self.current.tombstones.clear();
                (self.current.newest, self.current.boundary) = (0, 0);
            }
            if self.current.newest == 0 {
                self.current.newest = seqno;
            }
            if has_ranges {
                if stretch.as_ref().is_none_or(|stretch| !stretch.holds(key)) {
                    stretch = Some(ranges.stretch(key));
                }
                let numbers = stretch.as_ref().map_or(&[][..], |stretch| &stretch.numbers);
                if drops(numbers, seqno, &self.context.snapshots) {
                    // Everything older in this stripe is deleted as well.
                    let chain = &mut self.current.chain;
                    if !chain.is_empty() && !chain.is_complete() && retention.is_in_stripe(seqno) {
                        chain.push(seqno, ValueKind::Delete, &[])?;
                    }
                    cursor.next()?;
                    continue;
                }
                self.cleared = least_above(numbers, seqno).map_or(self.cleared, |least| self.cleared.min(least - 1));
            }
            if retention.must_keep(seqno) {
                self.end_chain(lower, false)?;
            } else if self.current.chain.is_empty() || self.current.chain.is_complete() {
                // A newer version hides it.
                cursor.next()?;
                continue;
            } else if seqno < self.current.boundary && self.current.boundary <= self.current.chain.newest() {
                self.end_chain(lower, false)?;
            }
            let (kind, stored) = match kind {
                ValueKind::ExpiringPut if split_expiring(cursor.value()).0 <= self.context.now => {
                    (ValueKind::Delete, &[][..])
                }
                kind => (kind, cursor.value()),
            };
            if kind == ValueKind::ExpiringPut {
                // It stays apart from what was merged into it: only the value expires.
                self.end_chain(lower, false)?;
                self.write_expiring(lower, key, seqno, stored)?;
            } else if kind == ValueKind::Merge || !self.current.chain.is_empty() {
                self.current.chain_key.clear();
                self.current.chain_key.extend_from_slice(key);
                self.extend_chain(lower, seqno, kind, stored)?;
            } else if kind == ValueKind::Delete {
                self.write_delete(lower, key, seqno)?;
            } else {
                self.write_value(lower, key, seqno, stored)?;
            }
            cursor.next()?;
        }
        self.end_chain(lower, true)?;
        self.finish_table(part.upper.map(<[u8]>::to_vec))?;
        Ok(true)
    }

    /// Writes a value of the current key, or what the compaction filter makes of it.
    #[inline]
    fn write_value(&mut self, lower: &mut impl LowerLevels, key: &[u8], seqno: SeqNo, value: &[u8]) -> Result<()> {
        if self.context.hook.is_set() {
            return self.write_decided(lower, key, seqno, value, None);
        }
        self.write(lower, key, seqno, ValueKind::Put, value)
    }

    /// Writes a value of the current key that has not expired, or what the compaction filter makes
    /// of it. A value that replaces it gets its deadline.
    #[inline(never)]
    fn write_expiring(&mut self, lower: &mut impl LowerLevels, key: &[u8], seqno: SeqNo, stored: &[u8]) -> Result<()> {
        if self.context.hook.is_set() {
            let (deadline, value) = split_expiring(stored);
            return self.write_decided(lower, key, seqno, value, Some(deadline));
        }
        self.write(lower, key, seqno, ValueKind::ExpiringPut, stored)
    }

    /// Writes what the compaction filter makes of a value. It is not asked about a value that a
    /// table above may hold as well, or change by an operand that is combined here already.
    #[cold]
    fn write_decided(
        &mut self,
        lower: &mut impl LowerLevels,
        key: &[u8],
        seqno: SeqNo,
        value: &[u8],
        deadline: Option<Deadline>,
    ) -> Result<()> {
        let newest_snapshot = self.context.snapshots.last().copied().unwrap_or(0);
        let is_newest = seqno == self.current.newest && seqno > newest_snapshot;
        let put = |writer: &mut Self, lower: &mut _, value: &[u8]| match deadline {
            None => writer.write(lower, key, seqno, ValueKind::Put, value),
            Some(deadline) => {
                let mut stored = Vec::new();
                put_expiring(&mut stored, deadline, value);
                writer.write(lower, key, seqno, ValueKind::ExpiringPut, &stored)
            }
        };
        if !is_newest || lower.may_stay_above(key, seqno) {
            return put(self, lower, value);
        }
        match self.context.hook.decide(key, value) {
            Some(CompactionDecision::Keep) => put(self, lower, value),
            Some(CompactionDecision::Replace(value)) => put(self, lower, &value),
            Some(CompactionDecision::Drop) => self.write_delete(lower, key, seqno),
            None => Err(Error::CompactionFilter { keyspace: self.context.keyspace.to_owned(), key: key.to_vec() }),
        }
    }

    /// Writes a tombstone of the current key. Unless an older version may be below, it is written
    /// only if an older one is.
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
        self.builder()?.add(key, seqno, kind, value)
    }

    /// Adds a version to the chain of operands. A chain that grows too long is combined, or
    /// written as far as it is known.
    fn extend_chain(
        &mut self,
        lower: &mut impl LowerLevels,
        seqno: SeqNo,
        kind: ValueKind,
        stored: &[u8],
    ) -> Result<()> {
        let CurrentKey { chain, chain_key, is_split, combined_len, .. } = &mut self.current;
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
                    Resolved::Value(value) => self.write_value(lower, &key, newest, &value)?,
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
        let meta = TableMeta { cleared: self.cleared, ..builder.finish()? };
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use super::*;
    use crate::filter::FilterPolicy;
    use crate::operator::Append;
    use crate::options::Compression;
    use crate::sorted::iter::InternalCursor;
    use crate::sorted::table::{Input, SalvageTable};
    use crate::tree::version::RunCursor;
    use crate::vfs::{FileSystem, SimFileSystem};

    type Entry = (Vec<u8>, SeqNo, ValueKind, usize);

    /// A level below that holds the keys with an `h`, and wants a new table to begin with these.
    struct Marked {
        cuts: &'static [&'static str],
        ended: usize,
    }

    impl LowerLevels for Marked {
        fn may_hold(&mut self, key: &[u8]) -> bool {
            key.contains(&b'h')
        }

        fn may_hold_since(&mut self, key: &[u8], _seqno: SeqNo) -> bool {
            key.contains(&b'i')
        }

        fn may_stay_above(&mut self, key: &[u8], _seqno: SeqNo) -> bool {
            key.contains(&b's')
        }

        fn cut_before(&mut self, key: &[u8]) -> bool {
            self.cuts.iter().any(|cut| cut.as_bytes() == key)
        }

        fn table_ended(&mut self) {
            self.ended += 1;
        }
    }

    const OPTIONS: TableOptions = TableOptions {
        filter: FilterPolicy::None,
        prefix: None,
        compression: Compression::None,
        block_size: 1024,
        seed: 0,
        keyspace: 0,
    };

    /// One table, and no snapshots.
    const ALL: (u64, &[SeqNo]) = (u64::MAX, &[]);

    fn put(key: impl AsRef<[u8]>, seqno: SeqNo, value_len: usize) -> Entry {
        (key.as_ref().to_vec(), seqno, ValueKind::Put, value_len)
    }

    /// An operand of one byte that stands for itself alone.
    fn merge(key: &str, seqno: SeqNo) -> Entry {
        (key.as_bytes().to_vec(), seqno, ValueKind::Merge, 2)
    }

    fn delete(key: &str, seqno: SeqNo) -> Entry {
        (key.as_bytes().to_vec(), seqno, ValueKind::Delete, 0)
    }

    fn context() -> Arc<TableContext> {
        let fs = SimFileSystem::new();
        fs.create_dir(Path::new("/db")).unwrap();
        Arc::new(TableContext::new(Arc::new(fs), Path::new("/db"), 0, 8))
    }

    /// What is written of the table of `entries`, table by table; it is number 1.
    fn written(
        tables: &Arc<TableContext>,
        entries: &[Entry],
        part: KeySpan<&[u8]>,
        limits: (u64, &[SeqNo]),
        below: &mut Marked,
        cancelled: &dyn Fn() -> bool,
    ) -> Option<Vec<Vec<Entry>>> {
        written_by(tables, entries, part, limits, below, cancelled, CompactionHook::default())
    }

    fn written_by(
        tables: &Arc<TableContext>,
        entries: &[Entry],
        part: KeySpan<&[u8]>,
        (table_size, snapshots): (u64, &[SeqNo]),
        below: &mut Marked,
        cancelled: &dyn Fn() -> bool,
        hook: CompactionHook,
    ) -> Option<Vec<Vec<Entry>>> {
        let mut builder = TableBuilder::new(tables.fs(), tables.dir(), 1, OPTIONS).unwrap();
        for (key, seqno, kind, value_len) in entries {
            // The first byte of a stored operand says what it stands for.
            let value = [&vec![0; usize::from(*kind == ValueKind::Merge)][..], &vec![7; *value_len]].concat();
            builder.add(key, *seqno, *kind, &value[..*value_len]).unwrap();
        }
        let cursor_over = |meta: TableMeta| {
            let table = Arc::new(Table::new(Arc::clone(tables), meta));
            RunCursor::for_compaction([table].into())
        };
        let mut cursor = cursor_over(builder.finish().unwrap());
        let last_number = Cell::new(1);
        let context = OutputContext {
            tables,
            options: OPTIONS,
            table_size,
            snapshots: snapshots.to_vec(),
            ranges: Vec::new(),
            cleared: 0,
            operator: Some(NamedOperator::new(Arc::new(Append))),
            hook,
            now: 0,
            keyspace: "ks",
            new_number: &|| last_number.replace(last_number.get() + 1) + 1,
            cancelled,
            paranoid: true,
            origin: Origin { inputs: vec![Input { number: 1, is_replaced: true }], ..Origin::default() },
        };
        let metas = write_run(&mut cursor, part, &context, below).unwrap()?;
        let tables = metas.into_iter().map(|meta| {
            let mut cursor = cursor_over(meta);
            let mut entries = Vec::new();
            cursor.seek_to_first().unwrap();
            while cursor.valid() {
                entries.push((cursor.key().to_vec(), cursor.seqno(), cursor.kind(), cursor.value().len()));
                cursor.next().unwrap();
            }
            entries
        });
        Some(tables.collect())
    }

    fn marked(cuts: &'static [&'static str]) -> Marked {
        Marked { cuts, ended: 0 }
    }

    #[test]
    fn a_table_ends_when_it_is_full_or_a_level_below_wants_it_and_never_amid_a_key() {
        // Two versions of each letter, of 600 bytes: a table of 4 KiB takes four letters.
        let entries: Vec<Entry> =
            ('a'..='t').flat_map(|key| [put(key.to_string(), 9, 600), put(key.to_string(), 5, 600)]).collect();
        let first_keys = |table_size: u64, below: &mut Marked| -> String {
            let tables =
                written(&context(), &entries, KeySpan::default(), (table_size, &[5]), below, &|| false).unwrap();
            assert_eq!(tables.concat(), entries);
            assert_eq!(below.ended + 1, tables.len(), "each end but the last is told");
            tables.iter().map(|table| char::from(table[0].0[0])).collect()
        };
        assert_eq!(first_keys(u64::MAX, &mut marked(&[])), "a");
        assert_eq!(first_keys(4096, &mut marked(&[])), "aeimq");
        assert_eq!(first_keys(u64::MAX, &mut marked(&["c", "n"])), "acn");
        // From a cut on, the next table is as long as any.
        assert_eq!(first_keys(4096, &mut marked(&["c"])), "acgkos");
    }

    #[test]
    fn a_tombstone_goes_unless_it_hides_something_in_the_output_or_below() {
        let entries = [
            delete("a", 30),
            put("a", 20, 1),
            delete("a", 10),
            delete("b", 31),
            delete("c", 32),
            put("c", 22, 1),
            put("d", 23, 1),
            delete("h", 33),
            put("h", 24, 1),
        ];
        let kept = |snapshots: &[SeqNo]| {
            let limits = (u64::MAX, snapshots);
            let tables = written(&context(), &entries, KeySpan::default(), limits, &mut marked(&[]), &|| false);
            tables.unwrap().concat()
        };
        assert_eq!(kept(&[]), [put("d", 23, 1), delete("h", 33)]);
        // The snapshot sees what the tombstones of `a` and `c` hide from later reads.
        let seen = [delete("a", 30), put("a", 20, 1), delete("c", 32), put("c", 22, 1), put("d", 23, 1)];
        assert_eq!(kept(&[25]), [&seen[..], &[delete("h", 33), put("h", 24, 1)]].concat());
        // It sees that `a` was deleted, and so do all others: nothing of the key is left.
        assert_eq!(kept(&[15])[0], put("d", 23, 1));
    }

    #[test]
    fn operands_are_combined_within_stripes_unless_they_are_below_as_well() {
        let kept = |entries: &[Entry], snapshots: &[SeqNo]| {
            let limits = (u64::MAX, snapshots);
            let tables = written(&context(), entries, KeySpan::default(), limits, &mut marked(&[]), &|| false);
            tables.unwrap().concat()
        };
        let combined = |key: &str, seqno: SeqNo, len: usize| (key.as_bytes().to_vec(), seqno, ValueKind::Merge, len);
        // Nothing is below `a`: its operands are its value.
        assert_eq!(kept(&[merge("a", 9), merge("a", 7)], &[]), [put("a", 9, 2)]);
        assert_eq!(kept(&[merge("a", 9), put("a", 7, 5), put("a", 3, 1)], &[]), [put("a", 9, 6)]);
        assert_eq!(kept(&[merge("a", 9), delete("a", 7), put("a", 3, 1)], &[]), [put("a", 9, 1)]);
        assert_eq!(kept(&[delete("a", 9), merge("a", 7)], &[]), []);
        // The level below holds keys with `h`, and versions as new as these of keys with `i`.
        assert_eq!(kept(&[merge("h", 9), merge("h", 7)], &[]), [combined("h", 9, 3)]);
        assert_eq!(kept(&[merge("h", 9), put("h", 7, 5)], &[]), [put("h", 9, 6)]);
        let below = [merge("hi", 9), merge("hi", 7), merge("hi", 5)];
        assert_eq!(kept(&below, &[]), below);
        assert_eq!(kept(&[&below[..], &[put("hi", 3, 1)]].concat(), &[]), [put("hi", 9, 4)]);
        // A snapshot sees the older operands alone.
        let entries = [merge("h", 9), merge("h", 8), merge("h", 7), merge("h", 6), put("h", 5, 1), put("h", 4, 1)];
        assert_eq!(kept(&entries, &[7]), [combined("h", 9, 3), put("h", 7, 3)]);
    }

    #[test]
    fn a_compaction_filter_decides_about_the_newest_value_of_a_key_unless_it_stays_above() {
        let decide = |_: &[u8], value: &[u8]| match value.len() {
            1 => CompactionDecision::Drop,
            2 => CompactionDecision::Replace(vec![7; 3]),
            _ => CompactionDecision::Keep,
        };
        let kept = |entries: &[Entry], snapshots: &[SeqNo]| {
            let (limits, hook) = ((u64::MAX, snapshots), CompactionHook::new(decide));
            let tables = context();
            written_by(&tables, entries, KeySpan::default(), limits, &mut marked(&[]), &|| false, hook)
                .unwrap()
                .concat()
        };
        let values = [put("a", 9, 1), put("b", 9, 2), put("c", 9, 5), put("s", 9, 1)];
        assert_eq!(kept(&values, &[]), [put("b", 9, 3), put("c", 9, 5), put("s", 9, 1)]);
        assert_eq!(kept(&values, &[9]), values, "a snapshot sees them");
        assert_eq!(kept(&[put("h", 9, 1)], &[]), [delete("h", 9)], "an older version may be below");
        assert_eq!(kept(&[put("a", 9, 1), put("a", 7, 1)], &[8]), [delete("a", 9), put("a", 7, 1)]);
        assert_eq!(kept(&[put("a", 9, 5), put("a", 7, 1)], &[8]), [put("a", 9, 5), put("a", 7, 1)], "not the newest");
        assert_eq!(kept(&[merge("a", 9), put("a", 7, 1)], &[]), [put("a", 9, 3)], "combined");
    }

    #[test]
    fn a_part_holds_its_first_key_and_not_the_one_at_its_end() {
        let entries: Vec<Entry> = ('a'..='j').map(|key| put(key.to_string(), 1, 1)).collect();
        let keys = |from: Option<&str>, to: Option<&str>| -> String {
            let part = KeySpan { lower: from.map(str::as_bytes), upper: to.map(str::as_bytes) };
            let tables = written(&context(), &entries, part, ALL, &mut marked(&[]), &|| false);
            tables.unwrap().concat().iter().map(|entry| char::from(entry.0[0])).collect()
        };
        assert_eq!(keys(None, None), "abcdefghij");
        assert_eq!(keys(Some("c"), Some("f")), "cde");
        assert_eq!(keys(Some("cc"), Some("ff")), "def");
        assert_eq!(keys(None, Some("c")), "ab");
        assert_eq!(keys(Some("j"), None), "j");
        assert_eq!(keys(Some("k"), None), "");
    }

    #[test]
    fn who_waits_is_asked_for_at_even_intervals() {
        // Keys and values count with what an entry costs: 128 bytes, and 1024.
        for (value_len, count, calls) in [(0, 3 * 2048, 3), (0, 2047, 0), (896, 4 * 256, 4), (896, 255, 0)] {
            let entries: Vec<Entry> = (0..count).map(|i| put(format!("{i:064}"), 1, value_len)).collect();
            let called = Cell::new(0);
            let cancelled = || {
                called.set(called.get() + 1);
                false
            };
            let tables = context();
            let whole = written(&tables, &entries, KeySpan::default(), ALL, &mut marked(&[]), &cancelled);
            assert_eq!((whole.unwrap().concat().len(), called.get()), (count, calls));
        }
    }

    #[test]
    fn what_is_cancelled_or_fails_leaves_no_file() {
        let entries: Vec<Entry> = (0..1000).map(|i| put(format!("{i:04}"), 1, 1000)).collect();
        let files = |tables: &TableContext| tables.fs().list(tables.dir()).unwrap().len();
        let small: (u64, &[SeqNo]) = (64 << 10, &[]);
        let (tables, left) = (context(), Cell::new(2));
        let cancelled = || left.replace(left.get() - 1) == 1;
        assert!(written(&tables, &entries, KeySpan::default(), small, &mut marked(&[]), &cancelled).is_none());
        assert_eq!((left.get(), files(&tables)), (0, 1), "the input alone");
        assert!(
            written(&context(), &entries, KeySpan::default(), small, &mut marked(&[]), &|| false).unwrap().len() > 10
        );
    }

    #[test]
    fn the_ranges_that_tables_stand_for_meet_at_short_keys_and_fill_the_part() {
        let entries = ["ab", "abc", "abdzz", "abdzzx", "b"].map(|key| put(key, 1, 1));
        let ranges = |part: KeySpan<&[u8]>, cuts| -> Vec<(String, String)> {
            let tables = context();
            let written = written(&tables, &entries, part, ALL, &mut marked(cuts), &|| false).unwrap();
            let text =
                |key: &Option<Vec<u8>>| key.as_ref().map_or("-".into(), |key| String::from_utf8_lossy(key).into());
            let range = |number: u64| {
                let table = SalvageTable::open(&tables, number, None).unwrap();
                (text(&table.origin().from), text(&table.origin().to))
            };
            (2..).take(written.len()).map(range).collect()
        };
        let pairs = |ranges: &[(&str, &str)]| -> Vec<(String, String)> {
            ranges.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect()
        };
        assert_eq!(ranges(KeySpan::default(), &[]), pairs(&[("-", "-")]));
        assert_eq!(ranges(KeySpan::default(), &["abdzz", "b"]), pairs(&[("-", "abd"), ("abd", "b"), ("b", "-")]));
        // The bound is the key itself where the last key is its beginning.
        assert_eq!(ranges(KeySpan::default(), &["abdzzx"]), pairs(&[("-", "abdzzx"), ("abdzzx", "-")]));
        let part = KeySpan { lower: Some(&b"aba"[..]), upper: Some(&b"az"[..]) };
        assert_eq!(ranges(part, &["abdzz"]), pairs(&[("aba", "abd"), ("abd", "az")]));
    }
}
