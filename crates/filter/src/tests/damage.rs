//! Damaged filters: never "no" for a present key while a check can notice the damage, and never a
//! panic.

use super::*;
use crate::header::HEADER_LEN;
use crate::header::tests::seal;
use proptest::prelude::*;

/// A Bloom filter of 30 keys, a block of no keys, and two binary fuses of 30 keys.
fn samples() -> Vec<(Vec<KeyHash>, Vec<u8>)> {
    let keys: Vec<KeyHash> = hashes(0..30).collect();
    let bloom = |keys: &[KeyHash]| (keys.to_vec(), build(split(10.0), keys).bytes);
    let fuse = |bits| (keys.clone(), forced_fuse(bits, &keys));
    vec![bloom(&keys), bloom(&[]), fuse(4), fuse(7)]
}

fn flipped(block: &[u8], bit: usize) -> Vec<u8> {
    let mut block = block.to_vec();
    block[bit / 8] ^= 1 << (bit % 8);
    block
}

/// Asks for present and absent keys; the answers do not matter.
fn probe(filter: &Filter) {
    for hash in hashes(0..64) {
        filter.may_contain(hash);
    }
    for value in [0, 1, u64::MAX, 1 << 63] {
        filter.may_contain(KeyHash::from_value(3, value));
    }
    assert_eq!(filter.info().is_none(), filter.degraded().is_some());
}

#[test]
fn every_flipped_bit_means_maybe() {
    for (_, block) in samples() {
        for bit in 0..block.len() * 8 {
            let filter = Filter::open(&flipped(&block, bit), 3);
            assert!(filter.degraded().is_some(), "bit {bit}");
            assert!(hashes(0..50).all(|hash| filter.may_contain(hash)), "bit {bit}");
        }
    }
}

#[test]
fn every_other_length_means_maybe() {
    for (_, block) in samples() {
        for len in 0..block.len() {
            let mut cut = block[..len].to_vec();
            for sealed in [false, true] {
                if sealed {
                    seal(&mut cut);
                }
                let filter = Filter::open(&cut, 3);
                assert!(filter.degraded().is_some(), "length {len}");
                assert!(hashes(0..50).all(|hash| filter.may_contain(hash)), "length {len}");
            }
        }
        let longer = [block, vec![0; 64]].concat();
        assert!(Filter::open(&longer, 3).degraded().is_some());
    }
}

#[test]
fn zeroed_and_foreign_bytes_mean_maybe() {
    for len in [0, 1, 63, 64, 65, 128, 4096] {
        for byte in [0, 0xff, b'F'] {
            let filter = Filter::open(&vec![byte; len], 3);
            assert!(filter.degraded().is_some());
            assert!(hashes(0..50).all(|hash| filter.may_contain(hash)));
        }
    }
}

#[test]
fn flipped_headers_that_verify_do_not_deny_a_key() {
    for (keys, block) in &samples() {
        for bit in 0..HEADER_LEN * 8 {
            let mut block = flipped(block, bit);
            seal(&mut block);
            let filter = Filter::open(&block, 3);
            assert!(keys.iter().all(|&key| filter.may_contain(key)), "bit {bit}");
            probe(&filter);
        }
    }
}

#[test]
fn flipped_blocks_that_verify_do_not_panic() {
    for (_, block) in samples() {
        for bit in 0..block.len() * 8 {
            let mut block = flipped(&block, bit);
            seal(&mut block);
            probe(&Filter::open(&block, 3));
        }
    }
}

proptest! {
    #[test]
    fn overwritten_fields_that_verify_do_not_panic(
        sample in 0usize..4,
        edits in proptest::collection::vec((4usize..64, any::<u8>()), 0..6),
        line_count in prop_oneof![0u64..5, Just(1 << 28), Just((1 << 28) + 1), any::<u64>()],
        payload in proptest::collection::vec(any::<u8>(), 0..200),
        whole_lines in 0usize..4,
    ) {
        let (_, mut block) = samples().swap_remove(sample);
        block[40..48].copy_from_slice(&line_count.to_le_bytes());
        for (offset, value) in edits {
            block[offset] = value;
        }
        if block[5] == 4 {
            // Recompute the check byte of the shape, so that the edits pass it.
            block[39] = block[32..39].iter().fold(0, |parity, byte| parity ^ byte);
        }
        block.truncate(HEADER_LEN);
        block.extend(payload);
        block.resize(HEADER_LEN + whole_lines * 64, 0x5a);
        seal(&mut block);
        probe(&Filter::open(&block, 3));
    }

    #[test]
    fn arbitrary_bytes_behind_the_magic_do_not_panic(bytes: Vec<u8>) {
        let mut block = [b"FLT1\x01".to_vec(), bytes].concat();
        seal(&mut block);
        probe(&Filter::open(&block, 3));
    }
}
