//! The state machine: what log entries do to a store.
//!
//! Everything it does follows from the entries alone: it asks no clock, draws no random number and
//! iterates in the order of keys. Two machines that have applied the same entries hold the same
//! bytes. A change of what entries do must not reach a group while some of its nodes lack it.

mod apply;
mod bits;
mod decimal;
mod error;
mod glob;
mod layout;
mod lcs;
mod query;
mod records;
mod reply;
mod request;
mod scan;
mod session;
mod slot;
mod version;
mod view;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;

pub use apply::parse_integer;
pub use bits::{BitField, BitOperator, FieldAction, Overflow, Span};
pub use decimal::Decimal;
pub use error::{Error, Result};
pub use glob::matches;
pub use lcs::LcsAnswer;
pub use query::Reading;
pub(crate) use query::{MAX_REPLY_LEN, TOO_LONG};
pub use records::{Record, Records};
pub use reply::Reply;
pub use request::{
    Body, Condition, Deadline, DecodeError, Entry, ExpireCondition, MAX_KEY_LEN, MAX_VALUE_LEN, NewDeadline, Operation,
    Query, Request, Serial, SetAnswer, Step,
};
pub use scan::{position_of_slot, slot_of_position};
pub use session::MAX_SESSIONS;
pub use slot::{GroupId, SLOTS, group_of, slot_of, slots_of};
pub use version::Version;

use error::Stop;
use layout::{Counters, deadline_start, expiring_key, meta_key};
use query::Reader;
use view::{At, Pending, View};

#[cfg(test)]
mod tests;

/// Most expired keys that one entry removes. Others stay hidden until the entries that follow.
const MAX_REMOVALS: usize = 256;

/// A group's state in a store.
///
/// All of it is in one keyspace, `group-N`, without a log of its own: the group's log is its log. A
/// flush writes data, sessions and the caller's meta pairs together, so that a crash takes the
/// state back to a moment between two entries, never into one.
///
/// One thread applies at a time; any number of threads read meanwhile.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let db = tamis::Db::open(dir.path().join("db"))?;
/// use kvd::machine::{Body, Entry, Machine, Operation, Query, Reply, Request};
///
/// let machine = Machine::open(&db, 0)?;
/// let add = Operation::Add { key: "visits".into(), delta: 1 };
/// let entry = Entry { time_ms: 1000, requests: vec![Request::new(Body::Run(add))] };
/// assert_eq!(machine.apply(&entry, &[(b"applied", b"17")])?, [Reply::Integer(1)]);
/// assert_eq!(machine.read(&Query::Get("visits".into()), 1000)?.reply, Reply::bulk("1"));
/// assert_eq!(machine.meta(b"applied")?.as_deref(), Some(&b"17"[..]));
/// # Ok(()) }
/// ```
pub struct Machine {
    db: tamis::Db,
    keyspace: tamis::Keyspace,
    /// Held while an entry is applied.
    applying: Mutex<()>,
    /// Time of the last entry, for readers.
    time_ms: AtomicU64,
    /// How far that is ahead of the time on the wall.
    ahead_ms: AtomicI64,
}

impl Machine {
    /// Opens the state of a group, which is empty at first.
    pub fn open(db: &tamis::Db, group: GroupId) -> Result<Machine> {
        Machine::open_in(db, &Machine::keyspace_name(group))
    }

    /// Opens the state that is in the keyspace called `keyspace`, which is made if it is absent.
    pub fn open_in(db: &tamis::Db, keyspace: &str) -> Result<Machine> {
        let options = tamis::KeyspaceOptions::new().wal(false);
        Machine::of(db, db.keyspace_with(keyspace, options)?)
    }

    /// Opens the state that is in `keyspace`.
    pub(crate) fn of(db: &tamis::Db, keyspace: tamis::Keyspace) -> Result<Machine> {
        let Counters { time_ms, ahead_ms, .. } = keyspace.counters()?;
        let (time_ms, ahead_ms) = (AtomicU64::new(time_ms), AtomicI64::new(ahead_ms));
        Ok(Machine { db: db.clone(), keyspace, applying: Mutex::new(()), time_ms, ahead_ms })
    }

    /// Name of the keyspace that holds a group's state: what a snapshot of the group must copy.
    pub fn keyspace_name(group: GroupId) -> String {
        format!("group-{group}")
    }

    /// Applies an entry: one batch with all its effects and the caller's `meta` pairs, which may be
    /// the entry's index in the log or a membership. Returns one reply for each request.
    ///
    /// After an error of the store, the whole entry is there or nothing of it; `meta` says which.
    /// An entry without requests stores `meta` and lets time pass.
    pub fn apply(&self, entry: &Entry, meta: &[(&[u8], &[u8])]) -> Result<Vec<Reply>> {
        let _applying = self.applying.lock();
        let mut pending = Pending::new(&self.keyspace, self.keyspace.counters()?);
        pending.counters.time_ms = pending.counters.time_ms.max(entry.time_ms);
        remove_expired(&mut pending)?;
        pending.keep();
        let mut replies = Vec::with_capacity(entry.requests.len());
        let mut reply_len = 0;
        for request in &entry.requests {
            let reply = if reply_len > MAX_REPLY_LEN {
                Reply::error("TRYAGAIN replies of requests before this one are too long; this one was not applied")
            } else {
                apply_request(&mut pending, request)?
            };
            reply_len += reply.weight();
            replies.push(reply);
        }
        let Counters { time_ms, ahead_ms, .. } = pending.counters;
        self.db.write(pending.into_batch(meta))?;
        self.ahead_ms.store(ahead_ms, Ordering::Release);
        self.time_ms.store(time_ms, Ordering::Release);
        Ok(replies)
    }

    /// A meta pair's value, as the last entry that named it stored it.
    pub fn meta(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        View::read(&self.keyspace, &meta_key(name), <[u8]>::to_vec)
    }

    /// Reads, hiding what has expired by the log's time or by `now_ms`, whichever is later. All
    /// keys of a query are read at one moment.
    pub fn read(&self, query: &Query, now_ms: u64) -> Result<Reading> {
        // Taken before the view: a later time could hide a key that a write not in the view keeps
        // from expiring.
        let time_ms = self.time_ms();
        if query.reads_one_key() {
            // A snapshot would cost more than the read.
            return Reader::new(&self.keyspace, time_ms, now_ms).read(query);
        }
        let view = At { name: self.keyspace.name(), snapshot: self.keyspace.snapshot() };
        Reader::new(&view, time_ms, now_ms).read(query)
    }

    /// The time of the last entry applied, in milliseconds since 1970 by the log.
    pub fn time_ms(&self) -> u64 {
        self.time_ms.load(Ordering::Acquire)
    }

    /// How far the log's time is ahead of that on the wall, as [`Body::SetTime`] has found it.
    pub fn ahead_ms(&self) -> i64 {
        self.ahead_ms.load(Ordering::Acquire)
    }

    /// A time on the wall as one of the log.
    pub fn log_ms(&self, wall_ms: u64) -> u64 {
        wall_ms.saturating_add_signed(self.ahead_ms())
    }

    /// The deadline of the key that expires first. Once it is past, a leader with no writes to
    /// propose proposes [`Body::Tick`], or expired keys would use space until the next write.
    pub fn next_deadline_ms(&self) -> Result<Option<u64>> {
        let mut next = None;
        let swept_ms = self.keyspace.counters()?.swept_ms;
        self.keyspace.scan(&deadline_start(swept_ms), &deadline_start(u64::MAX), &mut |key, _| {
            next = expiring_key(key).map(|(deadline, _)| deadline);
            ControlFlow::Break(())
        })?;
        Ok(next)
    }

    /// The keyspace that holds the group's state. An entry of the log may be purged once a flush of
    /// it, or [`tamis::Db::flushed_seqno`], covers the batch that applied the entry.
    pub fn keyspace(&self) -> &tamis::Keyspace {
        &self.keyspace
    }
}

/// Removes keys that have expired by the entry's time, those that did so first.
fn remove_expired(pending: &mut Pending) -> Result<()> {
    let Counters { time_ms, swept_ms, .. } = pending.counters;
    if swept_ms > time_ms {
        return Ok(());
    }
    let mut expired = Vec::new();
    let mut last = time_ms;
    pending.scan(&deadline_start(swept_ms), &deadline_start(time_ms.saturating_add(1)), &mut |key, _| {
        let Some((deadline, key)) = expiring_key(key) else { return ControlFlow::Continue(()) };
        if expired.len() == MAX_REMOVALS {
            last = deadline - 1;
            return ControlFlow::Break(());
        }
        expired.push(key.to_vec());
        ControlFlow::Continue(())
    })?;
    // Deadlines that are set from now on are later than the entry's time.
    pending.counters.swept_ms = last + 1;
    expired.iter().try_for_each(|key| pending.remove(key))
}

/// Applies a request as a whole, or answers why it was not applied.
fn apply_request(pending: &mut Pending, request: &Request) -> Result<Reply> {
    let applied = match request.session {
        None => apply_body(pending, &request.body),
        Some(serial) => session::once(pending, serial, |pending| apply_body(pending, &request.body)),
    };
    match applied {
        Ok(reply) => {
            pending.keep();
            Ok(reply)
        }
        Err(Stop::TooMuch) if pending.undo() => {
            Ok(Reply::error("ERR the values that this rewrites have more than 64 MiB together; nothing was applied"))
        }
        Err(Stop::TooMuch) => {
            Ok(Reply::error("TRYAGAIN too many long values are being rewritten; nothing was applied"))
        }
        Err(Stop::Failed(error)) => Err(error),
    }
}

fn apply_body(pending: &mut Pending, body: &Body) -> Result<Reply, Stop> {
    match body {
        Body::Tick | Body::Upgrade(_) => Ok(Reply::OK),
        Body::OpenSession => Ok(session::open(pending)?),
        Body::SetTime(wall_ms) => {
            let ahead_ms = i128::from(pending.counters.time_ms) - i128::from(*wall_ms);
            pending.counters.ahead_ms = i64::try_from(ahead_ms).unwrap_or(i64::MAX);
            Ok(Reply::OK)
        }
        Body::Run(operation) => apply::run(pending, operation),
        Body::Transaction { watched, steps } => {
            for (key, version) in watched {
                if pending.live(key, |header, _| header.version)?.unwrap_or(0) != *version {
                    return Ok(Reply::NilArray);
                }
            }
            let mut replies = Vec::with_capacity(steps.len());
            let mut reply_len = 0;
            for step in steps {
                let (reply, otherwise) = match step {
                    Step::Write(operation) => (apply::run(pending, operation)?, Reply::NOT_KEPT),
                    // Whatever it reads could not be answered.
                    Step::Read(_) if reply_len > MAX_REPLY_LEN => (query::TOO_LONG, query::TOO_LONG),
                    Step::Read(query) => {
                        let time_ms = pending.counters.time_ms;
                        let reply = Reader::new(&*pending, time_ms, time_ms).read(query)?.reply;
                        if reply == query::TOO_LONG {
                            reply_len = MAX_REPLY_LEN;
                        }
                        (reply, query::TOO_LONG)
                    }
                };
                reply_len += reply.weight();
                replies.push(if reply_len > MAX_REPLY_LEN { otherwise } else { reply });
            }
            Ok(Reply::Array(replies))
        }
    }
}
