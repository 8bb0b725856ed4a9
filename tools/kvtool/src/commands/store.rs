//! Opens stores and keyspaces for the commands. In a shell, these are the shell's.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tamis::{Db, Keyspace, KeyspaceStats, OperationKind, Options, SeqNo, Stats, Transaction, WriteBatch, WriteOptions};

use crate::args::Common;
use crate::failure::{Failure, Result};
use crate::session::Session;

/// The shell that runs the command, if the command works in the shell's store.
pub(super) fn session_of<'a>(path: &Path, common: &'a Common) -> Option<&'a Session> {
    common.session.as_deref().filter(|session| session.db().path() == path)
}

/// The store of a shell, for a command whose writes no transaction can hold.
fn store_outside_transactions(session: &Session) -> Result<Db> {
    match session.is_in_transaction() {
        true => Err(Failure::usage("not in a transaction: `commit` or `rollback` it first")),
        false => Ok(session.db().clone()),
    }
}

/// Opens a store read-only.
pub(crate) fn open_read_only(path: &Path, common: &Common) -> Result<Db> {
    match session_of(path, common) {
        Some(session) => Ok(session.db().clone()),
        None => Ok(Db::open_read_only(path)?),
    }
}

/// Opens a store read-only, and the keyspace that the command line names.
pub(crate) fn open_to_read(path: &Path, common: &Common) -> Result<(Db, Keyspace)> {
    let db = open_read_only(path, common)?;
    let keyspace = existing_keyspace(&db, common)?;
    Ok((db, keyspace))
}

/// Opens a store for a copy of it: for writing, or read-only beside another process.
pub(crate) fn open_to_copy(path: &Path, common: &Common) -> Result<Db> {
    match session_of(path, common) {
        Some(session) => store_outside_transactions(session),
        None => Ok(Db::open_to_copy(path)?),
    }
}

/// Opens a store for writing; creates it if absent.
pub(crate) fn open_or_create(path: &Path, common: &Common) -> Result<Db> {
    match session_of(path, common) {
        Some(session) => store_outside_transactions(session),
        None => Ok(Db::open(path)?),
    }
}

/// Opens an existing store for writing.
pub(crate) fn open_existing(path: &Path, common: &Common) -> Result<Db> {
    match session_of(path, common) {
        Some(session) => store_outside_transactions(session),
        None => Ok(Options::new().create_if_missing(false).open(path)?),
    }
}

/// Opens a store, and the keyspace that the command line names, for [`write()`]; creates both if
/// absent.
pub(crate) fn open_to_write(path: &Path, common: &Common) -> Result<(Db, Keyspace)> {
    let db = match session_of(path, common) {
        Some(session) => session.db().clone(),
        None => Db::open(path)?,
    };
    let keyspace = match &common.keyspace {
        None => db.default_keyspace().clone(),
        Some(name) => match db.existing_keyspace(name)? {
            Some(keyspace) => keyspace,
            None => {
                may_change_keyspaces(path, common)?;
                db.keyspace(name)?
            }
        },
    };
    Ok((db, keyspace))
}

/// Fails in a shell's transaction, which cannot undo what is done to keyspaces.
pub(crate) fn may_change_keyspaces(path: &Path, common: &Common) -> Result<()> {
    session_of(path, common).map_or(Ok(()), Session::may_change_keyspaces)
}

/// Opens an existing store and keyspace for [`write()`].
pub(crate) fn open_existing_to_write(path: &Path, common: &Common) -> Result<(Db, Keyspace)> {
    let db = match session_of(path, common) {
        Some(session) => session.db().clone(),
        None => open_existing(path, common)?,
    };
    let keyspace = existing_keyspace(&db, common)?;
    Ok((db, keyspace))
}

/// Writes a batch, or adds it to the shell's transaction. Returns its sequence number, if it is
/// written.
pub(crate) fn write(common: &Common, db: &Db, batch: WriteBatch, options: WriteOptions) -> Result<Option<SeqNo>> {
    let session = session_of(db.path(), common);
    let added = session.and_then(|session| session.in_transaction(|transaction| add(db, transaction, &batch)));
    match added {
        Some(added) => added.map(|()| None),
        None => Ok(Some(db.write_with(batch, options)?)),
    }
}

fn add(db: &Db, transaction: &mut Transaction, batch: &WriteBatch) -> Result<()> {
    let keyspaces = all_keyspaces(db)?;
    for operation in batch.iter() {
        let keyspace = keyspaces.iter().find(|keyspace| keyspace.id() == operation.keyspace);
        let keyspace = keyspace.ok_or_else(|| Failure::usage("the keyspace was dropped"))?;
        match operation.kind {
            OperationKind::Put { key, value } => transaction.put_in(keyspace, key, value),
            OperationKind::PutWithExpiry { key, value, deadline } => {
                transaction.put_with_expiry_in(keyspace, key, value, deadline);
            }
            OperationKind::Merge { key, operand } => transaction.merge_in(keyspace, key, operand),
            OperationKind::Delete { key } => transaction.delete_in(keyspace, key),
            OperationKind::DeleteRange { from, to: Some(to) } => transaction.delete_range_in(keyspace, from..to),
            OperationKind::DeleteRange { from, to: None } => transaction.delete_range_in(keyspace, from..),
            other => return Err(Failure::usage(format_args!("not in a transaction: {other:?}"))),
        }
    }
    Ok(())
}

/// Closes the store of a command; a shell's stays open.
pub(crate) fn close(db: Db, common: &Common) -> Result<()> {
    match session_of(db.path(), common) {
        Some(_) => Ok(()),
        None => Ok(db.close()?),
    }
}

/// How long a command that has written lets compactions go on that are due.
const SETTLING: Duration = Duration::from_secs(2);
/// How often it looks whether they are done.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Closes the store of a command that has written. If compactions are due, they go on for up to
/// [`SETTLING`] first: a store that only short commands open would never be compacted. What they
/// have finished by then counts, and the next opening goes on from there.
pub(crate) fn settle_and_close(db: Db, common: &Common) -> Result<()> {
    if session_of(db.path(), common).is_some() {
        return Ok(());
    }
    let end = Instant::now() + SETTLING;
    // A store that is open read-only has debt that is not its own to work off.
    while !db.is_read_only() && db.stats().compaction_debt > 0 && Instant::now() < end {
        thread::sleep(LOOK_AGAIN);
    }
    Ok(db.close()?)
}

/// The keyspace that the command line names, or the default one.
pub(crate) fn existing_keyspace(db: &Db, common: &Common) -> Result<Keyspace> {
    match &common.keyspace {
        Some(name) => db.existing_keyspace(name)?.ok_or_else(|| no_such_keyspace(name)),
        None => Ok(db.default_keyspace().clone()),
    }
}

/// The keyspace that the command line names, or all of them.
pub(crate) fn selected_keyspaces(db: &Db, common: &Common) -> Result<Vec<Keyspace>> {
    if common.keyspace.is_some() {
        return Ok(vec![existing_keyspace(db, common)?]);
    }
    all_keyspaces(db)
}

fn all_keyspaces(db: &Db) -> Result<Vec<Keyspace>> {
    let mut keyspaces = Vec::new();
    for name in db.keyspace_names()? {
        keyspaces.extend(db.existing_keyspace(&name)?);
    }
    Ok(keyspaces)
}

/// The store's statistics, limited to the keyspace that the command line names, if any.
pub(crate) fn stats_of(db: &Db, common: &Common) -> Result<Stats> {
    let mut stats = db.stats();
    if let Some(name) = &common.keyspace {
        stats.keyspaces.retain(|keyspace| keyspace.name == *name);
        if stats.keyspaces.is_empty() {
            return Err(no_such_keyspace(name));
        }
    }
    Ok(stats)
}

/// The statistics of one keyspace.
pub(crate) fn stats_of_keyspace(db: &Db, keyspace: &Keyspace) -> KeyspaceStats {
    let mut stats = db.stats().keyspaces.into_iter();
    stats.find(|stats| stats.name == keyspace.name()).unwrap_or_default()
}

pub(crate) fn no_such_keyspace(name: &str) -> Failure {
    Failure::usage(format_args!("there is no keyspace {name:?}; `kvtool keyspaces` lists the existing ones"))
}
