//! What share of a table lies in a range of keys, by its index alone.

use super::Table;
use crate::error::Result;
use crate::format::header::FILE_HEADER_LEN;
use crate::format::key::{common_prefix_len, strip};
use crate::format::span::KeySpan;

impl Table {
    /// The share of the table's data in `span`, 0 to 1. Reads no data block; off by less than one
    /// block at each bound that lies within the table.
    pub(crate) fn share(&self, span: KeySpan<&[u8]>) -> Result<f64> {
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
        let index = &self.resident()?.index;
        let at = index.find(key, |_| ());
        if at >= index.len() {
            return Ok(1.0);
        }
        let first = at.checked_sub(1).map_or_else(|| meta.smallest.to_vec(), |before| index.separator(before));
        let handle = index.handle(at);
        let before = (handle.offset - FILE_HEADER_LEN as u64) as f64;
        let within = f64::from(handle.len) * position(key, &first, &index.separator(at));
        Ok((before + within) / (index.data_end() - FILE_HEADER_LEN as u64) as f64)
    }
}

/// Where `key` lies between `first` and `last`, 0 to 1, if keys are spread evenly. If they differ
/// in decimal digits only, they are spread as numbers are.
pub(crate) fn position(key: &[u8], first: &[u8], last: &[u8]) -> f64 {
    let prefix = &first[..common_prefix_len(first, last)];
    let head = |key| strip(key, prefix).map_or(&[][..], |rest: &[u8]| &rest[..rest.len().min(8)]);
    let [first, key, last] = [first, key, last].map(head);
    let is_decimal = [first, key, last].into_iter().flatten().all(u8::is_ascii_digit);
    let (least, base) = if is_decimal { (f64::from(b'0'), 10.0) } else { (0.0, 256.0) };
    // From the last byte to the first. Bytes that are missing are less than all others.
    let number = |head: &[u8]| {
        (0..8).rev().fold(0.0, |sum, i| head.get(i).map_or(sum, |&byte| f64::from(byte) - least + sum) / base)
    };
    let (first, key, last) = (number(first), number(key), number(last));
    if last > first { ((key - first) / (last - first)).clamp(0.0, 1.0) } else { 0.5 }
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
