//! What queries answer.

use std::cell::Cell;
use std::ops::ControlFlow;

use bytes::Bytes;

use super::bits::{count, position, range_of, replies};
use super::error::Result;
use super::layout::{Header, data_key, deadline_key, encode_record, on_wall, slot_start, user_key, value_of};
use super::lcs::lcs;
use super::reply::Reply;
use super::request::Query;
use super::scan::{self, Selection};
use super::slot::SLOTS;
use super::view::View;

/// Most bytes of values in the reply to one request. A longer reply becomes an error; a range is
/// cut short instead.
pub(crate) const MAX_REPLY_LEN: usize = 64 << 20;

/// What a read found.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The answer, without keys whose deadline is past.
    pub reply: Reply,
    /// Whether it lacks a key whose deadline is past by the reader's clock, but not by the log.
    /// For a linearizable read, propose [`Body::Tick`](super::Body::Tick) and read again: other
    /// replicas, or a later leader whose clock is behind, would still show the key.
    pub ahead_of_log: bool,
}

/// Reads a view at a time.
pub(super) struct Reader<'a, V> {
    view: &'a V,
    /// Time of the log.
    log_ms: u64,
    /// The reader's time; not before that of the log.
    now_ms: u64,
    /// Whether a key was hidden that is not expired by the log's time.
    ahead_of_log: Cell<bool>,
    /// Bytes of values read so far.
    read: Cell<usize>,
}

impl<'a, V: View> Reader<'a, V> {
    pub(super) fn new(view: &'a V, log_ms: u64, now_ms: u64) -> Reader<'a, V> {
        let (ahead_of_log, read) = Default::default();
        Reader { view, log_ms, now_ms: now_ms.max(log_ms), ahead_of_log, read }
    }

    pub(super) fn read(&self, query: &Query) -> Result<Reading> {
        let reply = self.run(query)?;
        Ok(Reading { reply, ahead_of_log: self.ahead_of_log.get() })
    }

    fn run(&self, query: &Query) -> Result<Reply> {
        match query {
            Query::Get(key) => self.get(key),
            Query::GetMany(keys) => self.get_many(keys),
            Query::Exists(keys) => {
                let mut present = 0;
                for key in keys {
                    present += i64::from(self.live(key, |_, _| ())?.is_some());
                }
                Ok(Reply::Integer(present))
            }
            Query::Length(key) => Ok(Reply::count(self.live(key, |_, value| value.len())?.unwrap_or(0))),
            Query::Type(key) => {
                let present = self.live(key, |_, _| ())?.is_some();
                Ok(Reply::Status(if present { "string" } else { "none" }.into()))
            }
            Query::SecondsLeft(key) => self.left(key, |millis| millis.saturating_add(500) / 1000),
            Query::MillisLeft(key) => self.left(key, |millis| millis),
            Query::Versions(keys) => {
                let version = |key: &Bytes| Ok(number(self.live(key, |header, _| header.version)?.unwrap_or(0)));
                Ok(Reply::Array(keys.iter().map(version).collect::<Result<_>>()?))
            }
            Query::Size => Ok(number(self.view.counters()?.keys)),
            Query::SlotSize(slot) => {
                let mut count = 0;
                self.view.scan(&slot_start(*slot), &slot_start(slot.saturating_add(1)), &mut |_, _| {
                    count += 1;
                    ControlFlow::Continue(())
                })?;
                Ok(Reply::Integer(count))
            }
            Query::Scan { from, count, pattern } => self.scan(*from, *count, pattern.as_deref()),
            Query::Range { start, end, limit, values } => self.range(start, end, *limit, *values),
            Query::Part { key, start, end } => {
                let part = |value: &[u8]| Reply::bulk(&value[range_of(*start, *end, value.len())]);
                Ok(self.live(key, |_, value| part(value))?.unwrap_or_else(|| Reply::bulk("")))
            }
            Query::Deadline { key, seconds } => {
                let ahead_ms = self.view.counters()?.ahead_ms;
                self.deadline(key, |deadline| match (on_wall(deadline, ahead_ms), seconds) {
                    (wall_ms, true) => wall_ms.saturating_add(500) / 1000,
                    (wall_ms, false) => wall_ms,
                })
            }
            Query::Bits { key, fields, single } => {
                let read = |value: &[u8]| replies(fields, *single, |field| Some(field.get(value)));
                Ok(self.live(key, |_, value| read(value))?.unwrap_or_else(|| read(&[])))
            }
            Query::BitCount { key, span } => Ok(number(self.live(key, |_, value| count(value, *span))?.unwrap_or(0))),
            Query::BitPosition { key, set, span } => {
                let found = self.live(key, |_, value| position(value, *set, *span))?;
                Ok(Reply::Integer(found.unwrap_or(if *set { -1 } else { 0 })))
            }
            Query::Lcs { a, b, answer } => {
                let value = |key| self.live(key, |_, value| value.to_vec()).map(Option::unwrap_or_default);
                Ok(lcs(&value(a)?, &value(b)?, *answer))
            }
            Query::Encoding(key) => Ok(self.live(key, |_, value| Reply::bulk(encoding(value)))?.unwrap_or(Reply::Nil)),
            Query::Usage(key) => {
                let usage = |header: Header, value: &[u8]| {
                    let deadline = header.deadline_ms.map_or(0, |deadline| deadline_key(deadline, key).len());
                    Reply::count(data_key(key).len() + encode_record(header, &[]).len() + value.len() + deadline)
                };
                Ok(self.live(key, usage)?.unwrap_or(Reply::Nil))
            }
            Query::Keys { first, end, pattern, limit } => self.keys(*first, *end, pattern.as_deref(), *limit),
            Query::Near(position) => self.near(*position),
        }
    }

    /// Whether a record is there for the reader.
    fn sees(&self, header: Header) -> bool {
        let hidden = header.has_expired(self.now_ms);
        self.ahead_of_log.set(self.ahead_of_log.get() || hidden && !header.has_expired(self.log_ms));
        !hidden
    }

    fn live<R>(&self, key: &[u8], read: impl FnOnce(Header, &[u8]) -> R) -> Result<Option<R>> {
        Ok(self.view.record(key, |header, value| self.sees(header).then(|| read(header, value)))?.flatten())
    }

    /// A value as a reply; `None` if the reply becomes too long with it.
    fn take(&self, value: &[u8]) -> Option<Reply> {
        let read = self.read.get() + value.len();
        self.read.set(read);
        (read <= MAX_REPLY_LEN).then(|| Reply::bulk(value))
    }

    fn get(&self, key: &[u8]) -> Result<Reply> {
        let value = self.live(key, |_, value| self.take(value).unwrap_or(TOO_LONG))?;
        Ok(value.unwrap_or(Reply::Nil))
    }

    fn get_many(&self, keys: &[Bytes]) -> Result<Reply> {
        let mut values = Vec::with_capacity(keys.len());
        for key in keys {
            match self.get(key)? {
                error @ Reply::Error(_) => return Ok(error),
                value => values.push(value),
            }
        }
        Ok(Reply::Array(values))
    }

    fn left(&self, key: &[u8], unit: impl FnOnce(u64) -> u64) -> Result<Reply> {
        self.deadline(key, |deadline| unit(deadline.saturating_sub(self.now_ms)))
    }

    fn deadline(&self, key: &[u8], show: impl FnOnce(u64) -> u64) -> Result<Reply> {
        let deadline = self.live(key, |header, _| header.deadline_ms)?;
        Ok(match deadline {
            None => Reply::Integer(-2),
            Some(None) => Reply::Integer(-1),
            Some(Some(deadline)) => number(show(deadline)),
        })
    }

    /// The keys of slots, in the order of the keyspace.
    fn keys(&self, first: u16, end: u16, pattern: Option<&[u8]>, limit: u64) -> Result<Reply> {
        let mut keys = Vec::new();
        let mut too_long = false;
        self.view.scan(&slot_start(first), &slot_start(end), &mut |key, record| {
            if keys.len() as u64 >= limit || too_long {
                return ControlFlow::Break(());
            }
            let matched = user_key(key).filter(|(_, key)| pattern.is_none_or(|it| super::glob::matches(it, key)));
            let seen = matched.filter(|_| Header::decode(record).is_some_and(|header| self.sees(header)));
            if let Some((_, key)) = seen {
                self.take_key(key).map_or_else(|| too_long = true, |key| keys.push(key));
            }
            ControlFlow::Continue(())
        })?;
        Ok(if too_long { TOO_LONG } else { Reply::Array(keys) })
    }

    /// Takes a key, and counts what holds it besides its bytes: there may be many short ones.
    fn take_key(&self, key: &[u8]) -> Option<Reply> {
        self.read.set(self.read.get() + size_of::<Reply>());
        self.take(key)
    }

    /// A key near a position: in its slot or the next one that has keys, the first one from the
    /// position's hash on. Behind the last, the first one follows.
    fn near(&self, position: u64) -> Result<Reply> {
        let mut slot = None;
        for first in [scan::slot_of_position(position), 0] {
            self.view.scan(&slot_start(first), &slot_start(SLOTS), &mut |key, record| {
                slot = user_key(key).filter(|_| Header::decode(record).is_some_and(|it| self.sees(it))).map(|it| it.0);
                if slot.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            if slot.is_some() {
                break;
            }
        }
        let Some(slot) = slot else { return Ok(Reply::Nil) };
        let start = scan::position_of_slot(slot);
        for from in [start + (position - scan::position_of_slot(scan::slot_of_position(position))), start] {
            let mut selection = Selection::new(from, 1);
            self.select(&mut selection, slot, slot + 1)?;
            if let Some(key) = selection.finish().1.into_iter().next() {
                return Ok(Reply::Bulk(key));
            }
        }
        Ok(Reply::Nil)
    }

    fn scan(&self, from: u64, count: u32, pattern: Option<&[u8]>) -> Result<Reply> {
        let mut selection = Selection::new(from, count);
        self.select(&mut selection, scan::slot_of_position(from), SLOTS)?;
        let (next, keys) = selection.finish();
        let keys = keys.into_iter().filter(|key| pattern.is_none_or(|it| super::glob::matches(it, key)));
        Ok(Reply::Array(vec![Reply::bulk(next.to_string()), Reply::Array(keys.map(Reply::Bulk).collect())]))
    }

    /// Offers the keys of slots from `first` on, before `end`.
    fn select(&self, selection: &mut Selection, first: u16, end: u16) -> Result<()> {
        self.view.scan(&slot_start(first), &slot_start(end), &mut |key, record| {
            match (user_key(key), Header::decode(record)) {
                (Some((slot, key)), Some(header)) => selection.offer(slot, key, || self.sees(header)),
                // A read of the damaged entry's value reports it.
                _ => ControlFlow::Continue(()),
            }
        })
    }

    fn range(&self, start: &[u8], end: &[u8], limit: u32, values: bool) -> Result<Reply> {
        let (mut found, mut entries) = (Vec::new(), 0);
        let mut damaged = None;
        self.view.scan(&data_key(start), &data_key(end), &mut |key, record| {
            let (Some((_, user_key)), Some(header)) = (user_key(key), Header::decode(record)) else {
                damaged = Some(key.to_vec());
                return ControlFlow::Break(());
            };
            if !self.sees(header) {
                return ControlFlow::Continue(());
            }
            if entries == limit {
                return ControlFlow::Break(());
            }
            let key = self.take(user_key);
            let value = if values { self.take(value_of(record)).map(Some) } else { Some(None) };
            let (Some(key), Some(value)) = (key, value) else { return ControlFlow::Break(()) };
            found.push(key);
            found.extend(value);
            entries += 1;
            ControlFlow::Continue(())
        })?;
        match damaged {
            Some(key) => Err(self.view.damaged(&key, "a record begins with kind, version and deadline")),
            None => Ok(Reply::Array(found)),
        }
    }
}

/// What a read answers whose values would not fit into memory beside those of others.
pub(crate) const TOO_LONG: Reply =
    Reply::Error(std::borrow::Cow::Borrowed("ERR the reply would be longer than 64 MiB; ask for fewer keys at once"));

/// How Redis would store a value.
fn encoding(value: &[u8]) -> &'static str {
    const EMBEDDED: usize = 44;
    match value.len() {
        ..=20 if super::apply::parse_integer(value).is_some() => "int",
        ..=EMBEDDED => "embstr",
        _ => "raw",
    }
}

fn number(number: u64) -> Reply {
    Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}
