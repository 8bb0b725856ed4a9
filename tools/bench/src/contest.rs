//! [`Contestant`]s, and a run over all of them: one process for each group and engine, in turn.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::engine::Engine;
use crate::groups::Group;
use crate::record::Record;
use crate::scene::{Task, perform};
use crate::{Error, Result};

/// What an engine is to another one that is compared with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// tamis itself.
    Tamis,
    /// A log-structured merge tree with a log that survives the end of the process: with the best of them tamis is compared.
    Lsm,
    /// Another tree.
    Other,
}

type Perform = fn(&Task, &Group, &mut dyn FnMut(Record) -> Result<()>) -> Result<()>;

/// An engine under a name.
#[derive(Clone, Copy)]
pub struct Contestant {
    /// On command lines and in tables.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Version and settings, in words.
    pub about: &'static str,
    perform: Perform,
}

impl Contestant {
    /// The engine `E`.
    pub const fn new<E: Engine>(name: &'static str, kind: Kind, about: &'static str) -> Contestant {
        Contestant { name, kind, about, perform: perform::<E> }
    }
}

/// Does a task that this process was started for, and writes each result to standard output, a line of JSON each.
pub(crate) fn do_task(task: &str, contestants: &[Contestant]) -> Result<()> {
    let task: Task = serde_json::from_str(task)?;
    let contestant = contestants.iter().find(|contestant| contestant.name == task.engine);
    let contestant = contestant.ok_or_else(|| format!("there is no engine {}", task.engine))?;
    let group = crate::groups::group_named(&task.group).ok_or_else(|| format!("there is no group {}", task.group))?;
    (contestant.perform)(&task, group, &mut |record| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&record)?)?;
        Ok(out.flush()?)
    })
}

/// Starts a process for a task, and hands on its results as they come.
pub(crate) fn delegate(task: &Task, mut each: impl FnMut(Record)) -> Result<()> {
    let mut child = task.command()?.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("the child has no output")?;
    let read = || -> Result<()> {
        for line in BufReader::new(output).lines() {
            each(serde_json::from_str(&line?)?);
        }
        Ok(())
    };
    let read = read();
    let status = child.wait()?;
    read?;
    if !status.success() {
        return Err(Error::from(format!("{} failed in group {}: {status}", task.engine, task.group)));
    }
    Ok(())
}
