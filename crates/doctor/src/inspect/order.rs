//! Checks that the tables of a keyspace agree on which version of a key is newest.
//!
//! A read stops at the first answer, so the first source that holds a key must hold its newest
//! version. As a rule, a level is newer than the levels below it, and a run of level 0 is newer
//! than older runs. After an interrupted compaction, however, levels below may hold the same
//! entries again, or entries in between (`compaction::stages`). Only snapshots could tell the order
//! of older versions, and no snapshot outlives its process.

use std::sync::Arc;

use crate::error::Result;
use crate::format::key::{SeqNo, ValueKind};
use crate::sorted::iter::{InternalCursor, MergeCursor, Stamped};
use crate::sorted::table::{ReadFlags, Table};
use crate::tree::version::Version;

/// A key about which two sources contradict each other.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contradiction {
    /// The key.
    pub(super) key: Vec<u8>,
    /// Sequence number in the source that is read first.
    pub(super) first: SeqNo,
    /// The newest sequence number, from a source that is read later. Equal to `first` if the two
    /// sources hold different entries under one sequence number.
    pub(super) second: SeqNo,
}

/// Between how many entries `find_contradiction` tells of its progress.
const TOLD_ENTRIES: u64 = 4096;

/// Merges all entries of `tables` (level and table) and returns the first contradiction. Calls
/// `passed` with the number of entries that it has passed since the last call.
pub(super) fn find_contradiction(tables: Vec<(u8, Arc<Table>)>, passed: &dyn Fn(u64)) -> Result<Option<Contradiction>> {
    let version = Version::default().edited(&[], tables);
    let mut entries = version.cursor(0, std::iter::empty(), ReadFlags::UNFILTERED, None);
    // The first source that holds the newest version of the current key, that version's number, and
    // the last entry seen. Later entries of a key are never newer.
    let mut newest = (0, 0);
    let mut last = LastEntry { key: Vec::new(), seqno: 0, kind: ValueKind::Put, value: Vec::new() };
    let mut count = 0;
    entries.seek_to_first()?;
    while entries.valid() {
        count += 1;
        if count % TOLD_ENTRIES == 0 {
            passed(TOLD_ENTRIES);
        }
        let (key, seqno, kind, source) = (entries.key(), entries.seqno(), entries.kind(), entries.source());
        let is_same_key = last.seqno > 0 && last.key == key;
        if is_same_key && last.seqno == seqno {
            if !last.agrees_with(kind, entries.value()) {
                return Ok(Some(Contradiction { key: key.to_vec(), first: seqno, second: seqno }));
            }
            if seqno == newest.1 {
                newest.0 = newest.0.min(source);
            }
        } else {
            if is_same_key && source < newest.0 {
                return Ok(Some(Contradiction { key: key.to_vec(), first: seqno, second: newest.1 }));
            }
            if !is_same_key {
                newest = (source, seqno);
            }
            last.set(key, seqno, kind, entries.value());
        }
        entries.next()?;
    }
    Ok(None)
}

/// The last entry that the merge has passed.
struct LastEntry {
    key: Vec<u8>,
    /// 0 before the first entry: no entry has it.
    seqno: SeqNo,
    kind: ValueKind,
    value: Vec<u8>,
}

impl LastEntry {
    fn set(&mut self, key: &[u8], seqno: SeqNo, kind: ValueKind, value: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.value.clear();
        self.value.extend_from_slice(value);
        (self.seqno, self.kind) = (seqno, kind);
    }

    /// Whether another source may hold such an entry under the same key and number. Of three
    /// entries that contradict each other, those that are neighbours decide; sources that hold the
    /// same entry come in any order.
    fn agrees_with(&self, kind: ValueKind, value: &[u8]) -> bool {
        // A compaction in stages may have combined an operand that its input still holds.
        let is_operand = self.kind == ValueKind::Merge || kind == ValueKind::Merge;
        // It may also have turned a value that had expired into a delete; or a later compaction
        // has, of the input that stayed.
        let expires = |kind: ValueKind| kind.whole() == ValueKind::ExpiringPut;
        let is_expired =
            expires(self.kind) && kind == ValueKind::Delete || self.kind == ValueKind::Delete && expires(kind);
        // Or moved a value to another file: what is in the files is not compared here.
        let is_moved = self.kind.whole() == kind.whole() && (self.kind.is_separate() || kind.is_separate());
        is_operand || is_expired || is_moved || self.kind == kind && self.value == value
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use super::*;
    use crate::filter::FilterPolicy;
    use crate::sorted::table::{TableBuilder, TableContext, TableFilters, TableOptions};
    use crate::tree::options::Compression;
    use crate::vfs::{FileSystem, SimFileSystem};

    const DIR: &str = "/store";

    /// The first contradiction among tables of one keyspace, each given as its level and its
    /// entries. The value of key "z" differs between tables; all other values are equal. Key "x" is
    /// a put with a deadline in tables of even numbers, counted from 1, and deleted in the others.
    fn contradiction(tables: &[(u8, &[(&str, u64)])]) -> Option<Contradiction> {
        let fs = SimFileSystem::new();
        FileSystem::create_dir(&fs, Path::new(DIR)).unwrap();
        let context = Arc::new(TableContext::new(Arc::new(fs.clone()), Path::new(DIR), 0, 100));
        let number = Cell::new(0);
        let build = |entries: &[(&str, u64)]| {
            number.set(number.get() + 1);
            let options = TableOptions {
                filters: TableFilters::of_points(FilterPolicy::DEFAULT),
                compression: Compression::None,
                block_size: 4096,
                seed: 7,
                keyspace: 0,
            };
            let mut builder = TableBuilder::new(&fs, Path::new(DIR), number.get(), options).unwrap();
            for (key, seqno) in entries {
                let value = if *key == "z" { number.get() } else { 0 };
                let (kind, value) = match (*key, number.get() % 2) {
                    ("x", 0) => (ValueKind::ExpiringPut, &value.to_le_bytes()[..]),
                    ("x", _) => (ValueKind::Delete, &[][..]),
                    _ => (ValueKind::Put, &value.to_le_bytes()[..]),
                };
                builder.add(key.as_bytes(), *seqno, kind, value).unwrap();
            }
            Arc::new(Table::new(Arc::clone(&context), builder.finish().unwrap()))
        };
        find_contradiction(tables.iter().map(|(level, entries)| (*level, build(entries))).collect(), &|_| {}).unwrap()
    }

    #[test]
    fn tables_that_are_read_first_must_be_newer() {
        let good: &[(u8, &[(&str, u64)])] = &[
            (0, &[("a", 9), ("b", 8)]),
            (0, &[("a", 5), ("a", 4)]),
            (1, &[("a", 3), ("c", 7)]),
            (1, &[("d", 1)]),
            (2, &[("a", 1), ("c", 2)]),
        ];
        assert_eq!(contradiction(good), None);
        let found = |key: &str, first, second| Some(Contradiction { key: key.into(), first, second });
        assert_eq!(contradiction(&[(1, &[("a", 3)]), (2, &[("a", 4)])]), found("a", 3, 4));
        assert_eq!(contradiction(&[(1, &[("a", 3), ("a", 1)]), (2, &[("a", 4)])]), found("a", 3, 4));
        assert_eq!(contradiction(&[(1, &[("z", 3)]), (6, &[("z", 3)])]), found("z", 3, 3));
        // During a compaction, levels below hold entries of the levels above, and older versions
        // that these hide.
        assert_eq!(contradiction(&[(1, &[("a", 3)]), (6, &[("a", 3)])]), None);
        assert_eq!(contradiction(&[(0, &[("a", 9)]), (1, &[("a", 3)]), (6, &[("a", 9)])]), None);
        assert_eq!(contradiction(&[(0, &[("a", 20)]), (0, &[("a", 3)]), (6, &[("a", 9), ("a", 3)])]), None);
        assert_eq!(contradiction(&[(0, &[("a", 20), ("a", 3)]), (6, &[("a", 9), ("a", 3)])]), None);
        assert_eq!(contradiction(&[(0, &[("b", 9)]), (1, &[("a", 3)]), (6, &[("a", 9)])]), found("a", 3, 9));
        assert_eq!(contradiction(&[(0, &[("a", 9), ("b", 1)]), (0, &[("b", 2), ("c", 3)])]), found("b", 1, 2));
        // Compactions turn what has expired into a delete, in one of two tables first.
        assert_eq!(contradiction(&[(0, &[("x", 9)]), (1, &[("x", 9)]), (6, &[("x", 9)])]), None);
        assert_eq!(contradiction(&[(0, &[("y", 9)]), (1, &[("x", 9)]), (6, &[("x", 9)])]), None);
        assert_eq!(contradiction(&[(0, &[("x", 8)]), (1, &[("x", 9)])]), found("x", 8, 9));
    }
}
