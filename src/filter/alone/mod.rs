//! Filters for use without a store: [`BloomFilter`](bloom::BloomFilter) and
//! [`ScalableBloomFilter`](scalable::ScalableBloomFilter), in memory and as files.

pub(crate) mod bloom;
mod file;
pub(crate) mod scalable;
