//! [`Failure`]: why a command failed, and its exit code.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use tamis::Error;

/// Exit codes, as `kvtool --help` lists them.
const NOT_FOUND: u8 = 1;
const USAGE: u8 = 2;
const CORRUPTION: u8 = 3;
const IO: u8 = 4;
/// 128 plus the number of SIGINT, as shells report it.
pub(crate) const INTERRUPTED: u8 = 130;

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

#[derive(Debug)]
pub(crate) enum Failure {
    /// The key was not found. No message.
    NotFound,
    /// Invalid arguments or input.
    Usage(String),
    /// Damage was found and already reported.
    Damaged,
    /// Something could not be checked; already reported.
    Unchecked,
    Store(Error),
    /// The log no longer has what was asked for.
    Gone(String),
    /// A result that contradicts what is known or expected.
    Wrong(String),
    /// A file or stream outside of the store.
    Io {
        what: String,
        source: io::Error,
    },
    /// What failed and is already reported.
    Reported(Box<Failure>),
    /// What failed, and where in the input.
    At {
        place: String,
        failure: Box<Failure>,
    },
    /// Stopped by Ctrl-C, with what that means for the result.
    Interrupted(String),
    /// The reader of our output has closed the pipe: not a failure.
    ClosedPipe,
}

impl Failure {
    pub(crate) fn usage(what: impl Display) -> Failure {
        Failure::Usage(what.to_string())
    }

    pub(crate) fn output(source: io::Error) -> Failure {
        if source.kind() == io::ErrorKind::BrokenPipe {
            return Failure::ClosedPipe;
        }
        Failure::Io { what: "cannot write to standard output".into(), source }
    }

    /// The failure of a part of the input.
    pub(crate) fn at(self, place: impl Display) -> Failure {
        Failure::At { place: place.to_string(), failure: Box::new(self) }
    }

    /// The message for the user, if any.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Failure::NotFound | Failure::Damaged | Failure::Unchecked | Failure::Reported(_) | Failure::ClosedPipe => {
                None
            }
            Failure::At { place, failure } => failure.message().map(|what| format!("{place}: {what}")),
            Failure::Usage(what) | Failure::Gone(what) | Failure::Wrong(what) | Failure::Interrupted(what) => {
                Some(what.clone())
            }
            // The library's message names an option that kvtool does not have.
            Failure::Store(Error::NotFound(dir)) => Some(format!("there is no store in {}", dir.display())),
            Failure::Store(Error::Corruption { file, offset, rule }) if is_of_a_store(file) => {
                Some(format!("{} is damaged at offset {offset}: {rule}; {}", file.display(), cure_of(file)))
            }
            Failure::Store(Error::Locked { path, holder }) => Some(format!(
                "{} is locked by {holder}; close it there. Beside it work the commands that only read: get, scan, count, \
                 size, diff, export, stats, report, explain, levels, keyspaces, changes, dump, verify, sst-build, \
                 filter advise, backup, checkpoint, watch",
                path.display()
            )),
            Failure::Store(error) => Some(error.to_string()),
            Failure::Io { what, source } => Some(format!("{what}: {source}")),
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Reported(failure) | Failure::At { failure, .. } => return failure.exit_code(),
            Failure::ClosedPipe => 0,
            Failure::NotFound => NOT_FOUND,
            Failure::Usage(_)
            | Failure::Store(
                Error::InvalidArgument(_) | Error::KeyspaceDropped(_) | Error::Unsorted { .. } | Error::Unfit { .. },
            ) => USAGE,
            Failure::Gone(_) => NOT_FOUND,
            Failure::Interrupted(_) => INTERRUPTED,
            Failure::Damaged | Failure::Wrong(_) => CORRUPTION,
            Failure::Store(error) if error.is_corruption() => CORRUPTION,
            Failure::Unchecked | Failure::Store(_) | Failure::Io { .. } => IO,
        })
    }
}

/// Whether a file is in a store's directory, not in a repository of backups.
fn is_of_a_store(file: &Path) -> bool {
    file.parent().is_some_and(|dir| ["CURRENT", "LOCK"].iter().any(|name| dir.join(name).exists()))
}

/// What to do about a damaged file of a store.
fn cure_of(file: &Path) -> String {
    let dir = file.parent().unwrap_or(file).display();
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let opens = !(name == "CURRENT" || name.starts_with("MANIFEST") || name.ends_with(".wal"));
    let scan =
        if opens { format!("`kvtool scan {dir} --skip-damaged` prints what can be read, ") } else { String::new() };
    format!(
        "{scan}`kvtool repair {dir}` mends the store and lists what is lost, `--dry-run` first; or restore it from a backup"
    )
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Store(error)
    }
}

/// Adds what was attempted to an I/O error outside of the store.
pub(crate) trait Attempt<T> {
    fn attempt(self, what: impl Display) -> Result<T>;
}

impl<T> Attempt<T> for io::Result<T> {
    fn attempt(self, what: impl Display) -> Result<T> {
        self.map_err(|source| Failure::Io { what: what.to_string(), source })
    }
}
