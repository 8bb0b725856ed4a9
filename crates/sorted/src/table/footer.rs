//! The footer, which locates the other blocks of a table; block handles; and the blocks' trailer.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | file number |
//! | 8 | 8 | file size, footer included |
//! | 16 | 8 | entries |
//! | 24 | 8 | hash seed |
//! | 32 | 12 | handle of the index block |
//! | 44 | 12 | handle of the filter block; offset 0 when there is none |
//! | 56 | 12 | handle of the properties block |
//! | 68 | 4 | required [`features`]; a reader that lacks one refuses the file |
//! | 72 | 8 | zero |
//! | 80 | 4 | format version, 1 |
//! | 84 | 4 | bound CRC of bytes 0..84, at the footer's file offset |
//! | 88 | 8 | magic `tamisftr` |
//!
//! A handle is the offset of a block, `u64`, and its length without the trailer, `u32`. The trailer
//! follows the block:
//!
//! | size | field |
//! |---|---|
//! | 1 | compression: 0 none, 1 LZ4, 2 zstd |
//! | 4 | bound CRC of the block and the byte before, at the block's file offset |

use std::path::Path;

use crate::error::{Error, Result};
use crate::format::Decoded;
use crate::format::checksum::bound_crc;
use crate::format::coding::{Decoder, get_u32, get_u64, set_u32, set_u64};
use crate::format::header::{FORMAT_VERSION, features};

/// Length of the footer. Part of the format.
pub(crate) const FOOTER_LEN: usize = 96;
/// Length of a block's trailer: compression and CRC. Part of the format.
pub(super) const TRAILER_LEN: usize = 5;
/// Zeros may pad a data block's end up to a multiple of this. Part of the format.
pub(super) const PAGE: u64 = 4096;
/// Length of a handle. Part of the format.
pub(super) const HANDLE_LEN: usize = 12;

const MAGIC: &[u8; 8] = b"tamisftr";
/// What the footer's CRC covers. Part of the format.
const CHECKED_LEN: usize = 84;

/// Position of a block in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BlockHandle {
    pub offset: u64,
    /// Length without the trailer.
    pub len: u32,
}

impl BlockHandle {
    pub(super) fn encode(self) -> [u8; HANDLE_LEN] {
        let mut out = [0; HANDLE_LEN];
        set_u64(&mut out, 0, self.offset);
        set_u32(&mut out, 8, self.len);
        out
    }

    pub(super) fn decode(fields: &mut Decoder<'_>) -> Decoded<BlockHandle> {
        Ok(BlockHandle::from_bytes(fields.array()?))
    }

    #[inline]
    pub(super) fn from_bytes(bytes: &[u8; HANDLE_LEN]) -> BlockHandle {
        let [offset @ .., _, _, _, _] = bytes;
        let [_, _, _, _, _, _, _, _, len @ ..] = bytes;
        BlockHandle { offset: get_u64(offset), len: get_u32(len) }
    }

    /// Length in the file, with the trailer.
    pub(super) fn stored_len(self) -> u64 {
        u64::from(self.len) + TRAILER_LEN as u64
    }

    /// Offset just past the trailer, or `None` on overflow.
    pub(super) fn end(self) -> Option<u64> {
        self.offset.checked_add(self.stored_len())
    }
}

/// Decoded footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    pub number: u64,
    /// File length in bytes, footer included.
    pub size: u64,
    pub entries: u64,
    pub seed: u64,
    pub index: BlockHandle,
    pub filter: Option<BlockHandle>,
    pub properties: BlockHandle,
    /// Required [`features`].
    pub features: u32,
}

impl Footer {
    /// Encodes the footer for the end of a file of [`Footer::size`] bytes.
    pub fn encode(&self) -> [u8; FOOTER_LEN] {
        let mut out = [0; FOOTER_LEN];
        set_u64(&mut out, 0, self.number);
        set_u64(&mut out, 8, self.size);
        set_u64(&mut out, 16, self.entries);
        set_u64(&mut out, 24, self.seed);
        out[32..44].copy_from_slice(&self.index.encode());
        out[44..56].copy_from_slice(&self.filter.unwrap_or_default().encode());
        out[56..68].copy_from_slice(&self.properties.encode());
        set_u32(&mut out, 68, self.features);
        set_u32(&mut out, 80, FORMAT_VERSION);
        let crc = bound_crc(self.number, self.size - FOOTER_LEN as u64, &out[..CHECKED_LEN]);
        set_u32(&mut out, 84, crc);
        out[88..].copy_from_slice(MAGIC);
        out
    }

    /// Decodes the last bytes of `file`, which is table `number`; they begin at `offset`.
    pub fn decode(bytes: &[u8], number: u64, offset: u64, file: &Path) -> Result<Footer> {
        let corrupt = |rule: &str| Error::corruption(file, offset, rule);
        let Some(bytes) = bytes.first_chunk::<FOOTER_LEN>() else {
            return Err(corrupt("the file is shorter than its footer"));
        };
        if &bytes[88..] != MAGIC {
            return Err(corrupt("the file does not end with its magic bytes"));
        }
        let decoded = decode_fields(bytes).map_err(|malformed| corrupt(malformed.0))?;
        let (footer, zero, version, crc) = decoded;
        if crc != bound_crc(number, offset, &bytes[..CHECKED_LEN]) {
            return Err(corrupt("the checksum of the footer does not match"));
        }
        let unsupported = |what, found: u32, known: u32| Error::Unsupported {
            file: file.to_owned(),
            what,
            found: found.into(),
            known: known.into(),
        };
        if version != FORMAT_VERSION {
            return Err(unsupported("format version", version, FORMAT_VERSION));
        }
        if footer.features & !features::KNOWN != 0 {
            return Err(unsupported("required features", footer.features, features::KNOWN));
        }
        if footer.number != number {
            return Err(corrupt("the number in the footer is not the one in the file's name"));
        }
        if offset.checked_add(FOOTER_LEN as u64) != Some(footer.size) {
            return Err(corrupt("the file is not as long as its footer says"));
        }
        if zero.iter().any(|&byte| byte != 0) {
            return Err(corrupt("the reserved bytes of the footer are not zero"));
        }
        Ok(footer)
    }
}

fn decode_fields(bytes: &[u8; FOOTER_LEN]) -> Decoded<(Footer, &[u8], u32, u32)> {
    let mut fields = Decoder::new(bytes);
    let footer = Footer {
        number: fields.u64()?,
        size: fields.u64()?,
        entries: fields.u64()?,
        seed: fields.u64()?,
        index: BlockHandle::decode(&mut fields)?,
        filter: Some(BlockHandle::decode(&mut fields)?).filter(|handle| handle.offset != 0),
        properties: BlockHandle::decode(&mut fields)?,
        features: fields.u32()?,
    };
    Ok((footer, fields.take(8)?, fields.u32()?, fields.u32()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Footer {
        let handle = |offset, len| BlockHandle { offset, len };
        Footer {
            number: 12,
            size: 10_096,
            entries: 77,
            seed: 5,
            index: handle(9000, 995),
            filter: Some(handle(7000, 500)),
            properties: handle(8000, 100),
            features: features::MERGE,
        }
    }

    #[test]
    fn footer_round_trips() {
        for filter in [None, sample().filter] {
            let footer = Footer { filter, ..sample() };
            let decoded = Footer::decode(&footer.encode(), 12, 10_000, Path::new("x"));
            assert_eq!(decoded.unwrap(), footer);
        }
    }

    #[test]
    fn every_flipped_bit_and_any_other_place_is_refused() {
        let bytes = sample().encode();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let decoded = Footer::decode(&damaged, 12, 10_000, Path::new("x"));
            assert!(matches!(decoded, Err(Error::Corruption { .. })), "bit {bit}");
        }
        for (number, offset, len) in [(13, 10_000, 96), (12, 10_001, 96), (12, 10_000, 95)] {
            let decoded = Footer::decode(&bytes[..len], number, offset, Path::new("x"));
            assert!(matches!(decoded, Err(Error::Corruption { .. })));
        }
    }
}
