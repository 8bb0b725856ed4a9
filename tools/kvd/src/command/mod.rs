//! Commands: from the words that a client sends to what is to be done.
//!
//! [`table`](COMMANDS) lists the commands: name, arity, where keys are, what they need, and the
//! function that reads their arguments. [`parse`] checks words against it; COMMAND, its DOCS, HELP
//! of subcommands and the list in PROTOCOL.md follow from it. Nothing here knows of connections or
//! of consensus. Texts of errors are those of Redis 7.

mod arguments;
mod bits;
mod connection;
mod keys;
mod parse;
mod server;
mod spec;
mod strings;
mod table;
#[cfg(test)]
mod tests;
mod transactions;

use bytes::Bytes;

pub use parse::parse;
pub use spec::{Group, Keys, Kind, Spec};
pub use table::{COMMANDS, find, find_in, find_name};

use crate::machine::{Operation, Query, Reply, Serial};

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
    /// What concerns all groups that this node leads.
    Led(Led),
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
    /// What concerns the connection.
    Connection(ConnectionCommand),
    /// What concerns the server.
    Server(ServerCommand),
}

/// A command for all groups that a node leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Led {
    /// DBSIZE.
    Size,
    /// FLUSHALL.
    Clear,
    /// RANDOMKEY.
    Random,
    /// KEYS.
    Keys(Bytes),
    /// SCAN.
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
}

/// A command that changes or tells about its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionCommand {
    /// QUIT.
    Quit,
    /// RESET.
    Reset,
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
    /// READONLY, or READWRITE.
    ReadOnly(bool),
    /// CLIENT ID.
    Id,
    /// CLIENT GETNAME.
    GetName,
    /// CLIENT SETNAME.
    SetName(Bytes),
    /// CLIENT SETINFO: which field, and its text.
    SetInfo(LibraryField, Bytes),
    /// CLIENT INFO.
    Info,
    /// CLIENT REPLY.
    Reply(Replies),
    /// ACL WHOAMI.
    WhoAmI,
    /// MONITOR.
    Monitor,
}

/// What CLIENT SETINFO sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibraryField {
    /// The name of the client's library.
    Name,
    /// Its version.
    Version,
}

/// Which replies a connection gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replies {
    /// All.
    #[default]
    On,
    /// None.
    Off,
    /// All but that of the next command.
    Skip,
}

/// A command that tells about the server, or changes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerCommand {
    /// INFO with the sections asked for, in lower case.
    Info(Vec<String>),
    /// TIME.
    Time,
    /// ROLE.
    Role,
    /// WAIT: on how many other nodes this connection's writes are. WAITAOF: on how many disks.
    Wait {
        /// Whether to answer for this node's disk, too.
        local: bool,
    },
    /// CONFIG GET with patterns.
    ConfigGet(Vec<Bytes>),
    /// CONFIG SET with names and values.
    ConfigSet(Vec<(Bytes, Bytes)>),
    /// CONFIG RESETSTAT.
    ResetStatistics,
    /// CLIENT LIST: of these connections, of all if there are none.
    ClientList(Option<Vec<u64>>),
    /// CLIENT KILL.
    ClientKill(KillFilter),
    /// SLOWLOG GET: how many entries, all if negative.
    SlowLog(i64),
    /// SLOWLOG LEN.
    SlowLogLen,
    /// SLOWLOG RESET.
    SlowLogReset,
    /// COMMAND and COMMAND INFO: all commands, or those named.
    CommandInfo(Option<Vec<Bytes>>),
    /// COMMAND COUNT.
    CommandCount,
    /// COMMAND LIST.
    CommandList(Option<ListFilter>),
    /// COMMAND DOCS of all commands, or those named.
    CommandDocs(Vec<Bytes>),
    /// COMMAND GETKEYS of a command with its arguments.
    CommandKeys {
        /// The words.
        words: Vec<Bytes>,
        /// Whether to tell how each key is used.
        flags: bool,
    },
    /// HELP of a command with subcommands.
    Help(&'static str),
    /// CLUSTER INFO.
    ClusterInfo,
    /// CLUSTER MYID.
    ClusterMyId,
    /// CLUSTER MYSHARDID.
    ClusterMyShardId,
    /// CLUSTER NODES.
    ClusterNodes,
    /// CLUSTER SHARDS.
    ClusterShards,
    /// CLUSTER SLOTS.
    ClusterSlots,
    /// CLUSTER LINKS.
    ClusterLinks,
    /// CLUSTER REPLICAS of a node.
    ClusterReplicas(Bytes),
}

/// Which connections CLIENT KILL ends: those for which all holds that is given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KillFilter {
    /// The number.
    pub id: Option<u64>,
    /// The client's address.
    pub address: Option<Bytes>,
    /// The server's address.
    pub local_address: Option<Bytes>,
    /// The user.
    pub user: Option<Bytes>,
    /// Whether it is one of a kind that this server has none of.
    pub none: bool,
    /// Whether the connection that asks stays.
    pub skip_me: bool,
    /// Whether to answer `OK` or that there was none, instead of how many.
    pub one: bool,
}

/// Which commands COMMAND LIST answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListFilter {
    /// Those of a module. There is one, `kvd`.
    Module(Bytes),
    /// Those of a category.
    Category(Bytes),
    /// Those whose name matches.
    Pattern(Bytes),
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
