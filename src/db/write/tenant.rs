//! A store as a tenant of its environment, which has the largest of all memtables sealed when they
//! take too much memory together.
//!
//! The environment never waits for a store's commit lock. If that is held, the store's quota is
//! used up instead, and the next writer finds the memtable full.

use std::sync::Arc;

use crate::db::store::Store;
use crate::db::work::throttle::MAX_SEALED;
use crate::environment::Tenant;

impl Store {
    /// Counts the store as open in its environment, which may then seal its memtables.
    pub(crate) fn join_environment(self: &Arc<Self>) {
        let store = Arc::downgrade(self);
        self.writer.seat.join(store);
    }

    /// Gives back the memory of memtables, once all is closed. Iterators keep what they read.
    pub(crate) fn leave_environment(&self) {
        self.writer.seat.leave();
        self.change_view(|view| {
            view.active = Arc::new(view.active.empty_successor());
            view.sealed.clear();
        });
    }
}

impl Tenant for Store {
    fn filling(&self) -> Option<usize> {
        let is_open = self.gate.check_writable().is_ok();
        let is_flushing = !self.workers.fails_to_flush();
        let view = self.shape.view();
        let may_be_sealed = is_open && is_flushing && view.sealed.len() < MAX_SEALED && !view.active.is_empty();
        may_be_sealed.then(|| view.active.allocated())
    }

    fn seal(self: Arc<Self>) {
        match self.writer.commit.try_lock() {
            Some(mut commit) => {
                // What fails here fails for the next writer as well, and is its error.
                if let Some(commit) = commit.as_mut()
                    && self.gate.check_writable().is_ok()
                    && !commit.memtable.is_empty()
                {
                    let _ = self.rotate(commit);
                }
            }
            None => self.writer.seat.quota.exhaust(),
        }
    }

    fn retry(self: Arc<Self>) {
        let _ = self.retry_failed(std::iter::empty);
    }
}
