//! The price list in docs/PERFORMANCE.md: instructions of each operation, and its bound.

use tamis_figures::Table;

use crate::counts::Ledger;

/// The phases that are one operation each, in the order of the list.
const OPERATIONS: [&str; 10] = [
    "put",
    "batch of 100, per put",
    "get, hot",
    "get, cached",
    "get, cached, to keep",
    "get, missing",
    "get from the memtable",
    "multi-get of 100, per key",
    "seek",
    "step",
];

/// The list. `margin` is the share of 1 that `check` allows by default.
pub(crate) fn table(counts: &Ledger, margin: f64) -> Table {
    let command = "cargo run --release -p tamis-costs -- update";
    let mut table = Table::new("costs/prices", command, &["operation", "instructions", "bound"]);
    for operation in OPERATIONS {
        if let Some(counted) = counts.get(operation) {
            let [count, bound] = [1.0, 1.0 + margin].map(|share| format!("{:.0}", counted.instructions * share));
            table.row([operation, &count, &bound]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::counts::MARGIN;

    #[test]
    fn the_list_states_what_the_file_records() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let recorded = std::fs::read(root.join("tools/costs/costs.json")).unwrap();
        let recorded: Ledger = serde_json::from_slice(&recorded).unwrap();
        for operation in OPERATIONS {
            assert!(recorded.contains_key(operation), "{operation}");
        }
        let kept = tamis_figures::document::kept(&root.join(tamis_figures::document::FIGURES)).unwrap();
        let listed = kept["costs/prices"].markdown();
        assert_eq!(listed, table(&recorded, MARGIN / 100.0).markdown(), "run `tamis-costs update`");
    }
}
