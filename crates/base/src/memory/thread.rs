//! Small numbers for threads, so that per-thread data can live in an array.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of threads that can hold a number at the same time.
pub const NUMBERED: usize = 64;

/// Bit set of the numbers taken. `Acquire` on taking and `Release` on giving back let a number's
/// next owner see everything its last owner did.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The thread has not asked for a number yet.
const UNASKED: usize = usize::MAX;
/// All numbers were taken, or the thread is ending and has given its own back.
const NONE: usize = usize::MAX - 1;

thread_local! {
    // No destructor, so that reading it costs one load.
    static NUMBER: Cell<usize> = const { Cell::new(UNASKED) };
    static GIVE_BACK: GiveBack = const { GiveBack };
}

/// A number below [`NUMBERED`] that no other living thread has; `None` if all are taken. It is
/// constant while the thread runs, but may be `None` in destructors of thread-local values.
#[inline]
pub fn number() -> Option<usize> {
    if cfg!(shuttle) {
        // The threads of a model share one of the system.
        return None;
    }
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
        // More threads than numbers. The second round takes over the numbers of the first.
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
                // Unlike the scope's end, `join` waits for destructors of thread-local values.
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            });
            let numbers = numbers.into_inner().unwrap();
            // Other tests run at the same time and hold some of the numbers.
            assert!(numbers.len() > NUMBERED / 2 && numbers.iter().all(|&number| number < NUMBERED));
            assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), numbers.len());
        }
    }
}
