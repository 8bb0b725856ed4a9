//! CRC-32, plain and bound to a file and offset, and the checksum of a whole file.

use std::sync::LazyLock;

use crc32fast::Hasher;
use xxhash_rust::xxh3::Xxh3;

use super::coding::set_u64;

/// A hasher of no bytes, to be cloned: a new one asks for the processor's features first, which
/// takes 30 instructions.
static EMPTY: LazyLock<Hasher> = LazyLock::new(Hasher::new);

/// CRC-32 of `bytes`.
pub fn crc(bytes: &[u8]) -> u32 {
    let mut hasher = EMPTY.clone();
    hasher.update(bytes);
    hasher.finalize()
}

/// CRC-32 of `bytes`, bound to `offset` of file `number`. The same bytes elsewhere have another
/// checksum: a misplaced or recycled block never verifies.
pub fn bound_crc(number: u64, offset: u64, bytes: &[u8]) -> u32 {
    bound_crc_parts(number, offset, &[bytes])
}

/// [`bound_crc`] of the concatenation of `parts`.
pub fn bound_crc_parts(number: u64, offset: u64, parts: &[&[u8]]) -> u32 {
    let mut hasher = EMPTY.clone();
    hasher.update(&seed(number, offset));
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

/// What a bound checksum covers before the bytes themselves. Part of the format.
fn seed(number: u64, offset: u64) -> [u8; 16] {
    let mut seed = [0; 16];
    set_u64(&mut seed, 0, number);
    set_u64(&mut seed, 8, offset);
    seed
}

/// [`bound_crc`], computed incrementally, for a block of unknown length.
pub struct BoundCrc(Hasher);

impl BoundCrc {
    pub fn new(number: u64, offset: u64) -> BoundCrc {
        let mut hasher = EMPTY.clone();
        hasher.update(&seed(number, offset));
        BoundCrc(hasher)
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes so far.
    pub fn value(&self) -> u32 {
        self.0.clone().finalize()
    }
}

/// Checksum of a whole file, computed as it is written: the low 32 bits of its XXH3.
///
/// It is not a CRC: in a file whose parts are each followed by their own CRC of the same
/// polynomial, a part's CRC cancels the part's effect on the remainder. All intact files of one
/// layout would have the same CRC.
#[derive(Clone, Default)]
pub struct FileChecksum(Xxh3);

impl FileChecksum {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    #[expect(clippy::cast_possible_truncation, reason = "32 bits are what the manifest holds")]
    pub fn finish(&self) -> u32 {
        self.0.digest() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_crc_depends_on_file_and_offset() {
        let here = bound_crc(7, 64, b"block");
        assert_ne!(here, bound_crc(8, 64, b"block"));
        assert_ne!(here, bound_crc(7, 128, b"block"));
        assert_eq!(here, bound_crc_parts(7, 64, &[b"bl", b"ock"]));
    }

    #[test]
    fn file_checksum_sees_a_change_that_an_inner_crc_cancels() {
        let file = |block: &[u8]| [block, &bound_crc(7, 0, block).to_le_bytes(), b"more"].concat();
        let (one, other) = (file(b"one block"), file(b"two block"));
        assert_eq!(crc(&one), crc(&other), "a CRC does not see the change");
        let checksum = |bytes: &[u8]| {
            let mut checksum = FileChecksum::default();
            bytes.chunks(5).for_each(|piece| checksum.update(piece));
            checksum.finish()
        };
        assert_ne!(checksum(&one), checksum(&other));
    }
}
