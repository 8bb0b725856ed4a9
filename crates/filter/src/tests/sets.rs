//! Estimates of how many keys two filters have together and in common. All keys are fixed, so that
//! each figure is the same in every run.

use super::alone::{builders, random};
use crate::{BloomBuilder, BloomFilter};
use tamis_base::error::Error;

/// Two filters with `common` keys in both, and `alone` keys in each besides; those of set `set`.
fn pair(builder: &BloomBuilder, set: u64, [left, right, common]: [u64; 3]) -> (BloomFilter, BloomFilter) {
    let filter = |own: u64, count: u64| {
        let mut filter = builder.with_bits(1 << 16, 7).unwrap();
        let base = set << 32;
        filter.extend((base..base + common).map(random));
        filter.extend((base + own..base + own + count).map(random));
        filter
    };
    (filter(1 << 20, left), filter(1 << 21, right))
}

/// The standard error that the docs of `estimated_intersection` state.
fn standard_error(filter: &BloomFilter, [left, right, common]: [u64; 3]) -> f64 {
    let m = filter.bits() as f64;
    let lines: f64 = filter.groups().iter().map(|&g| 1.0 - (1.0 - 1.0 / 512f64).powi(g.into())).sum();
    let d = if filter.groups().is_empty() { f64::from(filter.k()) } else { 512.0 * lines };
    let t = |keys: u64| keys as f64 * d / m;
    let (a, b, u, c) = (t(left + common), t(right + common), t(left + right + common), t(common));
    (m * (u.exp() - a.exp() - b.exp() + 2.0 * c.exp() - 1.0 - c)).sqrt() / d
}

#[test]
fn estimates_of_unions_and_intersections_have_no_bias_and_the_stated_error() {
    const SETS: u64 = 60;
    for builder in builders() {
        for keys in [[2000, 2000, 4000], [4000, 4000, 0], [0, 3000, 3000], [6000, 1000, 100], [0, 0, 6000]] {
            let [left, right, common] = keys;
            let (mut sum, mut squares, mut error) = (0.0, 0.0, 0.0);
            for set in 0..SETS {
                let (one, other) = pair(&builder, set, keys);
                let union = one.estimated_union(&other).unwrap();
                assert!((union / (left + right + common) as f64 - 1.0).abs() < 0.05, "{keys:?}: {union}");
                assert_eq!(union, one.union(&other).unwrap().estimated_keys());
                // Without the bound at 0, which hides half of the errors of disjoint sets.
                let common_keys = one.estimated_keys() + other.estimated_keys() - union;
                assert_eq!(one.estimated_intersection(&other).unwrap(), common_keys.max(0.0));
                assert_eq!(other.estimated_union(&one).unwrap(), union);
                let off = common_keys - common as f64;
                (sum, squares, error) = (sum + off, squares + off * off, standard_error(&one, keys));
                assert!(off.abs() < 6.0 * error, "{keys:?}: {off}, standard error {error}");
            }
            let (bias, spread) = (sum / SETS as f64, (squares / SETS as f64).sqrt());
            assert!(bias.abs() < 5.0 * error / (SETS as f64).sqrt(), "{builder:?} {keys:?}: {bias}, {error}");
            assert!((0.6..1.5).contains(&(spread / error)), "{builder:?} {keys:?}: {spread}, not {error}");
        }
    }
}

#[test]
fn estimates_work_on_filters_wherever_their_bits_are() {
    let (one, other) = pair(&BloomFilter::builder(), 0, [1000, 1000, 2000]);
    let expected = (one.estimated_union(&other).unwrap(), one.estimated_intersection(&other).unwrap());
    let bytes = one.to_bytes();
    let view = crate::BloomFilterRef::new(&bytes).unwrap();
    let shared = other.into_shared();
    assert_eq!((view.estimated_union(&shared).unwrap(), view.estimated_intersection(&shared).unwrap()), expected);
}

#[test]
fn estimates_of_extremes_are_defined() {
    let empty = BloomFilter::with_bits(4096, 7).unwrap();
    assert_eq!((empty.estimated_union(&empty).unwrap(), empty.estimated_intersection(&empty).unwrap()), (0.0, 0.0));
    let mut full = empty.clone();
    full.extend((0..20_000).map(random));
    assert_eq!(full.estimated_union(&empty).unwrap(), f64::INFINITY);
    assert!(!full.estimated_intersection(&empty).unwrap().is_finite());
    let other = BloomFilter::with_bits(8192, 7).unwrap();
    for refused in [empty.estimated_union(&other), empty.estimated_intersection(&other)] {
        assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    }
}
