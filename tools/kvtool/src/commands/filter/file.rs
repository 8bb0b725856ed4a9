//! A file with a filter of any kind, and the lines that go into it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use tamis::filter::{BloomFilter, FuseFilter, HashedKeys, ScalableBloomFilter};

use super::MAX_LINE;
use crate::args::Common;
use crate::commands::lines::Lines;
use crate::failure::{Attempt, Failure, Result};
use crate::output::say;
use crate::text::counted;

pub(super) enum AnyFilter {
    Bloom(BloomFilter),
    Scalable(ScalableBloomFilter),
    Fuse(FuseFilter),
}

/// A binary fuse is made of all its lines at once.
fn takes_no_lines() -> Failure {
    Failure::usage("a binary fuse takes no more lines; create a new one of all lines")
}

impl AnyFilter {
    pub(super) fn load(path: &Path) -> Result<AnyFilter> {
        let what = format_args!("cannot read {}", path.display());
        let mut start = Vec::new();
        File::open(path).and_then(|file| file.take(8).read_to_end(&mut start)).attempt(what)?;
        Ok(if start.starts_with(&ScalableBloomFilter::MAGIC) {
            AnyFilter::Scalable(ScalableBloomFilter::load(path)?)
        } else if FuseFilter::is_prefix(&start) {
            AnyFilter::Fuse(FuseFilter::load(path)?)
        } else {
            AnyFilter::Bloom(BloomFilter::load(path)?)
        })
    }

    pub(super) fn save(&self, path: &Path) -> Result<()> {
        match self {
            AnyFilter::Bloom(filter) => filter.save(path)?,
            AnyFilter::Scalable(filter) => filter.save(path)?,
            AnyFilter::Fuse(filter) => filter.save(path)?,
        }
        Ok(())
    }

    /// Adds a key; returns whether it was new to the filter.
    pub(super) fn insert(&mut self, key: &[u8]) -> Result<bool> {
        match self {
            AnyFilter::Bloom(filter) => Ok(filter.insert(key)),
            AnyFilter::Scalable(filter) => Ok(filter.insert(key)),
            AnyFilter::Fuse(_) => Err(takes_no_lines()),
        }
    }

    /// Adds all keys; returns how many were new to the filter.
    pub(super) fn insert_all(&mut self, keys: &HashedKeys) -> Result<u64> {
        Ok(match self {
            AnyFilter::Bloom(filter) => filter.insert_all(keys)?,
            AnyFilter::Scalable(filter) => filter.insert_all(keys)?,
            AnyFilter::Fuse(_) => return Err(takes_no_lines()),
        })
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        match self {
            AnyFilter::Bloom(filter) => filter.contains(key),
            AnyFilter::Scalable(filter) => filter.contains(key),
            AnyFilter::Fuse(filter) => filter.contains(key),
        }
    }

    pub(super) fn expected_fpr(&self) -> f64 {
        match self {
            AnyFilter::Bloom(filter) => filter.expected_fpr(),
            AnyFilter::Scalable(filter) => filter.expected_fpr(),
            AnyFilter::Fuse(filter) => filter.expected_fpr(),
        }
    }

    /// Length of the encoded filter.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            AnyFilter::Bloom(filter) => filter.encoded_len(),
            AnyFilter::Scalable(filter) => filter.encoded_len(),
            AnyFilter::Fuse(filter) => filter.encoded_len(),
        }
    }

    /// Warns if the filter holds more lines than its capacity.
    pub(super) fn warn_if_overfull(&self) {
        let (capacity, estimate) = match self {
            AnyFilter::Bloom(filter) => (filter.capacity(), filter.estimated_keys()),
            AnyFilter::Scalable(filter) => (filter.capacity(), filter.estimated_keys()),
            AnyFilter::Fuse(_) => return,
        };
        // The 2 % allow for the error of the estimate.
        if estimate > 1.02 * capacity as f64 {
            say(format_args!(
                "the filter was made for {}; it holds more, so its false-positive rate exceeds the requested one",
                counted(capacity, "line")
            ));
        }
    }
}

/// Refuses to replace a file, unless forced.
pub(super) fn refuse_existing(path: &Path, force: bool) -> Result<()> {
    if path.exists() && !force {
        return Err(Failure::usage(format_args!("{} exists already; --force replaces it", path.display())));
    }
    Ok(())
}

/// Passes each line of `file` to `on_line`: the line itself, and the bytes that go into the filter.
pub(super) fn each_line(
    common: &Common,
    file: Option<&Path>,
    on_line: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    Lines::open(file, MAX_LINE)?.each_key(common.form(), on_line)
}

/// Locks the filter at `path` against other writers until the result is dropped. Saving replaces
/// the file: a process that has locked the replaced file opens the new one and retries.
pub(super) fn lock(path: &Path) -> Result<File> {
    let locked = || -> io::Result<File> {
        loop {
            let file = File::open(path)?;
            file.lock()?;
            if same_file::Handle::from_file(file.try_clone()?)? == same_file::Handle::from_path(path)? {
                return Ok(file);
            }
        }
    };
    locked().attempt(format_args!("cannot lock {}", path.display()))
}
