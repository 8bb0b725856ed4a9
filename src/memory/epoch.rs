//! [`Epoch`]: when may memory be freed that readers without locks have seen?
//!
//! Readers [`pin`](Epoch::pin) the epoch while they hold references into shared structures. Whoever takes something out of such a structure
//! first makes it unreachable, then calls [`advance`](Epoch::advance), and keeps it until the [`oldest`](Epoch::oldest) epoch in which anybody is
//! pinned, asked for after that, is at least the one that `advance` returned. Nobody ever waits for a reader. ([`Published`] does all of that for one pointer.)
//!
//! Why that is enough. A reader notes the epoch, then comes a full fence, then it looks around. Whoever frees unlinks, advances, then comes
//! a full fence, then it looks at the readers' notes. If it misses a note, its fence came before the reader's, which so finds what was
//! unlinked to be gone. If it sees the note of an epoch at or behind its own, the reader had read what `advance` wrote, and with it sees
//! that it is gone. Any other note keeps it from freeing.
//!
//! A pin is a store and a fence: no line is written that other readers read. A long pin keeps
//! everything from being freed that was replaced since it began. Therefore nothing runs under a pin
//! that may last: no code of the caller, who may do anything. What others pay for a pin that lasts
//! all the same, because a disk is slow, does not depend on how much it keeps.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, compiler_fence, fence};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::memory::thread::{self, NUMBERED};

/// The note of a thread that is not pinned.
const IDLE: u64 = u64::MAX;
/// How often the notes are looked at after a value was replaced, before freeing it is left to the
/// reader who keeps it: a read from memory ends in that time.
const PATIENCE: u32 = 200;

/// A cache line of its own, and the one that the processor fetches along with it.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

/// The time of one set of structures, in steps that whoever frees takes.
pub(crate) struct Epoch {
    now: Line<AtomicU64>,
    /// The epoch in which each numbered thread is pinned, or `IDLE`.
    notes: Box<[Line<AtomicU64>]>,
    /// The same for those without a number, in no order.
    crowd: Mutex<Vec<u64>>,
}

/// Proof that the thread is pinned: what is reached while it lives stays where it is.
pub(crate) struct Pin<'e> {
    epoch: &'e Epoch,
    note: Note,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

enum Note {
    /// In the line of the thread of this number.
    Own(usize, u64),
    /// A pin outside of this one has its note, which is older.
    Outer,
    Crowd(u64),
}

impl Default for Epoch {
    fn default() -> Epoch {
        let notes = (0..NUMBERED).map(|_| Line(AtomicU64::new(IDLE))).collect();
        Epoch { now: Line::default(), notes, crowd: Mutex::default() }
    }
}

impl Epoch {
    /// Runs `read` pinned. Pins nest, and may last; what is freed meanwhile waits.
    #[inline]
    pub(crate) fn pin<R>(&self, read: impl FnOnce(&Pin<'_>) -> R) -> R {
        // In a closure, so that an outer pin cannot end before an inner one.
        read(&self.pinned())
    }

    #[inline]
    fn pinned(&self) -> Pin<'_> {
        let note = match thread::number() {
            Some(number) if self.notes[number].0.load(Ordering::Relaxed) == IDLE => {
                let now = self.now.0.load(Ordering::Acquire);
                note_and_fence(&self.notes[number].0, now);
                Note::Own(number, now)
            }
            Some(_) => Note::Outer,
            None => self.join_crowd(),
        };
        Pin { epoch: self, note, _thread: PhantomData }
    }

    #[cold]
    fn join_crowd(&self) -> Note {
        let mut crowd = self.crowd.lock();
        let now = self.now.0.load(Ordering::Acquire);
        crowd.push(now);
        drop(crowd);
        fence(Ordering::SeqCst);
        Note::Crowd(now)
    }

    /// Begins an epoch, and returns it: readers that pin it, or a later one, do not see what the caller has unlinked before.
    pub(crate) fn advance(&self) -> u64 {
        self.now.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The oldest epoch in which somebody may be pinned: everything unlinked before it began can be freed.
    pub(crate) fn oldest(&self) -> u64 {
        fence(Ordering::SeqCst);
        let crowd = self.crowd.lock().iter().copied().min();
        let notes = self.notes.iter().map(|note| note.0.load(Ordering::Acquire));
        notes.chain(crowd).min().unwrap_or(IDLE)
    }
}

/// Stores `now`, so that whoever frees sees it before the caller looks at anything else.
#[inline]
fn note_and_fence(note: &AtomicU64, now: u64) {
    if cfg!(all(target_arch = "x86_64", not(miri))) {
        // A locked exchange is a full fence on this architecture, and takes half the time of `mfence`. The compiler is told, too.
        note.swap(now, Ordering::SeqCst);
        compiler_fence(Ordering::SeqCst);
    } else {
        // With what this thread read under earlier pins behind it: whoever sees this note, and not that those have ended, may free that.
        note.store(now, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.note {
            Note::Own(number, _) => self.epoch.notes[number].0.store(IDLE, Ordering::Release),
            Note::Outer => {}
            Note::Crowd(noted) => self.leave_crowd(noted),
        }
    }
}

impl Pin<'_> {
    #[cold]
    fn leave_crowd(&self, noted: u64) {
        let mut crowd = self.epoch.crowd.lock();
        if let Some(at) = crowd.iter().position(|&note| note == noted) {
            crowd.swap_remove(at);
        }
    }

    /// The epoch that this pin keeps from passing. An inner pin keeps none.
    #[inline]
    fn kept_epoch(&self) -> u64 {
        match self.note {
            Note::Own(_, epoch) | Note::Crowd(epoch) => epoch,
            Note::Outer => IDLE,
        }
    }

    /// Whether it is a pin of this epoch.
    #[inline]
    pub(crate) fn is_of(&self, epoch: &Epoch) -> bool {
        ptr::eq(self.epoch, epoch)
    }
}

/// A shared value that is replaced now and then and read all the time.
pub(crate) struct Published<T> {
    epoch: Arc<Epoch>,
    /// From `Arc::into_raw`.
    current: AtomicPtr<T>,
    /// Former values that readers may still see, oldest first.
    replaced: Mutex<VecDeque<Replaced<T>>>,
    /// `since` of the last one of them; 0 if there is none.
    last_replaced: AtomicU64,
    /// How often the notes of all threads were looked at.
    #[cfg(test)]
    looks: AtomicU64,
    _owns: PhantomData<Arc<T>>,
}

/// A former value.
struct Replaced<T> {
    /// The epoch from which on no reader can see it.
    since: u64,
    at: Instant,
    value: Arc<T>,
}

/// Former values that are not free yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) values: usize,
    /// How long ago the oldest one was replaced.
    pub(crate) oldest: Option<Duration>,
}

impl<T: Send + Sync> Published<T> {
    pub(crate) fn new(epoch: Arc<Epoch>, value: Arc<T>) -> Published<T> {
        Published {
            epoch,
            current: AtomicPtr::new(Arc::into_raw(value).cast_mut()),
            replaced: Mutex::default(),
            last_replaced: AtomicU64::new(0),
            #[cfg(test)]
            looks: AtomicU64::new(0),
            _owns: PhantomData,
        }
    }

    /// Runs `read` with the current value, and the pin that keeps it. Readers share no line that is written.
    #[inline]
    pub(crate) fn with<R>(&self, read: impl FnOnce(&T, &Pin<'_>) -> R) -> R {
        // SAFETY: the value is alive while `pin` is.
        self.pinned(|value, pin| read(unsafe { &*value }, pin))
    }

    /// The current value, for longer.
    pub(crate) fn load(&self) -> Arc<T> {
        self.pinned(|value, _| {
            // SAFETY: the pointer is from `Arc::into_raw`, and the count is at least 1 while this is pinned.
            unsafe {
                Arc::increment_strong_count(value);
                Arc::from_raw(value)
            }
        })
    }

    /// Runs `read` with the pointer that `Arc::into_raw` gave for the current value. The value is alive while the pin is: the count that came
    /// with the pointer is given up only after an epoch that began when it was no longer to be found here, and in which the pin did not
    /// begin, has become the oldest.
    #[inline]
    fn pinned<R>(&self, read: impl FnOnce(*const T, &Pin<'_>) -> R) -> R {
        // Without a closure that hands the answer on: moving a large one costs a get 40 instructions.
        let pin = self.epoch.pinned();
        let answer = read(self.current.load(Ordering::Acquire).cast_const(), &pin);
        let kept = pin.kept_epoch();
        drop(pin);
        // A reader that kept a value from being freed tries to free it. Others, who came later,
        // cannot help: they do nothing.
        if kept < self.last_replaced.load(Ordering::Relaxed) {
            self.collect();
        }
        answer
    }

    /// Replaces the value. The former one is freed as soon as no reader can see it, if possible at once.
    pub(crate) fn store(&self, value: Arc<T>) {
        let mut replaced = self.replaced.lock();
        let former = self.current.swap(Arc::into_raw(value).cast_mut(), Ordering::AcqRel);
        // SAFETY: the pointer is from `Arc::into_raw`, and nobody else took it out.
        let former = unsafe { Arc::from_raw(former) };
        // Under the lock, so that the oldest comes first.
        let since = self.epoch.advance();
        replaced.push_back(Replaced { since, at: Instant::now(), value: former });
        self.last_replaced.store(since, Ordering::Relaxed);
        drop(replaced);
        for _ in 0..PATIENCE {
            // A reader that keeps an earlier value as well takes its time: no use waiting for it.
            if self.collect() != 1 {
                break;
            }
            std::hint::spin_loop();
        }
    }

    /// Former values that readers may still see.
    pub(crate) fn kept(&self) -> Kept {
        self.collect();
        let replaced = self.replaced.lock();
        Kept { values: replaced.len(), oldest: replaced.front().map(|oldest| oldest.at.elapsed()) }
    }

    /// Frees the former values that nobody can see any more; returns how many are left. It looks at
    /// the notes of all threads, but does not go through the values that it leaves.
    ///
    /// Two readers may leave a value behind: one that ends in the moment in which the value is
    /// replaced, and one that pins the epoch by itself. The next value that is replaced, or the
    /// next call of [`kept`](Published::kept), frees what they left.
    #[cold]
    fn collect(&self) -> usize {
        #[cfg(test)]
        self.looks.fetch_add(1, Ordering::Relaxed);
        let mut replaced = self.replaced.lock();
        // Under the lock: of a value that is put in later, an older look at the notes would say nothing.
        let oldest = self.epoch.oldest();
        let free = replaced.partition_point(|former| former.since <= oldest);
        let free: Vec<Arc<T>> = replaced.drain(..free).map(|former| former.value).collect();
        let left = replaced.len();
        self.last_replaced.store(replaced.back().map_or(0, |last| last.since), Ordering::Relaxed);
        drop(replaced);
        // Without the lock: what is freed may do anything.
        drop(free);
        left
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer is from `Arc::into_raw`; nobody reads through `self` any more.
        drop(unsafe { Arc::from_raw(*self.current.get_mut()) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use super::*;

    #[test]
    fn what_a_pin_may_have_seen_is_not_free() {
        let epoch = Epoch::default();
        assert_eq!(epoch.oldest(), IDLE);
        epoch.pin(|_| {
            let unlinked = epoch.advance();
            assert!(epoch.oldest() < unlinked);
            // Neither does an inner pin make it so, nor its end.
            epoch.pin(|_| assert!(epoch.oldest() < unlinked));
            assert!(epoch.oldest() < unlinked);
        });
        let unlinked = epoch.advance();
        epoch.pin(|_| assert!(epoch.oldest() >= unlinked));
    }

    #[test]
    fn threads_without_a_number_pin_too() {
        let epoch = Epoch::default();
        let pin = Pin { epoch: &epoch, note: epoch.join_crowd(), _thread: PhantomData };
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
    fn a_reader_that_stays_costs_others_no_look_at_what_it_keeps() {
        let published = Published::new(Arc::default(), Arc::new(0));
        let looks = |work: &dyn Fn()| {
            let before = published.looks.load(Ordering::Relaxed);
            work();
            published.looks.load(Ordering::Relaxed) - before
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
                let to_store = looks(&|| published.store(Arc::new(round)));
                assert!(to_store <= u64::from(if round == 1 { PATIENCE } else { 1 }), "{to_store} looks");
                let to_read = looks(&|| {
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
        // It has freed what it kept, or says so when asked.
        assert_eq!(published.kept(), Kept::default());
    }

    /// Says when it is dropped, and notices when it is read afterwards.
    struct Watched<'a> {
        alive: AtomicBool,
        number: usize,
        living: &'a AtomicUsize,
    }

    impl Drop for Watched<'_> {
        fn drop(&mut self) {
            self.alive.store(false, Ordering::Relaxed);
            self.living.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn readers_never_see_a_value_that_was_freed() {
        let (rounds, readers) = if cfg!(miri) { (30, 2) } else { (20_000, 3) };
        let living = AtomicUsize::new(0);
        let watched = |number| {
            living.fetch_add(1, Ordering::Relaxed);
            Arc::new(Watched { alive: AtomicBool::new(true), number, living: &living })
        };
        let published = Published::new(Arc::default(), watched(0));
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
                published.store(watched(number));
            }
        });
        published.collect();
        assert_eq!(living.load(Ordering::Relaxed), 1);
        drop(published);
        assert_eq!(living.load(Ordering::Relaxed), 0);
    }
}
