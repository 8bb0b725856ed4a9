//! The 40-byte header of a record in a log file; docs/FORMAT.md draws it and says how replay ends.

use super::checksum::bound_crc;
use super::coding::Decoder;

/// Length of a record header. Part of the format.
pub(crate) const RECORD_HEADER_LEN: usize = 40;

/// Decoded record header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) payload_len: u32,
    pub(crate) payload_crc: u32,
    /// Ordinals that the record takes; 0 is a sync marker.
    pub(crate) count: u32,
    pub(crate) file_number: u64,
    /// Ordinal of the first entry.
    pub(crate) first: u64,
    /// Every ordinal up to this one was on stable storage when the record was written.
    pub(crate) synced: u64,
}

impl RecordHeader {
    /// The header as it stands at `offset` of its file.
    pub(crate) fn encode(&self, offset: u64) -> [u8; RECORD_HEADER_LEN] {
        let mut out = [0; RECORD_HEADER_LEN];
        out[4..8].copy_from_slice(&self.payload_len.to_le_bytes());
        out[8..12].copy_from_slice(&self.payload_crc.to_le_bytes());
        out[12..16].copy_from_slice(&self.count.to_le_bytes());
        out[16..24].copy_from_slice(&self.file_number.to_le_bytes());
        out[24..32].copy_from_slice(&self.first.to_le_bytes());
        out[32..40].copy_from_slice(&self.synced.to_le_bytes());
        let crc = bound_crc(self.file_number, offset, &out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header at the front of `bytes`, which stand at `offset` of log `number`; `None` if none verifies there.
    pub(crate) fn decode(bytes: &[u8], number: u64, offset: u64) -> Option<RecordHeader> {
        let bytes = bytes.first_chunk::<RECORD_HEADER_LEN>()?;
        // The number first: a scan for later records asks this at every byte, and nearly always ends here.
        if bytes[16..24] != number.to_le_bytes() {
            return None;
        }
        let mut fields = Decoder::new(bytes);
        if fields.u32().ok()? != bound_crc(number, offset, &bytes[4..]) {
            return None;
        }
        Some(RecordHeader {
            payload_len: fields.u32().ok()?,
            payload_crc: fields.u32().ok()?,
            count: fields.u32().ok()?,
            file_number: fields.u64().ok()?,
            first: fields.u64().ok()?,
            synced: fields.u64().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_verifies_only_where_it_was_written() {
        let header = RecordHeader { payload_len: 5, payload_crc: 77, count: 2, file_number: 8, first: 101, synced: 90 };
        let bytes = header.encode(64);
        assert_eq!(RecordHeader::decode(&bytes, 8, 64), Some(header));
        assert_eq!(RecordHeader::decode(&bytes, 8, 65), None);
        assert_eq!(RecordHeader::decode(&bytes, 9, 64), None);
        assert_eq!(RecordHeader::decode(&bytes[..39], 8, 64), None);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&damaged, 8, 64), None, "bit {bit}");
        }
    }
}
