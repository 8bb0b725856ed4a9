//! What the filters of some tables are, taken together.

use std::fmt;
use std::iter::Sum;
use std::path::Path;

use tamis::TableStats;
use tamis::filter::FilterState;
use tamis::inspect::{FileKind, Inspector};

use crate::failure::Result;
use crate::text::{count, size};

/// Filters of several tables.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Filters {
    /// Bytes of the filter blocks.
    pub(super) bytes: u64,
    keys: u64,
    bits: f64,
    /// Expected false positives if every table were asked for as many absent keys as it has keys.
    expected: f64,
    /// Tables that were written without a filter.
    pub(super) none: u64,
    /// Tables whose filter cannot be used and means "maybe".
    pub(super) damaged: u64,
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

impl fmt::Display for Filters {
    /// Their size, and which tables add nothing to it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = [(self.none, "without"), (self.damaged, "damaged")];
        let why: Vec<String> =
            why.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{} {why}", count(*n))).collect();
        match why.is_empty() {
            true => write!(f, "{}", size(self.bytes)),
            false => write!(f, "{} ({})", size(self.bytes), why.join(", ")),
        }
    }
}

impl Sum for Filters {
    fn sum<I: Iterator<Item = Filters>>(filters: I) -> Filters {
        filters.fold(Filters::default(), |sum, more| Filters {
            bytes: sum.bytes + more.bytes,
            keys: sum.keys + more.keys,
            bits: sum.bits + more.bits,
            expected: sum.expected + more.expected,
            none: sum.none + more.none,
            damaged: sum.damaged + more.damaged,
        })
    }
}

/// The filters of `tables`, which are in directory `dir`.
pub(super) fn filters_of(dir: &Path, tables: &[TableStats]) -> Result<Filters> {
    let inspector = Inspector::new();
    let mut sum = Vec::new();
    for table in tables {
        let file = inspector.table(&FileKind::Table(table.number).path(dir))?;
        sum.push(match file.filter() {
            FilterState::Usable(info) => Filters {
                bytes: info.bytes,
                keys: info.keys,
                bits: info.bits_per_key() * info.keys as f64,
                expected: info.expected_fpr * info.keys as f64,
                ..Filters::default()
            },
            FilterState::None => Filters { none: 1, ..Filters::default() },
            _ => Filters { damaged: 1, ..Filters::default() },
        });
    }
    Ok(sum.into_iter().sum())
}
