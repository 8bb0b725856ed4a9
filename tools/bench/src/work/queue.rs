//! The queue workload: pushes entries at the back and pops them at the front.

use std::sync::atomic::Ordering;

use super::{Bench, Tally, look_at, wrong};
use crate::Result;
use crate::clock::ticks;
use crate::engine::{Direction, Engine, Reader};

/// Length of the queue.
const LIVE: u64 = 1000;

impl<E: Engine> Bench<'_, E> {
    /// Passes each key through the queue once. A step is one pop: a scan that ends at the first
    /// entry, and its deletion. Pushes happen between the steps and are not timed.
    pub(super) fn queue(&self) -> Result<Tally> {
        let (mut pushed, mut popped) = (self.keys.buffer(), self.keys.buffer());
        let mut values = self.values(5);
        let mut push = |number| self.engine.put(self.keys.existing(number, &mut pushed), values.next());
        let count = self.keys.count();
        let live = LIVE.min(count);
        (0..live).try_for_each(&mut push)?;
        let mut reader = self.engine.reader()?;
        let mut tally = Tally::empty()?;
        let begun = ticks();
        let deadline = begun.saturating_add(self.rate.ticks(self.fill_seconds));
        let mut key = Vec::with_capacity(self.keys.key_len());
        for number in 0..count {
            if number + live < count {
                push(number + live)?;
            }
            let start = ticks();
            let mut right = false;
            reader.refresh()?;
            reader.scan(None, Direction::Forward, |first, value| {
                key.clear();
                key.extend_from_slice(first);
                right = look_at(value, self.value_len);
                false
            })?;
            self.engine.delete(&key)?;
            let now = ticks();
            tally.steps.record(now.saturating_sub(start))?;
            tally.ops += 1;
            if !right || *key != *self.keys.existing(number, &mut popped) {
                return Err(wrong("the first entry of the queue is not the oldest", &key));
            }
            if now >= deadline {
                tally.capped = number + 1 < count;
                break;
            }
        }
        tally.seconds = self.rate.seconds(ticks() - begun);
        tally.user_bytes = (tally.ops + live).min(count) * self.entry_len() + tally.ops * self.keys.key_len() as u64;
        self.present.store((tally.ops + live).min(count) - tally.ops, Ordering::Relaxed);
        Ok(tally)
    }
}
