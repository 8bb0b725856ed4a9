//! How keyspaces come, change and go.
//!
//! Each such change is one edit and one view, under one lock. A keyspace may begin or
//! cease to have a log only while no memtable holds an entry: else a crash would take some of its
//! writes and leave later ones.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::shape::gaps::Gaps;
use super::shape::view::{ReadView, Tree};
use super::store::Store;
use super::write::room::Stillness;
use crate::error::{Error, Result};
use crate::options::KeyspaceOptions;
use crate::tree::manifest::{MAX_KEYSPACES, MAX_NAME_LEN, VersionEdit};
use crate::tree::version::Version;

impl Store {
    /// Returns id and name of the keyspace called `name`, and creates it if absent. `options`, if
    /// given, replace the stored ones.
    pub(super) fn keyspace(self: &Arc<Self>, name: &str, options: Option<KeyspaceOptions>) -> Result<(u32, Arc<str>)> {
        let mut found = self.keyspaces(&[(name, options)])?;
        found.pop().ok_or_else(|| Error::invalid("a keyspace was not made; this is a bug in tamis"))
    }

    /// Returns ids and names of keyspaces, and creates those that are absent, all in one edit.
    /// Options, if given, replace the stored ones.
    pub(super) fn keyspaces(
        self: &Arc<Self>,
        wanted: &[(&str, Option<KeyspaceOptions>)],
    ) -> Result<Vec<(u32, Arc<str>)>> {
        self.gate.check_open()?;
        for (name, options) in wanted {
            check_name(name)?;
            options.as_ref().map_or(Ok(()), KeyspaceOptions::validate)?;
        }
        let mut names = HashSet::new();
        if let Some((twice, _)) = wanted.iter().find(|(name, _)| !names.insert(*name)) {
            return Err(Error::invalid(format_args!("the keyspace {twice} is named twice")));
        }
        let view = self.shape.view();
        let as_it_is = wanted.iter().map(|(name, options)| self.unchanged(&view, name, options.as_ref()));
        if let Some(found) = as_it_is.collect::<Result<Option<Vec<_>>>>()? {
            return Ok(found);
        }
        drop(view);
        self.gate.check_writable()?;
        self.define_keyspaces(wanted)
    }

    /// A keyspace that exists and has these options already.
    fn unchanged(
        &self,
        view: &ReadView,
        name: &str,
        options: Option<&KeyspaceOptions>,
    ) -> Result<Option<(u32, Arc<str>)>> {
        let Some(tree) = view.tree_named(name) else { return Ok(None) };
        let succeeding = options.map(|options| options.clone().succeeding(&tree.options)).transpose()?;
        let is_same = |options: KeyspaceOptions| {
            options == tree.options && options.compaction_filter.is_same(&tree.options.compaction_filter)
        };
        Ok(succeeding.is_none_or(is_same).then(|| (tree.id, Arc::clone(&tree.name))))
    }

    fn define_keyspaces(self: &Arc<Self>, wanted: &[(&str, Option<KeyspaceOptions>)]) -> Result<Vec<(u32, Arc<str>)>> {
        // Dropped last.
        let mut still = None;
        loop {
            let defining = self.shape.keep_keyspaces();
            let view = self.shape.view();
            let missing = wanted.iter().filter(|(name, _)| view.tree_named(name).is_none()).count();
            if missing > 0 && view.trees.len() + missing > MAX_KEYSPACES {
                return Err(Error::invalid(format_args!("a store takes up to {MAX_KEYSPACES} keyspaces")));
            }
            let trees = wanted.iter().map(|(name, options)| self.defined(&view, name, options.clone()));
            let trees = trees.collect::<Result<Vec<(Tree, bool)>>>()?;
            let found = trees.iter().map(|(tree, _)| (tree.id, Arc::clone(&tree.name))).collect();
            let changed: Vec<Tree> = trees.into_iter().filter(|(_, changes)| *changes).map(|(tree, _)| tree).collect();
            let former = |tree: &Tree| view.tree(tree.id).map(|former| &former.options);
            let changes_log =
                changed.iter().any(|tree| former(tree).is_some_and(|former| former.wal != tree.options.wal));
            if changed.iter().any(|tree| !tree.options.wal) {
                self.writer.note_unlogged();
            }
            if changes_log {
                // Otherwise a crash would take earlier writes, and leave later ones. Nobody waits
                // for a flush under this lock.
                still.get_or_insert_with(|| Stillness::begin(self));
                if !self.shape.view().memtables().all(|memtable| memtable.is_empty()) {
                    drop((defining, view));
                    self.flush()?;
                    continue;
                }
            }
            let expiring = changed.iter().filter(|tree| tree.options.ttl.is_some());
            expiring.for_each(|tree| self.clock.note_ttl(tree.id));
            if changed.iter().all(|tree| former(tree) == Some(&tree.options)) {
                // Only what is not stored has changed.
                self.change_view(|view| changed.into_iter().for_each(|tree| view.redefine(tree)));
            } else {
                self.install_keyspaces(changed)?;
            }
            if changes_log {
                self.writer.note_other_logging();
            }
            return Ok(found);
        }
    }

    /// The keyspace called `name` as it is to be with `options`, and whether it is new or has
    /// changed.
    fn defined(&self, view: &ReadView, name: &str, options: Option<KeyspaceOptions>) -> Result<(Tree, bool)> {
        Ok(match (view.tree_named(name).cloned(), options) {
            (Some(tree), None) => (tree, false),
            (Some(tree), Some(options)) => (Tree { options: options.succeeding(&tree.options)?, ..tree }, true),
            (None, options) => {
                let tree = Tree {
                    // File numbers are never reused, hence ids neither: entries of a dropped
                    // keyspace that are still in the log can never appear in another one.
                    id: u32::try_from(self.shape.catalog().new_file_number())
                        .map_err(|_| Error::invalid("the store has used up its keyspace ids"))?,
                    name: Arc::from(name),
                    options: options.unwrap_or_default(),
                    version: Arc::new(Version::default()),
                    gaps: Arc::new(Gaps::within(self.tables.values().budget())),
                    traffic: Arc::default(),
                    clock: Arc::clone(&self.clock),
                    values: Arc::clone(self.tables.values()),
                };
                (tree, true)
            }
        })
    }

    /// Creates keyspaces or changes their options; the caller keeps the others as they are.
    fn install_keyspaces(self: &Arc<Self>, trees: Vec<Tree>) -> Result<()> {
        let created = trees.iter().map(|tree| (tree.id, tree.name.to_string(), tree.options.clone())).collect();
        let edit = VersionEdit { created, ..VersionEdit::default() };
        self.install(edit, |view| trees.into_iter().for_each(|tree| view.redefine(tree)))?;
        // The new options may make compactions due.
        self.schedule();
        Ok(())
    }

    /// Changes the options of an existing keyspace.
    pub(super) fn change_options(
        self: &Arc<Self>,
        keyspace: u32,
        name: &str,
        change: impl FnOnce(&mut KeyspaceOptions),
    ) -> Result<()> {
        self.gate.check_writable()?;
        let _defining = self.shape.keep_keyspaces();
        let tree = self.shape.view().tree(keyspace).cloned();
        let mut tree = tree.ok_or_else(|| Error::KeyspaceDropped(name.to_owned()))?;
        let before = tree.options.clone();
        change(&mut tree.options);
        tree.options.validate()?;
        if tree.options == before {
            return Ok(());
        }
        self.install_keyspaces(vec![tree])
    }

    /// Gives a keyspace another name.
    pub(super) fn rename_keyspace(&self, name: &str, new: &str) -> Result<()> {
        self.gate.check_writable()?;
        check_name(new)?;
        let _defining = self.shape.keep_keyspaces();
        let view = self.shape.view();
        let Some((id, former)) = view.tree_named(name).map(|tree| (tree.id, Arc::clone(&tree.name))) else {
            return Err(Error::invalid(format_args!("there is no keyspace {name:?}")));
        };
        if name == new {
            return Ok(());
        }
        if id == 0 {
            return Err(Error::invalid("the default keyspace keeps its name"));
        }
        if view.tree_named(new).is_some() {
            return Err(Error::invalid(format_args!("there is a keyspace {new:?} already")));
        }
        drop(view);
        self.install_name(id, new)?;
        self.shape.note_renamed(id, &former);
        Ok(())
    }

    /// Drops keyspaces and all their tables, in one edit; returns how many existed.
    pub(super) fn drop_keyspaces(self: &Arc<Self>, names: &[&str]) -> Result<usize> {
        self.gate.check_writable()?;
        let _defining = self.shape.keep_keyspaces();
        let view = self.shape.view();
        let trees = names.iter().filter_map(|name| view.tree_named(name));
        let dropped: BTreeMap<u32, Arc<str>> = trees.map(|tree| (tree.id, Arc::clone(&tree.name))).collect();
        drop(view);
        if dropped.contains_key(&0) {
            return Err(Error::invalid("the default keyspace cannot be dropped"));
        }
        if dropped.is_empty() {
            return Ok(0);
        }
        let edit = VersionEdit { dropped: dropped.keys().copied().collect(), ..VersionEdit::default() };
        // From here on, writes are told that the keyspaces are gone.
        self.check_means_of(&edit)?;
        let dropping = self.writer.begin_dropping(dropped.keys().copied().collect());
        self.install(edit, |view| dropped.keys().for_each(|id| view.trees.remove(*id)))?;
        self.shape.note_dropped(&dropped);
        drop(dropping);
        self.forget_failures_of_dropped();
        // Their compaction debt no longer slows writers down.
        self.schedule();
        Ok(dropped.len())
    }
}

fn check_name(name: &str) -> Result<()> {
    match name.len() {
        1..=MAX_NAME_LEN => Ok(()),
        len => Err(Error::invalid(format_args!("a keyspace's name takes 1 to {MAX_NAME_LEN} bytes, not {len}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::memory::budget::MemoryUse;
    use crate::vfs::SimFileSystem;

    #[test]
    fn names_of_dropped_keyspaces_are_forgotten_with_their_handles() {
        let db = Options::new().file_system(Arc::new(SimFileSystem::new())).open("/db").unwrap();
        let kept = db.keyspace("kept").unwrap();
        db.drop_keyspace("kept").unwrap();
        for i in 0..200 {
            let name = i.to_string();
            drop(db.keyspace(&name).unwrap());
            db.drop_keyspace(&name).unwrap();
        }
        assert!(db.store().shape.dropped_names() <= 20);
        assert!(kept.put("k", "v").unwrap_err().to_string().contains("kept"));
    }

    #[test]
    fn what_scans_note_counts_in_keyspaces_that_are_new_and_in_readers() {
        let fs = Arc::new(SimFileSystem::new());
        let options = Options::new().file_system(fs).memory(64 << 20);
        let db = options.clone().open("/db").unwrap();
        let new = db.keyspace("new").unwrap();
        for i in 0..1000_u32 {
            new.put(i.to_be_bytes(), "value").unwrap();
            new.delete(i.to_be_bytes()).unwrap();
        }
        db.flush().unwrap();
        let reader = options.open_read_only("/db").unwrap();
        for db in [&db, &reader] {
            let keyspace = db.existing_keyspace("new").unwrap().unwrap();
            assert_eq!(keyspace.keys(..).count(), 0);
            let used = db.store().tables.budget().used(MemoryUse::Ranges);
            assert!(used > 0, "read-only: {}", db.is_read_only());
        }
    }
}
