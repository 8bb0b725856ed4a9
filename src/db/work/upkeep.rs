//! [`RangeUpkeep`]: when to look which range deletes are still needed, and how much they delete.
//!
//! There may be millions of ranges. Whether one is still needed depends on the tables that it
//! meets, so that looking at all of them after each flush would cost more than they do. Instead,
//! what comes and goes is counted: all ranges are looked at again once an eighth of them may have
//! become needless, and so many in all that half could go.
//!
//! Gain, with a million ranges that a snapshot keeps: a flush of a thousand puts takes 2 ms instead
//! of 171. To remove it, look at all ranges each time.

use std::collections::{HashMap, HashSet};

use crate::format::key::SeqNo;
use crate::sorted::range_table::RangeSet;
use crate::sorted::table::TableMeta;
use crate::tree::version::{DeletedBytes, LevelMetas, Surveyed, Version};

/// All ranges are looked at again when this part of them, as a divisor, may have become needless.
const LOOK_SHARE: usize = 8;
/// So few ranges are looked at each time.
const FEW: usize = 1024;

/// What the upkeep of a keyspace's range deletes knows, so that it need not look at millions of
/// them after each flush.
#[derive(Default)]
pub(super) struct RangeUpkeep {
    /// The tables that it saw last; for each, the ranges that may have deleted some of it.
    tables: HashMap<u64, usize>,
    /// The range tables that it saw last.
    range_tables: HashSet<u64>,
    /// Ranges that were not needed when it looked at all.
    needless: usize,
    /// How many more may not be needed now: those that came since, and those over tables that have
    /// gone.
    possibly: usize,
    /// What is known of the tables, by number.
    surveyed: HashMap<u64, Surveyed>,
}

impl RangeUpkeep {
    /// The bytes of tables that ranges numbered up to `limit` delete; `None` if stopped.
    pub(super) fn survey(
        &mut self,
        version: &Version,
        limit: SeqNo,
        is_stopped: impl Fn() -> bool,
    ) -> Option<DeletedBytes> {
        let mut former = std::mem::take(&mut self.surveyed);
        for (_, table) in version.tables() {
            if is_stopped() {
                return None;
            }
            let number = table.meta().number;
            let surveyed = Surveyed::of(former.remove(&number), table, version.ranges(), limit);
            self.surveyed.insert(number, surveyed);
        }
        let deleted = self.surveyed.iter().filter(|(_, surveyed)| surveyed.bytes > 0);
        Some(deleted.map(|(number, surveyed)| (*number, surveyed.bytes)).collect())
    }

    /// Notes what has come and gone.
    pub(super) fn note(&mut self, levels: &LevelMetas<'_>, ranges: &RangeSet) {
        let count = |meta: &&TableMeta| {
            let known = self.tables.get(&meta.number).copied();
            (meta.number, known.unwrap_or_else(|| ranges.count_between(&meta.smallest, &meta.largest, 0)))
        };
        let tables: HashMap<u64, usize> = levels.iter().flatten().map(count).collect();
        let gone = self.tables.iter().filter(|(number, _)| !tables.contains_key(number));
        self.possibly += gone.map(|(_, ranges)| ranges).sum::<usize>();
        let new = ranges.tables().iter().filter(|table| !self.range_tables.contains(&table.meta().number));
        self.possibly += new.map(|table| table.len()).sum::<usize>();
        self.tables = tables;
        self.range_tables = ranges.tables().iter().map(|table| table.meta().number).collect();
    }

    /// Whether half of all ranges may not be needed, and enough of them have not been looked at
    /// that looking at all is worth it.
    pub(super) fn is_due(&self, all: usize) -> bool {
        all <= FEW || self.possibly >= all / LOOK_SHARE && 2 * (self.needless + self.possibly) >= all
    }

    /// Notes that all ranges have been looked at, of which `needless` are not needed.
    pub(super) fn looked(&mut self, levels: &LevelMetas<'_>, ranges: &RangeSet, needless: usize) {
        // The ranges that came since a table was seen are counted for it only now.
        self.tables.clear();
        self.note(levels, ranges);
        (self.needless, self.possibly) = (needless, 0);
    }
}
