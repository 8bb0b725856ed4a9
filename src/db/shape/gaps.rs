//! [`Gaps`]: ranges where scans of a keyspace have found nothing to see.
//!
//! Workload: a queue, pushed at its back and popped at its front. Each pop scans from the front
//! over every key popped before, until a compaction drops their tombstones. With this memo a pop
//! passes fewer than 64 tombstones after 50,000 pops, and without it 50,000 (`tests/it/queue.rs`).
//! To remove it, delete this module, `Cursor::jump` in `db/cursor`, and `MergeCursor::jump`.
//!
//! A [`Claim`] states a fact about a range of keys: a snapshot `from` or later sees no entry there
//! numbered `to` or less, if its time is `expired` or later. Later writes have greater numbers, and
//! flushes and compactions keep the numbers of entries. Therefore nothing invalidates a claim until
//! the store is closed, but for what a compaction drops without a tombstone: after one with a
//! compaction filter, and after one that drops what has expired, the keyspace gets a new memo, and
//! iterators of views from before it keep theirs. A scan at snapshot `from` or later jumps over the
//! range and looks only at entries numbered above `to`, in memtables and tables alike.
//!
//! `from` is not less than the number of the last tombstone that the scan has passed. Nor is it
//! less than the largest number of any table in the scan's view or an earlier one. A compaction may
//! have dropped a put together with the tombstone that hides it. The scan passes neither, but an
//! iterator that began between the two still holds the put, and must see it.
//!
//! Example: keys 1 to 9 are put with numbers 1 to 9, then 1 to 5 deleted with numbers 10 to 14. A
//! scan at snapshot 20, with all of them in memory, notes for keys `1..6` that `from` is 14, the
//! last tombstone it passed, and `to` is 20. At 21, key 3 is put again. A scan at 25 jumps over
//! `1..6`, looks only at entries above 20, and finds key 3. A scan at 17 jumps over all of `1..6`.
//! One at 12 may not jump: it sees 4 and 5.

use std::sync::Arc;

use super::live::NumberAndTime;
use crate::format::deadline::Deadline;
use crate::format::key::SeqNo;
use crate::memory::budget::{MemoryBudget, MemoryCharge, MemoryUse};
use crate::report::stats::ReadCounters;
use crate::sync::Mutex;

/// Memory limit of a keyspace's memo, and the overhead of a piece besides its key.
const MAX_LEN: usize = 256 << 10;
const PIECE_LEN: usize = 64;
/// Limit on borders between claims. A queue adds one every 16 pops; the oldest pieces are joined.
const MAX_BORDERS: usize = 128;
const MAX_KEY_LEN: usize = 1 << 10;

/// The memo and the counters of scans of one keyspace.
#[derive(Default)]
pub(crate) struct Gaps {
    pieces: Mutex<Pieces>,
    /// Counters of scans in memtables; tables have their own.
    pub(crate) counters: Arc<ReadCounters>,
}

impl Gaps {
    /// A memo that notes what there is room for in `budget`.
    pub(crate) fn within(budget: &Arc<MemoryBudget>) -> Gaps {
        Gaps::of(Some(MemoryCharge::new(budget, MemoryUse::Ranges, 0)), Arc::default())
    }

    /// A memo without claims, with the same counters.
    pub(crate) fn emptied(&self) -> Gaps {
        let charge = self.pieces.lock().charge.as_ref().map(MemoryCharge::another);
        Gaps::of(charge, Arc::clone(&self.counters))
    }

    fn of(charge: Option<MemoryCharge>, counters: Arc<ReadCounters>) -> Gaps {
        Gaps { pieces: Mutex::new(Pieces { charge, ..Pieces::default() }), counters }
    }
}

/// A snapshot `from` or later, of the time `expired` or later, sees no entry of a range that is
/// numbered `to` or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) from: SeqNo,
    pub(crate) to: SeqNo,
    /// The last deadline of the values that were passed and had expired; 0 if there were none.
    pub(crate) expired: Deadline,
}

impl Claim {
    /// The claim that holds in both of two ranges.
    fn and(self, other: Claim) -> Claim {
        Claim { from: self.from.max(other.from), to: self.to.min(other.to), expired: self.expired.max(other.expired) }
    }
}

/// A range in which a scan sees no entry numbered `claim.to` or less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Where the scan continues: the exclusive upper end for a forward scan, the inclusive lower
    /// end for a backward one. `None` if the range reaches the end of the key space.
    pub(crate) end: Option<Arc<[u8]>>,
    pub(crate) claim: Claim,
}

/// The key space, cut into pieces.
#[derive(Default)]
struct Pieces {
    list: Vec<GapPiece>,
    /// For the list. The default takes what it needs.
    charge: Option<MemoryCharge>,
    /// State of the random number generator.
    random_state: u64,
}

/// All keys from `start` up to the next piece's.
#[derive(Clone, Debug)]
struct GapPiece {
    start: Arc<[u8]>,
    claim: Option<Claim>,
}

impl Gaps {
    /// Finds the gap that a scan at a number and a time has reached: forward, the one that holds
    /// `bound`; backward, the one that holds the keys right before `bound`.
    pub(crate) fn find(&self, bound: &[u8], point: NumberAndTime, forward: bool) -> Option<Gap> {
        self.pieces.lock().find(bound, point, forward)
    }

    /// Notes a claim for the keys from `start` up to `end`, replacing earlier ones. An earlier
    /// claim with a greater `to` stays instead: a scan of an old snapshot does not slow later
    /// scans.
    pub(crate) fn claim(&self, start: &[u8], end: Option<&[u8]>, claim: Claim) {
        if is_worth_noting(start, end) {
            self.pieces.lock().claim(start, end, claim);
        }
    }

    /// Extends claims after a scan of the keys from `start` up to `end`. A snapshot `later.from` or
    /// later sees no entry there numbered above `seen` and up to `later.to`. No entries numbered
    /// above `later.from` are there at all.
    pub(crate) fn extend(&self, start: &[u8], end: Option<&[u8]>, seen: SeqNo, later: Claim) {
        if is_worth_noting(start, end) {
            self.pieces.lock().extend(start, end, seen, later);
        }
    }
}

/// Whether the keys from `start` up to `end` are a range worth its memory.
fn is_worth_noting(start: &[u8], end: Option<&[u8]>) -> bool {
    end.is_none_or(|end| start < end) && start.len().max(end.map_or(0, <[u8]>::len)) <= MAX_KEY_LEN
}

impl Pieces {
    fn find(&self, bound: &[u8], (snapshot, at): NumberAndTime, forward: bool) -> Option<Gap> {
        let known = |piece: &GapPiece| piece.claim.filter(|claim| claim.from <= snapshot && claim.expired <= at);
        let is_before = |piece: &GapPiece| *piece.start < *bound || forward && *piece.start == *bound;
        let here = self.list.partition_point(is_before).checked_sub(1)?;
        let mut claim = known(&self.list[here])?;
        if forward {
            let mut end = here + 1;
            while let Some(next) = self.list.get(end).and_then(known) {
                claim = claim.and(next);
                end += 1;
            }
            Some(Gap { end: self.list.get(end).map(|piece| Arc::clone(&piece.start)), claim })
        } else {
            let mut start = here;
            while let Some(next) = start.checked_sub(1).and_then(|before| known(&self.list[before])) {
                claim = claim.and(next);
                start -= 1;
            }
            let end = Arc::clone(&self.list[start].start);
            Some(Gap { end: (!end.is_empty()).then_some(end), claim })
        }
    }

    fn claim(&mut self, start: &[u8], end: Option<&[u8]>, claim: Claim) {
        let pieces = self.cut_out(start, end);
        let is_later = |piece: &GapPiece| piece.claim.is_some_and(|known| known.to > claim.to);
        if !self.list[pieces.clone()].iter().any(is_later) {
            self.list[pieces.start].claim = Some(claim);
            self.list.drain(pieces.start + 1..pieces.end);
        }
        self.shrink();
    }

    fn extend(&mut self, start: &[u8], end: Option<&[u8]>, seen: SeqNo, later: Claim) {
        let pieces = self.cut_out(start, end);
        for claim in self.list[pieces].iter_mut().filter_map(|piece| piece.claim.as_mut()) {
            if claim.to >= seen && claim.to < later.to {
                // Entries dropped since are invisible only to snapshots `later.from` or later.
                if claim.to < later.from {
                    claim.from = claim.from.max(later.from);
                }
                claim.to = later.to;
            }
        }
        self.shrink();
    }

    /// Makes pieces begin at `start` and at `end`; returns those between the two.
    fn cut_out(&mut self, start: &[u8], end: Option<&[u8]>) -> std::ops::Range<usize> {
        let start = self.cut(start);
        start..end.map_or(self.list.len(), |end| self.cut(end))
    }

    /// Makes a piece begin at `key`; returns its index.
    fn cut(&mut self, key: &[u8]) -> usize {
        let at = self.list.partition_point(|piece| *piece.start <= *key);
        let before = at.checked_sub(1).map(|before| &self.list[before]);
        if before.is_some_and(|before| *before.start == *key) {
            return at - 1;
        }
        let claim = before.and_then(|before| before.claim);
        self.list.insert(at, GapPiece { start: key.into(), claim });
        at
    }

    /// Joins or forgets pieces until the limits hold.
    fn shrink(&mut self) {
        self.list.dedup_by(|piece, before| piece.claim == before.claim);
        loop {
            let claims = |at: usize| Some((at, self.list[at - 1].claim?, self.list[at].claim?));
            let borders = || (1..self.list.len()).filter_map(claims);
            if borders().count() > MAX_BORDERS {
                // Oldest first: a scan that began a moment ago can use all but the newest pieces of
                // a busy queue.
                let together = borders().filter(|(_, before, here)| before.to == here.to);
                match together.map(|(at, before, here)| (at, before.and(here))).min_by_key(|(_, both)| both.from) {
                    Some((at, both)) => {
                        self.list[at - 1].claim = Some(both);
                        self.list.remove(at);
                    }
                    None => self.forget_least_confirmed(),
                }
            } else if !self.has_room() {
                self.forget_one();
            } else {
                return;
            }
        }
    }

    /// Whether the list has room as it is.
    fn has_room(&mut self) -> bool {
        if self.list.iter().all(|piece| piece.claim.is_none()) {
            self.list = Vec::new();
        }
        let bytes = self.list.iter().map(|piece| piece.start.len() + PIECE_LEN).sum();
        bytes <= MAX_LEN && self.charge.as_mut().is_none_or(|charge| charge.try_resize(bytes))
    }

    fn forget_least_confirmed(&mut self) {
        let claimed = self.list.iter_mut().filter_map(|piece| Some((piece.claim?.to, piece)));
        if let Some((_, piece)) = claimed.min_by_key(|(to, _)| *to) {
            piece.claim = None;
        }
        self.list.dedup_by(|piece, before| piece.claim == before.claim);
    }

    /// Forgets a random piece. If the least recently confirmed went, more queues than fit, scanned
    /// in turn, would each be forgotten before its turn comes.
    fn forget_one(&mut self) {
        // A linear congruential generator: Knuth, MMIX.
        self.random_state =
            self.random_state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let from = usize::try_from(self.random_state >> 33).unwrap_or(0) % self.list.len();
        let (before, behind) = self.list.split_at_mut(from);
        if let Some(piece) = behind.iter_mut().chain(before).find(|piece| piece.claim.is_some()) {
            piece.claim = None;
        }
        self.list.dedup_by(|piece, before| piece.claim == before.claim);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(i: u64) -> [u8; 8] {
        i.to_be_bytes()
    }

    #[test]
    fn a_queue_is_one_gap_after_any_number_of_claims_and_wherever_its_front_is() {
        let gaps = Gaps::default();
        for i in 1..2000 {
            gaps.claim(&key(i), Some(&key(i + 1)), Claim { from: i, to: i, expired: 0 });
            // From time to time the tombstones at the front are dropped.
            let front = 1 + i / 300 * 50;
            gaps.extend(&key(front), Some(&key(i + 1)), i - 1, Claim { from: 0, to: i, expired: 0 });
            let gap = gaps.find(&key(front), (i, 0), true).expect("it was claimed");
            assert_eq!((gap.end.as_deref(), gap.claim), (Some(&key(i + 1)[..]), Claim { from: i, to: i, expired: 0 }));
            let back = gaps.find(&key(i + 1), (i, 0), false).expect("it was claimed");
            assert!(back.end.is_some_and(|end| *end <= key(front)[..]));
            // A scan that began before the last pops.
            let stale = gaps.find(&key(front), (i - 10.min(i), 0), true).and_then(|gap| gap.end);
            assert!(i < 12 || stale.is_some_and(|end| *end == key(i - 9)[..]), "{i}");
            assert!(gaps.pieces.lock().list.len() <= MAX_BORDERS + 3);
        }
    }

    #[test]
    fn memos_of_many_keyspaces_share_the_memory_that_there_is() {
        let budget = MemoryBudget::new(1 << 20);
        let memos: Vec<Gaps> = (0..50).map(|_| Gaps::within(&budget)).collect();
        let claim =
            |gaps: &Gaps, i: u64| gaps.claim(&key(2 * i), Some(&key(2 * i + 1)), Claim { from: i, to: i, expired: 0 });
        for i in 1..if cfg!(miri) { 20 } else { 300 } {
            memos.iter().for_each(|gaps| claim(gaps, i));
            assert!(budget.used(MemoryUse::Ranges) <= (1 << 20) / 2, "{} bytes", budget.used(MemoryUse::Ranges));
        }
        let pieces: usize = memos.iter().map(|gaps| gaps.pieces.lock().list.len()).sum();
        let used = budget.used(MemoryUse::Ranges);
        assert!(cfg!(miri) || used > 200 << 10 && used >= pieces * PIECE_LEN, "{used} bytes of {pieces} pieces");
        let emptied: Vec<Gaps> = memos.iter().map(Gaps::emptied).collect();
        drop(memos);
        assert_eq!(budget.used(MemoryUse::Ranges), 0);
        claim(&emptied[0], 7);
        assert!(budget.used(MemoryUse::Ranges) > 0 && emptied[0].find(&key(14), (7, 0), true).is_some());
        // Without any room, nothing is noted.
        let _all = MemoryCharge::new(&budget, MemoryUse::Filters, 1 << 20);
        claim(&emptied[1], 7);
        assert_eq!(emptied[1].find(&key(14), (7, 0), true), None);
    }

    /// Puts (true) and deletes of keys, numbered from 1.
    type History = Vec<(u64, bool)>;

    /// Number of the newest entry of `key` that `snapshot` sees, and whether it is a put.
    fn newest(history: &History, key: u64, snapshot: SeqNo) -> (SeqNo, bool) {
        let seen = history.iter().zip(1..=snapshot).filter(|((of, _), _)| *of == key);
        seen.last().map_or((0, false), |((_, put), number)| (number, *put))
    }

    /// Notes a claim for a range if `snapshot` sees nothing there.
    fn scan(gaps: &Gaps, history: &History, keys: std::ops::Range<u64>, snapshot: SeqNo) -> bool {
        let found: Vec<_> = keys.clone().map(|key| newest(history, key, snapshot)).collect();
        let from = found.iter().map(|(number, _)| *number).max().unwrap_or_default();
        let is_gap = found.iter().all(|(_, put)| !put);
        if is_gap {
            gaps.claim(&key(keys.start), Some(&key(keys.end)), Claim { from, to: snapshot, expired: 0 });
        }
        is_gap
    }

    #[test]
    fn claims_stay_true_whatever_is_written_and_forgotten() {
        const KEYS: u64 = 600;
        let mut rng = fastrand::Rng::with_seed(1);
        let (gaps, mut history, mut claimed) = (Gaps::default(), History::new(), 0);
        for _ in 0..if cfg!(miri) { 30 } else { 1500 } {
            let (first, len) = (rng.u64(0..KEYS), rng.u64(1..12));
            match rng.u8(0..4) {
                0 => history.push((first, true)),
                1 => history.extend((first..KEYS.min(first + len)).map(|key| (key, false))),
                _ => {}
            }
            let now = history.len() as SeqNo;
            let snapshot = rng.u64(0..=now);
            let keys = first..first + len;
            claimed += u32::from(scan(&gaps, &history, keys.clone(), snapshot));
            let seen = rng.u64(0..=now);
            let to = (seen + rng.u64(0..20)).min(now);
            let is_quiet = |number: SeqNo| !keys.contains(&history[usize::try_from(number).unwrap() - 1].0);
            if (seen + 1..=to).all(is_quiet) {
                gaps.extend(
                    &key(keys.start),
                    Some(&key(keys.end)),
                    seen,
                    Claim { from: rng.u64(0..=to), to, expired: 0 },
                );
            }
            // No snapshot `from` or later sees an entry of the piece that is numbered `to` or less.
            let pieces = gaps.pieces.lock();
            let at = rng.usize(0..pieces.list.len().max(1));
            let Some((GapPiece { start, claim: Some(claim) }, next)) = pieces.list.get(at).zip(pieces.list.get(at + 1))
            else {
                continue;
            };
            let number = |key: &[u8]| u64::from_be_bytes(key.try_into().unwrap());
            for key in number(start)..number(&next.start) {
                for snapshot in [claim.from, rng.u64(claim.from..=now), now] {
                    let (number, put) = newest(&history, key, snapshot);
                    assert!(!put || number > claim.to, "{claim:?} is wrong of key {key} at {snapshot}");
                }
            }
            let gap = pieces.find(start, (claim.from, 0), true).expect("there is one");
            assert!(gap.end >= Some(Arc::clone(&next.start)) && gap.claim.to <= claim.to);
        }
        assert!(claimed > if cfg!(miri) { 1 } else { 300 }, "{claimed}");
    }

    #[test]
    fn a_scan_of_an_old_snapshot_takes_no_claim_from_later_scans() {
        let (gaps, later) = (Gaps::default(), Claim { from: 90, to: 100, expired: 0 });
        gaps.claim(b"c", Some(b"f"), later);
        gaps.claim(b"b", Some(b"d"), Claim { from: 10, to: 20, expired: 0 });
        assert_eq!(gaps.find(b"c", (100, 0), true), Some(Gap { end: Some(b"f"[..].into()), claim: later }));
        assert_eq!(gaps.find(b"b", (100, 0), true), None);
        gaps.claim(b"b", Some(b"d"), Claim { from: 90, to: 101, expired: 0 });
        assert_eq!(gaps.find(b"b", (100, 0), true).and_then(|gap| gap.end).as_deref(), Some(&b"f"[..]));
    }

    #[test]
    fn if_there_are_more_gaps_than_memory_holds_some_stay() {
        const GAPS: u64 = 3000;
        let (gaps, mut known) = (Gaps::default(), 0);
        for turn in 1..10 {
            for i in (0..GAPS * 2).step_by(2) {
                let claim = Claim { from: turn * GAPS + i, to: turn * GAPS + i, expired: 0 };
                known += u64::from(gaps.find(&key(i), (claim.from, 0), true).is_some());
                gaps.claim(&key(i), Some(&key(i + 1)), claim);
                let pieces = gaps.pieces.lock();
                let len: usize = pieces.list.iter().map(|piece| piece.start.len() + PIECE_LEN).sum();
                assert!(len <= MAX_LEN);
            }
        }
        assert!(known > GAPS, "{known}");
    }

    #[test]
    fn ranges_without_keys_and_long_keys_are_not_noted() {
        let gaps = Gaps::default();
        let claim = Claim { from: 1, to: 1, expired: 0 };
        gaps.claim(b"b", Some(b"b"), claim);
        gaps.claim(b"b", Some(b"a"), claim);
        gaps.claim(&[1; MAX_KEY_LEN + 1], None, claim);
        gaps.claim(b"", Some(&[1; MAX_KEY_LEN + 1]), claim);
        assert!(gaps.pieces.lock().list.is_empty());
        gaps.claim(b"", None, claim);
        assert_eq!(gaps.find(b"anything", (1, 0), true), Some(Gap { end: None, claim }));
        assert_eq!(gaps.find(b"anything", (1, 0), false), Some(Gap { end: None, claim }));
        assert_eq!(gaps.find(b"anything", (0, 0), true), None);
    }

    #[test]
    fn a_scan_of_an_earlier_time_uses_no_claim_about_what_expired_later() {
        let gaps = Gaps::default();
        gaps.claim(b"b", Some(b"d"), Claim { from: 1, to: 5, expired: 50 });
        gaps.claim(b"d", Some(b"f"), Claim { from: 2, to: 5, expired: 70 });
        let end = |at| gaps.find(b"b", (5, at), true).and_then(|gap| gap.end);
        assert_eq!(end(49), None);
        assert_eq!([50, 69].map(end), [Some(b"d"[..].into()), Some(b"d"[..].into())]);
        assert_eq!(end(70).as_deref(), Some(&b"f"[..]));
        assert_eq!(gaps.find(b"f", (5, 69), false), None);
        let both = Claim { from: 2, to: 5, expired: 70 };
        assert_eq!(gaps.find(b"f", (5, 70), false), Some(Gap { end: Some(b"b"[..].into()), claim: both }));
    }
}
