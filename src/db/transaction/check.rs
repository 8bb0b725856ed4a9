//! The commit of a transaction: checks what was written since its snapshot, then writes.

use std::collections::BTreeSet;
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
            if let Some(refusal) = self.find_newer(&view, &reads, since)? {
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

    /// Looks for a write after `since` to something that `reads` covers, in `view`. May read
    /// blocks.
    fn find_newer(&self, view: &ReadView, reads: &ReadSet, since: SeqNo) -> Result<Option<Refusal>> {
        let memtables = || view.memtables().filter(|memtable| memtable.last_seqno() > since);
        if let Some(refusal) = deleted_range(view, reads, since) {
            return Ok(Some(refusal));
        }
        let mode = ReadMode { filters: FilterMode::Use, fill_cache: true, values: true };
        for read in reads.keys() {
            let tree = tree_of(view, read.keyspace, &read.name)?;
            let point = PointRead { key: &read.key, hash: read.hash, snapshot: SeqNo::MAX, cover: 0, mode };
            if memtables().any(|memtable| read.newest_in(memtable) > since) || tree.version.is_newer(&point, since)? {
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
                    if source.seqno() > since {
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

/// Looks for a range delete after `since` that deletes something that `reads` covers.
fn deleted_range(view: &ReadView, reads: &ReadSet, since: SeqNo) -> Option<Refusal> {
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
        let mut newer = in_memory.chain(newer).filter(|range| range.seqno > since);
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
