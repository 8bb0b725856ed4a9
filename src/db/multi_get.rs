//! `multi_get`: reads many keys at once.

use super::read::{ReadOptions, ReadTarget, tree_of};
use super::store::Store;
use crate::error::Result;
use crate::filter::KeyHash;
use crate::format::key::ValueKind;
use crate::sorted::table::PointRead;
use crate::sorted::value::Value;
use crate::tree::version::MultiGet;

impl Store {
    /// Returns the values of `keys`, in their order, all as of one moment.
    pub(super) fn multi_get<K: AsRef<[u8]>>(
        &self,
        target: ReadTarget<'_>,
        keys: &[K],
        options: ReadOptions,
    ) -> Result<Vec<Option<Value>>> {
        self.gate.check_open()?;
        // The view first, the sequence number second: see `ReadView`. Counted, not pinned: the
        // batch may be long.
        let view = self.view.load();
        let snapshot = target.snapshot.unwrap_or_else(|| self.sequence.visible());
        let tree = tree_of(&view, target.keyspace, target.name)?;
        let mode = options.mode();
        let read = |key| PointRead { key, hash: KeyHash::new(self.seed, key), snapshot, mode };
        let reads: Vec<PointRead<'_>> = keys.iter().map(|key| read(key.as_ref())).collect();

        let mut values = vec![None; keys.len()];
        let mut pending: Vec<usize> = (0..keys.len()).collect();
        for memtable in view.memtables().filter(|memtable| !memtable.is_empty()) {
            pending.retain(|&i| {
                let Some(entry) = memtable.get(tree.id, reads[i].key, reads[i].hash, snapshot) else { return true };
                if entry.kind == ValueKind::Put {
                    values[i] = Some(Value::copy_of(entry.value));
                }
                false
            });
        }
        let batch = MultiGet::new(&reads, pending, |i, hit| {
            if hit.kind == ValueKind::Put {
                values[i] = Some(hit.value.into_value());
            }
        });
        batch.run(&tree.version, self.tables.epoch())?;
        Ok(values)
    }
}
