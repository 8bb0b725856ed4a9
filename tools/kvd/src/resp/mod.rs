//! The server: connections, limits, users, replies.
//!
//! [`Server`] accepts connections; each is served by one task, which reads commands, has them
//! carried out by a [`Replica`](crate::replica::Replica), and writes replies in the order of the
//! commands. Writes of one connection that follow each other are in flight together. Linearizable
//! reads wait for the writes before them and for one barrier of their group.

mod catalogue;
mod clients;
mod cluster;
mod config;
mod connection;
mod decode;
mod dialogue;
mod encode;
mod info;
mod memory;
mod metrics;
mod monitor;
mod server;
mod settings;
mod shared;
mod slow;
mod tls;
mod transaction;
mod users;

pub use config::{Config, Gate, Limits};
pub use decode::DecodeLimits;
pub use metrics::{Durations, Metrics};
pub use server::{BindError, Server};
pub use settings::set_limits;
pub use tls::{Tls, TlsError};
pub use users::{Access, User, Users, UsersError, hash_password};
