//! A workload whose answers are known: keys to load and to ask for, a store of them with several levels, and what asking takes.
//! Shared by `demo` and `bench`.

pub(crate) mod keys;
pub(crate) mod load;
pub(crate) mod measure;
pub(crate) mod process;
