//! [`Signal`]: wakes readers of the change feed when something was written.
//!
//! Writers must not pay for readers that do not wait: they load one flag. A writer that races with
//! a reader which is about to wait may miss it; the reader therefore looks again after a
//! millisecond.

use std::time::Duration;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex};

/// A writer that commits while a thread arms the signal may miss it. A thread therefore looks again
/// after this time, when every later writer sees it.
const FIRST_LOOK: Duration = Duration::from_millis(1);

/// The longest wait before a thread looks again, whether or not it was woken.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Threads that wait for a write. While there are none, a writer pays for one load.
// A cache line of its own: every writer reads it, and nobody changes it under load.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Signal {
    armed: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Signal {
    /// Wakes all waiting threads.
    #[inline]
    pub(super) fn wake(&self) {
        if self.armed.load(Ordering::Relaxed) {
            self.wake_waiting();
        }
    }

    #[cold]
    fn wake_waiting(&self) {
        let _guard = self.lock.lock();
        self.armed.store(false, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Waits until it is woken, for `timeout` at most, unless `is_ready`.
    pub(super) fn wait(&self, timeout: Duration, is_ready: impl Fn() -> bool) {
        let mut guard = self.lock.lock();
        self.armed.store(true, Ordering::SeqCst);
        for wait in [FIRST_LOOK.min(timeout), LONGEST_WAIT.min(timeout.saturating_sub(FIRST_LOOK))] {
            if wait.is_zero() || is_ready() || !self.changed.wait_for(&mut guard, wait).timed_out() {
                return;
            }
        }
    }
}
