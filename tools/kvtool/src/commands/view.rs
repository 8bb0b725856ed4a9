//! [`View`]: what a command reads.

use std::time::SystemTime;

use tamis::{Db, Keyspace, ReadOptions, Value};

use super::progress::{Bar, KEYS};
use super::range::KeyRange;
use super::store::session_of;
use crate::args::Common;
use crate::failure::Result;
use crate::interrupt;
use crate::session::Session;

/// A keyspace, or a shell's transaction in it.
pub(super) struct View<'a> {
    keyspace: &'a Keyspace,
    session: Option<&'a Session>,
}

impl View<'_> {
    pub(super) fn of<'a>(common: &'a Common, db: &Db, keyspace: &'a Keyspace) -> View<'a> {
        View { keyspace, session: session_of(db.path(), common) }
    }

    pub(super) fn is_in_transaction(&self) -> bool {
        self.session.is_some_and(Session::is_in_transaction)
    }

    /// The value of a key. A transaction takes no options.
    pub(super) fn get(&self, key: &[u8], options: ReadOptions) -> Result<Option<Value>> {
        let read = self.session.and_then(|session| session.in_transaction(|tx| tx.keyspace(self.keyspace).get(key)));
        Ok(read.unwrap_or_else(|| self.keyspace.get_with(key, options))?)
    }

    /// How many keys a range has.
    pub(super) fn count(&self, range: &KeyRange, bar: &Bar) -> Result<u64> {
        let session = self.session;
        let read = session.and_then(|session| {
            session.in_transaction(|tx| count(tx.keyspace(self.keyspace).keys(range.bounds()), bar))
        });
        read.unwrap_or_else(|| count(self.keyspace.keys(range.bounds()), bar))
    }

    /// Passes the entries of a range to `on_entry`, with their deadlines, until it returns false.
    pub(super) fn scan(
        &self,
        range: &KeyRange,
        reverse: bool,
        mut on_entry: impl FnMut(&[u8], &[u8], Option<SystemTime>) -> Result<bool>,
    ) -> Result<()> {
        let read = self.session.and_then(|session| {
            session.in_transaction(|tx| {
                let view = tx.keyspace(self.keyspace);
                let mut entries = view.range(range.bounds());
                while let Some(entry) = if reverse { entries.next_back() } else { entries.next() } {
                    let (key, value) = entry?;
                    let deadline = view.get_with_expiry(&key)?.and_then(|(_, deadline)| deadline);
                    if !on_entry(&key, &value, deadline)? {
                        break;
                    }
                    interrupt::check()?;
                }
                Ok(())
            })
        });
        read.unwrap_or_else(|| self.scan_keyspace(range, reverse, on_entry))
    }

    fn scan_keyspace(
        &self,
        range: &KeyRange,
        reverse: bool,
        mut on_entry: impl FnMut(&[u8], &[u8], Option<SystemTime>) -> Result<bool>,
    ) -> Result<()> {
        // The scan uses each block once: reads ahead and bypasses the cache.
        let mut cursor = self.keyspace.cursor_with(ReadOptions::new().fill_cache(false))?;
        let mut valid = if reverse { range.seek_to_last(&mut cursor)? } else { range.seek_to_first(&mut cursor)? };
        while let (true, Some(key), Some(value)) = (valid, cursor.key(), cursor.value()) {
            if !range.contains(key) || !on_entry(key, value, cursor.deadline())? {
                break;
            }
            interrupt::check()?;
            valid = if reverse { cursor.prev()? } else { cursor.next()? };
        }
        Ok(())
    }
}

fn count<T>(keys: impl Iterator<Item = tamis::Result<T>>, bar: &Bar) -> Result<u64> {
    let mut count: u64 = 0;
    for key in keys {
        key?;
        interrupt::check()?;
        count += 1;
        if count.is_multiple_of(KEYS) {
            bar.set_position(count);
        }
    }
    Ok(count)
}
