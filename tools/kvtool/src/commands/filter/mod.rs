//! `filter`: filters of lines of text, in files of their own.

mod add;
mod check;
mod create;
mod file;
mod info;

use crate::args::{Common, Filter};
use crate::failure::Result;

/// Longest line: no limit of the filters, but of the memory that one line may take.
const MAX_LINE: usize = 1 << 30;

pub(crate) fn run(common: &Common, command: Filter) -> Result<()> {
    match command {
        Filter::Create(args) => create::run(common, &args),
        Filter::Add(args) => add::run(common, &args),
        Filter::Check(args) => check::run(common, &args),
        Filter::Info(args) => info::run(common, &args),
    }
}
