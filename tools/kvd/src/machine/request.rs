//! What log entries hold: [`Entry`], [`Request`], [`Operation`], and [`Query`], which is read
//! without one.
//!
//! The encoding is postcard's of these types, behind one byte: the [`Version`] that can read it.
//! Entries stay in logs for long, and other nodes may be older: add variants at the end, with a new
//! version if the last one was released, and never change one.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::bits::{BitField, BitOperator, Span};
use super::decimal::Decimal;
use super::lcs::LcsAnswer;
use super::version::Version;

/// Longest key, in bytes.
pub const MAX_KEY_LEN: usize = 65_535;

/// Longest value, in bytes. A longer one would hold up a log that all clients of a group share.
pub const MAX_VALUE_LEN: usize = 16 << 20;

/// What one log entry holds: the requests of many clients, applied in order and as one batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When the leader proposed the entry, in milliseconds since 1970 by the clock of the group,
    /// which need not be that on the wall: see [`Body::SetTime`].
    ///
    /// All replicas decide by it what has expired. A time before that of an earlier entry counts
    /// as that one's: time in the log does not go back.
    pub time_ms: u64,
    /// What clients asked for.
    pub requests: Vec<Request>,
}

/// What one client asked for: it is applied as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Who asks, if a retry must not be applied twice.
    pub session: Option<Serial>,
    /// What is to be done.
    pub body: Body,
}

/// A session's request number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serial {
    /// The session, as [`Body::OpenSession`] answered it.
    pub session: u64,
    /// Greater for each request of the session; a retry has the number of what it retries.
    pub serial: u64,
}

/// What a request does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Body {
    /// Nothing, other than to let time pass: what has expired by the entry's time is removed.
    Tick,
    /// Opens a session and answers its number.
    OpenSession,
    /// One operation.
    Run(Operation),
    /// Steps that are applied together if no watched key has changed. Answers an array with the
    /// reply of each step, or [`Reply::NilArray`](super::Reply::NilArray).
    Transaction {
        /// Keys and the versions in which the client saw them.
        watched: Vec<(Bytes, u64)>,
        /// What to do.
        steps: Vec<Step>,
    },
    /// From now on, the entry's time is this one on the wall, in milliseconds since 1970: clients'
    /// times since 1970 are so many milliseconds away from it. The log's own time, and with it how
    /// long each key still lives, stays as it is.
    SetTime(u64),
    /// From now on, entries may be of this version: all members can read it. Changes nothing in
    /// the state.
    Upgrade(Version),
}

/// A step of a transaction. All its keys are in the slots of one group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Step {
    /// A write.
    Write(Operation),
    /// A read. It sees the writes before it.
    Read(Query),
}

/// A write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Operation {
    /// SET and its relatives.
    Set {
        /// The key.
        key: Bytes,
        /// The new value.
        value: Bytes,
        /// Whether to write.
        condition: Condition,
        /// When the key expires from now on.
        deadline: Deadline,
        /// What to answer.
        answer: SetAnswer,
    },
    /// MSET: writes all pairs, without deadlines. Answers `OK`.
    SetMany(Vec<(Bytes, Bytes)>),
    /// DEL. Answers how many keys there were.
    Delete(Vec<Bytes>),
    /// GETDEL. Answers the value that was deleted.
    Take(Bytes),
    /// INCR, DECRBY and so on. Answers the sum.
    Add {
        /// The key; an absent one counts as zero.
        key: Bytes,
        /// What to add.
        delta: i64,
    },
    /// APPEND. Answers the new length.
    Append {
        /// The key; an absent one counts as empty.
        key: Bytes,
        /// What to add at the end.
        suffix: Bytes,
    },
    /// EXPIRE and its relatives. Answers 1 if the deadline was changed, otherwise 0.
    Expire {
        /// The key.
        key: Bytes,
        /// The new deadline.
        deadline: NewDeadline,
        /// Whether to change it.
        condition: ExpireCondition,
    },
    /// PERSIST. Answers 1 if a deadline was removed, otherwise 0.
    Persist(Bytes),
    /// Compare and swap. Answers 1 if the value was the expected one, otherwise 0.
    Swap {
        /// The key.
        key: Bytes,
        /// The value that it must have; `None`: it must be absent.
        expected: Option<Bytes>,
        /// The value that it gets, without a deadline; `None`: it is deleted.
        new: Option<Bytes>,
    },
    /// MSETNX: writes all pairs if no key is there. Answers 1 or 0.
    SetManyIfAbsent(Vec<(Bytes, Bytes)>),
    /// GETEX with an option. Answers the value.
    GetExpiring {
        /// The key.
        key: Bytes,
        /// Its new deadline; `None`: it gets none.
        deadline: Option<NewDeadline>,
    },
    /// INCRBYFLOAT. Answers the sum.
    AddDecimal {
        /// The key; an absent one counts as zero.
        key: Bytes,
        /// What to add.
        delta: Decimal,
    },
    /// SETRANGE. Answers the length.
    Overwrite {
        /// The key; an absent one counts as empty.
        key: Bytes,
        /// Where to write; zeros fill what lacks before.
        offset: u64,
        /// What to write.
        part: Bytes,
    },
    /// SETBIT and BITFIELD. Answers an array, or the only field.
    Bits {
        /// The key; an absent one counts as empty.
        key: Bytes,
        /// Which numbers to read and write, in order.
        fields: Vec<BitField>,
        /// Whether to answer the first field instead of an array.
        single: bool,
    },
    /// BITOP. Answers the length of the result.
    Combine {
        /// The key to write.
        to: Bytes,
        /// How.
        operator: BitOperator,
        /// The keys to combine; absent ones count as empty.
        from: Vec<Bytes>,
    },
    /// COPY and RENAME, with the deadline. COPY answers 1 or 0, RENAME `OK` or 0.
    Copy {
        /// The key to read.
        from: Bytes,
        /// The key to write.
        to: Bytes,
        /// Whether a key that is there is written.
        replace: bool,
        /// Whether the key that was read stays (COPY). Otherwise it must be there.
        keep: bool,
    },
    /// FLUSHALL: deletes all keys of the group. Sessions stay.
    Clear,
}

/// Whether SET writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// In any case.
    Always,
    /// If the key is absent (NX).
    IfAbsent,
    /// If the key is present (XX).
    IfPresent,
    /// If the key has this value (IFEQ).
    IfEqual(Bytes),
}

/// What SET does to a key's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deadline {
    /// The key never expires.
    None,
    /// It expires when it would have (KEEPTTL).
    Keep,
    /// It gets a new one.
    New(NewDeadline),
}

/// A deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewDeadline {
    /// Milliseconds after the entry's time. Negative numbers are in the past.
    In(i64),
    /// At this time on the wall, in milliseconds since 1970.
    At(i64),
}

/// Whether EXPIRE changes a deadline: all that are true must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExpireCondition {
    /// NX: there is no deadline.
    pub none: bool,
    /// XX: there is one.
    pub some: bool,
    /// GT: the new one is later. No deadline counts as later than any.
    pub later: bool,
    /// LT: the new one is earlier.
    pub earlier: bool,
}

/// What SET answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetAnswer {
    /// `OK`, or nil if the condition did not hold.
    Ok,
    /// The value before (SET with GET, GETSET).
    Old,
    /// 1, or 0 if the condition did not hold (SETNX).
    Integer,
}

/// A read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Query {
    /// GET.
    Get(Bytes),
    /// MGET.
    GetMany(Vec<Bytes>),
    /// EXISTS. Answers how many of the keys there are; one named twice counts twice.
    Exists(Vec<Bytes>),
    /// STRLEN.
    Length(Bytes),
    /// TYPE.
    Type(Bytes),
    /// TTL. Answers the seconds left, −1 without a deadline, −2 for an absent key.
    SecondsLeft(Bytes),
    /// PTTL, likewise in milliseconds.
    MillisLeft(Bytes),
    /// The keys' versions, for WATCH. A version is never used twice; that of an absent key is 0.
    Versions(Vec<Bytes>),
    /// DBSIZE: how many keys the group holds, including those that have expired and are not yet
    /// removed.
    Size,
    /// How many keys a slot holds.
    SlotSize(u16),
    /// SCAN. Answers the position to go on from, 0 at the end, and keys.
    Scan {
        /// The position to start from: 0 or what the scan before answered.
        from: u64,
        /// How many keys to look at, at least.
        count: u32,
        /// The pattern that keys must match to be in the answer.
        pattern: Option<Bytes>,
    },
    /// The entries of one slot from a key to another, in order.
    Range {
        /// The first key.
        start: Bytes,
        /// The key to stop before. It is in the slot of `start`.
        end: Bytes,
        /// Most entries to answer.
        limit: u32,
        /// Whether to answer values, each behind its key.
        values: bool,
    },
    /// GETRANGE: the bytes from the first to the last; negative positions count from the end.
    Part {
        /// The key.
        key: Bytes,
        /// The first byte.
        start: i64,
        /// The last byte.
        end: i64,
    },
    /// EXPIRETIME and PEXPIRETIME. Answers the deadline, −1 without one, −2 for an absent key.
    Deadline {
        /// The key.
        key: Bytes,
        /// Whether in seconds; otherwise in milliseconds.
        seconds: bool,
    },
    /// GETBIT, and BITFIELD that only reads. Answers as [`Operation::Bits`] does.
    Bits {
        /// The key; an absent one counts as empty.
        key: Bytes,
        /// Which numbers to read.
        fields: Vec<BitField>,
        /// Whether to answer the first field instead of an array.
        single: bool,
    },
    /// BITCOUNT.
    BitCount {
        /// The key.
        key: Bytes,
        /// Where to count.
        span: Span,
    },
    /// BITPOS.
    BitPosition {
        /// The key.
        key: Bytes,
        /// Whether to look for a bit that is set.
        set: bool,
        /// Where to look.
        span: Span,
    },
    /// LCS.
    Lcs {
        /// One key.
        a: Bytes,
        /// The other key.
        b: Bytes,
        /// What to answer.
        answer: LcsAnswer,
    },
    /// OBJECT ENCODING, as Redis would store the value.
    Encoding(Bytes),
    /// MEMORY USAGE: the bytes that the key's entries have before compression.
    Usage(Bytes),
    /// KEYS and CLUSTER GETKEYSINSLOT: the keys of some slots.
    Keys {
        /// The first slot.
        first: u16,
        /// The slot behind the last.
        end: u16,
        /// The pattern that keys must match.
        pattern: Option<Bytes>,
        /// Most keys to answer.
        limit: u64,
    },
    /// RANDOMKEY: the key that is next to a position that the proposer or reader has drawn.
    Near(u64),
}

/// Why bytes are not an entry.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DecodeError {
    /// They were written by a newer version of kvd, or are something else.
    #[error("the entry has version {0}, this kvd knows versions up to {latest}: use a newer one", latest = Version::LATEST)]
    Version(Version),
    /// They are cut short or damaged.
    #[error("the entry's bytes are damaged: {0}")]
    Damaged(&'static str),
}

impl Entry {
    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.version().number());
        encode_value(self, out);
    }

    /// The first version that can read it.
    pub fn version(&self) -> Version {
        self.requests.iter().map(Request::version).max().unwrap_or(Version::FIRST)
    }

    /// Decodes what [`encode`](Entry::encode) wrote, all of it.
    pub fn decode(bytes: &[u8]) -> Result<Entry, DecodeError> {
        let (&version, rest) = bytes.split_first().ok_or(DecodeError::Damaged("there are none"))?;
        let version = Version::new(version);
        if version > Version::LATEST {
            return Err(DecodeError::Version(version));
        }
        let entry: Entry = decode_value(rest)?;
        let is_right = entry.version() == version;
        if is_right { Ok(entry) } else { Err(DecodeError::Damaged("they are of another version than they say")) }
    }
}

impl Request {
    /// A request that belongs to no session.
    pub fn new(body: Body) -> Request {
        Request { session: None, body }
    }

    /// The first version that can read it.
    pub fn version(&self) -> Version {
        match &self.body {
            Body::Tick | Body::OpenSession => Version::FIRST,
            Body::Run(operation) => operation.version(),
            Body::Transaction { steps, .. } => steps.iter().map(Step::version).max().unwrap_or(Version::FIRST),
            Body::SetTime(_) => Version::REDIS_7_2,
            Body::Upgrade(version) => *version,
        }
    }

    /// Whether it may need more space than it frees. What only removes keys does not, nor do notes
    /// for the group itself.
    pub fn grows(&self) -> bool {
        match &self.body {
            Body::Tick | Body::SetTime(_) | Body::Upgrade(_) => false,
            Body::OpenSession => true,
            Body::Run(operation) => operation.grows(),
            Body::Transaction { steps, .. } => {
                steps.iter().any(|step| matches!(step, Step::Write(operation) if operation.grows()))
            }
        }
    }

    /// About how many bytes the request adds to an entry. A node that puts requests together bounds
    /// the sum.
    pub fn weight(&self) -> usize {
        const FIXED: usize = 32;
        FIXED
            + match &self.body {
                Body::Tick | Body::OpenSession | Body::SetTime(_) | Body::Upgrade(_) => 0,
                Body::Run(operation) => operation.weight(),
                Body::Transaction { watched, steps } => {
                    let keys = watched.iter().map(|(key, _)| FIXED + key.len()).sum::<usize>();
                    keys + steps.iter().map(|step| FIXED + step.weight()).sum::<usize>()
                }
            }
    }
}

impl Body {
    /// Whether the reply may hold values, and so be long.
    pub fn answers_values(&self) -> bool {
        let answers = |operation: &Operation| match operation {
            Operation::Set { answer, .. } => *answer == SetAnswer::Old,
            Operation::Take(_) | Operation::GetExpiring { .. } | Operation::Bits { .. } => true,
            _ => false,
        };
        match self {
            Body::Tick | Body::OpenSession | Body::SetTime(_) | Body::Upgrade(_) => false,
            Body::Run(operation) => answers(operation),
            Body::Transaction { steps, .. } => steps.iter().any(|step| match step {
                Step::Write(operation) => answers(operation),
                Step::Read(_) => true,
            }),
        }
    }
}

impl Step {
    fn version(&self) -> Version {
        match self {
            Step::Write(operation) => operation.version(),
            Step::Read(query) => query.version(),
        }
    }

    /// About how many bytes the step adds to an entry.
    pub fn weight(&self) -> usize {
        match self {
            Step::Write(operation) => operation.weight(),
            Step::Read(query) => query.weight(),
        }
    }
}

impl Operation {
    fn version(&self) -> Version {
        match self {
            Operation::Set { condition: Condition::IfEqual(_), .. } => Version::REDIS_7_2,
            Operation::Set { .. }
            | Operation::SetMany(_)
            | Operation::Delete(_)
            | Operation::Take(_)
            | Operation::Add { .. }
            | Operation::Append { .. }
            | Operation::Expire { .. }
            | Operation::Persist(_)
            | Operation::Swap { .. } => Version::FIRST,
            Operation::SetManyIfAbsent(_)
            | Operation::GetExpiring { .. }
            | Operation::AddDecimal { .. }
            | Operation::Overwrite { .. }
            | Operation::Bits { .. }
            | Operation::Combine { .. }
            | Operation::Copy { .. }
            | Operation::Clear => Version::REDIS_7_2,
        }
    }

    fn grows(&self) -> bool {
        !matches!(
            self,
            Operation::Delete(_) | Operation::Take(_) | Operation::Swap { new: None, .. } | Operation::Clear
        )
    }

    fn weight(&self) -> usize {
        match self {
            Operation::Set { key, value, condition, .. } => {
                let expected = if let Condition::IfEqual(expected) = condition { expected.len() } else { 0 };
                key.len() + value.len() + expected
            }
            Operation::SetMany(pairs) | Operation::SetManyIfAbsent(pairs) => {
                pairs.iter().map(|(key, value)| 8 + key.len() + value.len()).sum()
            }
            Operation::Delete(keys) => keys_weight(keys),
            Operation::Take(key) | Operation::Persist(key) => key.len(),
            Operation::Add { key, .. }
            | Operation::Expire { key, .. }
            | Operation::GetExpiring { key, .. }
            | Operation::AddDecimal { key, .. } => key.len(),
            Operation::Append { key, suffix: part } | Operation::Overwrite { key, part, .. } => key.len() + part.len(),
            Operation::Bits { key, fields, .. } => key.len() + size_of_val(&fields[..]),
            Operation::Combine { to, from, .. } => to.len() + keys_weight(from),
            Operation::Copy { from, to, .. } => from.len() + to.len(),
            Operation::Clear => 0,
            Operation::Swap { key, expected, new } => {
                let len = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
                key.len() + len(expected) + len(new)
            }
        }
    }
}

impl Query {
    fn version(&self) -> Version {
        match self {
            Query::Get(_)
            | Query::GetMany(_)
            | Query::Exists(_)
            | Query::Length(_)
            | Query::Type(_)
            | Query::SecondsLeft(_)
            | Query::MillisLeft(_)
            | Query::Versions(_)
            | Query::Size
            | Query::SlotSize(_)
            | Query::Scan { .. }
            | Query::Range { .. } => Version::FIRST,
            Query::Part { .. }
            | Query::Deadline { .. }
            | Query::Bits { .. }
            | Query::BitCount { .. }
            | Query::BitPosition { .. }
            | Query::Lcs { .. }
            | Query::Encoding(_)
            | Query::Usage(_)
            | Query::Keys { .. }
            | Query::Near(_) => Version::REDIS_7_2,
        }
    }

    /// Whether one look-up answers it.
    pub(super) fn reads_one_key(&self) -> bool {
        self.only_key().is_some()
    }

    /// The slot of a query that names it instead of a key.
    pub fn slot(&self) -> Option<u16> {
        match self {
            Query::SlotSize(slot) | Query::Keys { first: slot, .. } => Some(*slot),
            _ => None,
        }
    }

    /// The key of a query that reads no other.
    fn only_key(&self) -> Option<&Bytes> {
        match self {
            Query::Get(key)
            | Query::Length(key)
            | Query::Type(key)
            | Query::SecondsLeft(key)
            | Query::MillisLeft(key)
            | Query::Part { key, .. }
            | Query::Deadline { key, .. }
            | Query::Bits { key, .. }
            | Query::BitCount { key, .. }
            | Query::BitPosition { key, .. }
            | Query::Encoding(key)
            | Query::Usage(key) => Some(key),
            _ => None,
        }
    }

    fn weight(&self) -> usize {
        let key = self.only_key().map_or(0, Bytes::len);
        key + match self {
            Query::GetMany(keys) | Query::Exists(keys) | Query::Versions(keys) => keys_weight(keys),
            Query::Scan { pattern, .. } | Query::Keys { pattern, .. } => pattern.as_ref().map_or(0, Bytes::len),
            Query::Range { start: a, end: b, .. } | Query::Lcs { a, b, .. } => a.len() + b.len(),
            Query::Bits { fields, .. } => size_of_val(&fields[..]),
            _ => 0,
        }
    }
}

fn keys_weight(keys: &[Bytes]) -> usize {
    keys.iter().map(|key| 4 + key.len()).sum()
}

/// Appends postcard's encoding of a value.
pub(super) fn encode_value(value: &impl Serialize, out: &mut Vec<u8>) {
    let encoded = postcard::to_extend(value, std::mem::take(out));
    // A vector takes any number of bytes, and these types know their lengths.
    *out = encoded.expect("encoding to memory does not fail");
}

/// Decodes what [`encode_value`] wrote. Lengths are checked against the bytes that are there.
pub(super) fn decode_value<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(DecodeError::Damaged("there are more than their lengths say")),
        Err(_) => Err(DecodeError::Damaged("a length or a kind is wrong")),
    }
}
