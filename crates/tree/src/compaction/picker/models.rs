//! What the trees of tests have in common: tables and pickers with nothing unusual.

use super::*;

/// A table of 1 byte, with one entry numbered as the table is.
pub(super) fn plain_table(number: u64, smallest: &[u8], largest: &[u8]) -> TableMeta {
    TableMeta {
        number,
        size: 1,
        checksum: 0,
        entries: 1,
        keys: 1,
        tombstones: 0,
        deadlines: Default::default(),
        references: Default::default(),
        smallest_seqno: number,
        largest_seqno: number,
        cleared: 0,
        ingested: None,
        range_end: None,
        kept: 0,
        smallest: smallest.into(),
        largest: largest.into(),
    }
}

/// Calls `check` with a picker for a busy store without snapshots, in which a full level 0 has
/// `base_size` bytes.
pub(super) fn with_plain_picker<R>(
    levels: &LevelMetas<'_>,
    base_size: u64,
    running: &[Task],
    check: impl FnOnce(Picker<'_>) -> R,
) -> R {
    check(Picker {
        levels,
        running,
        shape: Shape::USUAL,
        base_size,
        is_idle: false,
        combines: true,
        oldest_snapshot: SeqNo::MAX,
        now: 0,
        moves_to_last: true,
        weights: &TombstoneWeights::new(),
        value_garbage: &ValueGarbage::default(),
        deleted: &DeletedBytes::new(),
        flushed: SeqNo::MAX,
    })
}
