//! Filters as a whole, through the builder and the reader.

mod alone;
mod damage;
mod distributions;
mod files;
mod rates;
mod scalable;

use super::builder::FilterBlock;
use super::hash::remix;
use super::{Filter, FilterBuilder, KeyHash};
use crate::options::FilterPolicy;

const BITS_PER_KEY: [f32; 6] = [6.0, 8.0, 10.0, 12.5, 16.0, 20.0];

fn split(bits_per_key: f32) -> FilterPolicy {
    FilterPolicy::Bloom { bits_per_key }
}

fn standard(bits_per_key: f32) -> FilterPolicy {
    FilterPolicy::StandardBloom { bits_per_key }
}

fn policies() -> impl Iterator<Item = FilterPolicy> {
    BITS_PER_KEY.into_iter().flat_map(|bits| [split(bits), standard(bits)])
}

/// Hashes of the keys `range`, 16 bytes that look random.
fn hashes(range: std::ops::Range<u64>) -> impl Iterator<Item = KeyHash> {
    range.map(|i| {
        let key = u128::from(remix(i)) << 64 | u128::from(remix(!i));
        KeyHash::new(3, &key.to_be_bytes())
    })
}

/// The block of `hashes`, which must be sound.
fn build(policy: FilterPolicy, hashes: &[KeyHash]) -> FilterBlock {
    let seed = hashes.first().map_or(3, |hash| hash.seed());
    let mut builder = FilterBuilder::new(policy, seed);
    for &hash in hashes {
        builder.add(hash);
    }
    let block = builder.finish().unwrap();
    assert_eq!(block.degraded, None);
    block
}

fn open(block: &FilterBlock) -> Filter {
    let filter = Filter::open(&block.bytes, 3);
    assert_eq!(filter.degraded(), None);
    filter
}
