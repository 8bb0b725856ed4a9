//! Slows writers down a little and early, so that they need not be stopped.
//!
//! The *pressure*, from 0 to 1, says how far compaction is behind. Above 0, each write is charged
//! the time that its bytes take at a rate that falls with the pressure. It waits when the
//! accumulated charge is worth a wait.
//!
//! Flushes that are behind add pressure too, once no more memtables may wait for them: as much as
//! the active memtable has filled up. Otherwise the writer that fills it would wait for a whole
//! flush.

use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Mutex, time};
use crate::tree::compaction::picker::{L0_SLOWDOWN, L0_TRIGGER};

/// Runs in level 0 at which writes stop.
pub(super) const L0_STOP: usize = 4 * L0_TRIGGER;
/// Full memtables that may wait for their flush before writes stop.
pub(crate) const MAX_SEALED: usize = 2;
/// Bytes to be compacted, in multiples of the size at which level 0 is compacted: where writes
/// begin to be slowed down, and where the pressure is full.
const DEBT_SLOWDOWN: u64 = 32;
const DEBT_FULL: u64 = 128;
/// Rates in bytes per second at pressures just above 0 and at 1.
const RATE_HIGH: f64 = 200e6;
const RATE_LOW: f64 = 4e6;
/// Shorter waits cost more than their length.
const SHORTEST_WAIT: Duration = Duration::from_micros(500);
/// The throttle makes no write wait longer than this.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// The pressure, given the longest level 0 of any keyspace and the total bytes to be compacted.
pub(super) fn pressure(l0_runs: usize, debt: u64, base_size: u64) -> f64 {
    let part = |value: f64, from: f64, to: f64| ((value - from) / (to - from)).clamp(0.0, 1.0);
    let runs = part(l0_runs as f64, L0_SLOWDOWN as f64, L0_STOP as f64);
    let base = base_size as f64;
    let bytes = part(debt as f64, base * DEBT_SLOWDOWN as f64, base * DEBT_FULL as f64);
    runs.max(bytes)
}

/// Bytes per second that writes may add. Falls geometrically: each further run slows writes by the
/// same factor.
fn rate(pressure: f64) -> f64 {
    RATE_HIGH * (RATE_LOW / RATE_HIGH).powf(pressure)
}

/// Waiting for the flush of a memtable smaller than this is no stall.
const SMALL_MEMTABLE: usize = 4 << 20;

// Cache lines of its own: every delayed write changes it.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Throttle {
    /// Thousandths.
    pressure: AtomicU32,
    /// Whether the limit of memtables waiting for a flush is reached.
    unflushed: AtomicBool,
    /// When the writes admitted so far will have been paid for.
    paid_until: Mutex<Option<Instant>>,
}

impl Throttle {
    #[expect(clippy::cast_possible_truncation, reason = "between 0 and 1000")]
    pub(super) fn set_pressure(&self, pressure: f64) {
        // Rounded down: only full pressure stops all writes.
        self.pressure.store((pressure * 1000.0).floor() as u32, Ordering::Relaxed);
    }

    /// From 0 to 1.
    pub(super) fn pressure(&self) -> f64 {
        f64::from(self.pressure.load(Ordering::Relaxed)) / 1000.0
    }

    /// Sets whether the limit of waiting memtables, of `size` bytes each, is reached.
    pub(super) fn set_unflushed(&self, unflushed: bool, size: usize) {
        self.unflushed.store(unflushed && size >= SMALL_MEMTABLE, Ordering::Relaxed);
    }

    /// Returns how long a write of `bytes` bytes must wait now. `filled` returns how full the
    /// memtable is, from 0 to 1.
    #[inline]
    pub(super) fn charge(&self, bytes: usize, filled: impl FnOnce() -> f64) -> Duration {
        let unflushed = self.unflushed.load(Ordering::Relaxed);
        if self.pressure.load(Ordering::Relaxed) == 0 && !unflushed {
            return Duration::ZERO;
        }
        self.charge_for(bytes, if unflushed { filled().min(1.0) } else { 0.0 })
    }

    /// Charges a write under pressure, of at least `least`.
    #[inline(never)]
    fn charge_for(&self, bytes: usize, least: f64) -> Duration {
        self.charge_at(bytes, self.pressure().max(least), time::now())
    }

    fn charge_at(&self, bytes: usize, pressure: f64, now: Instant) -> Duration {
        let cost = Duration::from_secs_f64(bytes as f64 / rate(pressure)).min(LONGEST_WAIT);
        let mut paid_until = self.paid_until.lock();
        let until = paid_until.map_or(now, |until| until.max(now)) + cost;
        // A burst of many writers must not delay writes long after it.
        *paid_until = Some(until.min(now + LONGEST_WAIT));
        let wait = until - now;
        if wait < SHORTEST_WAIT { Duration::ZERO } else { wait.min(LONGEST_WAIT) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_rises_from_the_slowdown_to_the_stop() {
        assert_eq!(pressure(L0_SLOWDOWN, 0, 100), 0.0);
        assert_eq!(pressure(L0_STOP, 0, 100), 1.0);
        assert_eq!(pressure(0, 100 * DEBT_FULL, 100), 1.0);
        let mid = pressure((L0_SLOWDOWN + L0_STOP) / 2, 0, 100);
        assert!((0.4..0.6).contains(&mid));
    }

    #[test]
    fn writes_pass_at_the_rate_of_the_pressure() {
        let throttle = Throttle::default();
        assert_eq!(throttle.charge(1 << 20, || 1.0), Duration::ZERO);
        let start = Instant::now();
        let mut now = start;
        for _ in 0..1000 {
            now += throttle.charge_at(4096, 1.0, now);
        }
        let expected = 1000.0 * 4096.0 / RATE_LOW;
        let taken = (now - start).as_secs_f64();
        assert!((taken / expected - 1.0).abs() < 0.01, "{taken} {expected}");
    }

    #[test]
    fn no_write_waits_longer_than_the_longest_wait() {
        let throttle = Throttle::default();
        let now = Instant::now();
        for _ in 0..100 {
            assert!(throttle.charge_at(100 << 20, 1.0, now) <= LONGEST_WAIT);
        }
    }

    #[test]
    fn flushes_behind_slow_writes_down_as_the_memtable_fills() {
        let wait = |filled| {
            let throttle = Throttle::default();
            throttle.set_unflushed(true, 64 << 20);
            throttle.charge(100 << 10, || filled)
        };
        assert!(Duration::ZERO < wait(0.0) && wait(0.0) < wait(0.5) && wait(0.5) < wait(1.0));
        let throttle = Throttle::default();
        throttle.set_unflushed(true, 1 << 20);
        assert_eq!(throttle.charge(1 << 20, || 1.0), Duration::ZERO);
        throttle.set_unflushed(false, 64 << 20);
        assert_eq!(throttle.charge(1 << 20, || 1.0), Duration::ZERO);
    }
}
