//! What COMMAND and HELP answer: the table of commands.

use bytes::Bytes;

use crate::command::{COMMANDS, Group, Kind, ListFilter, Spec, find, find_name};
use crate::machine::{Reply, matches};

/// The entry that COMMAND INFO names: a subcommand's has a bar.
fn named(name: &[u8]) -> Option<&'static Spec> {
    find_name(&[name])
}

fn parts(command: &Spec) -> impl Iterator<Item = &'static Spec> {
    let name = command.name;
    COMMANDS.iter().filter(move |spec| spec.name != name && spec.parts().0 == name)
}

fn top() -> impl Iterator<Item = &'static Spec> {
    COMMANDS.iter().filter(|spec| spec.is_top())
}

/// COMMAND COUNT.
pub(super) fn count() -> Reply {
    Reply::count(top().count())
}

/// COMMAND LIST.
pub(super) fn list(filter: Option<&ListFilter>) -> Reply {
    let wanted = |spec: &&Spec| match filter {
        None => true,
        Some(ListFilter::Module(module)) => spec.group == Group::Own && module.eq_ignore_ascii_case(b"kvd"),
        Some(ListFilter::Category(category)) => {
            categories(spec).iter().any(|it| category.eq_ignore_ascii_case(&it.as_bytes()[1..]))
        }
        Some(ListFilter::Pattern(pattern)) => matches(&pattern.to_ascii_lowercase(), spec.name.as_bytes()),
    };
    let names = COMMANDS.iter().filter(wanted).map(|spec| Reply::bulk(spec.name));
    // Each command with subcommands has one more, which the table does not list.
    let helps = top().filter(|spec| parts(spec).next().is_some()).map(|spec| format!("{}|help", spec.name));
    let helps = helps.filter(|name| match filter {
        None => true,
        Some(ListFilter::Pattern(pattern)) => matches(&pattern.to_ascii_lowercase(), name.as_bytes()),
        Some(_) => false,
    });
    Reply::Array(names.chain(helps.map(Reply::bulk)).collect())
}

/// COMMAND and COMMAND INFO.
pub(super) fn info(names: Option<&[Bytes]>) -> Reply {
    match names {
        None => Reply::Array(top().map(describe).collect()),
        Some(names) => Reply::Array(names.iter().map(|name| named(name).map_or(Reply::NilArray, describe)).collect()),
    }
}

/// COMMAND DOCS.
pub(super) fn docs(names: &[Bytes]) -> Reply {
    let specs: Vec<_> =
        if names.is_empty() { top().collect() } else { names.iter().filter_map(|it| named(it)).collect() };
    Reply::Map(specs.into_iter().map(|spec| (Reply::bulk(spec.name), document(spec))).collect())
}

/// COMMAND GETKEYS and GETKEYSANDFLAGS.
pub(super) fn keys(words: &[Bytes], flags: bool) -> Reply {
    let Some(name) = words.first().filter(|name| find(name).is_some()) else {
        return Reply::error("ERR Invalid command specified");
    };
    // Only the number of words must be right, not what they say.
    let spec = words.get(1).and_then(|word| find_name(&[name, b"|", word])).or_else(|| find(name));
    let Some(spec) = spec.filter(|spec| spec.takes(words.len())) else {
        return Reply::error("ERR Invalid number of arguments specified for command");
    };
    let keys: Vec<_> = spec.keys_in(words).cloned().map(Reply::Bulk).collect();
    if keys.is_empty() {
        return Reply::error("ERR The command has no key arguments");
    }
    if !flags {
        return Reply::Array(keys);
    }
    let names = match spec.kind {
        Kind::Read => ["RO", "access"],
        // Blind writes, and those that depend on the value before.
        Kind::Write if ["set", "mset", "msetnx", "setnx", "setex", "psetex"].contains(&spec.name) => ["OW", "update"],
        _ => ["RW", "update"],
    };
    let flags = || Reply::Array(names.iter().map(Reply::bulk).collect());
    Reply::Array(keys.into_iter().map(|key| Reply::Array(vec![key, flags()])).collect())
}

/// HELP of a command with subcommands.
pub(super) fn help(command: &str) -> Reply {
    let upper = command.to_uppercase();
    let mut lines = vec![format!("{upper} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:")];
    for spec in COMMANDS.iter().filter(|spec| spec.parts().0 == command) {
        if let Some(name) = spec.parts().1 {
            lines.extend([name.to_uppercase(), format!("    {}.", spec.summary)]);
        }
    }
    lines.extend(["HELP".to_owned(), "    Prints this help.".to_owned()]);
    Reply::Array(lines.into_iter().map(|line| Reply::Status(line.into())).collect())
}

fn categories(spec: &Spec) -> Vec<&'static str> {
    let kind = match spec.kind {
        Kind::Local => "@connection",
        Kind::Read => "@read",
        Kind::Write => "@write",
        Kind::Transaction => "@transaction",
        Kind::Tell | Kind::Admin => "@admin",
    };
    let group = match spec.group {
        Group::String => Some("@string"),
        Group::Bitmap => Some("@bitmap"),
        Group::Generic => Some("@keyspace"),
        _ => None,
    };
    std::iter::once(kind).chain(group).collect()
}

fn describe(spec: &Spec) -> Reply {
    let words = |words: &[&'static str]| Reply::Array(words.iter().map(|it| Reply::Status((*it).into())).collect());
    let none = || Reply::Array(Vec::new());
    Reply::Array(vec![
        Reply::bulk(spec.name),
        Reply::Integer(i64::from(spec.arity)),
        words(spec.flags()),
        Reply::count(spec.keys.first),
        Reply::Integer(i64::try_from(spec.keys.last).unwrap_or(0)),
        Reply::count(spec.keys.step),
        words(&categories(spec)),
        none(),
        none(),
        Reply::Array(parts(spec).map(describe).collect()),
    ])
}

fn document(spec: &Spec) -> Reply {
    let mut entries = vec![
        (Reply::bulk("summary"), Reply::bulk(spec.summary)),
        (Reply::bulk("since"), Reply::bulk("1.0.0")),
        (Reply::bulk("group"), Reply::bulk(spec.group.name())),
    ];
    let parts: Vec<_> = parts(spec).map(|part| (Reply::bulk(part.name), document(part))).collect();
    if !parts.is_empty() {
        entries.push((Reply::bulk("subcommands"), Reply::Map(parts)));
    }
    Reply::Map(entries)
}
