//! The header of a record in a log file; docs/FORMAT.md says how replay ends.
//!
//! | size | field |
//! |---|---|
//! | 4 | bound CRC of the rest of the header, at the record's file offset |
//! | 4 | CRC of the payload, unbound: the first CRC covers it |
//! | varint | 2 × `count`, plus 1 if the header states what is durable; `count` below 2^32 |
//! | varint | length of the payload, below 2^32 |
//! | 8 | if stated: file number of this log |
//! | 8 | if stated: `synced`, above 0 |
//!
//! `count` is the number of ordinals in the record; 0 makes it a sync marker.
//!
//! It is short because most records are: every header byte is written once per put. File and
//! ordinal follow from the record's position, so the header omits them; its checksum is bound to
//! file and offset instead. Now and then a header states what is durable. That statement includes
//! the file's number, so that a search for statements at every byte finds none by accident.

use super::checksum::bound_crc;
use super::coding::{Decoder, low_byte, set_u32, set_u64};

/// Longest record header. Part of the format.
pub const MAX_RECORD_HEADER_LEN: usize = FIXED_LEN + 2 * MAX_NUMBER_LEN + STATEMENT_LEN;
/// Length of a sync marker. Part of the format.
pub const MARKER_LEN: usize = FIXED_LEN + 2 + STATEMENT_LEN;

/// The two checksums.
const FIXED_LEN: usize = 8;
/// A varint of 35 bits: a length of 32, or a count of 32 and one flag bit.
const MAX_NUMBER_LEN: usize = 5;
/// Number of the file, and ordinal.
const STATEMENT_LEN: usize = 16;

/// Decoded record header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    pub payload_len: u32,
    pub payload_crc: u32,
    /// Number of ordinals that the record takes; 0 in a sync marker.
    pub count: u32,
    /// Every ordinal up to this one was on stable storage when the record was written; 0 if the
    /// record states nothing.
    pub synced: u64,
}

/// A header as stored in the file.
pub struct EncodedHeader {
    bytes: [u8; MAX_RECORD_HEADER_LEN],
    len: usize,
}

impl EncodedHeader {
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn put_byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn put_u64(&mut self, value: u64) {
        set_u64(&mut self.bytes, self.len, value);
        self.len += 8;
    }

    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.put_byte(low_byte(value) | 0x80);
            value >>= 7;
        }
        self.put_byte(low_byte(value));
    }
}

impl RecordHeader {
    /// The header as stored at `offset` of log `number`.
    pub fn encode(&self, number: u64, offset: u64) -> EncodedHeader {
        let states = self.synced > 0;
        let mut out = EncodedHeader { bytes: [0; MAX_RECORD_HEADER_LEN], len: FIXED_LEN };
        set_u32(&mut out.bytes, 4, self.payload_crc);
        out.put_varint(u64::from(self.count) << 1 | u64::from(states));
        out.put_varint(self.payload_len.into());
        if states {
            out.put_u64(number);
            out.put_u64(self.synced);
        }
        let crc = bound_crc(number, offset, &out.bytes[4..out.len]);
        set_u32(&mut out.bytes, 0, crc);
        out
    }

    /// Decodes the header at the front of `bytes`, which are at `offset` of log `number`; returns
    /// it and its length. `None` if no header verifies there.
    pub fn decode(bytes: &[u8], number: u64, offset: u64) -> Option<(RecordHeader, usize)> {
        let mut fields = Decoder::new(bytes);
        let crc = fields.u32().ok()?;
        let payload_crc = fields.u32().ok()?;
        let marked_count = fields.varint().ok()?;
        let payload_len = fields.varint_u32().ok()?;
        let synced = match marked_count & 1 {
            0 => 0,
            // The number first: a search for statements gets here at nearly every byte, and nearly
            // always ends here.
            _ if fields.u64().ok()? != number => return None,
            _ => fields.u64().ok().filter(|&synced| synced > 0)?,
        };
        let len = bytes.len() - fields.remaining();
        let count = u32::try_from(marked_count >> 1).ok()?;
        // Refuses a record without ordinals or statement, such as prepared zeros.
        if marked_count == 0 || crc != bound_crc(number, offset, &bytes[4..len]) {
            return None;
        }
        Some((RecordHeader { payload_len, payload_crc, count, synced }, len))
    }

    /// The durable ordinal that a header at the front of `bytes` states; see
    /// [`RecordHeader::decode`].
    pub fn statement(bytes: &[u8], number: u64, offset: u64) -> Option<u64> {
        // This rejects half of all random bytes at once.
        bytes.get(FIXED_LEN).filter(|&byte| byte & 1 == 1)?;
        RecordHeader::decode(bytes, number, offset).map(|(header, _)| header.synced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn header_verifies_only_where_it_was_written() {
        for synced in [0, 90] {
            let header = RecordHeader { payload_len: 500, payload_crc: 77, count: 2, synced };
            let encoded = header.encode(8, 64);
            let bytes = encoded.as_slice();
            let decode = |bytes: &[u8], number, offset| RecordHeader::decode(bytes, number, offset);
            assert_eq!(decode(bytes, 8, 64), Some((header, bytes.len())));
            assert_eq!(decode(&[bytes, b"payload"].concat(), 8, 64), Some((header, bytes.len())));
            assert_eq!(RecordHeader::statement(bytes, 8, 64), (synced > 0).then_some(synced));
            assert_eq!(decode(bytes, 8, 65), None);
            assert_eq!(decode(bytes, 9, 64), None);
            for len in 0..bytes.len() {
                assert_eq!(decode(&bytes[..len], 8, 64), None);
            }
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                // With the old length, and longer: a flipped bit may change the length.
                assert_eq!(decode(&damaged, 8, 64), None, "bit {bit}");
                damaged.extend([0; MAX_RECORD_HEADER_LEN]);
                assert_eq!(decode(&damaged, 8, 64), None, "bit {bit}");
            }
        }
    }

    #[test]
    fn zeros_are_no_header() {
        // Among this many offsets, the checksum of zeros is 0 somewhere, or nearly. The count of 0
        // is what refuses them.
        for offset in 0..10_000 {
            assert_eq!(RecordHeader::decode(&[0; MAX_RECORD_HEADER_LEN], 8, offset), None);
        }
        let mut nothing = EncodedHeader { bytes: [0; MAX_RECORD_HEADER_LEN], len: FIXED_LEN + 2 };
        let crc = bound_crc(8, 64, &nothing.bytes[4..nothing.len]);
        set_u32(&mut nothing.bytes, 0, crc);
        assert_eq!(RecordHeader::decode(nothing.as_slice(), 8, 64), None);
    }

    proptest! {
        #[test]
        fn header_round_trips(payload_len: u32, payload_crc: u32, count: u32, synced: u64, number: u64, offset: u64) {
            prop_assume!(count > 0 || synced > 0);
            let header = RecordHeader { payload_len, payload_crc, count, synced };
            let encoded = header.encode(number, offset);
            let len = encoded.as_slice().len();
            prop_assert!((FIXED_LEN + 2..=MAX_RECORD_HEADER_LEN).contains(&len));
            prop_assert_eq!(RecordHeader::decode(encoded.as_slice(), number, offset), Some((header, len)));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = RecordHeader::decode(&bytes, 8, 64);
            let _ = RecordHeader::statement(&bytes, 8, 64);
        }
    }
}
