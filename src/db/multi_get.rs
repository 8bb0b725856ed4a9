//! `multi_get`: reads many keys at once.
//!
//! Keys that no memtable answers take the steps of a look-up together
//! (`tree/version/multi_get.rs`), so that their cache misses overlap. Blocks that must be read come
//! in file order and, once a read has waited for the device, with read-ahead
//! (`sorted/table/pending.rs`).

use super::clock::Now;
use super::read::{ReadOptions, ReadTarget, tree_of};
use super::store::Store;
use super::view::Hit;
use crate::error::Result;
use crate::filter::KeyHash;
use crate::format::deadline::split_expiring;
use crate::format::key::ValueKind;
use crate::report::explain::Untraced;
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
        let view = self.view_for(target);
        let tree = tree_of(&view, target.keyspace, target.name)?;
        let (snapshot, covers) = view.covers(tree, target.seqno(), || view.visible(&self.sequence));
        let mode = options.mode();
        let cover = |key: &[u8]| covers.as_ref().map_or(0, |covers| covers.cover(key));
        let read = |key| PointRead { key, hash: KeyHash::new(self.seed, key), snapshot, cover: cover(key), mode };
        let reads: Vec<PointRead<'_>> = keys.iter().map(|key| read(key.as_ref())).collect();

        let mut now = Now::new(target.at());
        let mut values = vec![None; keys.len()];
        // Keys whose newest version is an operand.
        let mut merged = Vec::new();
        let mut misplaced = None;
        let mut pending: Vec<usize> = (0..keys.len()).collect();
        // Before any filter is asked: a filter would deny what a range deletes, or a block be read.
        for i in pending.extract_if(.., |i| reads[*i].cover > 0) {
            let hit = view.get_above(tree, &reads[i], Some(now.get(&tree.clock)), &mut Untraced)?;
            values[i] = hit.map(Hit::into_value);
        }
        for memtable in view.memtables().filter(|memtable| !memtable.is_empty()) {
            pending.retain(|&i| {
                let Some(entry) = memtable.get(tree.id, reads[i].key, reads[i].hash, snapshot) else { return true };
                match entry.kind {
                    ValueKind::Put => values[i] = Some(Value::copy_of(entry.value)),
                    ValueKind::Delete => {}
                    kind @ (ValueKind::DeleteRange
                    | ValueKind::SeparatePut
                    | ValueKind::SeparateExpiringPut
                    | ValueKind::Ingest) => misplaced = Some((i, kind)),
                    ValueKind::Merge => merged.push(i),
                    ValueKind::ExpiringPut => {
                        let (deadline, value) = split_expiring(entry.value);
                        values[i] = (!now.is_past(deadline, &tree.clock)).then(|| Value::copy_of(value));
                    }
                }
                false
            });
        }
        if let Some((_, kind)) = misplaced {
            return Err(kind.misplaced("a memtable"));
        }
        let batch = MultiGet::new(&reads, pending, |i, hit| match hit.kind {
            ValueKind::Put => values[i] = Some(hit.value.into_value()),
            ValueKind::Delete => {}
            kind @ (ValueKind::DeleteRange
            | ValueKind::SeparatePut
            | ValueKind::SeparateExpiringPut
            | ValueKind::Ingest) => misplaced = Some((i, kind)),
            ValueKind::Merge => merged.push(i),
            ValueKind::ExpiringPut => {
                let is_past = now.is_past(split_expiring(hit.value.bytes()).0, &tree.clock);
                values[i] = (!is_past).then(|| hit.value.without_deadline().into_value());
            }
        });
        batch.run(&tree.version, self.tables.epoch())?;
        if let Some((i, kind)) = misplaced {
            return Err(tree.version.misplaced(&reads[i], kind));
        }
        for i in merged {
            values[i] = Some(Value::from(view.merged(tree, &reads[i], &mut now, &mut Untraced)?));
        }
        Ok(values)
    }
}
