//! Do the tables of a keyspace agree on what is newer? A read stops at the first answer: the first source that holds a key must hold its
//! newest version. As a rule, what is in a level is newer than what the levels below it hold, and a run of level 0 than the older ones;
//! but after a compaction that was interrupted, levels below may hold the same again, or what lies in between (`compaction::stages`).
//! Only snapshots could tell the order of older versions, and none outlives its process.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::error::Result;
use crate::format::key::{SeqNo, ValueKind, compare_entries};
use crate::sorted::iter::{InternalCursor, MergeCursor, Stamped};
use crate::sorted::table::Table;
use crate::tree::version::{Source, Version};

/// Two sources that contradict each other.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contradiction {
    /// The key that they contradict each other about.
    pub(super) key: Vec<u8>,
    /// Sequence number in a source that reads ask first.
    pub(super) first: SeqNo,
    /// The newest one, which is in a source behind it; or the same, if the two say different things.
    pub(super) second: SeqNo,
}

/// Goes through all entries of `tables` (level and table) in order and looks for the first contradiction.
pub(super) fn find_contradiction(tables: Vec<(u8, Arc<Table>)>) -> Result<Option<Contradiction>> {
    let version = Arc::new(Version::default().edited(&[], tables));
    let mut sources = Vec::new();
    // In the order in which reads ask them.
    version.cursors(false, None, &mut sources);
    let mut heap = BinaryHeap::with_capacity(sources.len());
    for (rank, mut source) in sources.into_iter().enumerate() {
        source.seek_to_first()?;
        if source.valid() {
            heap.push(Ranked { rank, source });
        }
    }
    // Rank and number of the newest version of the last key, and the last version. What comes next of the same key is not newer, and if it
    // is the same version, in a later source.
    let mut newest = (0, 0);
    let mut last = Last { key: Vec::new(), seqno: 0, kind: ValueKind::Put, value: Vec::new() };
    while let Some(mut ranked) = heap.pop() {
        let (key, seqno, kind) = (ranked.source.key(), ranked.source.seqno(), ranked.source.kind());
        let is_same_key = last.seqno > 0 && last.key == key;
        if is_same_key && last.seqno == seqno {
            if last.kind != kind || last.value != ranked.source.value() {
                return Ok(Some(Contradiction { key: key.to_vec(), first: seqno, second: seqno }));
            }
        } else {
            if is_same_key && ranked.rank < newest.0 {
                return Ok(Some(Contradiction { key: key.to_vec(), first: seqno, second: newest.1 }));
            }
            if !is_same_key {
                newest = (ranked.rank, seqno);
            }
            last.key.clear();
            last.key.extend_from_slice(key);
            last.value.clear();
            last.value.extend_from_slice(ranked.source.value());
            (last.seqno, last.kind) = (seqno, kind);
        }
        ranked.source.next()?;
        if ranked.source.valid() {
            heap.push(ranked);
        }
    }
    Ok(None)
}

/// A version of a key.
struct Last {
    key: Vec<u8>,
    /// No version has 0.
    seqno: SeqNo,
    kind: ValueKind,
    value: Vec<u8>,
}

/// A valid cursor over one source. The heap's greatest is the one with the least entry.
struct Ranked {
    rank: usize,
    source: Source,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Ranked) -> Ordering {
        let (a, b) = (&self.source, &other.source);
        compare_entries((b.key(), b.seqno()), (a.key(), a.seqno())).then_with(|| other.rank.cmp(&self.rank))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Ranked) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked {}
