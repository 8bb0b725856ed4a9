//! Filters as values of serde: the bytes of their files, checked.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::de::value::{BytesDeserializer, Error as ValueError, SeqDeserializer};

use super::alone::random;
use crate::{BloomFilter, BloomFilterRef, FuseFilter, OrderedFilter, ScalableBloomFilter};

fn cbor(value: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::new();
    ciborium::into_writer(value, &mut out).unwrap();
    out
}

fn check<F: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(filter: F, bytes: &[u8]) {
    let encoded = cbor(&filter);
    assert!(encoded.ends_with(bytes) && encoded.len() < bytes.len() + 9, "bytes, behind their length");
    assert_eq!(ciborium::from_reader::<F, _>(&encoded[..]).unwrap(), filter);
    let of_bytes = |bytes| F::deserialize(BytesDeserializer::<ValueError>::new(bytes));
    // A format without bytes has a list of numbers.
    let of_list = |bytes: &[u8]| F::deserialize(SeqDeserializer::<_, ValueError>::new(bytes.iter().copied()));
    assert_eq!(of_bytes(bytes).unwrap(), filter);
    assert_eq!(of_list(bytes).unwrap(), filter);
    for damaged in [&bytes[..bytes.len() - 1], &[&bytes[..70], &[bytes[70] ^ 1], &bytes[71..]].concat(), b""] {
        for refused in [of_bytes(damaged), of_list(damaged)] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("is not a sound filter"), "{error}");
        }
    }
    assert!(F::deserialize(SeqDeserializer::<_, ValueError>::new([256u32].into_iter())).is_err());
    assert!(ciborium::from_reader::<F, _>(&cbor(&7)[..]).is_err());
}

#[test]
fn filters_are_the_bytes_of_their_files() {
    let mut bloom = BloomFilter::with_rate(50, 0.01).unwrap();
    bloom.extend((0..50).map(random));
    let bytes = bloom.to_bytes();
    let view = BloomFilterRef::new(&bytes).unwrap();
    assert_eq!(cbor(&view), cbor(&bloom));
    check(bloom, &bytes);
    let mut scalable = ScalableBloomFilter::with_rate(10, 0.01).unwrap();
    scalable.extend((0..50).map(random));
    let bytes = scalable.to_bytes();
    check(scalable, &bytes);
    let fuse = FuseFilter::from_keys((0..50).map(random), 8).unwrap();
    let bytes = fuse.to_bytes();
    check(fuse, &bytes);
    let ordered = OrderedFilter::from_keys((0..50).map(random), 12.0).unwrap();
    let bytes = ordered.to_bytes();
    check(ordered, &bytes);
}
