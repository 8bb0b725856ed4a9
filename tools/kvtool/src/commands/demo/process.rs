//! What the operating system counted of this process's reads.

/// Reads of the process since it began, or between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Io {
    /// Calls that read.
    pub(super) read_calls: u64,
    /// Bytes that they brought, also from the system's cache.
    pub(super) bytes_read: u64,
}

impl Io {
    /// The figures now; `None` where the system does not have them.
    pub(super) fn now() -> Option<Io> {
        Io::parse(&std::fs::read_to_string("/proc/self/io").ok()?)
    }

    fn parse(text: &str) -> Option<Io> {
        let figure = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(found, _)| *found == name)?.1.parse().ok()
        };
        Some(Io { read_calls: figure("syscr")?, bytes_read: figure("rchar")? })
    }

    /// What was read from `before` to `after`, without what it takes to ask for the figures once.
    pub(super) fn between(before: Io, after: Io) -> Option<Io> {
        let (first, second) = (Io::now()?, Io::now()?);
        let asking = second.minus(first);
        Some(after.minus(before).minus(asking))
    }

    fn minus(self, other: Io) -> Io {
        Io {
            read_calls: self.read_calls.saturating_sub(other.read_calls),
            bytes_read: self.bytes_read.saturating_sub(other.bytes_read),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_named_lines() {
        let text = "rchar: 4096\nwchar: 7\nsyscr: 3\nsyscw: 1\nread_bytes: 0\n";
        assert_eq!(Io::parse(text), Some(Io { read_calls: 3, bytes_read: 4096 }));
        assert_eq!(Io::parse("rchar: x\nsyscr: 3\n"), None);
    }
}
