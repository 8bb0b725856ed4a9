//! [`Journal`]: the records of a repository, in order.
//!
//! Writing record `n`, if it is absent, is the only way to change what a repository holds: a backup
//! writes a generation, a prune says what goes. Its writer has read all records before `n`.
//! Therefore two writers never both believe that they come after `n - 1`, without a lock and
//! without a clock. Why nothing that a generation names is ever missing:
//!
//! 1. A prune names the files that it removes in its record, before it removes any. They are files
//!    that no generation before its record names.
//! 2. A generation names files that an earlier generation names, which counts at the moment of the
//!    record, and files that its writer has uploaded or verified. Of the latter, it names none that
//!    a prune since then has named: if another record has taken its number, a writer reads it, and
//!    uploads what it must give up again.
//! 3. That has another name: names end with the number of the last record that their writer has
//!    read. Record `n` therefore only names files that end with a number below `n`, and nobody who
//!    has read it writes one of those again. A prune that has stalled removes nothing else, however
//!    late it wakes up.
//!
//! Records before `oldest`, which every record states, count no more, and are removed, except the
//! generations that a prune has kept: every later record names those, too. A prune makes its own
//! number the oldest one, so that the records are few however old a kept generation is. A writer
//! that has stalled may find its number free again for that reason. Its record does not count
//! either; it reads the records that are there, learns that, and begins anew.
//!
//! What a backup has uploaded before it has a record is named by nobody. Prunes leave such files
//! alone while they are young ([`ORPHAN_AGE`]), so that a long backup need not upload them twice.
//! Where a lock keeps writers apart, nothing is under way, and they go at once.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::time::{Duration, SystemTime};

use tamis::{Error, Result};

use crate::record::{Generation, Record, Standing};
use crate::storage::{Storage, is_absent};
use crate::{GENERATIONS, damaged};

/// Files of unfinished backups are removed when they are older than this.
pub(crate) const ORPHAN_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// The longest record: a line for each of a million files.
const MAX_RECORD_LEN: usize = 256 << 20;
/// How often a write is repeated of which the storage says that it has lost a race, while nothing
/// is there.
const ATTEMPTS: u32 = 8;

/// The records that count, as they were at one moment.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// Number of the last record; 0 if there is none.
    pub(crate) newest: u64,
    /// Which records count.
    pub(crate) standing: Standing,
    /// The records that count, or why one cannot be read.
    pub(crate) records: BTreeMap<u64, Result<Record>>,
    /// Numbers of records that count no more and have not been removed.
    pub(crate) stale: Vec<u64>,
}

impl Journal {
    pub(crate) fn read(storage: &dyn Storage) -> Result<Journal> {
        let mut numbers = numbers(storage)?;
        let mut journal = Journal { newest: numbers.last().copied().unwrap_or(0), ..Journal::default() };
        while let Some(number) = numbers.pop() {
            if !journal.standing.counts(number) {
                journal.stale.push(number);
                continue;
            }
            let record = read_record(storage, number);
            match &record {
                // The last one that says so knows all before it.
                Ok(record) if record.standing().oldest > journal.standing.oldest => {
                    journal.standing = record.standing().clone();
                }
                Ok(_) => {}
                // A prune has removed it meanwhile.
                Err(error) if is_absent(error) => continue,
                Err(_) => {}
            }
            journal.records.insert(number, record);
        }
        Ok(journal)
    }

    /// The generations, oldest first; of one that cannot be read, why.
    pub(crate) fn generations(&self) -> impl Iterator<Item = (u64, Result<&Generation, &Error>)> {
        self.records.iter().filter_map(|(number, record)| match record {
            Ok(Record::Generation(generation)) => Some((*number, Ok(generation))),
            Ok(Record::Prune(_)) => None,
            Err(error) => Some((*number, Err(error))),
        })
    }

    /// Names that prunes have named. They are removed, or will be.
    pub(crate) fn given_up(&self) -> BTreeSet<&str> {
        let removed = self.records.values().filter_map(|record| match record {
            Ok(Record::Prune(prune)) => Some(prune.removed.iter().map(String::as_str)),
            _ => None,
        });
        removed.flatten().collect()
    }

    /// Numbers of records that count, and of which there is none.
    pub(crate) fn missing(&self) -> impl Iterator<Item = u64> {
        let Standing { oldest, kept } = &self.standing;
        let all = kept.iter().copied().chain((*oldest).max(1)..self.newest);
        all.filter(|number| !self.records.contains_key(number))
    }

    /// Writes the record that follows this journal. `false` if another writer has written one.
    pub(crate) fn append(&self, storage: &dyn Storage, record: &Record) -> Result<bool> {
        let number = self.newest + 1;
        if !put_own(storage, &record_name(number), &record.encode())? {
            return Ok(false);
        }
        // The number may be one of which a prune has removed the record.
        let is_last = numbers(storage)?.last().is_none_or(|last| *last <= number);
        Ok(is_last || Journal::read(storage)?.standing.counts(number))
    }
}

pub(crate) fn record_name(number: u64) -> String {
    format!("{GENERATIONS}/{number:08}")
}

fn numbers(storage: &dyn Storage) -> Result<Vec<u64>> {
    let number = |name: &str| {
        let number = name.rsplit_once('/')?.1.parse().ok()?;
        (record_name(number) == name).then_some(number)
    };
    let listed = storage.list(GENERATIONS)?;
    let mut numbers: Vec<u64> = listed.iter().filter_map(|listed| number(&listed.name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn read_record(storage: &dyn Storage, number: u64) -> Result<Record> {
    let name = record_name(number);
    let text = read_small(storage, &name, MAX_RECORD_LEN)?;
    Record::decode(number, &text).map_err(|rule| damaged(storage, &name, rule))
}

/// Reads an object of at most `limit` bytes.
pub(crate) fn read_small(storage: &dyn Storage, name: &str, limit: usize) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    storage.read(name, &mut |bytes| {
        if content.len() + bytes.len() > limit {
            return Err(damaged(storage, name, "it is longer than such a file can be"));
        }
        content.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(content)
}

/// Writes an object unless there is one; returns whether the one there is ours.
///
/// What the storage says of a conditional write may be the reply to an earlier attempt, or to one
/// that met another and wrote nothing. What is there decides.
pub(crate) fn put_own(storage: &dyn Storage, name: &str, content: &[u8]) -> Result<bool> {
    for attempt in 0..ATTEMPTS {
        if storage.put_new(name, content)? {
            return Ok(true);
        }
        match read_small(storage, name, content.len()) {
            Ok(found) => return Ok(found == content),
            Err(error) if error.is_corruption() => return Ok(false),
            Err(error) if is_absent(&error) => std::thread::sleep(Duration::from_millis(1 << attempt)),
            Err(error) => return Err(error),
        }
    }
    Err(Error::Locked { path: storage.path(name), holder: "writers that prevent each other's writes".into() })
}

/// A random number that nobody else has drawn.
pub(crate) fn token() -> u64 {
    // Keyed by the system's random numbers.
    std::hash::RandomState::new().hash_one(SystemTime::now())
}
