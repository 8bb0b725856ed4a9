//! About how many keys, and how many bytes, a range has.
//!
//! Sums of what memtables estimate from a sample of their entries and tables from their indexes. No
//! data block is read.

use super::{ReadTarget, tree_of};
use crate::db::range::KeyRange;
use crate::db::store::Store;
use crate::db::{Db, Keyspace};
use crate::error::Result;
use crate::format::span::KeySpan;

/// Estimates for a range of keys. A source with more deletes than puts takes keys away.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Estimate {
    bytes: f64,
    keys: f64,
}

impl Estimate {
    fn add(&mut self, (bytes, keys): (f64, f64)) {
        self.bytes += bytes;
        self.keys += keys;
    }
}

/// Rounds; a negative number becomes 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped first")]
fn rounded(estimate: f64) -> u64 {
    estimate.round().clamp(0.0, u64::MAX as f64) as u64
}

impl Store {
    fn estimate(&self, target: ReadTarget<'_>, range: impl KeyRange) -> Result<Estimate> {
        self.gate.check_open()?;
        let view = self.view_for(target);
        let tree = tree_of(&view, target.keyspace, target.name)?;
        let range = KeySpan::of(range.into_bounds());
        let mut estimate = Estimate::default();
        let (_, covers) = view.covers(tree, None, || view.visible(&self.sequence));
        let covers = covers.as_deref();
        view.memtables().for_each(|memtable| estimate.add(memtable.estimate(tree.id, range.borrowed(), covers)));
        let now = if tree.version.has_deadlines() { self.clock.now() } else { 0 };
        estimate.add(tree.version.estimate(range.borrowed(), now, covers)?);
        Ok(estimate)
    }
}

impl Db {
    /// About how many keys of the default keyspace are in a range; see
    /// [`Keyspace::approximate_len`].
    pub fn approximate_len(&self, range: impl KeyRange) -> Result<u64> {
        self.default_keyspace().approximate_len(range)
    }

    /// About how many bytes a range of the default keyspace takes; see
    /// [`Keyspace::approximate_size`].
    pub fn approximate_size(&self, range: impl KeyRange) -> Result<u64> {
        self.default_keyspace().approximate_size(range)
    }
}

impl Keyspace {
    /// About how many keys are in a range. Reads no data block, whatever the length of the range.
    ///
    /// Tables answer from their metadata and, where a bound of the range lies within one, from its
    /// index; memtables from a sample. The error has six sources:
    ///
    /// - At each bound of the range, less than the entries of one data block in every run: each
    ///   table of level 0, and each level below.
    /// - In a table that a bound divides, entries count as if all blocks had equally many. One with
    ///   large values in one half and small ones in the other may be off by that ratio.
    /// - A key with versions in several memtables, runs or levels counts once for each. A deleted
    ///   key counts as if there were exactly one. Compactions remove both.
    /// - In a table, up to 64 deleted ranges do not count if they are newer than all of it; others
    ///   count until compactions apply them.
    /// - What has expired counts until a quarter of its table has, and in memtables. Compactions
    ///   remove it.
    /// - A range with more than 256 entries in a memtable is sampled there, to a few percent.
    ///
    /// For the whole keyspace, after [`compact_range`](Keyspace::compact_range) and without
    /// snapshots, the number is exact.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// for i in 0..1000 {
    ///     db.put(format!("user:{i:04}"), "a name")?;
    /// }
    /// db.flush()?;
    /// let users = db.default_keyspace();
    /// assert_eq!(users.approximate_len(..)?, 1000);
    /// let some = users.approximate_len("user:0200".."user:0700")?;
    /// assert!((350..650).contains(&some), "500, give or take a block at each end");
    /// assert!(users.approximate_size(..)? > 10_000);
    /// # Ok(()) }
    /// ```
    pub fn approximate_len(&self, range: impl KeyRange) -> Result<u64> {
        Ok(rounded(self.store().estimate(self.target(), range)?.keys))
    }

    /// About how many bytes a range takes: its share of the table files, compressed as they are and
    /// with filters and indexes, and its keys and values in memtables. Reads no data block.
    ///
    /// At each bound of the range, it is off by less than one data block in every run (see
    /// [`approximate_len`](Keyspace::approximate_len)); memtables are sampled. Overwritten and
    /// deleted entries count until compactions remove them, as they take space until then.
    pub fn approximate_size(&self, range: impl KeyRange) -> Result<u64> {
        Ok(rounded(self.store().estimate(self.target(), range)?.bytes))
    }
}
