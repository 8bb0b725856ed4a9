//! [`SalvageIter`]: a scan that continues past damage.
//!
//! Each source is read past its damage (`sorted/table/salvage.rs`) and tells which range of keys
//! that may affect. In such a range, a key may be missing or have an older value.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::keyspace::Keyspace;
use super::parts::{Parts, ValueAndOperands};
use super::range::KeyRange;
use crate::error::{Error, Result};
use crate::format::deadline::{Deadline, split_expiring, time_of};
use crate::format::filename::FileKind;
use crate::format::key::{MAX_SEQNO, SeqNo, ValueKind, compare_entries};
use crate::format::pointer::split_separate;
use crate::format::span::KeySpan;
use crate::operator::{NamedOperator, OperandChain, Resolved};
use crate::sorted::iter::{MergeCursor, Stamped};
use crate::sorted::ranges::Covers;
use crate::sorted::table::{SalvageCursor, SalvageTable, Table};
use crate::sorted::values::ValueFiles;
use crate::write::memtable::MemtableCursor;

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
    /// The last key examined, if there is one.
    last: Vec<u8>,
    has_last: bool,
    /// Its versions, if the newest is an operand.
    chain: OperandChain,
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

impl SalvagedEntry {
    fn put(key: &[u8], deadline: Option<Deadline>, value: Vec<u8>) -> SalvagedEntry {
        SalvagedEntry { key: key.to_vec(), deadline, parts: (Some(value), Vec::new()) }
    }
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
            let mut run = Vec::new();
            for meta in tables.iter().map(|table| table.meta()) {
                match SalvageTable::open(&store.tables, meta.number, Some(meta)) {
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
        let now = store.clock.now();
        let dir = store.path().to_owned();
        let tables = levels.into_iter().flatten().collect();
        Ok(SalvageIter {
            sources,
            _tables: tables,
            values: Arc::clone(store.tables.values()),
            upper: span.upper,
            visible,
            covers,
            last: Vec::new(),
            has_last: false,
            chain: OperandChain::default(),
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

    /// The entry of the last key from its chain, which is not empty.
    fn resolve(&mut self, chain: &OperandChain) -> Option<SalvagedEntry> {
        if self.is_unmerged {
            return Some(SalvagedEntry { key: self.last.clone(), deadline: chain.deadline(), parts: chain.parts() });
        }
        match chain.resolve(self.operator.as_ref(), &self.keyspace, &self.last, true) {
            Ok(Resolved::Value(value) | Resolved::Operand(value)) => {
                Some(SalvagedEntry::put(&self.last, chain.deadline(), value))
            }
            Err(error) => {
                self.missing.push(lost_key(&self.dir, &self.last, &error));
                None
            }
        }
    }

    /// Returns the next visible entry.
    fn step(&mut self) -> Result<Option<SalvagedEntry>> {
        loop {
            let valid = self.sources.iter_mut().filter(|source| source.cursor().valid());
            let first = valid.min_by(|a, b| {
                let (a, b) = (a.cursor(), b.cursor());
                compare_entries((a.key(), a.seqno()), (b.key(), b.seqno()))
            });
            let cursor = first.map(SalvageInput::cursor_mut);
            let upper = self.upper.as_deref();
            let cursor = cursor.filter(|cursor| upper.is_none_or(|upper| cursor.key() < upper));
            let key = cursor.as_ref().map(|cursor| cursor.key());
            if !self.chain.is_empty() && key != Some(&*self.last) {
                // The key has no further version.
                let chain = std::mem::take(&mut self.chain);
                if let Some(entry) = self.resolve(&chain) {
                    return Ok(Some(entry));
                }
                continue;
            }
            let Some(cursor) = cursor else { return Ok(None) };
            let is_new_key = !self.has_last || self.last != cursor.key();
            let mut found = None;
            let cover = self.covers.as_ref().map_or(0, |covers| covers.cover(cursor.key()));
            if (cover..=self.visible).contains(&cursor.seqno()) && (is_new_key || !self.chain.is_empty()) {
                if is_new_key {
                    (self.has_last, self.last) = (true, cursor.key().to_vec());
                }
                let kind = cursor.kind();
                let has_deadline = matches!(kind, ValueKind::ExpiringPut | ValueKind::SeparateExpiringPut);
                let deadline = has_deadline.then(|| split_expiring(cursor.value()).0);
                let is_past = deadline.is_some_and(|deadline| deadline <= self.now);
                let separate = split_separate(kind, cursor.value());
                let value = separate.map(|(prefix, pointer)| (prefix.len(), self.values.read(cursor.key(), pointer)));
                match (kind, value) {
                    _ if is_past => {
                        // Like a delete; what was merged into it stays.
                        if !self.chain.is_empty() {
                            self.chain.push(cursor.seqno(), ValueKind::Delete, &[])?;
                        }
                    }
                    (_, Some((prefix, Ok(value)))) if is_new_key => {
                        found = Some(SalvagedEntry::put(&self.last, deadline, value.without(prefix).bytes().to_vec()));
                    }
                    (_, Some((_, Ok(value)))) => self.chain.push(cursor.seqno(), kind.whole(), value.bytes())?,
                    (_, Some((_, Err(error)))) => {
                        // Older versions are not what the key had.
                        self.chain = OperandChain::default();
                        self.missing.push(lost_key(&self.dir, &self.last, &error));
                    }
                    (ValueKind::Put, None) if is_new_key => {
                        found = Some(SalvagedEntry::put(&self.last, None, cursor.value().to_vec()));
                    }
                    (ValueKind::Delete, None) if is_new_key => {}
                    (ValueKind::ExpiringPut, None) if is_new_key => {
                        found =
                            Some(SalvagedEntry::put(&self.last, deadline, split_expiring(cursor.value()).1.to_vec()));
                    }
                    (kind, None) => self.chain.push(cursor.seqno(), kind, cursor.value())?,
                }
            }
            cursor.next()?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }
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
