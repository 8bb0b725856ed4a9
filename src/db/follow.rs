//! [`Follower`]: reads the files of a store that another process may be writing.
//!
//! It takes no lock and asks nothing of the writer. It keeps the files of its view open, so that
//! they stay readable when the writer has removed their names; the system closes them when the
//! process ends, however it ends. [`advance`](Follower::advance) goes from any state to the one
//! that the writer has reached, and opening is the first advance.
//!
//! **One moment.** What a reader shows is the manifest's state and the writes in the logs. Read one
//! after the other, they are of two moments, and the difference can show: an ingest in the log, and
//! under it memtables that had to be flushed before; a write to a keyspace that is not there yet.
//! Therefore the manifest is read again after the logs. If it has not changed, no log was removed
//! meanwhile, and both were what they are when the logs had been read. If it has, the logs are read
//! again, and so on.
//!
//! **Nothing twice.** Each log has memtables of its own, as in the process that writes. A flush
//! writes all that a log has to tables, and the reader then forgets its memtables. Where a recovery
//! has flushed the first part of a log, the logs are read anew from there.
//!
//! **Only forward.** The last number that a reader has never goes back. Where files show that
//! another history has begun, the reader stays as it was, with [`Error::HistoryChanged`].
//!
//! A new view takes tables that have not changed from the view before.

pub(crate) mod reader_stats;
pub(crate) mod refresh;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use self::reader_stats::Refreshes;
use super::clock::Clock;
use super::open::recovery::Sources;
use super::open::replay::{Met, Progress, Replay, Sink};
use super::shape::view::{EndedHorizons, Horizon, ReadView, Tree, Trees};
use super::write::logs::KeptLog;
use crate::batch::Ingest;
use crate::db::locks::{LockRank, RankedMutex};
use crate::environment::Environment;
use crate::error::{Error, IoContext, Result};
use crate::format::deadline::Deadline;
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::log::reader::LogReader;
use crate::log::wal::{self, BatchGroup, LogBatch, ManifestLogs, SyncedLog};
use crate::log::{Ahead, LogChain};
use crate::options::Options;
use crate::sorted::memtable::Memtable;
use crate::sorted::range_table::RangeTable;
use crate::sorted::table::{Table, TableContext, TableMeta};
use crate::sync::Mutex;
use crate::tree::manifest::{
    self, Branch, FollowedManifest, KeyspaceState, ManifestState, RANGE_LEVEL, ingested_tables, read_current,
};
use crate::vfs::{is_out_of_descriptors, store_files};

/// The follower of a store that is open read-only.
pub(crate) struct Following {
    /// `None` if the store is closed, or writes itself.
    follower: RankedMutex<Option<Follower>>,
    refreshes: Mutex<Refreshes>,
}

impl Following {
    pub(crate) fn new(follower: Option<Follower>) -> Following {
        Following { follower: RankedMutex::new(LockRank::Following, follower), refreshes: Mutex::default() }
    }

    /// Ends with the refresh that is running. Closes the files that only the next view would need.
    pub(crate) fn end(&self) {
        *self.follower.lock() = None;
    }
}

/// How far a store has been read, and what of it is kept.
pub(crate) struct Follower {
    source: Source,
    manifest: Option<FollowedManifest>,
    /// What every later manifest must continue.
    history: Option<History>,
    /// The tables of the manifest's state and of `unflushed`, by number, with their files open.
    tables: BTreeMap<u64, Arc<Table>>,
    ranges: BTreeMap<u64, Arc<RangeTable>>,
    /// Whether `tables` and `ranges` may lack some.
    lacks_tables: bool,
    /// `None` if the logs are to be read from the first that is needed.
    logs: Option<LogChain>,
    /// What `logs` hold that is in no table of the manifest.
    unflushed: Unflushed,
    /// The last number that has been read from logs or that the manifest says to be in tables.
    last: SeqNo,
    /// The last number of the last view.
    shown: SeqNo,
    /// Views that reads may still use, by their last numbers, ascending.
    views: EndedHorizons,
    changed: Changed,
    /// Whether the last attempt to read manifest and logs has failed.
    has_failed: bool,
    /// Why there is nothing more to follow.
    end: Option<Error>,
}

/// Where a store is read from, and into what.
struct Source {
    dir: PathBuf,
    options: Options,
    environment: Environment,
    tables: Arc<TableContext>,
}

/// What has changed since the last view.
#[derive(Default)]
struct Changed {
    /// Whether anything has.
    any: bool,
    /// Whether the manifest has.
    manifest: bool,
    /// Keyspaces with other tables or options.
    keyspaces: BTreeSet<u32>,
}

/// What never goes back in a store's manifests.
struct History {
    hash_seed: u64,
    branches: Vec<Branch>,
    next_file_number: u64,
    min_log: u64,
    flushed: SeqNo,
    durable: SeqNo,
}

impl History {
    fn of(state: &ManifestState) -> History {
        History {
            hash_seed: state.hash_seed,
            branches: state.branches.clone(),
            next_file_number: state.next_file_number,
            min_log: state.min_log,
            flushed: state.flushed_seqno,
            durable: state.durable_seqno(),
        }
    }

    /// The rule that shows that `later` is of another history, if one does.
    fn is_broken_by(&self, later: &ManifestState) -> Option<&'static str> {
        // The id of a copy's branch is drawn when it is first opened for writing.
        let is_same =
            |(ours, theirs): (&Branch, &Branch)| ours.first == theirs.first && [0, theirs.id].contains(&ours.id);
        let mut branches = self.branches.iter().zip(&later.branches);
        // A copy's branch begins with the first number that its original had not used.
        let mut added = later.branches.iter().skip(self.branches.len());
        if self.hash_seed != later.hash_seed
            || self.branches.len() > later.branches.len()
            || !branches.all(is_same)
            || added.any(|branch| branch.first < self.next_file_number)
        {
            Some("the manifest is that of another store or copy")
        } else if later.next_file_number < self.next_file_number
            || later.min_log < self.min_log
            || later.flushed_seqno < self.flushed
            || later.durable_seqno() < self.durable
        {
            Some("the manifest is older than the one before")
        } else {
            None
        }
    }
}

/// Bytes of entries up to which a memtable takes the next log, too. A small store may have 8 logs
/// of one entry each, and a memtable for each takes half a millisecond.
const SMALL_PART: usize = 1 << 20;

/// A memtable of a log, or of several short ones.
struct FollowedPart {
    /// Number of the last log.
    log: u64,
    /// The first number in it that the memtable may have.
    first: SeqNo,
    memtable: Arc<Memtable>,
}

/// An ingest in the log.
struct LoggedIngest {
    seqno: SeqNo,
    keyspace: u32,
    /// With their levels.
    tables: Vec<(u8, TableMeta)>,
}

/// What is in logs only.
#[derive(Default)]
struct Unflushed {
    /// Oldest first. The last one may get more.
    parts: Vec<FollowedPart>,
    /// Those that the manifest does not have yet, oldest first.
    ingests: Vec<LoggedIngest>,
    met: Met,
}

/// Adds what logs hold. Whether the manifest names their keyspaces is known when it has been read
/// again.
struct Adding<'a> {
    source: &'a Source,
    state: &'a ManifestState,
    parts: &'a mut Vec<FollowedPart>,
    ingests: &'a mut Vec<LoggedIngest>,
}

impl Sink for Adding<'_> {
    fn state(&self) -> &ManifestState {
        self.state
    }

    fn begin_log(&mut self, log: u64, first: SeqNo) {
        match self.parts.last_mut() {
            Some(part) if part.log == log || part.memtable.used() < SMALL_PART => part.log = log,
            _ => self.begin(log, first),
        }
    }

    fn memtable(&mut self) -> &Arc<Memtable> {
        &self.parts[self.parts.len() - 1].memtable
    }

    fn full_size(&self) -> usize {
        self.source.options.memtable_size
    }

    fn turn_over(&mut self, log: u64, first: SeqNo) -> Result<()> {
        self.begin(log, first);
        Ok(())
    }

    fn ingest(&mut self, batch: &LogBatch<'_>, ingest: &Ingest<'_>, seqno: SeqNo) -> Result<()> {
        if seqno > self.state.ingested {
            let tables = ingested_tables(ingest, seqno).map_err(|rule| batch.corruption(&self.source.dir, rule))?;
            self.ingests.push(LoggedIngest { seqno, keyspace: ingest.keyspace, tables });
        }
        Ok(())
    }
}

impl Adding<'_> {
    /// Begins a memtable for what follows in `log` from number `first` on.
    fn begin(&mut self, log: u64, first: SeqNo) {
        let memtable = self.source.new_memtable(log, self.state.hash_seed);
        self.parts.push(FollowedPart { log, first, memtable });
    }
}

impl Unflushed {
    /// Adds to it what logs hold. Of the range deletes in memtables, those stay that views with the
    /// last numbers `kept` need.
    fn replay<'a>(
        &'a mut self,
        source: &'a Source,
        state: &'a ManifestState,
        kept: &'a [SeqNo],
    ) -> (Replay<'a>, Adding<'a>) {
        let Unflushed { parts, ingests, met } = self;
        (Replay { dir: &source.dir, kept, met, progress: None }, Adding { source, state, parts, ingests })
    }

    /// One to be filled in its place.
    fn successor(&self) -> Unflushed {
        Unflushed { met: self.met.successor(), ..Unflushed::default() }
    }

    /// Forgets what the tables of `state` hold. Returns false if they hold a part of a memtable.
    fn forget_flushed(&mut self, state: &ManifestState) -> bool {
        let flushed = state.flushed_seqno;
        self.parts.retain(|part| part.memtable.last_seqno() > flushed);
        self.ingests.retain(|ingest| ingest.seqno > state.ingested);
        self.parts.iter().all(|part| part.first > flushed)
    }

    /// The ingests into keyspaces of `state` that it does not have.
    fn ingests_in<'a>(&'a self, state: &'a ManifestState) -> impl Iterator<Item = &'a LoggedIngest> {
        let is_new = |ingest: &&LoggedIngest| ingest.seqno > state.ingested;
        self.ingests.iter().filter(is_new).filter(|ingest| state.keyspaces.contains_key(&ingest.keyspace))
    }
}

impl Source {
    fn new_memtable(&self, log: u64, seed: u64) -> Arc<Memtable> {
        let size = self.environment.first_size(self.options.memtable_size);
        Arc::new(Memtable::new(log, size, seed, self.environment.reader_memtables()))
    }

    fn list_files(&self) -> Result<Vec<FileKind>> {
        store_files(&*self.options.file_system, &self.dir).during("list", &self.dir)
    }

    /// Numbers of the logs from number `oldest` on, ascending.
    fn list_logs(&self, oldest: u64) -> Result<Vec<u64>> {
        let needed = |kind: FileKind| match kind {
            FileKind::Wal(number) if number >= oldest => Some(number),
            _ => None,
        };
        Ok(self.list_files()?.into_iter().filter_map(needed).collect())
    }
}

impl Follower {
    /// A follower of the store in `dir` that has read nothing yet.
    pub(super) fn new(dir: PathBuf, options: Options, environment: Environment, tables: Arc<TableContext>) -> Follower {
        let (tables_by_number, ranges, unflushed, changed) = Default::default();
        Follower {
            source: Source { dir, options, environment, tables },
            manifest: None,
            history: None,
            tables: tables_by_number,
            ranges,
            lacks_tables: false,
            logs: None,
            unflushed,
            last: 0,
            shown: 0,
            views: EndedHorizons::default(),
            changed,
            has_failed: false,
            end: None,
        }
    }

    /// The manifest's state; `None` before the first [`advance`](Follower::advance).
    pub(super) fn state(&self) -> Option<&ManifestState> {
        self.manifest.as_ref().map(FollowedManifest::state)
    }

    /// The last number that the next view sees.
    pub(super) fn last(&self) -> SeqNo {
        self.last
    }

    /// Operations read from logs.
    pub(super) fn operations(&self) -> u64 {
        self.unflushed.met.operations
    }

    /// Whether the next view differs from the last one.
    pub(super) fn has_changed(&self) -> bool {
        self.changed.any
    }

    /// Whether an entry has a deadline.
    pub(super) fn has_deadlines(&self) -> bool {
        self.unflushed.met.has_deadlines || self.tables.values().any(|table| table.meta().deadlines.count > 0)
    }

    /// Everything whose deadline is not later counts as expired.
    pub(super) fn expired_by(&self) -> Deadline {
        self.state().map_or(0, |state| state.expired_by)
    }

    /// Reads what has been written since the last call. Returns false if the store has changed
    /// meanwhile, so that what was read may be of two moments. After an error the next call goes
    /// on.
    pub(super) fn advance(&mut self) -> Result<bool> {
        if let Some(end) = &self.end {
            return Err(end.clone());
        }
        // What is in tables by now need not be read from logs. After a failure, a file may be
        // missing because another manifest is in force.
        let known = self.manifest.as_ref().map(FollowedManifest::number).filter(|_| !self.has_failed);
        self.has_failed = true;
        self.read_manifest(known)?;
        self.open_tables()?;
        let kept = self.views_in_use();
        self.read_logs(&kept)?;
        self.has_failed = false;
        // Also if the logs have nothing new: some may have come and gone.
        if self.read_manifest(None)? {
            return Ok(false);
        }
        // The tables of ingests that the manifest does not have.
        self.open_tables()?;
        self.check()?;
        Ok(true)
    }

    /// The last numbers of the views that reads may still use, ascending.
    pub(super) fn views_in_use(&mut self) -> Vec<SeqNo> {
        self.views.in_use()
    }

    /// Reads manifest `number`, or else the one in force; returns whether it says anything new.
    fn read_manifest(&mut self, number: Option<u64>) -> Result<bool> {
        let Source { dir, options, .. } = &self.source;
        let fs = &*options.file_system;
        let number = match (number, &self.history) {
            (Some(number), _) => Some(number),
            // Also tells what else the directory may hold.
            (None, None) => manifest::find(fs, dir)?,
            (None, Some(_)) => read_current(fs, dir)?,
        };
        let number = number.ok_or_else(|| Error::NotFound(dir.clone()))?;
        // After an error it is read anew.
        let known = self.manifest.take().filter(|manifest| manifest.number() == number);
        let (manifest, edits) = match known {
            Some(mut manifest) => {
                let edits = manifest.read_on(fs, dir)?;
                (manifest, Some(edits))
            }
            None => (FollowedManifest::load(fs, dir, number)?, None),
        };
        let manifest = self.manifest.insert(manifest);
        if edits.as_ref().is_some_and(Vec::is_empty) {
            return Ok(false);
        }
        manifest.find_operators(|name| options.operator_named(name));
        let state = manifest.state();
        match edits {
            Some(edits) => edits.iter().for_each(|edit| self.changed.keyspaces.extend(edit.keyspaces())),
            None => self.changed.keyspaces.extend(state.keyspaces.keys()),
        }
        (self.changed.any, self.changed.manifest, self.lacks_tables) = (true, true, true);
        if let Some(rule) = self.history.as_ref().and_then(|history| history.is_broken_by(state)) {
            return Err(self.end_with(rule));
        }
        self.history = Some(History::of(state));
        self.forget_flushed()?;
        Ok(true)
    }

    /// Forgets what is in tables by now.
    fn forget_flushed(&mut self) -> Result<()> {
        let Some(state) = self.manifest.as_ref().map(FollowedManifest::state) else { return Ok(()) };
        let (flushed, min_log) = (state.flushed_seqno, state.min_log);
        let is_whole = self.unflushed.forget_flushed(state);
        if let Some(logs) = &mut self.logs {
            if logs.last_number() < min_log && logs.next() > flushed + 1 {
                return Err(self.end_with("the manifest no longer needs a log with later writes"));
            }
            logs.forget_before(min_log);
            if !is_whole || logs.last_number() < min_log || logs.next() <= flushed {
                self.forget_logs();
            }
        }
        Ok(())
    }

    /// Has the logs read anew.
    fn forget_logs(&mut self) {
        self.logs = None;
        self.unflushed = self.unflushed.successor();
    }

    /// Ends the following: another history has begun.
    fn end_with(&mut self, rule: impl Into<String>) -> Error {
        let error = Error::HistoryChanged { dir: self.source.dir.clone(), seqno: self.shown, rule: rule.into() };
        self.end.insert(error).clone()
    }

    /// Opens the tables that were added, and lets go of those that were removed.
    fn open_tables(&mut self) -> Result<()> {
        let Some(state) = self.manifest.as_ref().map(FollowedManifest::state) else { return Ok(()) };
        let ingested = || self.unflushed.ingests_in(state).flat_map(|ingest| &ingest.tables);
        if !self.lacks_tables && ingested().all(|(_, meta)| self.tables.contains_key(&meta.number)) {
            return Ok(());
        }
        let of_state = state.keyspaces.values().flat_map(KeyspaceState::tables);
        let wanted: BTreeMap<u64, (u8, &TableMeta)> = of_state
            .chain(ingested().map(|(level, meta)| (*level, meta)))
            .map(|(level, meta)| (meta.number, (level, meta)))
            .collect();
        let is_other = |(number, (_, meta)): &(&u64, &(u8, &TableMeta))| {
            let held = self.tables.get(number).map(|table| table.meta());
            held.is_some_and(|held| (held.size, held.checksum) != (meta.size, meta.checksum))
        };
        if let Some(number) = wanted.iter().find(is_other).map(|(number, _)| *number) {
            return Err(self.end_with(format!("{} is another file now", FileKind::Table(number).name())));
        }
        // Before others are opened, so that fewer are open at once.
        self.tables.retain(|number, _| wanted.contains_key(number));
        self.ranges.retain(|number, _| wanted.contains_key(number));
        let mut opened = Vec::new();
        for (number, (level, meta)) in &wanted {
            if self.tables.contains_key(number) {
                continue;
            }
            let table = Table::new(Arc::clone(&self.source.tables), (*meta).clone());
            let table = Arc::new(table.of_ranges(*level == RANGE_LEVEL));
            table.keep_open().map_err(|error| self.explain_missing(error, state))?;
            let ranges = match table.holds_ranges() {
                true => Some(Arc::new(RangeTable::load(Arc::clone(&table))?)),
                false => None,
            };
            opened.push((*number, table, ranges));
        }
        // All or none: after an error, no file stays open that no view needs.
        for (number, table, ranges) in opened {
            self.ranges.extend(ranges.map(|ranges| (number, ranges)));
            self.tables.insert(number, table);
        }
        self.lacks_tables = false;
        Ok(())
    }

    /// The error to report when a file of the store cannot be opened.
    fn explain_missing(&self, error: Error, state: &ManifestState) -> Error {
        let Source { dir, tables, .. } = &self.source;
        let Error::Io { source, .. } = &error else { return error };
        if is_out_of_descriptors(source) {
            let of = |keyspace: &KeyspaceState| keyspace.tables().count() + keyspace.values.len();
            let files = state.keyspaces.values().map(of).sum();
            return Error::TooManyFiles { dir: dir.clone(), files, source: Arc::clone(source) };
        }
        if source.kind() != ErrorKind::NotFound {
            return error;
        }
        let checked = self.source.list_files().and_then(|files| {
            let manifest = self.manifest.as_ref().map_or(0, FollowedManifest::number);
            Sources { dir, manifest, files: &files, tables }.check_tables(state)
        });
        checked.err().unwrap_or(error)
    }

    /// Reads the logs to their end.
    fn read_logs(&mut self, kept: &[SeqNo]) -> Result<()> {
        let Some(state) = self.manifest.as_ref().map(FollowedManifest::state) else { return Ok(()) };
        let Some(logs) = &mut self.logs else { return self.load_logs(kept) };
        let Source { dir, options, .. } = &self.source;
        let (mut replay, mut adding) = self.unflushed.replay(&self.source, state, kept);
        let list = &mut || self.source.list_logs(state.min_log);
        let apply = &mut |batch: LogBatch<'_>| replay.pass(std::iter::once(batch), &mut adding);
        let read = wal::read_on(&*options.file_system, dir, logs, list, apply);
        let synced = state.synced_log.map_or(0, |log| log.seqno);
        let last = logs.next() - 1;
        match read {
            Ok(Ahead::Nothing) if synced <= last => {
                self.note_last(last);
                Ok(())
            }
            Ok(Ahead::Nothing | Ahead::Unclear) => {
                self.forget_logs();
                self.load_logs(kept)
            }
            Ok(Ahead::Undone(first)) => {
                Err(self.end_with(format!("a later log begins with number {first}, after a loss of unsynced writes")))
            }
            Err(error) => {
                self.forget_logs();
                Err(error)
            }
        }
    }

    /// Reads the logs that the manifest needs, from the first number that is in no table.
    fn load_logs(&mut self, kept: &[SeqNo]) -> Result<()> {
        let Some(state) = self.manifest.as_ref().map(FollowedManifest::state) else { return Ok(()) };
        let Source { dir, options, environment, tables } = &self.source;
        let files = self.source.list_files()?;
        let of_log = |kind: &FileKind| match *kind {
            FileKind::Wal(number) if number >= state.min_log => Some(number),
            _ => None,
        };
        let numbers: Vec<u64> = files.iter().filter_map(of_log).collect();
        let known = ManifestLogs { flushed: state.flushed_seqno, synced_log: state.synced_log };
        let mut unflushed = self.unflushed.successor();
        let (mut replay, mut adding) = unflushed.replay(&self.source, state, kept);
        replay.progress = Some(Progress::new(dir, tables.events(), &numbers));
        let apply = &mut |group: BatchGroup<'_>| replay.pass(group.batches(), &mut adding);
        let replay_thread = environment.replay_thread();
        let read = wal::recover(&*options.file_system, dir, &numbers, known, replay_thread.is_some(), apply);
        drop(replay_thread);
        let (end, logs) = read.map_err(|error| {
            let manifest = self.manifest.as_ref().map_or(0, FollowedManifest::number);
            Sources { dir, manifest, files: &files, tables }.explain(error, state, &numbers)
        })?;
        unflushed.forget_flushed(state);
        (self.logs, self.unflushed) = (logs, unflushed);
        self.note_last(end.last_seqno);
        Ok(())
    }

    fn note_last(&mut self, last: SeqNo) {
        self.changed.any |= last != self.last;
        self.last = last;
    }

    /// Checks what has been read of one moment.
    fn check(&mut self) -> Result<()> {
        if self.last < self.shown {
            return Err(self.end_with(format!("the last write is number {} now", self.last)));
        }
        let Some(manifest) = &self.manifest else { return Ok(()) };
        match self.unflushed.met.newest_keyspace {
            // Dropped keyspaces have lower ids too: the manifest names a keyspace before the first
            // write to it.
            Some((id, log, offset)) if u64::from(id) >= manifest.state().next_file_number => {
                let Source { dir, tables, .. } = &self.source;
                let files = self.source.list_files()?;
                let log = FileKind::Wal(log).name();
                let proof = format_args!("{log} names keyspace {id} at offset {offset}");
                Err(Sources { dir, manifest: manifest.number(), files: &files, tables }.outdated(proof))
            }
            _ => Ok(()),
        }
    }

    /// What an image has of what has been read: the manifest's state, with the ingests that only
    /// the log has, and the logs.
    pub(super) fn cut(&self) -> Result<(ManifestState, Vec<KeptLog>)> {
        let mut state = self.state().cloned().ok_or(Error::Closed)?;
        let bug = |rule: crate::format::Malformed| Error::invalid(rule);
        // Their files have numbers that no edit may have stated.
        let numbers =
            self.tables.keys().copied().chain(self.logs.iter().flat_map(|logs| logs.readers()).map(LogReader::number));
        state.next_file_number = numbers.max().map_or(0, |last| last + 1).max(state.next_file_number);
        let known = state.clone();
        for ingest in self.unflushed.ingests_in(&known) {
            for (level, meta) in &ingest.tables {
                state.add_table(ingest.keyspace, *level, meta.clone()).map_err(bug)?;
            }
            state.ingested = ingest.seqno;
        }
        let readers: Vec<&LogReader> = self.logs.iter().flat_map(LogChain::readers).collect();
        let kept = |log: &LogReader| KeptLog { number: log.number(), len: log.offset(), file: Arc::clone(log.file()) };
        let logs = readers.iter().copied().map(kept).collect();
        // The logs will be durable: without one, the copy is damaged.
        let last_log = readers.iter().rfind(|log| log.header().is_ok_and(|header| header.first <= self.last));
        let last_log = last_log.filter(|_| self.last > state.flushed_seqno).map(|log| log.number());
        state.synced_log = last_log.map(|number| SyncedLog { number, seqno: self.last });
        Ok((state, logs))
    }

    /// What has been read, after an [`advance`](Follower::advance) that returned true. Of the view
    /// before, `former`, it takes what has not changed.
    pub(super) fn view(&mut self, former: Option<&ReadView>, clock: &Arc<Clock>) -> Result<ReadView> {
        let Some(state) = self.manifest.as_ref().map(FollowedManifest::state) else { return Err(Error::Closed) };
        let bug = || Error::invalid("a reader has not opened a table of its view; this is a bug in tamis");
        let ingested: BTreeSet<u32> = self.unflushed.ingests_in(state).map(|ingest| ingest.keyspace).collect();
        let mut trees = Trees::default();
        for (&id, keyspace) in &state.keyspaces {
            let known = former.and_then(|view| view.tree(id));
            let tree = match known {
                Some(tree) if !self.changed.keyspaces.contains(&id) && !ingested.contains(&id) => tree.clone(),
                _ => {
                    let of_log = self.unflushed.ingests_in(state).filter(|ingest| ingest.keyspace == id);
                    let of_log = of_log.flat_map(|ingest| &ingest.tables).map(|(level, meta)| (*level, meta));
                    let (ranges, entries): (Vec<_>, Vec<_>) =
                        keyspace.tables().chain(of_log).partition(|(level, _)| *level == RANGE_LEVEL);
                    let open = |meta: &TableMeta| self.tables.get(&meta.number).cloned().ok_or_else(bug);
                    let entries = entries.into_iter().map(|(level, meta)| Ok((level, open(meta)?)));
                    let entries = entries.collect::<Result<Vec<_>>>()?;
                    let load = |meta: &TableMeta| self.ranges.get(&meta.number).cloned().ok_or_else(bug);
                    let ranges = ranges.into_iter().map(|(_, meta)| load(meta)).collect::<Result<Vec<_>>>()?;
                    Tree::new(id, keyspace, entries, ranges, clock, self.source.tables.values())
                }
            };
            // What scans noted holds for older views, and these may have what tables have lost.
            let gaps = match known {
                Some(known) if self.changed.manifest || ingested.contains(&id) => Arc::new(known.gaps.emptied()),
                Some(known) => Arc::clone(&known.gaps),
                None => Arc::clone(&tree.gaps),
            };
            trees.set(Tree { gaps, ..tree });
        }
        let mut memtables = self.unflushed.parts.iter().rev().map(|part| Arc::clone(&part.memtable));
        let active = memtables.next().unwrap_or_else(|| self.source.new_memtable(0, state.hash_seed));
        let horizon = Arc::new(Horizon::at(self.last));
        self.views.add(self.last, &horizon);
        let view = ReadView { active, sealed: memtables.collect(), trees, horizon };
        (self.changed, self.shown) = (Changed::default(), self.last);
        Ok(view)
    }
}
