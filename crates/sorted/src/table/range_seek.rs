//! [`RangeSeek`]: a seek that a range filter has deferred; see `cursor::deferral`.

use super::index::Index;
use crate::filter::{BlockRange, RangeFilter};
use crate::format::key::SeqNo;
use crate::iter::Direction;

/// The last seek that was deferred, and buffers.
#[derive(Default)]
pub(super) struct RangeSeek {
    /// Bound of the key to which the seek leads. The seek to `(bound, seqno)` leads there, too.
    pub(super) bound: Vec<u8>,
    pub(super) seqno: SeqNo,
    /// Whether the seek leads to the first entry of its block, or backward to the last one: the
    /// filter denies the block in which the seek began.
    pub(super) is_at_near_end: bool,
    /// Blocks that were read since the filter was asked, and their bytes.
    pub(super) reads: (u64, u64),
    /// Separators around a block.
    low: Vec<u8>,
    high: Vec<u8>,
}

impl RangeSeek {
    /// Asks for a bound of the block's first key from `key` on, or backward of its last key before
    /// `key`. False if it has no such key.
    pub(super) fn ask(
        &mut self,
        filter: &RangeFilter,
        index: &Index,
        i: usize,
        key: &[u8],
        direction: Direction,
    ) -> bool {
        let RangeSeek { bound, low, high, .. } = self;
        low.clear();
        if let Some(before) = i.checked_sub(1) {
            index.separator(before).append_to(low);
        }
        high.clear();
        index.separator(i).append_to(high);
        let block = BlockRange { index: i, low, high };
        match direction {
            Direction::Forward => filter.next(block, key, bound),
            Direction::Backward => filter.before(block, Some(key), bound),
        }
    }
}
