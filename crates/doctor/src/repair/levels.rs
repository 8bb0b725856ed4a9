//! Finds the level of each table when no manifest says so.
//!
//! A read visits the levels in order and takes the first version of a key that it finds. So of two
//! tables that share a key, the one with the newer version must come first. The entries tell which
//! one that is; the search for a level starts at the level that the table was made for.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Bound;
use std::sync::Arc;

use crate::error::Result;
use crate::format::key::{SeqNo, compare_entries};
use crate::sorted::iter::{InternalCursor, MergeCursor, Stamped};
use crate::sorted::table::{SalvageCursor, SalvageTable};
use crate::tree::manifest::LEVEL_COUNT;

/// Pairs of tables that share a key, by number: the first table has its newer version.
pub(super) type NewerPairs = BTreeSet<(u64, u64)>;

/// The facts on which a table's level depends.
#[derive(Clone, Debug)]
pub(super) struct UnplacedTable {
    pub(super) number: u64,
    pub(super) level: u8,
    pub(super) smallest: Vec<u8>,
    pub(super) largest: Vec<u8>,
    pub(super) largest_seqno: SeqNo,
}

/// Divides tables into runs of tables that do not overlap, each in key order. A table of unknown
/// range is a run by itself.
pub(super) fn runs(tables: &[Arc<SalvageTable>]) -> Vec<Vec<Arc<SalvageTable>>> {
    let mut runs: Vec<Vec<Arc<SalvageTable>>> = Vec::new();
    let mut known: Vec<_> = tables.iter().filter_map(|table| Some((table.bounds()?, table))).collect();
    known.sort_by_key(|(bounds, _)| *bounds);
    // The run whose last table ends first is on top.
    let mut ends = BinaryHeap::new();
    for ((smallest, largest), table) in known {
        let run = match ends.peek() {
            Some(Reverse((end, run))) if *end < smallest => *run,
            _ => runs.len(),
        };
        if run < runs.len() {
            ends.pop();
            runs[run].push(Arc::clone(table));
        } else {
            runs.push(vec![Arc::clone(table)]);
        }
        ends.push(Reverse((largest, run)));
    }
    runs.extend(tables.iter().filter(|table| table.bounds().is_none()).map(|table| vec![Arc::clone(table)]));
    runs
}

/// Reads all entries and finds which table is newer where two share a key. If three tables share a
/// key, the first and the last form no pair: their order follows from the other two pairs.
pub(super) fn find_newer(tables: &[Arc<SalvageTable>]) -> Result<NewerPairs> {
    let runs = runs(tables);
    let mut order = NewerPairs::new();
    if runs.len() < 2 {
        return Ok(order);
    }
    let mut heap = BinaryHeap::new();
    for run in runs {
        let mut cursor = SalvageCursor::new(run);
        cursor.seek_to_first()?;
        if cursor.valid() {
            heap.push(EarliestEntry(cursor));
        }
    }
    let mut key: Vec<u8> = Vec::new();
    // `seen`: the tables that hold the current key. `oldest`: those whose newest version of it is
    // the oldest so far. `newer`: those one version newer.
    let (mut seen, mut newer, mut oldest) = (BTreeSet::new(), Vec::new(), (SeqNo::MAX, Vec::new()));
    while let Some(EarliestEntry(mut cursor)) = heap.pop() {
        let (table, seqno) = (cursor.table(), cursor.seqno());
        if cursor.key() != key {
            key.clear();
            key.extend_from_slice(cursor.key());
            seen.clear();
            (newer, oldest) = (Vec::new(), (SeqNo::MAX, Vec::new()));
        }
        if seen.insert(table) {
            if seqno < oldest.0 {
                newer = std::mem::replace(&mut oldest, (seqno, Vec::new())).1;
            }
            order.extend(newer.iter().map(|newer| (*newer, table)));
            oldest.1.push(table);
        }
        cursor.next()?;
        if cursor.valid() {
            heap.push(EarliestEntry(cursor));
        }
    }
    Ok(order)
}

/// A cursor on an entry. Ordered so that the heap's maximum has the smallest entry.
struct EarliestEntry(SalvageCursor);

impl Ord for EarliestEntry {
    fn cmp(&self, other: &EarliestEntry) -> Ordering {
        compare_entries((other.0.key(), other.0.seqno()), (self.0.key(), self.0.seqno()))
    }
}

impl PartialOrd for EarliestEntry {
    fn partial_cmp(&self, other: &EarliestEntry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for EarliestEntry {
    fn eq(&self, other: &EarliestEntry) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for EarliestEntry {}

/// Finds a level for each table such that reads are right; `None` if that takes merging tables.
/// Places tables from the newest to the oldest, where that is known. Each table goes to the level
/// that it was made for, else below it, else above.
pub(super) fn assign_levels(tables: &[UnplacedTable], order: &NewerPairs) -> Option<BTreeMap<u64, u8>> {
    let by_number: BTreeMap<u64, &UnplacedTable> = tables.iter().map(|table| (table.number, table)).collect();
    let pairs = order.iter().filter_map(|(newer, older)| Some((by_number.get(newer)?, by_number.get(older)?)));
    let mut older_than: BTreeMap<u64, Vec<&UnplacedTable>> = BTreeMap::new();
    let mut newer_left: BTreeMap<u64, usize> = BTreeMap::new();
    for (newer, older) in pairs {
        older_than.entry(newer.number).or_default().push(older);
        *newer_left.entry(older.number).or_default() += 1;
    }
    // Among tables that share no key, the one that was made first has sunk since.
    let mut ready: BTreeSet<u64> =
        by_number.keys().copied().filter(|number| !newer_left.contains_key(number)).collect();
    let mut levels: [Ranges<'_>; LEVEL_COUNT] = Default::default();
    let mut min_levels: BTreeMap<u64, usize> = BTreeMap::new();
    let mut placed: BTreeMap<u64, usize> = BTreeMap::new();
    while let Some(number) = ready.pop_last() {
        let table = by_number[&number];
        let min_level = min_levels.get(&number).copied().unwrap_or(0);
        let made_for = min_level.max(table.level.into());
        let mut choices = (made_for..LEVEL_COUNT).chain((min_level..made_for.min(LEVEL_COUNT)).rev());
        let level = choices.find(|&level| level == 0 || !levels[level].overlap(table))?;
        if level > 0 {
            levels[level].add(table);
        }
        placed.insert(number, level);
        for older in older_than.get(&number).into_iter().flatten() {
            // Level 0 itself orders these runs; see `Version::edited`.
            let in_order = level == 0 && table.age() > older.age();
            let min_level = min_levels.entry(older.number).or_default();
            *min_level = (*min_level).max(if in_order { 0 } else { level + 1 });
            let left = newer_left.entry(older.number).or_default();
            *left -= 1;
            if *left == 0 {
                ready.insert(older.number);
            }
        }
    }
    if placed.len() < by_number.len() {
        // A cycle: each of some tables has a newer version than the next one.
        return None;
    }
    sink(&by_number, &mut placed, levels);
    Some(placed.into_iter().filter_map(|(number, level)| Some((number, u8::try_from(level).ok()?))).collect())
}

/// Sinks tables of level 0 to the last level, the oldest first, if they overlap nothing on the way.
/// Compactions move such a table without rewriting it when keys are written in order, so it still
/// states that it was made for level 0.
fn sink<'a>(
    tables: &BTreeMap<u64, &'a UnplacedTable>,
    placed: &mut BTreeMap<u64, usize>,
    mut below: [Ranges<'a>; LEVEL_COUNT],
) {
    let mut above: Vec<&UnplacedTable> = tables.values().copied().filter(|table| placed[&table.number] == 0).collect();
    above.sort_by_key(|table| table.age());
    // From here on, `below[0]` holds the tables that stay in level 0.
    for table in above {
        if below.iter().any(|level| level.overlap(table)) {
            below[0].add(table);
        } else {
            below[LEVEL_COUNT - 1].add(table);
            placed.insert(table.number, LEVEL_COUNT - 1);
        }
    }
}

impl UnplacedTable {
    fn age(&self) -> (SeqNo, u64) {
        (self.largest_seqno, self.number)
    }
}

/// A set of keys as ranges that do not overlap: smallest key to largest key.
#[derive(Default)]
struct Ranges<'a>(BTreeMap<&'a [u8], &'a [u8]>);

impl<'a> Ranges<'a> {
    /// The last range that begins within `table` or before it, if it overlaps `table`.
    fn last_within(&self, table: &UnplacedTable) -> Option<(&'a [u8], &'a [u8])> {
        let begin_before = (Bound::Unbounded, Bound::Included(table.largest.as_slice()));
        let last = self.0.range::<[u8], _>(begin_before).next_back();
        last.map(|(from, to)| (*from, *to)).filter(|(_, to)| *to >= table.smallest.as_slice())
    }

    fn overlap(&self, table: &UnplacedTable) -> bool {
        self.last_within(table).is_some()
    }

    fn add(&mut self, table: &'a UnplacedTable) {
        let (mut smallest, mut largest) = (table.smallest.as_slice(), table.largest.as_slice());
        while let Some((from, to)) = self.last_within(table) {
            self.0.remove(from);
            (smallest, largest) = (smallest.min(from), largest.max(to));
        }
        self.0.insert(smallest, largest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tables: &[(u64, u8, &str, &str)], order: &[(u64, u64)], expected: Option<&[(u64, u8)]>) {
        let unplaced: Vec<UnplacedTable> = tables
            .iter()
            .map(|&(number, level, smallest, largest)| UnplacedTable {
                number,
                level,
                smallest: smallest.into(),
                largest: largest.into(),
                largest_seqno: number,
            })
            .collect();
        let found = assign_levels(&unplaced, &order.iter().copied().collect());
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
        // Table 3 was made for level 1 and moved to level 3; then table 4 was made for level 2.
        check(&[(3, 1, "a", "z"), (4, 2, "b", "c")], &[(4, 3)], Some(&[(3, 3), (4, 2)]));
        // Without a common key their order is free, but they must not share a level.
        check(&[(3, 1, "a", "z"), (4, 1, "b", "c")], &[], Some(&[(3, 2), (4, 1)]));
        check(&[(3, 1, "a", "z"), (4, 1, "b", "c"), (5, 1, "y", "z")], &[(4, 3)], Some(&[(3, 2), (4, 1), (5, 1)]));
    }

    #[test]
    fn tables_that_overlap_no_other_go_to_the_last_level() {
        // Three tables written in key order, then a key of the second one again.
        let tables = [(3, 0, "a", "c"), (4, 0, "d", "f"), (5, 0, "g", "h"), (6, 0, "e", "e")];
        check(&tables, &[(6, 4)], Some(&[(3, 6), (4, 6), (5, 6), (6, 0)]));
        // A table above one that stays also stays.
        check(&[(3, 5, "a", "c"), (4, 0, "b", "f"), (5, 0, "e", "h")], &[], Some(&[(3, 5), (4, 0), (5, 0)]));
    }

    /// One pass per table that moves would take hours.
    #[test]
    fn many_tables_that_have_moved_are_placed() {
        const COUNT: u64 = 20_000;
        let unplaced = |number: u64| {
            let smallest = (number % COUNT).to_be_bytes().to_vec();
            UnplacedTable { number, level: 1, largest: smallest.clone(), smallest, largest_seqno: number }
        };
        let tables: Vec<UnplacedTable> = (0..2 * COUNT).map(unplaced).collect();
        let levels = assign_levels(&tables, &(0..COUNT).map(|older| (COUNT + older, older)).collect()).unwrap();
        assert!(levels.into_iter().all(|(number, level)| level == if number < COUNT { 2 } else { 1 }));
    }

    #[test]
    fn runs_out_of_the_order_of_level_0_go_down() {
        check(&[(3, 0, "a", "z"), (4, 0, "a", "z")], &[(3, 4)], Some(&[(3, 0), (4, 1)]));
    }

    #[test]
    fn contradicting_tables_have_no_levels() {
        check(&[(3, 1, "a", "z"), (4, 1, "a", "z")], &[(3, 4), (4, 3)], None);
        let column: Vec<(u64, u8, &str, &str)> = (1..9).map(|number| (number, 1, "a", "z")).collect();
        let expected = [(1, 0), (2, 0), (3, 6), (4, 5), (5, 4), (6, 3), (7, 2), (8, 1)];
        check(&column, &[], Some(&expected));
    }
}
