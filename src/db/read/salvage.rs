//! [`SalvageIter`]: a scan that continues past damage.
//!
//! Each source is read past its damage (`crates/sorted/src/table/salvage.rs`) and tells which range
//! of keys that may affect. In such a range, a key may be missing or have an older value.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::db::Db;
use crate::db::keyspace::Keyspace;
use crate::db::parts::{Parts, ValueAndOperands};
use crate::db::range::KeyRange;
use crate::db::store::Store;
use crate::error::{Error, Result};
use crate::format::deadline::{Deadline, time_of};
use crate::format::filename::FileKind;
use crate::format::key::{MAX_SEQNO, SeqNo, Window, compare_entries};
use crate::format::span::KeySpan;
use crate::operator::{Answer, NamedOperator};
use crate::sorted::iter::{MergeCursor, Stamped};
use crate::sorted::memtable::MemtableCursor;
use crate::sorted::ranges::Covers;
use crate::sorted::table::{SalvageCursor, SalvageTable, Table};
use crate::sorted::values::ValueFiles;

/// A part of a table that a [`SalvageIter`] has skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedRange {
    /// The table's file; the store's directory if the operands of a key cannot be merged.
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
    /// Held so that no compaction removes their files and value files.
    _tables: Vec<Arc<Table>>,
    values: Arc<ValueFiles>,
    upper: Option<Vec<u8>>,
    visible: SeqNo,
    /// Ranges that are deleted.
    covers: Option<Arc<Covers>>,
    operator: Option<NamedOperator>,
    keyspace: Arc<str>,
    /// What has expired by then counts as deleted.
    now: Deadline,
    dir: PathBuf,
    missing: Vec<SkippedRange>,
    failed: bool,
    /// Whether operands are left apart.
    is_unmerged: bool,
    /// What [`next_parts`](SalvageIter::next_parts) lends.
    entry: SalvagedEntry,
}

/// An entry as it is found, with owned parts.
#[derive(Default)]
struct SalvagedEntry {
    key: Vec<u8>,
    deadline: Option<Deadline>,
    parts: ValueAndOperands,
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

impl Db {
    /// Iterates over the entries of a range of the default keyspace, skipping damaged blocks and
    /// tables; see [`Keyspace::salvage`].
    pub fn salvage(&self, range: impl KeyRange) -> Result<SalvageIter> {
        self.default_keyspace().salvage(range)
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
        let view = store.shape.view();
        let tree = view.tree(self.id).ok_or_else(|| Error::KeyspaceDropped(self.name.to_string()))?;
        let (operator, keyspace) = (tree.options.merge_operator.clone(), Arc::clone(&tree.name));
        let (visible, covers) = view.covers(tree, None, || view.visible(&store.sequence));
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
            let run = open_tables(store, tables, &mut missing)?;
            let runs = if level == 0 { run.into_iter().map(|table| vec![table]).collect() } else { vec![run] };
            let runs = runs.into_iter().filter(|run| !run.is_empty());
            sources.extend(runs.map(|run| SalvageInput::Tables(Box::new(SalvageCursor::new(run)))));
        }
        for source in &mut sources {
            source.cursor_mut().seek(span.lower.as_deref().unwrap_or_default(), MAX_SEQNO)?;
        }
        let now = store.clock.now();
        let dir = store.dir().to_owned();
        let tables = levels.into_iter().flatten().collect();
        Ok(SalvageIter {
            sources,
            _tables: tables,
            values: Arc::clone(store.tables.values()),
            upper: span.upper,
            visible,
            covers,
            operator,
            keyspace,
            now,
            dir,
            missing,
            failed: false,
            is_unmerged: false,
            entry: SalvagedEntry::default(),
        })
    }
}

/// Opens the tables whose files there are, and adds the others to `missing`.
fn open_tables(
    store: &Store,
    tables: &[Arc<Table>],
    missing: &mut Vec<SkippedRange>,
) -> Result<Vec<Arc<SalvageTable>>> {
    let mut opened = Vec::new();
    for meta in tables.iter().map(|table| table.meta()) {
        match SalvageTable::open(&store.tables, meta.number, Some(meta)) {
            Ok(table) => opened.push(Arc::new(table)),
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                missing.push(SkippedRange {
                    file: FileKind::Table(meta.number).path(store.dir()),
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
    Ok(opened)
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

    /// The next entry and what its value is made of, or `None` at the end. Combines no operands:
    /// those that cannot be combined are no damage here. Ends after an error.
    pub fn next_parts(&mut self) -> Result<Option<Parts<'_>>> {
        if self.failed {
            return Ok(None);
        }
        self.is_unmerged = true;
        let found = self.step().inspect_err(|_| self.failed = true)?;
        self.is_unmerged = false;
        let Some(found) = found else { return Ok(None) };
        self.entry = found;
        let SalvagedEntry { key, deadline, parts: (value, operands) } = &self.entry;
        Ok(Some(Parts { key, value: value.as_deref(), deadline: deadline.map(time_of), operands }))
    }

    /// Returns the next visible entry.
    fn step(&mut self) -> Result<Option<SalvagedEntry>> {
        loop {
            let first = first_of(&mut self.sources).map(|cursor| cursor.key());
            let Some(key) = first.filter(|key| self.upper.as_deref().is_none_or(|upper| *key < upper)) else {
                return Ok(None);
            };
            let key = key.to_vec();
            let cover = self.covers.as_ref().map_or(0, |covers| covers.cover(&key));
            let window = Window::above(cover, self.visible);
            let mut answer = Answer::new(&key, self.now, Some(&*self.values));
            let mut seen = Ok(());
            while let Some(cursor) = first_of(&mut self.sources).filter(|cursor| cursor.key() == key) {
                if seen.is_ok() && !answer.is_complete() && window.sees(cursor.seqno()) {
                    seen = answer.see(cursor.seqno(), cursor.kind(), cursor.value());
                }
                cursor.next()?;
            }
            let parts = seen.and_then(|()| match self.is_unmerged {
                true => Ok(answer.parts()),
                false => Ok((answer.value(self.operator.as_ref(), &self.keyspace)?, Vec::new())),
            });
            match parts {
                Ok((None, operands)) if operands.is_empty() => {}
                Ok(parts) => {
                    let deadline = answer.deadline();
                    return Ok(Some(SalvagedEntry { key, deadline, parts }));
                }
                // A version that cannot be read: older ones are not what the key had.
                Err(error) => self.missing.push(lost_key(&self.dir, &key, &error)),
            }
        }
    }
}

/// The source with the least key, and the newest version of it.
fn first_of(sources: &mut [SalvageInput]) -> Option<&mut dyn MergeCursor> {
    let valid = sources.iter_mut().filter(|source| source.cursor().valid());
    let first = valid.min_by(|a, b| {
        let (a, b) = (a.cursor(), b.cursor());
        compare_entries((a.key(), a.seqno()), (b.key(), b.seqno()))
    });
    first.map(SalvageInput::cursor_mut)
}

/// The part that is skipped when the value of a key cannot be read.
fn lost_key(dir: &Path, key: &[u8], error: &Error) -> SkippedRange {
    let (file, offset) = match error {
        Error::Corruption { file, offset, .. } => (file.clone(), *offset),
        _ => (dir.to_owned(), 0),
    };
    SkippedRange { file, offset, bytes: 0, from: Some(key.to_vec()), to: Some(key.to_vec()), why: error.to_string() }
}

impl Iterator for SalvageIter {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let step = self.step();
        self.failed = step.is_err();
        // Nothing is left apart here.
        step.map(|found| found.map(|SalvagedEntry { key, parts: (value, _), .. }| (key, value.unwrap_or_default())))
            .transpose()
    }
}
