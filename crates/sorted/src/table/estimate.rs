//! What share of a table lies in a range of keys, by its index alone.

use std::ops::Range;

use super::Table;
use crate::error::Result;
use crate::format::header::FILE_HEADER_LEN;
use crate::format::key::{common_prefix_len, strip};
use crate::format::span::KeySpan;

impl Table {
    /// Position of the first data block that may hold `key` or a greater key. All keys of the
    /// blocks before it are less than `key`.
    pub fn block_at(&self, key: &[u8]) -> Result<usize> {
        self.resident()?.index.find(self.fetcher(), key)
    }

    /// Bytes of the data blocks at these positions.
    pub fn block_bytes(&self, positions: Range<usize>) -> Result<u64> {
        let index = &self.resident()?.index;
        let offset = |i: usize| match i < index.len() {
            true => Ok(index.handle(self.fetcher(), i)?.offset),
            false => Ok(index.data_end()),
        };
        Ok(offset(positions.end)?.saturating_sub(offset(positions.start)?))
    }

    /// The share of the table's data in `span`, 0 to 1. Reads no data block; off by less than one
    /// block at each bound that lies within the table.
    pub fn share(&self, span: KeySpan<&[u8]>) -> Result<f64> {
        let before = |key: Option<&[u8]>, open: f64| key.map_or(Ok(open), |key| self.share_before(key));
        Ok((before(span.upper, 1.0)? - before(span.lower, 0.0)?).max(0.0))
    }

    /// The share of the data before `key`.
    fn share_before(&self, key: &[u8]) -> Result<f64> {
        let meta = self.meta();
        if *key <= *meta.smallest {
            return Ok(0.0);
        }
        if *key > *meta.largest {
            return Ok(1.0);
        }
        let (index, fetcher) = (&self.resident()?.index, self.fetcher());
        let at = index.find(fetcher, key)?;
        if at >= index.len() {
            return Ok(1.0);
        }
        let first = match at.checked_sub(1) {
            Some(before) => index.separator(fetcher, before)?,
            None => meta.smallest.to_vec(),
        };
        let handle = index.handle(fetcher, at)?;
        let before = (handle.offset - FILE_HEADER_LEN as u64) as f64;
        let within = f64::from(handle.len) * position(key, &first, &index.separator(fetcher, at)?);
        Ok((before + within) / (index.data_end() - FILE_HEADER_LEN as u64) as f64)
    }
}

/// Where `key` lies between `first` and `last`, 0 to 1, if keys are spread evenly. If they differ
/// in decimal digits only, they are spread as numbers are.
fn position(key: &[u8], first: &[u8], last: &[u8]) -> f64 {
    let prefix = &first[..common_prefix_len(first, last)];
    let heads = [first, key, last].map(|key| strip(key, prefix).map_or(&[][..], head));
    let digits = Digits::of(heads.into_iter().flatten());
    let [first, key, last] = heads.map(|head| digits.number(head));
    if last > first { ((key - first) / (last - first)).clamp(0.0, 1.0) } else { 0.5 }
}

const HEAD_LEN: usize = 8;

fn head(key: &[u8]) -> &[u8] {
    &key[..key.len().min(HEAD_LEN)]
}

/// How the first bytes of keys are read as a number.
struct Digits {
    least: f64,
    base: f64,
}

impl Digits {
    fn of<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> Digits {
        let is_decimal = bytes.into_iter().all(u8::is_ascii_digit);
        if is_decimal { Digits { least: f64::from(b'0'), base: 10.0 } } else { Digits { least: 0.0, base: 256.0 } }
    }

    /// 0 to 1. From the last byte to the first; bytes that are missing are less than all others.
    fn number(&self, head: &[u8]) -> f64 {
        let Digits { least, base } = self;
        (0..HEAD_LEN).rev().fold(0.0, |sum, i| head.get(i).map_or(sum, |&byte| f64::from(byte) - least + sum) / base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_taken_after_the_common_prefix() {
        for (key, first, last, expected) in [
            (&b"user:1500"[..], &b"user:1000"[..], &b"user:2000"[..], 0.5),
            (b"user:1f00", b"user:1000", b"user:2000", 0.211),
            (b"k\x40", b"k\x00", b"k\x80", 0.5),
            (b"k\x00", b"k\x00", b"k\x80", 0.0),
            (b"k\x80", b"k\x00", b"k\x80", 1.0),
            (b"same", b"same", b"same", 0.5),
            (b"", b"", b"\xff", 0.0),
        ] {
            let found = position(key, first, last);
            assert!((found - expected).abs() < 0.001, "{key:?} at {found}");
        }
    }
}
