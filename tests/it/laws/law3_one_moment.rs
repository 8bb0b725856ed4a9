//! Law 3: a read sees one moment, a number and a time. What it needs is registered before it is
//! needed.

mod leases;
mod operands;
mod options;
mod read_points;
