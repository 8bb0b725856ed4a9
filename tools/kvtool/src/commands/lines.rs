//! [`Lines`]: reads bytes line by line, or record by record, from a file or standard input.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use super::range::KeyRange;
use crate::failure::{Attempt, Failure, Result};
use crate::output::say;
use crate::text::{EMPTY_KEY, Form, counted};

/// A buffer larger than this is freed once its line has been used.
const KEPT_BUFFER: usize = 1 << 20;

/// Some programs begin text with it. It belongs to no line or record, whatever the format.
pub(super) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// What files begin with that are neither lines nor records, and what to do with them.
const OTHERS: [(&[u8], &str); 9] = [
    (b"\xff\xfe", UTF_16),
    (b"\xfe\xff", UTF_16),
    (b"\x1f\x8b", "compressed by gzip; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd; unpack it first"),
    (b"\xfd7zXZ\0", "compressed by xz; unpack it first"),
    (b"PK\x03\x04", "a zip archive or a spreadsheet; unpack it first, or save it as CSV"),
    (b"SQLite format 3\0", "an SQLite database; let it write CSV"),
    (b"PAR1\x15", "a Parquet file; convert it to CSV or JSON lines"),
    (b"tamissst\x01", "a table of a store; `kvtool ingest` adds it, `kvtool sst` prints it"),
];

const UTF_16: &str = "text in UTF-16; convert it to UTF-8, as by `iconv -f UTF-16 -t UTF-8`";

/// How many characters in UTF-16 without a byte order mark show that they are.
const SHOWING: usize = 4;

/// What a file is that begins with `start`, if that is plainly no lines or records.
pub(super) fn something_else(start: &[u8], framing: Framing) -> Option<&'static str> {
    let is_wide = |zeros: usize| {
        let (pairs, _) = start.as_chunks::<2>();
        let is_one = |pair: &[u8; 2]| pair[zeros] == 0 && matches!(pair[1 - zeros], b'\t' | b'\r' | b' '..=b'~');
        framing != Framing::NulPair && pairs.len() >= SHOWING && pairs[..SHOWING].iter().all(is_one)
    };
    let known = OTHERS.iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, what)| *what);
    known.or_else(|| (is_wide(0) || is_wide(1)).then_some(UTF_16))
}

/// Where a record ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// At a newline.
    Line,
    /// At a newline outside of double quotes. A carriage return before it belongs to it.
    QuotedLines,
    /// At every second NUL byte.
    NulPair,
}

impl Framing {
    fn delimiter(self) -> u8 {
        match self {
            Framing::Line | Framing::QuotedLines => b'\n',
            Framing::NulPair => 0,
        }
    }

    /// Whether a record that ends with its `count`-th delimiter and has so many quotes goes on.
    fn goes_on(self, count: u64, quotes: usize) -> bool {
        match self {
            Framing::Line => false,
            Framing::QuotedLines => !quotes.is_multiple_of(2),
            Framing::NulPair => count < 2,
        }
    }

    pub(crate) fn noun(self) -> &'static str {
        match self {
            Framing::Line => "line",
            Framing::QuotedLines | Framing::NulPair => "record",
        }
    }
}

/// Reads lines of any length up to a limit. Removes only the newline. Skips and counts empty lines.
/// With another framing, its records take the place of lines.
pub(crate) struct Lines {
    input: Box<dyn BufRead>,
    framing: Framing,
    name: String,
    limit: usize,
    line: Vec<u8>,
    number: u64,
    empty: u64,
    /// Where the line read last begins.
    start: u64,
    bytes: u64,
}

impl Lines {
    /// Opens `file`; standard input if it is `-` or absent.
    pub(crate) fn open(file: Option<&Path>, limit: usize) -> Result<Lines> {
        Lines::open_records(file, Framing::Line, limit)
    }

    /// Opens `file`; standard input if it is `-` or absent.
    pub(crate) fn open_records(file: Option<&Path>, framing: Framing, limit: usize) -> Result<Lines> {
        let (input, name): (Box<dyn BufRead>, _) = match file.filter(|path| *path != Path::new("-")) {
            None => (Box::new(BufReader::with_capacity(1 << 16, io::stdin())), "standard input".to_owned()),
            Some(path) => {
                let what = format!("cannot read {}", path.display());
                let file = File::open(path).attempt(&what)?;
                if file.metadata().attempt(&what)?.is_dir() {
                    return Err(Failure::usage(format_args!("{} is a directory", path.display())));
                }
                (Box::new(BufReader::with_capacity(1 << 16, file)), path.display().to_string())
            }
        };
        Ok(Lines { input, framing, name, limit, line: Vec::new(), number: 0, empty: 0, start: 0, bytes: 0 })
    }

    /// Reads the next non-empty line. At the end, returns `false` and prints how many empty lines
    /// were skipped.
    pub(crate) fn advance(&mut self) -> Result<bool> {
        while self.read()? {
            if !self.line.is_empty() {
                return Ok(true);
            }
            self.empty += 1;
        }
        if self.empty > 0 {
            say(format_args!("{} of {} skipped", counted(self.empty, "empty line"), self.name));
            self.empty = 0;
        }
        Ok(false)
    }

    /// The line read last.
    pub(crate) fn line(&self) -> &[u8] {
        &self.line
    }

    /// Drops the line read last, and frees the buffer of a long one.
    pub(crate) fn release(&mut self) {
        self.line.clear();
        if self.line.capacity() > KEPT_BUFFER {
            self.line = Vec::new();
        }
    }

    /// Skips the first `count` lines, including empty ones, and passes each to `on_line`.
    pub(crate) fn skip(&mut self, count: u64, mut on_line: impl FnMut(&[u8])) -> Result<()> {
        while self.number < count {
            if !self.read()? {
                let lines = counted(self.number, self.framing.noun());
                return Err(Failure::usage(format_args!("{} has {lines}, fewer than the {count} to skip", self.name)));
            }
            on_line(&self.line);
        }
        Ok(())
    }

    /// Passes each line to `on_line`: the line itself, and its key in `form`. A value after the key
    /// is left out, and counted in a message.
    pub(crate) fn each_key(mut self, form: Form, mut on_line: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        let mut values = 0;
        while self.advance()? {
            let (key, value) = split_line(&self.line, form).map_err(|why| self.invalid(why))?;
            values += u64::from(value.is_some());
            match form.parse_field(key) {
                Ok(key) => on_line(&self.line, &key)?,
                Err(why) => return Err(self.invalid(why)),
            }
        }
        if values > 0 {
            say(format_args!("{} of {} left out: keys alone are read here", counted(values, "value"), self.name));
        }
        Ok(())
    }

    /// Passes the range of each line to `on_range`: its first key in `form`, and the key after the
    /// tab, before which it ends. Without a tab it has no end.
    pub(crate) fn each_range(mut self, form: Form, mut on_range: impl FnMut(KeyRange) -> Result<()>) -> Result<()> {
        while self.advance()? {
            let parse = |line| {
                let (from, to) = split_line(line, form)?;
                let to = to.map(|to| form.parse_field(to)).transpose()?;
                let range = KeyRange::new(Some(form.parse_field(from)?.into_owned()), to.map(Cow::into_owned), None);
                let ends = range.upper.as_ref().is_none_or(|upper| range.lower <= *upper);
                if ends { Ok(range) } else { Err("the range ends before it begins".to_owned()) }
            };
            let range = parse(&self.line).map_err(|why| self.invalid(why))?;
            on_range(range)?;
        }
        Ok(())
    }

    /// Reads one line into the buffer; returns `false` at the end.
    fn read(&mut self) -> Result<bool> {
        self.release();
        self.start = self.bytes;
        let (mut count, mut quotes) = (0, 0);
        let is_cut = loop {
            let from = self.line.len();
            // A byte more than the limit, for the delimiter.
            let most = (self.limit + 1 - from) as u64;
            if most == 0 {
                break true;
            }
            let read = (&mut self.input).take(most).read_until(self.framing.delimiter(), &mut self.line);
            let read = read.attempt(format_args!("cannot read {}", self.name))?;
            self.bytes += read as u64;
            count += 1;
            if self.framing == Framing::QuotedLines {
                quotes += self.line[from..].iter().filter(|&&byte| byte == b'"').count();
            }
            if read == 0 || !self.framing.goes_on(count, quotes) {
                break false;
            }
        };
        if self.line.is_empty() {
            return Ok(false);
        }
        self.number += 1;
        if self.line.last() == Some(&self.framing.delimiter()) {
            self.line.pop();
        }
        if self.framing == Framing::QuotedLines {
            self.line.pop_if(|byte| *byte == b'\r');
        }
        if self.start == 0 {
            if self.line.starts_with(BYTE_ORDER_MARK) {
                self.line.drain(..BYTE_ORDER_MARK.len());
            } else if let Some(what) = something_else(&self.line, self.framing) {
                return Err(Failure::usage(format_args!("{} is {what}", self.name)));
            }
        }
        if is_cut || self.line.len() > self.limit {
            return Err(self.invalid(format_args!("it is longer than {} bytes", self.limit)));
        }
        Ok(true)
    }

    /// The failure for an invalid line: names the line read last, and where a record begins that
    /// need not be a line.
    pub(crate) fn invalid(&self, why: impl std::fmt::Display) -> Failure {
        let Lines { number, name, start, .. } = self;
        let noun = self.framing.noun();
        match self.framing {
            Framing::Line => Failure::usage(format_args!("{noun} {number} of {name} is not valid: {why}")),
            _ => Failure::usage(format_args!("{noun} {number} of {name}, at byte {start}, is not valid: {why}")),
        }
    }

    /// Number of lines read.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Bytes read so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A line as key and value, which a tab separates, undecoded. This is what a line means in every
/// command.
pub(crate) fn split_line(line: &[u8], form: Form) -> Result<(&[u8], Option<&[u8]>), String> {
    match line.iter().position(|&byte| byte == b'\t') {
        Some(0) if form == Form::Plain => Err(format!("it has no key before the tab (the empty key is {EMPTY_KEY})")),
        Some(tab) => Ok((&line[..tab], Some(&line[tab + 1..]))),
        None if form == Form::Plain && is_json_line(line) => {
            Err("it is a line of JSON, which only `import --format jsonl` reads; with --escaped it is a key".into())
        }
        None => Ok((line, None)),
    }
}

/// Whether kvtool has written a line as JSON. It prints no keys that look like this in lines of
/// text, unless a tab follows.
fn is_json_line(line: &[u8]) -> bool {
    line.starts_with(b"{\"")
        && serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(line)
            .is_ok_and(|object| ["key", "key_hex", "keyspace"].iter().any(|name| object.contains_key(*name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Lines {
        /// The next non-empty line, or `None` at the end.
        fn next(&mut self) -> Result<Option<&[u8]>> {
            Ok(if self.advance()? { Some(&self.line) } else { None })
        }
    }

    fn records(framing: Framing, text: &[u8], limit: usize) -> Lines {
        let input = Box::new(io::Cursor::new(text.to_vec()));
        let line = Vec::new();
        Lines { input, framing, name: "test".into(), limit, line, number: 0, empty: 0, start: 0, bytes: 0 }
    }

    fn lines(text: &[u8], limit: usize) -> Lines {
        records(Framing::Line, text, limit)
    }

    fn all(framing: Framing, text: &[u8]) -> Vec<Vec<u8>> {
        let mut records = records(framing, text, 100);
        let mut all = Vec::new();
        while let Some(record) = records.next().unwrap() {
            all.push(record.to_vec());
        }
        all
    }

    #[test]
    fn records_end_outside_of_quotes_or_at_every_second_nul() {
        let quoted = "\u{feff}a,\"b\r\n\"\"c\n\"\r\n\r\n\n\u{feff}d\n\"e".as_bytes();
        let expected = ["a,\"b\r\n\"\"c\n\"", "\u{feff}d", "\"e"].map(|record| record.as_bytes().to_vec());
        assert_eq!(all(Framing::QuotedLines, quoted), expected);
        let pairs = b"a\n\0b\0\0\0c\0\0d\0e";
        assert_eq!(all(Framing::NulPair, pairs), [&b"a\n\0b"[..], b"\0", b"c\0", b"d\0e"]);
        assert_eq!(all(Framing::NulPair, b"a\0"), [b"a"]);
        for framing in [Framing::Line, Framing::QuotedLines, Framing::NulPair] {
            assert!(all(framing, b"").is_empty());
        }
    }

    #[test]
    fn a_record_that_does_not_end_stops_at_the_limit() {
        for (framing, text) in
            [(Framing::Line, [b'x'; 1000]), (Framing::QuotedLines, [b'x'; 1000]), (Framing::NulPair, [b'x'; 1000])]
        {
            let mut records = records(framing, &text, 10);
            let message = records.next().unwrap_err().message().unwrap();
            assert!(message.contains("longer than 10 bytes"), "{message}");
            assert_eq!(records.bytes(), 11);
        }
        // An open quote goes over many lines, and no further than the limit.
        let mut open = records(Framing::QuotedLines, &b"ok\n\"\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n"[..], 10);
        assert_eq!(open.next().unwrap(), Some(&b"ok"[..]));
        let message = open.next().unwrap_err().message().unwrap();
        assert!(message.contains("record 2 of test, at byte 3,") && message.contains("longer than 10"), "{message}");
        assert_eq!(open.bytes(), 3 + 11);
    }

    #[test]
    fn only_the_final_newline_is_taken_off() {
        let mut lines = lines(b"a\r\n\n b\tc \nlast", 10);
        for line in [&b"a\r"[..], b" b\tc ", b"last"] {
            assert_eq!(lines.next().unwrap(), Some(line));
        }
        assert_eq!((lines.number(), lines.empty), (4, 1));
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn skipping_counts_empty_lines_too() {
        let mut first = lines(b"a\n\nb\nc\n", 10);
        let mut skipped = Vec::new();
        first.skip(3, |line| skipped.push(line.to_vec())).unwrap();
        assert_eq!(skipped, [&b"a"[..], b"", b"b"]);
        assert_eq!(first.next().unwrap(), Some(&b"c"[..]));
        let mut all = lines(b"a\n\nb", 10);
        all.skip(3, |_| ()).unwrap();
        assert_eq!(all.next().unwrap(), None);
        assert!(lines(b"a\n\nb", 10).skip(4, |_| ()).unwrap_err().message().unwrap().contains("3 lines"));
    }

    #[test]
    fn a_line_at_the_limit_is_read_and_a_longer_one_is_named() {
        let mut lines = lines(b"1234\n12345\n", 4);
        assert_eq!(lines.next().unwrap(), Some(&b"1234"[..]));
        let message = lines.next().unwrap_err().message().unwrap();
        assert!(message.contains("line 2 of test"), "{message}");
    }
}
