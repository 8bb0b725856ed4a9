//! `filter check`: which lines may be in a filter.

use serde_json::json;

use super::file::{AnyFilter, each_line};
use crate::args::{Common, FilterCheck};
use crate::failure::{Failure, Result};
use crate::output::{Output, json_bytes};

pub(super) fn run(common: &Common, args: &FilterCheck) -> Result<()> {
    let filter = AnyFilter::load(&args.filter)?;
    let mut output = Output::new();
    let (mut asked, mut selected) = (0u64, 0u64);
    each_line(common, args.lines.as_deref(), |line, key| {
        asked += 1;
        if filter.contains(key) == args.invert {
            return Ok(());
        }
        selected += 1;
        match (args.count, common.json()) {
            (true, _) => Ok(()),
            (false, true) => output.json(json!({ "line": json_bytes(common.form(), key) })),
            (false, false) => output.write(line).and_then(|()| output.write(b"\n")),
        }
    })?;
    match (args.count, common.json()) {
        (true, true) => output.json(json!({ "lines": asked, "selected": selected }))?,
        (true, false) => output.line(selected)?,
        (false, _) => {}
    }
    output.finish()?;
    if selected > 0 { Ok(()) } else { Err(Failure::NotFound) }
}
