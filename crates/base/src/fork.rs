//! [`Process`]: whether this process is still the one in which something began.
//!
//! A child that was forked has copies of its parent's stores, but none of their threads; a lock
//! that another thread held stays locked. It shares files and mapped logs with its parent, and what
//! it wrote would go over what the parent has written since. So whatever writes files, or waits for
//! a thread, asks first.
//!
//! The C library's `fork` calls a handler in the child, so that to ask costs a load. A child made
//! by a bare system call goes unnoticed.

use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lead to this process from the one that noted a process first.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A process that was the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// Notes this process.
    pub fn current() -> Process {
        watch();
        Process(FORKS.load(Ordering::Relaxed))
    }

    /// Whether it is this process; otherwise this one is its child, or a child's child.
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

// A static of the model checker would be shared by its models.
#[cfg(any(not(unix), miri, shuttle))]
fn watch() {}

#[cfg(all(unix, not(miri), not(shuttle)))]
fn watch() {
    use crate::sync::OnceLock;

    extern "C" fn note_fork() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }

    static WATCHED: OnceLock<()> = OnceLock::new();
    WATCHED.get_or_init(|| {
        // SAFETY: the handler changes one atomic integer, which a child may do. If there is no
        // memory for its entry, forks go unnoticed.
        unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
    });
}
