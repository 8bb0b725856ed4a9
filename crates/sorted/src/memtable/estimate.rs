//! How much of a memtable lies in a range of keys, from a sample.

use super::Memtable;
use super::order::entry;
use crate::filter::KeyHash;
use crate::format::key::{MAX_SEQNO, ValueKind, Window};
use crate::format::span::KeySpan;
use crate::ranges::Covers;

/// Most entries of a sorted run that are examined, each for a cache miss or two. A range of fewer
/// entries is counted exactly.
const SAMPLES: usize = 256;

/// Spreads the samples within their strides, so that they do not follow a pattern of the keys.
const SPREAD: usize = 7919;

impl Memtable {
    /// About how many bytes of keys and values the range has, and how many keys it adds to what
    /// older sources hold. A deleted key counts as −1. Sorts recent entries, like a cursor.
    /// What `covers` deletes counts as bytes only.
    pub fn estimate(&self, keyspace: u32, span: KeySpan<&[u8]>, covers: Option<&Covers>) -> (f64, f64) {
        let (mut bytes, mut keys) = (0.0, 0.0);
        for run in self.order.runs(&self.entries, &self.pool, keyspace).iter() {
            let seek = |key: &[u8]| run.seek(&self.entries, key, MAX_SEQNO);
            let (start, end) = (span.lower.map_or(0, seek), span.upper.map_or(run.len(), seek));
            let count = end.saturating_sub(start);
            let stride = count.div_ceil(SAMPLES).max(1);
            let (mut sampled, mut sampled_bytes, mut sampled_keys) = (0u32, 0, 0i32);
            for (i, from) in (start..end).step_by(stride).enumerate() {
                let Some(element) = run.get((from + i * SPREAD % stride).min(end - 1)) else { continue };
                let entry = entry(&self.entries, element);
                sampled += 1;
                sampled_bytes += entry.key().len() + entry.value().len();
                let newest =
                    self.get(keyspace, entry.key(), KeyHash::new(self.seed, entry.key()), Window::up_to(MAX_SEQNO));
                let is_deleted = covers.is_some_and(|covers| covers.cover(entry.key()) > entry.seqno());
                if newest.is_some_and(|newest| newest.seqno == entry.seqno()) && !is_deleted {
                    sampled_keys += if entry.kind() == ValueKind::Delete { -1 } else { 1 };
                }
            }
            let scale = count as f64 / f64::from(sampled.max(1));
            bytes += sampled_bytes as f64 * scale;
            keys += f64::from(sampled_keys) * scale;
        }
        (bytes, keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::pool::MemtablePool;

    fn span<'a>(lower: &'a [u8], upper: &'a [u8]) -> KeySpan<&'a [u8]> {
        KeySpan { lower: Some(lower), upper: Some(upper) }
    }

    #[test]
    fn a_short_range_is_counted_exactly_and_a_long_one_nearly() {
        let memtable = Memtable::new(1, 1 << 20, 0, &MemtablePool::new(0));
        let mut writer = memtable.writer();
        let mut seqno = 0;
        let mut insert = |key: u32, kind, value: &[u8]| {
            seqno += 1;
            writer.insert(7, &key.to_be_bytes(), seqno, kind, value);
        };
        (0..4000).for_each(|key| insert(key, ValueKind::Put, b"123456"));
        // Every other key again, and every tenth is deleted.
        (0..4000).step_by(2).for_each(|key| insert(key, ValueKind::Put, b"123456"));
        (0..4000).step_by(10).for_each(|key| insert(key, ValueKind::Delete, b""));
        drop(writer);
        let (bytes, keys) = memtable.estimate(7, span(&10u32.to_be_bytes(), &30u32.to_be_bytes()), None);
        assert_eq!((bytes, keys), (308.0, 16.0));
        let (bytes, keys) = memtable.estimate(7, KeySpan::default(), None);
        let (all_bytes, all_keys) = (10.0 * 6000.0 + 4.0 * 400.0, 3600.0 - 400.0);
        assert!((bytes / all_bytes - 1.0).abs() < 0.1 && (keys / all_keys - 1.0f64).abs() < 0.1, "{bytes} {keys}");
        for (keyspace, lower, upper) in [(8, &b""[..], &b"\xff"[..]), (7, b"\xff", b"a"), (7, b"a", b"b")] {
            assert_eq!(memtable.estimate(keyspace, span(lower, upper), None), (0.0, 0.0));
        }
    }
}
