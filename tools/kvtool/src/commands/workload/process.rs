//! The operating system's counters of this process's reads.

use std::fs::File;
use std::io::Read;

/// Reads of the process since its start, or between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Io {
    /// System calls that read.
    pub(crate) read_calls: u64,
    /// Bytes that these calls returned, including those from the system's cache.
    pub(crate) bytes_read: u64,
    /// Bytes from a device; the others were in the system's cache. Whole pages, with the system's
    /// read-ahead.
    pub(crate) device_bytes: u64,
}

/// The figures at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    io: Io,
    /// Length of the text read here. The counters do not yet include this read call and its bytes.
    text_len: u64,
}

impl Moment {
    /// `None` where the system does not have the figures.
    pub(crate) fn now() -> Option<Moment> {
        // A single read call, whatever the length of the text: about 150 bytes.
        let mut text = [0; 1024];
        let len = File::open("/proc/self/io").ok()?.read(&mut text).ok()?;
        Moment::parse(std::str::from_utf8(&text[..len]).ok()?)
    }

    fn parse(text: &str) -> Option<Moment> {
        let figure = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(found, _)| *found == name)?.1.parse().ok()
        };
        let io = Io { read_calls: figure("syscr")?, bytes_read: figure("rchar")?, device_bytes: figure("read_bytes")? };
        Some(Moment { io, text_len: text.len() as u64 })
    }

    /// Reads between this moment and `later`, without the read of this moment's counters.
    pub(crate) fn until(self, later: Moment) -> Io {
        let calls = later.io.read_calls.saturating_sub(self.io.read_calls);
        let bytes = later.io.bytes_read.saturating_sub(self.io.bytes_read);
        Io {
            read_calls: calls.saturating_sub(1),
            bytes_read: bytes.saturating_sub(self.text_len),
            device_bytes: later.io.device_bytes.saturating_sub(self.io.device_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_named_lines() {
        let text = "rchar: 4096\nwchar: 7\nsyscr: 3\nsyscw: 1\nread_bytes: 512\n";
        let moment = Moment::parse(text).unwrap();
        let io = Io { read_calls: 3, bytes_read: 4096, device_bytes: 512 };
        assert_eq!((moment.io, moment.text_len), (io, text.len() as u64));
        assert_eq!(Moment::parse("rchar: x\nsyscr: 3\n"), None);
    }
}
