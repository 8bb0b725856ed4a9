//! [`RangeTable`]: range deletes in a table, and the set of a version.
//!
//! A range table is an ordinary table whose properties call it one: its keys are the starts of
//! fragments, its values their ends (empty: no end). Fragments of one *layer* do not overlap. A
//! flush makes one layer for each stripe between snapshots in which it has ranges.

use std::sync::Arc;

use super::iter::{InternalCursor, MergeCursor};
use super::ranges::{Fragment, Layers, RangeLayer, RangeSource};
use super::table::{Table, TableMeta};
use crate::error::{Error, Result};
use crate::format::key::SeqNo;
use crate::format::span::KeySpan;
use crate::memory::budget::{MemoryCharge, MemoryUse};

/// A range table in memory.
pub struct RangeTable {
    table: Arc<Table>,
    layers: Vec<Arc<RangeLayer>>,
    len: usize,
    /// For the layers.
    _charge: MemoryCharge,
}

impl RangeTable {
    /// Reads and verifies a range table.
    pub fn load(table: Arc<Table>) -> Result<RangeTable> {
        let broken = |rule: &str| {
            let path = table.path();
            Err(Error::corruption(path, 0, rule))
        };
        if !table.holds_ranges() {
            return broken("the table is not one of range deletes");
        }
        let mut layers = Layers::default();
        let mut cursor = table.cursor(false).for_compaction();
        cursor.seek_to_first()?;
        let mut len = 0;
        while cursor.valid() {
            match Fragment::stored_in(cursor.stamp(), cursor.key(), cursor.value()) {
                Ok(range) => layers.add(range.start, range.stored_end(), range.seqno),
                Err(rule) => return broken(rule.0),
            }
            len += 1;
            cursor.next()?;
        }
        if len as u64 != table.meta().entries {
            return broken("a range table has fewer entries than it states");
        }
        let layers: Vec<_> = layers.done.into_iter().map(|layer| Arc::new(layer.indexed())).collect();
        let bytes = layers.iter().map(|layer| layer.allocated()).sum();
        let charge = MemoryCharge::new(table.context().budget(), MemoryUse::Ranges, bytes);
        Ok(RangeTable { layers, len, table, _charge: charge })
    }

    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    pub fn meta(&self) -> &TableMeta {
        self.table.meta()
    }

    /// Number of fragments.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The fragments, in layers that do not overlap themselves.
    pub fn layers(&self) -> &[Arc<RangeLayer>] {
        &self.layers
    }

    pub fn fragments(&self) -> impl Iterator<Item = Fragment> + Clone {
        self.layers.iter().flat_map(|layer| layer.fragments())
    }
}

/// The range tables of a version.
#[derive(Default)]
pub struct RangeSet {
    tables: Vec<Arc<RangeTable>>,
    /// The largest number in the tables: the set has every range up to it that may delete anything.
    largest_seqno: SeqNo,
}

impl RangeSet {
    pub fn new(tables: Vec<Arc<RangeTable>>) -> RangeSet {
        let largest_seqno = tables.iter().map(|table| table.meta().largest_seqno).max().unwrap_or(0);
        RangeSet { tables, largest_seqno }
    }

    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    pub fn tables(&self) -> &[Arc<RangeTable>] {
        &self.tables
    }

    pub fn largest_seqno(&self) -> SeqNo {
        self.largest_seqno
    }

    /// Number of fragments.
    pub fn len(&self) -> usize {
        self.tables.iter().map(|table| table.len()).sum()
    }

    fn layers(&self) -> impl Iterator<Item = &Arc<RangeLayer>> {
        self.tables.iter().flat_map(|table| &table.layers)
    }

    /// The layers with fragments numbered above `since`, and perhaps others.
    fn layers_since(&self, since: SeqNo) -> impl Iterator<Item = &Arc<RangeLayer>> {
        self.tables.iter().filter(move |table| table.meta().largest_seqno > since).flat_map(|table| &table.layers)
    }

    /// How many fragments have keys between two keys, the last one included, among those of the
    /// range tables that hold numbers above `since`.
    pub fn count_between(&self, first: &[u8], last: &[u8], since: SeqNo) -> usize {
        self.layers_since(since).map(|layer| layer.between(first, last).len()).sum()
    }

    /// The starts and ends of the fragments numbered above `since` that have keys between two keys,
    /// the last one included.
    pub fn between<'a>(
        &'a self,
        first: &'a [u8],
        last: &'a [u8],
        since: SeqNo,
    ) -> impl Iterator<Item = KeySpan<&'a [u8]>> {
        let of_layer = move |layer: &'a Arc<RangeLayer>| layer.between(first, last).map(move |i| layer.get(i));
        let newer = self.layers_since(since).flat_map(of_layer).filter(move |(.., seqno)| *seqno > since);
        newer.map(|(start, end, _)| KeySpan { lower: Some(start), upper: (!end.is_empty()).then_some(end) })
    }

    /// The newest number up to `snapshot` that deletes `key`; 0 if there is none.
    pub fn cover(&self, key: &[u8], snapshot: SeqNo) -> SeqNo {
        let covers = self.layers().map(|layer| layer.piece(key).seqno);
        covers.filter(|&seqno| seqno <= snapshot).max().unwrap_or(0)
    }

    /// The layers of tables that have a range numbered above `since`.
    fn newer_layers(&self, since: SeqNo) -> impl Iterator<Item = &Arc<RangeLayer>> {
        let newer = self.tables.iter().filter(move |table| table.meta().largest_seqno > since);
        newer.flat_map(|table| &table.layers)
    }

    /// The newest number that deletes `key`, if it is above `since`.
    pub fn newest_after(&self, since: SeqNo, key: &[u8]) -> Option<SeqNo> {
        self.newer_layers(since).map(|layer| layer.piece(key).seqno).max().filter(|&seqno| seqno > since)
    }

    /// The newest number that deletes any of the keys from `from` up to `to`, if it is above
    /// `since`.
    pub fn newest_within(&self, since: SeqNo, from: &[u8], to: Option<&[u8]>) -> Option<SeqNo> {
        if to.is_some_and(|to| to <= from) {
            return None;
        }
        self.newer_layers(since).map(|layer| layer.newest_within(from, to)).max().filter(|&seqno| seqno > since)
    }

    pub fn sources(&self) -> impl Iterator<Item = Arc<dyn RangeSource>> {
        self.layers().map(|layer| Arc::clone(layer) as Arc<dyn RangeSource>)
    }
}
