//! Reads what is left of each table, and writes new tables.

use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::report::{Loss, LossKind, RepairFault};
use crate::error::{Error, Result};
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::format::span::KeySpan;
use crate::sorted::files::WRITE_LEN;
use crate::sorted::iter::{InternalCursor, MergeCursor, Stamped};
use crate::sorted::operator::CompactionHook;
use crate::sorted::ranges::{Fragment, fold};
use crate::sorted::table::{Hole, Origin, SalvageCursor, SalvageTable, Table, TableContext, TableMeta, TableOptions};
use crate::tree::compaction::filters::filters_of_output;
use crate::tree::compaction::{OutputContext, Turn, UnknownLevels, ValuePolicy, write_ranges, write_run};
use crate::tree::manifest::{LEVEL_COUNT, RANGE_LEVEL, encode_definition};
use crate::tree::options::{Compression, KeyspaceOptions};

/// A table that was read from front to back.
pub(super) struct Checked {
    pub(super) table: Arc<SalvageTable>,
    /// The table's entry for a manifest, if the whole table is good.
    pub(super) sound: Option<TableMeta>,
    /// Number of readable entries.
    pub(super) entries: u64,
    /// Number of distinct keys among them.
    pub(super) keys: u64,
    pub(super) smallest: Vec<u8>,
    pub(super) largest: Vec<u8>,
    pub(super) largest_seqno: SeqNo,
    /// Number of entries that the table should hold, if known.
    pub(super) expected: Option<u64>,
    /// Number of holes among its blocks, which `losses` lists.
    pub(super) holes: u64,
    pub(super) losses: Vec<Loss>,
    pub(super) fault: Option<RepairFault>,
}

impl Checked {
    /// The level of the table, which is stated to be `level`: what it holds decides.
    pub(super) fn level_of(&self, level: u8) -> u8 {
        match self.table.holds_ranges() {
            Some(true) => RANGE_LEVEL,
            Some(false) if level == RANGE_LEVEL => 0,
            _ => level,
        }
    }
}

/// Checks table `number`, against what a manifest says of it, if one names it. `None` if the file
/// does not exist.
pub(super) fn check(
    context: &Arc<TableContext>,
    number: u64,
    known: Option<(u8, &TableMeta)>,
) -> Result<Option<Checked>> {
    let meta = known.map(|(_, meta)| meta);
    let table = match known {
        Some((level, meta)) => Ok(Table::new(Arc::clone(context), meta.clone()).of_ranges(level == RANGE_LEVEL)),
        None => Table::alone(Arc::clone(context), number, true),
    };
    let verified = table.and_then(|table| {
        table.verify()?;
        Ok(table.meta().clone())
    });
    let open = || SalvageTable::open(context, number, meta).map(Arc::new);
    match verified {
        Ok(meta) => Ok(Some(Checked {
            table: open()?,
            entries: meta.entries,
            keys: meta.keys,
            smallest: meta.smallest.to_vec(),
            largest: meta.largest.to_vec(),
            largest_seqno: meta.largest_seqno,
            expected: Some(meta.entries),
            holes: 0,
            losses: Vec::new(),
            fault: None,
            sound: Some(meta),
        })),
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error @ (Error::Corruption { .. } | Error::Unsupported { .. })) => {
            salvage(context, open()?, meta, &error).map(Some)
        }
        Err(error) => Err(error),
    }
}

/// Reads past the damage of a table whose check failed with `error`.
fn salvage(
    context: &Arc<TableContext>,
    table: Arc<SalvageTable>,
    meta: Option<&TableMeta>,
    error: &Error,
) -> Result<Checked> {
    let path = FileKind::Table(table.number()).path(context.dir());
    let stated = table.properties().map(|properties| properties.entries);
    let (offset, what) = match error {
        Error::Corruption { offset, rule, .. } => (*offset, rule.clone()),
        error => (0, error.to_string()),
    };
    let mut checked = Checked {
        sound: None,
        entries: 0,
        keys: 0,
        smallest: Vec::new(),
        largest: Vec::new(),
        largest_seqno: 0,
        expected: meta.map(|meta| meta.entries).or(stated),
        holes: 0,
        losses: Vec::new(),
        fault: Some(RepairFault { file: path.clone(), offset, what }),
        table: Arc::clone(&table),
    };
    let mut cursor = SalvageCursor::new(vec![table]);
    cursor.seek_to_first()?;
    while cursor.valid() {
        checked.count(cursor.key(), cursor.seqno());
        cursor.next()?;
    }
    checked.note_losses(&path, cursor.holes());
    Ok(checked)
}

impl Checked {
    /// Counts a readable entry, which follows all others.
    fn count(&mut self, key: &[u8], seqno: SeqNo) {
        if self.entries == 0 {
            self.smallest = key.to_vec();
        }
        if self.entries == 0 || self.largest != key {
            self.keys += 1;
            self.largest.clear();
            self.largest.extend_from_slice(key);
        }
        self.entries += 1;
        self.largest_seqno = self.largest_seqno.max(seqno);
    }

    /// Notes the entries that are missing, by the holes that the readable ones leave.
    fn note_losses(&mut self, path: &Path, holes: &[(u64, Hole)]) {
        let missing = self.expected.map(|expected| expected.saturating_sub(self.entries));
        self.holes = holes.len() as u64;
        self.losses.extend(holes.iter().map(|(_, hole)| Loss {
            file: Some(path.to_owned()),
            from: hole.from.clone(),
            to: hole.to.clone(),
            entries: missing.filter(|_| holes.len() == 1),
            bytes: hole.bytes,
            ..Loss::anywhere(LossKind::Lost, hole.rule.as_str())
        }));
        if holes.is_empty() && missing != Some(0) {
            // The index has fewer blocks than it should, or nothing tells how many there should be.
            let kind = if missing.is_some() { LossKind::Lost } else { LossKind::Uncertain };
            let loss = Loss::anywhere(kind, "it is not known which entries should be in the table");
            let loss = loss.within(self.table.bounds());
            self.losses.push(Loss { file: Some(path.to_owned()), entries: missing, ..loss });
        }
    }
}

/// Writes new tables.
pub(super) struct TableWriter<'a> {
    pub(super) context: &'a Arc<TableContext>,
    pub(super) seed: u64,
    pub(super) new_number: &'a dyn Fn() -> u64,
}

/// A keyspace and level, as far as new tables depend on them.
#[derive(Clone, Copy)]
pub(super) struct TargetKeyspace<'a> {
    pub(super) id: u32,
    pub(super) name: &'a str,
    pub(super) options: &'a KeyspaceOptions,
    pub(super) level: u8,
    /// Approximate number of distinct keys.
    pub(super) keys: u64,
}

impl TableWriter<'_> {
    /// Writes the newest version of each key of `cursor` to new tables, with the older ones that
    /// its operands change; tombstones stay.
    pub(super) fn write(
        &self,
        cursor: &mut impl MergeCursor,
        target: TargetKeyspace<'_>,
        table_size: u64,
        origin: Origin,
    ) -> Result<Vec<TableMeta>> {
        let context = self.context(target, table_size, origin);
        Ok(write_run(cursor, KeySpan::default(), &context, &mut UnknownLevels)?.unwrap_or_default().tables)
    }

    /// Writes range deletes to a new range table, unless there are none.
    pub(super) fn write_ranges<K: Clone + Default + Deref<Target = [u8]> + Ord>(
        &self,
        ranges: Vec<Fragment<K>>,
        target: TargetKeyspace<'_>,
        origin: Origin,
    ) -> Result<Option<TableMeta>> {
        write_ranges(&fold(ranges, &[]), &self.context(target, u64::MAX, origin))
    }

    fn context<'a>(&'a self, target: TargetKeyspace<'a>, table_size: u64, origin: Origin) -> OutputContext<'a> {
        let TargetKeyspace { id, name, options, level, keys } = target;
        // The size of all other tables' filters is not known here. The store gives a table another
        // filter when it compacts it.
        let filters = filters_of_output(options, Vec::new, level.into(), keys, || 0, |_, _| false);
        let is_last = usize::from(level) == LEVEL_COUNT - 1;
        OutputContext {
            tables: self.context,
            options: TableOptions {
                filters,
                compression: if is_last { options.compression } else { Compression::None },
                block_size: options.block_size,
                seed: self.seed,
                keyspace: id,
            },
            table_size,
            table_memory: usize::MAX,
            reserved: 0,
            write_len: WRITE_LEN,
            snapshots: Vec::new(),
            ranges: Vec::new(),
            cleared: 0,
            // What is combined here could be in another table as well.
            operator: None,
            hook: CompactionHook::default(),
            now: 0,
            // Values stay where they are.
            values: ValuePolicy { separate_from: None, ..ValuePolicy::of(options) },
            keyspace: name,
            new_number: self.new_number,
            turn: &|_| Turn::GoOn,
            paranoid: true,
            origin: Origin { keyspace: encode_definition(name, options), level, by_repair: true, ..origin },
        }
    }
}

/// The loss of a table as a whole.
pub(super) fn whole_table(path: PathBuf, keyspace: Option<String>, meta: Option<&TableMeta>, why: &str) -> Loss {
    Loss {
        file: Some(path),
        keyspace,
        entries: meta.map(|meta| meta.entries),
        bytes: meta.map_or(0, |meta| meta.size),
        ..Loss::anywhere(LossKind::Lost, why).within(meta.map(|meta| (&*meta.smallest, &*meta.largest)))
    }
}
