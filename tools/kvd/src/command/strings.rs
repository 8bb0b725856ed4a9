//! Commands for values.

use bytes::Bytes;

use super::Command;
use super::arguments::{Arguments, SYNTAX};
use super::keys::{EX, PX, Scale, deadline, new_deadline};
use super::spec::Spec;
use crate::machine::{Condition, Deadline, Decimal, LcsAnswer, MAX_VALUE_LEN, Operation, Query, Reply, SetAnswer};

type Parsed = Result<Command, Reply>;

fn write(operation: Operation) -> Parsed {
    Ok(Command::Write(operation))
}

fn read(query: Query) -> Parsed {
    Ok(Command::Read(query))
}

pub(super) fn get(next: &mut Arguments, _: &Spec) -> Parsed {
    read(Query::Get(next.bytes()?))
}

pub(super) fn mget(next: &mut Arguments, _: &Spec) -> Parsed {
    read(Query::GetMany(next.rest().to_vec()))
}

pub(super) fn strlen(next: &mut Arguments, _: &Spec) -> Parsed {
    read(Query::Length(next.bytes()?))
}

pub(super) fn getrange(next: &mut Arguments, _: &Spec) -> Parsed {
    read(Query::Part { key: next.bytes()?, start: next.integer()?, end: next.integer()? })
}

pub(super) fn lcs(next: &mut Arguments, _: &Spec) -> Parsed {
    let (a, b) = (next.bytes()?, next.bytes()?);
    let mut answer = LcsAnswer::default();
    while !next.is_empty() {
        match &next.word()?[..] {
            b"LEN" => answer.len = true,
            b"IDX" => answer.positions = true,
            b"WITHMATCHLEN" => answer.lengths = true,
            b"MINMATCHLEN" => answer.least = u64::try_from(next.integer()?).unwrap_or(0),
            _ => return Err(Reply::error(SYNTAX)),
        }
    }
    if answer.len && answer.positions {
        return Err(Reply::error("ERR If you want both the length and indexes, please just use IDX."));
    }
    read(Query::Lcs { a, b, answer })
}

pub(super) fn append(next: &mut Arguments, _: &Spec) -> Parsed {
    write(Operation::Append { key: next.bytes()?, suffix: next.bytes()? })
}

pub(super) fn setrange(next: &mut Arguments, _: &Spec) -> Parsed {
    let (key, offset, part) = (next.bytes()?, next.integer()?, next.bytes()?);
    let Ok(offset) = u64::try_from(offset) else { return Err(Reply::error("ERR offset is out of range")) };
    if !part.is_empty() && offset.saturating_add(part.len() as u64) > MAX_VALUE_LEN as u64 {
        return Err(Reply::error("ERR string exceeds maximum allowed size (proto-max-bulk-len)"));
    }
    write(Operation::Overwrite { key, offset, part })
}

fn add(key: Bytes, delta: i64) -> Parsed {
    write(Operation::Add { key, delta })
}

pub(super) fn incr(next: &mut Arguments, _: &Spec) -> Parsed {
    add(next.bytes()?, 1)
}

pub(super) fn decr(next: &mut Arguments, _: &Spec) -> Parsed {
    add(next.bytes()?, -1)
}

pub(super) fn incrby(next: &mut Arguments, _: &Spec) -> Parsed {
    add(next.bytes()?, next.integer()?)
}

pub(super) fn decrby(next: &mut Arguments, _: &Spec) -> Parsed {
    let key = next.bytes()?;
    let delta = next.integer()?.checked_neg();
    add(key, delta.ok_or(Reply::error("ERR decrement would overflow"))?)
}

pub(super) fn incrbyfloat(next: &mut Arguments, _: &Spec) -> Parsed {
    let (key, delta) = (next.bytes()?, next.next()?);
    if matches!(
        delta.trim_ascii_start().strip_prefix(b"+").unwrap_or(delta).to_ascii_lowercase().as_slice(),
        b"inf" | b"-inf" | b"infinity" | b"-infinity"
    ) {
        return Err(Reply::error("ERR increment would produce NaN or Infinity"));
    }
    let delta = Decimal::parse(delta).ok_or(Reply::error("ERR value is not a valid float"))?;
    write(Operation::AddDecimal { key, delta })
}

fn set_always(key: Bytes, value: Bytes, condition: Condition, deadline: Deadline, answer: SetAnswer) -> Parsed {
    write(Operation::Set { key, value, condition, deadline, answer })
}

pub(super) fn set(next: &mut Arguments, spec: &Spec) -> Parsed {
    let (key, value) = (next.bytes()?, next.bytes()?);
    let (mut condition, mut deadline, mut answer) = (None, None, SetAnswer::Ok);
    while !next.is_empty() {
        let word = next.word()?;
        match &word[..] {
            b"NX" if condition.is_none() => condition = Some(Condition::IfAbsent),
            b"XX" if condition.is_none() => condition = Some(Condition::IfPresent),
            b"IFEQ" if condition.is_none() => condition = Some(Condition::IfEqual(next.bytes()?)),
            b"GET" => answer = SetAnswer::Old,
            b"KEEPTTL" if deadline.is_none() => deadline = Some(Deadline::Keep),
            option if deadline.is_none() => {
                deadline = Some(Deadline::New(new_deadline(option, next, spec)?.ok_or(Reply::error(SYNTAX))?));
            }
            _ => return Err(Reply::error(SYNTAX)),
        }
    }
    let (condition, deadline) = (condition.unwrap_or(Condition::Always), deadline.unwrap_or(Deadline::None));
    set_always(key, value, condition, deadline, answer)
}

pub(super) fn getset(next: &mut Arguments, _: &Spec) -> Parsed {
    set_always(next.bytes()?, next.bytes()?, Condition::Always, Deadline::None, SetAnswer::Old)
}

pub(super) fn setnx(next: &mut Arguments, _: &Spec) -> Parsed {
    set_always(next.bytes()?, next.bytes()?, Condition::IfAbsent, Deadline::None, SetAnswer::Integer)
}

fn set_expiring(next: &mut Arguments, spec: &Spec, scale: Scale) -> Parsed {
    let (key, amount, value) = (next.bytes()?, next.integer()?, next.bytes()?);
    let deadline = Deadline::New(deadline(spec, amount, scale, 1)?);
    set_always(key, value, Condition::Always, deadline, SetAnswer::Ok)
}

pub(super) fn setex(next: &mut Arguments, spec: &Spec) -> Parsed {
    set_expiring(next, spec, EX)
}

pub(super) fn psetex(next: &mut Arguments, spec: &Spec) -> Parsed {
    set_expiring(next, spec, PX)
}

pub(super) fn getdel(next: &mut Arguments, _: &Spec) -> Parsed {
    write(Operation::Take(next.bytes()?))
}

pub(super) fn getex(next: &mut Arguments, spec: &Spec) -> Parsed {
    let key = next.bytes()?;
    if next.is_empty() {
        return read(Query::Get(key));
    }
    let deadline = match &next.word()?[..] {
        b"PERSIST" => None,
        option => Some(new_deadline(option, next, spec)?.ok_or(Reply::error(SYNTAX))?),
    };
    write(Operation::GetExpiring { key, deadline })
}

pub(super) fn mset(next: &mut Arguments, spec: &Spec) -> Parsed {
    write(Operation::SetMany(spec.pairs(next)?))
}

pub(super) fn msetnx(next: &mut Arguments, spec: &Spec) -> Parsed {
    write(Operation::SetManyIfAbsent(spec.pairs(next)?))
}

/// `DELIFEQ key value`.
pub(super) fn delifeq(next: &mut Arguments, _: &Spec) -> Parsed {
    write(Operation::Swap { key: next.bytes()?, expected: Some(next.bytes()?), new: None })
}

/// `KVD.CAS key IF value|IFABSENT SET value|DEL`.
pub(super) fn cas(next: &mut Arguments, _: &Spec) -> Parsed {
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
    write(Operation::Swap { key, expected, new })
}
