//! `keyspaces` lists them with their options and sizes; `create-keyspace`, `drop-keyspace`.

use serde_json::json;
use tamis::{Compression, FilterPolicy, KeyspaceOptions, KeyspaceStats, RangeFilterPolicy};

use super::definition::Definition;
use super::operators::with_operator;
use super::store::{
    close, existing_keyspace, no_such_keyspace, open_existing, open_or_create, open_read_only, stats_of,
};
use crate::args::{Common, CreateKeyspace, NamedKeyspace, OptionFlags, SetKeyspace, StoreDir};
use crate::failure::{Failure, Result};
use crate::output::{Output, say};
use crate::table::{Table, number, text};
use crate::text::{Form, count, size};

pub(crate) fn run(common: &Common, args: StoreDir) -> Result<()> {
    let db = open_read_only(&args.db, common)?;
    let mut rows = Vec::new();
    let mut documents = Vec::new();
    // All, also those in which a shell does not work now.
    let stats = if common.is_keyspace_named { stats_of(&db, common)? } else { db.stats() };
    for stats in stats.keyspaces {
        let Some(keyspace) = db.existing_keyspace(&stats.name)? else { continue };
        let options = keyspace.options()?;
        let tables: usize = stats.levels.iter().map(|level| level.tables.len()).sum();
        documents.push(json!({
            "name": stats.name,
            "tables": tables,
            "bytes": stats.size(),
            "filter": filter_in_words(&options),
            "range_filter": range_filter_in_words(options.range_filter),
            "compression": compression_in_words(options.compression),
            "block_size": options.block_size,
            "prefix": options.prefix.map(|prefix| prefix.to_string()),
            "merge_operator": options.merge_operator_name(),
            "ttl_seconds": options.ttl.map(|ttl| ttl.as_secs_f64()),
            "wal": options.wal,
            "separate_values": options.separate_values,
        }));
        rows.push(row(&stats, &options));
    }
    let mut output = Output::new();
    if common.json() {
        output.json(json!({ "keyspaces": documents }))?;
    } else {
        output.table(common, &table(rows))?;
    }
    output.finish()
}

/// Rows of [`row`].
pub(super) fn table(rows: Vec<Vec<String>>) -> Table {
    let columns = [
        text("keyspace").key(),
        text("filter"),
        text("range filter"),
        text("compression").detail(),
        number("block").detail(),
        text("merge operator").detail(),
        number("tables"),
        number("size").key(),
    ];
    Table::new(columns, rows)
}

pub(super) fn row(stats: &KeyspaceStats, options: &KeyspaceOptions) -> Vec<String> {
    let tables: usize = stats.levels.iter().map(|level| level.tables.len()).sum();
    vec![
        Form::Plain.show(stats.name.as_bytes()),
        filter_in_words(options),
        range_filter_in_words(options.range_filter),
        compression_in_words(options.compression).to_owned(),
        size(options.block_size.into()),
        options.merge_operator_name().unwrap_or("none").to_owned(),
        count(tables as u64),
        size(stats.size()),
    ]
}

pub(crate) fn create(common: &Common, args: CreateKeyspace) -> Result<()> {
    let (name, options) = (&args.of.name, with_flags(KeyspaceOptions::new(), &args.options));
    // What can be seen to be wrong creates no store.
    options.validate()?;
    let db = open_or_create(&args.of.db, common)?;
    let is_new = db.existing_keyspace(name)?.is_none();
    if is_new {
        db.keyspace_with(name, options)?;
    }
    close(db, common)?;
    tell(common, name, "created", is_new)?;
    match is_new {
        true => Ok(()),
        false => Err(Failure::usage(format_args!("keyspace {name:?} exists; `kvtool keyspace set` changes it"))),
    }
}

pub(crate) fn set(common: &Common, args: SetKeyspace) -> Result<()> {
    let name = args.of.name;
    let db = open_existing(&args.of.db, common)?;
    let keyspace = existing_keyspace(&db, &Common::in_keyspace(Some(name.clone())))?;
    let before = keyspace.options()?;
    let options = with_flags(before.clone(), &args.options);
    if options == before {
        say(format_args!("keyspace {name:?} is unchanged"));
    } else {
        db.keyspace_with(&name, options)?;
    }
    if common.json() {
        let mut output = Output::new();
        output.json(Definition { keyspace: name, options: keyspace.options()? }.json())?;
        output.finish()?;
    }
    drop(keyspace);
    close(db, common)
}

fn with_flags(options: KeyspaceOptions, flags: &OptionFlags) -> KeyspaceOptions {
    let options = flags.apply(options);
    match flags.operator {
        Some(operator) => with_operator(options, operator.name()),
        None => options,
    }
}

pub(crate) fn remove(common: &Common, args: NamedKeyspace) -> Result<()> {
    let db = open_existing(&args.db, common)?;
    let was_there = db.drop_keyspace(&args.name)?;
    // A shell goes on in the default keyspace: it would make the dropped one anew.
    if let Some(session) = common.session.as_ref().filter(|session| session.keyspace().as_ref() == Some(&args.name)) {
        session.use_keyspace(None);
    }
    close(db, common)?;
    tell(common, &args.name, "dropped", was_there)?;
    match was_there {
        true => Ok(()),
        false => Err(no_such_keyspace(&args.name)),
    }
}

/// Writes what was done, where that is asked for.
fn tell(common: &Common, name: &str, done: &str, is_done: bool) -> Result<()> {
    if !common.json() {
        return Ok(());
    }
    let mut output = Output::new();
    output.json(json!({ "name": name, done: is_done }))?;
    output.finish()
}

fn filter_in_words(options: &KeyspaceOptions) -> String {
    match options.filter {
        FilterPolicy::None => "none".into(),
        FilterPolicy::Bloom { bits_per_key } => format!("Bloom, {bits_per_key} bits per key"),
        FilterPolicy::BinaryFuse { fingerprint_bits } => {
            format!("binary fuse, fingerprints of {fingerprint_bits} bits")
        }
        other => format!("{other:?}"),
    }
}

fn range_filter_in_words(policy: RangeFilterPolicy) -> String {
    match policy {
        RangeFilterPolicy::None => "none".into(),
        RangeFilterPolicy::Ordered { bits_per_key } => format!("ordered, {bits_per_key} bits per key"),
        other => format!("{other:?}"),
    }
}

/// Also for `sst`.
pub(super) fn compression_in_words(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "none",
        Compression::Lz4 => "LZ4",
        Compression::Zstd => "zstd",
        _ => "unknown",
    }
}
