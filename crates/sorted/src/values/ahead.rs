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
use std::sync::Arc;

use super::file::{SHORT, ValueFile, ValueFiles};
use crate::error::Result;
use crate::format::pointer::ValuePointer;
use crate::memory::budget::{MemoryBudget, MemoryCharge, MemoryUse};

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

/// See the module. The default has read nothing. A window for which the memory budget has no room
/// is not read ahead.
#[derive(Default)]
pub struct ValueAhead {
    /// The one used last is at the end.
    streams: Vec<Stream>,
    /// For the buffers of all streams.
    charge: Option<MemoryCharge>,
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
    pub fn read_into(
        &self,
        key: &[u8],
        pointer: &[u8],
        ahead: &mut ValueAhead,
        skip: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let (file, pointer) = self.pointed(pointer)?;
        let alone;
        let bytes = match ahead.record(&file, &pointer, self.budget()) {
            Some(bytes) => bytes,
            None => {
                alone = ahead.read_alone(&file, &pointer)?;
                &alone
            }
        };
        let (start, unpacked) = file.value_in(bytes, key, pointer)?;
        out.extend_from_slice(unpacked.as_deref().unwrap_or(&bytes[start..]).get(skip..).unwrap_or_default());
        Ok(())
    }
}

impl ValueAhead {
    /// Forgets what was read, and frees it.
    pub fn clear(&mut self) {
        if !self.streams.is_empty() {
            *self = ValueAhead::default();
        }
    }

    /// The record to which a pointer leads, unverified, or `None` if the caller should read it
    /// alone.
    fn record(&mut self, file: &ValueFile, pointer: &ValuePointer, budget: &Arc<MemoryBudget>) -> Option<&[u8]> {
        let known = self.streams.iter().position(|stream| stream.file == pointer.file);
        let mut stream = match known {
            Some(at) => self.streams.remove(at),
            None if self.streams.len() < MOST_STREAMS => Stream::default(),
            None => Stream { buffer: self.streams.remove(0).buffer, ..Stream::default() },
        };
        let record = record_of(pointer);
        stream.step_to(pointer.file, &record);
        let charge = self.charge.get_or_insert_with(|| MemoryCharge::new(budget, MemoryUse::Scans, 0));
        stream.read(file, &record, |more| charge.try_resize(charge.bytes() + more));
        self.streams.push(stream);
        self.streams.last()?.part(&record)
    }

    /// Reads the record to which the stream used last has come. A scan that has waited for the
    /// device in that file prefetches what comes next.
    fn read_alone(&mut self, file: &ValueFile, pointer: &ValuePointer) -> Result<Vec<u8>> {
        let (offset, len) = (pointer.offset, pointer.record_len.into());
        match self.streams.last_mut().filter(|stream| stream.run >= PATIENCE) {
            Some(stream) => {
                let next = stream.after(&record_of(pointer), file.len()?);
                file.bytes_ahead(offset, len, &mut stream.prefetch(file, next))
            }
            None => file.bytes(offset, len),
        }
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

    /// The bytes that the scan reaches after `part`, in a file of `size` bytes.
    fn after(&self, part: &Range<u64>, size: u64) -> Range<u64> {
        match self.forward {
            true => part.end.min(size)..part.end.saturating_add(MOST).min(size),
            false => part.start.saturating_sub(MOST)..part.start,
        }
    }

    /// Prefetches `next` if the scan has waited for the device; otherwise when it does, by the
    /// function returned.
    fn prefetch(&mut self, file: &ValueFile, next: Range<u64>) -> impl FnMut() {
        if self.has_waited {
            file.file().will_need(next.clone());
        }
        let has_waited = &mut self.has_waited;
        move || {
            if !std::mem::replace(has_waited, true) {
                file.file().will_need(next.clone());
            }
        }
    }

    /// The next window: it begins with `record`, or ends with it if the scan goes backward. `None`
    /// if it has no room for two such records. In a file of `size` bytes.
    fn next_window(&mut self, record: &Range<u64>, size: u64) -> Option<Range<u64>> {
        let record_len = record.end - record.start;
        if !(1..=MOST / 2).contains(&record_len) {
            return None;
        }
        // Whole records, if they are of one length: a part of one would be read twice.
        let len = self.window.max(2 * record_len) / record_len * record_len;
        self.window = (2 * self.window).min(MOST);
        let window = match self.forward {
            true => record.start..record.start.saturating_add(len).min(size),
            false => record.end.saturating_sub(len)..record.end,
        };
        (record.end <= window.end).then_some(window)
    }

    /// Reads the next window if the scan is long enough. What fails may lie beyond the record: the
    /// caller then reads that alone.
    /// `take` charges what the buffer grows by, if there is room.
    fn read(&mut self, file: &ValueFile, record: &Range<u64>, take: impl FnOnce(usize) -> bool) {
        if self.run < PATIENCE || self.part(record).is_some() {
            return;
        }
        self.len = 0;
        let Ok(size) = file.len() else { return };
        let Some(window) = self.next_window(record, size) else { return };
        let Some(len) = to_len(&window) else { return };
        if !take(len.saturating_sub(self.buffer.len())) {
            return;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let next = self.after(&window, size);
        let mut before_wait = self.prefetch(file, next);
        let filled = file.file().fill(&mut buffer[..len], window.start, Some(&mut before_wait), SHORT);
        drop(before_wait);
        if filled.is_ok() {
            (self.start, self.len) = (window.start, len);
        }
        self.buffer = buffer;
    }
}

fn record_of(pointer: &ValuePointer) -> Range<u64> {
    pointer.offset..pointer.offset.saturating_add(pointer.record_len.into())
}

fn to_len(part: &Range<u64>) -> Option<usize> {
    usize::try_from(part.end.saturating_sub(part.start)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_whole_records_and_none_of_which_they_hold_one() {
        for (len, has_windows) in [
            (100, true),
            (5_000, true),
            (40_000, true),
            (86_000, true),
            (MOST / 2, true),
            (MOST / 2 + 1, false),
            (200_000, false),
            (300_000, false),
        ] {
            let (count, size) = (2_000, 64 + 2_000 * len);
            for forward in [true, false] {
                let (mut stream, mut read, mut windows, mut held) = (Stream::default(), 0, 0, 0..0);
                for i in 0..count {
                    let start = 64 + len * if forward { i } else { count - 1 - i };
                    let record = start..start + len;
                    stream.step_to(7, &record);
                    let next = stream.after(&record, size);
                    assert!(next.is_empty() || if forward { next.start == record.end } else { next.end == start });
                    let is_held = held.start <= start && record.end <= held.end;
                    if stream.run >= PATIENCE
                        && !is_held
                        && let Some(window) = stream.next_window(&record, size)
                    {
                        assert!(window.end - window.start >= len);
                        (read, windows, held) = (read + window.end - window.start, windows + 1, window);
                    }
                }
                assert_eq!(windows > 0, has_windows, "{len}");
                assert!(read <= (count - u64::from(PATIENCE)) * len + 64, "{len}: {read}");
                assert!(!has_windows || windows <= count / 2, "{len}: {windows}");
            }
        }
    }

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
