//! Merges what a store that takes few writes would otherwise keep.
//!
//! The last runs of level 0 are merged when the store is idle. While its memtable holds an entry, a
//! flush is to be expected, and what is merged now is merged again with that run. But a store that
//! is only read after a load would keep the runs that level 0 happened to hold, up to twelve: a
//! seek reads a block of each. Thus a store counts as idle, too, once it has taken few writes for a
//! while: it is *quiet*. Its memtable stays where it is.
//!
//! It stays quiet until the memtable is full. A memtable of writes therefore lets level 0 be merged
//! early once, by the picker's rules for idle stores: mostly, such a merge writes at most eight
//! times what it moves down.

use std::sync::Arc;
use std::time::Duration;

use crate::db::shape::view::ReadView;
use crate::db::store::Store;
use crate::sync::atomic::Ordering;

/// How long a store takes few writes before it is quiet.
const QUIET_AFTER: Duration = Duration::from_secs(10);
/// Few writes fill at most one byte in this many of a memtable. At that rate, it is full after
/// eleven minutes.
const FEW: usize = 64;

impl Store {
    /// Whether hardly anything will come to level 0 soon.
    pub(super) fn is_idle(&self, view: &ReadView) -> bool {
        let is_quiet = || self.workers.background.quiet_in.load(Ordering::Relaxed) == view.active.log_number();
        view.is_flushed() || view.sealed.is_empty() && is_quiet()
    }

    /// Has the store looked at after a while, if it has work for when it is idle, and is not.
    pub(super) fn plan_look(self: &Arc<Self>) {
        let mut jobs = self.workers.background.lock();
        let moment = self.agenda(&mut jobs);
        let is_needed = !moment.conditions.is_idle && jobs.agenda.has_work_for_idle();
        drop(jobs);
        let cannot_work = self.workers.is_stopping() || self.gate.is_read_only() || self.gate.is_poisoned();
        if !is_needed || cannot_work || self.workers.background.look_planned.swap(true, Ordering::AcqRel) {
            return;
        }
        let (log, used) = (moment.view.active.log_number(), moment.view.active.used());
        self.do_after(QUIET_AFTER, move |store| {
            let (background, view) = (&store.workers.background, store.shape.view());
            let few = store.options.memtable_size / FEW;
            if view.active.log_number() == log && view.active.used().saturating_sub(used) <= few {
                background.quiet_in.store(log, Ordering::Relaxed);
            }
            background.look_planned.store(false, Ordering::Release);
            store.schedule();
        });
    }
}
