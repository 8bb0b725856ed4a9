//! [`Repository::verify`]: reads all that generations need.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use tamis::Result;

use crate::backup::{compare, hash_of};
use crate::journal::record_name;
use crate::record::StoredFile;
use crate::restore::missing_rule;
use crate::segment::{SegmentId, Segments};
use crate::{LOG, Repository};

/// A fault that [`Repository::verify`] has found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The damaged or missing file.
    pub file: PathBuf,
    /// The generations that cannot be restored for it, or only up to it.
    pub generations: Vec<u64>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; generations {:?}", self.file.display(), self.what, self.generations)
    }
}

/// What [`Repository::verify`] has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Generations.
    pub generations: usize,
    /// Files, each read once.
    pub files: usize,
    /// Segments of the log, each read once.
    pub segments: usize,
    /// Bytes of both.
    pub bytes: u64,
    /// Faults.
    pub faults: usize,
}

impl Repository {
    /// Reads every file that a generation needs, and every segment of the log that follows one,
    /// each once, and compares it with its hash. Each fault goes to `report`.
    ///
    /// Generations that a [`prune`](Repository::prune) removes meanwhile are reported as faults.
    pub fn verify(&self, report: &mut dyn FnMut(&Fault)) -> Result<Verified> {
        let mut verified = Verified::default();
        let mut fault = |verified: &mut Verified, name: &str, generations, what: String| {
            verified.faults += 1;
            report(&Fault { file: self.storage.path(name), generations, what });
        };
        let journal = self.journal()?;
        for number in journal.missing() {
            fault(&mut verified, &record_name(number), vec![number], "there is no such record".into());
        }
        // Hashes that differ between generations are two files, of which one is damaged.
        let mut needed: BTreeMap<(&str, u64), (&StoredFile, Vec<u64>)> = BTreeMap::new();
        for (number, generation) in journal.generations() {
            verified.generations += 1;
            match generation {
                Ok(generation) => {
                    for file in &generation.files {
                        let key = (file.name.as_str(), file.hash);
                        needed.entry(key).or_insert_with(|| (file, Vec::new())).1.push(number);
                    }
                }
                Err(error) => fault(&mut verified, &record_name(number), vec![number], error.to_string()),
            }
        }
        let meter = self.progress.meter(needed.values().map(|(file, _)| file.size).sum());
        for (file, generations) in needed.into_values() {
            verified.files += 1;
            let read = hash_of(&*self.storage, &file.name).and_then(|found| {
                verified.bytes += found.1;
                compare(&*self.storage, file, found)
            });
            if let Err(error) = read {
                fault(&mut verified, &file.name, generations, error.to_string());
            }
            meter.add(file.size);
        }
        let segments = Segments::list(&*self.storage)?;
        let mut following: BTreeMap<SegmentId, Vec<u64>> = BTreeMap::new();
        for (number, generation) in journal.generations() {
            let Ok(generation) = generation else { continue };
            let chain = segments.after(generation);
            chain.segments.iter().for_each(|segment| following.entry(*segment).or_default().push(number));
            if let Some(missing) = chain.missing {
                fault(&mut verified, LOG, vec![number], missing_rule(generation, missing));
            }
        }
        for (segment, generations) in following {
            verified.segments += 1;
            match segment.read(&*self.storage) {
                Ok(bytes) => verified.bytes += bytes.len() as u64,
                Err(error) => fault(&mut verified, &segment.name(), generations, error.to_string()),
            }
        }
        Ok(verified)
    }
}
