//! [`ValueAhead`]: what a scan has read of value files beyond the current value.
//!
//! Workload: a scan with values over a keyspace whose values are in value files. Their records are
//! in the order of their keys, file by file; therefore a scan steps through a few files at once,
//! mostly without gaps. A scan that has read some records of a file in a row reads a window of it
//! with one system call, and copies each value once. After its first wait for the device, it also
//! prefetches the next window.
//!
//! Measured with `benches/values.rs` in turn, all in the system's cache, two cores that other
//! programs kept busy: values of 16 KiB 1,269 MB/s instead of 909, of 4 KiB 970 instead of 418
//! (medians of three). To remove it, let `ValueFiles::read_into` read each record alone.

use std::ops::Range;

use super::file::{ValueFile, ValueFiles};
use crate::error::Result;
use crate::format::pointer::ValuePointer;

/// Files in which a scan reads ahead at a time. A scan that meets more of them begins anew in the
/// one that it has not met for the longest time.
const MOST_STREAMS: usize = 8;
/// Records in a row, in either direction, after which a scan reads ahead.
const PATIENCE: u32 = 2;
/// A record continues a row if at most as many bytes as this many of its length lie between it and
/// the last one: values that have been replaced since.
const MOST_GAP: u64 = 4;
/// The first window, and the longest one.
const LEAST: u64 = 64 << 10;
const MOST: u64 = 256 << 10;

/// See the module. The default has read nothing.
#[derive(Default)]
pub(crate) struct ValueAhead {
    /// The one used last is at the end.
    streams: Vec<Stream>,
}

/// The scan's way through one file.
#[derive(Default)]
struct Stream {
    file: u64,
    /// The last record.
    last: Range<u64>,
    forward: bool,
    /// Records in a row before the current one.
    run: u32,
    /// Bytes of the next window.
    window: u64,
    /// Offset of the buffer in the file, and its valid bytes.
    start: u64,
    len: usize,
    buffer: Vec<u8>,
    /// Whether the scan has waited for the device.
    has_waited: bool,
}

impl ValueFiles {
    /// [`read`](ValueFiles::read) for a scan: appends the value without its first `skip` bytes to
    /// `out`.
    pub(crate) fn read_into(
        &self,
        key: &[u8],
        pointer: &[u8],
        ahead: &mut ValueAhead,
        skip: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let (file, pointer) = self.pointed(pointer)?;
        let alone;
        let bytes = match ahead.record(&file, &pointer) {
            Some(bytes) => bytes,
            None => {
                alone = file.bytes(pointer.offset, pointer.record_len.into())?;
                &alone
            }
        };
        let (start, unpacked) = file.value_in(bytes, key, pointer)?;
        out.extend_from_slice(unpacked.as_deref().unwrap_or(&bytes[start..]).get(skip..).unwrap_or_default());
        Ok(())
    }
}

impl ValueAhead {
    /// The record to which a pointer leads, unverified, or `None` if the caller should read it
    /// alone.
    fn record(&mut self, file: &ValueFile, pointer: &ValuePointer) -> Option<&[u8]> {
        let known = self.streams.iter().position(|stream| stream.file == pointer.file);
        let mut stream = match known {
            Some(at) => self.streams.remove(at),
            None if self.streams.len() < MOST_STREAMS => Stream::default(),
            None => Stream { buffer: self.streams.remove(0).buffer, ..Stream::default() },
        };
        let record = pointer.offset..pointer.offset.saturating_add(pointer.record_len.into());
        stream.step_to(pointer.file, &record);
        stream.read(file, &record);
        self.streams.push(stream);
        self.streams.last()?.part(&record)
    }
}

impl Stream {
    /// Notes that the scan has reached `record`.
    fn step_to(&mut self, file: u64, record: &Range<u64>) {
        let (after, before) = (record.start.checked_sub(self.last.end), self.last.start.checked_sub(record.end));
        let most = MOST_GAP * (record.end - record.start);
        let is_near = |gap: Option<u64>| gap.is_some_and(|gap| gap <= most);
        let is_next = self.file == file && (is_near(after) || is_near(before));
        let forward = is_near(after);
        if is_next && forward == self.forward {
            self.run = self.run.saturating_add(1);
        } else {
            (self.run, self.forward, self.window) = (u32::from(is_next), forward, LEAST);
        }
        if self.file != file {
            (self.file, self.len, self.has_waited) = (file, 0, false);
        }
        self.last = record.clone();
    }

    /// The bytes of a record, if the buffer has them.
    fn part(&self, record: &Range<u64>) -> Option<&[u8]> {
        let start = usize::try_from(record.start.checked_sub(self.start)?).ok()?;
        let end = usize::try_from(record.end.checked_sub(self.start)?).ok()?;
        self.buffer.get(..self.len)?.get(start..end)
    }

    /// Reads a window that begins with `record`, or ends with it if the scan goes backward, if the
    /// scan is long enough and the record is short enough. What fails, may lie beyond the record:
    /// the caller then reads that alone.
    fn read(&mut self, file: &ValueFile, record: &Range<u64>) {
        if self.run < PATIENCE || self.part(record).is_some() {
            return;
        }
        let Ok(size) = file.len() else { return };
        let window = match self.forward {
            true => record.start..record.start.saturating_add(self.window).min(size),
            false => record.end.saturating_sub(self.window)..record.end,
        };
        let next = match self.forward {
            true => window.end..window.end.saturating_add(MOST).min(size),
            false => window.start.saturating_sub(MOST)..window.start,
        };
        self.window = (2 * self.window).min(MOST);
        self.len = 0;
        let (true, Some(len)) = (window.start <= record.start && record.end <= window.end, to_len(&window)) else {
            // Longer than a window.
            file.will_need(next);
            return;
        };
        if self.buffer.len() < len {
            self.buffer.resize(len, 0);
        }
        if self.has_waited {
            file.will_need(next.clone());
        }
        let has_waited = &mut self.has_waited;
        let before_wait = || {
            if !std::mem::replace(has_waited, true) {
                file.will_need(next);
            }
        };
        if file.fill(&mut self.buffer[..len], window.start, before_wait).is_ok() {
            (self.start, self.len) = (window.start, len);
        }
    }
}

fn to_len(part: &Range<u64>) -> Option<usize> {
    usize::try_from(part.end.saturating_sub(part.start)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_in_a_row_make_a_long_scan_in_either_direction() {
        let run_after = |offsets: &[u64]| {
            let mut stream = Stream::default();
            offsets.iter().for_each(|&offset| stream.step_to(7, &(offset..offset + 100)));
            stream.run
        };
        assert_eq!(run_after(&[64, 164, 264]), 2);
        assert_eq!(run_after(&[564, 464, 364]), 2);
        assert_eq!(run_after(&[64, 564, 1064]), 2, "replaced values between them");
        assert_eq!(run_after(&[64, 565]), 0);
        assert_eq!(run_after(&[64, 164, 264, 164]), 1, "turned round");
        let mut stream = Stream::default();
        [64, 164, 264].iter().for_each(|&offset| stream.step_to(7, &(offset..offset + 100)));
        stream.step_to(8, &(364..464));
        assert_eq!((stream.run, stream.file), (0, 8), "another file");
    }
}
