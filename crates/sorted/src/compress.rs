//! Compression of single blocks. A compressed block is its raw length, `u32`, and the compressed
//! bytes. Filter, properties and index are never compressed.

use crate::format::coding::{Decoder, put_u32};
use crate::format::{Decoded, Malformed};

/// How blocks are compressed. A block that compression shrinks by less than an eighth is stored
/// uncompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4 (feature `lz4`, on by default).
    Lz4,
    /// zstd (feature `zstd`).
    Zstd,
}

impl Compression {
    /// Its number in blocks, properties and manifest. Part of the format.
    pub const fn code(self) -> u8 {
        match self {
            Compression::None => 0,
            Compression::Lz4 => 1,
            Compression::Zstd => 2,
        }
    }

    /// The compression with the number `code`, whether this build has it or not.
    pub fn from_code(code: u64) -> Option<Compression> {
        let all = [Compression::None, Compression::Lz4, Compression::Zstd];
        all.into_iter().find(|compression| u64::from(compression.code()) == code)
    }

    /// Whether this build can compress and decompress with it.
    pub fn is_available(self) -> bool {
        match self {
            Compression::None => true,
            Compression::Lz4 => cfg!(feature = "lz4"),
            Compression::Zstd => cfg!(feature = "zstd"),
        }
    }
}

/// A compressed block begins with its raw length, in this many bytes. Part of the format.
const RAW_LEN: usize = 4;

/// The compression for the code in a block's trailer, if it is built in.
pub fn from_code(code: u8) -> Option<Compression> {
    Compression::from_code(code.into()).filter(|compression| compression.is_available())
}

/// The highest code of a built-in compression.
pub fn highest_code() -> u8 {
    let known = [Compression::Zstd, Compression::Lz4, Compression::None];
    let highest = known.into_iter().find(|known| known.is_available());
    highest.map_or(0, Compression::code)
}

/// Appends `raw` to `out`, compressed if that saves at least an eighth. Returns the compression
/// used.
pub fn compress(compression: Compression, raw: &[u8], out: &mut Vec<u8>) -> Compression {
    let start = out.len();
    if let Ok(raw_len) = u32::try_from(raw.len()) {
        put_u32(out, raw_len);
        out.resize(out.len() + packed_bound(compression, raw.len()), 0);
        if let Some(len) = pack(compression, raw, &mut out[start + RAW_LEN..])
            && RAW_LEN + len <= raw.len() - raw.len() / 8
        {
            out.truncate(start + RAW_LEN + len);
            return compression;
        }
    }
    out.truncate(start);
    out.extend_from_slice(raw);
    Compression::None
}

/// Bytes of output space that [`pack`] needs for a block of `len` bytes.
fn packed_bound(compression: Compression, len: usize) -> usize {
    match compression {
        #[cfg(feature = "lz4")]
        Compression::Lz4 => lz4_flex::block::get_maximum_output_size(len),
        #[cfg(feature = "zstd")]
        Compression::Zstd => zstd::zstd_safe::compress_bound(len),
        _ => len,
    }
}

#[cfg_attr(
    not(any(feature = "lz4", feature = "zstd")),
    expect(unused_variables, reason = "nothing to compress with is built in")
)]
fn pack(compression: Compression, raw: &[u8], packed: &mut [u8]) -> Option<usize> {
    match compression {
        #[cfg(feature = "lz4")]
        Compression::Lz4 => lz4_flex::block::compress_into(raw, packed).ok(),
        #[cfg(feature = "zstd")]
        Compression::Zstd => zstd::bulk::compress_to_buffer(raw, packed, ZSTD_LEVEL).ok(),
        _ => None,
    }
}

/// zstd's own default.
#[cfg(feature = "zstd")]
const ZSTD_LEVEL: i32 = 3;

/// Raw length that the stored form of a block states. Bounds the allocation: the length must not
/// exceed `longest`, nor what LZ4 can pack into the stored length.
pub fn raw_len(compression: Compression, stored: &[u8], longest: u32) -> Decoded<usize> {
    let raw_len = Decoder::new(stored).u32()?;
    if raw_len > longest {
        return Err(Malformed("the raw length of a compressed block exceeds the largest block of its table"));
    }
    if compression == Compression::Lz4 && raw_len as usize / MAX_LZ4_RATIO > stored.len() {
        return Err(Malformed("the raw length of a compressed block exceeds what LZ4 can pack into its stored length"));
    }
    Ok(raw_len as usize)
}

/// Most bytes that one byte of LZ4 stands for: a continuation byte of a length.
const MAX_LZ4_RATIO: usize = 255;

/// Decompresses `stored` into `raw`, whose length must be [`raw_len`].
pub fn decompress_into(compression: Compression, stored: &[u8], raw: &mut [u8]) -> Decoded<()> {
    let packed = stored.get(RAW_LEN..).unwrap_or_default();
    match unpack(compression, packed, raw) {
        Some(len) if len == raw.len() => Ok(()),
        _ => Err(Malformed("a block does not decompress to its stated length")),
    }
}

#[cfg_attr(
    not(any(feature = "lz4", feature = "zstd")),
    expect(unused_variables, reason = "nothing to decompress with is built in")
)]
fn unpack(compression: Compression, packed: &[u8], raw: &mut [u8]) -> Option<usize> {
    match compression {
        #[cfg(feature = "lz4")]
        Compression::Lz4 => lz4_flex::block::decompress_into(packed, raw).ok(),
        #[cfg(feature = "zstd")]
        Compression::Zstd => zstd::bulk::decompress_to_buffer(packed, raw).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decompress(compression: Compression, stored: &[u8], longest: u32) -> Decoded<Vec<u8>> {
        let mut raw = vec![0; raw_len(compression, stored, longest)?];
        decompress_into(compression, stored, &mut raw)?;
        Ok(raw)
    }

    fn available() -> impl Iterator<Item = Compression> {
        [Compression::Lz4, Compression::Zstd].into_iter().filter(|compression| compression.is_available())
    }

    #[test]
    fn a_block_that_shrinks_by_an_eighth_round_trips_compressed() {
        for compression in available() {
            let raw: Vec<u8> = (0..4000u32).flat_map(|i| (i / 100).to_le_bytes()).collect();
            let mut out = vec![1, 2, 3];
            assert_eq!(compress(compression, &raw, &mut out), compression);
            assert!(out.len() < raw.len() / 4);
            let longest = u32::try_from(raw.len()).unwrap();
            assert_eq!(decompress(compression, &out[3..], longest), Ok(raw));
            assert!(decompress(compression, &out[3..], longest - 1).is_err());
        }
    }

    #[test]
    fn a_block_that_hardly_shrinks_is_stored_raw() {
        let mut state = 1u64;
        let mut noise = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state.to_le_bytes()[7]
        };
        let mut raw: Vec<u8> = (0..1000).map(|_| noise()).collect();
        // These zeros save something, but less than an eighth.
        raw.extend_from_slice(&[0; 90]);
        for compression in available() {
            let mut out = vec![1, 2, 3];
            assert_eq!(compress(compression, &raw, &mut out), Compression::None);
            assert_eq!(out[3..], raw[..]);
        }
    }

    #[test]
    fn the_stored_length_bounds_the_allocation() {
        if Compression::Lz4.is_available() {
            let stored = [&(1u32 << 30).to_le_bytes()[..], &[0xff; 100]].concat();
            assert!(raw_len(Compression::Lz4, &stored, u32::MAX).is_err());
            // Nothing packs more densely than one repeated byte.
            let raw = vec![7; 1 << 20];
            let mut densest = Vec::new();
            compress(Compression::Lz4, &raw, &mut densest);
            assert!(raw.len() / densest.len() > 240, "{}", densest.len());
            assert_eq!(raw_len(Compression::Lz4, &densest, u32::MAX), Ok(raw.len()));
        }
    }

    #[test]
    fn damaged_stored_forms_are_errors() {
        for compression in available() {
            let raw = vec![7; 1000];
            let mut good = Vec::new();
            compress(compression, &raw, &mut good);
            for len in 0..good.len() {
                assert!(decompress(compression, &good[..len], 1000).is_err());
            }
            for i in 0..good.len() {
                let mut bad = good.clone();
                bad[i] ^= 0x11;
                let _ = decompress(compression, &bad, u32::MAX >> 12);
            }
        }
    }

    #[test]
    fn codes_of_compressions_that_are_not_built_in_are_unknown() {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let known = from_code(compression.code());
            assert_eq!(known.is_some(), compression.is_available());
            assert!(known.is_none_or(|known| known == compression));
        }
        assert_eq!(from_code(3), None);
    }
}
