//! Commands for bits of values.

use super::Command;
use super::arguments::{Arguments, SYNTAX};
use super::spec::Spec;
use crate::machine::{
    BitField, BitOperator, FieldAction, MAX_VALUE_LEN, Operation, Overflow, Query, Reply, Span, parse_integer,
};

type Parsed = Result<Command, Reply>;

const OFFSET: &str = "ERR bit offset is not an integer or out of range";

/// The first bit of a field, which must be within the longest value. With `#`, fields are counted.
fn offset(word: &[u8], unit: u8) -> Result<u64, Reply> {
    let (digits, unit) = match word.strip_prefix(b"#") {
        Some(digits) if unit > 0 => (digits, u64::from(unit)),
        _ => (word, 1),
    };
    let offset = parse_integer(digits).and_then(|offset| u64::try_from(offset).ok()?.checked_mul(unit));
    offset.filter(|offset| *offset < MAX_VALUE_LEN as u64 * 8).ok_or(Reply::error(OFFSET))
}

fn single(next: &mut Arguments) -> Result<(bytes::Bytes, BitField), Reply> {
    let (key, offset) = (next.bytes()?, offset(next.next()?, 0)?);
    Ok((key, BitField { offset, bits: 1, signed: false, action: FieldAction::Get }))
}

fn bit(next: &mut Arguments, error: &'static str) -> Result<bool, Reply> {
    match parse_integer(next.next()?) {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => Err(Reply::error(error)),
    }
}

pub(super) fn getbit(next: &mut Arguments, _: &Spec) -> Parsed {
    let (key, field) = single(next)?;
    Ok(Command::Read(Query::Bits { key, fields: vec![field], single: true }))
}

pub(super) fn setbit(next: &mut Arguments, _: &Spec) -> Parsed {
    let (key, mut field) = single(next)?;
    let on = bit(next, "ERR bit is not an integer or out of range")?;
    field.action = FieldAction::Set(i64::from(on), Overflow::Wrap);
    Ok(Command::Write(Operation::Bits { key, fields: vec![field], single: true }))
}

/// `BITFIELD key [GET type offset | [OVERFLOW WRAP|SAT|FAIL] SET type offset value |
/// INCRBY type offset increment] ...`
pub(super) fn bitfield(next: &mut Arguments, _: &Spec) -> Parsed {
    let key = next.bytes()?;
    let (mut fields, mut overflow) = (Vec::new(), Overflow::default());
    while !next.is_empty() {
        let action = next.word()?;
        if action == b"OVERFLOW" {
            overflow = match &next.word()?[..] {
                b"WRAP" => Overflow::Wrap,
                b"SAT" => Overflow::Saturate,
                b"FAIL" => Overflow::Fail,
                _ => return Err(Reply::error("ERR Invalid OVERFLOW type specified")),
            };
            continue;
        }
        if !matches!(&action[..], b"GET" | b"SET" | b"INCRBY") {
            return Err(Reply::error(SYNTAX));
        }
        let (signed, bits) = field_type(next.next()?)?;
        let offset = offset(next.next()?, bits)?;
        let action = match &action[..] {
            b"GET" => FieldAction::Get,
            b"SET" => FieldAction::Set(next.integer()?, overflow),
            _ => FieldAction::Add(next.integer()?, overflow),
        };
        fields.push(BitField { offset, bits, signed, action });
    }
    Ok(if fields.iter().any(BitField::writes) {
        Command::Write(Operation::Bits { key, fields, single: false })
    } else {
        Command::Read(Query::Bits { key, fields, single: false })
    })
}

pub(super) fn bitfield_ro(next: &mut Arguments, spec: &Spec) -> Parsed {
    match bitfield(next, spec)? {
        Command::Write(_) => Err(Reply::error("ERR BITFIELD_RO only supports the GET subcommand")),
        read => Ok(read),
    }
}

fn field_type(word: &[u8]) -> Result<(bool, u8), Reply> {
    let (signed, most, digits) = match word.split_first() {
        Some((b'i' | b'I', digits)) => (true, 64, digits),
        Some((b'u' | b'U', digits)) => (false, 63, digits),
        _ => (true, 0, word),
    };
    let bits = parse_integer(digits).and_then(|bits| u8::try_from(bits).ok()).filter(|bits| (1..=most).contains(bits));
    bits.map(|bits| (signed, bits)).ok_or(Reply::error(
        "ERR Invalid bitfield type. Use something like i16 u8. \
         Note that u64 is not supported but i64 is.",
    ))
}

fn unit(next: &mut Arguments) -> Result<bool, Reply> {
    if next.is_empty() {
        return Ok(false);
    }
    match &next.word()?[..] {
        b"BIT" => Ok(true),
        b"BYTE" => Ok(false),
        _ => Err(Reply::error(SYNTAX)),
    }
}

/// `BITCOUNT key [start end [BYTE|BIT]]`.
pub(super) fn bitcount(next: &mut Arguments, _: &Spec) -> Parsed {
    let key = next.bytes()?;
    let mut span = Span { start: 0, end: None, bits: false };
    if !next.is_empty() {
        let (start, end) = (next.next()?, next.next()?);
        let number = |word: &[u8]| parse_integer(word).ok_or(Reply::error(super::arguments::NOT_AN_INTEGER));
        span = Span { start: number(start)?, end: Some(number(end)?), bits: unit(next)? };
    }
    Ok(Command::Read(Query::BitCount { key, span }))
}

/// `BITPOS key bit [start [end [BYTE|BIT]]]`.
pub(super) fn bitpos(next: &mut Arguments, _: &Spec) -> Parsed {
    let (key, set) = (next.bytes()?, bit(next, "ERR The bit argument must be 1 or 0.")?);
    let start = if next.is_empty() { 0 } else { next.integer()? };
    let end = if next.is_empty() { None } else { Some(next.integer()?) };
    let span = Span { start, end, bits: unit(next)? };
    Ok(Command::Read(Query::BitPosition { key, set, span }))
}

/// `BITOP AND|OR|XOR|NOT destination key ...`
pub(super) fn bitop(next: &mut Arguments, _: &Spec) -> Parsed {
    let operator = match &next.word()?[..] {
        b"AND" => BitOperator::And,
        b"OR" => BitOperator::Or,
        b"XOR" => BitOperator::Xor,
        b"NOT" => BitOperator::Not,
        _ => return Err(Reply::error(SYNTAX)),
    };
    let (to, from) = (next.bytes()?, next.rest().to_vec());
    if operator == BitOperator::Not && from.len() != 1 {
        return Err(Reply::error("ERR BITOP NOT must be called with a single source key."));
    }
    Ok(Command::Write(Operation::Combine { to, operator, from }))
}
