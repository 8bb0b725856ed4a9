//! [`RateLimiter`]: how many bytes a second compactions may read and write.
//!
//! A bucket of bytes fills at the rate, up to a tenth of a second's worth. Compactions take from it
//! what they have just read and written, and wait while it is empty. Flushes take what they write
//! and never wait, so the bucket may owe up to a second's worth; compactions then wait until it is
//! paid back.
//!
//! The automatic rate is what keeps compactions up with flushes: the rate of the last flushes,
//! times what compactions have cost per flushed byte so far, and a fifth more. While level 0 or the
//! debt grows, it is the maximum.
//!
//! Stores may share a bucket: each takes through a [`RateLimiter`] of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::sync::{Mutex, time};

/// Bytes per second that background work may read and write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RateLimit {
    /// No limit.
    #[default]
    None,
    /// Compactions wait so that they and flushes together read and write at most so many bytes a
    /// second. Flushes never wait. If it is less than writing the data takes in the long run,
    /// compactions fall behind and writers are slowed down.
    Fixed(u64),
    /// As many as compactions need to keep up with the flushes of the last minutes, and at most so
    /// many: a busy store compacts evenly instead of in bursts. The maximum applies while level 0
    /// or the backlog grows.
    Auto {
        /// The maximum.
        max: u64,
    },
}

/// The least rate that can be set.
const LEAST: u64 = 64 << 10;
/// The bucket holds the bytes of this time.
const BURST: Duration = Duration::from_millis(100);
/// The most that flushes may owe, as the bytes of this time: those of many stores, or a rate that
/// was lowered, must not stop compactions for long.
const DEBT: Duration = Duration::from_secs(1);
/// Reads may have to wait for one request to the device: at the limit it takes 6 ms.
const REQUESTS_PER_SECOND: u64 = 160;
/// The least request.
const LEAST_REQUEST: usize = 64 << 10;
/// The automatic rate is not less than this part of its maximum, as a divisor.
const AUTO_RANGE: f64 = 20.0;
/// What compactions cost per flushed byte at least, in a store that has hardly compacted.
const LEAST_AMPLIFICATION: f64 = 6.0;
/// How much more than needed the automatic rate is.
const HEADROOM: f64 = 1.2;
/// The weight of the last flush in the mean.
const WEIGHT: f64 = 0.25;

impl RateLimit {
    pub fn validate(self) -> Result<()> {
        match self {
            RateLimit::Fixed(rate) | RateLimit::Auto { max: rate } if rate < LEAST => {
                Err(Error::invalid("a rate limit must be at least 64 KiB a second"))
            }
            _ => Ok(()),
        }
    }
}

/// The bucket of one store, or of several.
pub struct SharedRate(Mutex<Bucket>);

/// A store's access to its bucket.
pub struct RateLimiter {
    shared: Arc<SharedRate>,
    /// Whether the compactions of the store are behind.
    is_urgent: AtomicBool,
    /// Nanoseconds that they have waited.
    waited: AtomicU64,
}

struct Bucket {
    limit: RateLimit,
    /// Bytes that may be taken; negative if owed.
    available: f64,
    /// When that was so.
    at: Instant,
    /// Number of stores whose compactions are behind: if there are any, the automatic rate is the
    /// maximum.
    urgent: usize,
    /// The mean of the last flushes: their bytes, and the seconds from one to the next.
    flushed: f64,
    interval: f64,
    last_flush: Option<Instant>,
    /// Mean over the last flushes of what compactions have cost per flushed byte.
    amplification: f64,
}

impl SharedRate {
    pub fn new(limit: RateLimit) -> SharedRate {
        SharedRate(Mutex::new(Bucket {
            limit,
            available: 0.0,
            at: time::now(),
            urgent: 0,
            flushed: 0.0,
            interval: 0.0,
            last_flush: None,
            amplification: 0.0,
        }))
    }

    pub fn set(&self, limit: RateLimit) {
        let mut bucket = self.0.lock();
        bucket.fill(time::now());
        bucket.limit = limit;
    }

    /// The rate in bytes per second, if there is a limit.
    pub fn rate(&self) -> Option<f64> {
        self.0.lock().rate(time::now())
    }
}

impl RateLimiter {
    pub fn new(shared: &Arc<SharedRate>) -> RateLimiter {
        RateLimiter { shared: Arc::clone(shared), is_urgent: AtomicBool::new(false), waited: AtomicU64::new(0) }
    }

    /// Changes the limit for all stores that share the bucket.
    pub fn set(&self, limit: RateLimit) {
        self.shared.set(limit);
    }

    /// Takes `bytes`, unless the bucket is empty: then returns how long to wait before the next
    /// attempt.
    pub fn take(&self, bytes: usize) -> Option<Duration> {
        self.shared.0.lock().take(bytes, time::now())
    }

    /// The most bytes of a file that are to be written at a time, if there is a limit.
    pub fn request_len(&self) -> Option<usize> {
        let len = self.shared.0.lock().most()? / REQUESTS_PER_SECOND;
        Some(usize::try_from(len).unwrap_or(usize::MAX).max(LEAST_REQUEST))
    }

    /// Takes `bytes`, whatever the bucket holds.
    pub fn borrow(&self, bytes: usize) {
        self.shared.0.lock().borrow(bytes);
    }

    /// Notes the end of a flush of `bytes` bytes, for the automatic rate.
    pub fn note_flush(&self, bytes: u64, amplification: f64) {
        self.shared.0.lock().note_flush(bytes, amplification, time::now());
    }

    /// Sets whether the store's compactions are behind.
    pub fn set_urgent(&self, is_urgent: bool) {
        let mut bucket = self.shared.0.lock();
        match (self.is_urgent.swap(is_urgent, Ordering::Relaxed), is_urgent) {
            (false, true) => bucket.urgent += 1,
            (true, false) => bucket.urgent -= 1,
            _ => {}
        }
    }

    pub fn note_wait(&self, waited: Duration) {
        let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.waited.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The rate in bytes per second, if there is a limit, and how long compactions of the store
    /// have waited.
    pub fn stats(&self) -> (Option<f64>, Duration) {
        (self.shared.rate(), Duration::from_nanos(self.waited.load(Ordering::Relaxed)))
    }
}

impl Drop for RateLimiter {
    fn drop(&mut self) {
        self.set_urgent(false);
    }
}

impl Bucket {
    /// The limit, or the maximum of an automatic one.
    fn most(&self) -> Option<u64> {
        match self.limit {
            RateLimit::None => None,
            RateLimit::Fixed(rate) | RateLimit::Auto { max: rate } => Some(rate),
        }
    }

    /// Bytes per second; `None` without a limit.
    fn rate(&self, now: Instant) -> Option<f64> {
        match self.limit {
            RateLimit::None => None,
            RateLimit::Fixed(rate) => Some(rate as f64),
            RateLimit::Auto { max } if self.urgent > 0 => Some(max as f64),
            RateLimit::Auto { max } => {
                let since = self.last_flush.map_or(0.0, |last| now.duration_since(last).as_secs_f64());
                let flushed = self.flushed / self.interval.max(since).max(1e-3);
                let needed = flushed * (1.0 + self.amplification.max(LEAST_AMPLIFICATION)) * HEADROOM;
                let max = max as f64;
                Some(needed.clamp(max / AUTO_RANGE, max))
            }
        }
    }

    fn fill(&mut self, now: Instant) {
        let seconds = now.duration_since(self.at).as_secs_f64();
        self.at = now;
        match self.rate(now) {
            None => self.available = 0.0,
            Some(rate) => {
                self.available = (self.available + rate * seconds).min(rate * BURST.as_secs_f64());
            }
        }
    }

    fn take(&mut self, bytes: usize, now: Instant) -> Option<Duration> {
        self.fill(now);
        let rate = self.rate(now)?;
        if self.available < 0.0 {
            return Some(Duration::from_secs_f64(-self.available / rate));
        }
        self.available -= bytes as f64;
        None
    }

    fn borrow(&mut self, bytes: usize) {
        let floor = self.rate(self.at).map_or(f64::MIN, |rate| -rate * DEBT.as_secs_f64());
        self.available = (self.available - bytes as f64).max(floor);
    }

    fn note_flush(&mut self, bytes: u64, amplification: f64, now: Instant) {
        let mean = |mean: f64, new: f64| if mean == 0.0 { new } else { mean + WEIGHT * (new - mean) };
        if let Some(last) = self.last_flush.replace(now) {
            self.flushed = mean(self.flushed, bytes as f64);
            self.interval = mean(self.interval, now.duration_since(last).as_secs_f64());
        }
        self.amplification = mean(self.amplification, amplification);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1_000_000;

    fn bucket(limit: RateLimit) -> (Bucket, Instant) {
        let SharedRate(bucket) = SharedRate::new(limit);
        let bucket = bucket.into_inner();
        let start = bucket.at;
        (bucket, start)
    }

    /// Seconds that taking `count` times `bytes` takes.
    fn seconds(bucket: &mut Bucket, start: Instant, count: u32, bytes: usize) -> f64 {
        let mut now = start;
        for _ in 0..count {
            while let Some(wait) = bucket.take(bytes, now) {
                now += wait.max(Duration::from_nanos(1));
            }
        }
        (now - start).as_secs_f64()
    }

    #[test]
    fn bytes_pass_at_the_rate_after_a_burst() {
        let (mut bucket, start) = bucket(RateLimit::Fixed(10_000_000));
        let taken = seconds(&mut bucket, start, 100, MB / 2);
        assert!((4.8..5.01).contains(&taken), "{taken}");
        // After a rest, only a tenth of a second's worth passes at once.
        let rested = start + Duration::from_secs(100);
        let taken = seconds(&mut bucket, rested, 10, MB / 2);
        assert!((0.3..0.5).contains(&taken), "{taken}");
    }

    #[test]
    fn flushes_borrow_and_compactions_pay_back() {
        let (mut bucket, start) = bucket(RateLimit::Fixed(10_000_000));
        bucket.available -= 20.0 * MB as f64;
        assert_eq!(bucket.take(1, start), Some(Duration::from_secs(2)));
        assert!(bucket.take(1, start + Duration::from_millis(1900)).is_some());
        assert_eq!(bucket.take(1, start + Duration::from_millis(2001)), None);
    }

    #[test]
    fn flushes_owe_a_second_at_most() {
        let (mut bucket, start) = bucket(RateLimit::Fixed(10_000_000));
        (0..100).for_each(|_| bucket.borrow(100 * MB));
        assert_eq!(bucket.take(1, start), Some(Duration::from_secs(1)));
    }

    #[test]
    fn without_a_limit_nothing_waits_and_nothing_is_owed() {
        let (mut bucket, start) = bucket(RateLimit::None);
        assert_eq!(seconds(&mut bucket, start, 1000, 100 * MB), 0.0);
        bucket.available -= 1e12;
        bucket.fill(start);
        bucket.limit = RateLimit::Fixed(1_000_000);
        assert_eq!(bucket.take(1, start), None);
    }

    #[test]
    fn the_automatic_rate_follows_flushes_and_is_the_maximum_when_behind() {
        let (mut bucket, start) = bucket(RateLimit::Auto { max: 200_000_000 });
        assert_eq!(bucket.rate(start), Some(10e6), "no flush yet");
        let mut now = start;
        for _ in 0..20 {
            now += Duration::from_secs(8);
            bucket.note_flush(64 << 20, 7.0, now);
        }
        // 8.4 MB/s flushed, each byte read and written seven times more.
        let rate = bucket.rate(now).unwrap();
        assert!((rate / (8.39e6 * 8.0 * 1.2) - 1.0).abs() < 0.01, "{rate}");
        assert_eq!(bucket.rate(now + Duration::from_secs(1000)), Some(10e6), "no flush for long");
        bucket.urgent = 1;
        assert_eq!(bucket.rate(now), Some(200e6));
    }

    #[test]
    fn the_maximum_applies_until_no_store_is_behind() {
        let shared = Arc::new(SharedRate::new(RateLimit::Auto { max: 200_000_000 }));
        let (one, two) = (RateLimiter::new(&shared), RateLimiter::new(&shared));
        one.set_urgent(true);
        two.set_urgent(true);
        one.set_urgent(false);
        one.set_urgent(false);
        assert_eq!(shared.rate(), Some(200e6));
        drop(two);
        assert_eq!(shared.rate(), Some(10e6), "a store that is gone is not behind");
        one.note_wait(Duration::from_millis(3));
        assert_eq!(one.stats(), (Some(10e6), Duration::from_millis(3)));
    }

    #[test]
    fn requests_are_shorter_under_a_limit() {
        for (limit, len) in [
            (RateLimit::None, None),
            (RateLimit::Fixed(40_000_000), Some(250_000)),
            (RateLimit::Auto { max: 40_000_000 }, Some(250_000)),
            (RateLimit::Fixed(LEAST), Some(LEAST_REQUEST)),
        ] {
            assert_eq!(RateLimiter::new(&Arc::new(SharedRate::new(limit))).request_len(), len, "{limit:?}");
        }
    }

    #[test]
    fn tiny_rates_are_refused() {
        assert!(RateLimit::Fixed(LEAST - 1).validate().is_err());
        assert!(RateLimit::Auto { max: 0 }.validate().is_err());
        assert!(RateLimit::Fixed(LEAST).validate().is_ok() && RateLimit::None.validate().is_ok());
    }
}
