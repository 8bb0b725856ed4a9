//! [`Record`]: what a repository says of one backup, or of one prune.
//!
//! ```text
//! tamis generation 2                         tamis prune 2
//! token 5be0cd19137e2179                     token 1f83d9abfb41bd6b
//! oldest 6                                   oldest 9
//! kept 2 5                                   kept 2 8
//! created 1764035797123                      remove data/9c41..-000007.sst-4096-89abcdef-2
//! seqno 1234                                 hash 02cc..
//! flushed 1200
//! timeline 0
//! store 9c41a3f0c8b2d5e7 /var/lib/db
//! file 000012.sst 4096 1f0e..89abcdef data/9c41..-000012.sst-4096-89abcdef-4
//! hash 5d41..
//! ```
//!
//! The token is random: by it a writer knows its own record. Of the records before `oldest`, only
//! those that are `kept` count. A store has its id and the path that it had, with special
//! characters escaped. Times are milliseconds since 1970. A file has its name in the store, its
//! length, its hash and its name in the repository. A hash is XXH3 (64 bits, seed 0); the last line
//! has that of the lines before it.
//!
//! A generation of one keyspace alone is of version 3: behind `store` it has a line
//! `keyspace users`, with special characters escaped. Its store is that keyspace: see
//! [`StoreId::of_keyspace`].
//!
//! Version 1 has neither `kept` nor `store`: nothing before `oldest` counts, and the store is that
//! of the last table or value file, by the branch in its name; 0 without such a file.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use tamis::SeqNo;
use tamis::inspect::FileKind;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::DATA;

/// First line of a generation of a store, of one of a keyspace, and of one in the version before.
const GENERATION: &str = "tamis generation 2";
const GENERATION_OF_KEYSPACE: &str = "tamis generation 3";
const GENERATION_1: &str = "tamis generation 1";
/// First line of a prune.
const PRUNE: &str = "tamis prune 2";
const PRUNE_1: &str = "tamis prune 1";

/// Which store a generation is of. Its text is 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub(crate) u64);

impl StoreId {
    /// That of a keyspace whose store has this branch: its generations are kept, pruned and
    /// restored apart from the store's.
    pub(crate) fn of_keyspace(branch: u64, keyspace: &str) -> StoreId {
        StoreId(xxh3_64_with_seed(keyspace.as_bytes(), branch))
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for StoreId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<StoreId, &'static str> {
        match u64::from_str_radix(text, 16) {
            Ok(id) if text.len() == 16 && !text.starts_with('+') => Ok(StoreId(id)),
            _ => Err("a store has an id of 16 hexadecimal digits, as a list of the backups shows it"),
        }
    }
}

/// A record of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Generation(Generation),
    Prune(Prune),
}

/// Which of the records before one count, as it says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// All from this one on.
    pub(crate) oldest: u64,
    /// And these before it: generations that a prune has kept.
    pub(crate) kept: BTreeSet<u64>,
}

impl Standing {
    pub(crate) fn counts(&self, number: u64) -> bool {
        number >= self.oldest || self.kept.contains(&number)
    }
}

/// Which generations and files a repository has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prune {
    pub(crate) token: u64,
    /// The generations that stay.
    pub(crate) standing: Standing,
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
    pub time: SystemTime,
    /// The sequence number of the last write in it.
    pub seqno: SeqNo,
    /// Of keyspaces without a log it has the writes up to this sequence number.
    pub flushed_seqno: SeqNo,
    /// The files of the store.
    pub files: Vec<StoredFile>,
    /// Which store it is of.
    pub store: StoreId,
    /// Where that was, special characters escaped; empty if the record does not say it.
    pub path: String,
    /// The keyspace of which it is, if it is of one alone; special characters escaped.
    pub keyspace: Option<String>,
    /// By which its writer knows it.
    pub(crate) token: u64,
    /// Which records before this one count.
    pub(crate) standing: Standing,
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
        let Generation { token, seqno, flushed_seqno, timeline, store, path, .. } = self;
        let (created, standing) = (millis(self.time), standing(&self.standing));
        let version = if self.keyspace.is_some() { GENERATION_OF_KEYSPACE } else { GENERATION };
        let mut text = format!(
            "{version}\ntoken {token:016x}\n{standing}created {created}\nseqno {seqno}\n\
             flushed {flushed_seqno}\ntimeline {timeline:016x}\nstore {store} {path}\n"
        );
        if let Some(keyspace) = &self.keyspace {
            let _ = writeln!(text, "keyspace {keyspace}");
        }
        for StoredFile { kind, size, hash, name } in &self.files {
            // Writing to a string does not fail.
            let _ = writeln!(text, "file {} {size} {hash:016x} {name}", kind.name());
        }
        text
    }
}

impl Record {
    pub(crate) fn standing(&self) -> &Standing {
        match self {
            Record::Generation(generation) => &generation.standing,
            Record::Prune(prune) => &prune.standing,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = match self {
            Record::Generation(generation) => generation.encode(),
            Record::Prune(Prune { token, standing: of, removed }) => {
                let mut text = format!("{PRUNE}\ntoken {token:016x}\n{}", standing(of));
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
        let (is_generation, has_store) = match first {
            Some(GENERATION | GENERATION_OF_KEYSPACE) => (true, true),
            Some(GENERATION_1) => (true, false),
            Some(PRUNE) => (false, true),
            Some(PRUNE_1) => (false, false),
            _ => return Err("the record is of an unknown version"),
        };
        let mut lines = Lines(lines);
        let (token, oldest) = (lines.number("token", 16)?, lines.number("oldest", 10)?);
        let kept = if has_store { lines.numbers("kept")? } else { BTreeSet::new() };
        let standing = Standing { oldest, kept };
        if !is_generation {
            let removed = lines.0.map(|line| line.strip_prefix("remove ").filter(|name| is_name(name)));
            let removed = removed.map(|name| name.map(str::to_owned).ok_or("a line of the record is not a name"));
            return Ok(Record::Prune(Prune { token, standing, removed: removed.collect::<Result<_, _>>()? }));
        }
        let time = Duration::from_millis(lines.number("created", 10)?);
        let time = SystemTime::UNIX_EPOCH.checked_add(time).ok_or("the record's time is out of range")?;
        let (seqno, flushed_seqno) = (lines.number("seqno", 10)?, lines.number("flushed", 10)?);
        let timeline = lines.number("timeline", 16)?;
        let stated = if has_store { Some(lines.store()?) } else { None };
        let keyspace = match first {
            Some(GENERATION_OF_KEYSPACE) => Some(lines.value("keyspace").ok_or("the keyspace is missing")?.to_owned()),
            _ => None,
        };
        let files = lines.0.map(|line| file(line).ok_or("a line of the record is not a file"));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        let (store, path) = stated.unwrap_or_else(|| (store_of(&files), String::new()));
        let generation =
            Generation { number, time, seqno, flushed_seqno, files, store, path, keyspace, token, standing, timeline };
        Ok(Record::Generation(generation))
    }
}

/// The lines of a record that have not been decoded.
struct Lines<'a>(std::str::Lines<'a>);

impl<'a> Lines<'a> {
    /// What the next line has after its key.
    fn value(&mut self, key: &str) -> Option<&'a str> {
        let rest = self.0.next()?.strip_prefix(key)?;
        rest.strip_prefix(' ').or(rest.is_empty().then_some(rest))
    }

    fn number(&mut self, key: &str, radix: u32) -> Result<u64, &'static str> {
        let number = self.value(key).and_then(|text| u64::from_str_radix(text, radix).ok());
        number.ok_or("a number of the record is missing")
    }

    fn numbers(&mut self, key: &str) -> Result<BTreeSet<u64>, &'static str> {
        let numbers = self.value(key).map(|text| text.split_ascii_whitespace().map(|number| number.parse().ok()));
        numbers.and_then(Iterator::collect).ok_or("the numbers of kept generations are missing")
    }

    fn store(&mut self) -> Result<(StoreId, String), &'static str> {
        let (id, path) = self.value("store").and_then(|text| text.split_once(' ')).ok_or("the store is missing")?;
        Ok((id.parse()?, path.to_owned()))
    }
}

fn standing(standing: &Standing) -> String {
    let mut text = format!("oldest {}\nkept", standing.oldest);
    // Writing to a string does not fail.
    standing.kept.iter().for_each(|number| _ = write!(text, " {number}"));
    text.push('\n');
    text
}

/// A store's path as a record has it.
pub(crate) fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

/// A keyspace's name as a record has it.
pub(crate) fn shown_name(name: &str) -> String {
    name.escape_debug().to_string()
}

/// The store of a generation that does not name it, by the branch of its last table or value file.
fn store_of(files: &[StoredFile]) -> StoreId {
    let shared = files.iter().filter(|file| matches!(file.kind, FileKind::Table(_) | FileKind::Values(_)));
    let branch = |file: &StoredFile| {
        u64::from_str_radix(file.name.strip_prefix(DATA)?.strip_prefix('/')?.split_once('-')?.0, 16).ok()
    };
    StoreId(shared.max_by_key(|file| file.kind.number()).and_then(branch).unwrap_or(0))
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
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(1_764_035_797_123),
            seqno: 1234,
            flushed_seqno: 1200,
            files: vec![file(FileKind::Table(12), 4096), file(FileKind::Current, 49)],
            store: StoreId(0x9c),
            path: "/var/lib/my db".into(),
            keyspace: None,
            token: 0x5be0_cd19_137e_2179,
            standing: Standing { oldest: 6, kept: [2, 5].into() },
            timeline: 0xfedc_ba98_7654_3210,
        }
    }

    fn samples() -> [Record; 3] {
        let removed = ["data/9c-000007.sst", "data/9c-000008.sst"].map(str::to_owned).into();
        let of_keyspace = Generation { keyspace: Some("my users".into()), ..generation() };
        [
            Record::Generation(generation()),
            Record::Generation(of_keyspace),
            Record::Prune(Prune { token: 9, standing: Standing::default(), removed }),
        ]
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
                let forged = Prune { token: 1, standing: Standing::default(), removed: [name.clone()].into() };
                assert!(Record::decode(7, &Record::Prune(forged).encode()).is_err(), "{name}");
            }
        }
    }

    /// As version 1 wrote them, up to the hash.
    #[test]
    fn records_of_version_1_are_read() {
        let decode = |text: &str| {
            let hash = xxh3_64(text.as_bytes());
            Record::decode(7, format!("{text}hash {hash:016x}\n").as_bytes())
        };
        let head = "tamis generation 1\ntoken 5be0cd19137e2179\noldest 3\ncreated 1764035797123\nseqno 1234\n\
                    flushed 1200\ntimeline fedcba9876543210\n";
        let table = "file 000012.sst 4096 123456789abcdef0 data/000000000000009c-000012.sst-4096-9abcdef0-4\n\
                     file 000009.sst 4096 123456789abcdef0 data/00000000000000aa-000009.sst-4096-9abcdef0-4\n";
        let own = "file CURRENT 49 123456789abcdef0 data/00000000000000dd-CURRENT\n";
        for (files, store) in [(format!("{table}{own}"), 0x9c), (own.to_owned(), 0)] {
            let Ok(Record::Generation(read)) = decode(&format!("{head}{files}")) else { panic!("no generation") };
            assert_eq!((read.store, &*read.path, read.seqno), (StoreId(store), "", 1234));
            assert_eq!(read.standing, Standing { oldest: 3, kept: BTreeSet::new() });
            assert_eq!(read.files.len(), files.lines().count());
        }
        let prune = decode("tamis prune 1\ntoken 1f83d9abfb41bd6b\noldest 5\nremove data/9c-000007.sst\n");
        let Ok(Record::Prune(prune)) = prune else { panic!("no prune") };
        assert_eq!((prune.standing.oldest, prune.removed.len()), (5, 1));
    }
}
