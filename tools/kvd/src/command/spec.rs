//! [`Spec`]: what the table says of a command.

use bytes::Bytes;

use super::Command;
use super::arguments::Arguments;
use crate::machine::Reply;

/// What a command needs of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: it concerns the connection.
    Local,
    /// Read keys.
    Read,
    /// Write keys.
    Write,
    /// Handle transactions.
    Transaction,
    /// Tell about itself.
    Tell,
    /// Change the server for all clients.
    Admin,
}

/// Under which heading a command is documented, as in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// What concerns one connection.
    Connection,
    /// Values.
    String,
    /// Bits of values.
    Bitmap,
    /// Keys, whatever their values are.
    Generic,
    /// Transactions.
    Transactions,
    /// The server.
    Server,
    /// The cluster.
    Cluster,
    /// Commands that Redis has not.
    Own,
}

impl Group {
    /// Its name, as COMMAND DOCS answers it.
    pub fn name(self) -> &'static str {
        match self {
            Group::Connection => "connection",
            Group::String => "string",
            Group::Bitmap => "bitmap",
            Group::Generic => "generic",
            Group::Transactions => "transactions",
            Group::Server => "server",
            Group::Cluster => "cluster",
            Group::Own => "module",
        }
    }
}

/// Positions of keys among a command's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// Position of the first key; zero: there are none.
    pub first: usize,
    /// Position of the last key, from the end if negative.
    pub last: isize,
    /// Distance between keys.
    pub step: usize,
}

/// How a command's arguments are read.
#[derive(Clone, Copy)]
pub(super) enum Parse {
    /// By this function, which gets what stands behind the name.
    With(fn(&mut Arguments, &Spec) -> Result<Command, Reply>),
    /// A number of words stand before another command, which this function changes.
    Around(usize, fn(&[Bytes], Command) -> Result<Command, Reply>),
    /// The next word names a subcommand.
    Container,
}

/// A command's entry in the table.
pub struct Spec {
    /// Its name in lower case; that of a subcommand follows the one of its command behind a bar.
    pub name: &'static str,
    /// Number of words, those of the name included; −n means at least n.
    pub arity: i32,
    /// What it needs.
    pub kind: Kind,
    /// Where its keys are.
    pub keys: Keys,
    /// Under which heading it is documented.
    pub group: Group,
    /// What it does, in a line.
    pub summary: &'static str,
    /// Its position in the table.
    pub index: usize,
    pub(super) parse: Parse,
}

impl Spec {
    /// Whether so many words, the name included, are as many as the command takes.
    pub fn takes(&self, count: usize) -> bool {
        let least = usize::try_from(self.arity.unsigned_abs()).unwrap_or(usize::MAX);
        if self.arity < 0 { count >= least } else { count == least }
    }

    /// The refusal of too few or too many words.
    pub(super) fn wrong_count(&self) -> Reply {
        Reply::error(format!("ERR wrong number of arguments for '{}' command", self.name))
    }

    /// The words that are left, two by two.
    pub(super) fn pairs(&self, next: &mut Arguments) -> Result<Vec<(Bytes, Bytes)>, Reply> {
        match next.rest().as_chunks::<2>() {
            (pairs, []) => Ok(pairs.iter().map(|[first, second]| (first.clone(), second.clone())).collect()),
            _ => Err(self.wrong_count()),
        }
    }

    /// Its command and its subcommand, which may be lacking.
    pub fn parts(&self) -> (&'static str, Option<&'static str>) {
        match self.name.split_once('|') {
            Some((command, subcommand)) => (command, Some(subcommand)),
            None => (self.name, None),
        }
    }

    /// Whether it is a command, not a part of one.
    pub fn is_top(&self) -> bool {
        self.parts().1.is_none()
    }

    /// The keys among its words, those of the name included.
    pub fn keys_in<'a>(&self, words: &'a [Bytes]) -> impl Iterator<Item = &'a Bytes> + use<'a> {
        let Keys { first, last, step } = self.keys;
        let end = match usize::try_from(last) {
            Ok(last) => (last + 1).min(words.len()),
            Err(_) => (words.len() + 1).saturating_sub(last.unsigned_abs()),
        };
        let keys = if first == 0 { &[] } else { words.get(first..end).unwrap_or_default() };
        keys.iter().step_by(step.max(1))
    }

    /// The command's flags, as COMMAND answers them.
    pub fn flags(&self) -> &'static [&'static str] {
        match self.kind {
            Kind::Local => &["noscript", "loading", "stale", "fast"],
            Kind::Read => &["readonly"],
            Kind::Write => &["write", "denyoom"],
            Kind::Transaction => &["noscript", "loading", "stale", "fast"],
            Kind::Tell => &["loading", "stale"],
            Kind::Admin => &["admin", "noscript", "loading", "stale"],
        }
    }
}

impl PartialEq for Spec {
    fn eq(&self, other: &Spec) -> bool {
        self.name == other.name
    }
}

impl Eq for Spec {}

impl std::fmt::Debug for Spec {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(out, "Spec({})", self.name)
    }
}
