//! What commands parse to, and which errors they get: the texts are those of Redis 7.2.

use std::collections::BTreeMap;

use super::*;
use crate::machine::{Condition, Deadline, NewDeadline, SetAnswer};

fn words(line: &str) -> Vec<Bytes> {
    line.split(' ').map(|word| Bytes::from(word.replace('_', ""))).collect()
}

fn check_error(line: &str, expected: &str) {
    match parse(&words(line)) {
        Err(Reply::Error(text)) => assert_eq!(text, expected, "{line}"),
        other => panic!("{line}: {other:?}"),
    }
}

fn command(line: &str) -> Command {
    parse(&words(line)).unwrap_or_else(|error| panic!("{line}: {error:?}")).command
}

#[test]
fn errors_are_those_of_redis() {
    let check = check_error;
    check("nosuch a b", "ERR unknown command 'nosuch', with args beginning with: 'a' 'b' ");
    check("get", "ERR wrong number of arguments for 'get' command");
    check("GET a b", "ERR wrong number of arguments for 'get' command");
    check("mset {t}a 1 {t}b", "ERR wrong number of arguments for 'mset' command");
    check("ping a b", "ERR wrong number of arguments for 'ping' command");
    check("set a b NX XX", "ERR syntax error");
    check("set a b XX NX", "ERR syntax error");
    check("set a b EX 1 PX 1", "ERR syntax error");
    check("set a b EX 1 KEEPTTL", "ERR syntax error");
    check("set a b KEEPTTL PXAT 1", "ERR syntax error");
    check("set a b EX", "ERR syntax error");
    check("set a b FOO", "ERR syntax error");
    check("set a b EX x", "ERR value is not an integer or out of range");
    check("set a b EX 0", "ERR invalid expire time in 'set' command");
    check("set a b PX -1", "ERR invalid expire time in 'set' command");
    check("set a b EX 9223372036854775807", "ERR invalid expire time in 'set' command");
    check("setex a 0 b", "ERR invalid expire time in 'setex' command");
    check("setex a x b", "ERR value is not an integer or out of range");
    check("psetex a -5 b", "ERR invalid expire time in 'psetex' command");
    check("incrby a 1.5", "ERR value is not an integer or out of range");
    check("incrby a 9223372036854775808", "ERR value is not an integer or out of range");
    check("decrby a -9223372036854775808", "ERR decrement would overflow");
    check("expire a 9223372036854775807", "ERR invalid expire time in 'expire' command");
    check("expire a x", "ERR value is not an integer or out of range");
    check("expire a 1 NX XX", "ERR NX and XX, GT or LT options at the same time are not compatible");
    check("expire a 1 GT NX", "ERR NX and XX, GT or LT options at the same time are not compatible");
    check("expire a 1 GT LT", "ERR GT and LT options at the same time are not compatible");
    check("pexpire a 1 FOO", "ERR Unsupported option FOO");
    check("mget a b", "CROSSSLOT Keys in request don't hash to the same slot");
    check("del a b", "CROSSSLOT Keys in request don't hash to the same slot");
    check("watch a b", "CROSSSLOT Keys in request don't hash to the same slot");
    check("select 1", "ERR SELECT is not allowed in cluster mode");
    check("select x", "ERR value is not an integer or out of range");
    check("scan x", "ERR invalid cursor");
    check("scan -1", "ERR invalid cursor");
    check("scan 0 COUNT 0", "ERR syntax error");
    check("scan 0 COUNT", "ERR syntax error");
    check("scan 0 FOO", "ERR syntax error");
    check("auth a b c", "ERR syntax error");
    check("hello 4", "NOPROTO unsupported protocol version");
    check("hello x", "ERR Protocol version is not an integer or out of range");
    check("hello 3 FOO", "ERR Syntax error in HELLO option 'FOO'");
    check("cluster foo", "ERR unknown subcommand 'foo'. Try CLUSTER HELP.");
    check("cluster keyslot", "ERR wrong number of arguments for 'cluster|keyslot' command");
    check("cluster countkeysinslot 16384", "ERR Invalid slot");
    check("client setname a b", "ERR wrong number of arguments for 'client|setname' command");
    check("client nosuch x", "ERR unknown subcommand 'nosuch'. Try CLIENT HELP.");
    check("client|id", "ERR unknown command 'client|id', with args beginning with: ");
    check("client", "ERR wrong number of arguments for 'client' command");
    check("client kill id 0", "ERR client-id should be greater than 0");
    check("client tracking on", "ERR kvd does not tell clients of changes: caches in clients need a lifetime");
    check("set a b IFEQ", "ERR syntax error");
    check("set a b IFEQ c NX", "ERR syntax error");
    check("getex a EX 0", "ERR invalid expire time in 'getex' command");
    check("getex a PERSIST EX 1", "ERR syntax error");
    check("msetnx {t}a 1 {t}b", "ERR wrong number of arguments for 'msetnx' command");
    check("setrange a -1 b", "ERR offset is out of range");
    check("setrange a 16777216 b", "ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    check("setbit a 134217728 1", "ERR bit offset is not an integer or out of range");
    check("setbit a 0 2", "ERR bit is not an integer or out of range");
    check(
        "bitfield a GET u64 0",
        "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
    );
    check("bitop NOT {t}a {t}b {t}c", "ERR BITOP NOT must be called with a single source key.");
    check("rename a b", "CROSSSLOT Keys in request don't hash to the same slot");
    check("copy a a", "ERR source and destination objects are the same");
    check("incrbyfloat a x", "ERR value is not a valid float");
    check("pexpire a 9223372036854775000", "ERR invalid expire time in 'pexpire' command");
}

#[test]
fn set_takes_its_options_in_any_order_and_case() {
    let check = |line: &str, condition, deadline, answer| {
        let (key, value) = (Bytes::from("a"), Bytes::from("b"));
        let expected = Operation::Set { key, value, condition, deadline, answer };
        assert_eq!(command(line), Command::Write(expected), "{line}");
    };
    let new = Deadline::New;
    check("set a b", Condition::Always, Deadline::None, SetAnswer::Ok);
    check("set a b nx get ex 2", Condition::IfAbsent, new(NewDeadline::In(2000)), SetAnswer::Old);
    check("SET a b PX 2 XX", Condition::IfPresent, new(NewDeadline::In(2)), SetAnswer::Ok);
    check("set a b EXAT 2", Condition::Always, new(NewDeadline::At(2000)), SetAnswer::Ok);
    check("set a b PXAT 2", Condition::Always, new(NewDeadline::At(2)), SetAnswer::Ok);
    check("set a b KEEPTTL", Condition::Always, Deadline::Keep, SetAnswer::Ok);
    check("setnx a b", Condition::IfAbsent, Deadline::None, SetAnswer::Integer);
    check("getset a b", Condition::Always, Deadline::None, SetAnswer::Old);
    check("setex a 3 b", Condition::Always, new(NewDeadline::In(3000)), SetAnswer::Ok);
}

/// The table of PROTOCOL.md: a row for each heading.
#[test]
fn the_document_lists_every_command() {
    let document = include_str!("../../PROTOCOL.md");
    let mut rows = BTreeMap::<&str, Vec<String>>::new();
    for spec in COMMANDS.iter().filter(|spec| spec.is_top()) {
        let parts = COMMANDS.iter().filter(|part| !part.is_top() && part.parts().0 == spec.name);
        let parts: Vec<_> = parts.filter_map(|part| part.parts().1).map(str::to_uppercase).collect();
        let name = spec.name.to_uppercase();
        let shown = if parts.is_empty() { name } else { format!("{name} ({})", parts.join(" ")) };
        rows.entry(if spec.group == Group::Own { "kvd's own" } else { spec.group.name() }).or_default().push(shown);
    }
    for (heading, names) in rows {
        let row = format!("| {heading} | {} |", names.join(" "));
        assert!(document.lines().any(|line| line == row), "PROTOCOL.md lacks this row:\n{row}");
    }
}

#[test]
fn own_commands_parse() {
    let swap = |expected: Option<&str>, new: Option<&str>| {
        let bytes = |text: &str| Bytes::from(text.to_owned());
        Command::Write(Operation::Swap { key: "k".into(), expected: expected.map(bytes), new: new.map(bytes) })
    };
    assert_eq!(command("kvd.cas k IF a SET b"), swap(Some("a"), Some("b")));
    assert_eq!(command("kvd.cas k ifabsent set b"), swap(None, Some("b")));
    assert_eq!(command("kvd.cas k IF _ DEL"), swap(Some(""), None));
    check_error("kvd.cas k SET b IF a", "ERR syntax error");
    check_error("kvd.cas k IF a SET", "ERR syntax error");
    check_error("kvd.cas k IF a DEL x", "ERR syntax error");

    assert_eq!(command("kvd.stale 50 get k"), Command::Stale(50, Query::Get("k".into())));
    let range = Query::Range { start: "{t}a".into(), end: "{t}b".into(), limit: 5, values: true };
    assert_eq!(command("kvd.range {t}a {t}b count 5 values"), Command::Read(range.clone()));
    assert_eq!(command("kvd.stale 1 kvd.range {t}a {t}b values count 5"), Command::Stale(1, range));
    check_error("kvd.range a b", "CROSSSLOT Keys in request don't hash to the same slot");
    check_error("kvd.stale 1 mget a b", "CROSSSLOT Keys in request don't hash to the same slot");
    check_error("kvd.stale -1 get a", "ERR value is not an integer or out of range");
    check_error("kvd.stale 1 set a b", "ERR KVD.STALE takes a command that reads keys");
    check_error("kvd.stale 1 kvd.stale 1 get a", "ERR syntax error");

    let serial = Serial { session: 7, serial: 3 };
    let add = Operation::Add { key: "n".into(), delta: 1 };
    assert_eq!(command("kvd.once 7 3 incr n"), Command::Once(serial, add));
    assert_eq!(parse(&words("kvd.once 7 3 incr foo")).unwrap().slot, Some(12_182));
    check_error("kvd.once 7 0 incr n", "ERR the first serial is 1");
    check_error("kvd.once 7 1 get n", "ERR KVD.ONCE takes a command that writes keys");
    check_error("kvd.once 7 1 kvd.once 7 1 incr n", "ERR syntax error");
    check_error("kvd.once 7 1 incr", "ERR wrong number of arguments for 'kvd.once' command");
}

#[test]
fn no_depth_of_nesting_overflows_the_stack() {
    let deep = words(&("kvd.once 1 1 ".repeat(20_000) + "incr n"));
    assert!(parse(&deep).is_err());
    let deep = words(&("kvd.stale 1 ".repeat(20_000) + "get n"));
    assert!(parse(&deep).is_err());
}

#[test]
fn every_command_refuses_any_arguments_without_a_panic() {
    let odd = ["", "0", "-1", "x", "9223372036854775807", "EX", "MATCH", "GET", "\u{fffd}"];
    for spec in COMMANDS {
        for count in 0..5 {
            for word in odd {
                let line = spec.name.split('|').chain(std::iter::repeat_n(word, count));
                let words: Vec<_> = line.map(|word| Bytes::from(word.to_owned())).collect();
                if let Ok(parsed) = parse(&words) {
                    assert!(parsed.spec.takes(words.len()), "{words:?}");
                    assert_eq!(parsed.spec.parts().0, spec.parts().0);
                }
            }
        }
    }
    assert!(parse(&[]).is_err());
}

#[test]
fn long_keys_and_values_are_refused() {
    use crate::machine::{MAX_KEY_LEN, MAX_VALUE_LEN};
    let long = |len: usize| Bytes::from(vec![b'x'; len]);
    let get = |key: Bytes| parse(&["get".into(), key]).is_ok();
    assert!(get(long(MAX_KEY_LEN)) && !get(long(MAX_KEY_LEN + 1)));
    let set = |value: Bytes| parse(&["set".into(), "k".into(), value]).is_ok();
    assert!(set(long(MAX_VALUE_LEN)) && !set(long(MAX_VALUE_LEN + 1)));
}
