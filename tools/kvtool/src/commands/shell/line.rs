//! The command lines of a shell: those of kvtool, without the store.

use std::ffi::OsString;
use std::path::Path;

use clap::{Command as Clap, CommandFactory, FromArgMatches, Parser, Subcommand};

use super::words::Word;
use crate::args::{Command, with_store};
use crate::failure::{Failure, Result};

/// What a line of a shell asks for.
#[derive(Debug, Parser)]
#[command(name = "kvtool", no_binary_name = true)]
struct Line {
    #[command(subcommand)]
    command: ShellCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum ShellCommand {
    /// Begin a transaction: `put`, `merge`, `delete`, `delete-range`, `get`, `scan` and `count`
    /// work in it, other commands see what is committed
    Begin,
    /// Commit the transaction, durably
    Commit,
    /// Undo what the transaction has written
    Rollback,
    /// Work in another keyspace; without a name, as at the beginning
    Use {
        /// Name of the keyspace
        name: Option<String>,
    },
    /// End; also `quit`, and Ctrl-D
    #[command(alias = "quit")]
    Exit,
    #[command(flatten)]
    Kvtool(Command),
}

/// Commands of which a batch is made.
const WRITES: [&str; 4] = ["put", "merge", "delete", "delete-range"];

/// Commands that need a store of their own, or one that nobody has open.
const ELSEWHERE: [&str; 7] = ["repair", "shell", "soak", "soak-worker", "bench", "top", "watch"];

/// The commands that lines may have, each with the shell's store.
pub(super) struct Grammar {
    pub(super) clap: Clap,
}

impl Grammar {
    /// The commands of a shell.
    pub(super) fn of_shell(db: &Path) -> Grammar {
        Grammar::with(db, |command| {
            let name = command.get_name();
            let is_here = works_on_a_store(command) || !Command::has_subcommand(name) || name == "dump";
            is_here && !ELSEWHERE.contains(&name)
        })
    }

    /// The commands of a batch.
    pub(super) fn of_batch(db: &Path) -> Grammar {
        Grammar::with(db, |command| WRITES.contains(&command.get_name()))
    }

    fn with(db: &Path, has: impl Fn(&Clap) -> bool) -> Grammar {
        let all = Line::command();
        let mut clap =
            Clap::new("kvtool").no_binary_name(true).subcommand_required(true).help_template("{subcommands}");
        for command in all.get_subcommands() {
            if has(command) {
                clap = clap.subcommand(command.clone());
            }
        }
        Grammar { clap: with_store(clap, db, true) }
    }

    /// What the words of a line ask for; `None` if that is printed already.
    pub(super) fn parse(&mut self, words: Vec<Word>) -> Result<Option<ShellCommand>> {
        let parsed = self.clap.try_get_matches_from_mut(arguments(words)?);
        match parsed.and_then(|matches| Line::from_arg_matches(&matches)) {
            Ok(line) => Ok(Some(line.command)),
            Err(error) if !error.use_stderr() => {
                error.print().map_err(Failure::output)?;
                Ok(None)
            }
            Err(error) => {
                let text = error.render().to_string();
                let text = text.split("\n\nFor more information").next().unwrap_or_default();
                Err(Failure::usage(text.trim().trim_start_matches("error: ")))
            }
        }
    }
}

/// The arguments that the words of a line are.
fn arguments(words: Vec<Word>) -> Result<Vec<OsString>> {
    let mut arguments: Vec<OsString> = Vec::new();
    // After the user's `--`, or after one that stands for the quotes of a word.
    let (mut are_operands, mut are_quoted) = (false, false);
    for (i, word) in words.into_iter().enumerate() {
        let (is_flag, is_quoted) = (word.bytes.starts_with(b"-") && word.bytes.len() > 1, word.is_quoted);
        if i == 0 {
            // As in other shells for databases.
            let name = word.bytes.strip_prefix(b".").unwrap_or(&word.bytes).to_vec();
            if let Some(name) = std::str::from_utf8(&name).ok().filter(|name| ELSEWHERE.contains(name)) {
                return Err(Failure::usage(format_args!(
                    "not in a shell, which has the store open: `kvtool {name}` does it outside"
                )));
            }
            arguments.push(os_string(name)?);
            continue;
        }
        if is_flag && !is_quoted && !are_operands && (word.bytes == b"--db" || word.bytes.starts_with(b"--db=")) {
            return Err(Failure::usage("--db: the store is the one that is open"));
        }
        if is_flag && is_quoted && !are_operands {
            arguments.push("--".into());
            (are_operands, are_quoted) = (true, true);
        } else if is_flag && !is_quoted && are_quoted {
            return Err(Failure::usage("flags come before a quoted word that begins with a dash"));
        }
        are_operands |= word.bytes == b"--" && !is_quoted;
        arguments.push(os_string(word.bytes)?);
    }
    Ok(arguments)
}

/// Whether a command, or one of its own, takes a store.
fn works_on_a_store(command: &Clap) -> bool {
    command.get_arguments().any(|argument| argument.get_id() == "db") || command.get_subcommands().any(works_on_a_store)
}

#[cfg(unix)]
fn os_string(bytes: Vec<u8>) -> Result<OsString> {
    Ok(std::os::unix::ffi::OsStringExt::from_vec(bytes))
}

#[cfg(not(unix))]
fn os_string(bytes: Vec<u8>) -> Result<OsString> {
    let text = String::from_utf8(bytes).map_err(|_| Failure::usage("bytes that are not UTF-8 need --escaped or --hex"));
    Ok(text?.into())
}
