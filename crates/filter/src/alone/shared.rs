//! [`SharedBloomFilter`]: a Bloom filter into which threads insert together.

use super::bloom::BloomFilter;
use super::store::SharedLines;
use crate::hasher::{FilterHash, HashedKey, KeyHasher};
use tamis_base::error::Result;

/// A [`BloomFilter`] into which any number of threads insert at once, by `&self` and without locks.
///
/// It has the bits that a filter of one thread would have: an insertion sets bits one by one, each
/// by an atomic instruction, and never clears one. A key that a thread has inserted is found by
/// every thread that knows of the insertion: through a join, a lock, a channel, or an atomic. A
/// look-up beside an insertion may say either.
///
/// [`into_shared`](BloomFilter::into_shared) makes one, and
/// [`into_filter`](SharedBloomFilter::into_filter) takes it back; neither copies the bits.
///
/// ```
/// use tamis_filter::BloomFilter;
///
/// let seen = BloomFilter::with_rate(100_000, 0.01)?.into_shared();
/// std::thread::scope(|scope| {
///     for thread in 0..4u32 {
///         let seen = &seen;
///         scope.spawn(move || {
///             (0..1000u32).filter(|i| seen.insert((i * 4 + thread).to_be_bytes())).count()
///         });
///     }
/// });
/// assert!((0..4000u32).all(|key| seen.contains(key.to_be_bytes())));
/// let seen: BloomFilter = seen.into_filter();
/// # let mut alone = BloomFilter::with_rate(100_000, 0.01)?;
/// # alone.extend((0..4000u32).map(u32::to_be_bytes));
/// # assert_eq!(alone.to_bytes(), seen.to_bytes());
/// # Ok::<(), tamis_filter::Error>(())
/// ```
///
/// What it reports of its bits (fill, rate, estimate, bytes) is one pass over them. Beside
/// insertions, some of these may have a part of their bits in it.
pub type SharedBloomFilter<H = KeyHasher> = BloomFilter<H, SharedLines>;

impl<H: FilterHash> BloomFilter<H> {
    /// This filter for threads to share.
    pub fn into_shared(self) -> SharedBloomFilter<H> {
        self.with_store(super::store::Owned::into_shared)
    }
}

impl<H: FilterHash> SharedBloomFilter<H> {
    /// Adds a key. Returns whether it changed a bit. If several threads insert a new key at once,
    /// at least one of them gets `true`.
    #[inline]
    pub fn insert(&self, key: impl AsRef<[u8]>) -> bool {
        self.insert_value(self.hasher().hash64(key.as_ref()))
    }

    #[inline]
    fn insert_value(&self, hash: u64) -> bool {
        self.size.layout.insert(&mut &*self.store.0, hash) > 0
    }

    /// This filter for one thread.
    pub fn into_filter(self) -> BloomFilter<H> {
        self.with_store(SharedLines::into_owned)
    }
}

impl SharedBloomFilter {
    /// Adds a key that was hashed before, like [`insert`](SharedBloomFilter::insert). Fails, and
    /// changes nothing, if another function or seed than that of the filter's
    /// [`hasher`](BloomFilter::hasher) made the hash.
    pub fn insert_hashed(&self, key: HashedKey) -> Result<bool> {
        Ok(self.insert_value(self.hasher().expect_value_of(key)?))
    }
}
