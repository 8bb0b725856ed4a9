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
mod interrupt;
mod json;
mod markup;
mod output;
mod session;
mod table;
mod text;

use std::process::ExitCode;

use args::Args;
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
    let Args { command } = Args::parse_all();
    #[cfg(unix)]
    raise_file_limit();
    match commands::run(command, None) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                say_failure(message);
            }
            failure.exit_code()
        }
    }
}
