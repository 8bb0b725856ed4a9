//! [`References`]: the value files to which a table's entries point.
//!
//! ```text
//! references = (difference of file numbers, entries, bytes of their records: varint)*
//! ```

use crate::format::coding::{Decoder, put_varint};
use crate::format::key::MAX_SEQNO;
use crate::format::pointer::ValuePointer;
use crate::format::{Decoded, Malformed};

/// How much of a value file a table's entries point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Number of the file.
    pub file: u64,
    /// Entries that point to it.
    pub count: u64,
    /// Bytes of their records.
    pub bytes: u64,
}

/// One for each file, ascending by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References(Vec<Reference>);

impl References {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Reference> {
        self.0.iter()
    }

    /// Bytes of all records.
    pub fn bytes(&self) -> u64 {
        self.0.iter().fold(0, |sum, reference| sum.saturating_add(reference.bytes))
    }

    /// Counts an entry.
    pub fn count(&mut self, pointer: &ValuePointer) {
        let at = match self.0.binary_search_by_key(&pointer.file, |reference| reference.file) {
            Ok(at) => at,
            Err(at) => {
                self.0.insert(at, Reference { file: pointer.file, count: 0, bytes: 0 });
                at
            }
        };
        self.0[at].count += 1;
        self.0[at].bytes = self.0[at].bytes.saturating_add(pointer.record_len.into());
    }

    pub fn put(&self, out: &mut Vec<u8>) {
        let mut last = 0;
        for &Reference { file, count, bytes } in &self.0 {
            put_varint(out, file - last);
            put_varint(out, count);
            put_varint(out, bytes);
            last = file;
        }
    }

    /// Decodes all of `content`.
    pub fn decode(content: &mut Decoder<'_>) -> Decoded<References> {
        let (mut references, mut last) = (Vec::new(), 0);
        while !content.is_empty() {
            let (difference, count, bytes) = (content.varint()?, content.varint()?, content.varint()?);
            let in_bounds = difference.max(count).max(bytes) <= MAX_SEQNO && last + difference <= MAX_SEQNO;
            if !in_bounds || difference == 0 || count == 0 || bytes < count {
                return Err(Malformed("what a table says of a value file contradicts itself"));
            }
            last += difference;
            references.push(Reference { file: last, count, bytes });
        }
        Ok(References(references))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counted(pointers: &[(u64, u32)]) -> References {
        let mut references = References::default();
        for &(file, record_len) in pointers {
            references.count(&ValuePointer { file, offset: 64, record_len, value_len: 1 });
        }
        references
    }

    #[test]
    fn entries_are_counted_by_file_and_come_back() {
        let references = counted(&[(9, 100), (300, 20), (9, 50), (4, 1)]);
        let list: Vec<_> = references.iter().map(|r| (r.file, r.count, r.bytes)).collect();
        assert_eq!((list, references.bytes()), (vec![(4, 1, 1), (9, 2, 150), (300, 1, 20)], 171));
        let mut bytes = Vec::new();
        references.put(&mut bytes);
        assert_eq!(bytes, [4, 1, 1, 5, 2, 150, 1, 0xa3, 2, 1, 20]);
        assert_eq!(References::decode(&mut Decoder::new(&bytes)), Ok(references));
        for len in [1, 2, 4, 5, 6, 8, 9, 10] {
            assert!(References::decode(&mut Decoder::new(&bytes[..len])).is_err(), "{len}");
        }
    }

    #[test]
    fn files_out_of_order_and_empty_references_are_refused() {
        for list in [&[0, 1, 9][..], &[4, 0, 9], &[4, 2, 1], &[4, 1, 9, 0, 1, 9]] {
            assert!(References::decode(&mut Decoder::new(list)).is_err(), "{list:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = References::decode(&mut Decoder::new(&bytes));
        }
    }
}
