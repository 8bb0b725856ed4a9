//! How much of a table range deletes have deleted: estimates from metadata.

use std::collections::HashSet;

use crate::sorted::ranges::{Covers, Stretch};
use crate::sorted::table::{TableMeta, position};

/// Most stretches of ranges that an estimate looks at in a table.
const MAX_STRETCHES: usize = 64;
/// A table is due for a compaction if range deletes have deleted this part of it, as a divisor.
const DUE_SHARE: f64 = 4.0;

/// The stretches of a table's keys that a range delete deletes whole: those numbered above all of
/// the table's entries. The first and last key of each; the last one may lie beyond the table.
pub(super) fn deleted_stretches<'a>(table: &'a TableMeta, ranges: &'a Covers) -> impl Iterator<Item = Stretch> + 'a {
    let mut next = (table.largest_seqno < ranges.snapshot()).then(|| ranges.stretch(&table.smallest));
    let stretches = std::iter::from_fn(move || {
        let stretch = next.take()?;
        next = stretch.to.as_ref().filter(|to| ***to <= *table.largest).map(|to| ranges.stretch(to));
        Some(stretch)
    });
    stretches.take(MAX_STRETCHES).filter(|stretch| stretch.cover() > table.largest_seqno)
}

/// Numbers of tables of which range deletes have deleted so much that a compaction should drop it:
/// about [`DUE_SHARE`], judged by the keys' first bytes. `ranges` are those that all snapshots see.
pub(super) fn partly_covered<'a>(tables: impl Iterator<Item = &'a TableMeta>, ranges: &Covers) -> HashSet<u64> {
    let share = |table: &TableMeta| {
        let at = |key: &[u8]| position(key, &table.smallest, &table.largest);
        let shares = deleted_stretches(table, ranges)
            .filter(|stretch| stretch.cover() > table.cleared)
            .map(|stretch| stretch.to.as_deref().map_or(1.0, at) - at(&stretch.from));
        shares.sum::<f64>()
    };
    tables.filter(|table| share(table) * DUE_SHARE >= 1.0).map(|table| table.number).collect()
}
