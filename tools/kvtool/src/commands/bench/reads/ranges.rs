//! The ranges to scan, made from the keys of the store.
//!
//! Windows of neighbours are drawn at random from one scan. A key is a number with a digit for each
//! byte; of a byte's position, only the values that some key has there are digits, so that what is
//! made looks like a key: between two numbers in decimal lie numbers in decimal.
//!
//! A fresh start is a random key of a window, moved at random by up to half the window's width.
//! Starts are therefore spread like the keys, and wider gaps get more of them, as new keys would.

use fastrand::Rng;
use tamis::Keyspace;

use super::asked::{Asked, Key, Start};
use crate::commands::range::KeyRange;
use crate::failure::{Failure, Result};
use crate::output::say;
use crate::text::counted;

/// Neighbours in a window.
const WINDOW: usize = 64;
/// Most windows. Each serves many ranges.
const WINDOWS: usize = 8192;
/// Lengths of empty ranges in gaps. 0 stands for the shortest range.
const LENGTHS: [f64; 3] = [0.0, 1.0, 4.0];
/// Times that making a range is tried for each that is wanted.
const ATTEMPTS: usize = 64;
/// Fewer ranges say nothing.
const LEAST: usize = 200;

/// A range to scan.
pub(super) struct Range {
    pub(super) range: KeyRange,
    /// The key after which it begins, if it begins near one.
    pub(super) near: Option<Key>,
}

/// Empty ranges of all starts and lengths, and short scans, `asked` of each at most.
pub(super) fn choose(keyspace: &Keyspace, asked: usize, rng: &mut Rng) -> Result<Vec<(Vec<Asked>, Vec<Range>)>> {
    let windows = windows(keyspace, rng)?;
    let digits = Digits::of(&windows);
    let windows: Vec<Window> = windows.iter().flat_map(|keys| digits.windows(keys)).collect();
    let make = |rng: &mut Rng, start, gaps| {
        let tries = (0..asked.saturating_mul(ATTEMPTS).max(100_000)).filter(|_| !windows.is_empty());
        let made = tries.filter_map(|_| digits.empty_range(&windows[rng.usize(..windows.len())], start, gaps, rng));
        made.take(asked).collect::<Vec<Range>>()
    };
    let mut sets = Vec::new();
    for start in Start::ALL {
        for gaps in LENGTHS {
            let ranges = make(rng, start, gaps);
            let [forward, backward] = [false, true].map(|backward| Asked::Empty { start, gaps, backward });
            if ranges.len() < LEAST.min(asked) {
                let found = counted(ranges.len() as u64, "such range");
                say(format_args!("{}: left out, the keys leave room for {found}", forward.what()));
                continue;
            }
            sets.push((vec![forward, backward], ranges));
        }
    }
    let starts: Vec<Key> = make(rng, Start::Fresh, 0.0).into_iter().map(|range| range.range.lower.into()).collect();
    if sets.is_empty() || starts.is_empty() {
        return Err(Failure::usage(format_args!(
            "keyspace {} leaves no room for empty ranges: it has few keys, or none between them",
            keyspace.name()
        )));
    }
    let from = |start: Key| Range { range: KeyRange { lower: start.into(), upper: None }, near: None };
    let directions = [false, true].map(|backward| Asked::Short { backward });
    sets.push((directions.to_vec(), starts.into_iter().map(from).collect()));
    Ok(sets)
}

/// A uniform random sample of runs of [`WINDOW`] neighbours: algorithm R (Vitter, 1985) over one
/// scan.
fn windows(keyspace: &Keyspace, rng: &mut Rng) -> Result<Vec<Vec<Key>>> {
    let mut windows: Vec<Vec<Key>> = Vec::new();
    let (mut window, mut count) = (Vec::new(), 0);
    for key in keyspace.keys(..) {
        window.push(Key::from(&key?[..]));
        if window.len() == WINDOW {
            let window = std::mem::take(&mut window);
            count += 1;
            match windows.len() < WINDOWS {
                true => windows.push(window),
                false => windows.get_mut(rng.usize(..count)).into_iter().for_each(|place| place.clone_from(&window)),
            }
        }
    }
    // A store of fewer keys has one window.
    if windows.is_empty() && window.len() > 1 {
        windows.push(window);
    }
    Ok(windows)
}

/// Neighbours, and their numbers.
struct Window {
    keys: Vec<Key>,
    numbers: Vec<u128>,
    /// Bytes that all have in common.
    common: usize,
    /// The distance of neighbours: the mean, but of keys that cluster that within the clusters.
    gap: u128,
}

/// The values that bytes have, by position; 0 for the end of a key, and one more than the byte's.
struct Digits(Vec<Vec<u16>>);

impl Digits {
    fn of(windows: &[Vec<Key>]) -> Digits {
        let mut seen: Vec<[bool; 257]> = Vec::new();
        for key in windows.iter().flatten() {
            if seen.len() <= key.len() {
                seen.resize(key.len() + 1, [false; 257]);
            }
            let digits = key.iter().map(|byte| usize::from(*byte) + 1).chain([0]);
            seen.iter_mut().zip(digits).for_each(|(seen, digit)| seen[digit] = true);
        }
        let digits = |seen: &[bool; 257]| (0..257u16).filter(|digit| seen[usize::from(*digit)]).collect();
        Digits(seen.iter().map(digits).collect())
    }

    /// The positions from `common` on that a number has room for.
    fn places(&self, common: usize) -> &[Vec<u16>] {
        let mut size = 1u128;
        let rest = self.0.get(common..).unwrap_or_default();
        let fits = |digits: &&Vec<u16>| {
            size = size.saturating_mul(digits.len() as u128);
            size < 1 << 100
        };
        &rest[..rest.iter().take_while(fits).count()]
    }

    /// The number of a key whose first `common` bytes are left out.
    fn number(&self, key: &[u8], common: usize) -> u128 {
        let rest = key.get(common..).unwrap_or_default();
        let bytes = rest.iter().map(|byte| u16::from(*byte) + 1).chain(std::iter::repeat(0));
        self.places(common).iter().zip(bytes).fold(0, |number, (digits, digit)| {
            number * digits.len() as u128 + digits.partition_point(|known| *known < digit) as u128
        })
    }

    /// The key of a number. Ends where the number has an end.
    fn key(&self, prefix: &[u8], mut number: u128) -> Key {
        let places = self.places(prefix.len());
        let mut found = Vec::with_capacity(places.len());
        for digits in places.iter().rev() {
            let size = digits.len() as u128;
            found.push(usize::try_from(number % size).ok().and_then(|at| digits.get(at)).copied().unwrap_or_default());
            number /= size;
        }
        let bytes = found.iter().rev().map_while(|digit| u8::try_from(digit.checked_sub(1)?).ok());
        prefix.iter().copied().chain(bytes).collect()
    }

    /// The keys as one window, or as several: neighbours that have more in common may differ where
    /// the numbers of all keys end.
    fn windows(&self, keys: &[Key]) -> Vec<Window> {
        match self.window(keys) {
            Some(window) => vec![window],
            None if keys.len() < 4 => Vec::new(),
            None => {
                let (left, right) = keys.split_at(keys.len() / 2);
                [left, right].into_iter().flat_map(|keys| self.windows(keys)).collect()
            }
        }
    }

    /// `None` for keys between most of which no number lies.
    fn window(&self, keys: &[Key]) -> Option<Window> {
        let (first, last) = (keys.first()?, keys.last()?);
        let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        let numbers: Vec<u128> = keys.iter().map(|key| self.number(key, common)).collect();
        let mut gaps: Vec<u128> = numbers.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
        gaps.sort_unstable();
        let mean = gaps.iter().sum::<u128>() / gaps.len().max(1) as u128;
        // Of random keys, the median is 0.69 of the mean.
        let gap = mean.min(gaps.get(gaps.len() / 2)?.saturating_mul(2));
        (gap > 0).then(|| Window { keys: keys.to_vec(), numbers, common, gap })
    }

    /// A range within the window that has none of its keys. `None` if chance makes none.
    fn empty_range(&self, window: &Window, start: Start, gaps: f64, rng: &mut Rng) -> Option<Range> {
        let Window { keys, numbers, common, gap } = window;
        let at = rng.usize(..numbers.len());
        let (number, near) = match start {
            Start::Fresh => {
                let half = gap.checked_mul(keys.len() as u128)? / 2;
                ((numbers[at] + rng.u128(..2 * half)).checked_sub(half)?, None)
            }
            Start::NearKeys => (numbers[at] + (gap / 10).max(1), Some(keys[at].clone())),
        };
        let prefix = keys[at].get(..*common)?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few gaps, of 100 bits at most")]
        let length = ((*gap as f64 * gaps) as u128).max(1);
        let [from, until] = [number, number + length].map(|number| self.key(prefix, number));
        let (first, last) = (keys.first()?, keys.last()?);
        let next = keys.partition_point(|key| *key < from);
        let is_inside = from > *first && until > from && until <= *last;
        (is_inside && until <= *keys.get(next)?)
            .then(|| Range { range: KeyRange { lower: from.into(), upper: Some(until.into()) }, near })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(count: u64, key: impl Fn(u64) -> String) -> Vec<Key> {
        (0..count).map(|i| Key::from(key(i).as_bytes())).collect()
    }

    #[test]
    fn made_keys_look_like_the_keys_around_them() {
        let windows = vec![keys(64, |i| format!("user{:08}", i * 1000))];
        let digits = Digits::of(&windows);
        let window = digits.window(&windows[0]).unwrap();
        // Positions in which all keys agree have one digit, and the last ones have none but 0.
        assert_eq!(window.gap, digits.number(b"user00001000", 6) - digits.number(b"user00000000", 6));
        for (i, key) in windows[0].iter().enumerate() {
            assert_eq!((digits.key(&key[..window.common], window.numbers[i])), *key);
        }
        let random = vec![keys(64, |i| format!("{:08}", (i * 99_991_111) % 100_000_000))];
        let digits = Digits::of(&random);
        let mut sorted = random[0].clone();
        sorted.sort();
        let window = digits.window(&sorted).unwrap();
        let mut rng = Rng::with_seed(1);
        for start in Start::ALL {
            let made: Vec<Range> =
                (0..2000).filter_map(|_| digits.empty_range(&window, start, 0.0, &mut rng)).collect();
            assert!(made.len() > 500, "{start:?}: {}", made.len());
            for Range { range: KeyRange { lower, upper }, near } in made {
                let upper = upper.unwrap();
                assert!(lower.len() == 8 && lower.iter().all(u8::is_ascii_digit) && lower < upper);
                assert!(!sorted.iter().any(|key| key[..] >= lower[..] && key[..] < upper[..]));
                assert_eq!(near.is_some(), start == Start::NearKeys);
                assert!(near.is_none_or(|key| key[..] < lower[..]));
            }
        }
    }

    #[test]
    fn keys_of_several_lengths_keep_their_order_as_numbers() {
        let windows = vec![vec![b"a"[..].into(), b"ab"[..].into(), b"abc"[..].into(), b"b"[..].into()]];
        let digits = Digits::of(&windows);
        let window = digits.window(&windows[0]).unwrap();
        assert!(window.numbers.is_sorted_by(|a, b| a < b));
        assert_eq!(digits.key(b"", window.numbers[1]), windows[0][1]);
        // Neighbours that differ only far behind leave nothing to choose.
        let long = |end: char| Key::from(format!("{}{end}", "x".repeat(40)).as_bytes());
        let windows = vec![vec![long('a'), long('a')]];
        assert!(Digits::of(&windows).window(&windows[0]).is_none());
    }
}
