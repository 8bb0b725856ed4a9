//! [`Lines`]: reads input line by line as bytes, from a file or standard input.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use crate::failure::{Attempt, Failure, Result};
use crate::output::say;
use crate::text::{Form, counted};

/// A buffer larger than this is freed once its line has been used.
const KEPT_BUFFER: usize = 1 << 20;

/// Reads lines of any length up to a limit. Removes only the newline. Skips and counts empty lines.
pub(crate) struct Lines {
    input: Box<dyn BufRead>,
    name: String,
    /// Bytes in the file, if known.
    len: Option<u64>,
    limit: usize,
    line: Vec<u8>,
    number: u64,
    empty: u64,
    bytes: u64,
}

impl Lines {
    /// Opens `file`; standard input if it is `-` or absent.
    pub(crate) fn open(file: Option<&Path>, limit: usize) -> Result<Lines> {
        let (input, name, len): (Box<dyn BufRead>, _, _) = match file.filter(|path| *path != Path::new("-")) {
            None => (Box::new(BufReader::with_capacity(1 << 16, io::stdin())), "standard input".to_owned(), None),
            Some(path) => {
                let what = format!("cannot read {}", path.display());
                let file = File::open(path).attempt(&what)?;
                let metadata = file.metadata().attempt(&what)?;
                if metadata.is_dir() {
                    return Err(Failure::usage(format_args!("{} is a directory", path.display())));
                }
                let len = metadata.is_file().then_some(metadata.len());
                (Box::new(BufReader::with_capacity(1 << 16, file)), path.display().to_string(), len)
            }
        };
        Ok(Lines { input, name, len, limit, line: Vec::new(), number: 0, empty: 0, bytes: 0 })
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

    /// The next non-empty line, or `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>> {
        Ok(if self.advance()? { Some(&self.line) } else { None })
    }

    /// Drops the line read last, and frees the buffer of a long one.
    pub(crate) fn release(&mut self) {
        self.line.clear();
        if self.line.capacity() > KEPT_BUFFER {
            self.line = Vec::new();
        }
    }

    /// Skips the first `count` lines, including empty ones.
    pub(crate) fn skip(&mut self, count: u64) -> Result<()> {
        while self.number < count {
            if !self.read()? {
                let lines = counted(self.number, "line");
                return Err(Failure::usage(format_args!("{} has {lines}, fewer than the {count} to skip", self.name)));
            }
        }
        Ok(())
    }

    /// Passes each line to `on_line`: the line itself, and the key that it encodes in `form`.
    pub(crate) fn each_key(mut self, form: Form, mut on_line: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        while self.advance()? {
            match form.parse_field(&self.line) {
                Ok(key) => on_line(&self.line, &key)?,
                Err(why) => return Err(self.invalid(why)),
            }
        }
        Ok(())
    }

    /// Reads one line into the buffer; returns `false` at the end.
    fn read(&mut self) -> Result<bool> {
        self.release();
        let most = self.limit as u64 + 1;
        let read = (&mut self.input).take(most).read_until(b'\n', &mut self.line);
        let read = read.attempt(format_args!("cannot read {}", self.name))?;
        if read == 0 {
            return Ok(false);
        }
        self.number += 1;
        self.bytes += read as u64;
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        }
        if self.line.len() > self.limit {
            return Err(self.invalid(format_args!("it is longer than {} bytes", self.limit)));
        }
        Ok(true)
    }

    /// The failure for an invalid line: names the line read last.
    pub(crate) fn invalid(&self, why: impl std::fmt::Display) -> Failure {
        Failure::usage(format_args!("line {} of {} is not valid: {why}", self.number, self.name))
    }

    /// Number of lines read.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes in the file, if known.
    pub(crate) fn len(&self) -> Option<u64> {
        self.len
    }

    /// Bytes read so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], limit: usize) -> Lines {
        let input = Box::new(io::Cursor::new(text.to_vec()));
        Lines { input, name: "test".into(), len: None, limit, line: Vec::new(), number: 0, empty: 0, bytes: 0 }
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
        first.skip(3).unwrap();
        assert_eq!(first.next().unwrap(), Some(&b"c"[..]));
        let mut all = lines(b"a\n\nb", 10);
        all.skip(3).unwrap();
        assert_eq!(all.next().unwrap(), None);
        assert!(lines(b"a\n\nb", 10).skip(4).unwrap_err().message().unwrap().contains("3 lines"));
    }

    #[test]
    fn a_line_at_the_limit_is_read_and_a_longer_one_is_named() {
        let mut lines = lines(b"1234\n12345\n", 4);
        assert_eq!(lines.next().unwrap(), Some(&b"1234"[..]));
        let message = lines.next().unwrap_err().message().unwrap();
        assert!(message.contains("line 2 of test"), "{message}");
    }
}
