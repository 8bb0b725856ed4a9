//! What the operating system counted of this process's reads.

use std::fs::File;
use std::io::Read;

/// Reads of the process since it began, or between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Io {
    /// Calls that read.
    pub(crate) read_calls: u64,
    /// Bytes that they brought, also from the system's cache.
    pub(crate) bytes_read: u64,
    /// Bytes that came from a device; the others were in the system's cache. Whole pages, and what the system reads ahead.
    pub(crate) device_bytes: u64,
}

/// The figures at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    io: Io,
    /// Bytes that it took to read the figures. They are not in them, and neither is the call.
    text_len: u64,
}

impl Moment {
    /// `None` where the system does not have the figures.
    pub(crate) fn now() -> Option<Moment> {
        // One call and no more, however long the text is: about 150 bytes.
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

    /// What was read since, up to `later`, without what it took to read the figures of this moment.
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
