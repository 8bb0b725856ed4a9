//! Law 3: a read sees one moment, a number and a time. What it needs is registered before it is
//! needed.

mod lives;
mod operands;
