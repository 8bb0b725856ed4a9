//! The header of a range filter.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `RNG1` |
//! | 4 | 1 | format version, 1 |
//! | 5 | 1 | kind: 1 a table's, 2 one that is alone |
//! | 6 | 2 | prefix extractor; 0 for none |
//! | 8 | 8 | number of the table; 0 in a filter that is alone |
//! | 16 | 8 | keys |
//! | 24 | 4 | requested bits per key, in thousandths |
//! | 28 | 4 | blocks |
//! | 32 | 4 | predicted rate of fresh ranges, in parts per 10^9 |
//! | 36 | 4 | predicted rate of ranges near keys, in parts per 10^9 |
//! | 40 | 8 | length of the filter, header included |
//! | 48 | 8 | XXH3 with 64 bits, seed 0, of all that follows the header |
//! | 56 | 4 | zero |
//! | 60 | 4 | CRC-32 of bytes 0..60 |

use xxhash_rust::xxh3::xxh3_64;

use super::info::{RangeInfo, RangeRates};
use crate::header::HEADER_LEN;
use tamis_base::format::checksum::crc;
use tamis_base::format::coding::{Decoder, put_u16, put_u32, put_u64, set_u32};
use tamis_base::format::{Decoded, Malformed};

pub(crate) const MAGIC: [u8; 4] = *b"RNG1";
const VERSION: u8 = 1;

/// What follows the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Codes of a table's blocks.
    Table = 1,
    /// Length of the separators (varint), the separators, and codes.
    Alone = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeHeader {
    pub(crate) kind: Kind,
    pub(crate) extractor: u16,
    /// Of the table.
    pub(crate) number: u64,
    pub(crate) keys: u64,
    pub(crate) millibits: u32,
    pub(crate) blocks: u32,
    pub(crate) rates: RangeRates,
}

impl RangeHeader {
    /// What it says of a filter of `bytes` bytes, of whose blocks `folded` are placed by distance.
    pub(crate) fn info(&self, bytes: usize, folded: usize) -> RangeInfo {
        let &RangeHeader { keys, blocks, millibits, rates, .. } = self;
        let folded = u32::try_from(folded).unwrap_or(u32::MAX);
        RangeInfo { keys, blocks, folded, millibits, bytes: bytes as u64, rates }
    }
}

/// A whole filter: the header of `payload`, and `payload`.
pub(crate) fn encode(header: &RangeHeader, payload: &[u8]) -> Vec<u8> {
    let len = HEADER_LEN + payload.len();
    let mut out = Vec::with_capacity(len);
    out.extend(MAGIC);
    out.extend([VERSION, header.kind as u8]);
    put_u16(&mut out, header.extractor);
    put_u64(&mut out, header.number);
    put_u64(&mut out, header.keys);
    put_u32(&mut out, header.millibits);
    put_u32(&mut out, header.blocks);
    put_u32(&mut out, header.rates.fresh);
    put_u32(&mut out, header.rates.near);
    put_u64(&mut out, len as u64);
    put_u64(&mut out, xxh3_64(payload));
    out.resize(HEADER_LEN, 0);
    let checksum = crc(&out[..60]);
    set_u32(&mut out, 60, checksum);
    out.extend_from_slice(payload);
    out
}

/// Checks a whole filter of this kind and returns its header. The error names the broken rule.
pub(crate) fn decode(bytes: &[u8], kind: Kind) -> Decoded<RangeHeader> {
    let Some((header, payload)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Err(Malformed("the range filter is shorter than its header"));
    };
    let mut fields = verified(header)?;
    if fields.u8()? != kind as u8 {
        return Err(Malformed("the range filter is of another kind"));
    }
    let (extractor, number, keys) = (fields.u16()?, fields.u64()?, fields.u64()?);
    let (millibits, blocks) = (fields.u32()?, fields.u32()?);
    let rates = RangeRates { fresh: fields.u32()?, near: fields.u32()? };
    if fields.u64()? != bytes.len() as u64 {
        return Err(Malformed("the range filter's length is not that of its header"));
    }
    let hash = fields.u64()?;
    if fields.u32()? != 0 {
        return Err(Malformed("the range filter's reserved bytes are not zero"));
    }
    if rates.fresh.max(rates.near) > 1_000_000_000 {
        return Err(Malformed("a predicted rate of the range filter exceeds 1"));
    }
    if xxh3_64(payload) != hash {
        return Err(Malformed("the hash of the range filter's codes does not match"));
    }
    Ok(RangeHeader { kind, extractor, number, keys, millibits, blocks, rates })
}

/// The total length that a header states.
pub(crate) fn len_of(header: &[u8; HEADER_LEN]) -> Decoded<u64> {
    let mut fields = verified(header)?;
    fields.take(35)?;
    fields.u64()
}

/// Checks a header's magic, version and checksum. The decoder it returns is at the next field.
fn verified(header: &[u8; HEADER_LEN]) -> Decoded<Decoder<'_>> {
    let mut fields = Decoder::new(header);
    if fields.take(MAGIC.len())? != MAGIC {
        return Err(Malformed("the range filter lacks its magic bytes"));
    }
    if fields.u8()? != VERSION {
        return Err(Malformed("the range filter is of an unknown version"));
    }
    if Decoder::new(&header[60..]).u32()? != crc(&header[..60]) {
        return Err(Malformed("the checksum of the range filter's header does not match"));
    }
    Ok(fields)
}
