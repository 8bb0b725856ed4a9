//! Scheduling of flushes and compactions, and waiting for them.
//!
//! One flush runs at a time, oldest memtable first. Compactions run beside it, limited by the
//! executor's threads and by overlapping key ranges. A job that fails leaves its inputs as they
//! were, or as its last completed stage left them. Work of its kind then backs off for a moment;
//! the next writer or waiter retries it, or the executor after a while.
//!
//! A flush waits for no long compaction: the executor has a thread for it. Only *relief* goes
//! there, too: a compaction among runs of level 0. It is due when these are many and the limit on
//! compactions is reached or a caller has reserved the keyspace. Thus a task of minutes does not
//! stop writers. A caller who waits for a flush runs it on its own thread if no other has taken
//! it: the flush of one store waits for no other store's disk.
//!
//! Every event that can make work due calls [`Store::schedule`]: sealing a memtable, the end of
//! work, the end of a reservation, dropping a snapshot that held garbage, changing or dropping a
//! keyspace, opening the store, the time at which a table has enough entries that have expired, and
//! a while without many writes (`quiet`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::agenda::{Conditions, Due, Findings, Outlook};
use super::background::{Failure, Jobs, LONGEST_RETRY, Request, RequestResult, Waiting, Work, WorkKind};
use super::throttle;
use crate::db::locks::check_may_wait;
use crate::db::shape::view::Tree;
use crate::db::store::Store;
use crate::error::{Error, Result};
use crate::exec::Priority;
use crate::format::deadline::{Deadline, NEVER};
use crate::format::key::SeqNo;
use crate::operator::NamedOperator;
use crate::options::{Compression, LevelFilters};
use crate::report::event::{BackgroundWork, Event};
use crate::sorted::table::TableMeta;
use crate::sync::atomic::Ordering;
use crate::sync::{thread, time};
use crate::tree::compaction::filters::fixed;
use crate::tree::compaction::picker::{Debt, L0_SLOWDOWN, L0_TRIGGER, Picker, Requested, Shape, has_garbage};
use crate::tree::compaction::task::Task;

/// The longest time, in milliseconds, until a store looks again for what has expired.
const LONGEST_SLEEP: Deadline = 60 * 60 * 1000;
/// The longest sleep of work that waits for the rate limit: so long closing may wait, and so late
/// may a new limit be followed.
const LONGEST_NAP: Duration = Duration::from_millis(10);

/// Runs in level 0, and bytes to be compacted in multiples of the size at which level 0 is
/// compacted, from which on an automatic rate limit is the maximum.
const L0_URGENT: usize = L0_TRIGGER + L0_TRIGGER / 2;
const DEBT_URGENT: u64 = 8;

/// Reserves a keyspace for a caller: no other compaction of it begins, except relief.
struct Reservation<'a>(&'a Arc<Store>, u32);

impl<'a> Reservation<'a> {
    fn new(store: &'a Arc<Store>, keyspace: u32) -> Reservation<'a> {
        store.workers.background.lock().reserved.push(keyspace);
        Reservation(store, keyspace)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut jobs = self.0.workers.background.lock();
        if let Some(at) = jobs.reserved.iter().position(|id| *id == self.1) {
            jobs.reserved.swap_remove(at);
        }
        drop(jobs);
        // Work that became due meanwhile has not been begun.
        self.0.schedule();
    }
}

impl Store {
    /// Begins all background work that is due and can run.
    pub(crate) fn schedule(self: &Arc<Self>) {
        self.update_pressure();
        loop {
            while let Some(work) = self.begin_work() {
                self.spawn(work);
            }
            // A snapshot may have been dropped since the picker looked.
            if !self.note_held_garbage() {
                self.plan_wake();
                return self.plan_look();
            }
        }
    }

    /// Has work scheduled again when the next table becomes due because of what has
    /// expired by then.
    fn plan_wake(self: &Arc<Self>) {
        if !self.clock.has_deadlines() || self.workers.is_stopping() || self.gate.is_read_only() {
            return;
        }
        let now = self.clock.now();
        let mut jobs = self.workers.background.lock();
        self.agenda(&mut jobs);
        let next = jobs.agenda.next_deadline(now);
        drop(jobs);
        let Some(next) = next else { return };
        // In whole seconds, and within an hour: few wakes are pending, however many tables there
        // are and whatever the clock does meanwhile.
        let at = next.min(now.saturating_add(LONGEST_SLEEP)).div_ceil(1000).saturating_mul(1000);
        if self.workers.background.wake_at.fetch_min(at, Ordering::AcqRel) <= at {
            return;
        }
        // At least a second, even if the clock stands still.
        let delay = Duration::from_millis(at.saturating_sub(now)).max(Duration::from_secs(1));
        self.do_after(delay, |store| {
            store.workers.background.wake_at.store(NEVER, Ordering::Release);
            store.schedule();
        });
    }

    /// Has something done after a time, unless the store is gone by then.
    pub(super) fn do_after(self: &Arc<Self>, delay: Duration, work: impl FnOnce(&Arc<Store>) + Send + 'static) {
        let store = Arc::downgrade(self);
        let job = move || _ = store.upgrade().map(|store| work(&store));
        self.executor().spawn_after(delay, Box::new(job));
    }

    /// Has something done after a time that is not urgent then: flushes of stores that share the
    /// executor go first. Nothing is done if the store is gone by then.
    pub(crate) fn do_later(self: &Arc<Self>, delay: Duration, work: impl FnOnce(&Arc<Store>) + Send + 'static) {
        let (store, executor) = (Arc::downgrade(self), Arc::downgrade(self.executor()));
        let job = move || _ = store.upgrade().map(|store| work(&store));
        let begin = move || _ = executor.upgrade().map(|executor| executor.spawn(Priority::Medium, Box::new(job)));
        self.executor().spawn_after(delay, Box::new(begin));
    }

    /// Retries failed work after its back-off. Returns one of `keyspaces` whose compactions fail
    /// and whose level 0 has as many runs as it may, with the failure if it backs off: what one
    /// keyspace cannot do stops writes to that keyspace alone. Every write calls this, so it costs
    /// one load while nothing has failed.
    pub(crate) fn retry_failed<I: Iterator<Item = u32>>(
        self: &Arc<Self>,
        keyspaces: impl FnOnce() -> I,
    ) -> Option<(u32, Option<Error>)> {
        if !self.workers.background.retry_wanted.load(Ordering::Relaxed) {
            return None;
        }
        self.retry();
        let jobs = self.workers.background.lock();
        let is_clogged = |id: &u32| jobs.agenda.runs(*id) >= throttle::L0_STOP;
        let clogged = jobs.failing().filter(is_clogged).map(|id| {
            let kind = WorkKind::Compaction(id);
            let failure = jobs.failed.get(&kind).filter(|_| jobs.is_backing_off(kind));
            (id, failure.map(|failure| failure.error.clone()))
        });
        let clogged: Vec<(u32, Option<Error>)> = clogged.collect();
        drop(jobs);
        if clogged.is_empty() {
            return None;
        }
        keyspaces().find_map(|id| clogged.iter().find(|(clogged, _)| *clogged == id)).cloned()
    }

    /// Waits until level 0 of a keyspace has room for a run, or its compaction has failed once
    /// more.
    pub(crate) fn await_unclogged(self: &Arc<Self>, keyspace: u32) -> Result<()> {
        let has_room = |jobs: &Jobs| jobs.agenda.runs(keyspace) < throttle::L0_STOP;
        self.wait_for_jobs(Waiting::CompactionOf(keyspace), has_room)
    }

    fn retry(self: &Arc<Self>) {
        self.schedule();
        // What has become needless is not tried again, and neither is requested work.
        self.forget_failures(|jobs, kind| match kind {
            WorkKind::Compaction(id) => {
                let is_requested = jobs.failed.get(&kind).is_some_and(|failure| failure.was_requested);
                let is_over = jobs.agenda.has_none(id) || is_requested && !jobs.agenda.has_work(id);
                is_over && jobs.running(id).is_empty() && !jobs.is_backing_off(kind)
            }
            WorkKind::Flush | WorkKind::Survey => false,
        });
    }

    fn begin_work(&self) -> Option<Work> {
        let mut jobs = self.workers.background.lock();
        if self.workers.is_stopping() || self.gate.is_read_only() || self.gate.is_poisoned() {
            return None;
        }
        let work = self.next_work(&mut jobs)?;
        jobs.unfinished += 1;
        Some(work)
    }

    /// Hands work, already counted as unfinished, to the executor. Until a thread takes it, the
    /// work stands in a list, from which waiting callers may take it and closing removes it. The
    /// executor's job holds only a weak reference to the store.
    fn spawn(self: &Arc<Self>, work: Work) {
        let (store, priority) = (Arc::downgrade(self), work.priority());
        let mut jobs = self.workers.background.lock();
        if self.workers.is_stopping() {
            drop(jobs);
            return self.abandon(work);
        }
        let number = jobs.next_job;
        jobs.next_job += 1;
        jobs.queued.push((number, work));
        drop(jobs);
        let job = move || _ = store.upgrade().map(|store| store.run_queued(|queued, _| queued == number));
        self.executor().spawn(priority, Box::new(job));
    }

    /// Runs a job of a stepped executor, for a caller; returns whether there was one.
    pub(crate) fn step(&self) -> bool {
        self.executor().step()
    }

    /// Does some work for which a caller waits, if no thread has taken it; returns whether there
    /// was any.
    fn help(self: &Arc<Self>, waiting: Waiting) -> bool {
        // A thread that waits for a flush must not begin longer work. A writer that waits for
        // compactions may: there may be no free thread for them, as another store's work can hold
        // an executor that stores share.
        let may_relieve = matches!(waiting, Waiting::Request | Waiting::Compaction | Waiting::CompactionOf(_));
        let may_survey = matches!(waiting, Waiting::All);
        self.run_queued(|_, work| matches!(work, Work::Flush))
            || may_relieve && self.run_queued(|_, work| matches!(work, Work::Relief(..)))
            || may_survey && self.run_queued(|_, work| matches!(work, Work::Survey))
            || self.step()
    }

    /// Runs queued work that is meant, unless another thread has taken it or it was abandoned;
    /// returns whether there was any.
    fn run_queued(self: &Arc<Self>, is_meant: impl Fn(u64, &Work) -> bool) -> bool {
        let mut jobs = self.workers.background.lock();
        let Some(at) = jobs.queued.iter().position(|(number, work)| is_meant(*number, work)) else { return false };
        let (_, work) = jobs.queued.swap_remove(at);
        drop(jobs);
        let _ended = self.workers.guard_job();
        self.run_work(&work);
        true
    }

    /// Drops work that no thread has taken, because the store is closing.
    fn abandon(&self, work: Work) {
        let _ended = self.workers.guard_job();
        self.workers.background.lock().remove(&work);
    }

    /// Has another thread help with a running compaction.
    pub(super) fn spawn_help(self: &Arc<Self>, help: impl FnOnce(&Arc<Store>) + Send + 'static) {
        let store = Arc::downgrade(self);
        let job = move || {
            let Some(store) = store.upgrade() else { return };
            let Ok(_job) = store.workers.begin_job() else { return };
            help(&store);
        };
        self.executor().spawn(Priority::Help, Box::new(job));
    }

    /// Waits until the rate limit lets background work go on that has read and written `bytes`
    /// bytes.
    pub(super) fn pace(&self, bytes: usize) {
        let mut begin = None;
        while let Some(wait) = self.workers.rate.take(bytes) {
            begin.get_or_insert_with(time::now);
            if self.workers.is_stopping() {
                break;
            }
            check_may_wait();
            thread::sleep(wait.min(LONGEST_NAP));
        }
        if let Some(begin) = begin {
            self.workers.rate.note_wait(time::since(begin));
        }
    }

    fn next_work(&self, jobs: &mut Jobs) -> Option<Work> {
        let moment = self.agenda(jobs);
        let Outlook { view, conditions } = &moment;
        if !jobs.flushing && !view.sealed.is_empty() && !jobs.is_backing_off(WorkKind::Flush) {
            jobs.flushing = true;
            return Some(Work::Flush);
        }
        // The thread that has the lock looks for work when it has done.
        let can_tidy = jobs.agenda.has_unknown() && !self.workers.tidying.is_locked();
        if !jobs.surveying && (can_tidy || conditions.is_idle && jobs.agenda.has_unsampled()) {
            jobs.surveying = true;
            return Some(Work::Survey);
        }
        if jobs.compaction_count() < self.executor().parallelism().saturating_sub(1).max(1) {
            // Even in a keyspace that a caller has reserved: the caller waits for its tables.
            let next = jobs.take_unfinished().or_else(|| self.next_compaction(&moment, jobs));
            if let Some((keyspace, task)) = next {
                jobs.claim(keyspace, task.clone());
                return Some(Work::Compaction(keyspace, task));
            }
        }
        if jobs.relieving {
            return None;
        }
        // The keyspace with the most runs first: it is where writers are slowed down first.
        let longest = jobs.agenda.longest().take_while(|(runs, _)| *runs >= L0_SLOWDOWN);
        let relief = longest.map(|(_, id)| id).find_map(|id| {
            let tree = view.tree(id).filter(|_| !jobs.is_backing_off(WorkKind::Compaction(id)))?;
            Some((id, self.with_picker(tree, *conditions, jobs, |picker| picker.pick_relief())?))
        });
        let (keyspace, task) = relief?;
        jobs.relieving = true;
        jobs.claim(keyspace, task.clone());
        Some(Work::Relief(keyspace, task))
    }

    /// The most useful compaction that can start now.
    fn next_compaction(&self, moment: &Outlook, jobs: &mut Jobs) -> Option<(u32, Task)> {
        let Outlook { view, conditions } = moment;
        loop {
            while let Some(id) = jobs.agenda.next_undecided() {
                self.decide(moment, id, jobs);
            }
            let is_free = |id: &u32| !jobs.reserved.contains(id) && !jobs.is_backing_off(WorkKind::Compaction(*id));
            let due = jobs.agenda.due().find(is_free);
            let id = match due {
                Some(id) => id,
                None => jobs.agenda.next_waiting(conditions.is_idle)?,
            };
            if let (Some(id), Some(tree)) = (due, view.tree(id))
                && let Some((_, task)) = self.with_picker(tree, *conditions, jobs, |picker| picker.pick())
            {
                return Some((id, task));
            }
            // The store has become idle or busy, or a snapshot was taken, since it was decided.
            self.decide(moment, id, jobs);
        }
    }

    /// Brings the [agenda](super::agenda) up to date, and returns the moment of which it is.
    pub(super) fn agenda(&self, jobs: &mut Jobs) -> Outlook {
        // Before the view: see `change_view`.
        let touched = self.shape.take_touched();
        let moment = self.moment();
        jobs.agenda.touch(touched);
        if self.clock.has_deadlines() {
            jobs.agenda.note_time(self.expiry_time());
        }
        jobs.agenda.note_conditions(moment.conditions);
        while let Some(id) = jobs.agenda.next_stale() {
            self.ask(&moment, id, jobs);
        }
        moment
    }

    /// Asks a keyspace for what the agenda keeps of it.
    fn ask(&self, moment: &Outlook, id: u32, jobs: &mut Jobs) {
        let Outlook { view, conditions } = moment;
        let found = view.tree(id).map(|tree| {
            let mut debt = self.with_picker(tree, *conditions, jobs, |picker| picker.debt());
            let is_unknown = !self.gate.is_read_only() && tree.version.is_survey_due(conditions.oldest_snapshot);
            // What nobody has looked at may be garbage.
            debt.garbage = debt.garbage.saturating_add(u64::from(is_unknown));
            let metas = || tree.version.tables().map(|(_, table)| table.meta());
            let hidden = tree.version.hidden();
            let hides = |meta: &TableMeta| hidden.get(&meta.number).is_some_and(|bytes| *bytes > 0);
            let expiry = tree.version.has_deadlines().then(|| self.expiry_time());
            let next_due = |now| metas().filter_map(|meta| meta.deadlines.next_due(meta.entries, now)).min();
            Findings {
                due: Due::Undecided,
                debt,
                runs: tree.version.levels()[0].tables().len(),
                garbage: metas()
                    .filter(|meta| has_garbage(meta) || hides(meta))
                    .map(|meta| meta.largest_seqno)
                    .collect(),
                version: Arc::downgrade(&tree.version),
                has_ranges: !tree.version.ranges().is_empty(),
                survey_waits_for: tree.version.survey_waits_for(),
                is_unknown,
                is_unsampled: !self.gate.is_read_only() && tree.version.is_sampling_due(),
                expiry_steps: expiry
                    .map(|_| metas().flat_map(|meta| meta.deadlines.steps()).collect())
                    .unwrap_or_default(),
                deadline: expiry.and_then(next_due),
            }
        });
        jobs.agenda.note(id, found);
    }

    /// Finds out when a keyspace has work.
    fn decide(&self, moment: &Outlook, id: u32, jobs: &mut Jobs) {
        let Outlook { view, conditions } = moment;
        // Dropped since the agenda was told of changes.
        let Some(tree) = view.tree(id) else { return jobs.agenda.note(id, None) };
        let picks = |conditions| self.with_picker(tree, conditions, jobs, |picker| picker.pick());
        let in_some_store = |conditions: Conditions| {
            let either = [!conditions.is_idle, conditions.is_idle];
            either.into_iter().find(|&is_idle| picks(Conditions { is_idle, ..conditions }).is_some())
        };
        let flushed = Conditions { flushed: SeqNo::MAX, ..*conditions };
        let unheld = Conditions { oldest_snapshot: SeqNo::MAX, ..flushed };
        let due = match picks(*conditions) {
            Some((score, _)) => Due::Now(score),
            // Mostly, a keyspace without work has none whatever the rest of the store does.
            None if in_some_store(unheld).is_none() => Due::Never,
            None => match in_some_store(*conditions) {
                Some(is_idle) => Due::Idle(is_idle),
                None if in_some_store(flushed).is_some() => Due::Unflushed,
                None => Due::Held,
            },
        };
        jobs.agenda.decide(id, due);
    }

    /// Runs the task that `pick` chooses for a caller, once no running compaction conflicts, and
    /// waits for its end. Returns the bytes of tables it wrote, or `None` if there was nothing to
    /// do.
    pub(super) fn run_requested(
        self: &Arc<Self>,
        keyspace: u32,
        request: Request,
        pick: impl Fn(&Picker<'_>) -> Requested,
    ) -> Result<Option<u64>> {
        let reservation = Reservation::new(self, keyspace);
        let outcome = RequestResult::default();
        loop {
            let mut jobs = self.workers.background.lock();
            self.gate.check_writable()?;
            if self.workers.is_stopping() {
                return Err(Error::Closed);
            }
            let Outlook { view, conditions } = self.moment();
            let Some(tree) = view.tree(keyspace) else { return Ok(None) };
            match self.with_picker(tree, conditions, &jobs, &pick) {
                Requested::Done => return Ok(None),
                Requested::Task(task) => {
                    jobs.claim(keyspace, task.clone());
                    jobs.unfinished += 1;
                    drop(jobs);
                    self.spawn(Work::Requested(keyspace, task, request, Arc::clone(&outcome)));
                    break;
                }
                Requested::Wait => {}
            }
            let running = jobs.running(keyspace);
            drop(jobs);
            drop(view);
            self.wait_for_jobs(Waiting::Request, |jobs| jobs.running(keyspace) != running)?;
        }
        drop(reservation);
        self.wait_for_progress(Waiting::Request, || outcome.lock().is_some())?;
        let result = outcome.lock().take();
        result.transpose()
    }

    /// The view, and what decides in it which compactions are due.
    fn moment(&self) -> Outlook {
        // The number first: the view then has the tables that it tells of, unless its flush is
        // being made visible just now.
        let flushed = self.sequence.flushed();
        let view = self.shape.view();
        let is_idle = self.is_idle(&view);
        let is_being_shown = view.sealed.iter().any(|memtable| memtable.last_seqno() <= flushed);
        let flushed = match view.is_flushed() {
            true => SeqNo::MAX,
            false if is_being_shown => 0,
            false => flushed,
        };
        Outlook { view, conditions: Conditions { is_idle, flushed, oldest_snapshot: self.shape.snapshots().oldest() } }
    }

    fn with_picker<R>(
        &self,
        tree: &Tree,
        conditions: Conditions,
        jobs: &Jobs,
        pick: impl FnOnce(&Picker<'_>) -> R,
    ) -> R {
        let Conditions { is_idle, flushed, oldest_snapshot } = conditions;
        let mut value_garbage = tree.version.value_garbage(is_idle);
        // A value or a table that cannot be moved must not keep other work from being done.
        if value_garbage.is_urgent && jobs.fails(WorkKind::Compaction(tree.id)) {
            value_garbage = Arc::new(value_garbage.not_urgent());
        }
        let run = self.table_options(tree, fixed(&tree.options, 0), Compression::None);
        pick(&Picker {
            levels: &tree.version.metas(),
            running: &jobs.running(tree.id),
            shape: Shape::USUAL,
            base_size: self.base_size(),
            fits_one_table: &|runs| run.memory_of(runs.iter().copied()) <= self.environment.run_memory() as u64,
            is_idle,
            oldest_snapshot,
            now: if tree.version.has_deadlines() { self.expiry_time() } else { 0 },
            weights: &tree.version.weights(oldest_snapshot),
            value_garbage: &value_garbage,
            deleted: &tree.version.deleted(),
            hidden: &tree.version.hidden(),
            flushed,
            combines: tree.options.merge_operator.as_ref().is_none_or(NamedOperator::is_known),
            moves_to_last: !tree.options.compaction_filter.is_set()
                && tree.options.compression == Compression::None
                && tree.options.level_filters == LevelFilters::Uniform,
        })
    }

    /// Runs one piece of work, then begins the work that is due after it.
    fn run_work(self: &Arc<Self>, work: &Work) {
        let done = catch_unwind(AssertUnwindSafe(|| {
            if matches!(work, Work::Survey) {
                let _ = self.tidy_ranges();
                self.sample();
                self.workers.background.lock().remove(work);
                self.workers.background.done.notify_all();
                return self.schedule();
            }
            let result = self.run_reported(work, || match work {
                Work::Flush => self.flush_oldest(),
                Work::Survey => Ok(0),
                Work::Compaction(keyspace, task)
                | Work::Relief(keyspace, task)
                | Work::Requested(keyspace, task, Request::Compact, _) => self.compact(*keyspace, task),
                Work::Requested(keyspace, task, Request::Refilter, _) => self.refilter(*keyspace, task),
            });
            self.finish(work, result);
            if !matches!(work, Work::Flush) {
                // After the task has ended: its tables are no longer taken.
                let _ = self.tidy_ranges();
            }
            self.schedule();
        }));
        if done.is_err() {
            // The state is unknown: nothing more is written.
            let error = self.poison(Error::invalid("background work panicked; this is a bug in tamis"));
            self.finish(work, Err(error));
        }
    }

    /// Runs work, and tells the listener when it begins and ends.
    fn run_reported(&self, work: &Work, run: impl FnOnce() -> Result<u64>) -> Result<u64> {
        if !self.report.notices().has_listener() {
            return run();
        }
        let compaction = match work {
            Work::Flush | Work::Survey => None,
            Work::Compaction(keyspace, task) | Work::Relief(keyspace, task) | Work::Requested(keyspace, task, ..) => {
                Some(task.info(self.name_of(*keyspace)))
            }
        };
        self.events().send(|| match &compaction {
            None => Event::FlushBegan { bytes: self.shape.view().sealed.last().map_or(0, |m| m.used() as u64) },
            Some(compaction) => Event::CompactionBegan(compaction.clone()),
        });
        let start = time::now();
        let result = run();
        let (outcome, duration) = (result.clone(), time::since(start));
        self.events().send(|| match compaction {
            None => Event::FlushEnded { outcome, duration },
            Some(compaction) => Event::CompactionEnded { compaction, outcome, duration },
        });
        result
    }

    /// The name of a keyspace; empty if it has been dropped and nobody has a handle.
    fn name_of(&self, keyspace: u32) -> Arc<str> {
        let name = self.shape.view().tree(keyspace).map(|tree| Arc::clone(&tree.name));
        name.or_else(|| self.shape.dropped_name(keyspace)).unwrap_or_default()
    }

    fn tell_outcome(&self, kind: WorkKind, outcome: Result<(), &Error>) {
        let words = || match kind {
            WorkKind::Flush | WorkKind::Survey => BackgroundWork::Flush,
            WorkKind::Compaction(keyspace) => BackgroundWork::Compaction { keyspace: self.name_of(keyspace) },
        };
        self.report.notices().note_outcome(kind, words, outcome);
    }

    /// Notes for [`Store::retry_failed`] whether there is anything to retry, to refuse or to
    /// forget: not while what has failed waits for the store to be idle, or for snapshots.
    fn note_failures(&self, jobs: &Jobs) {
        let waits = |id: u32| !jobs.agenda.has_work(id) && !jobs.agenda.has_none(id) && jobs.running(id).is_empty();
        let is_wanted = |(kind, failure): (&WorkKind, &Failure)| match kind {
            WorkKind::Compaction(id) => {
                failure.was_requested || !waits(*id) || jobs.agenda.runs(*id) >= throttle::L0_STOP
            }
            WorkKind::Flush | WorkKind::Survey => true,
        };
        self.workers.background.retry_wanted.store(jobs.failed.iter().any(is_wanted), Ordering::Relaxed);
    }

    /// Forgets the failures of keyspaces that have been dropped: no work of theirs will succeed.
    pub(crate) fn forget_failures_of_dropped(&self) {
        let view = self.shape.view();
        self.forget_failures(|_, kind| matches!(kind, WorkKind::Compaction(id) if view.tree(id).is_none()));
    }

    /// Forgets the failures of work that is over.
    fn forget_failures(&self, is_over: impl Fn(&Jobs, WorkKind) -> bool) {
        let mut jobs = self.workers.background.lock();
        let over: Vec<WorkKind> = jobs.failed.keys().copied().filter(|kind| is_over(&jobs, *kind)).collect();
        for kind in &over {
            jobs.failed.remove(kind);
            if let WorkKind::Compaction(keyspace) = kind {
                jobs.agenda.touch([*keyspace]);
            }
        }
        self.note_failures(&jobs);
        drop(jobs);
        over.into_iter().for_each(|kind| self.tell_outcome(kind, Ok(())));
    }

    fn finish(self: &Arc<Self>, work: &Work, result: Result<u64>) {
        self.tell_outcome(work.kind(), result.as_ref().map(drop));
        let mut jobs = self.workers.background.lock();
        jobs.ended(work, &result);
        self.note_failures(&jobs);
        let has_failed = result.is_err();
        if let Work::Requested(.., outcome) = work {
            *outcome.lock() = Some(result);
        }
        let retry_after = jobs.retry_after();
        drop(jobs);
        if has_failed {
            self.forget_failures_of_dropped();
        }
        self.workers.background.done.notify_all();
        if let Some(delay) = retry_after {
            self.plan_retry(delay);
        }
    }

    /// Has failed work tried again although nobody writes: its memtables take memory that other
    /// stores may need.
    fn plan_retry(self: &Arc<Self>, delay: Duration) {
        let is_over = self.workers.is_stopping() || self.gate.is_poisoned();
        if is_over || self.workers.background.retry_planned.swap(true, Ordering::AcqRel) {
            return;
        }
        self.do_after(delay, |store| {
            store.workers.background.retry_planned.store(false, Ordering::Release);
            store.retry();
            // What still backs off, and would otherwise be forgotten.
            let jobs = store.workers.background.lock();
            let is_left = jobs.unfinished == 0 && !jobs.failed.is_empty();
            drop(jobs);
            if is_left {
                store.plan_retry(LONGEST_RETRY);
            }
        });
    }

    /// Waits until `done`. If the background work that the caller waits for fails first, returns
    /// its error.
    pub(crate) fn wait_for_progress(self: &Arc<Self>, waiting: Waiting, done: impl Fn() -> bool) -> Result<()> {
        self.wait_for_jobs(waiting, |_| done())
    }

    /// [`wait_for_progress`](Store::wait_for_progress), where `done` sees the jobs, locked.
    fn wait_for_jobs(self: &Arc<Self>, waiting: Waiting, done: impl Fn(&Jobs) -> bool) -> Result<()> {
        check_may_wait();
        let is_awaited = |kind: &WorkKind| match waiting {
            Waiting::Flush => *kind == WorkKind::Flush,
            Waiting::CompactionOf(keyspace) => *kind == WorkKind::Compaction(keyspace),
            Waiting::All => true,
            Waiting::Compaction | Waiting::Request => false,
        };
        let failures_before = {
            let mut jobs = self.workers.background.lock();
            // A waiting caller wants a retry now, without back-off.
            jobs.forgive(|kind| is_awaited(kind) && !matches!(waiting, Waiting::CompactionOf(_)));
            self.note_failures(&jobs);
            jobs.failures
        };
        loop {
            self.schedule();
            let mut jobs = self.workers.background.lock();
            if done(&jobs) {
                return Ok(());
            }
            self.gate.check_poison()?;
            let mut failures =
                jobs.failed.iter().filter(|(kind, failure)| is_awaited(kind) && failure.number > failures_before);
            if let Some((_, failure)) = failures.next() {
                return Err(failure.error.clone());
            }
            if jobs.unfinished == 0 && self.workers.is_stopping() {
                return Err(Error::Closed);
            }
            if jobs.unlocked(|| self.help(waiting)) || done(&jobs) {
                continue;
            }
            // The timeout covers events that no job's end announces, such as the end of a back-off.
            jobs.wait_for(&self.workers.background.done, Duration::from_millis(100));
        }
    }

    /// Waits until no flush or compaction is running or due.
    pub(crate) fn wait_for_compactions(self: &Arc<Self>) -> Result<()> {
        self.gate.check_open()?;
        if self.gate.is_read_only() {
            return Ok(());
        }
        // `wait_for_jobs` begins all due work just before it evaluates this, except work in
        // back-off. A job that ends begins the work that is due after it.
        let has_none_failed = |jobs: &Jobs| jobs.failed.values().all(|failure| failure.forgiven);
        self.wait_for_jobs(Waiting::All, |jobs| jobs.unfinished == 0 && has_none_failed(jobs))?;
        // Of what had failed, nothing was left to do.
        self.forget_failures(|jobs, kind| !jobs.fails(kind));
        // On a stepped executor, removes jobs whose work other threads have done.
        while self.step() {}
        // A poisoned or closing store begins no more work, so due work may remain.
        self.gate.check_open()?;
        self.gate.check_poison()?;
        self.tables.janitor().remove([]);
        Ok(())
    }

    /// Stops background work from being begun, and waits until none runs. Used when closing.
    pub(crate) fn stop_background(&self) {
        let mut jobs = self.workers.background.lock();
        self.workers.background.stopping.store(true, Ordering::Release);
        let not_begun = std::mem::take(&mut jobs.queued);
        drop(jobs);
        self.workers.calm();
        not_begun.into_iter().for_each(|(_, work)| self.abandon(work));
        loop {
            if self.step() {
                continue;
            }
            let mut jobs = self.workers.background.lock();
            if jobs.unfinished == 0 {
                return;
            }
            jobs.wait_for(&self.workers.background.done, Duration::from_millis(100));
        }
    }

    /// The most recent jobs failure whose kind of work has not succeeded since.
    pub(crate) fn background_error(&self) -> Option<Error> {
        let jobs = self.workers.background.lock();
        let last = jobs.failed.values().max_by_key(|failure| failure.number);
        last.map(|failure| failure.error.clone())
    }

    /// Bytes to be compacted, over all keyspaces.
    pub(crate) fn debt(&self) -> Debt {
        let mut jobs = self.workers.background.lock();
        self.agenda(&mut jobs);
        jobs.agenda.debt()
    }

    /// Notes which live snapshots hold garbage; returns whether they have been dropped already.
    fn note_held_garbage(&self) -> bool {
        // Locked, so that the last thread to write the note has seen the newest view.
        let mut jobs = self.workers.background.lock();
        let Outlook { conditions, .. } = self.agenda(&mut jobs);
        let held_until = jobs.agenda.held_garbage(conditions.oldest_snapshot).unwrap_or(SeqNo::MAX);
        let (least, now) = (self.shape.snapshots().least_time(), self.clock.mark());
        let held_by_time = if jobs.agenda.has_expired_between(least, now) { least + 1 } else { NEVER };
        self.shape.snapshots().hold_garbage(held_until, held_by_time)
    }

    fn update_pressure(&self) {
        let mut jobs = self.workers.background.lock();
        let Outlook { view, .. } = self.agenda(&mut jobs);
        // Those whose compactions fail stop writes to themselves only.
        let fails = |id: u32| jobs.failed.contains_key(&WorkKind::Compaction(id));
        let runs = jobs.agenda.longest().find(|(_, id)| !fails(*id)).map_or(0, |(runs, _)| runs);
        let failing = jobs.failing().map(|id| jobs.agenda.debt_of(id).data).fold(0, u64::saturating_add);
        let debt = jobs.agenda.debt().data.saturating_sub(failing);
        drop(jobs);
        let pressure = throttle::pressure(runs, debt, self.base_size());
        self.workers.throttle.set_pressure(pressure);
        self.workers.rate.set_urgent(runs > L0_URGENT || debt > DEBT_URGENT * self.base_size());
        if self.workers.is_stopping() || self.gate.is_poisoned() {
            self.workers.calm();
        }
        self.report.notices().note_slowed(pressure > 0.0);
        self.workers.throttle.set_unflushed(view.sealed.len() >= throttle::MAX_SEALED, self.options.memtable_size);
    }
}
