//! The table of commands, in the order of their names.

use bytes::Bytes;

/// What a command needs of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: it concerns the connection.
    Connection,
    /// Read keys.
    Read,
    /// Write keys.
    Write,
    /// Handle transactions.
    Transaction,
    /// Tell about itself.
    Server,
}

/// A command's entry in the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its name, in lower case.
    pub name: &'static str,
    /// Number of arguments, the name included; −n means at least n.
    pub arity: i32,
    /// What it needs.
    pub kind: Kind,
    /// Positions of the first and the last key, the latter counted from the end if negative, and
    /// the distance between keys. All zero: no keys.
    pub keys: (usize, isize, usize),
    /// What it does, in a line.
    pub summary: &'static str,
    /// Which part of the parser reads its arguments.
    pub(super) id: Id,
}

/// Commands as the parser knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Id {
    Append,
    Auth,
    Client,
    Cluster,
    Command,
    Config,
    DbSize,
    Decr,
    DecrBy,
    Del,
    Discard,
    Echo,
    Exec,
    Exists,
    Expire,
    ExpireAt,
    Get,
    GetDel,
    GetSet,
    Hello,
    Incr,
    IncrBy,
    Info,
    Cas,
    Once,
    Range,
    Session,
    Stale,
    MGet,
    MSet,
    Multi,
    PExpire,
    PExpireAt,
    PSetEx,
    PTtl,
    Persist,
    Ping,
    Quit,
    Scan,
    Select,
    Set,
    SetEx,
    SetNx,
    StrLen,
    Ttl,
    Type,
    Unlink,
    Unwatch,
    Watch,
}

const NONE: (usize, isize, usize) = (0, 0, 0);
const ONE: (usize, isize, usize) = (1, 1, 1);
const ALL: (usize, isize, usize) = (1, -1, 1);

const fn spec(
    name: &'static str,
    arity: i32,
    kind: Kind,
    keys: (usize, isize, usize),
    id: Id,
    summary: &'static str,
) -> Spec {
    Spec { name, arity, kind, keys, summary, id }
}

/// All commands, in the order of their names.
pub const COMMANDS: &[Spec] = {
    use Kind::{Connection, Read, Server, Transaction, Write};
    &[
        spec("append", 3, Write, ONE, Id::Append, "Appends to a value"),
        spec("auth", -2, Connection, NONE, Id::Auth, "Authenticates the connection"),
        spec("client", -2, Connection, NONE, Id::Client, "ID, GETNAME, SETNAME, INFO, SETINFO"),
        spec("cluster", -2, Server, NONE, Id::Cluster, "INFO, SLOTS, SHARDS, NODES, KEYSLOT, COUNTKEYSINSLOT, MYID"),
        spec("command", -1, Server, NONE, Id::Command, "COUNT, LIST, INFO, DOCS, GETKEYS"),
        spec("config", -2, Server, NONE, Id::Config, "GET"),
        spec("dbsize", 1, Server, NONE, Id::DbSize, "Counts the keys of the groups that this node leads"),
        spec("decr", 2, Write, ONE, Id::Decr, "Subtracts one"),
        spec("decrby", 3, Write, ONE, Id::DecrBy, "Subtracts a number"),
        spec("del", -2, Write, ALL, Id::Del, "Deletes keys"),
        spec("discard", 1, Transaction, NONE, Id::Discard, "Drops the transaction"),
        spec("echo", 2, Connection, NONE, Id::Echo, "Answers its argument"),
        spec("exec", 1, Transaction, NONE, Id::Exec, "Applies the transaction, as one log entry"),
        spec("exists", -2, Read, ALL, Id::Exists, "Counts which of the keys there are"),
        spec("expire", -3, Write, ONE, Id::Expire, "Sets a deadline, in seconds from now"),
        spec("expireat", -3, Write, ONE, Id::ExpireAt, "Sets a deadline, in seconds since 1970"),
        spec("get", 2, Read, ONE, Id::Get, "Reads a value"),
        spec("getdel", 2, Write, ONE, Id::GetDel, "Deletes a key and answers its value"),
        spec("getset", 3, Write, ONE, Id::GetSet, "Writes a value and answers the one before"),
        spec("hello", -1, Connection, NONE, Id::Hello, "Chooses the version of the protocol"),
        spec("incr", 2, Write, ONE, Id::Incr, "Adds one"),
        spec("incrby", 3, Write, ONE, Id::IncrBy, "Adds a number"),
        spec("info", -1, Server, NONE, Id::Info, "Tells about the server"),
        spec("kvd.cas", -4, Write, ONE, Id::Cas, "KVD.CAS key IF value|IFABSENT SET value|DEL"),
        spec("kvd.once", -5, Write, (4, 4, 1), Id::Once, "KVD.ONCE session serial command: applied once"),
        spec("kvd.range", -3, Read, (1, 2, 1), Id::Range, "KVD.RANGE start end [COUNT n] [VALUES], in order"),
        spec("kvd.session", 2, Write, ONE, Id::Session, "Opens a session in the group of a key"),
        spec("kvd.stale", -4, Read, (3, 3, 1), Id::Stale, "KVD.STALE milliseconds command: reads here"),
        spec("mget", -2, Read, ALL, Id::MGet, "Reads values"),
        spec("mset", -3, Write, (1, -1, 2), Id::MSet, "Writes values"),
        spec("multi", 1, Transaction, NONE, Id::Multi, "Begins a transaction"),
        spec("persist", 2, Write, ONE, Id::Persist, "Removes a deadline"),
        spec("pexpire", -3, Write, ONE, Id::PExpire, "Sets a deadline, in milliseconds from now"),
        spec("pexpireat", -3, Write, ONE, Id::PExpireAt, "Sets a deadline, in milliseconds since 1970"),
        spec("ping", -1, Connection, NONE, Id::Ping, "Answers PONG"),
        spec("psetex", 4, Write, ONE, Id::PSetEx, "Writes a value that expires, in milliseconds"),
        spec("pttl", 2, Read, ONE, Id::PTtl, "Milliseconds until the deadline"),
        spec("quit", -1, Connection, NONE, Id::Quit, "Ends the connection"),
        spec("scan", -2, Server, NONE, Id::Scan, "Iterates over the keys of the groups that this node leads"),
        spec("select", 2, Connection, NONE, Id::Select, "Database 0 is the only one"),
        spec("set", -3, Write, ONE, Id::Set, "Writes a value"),
        spec("setex", 4, Write, ONE, Id::SetEx, "Writes a value that expires, in seconds"),
        spec("setnx", 3, Write, ONE, Id::SetNx, "Writes a value if there is none"),
        spec("strlen", 2, Read, ONE, Id::StrLen, "Length of a value"),
        spec("ttl", 2, Read, ONE, Id::Ttl, "Seconds until the deadline"),
        spec("type", 2, Read, ONE, Id::Type, "Answers string or none"),
        spec("unlink", -2, Write, ALL, Id::Unlink, "Deletes keys"),
        spec("unwatch", 1, Transaction, NONE, Id::Unwatch, "Forgets watched keys"),
        spec("watch", -2, Transaction, ALL, Id::Watch, "Makes EXEC fail if a key changes before"),
    ]
};

/// The longest name; longer words are no commands.
const MAX_NAME_LEN: usize = 16;

/// The command of a name, in any case.
pub fn find(name: &[u8]) -> Option<&'static Spec> {
    let mut lower = [0; MAX_NAME_LEN];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let index = COMMANDS.binary_search_by(|spec| spec.name.as_bytes().cmp(lower)).ok()?;
    COMMANDS.get(index)
}

impl Spec {
    /// The command's position in [`COMMANDS`].
    pub fn index(&self) -> usize {
        COMMANDS.binary_search_by(|spec| spec.name.cmp(self.name)).unwrap_or(0)
    }

    /// Whether so many arguments, the name included, are as many as the command takes.
    pub fn takes(&self, count: usize) -> bool {
        let least = usize::try_from(self.arity.unsigned_abs()).unwrap_or(usize::MAX);
        if self.arity < 0 { count >= least } else { count == least }
    }

    /// The keys among its arguments, the name included.
    pub fn keys_in<'a>(&self, arguments: &'a [Bytes]) -> impl Iterator<Item = &'a Bytes> + use<'a> {
        let (first, last, step) = self.keys;
        let end = match usize::try_from(last) {
            Ok(last) => (last + 1).min(arguments.len()),
            Err(_) => (arguments.len() + 1).saturating_sub(last.unsigned_abs()),
        };
        let keys = if first == 0 { &[] } else { arguments.get(first..end).unwrap_or_default() };
        keys.iter().step_by(step.max(1))
    }

    /// The command's flags, as COMMAND answers them.
    pub fn flags(&self) -> &'static [&'static str] {
        match self.kind {
            Kind::Connection => &["fast", "loading", "stale"],
            Kind::Read => &["readonly"],
            Kind::Write => &["write", "denyoom"],
            Kind::Transaction => &["noscript", "fast"],
            Kind::Server => &["loading", "stale"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_every_one_is_found_in_any_case() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name));
        for (index, spec) in COMMANDS.iter().enumerate() {
            assert_eq!(find(spec.name.to_uppercase().as_bytes()), Some(spec));
            assert_eq!(spec.index(), index);
        }
        assert_eq!(find(b""), None);
        assert_eq!(find(b"gets"), None);
        assert_eq!(find(&[b'x'; 1000]), None);
    }

    #[test]
    fn keys_are_found_where_the_table_says() {
        let check = |line: &str, expected: &[&str]| {
            let words: Vec<_> = line.split(' ').map(|word| Bytes::from(word.to_owned())).collect();
            let keys: Vec<_> = find(&words[0]).unwrap().keys_in(&words).collect();
            assert_eq!(keys, expected, "{line}");
        };
        check("get a", &["a"]);
        check("mget a b c", &["a", "b", "c"]);
        check("mset a 1 b 2", &["a", "b"]);
        check("kvd.once 1 2 set a 3", &["a"]);
        check("kvd.stale 100 mget a b", &["a"]);
        check("kvd.range a b count 3", &["a", "b"]);
        check("ping", &[]);
        // Too few arguments.
        check("get", &[]);
        check("mset", &[]);
        check("kvd.once 1", &[]);
    }
}
