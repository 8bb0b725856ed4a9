//! `compact`: brings a range to the last level.

use std::ops::Bound;
use std::time::Instant;

use serde_json::json;
use tamis::Db;

use super::store::{open_existing, selected_keyspaces, stats_of};
use crate::args::{Common, Compact};
use crate::failure::Result;
use crate::output::{Output, say};
use crate::text::{Decimal, size};

pub(crate) fn run(common: &Common, args: Compact) -> Result<()> {
    let from = common.optional_bytes("--from", args.from.as_ref())?;
    let to = common.optional_bytes("--to", args.to.as_ref())?;
    let db = open_existing(&args.db)?;
    let keyspaces = selected_keyspaces(&db, common)?;
    // Otherwise what is still in memory would be missing before and be there after.
    db.flush()?;
    let before = bytes(&db, common)?;
    let start = Instant::now();
    for keyspace in &keyspaces {
        keyspace.compact_range((
            from.clone().map_or(Bound::Unbounded, Bound::Included),
            to.clone().map_or(Bound::Unbounded, Bound::Excluded),
        ))?;
    }
    let (seconds, after) = (start.elapsed().as_secs_f64(), bytes(&db, common)?);
    drop(keyspaces);
    db.close()?;
    if common.json {
        let mut output = Output::new();
        output.json(json!({ "bytes_before": before, "bytes_after": after, "seconds": seconds }))?;
        output.finish()?;
    }
    say(format_args!("compacted {} to {} in {} s", size(before), size(after), Decimal(seconds)));
    Ok(())
}

fn bytes(db: &Db, common: &Common) -> Result<u64> {
    Ok(stats_of(db, common)?.keyspaces.iter().map(|keyspace| keyspace.size()).sum())
}
