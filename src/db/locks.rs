//! The order of a store's locks, and [`RankedMutex`], which checks it in debug builds.
//!
//! While a thread holds a lock, it may wait only for locks of a later rank. Two threads can then
//! never wait for each other. A lock without a rank is held for a few steps that take no other.
//!
//! A thread that holds the commit lock, or a later one, waits for nothing but such locks: not for
//! space, a flush, a sync, or the end of any other work. Every wait of a store calls
//! [`check_may_wait`].

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::sync::{Condvar, MappedMutexGuard, Mutex, MutexGuard};

/// The locks of a store, in the order in which a thread takes them. Point reads and cursors take
/// none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LockRank {
    /// What a read-only store has read of its files.
    Following,
    /// Creating, changing or dropping a keyspace.
    Defining,
    /// The lead of a sync: a turn, not a mutex.
    SyncLead,
    /// The active memtable and its log.
    Commit,
    /// The manifest.
    Catalog,
    /// Read counts of tables that have left the view.
    RetiredTables,
    /// Running, waiting and failed background work.
    Background,
    /// Replacing the view.
    ViewChange,
    /// Logs that a sync must cover.
    UnsyncedLogs,
    /// All logs.
    LogFiles,
    /// Live snapshots.
    Snapshots,
}

/// A mutex with a place in the order of locks.
pub(super) struct RankedMutex<T> {
    rank: LockRank,
    mutex: Mutex<T>,
}

impl<T> RankedMutex<T> {
    pub(super) const fn new(rank: LockRank, value: T) -> RankedMutex<T> {
        RankedMutex { rank, mutex: Mutex::new(value) }
    }

    /// Waits for the lock. In debug builds, panics if the thread holds a lock of this rank or a
    /// later one.
    #[inline]
    pub(super) fn lock(&self) -> RankedGuard<'_, T> {
        let held = HeldRank::take(self.rank);
        Ranked { guard: self.mutex.lock(), held }
    }

    /// Takes the lock if it is free. This does not wait, and may be done in any order.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<RankedGuard<'_, T>> {
        let guard = self.mutex.try_lock()?;
        Some(Ranked { guard, held: HeldRank::note(self.rank) })
    }
}

/// A guard, and the rank that the thread holds with it.
pub(crate) struct Ranked<G> {
    guard: G,
    held: HeldRank,
}

/// The guard of a [`RankedMutex`].
pub(crate) type RankedGuard<'a, T> = Ranked<MutexGuard<'a, T>>;

impl<G: Deref> Deref for Ranked<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ranked<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<'a, T> RankedGuard<'a, T> {
    /// Releases the lock while `f` runs.
    pub(super) fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.held.release();
        let result = MutexGuard::unlocked(&mut self.guard, f);
        self.held.take_again();
        result
    }

    /// Releases the lock until `condition` is notified, but not for longer than `timeout`.
    pub(super) fn wait_for(&mut self, condition: &Condvar, timeout: Duration) {
        self.held.release();
        check_may_wait();
        condition.wait_for(&mut self.guard, timeout);
        self.held.note_again();
    }

    /// The guard of a part of the value; `None` if `part` finds none.
    pub(super) fn try_map<U>(
        self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Option<Ranked<MappedMutexGuard<'a, U>>> {
        let guard = MutexGuard::try_map(self.guard, part).ok()?;
        Some(Ranked { guard, held: self.held })
    }
}

/// Panics in debug builds if the thread holds the commit lock or a later one: whoever is awaited
/// may need that lock, and so may those who want to close the store or to copy it meanwhile.
#[inline]
pub(super) fn check_may_wait() {
    HeldRank::check_may_wait();
}

#[cfg(debug_assertions)]
pub(super) use checked::HeldRank;

#[cfg(debug_assertions)]
mod checked {
    use std::cell::Cell;
    use std::marker::PhantomData;

    use super::LockRank;

    crate::sync::thread_local! {
        /// A bit for each rank that the thread holds.
        static HELD: Cell<u32> = const { Cell::new(0) };
    }

    /// A rank that the thread holds, until dropped. Stays in its thread.
    pub(in crate::db) struct HeldRank {
        rank: LockRank,
        of_thread: PhantomData<*const ()>,
    }

    impl HeldRank {
        /// Holds `rank`; panics if the thread holds it or a later one.
        pub(in crate::db) fn take(rank: LockRank) -> HeldRank {
            let later = HELD.with(Cell::get) >> rank as u32;
            assert!(later == 0, "lock order: {rank:?} is taken while later locks are held: {later:#b}");
            HeldRank::note(rank)
        }

        /// Holds `rank`, whatever the thread holds.
        pub(in crate::db) fn note(rank: LockRank) -> HeldRank {
            HELD.with(|held| held.set(held.get() | 1 << rank as u32));
            HeldRank { rank, of_thread: PhantomData }
        }

        pub(super) fn release(&mut self) {
            HELD.with(|held| held.set(held.get() & !(1 << self.rank as u32)));
        }

        pub(super) fn take_again(&mut self) {
            let _ = std::mem::ManuallyDrop::new(HeldRank::take(self.rank));
        }

        pub(super) fn note_again(&mut self) {
            let _ = std::mem::ManuallyDrop::new(HeldRank::note(self.rank));
        }

        pub(super) fn check_may_wait() {
            let held = HELD.with(Cell::get) >> LockRank::Commit as u32;
            assert!(held == 0, "a thread waits while it holds the commit lock or a later one: {held:#b}");
        }
    }

    impl Drop for HeldRank {
        fn drop(&mut self) {
            self.release();
        }
    }
}

/// Without debug assertions, nothing is noted.
#[cfg(not(debug_assertions))]
pub(super) struct HeldRank;

#[cfg(not(debug_assertions))]
impl HeldRank {
    #[inline]
    pub(super) fn take(_: LockRank) -> HeldRank {
        HeldRank
    }

    #[inline]
    pub(super) fn note(_: LockRank) -> HeldRank {
        HeldRank
    }

    fn release(&mut self) {}

    fn take_again(&mut self) {}

    fn note_again(&mut self) {}

    #[inline]
    fn check_may_wait() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locks() -> (RankedMutex<u8>, RankedMutex<Option<u8>>) {
        (RankedMutex::new(LockRank::Commit, 1), RankedMutex::new(LockRank::Catalog, Some(2)))
    }

    #[test]
    #[cfg_attr(not(debug_assertions), ignore = "checked in debug builds only")]
    #[should_panic(expected = "lock order: Commit")]
    fn waiting_for_an_earlier_lock_panics() {
        let (commit, catalog) = locks();
        let _catalog = catalog.lock().try_map(Option::as_mut).expect("there is a value");
        drop(commit.lock());
    }

    #[test]
    #[cfg_attr(not(debug_assertions), ignore = "checked in debug builds only")]
    #[should_panic(expected = "lock order: Catalog")]
    fn waiting_for_a_lock_that_the_thread_may_hold_panics() {
        let ((_, one), (_, other)) = (locks(), locks());
        let _one = one.lock();
        drop(other.lock());
    }

    #[test]
    #[cfg_attr(not(debug_assertions), ignore = "checked in debug builds only")]
    #[should_panic(expected = "a thread waits while it holds the commit lock")]
    fn waiting_with_the_commit_lock_panics() {
        let (commit, _) = locks();
        let _commit = commit.lock();
        let other = RankedMutex::new(LockRank::Background, ());
        other.lock().wait_for(&Condvar::new(), Duration::ZERO);
    }

    #[test]
    fn waiting_with_an_earlier_lock_is_allowed() {
        let (defining, background) =
            (RankedMutex::new(LockRank::Defining, ()), RankedMutex::new(LockRank::Background, ()));
        let _defining = defining.lock();
        let mut jobs = background.lock();
        jobs.wait_for(&Condvar::new(), Duration::ZERO);
        drop(jobs);
        drop(background.lock());
    }

    #[test]
    fn released_locks_may_be_taken_again_in_any_order() {
        let (commit, catalog) = locks();
        for _ in 0..2 {
            let first = commit.lock();
            assert_eq!((*first, *catalog.lock()), (1, Some(2)));
            drop(first);
            assert!(catalog.lock().try_map(|_| None::<&mut u8>).is_none());
            let mut later = catalog.lock();
            assert!(commit.try_lock().is_some(), "this does not wait");
            assert_eq!(later.unlocked(|| *commit.lock()), 1);
        }
    }
}
