//! `export`: the entries of keyspaces as of one snapshot, in a format that `import` reads.
//!
//! A file is written under a temporary name beside its place, synced and renamed. An error, an
//! interruption or a crash leaves the old file as it was. Several files are renamed one after the
//! other when all are written. Only a crash or an error between two renames leaves some of them
//! old, and a second run replaces these as well.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tamis::{Db, Keyspace, ReadOptions, Snapshot};
use tempfile::{NamedTempFile, TempPath};

use super::formats::{Codec, Format};
use super::scan::KeyRange;
use super::store::{existing_keyspace, selected_keyspaces};
use crate::args::{Common, Export};
use crate::failure::{Attempt, Failure, Result};
use crate::output::{Output, say};
use crate::text::{Decimal, Form, count, counted, size};

/// Entries between two updates of the progress bar.
const PROGRESS_ENTRIES: u64 = 1000;
/// Longest key in a message, in characters.
const SHOWN_KEY: usize = 60;
const BUFFER: usize = 1 << 16;

pub(crate) fn run(common: &Common, args: Export) -> Result<()> {
    let from = common.optional_bytes("--from", args.from.as_ref())?;
    let to = common.optional_bytes("--to", args.to.as_ref())?;
    let prefix = common.optional_bytes("--prefix", args.prefix.as_ref())?;
    let range = KeyRange::new(from, to, prefix);
    if args.all_keyspaces && common.keyspace.is_some() {
        return Err(Failure::usage("--all-keyspaces and --keyspace exclude each other"));
    }
    let file = args.file.filter(|file| file != Path::new("-"));
    if args.all_keyspaces && file.is_none() {
        return Err(Failure::usage("--all-keyspaces needs a directory, not standard output"));
    }
    // To standard output, --json is a format, as for `scan`.
    let format = match (args.format, &file) {
        (None | Some(Format::Jsonl), None) if common.json => Format::Jsonl,
        (Some(_), None) if common.json => {
            return Err(Failure::usage("--json writes JSON lines to standard output, which --format contradicts"));
        }
        (Some(format), _) => format,
        (None, Some(file)) => Format::of_file(file),
        (None, None) => Format::Tsv,
    };
    let db = Db::open_read_only(&args.db)?;
    let mut export = Exporter {
        snapshot: db.snapshot(),
        codec: Codec { format, form: common.form() },
        range,
        interrupted: Arc::default(),
        keys: 0,
        bytes: 0,
    };
    let Some(file) = file else {
        return export.write_standard_output(&existing_keyspace(&db, common)?);
    };
    let targets: Vec<(Keyspace, PathBuf)> = if args.all_keyspaces {
        let keyspaces = selected_keyspaces(&db, common)?.into_iter();
        keyspaces
            .map(|keyspace| (file.join(file_name(keyspace.name(), format)), keyspace))
            .map(|(f, k)| (k, f))
            .collect()
    } else {
        vec![(existing_keyspace(&db, common)?, file.clone())]
    };
    if args.all_keyspaces {
        fs::create_dir_all(&file).attempt(format_args!("cannot create {}", file.display()))?;
    }
    let interrupted = Arc::clone(&export.interrupted);
    if let Err(error) = ctrlc::set_handler(move || interrupted.store(true, Ordering::Relaxed)) {
        say(format_args!("kvtool: a temporary file may stay after Ctrl-C: {error}"));
    }
    let start = Instant::now();
    let mut written = Vec::new();
    for (keyspace, path) in &targets {
        written.extend(export.write_file(keyspace, path)?);
    }
    written.into_iter().try_for_each(Written::put_in_place)?;
    let seconds = start.elapsed().as_secs_f64();
    let Exporter { keys, bytes, .. } = export;
    if common.json {
        let mut output = Output::new();
        let files: Vec<_> = targets
            .iter()
            .map(|(keyspace, path)| json!({ "keyspace": keyspace.name(), "file": path.display().to_string() }))
            .collect();
        output.json(json!({ "keys": keys, "bytes": bytes, "seconds": seconds, "files": files }))?;
        output.finish()?;
    }
    say(format_args!(
        "{} of {} written to {}, {} s",
        counted(keys, "key"),
        size(bytes),
        file.display(),
        Decimal(seconds)
    ));
    Ok(())
}

/// The name of a keyspace's file: its own name, with `%` and two digits for every byte that has a
/// meaning in paths or shells.
fn file_name(keyspace: &str, format: Format) -> String {
    let mut name = String::new();
    for (i, &byte) in keyspace.as_bytes().iter().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => name.push(byte.into()),
            b'.' if i > 0 => name.push('.'),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    format!("{name}.{}", format.extension())
}

fn cannot_write(path: &Path, source: io::Error) -> Failure {
    Failure::Io { what: format!("cannot write {}", path.display()), source }
}

/// A complete file, and where it is to stand.
struct Written {
    temporary: TempPath,
    path: PathBuf,
}

impl Written {
    fn put_in_place(self) -> Result<()> {
        let Written { temporary, path } = self;
        temporary.persist(&path).map_err(|error| cannot_write(&path, error.error))?;
        sync_dir_of(&path).map_err(|source| cannot_write(&path, source))
    }
}

/// The directory that holds `path`.
fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the name of a new file durable.
#[cfg(unix)]
fn sync_dir_of(path: &Path) -> io::Result<()> {
    fs::File::open(dir_of(path))?.sync_all()
}

/// A rename needs no sync here.
#[cfg(not(unix))]
fn sync_dir_of(_path: &Path) -> io::Result<()> {
    Ok(())
}

struct Exporter {
    snapshot: Snapshot,
    codec: Codec,
    range: KeyRange,
    /// Set by Ctrl-C.
    interrupted: Arc<AtomicBool>,
    /// Keys written, and bytes of keys and values.
    keys: u64,
    bytes: u64,
}

impl Exporter {
    fn write_standard_output(&mut self, keyspace: &Keyspace) -> Result<()> {
        let stdout = io::stdout().lock();
        let progress = if stdout.is_terminal() { ProgressBar::hidden() } else { self.progress_bar(keyspace)? };
        let mut out = BufWriter::with_capacity(BUFFER, stdout);
        self.copy(keyspace, &mut out, &progress, Failure::output)?;
        out.flush().map_err(Failure::output)
    }

    /// Writes the file that is to stand at `path`, durably. A device or pipe is written to at once.
    fn write_file(&mut self, keyspace: &Keyspace, path: &Path) -> Result<Option<Written>> {
        let failed = |source| cannot_write(path, source);
        let existing = fs::metadata(path).ok();
        if existing.as_ref().is_some_and(fs::Metadata::is_dir) {
            let path = path.display();
            return Err(Failure::usage(format_args!("{path} is a directory; --all-keyspaces writes to one")));
        }
        let progress = self.progress_bar(keyspace)?;
        if existing.as_ref().is_some_and(|existing| !existing.is_file()) {
            let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
            let mut out = BufWriter::with_capacity(BUFFER, file);
            self.copy(keyspace, &mut out, &progress, failed)?;
            out.flush().map_err(failed)?;
            return Ok(None);
        }
        // The file that a link points to is replaced, not the link.
        let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let temporary = new_file_beside(&place).map_err(failed)?;
        if let Some(existing) = existing {
            temporary.as_file().set_permissions(existing.permissions()).map_err(failed)?;
        }
        let mut out = BufWriter::with_capacity(BUFFER, temporary);
        self.copy(keyspace, &mut out, &progress, failed)?;
        let temporary = out.into_inner().map_err(|error| failed(error.into_error()))?;
        // The content is durable before the name points to it.
        temporary.as_file().sync_all().map_err(failed)?;
        Ok(Some(Written { temporary: temporary.into_temp_path(), path: place }))
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
        // The export uses each block once: reads ahead and bypasses the cache.
        let mut cursor = self.snapshot.keyspace(keyspace).cursor_with(ReadOptions::new().fill_cache(false))?;
        let mut valid = self.range.seek_to_first(&mut cursor)?;
        let mut written = 0u64;
        while let (true, Some(key), Some(value)) = (valid, cursor.key(), cursor.value()) {
            if !self.range.contains(key) {
                break;
            }
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(Failure::Interrupted("interrupted; no file has changed".into()));
            }
            written += 1;
            if let Some(why) = self.codec.refuses(key, value) {
                let key = Form::Plain.show_short(key, SHOWN_KEY);
                let name = keyspace.name();
                return Err(Failure::usage(format_args!(
                    "entry {written} of keyspace {name:?}, key {key}, cannot be exported: {why}"
                )));
            }
            self.codec.write(out, key, value).map_err(&failed)?;
            self.keys += 1;
            self.bytes += (key.len() + value.len()) as u64;
            if written.is_multiple_of(PROGRESS_ENTRIES) {
                progress.set_position(written);
                progress.set_message(count(written));
            }
            valid = cursor.next()?;
        }
        Ok(())
    }

    /// Hidden when standard error is not a terminal.
    fn progress_bar(&self, keyspace: &Keyspace) -> Result<ProgressBar> {
        let bar = ProgressBar::new(0);
        if bar.is_hidden() {
            return Ok(bar);
        }
        let upper = self.range.upper.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        bar.set_length(keyspace.approximate_len((Bound::Included(&self.range.lower), upper))?);
        Ok(match ProgressStyle::with_template("{bar:40} {percent} %, {msg} keys, {per_sec}, {eta} left") {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        })
    }
}

/// A temporary file in the directory of `path`, with the permissions of a new file.
fn new_file_beside(path: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".kvtool-export-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(dir_of(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_keyspaces_stay_in_their_directory() {
        let names = ["default", "a.b", "../up", ".hidden", "größe", "a b"].map(|name| file_name(name, Format::Csv));
        assert_eq!(
            names,
            ["default.csv", "a.b.csv", "%2E.%2Fup.csv", "%2Ehidden.csv", "gr%C3%B6%C3%9Fe.csv", "a%20b.csv"]
        );
    }
}
