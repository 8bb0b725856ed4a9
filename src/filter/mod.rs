//! Filters: a few bits per key that answer, for any key, "certainly not in this set" or "maybe".
//!
//! [`BloomFilter`] is a filter to be used alone, without a database, and [`ScalableBloomFilter`] one that grows with its keys. They
//! are made of the same lines, layouts and header as the filter that each table of a store carries, and have the same bytes.
//! [`allocate`] says how many bits per key the filters of the levels of a store should have.
//!
//! ```
//! use tamis::filter::BloomFilter;
//!
//! let mut seen = BloomFilter::with_rate(100_000, 0.01)?;            // 100,000 keys, 1 % false positives
//! for url in ["https://example.com/", "https://example.org/", "https://example.com/"] {
//!     if seen.insert(url) {
//!         println!("{url} is new");
//!     }
//! }
//! assert!(!seen.contains("https://example.net/"));                  // certain; "maybe" would not be
//! println!("{seen}");                                               // size, fill, expected false positives
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("seen.bloom");
//! seen.save(&path)?;                                                // durable and atomic
//! assert_eq!(BloomFilter::load(&path)?, seen);
//! # Ok::<(), tamis::Error>(())
//! ```
//!
//! # A filter is its bits
//!
//! A [`BloomFilter`] keeps the bits, how they are placed and hashed, and the number of keys for
//! which it was made. What it says of itself follows from these. Filters of one make that hold the
//! same set have the same bytes, whatever the order of insertions and unions, and however often a
//! key came: an insertion sets bits, a union is their *or*, and neither minds order or repetition.
//!
//! It counts no insertions, because a count would depend on their order: whether a key changes a
//! bit depends on the keys before it. The [estimate](BloomFilter::estimated_keys) comes from the
//! bits; a program that wants to know how many keys were new counts how often
//! [`insert`](BloomFilter::insert) returns `true`.
//!
//! This does **not** hold for [`ScalableBloomFilter`]: a key goes into the filter that is the last
//! one when the key comes, and a key to which an older filter says "maybe" goes into none. Another
//! order therefore gives other bytes, and two of them cannot be united. The same keys in the same
//! order give the same bytes.
// In a table, a `FilterBuilder` takes the hashes of the keys and makes a block; a `Filter` is that block in memory. All filters work
// on an array of 64-byte lines, whose bits one of two layouts places, `split` (the default) or `standard` (the textbook, to compare
// with), or which hold the packed fingerprints of `fuse`. `header` draws the block, `sizing` and `shape` say how many lines and
// probes a filter takes. Nothing here knows of tables, and nothing but `file` does I/O.
//
// What must stay true:
// - No "no" for a key that was added. A table's block is asked for all its keys before it leaves the builder.
// - Bytes of a table that are not understood, do not verify, or belong to another hash or seed answer "maybe", and say why. Bytes of
//   a stand-alone filter that do not verify are no filter, but an error.
// - The same hashes, policy and seed make the same bytes on every platform: sizes and stored rates are integer arithmetic or single
//   IEEE operations. (Stand-alone filters that are sized by a rate are the exception; see `shape`.)

mod allocate;
mod alone;
mod avx2;
mod fuse;
#[cfg(any(fuzzing, test))]
pub(crate) mod fuzz;
mod hash;
mod hasher;
mod header;
mod layout;
mod line;
mod policy;
mod prefix;
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
pub use alone::scalable::{ScalableBloomFilter, ScalableBuilder};
pub use hasher::{HashFunction, HashedKey, HashedKeys, KeyHasher};
pub use shape::BloomLayout;

pub(crate) use hash::KeyHash;
pub(crate) use policy::FINGERPRINT_BITS;
pub use policy::FilterPolicy;
pub use prefix::PrefixExtractor;
pub(crate) use table::bank::{FilterBank, FirstProbes};
pub(crate) use table::builder::FilterBuilder;
pub use table::info::{FilterInfo, FilterState};
pub(crate) use table::reader::Filter;
