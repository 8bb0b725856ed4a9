//! `multi_get`: reads many keys at once.
//!
//! Keys that no memtable answers take the steps of a look-up together
//! (`crates/tree/src/version/multi_get.rs`), so that their cache misses overlap. Blocks that must
//! be read come in file order and, once a read has waited for the device, with read-ahead
//! (`crates/sorted/src/table/pending.rs`).

use super::{ReadOptions, ReadTarget, tree_of};
use crate::db::shape::view::{Hit, ReadView};
use crate::db::store::Store;
use crate::error::Result;
use crate::filter::KeyHash;
use crate::format::key::{ValueKind, Window};
use crate::sorted::table::PointRead;
use crate::sorted::trace::Untraced;
use crate::sorted::value::{Value, ValueBatch};
use crate::tree::version::MultiGet;

impl Store {
    /// Returns the values of `keys`, in their order, all as of one moment.
    pub(crate) fn multi_get<K: AsRef<[u8]>>(
        &self,
        target: ReadTarget<'_>,
        keys: &[K],
        options: ReadOptions,
    ) -> Result<Vec<Option<Value>>> {
        self.gate.check_open()?;
        // The view first, the sequence number second: see `ReadView`. Counted, not pinned: the
        // batch may be long.
        let view = self.view_for(target);
        let tree = tree_of(&view, target.keyspace, target.name)?;
        let (snapshot, covers) = view.covers(tree, target.seqno(), || view.visible(&self.sequence));
        let mode = options.mode();
        let window = |key: &[u8]| Window::above(covers.as_ref().map_or(0, |covers| covers.cover(key)), snapshot);
        let read = |key| PointRead { key, hash: KeyHash::new(self.seed, key), window: window(key), mode };
        let reads: Vec<PointRead<'_>> = keys.iter().map(|key| read(key.as_ref())).collect();

        let at = target.at().or_else(|| Some(self.clock.time_of_read()));
        let mut values = ValueBatch::new(keys.len());
        // Keys whose newest version is an operand.
        let mut merged = Vec::new();
        let mut take = |i: usize, kind: ValueKind, hit: Hit<'_>| {
            match kind {
                ValueKind::Merge => merged.push(i),
                _ => match view.see(tree, &reads[i], at, &mut Untraced, kind, hit)? {
                    Some(hit) if values.try_copy(i, hit.bytes()) => {}
                    hit => values.set(i, hit.map(Hit::into_value)),
                },
            }
            Ok(())
        };
        let mut pending: Vec<usize> = (0..keys.len()).collect();
        for memtable in view.memtables().filter(|memtable| !memtable.is_empty()) {
            let mut left = 0;
            for at in 0..pending.len() {
                let i = pending[at];
                match memtable.get(tree.id, reads[i].key, reads[i].hash, reads[i].window) {
                    Some(entry) => take(i, entry.kind, Hit::in_memtable(memtable, entry))?,
                    None => (pending[left], left) = (i, left + 1),
                }
            }
            pending.truncate(left);
        }
        let batch = MultiGet::new(&reads, pending, |i, hit| take(i, hit.kind, Hit::Table(hit.value)));
        let absent = batch.run(&tree.version, self.tables.epoch())?;
        for _ in absent.iter().filter(|i| reads[**i].window.is_covered()) {
            ReadView::count_covered(tree, &mut Untraced);
        }
        for i in merged {
            values.set(i, view.merged(tree, &reads[i], at, &mut Untraced)?.map(Value::from));
        }
        Ok(values.into_values())
    }
}
