//! How many bytes of older tables a table hides, because it has their keys: found by samples.
//!
//! Metadata tell how many entries a table deletes, and not how long they are. The mean of those
//! beneath is wrong where lengths differ: of 4,000 values, one in ten has 16,000 bytes and the
//! others 20; deleting the long ones frees a tenth by that measure, and 99 % in truth. An idle
//! store kept them.
//!
//! Therefore an idle store draws entries evenly from the bytes beneath a table (`draws`), and asks
//! the table for their keys. The share that it has is the share that it hides, whatever the lengths
//! and the way of hiding. What it hides beyond its own size counts: values that replace others of
//! their length wait until a level is full, as in any tree of this kind. Each table is looked at
//! once: what comes to be beneath it later was so before.

use std::collections::HashSet;
use std::sync::Arc;

use super::draws::{Piece, draw, part_of};
use super::{HiddenBytes, LEVELS, Version};
use crate::error::Result;
use crate::format::key::{MAX_SEQNO, ValueKind};
use crate::sorted::iter::{InternalCursor, Stamped};
use crate::sorted::table::Table;

/// No more tables are looked at before the compactions that are due by then begin.
const MOST_TABLES: usize = 64;

impl Version {
    /// The older tables that may have keys of `table`, which is in `level`.
    fn beneath<'v>(&'v self, level: usize, table: &'v Table) -> impl Iterator<Item = &'v Arc<Table>> {
        let (smallest, largest) = (&table.meta().smallest, &table.meta().largest);
        let runs = if level == 0 { self.levels[0].tables() } else { &[] };
        let older = runs.iter().rev().take_while(move |run| run.meta().number != table.meta().number);
        let older = older.filter(move |run| run.meta().smallest <= *largest && *smallest <= run.meta().largest);
        let lower = self.levels[level + 1..].iter().flat_map(move |level| {
            let first = level.tables().partition_point(|table| table.meta().largest < *smallest);
            level.tables()[first..].iter().take_while(move |table| table.meta().smallest <= *largest)
        });
        older.chain(lower)
    }

    /// The tables above others of which it is not known how much they hide.
    fn unsampled(&self) -> impl Iterator<Item = (usize, &Arc<Table>)> {
        let known = self.hidden();
        let above_last = self.tables().take_while(|(level, _)| *level < LEVELS - 1);
        let unknown = above_last.filter(move |(_, table)| !known.contains_key(&table.meta().number));
        unknown.filter(|(level, table)| self.beneath(*level, table).next().is_some())
    }

    /// Whether [`sample`](Version::sample) would find something out.
    pub fn is_sampling_due(&self) -> bool {
        self.unsampled().next().is_some()
    }

    /// Finds what some tables hide of which that is not known yet. After each, `go_on` is told how
    /// many bytes were read. Of a table that cannot be read it is taken to be nothing: its
    /// compaction will say why.
    pub fn sample(&self, mut go_on: impl FnMut(u64) -> bool) {
        let mut hidden = HiddenBytes::clone(&self.hidden());
        for (level, table) in self.unsampled().take(MOST_TABLES) {
            let (excess, read) = self.hidden_excess(level, table).unwrap_or_default();
            hidden.insert(table.meta().number, excess);
            if !go_on(read) {
                break;
            }
        }
        let present: HashSet<u64> = self.tables().map(|(_, table)| table.meta().number).collect();
        hidden.retain(|number, _| present.contains(number));
        *self.hidden.lock() = Arc::new(hidden);
        *self.weights.lock() = Default::default();
    }

    /// What tables hide of older ones, as far as it is known.
    pub fn hidden(&self) -> Arc<HiddenBytes> {
        Arc::clone(&self.hidden.lock())
    }

    /// About how many bytes of older tables, and of values to which these point, `table` of `level`
    /// hides beyond its own; and how many were read to find out.
    fn hidden_excess(&self, level: usize, table: &Arc<Table>) -> Result<(u64, u64)> {
        let (smallest, largest) = (&table.meta().smallest, &table.meta().largest);
        let beneath = self.beneath(level, table).map(|older| Piece::between(older, smallest, largest));
        let beneath = beneath.collect::<Result<Vec<_>>>()?;
        let bytes = beneath.iter().fold(0, |sum: u64, older| sum.saturating_add(older.bytes));
        let mut own = table.cursor(false).uncounted();
        let found = draw(&beneath, |older| {
            own.seek(older.key, MAX_SEQNO)?;
            // An operand adds to what it meets, which may be a list of any length.
            Ok(own.valid() && own.key() == older.key && own.kind() != ValueKind::Merge)
        })?;
        let hidden = part_of(bytes, found.meant / f64::max(found.count, 1.0));
        Ok((hidden.saturating_sub(table.meta().total_size()), found.read))
    }
}

#[cfg(test)]
mod tests {
    use super::super::deleted::tests::{OPTIONS, context};
    use super::*;
    use crate::sorted::table::TableBuilder;

    #[test]
    fn values_and_tombstones_hide_older_values_and_operands_do_not() {
        let context = context();
        let table = |number: u64, kind, value: &[u8]| {
            let mut builder = TableBuilder::new(context.fs(), context.dir(), number, OPTIONS).unwrap();
            (0..100).for_each(|i| builder.add(format!("{i:03}").as_bytes(), number, kind, value).unwrap());
            Arc::new(Table::new(Arc::clone(&context), builder.finish().unwrap()))
        };
        let below = table(1, ValueKind::Put, &[7; 1000]);
        let cases = [(ValueKind::Put, 90_000, 150_000), (ValueKind::Delete, 90_000, 150_000), (ValueKind::Merge, 0, 0)];
        for (number, (kind, least, most)) in (2..).zip(cases) {
            let run = table(number, kind, if kind == ValueKind::Delete { b"" } else { b"1" });
            let version = Version::default().edited(&[], vec![(6, Arc::clone(&below)), (0, run)]);
            assert!(version.is_sampling_due());
            version.sample(|_| true);
            assert!(!version.is_sampling_due());
            let hidden = version.hidden()[&number];
            assert!((least..=most).contains(&hidden), "{kind:?} hides {hidden} bytes");
        }
    }
}
