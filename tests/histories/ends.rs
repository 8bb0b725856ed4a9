//! How processes end, what they leave, and what the next one must find.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tamis::vfs::{Fault, FaultMode, FileSystem, SimFileSystem};
use tamis::{Db, Error, RepairOptions, Result};

use super::model::Moment;
use super::op::{End, Jobs, Setup, Trouble};
use super::watched::Watched;
use super::world::{World, name};

impl World {
    pub(super) fn note_promises(&mut self) {
        let db = self.db();
        let (synced, flushed, model) = (db.synced_seqno(), db.flushed_seqno(), &mut self.model);
        assert!(synced <= model.last && flushed <= model.last);
        model.durable = model.durable.max(synced);
        model.flushed = model.flushed.max(flushed);
    }

    /// The fault is over: reads are right, and either the store takes writes or it says that it
    /// takes no more.
    pub(super) fn mend(&mut self) {
        self.fs.fs.set_fault(None);
        self.trouble = None;
        let is_open = |db: &&Db| !matches!(db.keyspace_names(), Err(Error::Closed));
        let Some(db) = self.db.as_ref().filter(is_open).cloned() else {
            self.fs.kill();
            return self.bury(None);
        };
        let seqno = db.last_seqno();
        assert!(seqno == self.model.acknowledged || seqno == self.model.last, "{seqno} is not the end of a write");
        self.check_at(&db, "a store after a fault", Moment { seqno, unlogged: seqno, now: self.model.now }, 3).unwrap();
        match db.sync() {
            Ok(()) => {
                self.settle_names(&db);
                self.model.truncate(Moment { seqno, unlogged: seqno, now: self.model.now });
                self.note_promises();
            }
            // What has failed may be there when the store is opened again.
            Err(Error::Poisoned(_)) => {
                drop(db);
                self.image(None).unwrap();
                self.fs.kill();
                self.bury(None);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// What creating, dropping or changing a keyspace has come to.
    fn settle_names(&mut self, db: &Db) {
        let names = db.keyspace_names().unwrap();
        if let Some((n, to)) = self.model.in_doubt.take()
            && names.contains(&name(n)) == to.is_some()
        {
            match to {
                Some(of) => _ = self.model.names.insert(n, of),
                None => _ = self.model.names.remove(&n),
            }
        }
        // In the order of their creation.
        let mut expected: Vec<_> = self.model.names.iter().collect();
        expected.sort_by_key(|(_, of)| **of);
        assert_eq!(names, expected.iter().map(|(n, _)| name(**n)).collect::<Vec<_>>());
        for (n, of) in &self.model.names {
            let options = db.existing_keyspace(&name(*n)).unwrap().unwrap().options().unwrap();
            let kind = &mut self.model.kinds[*of];
            (kind.wal, kind.ttl) = (options.wal, options.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap()));
        }
    }

    /// The writer is dead, or the power gone: the next process opens the store, which may die as
    /// well.
    pub(super) fn bury(&mut self, cut: Option<SimFileSystem>) {
        let (trouble, again) = self.trouble.take().unwrap_or((Trouble::Kill, false));
        self.leave();
        drop(self.db.take());
        let (mut is_kill, mut fs) = self.left_behind(trouble, cut);
        let mut deaths = if again { 3u64 } else { 0 };
        loop {
            self.fs = Watched::new(&fs);
            if deaths > 0 {
                deaths -= 1;
                self.arm(7 * (deaths + 1), trouble);
            }
            let opened = self.open();
            let cut = fs.crash_point();
            if cut.is_none() && !self.fs.is_dead() {
                opened.unwrap();
                break;
            }
            drop(self.db.take());
            let left = self.left_behind(trouble, cut);
            (is_kill, fs) = (is_kill && left.0, left.1);
        }
        fs.crash_at(None);
        self.fs.spare();
        self.arrive(is_kill);
    }

    /// What a process leaves behind that ends by trouble, and whether that is a kill.
    fn left_behind(&mut self, trouble: Trouble, cut: Option<SimFileSystem>) -> (bool, SimFileSystem) {
        match (trouble, cut) {
            (Trouble::PowerCut(seed), Some(cut)) => {
                self.reader = None;
                self.powered += 1;
                (false, cut.crash(seed))
            }
            _ => (true, self.fs.fs.clone()),
        }
    }

    /// Ends what belongs to a process.
    pub(super) fn leave(&mut self) {
        self.handles.clear();
        self.feed = None;
    }

    /// Expects the store that has been opened to be one that may have been left, and goes on from
    /// there.
    fn arrive(&mut self, is_kill: bool) {
        let db = self.db();
        let floor = if is_kill { self.model.acknowledged } else { self.model.durable };
        let doubt = self.model.in_doubt;
        let moment = self.recovered(&db, "the next process", floor);
        self.model.in_doubt = doubt;
        self.settle_names(&db);
        self.model.truncate(moment);
        self.lost_logs |= !is_kill || !self.setup.keep_log;
        self.position = self.position.min(moment.seqno);
        self.model.durable = self.model.durable.min(moment.seqno).max(db.synced_seqno());
        self.model.flushed = self.model.flushed.min(moment.unlogged);
        self.note_promises();
    }

    fn arm(&mut self, at: u64, trouble: Trouble) {
        match trouble {
            Trouble::Kill => self.fs.doom(at),
            Trouble::PowerCut(_) => self.fs.fs.crash_at(Some(at)),
            Trouble::Io | Trouble::NoSpace | Trouble::ShortWrite | Trouble::ReadError => {}
        }
    }

    pub(super) fn arm_in(&mut self, at: u16, trouble: Trouble, again: bool) {
        if self.trouble.is_some() {
            return;
        }
        self.trouble = Some((trouble, again));
        let mode = match trouble {
            Trouble::Kill | Trouble::PowerCut(_) => return self.arm(at.into(), trouble),
            Trouble::Io => FaultMode::Io,
            Trouble::NoSpace => FaultMode::NoSpace,
            Trouble::ShortWrite => FaultMode::ShortWrite,
            Trouble::ReadError => FaultMode::ReadError,
        };
        self.reader = None;
        self.fs.fs.set_fault(Some(Fault { at: at.into(), mode, sticky: again }));
    }

    pub(super) fn reopen(&mut self, end: End, setup: Setup) -> Result<()> {
        self.leave();
        self.clock.store(self.model.now, Ordering::Relaxed);
        match end {
            End::Close | End::Drop => {
                let db = self.db();
                match end {
                    // A handle stays, which the store does not need.
                    End::Close => db.close()?,
                    _ => drop((self.db.take(), db)),
                }
                // A drop tells of no trouble.
                if end == End::Close || self.trouble.is_none() {
                    self.model.durable = self.model.acknowledged;
                    self.model.flushed = self.model.acknowledged;
                }
            }
            End::Kill | End::PowerCut(_) | End::Repair => {
                self.fs.kill();
                drop(self.db.take());
                let fs = self.fs.fs.clone();
                self.trouble = None;
                fs.set_fault(None);
                fs.crash_at(None);
                let fs = if let End::PowerCut(seed) = end { fs.crash(seed) } else { fs };
                if end != End::Kill {
                    self.powered += 1;
                    self.reader = None;
                }
                if end == End::Repair {
                    let dir = Path::new(&self.dir);
                    fs.remove(&dir.join("CURRENT")).unwrap();
                    let report = tamis::repair(dir, RepairOptions::new().file_system(Arc::new(fs.clone()))).unwrap();
                    assert!(!report.has_losses(), "{report}");
                    self.lost_logs = true;
                }
                self.fs = Watched::new(&fs);
            }
        }
        self.setup = setup;
        self.open()?;
        // Not what would strike the check of the store, where threads work beside it, too.
        let is_threaded = setup.jobs == Jobs::Threads;
        if self.trouble.is_some_and(|(trouble, _)| trouble == Trouble::ReadError || is_threaded) {
            self.fs.fs.set_fault(None);
            self.fs.fs.crash_at(None);
            self.fs.spare();
        }
        if self.fs.fs.crash_point().is_some() || self.fs.is_dead() {
            return Ok(());
        }
        self.arrive(!matches!(end, End::PowerCut(_)));
        Ok(())
    }

    /// Closes the store, and goes on with a copy of it as of `at`.
    pub(super) fn go_on_with(&mut self, dir: String, at: Moment) -> Result<()> {
        self.leave();
        (self.reader, self.lost_logs) = (None, true);
        self.db.take().expect("the store is open").close()?;
        self.dir = dir;
        // What was not logged and not flushed is not in the copy.
        self.model.truncate(at);
        self.open()?;
        self.arrive(true);
        Ok(())
    }
}
