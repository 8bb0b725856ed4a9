//! Command line of the tamis key-value store.
//!
//! Data go to standard output, messages to standard error. Commands that only read open the store
//! read-only and change no file in it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the store's files are reached through tamis; what a user names on the command line is not"
)]

mod args;
mod commands;
mod failure;
mod output;
mod text;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use output::say;

/// Raises the number of files that the process may open as far as it may: a command that opens a
/// store read-only keeps all of its files open.
#[cfg(unix)]
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let maximum = getrlimit(Resource::Nofile).maximum;
    // A system may have a lower limit yet, and refuse: what is allowed now stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn main() -> ExitCode {
    let Args { command, common } = Args::parse();
    #[cfg(unix)]
    raise_file_limit();
    let result = match command {
        Command::Put(args) => commands::put::put(&common, args),
        Command::Merge(args) => commands::put::merge(&common, args),
        Command::Get(args) => commands::get::run(&common, args),
        Command::Delete(args) => commands::put::delete(&common, args),
        Command::DeleteRange(args) => commands::put::delete_range(&common, args),
        Command::Scan(args) => commands::scan::run(&common, args),
        Command::Changes(args) => commands::changes::run(&common, args),
        Command::Import(args) => commands::import::run(&common, args),
        Command::SstBuild(args) => commands::sst_build::run(&common, args),
        Command::Ingest(args) => commands::ingest::run(&common, args),
        Command::Export(args) => commands::export::run(&common, args),
        Command::Stats(args) => commands::stats::run(&common, args),
        Command::Explain(args) => commands::explain::run(&common, args),
        Command::Levels(args) => commands::levels::run(&common, args),
        Command::Keyspaces(args) => commands::keyspaces::run(&common, args),
        Command::Compact(args) => commands::compact::run(&common, args),
        Command::Backup(args) => commands::backup::backup(&common, args),
        Command::Backups(args) => commands::backup::list(&common, args),
        Command::Restore(args) => commands::backup::restore(args),
        Command::Checkpoint(args) => commands::checkpoint::run(&common, args),
        Command::Sst(args) => commands::sst::run(&common, args),
        Command::Dump(args) => commands::dump::run(&common, args),
        Command::Verify(args) => commands::verify::run(&common, args),
        Command::Repair(args) => commands::repair::run(&common, args),
        Command::Filter(command) => commands::filter::run(&common, command),
        Command::Demo(args) => commands::demo::run(&common, args),
        Command::Soak(args) => commands::soak::run(&common, &args),
        Command::SoakWorker(args) => commands::soak::worker::run(&args),
        Command::Bench(command) => commands::bench::run(&common, command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                say(format_args!("kvtool: {message}"));
            }
            failure.exit_code()
        }
    }
}
