//! How processes end, what they leave, and what the next one must find.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tamis::inspect::{Content, FileKind, Inspector, ManifestChange};
use tamis::vfs::{Fault, FaultMode, FileSystem, SimFileSystem};
use tamis::{Db, Error, RepairOptions, Result};

use super::model::Moment;
use super::op::{End, Jobs, Setup, Trouble};
use super::watched::Event;
use super::world::{World, name};

/// What the next process must find.
#[derive(Clone, Copy)]
pub(super) struct Left {
    /// Up to here nothing is lost.
    floor: u64,
    /// What it finds exactly, where another one has looked.
    known: Option<u64>,
    /// Whether it has survived a power cut.
    is_cut: bool,
}

/// The number in the name of a file of a store.
fn number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str().and_then(FileKind::parse)?.number()
}

impl World {
    pub(super) fn note_promises(&mut self) {
        let db = self.db();
        let (synced, flushed, model) = (db.synced_seqno(), db.flushed_seqno(), &mut self.model);
        assert!(synced <= model.last && flushed <= model.last);
        assert!(self.promised.0 <= synced && self.promised.1 <= flushed, "less than {:?}", self.promised);
        self.promised = (synced, flushed);
        model.durable = model.durable.max(synced);
        model.flushed = model.flushed.max(flushed);
    }

    /// The fault is over: reads are right, and either the store takes writes or it says that it
    /// takes no more.
    pub(super) fn mend(&mut self) {
        self.fs.fs.set_fault(None);
        let trouble = self.trouble.take();
        let is_open = |db: &&Db| !matches!(db.keyspace_names(), Err(Error::Closed));
        let Some(db) = self.db.as_ref().filter(is_open).cloned() else {
            self.fs.kill();
            return self.bury(None);
        };
        let seqno = db.last_seqno();
        assert!(seqno == self.model.acknowledged || seqno == self.model.last, "{seqno} is not the end of a write");
        self.check_at(&db, "a store after a fault", Moment { seqno, unlogged: seqno, now: self.model.now }, 3).unwrap();
        let events = self.fs.events.lock()[self.born..].to_vec();
        let failed = || events.iter().filter(|event| !event.ok && event.makes_durable(Path::new(&self.dir)));
        let fatal = failed().next();
        let (synced, is_threaded) = (db.synced_seqno(), self.setup.jobs == Jobs::Threads);
        match db.sync() {
            Ok(()) => {
                assert!(fatal.is_none() || is_threaded, "it goes on after {fatal:?}");
                self.settle_names(&db);
                self.model.truncate(Moment { seqno, unlogged: seqno, now: self.model.now });
                self.note_promises();
            }
            // What has failed may be there when the store is opened again.
            Err(Error::Poisoned(cause)) => {
                let cause = cause.to_string();
                let names =
                    |event: &Event| event.path.file_name().is_some_and(|name| cause.contains(&*name.to_string_lossy()));
                // Reads are no events.
                let is_read = fatal.is_none() && trouble.is_some_and(|(_, trouble, _)| trouble == Trouble::ReadError);
                // On a full disk a write may fail before the one that ends the store.
                let is_told = failed().any(names);
                assert!(is_told || is_read || is_threaded, "{cause} after {fatal:?}");
                let refused = [db.put("k", "v").map(drop), db.flush(), db.keyspace("new").map(drop)];
                assert!(refused.iter().all(|result| matches!(result, Err(Error::Poisoned(_)))), "{refused:?}");
                assert!(is_threaded || db.synced_seqno() == synced);
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

    /// The writer is dead, or the power gone.
    pub(super) fn bury(&mut self, cut: Option<SimFileSystem>) {
        let (_, trouble, again) = self.trouble.take().unwrap_or((0, Trouble::Kill, false));
        self.leave();
        let db = self.db.take();
        if let (Some(db), Some(_), true) = (&db, &cut, self.model.kinds[0].wal) {
            let written = db.put("k", "v").and_then(|_| db.sync());
            assert!(written.is_err(), "a dead disk acknowledges nothing");
        }
        drop(db);
        let mut fs = self.left_behind(trouble, cut);
        let mut deaths = if again { 3u16 } else { 0 };
        // The next process may die as well.
        loop {
            self.meet(&fs, deaths > 0);
            if deaths > 0 {
                self.arm(7 * deaths, trouble, false);
                deaths -= 1;
            }
            let opened = self.open();
            let cut = fs.crash_point();
            if cut.is_none() && !self.fs.is_dead() {
                opened.unwrap();
                break;
            }
            drop(self.db.take());
            fs = self.left_behind(trouble, cut);
        }
        fs.crash_at(None);
        self.fs.spare();
        self.arrive();
    }

    /// What a process leaves behind.
    fn left_behind(&mut self, trouble: Trouble, cut: Option<SimFileSystem>) -> SimFileSystem {
        let Some(cut) = cut else { return self.fs.fs.clone() };
        // Without a loss, the next one would find what this one was to find.
        let known = self.left.and_then(|left| left.known);
        assert!(
            known.is_none_or(|known| self.peek(&cut) == known),
            "an opening that was cut off has changed something"
        );
        self.cut_power();
        cut.crash(if let Trouble::PowerCut(seed) = trouble { seed } else { 0 })
    }

    fn cut_power(&mut self) {
        let known = self.left.filter(|left| left.is_cut).and_then(|left| left.known);
        self.left = Some(Left { floor: known.unwrap_or(self.model.durable), known: None, is_cut: true });
        self.reader = None;
        self.powered += 1;
    }

    /// The last write that a process finds.
    fn peek(&self, fs: &SimFileSystem) -> u64 {
        let options = self.options(Arc::new(fs.kill()), self.setup).0;
        // A reader finds the same as a writer.
        let is_reader = self.lives.is_multiple_of(2);
        let db = if is_reader { options.open_read_only(&self.dir) } else { options.open(&self.dir) };
        match db {
            Err(Error::NotFound(_)) => 0,
            db => db.unwrap().last_seqno(),
        }
    }

    /// Gets ready for the next process, and mostly does not look at what it will find.
    fn meet(&mut self, fs: &SimFileSystem, look: bool) {
        self.fs = self.fs.next(fs);
        let floor = self.model.acknowledged;
        let mut left = self.left.unwrap_or(Left { floor, known: None, is_cut: false });
        if look || left.known.is_some() || self.lives.is_multiple_of(4) {
            let found = self.peek(fs);
            assert!(left.known.is_none_or(|known| known == found), "{found} instead of {:?}", left.known);
            left.known = Some(found);
        }
        self.note_files();
        if left.is_cut {
            self.note_numbers();
        }
        self.left = Some(left);
    }

    /// Numbers of files are never used again. The exception is a file that a process created and
    /// removed, if the manifest that it leaves in force does not count the number as used: another
    /// process may use it.
    ///
    /// The order of the calls does not tell: an edit states the next number before it is synced,
    /// and a thread that holds no lock may take that number meanwhile.
    pub(super) fn note_files(&mut self) {
        let (mut created, mut removed) = (BTreeMap::new(), BTreeSet::new());
        let events = self.fs.events.lock();
        for Event { what, path, .. } in events[self.born..].iter().filter(|event| event.ok) {
            if path.parent() != Some(Path::new(&self.dir)) {
                continue;
            }
            match (*what, number(path)) {
                ("create" | "rename" | "link", Some(number)) => {
                    assert!(self.numbers.insert(number), "{path:?} takes a number that was used before");
                    created.insert(number, *what);
                }
                ("remove", Some(number)) => match created.get(&number) {
                    // What cannot be linked is copied.
                    Some(&"link") => _ = self.numbers.remove(&number),
                    Some(_) => _ = removed.insert(number),
                    None => {}
                },
                _ => {}
            }
        }
        self.born = events.len();
        drop(events);
        if !removed.is_empty() {
            let next = self.next_number();
            self.numbers.retain(|number| *number < next || !removed.contains(number));
        }
    }

    /// The next file number, as the manifest in force states it; 0 without one.
    fn next_number(&self) -> u64 {
        let (inspector, dir) = (Inspector::on(Arc::new(self.fs.fs.kill())), Path::new(&self.dir));
        let Ok(manifest) = inspector.current(&FileKind::Current.path(dir)) else { return 0 };
        let mut manifest = inspector.log(&FileKind::Manifest(manifest).path(dir)).unwrap();
        let mut next = 0;
        while let Some(record) = manifest.next_record().unwrap() {
            let Content::Edit(changes) = record.content else { continue };
            for change in changes {
                if let ManifestChange::NextFileNumber(number) = change {
                    next = number;
                }
            }
        }
        next
    }

    /// Only numbers of files that are there are in use.
    fn note_numbers(&mut self) {
        let paths = self.fs.fs.paths().into_iter().filter(|path| path.parent() == Some(Path::new(&self.dir)));
        self.numbers = paths.filter_map(|path| number(&path)).collect();
    }

    /// Ends what belongs to a process.
    pub(super) fn leave(&mut self) {
        self.handles.clear();
        self.feed = None;
    }

    /// Expects the store that has been opened to be one that may have been left, and goes on from
    /// there.
    fn arrive(&mut self) {
        let (db, floor) = (self.db(), self.model.acknowledged);
        let Left { floor, known, is_cut } = self.left.take().unwrap_or(Left { floor, known: None, is_cut: false });
        let doubt = self.model.in_doubt;
        let moment = self.recovered(&db, "the next process", floor);
        assert!(known.is_none_or(|known| known == moment.seqno), "{} instead of {known:?}", moment.seqno);
        self.model.in_doubt = doubt;
        self.settle_names(&db);
        self.model.truncate(moment);
        self.lost_logs |= is_cut || !self.setup.keep_log;
        self.position = self.position.min(moment.seqno);
        self.model.durable = self.model.durable.min(moment.seqno).max(db.synced_seqno());
        self.model.flushed = self.model.flushed.min(moment.unlogged);
        self.note_promises();
    }

    /// Has trouble come at a call from now; a fault comes to all calls from then on if `again`.
    fn arm(&self, at: u16, trouble: Trouble, again: bool) {
        let mode = match trouble {
            Trouble::Kill => return self.fs.doom(at.into()),
            Trouble::PowerCut(_) => return self.fs.fs.crash_at(Some(at.into())),
            Trouble::Io => FaultMode::Io,
            Trouble::NoSpace => FaultMode::NoSpace,
            Trouble::ShortWrite => FaultMode::ShortWrite,
            Trouble::ReadError => FaultMode::ReadError,
        };
        self.fs.fs.set_fault(Some(Fault { at: at.into(), mode, sticky: again }));
    }

    pub(super) fn arm_in(&mut self, at: u16, trouble: Trouble, again: bool) {
        if self.trouble.is_some() {
            return;
        }
        self.trouble = Some((at, trouble, again));
        if !matches!(trouble, Trouble::Kill | Trouble::PowerCut(_)) {
            self.reader = None;
        }
        self.arm(at, trouble, again);
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
                let mut fs = self.fs.fs.clone();
                fs.set_fault(None);
                fs.crash_at(None);
                if let End::PowerCut(seed) = end {
                    self.cut_power();
                    fs = fs.crash(seed);
                }
                if end == End::Repair {
                    let dir = Path::new(&self.dir);
                    // Without CURRENT, a manifest that was just begun may have been in force.
                    if fs.paths().iter().filter(|path| path.to_string_lossy().contains("MANIFEST-")).count() == 1 {
                        fs.remove(&dir.join("CURRENT")).unwrap();
                    }
                    let report = tamis::repair(dir, RepairOptions::new().file_system(Arc::new(fs.clone()))).unwrap();
                    assert!(!report.has_losses(), "{report}");
                    (self.reader, self.lost_logs) = (None, true);
                    self.powered += 1;
                }
                self.meet(&fs, self.trouble.is_some());
                if end == End::Repair {
                    self.note_numbers();
                }
                // What has not come meets the next process.
                if let Some((at, trouble, again)) = self.trouble {
                    self.arm(at, trouble, again);
                }
            }
        }
        self.setup = setup;
        self.begin()
    }

    /// Opens a copy for the first time.
    pub(super) fn begin_copy(&mut self) -> Result<()> {
        self.note_numbers();
        self.begin()
    }

    /// Opens the store, and expects what must be there unless trouble comes.
    fn begin(&mut self) -> Result<()> {
        self.open()?;
        // Not what would strike the check of the store, where threads work beside it, too.
        let is_threaded = self.setup.jobs == Jobs::Threads;
        if self.trouble.is_some_and(|(_, trouble, _)| trouble == Trouble::ReadError || is_threaded) {
            self.fs.fs.set_fault(None);
            self.fs.fs.crash_at(None);
            self.fs.spare();
        }
        if self.fs.fs.crash_point().is_none() && !self.fs.is_dead() {
            self.arrive();
        }
        Ok(())
    }

    /// Closes the store, and goes on with a copy of it as of `at`.
    pub(super) fn go_on_with(&mut self, dir: String, at: Moment) -> Result<()> {
        self.leave();
        (self.reader, self.lost_logs) = (None, true);
        self.db.take().expect("the store is open").close()?;
        self.note_files();
        self.dir = dir;
        self.note_numbers();
        // What was not logged and not flushed is not in the copy.
        self.model.truncate(at);
        self.begin()
    }
}
