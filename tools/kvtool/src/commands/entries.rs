//! [`Entries`]: the entries of several input files, one file after the other.

use std::fs;
use std::path::{Path, PathBuf};

use super::definition::Definition;
use super::formats::{Codec, Format, Record};
use super::lines::Lines;
use crate::failure::{Attempt, Failure, Result};
use crate::text::Form;

/// A file, and how its entries are written.
#[derive(Clone, Debug)]
pub(super) struct Source {
    path: PathBuf,
    codec: Codec,
}

impl Source {
    fn is_standard_input(&self) -> bool {
        self.path == Path::new("-")
    }

    pub(super) fn name(&self) -> String {
        if self.is_standard_input() { "standard input".into() } else { self.path.display().to_string() }
    }

    /// What its records are called.
    pub(super) fn noun(&self) -> &'static str {
        self.codec.framing().noun()
    }
}

/// A record of the input: the number of its file, from 0, and its own in that file, from 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) file: usize,
    pub(super) record: u64,
}

pub(super) struct Entries {
    sources: Vec<Source>,
    /// Records to skip at the beginning of each file.
    skip: u64,
    /// Number of the file that `lines` reads.
    file: usize,
    lines: Lines,
    /// Bytes in the files before it.
    bytes_before: u64,
    /// Bytes in all files, if known.
    len: Option<u64>,
    /// The keyspace of which the entries are that follow the skipped records, if one of these says
    /// so.
    skipped: Option<Box<Definition>>,
    /// Whether the record read last is to be read once more.
    again: bool,
}

impl Entries {
    /// Opens the first file, and finds out whether the others are there. Without files, reads
    /// standard input. Without a format, each file's extension names its own.
    pub(super) fn open(files: Vec<PathBuf>, format: Option<Format>, form: Form, skip: u64) -> Result<Entries> {
        let files = if files.is_empty() { vec!["-".into()] } else { files };
        let source = |path: PathBuf| {
            let format = format.unwrap_or_else(|| Format::of_file(&path));
            Source { path, codec: Codec { format, form } }
        };
        let sources: Vec<Source> = files.into_iter().map(source).collect();
        if sources.iter().filter(|source| source.is_standard_input()).count() > 1 {
            return Err(Failure::usage("standard input can be read only once"));
        }
        let mut len = Some(0);
        for source in &sources {
            let file_len = match source.is_standard_input() {
                true => None,
                false => {
                    let what = format_args!("cannot read {}", source.name());
                    Some(fs::metadata(&source.path).attempt(what)?).filter(|file| file.is_file()).map(|file| file.len())
                }
            };
            len = len.zip(file_len).map(|(len, file_len)| len + file_len);
        }
        let (lines, skipped) = open_source(&sources[0], skip)?;
        Ok(Entries { sources, skip, file: 0, lines, bytes_before: 0, len, skipped, again: false })
    }

    /// Reads the next record; returns `false` after the last one of the last file.
    pub(super) fn advance(&mut self) -> Result<bool> {
        if std::mem::take(&mut self.again) {
            return Ok(true);
        }
        while !self.lines.advance()? {
            let Some(source) = self.sources.get(self.file + 1) else { return Ok(false) };
            self.bytes_before += self.lines.bytes();
            (self.lines, self.skipped) = open_source(source, self.skip)?;
            self.file += 1;
        }
        Ok(true)
    }

    /// What the record read last says.
    pub(super) fn record(&self) -> Result<Record<'_>> {
        self.sources[self.file].codec.parse(self.lines.line()).map_err(|why| self.lines.invalid(why))
    }

    /// The keyspace of which the first entry of the file is, if its first record says so, or a
    /// record that was skipped. Of the first, once.
    pub(super) fn keyspace(&mut self) -> Result<Option<Box<Definition>>> {
        if let Some(skipped) = self.skipped.take() {
            return Ok(Some(skipped));
        }
        while self.advance()? {
            match self.record() {
                Ok(Record::Blank) => {}
                Ok(Record::Keyspace(definition)) => return Ok(Some(definition)),
                // The next reader of the record meets the error.
                Ok(Record::Entry(_)) | Err(_) => {
                    self.again = true;
                    break;
                }
            }
        }
        Ok(None)
    }

    /// The keyspace that a skipped record of the file names, once.
    pub(super) fn take_skipped(&mut self) -> Option<Box<Definition>> {
        self.skipped.take()
    }

    /// The failure that the record read last is not valid.
    pub(super) fn invalid(&self, why: impl std::fmt::Display) -> Failure {
        self.lines.invalid(why)
    }

    /// The record read last.
    pub(super) fn position(&self) -> Position {
        Position { file: self.file, record: self.lines.number() }
    }

    /// Drops the record read last, and frees the buffer of a long one.
    pub(super) fn release(&mut self) {
        self.lines.release();
    }

    pub(super) fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Bytes in all files, if known.
    pub(super) fn len(&self) -> Option<u64> {
        self.len
    }

    /// Bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes_before + self.lines.bytes()
    }
}

/// Opens a file, and skips the first records. Returns the keyspace that the last of these to name
/// one names.
fn open_source(source: &Source, skip: u64) -> Result<(Lines, Option<Box<Definition>>)> {
    let codec = &source.codec;
    let mut lines = Lines::open_records(Some(&source.path), codec.framing(), codec.longest_record())?;
    let mut skipped = None;
    lines.skip(skip, |line| {
        if codec.holds_all()
            && let Ok(Record::Keyspace(definition)) = codec.parse(line)
        {
            skipped = Some(definition);
        }
    })?;
    Ok((lines, skipped))
}
