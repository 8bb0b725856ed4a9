//! `filter add`: adds lines to an existing filter.

use serde_json::json;

use super::file::{AnyFilter, each_line, lock};
use crate::args::{Common, FilterAdd};
use crate::failure::Result;
use crate::output::{Output, say};
use crate::text::{count, counted};

pub(super) fn run(common: &Common, args: &FilterAdd) -> Result<()> {
    let lock = lock(&args.filter)?;
    let mut filter = AnyFilter::load(&args.filter)?;
    let (mut lines, mut new) = (0, 0);
    each_line(common, args.lines.as_deref(), |_, key| {
        lines += 1;
        new += u64::from(filter.insert(key)?);
        Ok(())
    })?;
    filter.save(&args.filter)?;
    drop(lock);
    let rate = filter.expected_fpr();
    if common.json() {
        let mut output = Output::new();
        output.json(json!({
            "lines": lines,
            "new": new,
            "expected_false_positive_rate": rate,
        }))?;
        output.finish()?;
    }
    say(format_args!("{}, {} new; expected false positives {:.4} %", counted(lines, "line"), count(new), rate * 100.0));
    filter.warn_if_overfull();
    Ok(())
}
