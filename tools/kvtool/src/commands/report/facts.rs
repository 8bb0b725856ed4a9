//! [`Facts`]: all that a report is made of.

use std::collections::HashSet;
use std::io;
use std::time::SystemTime;

use tamis::inspect::{FileKind, Inspector};
use tamis::{Db, Error, KeyspaceOptions, KeyspaceStats, Stats, TableStats};

use super::super::filter::advise::{Advice, RangeAdvice};
use super::super::filters::{EmptyRead, FilterTotals, filters_in, shares_met};
use super::disk::Disk;
use super::saved::Saved;
use crate::failure::Result;

pub(super) struct Facts {
    pub(super) path: String,
    pub(super) time: SystemTime,
    pub(super) stats: Stats,
    /// The keyspaces, large ones first.
    pub(super) keyspaces: Vec<KeyspaceFacts>,
    pub(super) disk: Disk,
    /// Of the user's own look-ups.
    pub(super) saved: Option<Saved>,
}

pub(super) struct KeyspaceFacts {
    pub(super) stats: KeyspaceStats,
    pub(super) options: KeyspaceOptions,
    /// About how many keys it has, if its tables can be read.
    pub(super) keys: Option<u64>,
    /// Of each level, as reads of the keyspace meet them.
    pub(super) filters: Vec<FilterTotals>,
    /// Tables of each level that are over a key, on average: see [`shares_met`].
    pub(super) over: Vec<f64>,
    /// Bytes of the indexes of its tables.
    pub(super) index_bytes: u64,
    /// Tables that cannot be read: their levels and numbers, and why.
    pub(super) unreadable: Vec<(usize, u64, Error)>,
    /// Tables with a damaged filter.
    pub(super) damaged_filters: Vec<u64>,
    /// Tables that the process that has the store open has replaced meanwhile.
    pub(super) gone: u64,
    /// Without them if a table cannot be read.
    pub(super) advice: Option<Advice>,
    pub(super) ranges: Option<RangeAdvice>,
}

impl Facts {
    pub(super) fn gather(db: &Db, stats: Stats, saved: Option<Saved>) -> Result<Facts> {
        let mut keyspaces = Vec::new();
        for stats in &stats.keyspaces {
            if let Some(keyspace) = db.existing_keyspace(&stats.name)? {
                let keys = keyspace.approximate_len(..).ok();
                let mut facts = KeyspaceFacts::gather(db, stats.clone(), keyspace.options()?, keys);
                if let (Some(saved), Some(advice)) = (&saved, &mut facts.advice)
                    && saved.keyspace == stats.name
                {
                    advice.weigh(&saved.misses);
                }
                keyspaces.push(facts);
            }
        }
        keyspaces.sort_by_key(|facts| std::cmp::Reverse(facts.stats.size()));
        // Files of all keyspaces belong to the store, also if the report is on one.
        let all = db.stats();
        let tables = all.keyspaces.iter().flat_map(|keyspace| &keyspace.levels).flat_map(|level| &level.tables);
        let live: HashSet<u64> = tables.map(|table| table.number).collect();
        Ok(Facts {
            path: db.path().display().to_string(),
            time: SystemTime::now(),
            disk: Disk::of(db.path(), &all, &live)?,
            stats,
            keyspaces,
            saved,
        })
    }

    /// Whether anything is damaged that was read for the report.
    pub(super) fn is_damaged(&self) -> bool {
        let has_damage = |facts: &KeyspaceFacts| !facts.unreadable.is_empty() || !facts.damaged_filters.is_empty();
        self.keyspaces.iter().any(has_damage) || self.saved.as_ref().is_some_and(|saved| !saved.failures.is_empty())
    }
}

impl KeyspaceFacts {
    fn gather(db: &Db, stats: KeyspaceStats, options: KeyspaceOptions, keys: Option<u64>) -> KeyspaceFacts {
        let (dir, inspector) = (db.path(), Inspector::new());
        let (mut filters, mut index_bytes, mut gone) = (Vec::new(), 0, 0);
        let (mut unreadable, mut damaged_filters) = (Vec::new(), Vec::new());
        let shares = shares_met(&stats);
        let over: Vec<f64> = shares.iter().map(|tables| tables.iter().sum()).collect();
        for (level, shares) in stats.levels.iter().zip(shares) {
            let read = level.tables.iter().zip(shares).filter_map(|(table, share)| {
                match inspector.table(&FileKind::Table(table.number).path(dir)) {
                    Ok(file) => {
                        index_bytes += u64::from(file.properties().index_block.len);
                        let filters = filters_in(&file);
                        if filters.points.damaged + filters.ranges.damaged > 0 {
                            damaged_filters.push(table.number);
                        }
                        Some(filters.met_by(share))
                    }
                    Err(error) if is_absent(&error) => {
                        gone += 1;
                        None
                    }
                    Err(error) => {
                        unreadable.push((level.level, table.number, error));
                        None
                    }
                }
            });
            filters.push(read.sum());
        }
        let is_whole = unreadable.is_empty() && gone == 0;
        let advice = if is_whole { Advice::of(dir, &stats).ok() } else { None };
        let ranges = if is_whole { RangeAdvice::of(dir, &stats).ok() } else { None };
        KeyspaceFacts {
            stats,
            options,
            keys,
            filters,
            over,
            index_bytes,
            unreadable,
            damaged_filters,
            gone,
            advice,
            ranges,
        }
    }

    pub(super) fn total(&self) -> FilterTotals {
        self.filters.iter().copied().sum()
    }

    pub(super) fn tables(&self) -> u64 {
        self.stats.levels.iter().map(|level| level.tables.len() as u64).sum()
    }

    pub(super) fn entries(&self) -> u64 {
        self.stats.levels.iter().map(|level| level.entries()).sum()
    }

    pub(super) fn tombstones(&self) -> u64 {
        let tables = self.stats.levels.iter().flat_map(|level| &level.tables);
        tables.map(|table| table.tombstones).sum()
    }

    /// What a get of an absent key costs: the filters that it asks, and reads for nothing.
    pub(super) fn absent_get(&self) -> EmptyRead {
        super::super::stats::look_up(&self.filters)
    }

    /// Tables over a key, on average over the entries of all tables. A get of an absent key would
    /// read a block of each without filters.
    pub(super) fn tables_over_a_key(&self) -> f64 {
        self.over.iter().sum()
    }

    /// Blocks that a get of a key reads which is in a table, on average: its own, and what the
    /// filters of newer tables wrongly allow.
    pub(super) fn present_get(&self) -> f64 {
        let (mut above, mut sum) = (0.0, 0.0);
        for ((level, filters), over) in self.stats.levels.iter().zip(&self.filters).zip(&self.over) {
            let all = filters.points.wasted;
            // Of the tables of level 0 over a key beside its own, half are newer.
            let newer = all * (1.0 - 1.0 / over.max(1.0)) / 2.0;
            sum += level.entries() as f64 * (above + newer);
            above += all;
        }
        1.0 + sum / (self.entries().max(1)) as f64
    }

    /// The most tables of level 0 that are over one key.
    pub(super) fn most_over_one_key(&self) -> u64 {
        self.stats.levels.iter().find(|level| level.level == 0).map_or(0, |level| depth(&level.tables))
    }
}

/// How many of the tables hold one key in their range, at most.
fn depth(tables: &[TableStats]) -> u64 {
    // A table that ends at a key still holds it when another begins there.
    let mut ends: Vec<(&[u8], i8)> =
        tables.iter().flat_map(|table| [(&*table.smallest, -1), (&*table.largest, 1)]).collect();
    ends.sort_unstable();
    let (mut open, mut most) = (0u64, 0);
    for (_, end) in ends {
        open = if end < 0 { open + 1 } else { open - 1 };
        most = most.max(open);
    }
    most
}

fn is_absent(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}
