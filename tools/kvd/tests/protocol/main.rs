//! The server over one replica without others: does it answer as Redis does, and stay within its
//! bounds?
#![allow(clippy::unwrap_used, reason = "tests")]

mod clients;
mod cluster;
mod commands;
mod expiry;
mod limits;
mod outcomes;
mod own;
mod redis;
mod scan;
mod security;
mod stop;
mod support;
mod transactions;
