//! Filters that threads share: no bit is lost, and the bytes are those of one thread.

use std::sync::Barrier;

use super::alone::{LAYOUTS, builders, random};
use crate::{BloomFilter, HashFunction, SharedBloomFilter};
use tamis_base::error::Error;

/// Threads that insert overlapping keys, so close together that their bits share words.
fn insert_by_threads(filter: &SharedBloomFilter, threads: u64, keys: u64) -> u64 {
    let barrier = Barrier::new(usize::try_from(threads).unwrap());
    std::thread::scope(|scope| {
        let insert = |thread: u64| {
            let barrier = &barrier;
            move || {
                barrier.wait();
                // Every thread inserts all keys, each from another place on.
                let own = (0..keys).map(|i| random((i + thread * keys / threads) % keys));
                own.map(|key| u64::from(filter.insert(key))).sum::<u64>()
            }
        };
        let inserted: Vec<_> = (0..threads).map(|thread| scope.spawn(insert(thread))).collect();
        inserted.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

#[test]
fn threads_make_the_bytes_of_one_thread() {
    let (rounds, keys) = if cfg!(miri) { (1, 20) } else { (40, 400) };
    for layout in LAYOUTS {
        for _ in 0..rounds {
            let empty = BloomFilter::builder().layout(layout).with_bits(keys * 10, 7).unwrap();
            let mut alone = empty.clone();
            let new = (0..keys).map(|i| u64::from(alone.insert(random(i)))).sum::<u64>();
            let shared = empty.into_shared();
            let inserted = insert_by_threads(&shared, 4, keys);
            assert!((0..keys).all(|i| shared.contains(random(i)) && !shared.insert(random(i))));
            // A key counts once, or once for each of the threads that set a bit of it.
            assert!((new / 2..=4 * keys).contains(&inserted), "{inserted} of {new}");
            assert_eq!(shared.to_bytes(), alone.to_bytes());
            // Miri varies the last bits of a logarithm.
            assert!((shared.estimated_keys() - alone.estimated_keys()).abs() < 1e-9);
            assert_eq!(shared.into_filter().to_bytes(), alone.to_bytes());
        }
    }
}

#[test]
fn a_bit_is_new_to_one_thread_only() {
    // One probe per key: each bit is one key's, and one thread gets `true` for it.
    let shared = BloomFilter::with_bits(1 << 14, 1).unwrap().into_shared();
    let inserted = insert_by_threads(&shared, 4, 5000);
    assert_eq!(inserted as f64, shared.fill_ratio() * shared.bits() as f64);
}

#[test]
fn a_reader_finds_what_a_writer_has_announced() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let keys = if cfg!(miri) { 100 } else { 50_000 };
    let shared = BloomFilter::with_rate(keys, 0.01).unwrap().into_shared();
    let announced = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..keys {
                shared.insert(random(i));
                announced.store(i + 1, Ordering::Release);
            }
        });
        let mut next = 0;
        while next < keys {
            let until = announced.load(Ordering::Acquire);
            assert!((next..until).all(|i| shared.contains(random(i))));
            next = until;
        }
    });
}

#[test]
fn a_shared_filter_reports_what_a_plain_one_does() {
    for builder in builders() {
        let mut alone = builder.with_rate(1000, 0.01).unwrap();
        let shared = alone.clone().into_shared();
        assert!(shared.is_empty() && !shared.is_full());
        for i in 0..1200 {
            let (key, hashed) = (random(i), alone.hasher().hash(&random(i)));
            let new = alone.insert(key);
            assert_eq!(if i % 2 == 0 { shared.insert(key) } else { shared.insert_hashed(hashed).unwrap() }, new);
            assert!(shared.contains_hashed(hashed));
        }
        assert!(!shared.is_empty() && shared.is_full());
        assert_eq!(shared.to_string(), alone.to_string());
        assert_eq!((shared.fill_ratio(), shared.capacity()), (alone.fill_ratio(), alone.capacity()));
        assert_eq!((shared.size(), shared.encoded_len()), (alone.size(), alone.encoded_len()));
        assert!(shared.is_compatible(&alone) && alone.is_compatible(&shared));
        assert_eq!(shared.to_filter(), alone);
    }
}

#[test]
fn a_hash_of_another_function_is_refused() {
    let shared = BloomFilter::with_rate(100, 0.01).unwrap().into_shared();
    let other = BloomFilter::builder().hash(HashFunction::SipHash13).hasher().unwrap();
    let refused = shared.insert_hashed(other.hash(b"key"));
    assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    assert!(shared.is_empty() && shared.contains_hashed(other.hash(b"key")));
}
