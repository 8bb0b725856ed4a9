//! Plans a repair: which tables stay, which are rewritten, and what is lost.

use std::collections::{BTreeSet, HashSet};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use super::GREATEST_COUNTED;
use super::files::Files;
use super::logs::{self, LogSelection, SalvagedLogs};
use super::manifests::note_damage;
use super::report::{Loss, LossKind, RepairBasis, RepairFault, RepairReport};
use super::rewrite::Rewrite;
use super::tables::{Checked, check, whole_table};
use super::values::{FoundValues, read_values};
use crate::error::{Error, Result};
use crate::format::filename::FileKind;
use crate::format::header::Magic;
use crate::format::key::SeqNo;
use crate::log::reader::LogReader;
use crate::sorted::table::{SalvageTable, TableContext, TableMeta};
use crate::tree::manifest::{KeyspaceState, ManifestState, RANGE_LEVEL};
use crate::vfs::FileSystem;

/// What a repair will do.
pub(super) struct Plan {
    pub(super) fs: Arc<dyn FileSystem>,
    /// The new state, with the tables that stay as they are.
    pub(super) state: ManifestState,
    pub(super) rewrites: Vec<Rewrite>,
    /// The logs to be written to tables, unless they stay.
    pub(super) logs: Option<LogSelection>,
    /// The first log that stays.
    pub(super) min_log: Option<u64>,
    /// Tables that may or may not belong to the store.
    pub(super) uncertain: BTreeSet<u64>,
    pub(super) values: Arc<FoundValues>,
}

impl Plan {
    /// A plan without tables, with the value files that `state` names and that are as it says.
    fn with_values_of(context: &Arc<TableContext>, state: &ManifestState, report: &mut RepairReport) -> Result<Plan> {
        let named =
            || state.keyspaces.iter().flat_map(|(id, keyspace)| keyspace.values.values().map(|file| (*id, file.meta)));
        let numbers: Vec<u64> = named().map(|(_, meta)| meta.number).collect();
        let sound = read_values(context, &numbers, &mut report.faults)?;
        let (mut emptied, mut kept) = (emptied(state), HashSet::new());
        for (id, meta) in named().filter(|(_, meta)| sound.contains_key(&meta.number)) {
            if sound.get(&meta.number) == Some(&(id, meta)) {
                emptied.add_values(id, meta).map_err(Error::invalid)?;
                kept.insert(meta.number);
            } else {
                let file = FileKind::Values(meta.number).path(context.dir());
                let what = "the file is not the one that the manifest describes".into();
                report.faults.push(RepairFault { file, offset: 0, what });
            }
        }
        let values = FoundValues::new(context, &numbers, kept);
        Ok(Plan { min_log: Some(state.min_log), ..Plan::new(context, emptied, values) })
    }

    /// A plan that keeps no table and no log.
    pub(super) fn new(context: &TableContext, state: ManifestState, values: FoundValues) -> Plan {
        Plan {
            fs: context.shared_fs(),
            state,
            values: Arc::new(values),
            rewrites: Vec::new(),
            logs: None,
            min_log: None,
            uncertain: BTreeSet::new(),
        }
    }

    /// Takes value files out of the state to which no table will point.
    pub(super) fn drop_unused_values(&mut self) -> Result<()> {
        let mut used = BTreeSet::new();
        for rewrite in self.rewrites.iter().filter(|rewrite| rewrite.level != RANGE_LEVEL) {
            used.append(&mut FoundValues::used(&mut rewrite.cursor(&self.values))?);
        }
        let kept = self.state.keyspaces.values().flat_map(|keyspace| keyspace.tables());
        used.extend(kept.flat_map(|(_, meta)| meta.references.iter()).map(|reference| reference.file));
        for keyspace in self.state.keyspaces.values_mut() {
            keyspace.values.retain(|number, _| used.contains(number));
        }
        Ok(())
    }

    /// Whether a file belongs to the store after the repair.
    pub(super) fn needs(&self, kind: FileKind) -> bool {
        match kind {
            FileKind::Current | FileKind::CurrentTemp | FileKind::Lock | FileKind::Partial => true,
            FileKind::Stats | FileKind::StatsTemp => true,
            FileKind::Manifest(_) => false,
            FileKind::Wal(number) => self.min_log.is_some_and(|min_log| number >= min_log),
            FileKind::Table(number) => self.state.has_table(number),
            FileKind::Values(number) => self.state.has_values(number),
        }
    }
}

/// Notes which parts of the logs could not be read.
pub(super) fn note_gaps(read: &SalvagedLogs, report: &mut RepairReport) {
    report.entries_from_logs = read.entries;
    for gap in &read.gaps {
        let fault = RepairFault { file: gap.file.clone(), offset: gap.offset, what: gap.rule.clone() };
        if !report.faults.iter().any(|known| (&known.file, known.offset) == (&fault.file, fault.offset)) {
            report.faults.push(fault);
        }
        let (kind, keys) = match gap.may_be_elsewhere {
            true => (LossKind::Uncertain, "; tables may lack some of the entries written there"),
            false => (LossKind::Lost, "; the keys written there are not known"),
        };
        report.losses.push(Loss {
            file: Some(gap.file.clone()),
            entries: gap.ordinals.filter(|_| !gap.may_be_elsewhere),
            bytes: gap.bytes,
            ..Loss::anywhere(kind, format!("{}{keys}", gap.rule))
        });
    }
}

/// A copy of `state` without tables.
fn emptied(state: &ManifestState) -> ManifestState {
    let keyspaces = state.keyspaces.iter();
    let keyspaces =
        keyspaces.map(|(&id, keyspace)| (id, KeyspaceState::new(keyspace.name.as_str(), keyspace.options.clone())));
    let mut emptied = state.clone();
    emptied.keyspaces = keyspaces.collect();
    emptied.unfinished.clear();
    emptied
}

/// Plans with a good manifest, which says `state`. `None` if tables or logs know of more than it
/// says: it has lost its end.
pub(super) fn by_manifest(
    context: &Arc<TableContext>,
    files: &Files,
    state: &ManifestState,
    report: &mut RepairReport,
) -> Result<Option<Plan>> {
    report.basis = RepairBasis::Manifest;
    let numbers: Vec<u64> = files.logs().into_iter().filter(|number| *number >= state.min_log).collect();
    let checked = logs::check(context.fs(), context.dir(), &numbers, state);
    let logs = match &checked {
        Ok(found) => NeededLogs { numbers: &numbers, last_seqno: found.last_seqno, are_sound: true },
        Err(_) => NeededLogs { numbers: &numbers, last_seqno: state.flushed_seqno, are_sound: false },
    };
    if lags(context, files, state, logs)? {
        return Ok(None);
    }
    let damaged = LogSelection { synced: state.synced_log, ..LogSelection::after(state.flushed_seqno, &numbers) };
    if checked.is_err() && logs::name_unknown_keyspace(context.fs(), context.dir(), &damaged, state)? {
        return Ok(None);
    }
    let ingested = match &checked {
        Ok(found) => found.ingested.clone(),
        Err(_) => logs::ingested_in_damaged(context.fs(), context.dir(), &damaged, state)?,
    };
    let mut plan = Plan::with_values_of(context, state, report)?;
    // What the logs have ingested becomes part of the manifest, if that is written anew.
    plan.state.ingested = ingested.iter().map(|(.., meta)| meta.largest_seqno).fold(state.ingested, SeqNo::max);
    let named = state.keyspaces.iter();
    let named = named.flat_map(|(&id, keyspace)| keyspace.tables().map(move |(level, meta)| (id, level, meta)));
    let mut replaced = BTreeSet::new();
    for (id, level, meta) in named.chain(ingested.iter().map(|(id, level, meta)| (*id, *level, meta))) {
        let Some(checked) = check(context, meta.number, Some((level, meta)))? else {
            note_missing(context, state, report, (id, level, meta));
            continue;
        };
        files.meter.add(checked.table.size());
        let origin = checked.table.origin();
        replaced.extend(origin.dead.iter().copied().chain(origin.inputs.iter().map(|input| input.number)));
        let level = checked.level_of(level);
        keep_or_rewrite(&mut plan, report, id, level, checked)?;
    }
    if let Err(error) = checked {
        note_damage(&mut report.faults, error)?;
        plan.min_log = None;
        plan.logs = Some(damaged);
        for &number in files.tables().iter().filter(|number| !state.has_table(**number)) {
            if !replaced.contains(&number) && ingested.iter().all(|(.., meta)| meta.number != number) {
                note_perhaps_ingested(context, number, &mut plan, report)?;
            }
        }
    }
    plan.drop_unused_values()?;
    Ok(Some(plan))
}

/// Reports that the file of a live table is missing.
fn note_missing(
    context: &TableContext,
    state: &ManifestState,
    report: &mut RepairReport,
    (id, level, meta): (u32, u8, &TableMeta),
) {
    let path = FileKind::Table(meta.number).path(context.dir());
    report.faults.push(RepairFault { file: path.clone(), offset: 0, what: "there is no such file".into() });
    let name = state.keyspaces.get(&id).map(|keyspace| keyspace.name.clone());
    let loss = missing_table(report, level, path, name, meta, "the table is missing");
    report.losses.push(loss);
}

/// Reports a file that nothing names, if it is a table to be ingested: a damaged log may have
/// the ingest.
fn note_perhaps_ingested(
    context: &Arc<TableContext>,
    number: u64,
    plan: &mut Plan,
    report: &mut RepairReport,
) -> Result<()> {
    let Some(checked) = check(context, number, None)? else { return Ok(()) };
    let properties = checked.table.properties().filter(|properties| properties.is_unnumbered);
    let Some((id, ranges)) = properties.map(|properties| (properties.keyspace, properties.ranges)) else {
        return Ok(());
    };
    if plan.state.keyspaces.contains_key(&id) {
        let why = "the damaged log may have the ingest of this table; if the store lacks it, ingest it again";
        let path = FileKind::Table(number).path(context.dir());
        note_uncertain(plan, report, (path, checked), Some(id), ranges > 0, why);
    }
    Ok(())
}

/// Sets a table aside that may or may not belong to the store.
pub(super) fn note_uncertain(
    plan: &mut Plan,
    report: &mut RepairReport,
    (path, checked): (PathBuf, Checked),
    keyspace: Option<u32>,
    holds_ranges: bool,
    why: &str,
) {
    let number = checked.table.number();
    plan.uncertain.insert(number);
    report.faults.extend(checked.fault);
    let name = keyspace.and_then(|id| plan.state.keyspaces.get(&id)).map(|keyspace| keyspace.name.clone());
    if holds_ranges {
        note_lost_ranges(report, number, name.as_deref());
    }
    report.losses.push(Loss {
        file: Some(path),
        keyspace: name,
        entries: checked.expected,
        bytes: checked.table.size(),
        ..Loss::anywhere(LossKind::Uncertain, why).within(checked.table.bounds())
    });
}

/// The logs that a manifest still needs, and how far they go.
#[derive(Clone, Copy)]
struct NeededLogs<'a> {
    numbers: &'a [u64],
    last_seqno: SeqNo,
    are_sound: bool,
}

impl NeededLogs<'_> {
    /// Whether the logs hold, or held until a power cut, the entry `smallest`, with which a flush
    /// to table `number` began. A flush syncs its table but not the log, so the table may go
    /// further than what is left of the log.
    fn ever_held(self, context: &TableContext, number: u64, smallest: SeqNo) -> Result<bool> {
        if !self.are_sound || smallest <= self.last_seqno {
            return Ok(self.are_sound);
        }
        // Possibly only the log's name is left: it became durable with the table's name.
        let Some(first) = self.numbers.iter().find(|log| **log < number) else { return Ok(false) };
        let path = FileKind::Wal(*first).path(context.dir());
        let log = LogReader::open(context.fs(), &path, Magic::Wal, *first)?;
        Ok(log.header().is_ok_and(|header| header.first <= smallest) || log.header().is_err())
    }
}

/// Whether the manifest lags: a table that `state` does not name knows of an edit that `state`
/// lacks, or holds writes that are not in other tables and never were in the logs.
fn lags(context: &Arc<TableContext>, files: &Files, state: &ManifestState, logs: NeededLogs<'_>) -> Result<bool> {
    let tables = files.tables();
    for &number in tables.iter().filter(|number| !state.has_table(**number)) {
        let table = match SalvageTable::open(context, number, None) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => continue,
            table => table?,
        };
        let origin = table.origin();
        let replaced = origin.inputs.iter().filter(|input| input.is_replaced && !origin.by_repair);
        let has_replaced = replaced.map(|input| input.number).any(|input| {
            // A table that `state` names is missing, because this one has replaced it.
            state.has_table(input) && tables.binary_search(&input).is_err()
        });
        // Ingested entries have no numbers of their own.
        let numbered = table.properties().filter(|table| !table.is_unnumbered && !origin.by_repair);
        let newer = numbered.filter(|table| table.largest_seqno > logs.last_seqno);
        let has_newer = match newer {
            // A flush that did not finish leaves a table of entries that are in the logs.
            Some(table) if origin.inputs.is_empty() => !logs.ever_held(context, number, table.smallest_seqno)?,
            newer => newer.is_some(),
        };
        if has_replaced || origin.flushed > state.flushed_seqno || has_newer {
            return Ok(true);
        }
    }
    Ok(false)
}

fn note_lost_ranges(report: &mut RepairReport, number: u64, keyspace: Option<&str>) {
    let (table, keyspace) = (FileKind::Table(number).name(), keyspace.unwrap_or_default());
    let note = format!("{table} holds range deletes of keyspace {keyspace:?}: what the lost ones deleted is back");
    report.notes.push(note);
}

/// The loss of a table whose file is missing.
pub(super) fn missing_table(
    report: &mut RepairReport,
    level: u8,
    path: PathBuf,
    keyspace: Option<String>,
    meta: &TableMeta,
    why: &str,
) -> Loss {
    if level == RANGE_LEVEL {
        note_lost_ranges(report, meta.number, keyspace.as_deref());
        // The largest key is the first one of the last range, which may end anywhere.
        let (from, to) = (Some(meta.smallest.to_vec()), meta.range_end.as_deref().map(<[u8]>::to_vec));
        return Loss { from, to, ..whole_table(path, keyspace, None, why) };
    }
    whole_table(path, keyspace, Some(meta), why)
}

/// Reports what is wrong with a live table and with the values to which it points. Returns the
/// table's entry for a manifest, if nothing is.
pub(super) fn report_table(
    plan: &Plan,
    report: &mut RepairReport,
    id: u32,
    checked: &mut Checked,
) -> Result<Option<TableMeta>> {
    let name = plan.state.keyspaces.get(&id).map(|keyspace| keyspace.name.clone());
    let sound = checked.sound.take();
    let has_values = sound.as_ref().is_none_or(|meta| !meta.references.is_empty());
    let of_values = if has_values { plan.values.loss(&checked.table)? } else { None };
    let stays = sound.filter(|meta| plan.values.keeps(&meta.references));
    report.faults.extend(checked.fault.take());
    if let (Some(_), Some(loss)) = (&stays, &of_values) {
        // The table and the value files are sound, but do not belong together.
        let file = loss.file.clone().unwrap_or_default();
        report.faults.push(RepairFault { file, offset: 0, what: loss.why.clone() });
    }
    let stays = stays.filter(|_| of_values.is_none());
    let losses = checked.losses.drain(..).chain(of_values);
    report.losses.extend(losses.map(|loss| Loss { keyspace: name.clone(), ..loss }));
    Ok(stays)
}

/// Keeps a live table, or plans to rewrite what is left of it.
pub(super) fn keep_or_rewrite(
    plan: &mut Plan,
    report: &mut RepairReport,
    id: u32,
    level: u8,
    mut checked: Checked,
) -> Result<()> {
    if level == RANGE_LEVEL && checked.sound.is_none() {
        let name = plan.state.keyspaces.get(&id).map(|keyspace| keyspace.name.as_str());
        note_lost_ranges(report, checked.table.number(), name);
    }
    match report_table(plan, report, id, &mut checked)? {
        // New files get larger numbers.
        Some(meta) if meta.number <= GREATEST_COUNTED => {
            plan.state.next_file_number = plan.state.next_file_number.max(meta.number + 1);
            plan.state.add_table(id, level, meta).map_err(Error::invalid)?;
            report.tables_kept += 1;
        }
        _ if checked.entries > 0 => {
            report.tables_rewritten += 1;
            let (tables, keys, holes) = (vec![checked.table], checked.keys, checked.holes);
            plan.rewrites.push(Rewrite { keyspace: id, level, tables, table_size: u64::MAX, keys, holes });
        }
        _ => {}
    }
    Ok(())
}
