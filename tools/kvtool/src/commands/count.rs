//! `count` and `size`: how much is in a range of keys.

use serde_json::json;

use super::progress::{Unit, bar};
use super::range::KeyRange;
use super::store::open_to_read;
use super::view::View;
use crate::args::{Common, InRange};
use crate::failure::Result;
use crate::output::Output;
use crate::table::{Table, number, text};
use crate::text;

/// Reads all keys of the range.
pub(crate) fn count(common: &Common, args: InRange) -> Result<()> {
    let range = KeyRange::of(common, &args.range)?;
    let (db, keyspace) = open_to_read(&args.db, common)?;
    let bar = bar(Unit::Keys, Some(0));
    if !bar.is_hidden() {
        bar.set_length(keyspace.approximate_len(range.bounds())?);
    }
    let count = View::of(common, &db, &keyspace).count(&range, &bar)?;
    drop(bar);
    let mut output = Output::new();
    if common.json() {
        output.json(json!({ "count": count }))?
    } else {
        output.line(count)?
    }
    output.finish()
}

pub(crate) fn size(common: &Common, args: InRange) -> Result<()> {
    let range = KeyRange::of(common, &args.range)?;
    let (_db, keyspace) = open_to_read(&args.db, common)?;
    let (bytes, keys) = (keyspace.approximate_size(range.bounds())?, keyspace.approximate_len(range.bounds())?);
    let mut output = Output::new();
    if common.json() {
        output.json(json!({ "approximate_bytes": bytes, "approximate_keys": keys }))?;
    } else {
        let rows = [("bytes", text::size(bytes)), ("keys", text::count(keys))];
        output.table(common, &Table::of_pairs([text("about"), number("in the range")], rows))?;
    }
    output.finish()
}
