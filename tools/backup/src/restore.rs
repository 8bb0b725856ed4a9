//! Makes stores of generations, and of points in time between them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tamis::inspect::FileKind;
use tamis::{CopiedLog, Db, Error, KeyspaceCopy, ProgressMeter, Result, SeqNo, StoreCopy};
use xxhash_rust::xxh3::Xxh3;

use crate::backup::compare;
use crate::record::StoreId;
use crate::record::{Generation, StoredFile, millis};
use crate::segment::{Chain, SegmentId, Segments, batches};
use crate::store::Base;
use crate::{Repository, damaged, invalid};

/// A state of a store that a repository may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Point {
    /// As of this time: after the batches that a follower had read by then.
    Time(SystemTime),
    /// After all batches up to this sequence number.
    Seqno(SeqNo),
}

/// A keyspace in a state of a store that a repository may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceAt<'a> {
    /// Its name there.
    pub keyspace: &'a str,
    /// The state; that of the last generation that `base` names if this is `None`.
    pub point: Option<Point>,
    /// What the restore begins with.
    pub base: Base,
}

impl<'a> KeyspaceAt<'a> {
    /// A keyspace as the last generation of `base` has it.
    pub fn last(base: Base, keyspace: &'a str) -> KeyspaceAt<'a> {
        KeyspaceAt { keyspace, point: None, base }
    }

    /// A keyspace as the generation of this number has it.
    pub fn generation(number: u64, keyspace: &'a str) -> KeyspaceAt<'a> {
        KeyspaceAt::last(Base::Generation(number), keyspace)
    }

    /// A keyspace as it was at a point; see [`Repository::restore_to`].
    pub fn point(point: Point, base: Base, keyspace: &'a str) -> KeyspaceAt<'a> {
        KeyspaceAt { keyspace, point: Some(point), base }
    }
}

/// What a restore has made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The generation that it began with.
    pub generation: Generation,
    /// The sequence number of the last write.
    pub seqno: SeqNo,
    /// The time of the last write, or of the generation if there are none after it.
    pub time: SystemTime,
}

/// The points that can be restored from a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reach {
    /// Its number.
    pub generation: u64,
    /// Which store it is of.
    pub store: StoreId,
    /// When it was made.
    pub from: SystemTime,
    /// The time of the last write that follows it; `from` if there is none.
    pub until: SystemTime,
    /// The sequence number of that write.
    pub seqno: SeqNo,
}

impl Repository {
    /// Makes a store of a generation in `dir`, which must be absent or empty, or hold a restore
    /// that was interrupted. When this returns, the store survives a power cut. Until then, opening
    /// it fails with [`Error::Incomplete`].
    ///
    /// Every file is compared with its hash. If one differs, the restore fails with
    /// [`Error::Corruption`], and leaves nothing.
    pub fn restore(&self, number: u64, dir: impl AsRef<Path>) -> Result<Generation> {
        let generation = self.generation(number)?;
        StoreCopy::make(Arc::clone(&self.fs), dir, |copy| self.put_files(&generation, copy))?;
        Ok(generation)
    }

    /// Makes a store of what a [`Follower`](crate::Follower) has kept of it, as it was at `point`,
    /// like [`restore`](Repository::restore). Batches stay whole, and their sequence numbers stay
    /// the same. Keyspaces without a log are as they are in the generation.
    ///
    /// It begins with the generation that `base` names, or with that of its store from which it
    /// comes closest to the point, and of those with the last. If the repository has several
    /// stores, copies that have gone on apart included, [`Base::OnlyStore`] is an error that lists
    /// them. A time that lies after the last write that was
    /// followed gives the store as of that write; [`Restored::time`] says so.
    ///
    /// Fails with [`Error::InvalidArgument`] if the repository has nothing as old as that, or
    /// lacks the number.
    pub fn restore_to(&self, point: Point, base: Base, dir: impl AsRef<Path>) -> Result<Restored> {
        let segments = Segments::list(&*self.storage)?;
        let generation = self.nearest(point, base, &segments)?;
        let end = StoreCopy::make(Arc::clone(&self.fs), dir, |copy| {
            self.put_files(&generation, copy)?;
            self.put_log(&generation, point, &segments, copy)
        })?;
        Ok(restored(generation, end))
    }

    /// Brings one keyspace of a generation, or of a point in time, into a store that is open, as
    /// the keyspace `name`: its options and its entries. The store's other keyspaces stay as they
    /// are.
    ///
    /// When this returns, the keyspace is there and survives a power cut. Until then, and after an
    /// error or a crash, there is none of this name: see [`Db::copy_keyspace`], by which it comes.
    /// The files that it needs are first put into the directory `scratch`, which must be absent or
    /// empty, or hold a restore that was interrupted; it is empty afterwards, but for a lock file.
    ///
    /// Fails with [`Error::InvalidArgument`] if the store has a keyspace called `name`, or if the
    /// generation has none called as [`KeyspaceAt`] says. A merge operator need not be known to
    /// the program; a compaction filter must be set anew.
    pub fn restore_keyspace(
        &self,
        from: KeyspaceAt<'_>,
        db: &Db,
        name: &str,
        scratch: impl AsRef<Path>,
    ) -> Result<(Restored, KeyspaceCopy)> {
        if db.existing_keyspace(name)?.is_some() {
            return Err(invalid(format_args!(
                "there is a keyspace {name:?} in {}; restore this one under another name, or drop that one first",
                db.path().display()
            )));
        }
        let KeyspaceAt { keyspace, point, base, .. } = from;
        let segments = Segments::list(&*self.storage)?;
        let generation = match point {
            Some(point) => self.nearest(point, base, &segments)?,
            None => self.last(base)?,
        };
        let fill = |copy: &StoreCopy| {
            let total = self.put_keyspace(&generation, keyspace, copy)?;
            let end = match point {
                Some(point) => self.put_log(&generation, point, &segments, copy)?,
                None => (generation.seqno, millis(generation.time)),
            };
            Ok((end, total))
        };
        let done = StoreCopy::read_once(Arc::clone(&self.fs), scratch, fill, |source, (end, total)| {
            let gone = || invalid(format_args!("there is no keyspace {keyspace:?} in the copy"));
            let source = source.existing_keyspace(keyspace)?.ok_or_else(gone)?;
            let copied = db.copy_keyspace(&source, name, &self.progress.part(total / 2, total, total))?;
            // A keyspace without tables has no size.
            self.progress.part(total, total, total).meter(0);
            Ok((end, copied))
        });
        done.map(|(end, copied)| (restored(generation, end), copied))
    }

    /// Puts what a keyspace needs of a generation into a copy. Returns twice its bytes: half of a
    /// restore is to bring the files here, and half to bring the entries into the store.
    fn put_keyspace(&self, generation: &Generation, keyspace: &str, copy: &StoreCopy) -> Result<u64> {
        let is_large = |file: &&StoredFile| matches!(file.kind, FileKind::Table(_) | FileKind::Values(_));
        let (large, small): (Vec<_>, Vec<_>) = generation.files.iter().partition(is_large);
        small.into_iter().try_for_each(|file| self.put_file(file, copy, &ProgressMeter::default()))?;
        let needed: BTreeSet<FileKind> =
            copy.keep_keyspace(keyspace).map(BTreeSet::from_iter).map_err(|error| match error {
                Error::InvalidArgument(what) => invalid(format_args!("generation {}: {what}", generation.number)),
                error => error,
            })?;
        let needed: Vec<_> = large.into_iter().filter(|file| needed.contains(&file.kind)).collect();
        let total = 2 * needed.iter().map(|file| file.size).sum::<u64>();
        let meter = self.progress.meter(total);
        needed.into_iter().try_for_each(|file| self.put_file(file, copy, &meter))?;
        Ok(total)
    }

    /// The generation with which a restore to a point begins.
    fn nearest(&self, point: Point, base: Base, segments: &Segments) -> Result<Generation> {
        let generations = self.candidates(base)?;
        let is_before = |of: &&Generation| match point {
            Point::Time(time) => of.time <= time,
            Point::Seqno(seqno) => of.seqno <= seqno,
        };
        let closeness = |of: &&Generation| {
            let (time, seqno) = segments.after(of).end(of);
            match point {
                Point::Time(wanted) => time.min(millis(wanted)),
                Point::Seqno(wanted) => seqno.min(wanted),
            }
        };
        // Of equals, the last one.
        let Some(generation) = generations.iter().filter(is_before).max_by_key(closeness) else {
            return Err(invalid(format_args!("{} has no generation as old as that", self.path().display())));
        };
        let chain = segments.after(generation);
        let last = chain.end(generation).1;
        if let Point::Seqno(wanted) = point
            && last < wanted
            && chain.missing.is_none()
        {
            return Err(invalid(format_args!(
                "{} has no write of number {wanted}; the last one after generation {} is {last}",
                self.path().display(),
                generation.number
            )));
        }
        Ok(generation.clone())
    }

    /// Adds to a copy what followed its generation up to a point; returns number and time of the
    /// last write.
    fn put_log(
        &self,
        generation: &Generation,
        point: Point,
        segments: &Segments,
        copy: &StoreCopy,
    ) -> Result<(SeqNo, u64)> {
        let mut log = copy.log(generation.seqno);
        let end = self.replay(generation, &segments.after(generation), point, &mut log)?;
        log.finish()?;
        Ok(end)
    }

    /// What can be restored from each generation.
    pub fn reach(&self) -> Result<Vec<Reach>> {
        let (generations, segments) = (self.generations()?, Segments::list(&*self.storage)?);
        let reach = generations.iter().map(|generation| {
            let (until, seqno) = segments.after(generation).end(generation);
            let until = SystemTime::UNIX_EPOCH + Duration::from_millis(until);
            Reach { generation: generation.number, store: generation.store, from: generation.time, until, seqno }
        });
        Ok(reach.collect())
    }

    fn put_files(&self, generation: &Generation, copy: &StoreCopy) -> Result<()> {
        let meter = self.progress.meter(generation.bytes());
        generation.files.iter().try_for_each(|file| self.put_file(file, copy, &meter))
    }

    fn put_file(&self, file: &StoredFile, copy: &StoreCopy, meter: &ProgressMeter) -> Result<()> {
        copy.write(file.kind, |put| {
            let (mut hash, mut len) = (Xxh3::new(), 0);
            self.storage.read(&file.name, &mut |bytes| {
                hash.update(bytes);
                len += bytes.len() as u64;
                meter.add(bytes.len() as u64);
                put(bytes)
            })?;
            compare(&*self.storage, file, (hash.digest(), len))
        })
    }

    /// Adds the batches after a generation up to a point; returns number and time of the last one.
    fn replay(
        &self,
        generation: &Generation,
        chain: &Chain<'_>,
        point: Point,
        log: &mut CopiedLog<'_>,
    ) -> Result<(SeqNo, u64)> {
        let mut end = (generation.seqno, millis(generation.time));
        let is_needed = |segment: &&SegmentId| !matches!(point, Point::Seqno(wanted) if segment.first > wanted);
        for segment in chain.segments.iter().take_while(is_needed) {
            let bytes = segment.read(&*self.storage)?;
            for batch in batches(&bytes).filter(|batch| batch.first > generation.seqno) {
                let is_later = match point {
                    Point::Time(wanted) => batch.time > millis(wanted),
                    Point::Seqno(wanted) => batch.last > wanted,
                };
                if is_later {
                    return Ok(end);
                }
                let added = log.add(batch.first, batch.last, batch.encoded);
                added.map_err(|error| self.in_segment(segment, error))?;
                end = (batch.last, batch.time.max(end.1));
            }
        }
        match chain.missing {
            // Later segments are there, so that this is no end.
            Some(missing) if point != Point::Seqno(missing - 1) => {
                Err(damaged(&*self.storage, crate::LOG, missing_rule(generation, missing)))
            }
            _ => Ok(end),
        }
    }

    /// A batch that a segment holds, and its store does not take, was damaged before it was hashed.
    fn in_segment(&self, segment: &SegmentId, error: Error) -> Error {
        match error {
            Error::InvalidArgument(rule) => damaged(&*self.storage, &segment.name(), rule),
            error => error,
        }
    }
}

fn restored(generation: Generation, (seqno, time): (SeqNo, u64)) -> Restored {
    Restored { generation, seqno, time: SystemTime::UNIX_EPOCH + Duration::from_millis(time) }
}

/// What is wrong with segments that do not follow each other.
pub(crate) fn missing_rule(generation: &Generation, missing: SeqNo) -> String {
    format!(
        "no segment of timeline {:016x} begins with number {missing}, and there are later ones",
        generation.timeline
    )
}
