//! `sst-build`: writes the entries of sorted lines to tables, to be ingested.

use std::fs;
use std::ops::Bound;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use indicatif::ProgressBar;
use serde_json::{Value, json};
use tamis::{Error, Expiry, SstFormat, SstInfo, SstWriter};

use super::entries::Entries;
use super::formats::{Entry, Record};
use super::progress::{Unit, bar};
use super::target::Target;
use crate::args::{Common, SstBuild};
use crate::failure::{Attempt, Failure, Result};
use crate::output::{Output, json_bytes, say};
use crate::text::{Decimal, count, counted, size};

/// Lines between two updates of the progress bar.
const PROGRESS_LINES: u64 = 10_000;

pub(crate) fn run(common: &Common, args: SstBuild) -> Result<()> {
    let format = SstFormat::of_store(&args.db, common.keyspace.as_deref().unwrap_or("default"))?;
    let mut entries = Entries::open(args.file.into_iter().collect(), args.format, common.form(), 0)?;
    let bound = |bound| common.bytes("--delete-range", bound);
    let mut ranges: Vec<DeletedRange> = Vec::new();
    for pair in args.delete_range.chunks_exact(2) {
        ranges.push((bound(&pair[0])?, Some(bound(&pair[1])?)));
    }
    if let Some(from) = &args.delete_from {
        ranges.push((common.bytes("--delete-from", from)?, None));
    }
    if ranges.iter().any(|(from, to)| to.as_ref().is_some_and(|to| from >= to)) {
        return Err(Failure::usage("a range to delete ends before it begins"));
    }
    let out = args.out.display();
    fs::create_dir(&args.out).attempt(format_args!("cannot create {out}"))?;
    let (start, progress) = (Instant::now(), bar(Unit::Input, entries.len()));
    let built = only_keyspace(&mut entries, common, &format)
        .and_then(|()| build(&mut entries, None, &format, &args.out, args.table_size << 20, &progress));
    progress.finish_and_clear();
    let tables = built.and_then(|mut tables| {
        match delete_ranges(&ranges, &format, &args.out) {
            Ok(deletes) => tables.extend(deletes),
            Err(failure) => {
                remove(&tables);
                return Err(failure);
            }
        }
        if tables.is_empty() { Err(Failure::usage("the input has no entries")) } else { Ok(tables) }
    });
    let tables = tables.inspect_err(|_| drop(fs::remove_dir(&args.out)))?;
    let seconds = start.elapsed().as_secs_f64();
    let entries = tables.iter().map(|table| table.entries).sum();
    let range_deletes: u64 = tables.iter().map(|table| table.range_deletes).sum();
    let bytes = tables.iter().map(|table| table.bytes).sum();
    if common.json() {
        let mut output = Output::new();
        let tables: Vec<Value> = tables.iter().map(|table| document(common, table)).collect();
        output.json(json!({
            "entries": entries,
            "range_deletes": range_deletes,
            "bytes": bytes,
            "seconds": seconds,
            "tables": tables,
        }))?;
        output.finish()?;
    }
    say(format_args!(
        "{} of {} in {} with {}{}, {} s",
        counted(tables.len() as u64, "table"),
        size(bytes),
        out,
        counted(entries, "key"),
        and_ranges(range_deletes),
        Decimal(seconds)
    ));
    Ok(())
}

fn document(common: &Common, table: &SstInfo) -> Value {
    json!({
        "file": table.path.display().to_string(),
        "entries": table.entries,
        "range_deletes": table.range_deletes,
        "bytes": table.bytes,
        "smallest": json_bytes(common.form(), &table.smallest),
        "greatest": json_bytes(common.form(), &table.greatest),
    })
}

/// Refuses input that says it is of another keyspace than that for which the tables are.
fn only_keyspace(entries: &mut Entries, common: &Common, format: &SstFormat) -> Result<()> {
    match entries.keyspace()? {
        Some(of) if common.keyspace.is_none() && of.keyspace != format.keyspace() => Err(entries
            .invalid(format_args!("it is of keyspace {:?}; --keyspace says for which the tables are", of.keyspace))),
        _ => Ok(()),
    }
}

/// Writes the entries to tables of about `table_size` bytes in `dir`. After an error, none is left.
/// `target` combines operands.
pub(super) fn build(
    entries: &mut Entries,
    target: Option<&Target>,
    format: &SstFormat,
    dir: &Path,
    table_size: u64,
    progress: &ProgressBar,
) -> Result<Vec<SstInfo>> {
    let mut tables = Vec::new();
    let built = build_all(entries, target, format, dir, table_size, progress, &mut tables);
    if built.is_err() {
        remove(&tables);
    }
    built.map(|()| tables)
}

fn remove(tables: &[SstInfo]) {
    tables.iter().for_each(|table| drop(fs::remove_file(&table.path)));
}

/// A range to delete: its first key, and the first one after it; `None` is the end.
type DeletedRange = (Vec<u8>, Option<Vec<u8>>);

/// Writes a table in `dir` that deletes the ranges, unless there are none.
fn delete_ranges(ranges: &[DeletedRange], format: &SstFormat, dir: &Path) -> Result<Option<SstInfo>> {
    if ranges.is_empty() {
        return Ok(None);
    }
    let mut writer = SstWriter::create(dir.join("deletes.sst"), format)?;
    for (from, to) in ranges {
        let to = to.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        match writer.delete_range((Bound::Included(from), to)) {
            Err(Error::Unsorted { .. }) => return Err(Failure::usage("the ranges to delete are not ordered by FROM")),
            added => added?,
        }
    }
    Ok(Some(writer.finish()?))
}

/// Number of range deletes, for after that of keys.
pub(super) fn and_ranges(range_deletes: u64) -> String {
    if range_deletes == 0 { String::new() } else { format!(" and {}", counted(range_deletes, "range delete")) }
}

/// `entry` with its operands combined into its value, which one entry of a table holds.
fn combined<'a>(target: Option<&Target>, entry: Entry<'a>) -> Result<Entry<'a>, String> {
    match target {
        Some(target) => target.refuses(&entry).map_or_else(|| target.combined(entry), Err),
        None if entry.operands.is_empty() => Ok(entry),
        None => Err("it has operands, which only `import` takes".into()),
    }
}

/// The deadline of a put, like that which a put into the keyspace would have now.
fn deadline(expiry: Expiry, ttl: Option<Duration>) -> Option<SystemTime> {
    match expiry {
        Expiry::Default => ttl.and_then(|ttl| SystemTime::now().checked_add(ttl)),
        Expiry::Never => None,
        Expiry::At(deadline) => Some(deadline),
        Expiry::After(ttl) => SystemTime::now().checked_add(ttl),
    }
}

fn build_all(
    entries: &mut Entries,
    target: Option<&Target>,
    format: &SstFormat,
    dir: &Path,
    table_size: u64,
    progress: &ProgressBar,
    tables: &mut Vec<SstInfo>,
) -> Result<()> {
    let mut writer: Option<SstWriter> = None;
    let mut written = 0u64;
    while entries.advance()? {
        let entry = match entries.record()? {
            Record::Entry(entry) => entry,
            Record::Blank => continue,
            Record::Keyspace(of) => {
                return Err(entries.invalid(format_args!(
                    "it begins keyspace {:?}, and sorted input is of one; import each by itself, or without --sorted",
                    of.keyspace
                )));
            }
        };
        let Entry { key, value, expiry, .. } = combined(target, entry).map_err(|why| entries.invalid(why))?;
        let (value, deadline) = (value.unwrap_or_default(), deadline(expiry, format.options().ttl));
        if let Some(full) = writer.take_if(|writer| writer.estimated_size() >= table_size) {
            tables.push(full.finish()?);
        }
        let is_new = writer.is_none();
        if is_new {
            let path = dir.join(format!("{:06}.sst", tables.len() + 1));
            writer = Some(SstWriter::create(path, format)?);
        }
        // The writer knows the keys of its own table only.
        let before = tables.last().filter(|_| is_new).map(|table| &table.greatest[..]);
        let is_sorted = before.is_none_or(|before| before < &*key);
        let added = match &mut writer {
            Some(writer) if is_sorted => match deadline {
                Some(deadline) => writer.put_with_expiry(&key, &value, deadline),
                None => writer.put(&key, &value),
            },
            _ => Err(Error::Unsorted { file: dir.to_owned(), position: 0, key: key.to_vec(), last: Vec::new() }),
        };
        match added {
            Err(Error::Unsorted { .. }) => {
                return Err(
                    entries.invalid("its key does not come after the one before it; sort the lines, each key once")
                );
            }
            added => added?,
        }
        written += 1;
        if written.is_multiple_of(PROGRESS_LINES) {
            progress.set_position(entries.bytes());
            progress.set_message(count(written));
        }
    }
    if let Some(last) = writer {
        tables.push(last.finish()?);
    }
    Ok(())
}
