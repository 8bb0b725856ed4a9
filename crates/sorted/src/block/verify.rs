//! Checks the rules that reads rely on without checking them, because the CRC vouches for them.

use super::{BlockCursor, BlockRef};
use crate::format::key::head4;
use crate::format::{Decoded, Malformed};

impl BlockRef {
    /// Checks that the entries fill the block without gaps, that the base and the heads match the
    /// entries, and that each fingerprint is `fingerprint_of` its key. The caller checks the order,
    /// also across blocks.
    pub fn verify(&self, mut fingerprint_of: impl FnMut(&[u8]) -> u8) -> Decoded<()> {
        let block = self.block();
        let mut end = block.entries_start();
        let mut smallest_seqno = u64::MAX;
        let mut cursor = BlockCursor::new(self.clone());
        cursor.seek_to_first()?;
        for (i, &fingerprint) in block.fingerprints().iter().enumerate() {
            let entry = block.entry(i)?;
            if block.offset(i) != end {
                return Err(Malformed("there is a gap or an overlap between entries"));
            }
            if block.head(i) != head4(entry.rest) {
                return Err(Malformed("a head does not match its key"));
            }
            if fingerprint != fingerprint_of(cursor.key()) {
                return Err(Malformed("a fingerprint does not match its key"));
            }
            end = entry.value_start + entry.value_len;
            smallest_seqno = smallest_seqno.min(entry.seqno);
            cursor.next()?;
        }
        if end != block.bytes().len() {
            return Err(Malformed("bytes follow the last entry"));
        }
        if smallest_seqno != block.base() {
            return Err(Malformed("the base of a data block is not its smallest sequence number"));
        }
        Ok(())
    }
}
