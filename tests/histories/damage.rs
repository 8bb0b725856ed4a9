//! Damage to the files of a store, and what a repair makes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fastrand::Rng;
use tamis::inspect::{Content, Inspector, ManifestChange};
use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{LossKind, RepairBasis};

use super::model::{Bytes, Effect};
use super::op::Operator;
use super::repaired::{DIR, known_losses, lose_manifests, manifests, of_kind, repaired};
use super::world::World;
use crate::support::Scene;

/// Entries by keyspace.
type Contents = BTreeMap<String, BTreeMap<Bytes, Bytes>>;

/// Whether some edit of the store's manifest removed tables and added none.
fn has_traceless_edit(fs: &SimFileSystem) -> bool {
    let Some(path) = manifests(fs).pop() else { return false };
    let mut log = Inspector::on(Arc::new(fs.clone())).log(&path).unwrap();
    while let Ok(Some(record)) = log.next_record() {
        let Content::Edit(changes) = record.content else { continue };
        let removes = changes
            .iter()
            .any(|change| matches!(change, ManifestChange::RemoveTable { .. } | ManifestChange::DropKeyspace { .. }));
        if removes && !changes.iter().any(|change| matches!(change, ManifestChange::AddTable(_))) {
            return true;
        }
    }
    false
}

/// Damages one or more files. Returns whether a loss might leave no trace.
fn harm(rng: &mut Rng, fs: &SimFileSystem, logs_only: bool) -> bool {
    let mut hidden = false;
    for _ in 0..rng.usize(1..4) {
        let kind = if logs_only { 0 } else { rng.u32(1..7) };
        let files = match kind {
            0 => of_kind(fs, "wal"),
            1 | 2 => manifests(fs),
            3 => vec![PathBuf::from("/db/CURRENT")],
            6 if rng.bool() => of_kind(fs, "val"),
            _ => of_kind(fs, "sst"),
        };
        let Some(path) = files.get(rng.usize(0..files.len().max(1))) else { continue };
        let Ok(len @ 1..) = fs.file_len(path) else { continue };
        hidden |= kind > 3;
        match rng.u32(0..6) {
            0 if kind > 0 => fs.remove(path).unwrap(),
            1 if kind > 0 => fs.truncate(path, rng.u64(0..len)).unwrap(),
            2 => {
                // A sector.
                let mut bytes = fs.read(path).unwrap();
                let start = rng.usize(0..bytes.len()) / 512 * 512;
                let end = bytes.len().min(start + 512);
                bytes[start..end].fill(0);
                fs.write(path, bytes).unwrap();
            }
            _ => fs.corrupt(path, rng.u64(0..len), 1 << rng.u32(0..8)).unwrap(),
        }
    }
    hidden
}

/// With the names that keyspaces had before. One whose name is in a log only gets a new one.
fn renamed(found: Contents, truth: &Contents) -> Contents {
    let mut missing = truth.keys().filter(|name| !found.contains_key(*name));
    let name = |name: &String| if truth.contains_key(name) { None } else { missing.next().cloned() };
    let names: Vec<String> =
        found.keys().map(name).zip(found.keys()).map(|(new, name)| new.unwrap_or(name.clone())).collect();
    names.into_iter().zip(found.into_values()).collect()
}

impl World {
    /// What a store has, if it opens; it is of use, too, where it is to be used.
    fn contents(&self, fs: &SimFileSystem, to_be_used: bool) -> Option<Contents> {
        let fs = fs.kill();
        let (options, executor) = self.options(Arc::new(fs.clone()), self.setup);
        let db = options.open(DIR).ok()?;
        let read = || -> Contents {
            let of = |name: &String| {
                let keyspace = db.existing_keyspace(name).unwrap().unwrap();
                let entries = keyspace.iter().map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())));
                let entries: BTreeMap<_, _> = entries.collect::<Result<_, _>>().unwrap();
                let agree = |(key, value): (&Bytes, &Bytes)| keyspace.get(key).unwrap().as_deref() == Some(value);
                assert!(entries.iter().all(agree), "gets and scans agree");
                entries
            };
            db.keyspace_names().unwrap().into_iter().map(|name| (name.clone(), of(&name))).collect()
        };
        let found = read();
        if to_be_used {
            let mut expected = found.clone();
            for (name, entries) in &mut expected {
                let keyspace = db.existing_keyspace(name).unwrap().unwrap();
                let keys: Vec<Bytes> = entries.keys().step_by(3).cloned().collect();
                keys.iter().for_each(|key| _ = keyspace.delete(key).unwrap());
                entries.retain(|key, _| !keys.contains(key));
                keyspace.put("new", "value").unwrap();
                entries.insert(b"new".to_vec(), b"value".to_vec());
                db.sync().unwrap();
                keyspace.compact_range(..).unwrap();
            }
            while executor.step() {}
            assert!(read() == expected);
            drop(db);
            assert!(self.contents(&fs, false) == Some(expected));
        }
        Some(found.into_iter().filter(|(_, entries)| !entries.is_empty()).collect())
    }

    /// Damages what a kill, or a power cut, would leave at this moment.
    pub(super) fn damage(&self, seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let left = if rng.bool() { self.fs.fs.kill() } else { self.fs.fs.crash(seed) };
        let fs = SimFileSystem::new();
        let of_store = |path: &PathBuf| path.parent() == Some(Path::new(&self.dir)) && !path.ends_with("LOCK");
        for path in left.paths().into_iter().filter(of_store) {
            fs.write(Path::new(DIR).join(path.file_name().unwrap()), left.read(&path).unwrap()).unwrap();
        }
        if of_kind(&fs, "sst").is_empty() {
            // Too little is left of it, with damage, to be known as a store.
            return;
        }
        match rng.u8(0..3) {
            0 => self.lose_manifests(&fs),
            _ => self.lose_some(&mut rng, &fs),
        }
    }

    /// Loses all manifests and nothing else. Tables and logs suffice to tell dead tables, including
    /// inputs of compactions, from live ones.
    fn lose_manifests(&self, fs: &SimFileSystem) {
        if has_traceless_edit(fs) {
            return;
        }
        let truth = self.contents(fs, false).unwrap();
        lose_manifests(fs);
        let report = repaired(fs);
        let _scene = Scene(format!("{report}"));
        // A power cut may leave a hole between two logs, which opening takes for the end.
        let is_of_log = |loss: &&tamis::Loss| loss.file.as_ref().is_some_and(|file| file.extension().unwrap() == "wal");
        let losses = known_losses(&report);
        assert!(losses.iter().all(is_of_log));
        assert!(!losses.is_empty() || renamed(self.contents(fs, true).unwrap(), &truth) == truth);
    }

    /// Repairs a damaged store, and compares it with the undamaged one, opened: keys outside of the
    /// losses that are reported are unchanged.
    fn lose_some(&self, rng: &mut Rng, fs: &SimFileSystem) {
        // After damage to the logs alone, what opening finds is expected, if it finds no fault.
        let damaged = fs.kill();
        let (spares_logs, spares_others) = (rng.u32(0..3) > 0, rng.u32(0..8) == 0);
        if !spares_logs {
            harm(rng, &damaged, true);
        }
        let damaged_logs = damaged.kill();
        let of_damaged = self.contents(&damaged_logs, false);
        // The manifest says up to where the log was synced; damage behind that is a torn write.
        let is_torn = of_damaged.is_some();
        let truth = of_damaged.or_else(|| self.contents(fs, false)).unwrap();
        let hidden = !spares_others && harm(rng, &damaged, false);
        // Damage to an edit that nothing states as durable looks like a torn write. Opening then
        // finds no fault and shows what was synced.
        let by_manifest = manifests(&damaged).pop().and_then(|path| {
            damaged_logs.write(&path, damaged.read(&path).unwrap()).unwrap();
            self.contents(&damaged_logs, false)
        });
        let report = repaired(&damaged);
        let _scene = Scene(format!("{report}"));
        assert!(!(spares_logs && spares_others) || (report.is_sound() && !report.has_losses()), "nothing was damaged");
        // An unknowable loss counts as reported only where no evidence could reveal more.
        let is_hidden = hidden || has_traceless_edit(fs) || (!is_torn && report.basis == RepairBasis::Tables);
        let excused = |loss: &&tamis::Loss| loss.kind != LossKind::Unknowable || is_hidden;
        let losses: Vec<_> = report.losses.iter().filter(excused).collect();
        let found = renamed(self.contents(&damaged, true).unwrap(), &truth);
        let entries = |of: &Contents, name: &String| of.get(name).cloned().unwrap_or_default();
        for name in found.keys().chain(truth.keys()).collect::<BTreeSet<_>>() {
            let [found, truth] = [&found, &truth].map(|of| entries(of, name));
            let opened = by_manifest.as_ref().map(|opened| entries(opened, name));
            for key in found.keys().chain(truth.keys()).collect::<BTreeSet<_>>() {
                let (now, before, shown) = (found.get(key), truth.get(key), key.escape_ascii());
                let is_as_opened = opened.as_ref().is_some_and(|opened| opened.get(key) == now);
                let is_told = || losses.iter().any(|loss| loss.covers(name, key));
                assert!(now == before || is_as_opened || is_told(), "{name} {shown}: {now:?} instead of {before:?}");
                assert!(now.is_none_or(|now| self.was_written(key, now)), "{name} {shown}: never written");
            }
        }
    }

    /// Whether a key has ever had a value, in a keyspace without an operator.
    fn was_written(&self, key: &Bytes, value: &Bytes) -> bool {
        self.model.written.iter().chain(&self.model.lost).any(|op| {
            let is_value = matches!(&op.effect, Effect::Put(put, _) if **put == *value);
            op.key == *key && (is_value || self.model.kinds[op.of].operator != Operator::None)
        })
    }
}
