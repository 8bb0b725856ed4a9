//! `compact`: moves a range to the last level. Tables already there are not merged, but they are
//! read, so that damage in them is reported too.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tamis::inspect::{FileKind, Inspector};
use tamis::{Db, Stats, TableStats};

use super::progress::{Bar, Unit, bar};
use super::store::{close, open_existing, selected_keyspaces, stats_of};
use crate::args::{Common, Compact};
use crate::failure::Result;
use crate::output::{Output, say};
use crate::text::{Decimal, size};

pub(crate) fn run(common: &Common, args: Compact) -> Result<()> {
    let from = common.optional_bytes("--from", args.from.as_ref())?;
    let to = common.optional_bytes("--to", args.to.as_ref())?;
    let db = open_existing(&args.db, common)?;
    let keyspaces = selected_keyspaces(&db, common)?;
    // Flush first, so that entries in memory are part of the size before.
    db.flush()?;
    let before = stats_of(&db, common)?;
    let start = Instant::now();
    let bar = bar(Unit::Bytes, Some(bytes(&before)));
    watched(&db, &bar, || {
        keyspaces.iter().try_for_each(|keyspace| {
            keyspace.compact_range((
                from.clone().map_or(Bound::Unbounded, Bound::Included),
                to.clone().map_or(Bound::Unbounded, Bound::Excluded),
            ))
        })
    })?;
    drop(bar);
    let (seconds, after) = (start.elapsed().as_secs_f64(), stats_of(&db, common)?);
    drop(keyspaces);
    let kept = numbers(&after);
    let unread = tables(&before).filter(|table| {
        let is_in_range = to.as_ref().is_none_or(|to| table.smallest < *to)
            && from.as_ref().is_none_or(|from| table.largest >= *from);
        is_in_range && kept.contains(&table.number)
    });
    // Close before checking: damage in one table must not stop the others from becoming durable.
    close(db, common)?;
    unread.map(|table| check(&args.db, table.number)).find(Result::is_err).transpose()?;
    let (before, after) = (bytes(&before), bytes(&after));
    if common.json() {
        let mut output = Output::new();
        output.json(json!({ "bytes_before": before, "bytes_after": after, "seconds": seconds }))?;
        output.finish()?;
    }
    say(format_args!("compacted {} to {} in {} s", size(before), size(after), Decimal(seconds)));
    Ok(())
}

/// How often a bar is told what a compaction has read.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Has a bar show how much compactions read while `work` runs.
fn watched<R>(db: &Db, bar: &Bar, work: impl FnOnce() -> R) -> R {
    if bar.is_hidden() {
        return work();
    }
    let before = db.stats().compacted_bytes_in;
    thread::scope(|scope| {
        // It is dropped when the work is done, also by a panic.
        let (working, is_working) = mpsc::channel::<()>();
        scope.spawn(move || {
            while is_working.recv_timeout(LOOK_AGAIN) == Err(RecvTimeoutError::Timeout) {
                bar.set_position(db.stats().compacted_bytes_in.saturating_sub(before));
            }
        });
        let done = work();
        drop(working);
        done
    })
}

/// Reads a table that compaction left in place. A merge would have found its damage.
fn check(db: &Path, number: u64) -> Result<()> {
    let table = Inspector::new().table(&FileKind::Table(number).path(db))?;
    table.blocks().try_for_each(|block| Ok(block.map(drop)?))
}

fn tables(stats: &Stats) -> impl Iterator<Item = &TableStats> {
    stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels).flat_map(|level| &level.tables)
}

fn numbers(stats: &Stats) -> BTreeSet<u64> {
    tables(stats).map(|table| table.number).collect()
}

fn bytes(stats: &Stats) -> u64 {
    stats.keyspaces.iter().map(|keyspace| keyspace.size()).sum()
}
