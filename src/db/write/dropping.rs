//! Writes beside a drop of keyspaces.
//!
//! A write checks its keyspaces first, and may then wait, for the throttle, for the commit lock, or
//! for room. If a keyspace that it names is dropped meanwhile, it must not commit: others have seen
//! that the keyspace was gone, and perhaps the rest of the batch not there yet. So each write notes
//! a number before it checks, which is another one as soon as a drop begins, and is checked again
//! under the commit lock if the numbers differ. The same number says that a keyspace has begun or
//! ceased to have a log.

use std::borrow::Cow;
use std::sync::Arc;

use super::Writer;
use super::commit::{Commit, Encoded, Outcome, QueuedWrite};
use crate::db::store::Store;
use crate::db::transaction::premise::Premise;
use crate::error::{Error, Result};
use crate::sync::atomic::Ordering;

/// While it lives, writes to keyspaces that are being dropped fail.
pub(crate) struct Dropping<'a>(pub(super) &'a Writer);

impl Dropping<'_> {
    pub(super) fn note(&self, mut ids: Vec<u32>) {
        ids.sort_unstable();
        let mut commit = self.0.commit.lock();
        if let Some(commit) = commit.as_mut() {
            commit.dropping = ids;
        }
        self.0.keyspaces.fetch_add(1, Ordering::Release);
    }
}

impl Drop for Dropping<'_> {
    fn drop(&mut self) {
        self.note(Vec::new());
    }
}

impl Store {
    /// Fails queued writes that name a keyspace which has been dropped since they were checked;
    /// returns the others.
    pub(super) fn without_dropped<'a>(
        &self,
        commit: &Commit,
        queued: &'a [Arc<QueuedWrite>],
    ) -> Cow<'a, [Arc<QueuedWrite>]> {
        if !queued.iter().any(|write| self.is_older(&write.encoded)) {
            return Cow::Borrowed(queued);
        }
        let is_left = |write: &&Arc<QueuedWrite>| {
            let checked = self.check_again(commit, &write.encoded, write.premise.as_ref());
            checked.map_err(|error| *write.result.lock() = Some(Err(error))).is_ok()
        };
        queued.iter().filter(is_left).cloned().collect()
    }

    /// Whether keyspaces may have changed since the batch was checked.
    fn is_older(&self, encoded: &Encoded<'_>) -> bool {
        encoded.is_older_than(self.writer.keyspaces.load(Ordering::Relaxed))
    }

    /// Fails if a keyspace that the batch writes to, or that its premise names, has been dropped
    /// since the batch was checked.
    pub(super) fn check_again(
        &self,
        commit: &Commit,
        encoded: &Encoded<'_>,
        premise: Option<&Premise<'_>>,
    ) -> Result<()> {
        if !self.is_older(encoded) {
            return Ok(());
        }
        let view = self.shape.view();
        let is_dropped = |id: &u32| view.tree(*id).is_none() || commit.dropping.binary_search(id).is_ok();
        let read = premise.into_iter().flat_map(Premise::keyspaces);
        match encoded.keyspaces().chain(read).find(is_dropped) {
            Some(id) => Err(match view.tree(id) {
                Some(tree) => Error::KeyspaceDropped(tree.name.to_string()),
                None => self.shape.keyspace_dropped(id),
            }),
            None => Ok(()),
        }
    }

    /// [`append_and_apply`](Store::append_and_apply) of writes that were checked before keyspaces
    /// changed.
    #[cold]
    #[inline(never)]
    pub(super) fn append_checked(
        self: &Arc<Self>,
        commit: &mut Commit,
        premise: Option<&Premise<'_>>,
        group: &[&Encoded<'_>],
        keyspaces: u64,
    ) -> Result<Outcome> {
        group.iter().try_for_each(|encoded| self.check_again(commit, encoded, premise))?;
        let view = self.shape.view();
        let is_logged = |keyspace: u32| view.tree(keyspace).is_none_or(|tree| tree.options.wal);
        let anew: Vec<Encoded<'_>> = group.iter().map(|encoded| encoded.logged_anew(keyspaces, is_logged)).collect();
        self.append_and_apply(commit, premise, &anew.iter().collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::super::commit::Logging;
    use super::*;
    use crate::batch::WriteBatch;
    use crate::db::Db;
    use crate::db::transaction::premise::Moment;
    use crate::filter::KeyHash;
    use crate::options::Options;
    use crate::sync::Mutex;
    use crate::vfs::MemoryFileSystem;

    fn store() -> Db {
        Options::new().file_system(Arc::new(MemoryFileSystem::new())).open("/db").unwrap()
    }

    /// A batch that puts `key` in the default keyspace and, if `of` says so, in that keyspace.
    fn checked(db: &Db, key: &str, of: Option<&crate::Keyspace>) -> Encoded<'static> {
        let mut batch = WriteBatch::new();
        batch.put(key, "1");
        of.into_iter().for_each(|keyspace| batch.put_in(keyspace, key, "1"));
        let as_of = db.store().writer.keyspaces_as_of();
        db.store().check_form(&batch).unwrap();
        Encoded::of(batch, Logging { part: None, as_of }, false)
    }

    fn is_dropped<T>(result: &Result<T>) -> bool {
        matches!(result, Err(Error::KeyspaceDropped(name)) if name == "k")
    }

    #[test]
    fn a_write_that_waits_while_its_keyspace_is_dropped_fails() {
        let db = store();
        let (store, keyspace) = (db.store(), db.keyspace("k").unwrap());
        let (plain, spanning) = (checked(&db, "plain", None), checked(&db, "spanning", Some(&keyspace)));
        db.drop_keyspace("k").unwrap();
        assert!(is_dropped(&store.write_encoded(spanning, None)));
        store.write_encoded(plain, None).unwrap();
        assert_eq!(db.keys(..).map(Result::unwrap).collect::<Vec<_>>(), [&b"plain"[..]]);
    }

    #[test]
    fn a_write_that_depends_on_a_read_of_a_dropped_keyspace_fails() {
        let db = store();
        let (store, keyspace) = (db.store(), db.keyspace("k").unwrap());
        keyspace.put("x", "1").unwrap();
        let hash = KeyHash::new(store.seed, b"x");
        let premise = Premise::on_key(Moment::at(store.sequence.visible()), keyspace.id, b"x", hash);
        let encoded = checked(&db, "y", None);
        db.drop_keyspace("k").unwrap();
        assert!(is_dropped(&store.write_encoded(encoded, Some(&premise))));
        assert!(db.get("y").unwrap().is_none());
    }

    #[test]
    fn in_a_group_only_writes_to_a_dropped_keyspace_fail() {
        let db = store();
        let (store, keyspace) = (db.store(), db.keyspace("k").unwrap());
        let of = [None, Some(&keyspace), None, Some(&keyspace)];
        let queued = |(key, of): (char, Option<&crate::Keyspace>)| {
            let encoded = checked(&db, &key.to_string(), of);
            Arc::new(QueuedWrite { encoded, premise: None, result: Mutex::new(None) })
        };
        let writes: Vec<Arc<QueuedWrite>> = ('a'..).zip(of).map(queued).collect();
        let own = [("own", None), ("own, dropped", Some(&keyspace))].map(|(key, of)| checked(&db, key, of));
        db.drop_keyspace("k").unwrap();
        let mut commit = store.writer.lock();
        let commit = commit.as_mut().unwrap();
        let (first, second) = writes.split_at(2);
        assert!(store.commit_own(commit, &own[0], None, first).is_ok());
        assert!(is_dropped(&store.commit_own(commit, &own[1], None, second)));
        for (write, of) in writes.iter().zip(of) {
            let result = write.result.lock().take().unwrap();
            assert_eq!((result.is_ok(), is_dropped(&result)), (of.is_none(), of.is_some()));
        }
        assert_eq!(db.keys(..).map(Result::unwrap).collect::<Vec<_>>(), [&b"a"[..], b"c", b"own"]);
    }

    #[test]
    fn a_key_is_not_changed_whose_keyspace_was_dropped_since_it_was_read() {
        let db = store();
        let keyspace = db.keyspace("k").unwrap();
        keyspace.put("x", "1").unwrap();
        let changed = keyspace.update("x", |value| {
            assert!(value.is_some());
            db.drop_keyspace("k").unwrap();
            crate::Change::Put(b"2".to_vec())
        });
        assert!(is_dropped(&changed));
    }

    /// Until the drop has returned, somebody may see the keyspace: no write to it commits then
    /// either.
    #[test]
    fn no_write_commits_to_a_keyspace_that_is_being_dropped() {
        let db = store();
        let (store, keyspace) = (db.store(), db.keyspace("k").unwrap());
        let dropping = store.writer.begin_dropping(vec![keyspace.id]);
        assert!(is_dropped(&keyspace.put("x", "1")));
        db.put("x", "1").unwrap();
        drop(dropping);
        keyspace.put("x", "1").unwrap();
    }
}
