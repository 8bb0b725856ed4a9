//! Counts per operation, and their comparison.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use crate::callgrind::PhaseTotals;
use crate::phase::OwnCounts;

/// Increase of instructions that `check` allows by default, in percent. Less would fail for the
/// choices of another compiler; more would let a feature pass that costs each operation a little.
pub(crate) const MARGIN: f64 = 3.0;
/// Increase of every other count that is allowed, as a share of 1.
const OTHER_MARGIN: f64 = 0.02;

/// Phases by name.
pub(crate) type Ledger = BTreeMap<String, Counts>;

/// What one operation costs on average.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) instructions: f64,
    pub(crate) syscalls: f64,
    pub(crate) allocations: f64,
    pub(crate) block_reads: f64,
}

/// The cost per operation of each phase; phases with one name are added up.
pub(crate) fn per_operation(phases: impl Iterator<Item = ((String, OwnCounts), PhaseTotals)>) -> Ledger {
    let mut sums: BTreeMap<String, [u64; 5]> = BTreeMap::new();
    for ((name, own), totals) in phases {
        let counts = [own.operations, totals.instructions, totals.syscalls, own.allocations, own.block_reads];
        sums.entry(name).or_default().iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let per_operation = |[operations, counts @ ..]: [u64; 5]| {
        // Four decimals keep the file readable and comparable.
        let per = |count: u64| (count as f64 / operations as f64 * 1e4).round() / 1e4;
        let [instructions, syscalls, allocations, block_reads] = counts.map(per);
        Counts { instructions, syscalls, allocations, block_reads }
    };
    sums.into_iter().map(|(name, sums)| (name, per_operation(sums))).collect()
}

impl Counts {
    fn fields(&self) -> [(&'static str, f64); 4] {
        [
            ("instructions", self.instructions),
            ("system calls", self.syscalls),
            ("allocations", self.allocations),
            ("block reads", self.block_reads),
        ]
    }
}

/// Lists increases: of instructions by more than `margin` (a share of 1), of other counts by more
/// than two percent plus two per thousand operations. Also lists phases that one side lacks.
pub(crate) fn increases(counted: &Ledger, expected: &Ledger, margin: f64) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, before) in expected {
        let Some(now) = counted.get(name) else {
            findings.push(format!("{name}: no longer counted"));
            continue;
        };
        for ((what, before), (_, now)) in before.fields().into_iter().zip(now.fields()) {
            let limit =
                if what == "instructions" { before * (1.0 + margin) } else { before * (1.0 + OTHER_MARGIN) + 0.002 };
            if now > limit {
                findings.push(format!("{name}: {now} {what} per operation, {before} before"));
            }
        }
    }
    let new = counted.keys().filter(|name| !expected.contains_key(*name));
    findings.extend(new.map(|name| format!("{name}: not in the file; run `update`")));
    findings
}

/// A table of all counts, with the expected ones in parentheses where they differ.
pub(crate) fn table(counted: &Ledger, expected: Option<&Ledger>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["per operation", "instructions", "system calls", "allocations", "block reads"]);
    for (name, now) in counted {
        let before = expected.and_then(|expected| expected.get(name)).map(Counts::fields);
        let cells = now.fields().into_iter().enumerate().map(|(i, (_, now))| match before.map(|before| before[i].1) {
            Some(before) if before != now => format!("{now} ({before})"),
            _ => now.to_string(),
        });
        table.add_row([name.clone()].into_iter().chain(cells));
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(name: &str, instructions: f64, syscalls: f64) -> Ledger {
        let counts = Counts { instructions, syscalls, allocations: 1.0, block_reads: 0.0 };
        [(name.to_owned(), counts)].into()
    }

    #[test]
    fn phases_with_one_name_are_added_up() {
        let own = OwnCounts { operations: 10, allocations: 5, block_reads: 0 };
        let totals = PhaseTotals { instructions: 1000, syscalls: 10 };
        let phases = [("get", totals), ("put", totals), ("get", PhaseTotals { instructions: 2000, ..totals })];
        let ledger = per_operation(phases.into_iter().map(|(name, totals)| ((name.to_owned(), own), totals)));
        assert_eq!((ledger["get"].instructions, ledger["put"].instructions), (150.0, 100.0));
        assert_eq!((ledger["get"].syscalls, ledger["get"].allocations), (1.0, 0.5));
    }

    #[test]
    fn an_increase_is_what_exceeds_its_margin() {
        let before = ledger("get", 1000.0, 1.0);
        let findings = |instructions, syscalls| increases(&ledger("get", instructions, syscalls), &before, 0.1).len();
        assert_eq!(findings(1000.0, 1.0), 0);
        assert_eq!(findings(500.0, 0.0), 0);
        assert_eq!(findings(1099.0, 1.02), 0);
        assert_eq!(findings(1101.0, 1.0), 1);
        assert_eq!(findings(1101.0, 1.03), 2);
        assert_eq!(increases(&ledger("put", 1.0, 1.0), &before, 0.1).len(), 2);
    }
}
