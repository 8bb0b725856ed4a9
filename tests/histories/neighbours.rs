//! Other stores: copies of one, and those of one environment.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tamis::inspect::FileKind;
use tamis::{Environment, Result};

use super::model::Moment;
use super::op::{History, Op};
use super::watched::Watched;
use super::world::{World, executor};

impl World {
    /// Runs an operation in another store, of an environment or of copies; in this one if there is
    /// none.
    pub(super) fn elsewhere(&mut self, n: u8, op: &Op) {
        let count = u8::try_from(self.neighbours.len()).unwrap_or(u8::MAX);
        let n = match &self.environment {
            None if count == 0 => return self.run(op),
            None => n % count,
            Some(_) => n,
        };
        let beside = || World::within(&self.history, self.environment.clone(), Arc::clone(&self.executor));
        let mut other = self.neighbours.remove(&n).unwrap_or_else(beside);
        other.run(op);
        let copies = std::mem::take(&mut other.neighbours).into_values();
        self.neighbours.extend((count..).zip(copies).chain([(n, other)]));
        self.check_limits();
    }

    /// Has a copy of the store be another one, beside it.
    pub(super) fn fork(&mut self, dir: String, at: Moment) -> Result<()> {
        let history = History { kinds: Vec::new(), birth: None, ..self.history.clone() };
        let mut copy = World::within(&history, None, executor(self.setup.jobs));
        drop(copy.db.take());
        (copy.fs, copy.dir, copy.model, copy.born) = (Watched::new(&self.fs.fs), dir, self.model.clone(), 0);
        (copy.setup, copy.unique, copy.position, copy.lost_logs) = (self.setup, self.unique, at.seqno, true);
        copy.model.truncate(at);
        copy.begin_copy()?;
        self.neighbours.insert(u8::try_from(self.neighbours.len()).unwrap(), copy);
        self.check_files();
        Ok(())
    }

    /// Files of one branch and number are the same bytes in all copies.
    fn check_files(&self) {
        let mut known = BTreeMap::new();
        for world in self.neighbours.values().chain([self]) {
            let image = world.db().image().unwrap();
            for file in image.files().filter(|file| matches!(file.kind, FileKind::Table(_) | FileKind::Values(_))) {
                assert_ne!(file.branch, 0);
                let bytes = world.fs.fs.read(file.kind.path(Path::new(&world.dir))).unwrap();
                let known = known.entry((file.branch, file.kind)).or_insert_with(|| bytes.clone());
                assert!(*known == bytes, "{} {:?}", world.dir, file.kind);
            }
        }
    }

    /// Above its budget, an environment may have twice each store's share, and what memtables take
    /// at first; and the sort order of one that is flushed, 16 bytes for each entry of 1,000.
    fn check_limits(&self) {
        let Some(stats) = self.environment.as_ref().map(Environment::stats) else { return };
        let (budget, stores) = (stats.memtable_budget, stats.stores.max(1));
        let [share, first] = [8, 16].map(|part| (budget / part / stores).max(16 << 10));
        let most = budget + stores * (2 * share + first) + budget / 50;
        assert!(stats.memtables <= most, "{} bytes of {most}", stats.memtables);
        assert!(stats.cache <= stats.cache_limit && stats.open_files <= stats.open_files_limit, "{stats:?}");
    }

    /// In the end, stores that share an environment are what they must be, have felt its budget,
    /// and leave nothing behind.
    pub(super) fn check_neighbours(&mut self) {
        if self.neighbours.is_empty() {
            return;
        }
        let Some(environment) = self.environment.clone() else {
            for world in self.neighbours.values_mut() {
                world.run(&Op::Check(0xff));
                world.run(&Op::Verify);
            }
            return self.check_files();
        };
        while self.executor.step() {}
        self.check_limits();
        let open = || self.neighbours.values().chain([&*self]).filter_map(|world| world.db.as_ref());
        let own: usize = open().map(|db| db.stats().memory.memtables).sum();
        let stats = environment.stats();
        assert!(stats.stores == open().count() && own <= stats.memtables, "{own} of {stats:?}");
        let written: usize = self.neighbours.values().map(|world| world.model.written.len()).sum();
        assert!(stats.sealed_early > 0 || written < 5000, "the budget has been felt: {stats:?}");
        for world in self.neighbours.values_mut() {
            world.run(&Op::Check(0xff));
            world.db.take().unwrap().close().unwrap();
        }
        self.db.take().unwrap().close().unwrap();
        self.neighbours.clear();
        let stats = environment.stats();
        assert_eq!((stats.stores, stats.memtables, stats.open_files), (0, 0, 0));
    }
}
