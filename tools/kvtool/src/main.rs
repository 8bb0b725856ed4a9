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
mod json;
mod markup;
mod output;
mod table;
mod text;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use output::say_failure;

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
    let Args { command } = Args::parse();
    #[cfg(unix)]
    raise_file_limit();
    let result = match command {
        Command::Put(with) => with.run(commands::put::put),
        Command::Merge(with) => with.run(commands::put::merge),
        Command::Get(with) => with.run(commands::get::run),
        Command::Delete(with) => with.run(commands::put::delete),
        Command::DeleteRange(with) => with.run(commands::put::delete_range),
        Command::Scan(with) => with.run(commands::scan::run),
        Command::Count(with) => with.run(commands::count::count),
        Command::Size(with) => with.run(commands::count::size),
        Command::Changes(with) => with.run(commands::changes::run),
        Command::Import(with) => with.run(commands::import::run),
        Command::SstBuild(with) => with.run(commands::sst_build::run),
        Command::Ingest(with) => with.run(commands::ingest::run),
        Command::Export(with) => with.run(commands::export::run),
        Command::Stats(with) => with.run(commands::stats::run),
        Command::Explain(with) => with.run(commands::explain::run),
        Command::Report(with) => with.run(commands::report::run),
        Command::Levels(with) => with.run(commands::levels::run),
        Command::Keyspaces(with) => with.run(commands::keyspaces::run),
        Command::CreateKeyspace(with) => with.run(commands::keyspaces::create),
        Command::DropKeyspace(with) => with.run(commands::keyspaces::remove),
        Command::Compact(with) => with.run(commands::compact::run),
        Command::Backup(with) => with.run(commands::backup::backup),
        Command::Backups(with) => with.run(commands::backup::list),
        Command::Restore(with) => with.run(commands::backup::restore),
        Command::Checkpoint(with) => with.run(commands::checkpoint::run),
        Command::Sst(with) => with.run(commands::sst::run),
        Command::Dump(with) => with.run(commands::dump::run),
        Command::Verify(with) => with.run(commands::verify::run),
        Command::Repair(with) => with.run(commands::repair::run),
        Command::Filter(command) => commands::filter::run(command),
        Command::Demo(with) => with.run(commands::demo::run),
        Command::Soak(with) => with.run(|common, args| commands::soak::run(common, &args)),
        Command::SoakWorker(args) => commands::soak::worker::run(&args),
        Command::Completions(args) => commands::shell::completions(&args),
        Command::Man(args) => commands::shell::man(&args),
        Command::Bench(command) => commands::bench::run(command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                say_failure(message);
            }
            failure.exit_code()
        }
    }
}
