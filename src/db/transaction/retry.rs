//! [`Retries`]: how often a write that meets conflicts is tried again, and the locks that such
//! writes take, so that few of them retry on the same data at a time.
//!
//! The locks make conflicts rare; correctness does not depend on them. Every retry has a bound:
//!
//! - A closure runs [`ATTEMPTS`] times. Then the conflict is the caller's.
//! - Between two runs, a premise may become [stale](super::premise::Refusal::Stale): it can no
//!   longer be checked, though nothing that it names may have been written. It is then noted anew,
//!   up to [`STALE_ROUNDS`] times. Each takes a flush or an ingest between two steps of a few
//!   microseconds; beyond that it counts as a conflict.

use std::time::Duration;

use crate::filter::KeyHash;
use crate::sync::{self, Mutex, MutexGuard};

/// How often a closure, or an operation of the store that reads and writes, runs.
pub(crate) const ATTEMPTS: u32 = 32;
/// How often the premise of one attempt is noted anew.
pub(crate) const STALE_ROUNDS: u32 = 64;
/// From this attempt on, a transaction holds the lock for transactions. Other transactions then
/// wait for it before they begin.
const IN_TURN_FROM: u32 = 3;

/// How long a writer waits for a lock before it retries without it. The holder may be the same
/// thread: in a closure that updates the key again, or in a transaction within a transaction.
const LONGEST_WAIT: Duration = Duration::from_millis(1);
const WAIT_OF_TRANSACTION: Duration = Duration::from_millis(10);

pub(crate) struct Retries {
    /// For updates of a key: the key's hash chooses one.
    keys: [Mutex<()>; 64],
    transactions: Mutex<()>,
}

impl Default for Retries {
    fn default() -> Retries {
        Retries { keys: [const { Mutex::new(()) }; 64], transactions: Mutex::new(()) }
    }
}

/// A thread's turn to work on data on which others have met conflicts.
pub(super) type Turn<'a> = Option<MutexGuard<'a, ()>>;

/// How long attempt number `attempt` waits for its turn, if the first waits for `first`: each twice
/// as long as the one before, up to 64 times. Many threads may wait.
fn wait_of(first: Duration, attempt: u32) -> Duration {
    first * (1 << attempt.min(6))
}

impl Retries {
    /// Takes the turn of an attempt to update a key, if the key has conflicts.
    pub(crate) fn of_key<'a>(&'a self, hash: KeyHash, attempt: u32, turn: &mut Turn<'a>) {
        let Some(lock) = self.keys.get((hash.value() % 64) as usize) else { return };
        if turn.is_none() && (attempt > 1 || lock.is_locked()) {
            *turn = sync::try_lock_for(lock, wait_of(LONGEST_WAIT, attempt));
        }
    }

    /// Takes the turn of an attempt at a transaction, if it or others have met conflicts.
    pub(super) fn of_transaction<'a>(&'a self, attempt: u32, turn: &mut Turn<'a>) {
        if turn.is_none() && (attempt >= IN_TURN_FROM || self.transactions.is_locked()) {
            *turn = sync::try_lock_for(&self.transactions, wait_of(WAIT_OF_TRANSACTION, attempt));
        }
    }
}
