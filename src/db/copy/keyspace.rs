//! [`Db::copy_keyspace`]: a keyspace of any store becomes one of this store.
//!
//! ```text
//! a keyspace with another name  →  its entries, in batches  →  durable  →  the name given
//! ```
//!
//! The last step is one new manifest (`install_name`). Until then the keyspace has a name that says
//! that it is not whole, and the next copy to the same name drops it.

use std::sync::Arc;

use super::super::read::ReadOptions;
use super::super::store::Store;
use super::super::write::commit::Encoded;
use super::super::write::path::WriteOptions;
use super::super::{Db, Keyspace};
use crate::batch::WriteBatch;
use crate::error::{Error, Result};
use crate::report::progress::ProgressListener;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::tree::manifest::MAX_NAME_LEN;

/// At the end of a keyspace's name until it is whole.
const UNFINISHED: &str = " (being copied)";
/// A batch is written when it has this many bytes.
const BATCH_LEN: usize = 1 << 20;

/// What [`Db::copy_keyspace`] has copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceCopy {
    /// Number of keys.
    pub keys: u64,
    /// Bytes of keys, values and merge operands.
    pub bytes: u64,
}

impl Db {
    /// Copies a keyspace, of this store or of another one, to a new keyspace called `name`: its
    /// options, and its entries as of now with their deadlines. Merge operands stay operands, so
    /// that the operator need not be known. What has expired or is deleted is not copied.
    ///
    /// When this returns, the keyspace is there and survives a power cut. Until then, and after a
    /// crash, there is none of this name: what is being written has the name with
    /// `" (being copied)"` behind it, and the next copy to `name` drops it. After an error it is
    /// dropped at once.
    ///
    /// Fails with [`Error::InvalidArgument`] if there is a keyspace called `name`, if another copy
    /// into this store is under way, or if the source is what an interrupted copy to `name` has
    /// left: [`rename_keyspace`](Db::rename_keyspace) keeps that. A compaction filter is not stored
    /// and must be set anew.
    ///
    /// Tables state the name that the keyspace had when they were written. A
    /// [`repair`](crate::repair) of a store whose manifest is lost gives the keyspace that name
    /// back until a compaction has rewritten them: rename it before the next copy to `name`.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// use tamis::ProgressListener;
    ///
    /// let users = db.keyspace("users")?;
    /// users.put("7", "Ann")?;
    /// let copied = db.copy_keyspace(&users, "users of May", &ProgressListener::default())?;
    /// users.delete("7")?;
    /// assert_eq!(copied.keys, 1);
    /// assert!(db.keyspace("users of May")?.contains_key("7")?);
    /// # Ok(()) }
    /// ```
    pub fn copy_keyspace(&self, source: &Keyspace, name: &str, listener: &ProgressListener) -> Result<KeyspaceCopy> {
        if self.existing_keyspace(name)?.is_some() {
            return Err(Error::invalid(format_args!("there is a keyspace {name:?} already")));
        }
        let unfinished = unfinished(name);
        let _turn = Turn::take(&self.store().is_copying)?;
        if let Some(left) = self.existing_keyspace(&unfinished)?
            && Arc::ptr_eq(source.store(), left.store())
            && source.id() == left.id()
        {
            return Err(Error::invalid(format_args!("keyspace {unfinished:?} would be dropped: rename it")));
        }
        self.drop_keyspaces(&[&unfinished])?;
        let copied = self.copy_to(source, &unfinished, listener).and_then(|copied| {
            self.rename_keyspace(&unfinished, name)?;
            Ok(copied)
        });
        copied.inspect_err(|_| {
            // If this fails, the name says what it is.
            let _ = self.drop_keyspaces(&[&unfinished]);
        })
    }

    fn copy_to(&self, source: &Keyspace, name: &str, listener: &ProgressListener) -> Result<KeyspaceCopy> {
        let mut options = source.options()?;
        // That of this store's program, if it has one of the name.
        let operator = options.merge_operator.take();
        options.merge_operator = operator.map(|operator| self.store().options.operator_named(operator.name()));
        let target = self.keyspace_with(name, options)?;
        let (size, expected) = (source.approximate_size(..)?, source.approximate_len(..)?.max(1));
        let meter = listener.meter(size);
        let mut copied = KeyspaceCopy::default();
        let mut cursor = source.cursor_with(ReadOptions::new().fill_cache(false))?.unmerged();
        let (mut batch, mut told, mut valid) = (WriteBatch::new(), 0, cursor.seek_to_first()?);
        while let (true, Some(parts)) = (valid, cursor.parts()) {
            match (parts.value, parts.deadline) {
                (Some(value), Some(deadline)) => batch.put_with_expiry_in(&target, parts.key, value, deadline),
                (Some(value), None) => batch.put_in(&target, parts.key, value),
                (None, _) => {}
            }
            parts.operands.iter().for_each(|operand| batch.merge_in(&target, parts.key, operand));
            let lens = parts.operands.iter().map(Vec::len).sum::<usize>() + parts.value.map_or(0, <[u8]>::len);
            copied.keys += 1;
            copied.bytes += (parts.key.len() + lens) as u64;
            valid = cursor.next()?;
            if batch.byte_size() >= BATCH_LEN || !valid {
                self.store().write_copied(std::mem::take(&mut batch))?;
                let done = u128::from(size) * u128::from(copied.keys) / u128::from(expected);
                let done = u64::try_from(done).unwrap_or(size);
                meter.add(done.saturating_sub(told));
                told = done;
            }
        }
        // In tables, also without a log.
        target.flush()?;
        meter.finish();
        Ok(copied)
    }
}

impl Store {
    /// Writes what a store has accepted before: puts without a deadline have none, and the operator
    /// of operands need not be known.
    fn write_copied(self: &Arc<Self>, batch: WriteBatch) -> Result<()> {
        let as_of = self.writer.keyspaces_as_of();
        self.check_form(&batch)?;
        if batch.is_empty() {
            return Ok(());
        }
        let logged = self.logged_part(&batch, WriteOptions::new(), as_of)?;
        self.write_unconditionally(Encoded::of(batch, logged, false)).map(drop)
    }
}

/// The turn of a copy: while it lasts, no other one drops or renames what this one writes.
struct Turn<'a>(&'a AtomicBool);

impl Turn<'_> {
    fn take(is_copying: &AtomicBool) -> Result<Turn<'_>> {
        match is_copying.swap(true, Ordering::AcqRel) {
            true => Err(Error::invalid("another keyspace is being copied into the store")),
            false => Ok(Turn(is_copying)),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// What a keyspace is called before it may be called `name`.
fn unfinished(name: &str) -> String {
    let fits = (0..=name.len().min(MAX_NAME_LEN - UNFINISHED.len())).rev();
    let end = fits.into_iter().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    format!("{}{UNFINISHED}", &name[..end])
}
