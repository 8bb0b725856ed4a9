//! Filters for use without a store, in memory and as files.
//!
//! [`BloomFilter`](bloom::BloomFilter) is one type over three places for its lines (`store`): its
//! own memory, memory that threads share ([`SharedBloomFilter`](shared::SharedBloomFilter)), and
//! bytes of the caller ([`BloomFilterRef`](view::BloomFilterRef)). `sets` combines two of them.
//! [`ScalableBloomFilter`](scalable::ScalableBloomFilter) is a series of Bloom filters,
//! [`FuseFilter`](fuse::FuseFilter) a binary fuse, [`OrderedFilter`](ordered::OrderedFilter) one
//! for ranges of keys.

pub(crate) mod bloom;
mod file;
pub(crate) mod fuse;
pub(crate) mod ordered;
pub(crate) mod scalable;
#[cfg(feature = "serde")]
mod serde;
mod sets;
pub(crate) mod shared;
mod store;
pub(crate) mod view;
