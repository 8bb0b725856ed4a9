//! `scan --skip-damaged`: the readable entries of a damaged store, and the ranges skipped.

use std::ops::Bound;

use tamis::{Keyspace, SalvageIter, SkippedRange};

use super::row::{Part, Rows};
use crate::args::Common;
use crate::failure::{Failure, Result};
use crate::output::say;
use crate::text::{Form, counted};

/// Prints the entries from `lower`, inclusive, to `upper`, exclusive, at most `limit`.
pub(super) fn run(
    common: &Common,
    keyspace: &Keyspace,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    limit: u64,
    part: Part,
) -> Result<()> {
    let upper = upper.map_or(Bound::Unbounded, Bound::Excluded);
    let mut entries = keyspace.salvage((Bound::Included(lower), upper))?;
    let printed = print(common, &mut entries, limit, part);
    if !matches!(printed, Ok(()) | Err(Failure::ClosedPipe)) {
        return printed;
    }
    let skipped = entries.skipped();
    if skipped.is_empty() {
        return printed;
    }
    skipped.iter().for_each(|range| tell(common.form(), range));
    say(format_args!(
        "skipped {}: keys in these ranges may be missing or have older values",
        counted(skipped.len() as u64, "damaged range")
    ));
    Err(Failure::Damaged)
}

fn print(common: &Common, entries: &mut SalvageIter, limit: u64, part: Part) -> Result<()> {
    let mut rows = Rows::new(common, part);
    let mut left = limit;
    while left > 0
        && let Some(entry) = entries.next()
    {
        let (key, value) = entry?;
        rows.add(&key, &value, None)?;
        left -= 1;
    }
    rows.finish()
}

/// Says what was skipped.
pub(super) fn tell(form: Form, range: &SkippedRange) {
    let end = |key: &Option<Vec<u8>>, open: &str| key.as_ref().map_or(open.to_owned(), |key| form.show(key));
    say(format_args!(
        "{}: {}: skipped keys {} to {}, {} bytes: {}",
        range.file.display(),
        range.offset,
        end(&range.from, "from the first"),
        end(&range.to, "the last"),
        range.bytes,
        range.why
    ));
}
