//! [`ManifestState`]: the plain data that version edits build up.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::branch::Branch;
use super::edit::{LEVEL_COUNT, RANGE_LEVEL, VersionEdit};
use super::unfinished::UnfinishedTask;
use crate::format::deadline::Deadline;
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::format::{Decoded, Malformed};
use crate::log::wal::SyncedLog;
use crate::options::KeyspaceOptions;
use crate::sorted::operator::NamedOperator;
use crate::sorted::table::TableMeta;
use crate::sorted::values::ValueFileMeta;

/// Most keyspaces that exist at a time. Part of the format.
pub const MAX_KEYSPACES: usize = 65_535;
/// Name of keyspace 0.
pub const DEFAULT_KEYSPACE: &str = "default";

/// The contents of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManifestState {
    /// Also the counter of keyspace ids. No id is used twice, because the log may still hold
    /// entries of a dropped keyspace.
    pub next_file_number: u64,
    pub min_log: u64,
    pub flushed_seqno: SeqNo,
    pub hash_seed: u64,
    /// The newest log known to hold synced entries, until it is obsolete.
    pub synced_log: Option<SyncedLog>,
    /// Everything whose deadline is not later counts as expired; 0 if nothing does.
    pub expired_by: Deadline,
    /// Ingests numbered up to it have taken effect; 0 without any.
    pub ingested: SeqNo,
    /// Those after the first, ascending.
    pub branches: Vec<Branch>,
    pub keyspaces: BTreeMap<u32, KeyspaceState>,
    /// Compactions to go on with, by their ids. Their tables and value files are in no keyspace.
    pub unfinished: BTreeMap<u64, UnfinishedTask>,
    /// Their names: no two are equal.
    names: BTreeSet<String>,
}

/// The contents of a keyspace.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyspaceState {
    pub name: String,
    pub options: KeyspaceOptions,
    pub levels: [LevelState; LEVEL_COUNT],
    /// Range tables.
    pub ranges: LevelState,
    /// Value files by number.
    pub values: BTreeMap<u64, ValueFileState>,
}

/// A value file, and what the tables' entries point to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueFileState {
    pub meta: ValueFileMeta,
    /// Entries that point to it. Between the stages of a compaction, two tables may have the same
    /// entry.
    live: u64,
}

/// The tables of a level. They may overlap in level 0. In any other level they share no user key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LevelState {
    tables: BTreeMap<u64, TableMeta>,
    /// Table number by smallest key; empty in level 0.
    by_key: BTreeMap<Box<[u8]>, u64>,
}

impl ManifestState {
    /// A state without keyspaces. Creating a store adds the default one.
    pub fn new(hash_seed: u64) -> ManifestState {
        ManifestState { next_file_number: 1, hash_seed, ..ManifestState::default() }
    }

    /// Adds the default keyspace to a state without keyspaces.
    pub fn add_default_keyspace(&mut self, options: KeyspaceOptions) {
        self.names.insert(DEFAULT_KEYSPACE.to_owned());
        self.keyspaces.insert(0, KeyspaceState::new(DEFAULT_KEYSPACE, options));
    }

    /// The state given by the first edit of a manifest.
    pub fn from_snapshot(edit: &VersionEdit) -> Decoded<ManifestState> {
        let (Some(_), Some(_), Some(_), Some(hash_seed)) =
            (edit.next_file_number, edit.min_log, edit.flushed_seqno, edit.hash_seed)
        else {
            return Err(Malformed("the first version edit does not state a whole version"));
        };
        let mut state = ManifestState::new(hash_seed);
        // Files that no table points to are strays.
        state.apply(edit)?;
        match state.keyspaces.get(&0) {
            Some(keyspace) if keyspace.name == DEFAULT_KEYSPACE => Ok(state),
            _ => Err(Malformed("keyspace 0 is not the default keyspace")),
        }
    }

    /// The edit that states the whole version, the first of a new manifest.
    pub fn snapshot_edit(&self) -> VersionEdit {
        let mut edit = VersionEdit {
            next_file_number: Some(self.next_file_number),
            min_log: Some(self.min_log),
            flushed_seqno: Some(self.flushed_seqno),
            hash_seed: Some(self.hash_seed),
            synced_log: self.synced_log,
            expired_by: (self.expired_by > 0).then_some(self.expired_by),
            ingested: (self.ingested > 0).then_some(self.ingested),
            branches: self.branches.clone(),
            unfinished: self.unfinished.values().cloned().collect(),
            ..VersionEdit::default()
        };
        for (&id, keyspace) in &self.keyspaces {
            edit.created.push((id, keyspace.name.clone(), keyspace.options.clone()));
            edit.values.extend(keyspace.values.values().map(|file| (id, file.meta)));
            edit.added.extend(keyspace.tables().map(|(level, table)| (id, level, table.clone())));
        }
        edit
    }

    /// Takes the next file number.
    pub fn take_number(&mut self) -> u64 {
        let number = self.next_file_number;
        self.next_file_number += 1;
        number
    }

    /// The branch that wrote file `number`.
    pub fn branch_of(&self, number: u64) -> u64 {
        let branch = self.branches.iter().rfind(|branch| branch.first <= number);
        branch.map_or(self.hash_seed, |branch| branch.id)
    }

    /// The branch of all that the store itself has written, as opposed to what it is a copy of. A
    /// copy that has written nothing has that of its original.
    pub fn own_branch(&self) -> u64 {
        self.branches.iter().rfind(|branch| branch.id != 0).map_or(self.hash_seed, |branch| branch.id)
    }

    /// Draws the id of the last branch if it has none; returns whether it had none.
    pub fn draw_branch(&mut self, draw: impl Fn() -> u64) -> bool {
        let undrawn = self.branches.last_mut().filter(|branch| branch.id == 0);
        undrawn.is_some_and(|branch| {
            branch.id = draw().max(1);
            true
        })
    }

    /// Puts the merge operators that `named` finds in place of their names.
    pub fn find_operators(&mut self, named: impl Fn(&str) -> NamedOperator) {
        for keyspace in self.keyspaces.values_mut() {
            if let Some(operator) = &mut keyspace.options.merge_operator {
                *operator = named(operator.name());
            }
        }
    }

    /// Gives a keyspace another name. No edit says so: a new manifest states it.
    pub fn rename_keyspace(&mut self, id: u32, name: &str) -> Decoded<()> {
        if id == 0 {
            return Err(Malformed("the default keyspace changes its name"));
        }
        let keyspace = self.keyspaces.get_mut(&id).ok_or(UNKNOWN_KEYSPACE)?;
        if !self.names.insert(name.to_owned()) {
            return Err(SAME_NAME);
        }
        self.names.remove(&std::mem::replace(&mut keyspace.name, name.to_owned()));
        Ok(())
    }

    /// Takes every keyspace out of the state but one. The default one is there, and new.
    pub fn keep_only(&mut self, id: u32) {
        self.keyspaces.retain(|of, _| *of == id);
        self.unfinished.retain(|_, note| note.keyspace == id);
        let default = || KeyspaceState::new(DEFAULT_KEYSPACE, KeyspaceOptions::new());
        self.keyspaces.entry(0).or_insert_with(default);
        self.names = self.keyspaces.values().map(|keyspace| keyspace.name.clone()).collect();
    }

    /// Whether a table numbered `number` belongs to the store, or to an unfinished compaction.
    pub fn has_table(&self, number: u64) -> bool {
        self.keyspaces.values().any(|keyspace| keyspace.has_table(number))
            || self.unfinished.values().any(|note| note.has_table(number))
    }

    /// Whether a value file numbered `number` belongs to the store, or to an unfinished compaction.
    pub fn has_values(&self, number: u64) -> bool {
        self.keyspaces.values().any(|keyspace| keyspace.values.contains_key(&number))
            || self.unfinished.values().any(|note| note.has_values(number))
    }

    /// Forgets unfinished compactions that cannot go on: an input or a finished file is gone, or
    /// something else has come to where their tables belong. `has` says which files there are.
    pub fn forget_stale(&mut self, has: impl Fn(FileKind) -> bool) {
        let keyspaces = &self.keyspaces;
        self.unfinished.retain(|_, note| {
            let Some(keyspace) = keyspaces.get(&note.keyspace) else { return false };
            let level = |level: u8| keyspace.levels.get(usize::from(level));
            let is_input = |level: u8, number: u64| note.inputs.binary_search(&(level, number)).is_ok();
            let overlaps = |table: &TableMeta| {
                let is_met = |other: &TableMeta| other.smallest <= table.largest && table.smallest <= other.largest;
                let output = level(note.output_level).into_iter().flat_map(LevelState::iter);
                output.filter(|other| !is_input(note.output_level, other.number)).any(is_met)
            };
            !note.inputs.is_empty()
                && note.inputs.iter().all(|&(of, number)| level(of).is_some_and(|of| of.tables.contains_key(&number)))
                && note
                    .tables
                    .iter()
                    .all(|table| has(FileKind::Table(table.number)) && !keyspace.has_table(table.number))
                && note.values.iter().all(|file| has(FileKind::Values(file.number)))
                && (note.output_level == 0 || !note.tables.iter().any(overlaps))
        });
    }

    /// The files of unfinished compactions that no version has once `edit` is applied.
    pub fn files_left_by(&self, edit: &VersionEdit) -> Vec<FileKind> {
        let is_over = |note: &&UnfinishedTask| {
            edit.ended.contains(&note.id)
                || edit.dropped.contains(&note.keyspace)
                || edit.unfinished.iter().any(|new| new.id == note.id)
        };
        let mut left: Vec<FileKind> =
            self.unfinished.values().filter(is_over).flat_map(UnfinishedTask::files).collect();
        let stays = |kind: &FileKind| {
            let is_added = edit.added.iter().any(|(.., table)| *kind == FileKind::Table(table.number))
                || edit.values.iter().any(|(_, file)| *kind == FileKind::Values(file.number));
            is_added || edit.unfinished.iter().any(|note| note.files().any(|file| file == *kind))
        };
        left.retain(|kind| !stays(kind));
        left
    }

    /// Adds a value file to a keyspace.
    pub fn add_values(&mut self, keyspace: u32, meta: ValueFileMeta) -> Decoded<()> {
        if meta.number >= self.next_file_number {
            return Err(Malformed("a value file's number was not taken from the counter"));
        }
        let values = &mut self.keyspace_mut(keyspace)?.values;
        match values.insert(meta.number, ValueFileState { meta, live: 0 }) {
            None => Ok(()),
            Some(_) => Err(Malformed("a value file is added twice")),
        }
    }

    /// Adds a table to a keyspace.
    pub fn add_table(&mut self, keyspace: u32, level: u8, table: TableMeta) -> Decoded<()> {
        if table.number >= self.next_file_number {
            return Err(Malformed("a table's number was not taken from the counter"));
        }
        let keyspace = self.keyspace_mut(keyspace)?;
        if keyspace.has_table(table.number) {
            return Err(Malformed("a table is added twice"));
        }
        for reference in table.references.iter() {
            let file = keyspace.values.get_mut(&reference.file);
            let file = file.ok_or(Malformed("a table points to a value file that is not there"))?;
            file.live = file.live.saturating_add(reference.count);
        }
        keyspace.level_mut(level)?.add(table, (1..RANGE_LEVEL).contains(&level))
    }

    /// Applies an edit; returns the value files that no table points to any more. An edit that
    /// contradicts the state is an error; the state must then be discarded.
    pub fn apply(&mut self, edit: &VersionEdit) -> Decoded<Vec<u64>> {
        raise(&mut self.next_file_number, edit.next_file_number)?;
        raise(&mut self.min_log, edit.min_log)?;
        raise(&mut self.flushed_seqno, edit.flushed_seqno)?;
        raise(&mut self.expired_by, edit.expired_by)?;
        raise(&mut self.ingested, edit.ingested)?;
        if edit.hash_seed.is_some_and(|seed| seed != self.hash_seed) {
            return Err(Malformed("the hash seed changes"));
        }
        if let Some(synced) = edit.synced_log {
            self.note_synced(synced)?;
        }
        let mut dead = Vec::new();
        for id in &edit.dropped {
            dead.extend(self.drop_keyspace(*id)?.values.into_keys());
        }
        self.create_keyspaces(&edit.created)?;
        // Files that may have lost their last table, or have none yet.
        let mut released = BTreeSet::new();
        for (id, level, number) in &edit.removed {
            let table = self.keyspace_mut(*id)?.remove_table(*level, *number)?;
            released.extend(table.references.iter().map(|reference| (*id, reference.file)));
        }
        for (id, file) in &edit.values {
            self.add_values(*id, *file)?;
            released.insert((*id, file.number));
        }
        for (id, level, table) in &edit.added {
            self.add_table(*id, *level, table.clone())?;
        }
        for branch in &edit.branches {
            Branch::add(&mut self.branches, *branch)?;
        }
        self.unfinished.retain(|id, note| !edit.ended.contains(id) && !edit.dropped.contains(&note.keyspace));
        self.unfinished.extend(edit.unfinished.iter().map(|note| (note.id, note.clone())));
        self.synced_log = self.synced_log.filter(|log| log.number >= self.min_log);
        for (id, number) in released {
            let values = &mut self.keyspace_mut(id)?.values;
            if values.get(&number).is_some_and(|file| file.live == 0) {
                values.remove(&number);
                dead.push(number);
            }
        }
        Ok(dead)
    }

    /// Every entry up to this one was on stable storage, as far as the manifest knows.
    pub fn durable_seqno(&self) -> SeqNo {
        self.synced_log.map_or(0, |log| log.seqno).max(self.flushed_seqno)
    }

    fn note_synced(&mut self, synced: SyncedLog) -> Decoded<()> {
        if synced.number >= self.next_file_number {
            return Err(Malformed("a log's number was not taken from the counter"));
        }
        if self.synced_log.is_some_and(|last| synced.number < last.number || synced.seqno < last.seqno) {
            return Err(Malformed("a synced log comes before the last one"));
        }
        self.synced_log = Some(synced);
        Ok(())
    }

    fn drop_keyspace(&mut self, id: u32) -> Decoded<KeyspaceState> {
        if id == 0 {
            return Err(Malformed("the default keyspace is dropped"));
        }
        let keyspace = self.keyspaces.remove(&id).ok_or(UNKNOWN_KEYSPACE)?;
        self.names.remove(&keyspace.name);
        Ok(keyspace)
    }

    /// Creates keyspaces, or changes the options of those that exist.
    fn create_keyspaces(&mut self, created: &[(u32, String, KeyspaceOptions)]) -> Decoded<()> {
        for (id, name, options) in created {
            if u64::from(*id) >= self.next_file_number {
                return Err(Malformed("a keyspace's id was not taken from the counter"));
            }
            match self.keyspaces.get_mut(id) {
                Some(keyspace) if keyspace.name != *name => return Err(Malformed("a keyspace changes its name")),
                Some(keyspace) => keyspace.options = options.clone(),
                None if !self.names.insert(name.clone()) => return Err(SAME_NAME),
                None => _ = self.keyspaces.insert(*id, KeyspaceState::new(name.as_str(), options.clone())),
            }
        }
        if self.keyspaces.len() > MAX_KEYSPACES {
            return Err(Malformed("there are more than 65535 keyspaces"));
        }
        Ok(())
    }

    fn keyspace_mut(&mut self, id: u32) -> Decoded<&mut KeyspaceState> {
        self.keyspaces.get_mut(&id).ok_or(UNKNOWN_KEYSPACE)
    }
}

const SAME_NAME: Malformed = Malformed("two keyspaces have the same name");
const UNKNOWN_KEYSPACE: Malformed = Malformed("a version edit names a keyspace that does not exist");

/// Raises a number that must never fall.
fn raise<T: Copy + PartialOrd>(number: &mut T, to: Option<T>) -> Decoded<()> {
    if let Some(to) = to {
        if to < *number {
            return Err(Malformed("a counter falls"));
        }
        *number = to;
    }
    Ok(())
}

impl KeyspaceState {
    /// A keyspace without tables.
    pub fn new(name: impl Into<String>, options: KeyspaceOptions) -> KeyspaceState {
        let (levels, ranges, values) = Default::default();
        KeyspaceState { name: name.into(), options, levels, ranges, values }
    }

    /// All tables with their levels, range tables too.
    pub fn tables(&self) -> impl Iterator<Item = (u8, &TableMeta)> {
        (0..)
            .zip(self.levels.iter().chain([&self.ranges]))
            .flat_map(|(level, tables)| tables.iter().map(move |table| (level, table)))
    }

    /// Metadata of the tables of entries, level by level, in no particular order.
    pub fn metas(&self) -> [Vec<&TableMeta>; LEVEL_COUNT] {
        std::array::from_fn(|level| self.levels[level].iter().collect())
    }

    pub fn has_table(&self, number: u64) -> bool {
        self.levels.iter().chain([&self.ranges]).any(|level| level.tables.contains_key(&number))
    }

    /// Removes a table; returns it.
    fn remove_table(&mut self, level: u8, number: u64) -> Decoded<TableMeta> {
        let table = self.level_mut(level)?.remove(number)?;
        for reference in table.references.iter() {
            if let Some(file) = self.values.get_mut(&reference.file) {
                file.live = file.live.saturating_sub(reference.count);
            }
        }
        Ok(table)
    }

    fn level_mut(&mut self, level: u8) -> Decoded<&mut LevelState> {
        if level == RANGE_LEVEL {
            return Ok(&mut self.ranges);
        }
        self.levels.get_mut(usize::from(level)).ok_or(Malformed("a level is beyond the last one"))
    }
}

impl LevelState {
    /// The tables, ordered by number.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &TableMeta> {
        self.tables.values()
    }

    fn add(&mut self, table: TableMeta, disjoint: bool) -> Decoded<()> {
        if disjoint {
            let not_behind = (Bound::Unbounded, Bound::Included(&*table.largest));
            let last = self.by_key.range::<[u8], _>(not_behind).next_back();
            let neighbour = last.and_then(|(_, number)| self.tables.get(number));
            if neighbour.is_some_and(|neighbour| neighbour.largest >= table.smallest) {
                return Err(Malformed("two tables of one level overlap"));
            }
            self.by_key.insert(table.smallest.clone(), table.number);
        }
        self.tables.insert(table.number, table);
        Ok(())
    }

    fn remove(&mut self, number: u64) -> Decoded<TableMeta> {
        let gone = self.tables.remove(&number);
        let table = gone.ok_or(Malformed("a version edit removes a table that is not there"))?;
        self.by_key.remove(&table.smallest);
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::super::edit::tests::sample_table;
    use super::*;

    fn new_state() -> ManifestState {
        let mut state = ManifestState::new(42);
        state.add_default_keyspace(KeyspaceOptions::new());
        state.next_file_number = 100;
        state
    }

    fn create(id: u32, name: &str) -> VersionEdit {
        VersionEdit { created: vec![(id, name.to_owned(), KeyspaceOptions::new())], ..VersionEdit::default() }
    }

    fn drop_id(id: u32) -> VersionEdit {
        VersionEdit { dropped: vec![id], ..VersionEdit::default() }
    }

    fn add(level: u8, number: u64, range: (&[u8], &[u8])) -> VersionEdit {
        VersionEdit { added: vec![(0, level, sample_table(number, range))], ..VersionEdit::default() }
    }

    fn remove(level: u8, number: u64) -> VersionEdit {
        VersionEdit { removed: vec![(0, level, number)], ..VersionEdit::default() }
    }

    /// Applies all edits but the last, which the state must refuse with an error that contains
    /// `rule`.
    #[track_caller]
    fn check_refused(edits: &[VersionEdit], rule: &str) {
        let mut state = new_state();
        let (last, first) = edits.split_last().unwrap();
        for edit in first {
            state.apply(edit).unwrap();
        }
        let error = state.apply(last).unwrap_err();
        assert!(error.0.contains(rule), "{error}");
    }

    #[test]
    fn snapshot_restores_the_state() {
        let mut state = new_state();
        let edits = [
            create(1, "words"),
            create(2, "gone"),
            drop_id(2),
            add(0, 10, (b"a", b"z")),
            add(0, 11, (b"b", b"c")),
            add(6, 12, (b"a", b"b")),
            VersionEdit {
                next_file_number: Some(101),
                min_log: Some(13),
                flushed_seqno: Some(77),
                synced_log: Some(SyncedLog { number: 13, seqno: 80 }),
                added: vec![(1, 3, sample_table(14, (b"", b"")))],
                ..VersionEdit::default()
            },
        ];
        for edit in &edits {
            state.apply(edit).unwrap();
        }
        let snapshot = VersionEdit::decode(&state.snapshot_edit().encode()).unwrap();
        assert_eq!(ManifestState::from_snapshot(&snapshot).as_ref(), Ok(&state));
        assert_eq!((state.min_log, state.flushed_seqno, state.take_number()), (13, 77, 101));
        assert_eq!(state.take_number(), 102);
        let tables: Vec<_> = state.keyspaces[&0].tables().map(|(level, table)| (level, table.number)).collect();
        assert_eq!(tables, [(0, 10), (0, 11), (6, 12)]);
        assert!(state.has_table(14) && !state.has_table(13));
    }

    #[test]
    fn a_file_is_of_the_last_branch_that_begins_at_its_number_or_before() {
        let branches = |branches: &[(u64, u64)]| VersionEdit {
            branches: branches.iter().map(|&(first, id)| Branch { first, id }).collect(),
            ..VersionEdit::default()
        };
        let mut state = new_state();
        state.draw_branch(|| 9);
        assert_eq!(state.branches, []);
        state.apply(&branches(&[(50, 7), (60, 0)])).unwrap();
        let of = |state: &ManifestState| [1, 49, 50, 59, 60, 90].map(|number| state.branch_of(number));
        assert_eq!(of(&state), [42, 42, 7, 7, 0, 0]);
        assert_eq!(ManifestState::from_snapshot(&state.snapshot_edit()).as_ref(), Ok(&state));
        assert!(state.apply(&branches(&[(70, 8)])).is_err(), "the last one is not drawn");
        state.draw_branch(|| 9);
        state.draw_branch(|| 10);
        assert_eq!(of(&state), [42, 42, 7, 7, 9, 9]);
        assert!(state.apply(&branches(&[(60, 8)])).is_err(), "it begins with the last one");
    }

    #[test]
    fn synced_log_must_be_there_until_it_is_no_longer_needed() {
        let synced =
            |number, seqno| VersionEdit { synced_log: Some(SyncedLog { number, seqno }), ..VersionEdit::default() };
        let mut state = new_state();
        state.apply(&synced(13, 80)).unwrap();
        state.apply(&synced(15, 95)).unwrap();
        // The log may be stated again, alone or with a higher sequence number.
        state.apply(&synced(15, 95)).unwrap();
        state.apply(&synced(15, 96)).unwrap();
        assert_eq!(state.synced_log, Some(SyncedLog { number: 15, seqno: 96 }));
        for (min_log, is_needed) in [(15, true), (16, false)] {
            state.apply(&VersionEdit { min_log: Some(min_log), ..VersionEdit::default() }).unwrap();
            assert_eq!(state.synced_log.is_some(), is_needed);
            let snapshot = ManifestState::from_snapshot(&state.snapshot_edit()).unwrap();
            assert_eq!(snapshot, state);
        }
        check_refused(&[synced(100, 1)], "counter");
        check_refused(&[synced(15, 80), synced(14, 90)], "before the last");
        check_refused(&[synced(15, 80), synced(16, 79)], "before the last");
    }

    #[test]
    fn incomplete_snapshot_is_refused() {
        let whole = new_state().snapshot_edit();
        assert!(ManifestState::from_snapshot(&whole).is_ok());
        let cases = [
            VersionEdit { min_log: None, ..whole.clone() },
            VersionEdit { next_file_number: Some(0), ..whole.clone() },
            VersionEdit { created: vec![], ..whole.clone() },
            VersionEdit { created: create(0, "other").created, ..whole.clone() },
        ];
        for edit in cases {
            assert!(ManifestState::from_snapshot(&edit).is_err(), "{edit:?}");
        }
    }

    #[test]
    fn edit_that_contradicts_the_state_is_refused() {
        check_refused(&[remove(1, 10)], "not there");
        check_refused(&[add(1, 10, (b"a", b"b")), remove(2, 10)], "not there");
        check_refused(&[add(1, 10, (b"a", b"b")), add(3, 10, (b"x", b"y"))], "added twice");
        check_refused(&[add(1, 100, (b"a", b"b"))], "counter");
        check_refused(&[add(8, 10, (b"a", b"b"))], "level");
        check_refused(&[drop_id(0)], "default");
        check_refused(&[drop_id(5)], "does not exist");
        check_refused(&[create(1, "default")], "same name");
        check_refused(&[create(1, "a"), create(1, "b")], "name");
        check_refused(&[create(100, "a")], "counter");
        let falling = VersionEdit { next_file_number: Some(99), ..VersionEdit::default() };
        check_refused(&[falling], "falls");
        let seed = VersionEdit { hash_seed: Some(43), ..VersionEdit::default() };
        check_refused(&[seed], "seed");
    }

    #[test]
    fn there_are_at_most_so_many_keyspaces() {
        let create = |ids: std::ops::Range<u32>| VersionEdit {
            next_file_number: Some(1 << 20),
            created: ids.map(|id| (id, format!("{id}"), KeyspaceOptions::new())).collect(),
            ..VersionEdit::default()
        };
        // With the default keyspace.
        check_refused(&[create(1..65_535), create(65_535..65_536)], "65535");
        check_refused(&[create(1..65_537)], "65535");
    }

    #[test]
    fn tables_overlap_only_on_level_0() {
        let ranges: [(&[u8], &[u8]); 5] = [(b"f", b"g"), (b"a", b"d"), (b"e", b"e"), (b"a", b"z"), (b"d", b"f")];
        for range in ranges {
            check_refused(&[add(1, 10, (b"d", b"f")), add(1, 11, range)], "overlap");
            let mut state = new_state();
            state.apply(&add(0, 10, (b"d", b"f"))).unwrap();
            state.apply(&add(0, 11, range)).unwrap();
        }
        let mut state = new_state();
        for (number, range) in (10..).zip([(b"d", b"f"), (b"g", b"h"), (b"a", b"c")]) {
            state.apply(&add(1, number, (range.0, range.1))).unwrap();
        }
    }

    #[test]
    fn table_moves_and_name_passes_on_in_one_edit() {
        let mut state = new_state();
        state.apply(&add(1, 10, (b"a", b"b"))).unwrap();
        state.apply(&create(1, "words")).unwrap();
        let edit = VersionEdit {
            removed: vec![(0, 1, 10)],
            added: vec![(0, 2, sample_table(10, (b"a", b"b"))), (0, 1, sample_table(11, (b"b", b"c")))],
            dropped: vec![1],
            created: create(2, "words").created,
            ..VersionEdit::default()
        };
        state.apply(&edit).unwrap();
        assert_eq!(state.keyspaces.keys().collect::<Vec<_>>(), [&0, &2]);
        let tables: Vec<_> = state.keyspaces[&0].tables().map(|(level, table)| (level, table.number)).collect();
        assert_eq!(tables, [(1, 11), (2, 10)]);
    }
}
