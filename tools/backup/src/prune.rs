//! [`Repository::prune`]: gives up old generations, and what only they had.

use std::collections::BTreeSet;
use std::time::SystemTime;

use tamis::{Error, Result};

use crate::journal::{ORPHAN_AGE, record_name, token};
use crate::record::{Generation, Prune, Record};
use crate::segment::SegmentId;
use crate::storage::Listed;
use crate::{DATA, LOG, Repository};

/// What [`Repository::prune`] has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// Generations.
    pub generations: usize,
    /// Files that no generation needs any more, those of interrupted backups included.
    pub files: usize,
    /// Segments of the log that follow no generation any more.
    pub segments: usize,
}

impl Repository {
    /// Removes all generations but the last `keep`, and the files that only they had. At least one
    /// generation is kept.
    ///
    /// Fails without removing anything if a generation that stays cannot be read. In an object
    /// store, files of unfinished backups are removed when they are a week old.
    pub fn prune(&self, keep: usize) -> Result<Pruned> {
        let _lock = self.storage.begin()?;
        loop {
            let journal = self.journal()?;
            let numbers: Vec<u64> = journal.generations().map(|(number, _)| number).collect();
            let (old, kept) = numbers.split_at(numbers.len().saturating_sub(keep.max(1)));
            let oldest = kept.first().copied().unwrap_or(journal.oldest).max(journal.oldest);
            let kept = journal.generations().filter(|(number, _)| *number >= oldest);
            let kept = kept.map(|(_, generation)| generation.map_err(Error::clone)).collect::<Result<Vec<_>>>()?;
            let leaving = journal.generations().filter(|(number, _)| *number < oldest);
            let leaving: Vec<&Generation> = leaving.filter_map(|(_, generation)| generation.ok()).collect();

            let needed = names(&kept);
            let mut known = names(&leaving);
            known.append(&mut journal.given_up());
            let listed = self.storage.list(DATA)?;
            let unneeded = listed.iter().filter(|file| !needed.contains(file.name.as_str()));
            let removed = unneeded.filter(|file| known.contains(file.name.as_str()) || is_orphan(file));
            let removed: BTreeSet<String> = removed.map(|file| file.name.clone()).collect();

            // No later generation needs them either: it states its timeline at a later number.
            let listed = self.storage.list(LOG)?;
            let first_of = |id: SegmentId| kept.iter().filter(|of| of.timeline == id.timeline).map(|of| of.seqno).min();
            let is_left = |file: &&Listed| match SegmentId::parse(&file.name).map(|id| (first_of(id), id.last)) {
                Some((Some(seqno), last)) => last <= seqno,
                // Its follower may be making the next generation.
                _ => is_orphan(file),
            };
            let segments: Vec<String> = listed.iter().filter(is_left).map(|file| file.name.clone()).collect();

            let mut stale = journal.stale.clone();
            if !removed.is_empty() || !old.is_empty() {
                let prune = Prune { token: token(), oldest, removed: removed.clone() };
                if !journal.append(&*self.storage, &Record::Prune(prune))? {
                    continue;
                }
                stale.extend(journal.records.range(..oldest).map(|(number, _)| *number));
            }
            // Nobody reads these records any more, or relies on these files.
            self.storage.remove(&stale.into_iter().map(record_name).collect::<Vec<_>>())?;
            self.storage.remove(&removed.iter().cloned().collect::<Vec<_>>())?;
            self.storage.remove(&segments)?;
            return Ok(Pruned { generations: old.len(), files: removed.len(), segments: segments.len() });
        }
    }
}

fn names<'a>(generations: &[&'a Generation]) -> BTreeSet<&'a str> {
    generations.iter().flat_map(|of| &of.files).map(|file| file.name.as_str()).collect()
}

/// Whether no unfinished backup is going to need a file that no generation needs.
fn is_orphan(file: &Listed) -> bool {
    let age = |modified| SystemTime::now().duration_since(modified).unwrap_or_default();
    file.modified.is_none_or(|modified| age(modified) > ORPHAN_AGE)
}
