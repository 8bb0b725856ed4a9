//! The commit of a transaction: checks what was written since its snapshot, then writes.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::db::commit::{Encoded, Outcome};
use crate::db::premise::{Moment, Premise, Refusal};
use crate::db::read::tree_of;
use crate::db::read_set::{Expiring, ReadSet};
use crate::db::store::Store;
use crate::db::view::ReadView;
use crate::db::write::WriteOptions;
use crate::error::{Error, Result};
use crate::format::deadline::NEVER;
use crate::format::key::SeqNo;
use crate::options::FilterMode;
use crate::sorted::iter::{InternalCursor, Stamped};
use crate::sorted::table::{PointRead, ReadMode};
use crate::tree::version::ScanSource;
use crate::write::batch::WriteBatch;

/// Most entries that a commit checks under the commit lock. If more were written since the check
/// without the lock, that check is repeated, up to `ROUNDS` times.
const MOST_ENTRIES: usize = 4096;
const ROUNDS: u32 = 3;

impl Store {
    /// Writes a batch if nothing that `reads` covers was written after `since`.
    pub(super) fn write_if_unchanged(
        self: &Arc<Self>,
        batch: WriteBatch,
        options: WriteOptions,
        reads: Arc<ReadSet>,
        mut since: SeqNo,
    ) -> Result<SeqNo> {
        let batch = self.batch_with_deadlines(batch, options);
        self.check_batch(&batch)?;
        let deadline = reads.expiring().map_or(NEVER, |first| first.deadline);
        let logged = self.logged_part(&batch, options)?;
        let encoded = Encoded::of(batch, logged, options.sync);
        for round in 1.. {
            let view = self.view.load();
            let moment = Moment::of(&view, &self.sequence);
            if let Some(refusal) = self.find_newer(&view, &reads, since..=moment.seqno)? {
                return Err(conflict(&view, refusal));
            }
            since = moment.seqno;
            let most_entries = if round <= ROUNDS { MOST_ENTRIES } else { usize::MAX };
            let premise = Premise::on_set(moment, Arc::clone(&reads), most_entries).until(deadline);
            match self.write_encoded(encoded.borrowed(), Some(&premise))? {
                Outcome::Committed(last) => return Ok(last),
                Outcome::Refused(Refusal::Stale) => {}
                Outcome::Refused(Refusal::Expired) => {
                    return Err(reads.expiring().map_or(Error::Closed, |first| expired(&view, first)));
                }
                Outcome::Refused(refusal) => return Err(conflict(&view, refusal)),
            }
        }
        Err(Error::invalid("a transaction was not checked; this is a bug in tamis"))
    }

    /// Looks for a write between two moments to something that `reads` covers, in `view`. May read
    /// blocks.
    ///
    /// A write after the later moment is none: it may not be visible yet, and the next attempt
    /// would meet it again. The premise finds it under the commit lock; if it is an ingest, the
    /// premise is stale.
    fn find_newer(&self, view: &ReadView, reads: &ReadSet, moments: RangeInclusive<SeqNo>) -> Result<Option<Refusal>> {
        let (since, until) = moments.into_inner();
        let is_newer = |seqno: SeqNo| since < seqno && seqno <= until;
        let memtables = || view.memtables().filter(|memtable| memtable.last_seqno() > since);
        if let Some(refusal) = deleted_range(view, reads, since, is_newer) {
            return Ok(Some(refusal));
        }
        let mode = ReadMode { filters: FilterMode::Use, fill_cache: true, values: true };
        for read in reads.keys() {
            let tree = tree_of(view, read.keyspace, &read.name)?;
            let point = PointRead { key: &read.key, hash: read.hash, snapshot: SeqNo::MAX, cover: 0, mode };
            if memtables().any(|memtable| is_newer(read.newest_in(memtable))) || tree.version.is_newer(&point, since)? {
                return Ok(Some(Refusal::of(read)));
            }
        }
        for (read, range) in reads.ranges() {
            let tree = tree_of(view, read.keyspace, &read.name)?;
            let mut sources = Vec::new();
            sources.extend(memtables().map(|memtable| ScanSource::Memtable(memtable.cursor(tree.id))));
            let lower = range.lower.as_deref().unwrap_or_default();
            tree.version.cursors_newer(since, range, &mut sources);
            for source in &mut sources {
                source.seek(lower, SeqNo::MAX)?;
                while source.valid() && range.upper.as_deref().is_none_or(|upper| source.key() < upper) {
                    if is_newer(source.seqno()) {
                        return Ok(Some(Refusal::Written(tree.id, source.key().to_vec())));
                    }
                    source.next()?;
                }
            }
        }
        Ok(None)
    }
}

/// The conflict that a value which was read has expired.
fn expired(view: &ReadView, value: &Expiring) -> Error {
    conflict(view, Refusal::Written(value.keyspace, value.key.to_vec()))
}

/// Looks for a range delete after `since`, one that `is_newer`, that deletes something that `reads`
/// covers.
fn deleted_range(view: &ReadView, reads: &ReadSet, since: SeqNo, is_newer: impl Fn(SeqNo) -> bool) -> Option<Refusal> {
    let keyspaces =
        reads.keys().iter().map(|read| read.keyspace).chain(reads.ranges().iter().map(|(of, _)| of.keyspace));
    let keyspaces: BTreeSet<u32> = keyspaces.collect();
    keyspaces.into_iter().find_map(|keyspace| {
        let in_memory = view.memtables().filter(|memtable| memtable.last_seqno() > since);
        let in_memory = in_memory.flat_map(|memtable| memtable.ranges(keyspace));
        let ranges = view.tree(keyspace).map(|tree| Arc::clone(tree.version.ranges()));
        let tables = ranges.iter().flat_map(|ranges| ranges.tables());
        let newer = tables.filter(|table| table.meta().largest_seqno > since).flat_map(|table| table.fragments());
        // Ranges that are gone deleted nothing that the transaction's snapshot sees.
        let mut newer = in_memory.chain(newer).filter(|range| is_newer(range.seqno));
        newer.find_map(|range| {
            let key = reads.find_within(keyspace, &range.start, range.stored_end())?;
            Some(Refusal::Written(keyspace, key.to_vec()))
        })
    })
}

fn conflict(view: &ReadView, refusal: Refusal) -> Error {
    let Refusal::Written(keyspace, key) = refusal else {
        return Error::invalid("a conflict without a key; this is a bug in tamis");
    };
    let name = view.tree(keyspace).map_or_else(|| format!("number {keyspace}"), |tree| tree.name.to_string());
    Error::Conflict { keyspace: name, key }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::read_set::ReadIn;
    use crate::filter::KeyHash;
    use crate::format::key::ValueKind;
    use crate::options::Options;
    use crate::vfs::MemoryFileSystem;

    /// CI of a loaded machine: a thread was interrupted between its write and the moment at which
    /// that became visible. Another met the same conflict 32 times meanwhile, and gave up.
    #[test]
    fn a_write_that_is_not_visible_yet_is_left_to_the_premise() {
        let db = Options::new().file_system(Arc::new(MemoryFileSystem::new())).open("/db").unwrap();
        db.put("y", "0").unwrap();
        let store = db.store();
        let mut reads = ReadSet::default();
        let of = ReadIn { keyspace: 0, name: Arc::from("default") };
        reads.add_key(of, b"y", KeyHash::new(store.seed, b"y"));
        reads.sort();
        let reads = Arc::new(reads);

        let commit = store.commit.lock();
        let commit = commit.as_ref().unwrap();
        let (view, before) = (store.view.load(), store.sequence.visible());
        let moment = Moment::of(&view, &store.sequence);
        commit.memtable.writer().insert(0, b"y", before + 1, ValueKind::Put, b"1");
        let newer = |until: SeqNo| store.find_newer(&view, &reads, before..=until).unwrap();
        let written = Some(Refusal::Written(0, b"y".to_vec()));
        assert_eq!(newer(before), None);
        assert_eq!(Premise::on_set(moment, Arc::clone(&reads), 10).refusal(&commit.memtable), written);
        store.sequence.publish(before + 1);
        assert_eq!(newer(store.sequence.visible()), written);
    }
}
