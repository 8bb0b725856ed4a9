//! The files of tables and values: which are open, and when they are removed.

mod graveyard;
mod janitor;
mod pool;

pub(crate) use graveyard::Graveyard;
pub(crate) use janitor::Janitor;
pub(crate) use pool::FilePool;
