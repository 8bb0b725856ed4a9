//! Epoch-based reclamation: [`Epoch`] tells when memory that lock-free readers may have seen can be
//! freed. [`Published`] applies it to one pointer.
//!
//! A reader [`pin`](Epoch::pin)s the epoch while it holds references into shared structures. A
//! writer that removes something from such a structure makes it unreachable, then calls
//! [`advance`](Epoch::advance). It frees the thing once [`oldest`](Epoch::oldest), called
//! afterwards, returns at least the epoch that `advance` returned. Writers never wait for readers.
//!
//! Why this is safe. A reader notes the epoch, executes a full fence, and only then follows
//! pointers. A writer unlinks, advances, executes a full fence, and only then reads the notes.
//!
//! - If the writer misses a reader's note, its fence came before the reader's: the reader finds the
//!   thing already unlinked.
//! - If the note is the writer's new epoch or a later one, the reader has read what `advance`
//!   wrote, and therefore also sees the unlinking.
//! - Any older note keeps the writer from freeing.
//!
//! A pin costs a store and a fence, and writes no line that other readers read. A pin keeps
//! everything alive that is replaced while it lasts. No caller's code runs under a pin, but merge
//! operators and the clock. If a pin lasts all the same, because a disk is slow, its cost to
//! other threads does not depend on how much memory it keeps.
//!
//! Gain over a counted pointer to the view and a lock for each block, everything cached, 5 M keys:
//! `readrandom` 2,990 to 1,408 ns, `readmissing` 386 to 269. To remove it, count references in
//! [`Published`], in `cache::slot` and in `memtable::index`.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, compiler_fence, fence};
use std::time::{Duration, Instant};

use crate::memory::thread::{self, NUMBERED};
use crate::sync::{self, Mutex, time};

/// The note of a thread that is not pinned.
const IDLE: u64 = u64::MAX;
/// Attempts to free a replaced value before the reader that keeps it is left to free it. A read
/// from memory ends within that time.
const RECLAIM_ATTEMPTS: u32 = 200;

/// A value in a cache line of its own, and in the adjacent one, which the processor fetches along
/// with it.
#[derive(Default)]
#[repr(align(128))]
struct CacheLine<T>(T);

/// The epoch of one set of structures. It advances when a writer unlinks something.
pub struct Epoch {
    now: CacheLine<AtomicU64>,
    /// The epoch in which each numbered thread is pinned, or `IDLE`.
    notes: Box<[CacheLine<AtomicU64>; NUMBERED]>,
    /// The epochs of pinned threads without a number, in no order.
    unnumbered: Mutex<Vec<u64>>,
}

/// Proof that the thread is pinned: nothing reached through it is freed while it lives.
pub struct Pin<'e> {
    epoch: &'e Epoch,
    /// The epoch that this pin holds back; `IDLE` if an enclosing pin has the note, whose epoch is
    /// older.
    noted: u64,
    /// Where the note is; `None` if it is among the unnumbered ones, or an enclosing pin has it.
    line: Option<&'e AtomicU64>,
    /// A pin belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Default for Epoch {
    fn default() -> Epoch {
        let notes = Box::new(std::array::from_fn(|_| CacheLine(AtomicU64::new(IDLE))));
        Epoch { now: CacheLine::default(), notes, unnumbered: Mutex::default() }
    }
}

impl Epoch {
    /// Runs `read` pinned. Pins nest. Nothing unlinked during a pin is freed before it ends.
    #[inline]
    pub fn pin<R>(&self, read: impl FnOnce(&Pin<'_>) -> R) -> R {
        // A closure, so that an outer pin cannot end before an inner one.
        read(&self.pinned())
    }

    #[inline]
    fn pinned(&self) -> Pin<'_> {
        let (noted, line) = match thread::number().map(|number| &self.notes[number].0) {
            Some(line) if line.load(Ordering::Relaxed) == IDLE => {
                let now = self.now.0.load(Ordering::Acquire);
                note_and_fence(line, now);
                (now, Some(line))
            }
            Some(_) => (IDLE, None),
            None => (self.pin_unnumbered(), None),
        };
        Pin { epoch: self, noted, line, _thread: PhantomData }
    }

    #[cold]
    fn pin_unnumbered(&self) -> u64 {
        let mut unnumbered = self.unnumbered.lock();
        let now = self.now.0.load(Ordering::Acquire);
        unnumbered.push(now);
        drop(unnumbered);
        fence(Ordering::SeqCst);
        now
    }

    /// Begins an epoch and returns it. Readers that pin this epoch or a later one cannot see what
    /// the caller unlinked before.
    pub fn advance(&self) -> u64 {
        self.now.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The oldest epoch in which a thread may be pinned. Everything unlinked before that epoch
    /// began can be freed.
    pub fn oldest(&self) -> u64 {
        fence(Ordering::SeqCst);
        let unnumbered = self.unnumbered.lock().iter().copied().min();
        let notes = self.notes.iter().map(|note| note.0.load(Ordering::Acquire));
        notes.chain(unnumbered).min().unwrap_or(IDLE)
    }
}

/// Stores `now` so that writers see it before the caller reads anything else.
#[inline]
pub fn note_and_fence(note: &AtomicU64, now: u64) {
    if cfg!(all(target_arch = "x86_64", not(miri))) {
        // A locked exchange is a full fence on x86-64 and takes half the time of `mfence`. The
        // second fence binds the compiler.
        note.swap(now, Ordering::SeqCst);
        compiler_fence(Ordering::SeqCst);
    } else {
        // `Release` orders this thread's reads under earlier pins before the note. A writer that
        // sees the note but no earlier pin may free what those pins kept.
        note.store(now, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.line {
            Some(line) => line.store(IDLE, Ordering::Release),
            None if self.noted != IDLE => self.unpin_unnumbered(),
            None => {}
        }
    }
}

impl Pin<'_> {
    #[cold]
    fn unpin_unnumbered(&self) {
        let mut unnumbered = self.epoch.unnumbered.lock();
        if let Some(at) = unnumbered.iter().position(|&note| note == self.noted) {
            unnumbered.swap_remove(at);
        }
    }

    /// Whether this pins `epoch`.
    #[inline]
    pub fn is_of(&self, epoch: &Epoch) -> bool {
        ptr::eq(self.epoch, epoch)
    }
}

/// A shared value that is read often and replaced rarely.
pub struct Published<T> {
    epoch: Arc<Epoch>,
    /// From `Arc::into_raw`.
    current: AtomicPtr<T>,
    /// Former values that readers may still see, oldest first.
    replaced: Mutex<VecDeque<Former<T>>>,
    /// `since` of the last entry of `replaced`; 0 if there is none.
    last_replaced: AtomicU64,
    /// How often the notes of all threads were scanned.
    #[cfg(test)]
    scans: AtomicU64,
    _owns: PhantomData<Arc<T>>,
}

/// A former value.
struct Former<T> {
    /// The first epoch in which no reader can see it.
    since: u64,
    at: Instant,
    value: Arc<T>,
}

/// Former values that are not freed yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unreclaimed {
    pub values: usize,
    /// How long ago the oldest one was replaced.
    pub oldest: Option<Duration>,
}

impl<T: Send + Sync> Published<T> {
    pub fn new(epoch: Arc<Epoch>, value: Arc<T>) -> Published<T> {
        Published {
            epoch,
            current: AtomicPtr::new(Arc::into_raw(value).cast_mut()),
            replaced: Mutex::default(),
            last_replaced: AtomicU64::new(0),
            #[cfg(test)]
            scans: AtomicU64::new(0),
            _owns: PhantomData,
        }
    }

    /// Runs `read` with the current value and the pin that keeps it alive. Readers write no line
    /// that they share.
    #[inline]
    pub fn with<R>(&self, read: impl FnOnce(&T, &Pin<'_>) -> R) -> R {
        // SAFETY: the value is alive while `pin` is.
        self.pinned(|value, pin| read(unsafe { &*value }, pin))
    }

    /// The current value, with a reference count of its own.
    pub fn load(&self) -> Arc<T> {
        self.pinned(|value, _| {
            // SAFETY: the pointer is from `Arc::into_raw`, and the count is at least 1 while this
            // is pinned.
            unsafe {
                Arc::increment_strong_count(value);
                Arc::from_raw(value)
            }
        })
    }

    /// Runs `read` with the pointer that `Arc::into_raw` gave for the current value. The value is
    /// alive while the pin is. Its count is dropped only when the oldest pinned epoch is one that
    /// began after the value was unlinked, and this pin's epoch began before that.
    #[inline]
    fn pinned<R>(&self, read: impl FnOnce(*const T, &Pin<'_>) -> R) -> R {
        // Not by `Epoch::pin`: returning a large answer through its closure costs a get 40
        // instructions.
        let pin = self.epoch.pinned();
        let answer = read(self.current.load(Ordering::Acquire).cast_const(), &pin);
        let kept = pin.noted;
        drop(pin);
        // If this reader kept a value from being freed, it tries to free it. A reader that pinned
        // later kept nothing.
        if kept < self.last_replaced.load(Ordering::Relaxed) {
            self.collect();
        }
        answer
    }

    /// Replaces the value. The former one is freed at once if no reader can see it, otherwise by
    /// the reader that keeps it.
    pub fn store(&self, value: Arc<T>) {
        let mut replaced = self.replaced.lock();
        let former = self.current.swap(Arc::into_raw(value).cast_mut(), Ordering::AcqRel);
        // SAFETY: the pointer is from `Arc::into_raw`, and only this call took it out.
        let former = unsafe { Arc::from_raw(former) };
        // Under the lock, so that `replaced` stays ordered by epoch.
        let since = self.epoch.advance();
        replaced.push_back(Former { since, at: time::now(), value: former });
        self.last_replaced.store(since, Ordering::Relaxed);
        drop(replaced);
        for _ in 0..RECLAIM_ATTEMPTS {
            // Stop if an earlier value is kept as well: its reader is slow, and spinning does not
            // help.
            if self.collect() != 1 {
                break;
            }
            sync::spin_loop();
        }
    }

    /// Former values that readers may still see.
    pub fn kept(&self) -> Unreclaimed {
        self.collect();
        let replaced = self.replaced.lock();
        Unreclaimed { values: replaced.len(), oldest: replaced.front().map(|oldest| time::since(oldest.at)) }
    }

    /// Frees the former values that no reader can see; returns how many are left. It scans the
    /// notes of all threads, but not the values that it leaves.
    ///
    /// A value may stay behind although nothing keeps it: if its reader ended just while it was
    /// replaced, or had pinned the epoch directly. The next [`store`](Published::store) or
    /// [`kept`](Published::kept) frees it.
    #[cold]
    fn collect(&self) -> usize {
        #[cfg(test)]
        self.scans.fetch_add(1, Ordering::Relaxed);
        let mut replaced = self.replaced.lock();
        // Under the lock: an earlier scan of the notes says nothing of a value pushed after it.
        let oldest = self.epoch.oldest();
        let free = replaced.partition_point(|former| former.since <= oldest);
        let free: Vec<Arc<T>> = replaced.drain(..free).map(|former| former.value).collect();
        let left = replaced.len();
        self.last_replaced.store(replaced.back().map_or(0, |last| last.since), Ordering::Relaxed);
        drop(replaced);
        // Outside the lock: destructors may do anything.
        drop(free);
        left
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer is from `Arc::into_raw`, and nothing reads through `self` any more.
        drop(unsafe { Arc::from_raw(*self.current.get_mut()) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use super::*;

    #[test]
    fn nothing_a_pin_may_have_seen_is_free() {
        let epoch = Epoch::default();
        assert_eq!(epoch.oldest(), IDLE);
        epoch.pin(|_| {
            let unlinked = epoch.advance();
            assert!(epoch.oldest() < unlinked);
            // Neither an inner pin nor its end frees it.
            epoch.pin(|_| assert!(epoch.oldest() < unlinked));
            assert!(epoch.oldest() < unlinked);
        });
        let unlinked = epoch.advance();
        epoch.pin(|_| assert!(epoch.oldest() >= unlinked));
    }

    #[test]
    fn threads_without_a_number_pin_too() {
        let epoch = Epoch::default();
        let pin = Pin { epoch: &epoch, noted: epoch.pin_unnumbered(), line: None, _thread: PhantomData };
        let unlinked = epoch.advance();
        assert!(epoch.oldest() < unlinked);
        drop(pin);
        assert_eq!(epoch.oldest(), IDLE);
    }

    #[test]
    fn a_value_is_freed_when_its_last_reader_ends() {
        let published = Published::new(Arc::default(), Arc::new(1));
        let first = Arc::downgrade(&published.load());
        published.with(|value, _| {
            published.store(Arc::new(2));
            assert_eq!((*value, published.load().as_ref()), (1, &2));
            assert!(first.upgrade().is_some());
        });
        assert!(first.upgrade().is_none());
        let kept = published.load();
        published.store(Arc::new(3));
        assert_eq!((*kept, *published.load()), (2, 3));
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn a_long_reader_costs_others_no_scan_of_what_it_keeps() {
        let published = Published::new(Arc::default(), Arc::new(0));
        let scans = |work: &dyn Fn()| {
            let before = published.scans.load(Ordering::Relaxed);
            work();
            published.scans.load(Ordering::Relaxed) - before
        };
        let rounds: usize = if cfg!(miri) { 20 } else { 1000 };
        let together = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                published.with(|_, _| {
                    together.wait();
                    together.wait();
                });
                together.wait();
            });
            together.wait();
            for round in 1..=rounds {
                let to_store = scans(&|| published.store(Arc::new(round)));
                assert!(to_store <= u64::from(if round == 1 { RECLAIM_ATTEMPTS } else { 1 }), "{to_store} scans");
                let to_read = scans(&|| {
                    for _ in 0..10 {
                        assert_eq!(published.with(|value, _| *value), round);
                        assert_eq!(*published.load(), round);
                    }
                });
                assert_eq!(to_read, 0);
            }
            let kept = published.kept();
            assert!(kept.values == rounds && kept.oldest.is_some(), "{kept:?}");
            together.wait();
            together.wait();
        });
        // The reader freed what it kept, or `kept` frees it now.
        assert_eq!(published.kept(), Unreclaimed::default());
    }

    /// Counts living instances, and marks itself dead when dropped so that a late read is noticed.
    struct Canary<'a> {
        alive: AtomicBool,
        number: usize,
        living: &'a AtomicUsize,
    }

    impl Drop for Canary<'_> {
        fn drop(&mut self) {
            self.alive.store(false, Ordering::Relaxed);
            self.living.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn readers_never_see_a_value_that_was_freed() {
        let (rounds, readers) = if cfg!(miri) { (30, 2) } else { (20_000, 3) };
        let living = AtomicUsize::new(0);
        let canary = |number| {
            living.fetch_add(1, Ordering::Relaxed);
            Arc::new(Canary { alive: AtomicBool::new(true), number, living: &living })
        };
        let published = Published::new(Arc::default(), canary(0));
        std::thread::scope(|scope| {
            for reader in 0..readers {
                let published = &published;
                scope.spawn(move || {
                    let mut last = 0;
                    while last < rounds {
                        let number = match reader {
                            0 => published.load().number,
                            _ => published.with(|value, _| {
                                assert!(value.alive.load(Ordering::Relaxed));
                                value.number
                            }),
                        };
                        assert!(number >= last, "time goes backwards");
                        last = number;
                    }
                });
            }
            for number in 1..=rounds {
                published.store(canary(number));
            }
        });
        published.collect();
        assert_eq!(living.load(Ordering::Relaxed), 1);
        drop(published);
        assert_eq!(living.load(Ordering::Relaxed), 0);
    }
}
