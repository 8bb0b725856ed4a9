//! Do the tables of a keyspace agree on what is newer? For one user key, what a level holds must be newer than what the levels below
//! it hold, and so must a run of level 0 be than the older ones: a read stops at the first answer.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::error::Result;
use crate::format::key::{SeqNo, compare_entries};
use crate::iter::InternalCursor;
use crate::table::Table;
use crate::version::{Source, Version};

/// Two sources that contradict each other.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contradiction {
    /// The key that they contradict each other about.
    pub(super) key: Vec<u8>,
    /// Sequence number in the source that reads ask first, and that should be the greater one.
    pub(super) first: SeqNo,
    /// Sequence number in the source behind it.
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
    // The last entry: key, sequence number, and the rank of its source. What comes next of the same key is not newer.
    let mut last: Option<(Vec<u8>, SeqNo, usize)> = None;
    while let Some(mut ranked) = heap.pop() {
        let (key, seqno) = (ranked.source.key(), ranked.source.seqno());
        match &mut last {
            Some((last_key, last_seqno, last_rank)) if last_key == key => {
                let same = *last_seqno == seqno;
                if ranked.rank < *last_rank || (same && ranked.rank != *last_rank) {
                    let (first, second) = if same { (seqno, seqno) } else { (seqno, *last_seqno) };
                    return Ok(Some(Contradiction { key: key.to_vec(), first, second }));
                }
                (*last_seqno, *last_rank) = (seqno, ranked.rank);
            }
            Some((last_key, last_seqno, last_rank)) => {
                last_key.clear();
                last_key.extend_from_slice(key);
                (*last_seqno, *last_rank) = (seqno, ranked.rank);
            }
            None => last = Some((key.to_vec(), seqno, ranked.rank)),
        }
        ranked.source.next()?;
        if ranked.source.valid() {
            heap.push(ranked);
        }
    }
    Ok(None)
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
