//! The commit of a transaction: checks what was written since its snapshot, then writes.
//!
//! ```text
//! commit = write under a premise, (note a moment, check without the lock, write under a premise)*
//! ```
//!
//! If only a few keys were read, the first premise covers all since the snapshot. It holds, or says
//! what was written, if the memtable has all writes since then. Most transactions end there.
//!
//! The check without the lock covers what was written after the snapshot, or after the moment of
//! the round before, up to the moment noted. It may read blocks. Each read costs a look-up,
//! whatever the number of range deletes: the nodes of their trees know the newest number below
//! them. The premise covers the rest, in the memtable alone. It is stale if that memtable has been
//! sealed, or if more was written meanwhile than a thread may look through under the lock. Then a
//! new moment is noted, and what lies between is checked without the lock as well.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::premise::{Moment, Premise, Refusal};
use super::read_set::{Expiring, ReadIn, ReadSet};
use super::retry::STALE_ROUNDS;
use crate::batch::WriteBatch;
use crate::db::read::tree_of;
use crate::db::shape::view::ReadView;
use crate::db::store::Store;
use crate::db::write::commit::{Encoded, Outcome};
use crate::db::write::path::WriteOptions;
use crate::error::{Error, Result};
use crate::format::deadline::NEVER;
use crate::format::key::{SeqNo, Window};
use crate::format::span::KeySpan;
use crate::options::FilterMode;
use crate::sorted::iter::{MergeCursor, Stamped, is_within};
use crate::sorted::table::{PointRead, ReadFlags};

/// Most entries that a commit checks under the commit lock. If more were written since the check
/// without the lock, they are checked without it as well, up to `ROUNDS` times.
const MOST_ENTRIES: usize = 4096;
const ROUNDS: u32 = 3;

impl Store {
    /// Writes a batch if nothing that `reads` covers was written after `since`. May take the reads.
    pub(super) fn write_if_unchanged(
        self: &Arc<Self>,
        batch: &WriteBatch,
        options: WriteOptions,
        reads: &mut ReadSet,
        mut since: SeqNo,
    ) -> Result<SeqNo> {
        let with_deadlines = self.with_deadlines(batch, options);
        let batch = with_deadlines.as_ref().unwrap_or(batch);
        let as_of = self.writer.keyspaces_as_of();
        self.check_batch(batch)?;
        let logged = self.logged_part(batch, options, as_of)?;
        let encoded = Encoded::borrowing(batch, logged, options.sync);
        let write = |premise: Premise<'_>, reads: &ReadSet| {
            let premise = premise.until(reads.expiring().map_or(NEVER, |first| first.deadline));
            match self.write_encoded(encoded.borrowed(), Some(&premise))? {
                Outcome::Committed(last) => Ok(Some(last)),
                Outcome::Refused(Refusal::Stale) => Ok(None),
                Outcome::Refused(Refusal::Expired) => {
                    Err(reads.expiring().map_or(Error::Closed, |first| self.expired(first)))
                }
                Outcome::Refused(refusal) => Err(self.conflict(refusal)),
            }
        };
        // If the memtable has all that was written since, the premise finds it there.
        if reads.has_few_keys() {
            self.check_keyspaces_of(reads)?;
            if let Some(last) = write(Premise::on_keys(Moment::at(since), reads), reads)? {
                return Ok(last);
            }
        }
        let reads = Arc::new(std::mem::take(reads));
        let mut former = None::<Moment>;
        for round in 1..=STALE_ROUNDS {
            let seen = self.sequence.visible();
            let view = self.shape.view();
            // Without a range delete nobody asks for this order. One that comes meanwhile makes the
            // premise stale.
            if !reads.has_few_keys() && (round > 1 || view.active.has_ranges()) {
                reads.sort_by_key();
            }
            let moment = Moment::of(&view, &self.sequence);
            let refusal = match former.and_then(|former| Some((former, former.memtables_since(&view)?))) {
                Some((former, mut memtables)) => {
                    memtables.find_map(|memtable| former.find_written(memtable, &reads, moment.seqno, usize::MAX))
                }
                None => self.find_newer(&view, &reads, since..=moment.seqno)?,
            };
            if let Some(refusal) = refusal {
                return Err(self.conflict(refusal));
            }
            // A write after `seen` may be to a memtable that this view does not have.
            let checked = moment.no_later_than(seen);
            since = checked.seqno;
            former = Some(checked);
            let most_entries = if round <= ROUNDS { MOST_ENTRIES } else { usize::MAX };
            if let Some(last) = write(Premise::on_set(moment, Arc::clone(&reads), most_entries), &reads)? {
                return Ok(last);
            }
        }
        Err(self.conflict(Refusal::of_any(&reads)))
    }

    /// Fails if a keyspace whose keys were read has been dropped.
    fn check_keyspaces_of(&self, reads: &ReadSet) -> Result<()> {
        match reads.keyspaces() {
            [ReadIn { keyspace: 0, .. }] => Ok(()),
            read => self
                .shape
                .with_view(|view, _| read.iter().try_for_each(|of| tree_of(view, of.keyspace, &of.name).map(drop))),
        }
    }

    /// Looks for a write between two moments to something that `reads` covers, in `view`. May read
    /// blocks. Each read costs a look-up in the trees of range deletes, whatever their number.
    ///
    /// A write after the later moment is none: it may not be visible yet, and the next attempt
    /// would meet it again. The premise finds it under the commit lock; if it is an ingest, the
    /// premise is stale. It may hide an earlier one to the same key: then the premise does not hold
    /// either.
    fn find_newer(&self, view: &ReadView, reads: &ReadSet, moments: RangeInclusive<SeqNo>) -> Result<Option<Refusal>> {
        let (since, until) = moments.into_inner();
        let is_newer = |seqno: SeqNo| since < seqno && seqno <= until;
        let memtables = || view.memtables().filter(|memtable| memtable.last_seqno() > since);
        let mode = ReadFlags { filters: FilterMode::Use, fill_cache: true, values: true };
        reads.keyspaces().iter().try_for_each(|of| tree_of(view, of.keyspace, &of.name).map(drop))?;
        for read in reads.keys() {
            let Some(tree) = view.tree(read.keyspace) else { continue };
            if memtables().any(|memtable| is_newer(read.newest_in(memtable))) {
                return Ok(Some(Refusal::of(read)));
            }
            let version = &tree.version;
            if version.largest_seqno() <= since {
                continue;
            }
            let point = PointRead { key: read.key, hash: read.hash, window: Window::up_to(SeqNo::MAX), mode };
            // Ranges that are gone deleted nothing that the transaction's snapshot sees.
            if version.ranges().newest_after(since, read.key).is_some_and(is_newer)
                || version.is_newer(&point, since)?
            {
                return Ok(Some(Refusal::of(read)));
            }
        }
        for (read, range) in reads.ranges() {
            let tree = tree_of(view, read.keyspace, &read.name)?;
            let (lower, upper) = (range.lower.as_deref().unwrap_or_default(), range.upper.as_deref());
            let is_deleted = memtables().any(|memtable| is_newer(memtable.newest_range(tree.id, lower, upper)))
                || tree.version.ranges().newest_within(since, lower, upper).is_some_and(is_newer);
            if is_deleted {
                return Ok(Some(Refusal::Written(tree.id, lower.to_vec())));
            }
            let in_memory = memtables()
                .find_map(|memtable| find_within(memtable.cursor(tree.id), range, since, is_newer).transpose());
            let found = match in_memory {
                Some(found) => Some(found?),
                None if tree.version.largest_seqno() <= since => None,
                None => find_within(tree.version.cursor_newer(since, range), range, since, is_newer)?,
            };
            if let Some(key) = found {
                return Ok(Some(Refusal::Written(tree.id, key)));
            }
        }
        Ok(None)
    }

    /// The conflict that a value which was read has expired.
    fn expired(&self, value: &Expiring) -> Error {
        self.conflict(Refusal::Written(value.keyspace, value.key.to_vec()))
    }

    #[cold]
    fn conflict(&self, refusal: Refusal) -> Error {
        let Refusal::Written(keyspace, key) = refusal else {
            return Error::invalid("a conflict without a key; this is a bug in tamis");
        };
        let name = |view: &ReadView| view.tree(keyspace).map(|tree| tree.name.to_string());
        let name = self.shape.with_view(|view, _| name(view)).unwrap_or_else(|| format!("number {keyspace}"));
        Error::Conflict { keyspace: name, key }
    }
}

/// The first key of `range` with an entry whose number is above `since`, and `is_newer` wants it.
/// Jumps over older ones: a queue has popped all that was before its first key.
fn find_within(
    mut entries: impl MergeCursor,
    range: &KeySpan<Vec<u8>>,
    since: SeqNo,
    is_newer: impl Fn(SeqNo) -> bool,
) -> Result<Option<Vec<u8>>> {
    let upper = range.upper.as_deref();
    entries.seek(range.lower.as_deref().unwrap_or_default(), SeqNo::MAX)?;
    loop {
        entries.jump(upper, since, true)?;
        if !(entries.valid() && is_within(entries.key(), upper, true)) {
            return Ok(None);
        }
        let (key, seqno) = (entries.key().to_vec(), entries.seqno());
        if is_newer(seqno) {
            return Ok(Some(key));
        }
        // As `jump` asks for. What it has left behind is older than `since`.
        entries.seek(&key, seqno)?;
        entries.next()?;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::db::shape::view::tests::between_views_and_numbers;
    use crate::filter::KeyHash;
    use crate::format::key::ValueKind;
    use crate::format::span::KeySpan;
    use crate::memory::pool::MemtablePool;
    use crate::options::Options;
    use crate::sorted::iter::InternalCursor;
    use crate::sorted::memtable::Memtable;
    use crate::sorted::ranges::steps;
    use crate::vfs::MemoryFileSystem;

    /// CI of a loaded machine: a thread was interrupted between its write and the moment at which
    /// that became visible. Another met the same conflict 32 times meanwhile, and gave up.
    #[test]
    fn a_write_that_is_not_visible_yet_is_left_to_the_premise() {
        let db = Options::new().file_system(Arc::new(MemoryFileSystem::new())).open("/db").unwrap();
        db.put("y", "0").unwrap();
        let store = db.store();
        let mut reads = ReadSet::default();
        let of = ReadIn::DEFAULT;
        reads.add_key(&of, b"y", KeyHash::new(store.seed, b"y"));
        reads.sort();
        let reads = Arc::new(reads);

        let commit = store.writer.lock();
        let commit = commit.as_ref().unwrap();
        let (view, before) = (store.shape.view(), store.sequence.visible());
        let moment = Moment::of(&view, &store.sequence);
        commit.memtable.writer().insert(0, b"y", before + 1, ValueKind::Put, b"1");
        let newer = |until: SeqNo| store.find_newer(&view, &reads, before..=until).unwrap();
        let written = Some(Refusal::Written(0, b"y".to_vec()));
        assert_eq!(newer(before), None);
        assert_eq!(Premise::on_set(moment, Arc::clone(&reads), 10).refusal(&commit.memtable, 0, before + 1), written);
        store.sequence.publish(before + 1);
        assert_eq!(newer(store.sequence.visible()), written);
    }

    #[test]
    fn what_is_newer_is_found_among_older_and_later_writes() {
        let memtable = Arc::new(Memtable::new(1, 1 << 20, 0, &MemtablePool::new(0)));
        let (mut writer, mut rng, mut written) = (memtable.writer(), fastrand::Rng::with_seed(1), Vec::new());
        for seqno in 1..=400 {
            let key = rng.u8(..60);
            writer.insert(0, &[key], seqno, ValueKind::Delete, b"");
            written.push((key, seqno));
            if rng.u8(..) < 8 {
                // Reads sort what there is.
                memtable.cursor(0).seek(b"", SeqNo::MAX).unwrap();
            }
        }
        drop(writer);
        // The same in tables.
        let (options, executor) = (Options::new(), Arc::new(crate::exec::SteppedExecutor::new()));
        let db = options.file_system(Arc::new(MemoryFileSystem::new())).executor(executor).open("/db").unwrap();
        for (key, seqno) in &written {
            assert_eq!(db.put([*key], "value").unwrap(), *seqno);
            if seqno % 90 == 0 {
                db.flush().unwrap();
            }
        }
        db.flush().unwrap();
        // A flush leaves the newest version of each key.
        let flush_of = |seqno: SeqNo| (seqno - 1) / 90;
        let is_last = |(key, seqno): &&(u8, SeqNo)| {
            !written.iter().any(|(other, later)| other == key && later > seqno && flush_of(*later) == flush_of(*seqno))
        };
        let flushed: Vec<(u8, SeqNo)> = written.iter().filter(is_last).copied().collect();
        let view = db.store().shape.view();
        assert!(view.tree(0).unwrap().version.tables().count() > 1);
        let mut found = 0;
        for _ in 0..2000 {
            let (since, until) = (rng.u64(..=400), rng.u64(..=400));
            let (lower, upper) = (rng.u8(..60), Some(rng.u8(..62)).filter(|upper| *upper < 61));
            let is_newer = |seqno: SeqNo| since < seqno && seqno <= until;
            let is_within = |key: u8| lower <= key && upper.is_none_or(|upper| key < upper);
            let wanted = written.iter().filter(|(key, seqno)| is_within(*key) && is_newer(*seqno));
            let wanted = wanted.map(|(key, _)| vec![*key]).min();
            let range = KeySpan { lower: Some(vec![lower]), upper: upper.map(|upper| vec![upper]) };
            assert_eq!(find_within(memtable.cursor(0), &range, since, is_newer).unwrap(), wanted);
            found += usize::from(wanted.is_some());
            let wanted = flushed.iter().filter(|(key, seqno)| is_within(*key) && is_newer(*seqno));
            let wanted = wanted.map(|(key, _)| vec![*key]).min();
            let tables = view.tree(0).unwrap().version.cursor_newer(since, &range);
            assert_eq!(find_within(tables, &range, since, is_newer).unwrap(), wanted);
        }
        assert!(found > 300, "{found}");
    }

    /// Law 2: the steps of a commit beside `ranges` range deletes of other keys in the memtable,
    /// and one put since the transaction began.
    fn steps_beside(ranges: u32, flushed: bool) -> usize {
        let db = Options::new().file_system(Arc::new(MemoryFileSystem::new())).open("/db").unwrap();
        db.put("key", "0").unwrap();
        let early = db.begin();
        for i in 0..ranges {
            db.delete_range(format!("r{i:06}")..format!("r{i:06}x")).unwrap();
        }
        if flushed {
            db.put("r", "").unwrap();
            db.flush().unwrap();
        }
        let late = db.begin();
        db.put("z", "").unwrap();
        // The ranges are older than the one transaction, and newer than the other.
        let mut taken = 0;
        for (mut transaction, read) in [(early, "a".."r"), (late, "a".."r000500")] {
            assert!(transaction.get("key").unwrap().is_some());
            assert!(transaction.range(read).all(|entry| entry.is_ok()));
            transaction.put("written", "");
            steps::take();
            transaction.commit().unwrap();
            taken += steps::take();
        }
        taken
    }

    #[test]
    fn a_commit_takes_no_look_at_each_range_delete() {
        for flushed in [false, true] {
            let (few, many) = (steps_beside(10, flushed), steps_beside(3000, flushed));
            assert!(flushed || few > 0 || !cfg!(debug_assertions), "steps are counted");
            assert!(many < few + 200, "{many} steps beside 3,000 ranges, {few} beside 10, flushed: {flushed}");
        }
    }

    /// Law 2: a commit whose memtable others seal at each attempt gives up.
    #[test]
    fn a_commit_that_is_always_stale_is_a_conflict_in_the_end() {
        let db = Options::new().file_system(Arc::new(MemoryFileSystem::new())).open("/db").unwrap();
        db.put("key", "0").unwrap();
        let (attempts, seals) = (Arc::new(AtomicU32::new(0)), [3, u32::MAX]);
        for most in seals {
            let mut transaction = db.begin();
            transaction.get("key").unwrap();
            transaction.put("written", "");
            // The first attempt meets another memtable.
            db.put("other", "").unwrap();
            db.flush().unwrap();
            attempts.store(0, Ordering::Relaxed);
            let (db, attempts) = (db.clone(), Arc::clone(&attempts));
            let seal = {
                let attempts = Arc::clone(&attempts);
                move || {
                    db.put("other", "").unwrap();
                    db.flush().unwrap();
                    attempts.fetch_add(1, Ordering::Relaxed) + 1 < most
                }
            };
            between_views_and_numbers(Box::new(seal));
            match transaction.commit() {
                Ok(_) => assert_eq!((most, attempts.load(Ordering::Relaxed)), (3, 3)),
                Err(Error::Conflict { key, .. }) => {
                    assert_eq!((&key[..], attempts.load(Ordering::Relaxed)), (&b"key"[..], STALE_ROUNDS));
                    assert_eq!(most, u32::MAX);
                }
                Err(error) => panic!("{error}"),
            }
            between_views_and_numbers(Box::new(|| false));
        }
    }

    /// A write that a round's number includes and its view lacks: it went to a later memtable.
    #[test]
    fn a_write_between_the_view_and_the_number_of_a_round_is_a_conflict() {
        for is_flushed in [false, true] {
            let db = Options::new().file_system(Arc::new(MemoryFileSystem::new())).open("/db").unwrap();
            db.put("key", "0").unwrap();
            let mut transaction = db.begin();
            transaction.get("key").unwrap();
            transaction.put("written", "");
            // The premise on few keys meets another memtable.
            db.put("other", "").unwrap();
            db.flush().unwrap();
            let between = {
                let db = db.clone();
                move || {
                    db.put("other", "").unwrap();
                    db.flush().unwrap();
                    db.put("key", "1").unwrap();
                    if is_flushed {
                        db.flush().unwrap();
                    }
                    false
                }
            };
            between_views_and_numbers(Box::new(between));
            let committed = transaction.commit();
            between_views_and_numbers(Box::new(|| false));
            assert!(matches!(&committed, Err(Error::Conflict { key, .. }) if key == b"key"), "{committed:?}");
        }
    }

    #[test]
    fn a_range_delete_takes_no_look_at_each_read() {
        let memtable = Arc::new(Memtable::new(1, 4096, 0, &MemtablePool::new(0)));
        let mut reads = ReadSet::default();
        let of = || ReadIn::DEFAULT;
        for i in 0..3000 {
            let key = format!("key{i:06}");
            reads.add_key(&of(), key.as_bytes(), KeyHash::new(0, key.as_bytes()));
            reads.add_range(
                of(),
                KeySpan { lower: Some(format!("r{i:06}").into()), upper: Some(format!("r{i:06}x").into()) },
            );
        }
        reads.sort();
        let mut writer = memtable.writer();
        (1..=1000).for_each(|i| writer.delete_range(0, format!("z{i}").as_bytes(), format!("z{i}x").as_bytes(), i));
        drop(writer);
        let written = || Moment::at(0).find_written(&memtable, &reads, SeqNo::MAX, usize::MAX);
        assert_eq!(written(), Some(Refusal::Stale), "the reads are not sorted");
        reads.sort_by_key();
        steps::take();
        assert_eq!(written(), None);
        let steps = steps::take();
        assert!((1000..30 * 1000).contains(&steps), "{steps}");
    }
}
