//! `filter`: filters of stores, and filters of text lines in files of their own.

mod add;
mod advise;
mod check;
mod create;
mod file;
mod info;
mod rebuild;
mod union;

use crate::args::{Common, FilterCommand};
use crate::failure::Result;

/// Longest line. Filters have no such limit; it bounds the memory for one line.
const MAX_LINE: usize = 1 << 30;

pub(crate) fn run(common: &Common, command: FilterCommand) -> Result<()> {
    match command {
        FilterCommand::Create(args) => create::run(common, &args),
        FilterCommand::Add(args) => add::run(common, &args),
        FilterCommand::Check(args) => check::run(common, &args),
        FilterCommand::Union(args) => union::run(common, &args),
        FilterCommand::Info(args) => info::run(common, &args),
        FilterCommand::Rebuild(args) => rebuild::run(common, args),
        FilterCommand::Advise(args) => advise::run(common, &args),
    }
}
