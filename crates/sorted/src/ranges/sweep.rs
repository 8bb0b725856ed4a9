//! [`Sweep`]: the numbers that delete each of many keys, which ascend.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::RangeSource;
use crate::format::key::SeqNo;

/// Follows ascending keys through sources of ranges. A source is asked again only when a key is
/// behind its piece: with snapshots between many ranges over the same keys, there are thousands of
/// sources, of which few have a border between two keys.
pub struct Sweep {
    sources: Vec<Arc<dyn RangeSource>>,
    /// Where the piece of each source ends, least end first, without those that have none.
    ends: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    /// The number of each source's piece, 0 if it deletes nothing.
    of_source: Vec<SeqNo>,
    /// Those that delete something, newest first.
    numbers: Vec<SeqNo>,
}

impl Sweep {
    pub fn new(sources: Vec<Arc<dyn RangeSource>>) -> Sweep {
        // Every key is behind these.
        let ends = (0..sources.len()).map(|source| Reverse((Vec::new(), source))).collect();
        Sweep { ends, of_source: vec![0; sources.len()], numbers: Vec::new(), sources }
    }

    /// The numbers that delete `key`, newest first. It is not less than the last one.
    pub fn numbers(&mut self, key: &[u8]) -> &[SeqNo] {
        while let Some(Reverse((end, _))) = self.ends.peek()
            && **end <= *key
        {
            let Some(Reverse((_, source))) = self.ends.pop() else { break };
            #[cfg(any(test, all(feature = "testing", debug_assertions)))]
            super::steps::count();
            let piece = self.sources[source].piece(key);
            if let Some(end) = piece.to {
                self.ends.push(Reverse((end.to_vec(), source)));
            }
            let former = std::mem::replace(&mut self.of_source[source], piece.seqno);
            if former > 0
                && let Ok(at) = self.numbers.binary_search_by(|number| former.cmp(number))
            {
                self.numbers.remove(at);
            }
            if piece.seqno > 0 {
                let at = self.numbers.partition_point(|number| *number > piece.seqno);
                self.numbers.insert(at, piece.seqno);
            }
        }
        &self.numbers
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Covers, Fragment, NO_SNAPSHOT, RangeLayer, fold, layers_of, steps};
    use super::*;

    #[test]
    fn a_sweep_tells_what_a_look_at_every_source_tells() {
        let mut rng = fastrand::Rng::with_seed(11);
        for count in [0, 1, 30, 300] {
            let mut ranges = Vec::new();
            for seqno in 1..=count {
                let from = rng.u16(0..1000);
                let start: Arc<[u8]> = from.to_be_bytes().as_slice().into();
                let end = (rng.u8(0..50) > 0).then(|| Arc::from((from + rng.u16(1..100)).to_be_bytes().as_slice()));
                ranges.push(Fragment { start, end, seqno });
            }
            let layers = layers_of(&fold(ranges, &(1..=count).collect::<Vec<_>>()));
            let sources: Vec<_> = layers.into_iter().map(|layer| Arc::new(layer) as Arc<dyn RangeSource>).collect();
            let (covers, mut sweep) = (Covers::new(sources.clone(), NO_SNAPSHOT), Sweep::new(sources));
            let mut key = 0u16;
            while key < 1200 {
                let expected = covers.stretch(&key.to_be_bytes()).numbers;
                assert_eq!(sweep.numbers(&key.to_be_bytes()), expected, "{key} of {count}");
                key += rng.u16(0..4);
            }
        }
    }

    /// 1,000 ranges over each other, of which a snapshot keeps each: a source each.
    #[test]
    fn a_sweep_asks_a_source_once_for_each_of_its_pieces() {
        let key = |i: u16| i.to_be_bytes();
        let source = |i: u16| {
            let mut layer = RangeLayer::default();
            layer.push(&key(i), &key(2001 - i), u64::from(i));
            Arc::new(layer) as Arc<dyn RangeSource>
        };
        let mut sweep = Sweep::new((1..=1000).map(source).collect());
        steps::take();
        let mut asked = 0;
        for i in 0..2000u16 {
            asked += usize::from(!sweep.numbers(&key(i)).is_empty());
        }
        assert_eq!(asked, 1999, "keys 1 to 1,999 are deleted");
        // Three pieces each, found in a step or two.
        assert!((3000..=9000).contains(&steps::take()));
    }
}
