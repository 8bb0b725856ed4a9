//! Commands for keys, whatever their values are.

use super::arguments::{Arguments, SYNTAX};
use super::spec::Spec;
use super::{Command, Led};
use crate::machine::{ExpireCondition, NewDeadline, Operation, Query, Reply, SLOTS};

type Parsed = Result<Command, Reply>;

/// Longest time from now, in milliseconds: until the year 2500, the deadline is a 64-bit number.
const MAX_MILLIS: i64 = i64::MAX - (1 << 44);

/// Most entries that KVD.RANGE answers, and the number if none is given.
const MAX_RANGE: i64 = 10_000;
const DEFAULT_RANGE: u32 = 1000;

/// Most keys that one SCAN looks at, and the number if none is given.
const MAX_SCAN: i64 = 100_000;
const DEFAULT_SCAN: u32 = 10;

fn write(operation: Operation) -> Parsed {
    Ok(Command::Write(operation))
}

fn read(query: Query) -> Parsed {
    Ok(Command::Read(query))
}

/// How a deadline is given: in which unit, in milliseconds, and from when it counts.
#[derive(Clone, Copy)]
pub(super) struct Scale(pub(super) i64, pub(super) fn(i64) -> NewDeadline);

pub(super) const EX: Scale = Scale(1000, NewDeadline::In);
pub(super) const PX: Scale = Scale(1, NewDeadline::In);
const EXAT: Scale = Scale(1000, NewDeadline::At);
const PXAT: Scale = Scale(1, NewDeadline::At);

/// A deadline that is given as a number, at least `least`.
pub(super) fn deadline(spec: &Spec, amount: i64, scale: Scale, least: i64) -> Result<NewDeadline, Reply> {
    let Scale(unit, new) = scale;
    let deadline = amount.checked_mul(unit).filter(|_| amount >= least).map(new);
    deadline
        .filter(|deadline| !matches!(deadline, NewDeadline::In(millis) if *millis > MAX_MILLIS))
        .ok_or_else(|| Reply::error(format!("ERR invalid expire time in '{}' command", spec.name)))
}

/// The deadline that an option of SET or GETEX gives. `None`: it is another option.
pub(super) fn new_deadline(option: &[u8], next: &mut Arguments, spec: &Spec) -> Result<Option<NewDeadline>, Reply> {
    let scale = match option {
        b"EX" => EX,
        b"PX" => PX,
        b"EXAT" => EXAT,
        b"PXAT" => PXAT,
        _ => return Ok(None),
    };
    Ok(Some(deadline(spec, next.integer()?, scale, 1)?))
}

pub(super) fn del(next: &mut Arguments, _: &Spec) -> Parsed {
    write(Operation::Delete(next.rest().to_vec()))
}

pub(super) fn exists(next: &mut Arguments, _: &Spec) -> Parsed {
    read(Query::Exists(next.rest().to_vec()))
}

pub(super) fn persist(next: &mut Arguments, _: &Spec) -> Parsed {
    write(Operation::Persist(next.bytes()?))
}

fn expire_by(next: &mut Arguments, spec: &Spec, scale: Scale) -> Parsed {
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
    let deadline = deadline(spec, amount, scale, i64::MIN)?;
    write(Operation::Expire { key, deadline, condition })
}

pub(super) fn expire(next: &mut Arguments, spec: &Spec) -> Parsed {
    expire_by(next, spec, EX)
}

pub(super) fn expireat(next: &mut Arguments, spec: &Spec) -> Parsed {
    expire_by(next, spec, EXAT)
}

pub(super) fn pexpire(next: &mut Arguments, spec: &Spec) -> Parsed {
    expire_by(next, spec, PX)
}

pub(super) fn pexpireat(next: &mut Arguments, spec: &Spec) -> Parsed {
    expire_by(next, spec, PXAT)
}

pub(super) fn ttl(next: &mut Arguments, _: &Spec) -> Parsed {
    read(Query::SecondsLeft(next.bytes()?))
}

pub(super) fn pttl(next: &mut Arguments, _: &Spec) -> Parsed {
    read(Query::MillisLeft(next.bytes()?))
}

pub(super) fn expiretime(next: &mut Arguments, _: &Spec) -> Parsed {
    read(Query::Deadline { key: next.bytes()?, seconds: true })
}

pub(super) fn pexpiretime(next: &mut Arguments, _: &Spec) -> Parsed {
    read(Query::Deadline { key: next.bytes()?, seconds: false })
}

pub(super) fn type_of(next: &mut Arguments, _: &Spec) -> Parsed {
    read(Query::Type(next.bytes()?))
}

pub(super) fn rename(next: &mut Arguments, _: &Spec) -> Parsed {
    write(Operation::Copy { from: next.bytes()?, to: next.bytes()?, replace: true, keep: false })
}

pub(super) fn renamenx(next: &mut Arguments, _: &Spec) -> Parsed {
    write(Operation::Copy { from: next.bytes()?, to: next.bytes()?, replace: false, keep: false })
}

pub(super) fn copy(next: &mut Arguments, _: &Spec) -> Parsed {
    let (from, to) = (next.bytes()?, next.bytes()?);
    let mut replace = false;
    while !next.is_empty() {
        match &next.word()?[..] {
            b"REPLACE" => replace = true,
            b"DB" if next.integer()? == 0 => {}
            b"DB" => return Err(Reply::error("ERR DB index is out of range")),
            _ => return Err(Reply::error(SYNTAX)),
        }
    }
    if from == to {
        return Err(Reply::error("ERR source and destination objects are the same"));
    }
    write(Operation::Copy { from, to, replace, keep: true })
}

pub(super) fn move_to(next: &mut Arguments, _: &Spec) -> Parsed {
    next.rest();
    Err(Reply::error("ERR MOVE is not allowed in cluster mode"))
}

pub(super) fn encoding(next: &mut Arguments, _: &Spec) -> Parsed {
    read(Query::Encoding(next.bytes()?))
}

pub(super) fn object_use(next: &mut Arguments, _: &Spec) -> Parsed {
    next.rest();
    Err(Reply::error("ERR kvd does not record when or how often keys are read, nor does it share values"))
}

/// `MEMORY USAGE key [SAMPLES count]`.
pub(super) fn usage(next: &mut Arguments, _: &Spec) -> Parsed {
    let key = next.bytes()?;
    while !next.is_empty() {
        match &next.word()?[..] {
            b"SAMPLES" => next.number()?,
            _ => return Err(Reply::error(SYNTAX)),
        };
    }
    read(Query::Usage(key))
}

/// `KVD.RANGE start end [COUNT n] [VALUES]`.
pub(super) fn range(next: &mut Arguments, _: &Spec) -> Parsed {
    let (start, end) = (next.bytes()?, next.bytes()?);
    let (mut limit, mut values) = (DEFAULT_RANGE, false);
    while !next.is_empty() {
        match &next.word()?[..] {
            b"COUNT" => limit = count(next.integer()?, MAX_RANGE)?,
            b"VALUES" => values = true,
            _ => return Err(Reply::error(SYNTAX)),
        }
    }
    read(Query::Range { start, end, limit, values })
}

/// A number of things, at least one; more than `most` counts as `most`.
fn count(number: i64, most: i64) -> Result<u32, Reply> {
    if number < 1 {
        return Err(Reply::error(SYNTAX));
    }
    u32::try_from(number.min(most)).map_err(|_| Reply::error(SYNTAX))
}

pub(super) fn scan(next: &mut Arguments, _: &Spec) -> Parsed {
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
    Ok(Command::Led(Led::Scan { from, count: limit, pattern, any }))
}

pub(super) fn dbsize(_: &mut Arguments, _: &Spec) -> Parsed {
    Ok(Command::Led(Led::Size))
}

pub(super) fn keys(next: &mut Arguments, _: &Spec) -> Parsed {
    Ok(Command::Led(Led::Keys(next.bytes()?)))
}

pub(super) fn randomkey(_: &mut Arguments, _: &Spec) -> Parsed {
    Ok(Command::Led(Led::Random))
}

/// `FLUSHALL [ASYNC|SYNC]`.
pub(super) fn flush(next: &mut Arguments, _: &Spec) -> Parsed {
    if !next.is_empty() && !matches!(&next.word()?[..], b"ASYNC" | b"SYNC") {
        return Err(Reply::error(SYNTAX));
    }
    Ok(Command::Led(Led::Clear))
}

/// `CLUSTER GETKEYSINSLOT slot count`.
pub(super) fn keys_in_slot(next: &mut Arguments, _: &Spec) -> Parsed {
    let (first, limit) = (next.slot()?, next.integer()?);
    let limit = u64::try_from(limit).map_err(|_| Reply::error("ERR Invalid number of keys"))?;
    read(Query::Keys { first, end: (first + 1).min(SLOTS), pattern: None, limit })
}

/// `CLUSTER COUNTKEYSINSLOT slot`.
pub(super) fn count_keys_in_slot(next: &mut Arguments, _: &Spec) -> Parsed {
    read(Query::SlotSize(next.slot()?))
}
