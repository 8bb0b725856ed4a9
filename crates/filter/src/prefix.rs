//! [`PrefixExtractor`]: the part of a key that is its prefix.

use std::fmt;

use tamis_base::error::{Error, Result};
use tamis_base::format::coding::low_byte;

/// Which part of a key is its prefix. With an extractor, the filters of a keyspace's tables hold
/// the prefixes of their keys beside the keys. A scan whose keys all have one prefix skips the
/// tables whose filters deny it.
///
/// The scan's range must show this. `prefix(p)` does if the extractor finds a prefix in `p` itself:
/// every key that begins with `p` then has that prefix.
///
/// ```
/// use tamis_filter::PrefixExtractor;
///
/// assert_eq!(PrefixExtractor::Fixed(4).extract(b"user17"), Some(&b"user"[..]));
/// assert_eq!(PrefixExtractor::Fixed(4).extract(b"use"), None);
/// assert_eq!(PrefixExtractor::UpTo(b':').extract(b"user:17:name"), Some(&b"user:"[..]));
/// assert_eq!(PrefixExtractor::UpTo(b':').extract(b"user"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum PrefixExtractor {
    /// This many leading bytes, 1 to 4095. A shorter key has no prefix.
    Fixed(u16),
    /// The key up to and including the first such byte. Without the byte, the prefix `user` could
    /// not be told from the beginning of `users`. A key without such a byte has no prefix.
    UpTo(u8),
}

impl PrefixExtractor {
    /// The prefix of a key, if it has one. Every longer key that begins with `key` shares it.
    pub fn extract(self, key: &[u8]) -> Option<&[u8]> {
        match self {
            PrefixExtractor::Fixed(len) => key.get(..len.into()),
            PrefixExtractor::UpTo(delimiter) => {
                let at = key.iter().position(|&byte| byte == delimiter)?;
                key.get(..=at)
            }
        }
    }

    /// The extractor's number in filters and manifest: the kind in the upper four bits, its
    /// parameter in the others. Part of the format.
    #[doc(hidden)]
    pub fn code(self) -> u16 {
        match self {
            PrefixExtractor::Fixed(len) => 0x1000 | len,
            PrefixExtractor::UpTo(delimiter) => 0x2000 | u16::from(delimiter),
        }
    }

    /// The extractor whose number is `code`.
    #[doc(hidden)]
    pub fn from_code(code: u16) -> Option<PrefixExtractor> {
        match code {
            0x1001..=0x1fff => Some(PrefixExtractor::Fixed(code & 0xfff)),
            0x2000..=0x20ff => Some(PrefixExtractor::UpTo(low_byte(code.into()))),
            _ => None,
        }
    }

    #[doc(hidden)]
    pub fn validate(self) -> Result<()> {
        match self {
            PrefixExtractor::Fixed(len) if !(1..=0xfff).contains(&len) => {
                Err(Error::invalid(format_args!("a prefix of fixed length takes 1 to 4095 bytes, not {len}")))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for PrefixExtractor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrefixExtractor::Fixed(1) => f.write_str("first byte"),
            PrefixExtractor::Fixed(len) => write!(f, "first {len} bytes"),
            PrefixExtractor::UpTo(delimiter) => write!(f, "up to b'{}'", delimiter.escape_ascii()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_extractor_code_round_trips_and_is_valid() {
        let known: Vec<PrefixExtractor> = (0..=u16::MAX).filter_map(PrefixExtractor::from_code).collect();
        assert_eq!(known.len(), 4095 + 256);
        for extractor in known {
            assert_eq!(PrefixExtractor::from_code(extractor.code()), Some(extractor));
            assert!(extractor.validate().is_ok());
        }
        assert_eq!(PrefixExtractor::Fixed(4).code(), 0x1004);
        assert_eq!(PrefixExtractor::UpTo(b':').code(), 0x203a);
    }

    #[test]
    fn a_key_s_prefix_is_also_that_of_its_extensions() {
        for (extractor, key, prefix) in [
            (PrefixExtractor::Fixed(3), &b"abcd"[..], Some(&b"abc"[..])),
            (PrefixExtractor::Fixed(3), b"abc", Some(b"abc")),
            (PrefixExtractor::Fixed(3), b"ab", None),
            (PrefixExtractor::UpTo(0), b"ab\0c\0", Some(b"ab\0")),
            (PrefixExtractor::UpTo(0), b"\0", Some(b"\0")),
            (PrefixExtractor::UpTo(0), b"", None),
        ] {
            assert_eq!(extractor.extract(key), prefix);
            for longer in [&b"x"[..], b"\0", b"abc"].map(|rest| [key, rest].concat()) {
                assert!(prefix.is_none() || extractor.extract(&longer) == prefix);
            }
        }
    }
}
