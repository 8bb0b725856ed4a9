//! [`Maxima`]: finds the greatest of a stretch of numbers without looking at each.

use std::ops::Range;

/// Numbers of which a greatest one is noted: they are a cache line.
const GROUP: usize = 8;

/// The greatest of each group of numbers, the greatest of each group of these, and so on.
pub(super) struct Maxima(Vec<Vec<u64>>);

impl Maxima {
    pub(super) fn of(numbers: &[u64]) -> Maxima {
        let mut levels: Vec<Vec<u64>> = Vec::new();
        loop {
            let below = levels.last().map_or(numbers, Vec::as_slice);
            if below.len() <= GROUP {
                return Maxima(levels);
            }
            let greatest = below.chunks(GROUP).map(|group| group.iter().copied().max().unwrap_or(0));
            levels.push(greatest.collect());
        }
    }

    /// Bytes taken from the heap.
    pub(super) fn allocated(&self) -> usize {
        self.0.iter().map(|level| level.capacity() * size_of::<u64>()).sum()
    }

    /// The greatest of a stretch of the `numbers` that this was made of; 0 if the stretch is empty.
    pub(super) fn newest_of(&self, numbers: &[u64], stretch: Range<usize>) -> u64 {
        let Range { mut start, mut end } = stretch;
        let (mut greatest, mut above) = (0, self.0.iter());
        let mut level = numbers;
        loop {
            let mut look_at = |part: Range<usize>| {
                #[cfg(any(test, all(feature = "testing", debug_assertions)))]
                part.clone().for_each(|_| super::steps::count());
                greatest = level.get(part).unwrap_or_default().iter().copied().fold(greatest, u64::max);
            };
            let Some(next) = above.next().filter(|_| end.saturating_sub(start) > 2 * GROUP) else {
                look_at(start..end);
                return greatest;
            };
            let whole = start.next_multiple_of(GROUP)..end / GROUP * GROUP;
            look_at(start..whole.start);
            look_at(whole.end..end);
            (start, end, level) = (whole.start / GROUP, whole.end / GROUP, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_of_every_stretch_is_found_in_few_steps() {
        let mut rng = fastrand::Rng::with_seed(3);
        for len in [0, 1, 7, 8, 9, 64, 65, 300] {
            let numbers: Vec<u64> = (0..len).map(|_| rng.u64(1..1000)).collect();
            let maxima = Maxima::of(&numbers);
            for start in 0..=len {
                for end in start..=len {
                    let expected = numbers[start..end].iter().copied().max().unwrap_or(0);
                    assert_eq!(maxima.newest_of(&numbers, start..end), expected, "{start}..{end} of {len}");
                }
            }
        }
        let numbers: Vec<u64> = (0..1_000_000).collect();
        let maxima = Maxima::of(&numbers);
        super::super::steps::take();
        assert_eq!(maxima.newest_of(&numbers, 3..999_999), 999_998);
        assert!(super::super::steps::take() <= 2 * GROUP * 7);
    }
}
