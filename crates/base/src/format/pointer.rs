//! [`ValuePointer`]: where the value of an entry lies that a value file holds.
//!
//! ```text
//! pointer = file number: varint, offset: varint, record length: varint, value length: varint
//! ```
//!
//! An entry of kind 4 has this in place of a value, and one of kind 6 after its deadline. The
//! record is a whole one of that file, and the value's length is that before compression.

use super::coding::{Decoder, put_varint};
use super::deadline::split_expiring;
use super::key::{MAX_KEY_LEN, MAX_SEQNO, MAX_VALUE_LEN, ValueKind};
use super::{Decoded, Malformed};

/// Bytes that a record may have in addition to its key and its value.
const MAX_RECORD_EXTRA: usize = 64;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValuePointer {
    /// Number of the value file.
    pub file: u64,
    /// Where its record begins.
    pub offset: u64,
    /// Bytes of the record.
    pub record_len: u32,
    /// Bytes of the value.
    pub value_len: u32,
}

impl ValuePointer {
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.file);
        put_varint(out, self.offset);
        put_varint(out, self.record_len.into());
        put_varint(out, self.value_len.into());
    }

    pub fn decode(stored: &[u8]) -> Decoded<ValuePointer> {
        let mut fields = Decoder::new(stored);
        let (file, offset) = (fields.varint()?, fields.varint()?);
        let (record_len, value_len) = (fields.varint_u32()?, fields.varint_u32()?);
        fields.finish()?;
        if file > MAX_SEQNO || offset > MAX_SEQNO {
            return Err(Malformed("a number in a pointer to a value exceeds 56 bits"));
        }
        if value_len as usize > MAX_VALUE_LEN || record_len as usize > MAX_KEY_LEN + MAX_VALUE_LEN + MAX_RECORD_EXTRA {
            return Err(Malformed("a pointer to a value states a length beyond the limit of the format"));
        }
        Ok(ValuePointer { file, offset, record_len, value_len })
    }
}

/// Bytes that an entry's value takes in a value file; 0 if it has none there.
pub fn separate_len(kind: ValueKind, stored: &[u8]) -> Decoded<u64> {
    let pointer = split_separate(kind, stored).map(|(_, pointer)| ValuePointer::decode(pointer)).transpose()?;
    Ok(pointer.map_or(0, |pointer| pointer.record_len.into()))
}

/// What an entry stores in front of its pointer, and the encoded pointer; `None` if it has none.
/// The entry has been verified.
pub fn split_separate(kind: ValueKind, stored: &[u8]) -> Option<(&[u8], &[u8])> {
    match kind {
        ValueKind::SeparatePut => Some((&[], stored)),
        ValueKind::SeparateExpiringPut => {
            let pointer = split_expiring(stored).1;
            Some((&stored[..stored.len() - pointer.len()], pointer))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pointer_is_stored_as_these_bytes_and_comes_back() {
        let pointer = ValuePointer { file: 300, offset: 64, record_len: 16_420, value_len: 16_384 };
        let mut stored = Vec::new();
        pointer.encode(&mut stored);
        assert_eq!(stored, [0xac, 2, 64, 0xa4, 0x80, 1, 0x80, 0x80, 1]);
        assert_eq!(ValuePointer::decode(&stored), Ok(pointer));
        for len in 0..stored.len() {
            assert!(ValuePointer::decode(&stored[..len]).is_err());
        }
        stored.push(0);
        assert!(ValuePointer::decode(&stored).is_err());
    }

    #[test]
    fn lengths_beyond_the_limits_are_refused() {
        let decoded = |pointer: ValuePointer| {
            let mut stored = Vec::new();
            pointer.encode(&mut stored);
            ValuePointer::decode(&stored)
        };
        let good = ValuePointer { file: 1, offset: 64, record_len: 10, value_len: 1 << 30 };
        assert_eq!(decoded(good), Ok(good));
        assert!(decoded(ValuePointer { value_len: (1 << 30) + 1, ..good }).is_err());
        assert!(decoded(ValuePointer { record_len: u32::MAX, ..good }).is_err());
        assert!(decoded(ValuePointer { file: MAX_SEQNO + 1, ..good }).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = ValuePointer::decode(&bytes);
        }
    }
}
