//! [`WriteBatch`]: operations that take effect together, encoded as the WAL stores them.
//!
//! ```text
//! payload = op*
//! op      = kind: u8, keyspace id: varint, key length: varint, key, [value length: varint, value]
//!           kind 0 is a delete, without a value; 1 a put; 2 a delete of the keys from `key` up to
//!           the value, or of all from `key` on if the value is empty; 3 a merge, with its operand
//!           as the value; 5 a put with a deadline in front of its value; 7 an ingest, of an edit
//!         | 6: u8, count: varint
//!           so many operations of keyspaces without a log; they are not here
//! ```

use std::fmt;
use std::ops::Range;
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::format::coding::{Decoder, put_bytes, put_varint, varint_len};
use crate::format::deadline::{DEADLINE_LEN, Deadline, deadline_at, decode_expiring, put_expiring, split_expiring};
use crate::format::header::features;
use crate::format::key::{MAX_BATCH_LEN, MAX_KEY_LEN, MAX_OPERAND_LEN, MAX_VALUE_LEN, ValueKind, check_range};
use crate::format::span::KeySpan;
use crate::format::{Decoded, Malformed};

mod logged;

pub(crate) use logged::LoggedPart;

/// Most bytes of an encoded operation beside its key and value: the kind and three varints.
const MAX_OP_HEAD_LEN: usize = 1 + 3 * 5;

/// Kind of what stands for operations that the log does not store. Part of the format.
const UNLOGGED: u8 = 6;

/// Puts and deletes that become visible, and survive a crash, together or not at all.
///
/// Of two operations on one key, the later one counts. A key takes up to 1 MiB, a value up to 1
/// GiB, a batch up to 2 GiB. A batch that exceeds a limit is refused when it is written.
#[derive(Clone, Default)]
pub struct WriteBatch {
    payload: Vec<u8>,
    count: u32,
    /// The store whose keyspace ids the operations use; `None` if all are in the default keyspace.
    origin: Option<u64>,
    /// Ids of the keyspaces that operations use, without the default one.
    keyspaces: Vec<u32>,
    /// Ids of the keyspaces in which operations merge.
    merged: Vec<u32>,
    /// Number of puts with a deadline.
    expiring: u32,
    /// Whether puts without a deadline never expire.
    keeps_deadlines: bool,
    /// Number of range deletes.
    ranges: u32,
    /// The first limit that an operation broke. Later operations are dropped: the batch will be
    /// refused.
    violation: Option<Error>,
}

impl WriteBatch {
    /// A batch without operations.
    pub fn new() -> WriteBatch {
        WriteBatch::default()
    }

    /// Sets `key` to `value` in the default keyspace.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.put_raw(0, key.as_ref(), value.as_ref());
    }

    /// Sets `key` to `value` in the default keyspace until `deadline`; see
    /// [`Keyspace::put_with_expiry`](crate::Keyspace::put_with_expiry).
    pub fn put_with_expiry(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, deadline: SystemTime) {
        self.put_expiring_raw(0, key.as_ref(), value.as_ref(), deadline_at(deadline));
    }

    /// Merges an operand into `key` in the default keyspace; see [`operator`](crate::operator).
    pub fn merge(&mut self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) {
        self.merge_raw(0, key.as_ref(), operand.as_ref());
    }

    /// Removes `key` from the default keyspace. An absent key is no error.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.delete_raw(0, key.as_ref());
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of the encoded operations: what the batch takes in the write-ahead log, without the
    /// record's header.
    pub fn byte_size(&self) -> usize {
        self.payload.len()
    }

    /// Removes all operations, and forgets the store they were for.
    pub fn clear(&mut self) {
        self.payload.clear();
        self.count = 0;
        self.origin = None;
        self.keyspaces.clear();
        self.merged.clear();
        self.expiring = 0;
        self.keeps_deadlines = false;
        self.ranges = 0;
        self.violation = None;
    }

    pub(crate) fn put_raw(&mut self, keyspace: u32, key: &[u8], value: &[u8]) {
        self.push(keyspace, key, Write::Put(value));
    }

    pub(crate) fn put_expiring_raw(&mut self, keyspace: u32, key: &[u8], value: &[u8], deadline: Deadline) {
        self.push(keyspace, key, Write::ExpiringPut(value, deadline));
    }

    pub(crate) fn merge_raw(&mut self, keyspace: u32, key: &[u8], operand: &[u8]) {
        self.push(keyspace, key, Write::Merge(operand));
    }

    pub(crate) fn delete_raw(&mut self, keyspace: u32, key: &[u8]) {
        self.push(keyspace, key, Write::Delete);
    }

    /// An empty or inverted range adds no operation.
    pub(crate) fn delete_range_raw(&mut self, keyspace: u32, range: &KeySpan<Vec<u8>>) {
        if !range.is_empty() {
            let end = range.upper.as_deref().unwrap_or_default();
            self.push(keyspace, range.lower.as_deref().unwrap_or_default(), Write::DeleteRange(end));
        }
    }

    fn push(&mut self, keyspace: u32, key: &[u8], write: Write<'_>) {
        if self.violation.is_some() {
            return;
        }
        if let Err(error) = encode_op(&mut self.payload, keyspace, key, write) {
            self.violation = Some(error);
            return;
        }
        if keyspace != 0 && !self.keyspaces.contains(&keyspace) {
            self.keyspaces.push(keyspace);
        }
        if matches!(write, Write::Merge(_)) && !self.merged.contains(&keyspace) {
            self.merged.push(keyspace);
        }
        self.expiring += u32::from(matches!(write, Write::ExpiringPut(..)));
        self.ranges += u32::from(matches!(write, Write::DeleteRange(_)));
        self.count += 1;
    }

    /// Records that the batch uses keyspace ids of the store `origin`. A batch for two stores is
    /// refused.
    pub(crate) fn set_origin(&mut self, origin: u64) {
        let known = *self.origin.get_or_insert(origin);
        if known != origin && self.violation.is_none() {
            self.violation = Some(Error::invalid("a batch uses keyspaces of two stores: use one batch per store"));
        }
    }

    /// Fails if an operation broke a limit, or if the batch uses keyspaces of another store than
    /// `store`.
    pub(crate) fn validate(&self, store: u64) -> Result<()> {
        match (&self.violation, self.origin) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(origin)) if origin != store => Err(Error::invalid("the batch uses keyspaces of another store")),
            (None, _) => Ok(()),
        }
    }

    /// Ids of the keyspaces that operations use, without the default one.
    pub(crate) fn keyspaces(&self) -> &[u32] {
        &self.keyspaces
    }

    /// Ids of the keyspaces in which operations merge.
    pub(crate) fn merged(&self) -> &[u32] {
        &self.merged
    }

    /// The [`features`] that a reader of the batch needs.
    pub(crate) fn features(&self) -> u32 {
        let merge = if self.merged.is_empty() { 0 } else { features::MERGE };
        let expiry = if self.expiring > 0 { features::EXPIRY } else { 0 };
        merge | expiry | if self.ranges > 0 { features::RANGE_DELETE } else { 0 }
    }

    /// Says that puts without a deadline never expire, whatever the options of the write.
    pub(crate) fn keep_deadlines(&mut self) {
        self.keeps_deadlines = true;
    }

    /// The batch with a deadline for each put that has none and whose keyspace is in the list.
    pub(crate) fn with_deadlines(mut self, deadlines: &[(u32, Deadline)]) -> WriteBatch {
        let all = BatchMark::default();
        let deadline_of = |keyspace, kind| {
            let mut of_puts = deadlines.iter().filter(|_| kind == ValueKind::Put);
            of_puts.find(|(id, _)| *id == keyspace).map(|(_, deadline)| *deadline)
        };
        let is_due =
            |(keyspace, _, kind, _): (u32, &[u8], ValueKind, Range<usize>)| deadline_of(keyspace, kind).is_some();
        if self.keeps_deadlines || !self.writes_from(&all).any(is_due) {
            return self;
        }
        let mut batch = WriteBatch { origin: self.origin, violation: self.violation.take(), ..WriteBatch::default() };
        for (keyspace, key, kind, at) in self.writes_from(&all) {
            match (Write::of(kind, self.bytes(at)), deadline_of(keyspace, kind)) {
                (Some(Write::Put(value)), Some(due)) => batch.push(keyspace, key, Write::ExpiringPut(value, due)),
                (Some(write), _) => batch.push(keyspace, key, write),
                (None, _) => batch.violation = Some(kind.misplaced("a batch")),
            }
        }
        batch
    }

    /// What the log stores of the batch, if it does not store all of it; `is_logged` says whether
    /// it stores the operations of a keyspace.
    pub(crate) fn logged_part(&self, is_logged: impl Fn(u32) -> bool) -> Option<LoggedPart> {
        LoggedPart::of(&self.payload, self.count, is_logged)
    }

    /// The payload of the WAL record.
    #[cfg(test)]
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The payload of the WAL record.
    pub(crate) fn into_payload(self) -> Vec<u8> {
        self.payload
    }

    /// The number of operations, for the record header. It fits, because an operation takes at
    /// least 3 bytes.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }
}

/// A point in a batch, between two operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchMark {
    bytes: usize,
    count: u32,
    keyspaces: usize,
    merged: usize,
    expiring: u32,
    ranges: u32,
    is_violated: bool,
}

impl WriteBatch {
    /// Marks the end of the batch.
    pub(crate) fn mark(&self) -> BatchMark {
        BatchMark {
            bytes: self.payload.len(),
            count: self.count,
            keyspaces: self.keyspaces.len(),
            merged: self.merged.len(),
            expiring: self.expiring,
            ranges: self.ranges,
            is_violated: self.violation.is_some(),
        }
    }

    /// Removes the operations after `mark`. Returns false, and does nothing, if the batch is
    /// shorter.
    pub(crate) fn rewind(&mut self, mark: &BatchMark) -> bool {
        if mark.count > self.count {
            return false;
        }
        self.payload.truncate(mark.bytes);
        self.count = mark.count;
        self.keyspaces.truncate(mark.keyspaces);
        self.merged.truncate(mark.merged);
        self.expiring = mark.expiring;
        self.ranges = mark.ranges;
        if !mark.is_violated {
            self.violation = None;
        }
        true
    }

    /// The operations after `mark`: keyspace, key, kind, and where the value or operand, as entries
    /// store it, is in the [payload](WriteBatch::bytes).
    pub(crate) fn writes_from<'a>(
        &'a self,
        mark: &BatchMark,
    ) -> impl Iterator<Item = (u32, &'a [u8], ValueKind, Range<usize>)> + use<'a> {
        let mut reader = BatchReader::new(self.bytes(mark.bytes..self.payload.len()), self.count - mark.count);
        std::iter::from_fn(move || {
            // Only what this process has encoded is in a batch.
            let op = reader.next()?.ok()?;
            let end = self.payload.len() - reader.rest.remaining();
            Some((op.keyspace, op.key, op.kind, end - op.value.len()..end))
        })
    }

    /// Keys and operands of the merges in a keyspace.
    pub(crate) fn operands_of(&self, keyspace: u32) -> impl Iterator<Item = (&[u8], &[u8])> {
        let merges = self.writes_from(&BatchMark::default());
        let merges = merges.filter(move |(of, _, kind, _)| *of == keyspace && *kind == ValueKind::Merge);
        merges.map(|(_, key, _, at)| (key, self.bytes(at)))
    }

    /// A part of the payload.
    pub(crate) fn bytes(&self, at: Range<usize>) -> &[u8] {
        self.payload.get(at).unwrap_or_default()
    }
}

impl fmt::Debug for WriteBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteBatch")
            .field("len", &self.len())
            .field("byte_size", &self.byte_size())
            .finish_non_exhaustive()
    }
}

/// What an operation does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write<'a> {
    Put(&'a [u8]),
    ExpiringPut(&'a [u8], Deadline),
    Delete,
    Merge(&'a [u8]),
    /// Deletes the keys up to this one; empty is no bound.
    DeleteRange(&'a [u8]),
}

impl<'a> Write<'a> {
    /// The operation of this kind with these stored bytes. `None` for kinds of no caller's batch.
    pub(crate) fn of(kind: ValueKind, stored: &'a [u8]) -> Option<Write<'a>> {
        Some(match kind {
            ValueKind::Put => Write::Put(stored),
            ValueKind::Delete => Write::Delete,
            ValueKind::Merge => Write::Merge(stored),
            ValueKind::DeleteRange => Write::DeleteRange(stored),
            ValueKind::ExpiringPut => {
                let (deadline, value) = split_expiring(stored);
                Write::ExpiringPut(value, deadline)
            }
            ValueKind::SeparatePut | ValueKind::SeparateExpiringPut | ValueKind::Ingest => return None,
        })
    }

    /// The [`features`] that a reader of the operation needs.
    #[inline]
    pub(crate) fn features(self) -> u32 {
        match self {
            Write::Put(_) | Write::Delete => 0,
            Write::ExpiringPut(..) => features::EXPIRY,
            Write::Merge(_) => features::MERGE,
            Write::DeleteRange(_) => features::RANGE_DELETE,
        }
    }

    /// Length of what an entry stores as its value.
    #[inline]
    fn stored_len(self) -> usize {
        self.value().map_or(0, |value| self.prefix_len() + value.len())
    }

    #[inline]
    pub(crate) fn kind(self) -> ValueKind {
        match self {
            Write::Put(_) => ValueKind::Put,
            Write::ExpiringPut(..) => ValueKind::ExpiringPut,
            Write::Delete => ValueKind::Delete,
            Write::Merge(_) => ValueKind::Merge,
            Write::DeleteRange(_) => ValueKind::DeleteRange,
        }
    }

    /// The value, the operand or the end of the range.
    fn value(self) -> Option<&'a [u8]> {
        match self {
            Write::Put(value) | Write::ExpiringPut(value, _) | Write::Merge(value) | Write::DeleteRange(value) => {
                Some(value)
            }
            Write::Delete => None,
        }
    }

    /// Bytes in front of the value.
    fn prefix_len(self) -> usize {
        if let Write::ExpiringPut(..) = self { DEADLINE_LEN } else { 0 }
    }
}

/// Appends an operation to a payload. Returns where its value begins, as an entry stores it: it
/// goes to the end. Fails if the operation exceeds a limit.
pub(crate) fn encode_op(payload: &mut Vec<u8>, keyspace: u32, key: &[u8], write: Write<'_>) -> Result<usize> {
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
fn check_op(batch_len: usize, keyspace: u32, key: &[u8], write: Write<'_>) -> Result<()> {
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

/// One operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op<'a> {
    /// How many operations of the batch are before it.
    pub(crate) index: u32,
    pub(crate) keyspace: u32,
    pub(crate) kind: ValueKind,
    pub(crate) key: &'a [u8],
    /// As an entry stores it; empty for a delete; the end of the range for a range delete.
    pub(crate) value: &'a [u8],
}

impl<'a> Op<'a> {
    /// The keys that a range delete deletes; `None` for other operations.
    pub(crate) fn as_range(&self) -> Option<KeySpan<&'a [u8]>> {
        let upper = (!self.value.is_empty()).then_some(self.value);
        (self.kind == ValueKind::DeleteRange).then_some(KeySpan { lower: Some(self.key), upper })
    }
}

/// Iterates over the operations in the payload of a WAL record, without those of keyspaces without
/// a log. Ends after an error.
#[derive(Clone, Debug)]
pub(crate) struct BatchReader<'a> {
    rest: Decoder<'a>,
    index: u32,
    remaining: u32,
}

impl<'a> BatchReader<'a> {
    /// A reader of a payload that must hold exactly `count` operations.
    pub(crate) fn new(payload: &'a [u8], count: u32) -> BatchReader<'a> {
        BatchReader { rest: Decoder::new(payload), index: 0, remaining: count }
    }

    /// Decodes the next operation, or the number of operations that are not here.
    #[inline]
    fn decode_op(&mut self) -> Decoded<Option<Op<'a>>> {
        if self.remaining == 0 {
            return Err(Malformed("a batch holds more operations than its count says"));
        }
        if self.rest.is_empty() {
            return Err(Malformed("a batch holds fewer operations than its count says"));
        }
        let kind = self.rest.u8()?;
        if kind == UNLOGGED {
            let count = self.rest.varint_u32()?;
            if !(1..=self.remaining).contains(&count) {
                return Err(Malformed("a batch leaves out more operations than its count says"));
            }
            self.advance(count);
            return Ok(None);
        }
        let kind = ValueKind::decode_in_batch(kind.into())?;
        let keyspace = self.rest.varint_u32()?;
        let key = self.rest.bytes()?;
        let value = match kind {
            ValueKind::Delete | ValueKind::SeparatePut | ValueKind::SeparateExpiringPut => &[],
            _ => self.rest.bytes()?,
        };
        if key.len() > MAX_KEY_LEN {
            return Err(Malformed("a key is longer than 1 MiB"));
        }
        if value.len() > MAX_VALUE_LEN || kind == ValueKind::Merge && value.len() > MAX_OPERAND_LEN {
            return Err(Malformed("a value is longer than 1 GiB"));
        }
        match kind {
            ValueKind::ExpiringPut => _ = decode_expiring(value)?,
            ValueKind::DeleteRange => check_range(key, value)?,
            _ => {}
        }
        let index = self.index;
        self.advance(1);
        Ok(Some(Op { index, keyspace, kind, key, value }))
    }

    #[inline]
    fn advance(&mut self, count: u32) {
        self.index += count;
        self.remaining -= count;
    }
}

impl<'a> Iterator for BatchReader<'a> {
    type Item = Decoded<Op<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Decoded<Op<'a>>> {
        while self.remaining > 0 || !self.rest.is_empty() {
            match self.decode_op() {
                Ok(None) => {}
                Ok(Some(op)) => return Some(Ok(op)),
                Err(error) => {
                    *self = BatchReader::new(&[], 0);
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn decode(payload: &[u8], count: u32) -> Decoded<Vec<Op<'_>>> {
        BatchReader::new(payload, count).collect()
    }

    proptest! {
        #[test]
        fn operations_come_back_in_order(
            ops in vec((any::<u32>(), vec(any::<u8>(), 0..200), proptest::option::of(vec(any::<u8>(), 0..300))), 0..20),
        ) {
            let mut batch = WriteBatch::new();
            for (keyspace, key, value) in &ops {
                match value {
                    Some(value) => batch.put_raw(*keyspace, key, value),
                    None => batch.delete_raw(*keyspace, key),
                }
            }
            prop_assert_eq!(batch.len(), ops.len());
            let decoded = decode(batch.payload(), batch.count()).unwrap();
            for (op, (keyspace, key, value)) in decoded.iter().zip(&ops) {
                let kind = if value.is_some() { ValueKind::Put } else { ValueKind::Delete };
                let value = value.as_deref().unwrap_or_default();
                prop_assert_eq!((op.keyspace, op.kind, op.key, op.value), (*keyspace, kind, &key[..], value));
            }
            prop_assert_eq!(decoded.len(), ops.len());
        }

        #[test]
        fn arbitrary_bytes_are_read_without_a_panic_and_end_after_an_error(bytes: Vec<u8>, count in 0u32..10) {
            let items: Vec<_> = BatchReader::new(&bytes, count).collect();
            for item in items.iter().rev().skip(1) {
                prop_assert!(item.is_ok());
            }
            prop_assert!(items.len() <= count as usize + 1);
        }
    }

    #[test]
    fn encoding_follows_the_format() {
        let mut batch = WriteBatch::new();
        batch.put(b"k", b"value");
        batch.delete_raw(300, b"gone");
        assert_eq!(batch.payload(), b"\x01\x00\x01k\x05value\x00\xac\x02\x04gone");
        assert_eq!((batch.len(), batch.byte_size(), batch.is_empty()), (2, 18, false));
        batch.clear();
        assert_eq!((batch.len(), batch.byte_size(), batch.is_empty()), (0, 0, true));
        batch.put_expiring_raw(0, b"k", b"v", 0x0102);
        assert_eq!(batch.payload(), b"\x05\x00\x01k\x09\x02\x01\0\0\0\0\0\0v");
        assert_eq!(batch.features(), features::EXPIRY);
        assert!(decode(b"\x05\x00\x01k\x07\x02\x01\0\0\0\0\0", 1).is_err(), "seven bytes are no deadline");
    }

    #[test]
    fn what_the_log_leaves_out_is_counted() {
        let mut batch = WriteBatch::new();
        for (keyspace, key) in [(1, b"a"), (1, b"b"), (0, b"c"), (1, b"d")] {
            batch.put_raw(keyspace, key, b"");
        }
        assert!(batch.logged_part(|_| true).is_none());
        let part = batch.logged_part(|keyspace| keyspace == 0).unwrap();
        assert_eq!((&*part.payload, part.has_operations), (&b"\x06\x02\x01\0\x01c\0\x06\x01"[..], true));
        let operations = decode(&part.payload, 4).unwrap();
        assert_eq!(
            operations.iter().map(|operation| (operation.index, operation.key)).collect::<Vec<_>>(),
            [(2, &b"c"[..])]
        );
        for count in [0, 3, 5] {
            assert!(decode(&part.payload, count).is_err(), "{count}");
        }
        let part = batch.logged_part(|_| false).unwrap();
        assert_eq!((&*part.payload, part.has_operations), (&b"\x06\x04"[..], false));
        assert_eq!(decode(&part.payload, 4), Ok(vec![]));
        for payload in [&b"\x06\0"[..], b"\x06", b"\x06\x05", b"\x06\x04\x06\x04"] {
            assert!(decode(payload, 4).is_err(), "{payload:?}");
        }
        assert_eq!(
            LoggedPart::none_of(1).payload,
            LoggedPart { payload: logged::unlogged(1).into(), has_operations: false }.payload
        );
    }

    #[test]
    fn count_must_match_the_operations() {
        let mut batch = WriteBatch::new();
        batch.put(b"a", b"1");
        batch.put(b"b", b"2");
        assert!(decode(batch.payload(), 2).is_ok());
        for count in [0, 1, 3, u32::MAX] {
            assert!(decode(batch.payload(), count).is_err(), "{count}");
        }
        assert!(decode(b"", 1).is_err());
        assert!(decode(b"", 0).is_ok());
    }

    #[test]
    fn unknown_kind_and_overlong_key_are_refused() {
        assert!(decode(b"\x06\x00\x01k", 1).is_err());
        for (len, is_accepted) in [(MAX_KEY_LEN, true), (MAX_KEY_LEN + 1, false)] {
            let mut payload = vec![0, 0];
            put_bytes(&mut payload, &vec![b'k'; len]);
            assert_eq!(decode(&payload, 1).is_ok(), is_accepted);
        }
    }

    #[test]
    fn overlong_value_is_refused() {
        for (len, is_accepted) in [(MAX_VALUE_LEN, true), (MAX_VALUE_LEN + 1, false)] {
            let mut head = vec![1, 0, 0];
            put_varint(&mut head, len as u64);
            // Zeroed memory that nobody touches costs nothing.
            let mut payload = vec![0; head.len() + len];
            payload[..head.len()].copy_from_slice(&head);
            assert_eq!(decode(&payload, 1).is_ok(), is_accepted);
        }
    }

    #[test]
    fn keyspaces_are_named_once_each_and_the_default_one_never() {
        let mut batch = WriteBatch::new();
        for keyspace in [0, 7, 3, 7, 0, 3] {
            batch.put_raw(keyspace, b"k", b"v");
            batch.delete_raw(keyspace, b"k");
        }
        assert_eq!(batch.keyspaces(), [7, 3]);
        batch.clear();
        assert!(batch.keyspaces().is_empty());
        batch.delete(b"k");
        assert_eq!((batch.len(), batch.keyspaces().len()), (1, 0));
    }

    #[test]
    fn debug_tells_the_size_and_no_content() {
        let mut batch = WriteBatch::new();
        batch.put("secret", "value");
        assert_eq!(format!("{batch:?}"), "WriteBatch { len: 1, byte_size: 15, .. }");
    }

    #[test]
    fn first_violation_is_remembered_until_cleared() {
        let mut batch = WriteBatch::new();
        batch.put(b"a", b"1");
        batch.put(vec![0; MAX_KEY_LEN + 1], b"");
        batch.put(b"b", b"2");
        assert_eq!(batch.len(), 1);
        let error = batch.validate(7).unwrap_err();
        assert!(matches!(&error, Error::InvalidArgument(what) if what.contains("key")), "{error}");
        batch.clear();
        assert!(batch.validate(7).is_ok());
        batch.put(vec![0; MAX_KEY_LEN], vec![]);
        assert!(batch.validate(7).is_ok());
    }

    #[test]
    fn value_and_batch_limits_hold_to_the_byte() {
        // Zeroed memory that is never touched costs nothing.
        let value = vec![0; MAX_VALUE_LEN + 1];
        assert!(check_op(0, 0, b"k", Write::Put(&value)).is_err());
        assert!(check_op(0, 0, b"k", Write::Put(&value[1..])).is_ok());
        assert!(check_op(MAX_BATCH_LEN - 6, 0, b"k", Write::Put(b"v")).is_ok());
        assert!(check_op(MAX_BATCH_LEN - 5, 0, b"k", Write::Put(b"v")).is_err());
    }

    #[test]
    fn keyspaces_of_two_stores_do_not_mix() {
        let mut batch = WriteBatch::new();
        assert!(batch.validate(8).is_ok());
        batch.set_origin(7);
        batch.set_origin(7);
        assert!(batch.validate(7).is_ok());
        assert!(matches!(batch.validate(8), Err(Error::InvalidArgument(_))));
        batch.set_origin(8);
        assert!(matches!(batch.validate(7), Err(Error::InvalidArgument(_))));
    }

    /// The operations after `mark`: keyspace, key, kind, and value or operand.
    fn listed(batch: &WriteBatch, mark: &BatchMark) -> Vec<(u32, Vec<u8>, ValueKind, Vec<u8>)> {
        let writes = batch.writes_from(mark);
        writes.map(|(keyspace, key, kind, at)| (keyspace, key.to_vec(), kind, batch.bytes(at).to_vec())).collect()
    }

    #[test]
    fn a_batch_lists_what_follows_a_mark_and_rewinds_to_it() {
        let mut batch = WriteBatch::new();
        let start = batch.mark();
        batch.put("a", "one");
        batch.put_raw(7, b"b", b"two");
        let (before, mark) = (batch.clone(), batch.mark());
        batch.delete_raw(9, b"a");
        batch.put_raw(300, b"c", b"three");
        batch.merge_raw(7, b"", b"");
        let after = batch.mark();
        let write = |keyspace, key: &str, kind, value: &str| (keyspace, key.into(), kind, value.into());
        let earlier = [write(0, "a", ValueKind::Put, "one"), write(7, "b", ValueKind::Put, "two")];
        let later = [
            write(9, "a", ValueKind::Delete, ""),
            write(300, "c", ValueKind::Put, "three"),
            write(7, "", ValueKind::Merge, ""),
        ];
        assert_eq!(listed(&batch, &mark), later);
        assert_eq!(listed(&batch, &start), [&earlier[..], &later[..]].concat());
        assert_eq!(listed(&batch, &after), []);
        for _ in 0..2 {
            assert!(batch.rewind(&mark));
            assert_eq!((batch.payload(), batch.len()), (before.payload(), 2));
            assert_eq!((batch.keyspaces(), batch.merged()), (&[7][..], &[][..]));
        }
        assert!(!batch.rewind(&after), "the batch is shorter");
        assert_eq!((batch.payload(), batch.mark()), (before.payload(), mark));
    }

    #[test]
    fn a_rewind_forgets_later_violations_and_no_earlier_ones() {
        let mut batch = WriteBatch::new();
        let start = batch.mark();
        batch.put(vec![0; MAX_KEY_LEN + 1], "");
        let violated = batch.mark();
        assert!(batch.rewind(&violated) && batch.validate(7).is_err());
        assert!(batch.rewind(&start) && batch.validate(7).is_ok());
    }
}
