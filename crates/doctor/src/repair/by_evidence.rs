//! Plans a repair without a complete manifest: from the tables and logs that verify.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::evidence::{Candidate, Fate, decide, is_unfinished};
use super::files::Files;
use super::levels::{UnplacedTable, assign_levels, find_newer};
use super::logs::{self, LogSelection};
use super::manifests::Knowledge;
use super::plan::{Plan, keep_or_rewrite, missing_table, note_uncertain, report_table};
use super::report::{Loss, LossKind, RepairBasis, RepairReport};
use super::rewrite::{MERGED_TABLE_SIZE, Rewrite};
use super::tables::{Checked, check};
use super::values::{FoundValues, SoundValues, read_values};
use super::{GREATEST_COUNTED, with_default};
use crate::error::Result;
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::sorted::table::{Origin, SalvageTable, TableContext, TableMeta};
use crate::tree::manifest::{
    DEFAULT_KEYSPACE, KeyspaceState, LEVEL_COUNT, ManifestState, RANGE_LEVEL, decode_definition,
};
use crate::tree::options::KeyspaceOptions;

/// A table, and what manifests say about it.
struct FoundTable {
    checked: Checked,
    keyspace: Option<u32>,
    level: u8,
    is_installed: bool,
    /// Whether the table and the value files to which it points are sound.
    is_whole: bool,
}

impl FoundTable {
    /// Whether a flush made the table, no manifest says that it was added, and it cannot be read
    /// completely. If it was not added, all of it is in the logs.
    fn is_torn_flush(&self) -> bool {
        let origin = self.checked.table.origin();
        origin.inputs.is_empty() && !origin.by_repair && !self.is_installed && !self.is_whole
    }

    /// Whether its entries have no sequence numbers, and nothing tells them.
    fn is_out_of_order(&self) -> bool {
        !self.is_installed && self.checked.table.properties().is_some_and(|properties| properties.is_unnumbered)
    }

    /// Whether nothing can be read of it, and nothing says that it was ever completed.
    fn holds_nothing(&self) -> bool {
        let Checked { table, entries, .. } = &self.checked;
        *entries == 0 && table.properties().is_none() && !self.is_installed
    }
}

/// The torn flushes of which the logs hold every entry. If the logs have gaps, a few reads of them
/// find where the part without gaps begins: without a gap from one entry on, there is none from a
/// later entry on.
fn torn_flushes_in_logs(context: &TableContext, logs: &[u64], found: &BTreeMap<u64, FoundTable>) -> Result<Vec<u64>> {
    let torn = found.iter().filter(|(_, table)| table.is_torn_flush());
    let seqnos = torn.filter_map(|(number, table)| {
        let properties = table.checked.table.properties()?;
        Some((properties.smallest_seqno, properties.largest_seqno, *number))
    });
    let mut torn: Vec<(SeqNo, SeqNo, u64)> = seqnos.collect();
    torn.sort_unstable();
    // The last entry in the logs, if they have no gap from `smallest` on.
    let last_after = |smallest: SeqNo| -> Result<Option<SeqNo>> {
        let before = smallest.saturating_sub(1);
        let selection = LogSelection::after(before, logs);
        let read = logs::read(context.fs(), context.dir(), &selection, &mut |_, _| Ok(()))?;
        Ok(read.gaps.is_empty().then_some(read.last_seqno))
    };
    // The tables from `from` on begin after all gaps, those before `to` do not.
    let (mut to, mut from, mut last) = (0, torn.len(), 0);
    let mut at = 0;
    while to < from {
        match last_after(torn[at].0)? {
            Some(found) => (from, last) = (at, found),
            None => to = at + 1,
        }
        at = to + (from - to) / 2;
    }
    Ok(torn[from..].iter().filter(|(_, largest, _)| *largest <= last).map(|(.., number)| *number).collect())
}

/// The last sequence numbers of a keyspace.
#[derive(Clone, Copy, Default)]
struct LastSeqnos {
    /// The last one that a table mentions.
    mentioned: SeqNo,
    /// The last one that a table mentions which proves that the entries before are in tables.
    proven: SeqNo,
    /// Tables hold everything that the logs hold up to this one.
    in_tables: SeqNo,
}

/// Plans without a complete manifest.
pub(super) fn by_evidence(
    context: &Arc<TableContext>,
    files: &Files,
    knowledge: &Knowledge,
    report: &mut RepairReport,
) -> Result<Plan> {
    report.basis = if knowledge.has_manifest { RepairBasis::DamagedManifest } else { RepairBasis::Tables };
    let why = "without a good manifest, nothing tells of a missing table, a compaction that left no table, or a \
               keyspace without tables and log entries";
    report.losses.push(Loss::anywhere(LossKind::Unknowable, why));
    let sound_values = read_values(context, &files.values(), &mut report.faults)?;
    let found = read_tables(context, files, knowledge, &sound_values)?;
    let (mut fates, missing) = decide_fates(files, knowledge, &found);
    let logs = files.logs();
    lower_fates(&mut fates, &torn_flushes_in_logs(context, &logs, &found)?, &found);
    let mut state = knowledge.state();
    let last = find_last(&mut state, files, knowledge, &found);
    let definitions = definitions(&found);
    define_keyspaces(&mut state, knowledge, &definitions, &found, &fates, report);
    let values = FoundValues::new(context, &files.values(), adopt_values(&mut state, &sound_values));
    let mut plan = Plan::new(context, state, values);
    for (id, level, meta) in missing {
        let path = FileKind::Table(meta.number).path(context.dir());
        let name = knowledge.keyspaces.get(&id).map(|(name, _)| name.clone());
        let why = "a manifest names this table, but its file is missing; a compaction may have replaced it since";
        let loss = missing_table(report, level, path, name, meta, why);
        report.losses.push(Loss { kind: LossKind::Uncertain, ..loss });
    }
    let live = sort_out(&mut plan, report, context, found, &fates);
    let mut floors = live_floors(&plan.state, &last);
    place_live(&mut plan, report, live, &mut floors)?;
    let elsewhere = last.values().map(|last| last.mentioned).max().unwrap_or(0);
    let mut selection = LogSelection {
        numbers: logs,
        flushed: plan.state.flushed_seqno,
        floors,
        elsewhere,
        certainly_elsewhere: elsewhere,
        synced: knowledge.synced_log,
    };
    define_from_logs(context, &selection, knowledge, &definitions, &mut plan.state, report)?;
    // A flush that was cut off has written the tables of some keyspaces, but not those of others.
    let proven = |id: &u32| last.get(id).map_or(0, |last| last.proven);
    selection.certainly_elsewhere = plan.state.keyspaces.keys().map(proven).min().unwrap_or(0);
    plan.state.flushed_seqno = plan.state.flushed_seqno.max(elsewhere);
    plan.logs = Some(selection);
    plan.drop_unused_values()?;
    Ok(plan)
}

/// Reads the tables that are there, and says for each what is known of its place.
fn read_tables(
    context: &Arc<TableContext>,
    files: &Files,
    knowledge: &Knowledge,
    sound_values: &SoundValues,
) -> Result<BTreeMap<u64, FoundTable>> {
    let mut found = BTreeMap::new();
    for number in files.tables() {
        let known = knowledge.tables.get(&number);
        let Some(checked) = check(context, number, known.map(|(_, level, meta)| (*level, meta)))? else { continue };
        files.meter.add(checked.table.size());
        let keyspace = checked.table.properties().map(|properties| properties.keyspace);
        let level = known.map_or(checked.table.origin().level, |(_, level, _)| *level);
        let keyspace = known.map(|(id, ..)| *id).or(keyspace);
        let level = match checked.level_of(level) {
            RANGE_LEVEL => RANGE_LEVEL,
            level => level.min(u8::try_from(LEVEL_COUNT - 1).unwrap_or(0)),
        };
        let is_there = |meta: &TableMeta| meta.references.iter().all(|at| sound_values.contains_key(&at.file));
        let is_whole = checked.sound.as_ref().is_some_and(is_there);
        found.insert(number, FoundTable { checked, keyspace, level, is_installed: known.is_some(), is_whole });
    }
    Ok(found)
}

/// Adds the value files that the store can count to its state; returns their numbers.
fn adopt_values(state: &mut ManifestState, sound_values: &SoundValues) -> HashSet<u64> {
    let mut kept = HashSet::new();
    for (&number, (id, meta)) in sound_values.iter().filter(|(number, _)| **number <= GREATEST_COUNTED) {
        state.next_file_number = state.next_file_number.max(number + 1);
        if state.add_values(*id, *meta).is_ok() {
            kept.insert(number);
        }
    }
    kept
}

/// The tables that are alive, by keyspace. Notes those of which that is not known.
fn sort_out(
    plan: &mut Plan,
    report: &mut RepairReport,
    context: &TableContext,
    found: BTreeMap<u64, FoundTable>,
    fates: &BTreeMap<u64, Fate>,
) -> BTreeMap<u32, Vec<FoundTable>> {
    let mut live: BTreeMap<u32, Vec<FoundTable>> = BTreeMap::new();
    for (number, table) in found {
        let path = FileKind::Table(number).path(context.dir());
        match (fates.get(&number), table.keyspace) {
            (Some(Fate::Live), Some(id)) => live.entry(id).or_default().push(table),
            // A range that was forgotten since had nothing left to delete: it does no harm.
            (Some(Fate::Uncertain), Some(id)) if table.level == RANGE_LEVEL && !table.is_out_of_order() => {
                live.entry(id).or_default().push(table);
            }
            // An empty file, which a power cut kept from being written.
            (Some(Fate::Live | Fate::Uncertain), None) if table.holds_nothing() => {
                report.faults.extend(table.checked.fault);
            }
            (Some(Fate::Live | Fate::Uncertain), keyspace) => {
                let why = match table.is_out_of_order() {
                    true => {
                        "only the lost manifest and log tell which writes are newer than this ingested table; ingest \
                         it again"
                    }
                    false => "it is not known whether the table belongs to the store",
                };
                let holds_ranges = table.level == RANGE_LEVEL;
                note_uncertain(plan, report, (path, table.checked), keyspace, holds_ranges, why);
            }
            _ => {}
        }
    }
    live
}

/// Gives the tables that are alive their places. Where they are merged, entries from the logs must
/// be newer than they are: that raises the keyspace's floor.
fn place_live(
    plan: &mut Plan,
    report: &mut RepairReport,
    live: BTreeMap<u32, Vec<FoundTable>>,
    floors: &mut BTreeMap<u32, SeqNo>,
) -> Result<()> {
    for (id, mut tables) in live {
        for ranges in tables.extract_if(.., |table| table.level == RANGE_LEVEL) {
            keep_or_rewrite(plan, report, id, RANGE_LEVEL, ranges.checked)?;
        }
        if tables.is_empty() {
            continue;
        }
        let newest = tables.iter().map(|table| table.checked.largest_seqno).max().unwrap_or(0);
        if place_tables(plan, report, id, tables)? == Placing::Merged {
            // The merged tables lie below those written from the logs.
            let floor = floors.entry(id).or_default();
            *floor = newest.max(*floor);
        }
    }
    Ok(())
}

/// A missing table with its keyspace and level.
type MissingTable<'a> = (u32, u8, &'a TableMeta);

/// Decides the fate of each table. Also returns the tables, with their keyspaces, that manifests
/// name and that are missing without a reason.
fn decide_fates<'a>(
    files: &Files,
    knowledge: &'a Knowledge,
    found: &BTreeMap<u64, FoundTable>,
) -> (BTreeMap<u64, Fate>, Vec<MissingTable<'a>>) {
    let mut dead = knowledge.dead.clone();
    let mut candidates = Vec::new();
    for (&number, table) in found {
        let origin = table.checked.table.origin().clone();
        let inputs: Vec<u64> = origin.inputs.iter().map(|input| input.number).collect();
        let is_past = !table.is_installed
            && !origin.by_repair
            && knowledge.is_past(number, table.checked.largest_seqno, &inputs)
            && table.checked.table.properties().is_some();
        if is_past || table.keyspace.is_some_and(|id| knowledge.dropped.contains(&id)) {
            dead.insert(number);
        }
        let bounds = table.checked.table.bounds();
        candidates.push(Candidate {
            number,
            is_whole: table.is_whole,
            is_installed: table.is_installed,
            smallest: bounds.map_or_else(Vec::new, |(smallest, _)| smallest.to_vec()),
            largest: bounds.map_or_else(Vec::new, |(_, largest)| largest.to_vec()),
            origin,
        });
    }
    let is_missing = |number: &u64| !found.contains_key(number);
    for (&number, (_, _, meta)) in knowledge.tables.iter().filter(|(number, _)| is_missing(number)) {
        candidates.push(Candidate {
            number,
            is_whole: false,
            is_installed: true,
            smallest: meta.smallest.to_vec(),
            largest: meta.largest.to_vec(),
            origin: Origin::default(),
        });
    }
    let mut fates = decide(&candidates, &dead, |number| files.has_number(number));
    let missing = knowledge.tables.iter().filter(|(number, _)| is_missing(number));
    let missing = missing.filter(|(number, _)| fates.get(number) != Some(&Fate::Dead));
    let missing = missing.map(|(_, (id, level, meta))| (*id, *level, meta)).collect();
    fates.retain(|number, _| !is_missing(number));
    (fates, missing)
}

/// Sets aside live tables whose entries are not needed, or cannot be put in order.
fn lower_fates(fates: &mut BTreeMap<u64, Fate>, torn: &[u64], found: &BTreeMap<u64, FoundTable>) {
    // What a torn flush has written is in the logs as well. Only manifests tell where the entries
    // of an ingested table stand in the order of writes.
    let torn = torn.iter().map(|number| (number, Fate::Redundant));
    let unordered = found.iter().filter(|(_, table)| table.is_out_of_order());
    for (number, worse) in torn.chain(unordered.map(|(number, _)| (number, Fate::Uncertain))) {
        if let Some(fate @ Fate::Live) = fates.get_mut(number) {
            *fate = worse;
        }
    }
}

/// The last sequence numbers of each keyspace, by its tables. Sets the seed and the numbers that
/// only tables tell.
fn find_last(
    state: &mut ManifestState,
    files: &Files,
    knowledge: &Knowledge,
    found: &BTreeMap<u64, FoundTable>,
) -> BTreeMap<u32, LastSeqnos> {
    let mut last: BTreeMap<u32, LastSeqnos> = BTreeMap::new();
    for (&number, table) in found {
        let origin = table.checked.table.origin();
        let named = origin.dead.iter().copied().chain(origin.inputs.iter().map(|input| input.number));
        let greatest = named.chain([number]).filter(|number| *number <= GREATEST_COUNTED).max().unwrap_or(0);
        state.next_file_number = state.next_file_number.max(greatest + 1);
        if is_unfinished(origin, table.is_installed, |number| files.has_number(number)) {
            continue;
        }
        state.flushed_seqno = state.flushed_seqno.max(origin.flushed);
        if let (None, Some(properties)) = (knowledge.seed, table.checked.table.properties()) {
            state.hash_seed = properties.seed;
        }
        if let Some(id) = table.keyspace {
            state.next_file_number = state.next_file_number.max(u64::from(id) + 1);
            let stated = table.checked.table.properties().map_or(0, |properties| properties.largest_seqno);
            let (last, stated) = (last.entry(id).or_default(), stated.max(table.checked.largest_seqno));
            last.mentioned = last.mentioned.max(stated);
            // Memtables are flushed in their order, and ingests come between. What a compaction
            // has read was flushed or ingested, so its outputs prove what they say of flushes.
            let is_unnumbered = table.checked.table.properties().is_some_and(|properties| properties.is_unnumbered);
            let is_compacted = !origin.inputs.is_empty() && !origin.by_repair;
            let stated = if is_unnumbered || is_compacted { stated.min(origin.flushed) } else { stated };
            // A flush writes the entries before the ranges. After a power cut, a range table may be
            // there alone: it proves nothing of them, unless an edit has named it.
            if table.level != RANGE_LEVEL || table.is_installed {
                last.proven = last.proven.max(stated);
            }
            if !table.is_torn_flush() && table.level != RANGE_LEVEL {
                last.in_tables = last.in_tables.max(stated);
            }
        }
    }
    last
}

/// By keyspace: the entries up to this one are certainly in tables.
fn live_floors(state: &ManifestState, last: &BTreeMap<u32, LastSeqnos>) -> BTreeMap<u32, SeqNo> {
    last.iter().filter(|(id, _)| state.keyspaces.contains_key(id)).map(|(id, last)| (*id, last.in_tables)).collect()
}

/// Names and options of keyspaces, by id.
type Definitions = BTreeMap<u32, (String, KeyspaceOptions)>;

/// The definition of each keyspace in its newest table, dead or alive, that has a readable one.
fn definitions(found: &BTreeMap<u64, FoundTable>) -> Definitions {
    let of = |table: &FoundTable| {
        let definition = decode_definition(&table.checked.table.origin().keyspace);
        Some((table.keyspace?, definition.ok()?))
    };
    found.values().filter_map(of).collect()
}

/// Defines all keyspaces that manifests name or that have tables. If two share a name, the one with
/// the newest table gets it.
fn define_keyspaces(
    state: &mut ManifestState,
    knowledge: &Knowledge,
    definitions: &Definitions,
    found: &BTreeMap<u64, FoundTable>,
    fates: &BTreeMap<u64, Fate>,
    report: &mut RepairReport,
) {
    for (&id, (name, options)) in &knowledge.keyspaces {
        state.keyspaces.insert(id, KeyspaceState::new(name.as_str(), options.clone()));
    }
    let is_alive = |number: &u64| !matches!(fates.get(number), None | Some(Fate::Dead));
    let newest_first = found.iter().rev().filter(|(number, _)| is_alive(number));
    define(state, newest_first.filter_map(|(_, table)| table.keyspace), definitions, report);
    with_default(state);
}

/// Defines those keyspaces of `ids` that are not defined yet.
fn define(
    state: &mut ManifestState,
    ids: impl Iterator<Item = u32>,
    definitions: &Definitions,
    report: &mut RepairReport,
) {
    let mut taken: BTreeSet<String> = state.keyspaces.values().map(|keyspace| keyspace.name.clone()).collect();
    taken.insert(DEFAULT_KEYSPACE.to_owned());
    let known: BTreeSet<&str> = definitions.values().map(|(name, _)| name.as_str()).collect();
    for id in ids {
        if state.keyspaces.contains_key(&id) {
            continue;
        }
        let definition = definitions.get(&id).cloned();
        let options = definition.as_ref().map_or_else(KeyspaceOptions::new, |(_, options)| options.clone());
        let name = match definition {
            _ if id == 0 => DEFAULT_KEYSPACE.to_owned(),
            Some((name, _)) if !taken.contains(&name) => name,
            definition => {
                let numbered = |n: u32| if n > 1 { format!("keyspace-{id}.{n}") } else { format!("keyspace-{id}") };
                let is_free = |name: &String| !taken.contains(name) && !known.contains(name.as_str());
                let new_name = (1..).map(numbered).find(is_free).unwrap_or_default();
                report.notes.push(match definition {
                    Some((name, _)) => format!("two keyspaces are called {name:?}; the older one is now {new_name:?}"),
                    None => format!("name and options of keyspace {id} are lost; it is now {new_name:?}"),
                });
                new_name
            }
        };
        taken.insert(name.clone());
        state.keyspaces.insert(id, KeyspaceState::new(name, options));
        state.next_file_number = state.next_file_number.max(u64::from(id) + 1);
    }
}

/// Defines the keyspaces that have no tables, but entries in logs.
fn define_from_logs(
    context: &TableContext,
    selection: &LogSelection,
    knowledge: &Knowledge,
    definitions: &Definitions,
    state: &mut ManifestState,
    report: &mut RepairReport,
) -> Result<()> {
    let mut unknown = BTreeSet::new();
    logs::read(context.fs(), context.dir(), selection, &mut |operation, _| {
        let id = operation.keyspace;
        if !state.keyspaces.contains_key(&id) && !knowledge.dropped.contains(&id) {
            unknown.insert(id);
        }
        Ok(())
    })?;
    define(state, unknown.into_iter(), definitions, report);
    Ok(())
}

/// How the live tables of a keyspace were placed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Placing {
    InLevels,
    Merged,
}

/// Assigns a level to each live table of a keyspace, or plans to merge all of them.
fn place_tables(plan: &mut Plan, report: &mut RepairReport, id: u32, tables: Vec<FoundTable>) -> Result<Placing> {
    let readable: Vec<&FoundTable> = tables.iter().filter(|table| table.checked.entries > 0).collect();
    let shared: Vec<Arc<SalvageTable>> = readable.iter().map(|table| Arc::clone(&table.checked.table)).collect();
    let order = if shared.len() > 1 { find_newer(&shared)? } else { Default::default() };
    let unplaced: Vec<UnplacedTable> = readable
        .iter()
        .map(|table| UnplacedTable {
            number: table.checked.table.number(),
            level: table.level,
            smallest: table.checked.smallest.clone(),
            largest: table.checked.largest.clone(),
            largest_seqno: table.checked.largest_seqno,
        })
        .collect();
    match assign_levels(&unplaced, &order) {
        Some(levels) => {
            for table in tables {
                let level = levels.get(&table.checked.table.number()).copied().unwrap_or(0);
                keep_or_rewrite(plan, report, id, level, table.checked)?;
            }
            Ok(Placing::InLevels)
        }
        None => {
            let keys = readable.iter().map(|table| table.checked.keys).sum();
            let holes = readable.iter().map(|table| table.checked.holes).sum();
            for mut table in tables {
                report_table(plan, report, id, &mut table.checked)?;
            }
            let count = shared.len();
            report.notes.push(format!(
                "no arrangement in levels is right for the {count} tables of keyspace {id}: they are merged"
            ));
            report.tables_rewritten += count as u64;
            let level = u8::try_from(LEVEL_COUNT - 1).unwrap_or(0);
            plan.rewrites.push(Rewrite {
                keyspace: id,
                level,
                tables: shared,
                table_size: MERGED_TABLE_SIZE,
                keys,
                holes,
            });
            Ok(Placing::Merged)
        }
    }
}
