//! [`Records`]: all of a group's data at one moment, for a copy of it elsewhere.

use super::error::{Error, Result};
use super::layout::{Counters, Header, meta_key, on_wall, slot_start, user_key, value_of};
use super::slot::slot_of;
use super::view::{At, View};

/// A key of a user, its value, and when it expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// When it expires, in milliseconds since 1970.
    pub deadline_ms: Option<u64>,
}

/// The keyspace of a group as it was when this was made. The store may be open read-only.
pub struct Records<'a> {
    view: At<'a>,
    counters: Counters,
}

impl<'a> Records<'a> {
    /// The data in `keyspace`, which a [`Machine`](super::Machine) has written.
    pub fn of(keyspace: &'a tamis::Keyspace) -> Result<Records<'a>> {
        let view = At { name: keyspace.name(), snapshot: keyspace.snapshot() };
        let counters = view.counters()?;
        Ok(Records { view, counters })
    }

    /// The number of keys, expired ones that are still stored included.
    pub fn count(&self) -> u64 {
        self.counters.keys
    }

    /// The time of the last entry applied, in milliseconds since 1970.
    pub fn time_ms(&self) -> u64 {
        on_wall(self.counters.time_ms, self.counters.ahead_ms)
    }

    /// A meta pair's value.
    pub fn meta(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.view.read(&meta_key(name), <[u8]>::to_vec)
    }

    /// Visits all records, expired ones included: by slot, and within a slot by key. Ends with the
    /// first error.
    pub fn visit<E: From<Error>>(&self, mut visit: impl FnMut(Record) -> Result<(), E>) -> Result<(), E> {
        let options = tamis::ReadOptions::new().fill_cache(false);
        let mut cursor = self.view.snapshot.cursor_with(options).map_err(Error::from)?;
        cursor.seek(slot_start(0)).map_err(Error::from)?;
        while let (Some(stored), Some(record)) = (cursor.key(), cursor.value()) {
            if !stored.starts_with(b"d") {
                break;
            }
            let (slot, key) = user_key(stored).ok_or_else(|| self.view.damaged(stored, "a data key has a slot"))?;
            if slot != slot_of(key) {
                return Err(self.view.damaged(stored, "a data key has the slot of the user's key").into());
            }
            let header = Header::decode(record);
            let header =
                header.ok_or_else(|| self.view.damaged(stored, "a record begins with kind, version and deadline"))?;
            let deadline_ms = header.deadline_ms.map(|deadline| on_wall(deadline, self.counters.ahead_ms));
            visit(Record { key, value: value_of(record), deadline_ms })?;
            cursor.next().map_err(Error::from)?;
        }
        Ok(())
    }
}
