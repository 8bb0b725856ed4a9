//! [`Rows`]: what `scan` prints of entries.

use std::time::SystemTime;

use serde_json::json;

use crate::args::{Common, Scan};
use crate::failure::Result;
use crate::output::{Output, json_bytes};
use crate::text::utc_or_unix;

/// What is printed of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Entries,
    Keys,
    Values,
    /// Only how many they are.
    Count,
}

impl Part {
    pub(super) fn of(scan: &Scan) -> Part {
        match (scan.keys_only, scan.values_only, scan.count) {
            (true, ..) => Part::Keys,
            (_, true, _) => Part::Values,
            (.., true) => Part::Count,
            _ => Part::Entries,
        }
    }
}

/// Prints entries.
pub(super) struct Rows<'a> {
    common: &'a Common,
    output: Output,
    part: Part,
    count: u64,
}

impl Rows<'_> {
    pub(super) fn new(common: &Common, part: Part) -> Rows<'_> {
        Rows { common, output: Output::new(), part, count: 0 }
    }

    /// Prints an entry, or counts it.
    pub(super) fn add(&mut self, key: &[u8], value: &[u8], deadline: Option<SystemTime>) -> Result<()> {
        self.count += 1;
        let form = self.common.form();
        match (self.part, self.common.json()) {
            (Part::Count, _) => Ok(()),
            (Part::Entries, false) => self.output.row(form, key, value),
            (Part::Keys, false) => self.output.key(form, key),
            (Part::Values, false) => self.output.value(form, value),
            (part, true) => {
                let mut document = json!({});
                if part != Part::Values {
                    document["key"] = json_bytes(form, key);
                }
                if part != Part::Keys {
                    document["value"] = json_bytes(form, value);
                }
                if let (Part::Entries, Some(deadline)) = (part, deadline) {
                    document["deadline"] = json!(utc_or_unix(deadline));
                }
                self.output.json(document)
            }
        }
    }

    pub(super) fn finish(mut self) -> Result<()> {
        match (self.part, self.common.json()) {
            (Part::Count, true) => self.output.json(json!({ "count": self.count }))?,
            (Part::Count, false) => self.output.line(self.count)?,
            _ => {}
        }
        self.output.finish()
    }
}
