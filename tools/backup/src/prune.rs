//! [`Repository::prune`]: gives up old generations, and what only they had.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use tamis::Result;

use crate::journal::{Journal, ORPHAN_AGE, record_name, token};
use crate::record::StoreId;
use crate::record::{Generation, Prune, Record, Standing};
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

/// What a prune does with the generations.
struct Choice<'a> {
    kept: Vec<&'a Generation>,
    leaving: Vec<&'a Generation>,
    /// How many records leave, those that cannot be read included.
    left: usize,
}

impl<'a> Choice<'a> {
    /// Keeps the last generations of each store, as many as `keep` says, or all for `None`.
    fn new(journal: &'a Journal, keep: &dyn Fn(StoreId) -> Option<usize>) -> Result<Choice<'a>> {
        let all = || journal.generations().filter_map(|(_, generation)| generation.ok());
        let (mut kept, mut leaving, mut counts) = (Vec::new(), Vec::new(), BTreeMap::new());
        for generation in all().collect::<Vec<_>>().into_iter().rev() {
            let later: &mut usize = counts.entry(generation.store).or_default();
            let stays = keep(generation.store).is_none_or(|keep| *later < keep);
            *later += 1;
            if stays { kept.push(generation) } else { leaving.push(generation) }
        }
        // Nobody knows of which store one is that cannot be read: it leaves after all others.
        let first = kept.last().map(|generation| generation.number);
        let mut left = leaving.len();
        for (number, generation) in journal.generations() {
            match generation {
                Err(error) if first.is_none_or(|first| number > first) => return Err(error.clone()),
                Err(_) => left += 1,
                Ok(_) => {}
            }
        }
        Ok(Choice { kept, leaving, left })
    }
}

impl Repository {
    /// Removes, of each store in the repository, all generations but the last `keep`, and the files
    /// that only they had. At least one generation of each store is kept.
    ///
    /// Fails without removing anything if a generation that stays cannot be read. In an object
    /// store, files of unfinished backups are removed when they are a week old.
    pub fn prune(&self, keep: usize) -> Result<Pruned> {
        self.prune_with(&|_| Some(keep.max(1)))
    }

    /// Removes all generations of one store but the last `keep`, like [`prune`](Repository::prune),
    /// and leaves those of other stores alone. With 0, the repository forgets the store; one that
    /// follows it then begins anew.
    pub fn prune_store(&self, store: StoreId, keep: usize) -> Result<Pruned> {
        self.prune_with(&|of| (of == store).then_some(keep))
    }

    fn prune_with(&self, keep: &dyn Fn(StoreId) -> Option<usize>) -> Result<Pruned> {
        let _lock = self.storage.begin()?;
        loop {
            let journal = self.journal()?;
            let Choice { kept, leaving, left } = Choice::new(&journal, keep)?;

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
            if !removed.is_empty() || left > 0 {
                let numbers = kept.iter().map(|generation| generation.number).collect();
                let standing = Standing { oldest: journal.newest + 1, kept: numbers };
                stale.extend(journal.records.keys().filter(|number| !standing.counts(**number)));
                let prune = Prune { token: token(), standing, removed: removed.clone() };
                if !journal.append(&*self.storage, &Record::Prune(prune))? {
                    continue;
                }
            }
            // Nobody reads these records any more, or relies on these files.
            self.storage.remove(&stale.into_iter().map(record_name).collect::<Vec<_>>())?;
            self.storage.remove(&removed.iter().cloned().collect::<Vec<_>>())?;
            self.storage.remove(&segments)?;
            return Ok(Pruned { generations: left, files: removed.len(), segments: segments.len() });
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
