//! Writes a keyspace's part of a memtable to tables: its entries to one of level 0, its range
//! deletes to a range table.
//!
//! Range deletes are folded first: for each part of the key space, one number of each stripe
//! between snapshots stays (`sorted::ranges::fold`).

use std::ops::Deref;
use std::sync::Arc;

use super::output::{OutputContext, UnknownLevels, write_run};
use crate::error::Result;
use crate::format::span::KeySpan;
use crate::manifest::RANGE_LEVEL;
use crate::sorted::memtable::Memtable;
use crate::sorted::ranges::{Fragment, RangeLayer, RangeSource, fold, layers_of};
use crate::sorted::table::{Origin, TableBuilder, TableMeta};
use crate::sorted::values::ValueFileMeta;

/// Tables with their levels, and value files.
pub(super) type Flushed = (Vec<(u8, TableMeta)>, Vec<ValueFileMeta>);

/// Writes the entries and the range deletes of a keyspace. Entries that the ranges delete are left
/// out, unless a snapshot sees them. `is_needed` says whether a range may delete anything in a
/// table, of which those just written are passed. Returns the tables with their levels, and
/// the value files. They are synced, the directory is not. After an error none of them is left.
pub fn write_memtable(
    memtable: &Arc<Memtable>,
    keyspace: u32,
    mut context: OutputContext<'_>,
    is_needed: impl Fn(&Fragment<&[u8]>, &[TableMeta]) -> bool,
) -> Result<Flushed> {
    let ranges: Vec<Fragment<&[u8]>> = memtable.range_deletes(keyspace).collect();
    // The ranges and what they are folded to, less than twice as many, then their layers.
    let _folding = memtable.count_sorting(3 * ranges.len() * size_of::<Fragment<&[u8]>>());
    let mut fragments = fold(ranges, &context.snapshots);
    context.table_size = u64::MAX;
    let layers = layers_of(&fragments);
    let _layers = memtable.count_sorting(layers.iter().map(RangeLayer::allocated).sum());
    context.ranges = layers.into_iter().map(|layer| Arc::new(layer) as Arc<dyn RangeSource>).collect();
    context.cleared = fragments.iter().map(|range| range.seqno).max().unwrap_or(0);
    let mut cursor = memtable.flush_cursor(keyspace);
    let written = write_run(&mut cursor, KeySpan::default(), &context, &mut UnknownLevels)?.unwrap_or_default();
    fragments.retain(|range| is_needed(range, &written.tables));
    let ranges = write_ranges(&fragments, &context).inspect_err(|_| written.remove(context.tables))?;
    let tables = written.tables.into_iter().map(|meta| (0, meta)).chain(ranges.map(|meta| (RANGE_LEVEL, meta)));
    Ok((tables.collect(), written.values))
}

/// Writes a range table of folded ranges, unless there are none.
pub fn write_ranges<K: Deref<Target = [u8]>>(
    fragments: &[Fragment<K>],
    context: &OutputContext<'_>,
) -> Result<Option<TableMeta>> {
    if fragments.is_empty() {
        return Ok(None);
    }
    let (tables, number) = (context.tables, (context.new_number)());
    let builder = TableBuilder::new(tables.fs(), tables.dir(), number, context.options.for_ranges())?;
    let mut builder = builder.charging(tables.budget(), 0);
    if let Err(error) = fragments.iter().try_for_each(|range| builder.add_range(range)) {
        builder.abandon();
        tables.remove_file(number);
        return Err(error);
    }
    let dead = tables.graveyard().numbers();
    builder.set_origin(&Origin { level: RANGE_LEVEL, dead, ..context.origin.clone() });
    builder.finish().map(Some).inspect_err(|_| tables.remove_file(number))
}
