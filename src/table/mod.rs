//! SSTables: sorted entries in a file, with their filter and their index.

use crate::format::key::SeqNo;

/// What the manifest knows of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableMeta {
    pub(crate) number: u64,
    /// Bytes of the file.
    pub(crate) size: u64,
    /// CRC-32 of the whole file.
    pub(crate) checksum: u32,
    pub(crate) entries: u64,
    pub(crate) tombstones: u64,
    pub(crate) smallest_seqno: SeqNo,
    pub(crate) largest_seqno: SeqNo,
    /// Smallest and largest user key in the table.
    pub(crate) smallest: Box<[u8]>,
    pub(crate) largest: Box<[u8]>,
}
