//! [`Op`] and [`LogOp`]: the operations of a batch, encoded and decoded.

use tamis_base::error::{Error, Result};
use tamis_base::format::coding::{Decoder, put_bytes, put_varint, varint_len};
use tamis_base::format::deadline::{DEADLINE_LEN, Deadline, decode_expiring, put_expiring, split_expiring};
use tamis_base::format::header::features;
use tamis_base::format::key::{MAX_BATCH_LEN, MAX_KEY_LEN, MAX_OPERAND_LEN, MAX_VALUE_LEN, ValueKind, check_range};
use tamis_base::format::span::KeySpan;
use tamis_base::format::{Decoded, Malformed};

mod logged;

pub use logged::LoggedPart;

/// Most bytes of an encoded operation beside its key and value: the kind and three varints.
const MAX_OP_HEAD_LEN: usize = 1 + 3 * 5;

/// Kind of what stands for operations that the log does not store. Part of the format.
const UNLOGGED: u8 = 6;
/// Kind of an ingest. Part of the format.
const INGEST: u8 = 7;

/// What a writer's operation does: it adds an entry, whose kind has the same code, or deletes a
/// range of keys. Part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OpKind {
    Delete = ValueKind::Delete as u8,
    Put = ValueKind::Put as u8,
    /// Deletes all keys from the operation's up to the one in place of the value.
    DeleteRange = 2,
    Merge = ValueKind::Merge as u8,
    ExpiringPut = ValueKind::ExpiringPut as u8,
}

impl OpKind {
    #[inline]
    fn decode(code: u8) -> Decoded<OpKind> {
        match code {
            0 => Ok(OpKind::Delete),
            1 => Ok(OpKind::Put),
            2 => Ok(OpKind::DeleteRange),
            3 => Ok(OpKind::Merge),
            5 => Ok(OpKind::ExpiringPut),
            _ => Err(Malformed("an operation is of an unknown kind")),
        }
    }

    /// The kind of the entry that the operation adds; `None` if it deletes a range.
    #[inline]
    pub fn of_entry(self) -> Option<ValueKind> {
        // It has the same code; that of a range delete is no entry's.
        ValueKind::decode(self as u64).ok()
    }

    /// The [`features`] that a reader of the operation needs.
    #[inline]
    pub fn features(self) -> u32 {
        match self {
            OpKind::Put | OpKind::Delete => 0,
            OpKind::ExpiringPut => features::EXPIRY,
            OpKind::Merge => features::MERGE,
            OpKind::DeleteRange => features::RANGE_DELETE,
        }
    }
}

/// What a writer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write<'a> {
    Put(&'a [u8]),
    ExpiringPut(&'a [u8], Deadline),
    Delete,
    Merge(&'a [u8]),
    /// Deletes the keys up to this one; empty is no bound.
    DeleteRange(&'a [u8]),
}

impl<'a> Write<'a> {
    /// The operation of this kind with these stored bytes, which have been decoded.
    #[inline]
    pub fn of(kind: OpKind, stored: &'a [u8]) -> Write<'a> {
        match kind {
            OpKind::Put => Write::Put(stored),
            OpKind::Delete => Write::Delete,
            OpKind::Merge => Write::Merge(stored),
            OpKind::DeleteRange => Write::DeleteRange(stored),
            OpKind::ExpiringPut => {
                let (deadline, value) = split_expiring(stored);
                Write::ExpiringPut(value, deadline)
            }
        }
    }

    #[inline]
    pub fn kind(self) -> OpKind {
        match self {
            Write::Put(_) => OpKind::Put,
            Write::ExpiringPut(..) => OpKind::ExpiringPut,
            Write::Delete => OpKind::Delete,
            Write::Merge(_) => OpKind::Merge,
            Write::DeleteRange(_) => OpKind::DeleteRange,
        }
    }

    /// Length of what an entry stores as its value.
    #[inline]
    fn stored_len(self) -> usize {
        self.value().map_or(0, |value| self.prefix_len() + value.len())
    }

    /// The value, the operand or the end of the range.
    pub fn value(self) -> Option<&'a [u8]> {
        match self {
            Write::Put(value) | Write::ExpiringPut(value, _) | Write::Merge(value) | Write::DeleteRange(value) => {
                Some(value)
            }
            Write::Delete => None,
        }
    }

    /// When the value expires, if it does.
    #[inline]
    pub fn deadline(self) -> Option<Deadline> {
        if let Write::ExpiringPut(_, deadline) = self { Some(deadline) } else { None }
    }

    /// Bytes in front of the value.
    fn prefix_len(self) -> usize {
        if let Write::ExpiringPut(..) = self { DEADLINE_LEN } else { 0 }
    }
}

/// Appends an operation to a payload. Returns where its value begins, as an entry stores it: it
/// goes to the end. Fails if the operation exceeds a limit.
#[inline]
pub fn encode_op(payload: &mut Vec<u8>, keyspace: u32, key: &[u8], write: Write<'_>) -> Result<usize> {
    check_op(payload.len(), keyspace, key, write)?;
    payload.push(write.kind() as u8);
    put_varint(payload, keyspace.into());
    put_bytes(payload, key);
    match write {
        Write::ExpiringPut(value, deadline) => {
            put_varint(payload, (DEADLINE_LEN + value.len()) as u64);
            put_expiring(payload, deadline, value);
        }
        Write::Put(value) | Write::Merge(value) | Write::DeleteRange(value) => put_bytes(payload, value),
        Write::Delete => {}
    }
    Ok(payload.len() - write.stored_len())
}

/// Checks the limits for an operation that is added to a batch of `batch_len` bytes.
#[inline]
pub fn check_op(batch_len: usize, keyspace: u32, key: &[u8], write: Write<'_>) -> Result<()> {
    if key.len() > MAX_KEY_LEN {
        return Err(Error::invalid(format_args!("a key takes up to {MAX_KEY_LEN} bytes, not {}", key.len())));
    }
    let value_len = write.stored_len() - write.prefix_len();
    let limit = match write {
        Write::Merge(_) => MAX_OPERAND_LEN,
        Write::DeleteRange(_) => MAX_KEY_LEN,
        Write::Put(_) | Write::ExpiringPut(..) | Write::Delete => MAX_VALUE_LEN - write.prefix_len(),
    };
    if value_len > limit {
        return Err(Error::invalid(format_args!("a value takes up to {limit} bytes, not {value_len}")));
    }
    // The exact length matters near the limit only.
    let left = MAX_BATCH_LEN - batch_len;
    if MAX_OP_HEAD_LEN + key.len() + write.stored_len() > left && op_len(keyspace, key, write) > left {
        return Err(Error::invalid(format_args!("a batch takes up to {MAX_BATCH_LEN} bytes")));
    }
    Ok(())
}

/// The length of an encoded operation.
#[cold]
fn op_len(keyspace: u32, key: &[u8], write: Write<'_>) -> usize {
    let len = 1 + varint_len(keyspace.into()) + varint_len(key.len() as u64) + key.len();
    match write.value() {
        Some(_) => len + varint_len(write.stored_len() as u64) + write.stored_len(),
        None => len,
    }
}

/// Appends an ingest to a payload: `edit` adds its tables to a keyspace. Fails if it exceeds the
/// limit of a value.
pub fn put_ingest(payload: &mut Vec<u8>, keyspace: u32, edit: &[u8]) -> Result<()> {
    if edit.len() > MAX_VALUE_LEN {
        return Err(Error::invalid("too many tables are ingested at once: their keys take more than 1 GiB"));
    }
    payload.push(INGEST);
    put_varint(payload, keyspace.into());
    put_bytes(payload, &[]);
    put_bytes(payload, edit);
    Ok(())
}

/// An operation of a writer's batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op<'a> {
    /// How many operations of the batch are before it.
    pub index: u32,
    pub keyspace: u32,
    pub kind: OpKind,
    pub key: &'a [u8],
    /// As an entry stores it; empty for a delete; the end of the range for a range delete.
    pub value: &'a [u8],
}

impl<'a> Op<'a> {
    /// The keys that a range delete deletes; `None` for other operations.
    pub fn as_range(&self) -> Option<KeySpan<&'a [u8]>> {
        let upper = (!self.value.is_empty()).then_some(self.value);
        (self.kind == OpKind::DeleteRange).then_some(KeySpan { lower: Some(self.key), upper })
    }
}

/// Tables that a keyspace gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ingest<'a> {
    /// How many operations of the batch are before it.
    pub index: u32,
    pub keyspace: u32,
    /// The encoded edit that adds the tables.
    pub edit: &'a [u8],
}

/// An operation of a batch in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOp<'a> {
    Write(Op<'a>),
    Ingest(Ingest<'a>),
}

impl LogOp<'_> {
    /// How many operations of the batch are before it.
    #[inline]
    pub fn index(&self) -> u32 {
        match self {
            LogOp::Write(Op { index, .. }) | LogOp::Ingest(Ingest { index, .. }) => *index,
        }
    }

    #[inline]
    pub fn keyspace(&self) -> u32 {
        match self {
            LogOp::Write(Op { keyspace, .. }) | LogOp::Ingest(Ingest { keyspace, .. }) => *keyspace,
        }
    }
}

/// Iterates over the operations in the payload of a WAL record, without those of keyspaces without
/// a log. Ends after an error.
#[derive(Clone, Debug)]
pub struct LogOps<'a> {
    rest: Decoder<'a>,
    index: u32,
    remaining: u32,
}

impl<'a> LogOps<'a> {
    /// A reader of a payload that must hold exactly `count` operations.
    #[inline]
    pub fn new(payload: &'a [u8], count: u32) -> LogOps<'a> {
        LogOps { rest: Decoder::new(payload), index: 0, remaining: count }
    }

    /// Decodes the next operation, or the number of operations that are not here.
    #[inline]
    fn decode_op(&mut self) -> Decoded<Option<LogOp<'a>>> {
        if self.remaining == 0 {
            return Err(Malformed("a batch holds more operations than its count says"));
        }
        if self.rest.is_empty() {
            return Err(Malformed("a batch holds fewer operations than its count says"));
        }
        let code = self.rest.u8()?;
        if code == UNLOGGED {
            let count = self.rest.varint_u32()?;
            if !(1..=self.remaining).contains(&count) {
                return Err(Malformed("a batch leaves out more operations than its count says"));
            }
            self.advance(count);
            return Ok(None);
        }
        let (index, keyspace) = (self.index, self.rest.varint_u32()?);
        let operation = match code {
            INGEST => LogOp::Ingest(self.decode_ingest(index, keyspace)?),
            code => LogOp::Write(self.decode_write(OpKind::decode(code)?, index, keyspace)?),
        };
        self.advance(1);
        Ok(Some(operation))
    }

    #[inline]
    fn decode_write(&mut self, kind: OpKind, index: u32, keyspace: u32) -> Decoded<Op<'a>> {
        let key = self.rest.bytes()?;
        let value = if kind == OpKind::Delete { &[] } else { self.rest.bytes()? };
        if key.len() > MAX_KEY_LEN {
            return Err(Malformed("a key is longer than 1 MiB"));
        }
        if value.len() > MAX_VALUE_LEN || kind == OpKind::Merge && value.len() > MAX_OPERAND_LEN {
            return Err(Malformed("a value is longer than 1 GiB"));
        }
        match kind {
            OpKind::ExpiringPut => _ = decode_expiring(value)?,
            OpKind::DeleteRange => check_range(key, value)?,
            _ => {}
        }
        Ok(Op { index, keyspace, kind, key, value })
    }

    #[cold]
    fn decode_ingest(&mut self, index: u32, keyspace: u32) -> Decoded<Ingest<'a>> {
        let (key, edit) = (self.rest.bytes()?, self.rest.bytes()?);
        if !key.is_empty() || edit.len() > MAX_VALUE_LEN {
            return Err(Malformed("an ingest has a key, or an edit that is longer than 1 GiB"));
        }
        Ok(Ingest { index, keyspace, edit })
    }

    #[inline]
    fn advance(&mut self, count: u32) {
        self.index += count;
        self.remaining -= count;
    }
}

impl<'a> Iterator for LogOps<'a> {
    type Item = Decoded<LogOp<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Decoded<LogOp<'a>>> {
        while self.remaining > 0 || !self.rest.is_empty() {
            match self.decode_op() {
                Ok(None) => {}
                Ok(Some(op)) => return Some(Ok(op)),
                Err(error) => {
                    *self = LogOps::new(&[], 0);
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

/// Iterates over the operations of a writer's batch. Ends after an error.
#[derive(Clone, Debug)]
pub struct BatchReader<'a>(LogOps<'a>);

impl<'a> BatchReader<'a> {
    /// A reader of a payload that must hold exactly `count` operations.
    #[inline]
    pub fn new(payload: &'a [u8], count: u32) -> BatchReader<'a> {
        BatchReader(LogOps::new(payload, count))
    }

    /// Number of bytes behind the last operation read.
    #[inline]
    pub fn left(&self) -> usize {
        self.0.rest.remaining()
    }
}

impl<'a> Iterator for BatchReader<'a> {
    type Item = Decoded<Op<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Decoded<Op<'a>>> {
        match self.0.next()? {
            Ok(LogOp::Write(operation)) => Some(Ok(operation)),
            Ok(LogOp::Ingest(_)) => {
                self.0 = LogOps::new(&[], 0);
                Some(Err(Malformed("a writer's batch has an ingest")))
            }
            Err(error) => Some(Err(error)),
        }
    }
}
