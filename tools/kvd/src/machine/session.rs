//! Sessions: a request of a session is applied once, however often it is sent.
//!
//! A session remembers the last number and its reply. Of sessions beyond [`MAX_SESSIONS`], the one
//! that was used least recently is closed; its retries are refused, never applied again.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::error::{Result, Stop};
use super::layout::{session_key, use_key, used_session};
use super::reply::Reply;
use super::request::{Serial, decode_value, encode_value};
use super::view::{Pending, View};

/// Most sessions of a group.
pub const MAX_SESSIONS: u64 = 65_536;

/// Longest reply that a session remembers, encoded.
const MAX_KEPT_REPLY: usize = 4096;

const NO_SESSION: &str = "NOSESSION this session is not open; what became of its earlier requests is not known";
const OLD_SERIAL: &str = "OLDSERIAL a request with a greater number was applied; this one was not applied now";

/// What is stored of a session.
#[derive(Serialize, Deserialize)]
struct Session {
    /// Number of its last use.
    used: u64,
    /// Number and reply of its last request; 0 before the first.
    serial: u64,
    reply: Reply,
}

/// Opens a session and answers its number.
pub(super) fn open(pending: &mut Pending) -> Result<Reply> {
    while pending.counters.sessions >= MAX_SESSIONS && close_least_recent(pending)? {}
    let number = pending.number();
    store(pending, number, &Session { used: number, serial: 0, reply: Reply::Nil });
    pending.counters.sessions += 1;
    Ok(Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX)))
}

/// Runs `apply` unless the session's request was applied before.
pub(super) fn once(
    pending: &mut Pending,
    serial: Serial,
    apply: impl FnOnce(&mut Pending) -> Result<Reply, Stop>,
) -> Result<Reply, Stop> {
    let key = session_key(serial.session);
    let session = match pending.read(&key, |bytes| decode_value::<Session>(bytes).ok())? {
        None => return Ok(Reply::error(NO_SESSION)),
        Some(None) => {
            return Err(pending.damaged(&key, "a session holds its last use, number and reply").into());
        }
        Some(Some(session)) => session,
    };
    if serial.serial <= session.serial {
        return Ok(if serial.serial == session.serial { session.reply } else { Reply::error(OLD_SERIAL) });
    }
    let reply = apply(pending)?;
    pending.remove_use(serial.session, session.used);
    let used = pending.number();
    store(pending, serial.session, &Session { used, serial: serial.serial, reply: reply.clone() });
    Ok(reply)
}

fn store(pending: &mut Pending, number: u64, session: &Session) {
    let mut bytes = Vec::new();
    encode_value(session, &mut bytes);
    if bytes.len() > MAX_KEPT_REPLY {
        bytes.clear();
        encode_value(&Session { reply: Reply::NOT_KEPT, ..*session }, &mut bytes);
    }
    pending.put_session(number, session.used, bytes);
}

/// Closes the session that was used least recently. Returns whether there was one.
fn close_least_recent(pending: &mut Pending) -> Result<bool> {
    let mut least = None;
    pending.scan(&use_key(0, 0), &use_key(u64::MAX, u64::MAX), &mut |key, _| {
        least = used_session(key).map(|session| (key.to_vec(), session));
        ControlFlow::Break(())
    })?;
    let Some((key, session)) = least else { return Ok(false) };
    pending.remove_session(session, key);
    Ok(true)
}
