//! [`ticks`]: a clock cheap enough to read before and after every operation.
//!
//! On x86-64 it is the processor's time stamp counter, which runs at a constant rate on processors
//! of the last fifteen years and costs half as much as the system's clock. Elsewhere it is the
//! system's clock.

use std::time::{Duration, Instant};

/// Ticks since a fixed moment.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ticks() -> u64 {
    // SAFETY: the instruction is part of x86-64 and touches no memory.
    #[allow(unused_unsafe, reason = "newer compilers know that it is safe")]
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
}

/// Ticks since a fixed moment.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ticks() -> u64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The number of ticks per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickRate {
    per_second: f64,
}

impl TickRate {
    /// Measures the rate against the system's clock, for 20 milliseconds.
    pub(crate) fn measure() -> TickRate {
        const SPAN: Duration = Duration::from_millis(20);
        let (start, first) = (Instant::now(), ticks());
        while start.elapsed() < SPAN {
            std::hint::spin_loop();
        }
        TickRate { per_second: (ticks() - first) as f64 / start.elapsed().as_secs_f64() }
    }

    pub(crate) fn seconds(self, ticks: u64) -> f64 {
        ticks as f64 / self.per_second
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float cast saturates")]
    pub(crate) fn ticks(self, seconds: f64) -> u64 {
        (seconds * self.per_second) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_go_on_and_are_converted_both_ways() {
        let rate = TickRate::measure();
        let first = ticks();
        assert!(ticks() >= first);
        assert!((rate.seconds(rate.ticks(1.5)) - 1.5).abs() < 1e-3);
    }
}
