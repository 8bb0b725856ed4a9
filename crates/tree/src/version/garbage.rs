//! [`ValueGarbage`]: which value files are emptied, and which tables must be rewritten for that.
//!
//! To empty a file, compactions that meet a value in it write the value anew, and tables that point
//! to it are rewritten in their level until none does.
//!
//! What no table points to is *dead*. When a good part of all records is dead, the files with the
//! most dead records are emptied, few live bytes at a time, so that the files in which most is dead
//! by then go first. Simulated with 200 files and values that are overwritten twice at random:
//! beginning at 25 % dead, 2.09 bytes are written per byte and 1.34 stored; at 28 %, 1.87 and 1.39;
//! at 32 %, 1.67 and 1.48. In an idle store 16 % is enough.
//!
//! Which values are dead shows only where the pointers to a key's versions meet. Therefore pointers
//! above the base level are merged down early (`Picker::pick_pointers`): they are small beside the
//! values that they keep.
//!
//! Otherwise, small files are emptied when they are many and few tables point to them: each of
//! those writes one file in their place. A keyspace with few long values in each memtable has such
//! files.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::sorted::table::TableMeta;
use crate::sorted::values::ValueFileMeta;

/// Files are emptied when this percentage of all records' bytes is dead.
const BEGIN: u64 = 28;
/// [`BEGIN`] when the store is idle: what is left then takes less than a fifth more than the live
/// records do.
const BEGIN_IDLE: u64 = 16;
/// Emptying files precedes all other compactions when this percentage is dead.
const URGENT: u64 = 32;
/// The files that are emptied at a time hold at most this percentage of the live bytes.
const LIVE_AT_A_TIME: u64 = 5;

/// Tables are rewritten for emptying files only if they have at most this many bytes for each dead
/// one: entries may have short values beside the pointers.
const MAX_COST: u64 = 4;
/// A file with fewer bytes of records is small.
const SMALL: u64 = 1 << 20;
/// Small files are emptied when there are this many, and this many for each table that points to
/// them.
const MANY: usize = 16;
const MANY_PER_TABLE: usize = 4;
/// Removing a small file is worth writing this many bytes of tables.
const WORTH: u64 = 1 << 20;

/// See the module.
#[derive(Debug, Default)]
pub struct ValueGarbage {
    /// Value files to be emptied.
    pub leaving: Arc<HashSet<u64>>,
    /// Tables that point to them.
    pub tables: HashSet<u64>,
    pub is_urgent: bool,
}

/// How much of a value file is live.
struct Share {
    file: u64,
    live: u64,
    dead: u64,
}

impl Share {
    /// Those of `files`, by what `tables` point to.
    fn of<'t>(tables: impl Iterator<Item = &'t TableMeta>, files: &BTreeMap<u64, ValueFileMeta>) -> Vec<Share> {
        let mut live = HashMap::<u64, u64>::with_capacity(files.len());
        for reference in tables.flat_map(|table| table.references.iter()) {
            let live = live.entry(reference.file).or_default();
            *live = live.saturating_add(reference.bytes);
        }
        let share = |file: &ValueFileMeta| {
            let live = live.get(&file.number).copied().unwrap_or(0).min(file.record_bytes());
            Share { file: file.number, live, dead: file.record_bytes() - live }
        };
        files.values().map(share).collect()
    }

    fn most_dead_first(&self, other: &Share) -> Ordering {
        let cross = |one: &Share, other: &Share| u128::from(one.dead) * u128::from(other.live + other.dead);
        cross(other, self).cmp(&cross(self, other)).then(self.file.cmp(&other.file))
    }
}

impl ValueGarbage {
    /// Of the tables and value files of a version, if files that are `begun` are being emptied.
    pub fn of<'t, T: Iterator<Item = &'t TableMeta>>(
        tables: impl Fn() -> T,
        files: &BTreeMap<u64, ValueFileMeta>,
        begun: &HashSet<u64>,
        is_idle: bool,
        is_unreadable: impl Fn(u64) -> bool,
    ) -> ValueGarbage {
        if files.is_empty() {
            return ValueGarbage::default();
        }
        // Neither counts nor goes what cannot be read: it would have all others emptied.
        let mut shares = Share::of(tables(), files);
        shares.retain(|share| !is_unreadable(share.file));
        let sum = |bytes: fn(&Share) -> u64| shares.iter().map(bytes).fold(0, u64::saturating_add);
        let (all_live, all_dead) = (sum(|share| share.live), sum(|share| share.dead));
        let is_dead = |percentage: u64| {
            all_dead.saturating_mul(100) >= all_live.saturating_add(all_dead).saturating_mul(percentage)
        };
        let goes_on = |number: &u64| files.contains_key(number) && !is_unreadable(*number);
        let begun: HashSet<u64> = begun.iter().copied().filter(goes_on).collect();
        if !begun.is_empty() {
            return ValueGarbage::emptying(begun, u64::MAX, tables(), is_dead(URGENT));
        }
        if all_dead == 0 || !is_dead(if is_idle { BEGIN_IDLE } else { BEGIN }) {
            return ValueGarbage::of_small(tables, files, is_unreadable);
        }
        shares.sort_by(Share::most_dead_first);
        let (mut leaving, mut taken, mut gain) = (HashSet::new(), 0u64, 0u64);
        for Share { file, live, dead } in shares.into_iter().filter(|share| share.dead > 0) {
            taken = live.saturating_add(taken);
            if !leaving.is_empty() && taken.saturating_mul(100) > all_live.saturating_mul(LIVE_AT_A_TIME) {
                break;
            }
            gain = dead.saturating_add(gain);
            leaving.insert(file);
        }
        ValueGarbage::emptying(leaving, gain, tables(), is_dead(URGENT))
    }

    /// Empties files, if that costs little for `gain` dead bytes.
    fn emptying<'t>(
        leaving: HashSet<u64>,
        gain: u64,
        tables: impl Iterator<Item = &'t TableMeta>,
        is_urgent: bool,
    ) -> ValueGarbage {
        let (tables, cost) = pointing(tables, &leaving);
        let tables = if cost <= gain.saturating_mul(MAX_COST) { tables } else { HashSet::new() };
        ValueGarbage { leaving: Arc::new(leaving), tables, is_urgent }
    }

    /// These files and tables, to be emptied after all other compactions.
    pub fn not_urgent(&self) -> ValueGarbage {
        ValueGarbage { leaving: Arc::clone(&self.leaving), tables: self.tables.clone(), is_urgent: false }
    }

    /// The files that versions after this one go on emptying, until they are gone.
    ///
    /// A value that was moved is dead where it was. Without this, files whose emptying has begun
    /// would count for more garbage, and all would be emptied in turn.
    pub fn begun(&self) -> Arc<HashSet<u64>> {
        if self.tables.is_empty() { Arc::default() } else { Arc::clone(&self.leaving) }
    }

    fn of_small<'t, T: Iterator<Item = &'t TableMeta>>(
        tables: impl Fn() -> T,
        files: &BTreeMap<u64, ValueFileMeta>,
        is_unreadable: impl Fn(u64) -> bool,
    ) -> ValueGarbage {
        let small = files.values().filter(|file| file.record_bytes() < SMALL && !is_unreadable(file.number));
        let leaving: HashSet<u64> = small.map(|file| file.number).collect();
        if leaving.len() < MANY {
            return ValueGarbage::default();
        }
        let (tables, cost) = pointing(tables(), &leaving);
        if tables.len() * MANY_PER_TABLE > leaving.len() || cost > WORTH * leaving.len() as u64 {
            return ValueGarbage::default();
        }
        ValueGarbage { leaving: Arc::new(leaving), tables, is_urgent: false }
    }
}

/// The tables that point to `files`, and their bytes.
fn pointing<'t>(tables: impl Iterator<Item = &'t TableMeta>, files: &HashSet<u64>) -> (HashSet<u64>, u64) {
    let points = |table: &&TableMeta| table.references.iter().any(|reference| files.contains(&reference.file));
    tables.filter(points).fold((HashSet::new(), 0u64), |(mut tables, bytes), table| {
        tables.insert(table.number);
        (tables, table.size.saturating_add(bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::pointer::ValuePointer;
    use crate::sorted::table::References;

    /// A table with `(file, bytes)` of values.
    fn table(number: u64, values: &[(u64, u32)]) -> TableMeta {
        let mut references = References::default();
        for &(file, record_len) in values {
            references.count(&ValuePointer { file, offset: 64, record_len, value_len: 1 });
        }
        TableMeta {
            number,
            size: 10,
            checksum: 0,
            entries: 9,
            keys: 9,
            tombstones: 0,
            deadlines: Default::default(),
            references,
            smallest_seqno: 1,
            largest_seqno: 2,
            cleared: 0,
            ingested: None,
            range_end: None,
            kept: 0,
            smallest: (*b"a").into(),
            largest: (*b"z").into(),
        }
    }

    /// The files and tables of [`ValueGarbage`], ascending, where file i has `sizes[i]` bytes of
    /// records.
    fn found(tables: &[TableMeta], sizes: &[u64]) -> (Vec<u64>, Vec<u64>, bool) {
        found_after(&[], tables, sizes)
    }

    fn found_after(begun: &[u64], tables: &[TableMeta], sizes: &[u64]) -> (Vec<u64>, Vec<u64>, bool) {
        found_when(false, None, begun, tables, sizes)
    }

    fn found_when(
        is_idle: bool,
        unreadable: Option<u64>,
        begun: &[u64],
        tables: &[TableMeta],
        sizes: &[u64],
    ) -> (Vec<u64>, Vec<u64>, bool) {
        let file = |(number, bytes): (u64, &u64)| {
            let meta = ValueFileMeta { number, size: bytes + 96, checksum: 0, count: 1 };
            assert_eq!(meta.record_bytes(), *bytes);
            (number, meta)
        };
        let garbage = ValueGarbage::of(
            || tables.iter(),
            &(0..).zip(sizes).map(file).collect(),
            &begun.iter().copied().collect(),
            is_idle,
            |number| Some(number) == unreadable,
        );
        let sorted = |set: &HashSet<u64>| {
            let mut list: Vec<u64> = set.iter().copied().collect();
            list.sort_unstable();
            list
        };
        (sorted(&garbage.leaving), sorted(&garbage.tables), garbage.is_urgent)
    }

    #[test]
    fn nothing_is_emptied_until_much_is_dead() {
        assert_eq!(found(&[], &[]), (vec![], vec![], false));
        assert_eq!(found(&[table(7, &[(0, 100)])], &[100]), (vec![], vec![], false));
        assert_eq!(found(&[table(7, &[(0, 73)])], &[100]), (vec![], vec![], false));
        assert_eq!(found(&[table(7, &[(0, 72)])], &[100]), (vec![0], vec![7], false));
        assert_eq!(found(&[table(7, &[(0, 68)])], &[100]), (vec![0], vec![7], true));
        let when_idle = |live| found_when(true, None, &[], &[table(7, &[(0, live)])], &[100]);
        assert_eq!([85, 84].map(when_idle), [(vec![], vec![], false), (vec![0], vec![7], false)]);
    }

    #[test]
    fn the_deadest_files_go_first_and_few_live_bytes_at_a_time() {
        // Live: 90 of 100, 2 of 100, 1 of 100, 0 of 100 and 90 of 100.
        let tables = [table(7, &[(0, 90), (1, 1)]), table(8, &[(1, 1), (2, 1), (4, 90)]), table(9, &[(4, 0)])];
        assert_eq!(found(&tables, &[100, 100, 100, 0, 100]), (vec![1, 2], vec![7, 8], true));
        // One file at least, however much of it is live.
        let tables = [table(7, &[(0, 60)]), table(8, &[(1, 50)])];
        assert_eq!(found(&tables, &[100; 2]), (vec![1], vec![8], true));
    }

    #[test]
    fn files_are_emptied_to_the_end_before_others_are() {
        let tables = [table(7, &[(0, 10)]), table(8, &[(1, 5)]), table(9, &[(2, 100), (3, 100)])];
        assert_eq!(found(&tables, &[100; 4]).0, [1], "the deadest");
        assert_eq!(found_after(&[0], &tables, &[100; 4]), (vec![0], vec![7], true));
        // One of them is gone already.
        assert_eq!(found_after(&[0, 9], &tables, &[100; 4]).0, [0]);
        assert_eq!(found_after(&[9], &tables, &[100; 4]).0, [1]);
        // What was worth it when it began goes on.
        let large = [TableMeta { size: 1 << 30, ..table(7, &[(0, 100)]) }];
        assert_eq!(found_after(&[0], &large, &[100]), (vec![0], vec![7], false));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_emptied() {
        let after = |live, begun: &[u64]| {
            let tables = [table(7, &[(3, 10)]), table(8, &[(1, live)]), table(9, &[(0, 100), (2, 100)])];
            let (leaving, _, is_urgent) = found_when(false, Some(3), begun, &tables, &[100; 4]);
            (leaving, is_urgent)
        };
        for begun in [&[][..], &[3]] {
            assert_eq!(after(10, begun), (vec![1], false));
            // What is dead in it does not count: 50 of 300 are not enough, 90 of 300 are.
            assert_eq!(after(50, begun), (vec![], false));
        }
        for begun in [&[1][..], &[1, 3]] {
            assert_eq!(after(50, begun), (vec![1], false), "the others that have been begun go on");
        }
    }

    #[test]
    fn tables_are_rewritten_only_for_what_is_worth_it() {
        let large = |size| TableMeta { size, ..table(7, &[(0, 60)]) };
        assert_eq!(found(&[large(160)], &[100]), (vec![0], vec![7], true));
        assert_eq!(found(&[large(161)], &[100]), (vec![0], vec![], true), "a compaction may meet the values");
    }

    #[test]
    fn many_small_files_become_few() {
        let files = |count: u64| (0..count).map(|file| (file, 100)).collect::<Vec<_>>();
        let all = |count: u64| (0..count).collect::<Vec<_>>();
        assert_eq!(found(&[table(7, &files(15))], &[100; 15]), (vec![], vec![], false));
        assert_eq!(found(&[table(7, &files(16))], &[100; 16]), (all(16), vec![7], false));
        // One large file is left alone.
        let sizes = [&[100; 16][..], &[SMALL]].concat();
        let values = [files(16), vec![(16, 1 << 20)]].concat();
        assert_eq!(found(&[table(7, &values)], &sizes), (all(16), vec![7], false));
        let five: Vec<TableMeta> = (7..).zip(files(16).chunks(4)).map(|(i, files)| table(i, files)).collect();
        let five = [&five[..], &[table(20, &files(1))]].concat();
        assert_eq!(found(&five, &[100; 16]).0, [0; 0], "each of five tables would write a file");
        let large = TableMeta { size: 17 << 20, ..table(7, &files(16)) };
        assert_eq!(found(&[large], &[100; 16]).0, [0; 0], "17 MiB for 16 files");
    }
}
