//! Filters: a few bits per key that answer, for any key, "certainly not in this set" or "maybe".
//!
//! Four filters serve alone, without a database. They share layouts, headers and encodings with the
//! filters that the tables of a store carry.
//!
//! | filter | for |
//! |---|---|
//! | [`BloomFilter`] | a known number of keys; can be united, and told how many keys it has |
//! | [`SharedBloomFilter`] | the same bits, into which threads insert without locks |
//! | [`BloomFilterRef`] | the same bits, in borrowed bytes or a mapped file |
//! | [`ScalableBloomFilter`] | an unknown number of keys: it grows with them |
//! | [`FuseFilter`] | keys that are all known: a fifth smaller, and fixed |
//! | [`OrderedFilter`] | ranges of keys: is one empty? where is the next key at the earliest? |
//!
//! [`BloomSize`] says what bits give which rate, before a filter is made. [`FilterHash`] brings a
//! hash function of your own. `contains_many` asks for many keys at once. With the feature `serde`,
//! filters are values of serde. [`allocate`] says how many bits per key the filters of a store's
//! levels should have.
//!
//! ```
//! use tamis_filter::BloomFilter;
//!
//! let mut seen = BloomFilter::with_rate(100_000, 0.01)?;  // 100,000 keys, 1 % false positives
//! for url in ["https://example.com/", "https://example.org/", "https://example.com/"] {
//!     if seen.insert(url) {
//!         println!("{url} is new");
//!     }
//! }
//! assert!(!seen.contains("https://example.net/"));        // certain; "maybe" would not be
//! println!("{seen}");                                     // size, fill, expected false positives
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("seen.bloom");
//! seen.save(&path)?;                                      // durable and atomic
//! assert_eq!(BloomFilter::load(&path)?, seen);
//! # Ok::<(), tamis_filter::Error>(())
//! ```
//!
//! # A filter is its bits
//!
//! A [`BloomFilter`] keeps the bits, how they are placed and hashed, and the number of keys for
//! which it was made. Everything it reports follows from these. Filters with equal parameters that
//! hold equal sets have equal bytes, whatever the order of insertions and unions, and however often
//! a key was inserted: an insertion sets bits, a union is their *or*, and neither depends on order
//! or repetition.
//!
//! It counts no insertions: whether a key changes a bit depends on the keys before it, so that a
//! count would depend on their order. The [estimate](BloomFilter::estimated_keys) comes from the
//! bits. A program that wants the number of new keys counts how often
//! [`insert`](BloomFilter::insert) returns `true`.
//!
//! This does **not** hold for [`ScalableBloomFilter`]: a key goes into the newest filter, or into
//! none if an older filter says "maybe" to it. Another order therefore gives other bytes, and two
//! of them cannot be united. The same keys in the same order give the same bytes.
#![cfg_attr(
    test,
    allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "threads and clocks of tests are their own")
)]
// In a table, a `FilterBuilder` makes a block from the hashes of the keys; a `Filter` is that block
// in memory. All filters work on an array of 64-byte lines. The lines hold Bloom bits, placed as
// `split` says, or the packed fingerprints of `fuse`; a stand-alone filter can also place its bits
// as the textbook does, for comparison (`standard`). `header` draws the block; `sizing` and `shape`
// say how many lines and probes a filter takes. `probe` asks the lines of stand-alone filters,
// `batch` many keys at a time. Nothing here knows of tables, and only `file` does I/O.
//
// Invariants:
// - No filter denies a key that was added. The builder checks each finished block
//   against all its keys.
// - A table's block that is unknown, does not verify, or has another layout, hash or seed answers
//   "maybe", and says why. Bytes of a stand-alone filter that do not verify are an error.
// - The same hashes, policy and seed make the same bytes on every platform: sizes and stored rates
//   are integer arithmetic or single IEEE operations. The exception is a stand-alone filter sized
//   by a rate; see `shape`.

mod allocate;
mod alone;
mod avx2;
mod batch;
mod fuse;
#[cfg(any(fuzzing, test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzz;
mod hash;
mod hasher;
mod header;
mod layout;
mod line;
mod policy;
mod prefix;
mod probe;
mod range;
mod rate;
mod shape;
mod sizing;
mod split;
mod standard;
mod table;
#[cfg(test)]
mod tests;

pub use allocate::{Run, allocate, expected_rate, filter_bytes};
pub use alone::bloom::{BloomBuilder, BloomFilter};
pub use alone::fuse::FuseFilter;
pub use alone::ordered::{OrderedBuilder, OrderedFilter};
pub use alone::scalable::{ScalableBloomFilter, ScalableBuilder};
pub use alone::shared::SharedBloomFilter;
pub use alone::view::BloomFilterRef;
pub use hasher::{FilterHash, HashFunction, HashedKey, HashedKeys, KeyHasher};
pub use shape::{BloomLayout, BloomSize};

pub use policy::{FilterPolicy, RangeFilterPolicy};
pub use prefix::PrefixExtractor;
pub use range::bounds::KeyBounds;
pub use range::info::{RangeFilterState, RangeInfo, RangeRates};
pub use table::info::{FilterInfo, FilterState};
pub use tamis_base::error::{Error, Result};

// What tables are made of, for the crates of tamis alone.
#[doc(hidden)]
pub use hash::KeyHash;
#[doc(hidden)]
pub use policy::FINGERPRINT_BITS;
#[doc(hidden)]
pub use range::builder::{NoRangeFilter, RangeBlock, RangeBuilder};
#[doc(hidden)]
pub use range::codes::BlockRange;
#[doc(hidden)]
pub use range::reader::RangeFilter;
#[doc(hidden)]
pub use table::bank::{FilterBank, FirstProbes};
#[doc(hidden)]
pub use table::builder::FilterBuilder;
#[doc(hidden)]
pub use table::outline::FilterOutline;
#[doc(hidden)]
pub use table::reader::Filter;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
