//! The commands, one module each.

pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod changes;
pub(crate) mod checkpoint;
pub(crate) mod compact;
pub(crate) mod completions;
pub(crate) mod count;
mod definition;
pub(crate) mod demo;
pub(crate) mod diff;
pub(crate) mod dump;
mod entries;
pub(crate) mod explain;
pub(crate) mod export;
mod file_names;
pub(crate) mod filter;
mod filters;
pub(crate) mod formats;
pub(crate) mod get;
pub(crate) mod import;
pub(crate) mod ingest;
pub(crate) mod keyspaces;
pub(crate) mod levels;
mod lines;
mod live;
mod look_up;
mod operators;
mod progress;
pub(crate) mod put;
mod range;
pub(crate) mod repair;
pub(crate) mod report;
mod row;
mod salvage;
pub(crate) mod scan;
pub(crate) mod shell;
pub(crate) mod soak;
pub(crate) mod sst;
pub(crate) mod sst_build;
pub(crate) mod stats;
mod store;
mod target;
pub(crate) mod verify;
mod view;
mod whole_file;
mod workload;

use std::rc::Rc;

use crate::args::{Command, KeyspaceCommand};
use crate::failure::Result;
use crate::session::Session;

/// Runs a command: in the open store of `session`, if a shell runs it.
pub(crate) fn run(command: Command, session: Option<&Rc<Session>>) -> Result<()> {
    match command {
        Command::Shell(args) => shell::run(&args),
        Command::Put(with) => with.run(session, put::put),
        Command::Merge(with) => with.run(session, put::merge),
        Command::Get(with) => with.run(session, get::run),
        Command::Delete(with) => with.run(session, put::delete),
        Command::DeleteRange(with) => with.run(session, put::delete_range),
        Command::Scan(with) => with.run(session, scan::run),
        Command::Count(with) => with.run(session, count::count),
        Command::Diff(with) => with.run(session, diff::run),
        Command::Size(with) => with.run(session, count::size),
        Command::Changes(with) => with.run(session, changes::run),
        Command::Batch(with) => with.run(session, shell::batch),
        Command::Import(with) => with.run(session, import::run),
        Command::SstBuild(with) => with.run(session, sst_build::run),
        Command::Ingest(with) => with.run(session, ingest::run),
        Command::Export(with) => with.run(session, export::run),
        Command::Stats(with) => with.run(session, stats::run),
        Command::Explain(with) => with.run(session, explain::run),
        Command::Report(with) => with.run(session, report::run),
        Command::Top(args) => live::top(&args),
        Command::Watch(with) => with.run(session, live::watch),
        Command::Levels(with) => with.run(session, levels::run),
        Command::Keyspaces(with) => with.run(session, keyspaces::run),
        Command::CreateKeyspace(with) => with.run(session, keyspaces::create),
        Command::Keyspace(KeyspaceCommand::Set(with)) => with.run(session, keyspaces::set),
        Command::DropKeyspace(with) => with.run(session, keyspaces::remove),
        Command::Compact(with) => with.run(session, compact::run),
        Command::Backup(with) => with.run(session, backup::backup),
        Command::Backups(with) => with.run(session, backup::list),
        Command::Restore(with) => with.run(session, backup::restore),
        Command::Checkpoint(with) => with.run(session, checkpoint::run),
        Command::Sst(with) => with.run(session, sst::run),
        Command::Dump(with) => with.run(session, dump::run),
        Command::Verify(with) => with.run(session, verify::run),
        Command::Repair(with) => with.run(session, repair::run),
        Command::Filter(command) => filter::run(command, session),
        Command::Demo(with) => with.run(session, demo::run),
        Command::Soak(with) => with.run(session, |common, args| soak::run(common, &args)),
        Command::SoakWorker(args) => soak::worker::run(&args),
        Command::Completions(args) => completions::completions(&args),
        Command::Man(args) => completions::man(&args),
        Command::Bench(command) => bench::run(command, session),
    }
}
