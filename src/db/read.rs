//! The read path: memtables, then tables, newest first.
//!
//! 1. Pin the epoch and load the view (`view`), and only then the last visible number. In this
//!    order, no compaction before the view can have dropped what the number sees.
//! 2. Hash the key once. Ask for the range delete that covers the key, then the active memtable,
//!    the sealed ones and the version. The first version of the key ends the search.
//! 3. Follow a pointer to a value file, if the read wants the value.
//!
//! A pin keeps all that is replaced meanwhile from being freed. Of the caller's code, only merge
//! operators and the clock run under it. A read that lends its value copies a short one. A long one
//! keeps its block or memtable by a reference count, as cursors do (`held`).

pub(crate) mod cursor;
mod estimate;
pub(crate) mod explain;
pub(crate) mod explain_range;
mod multi_get;
pub(crate) mod salvage;
mod slow;

use std::cell::Cell;
use std::sync::Arc;
use std::time::SystemTime;

use super::clock::LeastDeadline;
use super::iter::{Iter, common_prefix};
use super::read::cursor::Cursor;
use super::shape::view::{Hit, ReadView, Tree, Trees};
use super::store::Store;
use crate::error::{Error, Result};
use crate::filter::KeyHash;
use crate::format::deadline::{Deadline, split_expiring};
use crate::format::key::{SeqNo, ValueKind, Window};
use crate::format::span::KeySpan;
use crate::memory::epoch::Pin;
use crate::options::FilterMode;
use crate::sorted::memtable::Memtable;
use crate::sorted::scan_trace::ScanTrace;
use crate::sorted::table::{PointRead, PrefixProbe, ReadFlags};
use crate::sorted::trace::{ReadTrace, Untraced};
use crate::sorted::value::{KeptValue, Value};
use crate::tree::version::Version;

/// How a read is done.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReadOptions {
    /// How point reads, prefix scans, and scans of a range within one prefix use filters. Other
    /// ranges and cursors use none. Default: [`FilterMode::Use`].
    pub filters: FilterMode,
    /// Whether blocks read from disk are admitted to the cache; those of a long scan, only to free
    /// space. Default: true.
    pub fill_cache: bool,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions { filters: FilterMode::Use, fill_cache: true }
    }
}

impl ReadOptions {
    /// The defaults.
    pub fn new() -> ReadOptions {
        ReadOptions::default()
    }

    pub(super) fn mode(self) -> ReadFlags {
        ReadFlags { filters: self.filters, fill_cache: self.fill_cache, values: true }
    }

    /// Of a read that needs no values.
    pub(super) fn keys_only(self) -> ReadFlags {
        ReadFlags { values: false, ..self.mode() }
    }

    /// Sets how filters are used.
    pub fn filters(mut self, filters: FilterMode) -> Self {
        self.filters = filters;
        self
    }

    /// Sets whether blocks read from disk are admitted to the cache.
    pub fn fill_cache(mut self, fill_cache: bool) -> Self {
        self.fill_cache = fill_cache;
        self
    }
}

/// [`Keyspace::read`](super::Keyspace::read) copies values up to this length: that costs less than
/// counting references up and down, above all when several threads do so.
const COPIED: usize = 512;

thread_local! {
    /// Buffer into which a thread copies the values of its reads.
    static COPY: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A long value for the caller's code, which may run long: holding it pins no epoch.
enum Kept {
    InTable(KeptValue),
    /// The version of the key with this sequence number.
    InMemtable(Arc<Memtable>, SeqNo),
    /// Combined operands, or a version above a range delete.
    Owned(Vec<u8>),
}

/// The target of a read: a keyspace, now or as of a snapshot.
#[derive(Clone, Copy)]
pub(crate) struct ReadTarget<'a> {
    pub(super) keyspace: u32,
    pub(super) name: &'a str,
    pub(super) snapshot: Option<&'a ReadPoint>,
}

/// One moment, as a snapshot and a transaction read it: what was written up to a number and had
/// not expired at a time.
pub(super) struct ReadPoint {
    pub(super) seqno: SeqNo,
    /// [`NEVER`](crate::format::deadline::NEVER) if nothing that it sees has a deadline.
    pub(super) at: Deadline,
    /// The view in which to read it, if other views from then on may lack what it sees: in a store
    /// that is open read-only, since the process that writes keeps no versions for it, and beside a
    /// compaction filter that had begun before.
    pub(super) view: Option<Arc<ReadView>>,
}

impl ReadTarget<'_> {
    pub(super) fn seqno(&self) -> Option<SeqNo> {
        self.snapshot.map(|point| point.seqno)
    }

    /// When deadlines are judged; `None` for the time of the read.
    pub(super) fn at(&self) -> Option<Deadline> {
        self.snapshot.map(|point| point.at)
    }
}

/// Stands for the id of a keyspace of another store; no keyspace has it.
pub(super) const FOREIGN: u32 = u32::MAX;

#[inline(always)]
pub(super) fn tree_of<'a>(view: &'a ReadView, keyspace: u32, name: &str) -> Result<&'a Tree> {
    // Of a foreign one, too: to tell them apart costs each get two or three instructions.
    view.tree(keyspace).ok_or_else(|| Error::KeyspaceDropped(name.to_owned()))
}

#[cold]
#[inline(never)]
fn keep_long(hit: Hit<'_>) -> Kept {
    match hit {
        Hit::Memtable { memtable, seqno, .. } => Kept::InMemtable(Arc::clone(memtable), seqno),
        Hit::Table(value) => Kept::InTable(value.keep()),
        Hit::Owned(value) => Kept::Owned(value),
    }
}

impl Store {
    /// Reads a key, calls `take` with its value, and reports each step to `trace`. `take` runs
    /// pinned: it must not call the caller's code.
    #[inline]
    pub(super) fn get<R>(
        &self,
        target: ReadTarget<'_>,
        key: &[u8],
        mode: ReadFlags,
        trace: &mut impl ReadTrace,
        take: impl FnOnce(Hit<'_>) -> R,
    ) -> Result<Option<R>> {
        // Hashed only once the view is there: that leaves registers to what comes before.
        self.get_hashed(target, key, || KeyHash::new(self.seed, key), mode, trace, take)
    }

    /// [`get`](Store::get) of a key whose hash may be known.
    #[inline(always)]
    pub(super) fn get_hashed<R>(
        &self,
        target: ReadTarget<'_>,
        key: &[u8],
        hash: impl FnOnce() -> KeyHash,
        mode: ReadFlags,
        trace: &mut impl ReadTrace,
        take: impl FnOnce(Hit<'_>) -> R,
    ) -> Result<Option<R>> {
        self.gate.check_open()?;
        // A separate function: a plain get has nothing to do after it has found the value.
        match self.reads_plainly && target.snapshot.is_none_or(|point| point.view.is_none()) {
            true => self.shape.with_view(|view, pin| match self.find(view, pin, target, (key, hash), mode, trace) {
                Ok(Some(hit)) => Ok(Some(take(hit))),
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            }),
            false => self.find_otherwise(target, (key, hash), mode, trace, take),
        }
    }

    /// The view for a read of several keys.
    pub(super) fn view_for(&self, target: ReadTarget<'_>) -> Arc<ReadView> {
        target.snapshot.and_then(|point| point.view.clone()).unwrap_or_else(|| self.shape.view())
    }

    /// Reads a key in `view`.
    #[inline(always)]
    fn find<'p>(
        &self,
        view: &'p ReadView,
        pin: &'p Pin<'_>,
        target: ReadTarget<'_>,
        (key, hash): (&'p [u8], impl FnOnce() -> KeyHash),
        mode: ReadFlags,
        trace: &mut impl ReadTrace,
    ) -> Result<Option<Hit<'p>>> {
        // The view first, the sequence number second: see `ReadView`.
        let hash = hash();
        let tree = tree_of(view, target.keyspace, target.name)?;
        let window = view.window(tree, key, target.seqno(), || view.visible(&self.sequence));
        let read = PointRead { key, hash, window, mode };
        view.get(tree, &read, target.at(), pin, trace)
    }

    /// A get that is timed, or reads in a store that is open read-only.
    #[cold]
    #[inline(never)]
    fn find_otherwise<R>(
        &self,
        target: ReadTarget<'_>,
        key: (&[u8], impl FnOnce() -> KeyHash),
        mode: ReadFlags,
        trace: &mut impl ReadTrace,
        take: impl FnOnce(Hit<'_>) -> R,
    ) -> Result<Option<R>> {
        let find = |view: &ReadView, pin: &Pin<'_>| Ok(self.find(view, pin, target, key, mode, trace)?.map(take));
        let find = || match target.snapshot.and_then(|point| point.view.as_ref()) {
            Some(view) => self.tables.epoch().pin(|pin| find(view, pin)),
            None => self.shape.with_view(find),
        };
        match self.options.slow_operation {
            None => find(),
            Some(_) => self.timed("get", Some(target.name), find),
        }
    }

    pub(super) fn get_into(&self, target: ReadTarget<'_>, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let found = self.get(target, key, ReadOptions::default().mode(), &mut Untraced, |value| {
            out.extend_from_slice(value.bytes())
        })?;
        Ok(found.is_some())
    }

    /// The value of a key and when it expires, if it does.
    pub(super) fn get_with_expiry(
        &self,
        target: ReadTarget<'_>,
        key: &[u8],
    ) -> Result<Option<(Value, Option<SystemTime>)>> {
        let mut deadline = LeastDeadline::default();
        let value = self.get(target, key, ReadOptions::default().mode(), &mut deadline, |hit| hit.into_value())?;
        Ok(value.map(|value| (value, deadline.time())))
    }

    pub(super) fn contains_key(&self, target: ReadTarget<'_>, key: &[u8]) -> Result<bool> {
        Ok(self.get(target, key, ReadOptions::default().keys_only(), &mut Untraced, |_| ())?.is_some())
    }

    pub(super) fn read<R>(
        &self,
        target: ReadTarget<'_>,
        key: &[u8],
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        let read = |value: &[u8]| self.timed_closure("read", || read(value));
        // Taken, not borrowed: a nested read finds an empty one. In an ending thread there is none.
        let mut copy = COPY.try_with(Cell::take).unwrap_or_default();
        copy.clear();
        let mut kept = None;
        let found = self.keep(target, key, &mut copy, &mut kept);
        let result = found.map(|found| match kept {
            None => found.then(|| read(&copy)),
            Some(Kept::InTable(value)) => Some(read(value.bytes())),
            Some(Kept::Owned(value)) => Some(read(&value)),
            Some(Kept::InMemtable(memtable, seqno)) => {
                // Looked up again: the memtable still has the entry, and only a borrow of the
                // memtable can lend its value.
                let entry = memtable.get(target.keyspace, key, KeyHash::new(self.seed, key), Window::up_to(seqno));
                entry.map(|entry| match entry.kind {
                    ValueKind::ExpiringPut => read(split_expiring(entry.value).1),
                    _ => read(entry.value),
                })
            }
        });
        let _ = COPY.try_with(|buffer| buffer.set(copy));
        result
    }

    /// Reads a key and keeps its value, in `kept` if it is long, else in `copy`, which is empty.
    /// Returns whether there is one. Compiled once, not for each closure of a caller.
    fn keep(&self, target: ReadTarget<'_>, key: &[u8], copy: &mut Vec<u8>, kept: &mut Option<Kept>) -> Result<bool> {
        let found = self.get(target, key, ReadOptions::default().mode(), &mut Untraced, |hit| match hit.bytes() {
            bytes if bytes.len() <= COPIED => copy.extend_from_slice(bytes),
            _ => *kept = Some(keep_long(hit)),
        })?;
        Ok(found.is_some())
    }

    pub(super) fn cursor(&self, target: ReadTarget<'_>, options: ReadOptions) -> Result<Cursor> {
        self.gate.check_open()?;
        let view = self.view_for(target);
        let tree = tree_of(&view, target.keyspace, target.name)?;
        let (seqno, covers) = view.covers(tree, target.seqno(), || view.visible(&self.sequence));
        let sources = view.cursor(tree, options.mode(), None);
        let at = target.at().unwrap_or_else(|| self.clock.time_of_read());
        Ok(Cursor::new(sources, view.clamp(tree, seqno), tree, covers, at))
    }

    pub(super) fn iter(&self, target: ReadTarget<'_>, range: KeySpan<Vec<u8>>, mode: ReadFlags) -> Iter {
        match self.try_iter(target, range, mode, None) {
            Ok((iter, _)) => iter,
            Err(error) => Iter::failed(error),
        }
    }

    /// Iterates over a range of the version that is returned, too. Tells `trace` what that reads.
    fn try_iter(
        &self,
        target: ReadTarget<'_>,
        range: KeySpan<Vec<u8>>,
        mode: ReadFlags,
        trace: Option<Arc<ScanTrace>>,
    ) -> Result<(Iter, Arc<Version>)> {
        self.gate.check_open()?;
        let view = self.view_for(target);
        let tree = tree_of(&view, target.keyspace, target.name)?.clone();
        let version = Arc::clone(&tree.version);
        let (seqno, covers) = view.covers(&tree, target.seqno(), || view.visible(&self.sequence));
        let probe = match (tree.options.prefix, mode.filters) {
            (None, _) | (_, FilterMode::Ignore) => None,
            (Some(extractor), filters) => common_prefix(&range, extractor)
                .map(|prefix| Arc::new(PrefixProbe::new(extractor, prefix, self.seed, filters))),
        };
        // Keeps only the parts of the view that this keyspace needs.
        let (active, sealed, horizon) = (Arc::clone(&view.active), view.sealed.clone(), Arc::clone(&view.horizon));
        let view = ReadView { active, sealed, trees: Trees::default(), horizon };
        let at = target.at().unwrap_or_else(|| self.clock.time_of_read());
        let open = move |limits: KeySpan<&[u8]>| {
            let mut sources = view.cursor(&tree, mode, probe.as_ref()).with_limits(limits);
            trace.iter().for_each(|trace| sources.set_trace(trace));
            let cursor = Cursor::new(sources, view.clamp(&tree, seqno), &tree, covers.clone(), at);
            if mode.values { cursor } else { cursor.without_values() }
        };
        Ok((Iter::new(range, Box::new(open)), version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::format::deadline::DEADLINE_LEN;
    use crate::vfs::SimFileSystem;

    /// A closure has the buffer with its value to itself, whatever it reads; also a value as long
    /// as the buffer takes, and a longer one, in memtables and tables.
    #[test]
    fn a_lent_value_stays_while_its_closure_reads_others() {
        let db = Options::new().file_system(Arc::new(SimFileSystem::new())).open("/db").unwrap();
        let values = [0, 1, 100, COPIED, COPIED + 1, 5000].map(|len| vec![7; len]);
        let entries = || (0u8..).zip(&values);
        for from_table in [false, true] {
            for (key, value) in entries() {
                db.put([key], value).unwrap();
            }
            if from_table {
                db.flush().unwrap();
            }
            for (key, outer) in entries() {
                let check = |lent: &[u8]| {
                    assert_eq!(db.read("absent", <[u8]>::len).unwrap(), None);
                    for (other, inner) in entries() {
                        assert_eq!(db.read([other], |value| value == inner).unwrap(), Some(true));
                    }
                    lent == outer
                };
                assert_eq!(db.read([key], check).unwrap(), Some(true));
            }
        }
    }

    /// A memtable cannot come to hold such entries by any call; a reader that met one must say so.
    #[test]
    fn law8_a_kind_that_no_memtable_has_is_an_error_issue_29() {
        for kind in [ValueKind::SeparatePut, ValueKind::SeparateExpiringPut] {
            let db = Options::new().file_system(Arc::new(SimFileSystem::new())).open("/db").unwrap();
            let seqno = db.put("a", "1").unwrap();
            let view = db.store().shape.view();
            // Older than what is visible, and newer than nothing: the key has no other version.
            view.active.writer().insert(0, b"b", seqno, kind, &[0; DEADLINE_LEN]);
            let found = [db.get("b").map(drop), db.contains_key("b").map(drop), db.multi_get(&["a", "b"]).map(drop)];
            for result in found {
                let error = result.unwrap_err().to_string();
                assert!(error.contains(&format!("kind {}", kind as u8)), "{error}");
            }
            assert_eq!(db.get("a").unwrap().as_deref(), Some(&b"1"[..]));
        }
    }
}
