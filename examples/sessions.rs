//! A session store: sessions that expire by themselves.
//!
//! `cargo run --example sessions`
//!
//! The keyspace has a ttl, so that each put expires half an hour after it. To renew a session is to
//! set its expiry anew. A one-time code has a ttl of its own. Nothing deletes what
//! has expired: reads do not see it, and compactions drop it, whole tables without reading them.
#![allow(clippy::unwrap_used, reason = "an example")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tamis::{Error, Expiry, Keyspace, KeyspaceOptions, Options};

const TTL: Duration = Duration::from_secs(30 * 60);

/// The user of a session, which lives for another half hour then.
fn renew(sessions: &Keyspace, token: &str) -> Result<Option<String>, Error> {
    if !sessions.set_expiry(token, Expiry::Default)? {
        return Ok(None); // there is none, or it has expired
    }
    Ok(sessions.get(token)?.map(|user| String::from_utf8(user.into()).unwrap()))
}

fn main() -> Result<(), Error> {
    // A clock that the example sets, so that it need not wait. Real stores have the system's.
    let minutes = Arc::new(AtomicU64::new(0));
    let shown = Arc::clone(&minutes);
    let time = |minutes: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(60 * minutes);
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new().clock(move || time(shown.load(Ordering::Relaxed))).open(dir.path().join("db"))?;
    let sessions = db.keyspace_with("sessions", KeyspaceOptions::new().ttl(TTL))?;
    let codes = db.keyspace("codes")?;

    sessions.put("token 1", "Ann")?;
    sessions.put("token 2", "Bob")?;
    codes.put_with_ttl("Cid", "314159", Duration::from_secs(300))?;
    assert_eq!(codes.get_with_expiry("Cid")?.map(|(_, deadline)| deadline), Some(Some(time(5))));

    minutes.store(20, Ordering::Relaxed);
    assert_eq!(codes.get("Cid")?, None, "the code was good for five minutes");
    assert_eq!(renew(&sessions, "token 1")?.as_deref(), Some("Ann"));

    minutes.store(40, Ordering::Relaxed);
    assert_eq!(renew(&sessions, "token 2")?, None, "Bob was away for too long");
    for session in sessions.iter() {
        let (token, user) = session?;
        println!("{} is logged in with {}", user.escape_ascii(), token.escape_ascii());
    }
    assert_eq!(sessions.keys(..).count(), 1);

    // Everything has expired: compactions drop it.
    minutes.store(1000, Ordering::Relaxed);
    sessions.compact_range(..)?;
    println!("{} bytes are left", sessions.approximate_size(..)?);
    assert_eq!(sessions.approximate_size(..)?, 0);
    db.close()
}

#[test]
fn sessions_expire() {
    main().unwrap();
}
