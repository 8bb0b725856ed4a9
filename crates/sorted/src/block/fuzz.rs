//! Fuzz target for the decoder of data blocks, called from `offline::fuzz`.

use super::{BlockBuilder, BlockCursor, BlockHit, BlockRef, Frame};
use crate::filter::KeyHash;
use crate::format::Decoded;
use crate::format::coding::set_u32;
use crate::format::key::{MAX_SEQNO, SeqNo, ValueKind, Window, compare_entries, head4};

/// Seed of the fingerprints.
const SEED: u64 = 3;

type DecodedEntry = (Vec<u8>, SeqNo, ValueKind, Vec<u8>);

fn fingerprint(seed: u64, key: &[u8]) -> u8 {
    KeyHash::new(seed, key).fingerprint()
}

fn open(bytes: &[u8]) -> Decoded<BlockRef> {
    let mut frame = Frame::new(bytes.len());
    frame.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    frame.into_block(bytes.len())
}

/// Overwrites the fingerprints and heads of a block with those of its keys, for entries that
/// decode.
pub fn seal(bytes: &mut [u8], seed: u64) {
    let Ok(block) = open(bytes) else { return };
    let view = block.block();
    let (n, wide) = (view.len(), bytes[0] & super::WIDE_OFFSETS != 0);
    let heads = super::HEADER_LEN + n * if wide { 5 } else { 3 };
    for i in 0..n {
        let Ok(entry) = view.entry(i) else { continue };
        let key = [view.prefix(), entry.rest].concat();
        bytes[super::HEADER_LEN + i] = fingerprint(seed, &key);
        set_u32(bytes, heads + 4 * i, head4(entry.rest));
    }
}

/// All entries in one direction; an error if one does not decode.
fn walk(block: &BlockRef, forward: bool) -> Decoded<Vec<DecodedEntry>> {
    let mut entries = Vec::new();
    let mut cursor = BlockCursor::new(block.clone());
    if forward {
        cursor.seek_to_first()?
    } else {
        cursor.seek_to_last()?
    }
    while cursor.valid() {
        entries.push((cursor.key().to_vec(), cursor.seqno(), cursor.kind(), cursor.value().to_vec()));
        assert!(entries.len() <= block.block().len(), "a cursor ends");
        if forward { cursor.next()? } else { cursor.prev()? }
    }
    Ok(entries)
}

/// Decodes `data` as a data block, sealed first if `sealed`; returns whether it is valid.
pub fn data_block(sealed: bool, data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    if sealed {
        seal(&mut bytes, SEED);
    }
    let Ok(block) = open(&bytes) else { return false };
    let (forward, backward) = (walk(&block, true), walk(&block, false));
    let verified = block.verify(|key| fingerprint(SEED, key));
    for key in [&b""[..], b"key", b"key0005", &[0xff; 20]] {
        let mut cursor = BlockCursor::new(block.clone());
        let _ = (cursor.seek(key, MAX_SEQNO), block.block().get(key, fingerprint(SEED, key), Window::up_to(MAX_SEQNO)));
    }
    if verified.is_err() {
        return false;
    }
    let entries = forward.expect("what verifies is decoded");
    let mut backward = backward.expect("what verifies is decoded");
    backward.reverse();
    assert_eq!(entries, backward);
    let is_sorted = entries.is_sorted_by(|a, b| compare_entries((&a.0, a.1), (&b.0, b.1)).is_lt());
    if !is_sorted {
        // `Table::verify` detects this, also across blocks.
        return false;
    }
    let mut builder = BlockBuilder::new();
    for (key, seqno, kind, value) in &entries {
        let hit =
            block.block().get(key, fingerprint(SEED, key), Window::up_to(*seqno)).expect("what verifies is decoded");
        assert!(matches!(hit, BlockHit::Found { seqno: found, .. } if found == *seqno), "{hit:?}");
        let mut cursor = BlockCursor::new(block.clone());
        cursor.seek(key, *seqno).expect("what verifies is decoded");
        assert_eq!((cursor.key(), cursor.seqno()), (&key[..], *seqno));
        builder.add(key, *seqno, *kind, value, fingerprint(SEED, key), usize::MAX);
    }
    let mut again = Vec::new();
    builder.finish(&mut again);
    let again = open(&again).expect("what was encoded is decoded");
    assert_eq!(again.verify(|key| fingerprint(SEED, key)), Ok(()));
    assert_eq!(walk(&again, true), Ok(entries));
    true
}
