//! [`Generation`]: what a repository says of one backup.
//!
//! ```text
//! tamis backup 1
//! created 1764035797
//! seqno 1234
//! flushed 1200
//! file 000012.sst 4096 1f0e..89abcdef 9c41..-000012.sst-4096-89abcdef
//! hash 5d41..
//! ```
//!
//! Times are seconds since 1970. A file has its name in the store, its length, its hash and its
//! name in the repository. A hash is XXH3 (64 bits, seed 0); the last line has that of the lines
//! before it.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use tamis::SeqNo;
use tamis::inspect::FileKind;
use xxhash_rust::xxh3::xxh3_64;

/// First line of a generation in this version of the format.
const FIRST_LINE: &str = "tamis backup 1";

/// One backup in a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generation {
    /// Its number in the repository, from 1.
    pub number: u64,
    /// When it was made, to the second.
    pub created: SystemTime,
    /// The sequence number of the last write in it.
    pub seqno: SeqNo,
    /// Of keyspaces without a log it has the writes up to this sequence number.
    pub flushed_seqno: SeqNo,
    /// The files of the store.
    pub files: Vec<StoredFile>,
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

    pub(crate) fn encode(&self) -> String {
        let created = self.created.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut text =
            format!("{FIRST_LINE}\ncreated {created}\nseqno {}\nflushed {}\n", self.seqno, self.flushed_seqno);
        for StoredFile { kind, size, hash, name } in &self.files {
            // Writing to a string does not fail.
            let _ = writeln!(text, "file {} {size} {hash:016x} {name}", kind.name());
        }
        let hash = xxh3_64(text.as_bytes());
        let _ = writeln!(text, "hash {hash:016x}");
        text
    }

    /// Decodes generation `number`; the error is the rule that does not hold.
    pub(crate) fn decode(number: u64, text: &[u8]) -> Result<Generation, &'static str> {
        let text = std::str::from_utf8(text).map_err(|_| "the generation is not text")?;
        let last = text.split_inclusive('\n').next_back().unwrap_or_default();
        let lines = &text[..text.len() - last.len()];
        if last != format!("hash {:016x}\n", xxh3_64(lines.as_bytes())) {
            return Err("the hash of the generation does not match");
        }
        let mut lines = lines.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err("the generation is of an unknown version");
        }
        let mut number_of = |key: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(key)?.strip_prefix(' '));
            line.and_then(|text| text.parse::<u64>().ok()).ok_or("a number of the generation is missing")
        };
        let (created, seqno, flushed_seqno) = (number_of("created")?, number_of("seqno")?, number_of("flushed")?);
        let created = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(created));
        let files = lines.map(|line| file(line).ok_or("a line of the generation is not a file"));
        Ok(Generation {
            number,
            created: created.ok_or("the time of the generation is out of range")?,
            seqno,
            flushed_seqno,
            files: files.collect::<Result<_, _>>()?,
        })
    }
}

fn file(line: &str) -> Option<StoredFile> {
    let mut words = line.strip_prefix("file ")?.split(' ');
    let file = StoredFile {
        kind: FileKind::parse(words.next()?)?,
        size: words.next()?.parse().ok()?,
        hash: u64::from_str_radix(words.next()?, 16).ok()?,
        name: words.next()?.to_owned(),
    };
    // The name is one within the folder, whatever wrote it.
    let is_plain = file.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
    let is_hidden = file.name.is_empty() || file.name.starts_with('.');
    (words.next().is_none() && is_plain && !is_hidden).then_some(file)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn sample() -> Generation {
        let file = |kind: FileKind, size| StoredFile {
            kind,
            size,
            hash: 0x1234_5678_9abc_def0 + size,
            name: format!("9c-{}", kind.name()),
        };
        Generation {
            number: 7,
            created: SystemTime::UNIX_EPOCH + Duration::from_secs(1_764_035_797),
            seqno: 1234,
            flushed_seqno: 1200,
            files: vec![file(FileKind::Table(12), 4096), file(FileKind::Current, 49)],
        }
    }

    #[test]
    fn generations_round_trip_and_every_damage_is_noticed() {
        let text = sample().encode();
        assert_eq!(Generation::decode(7, text.as_bytes()), Ok(sample()));
        for at in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[at] ^= 1;
            assert!(Generation::decode(7, &damaged).is_err(), "byte {at}");
            assert!(Generation::decode(7, &text.as_bytes()[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_name_stays_within_its_folder() {
        for name in ["../../etc/passwd", "a/b", "..", ".", "", "a b", "a\\b"] {
            let mut forged = sample();
            forged.files[0].name = name.to_owned();
            assert!(Generation::decode(7, forged.encode().as_bytes()).is_err(), "{name}");
        }
    }
}
