//! Reads a value file: its records, in order.

use std::sync::Arc;

use crate::error::Result;
use crate::sorted::table::TableContext;
use crate::sorted::values::ValueScan;

/// The records of a value file, in order, all of which are checked. After the last one, or an
/// error, it ends.
pub struct ValueRecords {
    /// `None` after the end.
    scan: Option<ValueScan>,
}

/// One record of a value file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ValueRecord {
    /// Its offset in the file.
    pub offset: u64,
    /// Bytes of the record.
    pub len: u64,
    /// Id of the keyspace.
    pub keyspace: u32,
    /// The key whose value it was when it was written.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

impl ValueRecords {
    pub(super) fn open(context: &Arc<TableContext>, number: u64) -> Result<ValueRecords> {
        Ok(ValueRecords { scan: Some(ValueScan::new(context.values(), number)?) })
    }

    fn step(&mut self) -> Result<Option<ValueRecord>> {
        let Some(mut scan) = self.scan.take() else { return Ok(None) };
        let Some(found) = scan.next_record()? else { return scan.finish().map(|_| None) };
        self.scan = Some(scan);
        let (offset, len, keyspace) = (found.offset, found.len, found.keyspace);
        Ok(Some(ValueRecord { offset, len, keyspace, key: found.key, value: found.value }))
    }
}

impl Iterator for ValueRecords {
    type Item = Result<ValueRecord>;

    fn next(&mut self) -> Option<Result<ValueRecord>> {
        self.step().transpose()
    }
}
