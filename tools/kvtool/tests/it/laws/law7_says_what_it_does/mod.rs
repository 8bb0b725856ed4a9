//! Law 7: the tool means what it says. No flag is ignored, no ambiguous input decided silently,
//! and each error names its cure.

mod cures;
mod flags;
mod lines;
mod operands;
