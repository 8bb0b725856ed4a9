//! The types of `parking_lot` and of the standard library.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the one module that may name the standard library's threads and clocks"
)]

use std::time::Duration;

pub use parking_lot::{
    Condvar, MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};
pub use std::sync::atomic;
pub use std::thread_local;

/// A value that the first thread to need it makes; the others wait for it.
pub type OnceLock<T> = std::sync::OnceLock<T>;

/// Waits for a lock for `timeout` at most.
#[inline]
pub fn try_lock_for<T>(mutex: &Mutex<T>, timeout: Duration) -> Option<MutexGuard<'_, T>> {
    mutex.try_lock_for(timeout)
}

/// Between two looks at what another thread is about to change.
#[inline(always)]
pub fn spin_loop() {
    std::hint::spin_loop();
}

/// A lock and a condition that wake all waiters with one system call, after which they run in
/// parallel: those of the standard library. `parking_lot` hands a lock on from one to the next.
pub mod barging {
    use std::sync::PoisonError;
    use std::time::Duration;

    pub type MutexGuard<'a, T> = std::sync::MutexGuard<'a, T>;

    #[derive(Debug, Default)]
    pub struct Mutex<T>(std::sync::Mutex<T>);

    impl<T> Mutex<T> {
        #[inline]
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    #[derive(Debug, Default)]
    pub struct Condvar(std::sync::Condvar);

    impl Condvar {
        #[inline]
        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
        }

        /// Waits for `timeout` at most.
        #[inline]
        pub fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
            self.0.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
        }

        #[inline]
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

pub mod mpsc {
    pub use std::sync::mpsc::{Receiver, Sender, TryRecvError};

    pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
        std::sync::mpsc::channel()
    }
}

pub mod thread {
    use std::io;
    use std::thread::Builder;
    use std::time::Duration;

    pub use std::thread::{JoinHandle, Scope, ScopedJoinHandle, Thread, ThreadId};

    /// Starts a thread; fails if the system gives none.
    pub fn spawn<T: Send + 'static>(
        name: impl Into<String>,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        Builder::new().name(name.into()).spawn(run)
    }

    /// Starts a thread of a scope; fails if the system gives none.
    pub fn spawn_scoped<'scope, T: Send + 'scope>(
        scope: &'scope Scope<'scope, '_>,
        name: impl Into<String>,
        run: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        Builder::new().name(name.into()).spawn_scoped(scope, run)
    }

    /// Runs `body`, and returns when the threads of its scope have ended.
    pub fn scope<'env, T>(body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T) -> T {
        std::thread::scope(body)
    }

    pub fn current() -> Thread {
        std::thread::current()
    }

    #[inline]
    pub fn sleep(duration: Duration) {
        std::thread::sleep(duration);
    }

    /// Waits until another thread calls `unpark`. May return before.
    pub fn park() {
        std::thread::park();
    }

    pub fn yield_now() {
        std::thread::yield_now();
    }
}

pub mod time {
    use std::time::{Duration, Instant, SystemTime};

    #[inline]
    pub fn now() -> Instant {
        Instant::now()
    }

    /// The time that has passed since `start`.
    #[inline]
    pub fn since(start: Instant) -> Duration {
        start.elapsed()
    }

    /// The time of day, which may go back.
    #[inline]
    pub fn system_time() -> SystemTime {
        SystemTime::now()
    }
}
