//! What can still be read of a log behind damage.
//!
//! The checksum of a record's header is bound to the number of the file and to the place, so a
//! record that verifies is one that was written there, whatever stands before it. Only its first
//! ordinal is not written in it: see [`salvage`](crate::write::log::salvage).

use super::{LogReader, Record};
use crate::error::Result;
use crate::format::checksum::crc;
use crate::format::header::FILE_HEADER_LEN;
use crate::format::key::MAX_SEQNO;
use crate::format::record::{MAX_RECORD_HEADER_LEN, RecordHeader};

/// Records that follow each other without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) end: u64,
    /// Ordinals of all records.
    pub(crate) count: u64,
    /// No ordinal of the run is less: a record states only what comes before it to be durable.
    pub(crate) least_first: u64,
    /// The highest ordinal that a record states to be durable.
    pub(crate) synced: u64,
}

impl LogReader {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// All runs of the log.
    pub(crate) fn runs(&mut self) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        let mut offset = FILE_HEADER_LEN as u64;
        while let Some((header, start, end)) = self.find_record(offset)? {
            let (count, least) = (u64::from(header.count), header.synced.saturating_add(1));
            match runs.last_mut().filter(|run| run.end == start) {
                Some(run) => {
                    run.least_first = run.least_first.max(least.saturating_sub(run.count));
                    run.synced = run.synced.max(header.synced);
                    run.end = end;
                    run.count = run.count.saturating_add(count);
                }
                None => runs.push(Run { offset: start, end, count, least_first: least, synced: header.synced }),
            }
            offset = end;
        }
        Ok(runs)
    }

    /// Hands the records of `run` to `apply`; the first of them begins with ordinal `first`.
    pub(crate) fn read_run(
        &mut self,
        run: &Run,
        first: u64,
        apply: &mut dyn FnMut(&Record<'_>) -> Result<()>,
    ) -> Result<()> {
        let (mut offset, mut first) = (run.offset, first);
        while offset < run.end
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

    /// Looks from `offset` on, where nothing was replayed, for a statement that ordinal `durable`
    /// was once durable.
    pub(crate) fn states_behind(mut self, offset: u64, durable: u64) -> Result<bool> {
        self.offset = offset;
        Ok(self.find_synced(durable)?.is_some())
    }

    /// The first record at or behind `offset`, whose header and payload verify, and where it begins
    /// and ends. The window has it.
    fn find_record(&mut self, mut offset: u64) -> Result<Option<(RecordHeader, u64, u64)>> {
        while offset < self.len {
            let whole = self.fill_header(offset)?;
            let bytes = self.window.from(offset);
            let places = if whole { bytes.len() - MAX_RECORD_HEADER_LEN + 1 } else { bytes.len() };
            let decode = |(at, i): (u64, usize)| Some((at, RecordHeader::decode(&bytes[i..], self.number, at)?));
            let found = (offset..).zip(0..places).find_map(decode);
            let Some((at, (header, header_len))) = found else {
                if places == 0 {
                    break;
                }
                offset += places as u64;
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
