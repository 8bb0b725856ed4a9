//! The price list in docs/PERFORMANCE.md: instructions of each operation, and its bound.

use crate::counts::Ledger;

/// The document with the price list.
pub(crate) const DOCUMENT: &str = "docs/PERFORMANCE.md";

/// Lines around the list in the document.
const BEGIN: &str = "<!-- Written by `tamis-costs update`. -->\n";
const END: &str = "<!-- End of what it writes. -->\n";

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

/// The list as a table in Markdown. `margin` is the share of 1 that `check` allows by default.
fn table(counts: &Ledger, margin: f64) -> String {
    let rows = OPERATIONS.iter().filter_map(|operation| {
        let instructions = counts.get(*operation)?.instructions;
        Some(format!("| {operation} | {instructions:.0} | {:.0} |\n", instructions * (1.0 + margin)))
    });
    rows.fold("| operation | instructions | bound |\n|---|--:|--:|\n".to_owned(), |table, row| table + &row)
}

/// The document with the list of `counts`; `None` if it has no place for one.
pub(crate) fn stated(document: &str, counts: &Ledger, margin: f64) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some([before, BEGIN, &table(counts, margin), END, after].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::MARGIN;

    #[test]
    fn the_document_states_what_the_file_records() {
        let read = |path: &str| std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let recorded: Ledger = serde_json::from_str(&read("costs.json")).unwrap();
        for operation in OPERATIONS {
            assert!(recorded.contains_key(operation), "{operation}");
        }
        let document = read(&format!("../../{DOCUMENT}"));
        assert_eq!(stated(&document, &recorded, MARGIN / 100.0).unwrap(), document, "run `tamis-costs update`");
    }
}
