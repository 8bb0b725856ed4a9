//! Reads the records of a log past damage.
//!
//! The checksum of a record's header covers the file's number and the record's offset. A record
//! that verifies was therefore written there, whatever precedes it. Only its first ordinal is not
//! in the header: see [`salvage`](crate::salvage).

use super::{LogReader, Record};
use tamis_base::error::Result;
use tamis_base::format::checksum::crc;
use tamis_base::format::header::FILE_HEADER_LEN;
use tamis_base::format::key::MAX_SEQNO;
use tamis_base::format::record::{MAX_RECORD_HEADER_LEN, RecordHeader};

/// Records that follow each other without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSpan {
    pub offset: u64,
    pub end: u64,
    /// Number of ordinals of all records.
    pub count: u64,
    /// A lower bound of the first ordinal: a record states only earlier ordinals to be durable.
    pub least_first: u64,
    /// The highest ordinal that a record states to be durable.
    pub synced: u64,
}

impl LogReader {
    pub fn len(&self) -> u64 {
        self.len
    }

    /// All spans of the log.
    pub fn spans(&mut self) -> Result<Vec<RecordSpan>> {
        let mut spans: Vec<RecordSpan> = Vec::new();
        let mut offset = FILE_HEADER_LEN as u64;
        while let Some((header, start, end)) = self.find_record(offset)? {
            let (count, least) = (u64::from(header.count), header.synced.saturating_add(1));
            match spans.last_mut().filter(|span| span.end == start) {
                Some(span) => {
                    span.least_first = span.least_first.max(least.saturating_sub(span.count));
                    span.synced = span.synced.max(header.synced);
                    span.end = end;
                    span.count = span.count.saturating_add(count);
                }
                None => spans.push(RecordSpan { offset: start, end, count, least_first: least, synced: header.synced }),
            }
            offset = end;
        }
        Ok(spans)
    }

    /// Passes the records of `span` to `apply`. The first of them begins with ordinal `first`.
    pub fn read_span(
        &mut self,
        span: &RecordSpan,
        first: u64,
        apply: &mut dyn FnMut(&Record<'_>) -> Result<()>,
    ) -> Result<()> {
        let (mut offset, mut first) = (span.offset, first);
        while offset < span.end
            && let Some((header, start, end)) = self.find_record(offset)?
        {
            let payload_len = header.payload_len as usize;
            let skip = usize::try_from(end - start).unwrap_or(usize::MAX) - payload_len;
            let (path, number) = (&self.path, self.number);
            let payload = self.window.part(start, skip, payload_len);
            let (count, synced) = (header.count, header.synced);
            apply(&Record { file: path, number, offset: start, first, count, synced, payload })?;
            first += u64::from(count);
            offset = end;
        }
        Ok(())
    }

    /// Searches the rest of the file from `offset` on, which was not replayed, for a statement that
    /// ordinal `durable` was once durable.
    pub fn states_durable_after(mut self, offset: u64, durable: u64) -> Result<bool> {
        self.offset = offset;
        Ok(self.find_synced(durable)?.is_some())
    }

    /// The first record at or after `offset` whose header and payload verify, with its start and
    /// end. It is in the window.
    fn find_record(&mut self, mut offset: u64) -> Result<Option<(RecordHeader, u64, u64)>> {
        while offset < self.len {
            let whole = self.fill_header(offset)?;
            let bytes = self.window.from(offset);
            let offsets = if whole { bytes.len() - MAX_RECORD_HEADER_LEN + 1 } else { bytes.len() };
            let decode = |(at, i): (u64, usize)| Some((at, RecordHeader::decode(&bytes[i..], self.number, at)?));
            let found = (offset..).zip(0..offsets).find_map(decode);
            let Some((at, (header, header_len))) = found else {
                if offsets == 0 {
                    break;
                }
                offset += offsets as u64;
                continue;
            };
            let payload_len = header.payload_len as usize;
            let is_marker = header.count == 0;
            if !(is_marker && payload_len > 0)
                && header.synced <= MAX_SEQNO
                && self.fill(at, header_len + payload_len)?
                && crc(self.window.part(at, header_len, payload_len)) == header.payload_crc
            {
                return Ok(Some((header, at, at + (header_len + payload_len) as u64)));
            }
            offset = at + 1;
        }
        Ok(None)
    }
}
