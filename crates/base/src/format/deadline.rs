//! Deadlines: when the value of a put expires.
//!
//! ```text
//! stored value = deadline: u64, value
//! ```
//!
//! An entry of kind 5 has this in place of a value. A deadline counts milliseconds since 1970-01-01
//! 00:00 UTC, leap seconds not counted. The entry is a put before the deadline and a delete from
//! then on, under its own sequence number.

use std::time::{Duration, SystemTime};

use super::coding::{get_u64, put_u64};
use super::{Decoded, Malformed};

/// Milliseconds since the beginning of 1970.
pub type Deadline = u64;

/// Bytes before the value. Part of the format.
pub const DEADLINE_LEN: usize = 8;
/// The deadline of what does not expire.
pub const NEVER: Deadline = u64::MAX;

/// Appends a value as an entry of kind 5 stores it.
pub fn put_expiring(out: &mut Vec<u8>, deadline: Deadline, value: &[u8]) {
    put_u64(out, deadline);
    out.extend_from_slice(value);
}

/// The deadline and the value of an entry of kind 5.
#[inline]
pub fn decode_expiring(stored: &[u8]) -> Decoded<(Deadline, &[u8])> {
    let (deadline, value) = stored.split_first_chunk().ok_or(Malformed("a put with a deadline has no deadline"))?;
    Ok((get_u64(deadline), value))
}

/// The deadline and the value of an entry of kind 5 that has been verified.
#[inline]
pub fn split_expiring(stored: &[u8]) -> (Deadline, &[u8]) {
    decode_expiring(stored).unwrap_or((0, &[]))
}

/// The deadline at `time`, rounded down: what expires at `time` is never returned later.
pub fn deadline_at(time: SystemTime) -> Deadline {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(NEVER)
}

/// The last deadline that every system's clock can show: the end of the year 9999.
const LAST_SHOWN: Deadline = 253_402_300_799_999;

/// The time of a deadline. One that the system's clock cannot show is at the end of the year 9999.
pub fn time_of(deadline: Deadline) -> SystemTime {
    let at = |deadline| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(deadline));
    at(deadline).or_else(|| at(LAST_SHOWN)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The deadline `ttl` after `now`, rounded up: a time to live that is not 0 ends later than `now`.
pub fn deadline_after(now: Deadline, ttl: Duration) -> Deadline {
    now.saturating_add(u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(NEVER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_and_values_come_back_and_short_ones_are_refused() {
        for (deadline, value) in [(0, &b""[..]), (1 << 40, b"value"), (NEVER, b"\0")] {
            let mut stored = Vec::new();
            put_expiring(&mut stored, deadline, value);
            assert_eq!(decode_expiring(&stored), Ok((deadline, value)));
        }
        assert!(decode_expiring(&[0; DEADLINE_LEN - 1]).is_err());
    }

    #[test]
    fn times_are_rounded_down_and_end_at_the_bounds() {
        let at = |duration| SystemTime::UNIX_EPOCH + duration;
        assert_eq!(deadline_at(at(Duration::from_micros(1_999))), 1);
        assert_eq!(deadline_at(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), 0);
        assert_eq!(time_of(1_500), at(Duration::from_millis(1_500)));
        assert!(time_of(NEVER) >= at(Duration::from_millis(LAST_SHOWN)));
        assert_eq!(deadline_after(5, Duration::from_micros(2_900)), 8);
        assert_eq!(deadline_after(5, Duration::from_millis(2)), 7);
        assert_eq!(deadline_after(0, Duration::from_nanos(1)), 1);
        assert_eq!(deadline_after(5, Duration::MAX), NEVER);
        assert_eq!(deadline_after(5, Duration::ZERO), 5);
    }
}
