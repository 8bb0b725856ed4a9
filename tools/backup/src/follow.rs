//! [`Follow`] and [`Follower`]: keep what is written between generations.
//!
//! A follower draws a timeline, makes a generation, and from then on writes what the change feed
//! gives out, segment by segment. What the feed does not tell ends the timeline: tables that were
//! ingested, a keyspace that was created, dropped or given other options, a part of the log that is
//! gone. The segment that was being filled is thrown away, and the follower begins anew with a
//! generation. Therefore a segment only names keyspaces that the generations of its timeline have,
//! with the options that its batches need, and batches follow each other from the first one to the
//! last.
//!
//! A batch counts as of the time at which the feed gave it out: some milliseconds after it was
//! written, unless the follower was busy with a generation. For that, a thread notes each second
//! how far the store has been written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tamis::{ChangeBatch, Changes, Db, Error, KeyspaceOptions, OperationKind, Result, SeqNo};

use crate::Repository;
use crate::backup::Occasion;
use crate::journal::{record_name, token};
use crate::record::millis;
use crate::segment::{Segment, StoredBatch};

/// How often the position of the store is noted while nobody reads the feed.
const NOTE_EVERY: Duration = Duration::from_millis(250);
/// How often a generation is begun anew because keyspaces came, went or changed meanwhile.
const ATTEMPTS: usize = 10;
/// The longest pause after an error.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long one wait for changes of a [`Follower`] is, so that it stops soon.
const WAIT: Duration = Duration::from_millis(100);

/// How a store is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowOptions {
    /// A segment has what was written in at most this time. Default: one second.
    pub segment_time: Duration,
    /// A segment ends when it has this many bytes. Default: 8 MiB.
    pub segment_bytes: usize,
    /// A generation is made this often, so that restores have less to replay. Default: one hour.
    pub generation_every: Duration,
    /// After each generation, all of the store's but the last ones are pruned. Default: none are.
    pub keep: Option<usize>,
}

impl FollowOptions {
    /// The defaults.
    pub const fn new() -> FollowOptions {
        FollowOptions {
            segment_time: Duration::from_secs(1),
            segment_bytes: 8 << 20,
            generation_every: Duration::from_secs(3600),
            keep: None,
        }
    }

    /// Sets how often a generation is made.
    pub const fn generation_every(mut self, every: Duration) -> Self {
        self.generation_every = every;
        self
    }

    /// Sets how many generations are kept.
    pub const fn keep(mut self, keep: usize) -> Self {
        self.keep = Some(keep);
        self
    }

    /// Sets the most time and bytes of a segment.
    pub const fn segments(mut self, time: Duration, bytes: usize) -> Self {
        (self.segment_time, self.segment_bytes) = (time, bytes);
        self
    }
}

impl Default for FollowOptions {
    fn default() -> FollowOptions {
        FollowOptions::new()
    }
}

/// How far a store has been followed.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FollowStatus {
    /// Everything up to this sequence number is in the repository.
    pub seqno: SeqNo,
    /// The last generation.
    pub generation: u64,
    /// Segments that were written.
    pub segments: u64,
    /// How often the follower had to begin anew.
    pub restarts: u64,
    /// Why it did so last.
    pub restarted_for: Option<String>,
    /// Why the last attempt to write failed, until one succeeds.
    pub error: Option<Error>,
}

/// The keyspaces of a store by name: their ids and options.
type Keyspaces = BTreeMap<String, (u32, KeyspaceOptions)>;

/// Follows a store step by step, in the caller's thread; [`Follower`] does it in one of its own.
///
/// See [`Repository::follow`] for what it keeps.
#[derive(Debug)]
pub struct Follow {
    repository: Repository,
    db: Db,
    options: FollowOptions,
    timeline: Option<Timeline>,
    status: FollowStatus,
}

/// Batches without a gap.
#[derive(Debug)]
struct Timeline {
    id: u64,
    /// Of the store whose history this is.
    branch: u64,
    keyspaces: Keyspaces,
    /// Their ids.
    ids: BTreeSet<u32>,
    changes: Changes,
    /// What was read from the feed and is not in the repository.
    segment: Segment,
    /// Whether nothing may be added to it: writing it has failed, or the time is over.
    is_full: bool,
    /// How far the store had been written at these times.
    notes: Notes,
    /// The time of the last batch.
    time: u64,
    next_generation: Option<Instant>,
    making: Option<Making>,
}

/// A generation that a thread makes. Dropping it ends the thread, so that it does not keep the
/// store open.
#[derive(Debug)]
struct Making {
    thread: Option<JoinHandle<Result<Made>>>,
    is_cancelled: Arc<AtomicBool>,
}

impl Making {
    /// The result, if there is one.
    fn result(&mut self) -> Option<Result<Made>> {
        let thread = self.thread.take_if(|thread| thread.is_finished())?;
        // It does not panic, or has written to standard error that it did.
        Some(thread.join().unwrap_or(Err(Error::Closed)))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        // Nobody asks for the result.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What ended a step.
enum End {
    /// Up to here, batches follow each other.
    Whole,
    /// The feed does not tell what came next, for this reason.
    Broken(&'static str),
}

const REDEFINED: &str = "keyspaces were created, dropped or given other options";
const LOG_GONE: &str = "the log with what came next is gone";
const OTHER_HISTORY: &str = "the store has another history now";

impl Follow {
    /// Makes a generation, from which on the store is followed.
    pub fn begin(repository: &Repository, db: &Db, options: FollowOptions) -> Result<Follow> {
        let (repository, db, status) = (repository.clone(), db.clone(), FollowStatus::default());
        let mut follow = Follow { repository, db, options, timeline: None, status };
        follow.begin_timeline()?;
        Ok(follow)
    }

    /// How far it is.
    pub fn status(&self) -> &FollowStatus {
        &self.status
    }

    /// Goes on with another handle of the same store, for example after the process that writes has
    /// replaced it. If that has another history, the next step begins anew.
    pub fn reopen(&mut self, db: &Db) -> Result<()> {
        self.db = db.clone();
        let Some(timeline) = &mut self.timeline else { return Ok(()) };
        // A copy that has replaced the store may have given out the same numbers.
        if db.image()?.branch() != timeline.branch {
            self.end_timeline(OTHER_HISTORY);
            return Ok(());
        }
        match db.changes_since(timeline.changes.seqno()) {
            Ok(changes) => timeline.changes = changes,
            Err(Error::LogGone { .. }) => self.end_timeline(LOG_GONE),
            Err(Error::Diverged { .. }) => self.end_timeline(OTHER_HISTORY),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The next step begins anew.
    fn end_timeline(&mut self, reason: impl Into<String>) {
        self.timeline = None;
        self.status.restarts += 1;
        self.status.restarted_for = Some(reason.into());
    }

    /// Waits for changes, for about `wait` at most, and writes what it has read as one segment. A
    /// store that is open read-only is [refreshed](Db::refresh) first. Begins anew where the feed
    /// has a gap, and if the repository no longer has the generation with which the batches begin;
    /// [`FollowStatus::restarted_for`] says why.
    ///
    /// After an error, the next step goes on where this one was: nothing is left out, and nothing
    /// more is read before it has been written. After [`Error::HistoryChanged`] it needs a handle
    /// that was opened anew, by [`reopen`](Follow::reopen).
    pub fn step(&mut self, wait: Duration) -> Result<()> {
        self.step_until(wait, &AtomicBool::new(false))
    }

    /// A step that waits no longer once it is stopped.
    fn step_until(&mut self, wait: Duration, is_stopped: &AtomicBool) -> Result<()> {
        let stepped = self.try_step(wait, is_stopped);
        self.status.error = stepped.as_ref().err().cloned();
        stepped
    }

    fn try_step(&mut self, wait: Duration, is_stopped: &AtomicBool) -> Result<()> {
        if self.db.is_read_only()
            && let Err(error) = self.db.refresh()
        {
            if matches!(error, Error::HistoryChanged { .. }) {
                // Its numbers may be given out again, for other writes.
                self.end_timeline(OTHER_HISTORY);
            }
            return Err(error);
        }
        let Some(timeline) = &mut self.timeline else { return self.begin_timeline() };
        let broken = match timeline.fill(wait, self.options.segment_bytes, is_stopped)? {
            End::Broken(reason) => Some(reason),
            // After the batches were read: what became of the keyspaces that they name was before.
            End::Whole if keyspaces(&self.db)? != timeline.keyspaces => Some(REDEFINED),
            End::Whole => None,
        };
        if let Some(reason) = broken {
            self.end_timeline(reason);
            return self.begin_timeline();
        }
        if !timeline.segment.is_empty() {
            timeline.is_full = true;
            let (id, next) = (timeline.segment.id, Segment::new(timeline.id, timeline.segment.id.last));
            self.repository.storage.put(&id.name(), &mut |put| timeline.segment.write(put))?;
            (timeline.segment, timeline.is_full) = (next, false);
            self.status.segments += 1;
        }
        let seqno = timeline.segment.id.last;
        // Without its generation, nothing can be restored of the timeline.
        if !self.repository.storage.exists(&record_name(self.status.generation))? {
            self.end_timeline(format!("generation {} was removed", self.status.generation));
            return self.begin_timeline();
        }
        self.status.seqno = seqno;
        self.make_generation()
    }

    /// Makes a generation of the timeline in a thread of its own, when one is due.
    fn make_generation(&mut self) -> Result<()> {
        let Some(timeline) = &mut self.timeline else { return Ok(()) };
        if let Some(making) = &mut timeline.making {
            let Some(result) = making.result() else { return Ok(()) };
            timeline.making = None;
            let made = result?;
            self.status.generation = made.number;
            made.pruned?;
        }
        if timeline.next_generation.is_some_and(|next| Instant::now() >= next) {
            timeline.next_generation = Instant::now().checked_add(self.options.generation_every);
            let (repository, db, options) = (self.repository.clone(), self.db.clone(), self.options);
            let (id, known) = (timeline.id, timeline.keyspaces.clone());
            let is_cancelled = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&is_cancelled);
            let make = move || repository.generation_of(&db, id, Some(&known), &options, &flag);
            timeline.making = Some(Making { thread: Some(std::thread::spawn(make)), is_cancelled });
        }
        Ok(())
    }

    fn begin_timeline(&mut self) -> Result<()> {
        let id = token();
        let notes = Notes::start(&self.db);
        let made = self.repository.generation_of(&self.db, id, None, &self.options, &AtomicBool::new(false))?;
        self.status.generation = made.number;
        self.status.seqno = made.seqno;
        let next_generation = Instant::now().checked_add(self.options.generation_every);
        let (segment, time) = (Segment::new(id, made.seqno), millis(made.time));
        let Made { branch, changes, keyspaces, .. } = made;
        let ids = keyspaces.values().map(|(id, _)| *id).collect();
        let (is_full, making) = (false, None);
        let timeline =
            Timeline { id, branch, keyspaces, ids, changes, segment, is_full, notes, time, next_generation, making };
        self.timeline = Some(timeline);
        made.pruned
    }
}

impl Timeline {
    /// Reads batches into the segment, for about `wait`.
    fn fill(&mut self, wait: Duration, bytes: usize, is_stopped: &AtomicBool) -> Result<End> {
        let begin = Instant::now();
        self.notes.stop();
        while !self.is_full && self.segment.len() < bytes {
            let left = wait.saturating_sub(begin.elapsed());
            let batch = match self.changes.next_timeout(left.min(WAIT)) {
                Ok(Some(batch)) => batch,
                Ok(None) if left.is_zero() || is_stopped.load(Ordering::Relaxed) => break,
                Ok(None) => continue,
                Err(Error::LogGone { .. }) => return Ok(End::Broken(LOG_GONE)),
                Err(error) => return Err(error),
            };
            // One that was created and dropped since the last step is in no list of keyspaces.
            if batch.keyspace_ids().any(|id| !self.ids.contains(&id)) {
                return Ok(End::Broken(REDEFINED));
            }
            if ingests(&batch) {
                return Ok(End::Broken("tables were ingested"));
            }
            let (first, last) = (batch.first_seqno(), batch.last_seqno());
            self.time = self.time.max(self.notes.time_of(last));
            let stored = StoredBatch { time: self.time, first, last, encoded: batch.encoded() };
            if !self.segment.add(stored) {
                return Ok(End::Broken("a batch did not follow the one before it"));
            }
        }
        Ok(End::Whole)
    }
}

fn ingests(batch: &ChangeBatch) -> bool {
    batch.operations().any(|operation| matches!(operation.kind, OperationKind::Ingest { .. }))
}

fn keyspaces(db: &Db) -> Result<Keyspaces> {
    let mut keyspaces = Keyspaces::new();
    for name in db.keyspace_names()? {
        let Some(keyspace) = db.existing_keyspace(&name)? else { continue };
        match keyspace.options() {
            Ok(options) => _ = keyspaces.insert(name, (keyspace.id(), options)),
            Err(Error::KeyspaceDropped(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(keyspaces)
}

/// How far a store had been written at certain times.
#[derive(Debug)]
struct Notes {
    noted: Arc<Mutex<Vec<(u64, SeqNo)>>>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Number of those that are behind the last batch.
    passed: usize,
}

impl Notes {
    /// Notes the position of the store now and then, until it is stopped or dropped.
    fn start(db: &Db) -> Notes {
        let (noted, is_stopped) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (db, list, stopped) = (db.clone(), Arc::clone(&noted), Arc::clone(&is_stopped));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let seqno = db.last_seqno();
                lock(&list).push((millis(SystemTime::now()), seqno));
                std::thread::park_timeout(NOTE_EVERY);
            }
        });
        Notes { noted, is_stopped, thread: Some(thread), passed: 0 }
    }

    fn stop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It does not panic.
            let _ = thread.join();
        }
    }

    /// The first time at which a number is known to have been written.
    fn time_of(&mut self, seqno: SeqNo) -> u64 {
        let noted = lock(&self.noted);
        while noted.get(self.passed).is_some_and(|(_, last)| *last < seqno) {
            self.passed += 1;
        }
        noted.get(self.passed).map_or_else(|| millis(SystemTime::now()), |(time, _)| *time)
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A generation that is followed.
#[derive(Debug)]
struct Made {
    number: u64,
    seqno: SeqNo,
    time: SystemTime,
    /// Of the store.
    branch: u64,
    keyspaces: Keyspaces,
    /// What comes after it.
    changes: Changes,
    /// Whether older ones could be removed.
    pruned: Result<()>,
}

impl Repository {
    /// Makes a generation that states `timeline` at one number, with these keyspaces if any are
    /// given.
    fn generation_of(
        &self,
        db: &Db,
        timeline: u64,
        known: Option<&Keyspaces>,
        options: &FollowOptions,
        is_cancelled: &AtomicBool,
    ) -> Result<Made> {
        let begun = self.storage.begin()?;
        let mut attempts = 0;
        let (image, time, keyspaces, changes) = loop {
            let before = keyspaces(db)?;
            // Keeps the log from here on.
            let pin = db.changes_since(db.last_seqno())?;
            let image = db.image()?;
            let time = SystemTime::now();
            let changes = db.changes_since(image.seqno())?;
            drop(pin);
            // Ids are not used twice: these are the keyspaces of the image.
            if keyspaces(db)? == before && known.is_none_or(|known| *known == before) {
                break (image, time, before, changes);
            }
            attempts += 1;
            if attempts == ATTEMPTS || known.is_some() {
                return Err(crate::invalid(
                    "keyspaces are created, dropped or changed all the time; make a backup later",
                ));
            }
        };
        let (path, lock) = (db.path(), begun.as_deref());
        let branch = image.branch();
        let made = self.back_up(&image, Occasion { time, path, timeline, lock, is_cancelled })?;
        drop((image, begun));
        // The generation is there, whether or not others can be removed.
        let pruned = options.keep.map_or(Ok(()), |keep| self.prune_store(made.store, keep.max(1)).map(drop));
        Ok(Made { number: made.generation, seqno: made.seqno, time, branch, keyspaces, changes, pruned })
    }

    /// Follows a store that this process has open: makes a generation, and from then on keeps every
    /// batch, so that a store can be restored as it was at any second
    /// ([`restore_to`](Repository::restore_to)). Returns when the generation is there; a thread
    /// goes on until the result is stopped or dropped.
    ///
    /// The follower keeps the store open. What it writes to the repository is durable in the store.
    /// It lags by a segment: a second, or what the repository needs to take one. While the
    /// repository cannot be reached, the store keeps its log, up to
    /// [`Options::max_pinned_log`](tamis::Options::max_pinned_log).
    ///
    /// Where the change feed has a gap, the follower begins anew with a generation; what lies
    /// between the last segment and that generation, about a second, can then be reached only as a
    /// whole. Gaps are: tables that are ingested, keyspaces that are created, dropped or given
    /// other options, and a log that was not kept. Keyspaces without a log are in generations only.
    /// What a compaction filter drops is in segments.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use tamis_backup::{Base, FollowOptions, Point, Repository};
    ///
    /// let repository = Repository::create(dir.path().join("backups"))?;
    /// let follower = repository.follow(&db, FollowOptions::new())?;
    /// let good = db.put("apple", "red")?;
    /// db.delete_range(..)?; // a mistake
    /// follower.stop()?;
    ///
    /// let copy = dir.path().join("copy");
    /// repository.restore_to(Point::Seqno(good), Base::OnlyStore, &copy)?;
    /// assert_eq!(tamis::Db::open(&copy)?.get("apple")?.as_deref(), Some(&b"red"[..]));
    /// # Ok(()) }
    /// ```
    pub fn follow(&self, db: &Db, options: FollowOptions) -> Result<Follower> {
        let follow = Follow::begin(self, db, options)?;
        let shared = Arc::new(Shared { status: Mutex::new(follow.status.clone()), is_stopped: AtomicBool::new(false) });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::spawn(move || of_thread.run(follow));
        Ok(Follower { shared, thread: Some(thread) })
    }
}

/// Follows a store in a thread of its own; see [`Repository::follow`].
#[derive(Debug)]
pub struct Follower {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<()>>>,
}

#[derive(Debug)]
struct Shared {
    status: Mutex<FollowStatus>,
    is_stopped: AtomicBool,
}

impl Shared {
    fn run(&self, mut follow: Follow) -> Result<()> {
        let mut pause = WAIT;
        while !self.is_stopped.load(Ordering::Relaxed) {
            let stepped = follow.step_until(follow.options.segment_time, &self.is_stopped);
            *lock(&self.status) = follow.status.clone();
            match stepped {
                Ok(()) => pause = WAIT,
                Err(
                    error
                    @ (Error::Closed | Error::Poisoned(_) | Error::Diverged { .. } | Error::HistoryChanged { .. }),
                ) => return Err(error),
                Err(_) => {
                    let begin = Instant::now();
                    while begin.elapsed() < pause && !self.is_stopped.load(Ordering::Relaxed) {
                        std::thread::sleep(WAIT);
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
        let last = match follow.db.sync() {
            Ok(()) => follow.db.synced_seqno(),
            Err(Error::ReadOnly(_)) => follow.db.last_seqno(),
            Err(error) => return Err(error),
        };
        while follow.status.seqno < last {
            follow.step(WAIT)?;
            *lock(&self.status) = follow.status.clone();
        }
        Ok(())
    }
}

impl Follower {
    /// How far it is.
    pub fn status(&self) -> FollowStatus {
        lock(&self.shared.status).clone()
    }

    /// Whether it has ended by itself, because the store was closed or takes no more writes;
    /// [`stop`](Follower::stop) then says why.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Writes what is in the store now, and ends. An error says that something of it is missing.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
        // It does not panic, or has written to standard error that it did.
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or(Err(Error::Closed)))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // For its error there is `stop`.
        let _ = self.end();
    }
}
