//! The level of each table, when no manifest says so.
//!
//! A read goes through the levels and takes the first version of a key that it finds. So of two
//! tables that share a key, the one with the newer version must come first. Which that is, the
//! entries say; the level that a table was made for is the place to begin with, and from there
//! tables only move down.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use crate::error::Result;
use crate::format::key::{SeqNo, compare_entries};
use crate::sorted::iter::InternalCursor;
use crate::sorted::table::{SalvageCursor, SalvageTable};
use crate::tree::manifest::LEVEL_COUNT;

/// Pairs of tables that share a key, by number: the first one has its newer version.
pub(super) type Order = BTreeSet<(u64, u64)>;

/// What the place of a table depends on.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) number: u64,
    pub(super) level: u8,
    pub(super) smallest: Vec<u8>,
    pub(super) largest: Vec<u8>,
    pub(super) largest_seqno: SeqNo,
}

/// Divides tables into runs of tables that do not overlap, each in the order of its keys. A table
/// of unknown range is a run by itself.
pub(super) fn runs(tables: &[Arc<SalvageTable>]) -> Vec<Vec<Arc<SalvageTable>>> {
    let mut sorted: Vec<&Arc<SalvageTable>> = tables.iter().collect();
    sorted.sort_by_key(|table| table.bounds().map(|(smallest, _)| smallest.to_vec()));
    let mut runs: Vec<Vec<Arc<SalvageTable>>> = Vec::new();
    for table in sorted {
        let comes_behind = |run: &&mut Vec<Arc<SalvageTable>>| {
            let last = run.last().and_then(|last| last.bounds());
            matches!((last, table.bounds()), (Some((_, largest)), Some((smallest, _))) if largest < smallest)
        };
        match runs.iter_mut().find(comes_behind) {
            Some(run) => run.push(Arc::clone(table)),
            None => runs.push(vec![Arc::clone(table)]),
        }
    }
    runs
}

/// Reads all entries and finds out which table is newer where two share a key.
pub(super) fn order(tables: &[Arc<SalvageTable>]) -> Result<Order> {
    let mut heap = BinaryHeap::new();
    for run in runs(tables) {
        let mut cursor = SalvageCursor::new(run);
        cursor.seek_to_first()?;
        if cursor.valid() {
            heap.push(First(cursor));
        }
    }
    let mut order = Order::new();
    // The tables that hold the current key, each with its newest version of it.
    let (mut key, mut holders): (Vec<u8>, Vec<(u64, SeqNo)>) = (Vec::new(), Vec::new());
    while let Some(First(mut cursor)) = heap.pop() {
        if cursor.key() != key {
            key.clear();
            key.extend_from_slice(cursor.key());
            holders.clear();
        }
        let here = (cursor.table(), cursor.seqno());
        if holders.iter().all(|(table, _)| *table != here.0) {
            order.extend(holders.iter().filter(|(_, seqno)| *seqno > here.1).map(|(table, _)| (*table, here.0)));
            holders.push(here);
        }
        cursor.next()?;
        if cursor.valid() {
            heap.push(First(cursor));
        }
    }
    Ok(order)
}

/// A cursor on an entry. The heap's greatest is the one with the least entry.
struct First(SalvageCursor);

impl Ord for First {
    fn cmp(&self, other: &First) -> Ordering {
        compare_entries((other.0.key(), other.0.seqno()), (self.0.key(), self.0.seqno()))
    }
}

impl PartialOrd for First {
    fn partial_cmp(&self, other: &First) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for First {
    fn eq(&self, other: &First) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for First {}

/// Finds a level for each table so that reads are right; `None` if there is none without merging
/// tables.
pub(super) fn place(tables: &[Placed], order: &Order) -> Option<BTreeMap<u64, u8>> {
    let mut placed: BTreeMap<u64, Placed> = tables.iter().map(|table| (table.number, table.clone())).collect();
    loop {
        let down = first_conflict(&placed, order);
        let Some((number, level)) = down else {
            return Some(placed.into_iter().map(|(number, table)| (number, table.level)).collect());
        };
        if usize::from(level) >= LEVEL_COUNT {
            return None;
        }
        placed.get_mut(&number)?.level = level;
    }
}

/// A table that must go down, and to which level.
fn first_conflict(placed: &BTreeMap<u64, Placed>, order: &Order) -> Option<(u64, u8)> {
    for (newer, older) in order {
        let (Some(newer), Some(older)) = (placed.get(newer), placed.get(older)) else { continue };
        // The order of runs in level 0; see `Version::edited`.
        let in_order = newer.level == 0
            && older.level == 0
            && (newer.largest_seqno, newer.number) > (older.largest_seqno, older.number);
        if newer.level >= older.level && !in_order {
            return Some((older.number, newer.level + 1));
        }
    }
    let mut levels: BTreeMap<u8, Vec<&Placed>> = BTreeMap::new();
    placed
        .values()
        .filter(|table| table.level > 0)
        .for_each(|table| levels.entry(table.level).or_default().push(table));
    for (level, mut tables) in levels {
        tables.sort_by(|a, b| a.smallest.cmp(&b.smallest));
        let mut furthest: Option<&Placed> = None;
        for table in tables {
            if let Some(before) = furthest
                && before.largest >= table.smallest
            {
                // They share no key. The one that was made first has gone down since.
                return Some((before.number.min(table.number), level + 1));
            }
            if furthest.is_none_or(|before| before.largest < table.largest) {
                furthest = Some(table);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tables: &[(u64, u8, &str, &str)], order: &[(u64, u64)], expected: Option<&[(u64, u8)]>) {
        let placed: Vec<Placed> = tables
            .iter()
            .map(|&(number, level, smallest, largest)| Placed {
                number,
                level,
                smallest: smallest.into(),
                largest: largest.into(),
                largest_seqno: number,
            })
            .collect();
        let found = place(&placed, &order.iter().copied().collect());
        assert_eq!(found.map(|levels| levels.into_iter().collect::<Vec<_>>()).as_deref(), expected);
    }

    #[test]
    fn tables_stay_where_they_were_made_for() {
        let tables = [(9, 0, "a", "z"), (8, 0, "a", "z"), (5, 1, "a", "c"), (6, 1, "d", "z"), (3, 6, "a", "z")];
        let expected = [(3, 6), (5, 1), (6, 1), (8, 0), (9, 0)];
        check(&tables, &[(9, 8), (8, 5), (9, 6), (5, 3), (6, 3)], Some(&expected));
    }

    #[test]
    fn tables_that_were_moved_go_down() {
        // Table 3 was made for level 1, moved to level 3, and table 4 was made for level 2 then.
        check(&[(3, 1, "a", "z"), (4, 2, "b", "c")], &[(4, 3)], Some(&[(3, 3), (4, 2)]));
        // Without a common key it does not matter, but they must not be in one level.
        check(&[(3, 1, "a", "z"), (4, 1, "b", "c")], &[], Some(&[(3, 2), (4, 1)]));
        check(&[(3, 1, "a", "z"), (4, 1, "b", "c"), (5, 1, "y", "z")], &[(4, 3)], Some(&[(3, 2), (4, 1), (5, 1)]));
    }

    #[test]
    fn runs_out_of_the_order_of_level_0_go_down() {
        check(&[(3, 0, "a", "z"), (4, 0, "a", "z")], &[(3, 4)], Some(&[(3, 0), (4, 1)]));
    }

    #[test]
    fn contradicting_tables_have_no_place() {
        check(&[(3, 1, "a", "z"), (4, 1, "a", "z")], &[(3, 4), (4, 3)], None);
        let column: Vec<(u64, u8, &str, &str)> = (1..9).map(|number| (number, 1, "a", "z")).collect();
        check(&column, &[], None);
    }
}
