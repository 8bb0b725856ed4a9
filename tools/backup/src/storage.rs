//! [`Storage`]: what a repository needs of the place where it keeps its objects.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use tamis::vfs::FileLock;
use tamis::{Error, Result};

/// Takes the pieces of an object, in order.
pub type Take<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Gives the content of an object to a [`Take`]. It may be called again, from the beginning.
pub type Fill<'a> = dyn FnMut(&mut Take<'_>) -> Result<()> + 'a;

/// An object in a [`Storage`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name, with its folder.
    pub name: String,
    /// Its length in bytes.
    pub size: u64,
    /// When it was written. `None` if nobody can be writing any: the caller holds the lock.
    pub modified: Option<SystemTime>,
}

/// Where a repository keeps its objects.
///
/// Names are `REPOSITORY`, or a folder, a slash and a name of letters, digits, dots and hyphens. An
/// object appears whole and durable, or not at all, and is not changed afterwards: writing one
/// again writes the same bytes. Whoever lists or reads after a call has returned sees its effect.
pub trait Storage: Send + Sync + fmt::Debug {
    /// Where an object is, for messages; the storage itself for an empty name.
    fn path(&self, name: &str) -> PathBuf;

    /// Makes the storage ready for a new repository. Fails if it holds anything but what an earlier
    /// attempt has left.
    fn prepare(&self) -> Result<()>;

    /// Called before writes. Keeps other writers out until the result is dropped, if the storage
    /// can; fails with [`Error::Locked`] if another writer does.
    ///
    /// Without a lock, [`put_new`](Storage::put_new) must be atomic.
    fn begin(&self) -> Result<Option<Box<dyn FileLock>>>;

    /// The objects in a folder, in any order; none if it is absent.
    fn list(&self, folder: &str) -> Result<Vec<Listed>>;

    /// Gives an object to `take`, in pieces. An absent one is [`Error::Io`] of kind `NotFound`.
    fn read(&self, name: &str, take: &mut Take<'_>) -> Result<()>;

    /// Whether there is an object of this name. By default, it is read up to its first piece.
    fn exists(&self, name: &str) -> Result<bool> {
        let mut is_there = false;
        let read = self.read(name, &mut |_| {
            is_there = true;
            Err(Error::Closed)
        });
        match read {
            Err(error) if is_absent(&error) => Ok(false),
            Err(_) if is_there => Ok(true),
            read => read.map(|()| true),
        }
    }

    /// Writes an object, in place of one of that name.
    fn put(&self, name: &str, fill: &mut Fill<'_>) -> Result<()>;

    /// Writes an object unless there is one of that name; returns whether it was written. `false`
    /// may also mean that an earlier attempt of this call has written it, or that another call was
    /// under way: the caller reads what is there.
    fn put_new(&self, name: &str, content: &[u8]) -> Result<bool>;

    /// Removes objects. One that is absent is no error.
    fn remove(&self, names: &[String]) -> Result<()>;
}

/// Whether an object is absent.
pub(crate) fn is_absent(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}
