//! Fixed-width and varint integers, length-prefixed bytes, and a checked [`Decoder`] over a slice.
//!
//! Fixed-width integers are little-endian on disk. No other module names a byte order, except
//! [`super::key`], whose heads are big-endian numbers so that they order like keys; a test sees to
//! it (`tests/it/layers.rs`).

use byteorder::{ByteOrder, LittleEndian};

use super::{Decoded, Malformed};

/// Longest encoding of a varint.
pub const MAX_VARINT_LEN: usize = 10;

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(low_byte(value) | 0x80);
        value >>= 7;
    }
    out.push(low_byte(value));
}

/// The lowest eight bits of `value`.
pub fn low_byte(value: u64) -> u8 {
    (value & 0xff) as u8
}

/// An integer from its bytes on disk.
#[inline]
pub fn get_u16(bytes: &[u8; 2]) -> u16 {
    LittleEndian::read_u16(bytes)
}

#[inline]
pub fn get_u32(bytes: &[u8; 4]) -> u32 {
    LittleEndian::read_u32(bytes)
}

#[inline]
pub fn get_u64(bytes: &[u8; 8]) -> u64 {
    LittleEndian::read_u64(bytes)
}

/// The bytes of `value` on disk.
#[inline]
pub fn u64_bytes(value: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    set_u64(&mut bytes, 0, value);
    bytes
}

/// Writes `value` over the bytes of `out` from `at` on, which must be there.
#[inline]
pub fn set_u16(out: &mut [u8], at: usize, value: u16) {
    LittleEndian::write_u16(&mut out[at..at + 2], value);
}

#[inline]
pub fn set_u32(out: &mut [u8], at: usize, value: u32) {
    LittleEndian::write_u32(&mut out[at..at + 4], value);
}

#[inline]
pub fn set_u64(out: &mut [u8], at: usize, value: u64) {
    LittleEndian::write_u64(&mut out[at..at + 8], value);
}

/// Appends `value`.
pub fn put_u16(out: &mut Vec<u8>, value: u16) {
    let mut bytes = [0; 2];
    LittleEndian::write_u16(&mut bytes, value);
    out.extend_from_slice(&bytes);
}

pub fn put_u32(out: &mut Vec<u8>, value: u32) {
    let mut bytes = [0; 4];
    LittleEndian::write_u32(&mut bytes, value);
    out.extend_from_slice(&bytes);
}

pub fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&u64_bytes(value));
}

/// Length of `value` as a varint.
pub fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends the length of `bytes` as a varint, then `bytes`.
#[inline]
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a `tag, length, content` field, the form of version edits and properties.
pub fn put_field(out: &mut Vec<u8>, tag: u64, content: &[u8]) {
    put_varint(out, tag);
    put_bytes(out, content);
}

/// Appends a field whose content is what `fill` appends.
pub fn put_field_with(out: &mut Vec<u8>, tag: u64, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut content = Vec::new();
    fill(&mut content);
    put_field(out, tag, &content);
}

/// Appends varints, one after the other.
pub fn put_varints<const N: usize>(out: &mut Vec<u8>, numbers: [u64; N]) {
    numbers.into_iter().for_each(|number| put_varint(out, number));
}

/// Appends a field whose content is one varint.
pub fn put_varint_field(out: &mut Vec<u8>, tag: u64, value: u64) {
    put_varint(out, tag);
    put_varint(out, varint_len(value) as u64);
    put_varint(out, value);
}

/// Appends a field whose content is eight bytes.
pub fn put_u64_field(out: &mut Vec<u8>, tag: u64, value: u64) {
    put_varint(out, tag);
    put_varint(out, 8);
    put_u64(out, value);
}

/// Takes values from the front of a slice. Methods fail, and never panic, when the slice is too
/// short.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub fn new(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Number of bytes left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    pub fn take(&mut self, len: usize) -> Decoded<&'a [u8]> {
        match self.rest.split_at_checked(len) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(Malformed("a field is cut short")),
        }
    }

    pub fn array<const N: usize>(&mut self) -> Decoded<&'a [u8; N]> {
        match self.rest.split_first_chunk::<N>() {
            Some((front, rest)) => {
                self.rest = rest;
                Ok(front)
            }
            None => Err(Malformed("a field is cut short")),
        }
    }

    pub fn u8(&mut self) -> Decoded<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Decoded<u16> {
        Ok(get_u16(self.array()?))
    }

    pub fn u32(&mut self) -> Decoded<u32> {
        Ok(get_u32(self.array()?))
    }

    pub fn u64(&mut self) -> Decoded<u64> {
        Ok(get_u64(self.array()?))
    }

    #[inline]
    pub fn varint(&mut self) -> Decoded<u64> {
        match *self.rest {
            [byte, ref rest @ ..] if byte < 0x80 => {
                self.rest = rest;
                Ok(byte.into())
            }
            _ => self.long_varint(),
        }
    }

    /// A varint of several bytes, decoded from one word if it fits: branches on the length of a
    /// sequence number are unpredictable.
    #[inline]
    fn long_varint(&mut self) -> Decoded<u64> {
        const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
        let Some(word) = self.rest.first_chunk().map(get_u64) else {
            return self.varint_by_loop();
        };
        // The lowest set bit is in the varint's last byte.
        let ends = !word & HIGH_BITS;
        if ends == 0 {
            return self.varint_by_loop();
        }
        let len = ends.trailing_zeros() as usize / 8 + 1;
        // All bits up to that one.
        let bytes = word & (ends ^ (ends - 1));
        if bytes < 1 << (8 * (len - 1)) {
            return self.varint_by_loop();
        }
        // The low seven bits of each byte, packed in pairs, fours, eights.
        let bits = bytes & !HIGH_BITS;
        let bits = (bits & 0x007f_007f_007f_007f) | ((bits & 0x7f00_7f00_7f00_7f00) >> 1);
        let bits = (bits & 0x0000_3fff_0000_3fff) | ((bits & 0x3fff_0000_3fff_0000) >> 2);
        let bits = (bits & 0x0000_0000_0fff_ffff) | ((bits & 0x0fff_ffff_0000_0000) >> 4);
        self.rest = &self.rest[len..];
        Ok(bits)
    }

    /// Any varint, byte by byte. The fast paths fall back to this, and only this reports what is
    /// wrong.
    #[cold]
    fn varint_by_loop(&mut self) -> Decoded<u64> {
        let mut value = 0u64;
        for (i, &byte) in self.rest.iter().enumerate().take(MAX_VARINT_LEN) {
            let bits = u64::from(byte & 0x7f);
            if i == MAX_VARINT_LEN - 1 && byte > 1 {
                return Err(Malformed("a varint exceeds 64 bits"));
            }
            value |= bits << (7 * i);
            if byte < 0x80 {
                if byte == 0 && i > 0 {
                    return Err(Malformed("a varint is longer than it needs to be"));
                }
                self.rest = &self.rest[i + 1..];
                return Ok(value);
            }
        }
        Err(Malformed("a varint is cut short"))
    }

    /// A varint that must fit 32 bits.
    pub fn varint_u32(&mut self) -> Decoded<u32> {
        u32::try_from(self.varint()?).map_err(|_| Malformed("a number exceeds 32 bits"))
    }

    /// Length-prefixed bytes.
    #[inline]
    pub fn bytes(&mut self) -> Decoded<&'a [u8]> {
        let len = self.varint()?;
        let len = usize::try_from(len).map_err(|_| Malformed("a length exceeds the address space"))?;
        self.take(len)
    }

    /// The next `tag, length, content` field, or `None` at the end.
    pub fn field(&mut self) -> Decoded<Option<(u64, Decoder<'a>)>> {
        if self.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        Ok(Some((tag, Decoder::new(self.bytes()?))))
    }

    /// Fails unless all bytes were taken.
    pub fn finish(self) -> Decoded<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("bytes follow the last field")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varint_round_trips_in_its_stated_length(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let mut out = Vec::new();
            put_varint(&mut out, value);
            prop_assert_eq!(out.len(), varint_len(value));
            let mut decoder = Decoder::new(&out);
            prop_assert_eq!(decoder.varint(), Ok(value));
            prop_assert!(decoder.finish().is_ok());
        }

        /// The fast paths accept and decode exactly what the loop does, whatever follows.
        #[test]
        fn varint_fast_paths_agree_with_the_loop(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0x80), Just(0)], 0..14)) {
            let (mut fast, mut slow) = (Decoder::new(&bytes), Decoder::new(&bytes));
            prop_assert_eq!(fast.varint(), slow.varint_by_loop());
            prop_assert_eq!(fast.remaining(), slow.remaining());
        }

        #[test]
        fn decoding_arbitrary_bytes_never_panics(bytes: Vec<u8>) {
            let mut decoder = Decoder::new(&bytes);
            while let Ok(Some((_, mut content))) = decoder.field() {
                let _ = (content.varint(), content.bytes());
            }
        }
    }

    #[test]
    fn varint_has_one_encoding() {
        assert!(Decoder::new(&[0x80, 0x00]).varint().is_err());
        assert!(Decoder::new(&[0xff; 10]).varint().is_err());
        assert!(Decoder::new(&[0xff, 0xff]).varint().is_err());
    }

    #[test]
    fn length_beyond_the_slice_fails() {
        assert!(Decoder::new(&[5, 1, 2]).bytes().is_err());
    }
}
