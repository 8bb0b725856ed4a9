//! `ingest`: adds tables to a keyspace.

use std::time::Instant;

use serde_json::json;
use tamis::{IngestMode, IngestOptions};

use super::sst_build::and_ranges;
use super::store::{existing_keyspace, open_existing, settle_and_close};
use crate::args::{Common, Ingest};
use crate::failure::Result;
use crate::output::{Output, say};
use crate::text::{Decimal, counted, size};

pub(crate) fn run(common: &Common, args: Ingest) -> Result<()> {
    let db = open_existing(&args.db, common)?;
    let keyspace = existing_keyspace(&db, common)?;
    let mode = match (args.copy, args.move_files) {
        (true, _) => IngestMode::Copy,
        (_, true) => IngestMode::Move,
        _ => IngestMode::Link,
    };
    let start = Instant::now();
    let info = keyspace.ingest(&args.files, IngestOptions::new().mode(mode))?;
    let seconds = start.elapsed().as_secs_f64();
    drop(keyspace);
    settle_and_close(db, common)?;
    for file in &info.left {
        say(format_args!("kvtool: {} is in the store, and could not be removed here", file.display()));
    }
    if common.json() {
        let mut output = Output::new();
        output.json(json!({
            "seqno": info.seqno,
            "tables": args.files.len(),
            "copied": info.copied,
            "entries": info.entries,
            "range_deletes": info.range_deletes,
            "bytes": info.bytes,
            "seconds": seconds,
        }))?;
        output.finish()?;
    }
    say(format_args!(
        "{} of {} with {}{} ingested as number {}, {} s",
        counted(args.files.len() as u64, "table"),
        size(info.bytes),
        counted(info.entries, "entry"),
        and_ranges(info.range_deletes),
        info.seqno,
        Decimal(seconds)
    ));
    Ok(())
}
