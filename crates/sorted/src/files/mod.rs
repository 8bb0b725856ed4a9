//! The files of tables and values: how they are written, which are open, and when they are removed.

mod graveyard;
mod janitor;
mod pool;
mod stored;
mod thrifty;
mod writer;

pub use graveyard::Graveyard;
pub use janitor::Janitor;
pub use pool::{FilePool, OpenFiles};
pub use stored::{StoredFile, is_passing, lacks_descriptors};
pub use thrifty::ThriftyFileSystem;
pub use writer::{CHARGE_STEP, FileWriter, WRITE_LEN};

/// How blocks of tables, and separate values, are read from disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ReadMode {
    /// By a copy, which is verified: from the system's page cache without a system call where that
    /// is safe, and otherwise as with [`ReadMode::Pread`]. The default.
    ///
    /// Files are mapped into memory on 64-bit Linux, on Btrfs, ext4, F2FS, XFS, bcachefs, overlayfs
    /// and tmpfs, unless the process has a limit on its address space; 16,384 at most. Blocks are
    /// only copied from there. A random read beyond the cache takes half the time
    /// (docs/PERFORMANCE.md).
    ///
    /// A page that cannot be read, because the disk fails or another program has shortened the
    /// file, then causes SIGBUS. The store installs a handler for that signal, which ends the copy:
    /// the block is read once more by a system call, whose error is returned. Any other SIGBUS goes
    /// to the handler that was there before. If the program installs another handler later, or
    /// blocks the signal in a thread, that thread soon notices and reads with system calls; choose
    /// [`ReadMode::Pread`] if it may happen.
    ///
    /// The pages are the system's, as those of ordinary reads are, but tools show them as resident
    /// memory of the process (`RssFile`), and a program that locks all of its memory (`mlockall`)
    /// locks them, too.
    #[default]
    Auto,
    /// By a system call for each block, or for many when a scan is long. Nothing is mapped, and no
    /// signal handler installed. To compare disk reads with what the system counts, use this.
    Pread,
    /// In place, from mapped files: uncompressed blocks are not copied at all.
    ///
    /// For data that exceeds the cache but not memory, on disks that do not fail. With 580 MB of
    /// data and a cache of 256 MiB, random reads and seeks are about twice as fast as with
    /// [`ReadMode::Pread`] (docs/PERFORMANCE.md). The cache then serves only compressed tables,
    /// whose blocks still go through it.
    ///
    /// What it costs:
    /// - A disk that fails while a page is read again ends the process by SIGBUS instead of
    ///   returning an error. The first read of each block is an ordinary one, whose errors are
    ///   returned.
    /// - No other program may write to the store's files while it is open. Otherwise that shows as
    ///   damage; here, the behaviour is undefined. Shortening a file ends the process.
    /// - A block is verified once, when it is first read, until the store is reopened. If the
    ///   system drops the page and the disk is damaged later, the damage goes unnoticed and may be
    ///   returned as data.
    /// - The memory of mapped pages is the system's: no limit of the store bounds it, and its
    ///   statistics do not show it. When others need memory, the system takes pages back, and
    ///   hardly distinguishes those in use.
    /// - Reading a dropped page again is not counted. The first read of a block counts as
    ///   `block_reads` and every later one as `cache_hits`, as if the cache were unbounded.
    ///
    /// Tables that cannot be mapped are read with system calls: if the file system or the system
    /// refuses, on 32-bit systems, and beyond 16,384 mapped files.
    Mmap,
}
