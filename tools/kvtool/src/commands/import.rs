//! `import`: many puts, in batches, from TSV or JSON lines; or, of sorted lines, an ingest.
//!
//! The reading thread and the Ctrl-C handler share the importer behind a lock, which is free while
//! the reader waits for a line. An interruption therefore waits at most for the current batch. It
//! then writes the lines read so far and prints where to resume.

use std::borrow::Cow;
use std::path::Path;
use std::process::exit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tamis::{Db, IngestMode, IngestOptions, Keyspace, MAX_KEY_LEN, MAX_VALUE_LEN, WriteBatch};

use super::lines::Lines;
use super::sst_build;
use super::store::open_to_write;
use crate::args::{Common, Import, ImportFormat};
use crate::failure::{Attempt, INTERRUPTED, Result};
use crate::output::{Output, say};
use crate::text::{Decimal, EMPTY_KEY, Form, QUOTES, count, counted};

/// A batch is written when it reaches this many lines or bytes. Larger batches gain nothing: the
/// write-ahead log's share of the cost is small by then.
const BATCH_LINES: usize = 1000;
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of a table of sorted lines.
const TABLE_SIZE: u64 = 64 << 20;

pub(crate) fn run(common: &Common, args: Import) -> Result<()> {
    let file = args.file.as_deref();
    let parser = LineParser { format: args.format.unwrap_or_else(|| format_of(file)), form: common.form() };
    let mut lines = Lines::open(file, parser.longest_line())?;
    lines.skip(args.skip)?;
    let (db, keyspace) = open_to_write(&args.db, common)?;
    let start = Instant::now();
    let progress = progress_bar(lines.len());
    if args.sorted {
        let imported = import_sorted(&args.db, &parser, &mut lines, &db, &keyspace, &progress)?;
        progress.finish_and_clear();
        return report(common, imported, start.elapsed());
    }
    let import = Importer {
        db,
        keyspace,
        batch: WriteBatch::new(),
        imported: 0,
        read: args.skip,
        written: args.skip,
        json: common.json,
        name: lines.name().to_owned(),
        progress: progress.clone(),
    };
    let shared = Arc::new(Mutex::new(import));
    let interrupted = Arc::clone(&shared);
    let handled = ctrlc::set_handler(move || {
        let code = lock(&interrupted).interrupted();
        exit(code)
    });
    if let Err(error) = handled {
        say(format_args!("kvtool: no message on Ctrl-C about the progress: {error}"));
    }
    let result = import_all(&parser, &mut lines, &shared, &progress);
    let mut import = lock(&shared);
    progress.finish_and_clear();
    // Imported lines stay, even if a later line is not valid.
    let closed = import.close();
    if let Err(failure) = result {
        import.say_how_to_resume();
        return Err(failure);
    }
    closed?;
    report(common, import.imported, start.elapsed())
}

/// A panic under the lock ends the process, so no thread sees a half-changed importer.
fn lock(import: &Mutex<Importer>) -> MutexGuard<'_, Importer> {
    import.lock().unwrap_or_else(PoisonError::into_inner)
}

fn import_all(parser: &LineParser, lines: &mut Lines, import: &Mutex<Importer>, progress: &ProgressBar) -> Result<()> {
    loop {
        let failure = match lines.advance() {
            Ok(true) => match parser.parse(lines.line()) {
                Ok(entry) => {
                    let is_full = lock(import).add(entry, lines.number());
                    if is_full {
                        lines.release();
                        lock(import).write_batch()?;
                        progress.set_position(lines.bytes());
                    }
                    continue;
                }
                Err(why) => lines.invalid(why),
            },
            Ok(false) => return lock(import).write_batch(),
            Err(failure) => failure,
        };
        lock(import).write_batch()?;
        return Err(failure);
    }
}

/// Writes the entries of sorted lines to tables beside the store, and moves these into it. Returns
/// their number.
fn import_sorted(
    path: &Path,
    parser: &LineParser,
    lines: &mut Lines,
    db: &Db,
    keyspace: &Keyspace,
    progress: &ProgressBar,
) -> Result<u64> {
    // Beside the store: the tables can then be linked. Removed in any case.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = tempfile::Builder::new().prefix("kvtool-import-").tempdir_in(parent);
    let dir = dir.attempt(format_args!("cannot create a directory in {}", parent.display()))?;
    let tables = sst_build::build(parser, lines, &keyspace.sst_format()?, dir.path(), TABLE_SIZE, progress)?;
    let entries = tables.iter().map(|table| table.entries).sum();
    if !tables.is_empty() {
        let files = tables.into_iter().map(|table| table.path);
        keyspace.ingest(files, IngestOptions::new().mode(IngestMode::Move))?;
    }
    db.clone().close()?;
    Ok(entries)
}

pub(super) fn format_of(file: Option<&Path>) -> ImportFormat {
    let extension = file.and_then(Path::extension).and_then(|extension| extension.to_str()).unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        "jsonl" | "ndjson" | "json" => ImportFormat::Jsonl,
        _ => ImportFormat::Tsv,
    }
}

fn report(common: &Common, imported: u64, time: Duration) -> Result<()> {
    let seconds = time.as_secs_f64();
    let per_second = imported as f64 / seconds.max(1e-9);
    if common.json {
        let mut output = Output::new();
        output.json(json!({ "lines": imported, "seconds": seconds, "lines_per_second": per_second }))?;
        output.finish()?;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "to be read by people")]
    let rounded = per_second as u64;
    say(format_args!("{} in {} s, {} keys/s", counted(imported, "line"), Decimal(seconds), count(rounded)));
    Ok(())
}

/// Hidden when standard error is not a terminal.
pub(super) fn progress_bar(bytes: Option<u64>) -> ProgressBar {
    let (bar, template) = match bytes {
        Some(bytes) => (ProgressBar::new(bytes), "{bar:40} {percent} %, {msg} lines, {bytes_per_sec}, {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} read, {msg} lines, {bytes_per_sec}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

struct Importer {
    db: Db,
    keyspace: Keyspace,
    batch: WriteBatch,
    /// Entries written to the store.
    imported: u64,
    /// The last line whose entry is in the batch.
    read: u64,
    /// The last line written to the store, like all lines before it.
    written: u64,
    json: bool,
    /// Name of the input.
    name: String,
    progress: ProgressBar,
}

impl Importer {
    /// Adds the entry of line `number`, if any. Returns whether the batch is full.
    fn add(&mut self, entry: Option<KeyValue<'_>>, number: u64) -> bool {
        self.read = number;
        let Some((key, value)) = entry else { return false };
        self.batch.put_in(&self.keyspace, key, value);
        self.batch.len() >= BATCH_LINES || self.batch.byte_size() >= BATCH_BYTES
    }

    fn write_batch(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        let len = batch.len() as u64;
        self.db.write(batch)?;
        self.imported += len;
        self.written = self.read;
        self.progress.set_message(count(self.imported));
        Ok(())
    }

    /// Makes the imported entries durable, and closes the store.
    fn close(&mut self) -> Result<()> {
        self.db.sync()?;
        Ok(self.db.clone().close()?)
    }

    /// Ends an interrupted import; returns the exit code.
    fn interrupted(&mut self) -> i32 {
        self.progress.finish_and_clear();
        let written = self.write_batch();
        let closed = self.close();
        self.say_how_to_resume();
        if self.json {
            let mut output = Output::new();
            let document = json!({ "lines": self.imported, "interrupted": true, "skip": self.written });
            // The message above already has the figures.
            let _ = output.json(document).and_then(|()| output.finish());
        }
        if let Err(failure) = written.and(closed) {
            say(format_args!("kvtool: {}", failure.message().unwrap_or_default()));
        }
        INTERRUPTED.into()
    }

    fn say_how_to_resume(&self) {
        let Importer { name, written, .. } = self;
        match written {
            0 => say(format_args!("kvtool: nothing of {name} was imported")),
            1 => say(format_args!("kvtool: the first line of {name} is in the store; resume with --skip 1")),
            n => {
                say(format_args!(
                    "kvtool: the first {} lines of {name} are in the store; resume with --skip {n}",
                    count(*n)
                ));
            }
        }
    }
}

/// How lines are parsed into entries.
pub(super) struct LineParser {
    pub(super) format: ImportFormat,
    /// Form of TSV fields.
    pub(super) form: Form,
}

pub(super) type KeyValue<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

impl LineParser {
    /// Upper bound on a valid line: the limits of key and value in the longest encoding of a byte.
    pub(super) fn longest_line(&self) -> usize {
        let per_byte = match self.format {
            ImportFormat::Tsv => self.form.longest_byte(),
            // `\u0000`
            ImportFormat::Jsonl => 6,
        };
        (MAX_KEY_LEN + MAX_VALUE_LEN) * per_byte + 2 * QUOTES + 1024
    }

    /// The entry in a line, or `None` for a blank line of JSON. The error says what is wrong.
    pub(super) fn parse<'a>(&self, line: &'a [u8]) -> Result<Option<KeyValue<'a>>, String> {
        let entry = match self.format {
            ImportFormat::Tsv => Some(self.parse_tsv(line)?),
            ImportFormat::Jsonl => parse_json(line)?,
        };
        match &entry {
            Some((key, _)) if key.len() > MAX_KEY_LEN => Err(format!("a key has at most {MAX_KEY_LEN} bytes")),
            Some((_, value)) if value.len() > MAX_VALUE_LEN => {
                Err(format!("a value has at most {MAX_VALUE_LEN} bytes"))
            }
            _ => Ok(entry),
        }
    }

    fn parse_tsv<'a>(&self, line: &'a [u8]) -> Result<KeyValue<'a>, String> {
        let (key, value) = match line.iter().position(|&byte| byte == b'\t') {
            Some(0) if self.form == Form::Plain => {
                return Err(format!("it has no key before the tab (the empty key is {EMPTY_KEY})"));
            }
            Some(tab) => (&line[..tab], &line[tab + 1..]),
            None => (line, &[][..]),
        };
        Ok((self.form.parse_field(key)?, self.form.parse_field(value)?))
    }
}

fn parse_json(line: &[u8]) -> Result<Option<KeyValue<'static>>, String> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let Value::Object(mut object) = serde_json::from_slice(line).map_err(|error| error.to_string())? else {
        return Err("it is not a JSON object".into());
    };
    let mut field = |name: &str| {
        let hex_name = format!("{name}_hex");
        match (object.remove(name), object.remove(&hex_name)) {
            (Some(_), Some(_)) => Err(format!("it has both {name} and {hex_name}")),
            (Some(value), None) => json_field(name, value).map(Some),
            (None, Some(Value::String(hex))) => parse_hex(&hex).map(Some),
            (None, Some(_)) => Err(format!("{hex_name} is not a string")),
            (None, None) => Ok(None),
        }
    };
    let key = field("key")?.ok_or("it has no key")?;
    Ok(Some((key.into(), field("value")?.unwrap_or_default().into())))
}

fn parse_hex(digits: &str) -> Result<Vec<u8>, String> {
    Form::Hex.parse_field(digits.as_bytes()).map(Cow::into_owned)
}

/// A string, or `{"hex": "…"}`.
fn json_field(name: &str, value: Value) -> Result<Vec<u8>, String> {
    match value {
        Value::String(text) => Ok(text.into_bytes()),
        Value::Object(object) => match object.get("hex") {
            Some(Value::String(hex)) if object.len() == 1 => parse_hex(hex),
            _ => Err(format!("{name} is an object that is not of the form {{\"hex\": \"…\"}}")),
        },
        _ => Err(format!("{name} is not a string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tsv(form: Form, line: &[u8]) -> Result<KeyValue<'_>, String> {
        LineParser { format: ImportFormat::Tsv, form }.parse(line).map(Option::unwrap)
    }

    fn entry(key: &'static [u8], value: &'static [u8]) -> Result<KeyValue<'static>, String> {
        Ok((key.into(), value.into()))
    }

    #[test]
    fn tsv_fields_are_bytes_unless_they_are_quoted_or_a_form_is_given() {
        assert_eq!(tsv(Form::Plain, b"a\\b\tc\td\r"), entry(b"a\\b", b"c\td\r"));
        assert_eq!(tsv(Form::Plain, b"word"), entry(b"word", b""));
        assert_eq!(tsv(Form::Plain, br"$'a\tb'	$'\n'"), entry(b"a\tb", b"\n"));
        assert_eq!(tsv(Form::Plain, b"$''\tv"), entry(b"", b"v"));
        assert_eq!(tsv(Form::Escaped, br"a\\b\t	\x00"), entry(b"a\\b\t", b"\0"));
        assert_eq!(tsv(Form::Hex, b"00ff\t41"), entry(b"\0\xff", b"A"));
        assert!(tsv(Form::Escaped, br"\q").is_err());
        assert!(tsv(Form::Plain, br"$'\q'").is_err());
    }

    #[test]
    fn a_line_without_a_key_is_refused_where_people_write_lines() {
        for line in [&b"\t"[..], b"\tvalue"] {
            assert!(tsv(Form::Plain, line).unwrap_err().contains("no key"));
        }
        assert_eq!(tsv(Form::Escaped, b"\tv"), entry(b"", b"v"));
        assert_eq!(tsv(Form::Hex, b"\t41"), entry(b"", b"A"));
    }

    #[test]
    fn json_fields_are_strings_or_hex() {
        for line in [
            r#"{"key": "k", "value": "v", "schema": 1}"#,
            r#"{"key_hex": "6b", "value_hex": "76"}"#,
            r#" {"key": {"hex": "6b"}, "value": {"hex": "76"}} "#,
        ] {
            assert_eq!(parse_json(line.as_bytes()), entry(b"k", b"v").map(Some), "{line}");
        }
        assert_eq!(parse_json(br#"{"key": ""}"#), entry(b"", b"").map(Some));
        assert_eq!(parse_json(b" \r"), Ok(None));
        for line in [
            "{",
            "[]",
            r#"{"value": "v"}"#,
            r#"{"key": 1}"#,
            r#"{"key": "k", "key_hex": "6b"}"#,
            r#"{"key_hex": "6"}"#,
            r#"{"key": "k", "value": null}"#,
            r#"{"key": {"hex": "6b", "more": 1}}"#,
        ] {
            assert!(parse_json(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn keys_beyond_the_limit_are_refused_before_they_are_written() {
        assert!(tsv(Form::Plain, &[b'k'; MAX_KEY_LEN]).is_ok());
        assert!(tsv(Form::Plain, &[b'k'; MAX_KEY_LEN + 1]).is_err());
    }

    #[test]
    fn format_is_that_of_the_extension() {
        for (file, format) in [
            (None, ImportFormat::Tsv),
            (Some("words"), ImportFormat::Tsv),
            (Some("a.tsv"), ImportFormat::Tsv),
            (Some("a.JSONL"), ImportFormat::Jsonl),
            (Some("a.ndjson"), ImportFormat::Jsonl),
        ] {
            assert_eq!(format_of(file.map(Path::new)), format);
        }
    }
}
