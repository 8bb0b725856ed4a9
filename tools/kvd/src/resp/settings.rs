//! CONFIG: one row for each setting.
//!
//! Those that a server of Redis has, and a node of kvd has only one value for, can be set to that
//! value: tools write back what they have read.

use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Resource, getrlimit};

use super::config::Limits;
use crate::machine::{MAX_VALUE_LEN, Reply, matches};

/// A setting.
struct Setting {
    name: &'static str,
    get: fn(&Limits) -> String,
    set: fn(&mut Limits, &str) -> Result<(), &'static str>,
}

const fn row(
    name: &'static str,
    get: fn(&Limits) -> String,
    set: fn(&mut Limits, &str) -> Result<(), &'static str>,
) -> Setting {
    Setting { name, get, set }
}

/// A setting that has one value.
macro_rules! fixed {
    ($name:literal, $value:expr) => {
        row(
            $name,
            |_| $value.to_owned(),
            |_, text| {
                if text == $value { Ok(()) } else { Err("can't set immutable config") }
            },
        )
    };
}

const NOT_BYTES: &str = "argument must be a memory value";

/// All settings, in the order of their names.
static SETTINGS: &[Setting] = &[
    fixed!("appendfsync", "always"),
    fixed!("appendonly", "yes"),
    row(
        "client-query-buffer-limit",
        |limits| limits.command.bytes.to_string(),
        |limits, text| put(&mut limits.command.bytes, bytes(text, 1 << 20, 64 << 20)),
    ),
    fixed!("cluster-enabled", "yes"),
    fixed!("daemonize", "no"),
    fixed!("databases", "1"),
    row(
        "kvd-client-memory",
        |limits| limits.client_bytes.to_string(),
        |limits, text| put(&mut limits.client_bytes, bytes(text, 1 << 20, usize::MAX)),
    ),
    row(
        "kvd-readonly-staleness-ms",
        |limits| limits.stale.as_millis().to_string(),
        |limits, text| put(&mut limits.stale, number(text, 0, u64::MAX).map(Duration::from_millis)),
    ),
    row(
        "kvd-stall-timeout",
        |limits| limits.stall.as_secs().to_string(),
        |limits, text| put(&mut limits.stall, number(text, 1, 86_400).map(Duration::from_secs)),
    ),
    row(
        "maxclients",
        |limits| limits.connections.to_string(),
        |limits, text| {
            let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            let clients = number(text, 1, files / 2);
            put(&mut limits.connections, clients.map(|clients| usize::try_from(clients).unwrap_or(usize::MAX)))
        },
    ),
    fixed!("maxmemory", "0"),
    row(
        "maxmemory-clients",
        |limits| limits.shared_bytes.to_string(),
        |limits, text| put(&mut limits.shared_bytes, bytes(text, 1 << 20, usize::MAX)),
    ),
    fixed!("maxmemory-policy", "noeviction"),
    row(
        "proto-max-bulk-len",
        |limits| limits.value.to_string(),
        |limits, text| put(&mut limits.value, bytes(text, 1 << 10, MAX_VALUE_LEN)),
    ),
    fixed!("save", ""),
    row(
        "slowlog-log-slower-than",
        |limits| limits.slow.map_or("-1".to_owned(), |slow| slow.as_micros().to_string()),
        |limits, text| match text {
            "-1" => put(&mut limits.slow, Ok(None)),
            text => put(&mut limits.slow, number(text, 0, u64::MAX).map(|micros| Some(Duration::from_micros(micros)))),
        },
    ),
    row(
        "slowlog-max-len",
        |limits| limits.slow_kept.to_string(),
        |limits, text| put(&mut limits.slow_kept, bytes(text, 0, 10_000)),
    ),
    row(
        "timeout",
        |limits| limits.idle.map_or(0, |idle| idle.as_secs()).to_string(),
        |limits, text| {
            let seconds = number(text, 0, u64::from(u32::MAX));
            put(&mut limits.idle, seconds.map(|seconds| (seconds > 0).then(|| Duration::from_secs(seconds))))
        },
    ),
];

fn put<T>(place: &mut T, value: Result<T, &'static str>) -> Result<(), &'static str> {
    value.map(|value| *place = value)
}

fn number(text: &str, least: u64, most: u64) -> Result<u64, &'static str> {
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        Ok(_) => Err("the number is out of the range that this node allows"),
        Err(_) => Err("argument couldn't be parsed into an integer"),
    }
}

/// A number of bytes, with a unit or without.
fn bytes(text: &str, least: usize, most: usize) -> Result<usize, &'static str> {
    let text = text.to_ascii_lowercase();
    let digits = text.trim_end_matches(|byte: char| byte.is_ascii_alphabetic());
    let unit: usize = match &text[digits.len()..] {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return Err(NOT_BYTES),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit)).ok_or(NOT_BYTES)?;
    if bytes < least {
        return Err("the number of bytes is too small");
    }
    if bytes > most {
        return Err("the number of bytes is greater than kvd allows");
    }
    Ok(bytes)
}

/// CONFIG GET.
pub(super) fn get(patterns: &[Bytes], limits: &Limits) -> Reply {
    let asked = |name: &str| patterns.iter().any(|it| matches(&it.to_ascii_lowercase(), name.as_bytes()));
    let found = SETTINGS.iter().filter(|setting| asked(setting.name));
    Reply::Map(found.map(|setting| (Reply::bulk(setting.name), Reply::bulk((setting.get)(limits)))).collect())
}

/// CONFIG SET before the start: `NAME=VALUE` each.
pub fn set_limits(changes: &[String], limits: &Limits) -> Result<Limits, String> {
    let pair = |change: &String| {
        let (name, value) = change.split_once('=').ok_or_else(|| format!("expected NAME=VALUE, not {change}"))?;
        Ok((Bytes::from(name.to_owned()), Bytes::from(value.to_owned())))
    };
    set(&changes.iter().map(pair).collect::<Result<Vec<_>, String>>()?, limits).map_err(|refusal| match refusal {
        Reply::Error(text) => text.trim_start_matches("ERR ").to_owned(),
        other => format!("{other:?}"),
    })
}

/// CONFIG SET: the limits with the changes, all of them.
pub(super) fn set(changes: &[(Bytes, Bytes)], limits: &Limits) -> Result<Limits, Reply> {
    let mut new = *limits;
    for (at, (name, value)) in changes.iter().enumerate() {
        let lower = name.to_ascii_lowercase();
        let twice = changes[at + 1..].iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
        let shown = String::from_utf8_lossy(&name[..name.len().min(128)]);
        let Some(setting) = SETTINGS.iter().find(|setting| setting.name.as_bytes() == lower) else {
            return Err(Reply::error(format!("ERR Unknown option or number of arguments for CONFIG SET - '{shown}'")));
        };
        let text = std::str::from_utf8(value).map_err(|_| "argument must be text");
        let applied = match text {
            _ if twice => Err("duplicate parameter"),
            Ok(text) => (setting.set)(&mut new, text),
            Err(error) => Err(error),
        };
        applied.map_err(|why| {
            Reply::error(format!("ERR CONFIG SET failed (possibly related to argument '{}') - {why}", setting.name))
        })?;
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, value: &str) -> Result<Limits, Reply> {
        set(&[(name.to_owned().into(), value.to_owned().into())], &Limits::default())
    }

    #[test]
    fn every_setting_takes_the_value_that_it_has() {
        assert!(SETTINGS.is_sorted_by(|a, b| a.name < b.name));
        for setting in SETTINGS {
            let value = (setting.get)(&Limits::default());
            assert_eq!(change(setting.name, &value), Ok(Limits::default()), "{} = {value}", setting.name);
            assert!(change(setting.name, "nonsense").is_err(), "{}", setting.name);
        }
    }

    #[test]
    fn all_changes_are_made_or_none() {
        let pair = |name: &str, value: &str| (Bytes::from(name.to_owned()), Bytes::from(value.to_owned()));
        let both = set(&[pair("TIMEOUT", "7"), pair("maxmemory-clients", "3mb")], &Limits::default()).unwrap();
        assert_eq!((both.idle, both.shared_bytes), (Some(Duration::from_secs(7)), 3 << 20));
        let refused = |changes: &[(Bytes, Bytes)]| match set(changes, &Limits::default()) {
            Err(Reply::Error(text)) => text.into_owned(),
            other => panic!("{other:?}"),
        };
        let text = refused(&[pair("timeout", "7"), pair("maxmemory", "1")]);
        assert!(text.contains("'maxmemory') - can't set immutable"), "{text}");
        assert!(refused(&[pair("timeout", "7"), pair("timeout", "8")]).contains("duplicate"));
        assert!(refused(&[pair("nosuch", "7")]).contains("Unknown option"));
        assert!(refused(&[pair("proto-max-bulk-len", "17mb")]).contains("greater"));
        assert!(refused(&[pair("proto-max-bulk-len", "3xb")]).contains("memory value"));
        let start = |change: &str| set_limits(&[change.to_owned()], &Limits::default());
        assert_eq!(start("slowlog-max-len=5").unwrap().slow_kept, 5);
        assert!(start("slowlog-max-len").unwrap_err().contains("NAME=VALUE"));
        assert!(start("nosuch=5").unwrap_err().starts_with("Unknown option"));
    }
}
