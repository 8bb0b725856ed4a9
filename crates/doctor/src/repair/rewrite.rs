//! [`Rewrite`]: tables whose readable entries go to new ones.

use std::path::Path;
use std::sync::Arc;

use super::levels::runs;
use super::values::{FoundValues, RescuingCursor};
use crate::error::{Error, Result};
use crate::format::filename::FileKind;
use crate::sorted::merge::MergingCursor;
use crate::sorted::table::{SalvageCursor, SalvageTable};

/// Tables to be rewritten to new ones.
pub(super) struct Rewrite {
    pub(super) keyspace: u32,
    pub(super) level: u8,
    pub(super) tables: Vec<Arc<SalvageTable>>,
    /// Size at which a new table ends.
    pub(super) table_size: u64,
    pub(super) keys: u64,
    /// Number of holes in the tables that the report lists.
    pub(super) holes: u64,
}

/// Where tables that were merged are cut.
pub(super) const MERGED_TABLE_SIZE: u64 = 64 << 20;

impl Rewrite {
    /// The entries of all tables, with the values that were found.
    pub(super) fn cursor(&self, values: &Arc<FoundValues>) -> MergingCursor<RescuingCursor<SalvageCursor>> {
        let runs = runs(&self.tables).into_iter().map(SalvageCursor::new);
        MergingCursor::new(runs.map(|run| RescuingCursor::new(run, values)).collect())
    }

    /// Fails if rewriting the tables met other holes than the report lists. `before` is
    /// [`Self::passed_holes`] before the rewrite.
    pub(super) fn check_holes(&self, dir: &Path, before: u64) -> Result<()> {
        let Some(first) = self.tables.first() else { return Ok(()) };
        match self.passed_holes() - before {
            holes if holes == self.holes => Ok(()),
            _ => {
                let rule = "the second read of this table met other damage than the first";
                Err(Error::corruption(&FileKind::Table(first.number()).path(dir), 0, rule))
            }
        }
    }

    /// Number of holes passed in all reads of the tables.
    pub(super) fn passed_holes(&self) -> u64 {
        self.tables.iter().map(|table| table.holes()).sum()
    }
}
