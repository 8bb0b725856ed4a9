//! How much of a table range deletes have deleted: estimates from metadata.

use std::collections::HashSet;

use crate::sorted::ranges::{Covers, Stretch};
use crate::sorted::table::{TableMeta, key_between};

/// Most stretches of ranges that an estimate of keys looks at in a table.
const MAX_STRETCHES: usize = 64;
/// A table is due for a compaction if range deletes have deleted the keys at this many of so many
/// places in it. A table may have thousands of ranges, and the picker waits for the answer.
const DUE_PLACES: usize = 4;
const PLACES: u32 = 16;
const GOLDEN_RATIO: f64 = 1.618_033_988_749_895;

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
/// about a quarter, judged by the keys' first bytes. `ranges` are those that all snapshots see.
pub(super) fn partly_covered<'a>(tables: impl Iterator<Item = &'a TableMeta>, ranges: &Covers) -> HashSet<u64> {
    let is_due = |table: &&TableMeta| {
        let (first, last) = (&*table.smallest, &*table.largest);
        let known = table.largest_seqno.max(table.cleared);
        if known >= ranges.snapshot() {
            return false;
        }
        let stretch = ranges.stretch(first);
        if stretch.to.as_deref().is_none_or(|to| to > last) {
            return stretch.cover() > known;
        }
        // Multiples of the golden ratio are spread evenly, and not in steps that ranges may have
        // too.
        let places = (0..PLACES).map(|i| (0.5 + f64::from(i) * GOLDEN_RATIO).fract());
        let keys = places.map(|place| key_between(first, last, place));
        keys.filter(|key| ranges.cover(key) > known).count() >= DUE_PLACES
    };
    tables.filter(is_due).map(|table| table.number).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sorted::ranges::{NO_SNAPSHOT, RangeLayer, RangeSource};

    /// Whether a table with the keys 1000 to 8999 is due, of which these ranges delete some.
    fn is_due(ranges: impl Iterator<Item = (u32, u32)>) -> bool {
        let table = TableMeta {
            number: 7,
            size: 1 << 20,
            checksum: 0,
            entries: 8000,
            keys: 8000,
            tombstones: 0,
            deadlines: Default::default(),
            references: Default::default(),
            smallest_seqno: 1,
            largest_seqno: 9,
            cleared: 0,
            ingested: None,
            range_end: None,
            smallest: b"k1000".as_slice().into(),
            largest: b"k8999".as_slice().into(),
        };
        let mut layer = RangeLayer::default();
        ranges.for_each(|(from, to)| layer.push(format!("k{from}").as_bytes(), format!("k{to}").as_bytes(), 10));
        let layer: Arc<dyn RangeSource> = Arc::new(layer);
        let covers = |snapshot| Covers::new(vec![Arc::clone(&layer)], snapshot);
        let is_due =
            |table: &TableMeta, snapshot| !partly_covered(std::iter::once(table), &covers(snapshot)).is_empty();
        assert!(!is_due(&table, 9), "a snapshot keeps the entries");
        assert!(!is_due(&TableMeta { cleared: 10, ..table.clone() }, NO_SNAPSHOT), "they have been dropped");
        is_due(&table, NO_SNAPSHOT)
    }

    #[test]
    fn a_table_is_due_for_many_small_ranges_and_not_for_few_however_they_lie() {
        let every = |step: u32, len: u32| (1000..8900).step_by(step as usize).map(move |i| (i, i + len));
        assert!(is_due(every(10, 7)) && is_due(every(7, 4)));
        assert!(!is_due(every(50, 1)) && !is_due(every(70, 3)));
        assert!(!is_due((1000..1500).map(|i| (i, i + 1))), "many at the front");
        assert!(is_due([(1500, 5500)].into_iter()) && !is_due([(1500, 2000)].into_iter()));
        assert!(is_due([(1000, 9999)].into_iter()));
    }
}
