//! Commands: from the arguments that a client sends to what is to be done.
//!
//! [`table`](COMMANDS) lists the commands: name, arity, where keys are. [`parse`] checks arguments
//! and says what they ask for. Nothing here knows of connections or of consensus. Texts of errors
//! are those of Redis 7.

mod arguments;
mod parse;
mod table;
#[cfg(test)]
mod tests;

use bytes::Bytes;

pub use parse::parse;
pub use table::{COMMANDS, Kind, Spec, find};

use crate::machine::{Operation, Query, Reply, Serial, slot_of};

/// What a client asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// A write of keys in one slot.
    Write(Operation),
    /// A write that is applied once, however often it is sent.
    Once(Serial, Operation),
    /// A linearizable read of keys in one slot.
    Read(Query),
    /// A read that may be stale by so many milliseconds.
    Stale(u64, Query),
    /// Open a session in the group of a key.
    OpenSession,
    /// DBSIZE: of all groups that this node leads.
    Size,
    /// SCAN through all groups that this node leads.
    Scan {
        /// Where to go on.
        from: u64,
        /// How many keys to look at.
        count: u32,
        /// The pattern that keys must match.
        pattern: Option<Bytes>,
        /// Whether values of the type asked for are kept here.
        any: bool,
    },
    /// MULTI.
    Multi,
    /// EXEC.
    Exec,
    /// DISCARD.
    Discard,
    /// WATCH.
    Watch(Vec<Bytes>),
    /// UNWATCH.
    Unwatch,
    /// A command whose reply is known: PING, ECHO, SELECT.
    Answer(Reply),
    /// QUIT.
    Quit,
    /// HELLO.
    Hello {
        /// The version of the protocol to speak from now on.
        version: Option<u8>,
        /// User and password.
        auth: Option<(Bytes, Bytes)>,
        /// The connection's name.
        name: Option<Bytes>,
    },
    /// AUTH: user and password.
    Auth(Bytes, Bytes),
    /// CLIENT and what follows.
    Client(Client),
    /// CLUSTER and what follows.
    Cluster(Cluster),
    /// INFO with the sections asked for, in lower case; all if there are none.
    Info(Vec<String>),
    /// CONFIG GET with patterns.
    ConfigGet(Vec<Bytes>),
    /// COMMAND and what follows.
    Commands(Commands),
}

/// What CLIENT asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Client {
    /// ID.
    Id,
    /// GETNAME.
    GetName,
    /// SETNAME.
    SetName(Bytes),
    /// INFO.
    Info,
    /// SETINFO, NO-EVICT and NO-TOUCH: accepted, and without effect.
    Ignore,
}

/// What CLUSTER asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cluster {
    /// INFO.
    Info,
    /// MYID.
    MyId,
    /// NODES.
    Nodes,
    /// SHARDS.
    Shards,
    /// SLOTS.
    Slots,
    /// COUNTKEYSINSLOT.
    CountKeysInSlot(u16),
}

/// What COMMAND asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Commands {
    /// All commands, or those named.
    Info(Option<Vec<Bytes>>),
    /// COUNT.
    Count,
    /// LIST.
    List,
    /// DOCS of all commands, or those named.
    Docs(Vec<Bytes>),
    /// GETKEYS of a command with its arguments.
    GetKeys(Vec<Bytes>),
}

/// A command, and where it belongs.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The command's entry in the table.
    pub spec: &'static Spec,
    /// The slot of its keys, if it has any.
    pub slot: Option<u16>,
    /// What it asks for.
    pub command: Command,
}

/// The slot of keys that must all be in one; `None` if there are no keys.
fn common_slot<'a>(keys: impl IntoIterator<Item = &'a Bytes>) -> Result<Option<u16>, Reply> {
    let mut slots = keys.into_iter().map(|key| slot_of(key));
    let Some(first) = slots.next() else { return Ok(None) };
    if slots.all(|slot| slot == first) {
        Ok(Some(first))
    } else {
        Err(Reply::error("CROSSSLOT Keys in request don't hash to the same slot"))
    }
}
