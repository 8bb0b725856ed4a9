//! Law 3: a read sees one moment, a number and a time. What it needs is registered before it is
//! needed.

mod leases;
mod lives;
mod operands;
mod options;
mod read_points;
