//! [`Retries`]: locks that writers take after a conflict, so that few of them retry on the same
//! data at a time. They make conflicts rare; correctness does not depend on them.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::filter::KeyHash;

/// How long a writer waits for a lock before it retries without it. The holder may be the same
/// thread: in a closure that updates the key again, or in a transaction within a transaction.
const LONGEST_WAIT: Duration = Duration::from_millis(1);
const WAIT_OF_TRANSACTION: Duration = Duration::from_millis(10);

pub(super) struct Retries {
    /// For updates of a key: the key's hash chooses one.
    keys: [Mutex<()>; 64],
    transactions: Mutex<()>,
}

impl Default for Retries {
    fn default() -> Retries {
        Retries { keys: [const { Mutex::new(()) }; 64], transactions: Mutex::new(()) }
    }
}

impl Retries {
    /// The lock for updates of a key; `None` if it was not free in time.
    pub(super) fn of_key(&self, hash: KeyHash) -> Option<MutexGuard<'_, ()>> {
        self.keys.get((hash.value() % 64) as usize)?.try_lock_for(LONGEST_WAIT)
    }

    /// Whether a transaction has met conflicts and runs again.
    pub(super) fn has_transaction(&self) -> bool {
        self.transactions.is_locked()
    }

    /// The lock for transactions; `None` if it was not free in time. Each attempt waits twice as
    /// long as the one before, up to 64 times as long as the first: many threads may wait.
    pub(super) fn of_transaction(&self, attempt: u32) -> Option<MutexGuard<'_, ()>> {
        self.transactions.try_lock_for(WAIT_OF_TRANSACTION * (1 << attempt.min(6)))
    }
}
