//! [`Facts`]: all that a report is made of.

use std::collections::HashSet;
use std::io;
use std::time::SystemTime;

use tamis::inspect::{FileKind, Inspector};
use tamis::{Db, Error, KeyspaceOptions, KeyspaceStats, Stats};

use super::super::filter::advise::{Advice, RangeAdvice};
use super::super::filters::{EmptyRead, FilterTotals, filters_in};
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
    /// Of each level.
    pub(super) filters: Vec<FilterTotals>,
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
        for level in &stats.levels {
            let read = level.tables.iter().filter_map(|table| {
                match inspector.table(&FileKind::Table(table.number).path(dir)) {
                    Ok(file) => {
                        index_bytes += u64::from(file.properties().index_block.len);
                        let filters = filters_in(&file);
                        if filters.points.damaged + filters.ranges.damaged > 0 {
                            damaged_filters.push(table.number);
                        }
                        Some(filters)
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
        KeyspaceFacts { stats, options, keys, filters, index_bytes, unreadable, damaged_filters, gone, advice, ranges }
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
        super::super::stats::look_up(&self.stats, &self.filters)
    }

    /// Blocks that a get of an absent key would read without filters: one in each run.
    pub(super) fn runs(&self) -> u64 {
        let runs = self.stats.levels.iter().map(|level| match level.level {
            0 => level.tables.len() as u64,
            _ => u64::from(!level.tables.is_empty()),
        });
        runs.sum()
    }

    /// Blocks that a get of a key reads which is in a table, on average: its own, and what the
    /// filters of the levels above it wrongly allow.
    pub(super) fn present_get(&self) -> f64 {
        let (mut above, mut sum) = (0.0, 0.0);
        for (at, level) in self.stats.levels.iter().enumerate() {
            let own = EmptyRead::through(std::iter::once((level.level, &self.filters[at].points))).wasted_reads;
            // In level 0, half of the runs are above that of the key.
            let before = if level.level == 0 { own / 2.0 } else { 0.0 };
            sum += level.entries() as f64 * (above + before);
            above += own;
        }
        1.0 + sum / (self.entries().max(1)) as f64
    }
}

fn is_absent(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}
