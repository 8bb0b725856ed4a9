//! [`View`]: what queries read, be it the store or the store with the changes of the entry that is
//! being applied.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;

use super::error::{Error, Result, Stop};
use super::layout::{
    COUNTERS, Counters, Header, data_key, deadline_key, encode_record, meta_key, session_key, use_key, value_of,
};
use super::reply::Reply;

/// What [`View::scan`] calls with each entry's key and value, until it breaks.
pub(super) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A group's keyspace at one moment.
pub(super) trait View {
    /// Name of the keyspace, for errors.
    fn name(&self) -> &str;

    /// Calls `read` with the value of a key of the keyspace.
    fn read<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>>;

    /// Visits the entries from `from` up to but not including `to`, in order.
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit) -> Result<()>;

    /// The error that says that an entry is damaged.
    fn damaged(&self, key: &[u8], rule: &'static str) -> Error {
        Error::Damaged { keyspace: self.name().to_owned(), key: key.to_vec(), rule }
    }

    /// Calls `read` with header and value of a user's key, expired or not.
    fn record<R>(&self, key: &[u8], read: impl FnOnce(Header, &[u8]) -> R) -> Result<Option<R>> {
        let key = data_key(key);
        let read = self.read(&key, |record| Header::decode(record).map(|header| read(header, value_of(record))))?;
        match read {
            None => Ok(None),
            Some(Some(found)) => Ok(Some(found)),
            Some(None) => Err(self.damaged(&key, "a record begins with kind, version and deadline")),
        }
    }

    /// The group's counters; zeros if there are none.
    fn counters(&self) -> Result<Counters> {
        match self.read(COUNTERS, Counters::decode)? {
            None => Ok(Counters::default()),
            Some(Some(counters)) => Ok(counters),
            Some(None) => Err(self.damaged(COUNTERS, "counters are five or six numbers")),
        }
    }
}

/// A keyspace as it is now: each call may see another moment.
impl View for tamis::Keyspace {
    fn name(&self) -> &str {
        tamis::Keyspace::name(self)
    }

    fn read<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        Ok(tamis::Keyspace::read(self, key, read)?)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit) -> Result<()> {
        visit_cursor(self.cursor()?, from, to, visit)
    }
}

/// A keyspace at the moment of a snapshot.
pub(super) struct At<'a> {
    pub(super) name: &'a str,
    pub(super) snapshot: tamis::Snapshot,
}

impl View for At<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn read<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        Ok(self.snapshot.read(key, read)?)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit) -> Result<()> {
        visit_cursor(self.snapshot.cursor()?, from, to, visit)
    }
}

fn visit_cursor(mut cursor: tamis::Cursor, from: &[u8], to: &[u8], visit: &mut Visit) -> Result<()> {
    cursor.seek(from)?;
    while let (Some(key), Some(value)) = (cursor.key(), cursor.value()) {
        if key >= to || visit(key, value).is_break() {
            break;
        }
        cursor.next()?;
    }
    Ok(())
}

/// Where records and their deadlines are.
const USERS: std::ops::Range<&[u8]> = b"d"..b"f";

fn is_users(key: &[u8]) -> bool {
    USERS.contains(&key)
}

/// Most bytes of keys and values that one entry puts: more than the longest entry has, so that only
/// requests that rewrite long values, such as EXPIRE, can exceed it.
pub(super) const MAX_CHANGE: usize = 64 << 20;

/// The keyspace with what an entry has changed so far.
pub(super) struct Pending<'a> {
    base: &'a tamis::Keyspace,
    /// New values; `None` deletes. Ordered, so that equal entries make equal batches.
    changes: BTreeMap<Vec<u8>, Option<Bytes>>,
    /// What the request being applied has replaced in `changes`, in its order.
    replaced: Vec<(Vec<u8>, Option<Option<Bytes>>)>,
    /// Whether the users' keys of `base` are deleted, and whether they were before the request.
    cleared: (bool, bool),
    /// The counters after the changes. `time_ms` is the entry's time.
    pub(super) counters: Counters,
    /// Bytes of the keys and values put.
    put: usize,
    /// `counters` and `put` before the request being applied.
    before: (Counters, usize),
}

impl<'a> Pending<'a> {
    pub(super) fn new(base: &'a tamis::Keyspace, counters: Counters) -> Pending<'a> {
        Pending {
            base,
            changes: BTreeMap::new(),
            replaced: Vec::new(),
            cleared: (false, false),
            counters,
            put: 0,
            before: (counters, 0),
        }
    }

    /// Ends a request: its changes stay.
    pub(super) fn keep(&mut self) {
        self.replaced.clear();
        self.cleared.1 = self.cleared.0;
        self.before = (self.counters, self.put);
    }

    /// Ends a request: its changes are undone. Returns whether it is the only one that has put
    /// anything.
    pub(super) fn undo(&mut self) -> bool {
        for (key, old) in self.replaced.drain(..).rev() {
            match old {
                Some(change) => self.changes.insert(key, change),
                None => self.changes.remove(&key),
            };
        }
        self.cleared.0 = self.cleared.1;
        (self.counters, self.put) = self.before;
        self.put == 0
    }

    /// Checks that so many more bytes may be put.
    fn check_room(&self, bytes: usize) -> Result<(), Stop> {
        if self.put + bytes > MAX_CHANGE { Err(Stop::TooMuch) } else { Ok(()) }
    }

    /// A copy of a value that is to be put again. Values may be long: one that is too much is not
    /// copied.
    pub(super) fn copy(&self, key: &[u8], value: &[u8]) -> Result<Bytes, Stop> {
        self.check_room(key.len() + value.len())?;
        Ok(Bytes::copy_from_slice(value))
    }

    fn change(&mut self, key: Vec<u8>, value: Option<Bytes>) {
        let old = self.changes.insert(key.clone(), value);
        self.replaced.push((key, old));
    }

    /// A number that was never given out before.
    pub(super) fn number(&mut self) -> u64 {
        self.counters.last_number += 1;
        self.counters.last_number
    }

    /// Calls `read` with header and value of a user's key that has not expired.
    pub(super) fn live<R>(&self, key: &[u8], read: impl FnOnce(Header, &[u8]) -> R) -> Result<Option<R>> {
        let now = self.counters.time_ms;
        Ok(self.record(key, |header, value| (!header.has_expired(now)).then(|| read(header, value)))?.flatten())
    }

    /// Writes a user's key; the parts of `value` are put together. With a deadline that is past,
    /// deletes it.
    pub(super) fn put(&mut self, key: &[u8], value: &[&[u8]], deadline_ms: Option<u64>) -> Result<(), Stop> {
        let bytes = key.len() + value.iter().map(|part| part.len()).sum::<usize>();
        self.check_room(bytes)?;
        self.put += bytes;
        self.remove(key)?;
        let header = Header { version: self.number(), deadline_ms };
        if header.has_expired(self.counters.time_ms) {
            return Ok(());
        }
        if let Some(deadline_ms) = deadline_ms {
            self.change(deadline_key(deadline_ms, key), Some(Bytes::new()));
        }
        self.change(data_key(key), Some(encode_record(header, value)));
        self.counters.keys += 1;
        Ok(())
    }

    /// Deletes a user's key, expired or not, and its deadline.
    pub(super) fn remove(&mut self, key: &[u8]) -> Result<()> {
        let Some(header) = self.record(key, |header, _| header)? else { return Ok(()) };
        if let Some(deadline_ms) = header.deadline_ms {
            self.change(deadline_key(deadline_ms, key), None);
        }
        self.change(data_key(key), None);
        self.counters.keys = self.counters.keys.saturating_sub(1);
        Ok(())
    }

    /// Writes a user's key, with the deadline that it has, after `edit` has changed its value. An
    /// absent key is an empty value; `edit` is told whether it is there. An error of `edit` is the
    /// reply, and nothing is written.
    pub(super) fn edit(
        &mut self,
        key: &[u8],
        edit: impl FnOnce(&mut Vec<u8>, bool) -> Result<Reply, Reply>,
    ) -> Result<Reply, Stop> {
        let copy = |header: Header, value: &[u8]| {
            self.check_room(key.len() + value.len()).map(|()| (header.deadline_ms, value.to_vec()))
        };
        let old = self.live(key, copy)?.transpose()?;
        let present = old.is_some();
        let (deadline_ms, mut value) = old.unwrap_or_default();
        match edit(&mut value, present) {
            Ok(reply) => {
                self.put(key, &[&value], deadline_ms)?;
                Ok(reply)
            }
            Err(reply) => Ok(reply),
        }
    }

    /// Deletes all users' keys.
    pub(super) fn clear(&mut self) {
        let mut users = self.changes.split_off(USERS.start);
        self.changes.append(&mut users.split_off(USERS.end));
        self.replaced.extend(users.into_iter().map(|(key, change)| (key, Some(change))));
        self.cleared.0 = true;
        self.counters.keys = 0;
    }

    pub(super) fn put_session(&mut self, session: u64, used: u64, value: Vec<u8>) {
        self.change(session_key(session), Some(Bytes::from(value)));
        self.change(use_key(used, session), Some(Bytes::new()));
    }

    pub(super) fn remove_use(&mut self, session: u64, used: u64) {
        self.change(use_key(used, session), None);
    }

    pub(super) fn remove_session(&mut self, session: u64, use_key: Vec<u8>) {
        self.change(session_key(session), None);
        self.change(use_key, None);
        self.counters.sessions = self.counters.sessions.saturating_sub(1);
    }

    /// One batch of all changes and the caller's pairs.
    pub(super) fn into_batch(mut self, meta: &[(&[u8], &[u8])]) -> tamis::WriteBatch {
        self.changes.insert(COUNTERS.to_vec(), Some(self.counters.encode()));
        for (name, value) in meta {
            self.changes.insert(meta_key(name), Some(Bytes::copy_from_slice(value)));
        }
        let mut batch = tamis::WriteBatch::new();
        if self.cleared.0 {
            batch.delete_range_in(self.base, USERS);
        }
        for (key, value) in self.changes {
            match value {
                Some(value) => batch.put_in(self.base, key, value),
                None => batch.delete_in(self.base, key),
            }
        }
        batch
    }
}

impl View for Pending<'_> {
    fn name(&self) -> &str {
        tamis::Keyspace::name(self.base)
    }

    fn read<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        match self.changes.get(key) {
            Some(change) => Ok(change.as_deref().map(read)),
            None if self.cleared.0 && is_users(key) => Ok(None),
            None => View::read(self.base, key, read),
        }
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let mut cursor = self.base.cursor()?;
        // A scan stays among keys of one kind: of what is deleted, it reads nothing.
        cursor.seek(if self.cleared.0 && is_users(from) { to } else { from })?;
        let mut changes = self.changes.range(from.to_vec()..to.to_vec()).peekable();
        loop {
            let stored = cursor.key().zip(cursor.value()).filter(|(key, _)| *key < to);
            let flow = match (stored, changes.peek()) {
                (None, None) => return Ok(()),
                (Some((key, value)), change) if change.is_none_or(|(changed, _)| key < &changed[..]) => {
                    let flow = visit(key, value);
                    cursor.next()?;
                    flow
                }
                (stored, _) => {
                    let Some((key, change)) = changes.next() else { return Ok(()) };
                    if stored.is_some_and(|(stored, _)| stored == &key[..]) {
                        cursor.next()?;
                    }
                    change.as_ref().map_or(ControlFlow::Continue(()), |value| visit(key, value))
                }
            };
            if flow.is_break() {
                return Ok(());
            }
        }
    }

    fn counters(&self) -> Result<Counters> {
        Ok(self.counters)
    }
}
