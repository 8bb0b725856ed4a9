//! `kvd export`: all keys of a cluster that have not expired, in a format that other stores load.
//!
//! Reads the directories of nodes' stores, or of checkpoints of them. It needs no node and no
//! majority, and takes no lock: beside a node that runs it shows the moment at which it began.
//!
//! Keys are stored by slot. An export is sorted by key, and sorts in a store of its own
//! ([`Sorter`]): memory is bounded, whatever the store holds, and the disk needs the space.

mod format;
mod sort;

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tamis::vfs::{FileSystem, OsFileSystem};
use tempfile::{Builder, NamedTempFile, TempDir};

use crate::clock::wall_ms;
use crate::error::{Error, Result};
use crate::machine::{Record, Records};
use crate::node::{raise_file_limit, signals};
use crate::raft::{Found, FoundState, find_states};
use format::{Encoder, Format};
use sort::Sorter;

/// Entries between two looks at the signal, and between two updates of the progress bar.
const STEP: u64 = 256;

/// What to export, and where to.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Directory of a node's store, or of a checkpoint of one; it is not changed, and may be in
    /// use. May be repeated, for other nodes of the cluster
    #[arg(long, value_name = "DIR", required = true)]
    from: Vec<PathBuf>,
    /// Export what there is, though none of the directories has a replica of some groups
    #[arg(long)]
    partial: bool,
    /// What to write
    #[arg(long, value_enum)]
    format: Format,
    /// File to write, which appears when it is complete; without it, standard output
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Leave out what has expired by this time, in milliseconds since 1970, or by the time of the
    /// last write, if that is later; without it, the system's time
    #[arg(long, value_name = "MS")]
    now: Option<u64>,
    /// Write by slot, not sorted by key, which needs no space on disk
    #[arg(long)]
    unsorted: bool,
    /// Directory for temporary files, which may become as large as the data
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
}

/// Runs an export until it ends or a signal comes.
pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let mut stop = signals()?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let mut work = {
        let interrupted = Arc::clone(&interrupted);
        tokio::task::spawn_blocking(move || Export { arguments, interrupted: &interrupted }.run())
    };
    let done = tokio::select! {
        done = &mut work => done,
        () = stop.recv() => {
            // Temporary files are removed before the process ends.
            interrupted.store(true, Ordering::Relaxed);
            work.await
        }
    };
    done.unwrap_or_else(|error| Err(Error::Config(error.to_string())))
}

#[derive(Default)]
struct Counts {
    written: u64,
    expired: u64,
}

struct Export<'a> {
    arguments: Arguments,
    interrupted: &'a AtomicBool,
}

impl Export<'_> {
    fn run(&self) -> Result<()> {
        raise_file_limit();
        if let Some(path) = &self.arguments.to
            // A device or a pipe would be replaced.
            && path.exists()
            && !path.is_file()
        {
            return Err(Error::Config(format!("{} is no file; leave out --to and redirect", path.display())));
        }
        let base = self.arguments.work_dir.clone().unwrap_or_else(std::env::temp_dir);
        let work = Builder::new().prefix(".kvd-export-").tempdir_in(&base);
        let work = work.map_err(Error::io("make a directory in", base.display()))?;
        let options = tamis::Options::new().cache_size(sort::CACHE);
        let found = find_states(&options, &self.arguments.from, &work.path().join("states"), &|| self.go_on())?;
        let Found { states, absent } = found;
        states.iter().for_each(|state| self.describe(state));
        for group in absent {
            if !self.arguments.partial {
                let reason = "no replica in the directories given; add that of another node, or --partial";
                return Err(Error::Config(format!("group {group} has {reason}")));
            }
            eprintln!("Group {group}: nothing; it has no replica in the directories given.");
        }
        let counts = match &self.arguments.to {
            None => self.write(&states, &work, io::stdout().lock(), "standard output")?,
            Some(path) => self.write_file(&states, &work, path)?,
        };
        let Counts { written, expired } = counts;
        eprintln!("Keys written: {written}; left out because they have expired: {expired}.");
        Ok(())
    }

    fn go_on(&self) -> Result<()> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(Error::Interrupted("the export is not complete")),
            false => Ok(()),
        }
    }

    /// Writes a new file, and gives it its name when it is durable.
    fn write_file(&self, states: &[FoundState], work: &TempDir, path: &Path) -> Result<Counts> {
        let failed = |source| Error::io("write", path.display())(source);
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = NamedTempFile::with_prefix_in(".kvd-export-", dir).map_err(failed)?;
        let counts = self.write(states, work, file.as_file_mut(), &path.display().to_string())?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        OsFileSystem.sync_dir(dir).map_err(failed)?;
        Ok(counts)
    }

    fn write(&self, states: &[FoundState], work: &TempDir, out: impl Write, target: &str) -> Result<Counts> {
        let failed = |source| Error::io("write", target)(source);
        let mut counts = Counts::default();
        let mut encoder = Encoder::new(self.arguments.format, BufWriter::with_capacity(1 << 16, out));
        if self.arguments.unsorted {
            self.read(states, &mut counts, &mut |record| encoder.write(record).map_err(failed))?;
        } else {
            let mut sorter = Sorter::new(&work.path().join("sorted"))?;
            self.read(states, &mut counts, &mut |record| sorter.add(record))?;
            let bar = self.progress("write", counts.written)?;
            let mut at = 0;
            sorter.visit(&mut |record| {
                at += 1;
                self.step(&bar, at)?;
                encoder.write(record).map_err(failed)
            })?;
            bar.finish_and_clear();
        }
        encoder.finish().map_err(failed)?;
        Ok(counts)
    }

    /// Calls `take` with all records that have not expired.
    fn read(
        &self,
        states: &[FoundState],
        counts: &mut Counts,
        take: &mut dyn FnMut(Record) -> Result<()>,
    ) -> Result<()> {
        let now = self.arguments.now.unwrap_or_else(wall_ms);
        let groups = states.iter().map(|state| Records::of(&state.keyspace));
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        let bar = self.progress("read", groups.iter().map(Records::count).sum())?;
        let mut at = 0;
        for group in groups {
            // As a reader of the group would: what one has seen expire is gone for all.
            let now = now.max(group.time_ms());
            group.visit(|record| -> Result<()> {
                at += 1;
                self.step(&bar, at)?;
                if record.deadline_ms.is_some_and(|deadline| deadline <= now) {
                    counts.expired += 1;
                    return Ok(());
                }
                counts.written += 1;
                take(record)
            })?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn step(&self, bar: &ProgressBar, at: u64) -> Result<()> {
        if at.is_multiple_of(STEP) {
            bar.set_position(at);
            self.go_on()?;
        }
        Ok(())
    }

    /// Hidden when standard error is no terminal, or standard output is one that shows the export.
    fn progress(&self, what: &'static str, count: u64) -> Result<ProgressBar> {
        if self.arguments.to.is_none() && io::stdout().is_terminal() {
            return Ok(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("{msg} {bar:40} {percent} %, {human_pos} keys, {per_sec}, {eta} left");
        let style = style.map_err(|error| Error::Config(error.to_string()))?;
        Ok(ProgressBar::new(count).with_style(style).with_message(what))
    }

    fn describe(&self, state: &FoundState) {
        let FoundState { group, dir, applied, from_log, unsure, .. } = state;
        let unsure = match unsure {
            0 => String::new(),
            unsure => format!(", {unsure} of which the node did not know to be committed"),
        };
        let dir = self.arguments.from[*dir].display();
        eprintln!("Group {group}: {dir}, the state after entry {applied}, and {from_log} entries of the log{unsure}.");
    }
}
