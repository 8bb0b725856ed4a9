//! The filter that a table carries: built with the table, kept in memory, asked before its index.

pub(crate) mod bank;
pub(crate) mod builder;
mod hash_list;
pub(crate) mod info;
pub(crate) mod outline;
pub(crate) mod reader;
