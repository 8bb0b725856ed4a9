//! What range deletes make superfluous: tables that hold only deleted entries, and ranges that
//! delete nothing any more. Pure functions of metadata.

use std::ops::Deref;

use crate::format::key::SeqNo;
use crate::sorted::range_table::RangeSet;
use crate::sorted::ranges::{Covers, Fragment, NO_SNAPSHOT};
use crate::sorted::table::TableMeta;
use crate::version::LevelMetas;

/// Whether `table` may hold an entry that the range deletes.
fn is_target<K: Deref<Target = [u8]>>(range: &Fragment<K>, table: &TableMeta) -> bool {
    table.smallest_seqno < range.seqno
        && table.cleared < range.seqno
        && *range.start <= *table.largest
        && range.end.as_deref().is_none_or(|end| *table.smallest < *end)
}

/// Whether a range may delete an entry of a table, among `levels` or `others`. Memtables do not
/// count: those older than the range are in tables when it is.
pub fn is_needed<K: Deref<Target = [u8]>>(range: &Fragment<K>, levels: &LevelMetas<'_>, others: &[TableMeta]) -> bool {
    let (runs, sorted) = levels.split_at(1);
    if runs.iter().flatten().copied().chain(others).any(|table| is_target(range, table)) {
        return true;
    }
    sorted.iter().any(|tables| {
        let first = tables.partition_point(|table| *table.largest < *range.start);
        let within = tables[first..].iter();
        within
            .take_while(|table| range.end.as_deref().is_none_or(|end| *table.smallest < *end))
            .any(|table| is_target(range, table))
    })
}

/// Whether every entry of `table` is deleted, for all reads from now on and all `snapshots`, which
/// ascend.
pub fn is_covered(table: &TableMeta, ranges: &Covers, snapshots: &[SeqNo]) -> bool {
    // A table of which only the front has gone is the usual case.
    if ranges.cover(&table.largest) <= table.largest_seqno {
        return false;
    }
    let mut stretch = ranges.stretch(&table.smallest);
    loop {
        let newer = stretch.numbers.iter().rev().find(|&&number| number > table.largest_seqno);
        let Some(&number) = newer else { return false };
        let first = snapshots.partition_point(|&snapshot| snapshot < table.smallest_seqno);
        if snapshots.get(first).is_some_and(|&snapshot| snapshot < number) {
            return false;
        }
        match stretch.to {
            Some(to) if *to <= *table.largest => stretch = ranges.stretch(&to),
            _ => return true,
        }
    }
}

/// The tables of `levels` that [`is_covered`] finds, with their levels.
pub fn covered_tables<'a>(levels: &LevelMetas<'a>, ranges: &RangeSet, snapshots: &[SeqNo]) -> Vec<(u8, &'a TableMeta)> {
    let covers = Covers::new(ranges.sources().collect(), NO_SNAPSHOT);
    let tables = (0..).zip(levels).flat_map(|(level, tables)| tables.iter().map(move |table| (level, *table)));
    let older = tables.filter(|(_, table)| table.largest_seqno < ranges.largest_seqno());
    older.filter(|(_, table)| is_covered(table, &covers, snapshots)).collect()
}
