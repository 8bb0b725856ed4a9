//! Storage for [openraft](https://docs.rs/openraft/0.9) over tamis: a [`LogStore`] and a
//! [`StateStore`], for one Raft group or for many groups in one [`Store`].
//!
//! A program says what its entries do, by a [`StateMachine`]; `examples/counters.rs` is a whole
//! one.
//!
//! - **One store for all groups.** One thread ([`Syncer`]) syncs what all of them have appended:
//!   with many groups, a sync serves many appends.
//! - **The state has no log of its own**: the Raft log is its log. Entries are written once, and
//!   applied again after a crash from where the state was last flushed. The log keeps what is not
//!   flushed, whatever openraft purges.
//! - **A leader that starts again** must call [`LogStore::end_lead`] first, or it answers reads
//!   without what others have committed meanwhile.
//! - **A snapshot costs no space** where it is sent: it is a [`View`], sent pair by pair. It is
//!   received beside the state in use, and replaces it by one synced write.
//!
//! It passes openraft's own suite. Its tests cut the power at each call to the disk, and plant bugs
//! in front of it that the suite and these tests must see.
//!
//! A module uses only modules listed above it:
//!
//! ```text
//! error     what can go wrong
//! store     the keyspaces of a node
//! snapshot  a group's state on its way to another node
//! state     the state of a group
//! log       the log of a group
//! ```

mod error;
mod log;
mod snapshot;
mod state;
mod store;

pub use error::{Error, Result};
pub use log::{Appending, Events, LogStore, Syncer, delete_entries, last_entry, read_entries};
pub use snapshot::{Piece, Pieces, SnapshotData, Staging, View};
pub use state::{DiskWait, Position, Progress, SnapshotBuilder, State, StateMachine, StateStore, positions};
pub use store::{Item, Store, decode, encode};

/// Id of an entry.
pub type LogId<C> = openraft::LogId<<C as openraft::RaftTypeConfig>::NodeId>;

/// Runs what may wait for the disk. Other tasks of a runtime with several threads go on meanwhile.
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
