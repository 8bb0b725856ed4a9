//! What a store shows, against the model.

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tamis::inspect::{FindingKind, Inspector};
use tamis::vfs::SimFileSystem;
use tamis::{Db, Error, FilterMode, Found, ReadOptions, Result};

use super::model::{Bytes, Incarnation, Moment, effect_of, in_short};
use super::op::{Copies, Op, Span};
use super::reads::{Source, Window, prefix_range};
use super::world::{World, name};

impl World {
    /// Expects all keyspaces of a store to be as they were at a moment.
    pub(super) fn check_at(&self, db: &Db, who: &str, at: Moment, ways: u8) -> Result<()> {
        for (n, of) in if db.is_read_only() { &self.told } else { &self.model.names } {
            let Some(keyspace) = db.existing_keyspace(&name(*n))? else {
                if self.model.in_doubt.is_some_and(|(doubt, _)| doubt == *n) {
                    continue;
                }
                // Another process has not heard of it yet.
                assert!(self.model.entries(*of, at).is_empty(), "{who}: {} is missing", name(*n));
                continue;
            };
            match self.check_source(&Source::Live(keyspace), who, *of, at, ways) {
                Err(Error::KeyspaceDropped(_)) if db.is_read_only() => {}
                checked => checked?,
            }
        }
        Ok(())
    }

    pub(super) fn check_live(&self, db: &Db, who: &str, ways: u8) -> Result<()> {
        self.check_at(db, who, self.model.moment(), ways)
    }

    pub(super) fn check_source(&self, source: &Source, who: &str, of: Incarnation, at: Moment, ways: u8) -> Result<()> {
        let expected = self.model.entries(of, at);
        for (way, found) in source.read_all(&self.model.keys(of), ways)? {
            let report = || self.model.difference(of, &found, &expected);
            assert!(
                found == expected,
                "{who}, {way} of keyspace {of}, {:?}, {at:?}:\n{}",
                self.model.kinds[of],
                report()
            );
        }
        Ok(())
    }

    /// Expects a store that was opened after an end to have all up to `floor` that the log has, and
    /// all that was flushed; returns what it has.
    pub(super) fn recovered(&self, db: &Db, who: &str, floor: u64) -> Moment {
        let (seqno, floor, model) = (db.last_seqno(), self.model.last_logged(floor), &self.model);
        assert!((floor..=model.last).contains(&seqno), "{who}: {seqno} of {floor}..={}", model.last);
        assert!(model.is_end(seqno), "{who}: a part of a write, up to {seqno}");
        let mut cuts = vec![model.flushed.min(seqno)];
        cuts.extend(model.unlogged_after(model.flushed).into_iter().filter(|cut| *cut <= seqno));
        let moments = cuts.iter().map(|cut| Moment { seqno, unlogged: *cut, now: model.now });
        let unlogged: Vec<(String, Incarnation)> = model.names.iter().map(|(n, of)| (name(*n), *of)).collect();
        let mut unlogged = unlogged.into_iter().filter(|(_, of)| model.has_unlogged(*of));
        let unlogged: Vec<_> =
            unlogged.by_ref().filter_map(|(name, of)| Some((db.existing_keyspace(&name).unwrap()?, of))).collect();
        let mut fitting = moments.filter(|at| {
            unlogged.iter().all(|(keyspace, of)| {
                let found =
                    keyspace.iter().map(|entry| entry.unwrap()).map(|(key, value)| (key.to_vec(), value.to_vec()));
                found.eq(model.entries(*of, *at))
            })
        });
        let Some(at) = fitting.next() else {
            let at = Moment { seqno, unlogged: *cuts.last().expect("at least one"), now: model.now };
            self.check_at(db, &format!("{who}: keyspaces without a log are of no moment of {cuts:?}"), at, 0).unwrap();
            unreachable!("some keyspace differs");
        };
        let at = if unlogged.is_empty() { Moment { unlogged: seqno, ..at } } else { at };
        self.check_at(db, who, at, 3).unwrap();
        at
    }

    /// Opens what a kill, or a power cut, would leave at this moment.
    pub(super) fn image(&mut self, cut: Option<u64>) -> Result<()> {
        let fs = match cut {
            None => self.fs.fs.kill(),
            Some(seed) => self.fs.fs.crash(seed),
        };
        let floor = if cut.is_none() { self.model.acknowledged } else { self.model.durable };
        let who = if cut.is_none() { "an image of a kill" } else { "an image of a power cut" };
        let (options, executor) = self.options(Arc::new(fs.clone()), self.setup);
        let db = options.open(&self.dir).unwrap();
        let at = self.recovered(&db, who, floor);
        (0..5).for_each(|_| _ = executor.step());
        self.check_at(&db, &format!("{who}, after a while"), at, 0).unwrap();
        for name in db.keyspace_names().unwrap() {
            db.existing_keyspace(&name).unwrap().unwrap().compact_range(..).unwrap();
        }
        self.check_at(&db, &format!("{who}, after compactions"), at, 0).unwrap();
        World::verify(&fs.kill(), &self.dir);
        Ok(())
    }

    fn verify(fs: &SimFileSystem, dir: &str) {
        let mut faults = Vec::new();
        let verified = Inspector::on(Arc::new(fs.clone())).verify(Path::new(dir), &mut |fault| {
            // What a kill has interrupted is no fault.
            if fault.kind.is_damage() && fault.kind != FindingKind::Leftover {
                faults.push(fault.to_string());
            }
        });
        verified.unwrap();
        assert!(faults.is_empty(), "{faults:?}");
    }

    /// Operations that change nothing.
    pub(super) fn look(&mut self, db: &Db, op: &Op) -> Result<()> {
        match op {
            Op::Check(ways) => self.check_live(db, "the writer", *ways),
            Op::Get(n, k) => self.get(*n, *k),
            Op::MultiGet(n, keys) => {
                let (of, keyspace) = self.pick(*n);
                let keys: Vec<Bytes> = keys.iter().map(|k| self.key(*k)).collect();
                for (key, found) in keys.iter().zip(keyspace.multi_get(&keys)?) {
                    let expected = self.model.get(of, key, self.model.moment());
                    assert_eq!(found.as_deref(), expected.as_deref(), "{key:?} of many");
                }
                Ok(())
            }
            Op::Prefix(n, k, len) => self.prefix(*n, *k, *len),
            Op::Take(n, take) => self.take(*n, *take),
            Op::Use(n, moves) => self.use_handle(*n, moves),
            Op::Release(n, commit) => self.release(*n, *commit),
            Op::Verify => {
                World::verify(&self.fs.fs.kill(), &self.dir);
                Ok(())
            }
            Op::Feed(most) => self.read_feed(db, *most),
            Op::Checkpoint(then) => self.checkpoint(db, *then),
            Op::Image(cut) => self.image(*cut),
            Op::Damage(seed) => {
                self.damage(*seed);
                Ok(())
            }
            _ => unreachable!("{op:?} changes something"),
        }
    }

    /// Reads a key in all ways that there are.
    fn get(&self, n: u8, k: u16) -> Result<()> {
        let (of, keyspace) = self.pick(n);
        let key = self.key(k);
        let expected = self.model.get(of, &key, self.model.moment());
        let modes = [FilterMode::Use, FilterMode::Ignore, FilterMode::Shadow];
        let options = ReadOptions::new().filters(modes[usize::from(k % 3)]).fill_cache(k.is_multiple_of(2));
        let found = keyspace.get_with(&key, options)?;
        let report =
            || self.model.difference(of, &[(key.clone(), found.iter().flat_map(|v| v.to_vec()).collect())], &[]);
        assert_eq!(found.as_deref(), expected.as_deref(), "{}", report());
        assert_eq!(keyspace.contains_key(&key)?, expected.is_some());
        let mut into = b"what was there".to_vec();
        assert_eq!(keyspace.get_into(&key, &mut into)?, expected.is_some());
        assert_eq!(into, expected.as_deref().unwrap_or_default());
        assert_eq!(keyspace.read(&key, <[u8]>::to_vec)?, expected);
        let explanation = keyspace.explain(&key)?;
        // A read that fails is explained, too.
        explanation.outcome.as_ref().map_err(Clone::clone)?;
        let last = explanation.steps.iter().rev().find_map(|step| match step.found {
            Some(Found::OutOfRange | Found::Absent | Found::Newer) => None,
            found => found,
        });
        let explained = match last {
            Some(Found::Value(len) | Found::SeparateValue(len)) => Some(Some(len)),
            // An operand says nothing of what it is merged into.
            Some(Found::Operand) => None,
            _ => Some(None),
        };
        let len = expected.as_ref().map(Vec::len);
        assert!(explained.is_none_or(|explained| explained == len), "{len:?}: {explanation:?}");
        Ok(())
    }

    /// Scans what begins with a prefix, from both ends.
    fn prefix(&self, n: u8, k: u16, len: u8) -> Result<()> {
        let (of, keyspace) = self.pick(n);
        let key = self.key(k);
        let prefix = &key[..usize::from(len).min(key.len())];
        let range = prefix_range(prefix);
        let source = Source::Live(keyspace);
        for mut iter in [source.prefix(prefix), source.iter(range.clone())] {
            let mut window = Window::new(self.model.entries(of, self.model.moment()), &range);
            let mut rng = fastrand::Rng::with_seed(k.into());
            loop {
                let forward = rng.bool();
                let found = if forward { iter.next() } else { iter.next_back() }.transpose()?;
                let expected = window.step(forward);
                let pair = found.map(|(key, value)| (key.to_vec(), value.to_vec()));
                assert_eq!(pair, expected, "of prefix {}", in_short(prefix));
                if expected.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Reads from the change feed, and expects each batch to be the write of its numbers.
    fn read_feed(&mut self, db: &Db, most: u8) -> Result<()> {
        let mut feed = match self.feed.take().map_or_else(|| db.changes_since(self.position), Ok) {
            Err(Error::LogGone { .. }) if self.lost_logs => {
                self.position = self.model.durable;
                return Ok(());
            }
            feed => feed?,
        };
        for _ in 0..most {
            let batch = match feed.next_timeout(Duration::ZERO) {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(Error::LogGone { .. }) if self.lost_logs => {
                    self.position = self.model.durable;
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let (first, last) = (batch.first_seqno(), batch.last_seqno());
            let named: Vec<Incarnation> = self.model.names.values().copied().collect();
            let is_told = |op: &&super::model::Written| {
                op.logged && !op.ingested && named.contains(&op.of) && (self.position + 1..=last).contains(&op.seqno)
            };
            let expected: Vec<_> = self.model.written.iter().filter(is_told).collect();
            let operations = batch.operations().filter_map(|operation| Some((operation.seqno, effect_of(&operation)?)));
            let found: Vec<_> = operations.filter(|(seqno, _)| expected.iter().any(|op| op.seqno == *seqno)).collect();
            let is_same = |(op, (seqno, (key, effect))): (&&super::model::Written, &(u64, (Bytes, _)))| {
                (op.seqno, &op.key, &op.effect) == (*seqno, key, effect)
            };
            let fits = found.len() == expected.len() && expected.iter().zip(&found).all(is_same);
            assert!(fits, "the feed after {}, {first}..={last}: {found:?} instead of {expected:?}", self.position);
            assert!(first > self.position && self.model.is_end(last) && last <= self.model.last);
            self.position = last;
        }
        // What is not logged counts.
        self.position = self.position.max(feed.seqno());
        self.feed = Some(feed);
        Ok(())
    }

    /// A copy is the store as it is.
    fn checkpoint(&mut self, db: &Db, then: Copies) -> Result<()> {
        let (at, dir) = (self.model.moment(), format!("/copies/{}/{}", self.model.last, self.fs.fs.mutations()));
        let checkpoint = db.checkpoint(&dir)?;
        let at = Moment { unlogged: checkpoint.flushed_seqno, ..at };
        assert_eq!((checkpoint.seqno, at.unlogged), (self.model.last, db.flushed_seqno()));
        let files: Vec<PathBuf> = self.fs.fs.paths().into_iter().filter(|path| path.starts_with(&dir)).collect();
        let mut listed: Vec<PathBuf> = checkpoint.files.iter().map(|file| file.kind.path(Path::new(&dir))).collect();
        listed.sort();
        assert_eq!(files, listed);
        World::verify(&self.fs.fs.kill(), &dir);
        let copy = self.options(Arc::new(self.fs.fs.crash(at.seqno)), self.setup).0.paranoid(true).open(&dir).unwrap();
        self.check_at(&copy, "a copy", at, 3).unwrap();
        drop(copy);
        match then {
            Copies::Look => Ok(()),
            Copies::GoOn => self.go_on_with(dir, at),
            Copies::Both => self.fork(dir, at),
        }
    }

    /// Once everything is compacted and nothing refers to old files, the store has exactly the
    /// files and entries that it must.
    pub(super) fn check_settled(&mut self) {
        self.leave();
        let db = self.db();
        self.run(&Op::Clock(1000));
        let all: Span = (Bound::Unbounded, Bound::Unbounded);
        let count = u8::try_from(self.model.names.len()).unwrap();
        (0..count).for_each(|n| self.run(&Op::Compact(n, all)));
        self.run(&Op::Settle);
        self.check_live(&db, "the writer at the end", 0xff).unwrap();
        let keyspaces = db.stats().keyspaces;
        let levels = || keyspaces.iter().flat_map(|keyspace| &keyspace.levels);
        let tables: usize = levels().map(|level| level.tables.len()).sum();
        let is_table = |path: &PathBuf| {
            path.parent() == Some(Path::new(&self.dir)) && path.extension().is_some_and(|e| e == "sst")
        };
        assert_eq!(self.fs.fs.paths().into_iter().filter(is_table).count(), tables, "obsolete tables are removed");
        let tombstones: u64 = levels().flat_map(|level| &level.tables).map(|table| table.tombstones).sum();
        assert_eq!(tombstones, 0, "tombstones are gone");
        let live: usize = self.model.names.values().map(|of| self.model.entries(*of, self.model.moment()).len()).sum();
        assert_eq!(levels().map(|level| level.entries()).sum::<u64>(), live as u64, "old versions are gone");
    }
}
