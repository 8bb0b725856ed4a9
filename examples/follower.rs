//! A follower: a second store that stays equal to the first, across restarts of both.
//!
//! `cargo run --example follower`
//!
//! The follower applies the batches of the change feed, those that are there together, and writes
//! its position with them. That is one atomic write, so that a follower that was killed continues
//! where it was: no batch is lost or applied twice. If it was away for longer than the source keeps
//! its log, it copies the source and follows from there. What the source ingests is not in the log:
//! the follower copies the ranges of keys that the ingested tables change.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "an example")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tamis::{
    ChangeBatch, Db, Error, IngestMode, IngestOptions, IngestedTable, Keyspace, OperationKind, Options, Result, SeqNo,
    SstWriter, WriteBatch,
};

/// The copy, and a keyspace of its own for the position.
struct Follower {
    copy: Db,
    state: Keyspace,
}

impl Follower {
    fn open(dir: &Path) -> Result<Follower> {
        let copy = Db::open(dir)?;
        let state = copy.keyspace("follower: state")?;
        Ok(Follower { copy, state })
    }

    /// Everything up to this number of the source is in the copy. `None` before the first copy.
    fn position(&self) -> Result<Option<SeqNo>> {
        let position = self.state.get("position")?;
        Ok(position.map(|bytes| SeqNo::from_be_bytes(bytes.as_ref().try_into().unwrap())))
    }

    fn apply(&self, mut batch: WriteBatch, position: SeqNo) -> Result<()> {
        batch.put_in(&self.state, "position", position.to_be_bytes());
        self.copy.write(batch)?;
        Ok(())
    }

    /// Replaces the copy by the source as it is now. Until that is complete there is no position,
    /// so that a copy that was interrupted begins again.
    fn copy_all(&self, source: &Db) -> Result<()> {
        let (snapshot, _changes) = source.follow()?;
        self.state.delete("position")?;
        for name in source.keyspace_names()? {
            let (from, to) = (snapshot.keyspace(&source.keyspace(&name)?), self.copy.keyspace(&name)?);
            for key in to.keys(..) {
                to.delete(key?)?;
            }
            for entry in from.iter() {
                let (key, value) = entry?;
                to.put(key, value)?;
            }
        }
        self.apply(WriteBatch::new(), snapshot.seqno())
    }

    /// Copies a change to the end of `batch`. Of an ingest, that is nothing: its tables go to
    /// `tables`, with their keyspaces.
    fn add(
        &self,
        changed: &ChangeBatch,
        batch: &mut WriteBatch,
        tables: &mut Vec<(String, IngestedTable)>,
    ) -> Result<SeqNo> {
        for operation in changed.operations() {
            if let OperationKind::Ingest { tables: ingested } = operation.kind {
                tables.extend(ingested.iter().map(|table| (operation.keyspace.to_owned(), table)));
            }
        }
        match changed.append_to(batch, &self.copy) {
            Ok(()) | Err(Error::Ingested { .. }) => Ok(changed.last_seqno()),
            Err(error) => Err(error),
        }
    }

    /// Follows the source until it stops, and until it has all of it.
    fn run(&self, source: &Db, stopped: &AtomicBool) -> Result<()> {
        let mut changes = loop {
            let changes = match self.position()? {
                Some(position) => source.changes_since(position),
                None => Err(Error::LogGone { wanted: 1, oldest: 1 }),
            };
            match changes {
                Err(Error::LogGone { .. }) => self.copy_all(source)?,
                changes => break changes?,
            }
        };
        while !stopped.load(Ordering::Relaxed) || changes.seqno() < source.last_seqno() {
            let Some(changed) = changes.next_timeout(Duration::from_millis(10))? else { continue };
            let (mut batch, mut tables) = (WriteBatch::new(), Vec::new());
            let mut position = self.add(&changed, &mut batch, &mut tables)?;
            // What is there already is written with it, which takes less time.
            while batch.len() < 1000
                && let Some(changed) = changes.next_timeout(Duration::ZERO)?
            {
                position = self.add(&changed, &mut batch, &mut tables)?;
            }
            if !tables.is_empty() {
                // The snapshot is of the position that the batch leads to, and has the ingests.
                // The batch takes as much memory as what it copies: a follower that has not so
                // much copies all of the source, as if the log were gone.
                let snapshot = source.snapshot();
                while position < snapshot.seqno() {
                    let Some(changed) = changes.next_timeout(Duration::from_millis(10))? else { continue };
                    position = self.add(&changed, &mut batch, &mut tables)?;
                }
                for (name, table) in &tables {
                    let (from, to) = (snapshot.keyspace(&source.keyspace(name)?), self.copy.keyspace(name)?);
                    batch.delete_range_in(&to, table.range());
                    for entry in from.range(table.range()) {
                        let (key, value) = entry?;
                        batch.put_in(&to, key, value);
                    }
                }
            }
            self.apply(batch, position)?;
        }
        Ok(())
    }
}

/// Source and follower in `dir`, opened, used and closed three times.
fn run(dir: &Path) -> Result<(usize, usize)> {
    let mut entries = (0, 0);
    for round in 0..3u32 {
        let source = Options::new().keep_log(64 << 20, Duration::from_secs(3600)).open(dir.join("source"))?;
        let users = source.keyspace("users")?;
        // The follower is not there yet: it finds this in the log, or copies it.
        for i in 0..1000u32 {
            users.put((round * 1000 + i).to_be_bytes(), format!("user {i}"))?;
        }
        let follower = Follower::open(&dir.join("copy"))?;
        let stopped = AtomicBool::new(false);
        std::thread::scope(|scope| -> Result<()> {
            let following = scope.spawn(|| follower.run(&source, &stopped));
            for i in 0..1000u32 {
                users.delete((round * 1000 + i).to_be_bytes())?;
                source.put(i.to_be_bytes(), round.to_be_bytes())?;
            }
            // Replaces the last ten by one.
            let (old, new) = (dir.join("old.sst"), dir.join("new.sst"));
            let mut writer = SstWriter::create(&old, &source.sst_format()?)?;
            writer.delete_range(990u32.to_be_bytes()..)?;
            writer.finish()?;
            let mut writer = SstWriter::create(&new, &source.sst_format()?)?;
            writer.put(2000u32.to_be_bytes(), round.to_be_bytes())?;
            writer.finish()?;
            source.ingest([&old, &new], IngestOptions::new().mode(IngestMode::Move))?;
            source.put(2001u32.to_be_bytes(), round.to_be_bytes())?;
            users.put("last round", round.to_be_bytes())?;
            stopped.store(true, Ordering::Relaxed);
            following.join().unwrap()
        })?;
        println!("round {round}: the follower is at {:?} of {}", follower.position()?, source.last_seqno());
        let copied = follower.copy.keyspace("users")?;
        entries = (
            users.keys(..).count() + source.keys(..).count(),
            copied.keys(..).count() + follower.copy.keys(..).count(),
        );
    }
    Ok(entries)
}

fn main() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let (source, copy) = run(dir.path())?;
    println!("{source} entries, {copy} in the copy");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_has_what_the_source_has() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(run(dir.path()).unwrap(), (993, 993));
    }
}
