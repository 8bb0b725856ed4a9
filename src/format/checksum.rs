//! CRC-32, plain and bound to a place.

/// CRC-32 of `bytes`.
pub(crate) fn crc(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// CRC-32 of `bytes` that stand at `offset` of file `number`: the same bytes elsewhere have another one, so that a misplaced or
/// recycled block never verifies.
pub(crate) fn bound_crc(number: u64, offset: u64, bytes: &[u8]) -> u32 {
    bound_crc_parts(number, offset, &[bytes])
}

/// [`bound_crc`] of the concatenation of `parts`.
pub(crate) fn bound_crc_parts(number: u64, offset: u64, parts: &[&[u8]]) -> u32 {
    let mut seed = [0; 16];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    seed[8..].copy_from_slice(&offset.to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&seed);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

/// CRC-32 of a file as it is written, piece by piece.
#[derive(Clone, Default)]
pub(crate) struct StreamCrc(crc32fast::Hasher);

impl StreamCrc {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(&self) -> u32 {
        self.0.clone().finalize()
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
}
