//! `stats`: what the store is made of, level by level, and what reads cost.

use serde_json::{Value, json};
use tamis::{Db, KeyspaceStats, LevelStats, ReadOptions, ReadStats};

use super::filters::{Filters, filters_of};
use super::look_up::look_up_all;
use super::store::{existing_keyspace, stats_of};
use crate::args::{Common, Stats};
use crate::failure::Result;
use crate::output::{Output, json_reads, say, table};
use crate::text::{count, percent, size};

pub(crate) fn run(common: &Common, args: Stats) -> Result<()> {
    let db = Db::open_read_only(&args.db)?;
    let looked_up = match &args.keys_from {
        Some(file) => {
            let options = ReadOptions::new().filters(args.filters.into());
            let keyspace = existing_keyspace(&db, common)?;
            Some(look_up_all(&keyspace, file, common.line_form(args.escaped), options, |_, _| Ok(()))?)
        }
        None => None,
    };
    let stats = stats_of(&db, common)?;
    let mut filters = Vec::new();
    for keyspace in &stats.keyspaces {
        let levels = keyspace.levels.iter().map(|level| filters_of(db.path(), &level.tables));
        filters.push(levels.collect::<Result<Vec<Filters>>>()?);
    }
    let mut output = Output::new();
    if common.json {
        let keyspaces: Vec<Value> =
            stats.keyspaces.iter().zip(&filters).map(|(keyspace, filters)| keyspace_json(keyspace, filters)).collect();
        output.json(json!({
            "last_seqno": stats.last_seqno,
            "flushed_seqno": stats.flushed_seqno,
            "memory": {
                "memtables": stats.memory.memtables,
                "cache": stats.memory.cache,
                "cache_limit": stats.memory.cache_limit,
                "filters_and_indexes": stats.memory.filters_and_indexes,
            },
            "reads": json_reads(&stats.reads()),
            "keyspaces": keyspaces,
        }))?;
        return output.finish();
    }
    for (keyspace, filters) in stats.keyspaces.iter().zip(&filters) {
        output.line(format_args!("keyspace {}", keyspace.name))?;
        output.line(layout(keyspace, filters))?;
        output.line("")?;
        if looked_up.is_some() {
            output.line(reads(keyspace, filters))?;
            output.line("")?;
        }
    }
    let memory = &stats.memory;
    output.line(table(
        1,
        &["memory", "bytes"],
        [
            ("memtables", memory.memtables),
            ("cached blocks", memory.cache),
            ("limit of the cache", memory.cache_limit),
            ("filters and indexes in use", memory.filters_and_indexes),
        ]
        .map(|(what, bytes)| vec![what.to_owned(), size(bytes as u64)]),
    ))?;
    output.line("")?;
    output.line(format_args!(
        "last sequence number {}, in tables up to {}",
        count(stats.last_seqno),
        count(stats.flushed_seqno)
    ))?;
    output.finish()?;
    match looked_up {
        Some(summary) => summary.say(&stats.reads()),
        None => say(
            "Reads are counted while a store is open: --keys-from FILE looks keys up first and shows what that took.",
        ),
    }
    Ok(())
}

/// What the levels hold.
fn layout(keyspace: &KeyspaceStats, filters: &[Filters]) -> comfy_table::Table {
    let row = |name: String, level: &LevelStats, filters: &Filters| {
        vec![
            name,
            count(level.tables.len() as u64),
            size(level.size()),
            count(level.entries()),
            count(level.tables.iter().map(|table| table.tombstones).sum()),
            size(filters.bytes),
            filters.bits_per_key().map_or_else(|| "–".into(), |bits| format!("{bits:.2}")),
            percent(filters.expected_rate()),
        ]
    };
    let levels = keyspace.levels.iter().zip(filters).filter(|(level, _)| !level.tables.is_empty());
    let mut rows: Vec<_> = levels.map(|(level, filters)| row(level.level.to_string(), level, filters)).collect();
    let mut all = LevelStats::default();
    all.tables.extend(keyspace.levels.iter().flat_map(|level| level.tables.iter().cloned()));
    rows.push(row("all".into(), &all, &filters.iter().copied().sum()));
    table(1, &["level", "tables", "size", "entries", "tombstones", "filters", "bits per key", "expected false"], rows)
}

/// What reads asked of the levels.
fn reads(keyspace: &KeyspaceStats, filters: &[Filters]) -> comfy_table::Table {
    let row = |name: String, reads: &ReadStats, filters: &Filters| {
        vec![
            name,
            count(reads.probes),
            count(reads.negatives),
            count(reads.true_positives),
            count(reads.false_positives),
            percent(reads.false_positive_rate()),
            percent(filters.expected_rate()),
            count(reads.unfiltered),
            count(reads.block_reads),
            size(reads.block_bytes),
            count(reads.cache_hits),
        ]
    };
    let levels = keyspace.levels.iter().zip(filters).filter(|(level, _)| !level.tables.is_empty());
    let mut rows: Vec<_> =
        levels.map(|(level, filters)| row(level.level.to_string(), &level.reads(), filters)).collect();
    rows.push(row("all".into(), &keyspace.reads(), &filters.iter().copied().sum()));
    let heads = [
        "level",
        "filter asked",
        "no",
        "rightly maybe",
        "wrongly maybe",
        "measured false",
        "expected false",
        "unfiltered",
        "blocks read",
        "bytes read",
        "in cache",
    ];
    table(1, &heads, rows)
}

fn keyspace_json(keyspace: &KeyspaceStats, filters: &[Filters]) -> Value {
    let levels: Vec<Value> = keyspace
        .levels
        .iter()
        .zip(filters)
        .map(|(level, filters)| {
            json!({
                "level": level.level,
                "tables": level.tables.len(),
                "bytes": level.size(),
                "entries": level.entries(),
                "tombstones": level.tables.iter().map(|table| table.tombstones).sum::<u64>(),
                "filter_bytes": filters.bytes,
                "filter_bits_per_key": filters.bits_per_key(),
                "expected_false_positive_rate": filters.expected_rate(),
                "reads": json_reads(&level.reads()),
            })
        })
        .collect();
    json!({ "name": keyspace.name, "bytes": keyspace.size(), "reads": json_reads(&keyspace.reads()), "levels": levels })
}
