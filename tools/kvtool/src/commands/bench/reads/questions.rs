//! [`Set`]: the keys to look up, or the ranges to scan.

use std::collections::HashSet;
use std::path::Path;

use fastrand::Rng;
use tamis::{Db, FilterMode, Keyspace, MAX_KEY_LEN, ReadOptions};

use super::asked::{Asked, Key, Kind};
use super::ranges::{self, Range};
use super::subject::Subject;
use crate::args::{BenchReads, Common};
use crate::commands::formats::{Codec, Format};
use crate::commands::lines::{Lines, split_line};
use crate::commands::workload::keys::Keys;
use crate::commands::workload::measure::{Measured, Question, measure, measure_ranges};
use crate::failure::{Failure, Result};
use crate::output::say;
use crate::text::{Form, counted};

/// Default number of keys of each kind.
const ASKED: usize = 100_000;
/// Default number of ranges of each kind. There are more kinds.
const ASKED_RANGES: usize = 20_000;
/// How many appended bytes are tried to make a missing key out of an existing one.
const ATTEMPTS: usize = 8;

/// What is asked for in one pass, or in several.
pub(super) struct Set {
    pub(super) asked: Vec<Asked>,
    pub(super) items: Items,
}

/// Keys or ranges. None is repeated, because a filter gives the same answer again.
pub(super) enum Items {
    Keys(Vec<Key>),
    Ranges(Vec<Range>),
}

impl Items {
    pub(super) fn len(&self) -> usize {
        match self {
            Items::Keys(keys) => keys.len(),
            Items::Ranges(ranges) => ranges.len(),
        }
    }

    /// Asks for all.
    pub(super) fn measure(
        &self,
        db: &Db,
        keyspace: &Keyspace,
        asked: Asked,
        filters: FilterMode,
    ) -> Result<Measured<Asked>> {
        let question = (asked, asked.is_found());
        match self {
            Items::Keys(keys) => measure(db, keyspace, question, filters, keys.iter()),
            Items::Ranges(ranges) => {
                let ranges = ranges.iter().map(|range| asked.range(&range.range));
                measure_ranges(db, keyspace, question, filters, asked.scan(), ranges)
            }
        }
    }
}

/// The questions of an experiment.
pub(super) fn choose(common: &Common, args: &BenchReads, subject: &Subject, keyspace: &Keyspace) -> Result<Vec<Set>> {
    let asked = args.asked.unwrap_or(match subject.kind {
        Kind::Keys => ASKED,
        Kind::Ranges => ASKED_RANGES,
    });
    if subject.kind == Kind::Ranges {
        let sets = ranges::choose(keyspace, asked, &mut Rng::with_seed(args.seed))?;
        return Ok(sets.into_iter().map(|(asked, ranges)| Set { asked, items: Items::Ranges(ranges) }).collect());
    }
    let [missing, existing] = keys(common, args, subject, keyspace, asked)?;
    let set = |question, keys| Set { asked: vec![Asked::Keys(question)], items: Items::Keys(keys) };
    Ok(vec![set(Question::Missing, missing), set(Question::Existing, existing)])
}

/// Missing and existing keys.
fn keys(
    common: &Common,
    args: &BenchReads,
    subject: &Subject,
    keyspace: &Keyspace,
    asked: usize,
) -> Result<[Vec<Key>; 2]> {
    if let Some(keys) = subject.keys {
        let asked = keys.count().min(asked as u64);
        // Spread over all loaded keys, early and late.
        let numbers = (0..asked).map(|i| u128::from(i) * u128::from(keys.count()) / u128::from(asked.max(1)));
        let numbers: Vec<u64> = numbers.map(|number| u64::try_from(number).unwrap_or_default()).collect();
        let all = |key: fn(&Keys, u64) -> String| -> Vec<Key> {
            numbers.iter().map(|&i| key(&keys, i).into_bytes().into()).collect()
        };
        return Ok([all(|keys, i| keys.missing(i)), all(|keys, i| keys.existing(i))]);
    }
    let form = common.form();
    let mut rng = Rng::with_seed(args.seed);
    let existing = match &args.keys_from {
        Some(file) => from_file(keyspace, file, form, asked, true)?,
        None => sample(keyspace, asked, &mut rng)?,
    };
    let missing = match &args.missing_from {
        Some(file) => from_file(keyspace, file, form, asked, false)?,
        None => derive(keyspace, &existing, &mut rng)?,
    };
    Ok([missing, existing])
}

/// Whether the key exists. Filters are queried but not trusted.
fn is_there(keyspace: &Keyspace, key: &[u8]) -> Result<bool> {
    Ok(keyspace.get_with(key, ReadOptions::new().filters(FilterMode::Shadow))?.is_some())
}

/// The first `most` distinct lines of a file whose keys exist, or do not exist if `there` is false.
fn from_file(keyspace: &Keyspace, file: &Path, form: Form, most: usize, there: bool) -> Result<Vec<Key>> {
    let limit = Codec { format: Format::Tsv, form }.longest_record();
    let mut lines = Lines::open(Some(file), limit)?;
    let (mut seen, mut keys, mut skipped) = (HashSet::new(), Vec::new(), 0);
    while keys.len() < most && lines.advance()? {
        let (key, _) = split_line(lines.line(), form).map_err(|why| lines.invalid(why))?;
        let key = match form.parse_field(key) {
            Ok(key) => Key::from(&*key),
            Err(why) => return Err(lines.invalid(why)),
        };
        if seen.contains(&key) || is_there(keyspace, &key)? != there {
            skipped += 1;
        } else {
            seen.insert(key.clone());
            keys.push(key);
        }
    }
    if keys.is_empty() {
        let what = if there { "an existing" } else { "a missing" };
        return Err(Failure::usage(format_args!("no line of {} is {what} key", file.display())));
    }
    if skipped > 0 {
        say(format_args!("{} of {} skipped", counted(skipped, "line"), file.display()));
    }
    Ok(keys)
}

/// A uniform random sample of the keys of a keyspace, in random order: algorithm R (Vitter, 1985)
/// over one scan.
fn sample(keyspace: &Keyspace, most: usize, rng: &mut Rng) -> Result<Vec<Key>> {
    let mut keys: Vec<Key> = Vec::new();
    for (i, entry) in keyspace.iter().enumerate() {
        let (key, _) = entry?;
        if keys.len() < most {
            keys.push(Key::from(&key[..]));
        } else {
            let at = rng.usize(..=i);
            if let Some(place) = keys.get_mut(at) {
                *place = Key::from(&key[..]);
            }
        }
    }
    if keys.is_empty() {
        return Err(Failure::usage(format_args!("keyspace {} holds no keys", keyspace.name())));
    }
    rng.shuffle(&mut keys);
    Ok(keys)
}

/// For each existing key, a missing one that is longer by one byte: it sorts directly after the
/// existing key and before most others.
fn derive(keyspace: &Keyspace, existing: &[Key], rng: &mut Rng) -> Result<Vec<Key>> {
    let mut missing = Vec::with_capacity(existing.len());
    for key in existing.iter().filter(|key| key.len() < MAX_KEY_LEN) {
        for _ in 0..ATTEMPTS {
            let longer = [&key[..], &[rng.u8(..)]].concat();
            if !is_there(keyspace, &longer)? {
                missing.push(longer.into());
                break;
            }
        }
    }
    if missing.is_empty() {
        return Err(Failure::usage("found no missing keys; name some with --missing-from"));
    }
    rng.shuffle(&mut missing);
    Ok(missing)
}
