//! Filters as a whole, through the builder and the reader.

mod alone;
mod damage;
mod distributions;
mod files;
mod fuse;
mod fuse_alone;
mod hashes;
mod many;
mod ordered;
mod rates;
mod scalable;
#[cfg(feature = "serde")]
mod serde;
mod sets;
mod shared;

use super::hash::remix;
use super::header::{self, FilterContent, FilterHeader};
use super::{Filter, FilterBuilder, KeyHash};
use crate::FilterPolicy;
use crate::table::builder::FilterBlock;

const BITS_PER_KEY: [f32; 6] = [6.0, 8.0, 10.0, 12.5, 16.0, 20.0];

fn split(bits_per_key: f32) -> FilterPolicy {
    FilterPolicy::Bloom { bits_per_key }
}

fn policies() -> impl Iterator<Item = FilterPolicy> {
    BITS_PER_KEY.into_iter().map(split)
}

/// Hashes of the keys `range`, each of 16 bytes that look random.
fn hashes(range: std::ops::Range<u64>) -> impl Iterator<Item = KeyHash> {
    range.map(|i| {
        let key = u128::from(remix(i)) << 64 | u128::from(remix(!i));
        KeyHash::new(3, &key.to_be_bytes())
    })
}

/// The binary fuse of `hashes`, even if there are so few that the builder would make a Bloom
/// filter.
fn forced_fuse(fingerprint_bits: u8, hashes: &[KeyHash]) -> Vec<u8> {
    let values: Vec<u64> = hashes.iter().map(|hash| hash.value()).collect();
    let (shape, lines) = super::fuse::build(fingerprint_bits, &values).unwrap();
    let millibits = 1000 * u32::from(fingerprint_bits);
    let keys = values.len() as u64;
    let (content, hash) = (FilterContent::Fuse(shape), "xxh3");
    header::encode(&FilterHeader { content, hash, seed: 3, keys, millibits, prefixes: None }, &lines)
}

/// The block of `hashes`, which must not be degraded.
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
