//! The files of tables and values: how they are written, which are open, and when they are removed.

mod graveyard;
mod janitor;
mod pool;
mod writer;

pub(crate) use graveyard::Graveyard;
pub(crate) use janitor::Janitor;
pub(crate) use pool::{FilePool, OpenFiles};
pub(crate) use writer::{FileWriter, WRITE_LEN};
