//! Encodings shared by several kinds of file: bytes in, bytes out, no I/O. docs/FORMAT.md is the
//! reference.
//!
//! Decoders never trust a length from the input, and report the broken rule as a [`Malformed`]. The
//! caller, who knows file and offset, turns it into `Error::Corruption`.

pub mod checksum;
pub mod coding;
pub mod deadline;
pub mod effect;
pub mod filename;
pub mod header;
pub mod key;
pub mod pointer;
pub mod record;
pub mod span;

/// 64 bits that are drawn anew with each call. They are no secret.
pub fn random_bits() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// The rule of the format that some bytes break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// The result of decoding.
pub type Decoded<T> = Result<T, Malformed>;
