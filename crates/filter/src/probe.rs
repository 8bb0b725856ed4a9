//! [`FilterProbe`]: how the lines of a filter are asked, one key or many keys at a time.

use super::avx2::{Avx2, Line64};
use super::batch::Alive;
use super::fuse::{self, FuseShape};
use super::layout::Layout;
use super::line::{AtomicLine, FilterLine, ReadLine};
use super::split::{self, Groups};
use super::standard;
use tamis_base::memory::prefetch::prefetch;

/// A line and how its kind is probed in the split layout.
pub(super) trait ProbeLine: ReadLine + Sized {
    /// The vectors that can probe such lines, if the processor has them.
    fn avx2() -> Option<Avx2>;

    /// [`split::may_contain`].
    fn may_contain(avx2: Avx2, groups: Groups, lines: &[Self], hash: u64) -> bool;

    /// Drops the keys of which a group of `probes` probes is not in its line.
    fn retain(avx2: Option<Avx2>, probes: u8, lines: &[Self], alive: &mut Alive);
}

impl<L: Line64 + ReadLine> ProbeLine for L {
    fn avx2() -> Option<Avx2> {
        Avx2::detect()
    }

    #[inline(always)]
    fn may_contain(avx2: Avx2, groups: Groups, lines: &[L], hash: u64) -> bool {
        avx2.may_contain(groups, lines, hash)
    }

    fn retain(avx2: Option<Avx2>, probes: u8, lines: &[L], alive: &mut Alive) {
        match avx2 {
            Some(avx2) => avx2.retain(probes, lines, alive),
            None => alive.retain(|g| split::group_is_in(probes, lines, g)),
        }
    }
}

/// Portable code only: a vector cannot be loaded atomically.
impl ProbeLine for AtomicLine {
    fn avx2() -> Option<Avx2> {
        None
    }

    fn may_contain(_: Avx2, groups: Groups, lines: &[AtomicLine], hash: u64) -> bool {
        split::may_contain(groups, lines, hash)
    }

    fn retain(_: Option<Avx2>, probes: u8, lines: &[AtomicLine], alive: &mut Alive) {
        alive.retain(|g| split::group_is_in(probes, lines, g));
    }
}

/// A Bloom filter's layout, and AVX2 if the layout, the lines and the processor allow it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilterProbe {
    layout: Layout,
    fast: Option<(Avx2, Groups)>,
}

impl FilterProbe {
    pub(super) fn new<L: ProbeLine>(layout: Layout) -> FilterProbe {
        let fast = match layout {
            Layout::Split(groups) => L::avx2().map(|avx2| (avx2, groups)),
            Layout::Standard { .. } => None,
        };
        FilterProbe { layout, fast }
    }

    /// Whether all bits of a key are set.
    #[inline]
    pub(super) fn may_contain<L: ProbeLine>(&self, lines: &[L], hash: u64) -> bool {
        match self.fast {
            Some((avx2, groups)) => L::may_contain(avx2, groups, lines, hash),
            None => self.layout.may_contain(lines, hash),
        }
    }

    /// Says yes for each key whose bits are all set, and asks no key whose answer is yes already.
    pub(super) fn ask<L: ProbeLine>(&self, lines: &[L], hashes: &[u64], answers: &mut [bool]) {
        let mut alive = Alive::new(hashes, answers);
        match self.layout {
            Layout::Split(groups) => {
                for probes in groups.iter() {
                    alive.each(|g| prefetch_line(lines, split::line_index(g, lines.len())));
                    L::retain(self.fast.map(|(avx2, _)| avx2), probes, lines, &mut alive);
                    alive.remix();
                }
            }
            Layout::Standard { probes } => {
                alive.each(|hash| {
                    standard::first_lines(lines.len(), hash).for_each(|line| prefetch_line(lines, line));
                });
                alive.retain(|hash| standard::may_contain(probes.into(), lines, hash));
            }
        }
        alive.confirm(answers);
    }
}

/// [`FilterProbe::ask`] for a binary fuse.
pub(super) fn ask_fuse(shape: FuseShape, lines: &[FilterLine], hashes: &[u64], answers: &mut [bool]) {
    let mut alive = Alive::new(hashes, answers);
    alive.each(|hash| shape.lines_of(hash).into_iter().for_each(|line| prefetch_line(lines, line)));
    alive.retain(|hash| fuse::may_contain(shape, lines, hash));
    alive.confirm(answers);
}

#[inline]
fn prefetch_line<L>(lines: &[L], index: usize) {
    if let Some(line) = lines.get(index) {
        prefetch(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_filter_uses_avx2_where_lines_and_processor_allow_it() {
        let (split, standard) = (Layout::Split(Groups::for_probes(7)), Layout::Standard { probes: 7 });
        let has = |probe: FilterProbe| probe.fast.is_some();
        assert_eq!(has(FilterProbe::new::<FilterLine>(split)), Avx2::detect().is_some());
        assert_eq!(has(FilterProbe::new::<[u8; 64]>(split)), Avx2::detect().is_some());
        assert!(!has(FilterProbe::new::<AtomicLine>(split)));
        assert!(!has(FilterProbe::new::<FilterLine>(standard)));
    }
}
