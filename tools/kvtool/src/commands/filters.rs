//! What the filters of some tables are, taken together.

use std::iter::Sum;
use std::path::Path;

use tamis::TableStats;
use tamis::filter::FilterState;
use tamis::inspect::{FileKind, Inspector};

use crate::failure::Result;

/// Filters of several tables.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Filters {
    /// Bytes of the filter blocks.
    pub(super) bytes: u64,
    keys: u64,
    bits: f64,
    /// Expected false positives if every table were asked for as many absent keys as it has keys.
    expected: f64,
}

impl Filters {
    pub(super) fn bits_per_key(&self) -> Option<f64> {
        (self.keys > 0).then(|| self.bits / self.keys as f64)
    }

    /// False-positive rate of these very filters, each weighted by its keys.
    pub(super) fn expected_rate(&self) -> Option<f64> {
        (self.keys > 0).then(|| self.expected / self.keys as f64)
    }
}

impl Sum for Filters {
    fn sum<I: Iterator<Item = Filters>>(filters: I) -> Filters {
        filters.fold(Filters::default(), |sum, more| Filters {
            bytes: sum.bytes + more.bytes,
            keys: sum.keys + more.keys,
            bits: sum.bits + more.bits,
            expected: sum.expected + more.expected,
        })
    }
}

/// The filters of `tables`, which are in directory `dir`.
pub(super) fn filters_of(dir: &Path, tables: &[TableStats]) -> Result<Filters> {
    let inspector = Inspector::new();
    let mut sum = Vec::new();
    for table in tables {
        let file = inspector.table(&FileKind::Table(table.number).path(dir))?;
        if let FilterState::Usable(info) = file.filter() {
            sum.push(Filters {
                bytes: info.bytes,
                keys: info.keys,
                bits: info.bits_per_key() * info.keys as f64,
                expected: info.expected_fpr * info.keys as f64,
            });
        }
    }
    Ok(sum.into_iter().sum())
}
