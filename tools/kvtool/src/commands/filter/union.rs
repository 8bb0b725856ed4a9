//! `filter union`: one filter with the lines of several.

use serde_json::json;

use super::file::{AnyFilter, refuse_existing};
use crate::args::{Common, FilterUnion};
use crate::failure::{Failure, Result};
use crate::output::{Output, say};
use crate::text::size;

pub(super) fn run(common: &Common, args: &FilterUnion) -> Result<()> {
    refuse_existing(&args.output, args.force)?;
    let mut union = None;
    for path in &args.filters {
        let AnyFilter::Bloom(filter) = AnyFilter::load(path)? else {
            return Err(Failure::usage(format_args!(
                "{} is not a plain Bloom filter; only these can be united",
                path.display()
            )));
        };
        match &mut union {
            None => union = Some(filter),
            Some(union) => union.union_with(&filter).map_err(|error| {
                let first = args.filters[0].display();
                Failure::usage(format_args!("{} and {first} cannot be united: {error}", path.display()))
            })?,
        }
    }
    let Some(union) = union else { return Err(Failure::usage("name the filters to unite")) };
    union.save(&args.output)?;
    let (keys, rate) = (union.estimated_keys(), union.expected_fpr());
    if common.json() {
        let mut output = Output::new();
        output.json(json!({
            "filters": args.filters.len(),
            // JSON has no infinity, which is the estimate of a filter whose bits are all set.
            "estimated_keys": keys.is_finite().then_some(keys),
            "bytes": union.encoded_len(),
            "expected_false_positive_rate": rate,
        }))?;
        output.finish()?;
    }
    say(format_args!(
        "{}: about {keys:.0} lines, {}; expected false positives {:.4} %",
        args.output.display(),
        size(union.encoded_len()),
        rate * 100.0
    ));
    AnyFilter::Bloom(union).warn_if_overfull();
    Ok(())
}
