//! Where a [`BloomFilter`](super::bloom::BloomFilter) keeps its lines.

use crate::line::{AtomicLine, FilterLine, LINE_LEN, ReadLine};
use crate::probe::ProbeLine;
use tamis_base::error::{Error, Result};

/// The lines of a filter, wherever they are.
pub(super) trait LineStore {
    type Line: ProbeLine;

    fn lines(&self) -> &[Self::Line];

    /// Number of set bits.
    fn ones(&self) -> u64 {
        count_ones(self.lines())
    }
}

pub(super) fn count_ones<L: ReadLine>(lines: &[L]) -> u64 {
    lines.iter().map(|line| u64::from(line.ones())).sum()
}

/// Lines that the filter owns.
#[derive(Clone, Debug)]
pub struct Owned {
    pub(super) lines: Box<[FilterLine]>,
    /// Number of set bits.
    pub(super) ones: u64,
}

impl Owned {
    pub(super) fn new(lines: Box<[FilterLine]>) -> Owned {
        Owned { ones: count_ones(&lines), lines }
    }

    /// Unset lines; an error if this machine lacks the memory.
    pub(super) fn empty(count: u64) -> Result<Owned> {
        let too_large =
            || Error::invalid(format_args!("there is not enough memory for a filter of {count} times 64 bytes"));
        let count = usize::try_from(count).map_err(|_| too_large())?;
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).map_err(|_| too_large())?;
        lines.resize(count, FilterLine::default());
        Ok(Owned { lines: lines.into_boxed_slice(), ones: 0 })
    }

    /// The standard library converts the lines in place: they have one size and alignment.
    pub(super) fn into_shared(self) -> SharedLines {
        SharedLines(self.lines.into_iter().map(AtomicLine::new).collect())
    }
}

impl LineStore for Owned {
    type Line = FilterLine;

    #[inline(always)]
    fn lines(&self) -> &[FilterLine] {
        &self.lines
    }

    fn ones(&self) -> u64 {
        self.ones
    }
}

/// Lines in bytes of the caller.
#[derive(Clone, Copy, Debug)]
pub struct Borrowed<'a>(pub(super) &'a [[u8; LINE_LEN]]);

impl LineStore for Borrowed<'_> {
    type Line = [u8; LINE_LEN];

    #[inline(always)]
    fn lines(&self) -> &[[u8; LINE_LEN]] {
        self.0
    }
}

/// Lines that threads share.
#[derive(Debug)]
pub struct SharedLines(pub(super) Box<[AtomicLine]>);

impl SharedLines {
    /// [`Owned::into_shared`], and back.
    pub(super) fn into_owned(self) -> Owned {
        Owned::new(self.0.into_iter().map(AtomicLine::into_plain).collect())
    }
}

impl LineStore for SharedLines {
    type Line = AtomicLine;

    #[inline(always)]
    fn lines(&self) -> &[AtomicLine] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_shared_and_taken_back_in_place() {
        let mut lines = vec![FilterLine::default(); 3];
        lines[1].set(77);
        let lines = lines.into_boxed_slice();
        let (address, copy) = (lines.as_ptr().addr(), lines.clone());
        let shared = Owned::new(lines).into_shared();
        assert_eq!((shared.0.as_ptr().addr(), shared.ones()), (address, 1));
        let owned = shared.into_owned();
        assert_eq!((owned.lines.as_ptr().addr(), owned.ones, owned.lines), (address, 1, copy));
    }
}
