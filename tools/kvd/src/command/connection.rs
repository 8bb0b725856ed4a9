//! Commands that concern the connection.

use bytes::Bytes;

use super::arguments::{Arguments, SYNTAX};
use super::spec::Spec;
use super::{Command, ConnectionCommand as Own, LibraryField, Replies};
use crate::machine::{Reply, parse_integer};

type Parsed = Result<Command, Reply>;

fn own(command: Own) -> Parsed {
    Ok(Command::Connection(command))
}

fn answer(reply: Reply) -> Parsed {
    Ok(Command::Answer(reply))
}

pub(super) fn ping(next: &mut Arguments, spec: &Spec) -> Parsed {
    match next.rest() {
        [] => answer(Reply::Status("PONG".into())),
        [text] => answer(Reply::Bulk(text.clone())),
        _ => Err(spec.wrong_count()),
    }
}

pub(super) fn echo(next: &mut Arguments, _: &Spec) -> Parsed {
    answer(Reply::Bulk(next.bytes()?))
}

pub(super) fn select(next: &mut Arguments, _: &Spec) -> Parsed {
    match next.integer()? {
        0 => answer(Reply::OK),
        _ => Err(Reply::error("ERR SELECT is not allowed in cluster mode")),
    }
}

pub(super) fn quit(next: &mut Arguments, _: &Spec) -> Parsed {
    next.rest();
    own(Own::Quit)
}

pub(super) fn reset(_: &mut Arguments, _: &Spec) -> Parsed {
    own(Own::Reset)
}

pub(super) fn auth(next: &mut Arguments, _: &Spec) -> Parsed {
    match next.rest() {
        [password] => own(Own::Auth(Bytes::from_static(b"default"), password.clone())),
        [user, password] => own(Own::Auth(user.clone(), password.clone())),
        _ => Err(Reply::error(SYNTAX)),
    }
}

pub(super) fn hello(next: &mut Arguments, _: &Spec) -> Parsed {
    let mut version = None;
    if !next.is_empty() {
        version = match parse_integer(next.next()?) {
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
            b"SETNAME" => name = Some(printable(next.bytes()?, "Client names")?),
            _ => {
                let word = String::from_utf8_lossy(&word[..word.len().min(128)]);
                return Err(Reply::error(format!("ERR Syntax error in HELLO option '{word}'")));
            }
        }
    }
    own(Own::Hello { version, auth, name })
}

/// A name that CLIENT LIST can show.
fn printable(name: Bytes, what: &str) -> Result<Bytes, Reply> {
    const MAX_NAME_LEN: usize = 128;
    if name.len() > MAX_NAME_LEN || !name.iter().all(u8::is_ascii_graphic) {
        return Err(Reply::error(format!("ERR {what} cannot contain spaces, newlines or special characters.")));
    }
    Ok(name)
}

pub(super) fn readonly(_: &mut Arguments, _: &Spec) -> Parsed {
    own(Own::ReadOnly(true))
}

pub(super) fn readwrite(_: &mut Arguments, _: &Spec) -> Parsed {
    own(Own::ReadOnly(false))
}

pub(super) fn whoami(_: &mut Arguments, _: &Spec) -> Parsed {
    own(Own::WhoAmI)
}

pub(super) fn monitor(_: &mut Arguments, _: &Spec) -> Parsed {
    own(Own::Monitor)
}

pub(super) fn id(_: &mut Arguments, _: &Spec) -> Parsed {
    own(Own::Id)
}

pub(super) fn info(_: &mut Arguments, _: &Spec) -> Parsed {
    own(Own::Info)
}

pub(super) fn getname(_: &mut Arguments, _: &Spec) -> Parsed {
    own(Own::GetName)
}

pub(super) fn setname(next: &mut Arguments, _: &Spec) -> Parsed {
    own(Own::SetName(printable(next.bytes()?, "Client names")?))
}

pub(super) fn setinfo(next: &mut Arguments, _: &Spec) -> Parsed {
    let option = next.next()?;
    let (field, what) = match option.to_ascii_lowercase().as_slice() {
        b"lib-name" => (LibraryField::Name, "lib-name"),
        b"lib-ver" => (LibraryField::Version, "lib-ver"),
        _ => {
            let option = String::from_utf8_lossy(&option[..option.len().min(128)]);
            return Err(Reply::error(format!("ERR Unrecognized option '{option}'")));
        }
    };
    own(Own::SetInfo(field, printable(next.bytes()?, what)?))
}

/// `CLIENT NO-EVICT on|off` and `CLIENT NO-TOUCH on|off`: nothing is ever evicted here.
pub(super) fn on_off(next: &mut Arguments, _: &Spec) -> Parsed {
    match &next.word()?[..] {
        b"ON" | b"OFF" => answer(Reply::OK),
        _ => Err(Reply::error(SYNTAX)),
    }
}

pub(super) fn reply(next: &mut Arguments, _: &Spec) -> Parsed {
    own(Own::Reply(match &next.word()?[..] {
        b"ON" => Replies::On,
        b"OFF" => Replies::Off,
        b"SKIP" => Replies::Skip,
        _ => return Err(Reply::error(SYNTAX)),
    }))
}

pub(super) fn getredir(_: &mut Arguments, _: &Spec) -> Parsed {
    answer(Reply::Integer(-1))
}

/// `CLIENT TRACKING on|off ...`: switching it off is what a client may always ask for.
pub(super) fn tracking(next: &mut Arguments, _: &Spec) -> Parsed {
    match (&next.word()?[..], next.rest()) {
        (b"OFF", []) => answer(Reply::OK),
        (b"ON", _) => Err(Reply::error("ERR kvd does not tell clients of changes: caches in clients need a lifetime")),
        _ => Err(Reply::error(SYNTAX)),
    }
}

pub(super) fn trackinginfo(_: &mut Arguments, _: &Spec) -> Parsed {
    answer(Reply::Map(vec![
        (Reply::bulk("flags"), Reply::Array(vec![Reply::bulk("off")])),
        (Reply::bulk("redirect"), Reply::Integer(-1)),
        (Reply::bulk("prefixes"), Reply::Array(Vec::new())),
    ]))
}

pub(super) fn caching(next: &mut Arguments, _: &Spec) -> Parsed {
    next.rest();
    Err(Reply::error(
        "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
    ))
}

/// `CLIENT UNBLOCK id`: no command blocks here.
pub(super) fn unblock(next: &mut Arguments, _: &Spec) -> Parsed {
    next.integer()?;
    if !next.is_empty() && !matches!(&next.word()?[..], b"TIMEOUT" | b"ERROR") {
        return Err(Reply::error("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
    }
    answer(Reply::Integer(0))
}
