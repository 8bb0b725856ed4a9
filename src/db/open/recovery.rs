//! Recovery: replays the logs that the manifest still needs.
//!
//! Full memtables rebuilt from the logs become new tables. The last memtable, which is not full,
//! stays in memory with its logs: opening has it flushed, or goes on filling it. For a store that
//! is opened read-only, see `follow`.
//!
//! An ingest whose edit is missing in the manifest is applied when its record is replayed. Long
//! logs are read by one thread while another inserts (`crates/log/src/wal/relay.rs`).

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use super::replay::{Met, Progress, Replay, Sink};
use crate::batch::Ingest;
use crate::environment::Environment;
use crate::error::{Error, IoContext, Result};
use crate::format::filename::FileKind;
use crate::format::header::Magic;
use crate::format::key::SeqNo;
use crate::log::reader::LogReader;
use crate::log::wal::{self, BatchGroup, LogBatch, ManifestLogs};
use crate::operator::CompactionHook;
use crate::options::{Compression, Options};
use crate::sorted::memtable::Memtable;
use crate::sorted::table::{Origin, SalvageTable, Table, TableContext, TableMeta, TableOptions};
use crate::tree::compaction::filters::{filters_of_output, unread};
use crate::tree::compaction::{OutputContext, Turn, ValuePolicy, write_memtable};
use crate::tree::manifest::{ManifestState, encode_definition, missing_tables};

/// New file numbers follow the greatest number in the directory, but only up to half of what the
/// format allows: a stray file must not use up the numbers.
const MAX_COUNTED_NUMBER: u64 = 1 << 55;

pub(super) struct Recovered {
    pub(super) last_seqno: SeqNo,
    /// Tables hold every entry up to this one.
    pub(super) flushed: SeqNo,
    /// Every entry up to this one is durable: the last one if the logs prove that, else `flushed`.
    pub(super) durable: SeqNo,
    /// The entries after `flushed`.
    pub(super) memtable: Option<Arc<Memtable>>,
    /// Whether one of these entries has a deadline.
    pub(super) has_deadlines: bool,
    /// Operations in the logs that were replayed.
    pub(super) operations: u64,
    /// Whether tables were added that the manifest did not know yet.
    pub(super) has_ingested: bool,
    /// Number and length of the last log.
    pub(super) last_log: Option<(u64, u64)>,
}

/// The files that a store is opened from.
///
/// A manifest that has lost its last edits looks like one that never had them. It shows in the
/// files: a table or log that the manifest names is missing, and a newer table that it does not
/// name holds the entries. The error then blames the manifest, and otherwise the missing file.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub(crate) dir: &'a Path,
    /// Number of the manifest.
    pub(crate) manifest: u64,
    /// Files in the directory, sorted.
    pub(crate) files: &'a [FileKind],
    pub(crate) tables: &'a Arc<TableContext>,
}

impl Sources<'_> {
    /// The logs from number `first` on, ascending.
    fn logs_from(&self, first: u64) -> Vec<u64> {
        let number = |kind: &FileKind| if let FileKind::Wal(number) = *kind { Some(number) } else { None };
        let mut logs: Vec<u64> = self.files.iter().filter_map(number).filter(|number| *number >= first).collect();
        logs.sort_unstable();
        logs
    }

    /// Refuses a store that lacks a table, before anything in its directory is changed.
    pub(crate) fn check_tables(&self, state: &ManifestState) -> Result<()> {
        let mut named = state.keyspaces.values().flat_map(|keyspace| keyspace.tables());
        let is_missing = |meta: &TableMeta| self.files.binary_search(&FileKind::Table(meta.number)).is_err();
        let Some((_, meta)) = named.find(|(_, meta)| is_missing(meta)) else { return self.check_values(state) };
        let missing = FileKind::Table(meta.number);
        // Other unnamed tables may be left over from work that a crash cut off.
        let is_later = |number: &u64| {
            let Ok(table) = SalvageTable::open(self.tables, *number, None) else { return false };
            let origin = table.origin();
            let took_place = origin.inputs.iter().any(|input| input.is_replaced && input.number == meta.number);
            !origin.by_repair && (took_place || origin.flushed > state.flushed_seqno)
        };
        match self.unnamed_tables(state).find(is_later) {
            Some(newer) => {
                let newer = FileKind::Table(newer).name();
                Err(self.outdated(format_args!(
                    "it names {}, which is gone, and not {newer}, which is newer",
                    missing.name()
                )))
            }
            None => {
                let rule = "the manifest names this table, but there is no such file";
                Err(Error::corruption(&missing.path(self.dir), 0, rule))
            }
        }
    }

    /// Refuses a store that lacks a value file.
    fn check_values(&self, state: &ManifestState) -> Result<()> {
        let named = state.keyspaces.values().flat_map(|keyspace| keyspace.values.keys());
        match named.map(|number| FileKind::Values(*number)).find(|kind| self.files.binary_search(kind).is_err()) {
            None => Ok(()),
            Some(missing) => {
                let rule = "the manifest names this value file, but there is no such file";
                Err(Error::corruption(&missing.path(self.dir), 0, rule))
            }
        }
    }

    /// Tables in the directory that the manifest does not name.
    fn unnamed_tables(&self, state: &ManifestState) -> impl Iterator<Item = u64> {
        self.files.iter().filter_map(|kind| match *kind {
            FileKind::Table(number) if !state.has_table(number) => Some(number),
            _ => None,
        })
    }

    /// Returns the error to report when replaying `logs` failed with `error`. That is the
    /// manifest's if all logs begin after the missing entry and an unnamed table holds it.
    pub(crate) fn explain(&self, error: Error, state: &ManifestState, logs: &[u64]) -> Error {
        if !error.is_corruption() {
            return error;
        }
        let missing = state.flushed_seqno + 1;
        let begins_after = |&log: &u64| {
            let reader = LogReader::open(self.tables.fs(), &FileKind::Wal(log).path(self.dir), Magic::Wal, log);
            reader.is_ok_and(|reader| reader.header().is_ok_and(|header| header.first > missing))
        };
        let holds_missing = |number: &u64| {
            let table = Table::alone(Arc::clone(self.tables), *number, false);
            table.is_ok_and(|table| table.meta().largest_seqno >= missing)
        };
        match self.unnamed_tables(state).find(holds_missing) {
            Some(table) if logs.iter().all(begins_after) => {
                let table = FileKind::Table(table).name();
                self.outdated(format_args!(
                    "entry {missing} is in no log, and {table}, which it does not name, has later ones"
                ))
            }
            _ => error,
        }
    }

    pub(crate) fn outdated(&self, proof: impl std::fmt::Display) -> Error {
        let rule = format!("the manifest has lost its last edits, or an older one is in force: {proof}");
        Error::corruption(&FileKind::Manifest(self.manifest).path(self.dir), 0, rule)
    }
}

/// The inputs of recovery.
pub(super) struct Recovery<'a> {
    pub(super) sources: Sources<'a>,
    pub(super) options: &'a Options,
    pub(super) environment: &'a Environment,
}

impl Recovery<'_> {
    /// Replays the logs that `state` still needs. File numbers seen in the directory count as used:
    /// they may belong to files that no edit has named yet.
    pub(super) fn recover(&self, state: &mut ManifestState) -> Result<Recovered> {
        for kind in self.sources.files {
            if let FileKind::Table(number) = *kind
                && !state.has_table(number)
            {
                self.sources.tables.graveyard().bury(number);
            }
        }
        let known_ids = state.next_file_number;
        let numbers = self.sources.files.iter().filter_map(|kind| kind.number());
        let seen = numbers.filter(|&number| number <= MAX_COUNTED_NUMBER).max().unwrap_or(0);
        state.next_file_number = known_ids.max(seen + 1);
        let unused = state.next_file_number;
        self.replay_logs(state, known_ids).inspect_err(|_| {
            // A failed open leaves no new tables behind, however often it is tried.
            for number in unused..state.next_file_number {
                self.sources.tables.remove_file(number);
                self.sources.tables.values().remove_new(number);
            }
        })
    }

    fn replay_logs(&self, state: &mut ManifestState, known_ids: u64) -> Result<Recovered> {
        let Recovery { sources: Sources { dir, .. }, options, environment } = *self;
        let logs = self.sources.logs_from(state.min_log);
        // The recovered memtables carry this number for all logs. It is less than that of any log
        // to be begun.
        let newest = logs.last().map_or(0, |&log| log.min(state.next_file_number - 1));
        let known = ManifestLogs { flushed: state.flushed_seqno, synced_log: state.synced_log };
        let mut rebuilt = Rebuilt {
            recovery: self,
            state,
            known_ids,
            newest,
            current: None,
            flushed: known.flushed,
            has_ingested: false,
        };
        let mut met = Met::default();
        let mut replay = Replay {
            dir,
            kept: &[],
            met: &mut met,
            progress: Some(Progress::new(dir, self.sources.tables.events(), &logs)),
        };
        let replay_thread = environment.replay_thread();
        let apply = &mut |group: BatchGroup<'_>| replay.pass(group.batches(), &mut rebuilt);
        let end = wal::recover(&*options.file_system, dir, &logs, known, replay_thread.is_some(), apply);
        drop(replay_thread);
        let Rebuilt { state, current, mut flushed, has_ingested, .. } = rebuilt;
        let Met { operations, has_deadlines, .. } = met;
        let (end, _) = end.map_err(|error| self.sources.explain(error, state, &logs))?;
        match &current {
            Some(memtable) => memtable.writer().extend_to(end.last_seqno),
            None => flushed = end.last_seqno,
        }
        if flushed > known.flushed {
            options.file_system.sync_dir(dir).during("sync", dir)?;
        }
        let memtable = current;
        let wal::WalEnd { last_seqno, last_log, synced, .. } = end;
        let durable = if synced >= last_seqno { last_seqno } else { flushed };
        Ok(Recovered { last_seqno, flushed, durable, memtable, has_deadlines, operations, has_ingested, last_log })
    }

    /// Writes a recovered memtable to tables of level 0.
    fn write_recovered(&self, memtable: &Arc<Memtable>, state: &mut ManifestState) -> Result<()> {
        for (id, keys) in memtable.keyspaces() {
            // Entries of a keyspace that was dropped later are dropped with it.
            let Some(keyspace) = state.keyspaces.get(&id) else { continue };
            let options_of = keyspace.options.clone();
            let (name, definition) = (keyspace.name.clone(), encode_definition(&keyspace.name, &options_of));
            // A filter budget would need the filter sizes of all tables, and no open waits to read
            // those. This run is small, so they count as 0.
            let filters = filters_of_output(&options_of, || unread(&keyspace.metas()), 0, keys, || 0, |_, _| false);
            let numbers = Cell::new(state.next_file_number);
            let context = OutputContext {
                tables: self.sources.tables,
                options: TableOptions {
                    filters,
                    compression: Compression::None,
                    block_size: options_of.block_size,
                    seed: state.hash_seed,
                    keyspace: id,
                },
                table_size: u64::MAX,
                table_memory: usize::MAX,
                reserved: 0,
                write_len: self.environment.write_len(),
                snapshots: Vec::new(),
                ranges: Vec::new(),
                cleared: 0,
                operator: options_of.merge_operator.clone(),
                hook: CompactionHook::default(),
                now: 0,
                values: ValuePolicy::of(&options_of),
                keyspace: &name,
                new_number: &|| numbers.replace(numbers.get() + 1),
                turn: &|_| Turn::GoOn,
                paranoid: self.options.paranoid,
                origin: Origin { keyspace: definition, flushed: state.flushed_seqno, ..Origin::default() },
            };
            // Tables of this recovery are in no version yet: every range is kept.
            let written = write_memtable(memtable, id, context, |_, _| true);
            // After an error, too: the caller removes what was written.
            state.next_file_number = numbers.get();
            let (tables, values) = written?;
            values.into_iter().try_for_each(|meta| state.add_values(id, meta)).map_err(Error::invalid)?;
            let mut tables = tables.into_iter();
            tables.try_for_each(|(level, meta)| state.add_table(id, level, meta)).map_err(Error::invalid)?;
        }
        Ok(())
    }
}

/// The memtables rebuilt from the logs read so far.
struct Rebuilt<'a> {
    recovery: &'a Recovery<'a>,
    state: &'a mut ManifestState,
    /// Every keyspace id is below this.
    known_ids: u64,
    /// The log number that the memtables carry.
    newest: u64,
    /// The memtable being filled. Created with the first batch: returning an unused one to the pool
    /// costs more than the rest of an open.
    current: Option<Arc<Memtable>>,
    /// Tables hold every entry up to this one.
    flushed: SeqNo,
    /// Whether an ingest was applied.
    has_ingested: bool,
}

impl Sink for Rebuilt<'_> {
    fn state(&self) -> &ManifestState {
        self.state
    }

    /// Dropped keyspaces have lower ids too: the manifest names a keyspace before the first write
    /// to it.
    fn meet_keyspace(&mut self, batch: &LogBatch<'_>, id: u32) -> Result<()> {
        if u64::from(id) < self.known_ids {
            return Ok(());
        }
        let log = FileKind::Wal(batch.log).name();
        let proof = format_args!("{log} names keyspace {id} at offset {}", batch.offset);
        Err(self.recovery.sources.outdated(proof))
    }

    fn memtable(&mut self) -> &Arc<Memtable> {
        let Recovery { options, environment, .. } = self.recovery;
        let size = environment.first_size(options.memtable_size);
        let new = || Arc::new(Memtable::new(self.newest, size, self.state.hash_seed, environment.memtables()));
        self.current.get_or_insert_with(new)
    }

    /// Less while all memtables of the environment exceed its budget.
    fn full_size(&self) -> usize {
        let Recovery { options, environment, .. } = self.recovery;
        environment.full_size(options.memtable_size)
    }

    /// Finishes the current memtable, which is full.
    fn turn_over(&mut self, log: u64, first: SeqNo) -> Result<()> {
        let Some(memtable) = self.current.take() else { return Ok(()) };
        self.recovery.write_recovered(&memtable, self.state)?;
        self.flushed = first - 1;
        // Earlier logs are in tables, or void. Void ones must never be read again, beside logs that
        // another crash has cut short.
        self.state.min_log = log;
        Ok(())
    }

    /// Adds the tables of an ingest whose edit is not in the manifest. When it was logged, tables
    /// held all older entries of their keys.
    fn ingest(&mut self, batch: &LogBatch<'_>, ingest: &Ingest<'_>, seqno: SeqNo) -> Result<()> {
        // The ingest ends it, even if it is empty.
        self.memtable();
        let Sources { dir, files, .. } = self.recovery.sources;
        let tables = missing_tables(ingest, seqno, self.state).map_err(|rule| batch.corruption(dir, rule))?;
        if tables.is_empty() {
            return Ok(());
        }
        // They are no strays, and no new table may say so.
        let numbers: Vec<u64> = tables.iter().map(|(_, meta)| meta.number).collect();
        self.recovery.sources.tables.graveyard().forget(&numbers);
        self.turn_over(batch.log, batch.first)?;
        for (level, meta) in tables {
            let kind = FileKind::Table(meta.number);
            if files.binary_search(&kind).is_err() {
                let log = FileKind::Wal(batch.log).name();
                let rule =
                    format!("{log} says at offset {} that it was ingested, but there is no such file", batch.offset);
                return Err(Error::corruption(&kind.path(dir), 0, rule));
            }
            self.state.add_table(ingest.keyspace, level, meta).map_err(|rule| batch.corruption(dir, rule))?;
        }
        self.state.ingested = seqno;
        self.has_ingested = true;
        Ok(())
    }
}
