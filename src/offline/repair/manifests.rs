//! What manifests say, if none of them says all.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::GREATEST_COUNTED;
use super::report::RepairFault;
use crate::error::{Error, Result};
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::options::KeyspaceOptions;
use crate::sorted::table::TableMeta;
use crate::tree::manifest::{self, Loaded, ManifestState, VersionEdit};
use crate::vfs::FileSystem;
use crate::write::wal::SyncedLog;

/// What edits say that were read, whichever manifest they stand in and whatever is missing between
/// them.
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
    /// What was so when everything was known last.
    whole: Option<Whole>,
    /// Whether edits are missing since then.
    has_gap: bool,
}

/// A version that was known as a whole.
#[derive(Default)]
struct Whole {
    next_number: u64,
    flushed: SeqNo,
    tables: BTreeSet<u64>,
}

/// The manifest in force, if it is good from the first edit to the last. `manifests` are the
/// numbers of those that are there, ascending. Whatever is wrong goes to `faults`.
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
    // Without CURRENT, it is the newest manifest. Tables that are newer say whether it lags.
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
        knowledge.count(number + 1);
        for (i, (follows, edit)) in salvaged.edits.iter().enumerate() {
            knowledge.learn(edit, i == 0 && salvaged.has_base, *follows);
        }
        knowledge.settle();
        // Whether a later manifest went on from here is not known.
        knowledge.has_gap |= salvaged.damage.is_some();
    }
    Ok(knowledge)
}

fn fault(file: &Path, what: &str) -> RepairFault {
    RepairFault { file: file.to_owned(), offset: 0, what: what.to_owned() }
}

/// Notes damage; any other error is returned.
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
            // It states all that there is.
            let stated: BTreeSet<u64> = edit.added.iter().map(|(.., meta)| meta.number).collect();
            self.dead.extend(self.tables.keys().filter(|number| !stated.contains(number)));
            self.dropped.extend(self.keyspaces.keys().filter(|id| edit.created.iter().all(|(other, ..)| other != *id)));
            self.tables.clear();
            self.keyspaces.clear();
            self.has_gap = false;
        } else if !follows {
            self.settle();
            self.has_gap = true;
        }
        self.count(edit.next_file_number.unwrap_or(0));
        self.flushed = self.flushed.max(edit.flushed_seqno.unwrap_or(0));
        self.seed = edit.hash_seed.or(self.seed);
        self.synced_log = edit.synced_log.or(self.synced_log);
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
            // One that was moved, if it was removed just before.
            self.dead.remove(&meta.number);
            self.tables.insert(meta.number, (*id, *level, meta.clone()));
        }
    }

    /// Notes that numbers below `next` may have been used.
    fn count(&mut self, next: u64) {
        if next <= GREATEST_COUNTED {
            self.next_number = self.next_number.max(next);
        }
    }

    /// Notes what is known as a whole, if it is.
    fn settle(&mut self) {
        if !self.has_gap && self.seed.is_some() {
            self.whole = Some(Whole {
                next_number: self.next_number,
                flushed: self.flushed,
                tables: self.tables.keys().copied().collect(),
            });
        }
    }

    /// Whether a table that no edit names was added, if at all, before everything was known: then
    /// it has been removed since. `largest_seqno` is its own, `inputs` are the tables that it was
    /// made from.
    pub(super) fn is_past(&self, number: u64, largest_seqno: SeqNo, inputs: &[u64]) -> bool {
        let Some(whole) = &self.whole else { return false };
        if number >= whole.next_number {
            return false;
        }
        match inputs {
            [] => largest_seqno <= whole.flushed,
            // One that was alive then was replaced later. One that came later comes with what it
            // was made into.
            inputs => !inputs.iter().any(|input| whole.tables.contains(input) || *input >= whole.next_number),
        }
    }

    /// The state without tables and without what tables say.
    pub(super) fn state(&self) -> ManifestState {
        let mut state = ManifestState::new(self.seed.unwrap_or(0));
        state.next_file_number = self.next_number.max(1);
        state.flushed_seqno = self.flushed;
        state
    }
}
