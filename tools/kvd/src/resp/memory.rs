//! [`Memory`]: what long commands, replies and transactions of all connections share.
//!
//! A command takes memory in steps as its bytes arrive: a length that is only declared takes none.
//! Commands that wait for more than there is could wait for each other for ever. One of them at a
//! time may therefore use a reserve that holds a command of any length, which carries it to its
//! end; what it took before goes back to the others. Those that wait get it in the order in which
//! they came.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Up to this many bytes each, commands and replies use none of the shared memory.
pub(super) const FREE: usize = 16 * 1024;

/// The least step in which a command takes memory.
const STEP: usize = 64 * 1024;

/// Bytes that count as progress.
const PROGRESS: usize = 16 * 1024;

/// Shared memory. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Memory {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    freed: Notify,
    /// Taken by those that wait, in order.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// How many bytes all connections may use together, and each of them.
    limit: usize,
    each: usize,
    used: usize,
    /// Whether a command uses the reserve.
    reserved: bool,
}

/// What one connection uses, for all connections to see. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Account {
    inner: Arc<Counts>,
}

#[derive(Debug)]
struct Counts {
    since: Instant,
    held: AtomicUsize,
    /// Whether the server waits for the client to send or to take something.
    waits: AtomicBool,
    /// When something last moved, in milliseconds, and bytes since then.
    moved_ms: AtomicU64,
    moved: AtomicUsize,
}

/// A part of the shared memory that a connection uses, given back when dropped.
#[derive(Default)]
pub(super) struct Share {
    taken: Option<(Memory, Account)>,
    bytes: usize,
    /// Whether it is the reserve.
    reserve: bool,
}

impl Default for Account {
    fn default() -> Account {
        let (held, waits, moved_ms, moved) = Default::default();
        Account { inner: Arc::new(Counts { since: Instant::now(), held, waits, moved_ms, moved }) }
    }
}

impl Account {
    /// How many bytes the connection uses.
    pub(super) fn held(&self) -> usize {
        self.inner.held.load(Relaxed)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.inner.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// From now on, the server waits for the client.
    pub(super) fn begin(&self) {
        self.inner.moved.store(0, Relaxed);
        self.inner.moved_ms.store(self.now_ms(), Relaxed);
        self.inner.waits.store(true, Relaxed);
    }

    /// Like [`begin`](Account::begin), if the server does not wait already.
    pub(super) fn begin_unless_waiting(&self) {
        if !self.inner.waits.load(Relaxed) {
            self.begin();
        }
    }

    /// The client has sent or taken some bytes.
    pub(super) fn moved(&self, bytes: usize) {
        if self.inner.moved.fetch_add(bytes, Relaxed) + bytes >= PROGRESS {
            self.begin();
        }
    }

    /// From now on, the server does not wait for the client.
    pub(super) fn end(&self) {
        self.inner.waits.store(false, Relaxed);
    }

    /// The server has kept a client waiting for so long: that does not count against the client.
    pub(super) fn resume(&self, kept: Duration) {
        self.inner.moved_ms.fetch_add(u64::try_from(kept.as_millis()).unwrap_or(u64::MAX), Relaxed);
        self.inner.waits.store(true, Relaxed);
    }

    /// For how long the server has waited for a client that holds memory, if it is so long.
    pub(super) fn idle_ms(&self, least_ms: u64) -> Option<u64> {
        let idle = self.now_ms().saturating_sub(self.inner.moved_ms.load(Relaxed));
        (self.inner.waits.load(Relaxed) && self.held() > 0 && idle >= least_ms).then_some(idle)
    }
}

impl Memory {
    pub(super) fn new(limit: usize, each: usize) -> Memory {
        let memory = Memory::default();
        memory.set_limits(limit, each);
        memory
    }

    /// Changes how many bytes all connections may use, and each of them.
    pub(super) fn set_limits(&self, limit: usize, each: usize) {
        let mut state = self.inner.state.lock();
        (state.limit, state.each) = (limit, each);
        drop(state);
        self.inner.freed.notify_waiters();
    }

    /// How many bytes are in use.
    pub(super) fn used(&self) -> usize {
        self.inner.state.lock().used
    }

    /// Enlarges the share of a command of which `arrived` bytes are there and which needs `needs`,
    /// as far as that is known. Waits for others to give memory back.
    pub(super) async fn grow(&self, share: &mut Share, account: &Account, arrived: usize, needs: usize) {
        // What the buffer will have when it is enlarged next.
        let wanted = if arrived <= FREE { 0 } else { (arrived * 2).max(STEP).min(needs) };
        if share.reserve || wanted <= share.bytes || self.try_grow(share, account, wanted) {
            return;
        }
        let _turn = self.inner.turn.lock().await;
        loop {
            let freed = self.inner.freed.notified();
            let mut freed = std::pin::pin!(freed);
            freed.as_mut().enable();
            if self.try_grow(share, account, wanted) || self.try_reserve(share, account, needs) {
                return;
            }
            freed.await;
        }
    }

    /// Enlarges a share to `bytes` if there is room now.
    #[must_use]
    pub(super) fn try_enlarge(&self, share: &mut Share, account: &Account, bytes: usize) -> bool {
        bytes <= FREE || self.try_grow(share, account, bytes)
    }

    /// Adds `bytes` to a share if there is room now.
    #[must_use]
    pub(super) fn try_add(&self, share: &mut Share, account: &Account, bytes: usize) -> bool {
        bytes <= FREE || self.try_grow(share, account, share.bytes + bytes)
    }

    fn try_grow(&self, share: &mut Share, account: &Account, bytes: usize) -> bool {
        let more = bytes.saturating_sub(share.bytes);
        let mut state = self.inner.state.lock();
        if more > 0 && (state.used + more > state.limit || account.held() + more > state.each) {
            return false;
        }
        state.used += more;
        account.inner.held.fetch_add(more, Relaxed);
        share.bytes += more;
        share.taken.get_or_insert_with(|| (self.clone(), account.clone()));
        true
    }

    /// Puts a command onto the reserve.
    fn try_reserve(&self, share: &mut Share, account: &Account, needs: usize) -> bool {
        let mut state = self.inner.state.lock();
        if state.reserved {
            return false;
        }
        state.reserved = true;
        state.used -= share.bytes;
        account.inner.held.fetch_add(needs.saturating_sub(share.bytes), Relaxed);
        share.bytes = needs.max(share.bytes);
        share.reserve = true;
        share.taken.get_or_insert_with(|| (self.clone(), account.clone()));
        drop(state);
        self.inner.freed.notify_waiters();
        true
    }
}

impl Share {
    /// Gives everything back.
    pub(super) fn clear(&mut self) {
        let Some((memory, account)) = self.taken.take() else { return };
        let mut state = memory.inner.state.lock();
        if self.reserve {
            state.reserved = false;
        } else {
            state.used -= self.bytes;
        }
        drop(state);
        account.inner.held.fetch_sub(self.bytes, Relaxed);
        (self.bytes, self.reserve) = (0, false);
        memory.inner.freed.notify_waiters();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.clear();
    }
}

impl std::fmt::Debug for Share {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(out, "Share({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const KIB: usize = 1024;

    #[tokio::test]
    async fn shares_are_bounded_together_and_given_back() {
        let memory = Memory::new(100 * KIB, 80 * KIB);
        let (one, other) = (Account::default(), Account::default());
        let (mut first, mut second) = (Share::default(), Share::default());
        assert!(memory.try_add(&mut first, &one, FREE) && memory.used() == 0, "short ones are free");
        assert!(memory.try_enlarge(&mut first, &one, 60 * KIB) && memory.try_enlarge(&mut first, &one, 60 * KIB));
        assert!(!memory.try_add(&mut second, &other, 41 * KIB));
        assert!(memory.try_add(&mut second, &other, 40 * KIB) && memory.try_add(&mut second, &other, FREE));
        assert_eq!((memory.used(), one.held(), other.held()), (100 * KIB, 60 * KIB, 40 * KIB));
        drop(second);
        assert!(!memory.try_enlarge(&mut first, &one, 81 * KIB), "one connection has a share of its own");
        first.clear();
        assert_eq!((memory.used(), one.held(), other.held()), (0, 0, 0));
    }

    #[tokio::test]
    async fn what_is_only_declared_takes_nothing() {
        let memory = Memory::new(1000 * KIB, 1000 * KIB);
        let account = Account::default();
        let mut share = Share::default();
        memory.grow(&mut share, &account, 40, 900 * KIB).await;
        assert_eq!(memory.used(), 0);
        memory.grow(&mut share, &account, 20 * KIB, 900 * KIB).await;
        assert_eq!(memory.used(), STEP);
        memory.grow(&mut share, &account, 100 * KIB, 900 * KIB).await;
        assert_eq!(memory.used(), 200 * KIB);
        memory.grow(&mut share, &account, 899 * KIB, 900 * KIB).await;
        assert_eq!(memory.used(), 900 * KIB);
    }

    #[tokio::test]
    async fn commands_that_all_lack_memory_end_one_after_the_other() {
        let memory = Memory::new(128 * KIB, 128 * KIB);
        let mut tasks = Vec::new();
        for _ in 0..20 {
            let memory = memory.clone();
            tasks.push(tokio::spawn(async move {
                let (account, mut share) = (Account::default(), Share::default());
                for arrived in [20, 40, 100, 200, 400, 500] {
                    memory.grow(&mut share, &account, arrived * KIB, 512 * KIB).await;
                    tokio::task::yield_now().await;
                }
            }));
        }
        for task in tasks {
            timeout(Duration::from_secs(20), task).await.expect("no command waits for ever").unwrap();
        }
        assert_eq!(memory.used(), 0);
        assert!(!memory.inner.state.lock().reserved);
    }

    #[tokio::test]
    async fn a_client_that_stands_still_is_told_from_one_that_moves() {
        let memory = Memory::new(100 * KIB, 100 * KIB);
        let (account, mut share) = (Account::default(), Share::default());
        account.begin();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(account.idle_ms(50), None, "it holds nothing");
        assert!(memory.try_add(&mut share, &account, 50 * KIB));
        assert!(account.idle_ms(50).is_some());
        account.moved(10);
        assert!(account.idle_ms(50).is_some(), "a few bytes are no progress");
        account.moved(PROGRESS);
        assert_eq!(account.idle_ms(60_000), None);
        assert!(account.inner.moved_ms.load(Relaxed) >= 50);
        account.end();
        assert_eq!(account.idle_ms(0), None, "the server is at work");
    }
}
