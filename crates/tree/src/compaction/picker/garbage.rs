//! How much garbage tables have, and what tombstones weigh: estimates from metadata and samples.
//!
//! A tombstone of 20 bytes may delete an entry of 16,000 bytes. By size alone, merging the two
//! never pays off. Therefore a tombstone weighs as much as the mean entry beneath it. With mixed
//! value sizes this is wrong by up to their ratio. An idle store therefore takes samples of what
//! tables hide (`tree::version::hidden`), and the greater estimate counts. The price is bounded:
//! one unneeded merge, after which the tombstone is gone, or, in a store that is never idle, a
//! merge delayed until the level is full.
//!
//! What range deletes have deleted of a table (`tree::version::deleted`) counts as freed. A table
//! below level 0 that has lost a quarter of its bytes to them is rewritten in its level, and a run
//! of level 0 that has lost half; in an idle store a tenth is enough for either.

use crate::format::deadline::Deadline;
use crate::format::key::SeqNo;
use crate::sorted::table::{DUE_SHARE, TableMeta};
use crate::version::{DeletedBytes, HiddenBytes};

/// Number of entries that are obsolete once everything older is in the same table: tombstones and
/// older versions, without those that a rewrite has kept.
pub(super) fn garbage(table: &TableMeta) -> u64 {
    table.hidden_entries().saturating_sub(table.kept)
}

/// Whether a compaction may drop entries of the table, or entries that it hides, once no snapshot
/// needs them.
pub fn has_garbage(table: &TableMeta) -> bool {
    garbage(table) > 0
}

/// About how many values of a table have expired at `now`. At least one of them has if this is not
/// 0, so that no table is rewritten for nothing. Snapshots do not see them.
pub(super) fn expired(table: &TableMeta, now: Deadline) -> u64 {
    table.deadlines.expired(table.entries, now)
}

/// How entries are judged.
pub(super) struct Judge<'a> {
    pub(super) oldest_snapshot: SeqNo,
    pub(super) now: Deadline,
    pub(super) deleted: &'a DeletedBytes,
    pub(super) hidden: &'a HiddenBytes,
}

impl Judge<'_> {
    /// Bytes that a merge of `chosen`, given with their levels, drops: what range deletes have
    /// deleted, older versions, and what tables hide of older ones. Tombstones delete at most as
    /// many entries as lie beneath, each of the mean size beneath, or what samples say. Values that
    /// have expired are dropped and delete like tombstones. A table with entries newer than the
    /// oldest snapshot frees only these values, and what ranges delete for all snapshots.
    pub(super) fn freed(&self, chosen: &[(usize, &TableMeta)]) -> u64 {
        let mut oldest_first = chosen.to_vec();
        let age = |level: usize, table: &TableMeta| if level == 0 { table.largest_seqno } else { 0 };
        oldest_first.sort_by_key(|&(level, table)| (std::cmp::Reverse(level), age(level, table)));
        let (mut beneath, mut freed) = (LiveEntries::default(), 0u64);
        // Below level 0, tables of one level delete nothing from each other.
        for run in oldest_first.chunk_by(|a, b| a.0 == b.0 && a.0 > 0) {
            let droppable = || run.iter().filter(|(_, table)| table.largest_seqno <= self.oldest_snapshot);
            let deletes =
                |table: &TableMeta| self.remaining(table, table.tombstones.saturating_add(expired(table, self.now)));
            let tombstones = droppable().fold(0, |sum: u64, (_, table)| sum.saturating_add(deletes(table)));
            let hidden = |table: &TableMeta| self.hidden.get(&table.number).copied().unwrap_or(0);
            let sampled = droppable().fold(0, |sum: u64, (_, table)| sum.saturating_add(hidden(table)));
            freed = freed.saturating_add(beneath.take(tombstones, sampled));
            for (_, table) in run {
                let mut entries = LiveEntries {
                    count: self.remaining(table, table.entries.saturating_sub(table.tombstones)),
                    // A tombstone is small.
                    bytes: self.remaining(table, table.total_size()),
                };
                freed = freed.saturating_add(table.total_size().saturating_sub(entries.bytes));
                if table.largest_seqno <= self.oldest_snapshot {
                    let versions = table.entries.saturating_sub(table.keys).saturating_sub(table.kept);
                    freed = freed.saturating_add(entries.take(self.remaining(table, versions), 0));
                }
                let least = if table.deadlines.are_due(self.now) { table.total_size() / DUE_SHARE } else { 0 };
                freed = freed.saturating_add(entries.take(self.remaining(table, expired(table, self.now)), least));
                beneath.count = beneath.count.saturating_add(entries.count);
                beneath.bytes = beneath.bytes.saturating_add(if entries.count > 0 { entries.bytes } else { 0 });
            }
        }
        freed
    }

    /// How much is left of a number of a table's entries or bytes after what range deletes delete,
    /// if all are deleted alike.
    fn remaining(&self, table: &TableMeta, count: u64) -> u64 {
        let Some(deleted) = self.deleted.get(&table.number) else { return count };
        let left = table.total_size().saturating_sub(*deleted);
        let remaining = u128::from(count) * u128::from(left) / u128::from(table.total_size().max(1));
        u64::try_from(remaining).unwrap_or(count)
    }
}

/// Number and total bytes of entries with values.
#[derive(Default)]
struct LiveEntries {
    count: u64,
    bytes: u64,
}

impl LiveEntries {
    /// Removes up to `count` entries, and at least `least` bytes if there are so many; returns the
    /// bytes.
    fn take(&mut self, count: u64, least: u64) -> u64 {
        let count = count.min(self.count);
        let bytes = u128::from(self.bytes) * u128::from(count) / u128::from(self.count.max(1));
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).max(least.min(self.bytes));
        self.count -= count;
        self.bytes -= bytes;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sorted::table::Deadlines;

    /// A table "entries keys tombstones size", whose largest sequence number is `seqno`.
    fn table(line: &str, seqno: SeqNo) -> TableMeta {
        let numbers: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        TableMeta {
            number: seqno,
            size: numbers[3],
            checksum: 0,
            entries: numbers[0],
            keys: numbers[1],
            tombstones: numbers[2],
            deadlines: Default::default(),
            references: Default::default(),
            smallest_seqno: 1,
            largest_seqno: seqno,
            cleared: 0,
            ingested: None,
            range_end: None,
            kept: 0,
            smallest: (*b"a").into(),
            largest: (*b"z").into(),
        }
    }

    /// [`freed`] of tables given as "level: ...", the newest first.
    fn freed_of(tables: &[&str], oldest_snapshot: SeqNo) -> u64 {
        let numbered = tables.iter().zip((1..=tables.len() as u64).rev());
        let tables: Vec<(usize, TableMeta)> = numbered
            .map(|(line, seqno)| {
                let (level, rest) = line.split_once(':').unwrap();
                (level.parse().unwrap(), table(rest, seqno))
            })
            .collect();
        let chosen: Vec<_> = tables.iter().map(|(level, table)| (*level, table)).collect();
        Judge { oldest_snapshot, now: 0, deleted: &DeletedBytes::new(), hidden: &HiddenBytes::new() }.freed(&chosen)
    }

    #[test]
    fn a_tombstone_weighs_what_the_entries_beneath_it_do_on_average() {
        assert_eq!(freed_of(&["0: 100 100 100 2000", "6: 1000 1000 0 120000"], SeqNo::MAX), 12_000);
        assert_eq!(freed_of(&["0: 100 100 100 2000", "6: 50 50 0 6000"], SeqNo::MAX), 6000, "there are no more");
        assert_eq!(freed_of(&["0: 100 100 100 2000"], SeqNo::MAX), 0, "nothing is beneath");
        assert_eq!(freed_of(&["0: 100 100 0 2000", "6: 100 100 100 2000"], SeqNo::MAX), 0, "they are beneath");
        assert_eq!(freed_of(&["6: 100 100 100 2000", "6: 100 100 0 2000"], SeqNo::MAX), 0, "beside each other");
        assert_eq!(freed_of(&["0: 10 10 10 200", "0: 100 100 0 5000"], SeqNo::MAX), 500, "an older run of level 0");
        // Each entry is deleted once: the third run deletes nothing.
        let tables = ["0: 80 80 80 1", "0: 60 60 60 1", "5: 40 40 40 1", "6: 100 100 0 5000"];
        assert_eq!(freed_of(&tables, SeqNo::MAX), 5000);
    }

    #[test]
    fn tables_of_one_level_delete_nothing_from_each_other() {
        for tables in [["6: 100 100 0 2000", "6: 100 100 100 2000"], ["5: 100 100 100 2000", "5: 100 100 0 2000"]] {
            assert_eq!(freed_of(&tables, SeqNo::MAX), 0, "{tables:?}");
        }
        assert_eq!(freed_of(&["0: 100 100 100 2000", "0: 100 100 0 2000"], SeqNo::MAX), 2000, "two runs");
    }

    #[test]
    fn what_a_snapshot_may_see_frees_nothing() {
        let tables = ["0: 100 100 100 2000", "0: 50 50 50 1000", "6: 1000 1000 0 120000"];
        assert_eq!([0, 1, 2, 3, 4].map(|snapshot| freed_of(&tables, snapshot)), [0, 0, 6000, 18_000, 18_000]);
        assert_eq!([1, 0].map(|snapshot| freed_of(&["6: 100 60 0 5000"], snapshot)), [2000, 0], "older versions");
    }

    #[test]
    fn what_has_expired_is_freed_and_deletes_what_is_beneath() {
        let deadlines = Deadlines { count: 50, first: 10, quarter: 15, last: 20 };
        let above = TableMeta { deadlines, ..table("100 100 0 10000", 2) };
        let below = table("1000 1000 0 120000", 1);
        let none = DeletedBytes::new();
        let freed_at = |now, oldest_snapshot| {
            Judge { oldest_snapshot, now, deleted: &none, hidden: &HiddenBytes::new() }
                .freed(&[(0, &above), (6, &below)])
        };
        // Fewer than a quarter, a quarter, all that has a deadline.
        assert_eq!([9, 10, 15, 20].map(|now| freed_at(now, SeqNo::MAX)), [0, 220, 25 * 220, 50 * 220]);
        assert_eq!(freed_at(20, 1), 50 * 100, "a snapshot needs what is beneath");
    }

    #[test]
    fn what_ranges_have_deleted_is_freed_once_and_takes_its_tombstones_along() {
        let (above, below) = (table("100 100 40 10000", 2), table("1000 1000 0 120000", 1));
        let freed_of = |of_above, of_below, oldest_snapshot| {
            let deleted = DeletedBytes::from([(2, of_above), (1, of_below)]);
            Judge { oldest_snapshot, now: 0, deleted: &deleted, hidden: &HiddenBytes::new() }
                .freed(&[(0, &above), (6, &below)])
        };
        assert_eq!(freed_of(0, 0, SeqNo::MAX), 40 * 120);
        assert_eq!(freed_of(5000, 0, SeqNo::MAX), 5000 + 20 * 120, "half of the tombstones are left");
        assert_eq!(freed_of(0, 90_000, SeqNo::MAX), 90_000 + 40 * 120, "as many entries are left");
        assert_eq!(freed_of(10_000, 120_000, SeqNo::MAX), 130_000);
        assert_eq!(freed_of(5000, 90_000, 0), 95_000, "no snapshot sees what ranges have deleted");
    }

    #[test]
    fn numbers_of_any_size_are_taken() {
        let largest = format!("6: {0} 0 {0} {0}", u64::MAX);
        let all = format!("0: {0} {0} 0 {0}", u64::MAX);
        freed_of(&[&largest, &all, &largest, &all], SeqNo::MAX);
        assert_eq!(freed_of(&[&largest, &all], SeqNo::MAX), 0);
    }
}
