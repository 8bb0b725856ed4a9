//! `filter`: filters of stores and filters by themselves.

mod rebuild;

use crate::args::{Common, FilterCommand};
use crate::failure::Result;

pub(crate) fn run(common: &Common, command: FilterCommand) -> Result<()> {
    match command {
        FilterCommand::Rebuild(args) => rebuild::run(common, args),
    }
}
