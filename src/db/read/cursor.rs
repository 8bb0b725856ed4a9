//! [`Cursor`]: a position in a keyspace as of a snapshot.
//!
//! The cursor moves a merge of all sources: memtables, runs of level 0, levels. It stops at the
//! newest version of a key that the snapshot sees, if that is a value that has not expired and no
//! range delete covers. How it gets past the rest:
//!
//! - older versions of a key: a few steps, then a seek;
//! - keys that range deletes cover: `deleted` moves sources past the range;
//! - keys deleted one by one: it notes the gap in the memo of its keyspace (`gaps`), with the
//!   numbers and the time for which it is one, and later scans jump over it.
//!
//! `values` combines operands and fetches values from value files.

mod deleted;
mod values;

use std::sync::Arc;
use std::time::SystemTime;

use self::deleted::Deleted;
use self::values::{ValueSource, push_operand};
use crate::db::shape::gaps::{Claim, Gaps};
use crate::db::shape::view::Tree;
use crate::error::Result;
use crate::format::deadline::{Deadline, NEVER, split_expiring, time_of};
use crate::format::effect::{Effect, Put, ValuePlace};
use crate::format::key::{HEAD16_LEN, SeqNo, ValueKind, Window};
use crate::report::stats::ReadEvent;
use crate::sorted::iter::{InternalCursor, MarkedKey, MergeCursor, Stamped, is_within};
use crate::sorted::merge::MergingCursor;
use crate::sorted::ranges::Covers;
use crate::tree::version::ScanSource;

/// After this many invisible entries, a cursor seeks past the key's other versions instead of
/// stepping.
const SEEK_AFTER: u32 = 8;

/// [`SEEK_AFTER`] for a step backward, which seeks once more when it goes on.
const SEEK_BACK_AFTER: u32 = 32;

/// A cursor asks [`Gaps`] after this many invisible keys in a row. Stepping over them costs about
/// as much as asking and jumping.
const ASK_AFTER: u32 = 16;

/// A position among the entries that a snapshot sees; it moves in both directions.
///
/// Key and value are borrowed from the cursor, not copied. A cursor outlives the handle it came
/// from. Until dropped, it keeps the memtables and tables of the moment it was made;
/// [`Stats::held`](crate::Stats::held) counts those that the store has replaced since. It judges
/// deadlines by the time at which it was made.
///
/// ```
/// # fn main() -> tamis::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = tamis::Db::open(dir.path().join("db"))?;
/// db.put("apple", "1")?;
/// db.put("pear", "2")?;
/// let mut cursor = db.cursor()?;
/// cursor.seek("b")?;
/// assert_eq!(cursor.key(), Some(&b"pear"[..]));
/// cursor.prev()?;
/// assert_eq!(cursor.value(), Some(&b"1"[..]));
/// # Ok(()) }
/// ```
pub struct Cursor {
    inner: MergingCursor<ScanSource>,
    snapshot: SeqNo,
    /// Compactions may have dropped entries numbered up to this, together with the entries they
    /// hid. Nor are those that range deletes up to this number have let it skip.
    settled: SeqNo,
    gaps: Arc<Gaps>,
    deleted: Deleted,
    values: ValueSource,
    /// When deadlines are judged.
    at: Deadline,
    state: CursorState,
    /// Forward: the key whose older versions are skipped. Backward: the key of the entry being
    /// examined.
    marked: MarkedKey,
    /// The current key and value in states `Merged` and `Backward`. During a move, `key` has other
    /// uses.
    key: Vec<u8>,
    value: Vec<u8>,
    /// The deadline of the current value in states `Merged`, `Backward` and `Separate`.
    deadline: Option<Deadline>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CursorState {
    Invalid,
    /// `inner` stands on the current entry.
    Forward,
    /// Like `Forward`, and the entry has a deadline, which is not past.
    Expiring,
    /// Like `Forward`, and `value` is what its value file holds.
    Separate,
    /// Like `Forward`, and the entry before is of another key.
    First,
    /// Like `First`, and the entry has a deadline, which is not past.
    FirstExpiring,
    /// `inner` stands behind the newest version of `key`, which is an operand: combining it with
    /// older versions means passing them.
    Merged,
    /// `inner` stands before all versions of `key`: finding a key's newest version backward means
    /// passing all of them.
    Backward,
}

/// Consecutive keys that one move passes because the snapshot sees nothing of them.
#[derive(Default)]
struct HiddenKeys {
    /// Keys passed since [`Gaps`] was last asked.
    passed: u32,
    /// Where a claim would begin: the inclusive lower bound going forward, the exclusive upper
    /// bound going backward.
    start: Option<Arc<[u8]>>,
    /// Largest sequence number visible to the snapshot among the entries passed since `start`.
    newest: SeqNo,
    /// The last deadline of the values passed since `start` that have expired, 0 if none has.
    expired: Deadline,
    /// Whether a claim would add to what [`Gaps`] knows.
    adds_claim: bool,
}

impl HiddenKeys {
    fn begin(&mut self, start: &[u8]) {
        (self.start, self.newest, self.expired) = (Some(start.into()), 0, 0);
    }
}

/// How a cursor proceeds after an invisible key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passing {
    /// It steps to the next entry.
    Step,
    /// It has jumped to the next entry already.
    Jumped,
    /// It has reached the end of its range.
    Ended,
}

impl Cursor {
    /// The sources' view must not be older than `snapshot`; see `ReadView::clamp`.
    pub(super) fn new(
        inner: MergingCursor<ScanSource>,
        snapshot: SeqNo,
        tree: &Tree,
        covers: Option<Arc<Covers>>,
        at: Deadline,
    ) -> Cursor {
        // A compaction drops an entry that `snapshot` sees only together with a newer one that it
        // sees too: it either knows of the snapshot, or reads nothing newer.
        let settled = tree.version.largest_seqno().min(snapshot);
        let (deleted, values) = (Deleted::new(covers), ValueSource::of(tree));
        Cursor::with(inner, snapshot, settled, Arc::clone(&tree.gaps), deleted, values, at)
    }

    pub(crate) fn empty(inner: MergingCursor<ScanSource>, snapshot: SeqNo) -> Cursor {
        Cursor::with(inner, snapshot, 0, Arc::default(), Deleted::new(None), ValueSource::default(), NEVER)
    }

    fn with(
        inner: MergingCursor<ScanSource>,
        snapshot: SeqNo,
        settled: SeqNo,
        gaps: Arc<Gaps>,
        deleted: Deleted,
        values: ValueSource,
        at: Deadline,
    ) -> Cursor {
        Cursor {
            inner,
            snapshot,
            settled,
            gaps,
            deleted,
            values,
            at,
            state: CursorState::Invalid,
            marked: MarkedKey::default(),
            key: Vec::new(),
            value: Vec::new(),
            deadline: None,
        }
    }

    /// Of keys alone: [`value`](Cursor::value) is empty if a value file holds the value.
    pub(super) fn without_values(self) -> Cursor {
        Cursor { values: self.values.of_keys_alone(), ..self }
    }

    /// The entry on which `inner` stands.
    #[inline]
    fn effect(&self) -> Effect<'_> {
        Effect::of(self.inner.kind(), self.inner.value())
    }

    /// When the current value expires, if it does; see
    /// [`put_with_expiry`](crate::Keyspace::put_with_expiry).
    pub fn deadline(&self) -> Option<SystemTime> {
        self.expiry().map(time_of)
    }

    /// The deadline of the current value, if it has one.
    pub(crate) fn expiry(&self) -> Option<Deadline> {
        match self.state {
            CursorState::Expiring | CursorState::FirstExpiring => Some(split_expiring(self.inner.value()).0),
            CursorState::Merged | CursorState::Backward | CursorState::Separate => self.deadline,
            CursorState::Invalid | CursorState::Forward | CursorState::First => None,
        }
    }

    /// Whether the cursor stands on an entry.
    pub fn is_valid(&self) -> bool {
        self.state != CursorState::Invalid
    }

    /// The key of the entry, or `None` if the cursor stands on none.
    #[inline]
    pub fn key(&self) -> Option<&[u8]> {
        match self.state {
            CursorState::Invalid => None,
            CursorState::Merged | CursorState::Backward => Some(&self.key),
            _ => Some(self.inner.key()),
        }
    }

    /// The value of the entry, or `None` if the cursor stands on none.
    #[inline]
    pub fn value(&self) -> Option<&[u8]> {
        match self.state {
            CursorState::Invalid => None,
            CursorState::Forward | CursorState::First => Some(self.inner.value()),
            CursorState::Expiring | CursorState::FirstExpiring => Some(split_expiring(self.inner.value()).1),
            CursorState::Merged | CursorState::Backward | CursorState::Separate => Some(&self.value),
        }
    }

    /// Moves to the first entry. Like all moves, returns whether there is one.
    pub fn seek_to_first(&mut self) -> Result<bool> {
        self.seek_to_first_before(None)
    }

    /// Leaves its place for another one.
    fn leave(&mut self) {
        self.state = CursorState::Invalid;
        self.values.leave();
    }

    /// Ends a scan at an entry outside of its range.
    pub(in crate::db) fn end(&mut self) {
        self.leave();
        self.inner.end();
    }

    /// Moves to the first entry if it is before `end`.
    pub(crate) fn seek_to_first_before(&mut self, end: Option<&[u8]>) -> Result<bool> {
        self.leave();
        if !self.skip_deleted(None, end, true)? {
            self.inner.seek_to_first()?;
        }
        self.settle_forward(false, end)
    }

    /// Moves to the last entry.
    pub fn seek_to_last(&mut self) -> Result<bool> {
        self.seek_to_last_from(None)
    }

    /// Moves to the last entry if it is at `end` or after.
    pub(crate) fn seek_to_last_from(&mut self, end: Option<&[u8]>) -> Result<bool> {
        self.leave();
        if !self.skip_deleted(None, end, false)? {
            self.inner.seek_to_last()?;
        }
        self.settle_backward(end)
    }

    /// Moves to the first entry whose key is `key` or greater.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.seek_within(key.as_ref(), None)
    }

    /// Moves to the first entry whose key is `key` or greater, if it is before `end`.
    pub(crate) fn seek_within(&mut self, key: &[u8], end: Option<&[u8]>) -> Result<bool> {
        self.leave();
        if !self.skip_deleted(Some(key), end, true)? {
            self.inner.seek(key, self.snapshot)?;
        }
        self.settle_forward(false, end)
    }

    /// Moves to the last entry whose key is `key` or less.
    pub fn seek_for_prev(&mut self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.leave();
        // No entry has sequence number 0: this is after every version of the key.
        self.inner.seek_before(key.as_ref(), 0)?;
        self.settle_backward(None)
    }

    /// Moves to the last entry whose key is less than `key`, if it is at `end` or after.
    pub(crate) fn seek_before(&mut self, key: &[u8], end: Option<&[u8]>) -> Result<bool> {
        self.leave();
        if !self.skip_deleted(Some(key), end, false)? {
            self.inner.seek_before(key, SeqNo::MAX)?;
        }
        self.settle_backward(end)
    }

    /// Moves to the next entry. An invalid cursor stays invalid.
    #[expect(clippy::should_implement_trait, reason = "the field's name; a lending cursor cannot be an Iterator")]
    #[inline]
    pub fn next(&mut self) -> Result<bool> {
        self.next_before(None)
    }

    /// Moves to the next entry. Stops searching at `end`, but may land on an entry there or after.
    #[inline]
    pub(crate) fn next_before(&mut self, end: Option<&[u8]>) -> Result<bool> {
        if self.state == CursorState::Forward && self.inner.try_fast_step(true) {
            Ok(true)
        } else {
            self.next_entry(end)
        }
    }

    fn next_entry(&mut self, end: Option<&[u8]>) -> Result<bool> {
        let state = std::mem::replace(&mut self.state, CursorState::Invalid);
        self.inner.finish_fast_steps()?;
        match state {
            CursorState::Invalid => Ok(false),
            CursorState::Forward
            | CursorState::Expiring
            | CursorState::Separate
            | CursorState::First
            | CursorState::FirstExpiring => {
                self.marked.mark(&self.inner);
                self.inner.next()?;
                // Usually a key has one version, and it is visible.
                if self.inner.valid()
                    && self.inner.shows(self.snapshot)
                    && !self.marked.is_at(&self.inner)
                    && !self.is_deleted()
                {
                    self.state = CursorState::Forward;
                    self.plan_fast_steps(true);
                    return Ok(true);
                }
                if self.inner.valid() && !self.marked.is_at(&self.inner) && self.shows_expiring() && !self.is_deleted()
                {
                    self.state = CursorState::Expiring;
                    return Ok(true);
                }
                self.settle_forward(true, end)
            }
            CursorState::Merged => self.settle_forward(true, end),
            CursorState::Backward => {
                self.inner.seek(&self.key, 0)?;
                self.settle_forward(false, end)
            }
        }
    }

    /// Moves to the previous entry. An invalid cursor stays invalid.
    #[inline]
    pub fn prev(&mut self) -> Result<bool> {
        self.prev_from(None)
    }

    /// Moves to the previous entry. Stops searching before `end`, but may land on an entry before
    /// it.
    #[inline]
    pub(crate) fn prev_from(&mut self, end: Option<&[u8]>) -> Result<bool> {
        if self.state == CursorState::First && self.inner.try_fast_step(false) {
            Ok(true)
        } else {
            self.prev_entry(end)
        }
    }

    fn prev_entry(&mut self, end: Option<&[u8]>) -> Result<bool> {
        let state = std::mem::replace(&mut self.state, CursorState::Invalid);
        self.inner.finish_fast_steps()?;
        match state {
            CursorState::Invalid => Ok(false),
            CursorState::Forward | CursorState::Expiring | CursorState::Separate => self.turn_backward(end),
            CursorState::First | CursorState::FirstExpiring => {
                self.inner.prev()?;
                self.settle_backward(end)
            }
            CursorState::Merged => {
                self.inner.seek_before(&self.key, SeqNo::MAX)?;
                self.settle_backward(end)
            }
            CursorState::Backward => self.settle_backward(end),
        }
    }

    /// Moves from the current entry, on which `inner` stands, to the one before.
    fn turn_backward(&mut self, end: Option<&[u8]>) -> Result<bool> {
        self.marked.mark(&self.inner);
        // Versions too new for the snapshot may stand before this one.
        let mut passed = 0;
        while self.inner.valid() && self.marked.is_at(&self.inner) {
            passed += 1;
            if passed <= SEEK_AFTER {
                self.inner.prev()?;
            } else {
                self.inner.seek_before(self.marked.key(&mut [0; HEAD16_LEN]), SeqNo::MAX)?;
            }
        }
        self.settle_backward(end)
    }

    /// Moves forward from `inner` to the first visible entry. With `skip_key`, skips versions of
    /// the marked key. Stops searching some time after `end`.
    fn settle_forward(&mut self, mut skip_key: bool, end: Option<&[u8]>) -> Result<bool> {
        let mut hidden = HiddenKeys::default();
        let (mut passed, mut deleted) = (0, 0);
        while self.inner.valid() {
            let is_hidden = skip_key && self.marked.is_at(&self.inner);
            let too_new = self.inner.seqno() > self.snapshot;
            if !is_hidden && !too_new && self.is_deleted() {
                match self.pass_deleted(&mut hidden, &mut deleted, true, end)? {
                    Passing::Step => self.inner.next()?,
                    Passing::Jumped => {}
                    Passing::Ended => break,
                }
                continue;
            }
            if !is_hidden && !too_new {
                let state = match self.inner.kind() {
                    ValueKind::Put => Some(CursorState::Forward),
                    _ => self.state_on_entry(&mut hidden)?,
                };
                if let Some(state) = state {
                    self.note(&hidden, true, true, end);
                    self.take_entry(state)?;
                    return Ok(true);
                }
                skip_key = true;
                passed = 0;
                self.marked.mark(&self.inner);
                self.count_tombstone();
                match self.pass(&mut hidden, self.inner.seqno(), true, end)? {
                    Passing::Step => {}
                    Passing::Jumped => continue,
                    Passing::Ended => break,
                }
            }
            passed += 1;
            if passed <= SEEK_AFTER {
                self.inner.next()?;
                continue;
            }
            passed = 0;
            if is_hidden {
                self.inner.seek(self.marked.key(&mut [0; HEAD16_LEN]), 0)?;
            } else {
                // Too new, and not of the marked key.
                skip_key = false;
                self.marked.mark(&self.inner);
                self.inner.seek(self.marked.key(&mut [0; HEAD16_LEN]), self.snapshot)?;
            }
        }
        self.note(&hidden, false, true, end);
        Ok(false)
    }

    /// Ends a move to the current entry, the newest version of its key that the snapshot sees.
    fn take_entry(&mut self, state: CursorState) -> Result<()> {
        match state {
            CursorState::Merged => self.merge_forward()?,
            CursorState::Separate => self.read_forward()?,
            _ => {}
        }
        self.state = state;
        Ok(())
    }

    /// The state of a cursor on the current entry, the newest version of its key that the snapshot
    /// sees; `None` if that is no value. A function apart, so that a put costs one comparison.
    #[inline(never)]
    fn state_on_entry(&self, hidden: &mut HiddenKeys) -> Result<Option<CursorState>> {
        Ok(match self.effect() {
            Effect::Put(put) if put.has_expired(self.at) => {
                hidden.expired = hidden.expired.max(put.deadline.unwrap_or(0));
                None
            }
            Effect::Put(Put { value: ValuePlace::ValueFile(_), .. }) => Some(CursorState::Separate),
            Effect::Put(Put { deadline: Some(_), .. }) => Some(CursorState::Expiring),
            Effect::Put(_) => Some(CursorState::Forward),
            Effect::Merge(_) => Some(CursorState::Merged),
            Effect::Delete => None,
        })
    }

    /// Moves backward from `inner`, which stands on the last version of a key, to the first key
    /// with a visible value. Stops searching some time before `end`.
    #[inline]
    fn settle_backward(&mut self, end: Option<&[u8]>) -> Result<bool> {
        // Usually a key has one version, and it is visible: it is lent in place.
        if self.inner.valid() && self.inner.shows(self.snapshot) && self.inner.is_first_of_key() && !self.is_deleted() {
            self.state = CursorState::First;
            self.plan_fast_steps(false);
            return Ok(true);
        }
        if self.inner.valid() && self.shows_expiring() && self.inner.is_first_of_key() && !self.is_deleted() {
            self.state = CursorState::FirstExpiring;
            return Ok(true);
        }
        self.settle_backward_over_versions(end)
    }

    /// Whether the entry is a value with a deadline that is not past, and the snapshot sees it,
    /// unless a newer version hides it.
    #[inline]
    fn shows_expiring(&self) -> bool {
        self.inner.kind() == ValueKind::ExpiringPut
            && self.inner.seqno() <= self.snapshot
            && self.at < split_expiring(self.inner.value()).0
    }

    /// Handles keys with several versions. Copies the visible value: only after passing all
    /// versions is it known to be the newest. Those of a key with many are not passed: the cursor
    /// then stands on the newest, as one that goes forward.
    fn settle_backward_over_versions(&mut self, end: Option<&[u8]>) -> Result<bool> {
        let mut hidden = HiddenKeys::default();
        let mut deleted = 0;
        while self.inner.valid() {
            self.marked.mark(&self.inner);
            let cover = self.cover();
            let window = Window::above(cover, self.snapshot);
            // The newest visible version comes last: the newest value, unless that is a delete, and
            // the operands since.
            let (mut newest, mut base, mut operands) = (0, None, Vec::new());
            let mut passed = 0;
            loop {
                if window.sees(self.inner.seqno()) {
                    newest = self.inner.seqno();
                    match self.effect() {
                        Effect::Merge(stored) => push_operand(&mut operands, newest, stored)?,
                        Effect::Put(put) if !put.has_expired(self.at) => {
                            base = Some((newest, self.inner.kind()));
                            operands.clear();
                            self.value.clear();
                            self.value.extend_from_slice(self.inner.value());
                        }
                        effect => {
                            if let Effect::Put(put) = effect {
                                hidden.expired = hidden.expired.max(put.deadline.unwrap_or(0));
                            }
                            base = None;
                            operands.clear();
                            self.count_tombstone();
                        }
                    }
                }
                self.inner.prev()?;
                if !self.inner.valid() || !self.marked.is_at(&self.inner) {
                    break;
                }
                passed += 1;
                if passed > SEEK_BACK_AFTER {
                    // A memtable may hold any number of them.
                    (base, newest) = (None, 0);
                    operands.clear();
                    if self.seek_newest(cover)? {
                        newest = self.inner.seqno();
                        if let Some(state) = self.state_on_entry(&mut hidden)? {
                            self.key = self.take_marked_key();
                            self.note(&hidden, true, false, end);
                            self.take_entry(state)?;
                            return Ok(true);
                        }
                        self.count_tombstone();
                    }
                    self.inner.seek_before(self.marked.key(&mut [0; HEAD16_LEN]), SeqNo::MAX)?;
                    break;
                }
            }
            if base.is_some() || !operands.is_empty() {
                self.take_backward(base, &operands)?;
                self.note(&hidden, true, false, end);
                self.state = CursorState::Backward;
                return Ok(true);
            }
            let newest = newest.max(cover);
            if self.pass(&mut hidden, newest, false, end)? == Passing::Ended {
                break;
            }
            if cover > 0
                && self.inner.valid()
                && self.is_deleted()
                && self.pass_deleted(&mut hidden, &mut deleted, false, end)? == Passing::Ended
            {
                break;
            }
        }
        self.note(&hidden, false, false, end);
        Ok(false)
    }

    /// Moves to the newest version of the marked key that the snapshot sees. Returns whether there
    /// is one above its `cover`.
    #[cold]
    fn seek_newest(&mut self, cover: SeqNo) -> Result<bool> {
        self.inner.seek(self.marked.key(&mut [0; HEAD16_LEN]), self.snapshot)?;
        Ok(self.inner.valid() && self.marked.is_at(&self.inner) && self.inner.seqno() > cover)
    }

    /// Passes the marked key, which is invisible. `newest` is the largest number among its entries
    /// that the snapshot sees.
    #[inline]
    fn pass(&mut self, hidden: &mut HiddenKeys, newest: SeqNo, forward: bool, end: Option<&[u8]>) -> Result<Passing> {
        hidden.passed += 1;
        hidden.newest = hidden.newest.max(newest);
        if hidden.passed < ASK_AFTER { Ok(Passing::Step) } else { self.jump(hidden, forward, end) }
    }

    /// Jumps over the gap after the marked key, if there is one.
    #[cold]
    fn jump(&mut self, hidden: &mut HiddenKeys, forward: bool, end: Option<&[u8]>) -> Result<Passing> {
        hidden.passed = 0;
        self.key.clear();
        self.key.extend_from_slice(self.marked.key(&mut [0; HEAD16_LEN]));
        if !is_within(&self.key, end, forward) {
            return Ok(Passing::Ended);
        }
        // The least key after it, or all keys before it.
        self.key.extend(forward.then_some(0));
        let Some(gap) = self.gaps.find(&self.key, (self.snapshot, self.at), forward) else {
            match hidden.start {
                Some(_) => hidden.adds_claim = true,
                None => hidden.begin(&self.key),
            }
            return Ok(Passing::Step);
        };
        let to = match (gap.end.as_deref(), end) {
            (Some(gap), Some(end)) => Some(if forward { gap.min(end) } else { gap.max(end) }),
            (gap, end) => gap.or(end),
        };
        // The scan sees no entries newer than the snapshot.
        let seen = if self.snapshot <= gap.claim.to { SeqNo::MAX } else { gap.claim.to };
        if self.inner.valid() {
            self.inner.jump(to, seen, forward)?;
        }
        let stopped_short = self.inner.valid() && is_within(self.inner.key(), to, forward);
        if stopped_short {
            self.gather(forward)?;
        }
        if hidden.start.is_none() && !stopped_short {
            if gap.claim.to < self.snapshot {
                let (low, high) = if forward { (&*self.key, to) } else { (to.unwrap_or_default(), Some(&*self.key)) };
                self.gaps.extend(low, high, gap.claim.to, self.claim(0, 0));
            }
            to.into_iter().for_each(|to| hidden.begin(to));
        } else {
            if hidden.start.is_none() {
                hidden.begin(&self.key);
            }
            hidden.newest = hidden.newest.max(gap.claim.from);
            hidden.expired = hidden.expired.max(gap.claim.expired);
            hidden.adds_claim = true;
        }
        Ok(Passing::Jumped)
    }

    /// Moves all sources to where the first of them stopped. After a jump others may stand further
    /// on, past tombstones that hide what comes next in the first one.
    fn gather(&mut self, forward: bool) -> Result<()> {
        let is_passed = self.marked.is_at(&self.inner);
        let key = self.inner.key().to_vec();
        match forward {
            // No entry has sequence number 0: this is after every version of the key.
            true => self.inner.seek(&key, if is_passed { 0 } else { SeqNo::MAX }),
            false => self.inner.seek_before(&key, 0),
        }
    }

    /// Notes for later scans that the keys of `hidden` are invisible. They end at the entry that
    /// was found, or at the end of the range.
    #[inline]
    fn note(&mut self, hidden: &HiddenKeys, found: bool, forward: bool, end: Option<&[u8]>) {
        if hidden.adds_claim {
            self.note_claim(hidden, found, forward, end);
        }
    }

    #[cold]
    fn note_claim(&mut self, hidden: &HiddenKeys, found: bool, forward: bool, end: Option<&[u8]>) {
        let Some(start) = hidden.start.as_deref() else { return };
        let claim = self.claim(hidden.newest, hidden.expired);
        if forward {
            let found = found.then(|| self.inner.key());
            self.gaps.claim(start, found.into_iter().chain(end).min(), claim);
        } else {
            // The least key after the one found.
            let found = found.then(|| [&self.key[..], &[0]].concat());
            let low = found.as_deref().into_iter().chain(end).max();
            self.gaps.claim(low.unwrap_or_default(), Some(start), claim);
        }
    }

    /// The claim of this scan for keys of which it saw nothing: no entry newer than `newest`, and
    /// no value that expired after `expired`.
    fn claim(&self, newest: SeqNo, expired: Deadline) -> Claim {
        Claim { from: newest.max(self.settled), to: self.snapshot, expired }
    }

    #[inline]
    fn count_tombstone(&self) {
        let counters = self.inner.counters().unwrap_or(&self.gaps.counters);
        counters.count(ReadEvent::TombstonePassed);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::db::clock::Clock;
    use crate::db::shape::gaps::Gap;
    use crate::db::shape::view::{ReadView, Tree};
    use crate::memory::pool::MemtablePool;
    use crate::sorted::memtable::Memtable;
    use crate::sorted::table::TableContext;
    use crate::vfs::SimFileSystem;

    /// Reads load the view first and the snapshot second. Between the two, memtable 2 may replace
    /// memtable 1 as the active one.
    #[test]
    fn a_scan_whose_view_is_older_than_its_snapshot_uses_no_gap_that_is_newer_than_the_view() {
        let memtable = Arc::new(Memtable::new(1, 4096, 0, &MemtablePool::new(0)));
        let mut writer = memtable.writer();
        (0..40).for_each(|key| writer.insert(0, &[key], SeqNo::from(key) + 1, ValueKind::Put, b""));
        (0..35).for_each(|key| writer.insert(0, &[key], SeqNo::from(key) + 41, ValueKind::Delete, b""));
        drop(writer);
        let (options, version, gaps, traffic) = Default::default();
        let clock = Arc::new(Clock::new(None, 0));
        let values = Arc::clone(TableContext::new(Arc::new(SimFileSystem::new()), Path::new("/db"), 0, 8).values());
        let tree = Tree { id: 0, name: Arc::from("default"), options, version, gaps, traffic, clock, values };
        let view = ReadView {
            active: memtable,
            sealed: Vec::new(),
            trees: crate::db::shape::view::Trees::default(),
            horizon: Arc::default(),
        };
        // In memtable 2, entries 76 to 80 delete the other keys. A scan at 80 has found nothing.
        let later = Claim { from: 80, to: 80, expired: 0 };
        tree.gaps.claim(b"", None, later);
        let cursor = |gaps: &Arc<Gaps>| {
            let tree = Tree { gaps: Arc::clone(gaps), ..tree.clone() };
            Cursor::new(
                view.cursor(&tree, crate::ReadOptions::default().mode(), None),
                view.clamp(&tree, 80),
                &tree,
                None,
                NEVER,
            )
        };
        let (mut forward, mut backward) = (cursor(&tree.gaps), cursor(&tree.gaps));
        assert!(forward.seek_to_first().unwrap());
        assert_eq!(forward.key(), Some(&[35][..]));
        assert!(backward.seek_to_last().unwrap() && backward.seek_for_prev([37]).unwrap());
        assert_eq!(backward.key(), Some(&[37][..]));
        assert_eq!(
            tree.gaps.find(&[20], (80, 0), true),
            Some(Gap { end: None, claim: later }),
            "the later claim stays"
        );
        // What the scan notes itself does not cover memtable 2.
        let gaps = Arc::default();
        assert!(cursor(&gaps).seek_to_first().unwrap());
        let gap = gaps.find(&[20], (75, 0), true).expect("the scan passed more than it notes");
        assert_eq!((gap.end.as_deref(), gap.claim), (Some(&[35][..]), Claim { from: 75, to: 75, expired: 0 }));
    }
}
