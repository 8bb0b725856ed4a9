//! `import`: many puts, in batches, from files of any [`Format`](super::formats::Format); or, of
//! sorted ones, an ingest.
//!
//! The reading thread and the Ctrl-C handler share the importer behind a lock, which is free while
//! the reader waits for a record. An interruption therefore waits at most for the current batch. It
//! then writes the entries read so far and prints where to resume.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use indicatif::ProgressBar;
use serde_json::json;
use tamis::{Error, Expiry, IngestMode, IngestOptions, SstWriter, WriteBatch, WriteOptions};

use super::definition::Definition;
use super::entries::{Entries, Position, Source};
use super::formats::{Entry, Record};
use super::progress::{Unit, bar};
use super::sst_build;
use super::store::{close, open_read_only, settle_and_close};
use super::target::Target;
use crate::args::{Common, Import};
use crate::failure::{Attempt, Failure, INTERRUPTED, Result};
use crate::interrupt::on_interrupt;
use crate::output::{Output, say};
use crate::text::{Decimal, count, counted, size};

/// A batch is written when it reaches this many entries or bytes. Larger batches gain nothing: the
/// write-ahead log's share of the cost is small by then.
const BATCH_ENTRIES: usize = 1000;
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of a table of sorted entries.
const TABLE_SIZE: u64 = 64 << 20;
/// How often the tables of an interrupted import are removed, until none is made anew.
const REMOVALS: usize = 100;
/// A dry run prints this many invalid records, and counts the others.
const SHOWN_INVALID: u64 = 20;

pub(crate) fn run(common: &Common, args: Import) -> Result<()> {
    let mut entries = Entries::open(args.files, args.format, common.form(), args.skip)?;
    if args.dry_run {
        return dry_run(common, &args.db, entries);
    }
    let mut target = Target::open(&args.db, common)?;
    let start = Instant::now();
    let progress = bar(Unit::Input, entries.len());
    if args.sorted {
        let imported = import_sorted(common, &args.db, &mut entries, &mut target, args.replace, &progress)?;
        progress.finish_and_clear();
        return report(common, imported, start.elapsed());
    }
    let import = Importer {
        target,
        batch: WriteBatch::new(),
        entries: 0,
        expiry: Expiry::Default,
        expired: 0,
        imported: 0,
        read: Position { file: 0, record: args.skip },
        written: Position { file: 0, record: args.skip },
        json: common.json(),
        sources: entries.sources().to_vec(),
        progress: progress.clone(),
    };
    let shared = Arc::new(Mutex::new(import));
    let interrupted = Arc::clone(&shared);
    let _handled = on_interrupt("no message on Ctrl-C about the progress", move || {
        let code = lock(&interrupted).interrupted();
        exit(code)
    });
    let result = import_all(&mut entries, &shared, &progress);
    let settled = if result.is_ok() { settle(&shared, &progress) } else { Ok(()) };
    let import = lock(&shared);
    progress.finish_and_clear();
    // Imported entries stay, even if a later record is not valid.
    // They go to tables, with filters, even if they are few enough to stay in the log.
    let closed = import.target.db.flush().map_err(Failure::from);
    let closed = closed.and_then(|()| close(import.target.db.clone(), common));
    if let Err(failure) = result {
        import.say_how_to_resume();
        return Err(failure);
    }
    settled.and(closed)?;
    if import.expired > 0 {
        say(format_args!("kvtool: {} expired before, and of no effect", counted(import.expired, "value")));
    }
    report(common, import.imported, start.elapsed())
}

/// Waits for the compactions that are due after an import: later commands may be over before they
/// would begin. Ctrl-C ends the wait, since the importer is not locked.
fn settle(import: &Mutex<Importer>, progress: &ProgressBar) -> Result<()> {
    progress.set_message("compacting");
    let db = lock(import).target.db.clone();
    Ok(db.wait_for_compactions()?)
}

/// Writes the entries of sorted files to tables beside the store, and moves these into it, perhaps
/// in place of all that the keyspace has. Returns their number.
fn import_sorted(
    common: &Common,
    path: &Path,
    entries: &mut Entries,
    target: &mut Target,
    replace: bool,
    progress: &ProgressBar,
) -> Result<u64> {
    // Beside the store: the tables can then be linked. Removed in any case.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let made: Arc<Mutex<Option<PathBuf>>> = Arc::default();
    let interrupted = Arc::clone(&made);
    let _handled = on_interrupt("Ctrl-C will leave a directory behind", move || {
        if let Some(dir) = lock(&interrupted).take() {
            // The other thread may make a table meanwhile.
            for _ in 0..REMOVALS {
                match fs::remove_dir_all(&dir) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {}
                    _ => break,
                }
            }
        }
        exit(INTERRUPTED.into())
    });
    let dir = {
        let mut made = lock(&made);
        let dir = tempfile::Builder::new().prefix("kvtool-import-").tempdir_in(parent);
        let dir = dir.attempt(format_args!("cannot create a directory in {}", parent.display()))?;
        *made = Some(dir.path().to_owned());
        dir
    };
    if let Some(definition) = entries.keyspace()? {
        target.define(*definition).map_err(|why| entries.invalid(why))?;
    }
    let format = target.keyspace().sst_format()?;
    let mut tables = sst_build::build(entries, Some(target), &format, dir.path(), TABLE_SIZE, progress)?;
    let imported = tables.iter().map(|table| table.entries).sum();
    if replace {
        if tables.is_empty() {
            return Err(Failure::usage("the input has no entries: --replace would leave the keyspace empty"));
        }
        let mut writer = SstWriter::create(dir.path().join("deletes.sst"), &format)?;
        writer.delete_range(..)?;
        tables.push(writer.finish()?);
    }
    if !tables.is_empty() {
        let files = tables.into_iter().map(|table| table.path);
        target.keyspace().ingest(files, IngestOptions::new().mode(IngestMode::Move))?;
    }
    settle_and_close(target.db.clone(), common)?;
    Ok(imported)
}

/// A panic under the lock ends the process, so no thread sees what is half changed.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn import_all(entries: &mut Entries, import: &Mutex<Importer>, progress: &ProgressBar) -> Result<()> {
    loop {
        let failure = match entries.advance() {
            Ok(true) => match add_record(entries, import, progress) {
                Ok(()) => continue,
                Err(failure) => failure,
            },
            Ok(false) => return lock(import).write_batch(),
            Err(failure) => failure,
        };
        lock(import).write_batch()?;
        return Err(failure);
    }
}

/// Adds the record read last to the batch, and writes that if it is full.
fn add_record(entries: &mut Entries, import: &Mutex<Importer>, progress: &ProgressBar) -> Result<()> {
    let (position, skipped) = (entries.position(), entries.take_skipped());
    let is_full = {
        let (record, mut import) = (entries.record()?, lock(import));
        import.begin_record(position, skipped.map(|definition| *definition)).map_err(|why| entries.invalid(why))?;
        match record {
            Record::Entry(entry) => import.add(entry)?.map_err(|why| entries.invalid(why))?,
            Record::Keyspace(definition) => {
                import.target.define(*definition).map_err(|why| entries.invalid(why))?;
                false
            }
            Record::Blank => false,
        }
    };
    let mut import = lock(import);
    import.read = position;
    if is_full {
        entries.release();
        import.write_batch()?;
        progress.set_position(entries.bytes());
    }
    Ok(())
}

/// Reads and checks all entries, and prints what an import would do.
fn dry_run(common: &Common, db: &Path, mut entries: Entries) -> Result<()> {
    let name = common.keyspace.as_deref().unwrap_or("default");
    let (has_store, has_keyspace) = match open_read_only(db, common) {
        Ok(store) => (true, store.existing_keyspace(name)?.is_some()),
        Err(Failure::Store(Error::NotFound(_))) => (false, false),
        Err(failure) => return Err(failure),
    };
    let progress = bar(Unit::Input, entries.len());
    let checked = check_all(&mut entries, &progress);
    progress.finish_and_clear();
    let Checked { keys, bytes, invalid } = checked?;
    if common.json() {
        let mut output = Output::new();
        output.json(json!({
            "dry_run": true,
            "lines": keys,
            "bytes": bytes,
            "invalid": invalid,
            "creates_store": !has_store,
            "creates_keyspace": !has_keyspace,
        }))?;
        output.finish()?;
    }
    if invalid > 0 {
        let invalid = counted(invalid, "record");
        return Err(Failure::usage(format_args!("{invalid} not valid; nothing was written")));
    }
    say(format_args!(
        "dry run: would put {} of {} into {}keyspace {name:?} of {}{}; nothing was written",
        counted(keys, "key"),
        size(bytes),
        if has_keyspace { "" } else { "the new " },
        if has_store { "" } else { "the new store " },
        db.display(),
    ));
    Ok(())
}

/// What a dry run has found.
#[derive(Default)]
struct Checked {
    keys: u64,
    /// Of keys and values.
    bytes: u64,
    invalid: u64,
}

/// Reads all entries, and prints why records are not valid.
fn check_all(entries: &mut Entries, progress: &ProgressBar) -> Result<Checked> {
    let mut checked = Checked::default();
    while entries.advance()? {
        match entries.record() {
            Ok(Record::Entry(entry)) => {
                checked.keys += 1;
                checked.bytes += entry.len() as u64;
            }
            Ok(Record::Keyspace(_) | Record::Blank) => {}
            Err(failure) => {
                checked.invalid += 1;
                if checked.invalid <= SHOWN_INVALID {
                    progress.suspend(|| say(format_args!("kvtool: {}", failure.message().unwrap_or_default())));
                }
            }
        }
        if checked.keys.is_multiple_of(BATCH_ENTRIES as u64) {
            progress.set_position(entries.bytes());
            progress.set_message(count(checked.keys));
        }
    }
    Ok(checked)
}

fn report(common: &Common, imported: u64, time: Duration) -> Result<()> {
    let seconds = time.as_secs_f64();
    let per_second = imported as f64 / seconds.max(1e-9);
    if common.json() {
        let mut output = Output::new();
        output.json(json!({ "lines": imported, "seconds": seconds, "lines_per_second": per_second }))?;
        output.finish()?;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "to be read by people")]
    let rounded = per_second as u64;
    say(format_args!("{} in {} s, {} keys/s", counted(imported, "key"), Decimal(seconds), count(rounded)));
    Ok(())
}

struct Importer {
    target: Target,
    batch: WriteBatch,
    /// Entries in the batch.
    entries: u64,
    /// When puts of the batch expire that have no deadline of their own.
    expiry: Expiry,
    /// Values whose deadline was past.
    expired: u64,
    /// Entries written to the store.
    imported: u64,
    /// The last record whose entry is in the batch.
    read: Position,
    /// The last record whose entry is in the store, like those of all records before it.
    written: Position,
    json: bool,
    sources: Vec<Source>,
    progress: ProgressBar,
}

impl Importer {
    /// Goes to the keyspace of which a record is that is read now.
    fn begin_record(&mut self, record: Position, skipped: Option<Definition>) -> Result<(), String> {
        if record.file != self.read.file {
            self.target.begin_file().map_err(|failure| failure.message().unwrap_or_default())?;
        }
        skipped.map_or(Ok(()), |definition| self.target.define(definition))
    }

    /// Adds an entry. Returns whether the batch is full, or why the keyspace cannot take the entry.
    fn add(&mut self, entry: Entry<'_>) -> Result<Result<bool, String>> {
        if let Some(why) = self.target.refuses(&entry) {
            return Ok(Err(why));
        }
        if !matches!(entry.expiry, Expiry::At(_)) && entry.expiry != self.expiry {
            self.write_batch()?;
            self.expiry = entry.expiry;
        }
        let Entry { key, value, expiry, operands } = entry;
        let keyspace = self.target.keyspace();
        match (value, expiry) {
            (Some(value), Expiry::At(deadline)) => {
                self.expired += u64::from(deadline <= SystemTime::now());
                self.batch.put_with_expiry_in(keyspace, &key, value, deadline);
            }
            (Some(value), _) => self.batch.put_in(keyspace, &key, value),
            // What the key has is replaced, as by a put.
            (None, _) => self.batch.delete_in(keyspace, &key),
        }
        for operand in operands {
            self.batch.merge_in(keyspace, &key, operand);
        }
        self.entries += 1;
        Ok(Ok(self.batch.len() >= BATCH_ENTRIES || self.batch.byte_size() >= BATCH_BYTES))
    }

    fn write_batch(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.target.db.write_with(batch, WriteOptions::new().expiry(self.expiry))?;
        self.imported += std::mem::take(&mut self.entries);
        self.written = self.read;
        self.progress.set_message(count(self.imported));
        Ok(())
    }

    /// Makes the imported entries durable, and closes the store. They go to tables, with filters,
    /// even if they are few enough to stay in the log.
    fn close(&mut self) -> Result<()> {
        self.target.db.flush()?;
        Ok(self.target.db.clone().close()?)
    }

    /// Ends an interrupted import; returns the exit code.
    fn interrupted(&mut self) -> i32 {
        self.progress.finish_and_clear();
        let written = self.write_batch();
        let closed = self.close();
        self.say_how_to_resume();
        if self.json {
            let mut output = Output::new();
            let Position { file, record } = self.written;
            let file = self.sources[file].name();
            let document = json!({ "lines": self.imported, "interrupted": true, "file": file, "skip": record });
            // The message above already has the figures.
            let _ = output.json(document).and_then(|()| output.finish());
        }
        if let Err(failure) = written.and(closed) {
            say(format_args!("kvtool: {}", failure.message().unwrap_or_default()));
        }
        INTERRUPTED.into()
    }

    fn say_how_to_resume(&self) {
        let Position { file, record } = self.written;
        let source = &self.sources[file];
        let (name, noun) = (source.name(), source.noun());
        if self.imported == 0 {
            return say(format_args!("kvtool: nothing of {name} was imported"));
        }
        // Each file has its own --skip: files that are in the store as a whole are left out.
        let rest: Vec<String> = self.sources[file + 1..].iter().map(Source::name).collect();
        let rest = match (file, &rest[..]) {
            (0, []) => String::new(),
            (_, []) => format!(" of {name} alone"),
            (_, rest) => format!(" of {name} alone, then import {}", rest.join(", ")),
        };
        let done = if record == 1 { format!("first {noun}") } else { format!("first {} {noun}s", count(record)) };
        let verb = if record == 1 { "is" } else { "are" };
        say(format_args!("kvtool: the {done} of {name} {verb} in the store; resume with --skip {record}{rest}"));
    }
}
