//! Which versions of a key must be kept.

use crate::format::key::SeqNo;

/// Walks entries in order and says which of them a reader can still see.
///
/// The snapshots cut the sequence numbers into stripes. Of the versions of a key in one stripe,
/// only the newest is visible: to the snapshot at the stripe's end or, after the last snapshot, to
/// later reads. With snapshots 10 and 20, of the versions 25, 22, 18, 7 and 3 of a key, 25, 18 and
/// 7 are kept.
pub(super) struct Retention {
    /// Ascending.
    snapshots: Vec<SeqNo>,
    key: Vec<u8>,
    /// Whether `key` is set.
    entered: bool,
    /// Stripe of the last version of `key` that was kept.
    stripe: Option<usize>,
}

impl Retention {
    pub(super) fn new(snapshots: Vec<SeqNo>) -> Retention {
        debug_assert!(snapshots.is_sorted());
        Retention { snapshots, key: Vec::new(), entered: false, stripe: None }
    }

    /// Moves to the next entry; returns whether its key differs from the last one.
    pub(super) fn enter(&mut self, key: &[u8]) -> bool {
        let is_same = self.entered && self.key == key;
        if !is_same {
            self.key.clear();
            self.key.extend_from_slice(key);
            self.entered = true;
            self.stripe = None;
        }
        !is_same
    }

    /// Whether the last version of the current key that was kept is in the stripe of `seqno`.
    pub(super) fn is_in_stripe(&self, seqno: SeqNo) -> bool {
        self.stripe == Some(self.snapshots.partition_point(|&snapshot| snapshot < seqno))
    }

    /// Whether a reader can see version `seqno` of the current key. A visible tombstone may still
    /// be dropped if no older version of the key remains.
    pub(super) fn must_keep(&mut self, seqno: SeqNo) -> bool {
        let stripe = self.snapshots.partition_point(|&snapshot| snapshot < seqno);
        self.stripe.replace(stripe) != Some(stripe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(snapshots: &[SeqNo], versions: &[SeqNo]) -> Vec<SeqNo> {
        let mut retention = Retention::new(snapshots.to_vec());
        let mut kept = versions.to_vec();
        kept.retain(|&seqno| {
            retention.enter(b"k");
            retention.must_keep(seqno)
        });
        kept
    }

    #[test]
    fn newest_version_of_each_stripe_is_kept() {
        assert_eq!(kept(&[10, 20], &[25, 22, 18, 7, 3]), [25, 18, 7]);
        assert_eq!(kept(&[], &[25, 22, 18]), [25]);
        assert_eq!(kept(&[22], &[25, 22, 21]), [25, 22]);
    }

    #[test]
    fn every_snapshot_sees_the_same_before_and_after() {
        for bits in 0u32..1 << 6 {
            let snapshots: Vec<SeqNo> = (0..6).filter(|i| bits & (1 << i) != 0).map(|i| i * 2 + 1).collect();
            let versions: Vec<SeqNo> = vec![11, 9, 8, 4, 3, 1];
            let kept = kept(&snapshots, &versions);
            for &snapshot in snapshots.iter().chain([&100]) {
                let visible = |versions: &[SeqNo]| versions.iter().copied().find(|&v| v <= snapshot);
                assert_eq!(visible(&versions), visible(&kept), "{snapshots:?} {snapshot}");
            }
        }
    }

    #[test]
    fn stripes_start_over_with_the_next_key() {
        let mut retention = Retention::new(vec![5]);
        let mut enter = |key: &[u8], seqno| (retention.enter(key), retention.must_keep(seqno));
        assert_eq!(enter(b"", 9), (true, true));
        assert_eq!(enter(b"", 7), (false, false));
        assert_eq!(enter(b"a", 9), (true, true));
        assert_eq!(enter(b"a", 3), (false, true));
        assert_eq!(enter(b"b", 3), (true, true));
        assert_eq!(enter(b"b", 2), (false, false));
    }
}
