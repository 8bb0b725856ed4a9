//! [`Value`]: bytes that a read returns.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::block::{BlockRef, BorrowedFrame};
use crate::format::deadline::DEADLINE_LEN;
use crate::values::SeparateValue;
use crate::vfs::Mapping;

/// A key or value read from a store: owned, cheap to clone, and valid for as long as it is kept.
///
/// A value of 4 KiB or more from a data block keeps the block alive instead of being copied. All
/// other values are copied, including those in mapped files. Short ones that one `multi_get`
/// returns share pieces of memory of up to 4 KiB, which stay until the last of them is dropped.
#[derive(Clone)]
pub struct Value(Repr);

/// Length from which a value keeps its block. Below it, a copy is cheaper than a reference count
/// that several readers share.
const KEEP_FROM: usize = 4096;
/// Longest value that is stored inline, without an allocation.
const INLINE: usize = 30;

#[derive(Clone)]
enum Repr {
    Inline {
        len: u8,
        bytes: [u8; INLINE],
    },
    /// A clone copies the bytes, which takes no longer than counting a reference up and down.
    Owned(Box<[u8]>),
    /// Part of bytes that clones and other values share.
    Shared {
        bytes: Arc<Vec<u8>>,
        start: usize,
        len: usize,
    },
    InBlock {
        block: BlockRef,
        start: u32,
        len: u32,
    },
}

impl Value {
    /// The bytes as a vector; copied, unless the value has them to itself.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Repr::Owned(bytes) => bytes.into_vec(),
            _ => self.to_vec(),
        }
    }

    /// A value that was read from a value file.
    pub fn separate(value: SeparateValue) -> Value {
        if value.bytes().len() < KEEP_FROM {
            return Value::copy_of(value.bytes());
        }
        let (record, start) = value.into_parts();
        let len = record.len() - start;
        Value(Repr::Shared { bytes: Arc::new(record), start, len })
    }

    #[inline]
    pub fn copy_of(bytes: &[u8]) -> Value {
        match (u8::try_from(bytes.len()), bytes.len()) {
            (Ok(len), ..=INLINE) => {
                let mut inline = [0; INLINE];
                inline[..bytes.len()].copy_from_slice(bytes);
                Value(Repr::Inline { len, bytes: inline })
            }
            (_, ..KEEP_FROM) => Value(Repr::Owned(bytes.into())),
            (_, len) => Value(Repr::Shared { bytes: Arc::new(bytes.to_vec()), start: 0, len }),
        }
    }
}

/// The values of one read of many keys, by position. Short ones share their memory: to allocate and
/// free each took 8 % of a read of a hundred.
pub struct ValueBatch {
    values: Vec<Option<Value>>,
    /// Of the values in `parts`, one after the other.
    bytes: Vec<u8>,
    /// Position of a value, and where it begins.
    parts: Vec<(usize, usize)>,
    /// Number of positions that have not been set.
    left: usize,
}

impl ValueBatch {
    /// Most bytes that values share: what a long value keeps alive is no less.
    const PIECE: usize = KEEP_FROM;
    /// Longest value that shares them.
    const SHARED: usize = ValueBatch::PIECE / 4;

    /// A batch of `len` positions without values.
    pub fn new(len: usize) -> ValueBatch {
        ValueBatch { values: vec![None; len], bytes: Vec::new(), parts: Vec::new(), left: len }
    }

    /// Sets a position that has not been set.
    pub fn set(&mut self, i: usize, value: Option<Value>) {
        self.values[i] = value;
        self.left = self.left.saturating_sub(1);
    }

    /// Sets a value that stands at `bytes`, unless a value of their length has its memory to
    /// itself.
    pub fn try_copy(&mut self, i: usize, bytes: &[u8]) -> bool {
        if !(INLINE + 1..=ValueBatch::SHARED).contains(&bytes.len()) {
            return false;
        }
        if self.bytes.len() + bytes.len() > ValueBatch::PIECE {
            self.end_piece();
        }
        if self.bytes.capacity() - self.bytes.len() < bytes.len() {
            // For the values that are left, if they are as long as this one.
            let room = ValueBatch::PIECE - self.bytes.len();
            self.bytes.reserve_exact(room.min(bytes.len() * self.left.max(1)));
        }
        self.parts.push((i, self.bytes.len()));
        self.bytes.extend_from_slice(bytes);
        self.left = self.left.saturating_sub(1);
        true
    }

    /// Gives the values in `parts` their bytes.
    fn end_piece(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        // Other keys were absent, or their values long.
        if bytes.len() < bytes.capacity() / 2 {
            bytes.shrink_to_fit();
        }
        let bytes = Arc::new(bytes);
        let mut end = bytes.len();
        for (i, start) in self.parts.drain(..).rev() {
            self.values[i] = Some(Value(Repr::Shared { bytes: Arc::clone(&bytes), start, len: end - start }));
            end = start;
        }
    }

    pub fn into_values(mut self) -> Vec<Option<Value>> {
        self.end_piece();
        self.values
    }
}

/// A value where a read found it in a table, not yet copied or kept.
pub enum FoundValue<'a> {
    /// In a mapped file. A [`Value`] never keeps the file: after the call, only cursors read pages
    /// that the disk may fail to deliver.
    Mapped { bytes: &'a [u8], file: &'a Arc<dyn Mapping> },
    /// In a cached block.
    Cached { bytes: &'a [u8], block: BorrowedFrame<'a> },
    /// `len` bytes at `start` of a block that this read fetched.
    Read { block: BlockRef, start: u32, len: u32 },
    /// From a value file; empty if the read does not need the value. In a box, which keeps what
    /// other reads move small.
    Separate(Box<SeparateValue>),
}

impl<'a> FoundValue<'a> {
    /// A value at `bytes` of a block that this read fetched.
    pub fn read(block: &BlockRef, bytes: &[u8]) -> FoundValue<'a> {
        let (block, start, len) = counted(bytes, block.borrow());
        FoundValue::Read { block, start, len }
    }

    /// Without the deadline in front of it, which must be there.
    pub fn without_deadline(self) -> FoundValue<'a> {
        let rest = |bytes: &'a [u8]| bytes.get(DEADLINE_LEN..).unwrap_or_default();
        match self {
            FoundValue::Mapped { bytes, file } => FoundValue::Mapped { bytes: rest(bytes), file },
            FoundValue::Cached { bytes, block } => FoundValue::Cached { bytes: rest(bytes), block },
            FoundValue::Read { block, start, len } => {
                let skipped = u32::try_from(DEADLINE_LEN).map_or(len, |skipped| skipped.min(len));
                FoundValue::Read { block, start: start + skipped, len: len - skipped }
            }
            FoundValue::Separate(value) => FoundValue::Separate(Box::new(value.without(DEADLINE_LEN))),
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        match self {
            FoundValue::Mapped { bytes, .. } | FoundValue::Cached { bytes, .. } => bytes.len(),
            FoundValue::Read { len, .. } => *len as usize,
            FoundValue::Separate(value) => value.len(),
        }
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            FoundValue::Mapped { bytes, .. } | FoundValue::Cached { bytes, .. } => bytes,
            FoundValue::Read { block, start, len } => block.block().part(*start, *len),
            FoundValue::Separate(value) => value.bytes(),
        }
    }

    /// Copies the value, or keeps its block if the value is long and not in a mapped file.
    #[inline]
    pub fn into_value(self) -> Value {
        match self {
            FoundValue::Cached { bytes, block } if bytes.len() >= KEEP_FROM => {
                let (block, start, len) = counted(bytes, block);
                Value(Repr::InBlock { block, start, len })
            }
            FoundValue::Read { block, start, len } if len as usize >= KEEP_FROM => {
                Value(Repr::InBlock { block, start, len })
            }
            FoundValue::Separate(value) => Value::separate(*value),
            found => Value::copy_of(found.bytes()),
        }
    }

    /// Keeps the value in place, with a count on its block or mapping.
    #[cold]
    pub fn keep(self) -> KeptValue {
        match self {
            FoundValue::Mapped { bytes, file } => {
                let start = bytes.as_ptr().addr() - file.bytes().as_ptr().addr();
                KeptValue::InFile { file: Arc::clone(file), span: start..start + bytes.len() }
            }
            FoundValue::Cached { bytes, block } => {
                let (block, start, len) = counted(bytes, block);
                KeptValue::InBlock { block, start, len }
            }
            FoundValue::Read { block, start, len } => KeptValue::InBlock { block, start, len },
            FoundValue::Separate(value) => KeptValue::Separate(*value),
        }
    }
}

/// A count on the block that holds `bytes`, and their place in it.
#[expect(clippy::cast_possible_truncation, reason = "a block is shorter than 4 GiB")]
fn counted(bytes: &[u8], block: BorrowedFrame<'_>) -> (BlockRef, u32, u32) {
    (block.counted(), block.framed().block().start_of(bytes), bytes.len() as u32)
}

/// A value kept in place after the read that found it.
pub enum KeptValue {
    InBlock { block: BlockRef, start: u32, len: u32 },
    InFile { file: Arc<dyn Mapping>, span: Range<usize> },
    Separate(SeparateValue),
}

impl KeptValue {
    pub fn bytes(&self) -> &[u8] {
        match self {
            KeptValue::InBlock { block, start, len } => block.block().part(*start, *len),
            KeptValue::InFile { file, span } => &file.bytes()[span.clone()],
            KeptValue::Separate(value) => value.bytes(),
        }
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Repr::Owned(bytes) => bytes,
            Repr::Shared { bytes, start, len } => &bytes[*start..*start + *len],
            Repr::InBlock { block, start, len } => block.block().part(*start, *len),
        }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Value {
        match bytes.len() {
            INLINE.. if bytes.len() < KEEP_FROM => Value(Repr::Owned(bytes.into())),
            _ => Value::copy_of(&bytes),
        }
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Value {
        Value::copy_of(bytes)
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Vec<u8> {
        value.into_vec()
    }
}

/// Copies only values of up to 30 bytes. A longer one keeps on what it keeps.
#[cfg(feature = "bytes")]
impl From<Value> for bytes::Bytes {
    fn from(value: Value) -> bytes::Bytes {
        match value.0 {
            Repr::Inline { .. } => bytes::Bytes::copy_from_slice(&value),
            Repr::Owned(bytes) => bytes.into(),
            _ => bytes::Bytes::from_owner(value),
        }
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Value {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Value) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Value) -> std::cmp::Ordering {
        (**self).cmp(other)
    }
}

impl std::hash::Hash for Value {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl std::borrow::Borrow<[u8]> for Value {
    fn borrow(&self) -> &[u8] {
        self
    }
}

/// As a byte string literal: `b"apple\x00"`.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockBuilder;
    use crate::format::key::ValueKind;

    #[test]
    fn values_of_every_length_come_back_and_are_cloned() {
        assert_eq!(size_of::<Value>(), 32);
        for len in [0, 1, INLINE, INLINE + 1, 255, 256, KEEP_FROM - 1, KEEP_FROM, 100_000] {
            let bytes: Vec<u8> = (0..=250).cycle().take(len).collect();
            let value = Value::copy_of(&bytes);
            assert_eq!(value, bytes);
            assert_eq!(value.clone(), value);
            assert_eq!(Value::from(&bytes[..]), value);
            assert_eq!(value.into_vec(), bytes);
        }
    }

    #[test]
    fn values_of_a_batch_are_those_set_and_share_pieces() {
        let lens = [0, INLINE, INLINE + 1, 100, ValueBatch::SHARED, ValueBatch::SHARED + 1, KEEP_FROM];
        let bytes: Vec<Option<Vec<u8>>> =
            (0..=u8::MAX).map(|i| (i % 11 != 3).then(|| vec![i; lens[usize::from(i) % lens.len()]])).collect();
        let positions = 0..bytes.len();
        let orders: [Vec<usize>; 3] = [
            positions.clone().collect(),
            positions.clone().rev().collect(),
            positions.clone().step_by(2).chain(positions.skip(1).step_by(2)).collect(),
        ];
        let [.., values] = orders.map(|order| {
            let mut batch = ValueBatch::new(bytes.len());
            for i in order {
                match &bytes[i] {
                    Some(bytes) if batch.try_copy(i, bytes) => {}
                    // Not found: never set.
                    None if i % 2 == 0 => {}
                    other => batch.set(i, other.as_deref().map(Value::from)),
                }
            }
            let values = batch.into_values();
            check_batch(&values, &bytes);
            values
        });
        // One that is kept stays when the others are dropped.
        let kept = values[100].clone().unwrap();
        drop(values);
        assert_eq!(Some(kept.into_vec()), bytes[100]);
        // One among many that are absent.
        let mut batch = ValueBatch::new(1000);
        assert!(batch.try_copy(0, &[7; 40]));
        assert!(matches!(&batch.into_values()[0], Some(Value(Repr::Shared { bytes, .. })) if bytes.capacity() < 100));
    }

    /// The values are those of `bytes`, and share pieces.
    fn check_batch(values: &[Option<Value>], bytes: &[Option<Vec<u8>>]) {
        assert!(values.iter().zip(bytes).all(|(value, bytes)| value.as_deref() == bytes.as_deref()));
        let shared: Vec<&Arc<Vec<u8>>> = values
            .iter()
            .flatten()
            .filter_map(|value| match &value.0 {
                Repr::Shared { bytes, .. } if value.len() <= ValueBatch::SHARED => Some(bytes),
                _ => None,
            })
            .collect();
        assert!(shared.iter().any(|piece| Arc::strong_count(piece) > 10));
        assert!(shared.iter().all(|piece| piece.capacity() <= ValueBatch::PIECE));
    }

    #[cfg(feature = "bytes")]
    #[test]
    fn shared_bytes_are_those_of_the_value_if_it_is_not_short() {
        let record = Value(Repr::Shared { bytes: Arc::new(vec![7; KEEP_FROM + 5]), start: 5, len: KEEP_FROM });
        let lens = [0, 1, INLINE, INLINE + 1, KEEP_FROM - 1, KEEP_FROM, 100_000];
        for value in lens.map(|len| Value::copy_of(&vec![7; len])).into_iter().chain([record]) {
            let (at, len) = (value.as_ptr(), value.len());
            let bytes = bytes::Bytes::from(value);
            assert_eq!(bytes, vec![7; len]);
            assert_eq!(bytes.as_ptr() == at, len > INLINE, "{len} bytes");
        }
    }

    #[test]
    fn long_values_pin_their_block_and_short_ones_do_not() {
        for (value_len, pins) in [(KEEP_FROM - 1, false), (KEEP_FROM, true)] {
            let mut builder = BlockBuilder::new();
            builder.add(b"key", 1, ValueKind::Put, &vec![7; value_len], 0, usize::MAX);
            let mut bytes = Vec::new();
            builder.finish(&mut bytes);
            let block = BlockRef::copy_of(&bytes).unwrap();
            let start = u32::try_from(bytes.len() - value_len).unwrap();
            let len = u32::try_from(value_len).unwrap();
            let read = FoundValue::Read { block: block.clone(), start, len };
            let cached = FoundValue::Cached { bytes: block.block().part(start, len), block: block.borrow() };
            let mut values = Vec::new();
            for found in [read, cached] {
                assert_eq!((found.bytes(), found.len()), (&vec![7; value_len][..], value_len));
                values.push(found.into_value());
            }
            assert_eq!(block.into_frame().is_none(), pins);
            assert_eq!(values, [vec![7; value_len], vec![7; value_len]]);
        }
    }

    #[test]
    fn debug_form_is_a_byte_string() {
        assert_eq!(format!("{:?}", Value::copy_of(b"a\0\"")), r#"b"a\x00\"""#);
    }
}
