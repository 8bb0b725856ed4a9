//! What operations do, and what they answer. Texts are those of Redis.

use super::bits::{BitOperator, combine, replies};
use super::decimal::Decimal;
use super::error::Stop;
use super::layout::Header;
use super::reply::Reply;
use super::request::{Condition, Deadline, ExpireCondition, MAX_VALUE_LEN, NewDeadline, Operation, SetAnswer};
use super::view::Pending;

const TOO_LONG: Reply =
    Reply::Error(std::borrow::Cow::Borrowed("ERR string exceeds maximum allowed size (proto-max-bulk-len)"));
const NOT_AN_INTEGER: Reply = Reply::Error(std::borrow::Cow::Borrowed("ERR value is not an integer or out of range"));

/// Applies one operation.
pub(super) fn run(pending: &mut Pending, operation: &Operation) -> Result<Reply, Stop> {
    match operation {
        Operation::Set { key, value, condition, deadline, answer } => {
            set(pending, key, value, condition, *deadline, *answer)
        }
        Operation::SetMany(pairs) => {
            set_many(pending, pairs)?;
            Ok(Reply::OK)
        }
        Operation::SetManyIfAbsent(pairs) => {
            for (key, _) in pairs {
                if pending.live(key, |_, _| ())?.is_some() {
                    return Ok(Reply::Integer(0));
                }
            }
            set_many(pending, pairs)?;
            Ok(Reply::Integer(1))
        }
        Operation::Delete(keys) => {
            let mut deleted = 0;
            for key in keys {
                deleted += i64::from(pending.live(key, |_, _| ())?.is_some());
                pending.remove(key)?;
            }
            Ok(Reply::Integer(deleted))
        }
        Operation::Take(key) => {
            let old = pending.live(key, |_, value| Reply::bulk(value))?;
            pending.remove(key)?;
            Ok(old.unwrap_or(Reply::Nil))
        }
        Operation::Add { key, delta } => add(pending, key, *delta),
        Operation::AddDecimal { key, delta } => add_decimal(pending, key, *delta),
        Operation::Append { key, suffix } => overwrite(pending, key, None, suffix),
        Operation::Overwrite { key, offset, part } => overwrite(pending, key, Some(*offset), part),
        Operation::Bits { key, fields, single } => pending.edit(key, |value, _| {
            let end = fields.iter().filter(|field| field.writes()).map(|field| field.end()).max().unwrap_or(0);
            if end > MAX_VALUE_LEN {
                return Err(TOO_LONG);
            }
            value.resize(value.len().max(end), 0);
            Ok(replies(fields, *single, |field| field.apply(value)))
        }),
        Operation::Combine { to, operator, from } => combine_values(pending, to, *operator, from),
        Operation::Copy { from, to, replace, keep } => copy(pending, from, to, *replace, *keep),
        Operation::Clear => {
            pending.clear();
            Ok(Reply::OK)
        }
        Operation::GetExpiring { key, deadline } => {
            let deadline_ms = deadline.map(|deadline| resolve(pending, deadline));
            let Some(value) = pending.live(key, |_, value| pending.copy(key, value))?.transpose()? else {
                return Ok(Reply::Nil);
            };
            pending.put(key, &[&value], deadline_ms)?;
            Ok(Reply::Bulk(value))
        }
        Operation::Expire { key, deadline, condition } => expire(pending, key, *deadline, *condition),
        Operation::Persist(key) => {
            let copy = |header: Header, value: &[u8]| {
                header.deadline_ms.is_some().then(|| pending.copy(key, value)).transpose()
            };
            let Some(value) = pending.live(key, copy)?.transpose()?.flatten() else { return Ok(Reply::Integer(0)) };
            pending.put(key, &[&value], None)?;
            Ok(Reply::Integer(1))
        }
        Operation::Swap { key, expected, new } => {
            let equal = pending.live(key, |_, value| expected.as_deref() == Some(value))?;
            if !equal.unwrap_or(expected.is_none()) {
                return Ok(Reply::Integer(0));
            }
            match new {
                Some(value) => pending.put(key, &[value], None)?,
                None => pending.remove(key)?,
            }
            Ok(Reply::Integer(1))
        }
    }
}

/// A deadline as a time of the log. One before 1970 is past, as is the moment itself.
fn resolve(pending: &Pending, deadline: NewDeadline) -> u64 {
    let now = i64::try_from(pending.counters.time_ms).unwrap_or(i64::MAX);
    let at = match deadline {
        NewDeadline::In(millis) => now.saturating_add(millis),
        NewDeadline::At(at) => at.saturating_add(pending.counters.ahead_ms),
    };
    u64::try_from(at).unwrap_or(0)
}

fn set(
    pending: &mut Pending,
    key: &[u8],
    value: &[u8],
    condition: &Condition,
    deadline: Deadline,
    answer: SetAnswer,
) -> Result<Reply, Stop> {
    let old = pending.live(key, |header, value| {
        let holds = match condition {
            Condition::Always | Condition::IfPresent => true,
            Condition::IfAbsent => false,
            Condition::IfEqual(expected) => expected == value,
        };
        (holds, header.deadline_ms, (answer == SetAnswer::Old).then(|| Reply::bulk(value)))
    })?;
    let absent = (matches!(condition, Condition::Always | Condition::IfAbsent), None, None);
    let (holds, old_deadline, old_value) = old.unwrap_or(absent);
    if holds {
        let deadline_ms = match deadline {
            Deadline::None => None,
            Deadline::Keep => old_deadline,
            Deadline::New(deadline) => Some(resolve(pending, deadline)),
        };
        pending.put(key, &[value], deadline_ms)?;
    }
    Ok(match answer {
        SetAnswer::Old => old_value.unwrap_or(Reply::Nil),
        SetAnswer::Integer => Reply::Integer(i64::from(holds)),
        SetAnswer::Ok if holds => Reply::OK,
        SetAnswer::Ok => Reply::Nil,
    })
}

fn add(pending: &mut Pending, key: &[u8], delta: i64) -> Result<Reply, Stop> {
    let old = pending.live(key, |header, value| (header.deadline_ms, parse_integer(value)))?;
    let (deadline_ms, old) = old.unwrap_or((None, Some(0)));
    let Some(old) = old else { return Ok(NOT_AN_INTEGER) };
    let Some(sum) = old.checked_add(delta) else {
        return Ok(Reply::error("ERR increment or decrement would overflow"));
    };
    pending.put(key, &[sum.to_string().as_bytes()], deadline_ms)?;
    Ok(Reply::Integer(sum))
}

fn set_many(pending: &mut Pending, pairs: &[(bytes::Bytes, bytes::Bytes)]) -> Result<(), Stop> {
    pairs.iter().try_for_each(|(key, value)| pending.put(key, &[value], None))
}

fn add_decimal(pending: &mut Pending, key: &[u8], delta: Decimal) -> Result<Reply, Stop> {
    pending.edit(key, |value, present| {
        let old = Decimal::parse(if present { value } else { b"0" });
        let Some(old) = old else { return Err(Reply::error("ERR value is not a valid float")) };
        let Some(sum) = old.plus(delta) else {
            return Err(Reply::error("ERR increment would produce NaN or Infinity"));
        };
        *value = sum.to_string().into_bytes();
        Ok(Reply::bulk(&value))
    })
}

/// Writes a part of a value, at its end if there is no offset. Answers the length.
fn overwrite(pending: &mut Pending, key: &[u8], offset: Option<u64>, part: &[u8]) -> Result<Reply, Stop> {
    pending.edit(key, |value, _| {
        if part.is_empty() && offset.is_some() {
            return Err(Reply::count(value.len()));
        }
        let start = offset.map_or(value.len(), |offset| usize::try_from(offset).unwrap_or(usize::MAX));
        let end = start.saturating_add(part.len());
        if end > MAX_VALUE_LEN {
            return Err(TOO_LONG);
        }
        value.resize(value.len().max(end), 0);
        value[start..end].copy_from_slice(part);
        Ok(Reply::count(value.len()))
    })
}

fn combine_values(
    pending: &mut Pending,
    to: &[u8],
    operator: BitOperator,
    from: &[bytes::Bytes],
) -> Result<Reply, Stop> {
    let mut combined = Vec::new();
    for (index, key) in from.iter().enumerate() {
        let found = pending.live(key, |_, value| combine(&mut combined, operator, value, index == 0))?;
        if found.is_none() {
            combine(&mut combined, operator, &[], index == 0);
        }
    }
    if combined.is_empty() {
        pending.remove(to)?;
    } else {
        pending.put(to, &[&combined], None)?;
    }
    Ok(Reply::count(combined.len()))
}

fn copy(pending: &mut Pending, from: &[u8], to: &[u8], replace: bool, keep: bool) -> Result<Reply, Stop> {
    let copied = pending.live(from, |header, value| pending.copy(from, value).map(|value| (header.deadline_ms, value)));
    let Some((deadline_ms, value)) = copied?.transpose()? else {
        return Ok(if keep { Reply::Integer(0) } else { Reply::error("ERR no such key") });
    };
    if !replace && pending.live(to, |_, _| ())?.is_some() {
        return Ok(Reply::Integer(0));
    }
    if !keep {
        pending.remove(from)?;
    }
    pending.put(to, &[&value], deadline_ms)?;
    Ok(if replace && !keep { Reply::OK } else { Reply::Integer(1) })
}

fn expire(pending: &mut Pending, key: &[u8], new: NewDeadline, condition: ExpireCondition) -> Result<Reply, Stop> {
    let new = resolve(pending, new);
    let refuses = |old: Option<u64>| {
        condition.none && old.is_some()
            || condition.some && old.is_none()
            || condition.later && old.is_none_or(|old| new <= old)
            || condition.earlier && old.is_some_and(|old| new >= old)
    };
    let copy =
        |header: Header, value: &[u8]| (!refuses(header.deadline_ms)).then(|| pending.copy(key, value)).transpose();
    let Some(value) = pending.live(key, copy)?.transpose()?.flatten() else { return Ok(Reply::Integer(0)) };
    pending.put(key, &[&value], Some(new))?;
    Ok(Reply::Integer(1))
}

/// Parses a number as Redis does: no sign but a minus, no leading zeros, no spaces.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !canonical {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::parse_integer;

    #[test]
    fn integers_have_one_spelling() {
        assert_eq!(parse_integer(b"0"), Some(0));
        assert_eq!(parse_integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_integer(b"9223372036854775807"), Some(i64::MAX));
        for wrong in ["", "-", "+1", "01", "-0", " 1", "1 ", "1a", "9223372036854775808", "1.0", "--1"] {
            assert_eq!(parse_integer(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
