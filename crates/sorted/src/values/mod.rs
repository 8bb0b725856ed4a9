//! Value files: long values, apart from the tables whose entries point to them.
//!
//! ```text
//! file   = file header, record*, footer
//! record = crc: u32, length of the rest: varint, keyspace: varint, key length: varint, key,
//!          compression: u8, stored value
//! footer = number of records: u64, file length: u64, keyspace: u32, crc: u32, "tamisval"
//! ```
//!
//! The checksums are bound to file and offset. A record's covers all that follows it there; the
//! footer's covers the fields before it. The stored value is the value, or its compressed form as
//! in a data block. A record has its key so that a pointer to a wrong record is noticed, and so
//! that `repair` knows what the value belongs to.
//!
//! Flushes and compactions write a value file once ([`ValueWriter`]); nothing changes it
//! afterwards. Its records are in the order of their keys, in runs as long as a flush or a part of
//! a compaction. A table holds on to the files to which its entries point ([`ValueFile`]).
//!
//! A put whose value is long enough for `KeyspaceOptions::separate_values` is whole in log and
//! memtable. The flush writes the value to a value file and a pointer to the table; so does a
//! compaction that meets such a value in a table. From then on, compactions move the pointer alone.
//! An edit that removes the last table which points to a file removes the file, once no reader has
//! such a table. Which files are emptied before that: `tree::version::garbage`.
//!
//! No entry leaves a point read as a pointer. The read fetches the record, verifies it and compares
//! its key; a read that wants no value does not fetch it.

mod ahead;
mod file;
mod record;
mod scan;
mod writer;

pub use ahead::ValueAhead;
pub use file::{SeparateValue, ValueFile, ValueFiles};
pub use scan::ValueScan;
pub use writer::{ValueFileMeta, ValueWriter};

use crate::format::header::FILE_HEADER_LEN;

/// Length of the footer. Part of the format.
const FOOTER_LEN: usize = 32;

/// Bytes of a value file that are not in records.
const FIXED_LEN: u64 = (FILE_HEADER_LEN + FOOTER_LEN) as u64;

/// Corrects the checksums of a value file as far as its structures can be found, and its number.
#[cfg(any(fuzzing, test, feature = "testing"))]
pub fn seal(bytes: &mut [u8], number: u64) {
    use crate::format::checksum::bound_crc;
    use crate::format::coding::set_u32;
    use crate::format::header::{FileHeader, Magic};

    let Some(end) = bytes.len().checked_sub(FOOTER_LEN).filter(|&end| end >= FILE_HEADER_LEN) else { return };
    bytes[..FILE_HEADER_LEN].copy_from_slice(&FileHeader { number, ..FileHeader::default() }.encode(Magic::Values));
    let mut at = FILE_HEADER_LEN;
    while at < end {
        let len = record::record_len(&bytes[at..end]).ok().and_then(|len| usize::try_from(len).ok());
        let Some(next) = len.and_then(|len| at.checked_add(len)).filter(|next| *next <= end && *next > at + 4) else {
            break;
        };
        let crc = bound_crc(number, at as u64, &bytes[at + 4..next]);
        set_u32(bytes, at, crc);
        at = next;
    }
    let crc = bound_crc(number, end as u64, &bytes[end..end + 20]);
    set_u32(bytes, end + 20, crc);
}
