//! Sorted writes in memory: all keyspaces of a store, from one switch of the log to the next.
//!
//! One writer at a time, readers without a lock. The `unsafe` is in `arena` and `skiplist`; this module shows what the rest of the
//! engine may rely on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::error::Result;
use crate::format::key::{MAX_SEQNO, SeqNo, ValueKind};
use crate::iter::InternalCursor;

mod arena;
mod skiplist;

use skiplist::{NodeRef, Place, SkipList, SkipListWriter};

/// The newest visible version of a key in a memtable.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MemEntry<'a> {
    pub(crate) seqno: SeqNo,
    pub(crate) kind: ValueKind,
    pub(crate) value: &'a [u8],
}

/// The writes that stand in one log file.
pub(crate) struct Memtable {
    list: SkipList,
    /// The log that holds the same writes.
    log_number: u64,
    /// Bytes of the entries, which decide when the memtable is full.
    used: AtomicUsize,
    entries: AtomicU64,
    last_seqno: AtomicU64,
}

impl Memtable {
    /// An empty memtable for the writes of log `log_number`; it is meant to be full at about `size` bytes.
    pub(crate) fn new(log_number: u64, size: usize) -> Memtable {
        Memtable {
            list: SkipList::new((size / 16).clamp(4 << 10, 1 << 20)),
            log_number,
            used: AtomicUsize::new(0),
            entries: AtomicU64::new(0),
            last_seqno: AtomicU64::new(0),
        }
    }

    pub(crate) fn log_number(&self) -> u64 {
        self.log_number
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries() == 0
    }

    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Bytes that the entries take.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes taken from the system.
    pub(crate) fn allocated(&self) -> usize {
        self.list.allocated()
    }

    /// Sequence number of the last write, 0 if there is none.
    pub(crate) fn last_seqno(&self) -> SeqNo {
        self.last_seqno.load(Ordering::Relaxed)
    }

    /// Takes the right to insert.
    pub(crate) fn writer(&self) -> MemtableWriter<'_> {
        MemtableWriter { memtable: self, list: self.list.writer(), used: 0, entries: 0, last_seqno: 0 }
    }

    /// The newest version of `key` that `snapshot` can see.
    pub(crate) fn get(&self, keyspace: u32, key: &[u8], snapshot: SeqNo) -> Option<MemEntry<'_>> {
        let node = self.list.seek(&Place { keyspace, key, seqno: snapshot });
        if node.is_end() {
            return None;
        }
        let place = self.list.place(node);
        (place.keyspace == keyspace && place.key == key).then(|| MemEntry {
            seqno: place.seqno,
            kind: self.list.kind(node),
            value: self.list.value(node),
        })
    }

    /// The keyspaces that have entries, ascending.
    pub(crate) fn keyspaces(&self) -> Vec<u32> {
        let mut found = Vec::new();
        let mut node = self.list.first();
        while !node.is_end() {
            let keyspace = self.list.place(node).keyspace;
            found.push(keyspace);
            let Some(next) = keyspace.checked_add(1) else {
                break;
            };
            node = self.list.seek(&start_of(next));
        }
        found
    }

    /// Distinct keys of one keyspace. It goes through all of them.
    pub(crate) fn count_keys(self: &Arc<Self>, keyspace: u32) -> Result<u64> {
        let mut cursor = self.cursor(keyspace);
        let (mut last, mut count) = (Vec::new(), 0);
        cursor.seek_to_first()?;
        while cursor.valid() {
            if count == 0 || last != cursor.key() {
                count += 1;
                last.clear();
                last.extend_from_slice(cursor.key());
            }
            cursor.next()?;
        }
        Ok(count)
    }

    /// A cursor over the entries of one keyspace.
    pub(crate) fn cursor(self: &Arc<Self>, keyspace: u32) -> MemtableCursor {
        MemtableCursor { memtable: Arc::clone(self), keyspace, node: NodeRef::END }
    }
}

/// The place before every entry of a keyspace.
fn start_of(keyspace: u32) -> Place<'static> {
    Place { keyspace, key: &[], seqno: MAX_SEQNO }
}

/// The right to insert into a memtable. Counts are published when it is dropped.
pub(crate) struct MemtableWriter<'a> {
    memtable: &'a Memtable,
    list: SkipListWriter<'a>,
    used: usize,
    entries: u64,
    last_seqno: SeqNo,
}

impl MemtableWriter<'_> {
    /// Adds an entry. Sequence numbers ascend from call to call, so that no two entries are equal in order.
    pub(crate) fn insert(&mut self, keyspace: u32, key: &[u8], seqno: SeqNo, kind: ValueKind, value: &[u8]) {
        let place = Place { keyspace, key, seqno };
        self.used += self.list.insert(place, kind, value);
        self.entries += 1;
        self.last_seqno = seqno;
    }
}

impl Drop for MemtableWriter<'_> {
    fn drop(&mut self) {
        self.memtable.used.fetch_add(self.used, Ordering::Relaxed);
        self.memtable.entries.fetch_add(self.entries, Ordering::Relaxed);
        self.memtable.last_seqno.fetch_max(self.last_seqno, Ordering::Relaxed);
    }
}

/// A cursor over one keyspace's entries in a memtable. Entries inserted meanwhile may or may not be met; those that were there
/// before are.
pub(crate) struct MemtableCursor {
    memtable: Arc<Memtable>,
    keyspace: u32,
    node: NodeRef,
}

// SAFETY: the node belongs to `memtable`, which is Send and Sync and which the cursor keeps alive.
unsafe impl Send for MemtableCursor {}
// SAFETY: as above; `&MemtableCursor` only reads.
unsafe impl Sync for MemtableCursor {}

impl MemtableCursor {
    /// Stands on `node` if it is of the cursor's keyspace.
    fn set(&mut self, node: NodeRef) -> Result<()> {
        let inside = !node.is_end() && self.memtable.list.place(node).keyspace == self.keyspace;
        self.node = if inside { node } else { NodeRef::END };
        Ok(())
    }
}

impl InternalCursor for MemtableCursor {
    fn valid(&self) -> bool {
        !self.node.is_end()
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.set(self.memtable.list.seek(&start_of(self.keyspace)))
    }

    fn seek_to_last(&mut self) -> Result<()> {
        let node = match self.keyspace.checked_add(1) {
            Some(next) => self.memtable.list.before(&start_of(next)),
            // No keyspace has the largest id; a damaged one must not overflow all the same.
            None => NodeRef::END,
        };
        self.set(node)
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        let place = Place { keyspace: self.keyspace, key, seqno };
        self.set(self.memtable.list.seek(&place))
    }

    fn next(&mut self) -> Result<()> {
        self.set(self.memtable.list.next(self.node))
    }

    fn prev(&mut self) -> Result<()> {
        self.set(self.memtable.list.before(&self.memtable.list.place(self.node)))
    }

    fn key(&self) -> &[u8] {
        self.memtable.list.place(self.node).key
    }

    fn seqno(&self) -> SeqNo {
        self.memtable.list.place(self.node).seqno
    }

    fn kind(&self) -> ValueKind {
        self.memtable.list.kind(self.node)
    }

    fn value(&self) -> &[u8] {
        self.memtable.list.value(self.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Reverse;
    use std::collections::BTreeMap;

    fn filled(entries: &[(u32, &[u8], SeqNo, &[u8])]) -> Arc<Memtable> {
        let memtable = Arc::new(Memtable::new(1, 4096));
        let mut writer = memtable.writer();
        for (keyspace, key, seqno, value) in entries {
            writer.insert(*keyspace, key, *seqno, ValueKind::Put, value);
        }
        drop(writer);
        memtable
    }

    #[test]
    fn get_returns_the_newest_version_that_the_snapshot_sees() {
        let memtable = filled(&[(0, b"a", 1, b"one"), (1, b"a", 3, b"other"), (0, b"a", 5, b"five")]);
        let value = |snapshot| memtable.get(0, b"a", snapshot).map(|e| e.value.to_vec());
        assert_eq!(value(0), None);
        assert_eq!(value(4), Some(b"one".to_vec()));
        assert_eq!(value(9), Some(b"five".to_vec()));
        assert_eq!(memtable.get(1, b"a", 9).map(|e| e.seqno), Some(3));
        assert_eq!(memtable.get(0, b"b", 9), None);
        assert_eq!(memtable.keyspaces(), [0, 1]);
        assert_eq!(memtable.last_seqno(), 5);
        assert_eq!(memtable.entries(), 3);
    }

    #[test]
    fn cursor_stays_in_its_keyspace() {
        let memtable = filled(&[(0, b"z", 1, b""), (1, b"a", 2, b""), (1, b"b", 3, b""), (2, b"", 4, b"")]);
        let mut cursor = memtable.cursor(1);
        cursor.seek_to_last().expect("memory");
        assert_eq!(cursor.key(), b"b");
        cursor.next().expect("memory");
        assert!(!cursor.valid());
        cursor.seek_to_first().expect("memory");
        assert_eq!(cursor.key(), b"a");
        cursor.prev().expect("memory");
        assert!(!cursor.valid());
    }

    #[test]
    fn large_values_have_their_own_chunk() {
        let value = vec![3; 100_000];
        let memtable = filled(&[(0, b"k", 1, &value)]);
        assert_eq!(memtable.get(0, b"k", 1).map(|e| e.value.len()), Some(100_000));
        assert!(memtable.allocated() < 120_000);
    }

    #[test]
    fn readers_see_whole_entries_while_the_writer_inserts() {
        let rounds = if cfg!(miri) { 60 } else { 20_000u32 };
        let memtable = Arc::new(Memtable::new(1, 1 << 20));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut cursor = memtable.cursor(0);
                    let mut seen = 0;
                    while seen < rounds as usize {
                        seen = 0;
                        let mut last = Vec::new();
                        cursor.seek_to_first().unwrap();
                        while cursor.valid() {
                            assert!(last.as_slice() < cursor.key());
                            assert_eq!(cursor.key(), cursor.value());
                            last = cursor.key().to_vec();
                            seen += 1;
                            cursor.next().unwrap();
                        }
                    }
                });
            }
            for i in 0..rounds {
                let key = i.wrapping_mul(0x9e37_79b1).to_be_bytes();
                memtable.writer().insert(0, &key, u64::from(i) + 1, ValueKind::Put, &key);
            }
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 128 }))]
        #[test]
        fn agrees_with_a_map(keys in prop::collection::vec((0u32..3, prop::collection::vec(0u8..3, 0..4)), 0..60)) {
            let memtable = Arc::new(Memtable::new(1, 4096));
            let mut model = BTreeMap::new();
            for (i, (keyspace, key)) in keys.iter().enumerate() {
                let seqno = i as u64 + 1;
                memtable.writer().insert(*keyspace, key, seqno, ValueKind::Put, &seqno.to_le_bytes());
                model.insert((*keyspace, key.clone(), Reverse(seqno)), seqno.to_le_bytes().to_vec());
            }
            for keyspace in 0..3 {
                let expected: Vec<_> = model.iter().filter(|(k, _)| k.0 == keyspace).collect();
                let mut cursor = memtable.cursor(keyspace);
                cursor.seek_to_first().unwrap();
                for ((_, key, seqno), value) in &expected {
                    prop_assert_eq!((cursor.key(), cursor.seqno(), cursor.value()), (&key[..], seqno.0, &value[..]));
                    cursor.next().unwrap();
                }
                prop_assert!(!cursor.valid());
                cursor.seek_to_last().unwrap();
                for ((_, key, seqno), _) in expected.iter().rev() {
                    prop_assert_eq!((cursor.key(), cursor.seqno()), (&key[..], seqno.0));
                    cursor.prev().unwrap();
                }
                prop_assert!(!cursor.valid());
            }
        }
    }
}
