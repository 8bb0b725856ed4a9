//! Law 2: nothing waits while it holds the commit lock; no cost grows with something that no
//! option bounds; every retry has a bound.

mod keyspaces;
mod memory;
mod ranges;
mod retries;
mod waits;
