//! [`RangeFilter`]: a table's range filter in memory.

use std::fmt;
use std::sync::Arc;

use super::codes::{BlockRange, Codes};
use super::header::{self, Kind};
use super::info::RangeInfo;
use crate::header::HEADER_LEN;
use tamis_base::format::{Decoded, Malformed};
use tamis_base::memory::pool::{TableArray, TableMemory};

/// Answers for ranges of keys of a table's blocks. It has its own copy of the bytes.
pub struct RangeFilter {
    /// Or why it answers "maybe".
    usable: Result<(Codes, RangeInfo), &'static str>,
}

impl RangeFilter {
    /// Opens the filter that [`RangeBuilder::finish`](super::builder::RangeBuilder::finish) made
    /// for the table `number`. Bytes that do not verify, are unknown, or belong to another table
    /// become a filter that answers "maybe" and is [`degraded`](RangeFilter::degraded).
    ///
    /// The separators that it is asked with must be those with which it was built.
    pub fn open(bytes: &[u8], number: u64) -> RangeFilter {
        RangeFilter::open_in(None, bytes, number)
    }

    /// [`open`](RangeFilter::open), with the bytes in `memory` if that is given.
    pub fn open_in(memory: Option<&Arc<TableMemory>>, bytes: &[u8], number: u64) -> RangeFilter {
        RangeFilter { usable: decode(memory, bytes, number).map_err(|Malformed(rule)| rule) }
    }

    /// Whether the block may hold a key that is at least `from` and less than `until`, if given.
    /// "No" is certain.
    pub fn may_hold(&self, block: BlockRange<'_>, from: &[u8], until: Option<&[u8]>) -> bool {
        match &self.usable {
            Ok((codes, _)) => codes.may_hold(block, from, until),
            Err(_) => block.overlaps(from, until),
        }
    }

    /// Puts a lower bound of the block's first key that is at least `from` into `bound`; the bound
    /// is at least `from` itself. `false` if there is certainly no such key.
    pub fn next(&self, block: BlockRange<'_>, from: &[u8], bound: &mut Vec<u8>) -> bool {
        match &self.usable {
            Ok((codes, _)) => codes.next(block, from, bound),
            Err(_) => block.least(from, bound).is_some(),
        }
    }

    /// Puts an upper bound of the block's last key that is less than `until`, if given, into
    /// `bound`; the bound exceeds that key and is at most `until`. `false` if there is certainly no
    /// such key.
    pub fn before(&self, block: BlockRange<'_>, until: Option<&[u8]>, bound: &mut Vec<u8>) -> bool {
        match &self.usable {
            Ok((codes, _)) => codes.before(block, until, bound),
            Err(_) => block.most(until, bound),
        }
    }

    /// Why the filter answers "maybe" to every range, if it does. To be reported, because every
    /// scan pays for it.
    pub fn degraded(&self) -> Option<&'static str> {
        self.usable.as_ref().err().copied()
    }

    /// The filter's parameters and rates; `None` when it is degraded.
    pub fn info(&self) -> Option<&RangeInfo> {
        self.usable.as_ref().ok().map(|(_, info)| info)
    }

    /// Bytes of memory that the filter takes.
    pub fn memory(&self) -> usize {
        size_of::<RangeFilter>() + self.usable.as_ref().map_or(0, |(codes, _)| codes.memory())
    }
}

fn decode(memory: Option<&Arc<TableMemory>>, bytes: &[u8], number: u64) -> Decoded<(Codes, RangeInfo)> {
    let header = header::decode(bytes, Kind::Table)?;
    if header.number != number {
        return Err(Malformed("the range filter is that of another table"));
    }
    if header.extractor != 0 {
        return Err(Malformed("the range filter has a prefix extractor"));
    }
    let codes = Codes::decode(TableArray::new(memory, bytes.iter().copied()), HEADER_LEN, header.blocks)?;
    let info = header.info(bytes.len(), codes.folded());
    Ok((codes, info))
}

impl fmt::Debug for RangeFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeFilter").field("info", &self.info()).field("degraded", &self.degraded()).finish()
    }
}
