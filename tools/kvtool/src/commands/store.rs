//! Opens stores and keyspaces for the commands.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tamis::{Db, Keyspace, KeyspaceStats, Options, Stats};

use crate::args::Common;
use crate::failure::{Failure, Result};

/// Opens a store read-only, and the keyspace that the command line names.
pub(crate) fn open_to_read(db: &Path, common: &Common) -> Result<(Db, Keyspace)> {
    let db = Db::open_read_only(db)?;
    let keyspace = existing_keyspace(&db, common)?;
    Ok((db, keyspace))
}

/// Opens a store and the keyspace that the command line names, for writing; creates both if absent.
pub(crate) fn open_to_write(db: &Path, common: &Common) -> Result<(Db, Keyspace)> {
    let db = Db::open(db)?;
    let keyspace = match &common.keyspace {
        Some(name) => db.keyspace(name)?,
        None => db.default_keyspace().clone(),
    };
    Ok((db, keyspace))
}

/// How long a command that has written lets compactions go on that are due.
const SETTLING: Duration = Duration::from_secs(2);
/// How often it looks whether they are done.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Closes the store of a command that has written. If compactions are due, they go on for up to
/// [`SETTLING`] first: a store that only short commands open would never be compacted. What they
/// have finished by then counts, and the next opening goes on from there.
pub(crate) fn settle_and_close(db: Db) -> Result<()> {
    let end = Instant::now() + SETTLING;
    while db.stats().compaction_debt > 0 && Instant::now() < end {
        thread::sleep(LOOK_AGAIN);
    }
    Ok(db.close()?)
}

/// Opens an existing store for writing.
pub(crate) fn open_existing(db: &Path) -> Result<Db> {
    Ok(Options::new().create_if_missing(false).open(db)?)
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
