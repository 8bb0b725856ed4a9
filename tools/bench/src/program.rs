//! [`Program`]: a program that runs workloads, and `Run`: when and where it has run them.

use serde::{Deserialize, Serialize};

/// A program that runs workloads.
#[derive(Clone, Copy)]
pub struct Program {
    /// Names its tables: `NAME/TABLE`.
    pub name: &'static str,
    /// Runs it from the sources; its arguments follow.
    pub command: &'static str,
}

/// When and where records were made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Makes them again.
    pub(crate) command: String,
    pub(crate) date: String,
    /// Processor, threads and kernel.
    pub(crate) machine: String,
}

impl Run {
    /// That of this process. `prefix` holds the arguments that `program.command` has already.
    pub(crate) fn now(program: Program, prefix: &[&str]) -> Run {
        let mut arguments = std::env::args().skip(1 + prefix.len());
        let mut command = program.command.to_owned();
        while let Some(argument) = arguments.next() {
            // What names files of this machine.
            let name = argument.split('=').next().unwrap_or_default();
            match name {
                "--results" | "--plot" | "--dir" if name == argument => _ = arguments.next(),
                "--results" | "--plot" | "--dir" => {}
                _ => command.extend([" ", &argument]),
            }
        }
        Run { command, date: tamis_figures::today(), machine: tamis_figures::machine() }
    }
}
