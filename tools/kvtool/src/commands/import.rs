//! `import`: many puts, in batches, from TSV or JSON lines.

use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tamis::{Db, Keyspace, MAX_KEY_LEN, MAX_VALUE_LEN, WriteBatch};

use super::lines::Lines;
use super::store::open_to_write;
use crate::args::{Common, Import, ImportFormat};
use crate::failure::Result;
use crate::output::{Output, say};
use crate::text::{Decimal, Form, count};

/// A batch is written when it has this many lines or bytes. Larger ones gain nothing: the write-ahead log's share of the cost is
/// small by then.
const BATCH_LINES: usize = 1000;
const BATCH_BYTES: usize = 1 << 20;

pub(crate) fn run(common: &Common, args: Import) -> Result<()> {
    let file = args.file.as_deref();
    let source =
        Source { format: args.format.unwrap_or_else(|| format_of(file)), form: common.line_form(args.escaped) };
    let mut lines = Lines::open(file, source.longest_line())?;
    let (db, keyspace) = open_to_write(&args.db, common)?;
    let start = Instant::now();
    let mut import = Importer { db: &db, keyspace: &keyspace, batch: WriteBatch::new(), imported: 0 };
    let progress = progress_bar(lines.len());
    let result = import.all(&source, &mut lines, &progress);
    progress.finish_and_clear();
    // What was imported is there to stay, also when a later line is not valid.
    let (imported, name) = (import.imported, lines.name());
    let closed = db.sync().and_then(|()| db.clone().close());
    if let Err(failure) = result {
        say(format_args!("kvtool: {} lines of {name} were imported before this:", count(imported)));
        return Err(failure);
    }
    closed?;
    report(common, imported, start.elapsed())
}

fn format_of(file: Option<&Path>) -> ImportFormat {
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
    say(format_args!("{} lines in {} s, {} keys/s", count(imported), Decimal(seconds), count(rounded)));
    Ok(())
}

/// Hidden when standard error is not a terminal.
fn progress_bar(bytes: Option<u64>) -> ProgressBar {
    let (bar, template) = match bytes {
        Some(bytes) => (ProgressBar::new(bytes), "{bar:40} {percent} %, {msg} lines, {bytes_per_sec}, {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} read, {msg} lines, {bytes_per_sec}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

struct Importer<'a> {
    db: &'a Db,
    keyspace: &'a Keyspace,
    batch: WriteBatch,
    /// Lines written to the store.
    imported: u64,
}

impl Importer<'_> {
    fn all(&mut self, source: &Source, lines: &mut Lines, progress: &ProgressBar) -> Result<()> {
        loop {
            let entry = match lines.next() {
                Ok(Some(line)) => match source.parse(line) {
                    Ok(Some(entry)) => Ok(entry),
                    Ok(None) => continue,
                    Err(why) => Err(lines.invalid(why)),
                },
                Ok(None) => break,
                Err(failure) => Err(failure),
            };
            let (key, value) = match entry {
                Ok(entry) => entry,
                Err(failure) => {
                    self.write_batch()?;
                    return Err(failure);
                }
            };
            self.batch.put_in(self.keyspace, key, value);
            if self.batch.len() >= BATCH_LINES || self.batch.byte_size() >= BATCH_BYTES {
                self.write_batch()?;
                progress.set_position(lines.bytes());
                progress.set_message(count(self.imported));
            }
        }
        self.write_batch()
    }

    fn write_batch(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        let len = batch.len() as u64;
        self.db.write(batch)?;
        self.imported += len;
        Ok(())
    }
}

/// How lines become entries.
struct Source {
    format: ImportFormat,
    /// Form of TSV fields; `None` for bytes as they are.
    form: Option<Form>,
}

type Entry = (Vec<u8>, Vec<u8>);

impl Source {
    /// No valid line is longer: the limits of key and value in the form that takes most room for a byte.
    fn longest_line(&self) -> usize {
        let per_byte = match (self.format, self.form) {
            (ImportFormat::Tsv, None) => 1,
            (ImportFormat::Tsv, Some(Form::Hex)) => 2,
            (ImportFormat::Tsv, Some(Form::Escaped)) => 4,
            // `\u0000`
            (ImportFormat::Jsonl, _) => 6,
        };
        (MAX_KEY_LEN + MAX_VALUE_LEN) * per_byte + 1024
    }

    /// The entry in a line; `None` if there is none, or what is wrong with it.
    fn parse(&self, line: &[u8]) -> Result<Option<Entry>, String> {
        let entry = match self.format {
            ImportFormat::Tsv => Some(self.parse_tsv(line)?),
            ImportFormat::Jsonl => parse_json(line)?,
        };
        match &entry {
            Some((key, _)) if key.len() > MAX_KEY_LEN => Err(format!("a key takes up to {MAX_KEY_LEN} bytes")),
            Some((_, value)) if value.len() > MAX_VALUE_LEN => {
                Err(format!("a value takes up to {MAX_VALUE_LEN} bytes"))
            }
            _ => Ok(entry),
        }
    }

    fn parse_tsv(&self, line: &[u8]) -> Result<Entry, String> {
        let (key, value) = match line.iter().position(|&byte| byte == b'\t') {
            Some(tab) => (&line[..tab], &line[tab + 1..]),
            None => (line, &[][..]),
        };
        match self.form {
            Some(form) => Ok((form.parse(key)?, form.parse(value)?)),
            None => Ok((key.to_vec(), value.to_vec())),
        }
    }
}

fn parse_json(line: &[u8]) -> Result<Option<Entry>, String> {
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
            (None, Some(Value::String(hex))) => Form::Hex.parse(hex.as_bytes()).map(Some),
            (None, Some(_)) => Err(format!("{hex_name} is not a string")),
            (None, None) => Ok(None),
        }
    };
    let key = field("key")?.ok_or("it has no key")?;
    Ok(Some((key, field("value")?.unwrap_or_default())))
}

/// A string, or `{"hex": "…"}`.
fn json_field(name: &str, value: Value) -> Result<Vec<u8>, String> {
    match value {
        Value::String(text) => Ok(text.into_bytes()),
        Value::Object(object) => match object.get("hex") {
            Some(Value::String(hex)) if object.len() == 1 => Form::Hex.parse(hex.as_bytes()),
            _ => Err(format!("{name} is an object that is not of the form {{\"hex\": \"…\"}}")),
        },
        _ => Err(format!("{name} is not a string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tsv(form: Option<Form>, line: &[u8]) -> Result<Entry, String> {
        Source { format: ImportFormat::Tsv, form }.parse(line).map(Option::unwrap)
    }

    fn entry(key: &[u8], value: &[u8]) -> Result<Entry, String> {
        Ok((key.to_vec(), value.to_vec()))
    }

    #[test]
    fn tsv_fields_are_bytes_unless_a_form_is_given() {
        assert_eq!(tsv(None, b"a\\b\tc\td\r"), entry(b"a\\b", b"c\td\r"));
        assert_eq!(tsv(None, b"word"), entry(b"word", b""));
        assert_eq!(tsv(None, b""), entry(b"", b""));
        assert_eq!(tsv(Some(Form::Escaped), br"a\\b\t	\x00"), entry(b"a\\b\t", b"\0"));
        assert_eq!(tsv(Some(Form::Hex), b"00ff\t41"), entry(b"\0\xff", b"A"));
        assert!(tsv(Some(Form::Escaped), br"\q").is_err());
    }

    #[test]
    fn json_fields_are_strings_or_hex() {
        for line in [
            r#"{"key": "k", "value": "v", "schema": 1}"#,
            r#"{"key_hex": "6b", "value_hex": "76"}"#,
            r#" {"key": {"hex": "6b"}, "value": {"hex": "76"}} "#,
        ] {
            assert_eq!(parse_json(line.as_bytes()), Ok(Some((b"k".to_vec(), b"v".to_vec()))), "{line}");
        }
        assert_eq!(parse_json(br#"{"key": ""}"#), Ok(Some((vec![], vec![]))));
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
        assert!(tsv(None, &[b'k'; MAX_KEY_LEN]).is_ok());
        assert!(tsv(None, &[b'k'; MAX_KEY_LEN + 1]).is_err());
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
