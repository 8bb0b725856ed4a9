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

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::format::deadline::{Deadline, deadline_at};
use crate::format::span::KeySpan;

pub(crate) use tamis_log::op::{BatchReader, Ingest, LogOp, LogOps, LoggedPart, Op, OpKind, Write, encode_op};

/// Bytes that a batch takes with its first operation: room for a few short ones.
const FIRST_LEN: usize = 128;

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
    keyspaces: IdList,
    /// Whether an operation merges.
    merges: bool,
    /// What a reader of the operations needs; see [`OpKind::features`].
    features: u32,
    /// Whether puts without a deadline never expire.
    keeps_deadlines: bool,
    /// The first limit that an operation broke. Later operations are dropped: the batch will be
    /// refused.
    violation: Option<Error>,
}

/// Ids in the order in which they came, each once.
#[derive(Clone, Default)]
pub(crate) struct IdList {
    ids: Vec<u32>,
    /// Those of a list longer than [`SHORT_LIST`].
    known: BTreeSet<u32>,
}

/// A longer list is not searched from one end to the other.
const SHORT_LIST: usize = 32;

impl IdList {
    fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns whether the list did not have it.
    #[inline]
    pub(crate) fn insert(&mut self, id: u32) -> bool {
        self.ids.last() != Some(&id) && self.insert_other(id)
    }

    fn insert_other(&mut self, id: u32) -> bool {
        let is_new = if self.known.is_empty() { !self.ids.contains(&id) } else { self.known.insert(id) };
        if is_new {
            self.ids.push(id);
            if self.known.is_empty() && self.ids.len() > SHORT_LIST {
                self.known.extend(&self.ids);
            }
        }
        is_new
    }

    /// Removes the ids after the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        let gone = self.ids.drain(len.min(self.ids.len())..);
        if len > SHORT_LIST {
            gone.for_each(|id| _ = self.known.remove(&id));
        } else {
            drop(gone);
            self.known.clear();
        }
    }
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

    /// Adds the operations of another batch after its own. A limit that the other one broke, this
    /// one breaks as well.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use tamis::WriteBatch;
    ///
    /// let (mut order, mut entry) = (WriteBatch::new(), WriteBatch::new());
    /// order.put("order 17", "two apples");
    /// entry.put("index: apples", "17");
    /// order.append(&entry);
    /// assert_eq!(order.len(), 2);
    /// db.write(order)?; // both or neither
    /// # Ok(()) }
    /// ```
    pub fn append(&mut self, other: &WriteBatch) {
        if let Some(origin) = other.origin {
            self.set_origin(origin);
        }
        for (keyspace, key, kind, at) in other.writes_from(&BatchMark::default()) {
            self.push(keyspace, key, Write::of(kind, other.bytes(at)));
        }
        self.keeps_deadlines |= other.keeps_deadlines;
        self.violation = self.violation.take().or_else(|| other.violation.clone());
    }

    /// Removes all operations, and forgets the store they were for.
    pub fn clear(&mut self) {
        self.payload.clear();
        self.count = 0;
        self.origin = None;
        self.keyspaces.truncate(0);
        self.merges = false;
        self.features = 0;
        self.keeps_deadlines = false;
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
        if self.payload.capacity() == 0 {
            self.payload.reserve(FIRST_LEN);
        }
        if let Err(error) = encode_op(&mut self.payload, keyspace, key, write) {
            self.violation = Some(error);
            return;
        }
        if keyspace != 0 {
            self.keyspaces.insert(keyspace);
        }
        self.merges |= matches!(write, Write::Merge(_));
        self.features |= write.kind().features();
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
        self.keyspaces.ids()
    }

    /// The [`features`](crate::format::header::features) that a reader of the batch needs.
    pub(crate) fn features(&self) -> u32 {
        self.features
    }

    /// Says that puts without a deadline never expire, whatever the options of the write.
    pub(crate) fn keep_deadlines(&mut self) {
        self.keeps_deadlines = true;
    }

    /// The batch with a deadline for each put that has none and whose keyspace is in the list;
    /// `None` if that changes nothing. The list is ordered by keyspace.
    pub(crate) fn with_deadlines(&self, deadlines: &[(u32, Deadline)]) -> Option<WriteBatch> {
        let all = BatchMark::default();
        let deadline_of = |keyspace, kind| {
            let at = deadlines.binary_search_by_key(&keyspace, |(id, _)| *id).ok();
            at.filter(|_| kind == OpKind::Put).map(|at| deadlines[at].1)
        };
        let is_due = |(keyspace, _, kind, _): (u32, &[u8], OpKind, Range<usize>)| deadline_of(keyspace, kind).is_some();
        if self.keeps_deadlines || !self.writes_from(&all).any(is_due) {
            return None;
        }
        let mut batch = WriteBatch { origin: self.origin, violation: self.violation.clone(), ..WriteBatch::default() };
        for (keyspace, key, kind, at) in self.writes_from(&all) {
            match (Write::of(kind, self.bytes(at)), deadline_of(keyspace, kind)) {
                (Write::Put(value), Some(due)) => batch.push(keyspace, key, Write::ExpiringPut(value, due)),
                (write, _) => batch.push(keyspace, key, write),
            }
        }
        Some(batch)
    }

    /// What the log stores of the batch, if it does not store all of it; `is_logged` says whether
    /// it stores the operations of a keyspace.
    pub(crate) fn logged_part(&self, is_logged: impl Fn(u32) -> bool) -> Option<LoggedPart> {
        LoggedPart::of(&self.payload, self.count, is_logged)
    }

    /// Bytes of memory that it keeps for operations.
    pub(crate) fn capacity(&self) -> usize {
        self.payload.capacity()
    }

    /// The payload of the WAL record.
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
    merges: bool,
    features: u32,
    origin: Option<u64>,
    is_violated: bool,
}

impl WriteBatch {
    /// Marks the end of the batch.
    pub(crate) fn mark(&self) -> BatchMark {
        BatchMark {
            bytes: self.payload.len(),
            count: self.count,
            keyspaces: self.keyspaces.ids().len(),
            merges: self.merges,
            features: self.features,
            origin: self.origin,
            is_violated: self.violation.is_some(),
        }
    }

    /// Removes the operations after `mark`: the batch must not have been cut before it since.
    pub(crate) fn rewind(&mut self, mark: &BatchMark) {
        debug_assert!(mark.bytes <= self.payload.len() && mark.count <= self.count, "no mark of this batch");
        self.payload.truncate(mark.bytes);
        self.count = mark.count;
        self.keyspaces.truncate(mark.keyspaces);
        self.merges = mark.merges;
        self.features = mark.features;
        self.origin = mark.origin;
        if !mark.is_violated {
            self.violation = None;
        }
    }

    /// The operations after `mark`: keyspace, key, kind, and where the value or operand, as entries
    /// store it, is in the [payload](WriteBatch::bytes).
    pub(crate) fn writes_from<'a>(
        &'a self,
        mark: &BatchMark,
    ) -> impl Iterator<Item = (u32, &'a [u8], OpKind, Range<usize>)> + use<'a> {
        let mut reader = BatchReader::new(self.bytes(mark.bytes..self.payload.len()), self.count - mark.count);
        std::iter::from_fn(move || {
            // Only what this process has encoded is in a batch.
            let op = reader.next()?.ok()?;
            let end = self.payload.len() - reader.left();
            Some((op.keyspace, op.key, op.kind, end - op.value.len()..end))
        })
    }

    /// Keyspaces, keys and operands of the merges.
    pub(crate) fn merges(&self) -> impl Iterator<Item = (u32, &[u8], &[u8])> {
        let writes = if self.merges { Some(self.writes_from(&BatchMark::default())) } else { None };
        let merges = writes.into_iter().flatten().filter(|(_, _, kind, _)| *kind == OpKind::Merge);
        merges.map(|(keyspace, key, _, at)| (keyspace, key, self.bytes(at)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Decoded;
    use crate::format::coding::{put_bytes, put_varint};
    use crate::format::header::features;
    use crate::format::key::{MAX_BATCH_LEN, MAX_KEY_LEN, MAX_VALUE_LEN};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tamis_log::op::check_op;

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
                let kind = if value.is_some() { OpKind::Put } else { OpKind::Delete };
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
        assert_eq!(&*LoggedPart::none_of(1).payload, b"\x06\x01");
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

    #[test]
    fn an_appended_batch_brings_its_store_its_limits_and_its_deadlines() {
        let (mut batch, mut other) = (WriteBatch::new(), WriteBatch::new());
        batch.put("a", "one");
        other.set_origin(7);
        other.merge_raw(9, b"b", b"two");
        other.put_expiring_raw(0, b"c", b"three", 5);
        let mut whole = batch.clone();
        whole.set_origin(7);
        whole.merge_raw(9, b"b", b"two");
        whole.put_expiring_raw(0, b"c", b"three", 5);
        batch.append(&other);
        assert_eq!((batch.payload(), batch.mark()), (whole.payload(), whole.mark()));
        assert_eq!(batch.keyspaces(), whole.keyspaces());
        assert!(batch.validate(7).is_ok() && batch.validate(8).is_err());
        batch.append(&WriteBatch::new());
        assert_eq!((batch.payload(), batch.mark()), (whole.payload(), whole.mark()));
        let mut of_other_store = WriteBatch::new();
        of_other_store.set_origin(8);
        whole.append(&of_other_store);
        assert!(whole.validate(7).is_err(), "two stores");
        let mut too_long = WriteBatch::new();
        too_long.put(vec![0; MAX_KEY_LEN + 1], "");
        batch.append(&too_long);
        assert!(batch.validate(7).is_err());
        let mut following = WriteBatch::new();
        following.keep_deadlines();
        let mut batch = WriteBatch::new();
        batch.put("a", "");
        batch.append(&following);
        assert!(batch.with_deadlines(&[(0, 5)]).is_none());
    }

    /// The operations after `mark`: keyspace, key, kind, and value or operand.
    fn listed(batch: &WriteBatch, mark: &BatchMark) -> Vec<(u32, Vec<u8>, OpKind, Vec<u8>)> {
        let writes = batch.writes_from(mark);
        writes.map(|(keyspace, key, kind, at)| (keyspace, key.to_vec(), kind, batch.bytes(at).to_vec())).collect()
    }

    #[test]
    fn a_list_of_ids_has_each_once_however_long_it_is() {
        let (mut list, mut expected, mut rng) = (IdList::default(), Vec::new(), fastrand::Rng::with_seed(1));
        for _ in 0..3000 {
            let id = rng.u32(..200);
            let is_new = !expected.contains(&id);
            expected.extend(is_new.then_some(id));
            assert_eq!(list.insert(id), is_new);
            if rng.u8(..) < 4 {
                let len = rng.usize(..=expected.len() + 1);
                expected.truncate(len);
                list.truncate(len);
            }
            assert_eq!(list.ids(), expected);
        }
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
        let earlier = [write(0, "a", OpKind::Put, "one"), write(7, "b", OpKind::Put, "two")];
        let later =
            [write(9, "a", OpKind::Delete, ""), write(300, "c", OpKind::Put, "three"), write(7, "", OpKind::Merge, "")];
        assert_eq!(listed(&batch, &mark), later);
        assert_eq!(listed(&batch, &start), [&earlier[..], &later[..]].concat());
        assert_eq!(listed(&batch, &after), []);
        for _ in 0..2 {
            batch.rewind(&mark);
            assert_eq!((batch.payload(), batch.len()), (before.payload(), 2));
            assert_eq!((batch.keyspaces(), batch.merges().count()), (&[7][..], 0));
        }
        assert_eq!((batch.payload(), batch.mark()), (before.payload(), mark));
    }

    #[test]
    fn a_rewind_forgets_later_violations_and_no_earlier_ones() {
        let mut batch = WriteBatch::new();
        let start = batch.mark();
        batch.put(vec![0; MAX_KEY_LEN + 1], "");
        let violated = batch.mark();
        batch.rewind(&violated);
        assert!(batch.validate(7).is_err());
        batch.rewind(&start);
        assert!(batch.validate(7).is_ok());
    }
}
