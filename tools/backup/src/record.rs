//! [`Record`]: what a repository says of one backup, or of one prune.
//!
//! ```text
//! tamis generation 1                         tamis prune 1
//! token 5be0cd19137e2179                     token 1f83d9abfb41bd6b
//! oldest 3                                   oldest 5
//! created 1764035797123                      remove data/9c41..-000007.sst-4096-89abcdef-2
//! seqno 1234                                 hash 02cc..
//! flushed 1200
//! timeline 0
//! file 000012.sst 4096 1f0e..89abcdef data/9c41..-000012.sst-4096-89abcdef-4
//! hash 5d41..
//! ```
//!
//! The token is random: by it a writer knows its own record. Records before `oldest` count no more.
//! Times are milliseconds since 1970. A file has its name in the store, its length, its hash and
//! its name in the repository. A hash is XXH3 (64 bits, seed 0); the last line has that of the
//! lines before it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use tamis::SeqNo;
use tamis::inspect::FileKind;
use xxhash_rust::xxh3::xxh3_64;

use crate::DATA;

/// First line of a generation in this version of the format.
const GENERATION: &str = "tamis generation 1";
/// First line of a prune.
const PRUNE: &str = "tamis prune 1";

/// A record of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Generation(Generation),
    Prune(Prune),
}

/// Which generations and files a repository has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prune {
    pub(crate) token: u64,
    /// The oldest generation that stays.
    pub(crate) oldest: u64,
    /// Names of files that whoever prunes may remove at any time from now on.
    pub(crate) removed: BTreeSet<String>,
}

/// One backup in a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generation {
    /// Its number in the repository, from 1.
    pub number: u64,
    /// When the store was as it is in this generation, to the millisecond.
    pub created: SystemTime,
    /// The sequence number of the last write in it.
    pub seqno: SeqNo,
    /// Of keyspaces without a log it has the writes up to this sequence number.
    pub flushed_seqno: SeqNo,
    /// The files of the store.
    pub files: Vec<StoredFile>,
    /// By which its writer knows it.
    pub(crate) token: u64,
    /// Records before this one count no more.
    pub(crate) oldest: u64,
    /// The timeline with the writes that follow, if not 0.
    pub(crate) timeline: u64,
}

/// A file of a store in a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredFile {
    /// Its kind and number in the store.
    pub kind: FileKind,
    /// Its length in bytes.
    pub size: u64,
    /// XXH3 (64 bits, seed 0) of its content.
    pub hash: u64,
    /// Its name in the repository.
    pub(crate) name: String,
}

impl Generation {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    fn encode(&self) -> String {
        let Generation { token, oldest, seqno, flushed_seqno, timeline, .. } = self;
        let created = millis(self.created);
        let mut text = format!(
            "{GENERATION}\ntoken {token:016x}\noldest {oldest}\ncreated {created}\nseqno {seqno}\n\
             flushed {flushed_seqno}\ntimeline {timeline:016x}\n"
        );
        for StoredFile { kind, size, hash, name } in &self.files {
            // Writing to a string does not fail.
            let _ = writeln!(text, "file {} {size} {hash:016x} {name}", kind.name());
        }
        text
    }
}

impl Record {
    pub(crate) fn oldest(&self) -> u64 {
        match self {
            Record::Generation(generation) => generation.oldest,
            Record::Prune(prune) => prune.oldest,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = match self {
            Record::Generation(generation) => generation.encode(),
            Record::Prune(Prune { token, oldest, removed }) => {
                let mut text = format!("{PRUNE}\ntoken {token:016x}\noldest {oldest}\n");
                removed.iter().for_each(|name| _ = writeln!(text, "remove {name}"));
                text
            }
        };
        let hash = xxh3_64(text.as_bytes());
        let _ = writeln!(text, "hash {hash:016x}");
        text.into_bytes()
    }

    /// Decodes record `number`; the error is the rule that does not hold.
    pub(crate) fn decode(number: u64, text: &[u8]) -> Result<Record, &'static str> {
        let text = std::str::from_utf8(text).map_err(|_| "the record is not text")?;
        let last = text.split_inclusive('\n').next_back().unwrap_or_default();
        let lines = &text[..text.len() - last.len()];
        if last != format!("hash {:016x}\n", xxh3_64(lines.as_bytes())) {
            return Err("the hash of the record does not match");
        }
        let mut lines = lines.lines();
        let first = lines.next();
        let mut number_of = |key: &str, radix| {
            let line = lines.next().and_then(|line| line.strip_prefix(key)?.strip_prefix(' '));
            line.and_then(|text| u64::from_str_radix(text, radix).ok()).ok_or("a number of the record is missing")
        };
        match first {
            Some(GENERATION) => {
                let (token, oldest) = (number_of("token", 16)?, number_of("oldest", 10)?);
                let created = Duration::from_millis(number_of("created", 10)?);
                let created = SystemTime::UNIX_EPOCH.checked_add(created).ok_or("the record's time is out of range")?;
                let (seqno, flushed_seqno) = (number_of("seqno", 10)?, number_of("flushed", 10)?);
                let timeline = number_of("timeline", 16)?;
                let files = lines.map(|line| file(line).ok_or("a line of the record is not a file"));
                let files = files.collect::<Result<_, _>>()?;
                let generation = Generation { number, created, seqno, flushed_seqno, files, token, oldest, timeline };
                Ok(Record::Generation(generation))
            }
            Some(PRUNE) => {
                let (token, oldest) = (number_of("token", 16)?, number_of("oldest", 10)?);
                let removed = lines.map(|line| line.strip_prefix("remove ").filter(|name| is_name(name)));
                let removed = removed.map(|name| name.map(str::to_owned).ok_or("a line of the record is not a name"));
                Ok(Record::Prune(Prune { token, oldest, removed: removed.collect::<Result<_, _>>()? }))
            }
            _ => Err("the record is of an unknown version"),
        }
    }
}

/// Milliseconds since 1970.
pub(crate) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    u64::try_from(since).unwrap_or(u64::MAX)
}

/// Whether this names a file in the data folder, whatever wrote it.
fn is_name(name: &str) -> bool {
    let Some(name) = name.strip_prefix(DATA).and_then(|name| name.strip_prefix('/')) else { return false };
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
    is_plain && !name.is_empty() && !name.starts_with('.')
}

fn file(line: &str) -> Option<StoredFile> {
    let mut words = line.strip_prefix("file ")?.split(' ');
    let file = StoredFile {
        kind: FileKind::parse(words.next()?)?,
        size: words.next()?.parse().ok()?,
        hash: u64::from_str_radix(words.next()?, 16).ok()?,
        name: words.next()?.to_owned(),
    };
    (words.next().is_none() && is_name(&file.name)).then_some(file)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn generation() -> Generation {
        let file = |kind: FileKind, size| StoredFile {
            kind,
            size,
            hash: 0x1234_5678_9abc_def0 + size,
            name: format!("data/9c-{}", kind.name()),
        };
        Generation {
            number: 7,
            created: SystemTime::UNIX_EPOCH + Duration::from_millis(1_764_035_797_123),
            seqno: 1234,
            flushed_seqno: 1200,
            files: vec![file(FileKind::Table(12), 4096), file(FileKind::Current, 49)],
            token: 0x5be0_cd19_137e_2179,
            oldest: 3,
            timeline: 0xfedc_ba98_7654_3210,
        }
    }

    fn samples() -> [Record; 2] {
        let removed = ["data/9c-000007.sst", "data/9c-000008.sst"].map(str::to_owned).into();
        [Record::Generation(generation()), Record::Prune(Prune { token: 9, oldest: 5, removed })]
    }

    #[test]
    fn records_round_trip_and_every_damage_is_noticed() {
        for record in samples() {
            let text = record.encode();
            assert_eq!(Record::decode(7, &text), Ok(record));
            for at in 0..text.len() {
                let mut damaged = text.clone();
                damaged[at] ^= 1;
                assert!(Record::decode(7, &damaged).is_err(), "byte {at}");
                assert!(Record::decode(7, &text[..at]).is_err(), "cut at {at}");
            }
        }
    }

    #[test]
    fn a_name_stays_within_its_folder() {
        for name in ["../../etc/passwd", "a/b", "..", ".", "", "a b", "a\\b"] {
            for name in [name.to_owned(), format!("data/{name}")] {
                let mut forged = generation();
                forged.files[0].name = name.clone();
                assert!(Record::decode(7, &Record::Generation(forged).encode()).is_err(), "{name}");
                let forged = Prune { token: 1, oldest: 1, removed: [name.clone()].into() };
                assert!(Record::decode(7, &Record::Prune(forged).encode()).is_err(), "{name}");
            }
        }
    }
}
