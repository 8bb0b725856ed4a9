//! [`parse`]: checks arguments and says what they ask for.

use bytes::Bytes;

use super::arguments::{Arguments, NOT_AN_INTEGER, SYNTAX};
use super::table::{Id, Spec, find};
use super::{Client, Cluster, Command, Commands, Parsed, common_slot};
use crate::machine::{
    Condition, Deadline, ExpireCondition, MAX_KEY_LEN, MAX_VALUE_LEN, NewDeadline, Operation, Query, Reply, SLOTS,
    Serial, SetAnswer, parse_integer, slot_of,
};

/// Furthest deadline, in milliseconds. Redis has the limit of a 64-bit number; half of it leaves
/// room for the time to which it is added.
const MAX_MILLIS: i64 = i64::MAX / 2;

/// Most entries that KVD.RANGE answers, and the number if none is given.
const MAX_RANGE: i64 = 10_000;
const DEFAULT_RANGE: u32 = 1000;

/// Most keys that one SCAN looks at, and the number if none is given.
const MAX_SCAN: i64 = 100_000;
const DEFAULT_SCAN: u32 = 10;

/// Parses a command and its arguments, the name first. The error is what to answer.
pub fn parse(words: &[Bytes]) -> Result<Parsed, Reply> {
    let Some(name) = words.first() else { return Err(Reply::error(SYNTAX)) };
    let Some(spec) = find(name) else { return Err(unknown(words)) };
    if !spec.takes(words.len()) {
        return Err(wrong_count(spec.name));
    }
    for key in spec.keys_in(words) {
        if key.len() > MAX_KEY_LEN {
            return Err(Reply::error(format!("ERR a key is longer than {MAX_KEY_LEN} bytes")));
        }
    }
    if let Some(word) = words.iter().find(|word| word.len() > MAX_VALUE_LEN) {
        return Err(Reply::error(format!("ERR a value of {} bytes is longer than {MAX_VALUE_LEN}", word.len())));
    }
    let (slot, command) = match spec.id {
        Id::Once | Id::Stale => parse_wrapped(spec, words)?,
        _ => (common_slot(spec.keys_in(words))?, parse_arguments(spec, &words[1..])?),
    };
    Ok(Parsed { spec, slot, command })
}

/// Parses a command that has another one in its arguments.
fn parse_wrapped(spec: &Spec, words: &[Bytes]) -> Result<(Option<u16>, Command), Reply> {
    let mut next = Arguments::new(&words[1..]);
    let first = number(next.next()?)?;
    let second = if spec.id == Id::Once { number(next.next()?)? } else { 0 };
    // No further level: the depth must not be the client's to choose.
    let inner = next.rest();
    if inner.first().and_then(|name| find(name)).is_some_and(|spec| matches!(spec.id, Id::Once | Id::Stale)) {
        return Err(Reply::error(SYNTAX));
    }
    let inner = parse(inner)?;
    let command = match (spec.id, inner.command) {
        (Id::Once, Command::Write(_)) if second == 0 => return Err(Reply::error("ERR the first serial is 1")),
        (Id::Once, Command::Write(operation)) => Command::Once(Serial { session: first, serial: second }, operation),
        (Id::Once, _) => return Err(Reply::error("ERR KVD.ONCE takes a command that writes keys")),
        (_, Command::Read(query)) => Command::Stale(first, query),
        _ => return Err(Reply::error("ERR KVD.STALE takes a command that reads keys")),
    };
    Ok((inner.slot, command))
}

/// What Redis answers to a word that is no command: its first arguments, cut short.
fn unknown(words: &[Bytes]) -> Reply {
    const SHOWN: usize = 128;
    let show = |word: &Bytes, most: usize| String::from_utf8_lossy(&word[..word.len().min(most)]).into_owned();
    let mut arguments = String::new();
    for word in words.iter().skip(1) {
        if arguments.len() >= SHOWN {
            break;
        }
        arguments += &format!("'{}' ", show(word, SHOWN - arguments.len()));
    }
    let name = words.first().map(|word| show(word, SHOWN)).unwrap_or_default();
    Reply::error(format!("ERR unknown command '{name}', with args beginning with: {arguments}"))
}

fn wrong_count(name: &str) -> Reply {
    Reply::error(format!("ERR wrong number of arguments for '{name}' command"))
}

fn unknown_subcommand(name: &str, word: &[u8]) -> Reply {
    let word = String::from_utf8_lossy(&word[..word.len().min(128)]);
    Reply::error(format!("ERR unknown subcommand '{word}'. Try {} HELP.", name.to_uppercase()))
}

fn parse_arguments(spec: &Spec, words: &[Bytes]) -> Result<Command, Reply> {
    let mut arguments = Arguments::new(words);
    let next = &mut arguments;
    let command = match spec.id {
        Id::Once | Id::Stale => return Err(Reply::error(SYNTAX)),
        Id::Append => write(Operation::Append { key: next.bytes()?, suffix: next.bytes()? }),
        Id::Cas => cas(next)?,
        Id::Decr => add(next.bytes()?, -1),
        Id::DecrBy => {
            let key = next.bytes()?;
            let delta = next.integer()?.checked_neg();
            add(key, delta.ok_or(Reply::error("ERR decrement would overflow"))?)
        }
        Id::Del | Id::Unlink => write(Operation::Delete(next.rest().to_vec())),
        Id::Expire => expire(next, spec, 1000, NewDeadline::In)?,
        Id::ExpireAt => expire(next, spec, 1000, NewDeadline::At)?,
        Id::PExpire => expire(next, spec, 1, NewDeadline::In)?,
        Id::PExpireAt => expire(next, spec, 1, NewDeadline::At)?,
        Id::GetDel => write(Operation::Take(next.bytes()?)),
        Id::GetSet => write(set(next.bytes()?, next.bytes()?, Condition::Always, Deadline::None, SetAnswer::Old)),
        Id::Incr => add(next.bytes()?, 1),
        Id::IncrBy => add(next.bytes()?, next.integer()?),
        Id::MSet => {
            let (pairs, odd) = next.rest().as_chunks::<2>();
            if !odd.is_empty() {
                return Err(wrong_count(spec.name));
            }
            write(Operation::SetMany(pairs.iter().map(|[key, value]| (key.clone(), value.clone())).collect()))
        }
        Id::Persist => write(Operation::Persist(next.bytes()?)),
        Id::Session => {
            next.next()?;
            Command::OpenSession
        }
        Id::Set => parse_set(next, spec)?,
        Id::SetEx => parse_set_expiring(next, spec, 1000)?,
        Id::PSetEx => parse_set_expiring(next, spec, 1)?,
        Id::SetNx => write(set(next.bytes()?, next.bytes()?, Condition::IfAbsent, Deadline::None, SetAnswer::Integer)),

        Id::Exists => Command::Read(Query::Exists(next.rest().to_vec())),
        Id::Get => Command::Read(Query::Get(next.bytes()?)),
        Id::MGet => Command::Read(Query::GetMany(next.rest().to_vec())),
        Id::PTtl => Command::Read(Query::MillisLeft(next.bytes()?)),
        Id::Range => range(next)?,
        Id::StrLen => Command::Read(Query::Length(next.bytes()?)),
        Id::Ttl => Command::Read(Query::SecondsLeft(next.bytes()?)),
        Id::Type => Command::Read(Query::Type(next.bytes()?)),

        Id::DbSize => Command::Size,
        Id::Scan => scan(next)?,

        Id::Multi => Command::Multi,
        Id::Exec => Command::Exec,
        Id::Discard => Command::Discard,
        Id::Watch => Command::Watch(next.rest().to_vec()),
        Id::Unwatch => Command::Unwatch,

        Id::Echo => Command::Answer(Reply::Bulk(next.bytes()?)),
        Id::Ping => match next.rest() {
            [] => Command::Answer(Reply::Status("PONG".into())),
            [text] => Command::Answer(Reply::Bulk(text.clone())),
            _ => return Err(wrong_count(spec.name)),
        },
        Id::Select => match next.integer()? {
            0 => Command::Answer(Reply::OK),
            _ => return Err(Reply::error("ERR SELECT is not allowed in cluster mode")),
        },
        Id::Quit => {
            next.rest();
            Command::Quit
        }
        Id::Auth => match next.rest() {
            [password] => Command::Auth(Bytes::from_static(b"default"), password.clone()),
            [user, password] => Command::Auth(user.clone(), password.clone()),
            _ => return Err(Reply::error(SYNTAX)),
        },
        Id::Hello => hello(next)?,
        Id::Client => client(next, spec)?,
        Id::Cluster => cluster(next, spec)?,
        Id::Command => commands(next, spec)?,
        Id::Config => {
            let word = next.next()?;
            match (word.to_ascii_uppercase().as_slice(), next.rest()) {
                (b"GET", []) => return Err(wrong_count("config|get")),
                (b"GET", patterns) => Command::ConfigGet(patterns.to_vec()),
                (b"SET" | b"RESETSTAT" | b"REWRITE", _) => {
                    return Err(Reply::error("ERR options are set when kvd starts; see kvd --help"));
                }
                _ => return Err(unknown_subcommand(spec.name, word)),
            }
        }
        Id::Info => {
            let section = |word: &Bytes| String::from_utf8_lossy(word).to_ascii_lowercase();
            Command::Info(next.rest().iter().map(section).collect())
        }
    };
    arguments.finish()?;
    Ok(command)
}

fn write(operation: Operation) -> Command {
    Command::Write(operation)
}

fn add(key: Bytes, delta: i64) -> Command {
    write(Operation::Add { key, delta })
}

fn set(key: Bytes, value: Bytes, condition: Condition, deadline: Deadline, answer: SetAnswer) -> Operation {
    Operation::Set { key, value, condition, deadline, answer }
}

/// A number that is not negative.
fn number(word: &[u8]) -> Result<u64, Reply> {
    parse_integer(word).and_then(|number| u64::try_from(number).ok()).ok_or(Reply::error(NOT_AN_INTEGER))
}

/// A time in units of so many milliseconds.
fn millis(spec: &Spec, amount: i64, unit: i64) -> Result<i64, Reply> {
    let millis = amount.checked_mul(unit).filter(|millis| (-MAX_MILLIS..=MAX_MILLIS).contains(millis));
    millis.ok_or_else(|| invalid_expire(spec))
}

fn invalid_expire(spec: &Spec) -> Reply {
    Reply::error(format!("ERR invalid expire time in '{}' command", spec.name))
}

fn parse_set(next: &mut Arguments, spec: &Spec) -> Result<Command, Reply> {
    let (key, value) = (next.bytes()?, next.bytes()?);
    let (mut condition, mut deadline, mut answer) = (None, None, SetAnswer::Ok);
    while !next.is_empty() {
        let word = next.word()?;
        match &word[..] {
            b"NX" | b"XX" if condition.is_none() => {
                condition = Some(if word == b"NX" { Condition::IfAbsent } else { Condition::IfPresent });
            }
            b"GET" => answer = SetAnswer::Old,
            b"KEEPTTL" if deadline.is_none() => deadline = Some(Deadline::Keep),
            b"EX" | b"PX" | b"EXAT" | b"PXAT" if deadline.is_none() => {
                let amount = next.integer()?;
                if amount <= 0 {
                    return Err(invalid_expire(spec));
                }
                let unit = if word.starts_with(b"P") { 1 } else { 1000 };
                let millis = millis(spec, amount, unit)?;
                let at = word.ends_with(b"AT");
                deadline = Some(Deadline::New(if at { NewDeadline::At(millis) } else { NewDeadline::In(millis) }));
            }
            _ => return Err(Reply::error(SYNTAX)),
        }
    }
    let (condition, deadline) = (condition.unwrap_or(Condition::Always), deadline.unwrap_or(Deadline::None));
    Ok(write(set(key, value, condition, deadline, answer)))
}

fn parse_set_expiring(next: &mut Arguments, spec: &Spec, unit: i64) -> Result<Command, Reply> {
    let (key, amount, value) = (next.bytes()?, next.integer()?, next.bytes()?);
    if amount <= 0 {
        return Err(invalid_expire(spec));
    }
    let deadline = Deadline::New(NewDeadline::In(millis(spec, amount, unit)?));
    Ok(write(set(key, value, Condition::Always, deadline, SetAnswer::Ok)))
}

fn expire(
    next: &mut Arguments,
    spec: &Spec,
    unit: i64,
    deadline: impl FnOnce(i64) -> NewDeadline,
) -> Result<Command, Reply> {
    let (key, amount) = (next.bytes()?, next.integer()?);
    let mut condition = ExpireCondition::default();
    while !next.is_empty() {
        let word = next.next()?;
        match word.to_ascii_uppercase().as_slice() {
            b"NX" => condition.none = true,
            b"XX" => condition.some = true,
            b"GT" => condition.later = true,
            b"LT" => condition.earlier = true,
            _ => return Err(Reply::error(format!("ERR Unsupported option {}", String::from_utf8_lossy(word)))),
        }
    }
    if condition.none && (condition.some || condition.later || condition.earlier) {
        return Err(Reply::error("ERR NX and XX, GT or LT options at the same time are not compatible"));
    }
    if condition.later && condition.earlier {
        return Err(Reply::error("ERR GT and LT options at the same time are not compatible"));
    }
    let deadline = deadline(millis(spec, amount, unit)?);
    Ok(write(Operation::Expire { key, deadline, condition }))
}

/// `KVD.CAS key IF value|IFABSENT SET value|DEL`.
fn cas(next: &mut Arguments) -> Result<Command, Reply> {
    let key = next.bytes()?;
    let expected = match &next.word()?[..] {
        b"IF" => Some(next.bytes()?),
        b"IFABSENT" => None,
        _ => return Err(Reply::error(SYNTAX)),
    };
    let new = match &next.word()?[..] {
        b"SET" => Some(next.bytes()?),
        b"DEL" => None,
        _ => return Err(Reply::error(SYNTAX)),
    };
    Ok(write(Operation::Swap { key, expected, new }))
}

/// `KVD.RANGE start end [COUNT n] [VALUES]`.
fn range(next: &mut Arguments) -> Result<Command, Reply> {
    let (start, end) = (next.bytes()?, next.bytes()?);
    let (mut limit, mut values) = (DEFAULT_RANGE, false);
    while !next.is_empty() {
        match &next.word()?[..] {
            b"COUNT" => limit = count(next.integer()?, MAX_RANGE)?,
            b"VALUES" => values = true,
            _ => return Err(Reply::error(SYNTAX)),
        }
    }
    Ok(Command::Read(Query::Range { start, end, limit, values }))
}

/// A number of things, at least one; more than `most` counts as `most`.
fn count(number: i64, most: i64) -> Result<u32, Reply> {
    if number < 1 {
        return Err(Reply::error(SYNTAX));
    }
    u32::try_from(number.min(most)).map_err(|_| Reply::error(SYNTAX))
}

fn scan(next: &mut Arguments) -> Result<Command, Reply> {
    let cursor = std::str::from_utf8(next.next()?).ok().and_then(|cursor| cursor.parse().ok());
    let from = cursor.ok_or(Reply::error("ERR invalid cursor"))?;
    let (mut limit, mut pattern, mut any) = (DEFAULT_SCAN, None, true);
    while !next.is_empty() {
        match &next.word()?[..] {
            b"COUNT" => limit = count(next.integer()?, MAX_SCAN)?,
            b"MATCH" => pattern = Some(next.bytes()?),
            b"TYPE" => any &= next.word()? == b"STRING",
            _ => return Err(Reply::error(SYNTAX)),
        }
    }
    Ok(Command::Scan { from, count: limit, pattern, any })
}

fn hello(next: &mut Arguments) -> Result<Command, Reply> {
    let mut version = None;
    if !next.is_empty() {
        let word = next.next()?;
        version = match parse_integer(word) {
            Some(2) => Some(2),
            Some(3) => Some(3),
            Some(_) => return Err(Reply::error("NOPROTO unsupported protocol version")),
            None => return Err(Reply::error("ERR Protocol version is not an integer or out of range")),
        };
    }
    let (mut auth, mut name) = (None, None);
    while !next.is_empty() {
        let word = next.next()?;
        match word.to_ascii_uppercase().as_slice() {
            b"AUTH" => auth = Some((next.bytes()?, next.bytes()?)),
            b"SETNAME" => name = Some(connection_name(next.bytes()?)?),
            _ => {
                let word = String::from_utf8_lossy(&word[..word.len().min(128)]);
                return Err(Reply::error(format!("ERR Syntax error in HELLO option '{word}'")));
            }
        }
    }
    Ok(Command::Hello { version, auth, name })
}

fn connection_name(name: Bytes) -> Result<Bytes, Reply> {
    const MAX_NAME_LEN: usize = 128;
    if name.len() > MAX_NAME_LEN || !name.iter().all(u8::is_ascii_graphic) {
        return Err(Reply::error("ERR Client names cannot contain spaces, newlines or special characters."));
    }
    Ok(name)
}

fn client(next: &mut Arguments, spec: &Spec) -> Result<Command, Reply> {
    let word = next.next()?;
    Ok(Command::Client(match (word.to_ascii_uppercase().as_slice(), next.rest()) {
        (b"ID", []) => Client::Id,
        (b"GETNAME", []) => Client::GetName,
        (b"INFO", []) => Client::Info,
        (b"SETNAME", [name]) => Client::SetName(connection_name(name.clone())?),
        (b"SETINFO", [_, _]) | (b"NO-EVICT" | b"NO-TOUCH", [_]) => Client::Ignore,
        (b"ID" | b"GETNAME" | b"INFO" | b"SETNAME" | b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH", _) => {
            return Err(wrong_count(&format!("client|{}", String::from_utf8_lossy(word).to_lowercase())));
        }
        _ => return Err(unknown_subcommand(spec.name, word)),
    }))
}

fn cluster(next: &mut Arguments, spec: &Spec) -> Result<Command, Reply> {
    let word = next.next()?;
    Ok(Command::Cluster(match (word.to_ascii_uppercase().as_slice(), next.rest()) {
        (b"INFO", []) => Cluster::Info,
        (b"MYID", []) => Cluster::MyId,
        (b"NODES", []) => Cluster::Nodes,
        (b"SHARDS", []) => Cluster::Shards,
        (b"SLOTS", []) => Cluster::Slots,
        (b"KEYSLOT", [key]) => return Ok(Command::Answer(Reply::Integer(i64::from(slot_of(key))))),
        (b"COUNTKEYSINSLOT", [slot]) => {
            let slot = u16::try_from(number(slot)?).ok().filter(|slot| *slot < SLOTS);
            Cluster::CountKeysInSlot(slot.ok_or(Reply::error("ERR Invalid slot"))?)
        }
        (b"INFO" | b"MYID" | b"NODES" | b"SHARDS" | b"SLOTS" | b"KEYSLOT" | b"COUNTKEYSINSLOT", _) => {
            return Err(wrong_count(&format!("cluster|{}", String::from_utf8_lossy(word).to_lowercase())));
        }
        _ => return Err(unknown_subcommand(spec.name, word)),
    }))
}

fn commands(next: &mut Arguments, spec: &Spec) -> Result<Command, Reply> {
    if next.is_empty() {
        return Ok(Command::Commands(Commands::Info(None)));
    }
    let word = next.next()?;
    Ok(Command::Commands(match (word.to_ascii_uppercase().as_slice(), next.rest()) {
        (b"COUNT", []) => Commands::Count,
        (b"LIST", []) => Commands::List,
        (b"INFO", []) => Commands::Info(None),
        (b"INFO", names) => Commands::Info(Some(names.to_vec())),
        (b"DOCS", names) => Commands::Docs(names.to_vec()),
        (b"GETKEYS", words @ [_, ..]) => Commands::GetKeys(words.to_vec()),
        (b"COUNT" | b"LIST" | b"GETKEYS", _) => {
            return Err(wrong_count(&format!("command|{}", String::from_utf8_lossy(word).to_lowercase())));
        }
        _ => return Err(unknown_subcommand(spec.name, word)),
    }))
}
