//! Gathers what manifests say when no manifest is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::GREATEST_COUNTED;
use super::logs::AddedTable;
use super::report::RepairFault;
use crate::error::{Error, Result};
use crate::format::deadline::Deadline;
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::log::wal::SyncedLog;
use crate::sorted::table::TableMeta;
use crate::tree::manifest::{self, Loaded, ManifestState, VersionEdit};
use crate::tree::options::KeyspaceOptions;
use crate::vfs::FileSystem;

/// What the readable edits say, from all manifests, whatever is missing between them.
#[derive(Default)]
pub(super) struct Knowledge {
    /// Whether there was a manifest at all.
    pub(super) has_manifest: bool,
    pub(super) keyspaces: BTreeMap<u32, (String, KeyspaceOptions)>,
    pub(super) dropped: BTreeSet<u32>,
    /// Tables that were added and not removed: keyspace, level, table.
    pub(super) tables: BTreeMap<u64, (u32, u8, TableMeta)>,
    pub(super) dead: BTreeSet<u64>,
    pub(super) flushed: SeqNo,
    pub(super) next_number: u64,
    pub(super) seed: Option<u64>,
    pub(super) synced_log: Option<SyncedLog>,
    /// Of ingests up to this number, edits have or had the tables.
    ingested: SeqNo,
    /// The latest time by which something counts as expired.
    expired_by: Deadline,
    /// The last version that was known completely.
    last_complete: Option<CompleteVersion>,
    /// Whether edits are missing since then.
    has_gap: bool,
}

/// A version that was known completely.
#[derive(Default)]
struct CompleteVersion {
    next_number: u64,
    flushed: SeqNo,
    tables: BTreeSet<u64>,
}

/// The manifest in force, if it is good from the first edit to the last. `manifests` are the
/// numbers of the existing manifests, ascending. Damage goes to `faults`.
pub(super) fn find_sound(
    fs: &dyn FileSystem,
    dir: &Path,
    manifests: &[u64],
    faults: &mut Vec<RepairFault>,
) -> Result<Option<Loaded>> {
    match manifest::read_current(fs, dir) {
        Ok(Some(number)) => match manifest::load_number(fs, dir, number) {
            Ok(loaded) => return Ok(Some(loaded)),
            Err(error) => {
                note_damage(faults, error)?;
                return Ok(None);
            }
        },
        Ok(None) => faults.push(fault(&FileKind::Current.path(dir), "there is no such file")),
        Err(error) => note_damage(faults, error)?,
    }
    // Without CURRENT, take the newest manifest. Newer tables tell whether it lags.
    Ok(manifests.last().and_then(|&newest| manifest::load_number(fs, dir, newest).ok()))
}

/// Reads all manifests past all damage, which goes to `faults`.
pub(super) fn read_parts(
    fs: &dyn FileSystem,
    dir: &Path,
    manifests: &[u64],
    faults: &mut Vec<RepairFault>,
) -> Result<Knowledge> {
    let mut knowledge = Knowledge::default();
    for &number in manifests {
        let salvaged = manifest::salvage(fs, dir, number)?;
        if let Some((offset, rule)) = &salvaged.damage {
            let file = FileKind::Manifest(number).path(dir);
            let found = RepairFault { file, offset: *offset, what: rule.clone() };
            if !faults.iter().any(|known| known.file == found.file) {
                faults.push(found);
            }
        }
        knowledge.has_manifest |= !salvaged.edits.is_empty();
        knowledge.has_gap |= !salvaged.has_base;
        knowledge.note_used_below(number + 1);
        for (i, (follows, edit)) in salvaged.edits.iter().enumerate() {
            knowledge.learn(edit, i == 0 && salvaged.has_base, *follows);
        }
        knowledge.remember_if_complete();
        // It is not known whether a later manifest continued from here.
        knowledge.has_gap |= salvaged.damage.is_some();
    }
    Ok(knowledge)
}

fn fault(file: &Path, what: &str) -> RepairFault {
    RepairFault { file: file.to_owned(), offset: 0, what: what.to_owned() }
}

/// Notes damage; returns any other error.
pub(super) fn note_damage(faults: &mut Vec<RepairFault>, error: Error) -> Result<()> {
    match error {
        Error::Corruption { file, offset, rule } => {
            faults.push(RepairFault { file, offset, what: rule });
            Ok(())
        }
        error => Err(error),
    }
}

impl Knowledge {
    fn learn(&mut self, edit: &VersionEdit, is_base: bool, follows: bool) {
        if is_base {
            // A base edit states the whole state.
            let stated: BTreeSet<u64> = edit.added.iter().map(|(.., meta)| meta.number).collect();
            self.dead.extend(self.tables.keys().filter(|number| !stated.contains(number)));
            self.dropped.extend(self.keyspaces.keys().filter(|id| edit.created.iter().all(|(other, ..)| other != *id)));
            self.tables.clear();
            self.keyspaces.clear();
            self.has_gap = false;
        } else if !follows {
            self.remember_if_complete();
            self.has_gap = true;
        }
        self.note_used_below(edit.next_file_number.unwrap_or(0));
        self.flushed = self.flushed.max(edit.flushed_seqno.unwrap_or(0));
        self.seed = edit.hash_seed.or(self.seed);
        self.synced_log = edit.synced_log.or(self.synced_log);
        self.expired_by = self.expired_by.max(edit.expired_by.unwrap_or(0));
        self.ingested = self.ingested.max(edit.ingested.unwrap_or(0));
        for id in &edit.dropped {
            self.keyspaces.remove(id);
            self.dropped.insert(*id);
            let gone: Vec<u64> =
                self.tables.iter().filter(|(_, (of, ..))| of == id).map(|(number, _)| *number).collect();
            gone.iter().for_each(|number| _ = self.tables.remove(number));
            self.dead.extend(gone);
        }
        for (id, name, options) in &edit.created {
            self.keyspaces.insert(*id, (name.clone(), options.clone()));
        }
        for (_, _, number) in &edit.removed {
            self.tables.remove(number);
            self.dead.insert(*number);
        }
        for (id, level, meta) in &edit.added {
            // A table that the edit also removes was moved.
            self.dead.remove(&meta.number);
            self.tables.insert(meta.number, (*id, *level, meta.clone()));
        }
    }

    /// Learns of the ingests of which only logs tell. Each comes with the number that its record
    /// has: after a gap in the log, that may not be the right one, which the tables state.
    pub(super) fn learn_ingests(&mut self, logged: Vec<(SeqNo, AddedTable)>, exists: impl Fn(u64) -> bool) {
        for (seqno, (id, level, meta)) in logged {
            let is_open = seqno > self.ingested && !self.dropped.contains(&id) && !self.dead.contains(&meta.number);
            // A table whose file is gone was replaced long ago, or nothing can be said of it.
            if is_open && seqno == meta.largest_seqno && exists(meta.number) {
                self.tables.entry(meta.number).or_insert((id, level, meta));
            }
        }
    }

    /// Notes that numbers below `next` may have been used.
    fn note_used_below(&mut self, next: u64) {
        if next <= GREATEST_COUNTED {
            self.next_number = self.next_number.max(next);
        }
    }

    /// Remembers the current version if it is known completely.
    fn remember_if_complete(&mut self) {
        if !self.has_gap && self.seed.is_some() {
            self.last_complete = Some(CompleteVersion {
                next_number: self.next_number,
                flushed: self.flushed,
                tables: self.tables.keys().copied().collect(),
            });
        }
    }

    /// Whether a table that no edit names can only have been added before the last complete
    /// version: such a table has been removed. `largest_seqno` is the table's, `inputs` are the
    /// tables that it was made from.
    pub(super) fn is_past(&self, number: u64, largest_seqno: SeqNo, inputs: &[u64]) -> bool {
        let Some(last_complete) = &self.last_complete else { return false };
        if number >= last_complete.next_number {
            return false;
        }
        match inputs {
            [] => largest_seqno <= last_complete.flushed,
            // An input that was live then, or was created later, shows that the table was added
            // later.
            inputs => {
                !inputs.iter().any(|input| last_complete.tables.contains(input) || *input >= last_complete.next_number)
            }
        }
    }

    /// The state without tables and without what tables tell.
    pub(super) fn state(&self) -> ManifestState {
        let mut state = ManifestState::new(self.seed.unwrap_or(0));
        state.next_file_number = self.next_number.max(1);
        state.flushed_seqno = self.flushed;
        state.expired_by = self.expired_by;
        state
    }
}
