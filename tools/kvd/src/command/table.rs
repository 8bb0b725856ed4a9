//! The table of commands, in the order of their names.
//!
//! One more command is one row here and one function that reads its arguments.

use super::spec::{Group, Keys, Kind, Parse, Spec};
use super::{bits, connection, keys, server, strings, transactions};

const fn at(first: usize, last: isize, step: usize) -> Keys {
    Keys { first, last, step }
}

const NONE: Keys = at(0, 0, 0);
const ONE: Keys = at(1, 1, 1);
const TWO: Keys = at(1, 2, 1);
const ALL: Keys = at(1, -1, 1);
const PAIRS: Keys = at(1, -1, 2);
const SECOND: Keys = at(2, 2, 1);
const FROM_SECOND: Keys = at(2, -1, 1);
const THIRD: Keys = at(3, 3, 1);
const FOURTH: Keys = at(4, 4, 1);

const fn row(
    name: &'static str,
    arity: i32,
    kind: Kind,
    keys: Keys,
    group: Group,
    parse: Parse,
    summary: &'static str,
) -> Spec {
    Spec { name, arity, kind, keys, group, summary, index: 0, parse }
}

const fn numbered<const COUNT: usize>(mut rows: [Spec; COUNT]) -> [Spec; COUNT] {
    let mut index = 0;
    while index < COUNT {
        rows[index].index = index;
        index += 1;
    }
    rows
}

/// All commands and subcommands, in the order of their names.
#[rustfmt::skip]
pub static COMMANDS: &[Spec] = {
    use Group::{Bitmap, Cluster, Connection, Generic, Own, Server, String, Transactions};
    use Kind::{Admin, Local, Read, Tell, Transaction, Write};
    use Parse::{Around, Container, With};
    &numbered([
        row("acl", -2, Local, NONE, Connection, Container, "WHOAMI"),
        row("acl|whoami", 2, Local, NONE, Connection, With(connection::whoami), "Answers the user's name"),
        row("append", 3, Write, ONE, String, With(strings::append), "Appends to a value"),
        row("auth", -2, Local, NONE, Connection, With(connection::auth), "Authenticates the connection"),
        row("bitcount", -2, Read, ONE, Bitmap, With(bits::bitcount), "Counts bits that are set"),
        row("bitfield", -2, Write, ONE, Bitmap, With(bits::bitfield), "Reads and writes numbers of any width in a value"),
        row("bitfield_ro", -2, Read, ONE, Bitmap, With(bits::bitfield_ro), "Reads numbers of any width in a value"),
        row("bitop", -4, Write, FROM_SECOND, Bitmap, With(bits::bitop), "Combines values bit by bit"),
        row("bitpos", -3, Read, ONE, Bitmap, With(bits::bitpos), "Finds the first bit that is set, or not set"),
        row("client", -2, Local, NONE, Connection, Container, "Commands about connections"),
        row("client|caching", 3, Local, NONE, Connection, With(connection::caching), "Refused: there is no tracking"),
        row("client|getname", 2, Local, NONE, Connection, With(connection::getname), "Answers the connection's name"),
        row("client|getredir", 2, Local, NONE, Connection, With(connection::getredir), "Answers -1: there is no tracking"),
        row("client|id", 2, Local, NONE, Connection, With(connection::id), "Answers the connection's number"),
        row("client|info", 2, Local, NONE, Connection, With(connection::info), "Tells about the connection"),
        row("client|kill", -3, Admin, NONE, Connection, With(server::client_kill), "Closes connections"),
        row("client|list", -2, Admin, NONE, Connection, With(server::client_list), "Lists connections"),
        row("client|no-evict", 3, Local, NONE, Connection, With(connection::on_off), "Accepted: connections are never evicted"),
        row("client|no-touch", 3, Local, NONE, Connection, With(connection::on_off), "Accepted: reads leave no trace"),
        row("client|reply", 3, Local, NONE, Connection, With(connection::reply), "Chooses which replies are sent"),
        row("client|setinfo", 4, Local, NONE, Connection, With(connection::setinfo), "Sets name or version of the client's library"),
        row("client|setname", 3, Local, NONE, Connection, With(connection::setname), "Sets the connection's name"),
        row("client|tracking", -3, Local, NONE, Connection, With(connection::tracking), "Refused: clients are not told of changes"),
        row("client|trackinginfo", 2, Local, NONE, Connection, With(connection::trackinginfo), "Answers that there is no tracking"),
        row("client|unblock", -3, Local, NONE, Connection, With(connection::unblock), "Answers 0: no command blocks"),
        row("cluster", -2, Tell, NONE, Cluster, Container, "Commands about the cluster"),
        row("cluster|countkeysinslot", 3, Read, NONE, Cluster, With(keys::count_keys_in_slot), "Counts the keys of a slot"),
        row("cluster|getkeysinslot", 4, Read, NONE, Cluster, With(keys::keys_in_slot), "Answers keys of a slot"),
        row("cluster|info", 2, Tell, NONE, Cluster, With(server::cluster_info), "Tells about the cluster"),
        row("cluster|keyslot", 3, Tell, NONE, Cluster, With(server::cluster_keyslot), "Answers the slot of a key"),
        row("cluster|links", 2, Tell, NONE, Cluster, With(server::cluster_links), "Lists connections to other nodes"),
        row("cluster|myid", 2, Tell, NONE, Cluster, With(server::cluster_myid), "Answers this node's name"),
        row("cluster|myshardid", 2, Tell, NONE, Cluster, With(server::cluster_myshardid), "Answers the name of a group that this node leads or follows"),
        row("cluster|nodes", 2, Tell, NONE, Cluster, With(server::cluster_nodes), "Lists the nodes"),
        row("cluster|replicas", 3, Tell, NONE, Cluster, With(server::cluster_replicas), "Lists the nodes that follow a leader"),
        row("cluster|shards", 2, Tell, NONE, Cluster, With(server::cluster_shards), "Lists groups with their slots and nodes"),
        row("cluster|slaves", 3, Tell, NONE, Cluster, With(server::cluster_replicas), "Lists the nodes that follow a leader"),
        row("cluster|slots", 2, Tell, NONE, Cluster, With(server::cluster_slots), "Lists slots with their nodes"),
        row("command", -1, Tell, NONE, Server, Container, "Commands about commands"),
        row("command|count", 2, Tell, NONE, Server, With(server::command_count), "Counts commands"),
        row("command|docs", -2, Tell, NONE, Server, With(server::command_docs), "Documents commands"),
        row("command|getkeys", -3, Tell, NONE, Server, With(server::command_getkeys), "Finds the keys of a command"),
        row("command|getkeysandflags", -3, Tell, NONE, Server, With(server::command_getkeysandflags), "Finds the keys of a command, and how it uses them"),
        row("command|info", -2, Tell, NONE, Server, With(server::command_info), "Tells about commands"),
        row("command|list", -2, Tell, NONE, Server, With(server::command_list), "Lists commands"),
        row("config", -2, Tell, NONE, Server, Container, "Commands about settings"),
        row("config|get", -3, Tell, NONE, Server, With(server::config_get), "Answers settings"),
        row("config|resetstat", 2, Admin, NONE, Server, With(server::config_resetstat), "Sets what INFO counts to zero"),
        row("config|rewrite", 2, Admin, NONE, Server, With(server::config_rewrite), "Refused: settings are given when kvd starts"),
        row("config|set", -4, Admin, NONE, Server, With(server::config_set), "Changes settings until the node ends"),
        row("copy", -3, Write, TWO, Generic, With(keys::copy), "Copies a key with its deadline"),
        row("dbsize", 1, Tell, NONE, Server, With(keys::dbsize), "Counts the keys of the groups that this node leads"),
        row("decr", 2, Write, ONE, String, With(strings::decr), "Subtracts one"),
        row("decrby", 3, Write, ONE, String, With(strings::decrby), "Subtracts a number"),
        row("del", -2, Write, ALL, Generic, With(keys::del), "Deletes keys"),
        row("delifeq", 3, Write, ONE, String, With(strings::delifeq), "Deletes a key if it has a value"),
        row("discard", 1, Transaction, NONE, Transactions, With(transactions::discard), "Drops the transaction"),
        row("echo", 2, Local, NONE, Connection, With(connection::echo), "Answers its argument"),
        row("exec", 1, Transaction, NONE, Transactions, With(transactions::exec), "Applies the transaction, as one log entry"),
        row("exists", -2, Read, ALL, Generic, With(keys::exists), "Counts which of the keys there are"),
        row("expire", -3, Write, ONE, Generic, With(keys::expire), "Sets a deadline, in seconds from now"),
        row("expireat", -3, Write, ONE, Generic, With(keys::expireat), "Sets a deadline, in seconds since 1970"),
        row("expiretime", 2, Read, ONE, Generic, With(keys::expiretime), "Answers the deadline, in seconds since 1970"),
        row("flushall", -1, Write, NONE, Server, With(keys::flush), "Deletes all keys of the groups that this node leads"),
        row("flushdb", -1, Write, NONE, Server, With(keys::flush), "Deletes all keys of the groups that this node leads"),
        row("get", 2, Read, ONE, String, With(strings::get), "Reads a value"),
        row("getbit", 3, Read, ONE, Bitmap, With(bits::getbit), "Reads a bit"),
        row("getdel", 2, Write, ONE, String, With(strings::getdel), "Deletes a key and answers its value"),
        row("getex", -2, Write, ONE, String, With(strings::getex), "Reads a value and changes its deadline"),
        row("getrange", 4, Read, ONE, String, With(strings::getrange), "Reads a part of a value"),
        row("getset", 3, Write, ONE, String, With(strings::getset), "Writes a value and answers the one before"),
        row("hello", -1, Local, NONE, Connection, With(connection::hello), "Chooses the version of the protocol"),
        row("incr", 2, Write, ONE, String, With(strings::incr), "Adds one"),
        row("incrby", 3, Write, ONE, String, With(strings::incrby), "Adds a number"),
        row("incrbyfloat", 3, Write, ONE, String, With(strings::incrbyfloat), "Adds a number with a point, exactly"),
        row("info", -1, Tell, NONE, Server, With(server::info), "Tells about the server"),
        row("keys", 2, Tell, NONE, Generic, With(keys::keys), "Answers the keys of the groups that this node leads"),
        row("kvd.cas", -4, Write, ONE, Own, With(strings::cas), "KVD.CAS key IF value|IFABSENT SET value|DEL"),
        row("kvd.once", -5, Write, FOURTH, Own, Around(3, transactions::once), "KVD.ONCE session serial command: applied once"),
        row("kvd.range", -3, Read, TWO, Own, With(keys::range), "KVD.RANGE start end [COUNT n] [VALUES], in order"),
        row("kvd.session", 2, Write, ONE, Own, With(transactions::session), "Opens a session in the group of a key"),
        row("kvd.stale", -4, Read, THIRD, Own, Around(2, transactions::stale), "KVD.STALE milliseconds command: reads here"),
        row("lcs", -3, Read, TWO, String, With(strings::lcs), "Finds the longest common subsequence of two values"),
        row("memory", -2, Read, NONE, Server, Container, "USAGE"),
        row("memory|usage", -3, Read, SECOND, Server, With(keys::usage), "Answers the bytes that a key uses"),
        row("mget", -2, Read, ALL, String, With(strings::mget), "Reads values"),
        row("monitor", 1, Admin, NONE, Server, With(connection::monitor), "Shows the commands of all clients, without passwords"),
        row("move", 3, Write, ONE, Generic, With(keys::move_to), "Refused: there is one database"),
        row("mset", -3, Write, PAIRS, String, With(strings::mset), "Writes values"),
        row("msetnx", -3, Write, PAIRS, String, With(strings::msetnx), "Writes values if none of the keys is there"),
        row("multi", 1, Transaction, NONE, Transactions, With(transactions::multi), "Begins a transaction"),
        row("object", -2, Read, NONE, Generic, Container, "Commands about how values are stored"),
        row("object|encoding", 3, Read, SECOND, Generic, With(keys::encoding), "Answers how Redis would store a value"),
        row("object|freq", 3, Read, SECOND, Generic, With(keys::object_use), "Refused: reads leave no trace"),
        row("object|idletime", 3, Read, SECOND, Generic, With(keys::object_use), "Refused: reads leave no trace"),
        row("object|refcount", 3, Read, SECOND, Generic, With(keys::object_use), "Refused: values are not shared"),
        row("persist", 2, Write, ONE, Generic, With(keys::persist), "Removes a deadline"),
        row("pexpire", -3, Write, ONE, Generic, With(keys::pexpire), "Sets a deadline, in milliseconds from now"),
        row("pexpireat", -3, Write, ONE, Generic, With(keys::pexpireat), "Sets a deadline, in milliseconds since 1970"),
        row("pexpiretime", 2, Read, ONE, Generic, With(keys::pexpiretime), "Answers the deadline, in milliseconds since 1970"),
        row("ping", -1, Local, NONE, Connection, With(connection::ping), "Answers PONG"),
        row("psetex", 4, Write, ONE, String, With(strings::psetex), "Writes a value that expires, in milliseconds"),
        row("pttl", 2, Read, ONE, Generic, With(keys::pttl), "Milliseconds until the deadline"),
        row("quit", -1, Local, NONE, Connection, With(connection::quit), "Ends the connection"),
        row("randomkey", 1, Tell, NONE, Generic, With(keys::randomkey), "Answers a key of the groups that this node leads"),
        row("readonly", 1, Local, NONE, Cluster, With(connection::readonly), "Lets this node answer reads that it does not lead, within the bound of staleness"),
        row("readwrite", 1, Local, NONE, Cluster, With(connection::readwrite), "Ends READONLY"),
        row("rename", 3, Write, TWO, Generic, With(keys::rename), "Renames a key"),
        row("renamenx", 3, Write, TWO, Generic, With(keys::renamenx), "Renames a key if the new name is free"),
        row("reset", 1, Local, NONE, Connection, With(connection::reset), "Makes the connection as new"),
        row("role", 1, Tell, NONE, Server, With(server::role), "Tells whether this node leads"),
        row("scan", -2, Tell, NONE, Generic, With(keys::scan), "Iterates over the keys of the groups that this node leads"),
        row("select", 2, Local, NONE, Connection, With(connection::select), "Database 0 is the only one"),
        row("set", -3, Write, ONE, String, With(strings::set), "Writes a value"),
        row("setbit", 4, Write, ONE, Bitmap, With(bits::setbit), "Writes a bit"),
        row("setex", 4, Write, ONE, String, With(strings::setex), "Writes a value that expires, in seconds"),
        row("setnx", 3, Write, ONE, String, With(strings::setnx), "Writes a value if there is none"),
        row("setrange", 4, Write, ONE, String, With(strings::setrange), "Overwrites a part of a value"),
        row("slowlog", -2, Admin, NONE, Server, Container, "Commands about slow commands"),
        row("slowlog|get", -2, Admin, NONE, Server, With(server::slowlog_get), "Answers the slow commands"),
        row("slowlog|len", 2, Admin, NONE, Server, With(server::slowlog_len), "Counts the slow commands that are kept"),
        row("slowlog|reset", 2, Admin, NONE, Server, With(server::slowlog_reset), "Forgets the slow commands"),
        row("strlen", 2, Read, ONE, String, With(strings::strlen), "Length of a value"),
        row("substr", 4, Read, ONE, String, With(strings::getrange), "Reads a part of a value"),
        row("time", 1, Tell, NONE, Server, With(server::time), "Answers this node's time"),
        row("touch", -2, Read, ALL, Generic, With(keys::exists), "Counts which of the keys there are"),
        row("ttl", 2, Read, ONE, Generic, With(keys::ttl), "Seconds until the deadline"),
        row("type", 2, Read, ONE, Generic, With(keys::type_of), "Answers string or none"),
        row("unlink", -2, Write, ALL, Generic, With(keys::del), "Deletes keys"),
        row("unwatch", 1, Transaction, NONE, Transactions, With(transactions::unwatch), "Forgets watched keys"),
        row("wait", 3, Tell, NONE, Generic, With(server::wait), "Answers on how many other nodes acknowledged writes are, at once"),
        row("waitaof", 4, Tell, NONE, Generic, With(server::waitaof), "Answers on how many disks acknowledged writes are, at once"),
        row("watch", -2, Transaction, ALL, Transactions, With(transactions::watch), "Makes EXEC fail if a key changes before"),
    ])
};

/// The longest name; longer words are no commands.
const MAX_NAME_LEN: usize = 32;

/// The command of a name, in any case.
pub fn find(name: &[u8]) -> Option<&'static Spec> {
    if name.contains(&b'|') { None } else { find_name(&[name]) }
}

/// The subcommand of a command.
pub fn find_in(command: &Spec, name: &[u8]) -> Option<&'static Spec> {
    if name.contains(&b'|') { None } else { find_name(&[command.name.as_bytes(), b"|", name]) }
}

/// The command or subcommand of a name, which has a bar between the two.
pub fn find_name(parts: &[&[u8]]) -> Option<&'static Spec> {
    let mut buffer = [0; MAX_NAME_LEN];
    let mut len = 0;
    for part in parts {
        buffer.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    let name = buffer.get_mut(..len)?;
    name.make_ascii_lowercase();
    let index = COMMANDS.binary_search_by(|spec| spec.name.as_bytes().cmp(name)).ok()?;
    COMMANDS.get(index)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn names_are_in_order_and_every_one_is_found_in_any_case() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name));
        for (at, spec) in COMMANDS.iter().enumerate() {
            let (command, subcommand) = spec.parts();
            let top = find(command.to_uppercase().as_bytes()).unwrap();
            let found = subcommand.map_or(Some(top), |name| find_in(top, name.to_uppercase().as_bytes()));
            assert_eq!((found, spec.index), (Some(spec), at));
            let has_parts = COMMANDS.iter().any(|other| other.parts().0 == spec.name && !other.is_top());
            assert_eq!(has_parts, matches!(spec.parse, Parse::Container), "{}", spec.name);
        }
        for wrong in [&b""[..], b"gets", b"client|id", &[b'x'; 1000]] {
            assert_eq!(find(wrong), None);
        }
    }

    #[test]
    fn keys_are_found_where_the_table_says() {
        let check = |line: &str, expected: &[&str]| {
            let words: Vec<_> = line.split(' ').map(|word| Bytes::from(word.to_owned())).collect();
            let spec = find(&words[0]).unwrap();
            let spec = words.get(1).and_then(|word| find_in(spec, word)).unwrap_or(spec);
            let keys: Vec<_> = spec.keys_in(&words).collect();
            assert_eq!(keys, expected, "{line}");
        };
        check("get a", &["a"]);
        check("mget a b c", &["a", "b", "c"]);
        check("mset a 1 b 2", &["a", "b"]);
        check("bitop and a b c", &["a", "b", "c"]);
        check("memory usage a", &["a"]);
        check("object encoding a", &["a"]);
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
