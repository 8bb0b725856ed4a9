//! Output: rows, JSON and tables on standard output, messages on standard error.

use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

use serde_json::{Map, Value, json};
use tamis::{FilterLedger, ReadStats};

use crate::args::{Common, OutputFormat};
use crate::failure::{Failure, Result};
use crate::table::{Layout, Table};
use crate::text::{Form, hex, wrapped};

/// Version of the JSON documents. It changes when a field is removed or changes its meaning, not
/// when one is added.
pub(crate) const SCHEMA: u64 = 1;

/// What draws attention, and what names columns.
const ALARM: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const HEAD: Style = Style::new().bold();

/// Prints a message on standard error, ignoring write errors.
pub(crate) fn say(text: impl Display) {
    let error = io::stderr();
    let text = text.to_string();
    let lines = width_of(&error, error.is_terminal()).map_or_else(|| text.clone(), |width| in_lines(&text, width));
    let _ = writeln!(error.lock(), "{lines}");
}

/// Characters in a line of a terminal.
#[cfg(unix)]
fn width_of(stream: &impl std::os::fd::AsFd, is_terminal: bool) -> Option<usize> {
    let size = if is_terminal { terminal_size::terminal_size_of(stream) } else { None };
    size.map(|(width, _)| usize::from(width.0))
}

#[cfg(windows)]
fn width_of(stream: &impl std::os::windows::io::AsHandle, is_terminal: bool) -> Option<usize> {
    let size = if is_terminal { terminal_size::terminal_size_of(stream) } else { None };
    size.map(|(width, _)| usize::from(width.0))
}

/// A text whose lines are wrapped.
fn in_lines(text: &str, width: usize) -> String {
    text.lines().flat_map(|line| wrapped(line, width)).collect::<Vec<_>>().join("\n")
}

/// Prints why the command failed.
pub(crate) fn say_failure(text: impl Display) {
    let _ = writeln!(anstream::stderr(), "{ALARM}kvtool:{ALARM:#} {text}");
}

/// Buffered standard output. A command ends with [`Output::finish`], which reports any write error.
pub(crate) struct Output {
    out: BufWriter<StdoutLock<'static>>,
    /// Characters in a line, if it is a terminal.
    width: Option<usize>,
    /// Colours are for terminals that have them, unless NO_COLOR forbids them.
    is_styled: bool,
}

impl Output {
    pub(crate) fn new() -> Output {
        let out = io::stdout();
        let is_styled = AutoStream::choice(&out) != ColorChoice::Never;
        let width = width_of(&out, out.is_terminal());
        Output { out: BufWriter::with_capacity(1 << 16, out.lock()), width, is_styled }
    }

    /// Writes a table in the form that the command line asks for; as text, as wide as the terminal.
    pub(crate) fn table(&mut self, common: &Common, table: &Table) -> Result<()> {
        let layout = match (common.format, self.width) {
            (OutputFormat::Plain, _) => Layout::Plain,
            (_, Some(width)) => Layout::Within(width),
            (_, None) => Layout::Markdown,
        };
        let (lines, heads) = table.lay_out(layout);
        for (i, line) in lines.iter().enumerate() {
            if i < heads { self.styled(HEAD, line, "")? } else { self.line(line)? }
        }
        Ok(())
    }

    /// Writes a sentence, wrapped in a terminal.
    pub(crate) fn sentence(&mut self, text: impl Display) -> Result<()> {
        match self.width {
            Some(width) => self.line(in_lines(&text.to_string(), width)),
            None => self.line(text),
        }
    }

    /// Writes a line that a user should not miss.
    pub(crate) fn warning(&mut self, text: impl Display) -> Result<()> {
        self.styled(WARNING, "warning:", format_args!(" {text}"))
    }

    fn styled(&mut self, style: Style, styled: impl Display, rest: impl Display) -> Result<()> {
        match self.is_styled {
            true => self.line(format_args!("{style}{styled}{style:#}{rest}")),
            false => self.line(format_args!("{styled}{rest}")),
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(Failure::output)
    }

    pub(crate) fn line(&mut self, text: impl Display) -> Result<()> {
        writeln!(self.out, "{text}").map_err(Failure::output)
    }

    /// Writes a row: key, tab, value.
    pub(crate) fn row(&mut self, form: Form, key: &[u8], value: &[u8]) -> Result<()> {
        write_row(&mut self.out, form, key, value).map_err(Failure::output)
    }

    /// Writes a key on a line of its own.
    pub(crate) fn key(&mut self, form: Form, key: &[u8]) -> Result<()> {
        form.write_key(&mut self.out, key).and_then(|()| self.out.write_all(b"\n")).map_err(Failure::output)
    }

    /// Writes a value on a line of its own.
    pub(crate) fn value(&mut self, form: Form, value: &[u8]) -> Result<()> {
        form.write(&mut self.out, value).and_then(|()| self.out.write_all(b"\n")).map_err(Failure::output)
    }

    /// Writes one JSON [`document`] on one line.
    pub(crate) fn json(&mut self, content: Value) -> Result<()> {
        self.line(document(content))
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(Failure::output)
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        self.flush()
    }
}

/// Writes a row: key, tab, value.
pub(crate) fn write_row(out: &mut impl Write, form: Form, key: &[u8], value: &[u8]) -> io::Result<()> {
    form.write_key(out, key)?;
    out.write_all(b"\t")?;
    form.write(out, value)?;
    out.write_all(b"\n")
}

/// A JSON document: the schema number and the fields of `content`.
pub(crate) fn document(content: Value) -> Value {
    let mut document = Map::new();
    document.insert("schema".into(), json!(SCHEMA));
    match content {
        Value::Object(fields) => document.extend(fields),
        other => {
            document.insert("value".into(), other);
        }
    }
    Value::Object(document)
}

/// Bytes in JSON: a string if they are UTF-8. Otherwise, or if `form` is hex, `{"hex": "00ff"}`.
pub(crate) fn json_bytes(form: Form, bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) if form != Form::Hex => json!(text),
        _ => json!({ "hex": hex(bytes) }),
    }
}

pub(crate) fn json_reads(reads: &ReadStats) -> Value {
    json!({
        "look_ups": reads.look_ups(),
        "probes": reads.probes,
        "negatives": reads.negatives,
        "true_positives": reads.true_positives,
        "false_positives": reads.false_positives,
        "false_positive_rate": reads.false_positive_rate(),
        "false_positive_interval": reads.false_positive_interval().map(|(low, high)| [low, high]),
        "degraded": reads.degraded,
        "skipped": reads.skipped,
        "prefix_probes": reads.prefix_probes,
        "prefix_skips": reads.prefix_skips,
        "cache_hits": reads.cache_hits,
        "block_reads": reads.block_reads,
        "block_bytes": reads.block_bytes,
        "avoidable_reads": reads.avoidable_reads,
        "avoidable_bytes": reads.avoidable_bytes,
        "filter_reads": reads.filter_reads,
        "index_reads": reads.index_reads,
        "scan_blocks_unused": reads.scan_blocks_unused,
        "scan_reads_unused": reads.scan_reads_unused,
        "range_probes": reads.range_probes,
        "range_negatives": reads.range_negatives,
        "range_false_positives": reads.range_false_positives,
        "range_false_positive_rate": reads.range_false_positive_rate(),
        "tombstones_passed": reads.tombstones_passed,
        "deleted_by_range": reads.deleted_by_range,
    })
}

/// The counters and the expected rates, as JSON.
pub(crate) fn json_ledger(ledger: &FilterLedger) -> Value {
    let mut document = json_reads(&ledger.reads);
    document["designed_false_positive_rate"] = json!(ledger.designed_rate());
    document["expected_false_positive_rate"] = json!(ledger.expected_rate());
    document["predicted_range_false_positive_rate"] = json!(ledger.predicted_range_rate());
    document["excess_in_standard_deviations"] = json!(ledger.excess());
    document["excessive"] = json!(ledger.is_excessive());
    document
}
