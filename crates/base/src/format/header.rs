//! The 64-byte header of every WAL, manifest and table.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic: `tamiswal`, `tamisman`, `tamissst` or `tamisval` |
//! | 8 | 4 | format version, 1 |
//! | 12 | 4 | required features: logs, see [`features`]; a reader that lacks one refuses the file |
//! | 16 | 8 | file number |
//! | 24 | 8 | logs: ordinal of the first record |
//! | 32 | 8 | logs: highest ordinal on stable storage when the file was created |
//! | 40 | 8 | WAL: number of the log before this one, 0 if there is none |
//! | 48 | 8 | WAL: length of the log before this one when it was sealed |
//! | 56 | 4 | zero |
//! | 60 | 4 | bound CRC of bytes 0..60 (offset 0) |
//!
//! Fields that a kind of file does not have are 0. An ordinal is a sequence number in a WAL, and
//! the count of edits in a manifest.
//!
//! Length, magic, version, number and checksum keep their position and rule in every version of the
//! format. Therefore the version is read only from a header that verifies: a flipped bit is
//! reported as damage, never as a newer version.

use std::path::Path;

use super::checksum::bound_crc;
use super::coding::{Decoder, set_u32, set_u64};
use crate::error::{Error, Result};

/// Length of the header. Part of the format.
pub const FILE_HEADER_LEN: usize = 64;
/// The only version so far. Part of the format.
pub const FORMAT_VERSION: u32 = 1;
/// Required-feature bits, in the header of a log or manifest and in the footer of a table. Part of
/// the format.
///
/// A file has the bits of what it uses, so that a version of tamis that lacks a feature reads all
/// files that do without it.
pub mod features {
    /// Range deletes.
    pub const RANGE_DELETE: u32 = 1;
    /// Operands of merges.
    pub const MERGE: u32 = 2;
    /// Puts with a deadline; in a manifest, what it says of them.
    pub const EXPIRY: u32 = 4;
    /// Counts of operations that the log does not store; in a manifest, keyspaces without a log.
    pub const UNLOGGED: u32 = 8;
    /// Values in value files.
    pub const VALUES: u32 = 16;
    /// Ingested tables: tables whose entries have no sequence numbers, manifests that state these
    /// numbers, logs with ingests.
    pub const INGEST: u32 = 32;
    /// Values with a deadline in value files.
    pub const EXPIRING_VALUES: u32 = 64;
    /// All bits that this version understands.
    pub const KNOWN: u32 = RANGE_DELETE | MERGE | EXPIRY | UNLOGGED | VALUES | INGEST | EXPIRING_VALUES;
}

/// Set in the number of a table that was written outside of a store: its *identity*, 63 random bits
/// beside this one. Numbers of a store's files are below 2^56. Part of the format.
pub const IDENTITY_BIT: u64 = 1 << 63;

/// The kind of a file that has a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Magic {
    Wal,
    Manifest,
    Table,
    Values,
}

impl Magic {
    pub const LEN: usize = 8;

    pub fn bytes(self) -> &'static [u8; Magic::LEN] {
        match self {
            Magic::Wal => b"tamiswal",
            Magic::Manifest => b"tamisman",
            Magic::Table => b"tamissst",
            Magic::Values => b"tamisval",
        }
    }
}

/// Decoded header. In a table, all but `number` is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FileHeader {
    /// Required [`features`]; 0 in tables, which have them in the footer.
    pub features: u32,
    pub number: u64,
    /// Ordinal of the first record.
    pub first: u64,
    /// Highest ordinal known to be on stable storage when the file was made.
    pub synced: u64,
    /// Number of the previous log, 0 if there is none.
    pub previous: u64,
    /// Length of the previous log when it was sealed.
    pub previous_len: u64,
}

impl FileHeader {
    pub fn encode(&self, magic: Magic) -> [u8; FILE_HEADER_LEN] {
        let mut out = [0; FILE_HEADER_LEN];
        out[..8].copy_from_slice(magic.bytes());
        set_u32(&mut out, 8, FORMAT_VERSION);
        set_u32(&mut out, 12, self.features);
        set_u64(&mut out, 16, self.number);
        set_u64(&mut out, 24, self.first);
        set_u64(&mut out, 32, self.synced);
        set_u64(&mut out, 40, self.previous);
        set_u64(&mut out, 48, self.previous_len);
        let crc = bound_crc(self.number, 0, &out[..60]);
        set_u32(&mut out, 60, crc);
        out
    }

    /// The file number in the header at the front of `bytes`; `None` unless magic and checksum
    /// match.
    pub fn sound_number(bytes: &[u8], magic: Magic) -> Option<u64> {
        let bytes = bytes.first_chunk::<FILE_HEADER_LEN>()?;
        let number = Decoder::new(&bytes[16..]).u64().ok()?;
        let crc = Decoder::new(&bytes[60..]).u32().ok()?;
        (bytes[..8] == magic.bytes()[..] && crc == bound_crc(number, 0, &bytes[..60])).then_some(number)
    }

    /// Decodes the first bytes of `file`, whose name has the number `number`.
    ///
    /// A header that verifies but has another version is `Error::Unsupported`.
    pub fn decode(bytes: &[u8], magic: Magic, number: u64, file: &Path) -> Result<FileHeader> {
        let corrupt = |rule: &str| Error::corruption(file, 0, rule);
        let Some(bytes) = bytes.first_chunk::<FILE_HEADER_LEN>() else {
            return Err(corrupt("the file is shorter than its header"));
        };
        if &bytes[..8] != magic.bytes() {
            return Err(corrupt("the file does not begin with its magic bytes"));
        }
        let mut fields = Decoder::new(&bytes[8..]);
        let mut decode = || {
            let version = fields.u32()?;
            let header = FileHeader {
                features: fields.u32()?,
                number: fields.u64()?,
                first: fields.u64()?,
                synced: fields.u64()?,
                previous: fields.u64()?,
                previous_len: fields.u64()?,
            };
            Ok((version, header, fields.u32()?, fields.u32()?))
        };
        let (version, header, reserved, crc) = decode().map_err(|e: super::Malformed| corrupt(e.0))?;
        let unsupported = |what, found: u32, known: u32| Error::Unsupported {
            file: file.to_owned(),
            what,
            found: found.into(),
            known: known.into(),
        };
        if crc != bound_crc(header.number, 0, &bytes[..60]) {
            return Err(corrupt("the checksum of the file header does not match"));
        }
        if version != FORMAT_VERSION {
            return Err(unsupported("format version", version, FORMAT_VERSION));
        }
        if header.features & !features::KNOWN != 0 {
            return Err(unsupported("required features", header.features, features::KNOWN));
        }
        if header.number != number {
            return Err(corrupt("the number in the file header is not the one in the file's name"));
        }
        if reserved != 0 {
            return Err(corrupt("the reserved bytes of the file header are not zero"));
        }
        Ok(header)
    }
}

/// `header` as a later version of the format would write it.
#[doc(hidden)]
pub fn of_version(mut header: [u8; FILE_HEADER_LEN], version: u32) -> [u8; FILE_HEADER_LEN] {
    set_u32(&mut header, 8, version);
    let number = Decoder::new(&header[16..]).u64().expect("eight bytes");
    let crc = bound_crc(number, 0, &header[..60]);
    set_u32(&mut header, 60, crc);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> FileHeader {
        FileHeader { features: features::MERGE, number: 8, first: 101, synced: 90, previous: 5, previous_len: 4096 }
    }

    #[test]
    fn header_round_trips() {
        let bytes = sample().encode(Magic::Wal);
        let decoded = FileHeader::decode(&bytes, Magic::Wal, 8, Path::new("000008.wal"));
        assert_eq!(decoded.expect("valid"), sample());
    }

    #[test]
    fn every_flipped_bit_is_damage() {
        let bytes = sample().encode(Magic::Wal);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let decoded = FileHeader::decode(&damaged, Magic::Wal, 8, Path::new("000008.wal"));
            assert!(matches!(decoded, Err(Error::Corruption { .. })), "bit {bit}");
        }
    }

    #[test]
    fn a_later_version_is_named_with_both_numbers() {
        let bytes = of_version(sample().encode(Magic::Wal), 2);
        let error = FileHeader::decode(&bytes, Magic::Wal, 8, Path::new("x")).expect_err("refused");
        assert!(matches!(error, Error::Unsupported { found: 2, known: 1, .. }), "{error}");
    }

    #[test]
    fn short_and_misnamed_files_are_corrupt() {
        let bytes = sample().encode(Magic::Wal);
        for (bytes, magic, number) in
            [(&bytes[..63], Magic::Wal, 8), (&bytes[..], Magic::Manifest, 8), (&bytes[..], Magic::Wal, 9)]
        {
            let decoded = FileHeader::decode(bytes, magic, number, Path::new("x"));
            assert!(matches!(decoded, Err(Error::Corruption { .. })));
        }
    }
}
