//! [`Contestant`]s, and running them in turn: one process for each group and engine.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::engine::{Engine, Variant};
use crate::groups::Group;
use crate::record::Record;
use crate::scene::{Task, perform};
use crate::{Error, Result};

/// How an engine counts in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// tamis itself.
    Tamis,
    /// A log-structured merge tree whose log survives the end of the process. tamis is compared
    /// with the best of them.
    Lsm,
    /// Another kind of store.
    Other,
}

type Perform = fn(Variant, &Task, &Group, &mut dyn FnMut(Record) -> Result<()>) -> Result<()>;

/// An engine with its name and description.
#[derive(Clone, Copy)]
pub struct Contestant {
    /// The name on command lines and in tables.
    pub name: &'static str,
    /// How it counts in the comparison.
    pub kind: Kind,
    /// Version and settings, as text.
    pub about: &'static str,
    /// How its settings deviate.
    pub variant: Variant,
    /// The only group in which it takes part; all if `None`.
    pub only_in: Option<&'static str>,
    perform: Perform,
}

impl Contestant {
    /// A contestant that runs engine `E`.
    pub const fn new<E: Engine>(name: &'static str, kind: Kind, about: &'static str) -> Contestant {
        Contestant { name, kind, about, variant: Variant::Usual, only_in: None, perform: perform::<E> }
    }

    /// This contestant with settings that deviate.
    pub const fn with(self, variant: Variant) -> Contestant {
        Contestant { variant, ..self }
    }

    /// This contestant, taking part only in the group of this name.
    pub const fn only_in(self, group: &'static str) -> Contestant {
        Contestant { only_in: Some(group), ..self }
    }

    /// Whether it takes part in a group.
    pub(crate) fn takes_part(&self, group: &Group) -> bool {
        self.only_in.is_none_or(|name| name == group.name)
    }
}

/// Performs the task of this process, and prints each result as a line of JSON.
pub(crate) fn do_task(task: &str, contestants: &[Contestant]) -> Result<()> {
    let task: Task = serde_json::from_str(task)?;
    let contestant = contestants.iter().find(|contestant| contestant.name == task.engine);
    let contestant = contestant.ok_or_else(|| format!("there is no engine {}", task.engine))?;
    let group = crate::groups::group_named(&task.group).ok_or_else(|| format!("there is no group {}", task.group))?;
    (contestant.perform)(contestant.variant, &task, group, &mut |record| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&record)?)?;
        Ok(out.flush()?)
    })
}

/// Starts a process for a task, and passes on its results as they arrive.
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
