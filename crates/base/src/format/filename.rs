//! Names of the files in a store's directory.

use std::path::{Path, PathBuf};

/// A file with a greater number in its name is not the store's. Part of the format.
const MAX_NUMBER_IN_NAME: u64 = (1 << 56) - 1;

/// The kind of a file in a store's directory, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// Names the manifest in force.
    Current,
    /// Left by an interrupted replacement of `CURRENT`.
    CurrentTemp,
    /// Locked while a process has the store open for writing.
    Lock,
    /// Present while a copy of a store is being put into the directory.
    Partial,
    /// The statistics page of a store that is open.
    Stats,
    /// A statistics page that is being written.
    StatsTemp,
    /// A log of version edits, with its number.
    Manifest(u64),
    /// A write-ahead log, with its number.
    Wal(u64),
    /// An SSTable, with its number.
    Table(u64),
    /// A value file, with its number.
    Values(u64),
}

impl FileKind {
    /// The kind of the file called `name`, or `None` if it is not one of a store's files.
    pub fn parse(name: &str) -> Option<FileKind> {
        let kind = match name {
            "CURRENT" => FileKind::Current,
            "CURRENT.tmp" => FileKind::CurrentTemp,
            "LOCK" => FileKind::Lock,
            "PARTIAL" => FileKind::Partial,
            "stats.prom" => FileKind::Stats,
            "stats.prom.tmp" => FileKind::StatsTemp,
            _ => {
                if let Some(digits) = name.strip_prefix("MANIFEST-") {
                    FileKind::Manifest(parse_number(digits)?)
                } else if let Some(digits) = name.strip_suffix(".wal") {
                    FileKind::Wal(parse_number(digits)?)
                } else if let Some(digits) = name.strip_suffix(".val") {
                    FileKind::Values(parse_number(digits)?)
                } else {
                    FileKind::Table(parse_number(name.strip_suffix(".sst")?)?)
                }
            }
        };
        Some(kind)
    }

    /// The number in the file's name.
    pub fn number(self) -> Option<u64> {
        match self {
            FileKind::Manifest(n) | FileKind::Wal(n) | FileKind::Table(n) | FileKind::Values(n) => Some(n),
            FileKind::Current
            | FileKind::CurrentTemp
            | FileKind::Lock
            | FileKind::Partial
            | FileKind::Stats
            | FileKind::StatsTemp => None,
        }
    }

    /// The file's name.
    pub fn name(self) -> String {
        match self {
            FileKind::Current => "CURRENT".into(),
            FileKind::CurrentTemp => "CURRENT.tmp".into(),
            FileKind::Lock => "LOCK".into(),
            FileKind::Partial => "PARTIAL".into(),
            FileKind::Stats => "stats.prom".into(),
            FileKind::StatsTemp => "stats.prom.tmp".into(),
            FileKind::Manifest(n) => format!("MANIFEST-{n:06}"),
            FileKind::Wal(n) => format!("{n:06}.wal"),
            FileKind::Table(n) => format!("{n:06}.sst"),
            FileKind::Values(n) => format!("{n:06}.val"),
        }
    }

    /// The file's path in directory `dir`.
    pub fn path(self, dir: &Path) -> PathBuf {
        dir.join(self.name())
    }
}

fn parse_number(digits: &str) -> Option<u64> {
    let canonical = digits.len() == 6 || (digits.len() > 6 && !digits.starts_with('0'));
    let number = if canonical && digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None };
    number.filter(|number| *number <= MAX_NUMBER_IN_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for kind in [
            FileKind::Current,
            FileKind::CurrentTemp,
            FileKind::Lock,
            FileKind::Partial,
            FileKind::Stats,
            FileKind::StatsTemp,
            FileKind::Manifest(3),
            FileKind::Wal(8),
            FileKind::Table(1_234_567),
            FileKind::Values(21),
        ] {
            assert_eq!(FileKind::parse(&kind.name()), Some(kind));
        }
    }

    #[test]
    fn foreign_names_are_not_ours() {
        for name in
            ["", "7.sst", "0000007.sst", "000007.ldb", "MANIFEST-", "+00007.wal", "LOCK2", "72057594037927936.sst"]
        {
            assert_eq!(FileKind::parse(name), None, "{name}");
        }
    }
}
