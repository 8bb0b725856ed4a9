//! `filter`: filters of stores, and filters of text lines in files of their own.

mod add;
pub(super) mod advise;
mod check;
mod create;
mod file;
mod info;
mod rebuild;
mod union;

use std::rc::Rc;

use crate::args::FilterCommand;
use crate::failure::Result;
use crate::session::Session;

/// Longest line. Filters have no such limit; it bounds the memory for one line.
const MAX_LINE: usize = 1 << 30;

pub(crate) fn run(command: FilterCommand, session: Option<&Rc<Session>>) -> Result<()> {
    match command {
        FilterCommand::Create(with) => with.run(session, |common, args| create::run(common, &args)),
        FilterCommand::Add(with) => with.run(session, |common, args| add::run(common, &args)),
        FilterCommand::Check(with) => with.run(session, |common, args| check::run(common, &args)),
        FilterCommand::Union(with) => with.run(session, |common, args| union::run(common, &args)),
        FilterCommand::Info(with) => with.run(session, |common, args| info::run(common, &args)),
        FilterCommand::Rebuild(with) => with.run(session, rebuild::run),
        FilterCommand::Advise(with) => with.run(session, |common, args| advise::run(common, &args)),
    }
}
