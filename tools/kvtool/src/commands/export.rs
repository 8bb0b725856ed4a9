//! `export`: the entries of keyspaces as of one snapshot, in a format that `import` reads.
//!
//! A file is written under a temporary name beside its place, synced and renamed. An error, an
//! interruption or a crash leaves the old file as it was. Several files are renamed one after the
//! other when all are written. Only a crash or an error between two renames leaves some of them
//! old, and a second run replaces these as well.

use std::fs;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use indicatif::ProgressBar;
use serde_json::json;
use tamis::{Keyspace, KeyspaceOptions, Parts, ReadOptions, Snapshot};

use super::definition::Definition;
use super::file_names::file_names;
use super::formats::{Codec, Format};
use super::lines::BYTE_ORDER_MARK;
use super::progress::{Bar, KEYS, Unit, bar};
use super::range::KeyRange;
use super::salvage;
use super::store::{existing_keyspace, open_read_only, selected_keyspaces};
use super::whole_file::{Written, cannot_write, write_whole};
use crate::args::{Common, Export, Operator};
use crate::failure::{Attempt, Failure, Result};
use crate::interrupt::{self, on_interrupt};
use crate::output::{Output, document, say};
use crate::text::{Decimal, Form, counted, size};

/// Longest key in a message, in characters.
const SHOWN_KEY: usize = 60;
const BUFFER: usize = 1 << 16;

pub(crate) fn run(common: &Common, args: Export) -> Result<()> {
    let range = KeyRange::of(common, &args.range)?;
    if args.all_keyspaces && common.keyspace.is_some() {
        return Err(Failure::usage("--all-keyspaces and --keyspace exclude each other"));
    }
    let file = args.file.filter(|file| file != Path::new("-"));
    // To standard output, --json is a format, as for `scan`.
    let format = match (args.format, &file) {
        (None | Some(Format::Jsonl), None) if common.json() => Format::Jsonl,
        (Some(_), None) if common.json() => {
            return Err(Failure::usage("--json writes JSON lines to standard output, which --format contradicts"));
        }
        (Some(format), _) => format,
        (None, Some(file)) => Format::of_file(file),
        (None, None) => Format::Tsv,
    };
    if args.all_keyspaces && file.is_none() && format != Format::Jsonl {
        return Err(Failure::usage(
            "--all-keyspaces needs a directory; only JSON lines hold several keyspaces in one file",
        ));
    }
    let db = open_read_only(&args.db, common)?;
    let mut export = Exporter {
        snapshot: db.snapshot(),
        codec: Codec { format, form: common.form() },
        range,
        interrupted: Arc::default(),
        skip_damaged: args.skip_damaged,
        keys: 0,
        bytes: 0,
        dropped: Dropped::default(),
        skipped: 0,
    };
    let keyspaces = match args.all_keyspaces {
        true => selected_keyspaces(&db, common)?,
        false => vec![existing_keyspace(&db, common)?],
    };
    let Some(file) = file else {
        export.write_standard_output(&keyspaces)?;
        return export.conclude();
    };
    let targets: Vec<(Keyspace, PathBuf)> = if args.all_keyspaces {
        let names: Vec<&str> = keyspaces.iter().map(Keyspace::name).collect();
        let paths: Vec<PathBuf> =
            file_names(&names).into_iter().map(|name| file.join(format!("{name}.{}", format.extension()))).collect();
        keyspaces.into_iter().zip(paths).collect()
    } else {
        keyspaces.into_iter().map(|keyspace| (keyspace, file.clone())).collect()
    };
    // No file is replaced if another one cannot be.
    for (_, path) in &targets {
        refuse_directory(path)?;
    }
    if args.all_keyspaces {
        fs::create_dir_all(&file).attempt(format_args!("cannot create {}", file.display()))?;
    }
    let interrupted = Arc::clone(&export.interrupted);
    let _handled = on_interrupt("a temporary file may stay after Ctrl-C", move || {
        interrupted.store(true, Ordering::Relaxed);
    });
    let start = Instant::now();
    let mut written = Vec::new();
    for (keyspace, path) in &targets {
        written.extend(export.write_file(keyspace, path)?);
    }
    written.into_iter().try_for_each(Written::put_in_place)?;
    let seconds = start.elapsed().as_secs_f64();
    let Exporter { keys, bytes, .. } = export;
    let dropped = &export.dropped;
    if common.json() {
        let mut output = Output::new();
        let files: Vec<_> = targets
            .iter()
            .map(|(keyspace, path)| json!({ "keyspace": keyspace.name(), "file": path.display().to_string() }))
            .collect();
        output.json(json!({
            "keys": keys,
            "bytes": bytes,
            "seconds": seconds,
            "files": files,
            "dropped_deadlines": dropped.deadlines,
            "combined_operands": dropped.operands,
            "skipped": export.skipped,
        }))?;
        output.finish()?;
    }
    say(format_args!(
        "{} of {} written to {}, {} s",
        counted(keys, "key"),
        size(bytes),
        file.display(),
        Decimal(seconds)
    ));
    export.conclude()
}

fn refuse_directory(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => {
            let path = path.display();
            Err(Failure::usage(format_args!("{path} is a directory; --all-keyspaces writes to one")))
        }
        _ => Ok(()),
    }
}

struct Exporter {
    snapshot: Snapshot,
    codec: Codec,
    range: KeyRange,
    /// Set by Ctrl-C.
    interrupted: Arc<AtomicBool>,
    skip_damaged: bool,
    /// Keys written, and bytes of keys and values.
    keys: u64,
    bytes: u64,
    dropped: Dropped,
    /// Damaged ranges and keys that were skipped.
    skipped: u64,
}

/// What the format does not hold.
#[derive(Default)]
struct Dropped {
    /// Values that were written without their deadline.
    deadlines: u64,
    /// Operands that were written as a part of the value.
    operands: u64,
    /// Keyspaces of other options than the defaults, and these.
    options: Vec<String>,
}

impl Exporter {
    fn write_standard_output(&mut self, keyspaces: &[Keyspace]) -> Result<()> {
        let stdout = io::stdout().lock();
        let is_terminal = stdout.is_terminal();
        let mut out = BufWriter::with_capacity(BUFFER, stdout);
        for keyspace in keyspaces {
            let progress = if is_terminal { Bar::hidden() } else { self.progress_bar(keyspace)? };
            self.copy(keyspace, &mut out, &progress, Failure::output)?;
        }
        out.flush().map_err(Failure::output)
    }

    /// Says what was left out. Damage that was skipped makes the export a failure, though complete
    /// otherwise.
    fn conclude(&self) -> Result<()> {
        let Dropped { deadlines, operands, options } = &self.dropped;
        let deadlines = (*deadlines > 0).then(|| {
            let values = counted(*deadlines, "deadline");
            format!("{values} left out: a copy keeps these values for ever")
        });
        let operands =
            (*operands > 0).then(|| format!("{} combined with the values", counted(*operands, "merge operand")));
        let options = (!options.is_empty()).then(|| format!("left out: the options of {}", options.join(", ")));
        let dropped: Vec<String> = deadlines.into_iter().chain(operands).chain(options).collect();
        for what in &dropped {
            say(format_args!("kvtool: {what}"));
        }
        if !dropped.is_empty() {
            say("kvtool: JSON lines keep all of that (--format jsonl)");
        }
        match self.skipped {
            0 => Ok(()),
            skipped => {
                say(format_args!(
                    "skipped {}: keys there are missing or have older values",
                    counted(skipped, "damaged range")
                ));
                Err(Failure::Damaged)
            }
        }
    }

    /// Writes the file that is to stand at `path`, durably. A device or pipe is written to at once.
    fn write_file(&mut self, keyspace: &Keyspace, path: &Path) -> Result<Option<Written>> {
        let progress = self.progress_bar(keyspace)?;
        write_whole(path, |out| self.copy(keyspace, out, &progress, |source| cannot_write(path, source)))
    }

    fn copy(
        &mut self,
        keyspace: &Keyspace,
        out: &mut impl Write,
        progress: &ProgressBar,
        failed: impl Fn(io::Error) -> Failure,
    ) -> Result<()> {
        let copied = self.copy_entries(keyspace, out, progress, failed);
        progress.finish_and_clear();
        copied
    }

    fn copy_entries(
        &mut self,
        keyspace: &Keyspace,
        out: &mut impl Write,
        progress: &ProgressBar,
        failed: impl Fn(io::Error) -> Failure,
    ) -> Result<()> {
        let mut writer = EntryWriter::begin(self, keyspace, out).map_err(&failed)??;
        if writer.export.skip_damaged {
            let upper = writer.export.range.upper.clone().map_or(Bound::Unbounded, Bound::Excluded);
            let mut entries = keyspace.salvage((Bound::Included(writer.export.range.lower.clone()), upper))?;
            while let Some(parts) = entries.next_parts()? {
                writer.add(&parts, progress, &failed)?;
            }
            let skipped = entries.skipped();
            skipped.iter().for_each(|range| salvage::tell(Form::Plain, range));
            writer.export.skipped += skipped.len() as u64;
            return Ok(());
        }
        // The export uses each block once: reads ahead and bypasses the cache.
        let snapshot = writer.export.snapshot.keyspace(keyspace);
        let mut cursor = snapshot.cursor_with(ReadOptions::new().fill_cache(false))?.unmerged();
        let mut valid = writer.export.range.seek_to_first(&mut cursor)?;
        while let (true, Some(parts)) = (valid, cursor.parts()) {
            if !writer.export.range.contains(parts.key) {
                break;
            }
            writer.add(&parts, progress, &failed)?;
            valid = cursor.next()?;
        }
        Ok(())
    }

    fn progress_bar(&self, keyspace: &Keyspace) -> Result<Bar> {
        let bar = bar(Unit::Keys, Some(0));
        if !bar.is_hidden() {
            let upper = self.range.upper.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            bar.set_length(keyspace.approximate_len((Bound::Included(&self.range.lower), upper))?);
        }
        Ok(bar)
    }
}

/// Writes the entries of a keyspace.
struct EntryWriter<'a, W> {
    export: &'a mut Exporter,
    out: &'a mut W,
    keyspace: &'a Keyspace,
    has_ttl: bool,
    written: u64,
}

impl<'a, W: Write> EntryWriter<'a, W> {
    /// Writes what comes before the entries.
    fn begin(export: &'a mut Exporter, keyspace: &'a Keyspace, out: &'a mut W) -> io::Result<Result<Self>> {
        let options = match keyspace.options() {
            Ok(options) => options,
            Err(error) => return Ok(Err(error.into())),
        };
        let has_ttl = options.ttl.is_some();
        if export.codec.holds_all() {
            let definition = Definition { keyspace: keyspace.name().to_owned(), options };
            writeln!(out, "{}", document(definition.json()))?;
        } else if options != KeyspaceOptions::new() {
            export.dropped.options.push(format!("keyspace {:?}", keyspace.name()));
        }
        Ok(Ok(EntryWriter { export, out, keyspace, has_ttl, written: 0 }))
    }

    fn add(&mut self, parts: &Parts<'_>, progress: &ProgressBar, failed: impl Fn(io::Error) -> Failure) -> Result<()> {
        let EntryWriter { export, out, .. } = self;
        if export.interrupted.load(Ordering::Relaxed) {
            return Err(Failure::Interrupted("interrupted; no file has changed".into()));
        }
        interrupt::check()?;
        self.written += 1;
        let written = self.written;
        let mut value_len = parts.value.map_or(0, <[u8]>::len);
        if export.codec.holds_all() {
            export.codec.write_parts(out, parts, self.has_ttl).map_err(&failed)?;
            value_len += parts.operands.iter().map(Vec::len).sum::<usize>();
        } else {
            let combined = match combine(self.keyspace, parts) {
                Ok(combined) => combined,
                Err(why) if export.skip_damaged => {
                    say(format_args!("kvtool: skipped {}: {why}", self.place(parts.key)));
                    self.export.skipped += 1;
                    return Ok(());
                }
                Err(why) => {
                    return Err(Failure::Wrong(format!(
                        "{} cannot be exported: {why}; --format jsonl keeps its operands as they are, --skip-damaged leaves it out",
                        self.place(parts.key)
                    )));
                }
            };
            let value = combined.as_deref().or(parts.value).unwrap_or_default();
            if let Some(why) = export.codec.refuses(parts.key, value) {
                return Err(Failure::usage(format_args!("{} cannot be exported: {why}", self.place(parts.key))));
            }
            if written == 1 && export.codec.needs_mark(parts.key, value) {
                out.write_all(BYTE_ORDER_MARK).map_err(&failed)?;
            }
            export.codec.write(out, parts.key, value).map_err(&failed)?;
            export.dropped.deadlines += u64::from(parts.deadline.is_some());
            export.dropped.operands += parts.operands.len() as u64;
            value_len = value.len();
        }
        export.keys += 1;
        export.bytes += (parts.key.len() + value_len) as u64;
        if written.is_multiple_of(KEYS) {
            progress.set_position(written);
        }
        Ok(())
    }

    /// The entry that is written now, in words.
    fn place(&self, key: &[u8]) -> String {
        let key = Form::Plain.show_short(key, SHOWN_KEY);
        format!("entry {} of keyspace {:?}, key {key},", self.written, self.keyspace.name())
    }
}

/// The value that operands make, if there are any.
fn combine(keyspace: &Keyspace, parts: &Parts<'_>) -> Result<Option<Vec<u8>>, String> {
    if parts.operands.is_empty() {
        return Ok(None);
    }
    let operator = Operator::of(keyspace).map_err(|failure| failure.message().unwrap_or_default())?;
    operator.combine(parts.key, parts.value, parts.operands).map(Some).map_err(|why| why.to_string())
}
