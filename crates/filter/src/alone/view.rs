//! [`BloomFilterRef`]: a Bloom filter in bytes of the caller.

use super::bloom::{self, BloomFilter};
use super::file;
use super::store::Borrowed;
use crate::hasher::{FilterHash, KeyHasher};
use tamis_base::error::Result;

/// A [`BloomFilter`] that answers from the bytes of its file, without a copy: bytes in a larger
/// buffer, in the program itself (`include_bytes!`), or in a file that the caller has mapped into
/// memory.
///
/// Making one reads and verifies all bytes once. Look-ups trust them from then on, so that the file
/// of a mapping must not change. A changed bit can only make an answer wrong.
///
/// ```
/// use tamis_filter::{BloomFilter, BloomFilterRef};
///
/// let mut words = BloomFilter::with_rate(1000, 0.01)?;
/// words.extend(["one", "two"]);
/// let file: Vec<u8> = words.to_bytes();
///
/// let view = BloomFilterRef::new(&file)?;
/// assert!(view.contains("one") && !view.contains("three"));
/// assert_eq!(view.to_filter(), words);
/// # Ok::<(), tamis_filter::Error>(())
/// ```
///
/// Bytes that begin at a multiple of 64, as a mapped file does, are fastest: each line is then one
/// cache line.
pub type BloomFilterRef<'a, H = KeyHasher> = BloomFilter<H, Borrowed<'a>>;

impl<'a> BloomFilterRef<'a> {
    /// The filter in `bytes`, which are those of [`to_bytes`](BloomFilter::to_bytes). Any other
    /// bytes are an [`Error::Filter`](crate::Error::Filter) that names the broken rule.
    pub fn new(bytes: &'a [u8]) -> Result<BloomFilterRef<'a>> {
        BloomFilterRef::view(bytes, file::hasher_of_crate).map_err(|refused| refused.into_error(None))
    }
}

impl<'a, H: FilterHash> BloomFilterRef<'a, H> {
    /// The filter in `bytes`, which `hasher` made. One that another hash made is an
    /// [`Error::OtherHash`](crate::Error::OtherHash).
    pub fn new_with(bytes: &'a [u8], hasher: H) -> Result<BloomFilterRef<'a, H>> {
        BloomFilterRef::view(bytes, file::same_hasher(hasher)).map_err(|refused| refused.into_error(None))
    }

    fn view(
        bytes: &'a [u8],
        hasher: impl FnOnce(&str, u64) -> Result<H, file::Refused>,
    ) -> Result<BloomFilterRef<'a, H>, file::Refused> {
        let (size, lines, hasher) = bloom::parse(bytes, hasher)?;
        Ok(BloomFilter::from_parts(size, Borrowed(lines), hasher))
    }
}
