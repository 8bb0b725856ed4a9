//! [`Deadlines`]: what a table states about the deadlines of its entries.

use std::time::SystemTime;

use crate::format::coding::{Decoder, put_varint};
use crate::format::deadline::{Deadline, NEVER, split_expiring, time_of};
use crate::format::key::ValueKind;
use crate::format::pointer::separate_len;
use crate::format::{Decoded, Malformed};

/// Deadlines kept to estimate [`Deadlines::quarter`], at most: 24 KiB.
const SAMPLES: usize = 1024;
/// A table is due for compaction when one byte in this many has expired.
pub const DUE_SHARE: u64 = 4;

/// Summary of the deadlines of a table's entries. All 0 if none has one.
///
/// ```text
/// deadlines = entries with a deadline, first, quarter, last: varint
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadlines {
    /// Entries with a deadline.
    pub count: u64,
    /// The least deadline.
    pub first: Deadline,
    /// When entries with about a quarter of all bytes have expired, those of their values in files
    /// of their own among them; [`NEVER`] if those with a deadline have fewer.
    pub quarter: Deadline,
    /// The greatest deadline.
    pub last: Deadline,
}

impl Deadlines {
    /// Whether an entry has expired at `now`.
    pub fn any_expired(&self, now: Deadline) -> bool {
        self.count > 0 && self.first <= now
    }

    /// Whether so much has expired at `now` that the table should be compacted.
    pub fn are_due(&self, now: Deadline) -> bool {
        self.any_expired(now) && self.quarter <= now
    }

    /// When a table of `entries` entries, which is not due at `now`, becomes due, or expires as a
    /// whole after that.
    pub fn next_due(&self, entries: u64, now: Deadline) -> Option<Deadline> {
        let whole = (self.count == entries).then_some(self.last);
        [Some(self.quarter), whole].into_iter().flatten().filter(|at| self.count > 0 && *at > now && *at < NEVER).min()
    }

    /// Whether all of the table's `entries` have expired at `now`.
    pub fn all_expired(&self, entries: u64, now: Deadline) -> bool {
        self.any_expired(now) && self.count == entries && self.last <= now
    }

    /// About how many entries have expired at `now`.
    pub fn expired(&self, entries: u64, now: Deadline) -> u64 {
        if !self.any_expired(now) {
            0
        } else if self.last <= now {
            self.count
        } else if self.quarter <= now {
            self.count.min(entries / DUE_SHARE)
        } else {
            1
        }
    }

    /// The times at which [`expired`](Deadlines::expired) may change.
    pub fn steps(&self) -> impl Iterator<Item = Deadline> {
        let steps = [self.first, self.quarter, self.last].into_iter();
        steps.filter(|at| self.count > 0 && *at < NEVER)
    }

    /// The least and the greatest deadline, if there is one.
    pub fn range(&self) -> Option<(SystemTime, SystemTime)> {
        (self.count > 0).then(|| (time_of(self.first), time_of(self.last)))
    }

    pub fn put(&self, out: &mut Vec<u8>) {
        [self.count, self.first, self.quarter, self.last].iter().for_each(|number| put_varint(out, *number));
    }

    pub fn decode(content: &mut Decoder<'_>) -> Decoded<Deadlines> {
        let deadlines = Deadlines {
            count: content.varint()?,
            first: content.varint()?,
            quarter: content.varint()?,
            last: content.varint()?,
        };
        let ordered = deadlines.first <= deadlines.quarter && deadlines.first <= deadlines.last;
        let in_range = deadlines.quarter <= deadlines.last || deadlines.quarter == NEVER;
        if deadlines.count == 0 || !ordered || !in_range {
            return Err(Malformed("the deadlines of a table contradict each other"));
        }
        Ok(deadlines)
    }
}

/// Collects the [`Deadlines`] of a table from its entries, in order.
#[derive(Default)]
pub(super) struct DeadlineCounter {
    count: u64,
    first: Deadline,
    last: Deadline,
    /// Bytes of these entries.
    bytes: u64,
    /// The deadlines whose positions have ranks with `shift` trailing zeros or more, with these
    /// ranks and the bytes of their entries.
    samples: Vec<(u64, Deadline, u64)>,
    shift: u32,
}

/// A random number that depends on the position alone. Deadlines may repeat with a period, as when
/// keys of several kinds alternate; every n-th of them would then be of one kind.
fn rank(position: u64) -> u64 {
    // The mixer of SplitMix64.
    let mixed = position.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

impl DeadlineCounter {
    /// Counts an entry of the table.
    #[inline]
    pub(super) fn count_entry(&mut self, key: &[u8], kind: ValueKind, stored: &[u8]) {
        if matches!(kind, ValueKind::ExpiringPut | ValueKind::SeparateExpiringPut) {
            let separate_len = separate_len(kind, stored).unwrap_or(0);
            self.add(split_expiring(stored).0, (key.len() + stored.len()) as u64 + separate_len);
        }
    }

    #[inline(never)]
    fn add(&mut self, deadline: Deadline, bytes: u64) {
        if self.count == 0 {
            (self.first, self.last) = (deadline, deadline);
        }
        (self.first, self.last) = (self.first.min(deadline), self.last.max(deadline));
        let rank = rank(self.count);
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if rank.trailing_zeros() >= self.shift {
            self.samples.push((rank, deadline, bytes));
            while self.samples.len() > SAMPLES {
                self.shift += 1;
                self.samples.retain(|(rank, ..)| rank.trailing_zeros() >= self.shift);
            }
        }
    }

    /// The deadlines of a table whose entries have `bytes` bytes.
    pub(super) fn finish(mut self, bytes: u64) -> Deadlines {
        if self.count == 0 {
            return Deadlines::default();
        }
        let due = bytes.div_ceil(DUE_SHARE);
        let mut quarter = NEVER;
        if due <= self.bytes {
            self.samples.sort_unstable_by_key(|(_, deadline, _)| *deadline);
            // The first deadline by which the samples have the share `due / bytes` of all samples.
            let all: u128 = self.samples.iter().map(|(.., bytes)| u128::from(*bytes)).sum();
            let mut left = u128::from(due) * all / u128::from(self.bytes.max(1));
            let reaches = |&&(_, _, bytes): &&(u64, Deadline, u64)| {
                let is_it = left <= u128::from(bytes);
                left = left.saturating_sub(bytes.into());
                is_it
            };
            quarter = self.samples.iter().find(reaches).map_or(NEVER, |(_, deadline, _)| *deadline);
        }
        Deadlines { count: self.count, first: self.first, quarter, last: self.last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entries: u64, deadlines: impl IntoIterator<Item = Deadline>) -> Deadlines {
        let mut counter = DeadlineCounter::default();
        deadlines.into_iter().for_each(|deadline| counter.add(deadline, 100));
        counter.finish(100 * entries)
    }

    #[test]
    fn a_quarter_of_all_entries_makes_a_table_due() {
        assert_eq!(of(8, []), Deadlines::default());
        let eighth = of(8, [30]);
        assert_eq!(eighth, Deadlines { count: 1, first: 30, quarter: NEVER, last: 30 });
        assert!(!eighth.are_due(31) && eighth.any_expired(30) && !eighth.any_expired(29));
        let quarter = of(8, [30, 10]);
        assert_eq!(quarter, Deadlines { count: 2, first: 10, quarter: 30, last: 30 });
        assert!(quarter.are_due(30) && !quarter.are_due(29) && !quarter.all_expired(8, 30));
        assert_eq!([9, 10, 30].map(|now| quarter.expired(8, now)), [0, 1, 2]);
        let all = of(4, [4, 3, 2, 1]);
        assert_eq!(all, Deadlines { count: 4, first: 1, quarter: 1, last: 4 });
        assert!(all.all_expired(4, 4) && !all.all_expired(4, 3));
        assert_eq!([0, 1, 3, 4].map(|now| all.next_due(4, now)), [Some(1), Some(4), Some(4), None]);
        assert_eq!([9, 30].map(|now| quarter.next_due(8, now)), [Some(30), None]);
        assert_eq!((eighth.next_due(8, 0), Deadlines::default().next_due(0, 0)), (None, None));
    }

    #[test]
    fn what_has_expired_changes_at_steps_only() {
        let tables = [of(8, []), of(8, [30]), of(8, [30, 10]), of(4, [4, 3, 2, 1]), of(100, 40..70)];
        for (deadlines, entries) in tables.iter().zip([8, 8, 8, 4, 100]) {
            let changes = (1..100).filter(|at| deadlines.expired(entries, at - 1) != deadlines.expired(entries, *at));
            assert!(changes.into_iter().all(|at| deadlines.steps().any(|step| step == at)), "{deadlines:?}");
            assert_eq!(deadlines.steps().next().is_some(), deadlines.count > 0);
        }
    }

    #[test]
    fn long_entries_make_a_table_due_before_short_ones_do() {
        let of = |len: fn(u64) -> u64| {
            let mut counter = DeadlineCounter::default();
            // One entry in ten expires early.
            let deadline = |i: u64| if i.is_multiple_of(10) { 1000 + i } else { 1_000_000 + i };
            (0..10_000).for_each(|i| counter.add(deadline(i), len(i)));
            counter.finish((0..10_000).map(len).sum()).quarter
        };
        let long_first = of(|i| if i.is_multiple_of(10) { 16_000 } else { 20 });
        assert!((2000..6000).contains(&long_first), "{long_first}");
        let (short_first, even) = (of(|i| if i.is_multiple_of(10) { 20 } else { 16_000 }), of(|_| 100));
        assert!(short_first > 1_000_000 && even > 1_000_000, "{short_first} {even}");
    }

    #[test]
    fn the_quarter_of_many_deadlines_is_estimated() {
        for entries in [1025u64, 10_000, 100_003] {
            // Mixed up, each number once: the multiplier has no factor in common with `entries`.
            let deadlines = of(entries, (0..entries).map(|i| i * 7_919 % entries));
            let (quarter, expected) = (deadlines.quarter as f64, entries as f64 / 4.0);
            // Three standard deviations of a quartile of 512 random samples.
            assert!((quarter / expected - 1.0).abs() < 0.23, "{quarter} of {entries}");
            assert_eq!((deadlines.first, deadlines.last, deadlines.count), (0, entries - 1, entries));
        }
    }

    #[test]
    fn periodic_deadlines_are_sampled_evenly() {
        for period in [2u64, 3, 5, 8, 16, 64] {
            // Every `period`-th entry expires early, and the others late.
            let entries = 50_000;
            let of_position = |i: u64| if i.is_multiple_of(period) { i } else { 1_000_000 + i };
            let deadlines = of(entries, (0..entries).map(of_position));
            // About a quarter of all has expired then.
            let expired = (0..entries).filter(|i| of_position(*i) <= deadlines.quarter).count() as f64;
            assert!((expired / entries as f64 - 0.25).abs() < 0.06, "{period}: {expired}");
        }
    }

    #[test]
    fn deadlines_that_contradict_each_other_are_malformed() {
        let decode = |numbers: [u64; 4]| {
            let mut bytes = Vec::new();
            numbers.iter().for_each(|number| put_varint(&mut bytes, *number));
            Deadlines::decode(&mut Decoder::new(&bytes))
        };
        let sound = of(4, [4, 3, 2, NEVER]);
        let mut bytes = Vec::new();
        sound.put(&mut bytes);
        assert_eq!(Deadlines::decode(&mut Decoder::new(&bytes)), Ok(sound));
        assert!(decode([1, 5, NEVER, 5]).is_ok());
        for broken in [[0, 1, 1, 1], [1, 5, 4, 5], [1, 5, 5, 4], [2, 5, 7, 6]] {
            assert!(decode(broken).is_err(), "{broken:?}");
        }
    }
}
