//! Models over the crate `shuttle`: a seed decides every switch of threads and every tick.
//!
//! All threads of a model run on one thread of the system, one at a time. They may switch at each
//! call of this module, and nowhere else.
//!
//! Time is a number. It ticks whenever a clock is read. A thread that sleeps, or waits with a
//! timeout, goes on when time has come to its deadline: when no other thread can run, or, in a
//! [hasty](Explore::hasty) exploration, at any moment.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "part of the module that may name the standard library's threads and clocks"
)]

mod explore;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex as Plain;
use std::time::{Duration, Instant};

use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};

pub use explore::Explore;
pub use shuttle::sync::{atomic, mpsc};
pub use shuttle::thread_local;
pub use shuttle_parking_lot_impl::{MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use self::time::Ticks;

/// Waits for a lock for `timeout` at most. Whoever releases it wakes nobody here: this looks again
/// when the time has passed.
pub fn try_lock_for<T>(mutex: &Mutex<T>, timeout: Duration) -> Option<MutexGuard<'_, T>> {
    mutex.try_lock().or_else(|| {
        thread::sleep(timeout);
        mutex.try_lock()
    })
}

/// See `native`.
pub fn spin_loop() {
    thread::yield_now();
}

/// Another thread may run now.
fn switch() {
    shuttle::thread::sleep(Duration::ZERO);
}

/// One wait of a thread for a condition.
struct Waiter {
    task: usize,
    /// Has a permit once the waiter is notified.
    notified: BatchSemaphore,
}

impl Waiter {
    fn is_notified(&self) -> bool {
        self.notified.available_permits() > 0
    }
}

#[derive(Default)]
pub struct Condvar(Plain<VecDeque<Arc<Waiter>>>);

/// Whether a wait ended because of its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar(Plain::new(VecDeque::new()))
    }

    fn waiters(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Waiter>>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Called with the lock held. Others may run between their caller's last look and this.
    fn begin_wait(&self) -> Arc<Waiter> {
        switch();
        let notified = BatchSemaphore::new(0, Fairness::StrictlyFair);
        let waiter = Arc::new(Waiter { task: time::current_task(), notified });
        self.waiters().push_back(Arc::clone(&waiter));
        waiter
    }

    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        let waiter = self.begin_wait();
        MutexGuard::unlocked(guard, || waiter.notified.acquire_blocking(1).expect("it is never closed"));
    }

    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> WaitTimeoutResult {
        self.wait_through(guard, Ticks::now().after(timeout))
    }

    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> WaitTimeoutResult {
        self.wait_through(guard, Ticks::of(deadline))
    }

    fn wait_through<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, deadline: Ticks) -> WaitTimeoutResult {
        let waiter = self.begin_wait();
        let is_notified = MutexGuard::unlocked(guard, || {
            let is_notified = time::sleep_until(deadline, || waiter.is_notified());
            // Nobody notifies it any more.
            self.waiters().retain(|other| !Arc::ptr_eq(other, &waiter));
            is_notified
        });
        WaitTimeoutResult(!is_notified)
    }

    pub fn notify_one(&self) -> bool {
        switch();
        let waiter = self.waiters().pop_front();
        waiter.as_deref().map(notify).is_some()
    }

    pub fn notify_all(&self) -> usize {
        switch();
        let waiters = std::mem::take(&mut *self.waiters());
        waiters.iter().for_each(|waiter| notify(waiter));
        waiters.len()
    }
}

fn notify(waiter: &Waiter) {
    time::wake(waiter.task);
    waiter.notified.release_no_scheduling_point(1);
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condvar { .. }")
    }
}

/// See `native`.
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    making: Mutex<()>,
}

impl<T> OnceLock<T> {
    pub const fn new() -> OnceLock<T> {
        OnceLock { value: std::sync::OnceLock::new(), making: Mutex::new(()) }
    }

    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    pub fn set(&self, value: T) -> Result<(), T> {
        let _making = self.making.lock();
        self.value.set(value)
    }

    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let _making = self.making.lock();
        match self.value.get() {
            Some(value) => value,
            None => {
                let value = make();
                self.value.get_or_init(|| value)
            }
        }
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// See `native`.
pub mod barging {
    use std::time::Duration;

    pub use super::MutexGuard;

    #[derive(Debug, Default)]
    pub struct Mutex<T>(super::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock()
        }
    }

    #[derive(Debug, Default)]
    pub struct Condvar(super::Condvar);

    impl Condvar {
        pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(&mut guard);
            guard
        }

        pub fn wait_for<'a, T>(&self, mut guard: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
            self.0.wait_for(&mut guard, timeout);
            guard
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

pub mod thread {
    use std::io;
    use std::time::Duration;

    pub use shuttle::thread::{JoinHandle, Scope, ScopedJoinHandle, Thread, ThreadId, current, park, yield_now};

    use super::time::{self, Ticks};

    pub fn spawn<T: Send + 'static>(
        name: impl Into<String>,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        shuttle::thread::Builder::new().name(name.into()).spawn(run)
    }

    pub fn spawn_scoped<'scope, T: Send + 'scope>(
        scope: &'scope Scope<'scope, '_>,
        _name: impl Into<String>,
        run: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        Ok(scope.spawn(run))
    }

    pub fn scope<'env, T>(body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T) -> T {
        shuttle::thread::scope(body)
    }

    pub fn sleep(duration: Duration) {
        time::sleep_until(Ticks::now().after(duration), || false);
    }
}

pub mod time {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::sync::LazyLock;
    use std::time::{Duration, Instant, SystemTime};

    /// Nanoseconds since a model began.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) struct Ticks(u64);

    /// By how much time goes on when a clock is read.
    const TICK: u64 = 100;

    /// The time of day at which every model begins.
    const BEGIN: Duration = Duration::from_secs(1_700_000_000);

    /// An instant cannot be made of a number, but of another one.
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

    // Of the thread of the system, on which all threads of a model run.
    std::thread_local! {
        static NOW: Cell<Ticks> = const { Cell::new(Ticks(0)) };
        /// Sleeping threads, and when they go on.
        static ASLEEP: RefCell<BTreeMap<usize, Ticks>> = const { RefCell::new(BTreeMap::new()) };
    }

    impl Ticks {
        pub(super) fn now() -> Ticks {
            NOW.set(NOW.get().after(Duration::from_nanos(TICK)));
            NOW.get()
        }

        pub(super) fn after(self, duration: Duration) -> Ticks {
            Ticks(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
        }

        pub(super) fn of(instant: Instant) -> Ticks {
            Ticks(0).after(instant.saturating_duration_since(*ORIGIN))
        }
    }

    /// A model begins.
    pub(super) fn reset() {
        NOW.set(Ticks(0));
        ASLEEP.take();
    }

    pub(super) fn current_task() -> usize {
        shuttle::current::me().into()
    }

    /// When a thread goes on, if it sleeps.
    pub(super) fn asleep_until(task: usize) -> Option<Ticks> {
        ASLEEP.with_borrow(|asleep| asleep.get(&task).copied())
    }

    pub(super) fn wake(task: usize) {
        ASLEEP.with_borrow_mut(|asleep| asleep.remove(&task));
    }

    /// Sleeps until another thread calls [`wake`] and `is_woken`, or time has come to `deadline`.
    /// Returns `is_woken`.
    pub(super) fn sleep_until(deadline: Ticks, is_woken: impl Fn() -> bool) -> bool {
        let task = current_task();
        if !is_woken() {
            ASLEEP.with_borrow_mut(|asleep| asleep.insert(task, deadline));
            shuttle::thread::yield_now();
            wake(task);
        }
        if !is_woken() {
            // The scheduler has chosen a thread that sleeps: its time has come.
            NOW.set(NOW.get().max(deadline));
            return false;
        }
        true
    }

    /// How long the model has run.
    pub fn elapsed() -> Duration {
        Duration::from_nanos(NOW.get().0)
    }

    pub fn now() -> Instant {
        *ORIGIN + Duration::from_nanos(Ticks::now().0)
    }

    pub fn since(start: Instant) -> Duration {
        now().saturating_duration_since(start)
    }

    pub fn system_time() -> SystemTime {
        SystemTime::UNIX_EPOCH + BEGIN + Duration::from_nanos(Ticks::now().0)
    }
}
