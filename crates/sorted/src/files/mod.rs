//! The files of tables and values: how they are written, which are open, and when they are removed.

mod graveyard;
mod janitor;
mod pool;
mod writer;

pub use graveyard::Graveyard;
pub use janitor::Janitor;
pub use pool::{FilePool, OpenFiles};
pub use writer::{FileWriter, WRITE_LEN};
