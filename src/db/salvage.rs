//! [`SalvageIter`]: a scan that continues past damage.

use std::path::PathBuf;
use std::sync::Arc;

use super::keyspace::Keyspace;
use super::range::KeyRange;
use crate::error::{Error, Result};
use crate::format::filename::FileKind;
use crate::format::key::{MAX_SEQNO, SeqNo, ValueKind, compare_entries};
use crate::format::span::KeySpan;
use crate::sorted::iter::{MergeCursor, Stamped};
use crate::sorted::table::{SalvageCursor, SalvageTable, Table};
use crate::write::memtable::MemtableCursor;

/// A part of a table that a [`SalvageIter`] has skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedRange {
    /// The table's file.
    pub file: PathBuf,
    /// Offset and length of the part in the file.
    pub offset: u64,
    /// See `offset`.
    pub bytes: u64,
    /// First and last key that may be affected: missing, or with an older value. `None` is an open
    /// end.
    pub from: Option<Vec<u8>>,
    /// See `from`.
    pub to: Option<Vec<u8>>,
    /// The damage.
    pub why: String,
}

/// Iterates in order over the readable entries of a range; see [`Keyspace::salvage`].
pub struct SalvageIter {
    sources: Vec<SalvageInput>,
    /// Held so that no compaction removes their files.
    _tables: Vec<Arc<Table>>,
    upper: Option<Vec<u8>>,
    visible: SeqNo,
    /// The last key examined.
    last: Option<Vec<u8>>,
    dir: PathBuf,
    missing: Vec<SkippedRange>,
    failed: bool,
}

enum SalvageInput {
    Memory(MemtableCursor),
    Tables(Box<SalvageCursor>),
}

impl SalvageInput {
    fn cursor(&self) -> &dyn MergeCursor {
        match self {
            SalvageInput::Memory(cursor) => cursor,
            SalvageInput::Tables(cursor) => &**cursor,
        }
    }

    fn cursor_mut(&mut self) -> &mut dyn MergeCursor {
        match self {
            SalvageInput::Memory(cursor) => cursor,
            SalvageInput::Tables(cursor) => &mut **cursor,
        }
    }
}

impl std::fmt::Debug for SalvageIter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SalvageIter").finish_non_exhaustive()
    }
}

impl Keyspace {
    /// Iterates over the entries of a range as they are now, skipping damaged blocks and tables.
    /// For a store that opens but cannot be repaired yet, because it is in use or its disk must not
    /// be written. At the end, [`SalvageIter::skipped`] lists what was skipped.
    ///
    /// It goes forward only, bypasses the cache, and uses no filter. Ordinary scans end with an
    /// error at the first damaged block.
    pub fn salvage(&self, range: impl KeyRange) -> Result<SalvageIter> {
        let store = self.store();
        store.gate.check_open()?;
        let span = KeySpan::of(range.into_bounds());
        let view = store.view.load();
        let tree = view.tree(self.id).ok_or_else(|| Error::KeyspaceDropped(self.name.to_string()))?;
        let visible = store.sequence.visible();
        let mut sources: Vec<SalvageInput> =
            view.memtables().map(|memtable| SalvageInput::Memory(memtable.cursor(self.id))).collect();
        let is_within = |table: &&Arc<Table>| table.meta().overlaps(&span);
        let levels = tree.version.levels().iter();
        let levels: Vec<Vec<Arc<Table>>> =
            levels.map(|level| level.tables().iter().filter(is_within).cloned().collect()).collect();
        // From here on only the tables are kept, and with them their files, not the view.
        drop(view);
        let mut missing = Vec::new();
        for (level, tables) in levels.iter().enumerate() {
            let mut run = Vec::new();
            for meta in tables.iter().map(|table| table.meta()) {
                let bounds = Some((meta.smallest.to_vec(), meta.largest.to_vec()));
                match SalvageTable::open(&store.tables, meta.number, bounds) {
                    Ok(table) => run.push(Arc::new(table)),
                    Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                        missing.push(SkippedRange {
                            file: FileKind::Table(meta.number).path(store.path()),
                            offset: 0,
                            bytes: meta.size,
                            from: Some(meta.smallest.to_vec()),
                            to: Some(meta.largest.to_vec()),
                            why: "there is no such file".into(),
                        });
                    }
                    Err(error) => return Err(error),
                }
            }
            if level == 0 {
                sources.extend(
                    run.into_iter().map(|table| SalvageInput::Tables(Box::new(SalvageCursor::new(vec![table])))),
                );
            } else if !run.is_empty() {
                sources.push(SalvageInput::Tables(Box::new(SalvageCursor::new(run))));
            }
        }
        for source in &mut sources {
            source.cursor_mut().seek(span.lower.as_deref().unwrap_or_default(), MAX_SEQNO)?;
        }
        let dir = store.path().to_owned();
        let tables = levels.into_iter().flatten().collect();
        Ok(SalvageIter {
            sources,
            _tables: tables,
            upper: span.upper,
            visible,
            last: None,
            dir,
            missing,
            failed: false,
        })
    }
}

impl SalvageIter {
    /// The parts skipped so far: all of them, once the iterator has ended.
    pub fn skipped(&self) -> Vec<SkippedRange> {
        let tables = self.sources.iter().filter_map(|source| match source {
            SalvageInput::Memory(_) => None,
            SalvageInput::Tables(cursor) => Some(cursor),
        });
        let holes = tables.flat_map(|cursor| cursor.holes());
        let skipped = holes.map(|(number, hole)| SkippedRange {
            file: FileKind::Table(*number).path(&self.dir),
            offset: hole.offset,
            bytes: hole.bytes,
            from: hole.from.clone(),
            to: hole.to.clone(),
            why: hole.rule.clone(),
        });
        skipped.chain(self.missing.iter().cloned()).collect()
    }

    /// Returns the next visible entry.
    fn step(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        loop {
            let valid = self.sources.iter_mut().filter(|source| source.cursor().valid());
            let first = valid.min_by(|a, b| {
                let (a, b) = (a.cursor(), b.cursor());
                compare_entries((a.key(), a.seqno()), (b.key(), b.seqno()))
            });
            let Some(source) = first else { return Ok(None) };
            let cursor = source.cursor_mut();
            if self.upper.as_ref().is_some_and(|upper| cursor.key() >= upper.as_slice()) {
                return Ok(None);
            }
            let mut found = None;
            if cursor.seqno() <= self.visible && self.last.as_deref() != Some(cursor.key()) {
                self.last = Some(cursor.key().to_vec());
                if cursor.kind() == ValueKind::Put {
                    found = Some((cursor.key().to_vec(), cursor.value().to_vec()));
                }
            }
            cursor.next()?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }
}

impl Iterator for SalvageIter {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let step = self.step();
        self.failed = step.is_err();
        step.transpose()
    }
}
