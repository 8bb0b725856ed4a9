//! Records and the footer of a value file, as the module above draws them.

use super::FOOTER_LEN;
use crate::compress::Compression;
use crate::compress::compress;
use crate::format::checksum::bound_crc;
use crate::format::coding::{Decoder, get_u32, put_bytes, put_varint, set_u32, set_u64, varint_len};
use crate::format::header::Magic;
use crate::format::{Decoded, Malformed};

/// A record that has been verified.
pub(super) struct StoredRecord<'a> {
    pub(super) keyspace: u32,
    pub(super) key: &'a [u8],
    /// Code of the compression.
    pub(super) compression: u8,
    /// The value as it is stored.
    pub(super) stored: &'a [u8],
    /// Bytes of the record before it.
    pub(super) stored_start: usize,
}

/// Appends the record of a value that begins at `offset` of file `number`.
pub(super) fn put_record(
    out: &mut Vec<u8>,
    (number, offset): (u64, u64),
    keyspace: u32,
    key: &[u8],
    value: &[u8],
    compression: Compression,
) {
    let start = out.len();
    // What precedes the stored value, but for the length, which is known last.
    let mut packed = Vec::new();
    let used = match compression {
        Compression::None => Compression::None,
        compression => compress(compression, value, &mut packed),
    };
    let stored = if used == Compression::None { value } else { &packed };
    let before = varint_len(keyspace.into()) + varint_len(key.len() as u64) + key.len() + 1;
    out.extend_from_slice(&[0; 4]);
    put_varint(out, (before + stored.len()) as u64);
    put_varint(out, keyspace.into());
    put_bytes(out, key);
    out.push(used.code());
    out.extend_from_slice(stored);
    let crc = bound_crc(number, offset, &out[start + 4..]);
    set_u32(out, start, crc);
}

/// Decodes `bytes`, which must be one record at `offset` of file `number`.
pub(super) fn decode_record(bytes: &[u8], (number, offset): (u64, u64)) -> Decoded<StoredRecord<'_>> {
    let (crc, checked) = bytes.split_first_chunk().ok_or(Malformed("a value is shorter than its checksum"))?;
    if get_u32(crc) != bound_crc(number, offset, checked) {
        return Err(Malformed("the checksum of a value does not match"));
    }
    let mut fields = Decoder::new(checked);
    let len = fields.varint()?;
    if len != fields.remaining() as u64 {
        return Err(Malformed("the record of a value has another length than it states"));
    }
    let (keyspace, key, compression) = (fields.varint_u32()?, fields.bytes()?, fields.u8()?);
    let stored_start = bytes.len() - fields.remaining();
    Ok(StoredRecord { keyspace, key, compression, stored: &bytes[stored_start..], stored_start })
}

/// The length of the record at the front of `bytes`, which need not hold all of it.
pub(super) fn record_len(bytes: &[u8]) -> Decoded<u64> {
    let mut fields = Decoder::new(bytes.get(4..).unwrap_or_default());
    let len = fields.varint()?;
    Ok(len.saturating_add((bytes.len() - fields.remaining()) as u64))
}

/// Longest front of a record that [`record_len`] needs: checksum and length.
pub(super) const RECORD_FRONT: usize = 4 + 10;

/// What the footer says of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValuesFooter {
    pub(super) count: u64,
    /// Length of the file.
    pub(super) size: u64,
    pub(super) keyspace: u32,
}

impl ValuesFooter {
    /// The footer of file `number`.
    pub(super) fn encode(&self, number: u64) -> [u8; FOOTER_LEN] {
        let mut out = [0; FOOTER_LEN];
        set_u64(&mut out, 0, self.count);
        set_u64(&mut out, 8, self.size);
        set_u32(&mut out, 16, self.keyspace);
        let crc = bound_crc(number, self.size - FOOTER_LEN as u64, &out[..20]);
        set_u32(&mut out, 20, crc);
        out[24..].copy_from_slice(Magic::Values.bytes());
        out
    }

    /// Decodes the last bytes of file `number`, which has `size` bytes.
    pub(super) fn decode(bytes: &[u8], number: u64, size: u64) -> Decoded<ValuesFooter> {
        let mut fields = Decoder::new(bytes);
        let footer = ValuesFooter { count: fields.u64()?, size: fields.u64()?, keyspace: fields.u32()? };
        if bytes.len() != FOOTER_LEN
            || bytes[24..] != Magic::Values.bytes()[..]
            || fields.u32()? != bound_crc(number, size.saturating_sub(FOOTER_LEN as u64), &bytes[..20])
        {
            return Err(Malformed("the footer of a value file does not verify"));
        }
        if footer.size != size {
            return Err(Malformed("a value file has another length than its footer states"));
        }
        Ok(footer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: (u64, u64) = (7, 64);

    fn encoded(value: &[u8], compression: Compression) -> Vec<u8> {
        let mut out = b"before".to_vec();
        put_record(&mut out, PLACE, 300, b"key", value, compression);
        out.split_off(6)
    }

    #[test]
    fn a_record_comes_back_where_it_was_written_alone() {
        for value in [&b""[..], b"v", &[7; 5000]] {
            let bytes = encoded(value, Compression::None);
            let record = decode_record(&bytes, PLACE).unwrap();
            assert_eq!((record.keyspace, record.key, record.compression), (300, &b"key"[..], 0));
            assert_eq!((record.stored, record.stored_start), (value, bytes.len() - value.len()));
            assert_eq!(record_len(&bytes[..bytes.len().min(RECORD_FRONT)]), Ok(bytes.len() as u64));
            assert!(decode_record(&bytes, (7, 65)).is_err() && decode_record(&bytes, (8, 64)).is_err());
        }
    }

    #[test]
    fn every_flipped_bit_of_a_record_and_of_a_footer_is_noticed() {
        let bytes = encoded(b"value", Compression::None);
        let footer = ValuesFooter { count: 3, size: 4096, keyspace: 9 };
        let stored = footer.encode(7);
        assert_eq!(ValuesFooter::decode(&stored, 7, 4096), Ok(footer));
        for bit in 0..8 * bytes.len() {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_record(&damaged, PLACE).is_err(), "bit {bit}");
        }
        for bit in 0..8 * FOOTER_LEN {
            let mut damaged = stored;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(ValuesFooter::decode(&damaged, 7, 4096).is_err(), "bit {bit}");
        }
        for (number, size) in [(8, 4096), (7, 4097), (7, 0)] {
            assert!(ValuesFooter::decode(&stored, number, size).is_err());
        }
    }

    #[cfg(feature = "lz4")]
    #[test]
    fn a_value_is_compressed_if_that_saves_something() {
        let bytes = encoded(&[7; 5000], Compression::Lz4);
        assert!(bytes.len() < 200);
        assert_eq!(decode_record(&bytes, PLACE).unwrap().compression, Compression::Lz4.code());
        assert_eq!(decode_record(&encoded(b"ab", Compression::Lz4), PLACE).unwrap().compression, 0);
    }
}
