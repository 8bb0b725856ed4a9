//! serde for stand-alone filters: each is the bytes of its file, and is checked as they are.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::bloom::BloomFilter;
use super::fuse::FuseFilter;
use super::ordered::OrderedFilter;
use super::scalable::ScalableBloomFilter;
use super::store::LineStore;
use crate::hasher::FilterHash;

/// A filter that bytes state completely.
trait FromFile: Sized {
    fn from_file(bytes: &[u8]) -> crate::Result<Self>;
}

struct Bytes<F>(PhantomData<F>);

impl<'de, F: FromFile> Visitor<'de> for Bytes<F> {
    type Value = F;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes of a filter")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<F, E> {
        F::from_file(bytes).map_err(E::custom)
    }

    /// Formats without bytes have a list of numbers. Memory grows only as they arrive.
    fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<F, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = numbers.next_element::<u8>()? {
            bytes.push(byte);
        }
        self.visit_bytes(&bytes)
    }
}

macro_rules! deserialize {
    ($($filter:ty),*) => {$(
        impl FromFile for $filter {
            fn from_file(bytes: &[u8]) -> crate::Result<Self> {
                <$filter>::from_bytes(bytes)
            }
        }

        /// As the bytes of its file, checked by `from_bytes`.
        impl<'de> Deserialize<'de> for $filter {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_byte_buf(Bytes(PhantomData))
            }
        }
    )*};
}

deserialize!(BloomFilter, ScalableBloomFilter, FuseFilter, OrderedFilter);

/// As the bytes of its file.
impl<H: FilterHash, L: LineStore> Serialize for BloomFilter<H, L> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.to_bytes())
    }
}

/// As the bytes of its file.
impl Serialize for ScalableBloomFilter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.to_bytes())
    }
}

/// As the bytes of its file.
impl<H: FilterHash> Serialize for FuseFilter<H> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.to_bytes())
    }
}

/// As the bytes of its file.
impl Serialize for OrderedFilter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.to_bytes())
    }
}
