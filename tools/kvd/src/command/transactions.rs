//! Commands that begin and end transactions, and those that go around another command.

use bytes::Bytes;

use super::Command;
use super::arguments::{Arguments, number};
use super::spec::Spec;
use crate::machine::{Reply, Serial};

type Parsed = Result<Command, Reply>;

pub(super) fn multi(_: &mut Arguments, _: &Spec) -> Parsed {
    Ok(Command::Multi)
}

pub(super) fn exec(_: &mut Arguments, _: &Spec) -> Parsed {
    Ok(Command::Exec)
}

pub(super) fn discard(_: &mut Arguments, _: &Spec) -> Parsed {
    Ok(Command::Discard)
}

pub(super) fn watch(next: &mut Arguments, _: &Spec) -> Parsed {
    Ok(Command::Watch(next.rest().to_vec()))
}

pub(super) fn unwatch(_: &mut Arguments, _: &Spec) -> Parsed {
    Ok(Command::Unwatch)
}

pub(super) fn session(next: &mut Arguments, _: &Spec) -> Parsed {
    next.next()?;
    Ok(Command::OpenSession)
}

/// `KVD.ONCE session serial command`.
pub(super) fn once(before: &[Bytes], inner: Command) -> Parsed {
    let [_, session, serial] = before else { return Err(Reply::error(super::arguments::SYNTAX)) };
    let serial = Serial { session: number(session)?, serial: number(serial)? };
    match inner {
        Command::Write(_) if serial.serial == 0 => Err(Reply::error("ERR the first serial is 1")),
        Command::Write(operation) => Ok(Command::Once(serial, operation)),
        _ => Err(Reply::error("ERR KVD.ONCE takes a command that writes keys")),
    }
}

/// `KVD.STALE milliseconds command`.
pub(super) fn stale(before: &[Bytes], inner: Command) -> Parsed {
    let [_, millis] = before else { return Err(Reply::error(super::arguments::SYNTAX)) };
    let millis = number(millis)?;
    match inner {
        Command::Read(query) => Ok(Command::Stale(millis, query)),
        _ => Err(Reply::error("ERR KVD.STALE takes a command that reads keys")),
    }
}
