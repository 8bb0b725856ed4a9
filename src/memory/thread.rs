//! Small numbers for threads, so that what each thread has to itself can stand in an array.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many threads at a time have a number.
pub(crate) const NUMBERED: usize = 64;

/// Which numbers are taken, a bit for each. Whoever takes one over sees what its last owner did: `Acquire` here, `Release` when it is
/// given back.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Before the thread has asked for its number.
const UNASKED: usize = usize::MAX;
/// All numbers were taken, or the thread is ending and has given its own back.
const NONE: usize = usize::MAX - 1;

thread_local! {
    // Without a destructor, so that asking costs one load.
    static NUMBER: Cell<usize> = const { Cell::new(UNASKED) };
    static GIVE_BACK: GiveBack = const { GiveBack };
}

/// A number below [`NUMBERED`] that no other living thread has; `None` if all are taken. It stays the same while the thread runs, but for
/// the destructors of its thread-local values, in which there may be none.
#[inline]
pub(crate) fn number() -> Option<usize> {
    let number = NUMBER.get();
    if number < NUMBERED { Some(number) } else { take(number) }
}

#[cold]
fn take(number: usize) -> Option<usize> {
    // A thread that cannot give a number back takes none.
    if number == NONE || GIVE_BACK.try_with(|_| ()).is_err() {
        return None;
    }
    let mut taken = TAKEN.load(Ordering::Relaxed);
    loop {
        let free = taken.trailing_ones();
        if free as usize >= NUMBERED {
            NUMBER.set(NONE);
            return None;
        }
        match TAKEN.compare_exchange_weak(taken, taken | 1 << free, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {
                NUMBER.set(free as usize);
                return Some(free as usize);
            }
            Err(now) => taken = now,
        }
    }
}

/// Gives the thread's number back when the thread ends.
struct GiveBack;

impl Drop for GiveBack {
    fn drop(&mut self) {
        let number = NUMBER.replace(NONE);
        if number < NUMBERED {
            TAKEN.fetch_and(!(1 << number), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Barrier, Mutex};

    use super::*;

    #[test]
    fn living_threads_have_different_numbers_and_give_them_back() {
        // More than there are numbers; twice, so that the second ones take over those of the first.
        const THREADS: usize = NUMBERED + 8;
        for _ in 0..2 {
            let (together, numbers) = (Barrier::new(THREADS), Mutex::new(Vec::new()));
            std::thread::scope(|scope| {
                let run = || {
                    let number = number();
                    numbers.lock().unwrap().extend(number);
                    together.wait();
                    assert_eq!(super::number(), number);
                };
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(run)).collect();
                // A scope does not wait for the destructors of thread-local values, as this does.
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            });
            let numbers = numbers.into_inner().unwrap();
            // Other tests run meanwhile, and have some.
            assert!(numbers.len() > NUMBERED / 2 && numbers.iter().all(|&number| number < NUMBERED));
            assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), numbers.len());
        }
    }
}
