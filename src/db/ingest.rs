//! Ingest: adds tables that an [`SstWriter`](crate::SstWriter) has written to a keyspace.
//!
//! An ingest is one write. Its record in the log has its numbers and the edits that add the tables:
//! one for range deletes, if it has some, and one for entries. The manifest has both as one edit,
//! with levels, right after it. What the order of the steps gives:
//!
//! 1. The files have names in the store, durably, before the record has. Without the record, they
//!    are strays, which opening removes.
//! 2. When the record is appended, no memtable holds a key that a file may have, or that it
//!    deletes: reads find a key in memtables first, and a range is forgotten once no table has
//!    what it deletes. Therefore no log that recovery replays has such a key before the record. If
//!    a file has range deletes or operands, no memtable has older ranges: a version with a range
//!    has all before it, and a compaction that combines an operand with a value knows every range
//!    between the two.
//! 3. The log is durable up to the record before the edit is written: nothing older can be lost
//!    while the tables stay.
//! 4. Nothing is written between the record and the edit: the commit lock is held for two syncs.
//!    Recovery applies a record whose edit is missing. The thread that ingests has waited for its
//!    turn to sync before it took the lock.
//!
//! Most of a memtable is searched without a lock. Then writers wait (`Stillness`), the rest is
//! searched and flushed, and only then is the lock taken. A table goes to the lowest level that is
//! free (`level_for`). One in level 0 is merged with no older run while memtables from before the
//! ingest wait for their flush, which comes between the two (`Picker::flushed`).
//!
//! The view with the tables is published before the number. A view without them is for reads up to
//! that number only (`Horizon`).

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

mod source;

use super::Db;
use super::keyspace::Keyspace;
use super::range::KeyRange;
use super::read::tree_of;
use super::shape::live::Registered;
use super::shape::view::{Horizon, ReadView, Tree};
use super::store::Store;
use super::work::background::Waiting;
use super::write::commit::{Commit, Encoded, Logging};
use super::write::room::Stillness;
use super::write::stalls::Cause;
use crate::db::stats::counters::Count;
use crate::error::{Error, Result};
use crate::filter::FilterState;
use crate::format::deadline::NEVER;
use crate::format::filename::FileKind;
use crate::format::header::features;
use crate::format::key::{MAX_SEQNO, SeqNo};
use crate::format::span::KeySpan;
use crate::log::wal;
use crate::options::KeyspaceOptions;
use crate::report::event::Event;
use crate::sorted::iter::InternalCursor;
use crate::sorted::memtable::{Memtable, WrittenEntry};
use crate::sorted::range_table::RangeTable;
use crate::sorted::ranges::{Piece, RangeSource};
use crate::sorted::table::{Ingested, Table, TableMeta};
use crate::sst::{SstFormat, SstWriter};
use crate::tree::compaction::task::Task;
use crate::tree::manifest::{RANGE_LEVEL, VersionEdit, decode_definition, put_ingest};
use crate::tree::version::{LEVELS, Version};

/// How files come into a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IngestMode {
    /// As a hard link: the file stays where it is, and must not be changed afterwards, nor any copy
    /// of it by `cp --link`. A file that cannot be linked is copied. If a symbolic link is given,
    /// the file to which it points is linked.
    #[default]
    Link,
    /// As a copy.
    Copy,
    /// As a link or a copy, after which the file is removed. If a symbolic link is given, that is
    /// removed; the file to which it points stays, and must not be changed.
    Move,
}

/// How files are ingested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestOptions {
    /// How they come into the store. Default: [`IngestMode::Link`].
    pub mode: IngestMode,
}

impl IngestOptions {
    /// The defaults.
    pub const fn new() -> IngestOptions {
        IngestOptions { mode: IngestMode::Link }
    }

    /// Sets how the files come into the store.
    pub const fn mode(mut self, mode: IngestMode) -> Self {
        self.mode = mode;
        self
    }
}

/// What an ingest did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestInfo {
    /// Sequence number of all entries. That of the range deletes, if there are entries too, is the
    /// one before it.
    pub seqno: SeqNo,
    /// Number of entries, tombstones included.
    pub entries: u64,
    /// Number of range deletes.
    pub range_deletes: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Number of files that were copied.
    pub copied: usize,
    /// Files that were to be moved and could not be removed.
    pub left: Vec<PathBuf>,
}

/// A file with a name in the store.
struct NewTable {
    source: PathBuf,
    meta: TableMeta,
    is_copy: bool,
    /// The range deletes, if the file has these and no entries.
    ranges: Option<RangeTable>,
    /// The keyspace for which it was written: its id, and its name if the file has that.
    keyspace: (u32, Option<String>),
    prefix_fits: Box<dyn Fn(&KeyspaceOptions) -> bool>,
    /// The merge operator that the entries need.
    operator: Option<String>,
}

impl NewTable {
    /// The level of the table in the log.
    fn logged_level(&self) -> u8 {
        if self.ranges.is_some() { RANGE_LEVEL } else { 0 }
    }

    /// The table as the store has it, with this sequence number.
    fn number(&mut self, seqno: SeqNo) -> TableMeta {
        self.meta.ingested = self.meta.ingested.map(|of| Ingested { seqno, ..of });
        (self.meta.smallest_seqno, self.meta.largest_seqno) = (seqno, seqno);
        self.meta.clone()
    }

    /// Whether a source has a key in the range of the table's keys or, if it has range deletes, in
    /// one of these.
    fn meets(&self, source: &mut impl InternalCursor) -> Result<bool> {
        let Some(ranges) = &self.ranges else {
            source.seek(&self.meta.smallest, MAX_SEQNO)?;
            return Ok(source.valid() && source.key() <= &*self.meta.largest);
        };
        for layer in ranges.layers() {
            source.seek(&self.meta.smallest, MAX_SEQNO)?;
            while source.valid() {
                match layer.piece(source.key()) {
                    Piece { seqno: 0, to: Some(to), .. } => source.seek(to, MAX_SEQNO)?,
                    Piece { seqno: 0, to: None, .. } => break,
                    _ => return Ok(true),
                }
            }
        }
        Ok(false)
    }

    /// Whether the table's range of keys or, if it has range deletes, one of these has a key.
    fn has_key(&self, key: &[u8]) -> bool {
        match &self.ranges {
            None => *self.meta.smallest <= *key && *key <= *self.meta.largest,
            Some(ranges) => ranges.layers().iter().any(|layer| layer.piece(key).seqno > 0),
        }
    }

    /// The rule that keeps the table out of a keyspace.
    fn misfit(&self, tree: &Tree) -> Option<String> {
        let options = &tree.options;
        if self.keyspace.0 != tree.id {
            return Some(match &self.keyspace.1 {
                // Ids are not used again.
                Some(name) if **name == *tree.name => {
                    format!("it was written for a keyspace {name:?} that has been dropped; write the file anew")
                }
                Some(name) => format!("it was written for the keyspace {name:?}"),
                None => "it was written for another keyspace".into(),
            });
        }
        if !(self.prefix_fits)(options) {
            return Some("its filter was written for another prefix extractor; write the file anew".into());
        }
        let known = options.merge_operator_name();
        self.operator.as_deref().filter(|operator| known != Some(operator)).map(|operator| {
            let known = known.map_or("none".into(), |known| format!("{known:?}"));
            format!("it has operands of the merge operator {operator:?}, and that of the keyspace is {known}")
        })
    }
}

fn unfit(source: &Path, rule: impl Into<String>) -> Error {
    Error::Unfit { file: source.to_owned(), rule: rule.into() }
}

/// The error, if it is about the file's new name, under the name by which the caller knows it.
fn named_as_given(error: Error, path: &Path, source: &Path) -> Error {
    match error {
        Error::Corruption { file, offset, rule } if file == path => Error::corruption(source, offset, rule),
        Error::Unsupported { file, what, found, known } if file == path => {
            Error::Unsupported { file: source.to_owned(), what, found, known }
        }
        error => error,
    }
}

/// The memtables that were searched for keys of an ingest. Each part of one is searched once,
/// without a lock if it was there before the commit lock was taken.
#[derive(Default)]
struct Searched {
    memtables: Vec<SearchedMemtable>,
}

struct SearchedMemtable {
    memtable: Weak<Memtable>,
    /// What comes after this position has not been searched.
    mark: u32,
    has_keys: bool,
}

impl Searched {
    /// Whether a memtable must be in tables before these are ingested.
    fn must_be_flushed(&mut self, memtable: &Arc<Memtable>, tree: &Tree, tables: &[NewTable]) -> Result<bool> {
        // Keyspaces without a log are of one moment after a crash.
        if !tree.options.wal && !memtable.is_empty() {
            return Ok(true);
        }
        // A compaction combines operands with what is beneath them, of which it leaves out only
        // what durable ranges delete.
        let needs_ranges = tables.iter().any(|table| table.ranges.is_some() || table.operator.is_some());
        Ok(needs_ranges && memtable.range_count(tree.id) > 0 || self.has_keys(memtable, tree.id, tables)?)
    }

    /// Whether a memtable holds an entry of a keyspace that one of the tables
    /// [meets](NewTable::meets).
    fn has_keys(&mut self, memtable: &Arc<Memtable>, keyspace: u32, tables: &[NewTable]) -> Result<bool> {
        // Before the search, which finds all that precedes it.
        let mark = memtable.end();
        let known = self.memtables.iter_mut().find(|known| known.memtable.as_ptr() == Arc::as_ptr(memtable));
        if let Some(known) = known {
            let is_met = |entry: WrittenEntry<'_>| {
                let is_entry = entry.keyspace == keyspace && entry.range_end.is_none();
                is_entry && tables.iter().any(|table| table.has_key(entry.key))
            };
            known.has_keys = known.has_keys || memtable.entries_newer(known.mark, 0).any(is_met);
            known.mark = mark;
            return Ok(known.has_keys);
        }
        let mut has_keys = false;
        if !memtable.is_empty() {
            let mut cursor = memtable.cursor(keyspace);
            for table in tables {
                has_keys = has_keys || table.meets(&mut cursor)?;
            }
        }
        self.memtables.push(SearchedMemtable { memtable: Arc::downgrade(memtable), mark, has_keys });
        Ok(has_keys)
    }
}

/// The lowest level for a table of entries: no table in it or above it overlaps, nor does a running
/// task that reads or writes it or a level above it.
///
/// Tables that ranges of the same ingest cover count, too. They stay in the version until the
/// ingest's number is published and no snapshot needs them, and reads go from new to old: in such a
/// table, or below it, the new entries would be met after those that they replace. Once
/// `Store::tidy_ranges` has removed the covered tables, compactions take the new ones down.
fn level_for(meta: &TableMeta, version: &Version, running: &[Task]) -> u8 {
    let overlaps = |(number, level): (usize, &[Arc<Table>])| match number {
        0 => {
            level.iter().any(|table| *table.meta().smallest <= *meta.largest && *meta.smallest <= *table.meta().largest)
        }
        _ => {
            let at = level.partition_point(|table| table.meta().largest < meta.smallest);
            level.get(at).is_some_and(|table| table.meta().smallest <= meta.largest)
        }
    };
    let levels = version.levels().iter().map(|level| level.tables()).enumerate();
    let free = levels.take_while(|(number, level)| !overlaps((*number, level))).count();
    let tasks = running.iter().filter(|task| meta.overlaps(&task.keys)).map(|task| task.start_level);
    let below_tasks = tasks.min().map_or(LEVELS, usize::from);
    u8::try_from(free.min(below_tasks).saturating_sub(1)).unwrap_or(0)
}

/// The tables of an ingest with their numbers, and the record that the log gets of them.
struct NumberedTables {
    /// With the levels that the log names.
    tables: Vec<(u8, TableMeta)>,
    payload: Vec<u8>,
    features: u32,
    count: u32,
}

impl NumberedTables {
    /// Numbers the tables from `first` on. Range deletes come before the entries: they delete
    /// nothing of the same ingest.
    fn of(keyspace: u32, new: &mut [NewTable], first: SeqNo) -> Result<NumberedTables> {
        let (mut tables, mut payload, mut features, mut count) = (Vec::new(), Vec::new(), features::INGEST, 0);
        for level in [RANGE_LEVEL, 0] {
            let seqno = first + u64::from(count);
            let of_level = new.iter_mut().filter(|table| table.logged_level() == level);
            let metas: Vec<TableMeta> = of_level.map(|table| table.number(seqno)).collect();
            if !metas.is_empty() {
                put_ingest(&mut payload, keyspace, level, &metas)?;
                features |= if level == RANGE_LEVEL { features::RANGE_DELETE } else { 0 };
                count += 1;
                tables.extend(metas.into_iter().map(|meta| (level, meta)));
            }
        }
        if first + u64::from(count) - 1 > MAX_SEQNO {
            return Err(Error::invalid("the store has used up its sequence numbers"));
        }
        Ok(NumberedTables { tables, payload, features, count })
    }
}

impl Store {
    /// Adds files to a keyspace.
    fn ingest(
        self: &Arc<Self>,
        keyspace: u32,
        name: &str,
        files: &[PathBuf],
        options: IngestOptions,
    ) -> Result<IngestInfo> {
        self.gate.check_writable()?;
        tree_of(&self.shape.view(), keyspace, name)?;
        if files.is_empty() {
            return Err(Error::invalid("there is no file to ingest"));
        }
        let mut tables = Vec::new();
        let mut is_recorded = false;
        let done = self.take_all(keyspace, name, files, options, &mut tables).and_then(|()| {
            let searched = self.flush_keys_of(keyspace, name, &tables)?;
            self.commit_ingest(keyspace, name, &mut tables, searched, &mut is_recorded)
        });
        match done {
            Ok(seqno) => Ok(self.finish_ingest(name, &tables, options, seqno)),
            Err(error) => {
                // A log that may have the record makes the files part of the store.
                if !is_recorded && self.gate.check_open().is_ok() {
                    tables.iter().for_each(|table| self.tables.remove_file(table.meta.number));
                }
                Err(error)
            }
        }
    }

    /// Begins what an ingest allows, tells of it, and removes the caller's files if they are to
    /// move.
    fn finish_ingest(
        self: &Arc<Self>,
        name: &str,
        tables: &[NewTable],
        options: IngestOptions,
        seqno: SeqNo,
    ) -> IngestInfo {
        let ranges = tables.iter().filter(|table| table.ranges.is_some());
        let range_deletes = ranges.map(|table| table.meta.entries).sum();
        if range_deletes > 0 {
            // What fails here is tried again after the next flush or compaction.
            let _ = self.tidy_ranges();
        }
        self.schedule();
        let bytes = tables.iter().map(|table| table.meta.size).sum();
        self.events().send(|| Event::Ingested { keyspace: name.to_owned(), seqno, tables: tables.len(), bytes });
        IngestInfo {
            seqno,
            entries: tables.iter().map(|table| table.meta.entries).sum::<u64>() - range_deletes,
            range_deletes,
            bytes,
            copied: tables.iter().filter(|table| table.is_copy).count(),
            left: if options.mode == IngestMode::Move { self.remove_sources(tables) } else { Vec::new() },
        }
    }

    /// Gives the files names in the store, checks all of them, and sorts them by key.
    fn take_all(
        &self,
        keyspace: u32,
        name: &str,
        files: &[PathBuf],
        options: IngestOptions,
        tables: &mut Vec<NewTable>,
    ) -> Result<()> {
        // Closing waits until no file is created.
        let _job = self.workers.begin_job()?;
        for source in files {
            let number = self.shape.catalog().new_file_number();
            let taken = self.take(source, number, options.mode).and_then(|is_copy| {
                self.check_table(source, number, is_copy).map_err(|error| {
                    self.tables.remove_file(number);
                    named_as_given(error, &FileKind::Table(number).path(self.dir()), source)
                })
            })?;
            tables.push(taken);
            self.check_fit(tree_of(&self.shape.view(), keyspace, name)?, tables)?;
        }
        tables.sort_by(|a, b| a.meta.smallest.cmp(&b.meta.smallest));
        let entries = || tables.iter().filter(|table| table.ranges.is_none());
        let mut pairs = entries().zip(entries().skip(1));
        if let Some((a, b)) = pairs.find(|(a, b)| b.meta.smallest <= a.meta.largest) {
            let rule = format!("its keys overlap with those of {}: ingest one after the other", a.source.display());
            return Err(unfit(&b.source, rule));
        }
        self.sync_dir()
    }

    /// Reads and checks a file that has the name of table `number`.
    fn check_table(&self, source: &Path, number: u64, is_copy: bool) -> Result<NewTable> {
        let alone = Arc::new(Table::alone(Arc::clone(&self.tables), number, false)?);
        let checksum = alone.verify_content(self.options.paranoid)?;
        let properties = alone.properties()?;
        if alone.footer()?.seed != self.seed {
            let rule = "its filter has another hash seed: it was written for another store; write it by this \
                        store's SstFormat";
            return Err(unfit(source, rule));
        }
        if !properties.references.is_empty() {
            return Err(unfit(source, "it has values in value files"));
        }
        let ranges = match alone.holds_ranges() {
            true => Some(RangeTable::load(Arc::clone(&alone))?),
            false => None,
        };
        let ends = ranges.iter().flat_map(RangeTable::fragments).map(|fragment| fragment.end);
        // No end comes after all others.
        let range_end = ends.reduce(|a, b| a.zip(b).map(|(a, b)| a.max(b))).flatten();
        let prefix = match alone.filter_state()? {
            FilterState::Usable(info) => Some(info.prefixes),
            _ => None,
        };
        let (name, options) = decode_definition(&alone.origin()?.keyspace).ok().unzip();
        let operator = match properties.operands {
            0 => None,
            _ => {
                let stated = options.and_then(|options| options.merge_operator_name().map(str::to_owned));
                Some(stated.ok_or_else(|| unfit(source, "it has operands, and names no merge operator"))?)
            }
        };
        let range_end = range_end.map(|end| end.as_ref().into());
        let meta = TableMeta { checksum, range_end, ..alone.meta().clone() };
        // What no manifest may say is damage, whatever the checksums are.
        let level = if ranges.is_some() { RANGE_LEVEL } else { 0 };
        let edit = VersionEdit { added: vec![(0, level, meta.clone())], ..VersionEdit::default() };
        VersionEdit::decode(&edit.encode()).map_err(|rule| Error::corruption(source, 0, rule))?;
        let prefix_fits =
            Box::new(move |options: &KeyspaceOptions| prefix.is_none_or(|prefix| prefix == options.prefix));
        let keyspace = (properties.keyspace, name);
        Ok(NewTable { source: source.to_owned(), meta, is_copy, ranges, keyspace, prefix_fits, operator })
    }

    fn check_fit(&self, tree: &Tree, tables: &[NewTable]) -> Result<()> {
        let misfit = |table: &NewTable| table.misfit(tree).map(|rule| unfit(&table.source, rule));
        if let Some(error) = tables.iter().find_map(misfit) {
            return Err(error);
        }
        match &tree.options.merge_operator {
            // What nobody can read is not written.
            Some(operator) if !operator.is_known() && tables.iter().any(|table| table.operator.is_some()) => {
                let (keyspace, operator) = (tree.name.to_string(), operator.name().to_owned());
                Err(Error::MergeOperatorMissing { keyspace, operator })
            }
            _ => Ok(()),
        }
    }

    /// Flushes what has keys of the tables, so that little of it is left when writers have to wait.
    fn flush_keys_of(self: &Arc<Self>, keyspace: u32, name: &str, tables: &[NewTable]) -> Result<Searched> {
        self.await_recovered()?;
        self.admit(|| std::iter::once(keyspace))?;
        if self.workers.pressure() >= 1.0 {
            let compacted = || self.wait_for_progress(Waiting::Compaction, || self.workers.pressure() < 1.0);
            self.writer.measure(Cause::Compaction, compacted)?;
        }
        let mut searched = Searched::default();
        // Once more after a wait, in which others have written. Not for ever: they may go on.
        for _ in 0..2 {
            let view = self.shape.view();
            if searched.must_be_flushed(&view.active, tree_of(&view, keyspace, name)?, tables)? {
                let mut commit = self.writer.lock();
                self.gate.check_writable()?;
                // It may have been sealed meanwhile.
                if let Some(commit) = commit.as_mut().filter(|commit| Arc::ptr_eq(&commit.memtable, &view.active)) {
                    self.rotate(commit)?;
                }
            }
            drop(view);
            if !self.await_keys_of(keyspace, name, tables, &mut searched)? {
                break;
            }
        }
        Ok(searched)
    }

    /// Seals the active memtable if it must be flushed.
    fn seal_keys_of(
        self: &Arc<Self>,
        keyspace: u32,
        name: &str,
        tables: &[NewTable],
        searched: &mut Searched,
    ) -> Result<()> {
        let mut commit = self.writer.lock();
        self.gate.check_writable()?;
        let Some(commit) = commit.as_mut() else { return Err(Error::Closed) };
        let view = self.shape.view();
        match searched.must_be_flushed(&commit.memtable, tree_of(&view, keyspace, name)?, tables)? {
            true => self.rotate(commit),
            false => Ok(()),
        }
    }

    /// Waits until the sealed memtables that must be flushed are. Returns whether there were any.
    fn await_keys_of(
        self: &Arc<Self>,
        keyspace: u32,
        name: &str,
        tables: &[NewTable],
        searched: &mut Searched,
    ) -> Result<bool> {
        let view = self.shape.view();
        let tree = tree_of(&view, keyspace, name)?;
        let mut awaited = Vec::new();
        for memtable in &view.sealed {
            if searched.must_be_flushed(memtable, tree, tables)? {
                awaited.push(Arc::downgrade(memtable));
            }
        }
        drop(view);
        if awaited.is_empty() {
            return Ok(false);
        }
        let is_awaited = |memtable: &Arc<Memtable>| awaited.iter().any(|of| of.as_ptr() == Arc::as_ptr(memtable));
        let wait = || self.wait_for_progress(Waiting::Flush, || !self.shape.view().sealed.iter().any(is_awaited));
        self.writer.measure(Cause::Flush, wait)?;
        Ok(true)
    }

    /// Takes a number for the tables and adds them under it. Sets `is_recorded` when the log may
    /// have them.
    fn commit_ingest(
        self: &Arc<Self>,
        keyspace: u32,
        name: &str,
        tables: &mut [NewTable],
        mut searched: Searched,
        is_recorded: &mut bool,
    ) -> Result<SeqNo> {
        // Writers wait from here on, so that the memtables are searched once more, and no longer.
        let _still = Stillness::begin(self);
        let (_defining, lead, mut commit) = loop {
            self.seal_keys_of(keyspace, name, tables, &mut searched)?;
            self.await_keys_of(keyspace, name, tables, &mut searched)?;
            // The keyspace stays as it is. It may have changed meanwhile: without a log, it has
            // other rules.
            let defining = self.shape.keep_keyspaces();
            let lead = self.writer.lead_syncs();
            let commit = self.writer.lock();
            self.gate.check_writable()?;
            let view = self.shape.view();
            let tree = tree_of(&view, keyspace, name)?;
            let mut memtables = view.memtables();
            if !memtables.try_fold(false, |is_met, memtable| {
                Ok::<bool, Error>(is_met || searched.must_be_flushed(memtable, tree, tables)?)
            })? {
                break (defining, lead, commit);
            }
        };
        let Some(commit) = commit.as_mut() else { return Err(Error::Closed) };
        let view = self.shape.view();
        let tree = tree_of(&view, keyspace, name)?;
        self.check_fit(tree, tables)?;
        // Runs of level 0 are ordered by their numbers: a run that is flushed later must not have
        // some on both sides, if that can be helped.
        let mut entries = tables.iter().filter(|table| table.ranges.is_none());
        let is_on_top = entries.any(|table| level_for(&table.meta, &tree.version, &[]) == 0);
        // And a log must not grow for ever by ingests alone, which fill no memtable.
        if is_on_top && !commit.memtable.is_empty() || commit.log_len() > wal::log_size(self.options.memtable_size) {
            self.rotate(commit)?;
        }
        drop(view);
        let first = commit.last_seqno() + 1;
        let NumberedTables { tables: logged, payload, features, count } = NumberedTables::of(keyspace, tables, first)?;
        // The log records the ingest, and prepares as much space again, before the manifest does.
        self.check_ample_means(4 * payload.len() as u64)?;
        let seqno = first + u64::from(count) - 1;
        let encoded = Encoded::new(payload.into(), count, features, Logging::default(), true);
        let appended = self.append_alone(commit, &encoded, lead);
        *is_recorded = commit.last_seqno() >= first || self.gate.is_poisoned();
        assert_eq!(appended?, seqno, "nothing else is written under the commit lock");
        // From here on, a failure leaves a log that says more than the manifest: only recovery
        // brings them together.
        if tables.iter().any(|table| table.meta.deadlines.count > 0) {
            self.clock.note_deadlines();
        }
        self.show_ingest(commit, keyspace, logged, first..=seqno)?;
        self.writer.wake_readers();
        self.report.counters().add(Count::IngestedTables, tables.len() as u64);
        let bytes = tables.iter().map(|table| table.meta.size).sum();
        self.report.counters().add(Count::IngestedBytes, bytes);
        Ok(seqno)
    }

    /// Adds the tables, which the log has, and lets readers see them. A failure poisons the store.
    fn show_ingest(
        &self,
        commit: &mut Commit,
        keyspace: u32,
        tables: Vec<(u8, TableMeta)>,
        numbers: RangeInclusive<SeqNo>,
    ) -> Result<()> {
        let (before, last) = (numbers.start() - 1, *numbers.end());
        // What was read before is not checked in the memtable.
        commit.ingested = last;
        // Until the number is published, snapshots are of the one before it: nothing may drop what
        // the tables delete, nor what they replace.
        let held = self.shape.snapshots().add(|_| ((before, NEVER), ()));
        let ended = Arc::clone(&self.shape.view().horizon);
        let installed = self.install_ingest(keyspace, tables, numbers).map_err(|error| self.poison(error));
        if installed.is_ok() {
            commit.horizons.add(before, &ended);
            commit.memtable.writer().extend_to(last);
            self.sequence.publish(last);
        }
        // The caller schedules what this may allow.
        self.shape.snapshots().remove(held.0, Registered::Listed);
        installed
    }

    /// Adds the tables: those of entries to the lowest levels where they fit.
    fn install_ingest(
        &self,
        keyspace: u32,
        mut tables: Vec<(u8, TableMeta)>,
        numbers: RangeInclusive<SeqNo>,
    ) -> Result<()> {
        let (first, last) = numbers.into_inner();
        // Locked: no other edit changes the levels.
        let manifest = self.shape.catalog().lock()?;
        // No task begins that would write between the tables.
        let _claims = self.workers.claim(keyspace, |running| {
            let view = self.shape.view();
            let of_entries = tables.iter_mut().filter(|(level, _)| *level != RANGE_LEVEL);
            of_entries
                .map(|(level, meta)| {
                    if let Some(tree) = view.tree(keyspace) {
                        *level = level_for(meta, &tree.version, running);
                    }
                    Task::of_table(*level, meta)
                })
                .collect()
        });
        let added = tables.into_iter().map(|(level, meta)| (keyspace, level, meta));
        let edit = VersionEdit { added: added.collect(), ingested: Some(last), ..VersionEdit::default() };
        self.install_locked(manifest, edit, |view: &mut ReadView| {
            view.horizon.end_before(first);
            view.horizon = Arc::new(Horizon::after(last));
        })
    }

    /// Removes what was moved; returns what could not be removed.
    fn remove_sources(&self, tables: &[NewTable]) -> Vec<PathBuf> {
        let sources = tables.iter().map(|table| &table.source);
        sources.filter(|source| self.fs().remove(source).is_err()).cloned().collect()
    }
}

impl SstWriter {
    /// Adds a delete of all keys of a range that the keyspace has when the file is ingested. What
    /// the same ingest puts there stays.
    ///
    /// Ranges must ascend by their first keys. They may overlap, and an empty one is left out. A
    /// file of range deletes has no entries.
    ///
    /// Fails with [`Error::Unsorted`] if a range begins before the one before it, and with
    /// [`Error::InvalidArgument`] if the file has entries or a bound is too long. The writer can
    /// then go on with something else. After any other error it has failed.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use tamis::{IngestOptions, SstWriter};
    ///
    /// db.put("user:1", "Ann")?;
    /// db.put("word:1", "sieve")?;
    /// let (old, new) = (dir.path().join("old.sst"), dir.path().join("new.sst"));
    /// let mut writer = SstWriter::create(&old, &db.sst_format()?)?;
    /// writer.delete_range("user:".."user;")?;
    /// writer.finish()?;
    /// let mut writer = SstWriter::create(&new, &db.sst_format()?)?;
    /// writer.put("user:2", "Bob")?;
    /// writer.finish()?;
    ///
    /// // Replaces all users at once.
    /// db.ingest([&old, &new], IngestOptions::new())?;
    /// let keys: tamis::Result<Vec<_>> = db.keys(..).collect();
    /// assert_eq!(keys?, [&b"user:2"[..], b"word:1"]);
    /// # Ok(()) }
    /// ```
    pub fn delete_range(&mut self, range: impl KeyRange) -> Result<()> {
        self.delete_span(KeySpan::of(range.into_bounds()))
    }
}

impl Keyspace {
    /// Describes the tables of the keyspace, for [`SstWriter`](crate::SstWriter).
    pub fn sst_format(&self) -> Result<SstFormat> {
        Ok(SstFormat::new(self.store().seed, self.id, &self.name, self.options()?))
    }

    /// Adds files that an [`SstWriter`](crate::SstWriter) has written, all of them or none. Their
    /// entries replace what the keyspace has under their keys.
    ///
    /// It is one write: snapshots taken before do not see it, and it is durable with everything
    /// before it when this returns. Each file is read from end to end before anything changes, and
    /// each block verified; [`Options::paranoid`](crate::Options::paranoid) also checks every
    /// entry. Other writers wait for two syncs; readers do not wait.
    ///
    /// [Range deletes](crate::SstWriter::delete_range) delete what the keyspace has, and nothing of
    /// the same ingest.
    ///
    /// Files of entries must not overlap each other. They may overlap what the keyspace has: each
    /// goes to the lowest level where nothing is in its way, and memtables with keys in its range,
    /// or in one of its range deletes, are flushed first. Files are linked into the store's
    /// directory, or copied from another file system; see [`IngestMode`]. They must be in the
    /// store's file system ([`Options::file_system`](crate::Options::file_system)).
    ///
    /// Fails with [`Error::Unfit`] if a file was not written for this keyspace of this store or a
    /// copy of it, or overlaps with another one, and with [`Error::Corruption`] if one is damaged.
    /// The keyspace is then as it was, as after any other error but a failed write or sync of the
    /// log or the manifest.
    ///
    /// [`Changes`](crate::Changes) has one operation for it, [`OperationKind::Ingest`], which tells
    /// of the tables, and not of their entries; and one before it for those with range deletes.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use tamis::{IngestMode, IngestOptions, SstWriter};
    ///
    /// let words = db.keyspace("words")?;
    /// words.put("pear", "old")?;
    /// let mut files = Vec::new();
    /// for (file, keys) in [("1.sst", ["apple", "fig"]), ("2.sst", ["lemon", "pear"])] {
    ///     let path = dir.path().join(file);
    ///     let mut writer = SstWriter::create(&path, &words.sst_format()?)?;
    ///     for key in keys {
    ///         writer.put(key, "new")?;
    ///     }
    ///     writer.finish()?;
    ///     files.push(path);
    /// }
    /// let before = db.snapshot();
    /// let info = words.ingest(&files, IngestOptions::new().mode(IngestMode::Move))?;
    /// assert_eq!((info.entries, words.get("pear")?.as_deref()), (4, Some(&b"new"[..])));
    /// assert_eq!(before.keyspace(&words).get("fig")?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// [`OperationKind::Ingest`]: crate::OperationKind::Ingest
    pub fn ingest(
        &self,
        files: impl IntoIterator<Item = impl AsRef<Path>>,
        options: IngestOptions,
    ) -> Result<IngestInfo> {
        let files: Vec<PathBuf> = files.into_iter().map(|file| file.as_ref().to_owned()).collect();
        self.store().ingest(self.id, &self.name, &files, options)
    }
}

impl Db {
    /// Describes the tables of the default keyspace, for [`SstWriter`](crate::SstWriter).
    pub fn sst_format(&self) -> Result<SstFormat> {
        self.default_keyspace().sst_format()
    }

    /// Adds files to the default keyspace; see [`Keyspace::ingest`].
    pub fn ingest(
        &self,
        files: impl IntoIterator<Item = impl AsRef<Path>>,
        options: IngestOptions,
    ) -> Result<IngestInfo> {
        self.default_keyspace().ingest(files, options)
    }
}
