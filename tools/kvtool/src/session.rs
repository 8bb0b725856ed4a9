//! [`Session`]: the open store of a shell, in which its commands work.

use std::cell::RefCell;
use std::fmt;

use tamis::{Db, Error, SeqNo, Transaction, WriteOptions};

use crate::failure::{Failure, Result};

/// The open store of a shell, in which its commands work.
pub(crate) struct Session {
    db: Db,
    /// The keyspace in which commands work that name none.
    keyspace: RefCell<Option<String>>,
    transaction: RefCell<Option<Transaction>>,
    /// Whether keyspaces that are absent are created in a transaction, which cannot undo that.
    creates_keyspaces: bool,
}

impl Session {
    pub(crate) fn new(db: Db) -> Session {
        Session { db, keyspace: RefCell::default(), transaction: RefCell::default(), creates_keyspaces: false }
    }

    /// The session of a batch.
    pub(crate) fn of_batch(db: Db) -> Session {
        Session { creates_keyspaces: true, ..Session::new(db) }
    }

    /// Fails if a keyspace must not be created or changed now.
    pub(crate) fn may_change_keyspaces(&self) -> Result<()> {
        match self.is_in_transaction() && !self.creates_keyspaces {
            true => Err(Failure::usage("a transaction creates and changes no keyspaces: do it before `begin`")),
            false => Ok(()),
        }
    }

    pub(crate) fn db(&self) -> &Db {
        &self.db
    }

    pub(crate) fn keyspace(&self) -> Option<String> {
        self.keyspace.borrow().clone()
    }

    pub(crate) fn use_keyspace(&self, name: Option<String>) {
        *self.keyspace.borrow_mut() = name;
    }

    pub(crate) fn is_in_transaction(&self) -> bool {
        self.transaction.borrow().is_some()
    }

    pub(crate) fn begin(&self) -> Result<()> {
        if self.is_in_transaction() {
            return Err(Failure::usage("a transaction is open already: `commit` or `rollback` ends it"));
        }
        if self.db.is_read_only() {
            return Err(Error::ReadOnly(self.db.path().to_owned()).into());
        }
        *self.transaction.borrow_mut() = Some(self.db.begin());
        Ok(())
    }

    /// Commits the open transaction, durably.
    pub(crate) fn commit(&self) -> Result<SeqNo> {
        Ok(self.end()?.commit_with(WriteOptions::new().sync(true))?)
    }

    pub(crate) fn rollback(&self) -> Result<()> {
        self.end().map(drop)
    }

    fn end(&self) -> Result<Transaction> {
        let ended = self.transaction.borrow_mut().take();
        ended.ok_or_else(|| Failure::usage("no transaction is open: `begin` opens one"))
    }

    /// Calls `work` with the open transaction, if there is one.
    pub(crate) fn in_transaction<R>(&self, work: impl FnOnce(&mut Transaction) -> R) -> Option<R> {
        self.transaction.borrow_mut().as_mut().map(work)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("db", &self.db.path()).finish_non_exhaustive()
    }
}
