//! [`Failure`]: why a command did not succeed, and the exit code that says so.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use tamis::Error;

/// Exit codes, as `kvtool --help` lists them.
const NOT_FOUND: u8 = 1;
const USAGE: u8 = 2;
const CORRUPTION: u8 = 3;
const IO: u8 = 4;
/// 128 and the number of SIGINT, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

#[derive(Debug)]
pub(crate) enum Failure {
    /// The key is not there. Nothing needs to be said.
    NotFound,
    /// The user asked for something that cannot be done.
    Usage(String),
    /// Damage was found, and has been reported already.
    Damaged,
    /// Something could not be checked, and that has been reported already.
    Unchecked,
    Store(Error),
    /// The store answered what cannot be.
    Wrong(String),
    /// A file or stream outside of the store.
    Io {
        what: String,
        source: io::Error,
    },
    /// Whoever read our output wants no more of it: no failure.
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

    /// What to tell the user.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Failure::NotFound | Failure::Damaged | Failure::Unchecked | Failure::ClosedPipe => None,
            Failure::Usage(what) | Failure::Wrong(what) => Some(what.clone()),
            // The option of the library means nothing here.
            Failure::Store(Error::NotFound(dir)) => Some(format!("there is no store in {}", dir.display())),
            Failure::Store(error) => Some(error.to_string()),
            Failure::Io { what, source } => Some(format!("{what}: {source}")),
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::ClosedPipe => 0,
            Failure::NotFound => NOT_FOUND,
            Failure::Usage(_) | Failure::Store(Error::InvalidArgument(_) | Error::KeyspaceDropped(_)) => USAGE,
            Failure::Damaged | Failure::Wrong(_) => CORRUPTION,
            Failure::Store(error) if error.is_corruption() => CORRUPTION,
            Failure::Unchecked | Failure::Store(_) | Failure::Io { .. } => IO,
        })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Store(error)
    }
}

/// Says what was attempted when an operation outside of the store fails.
pub(crate) trait Attempt<T> {
    fn attempt(self, what: impl Display) -> Result<T>;
}

impl<T> Attempt<T> for io::Result<T> {
    fn attempt(self, what: impl Display) -> Result<T> {
        self.map_err(|source| Failure::Io { what: what.to_string(), source })
    }
}
