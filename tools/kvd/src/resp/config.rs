//! [`Config`]: what a server is told when it starts.

use std::sync::Arc;
use std::time::Duration;

use super::decode::DecodeLimits;
use super::tls::Tls;
use super::users::Users;

/// Who may connect, and what they may use.
#[derive(Clone, Default)]
pub struct Config {
    /// Users, one of whom every client must authenticate as; `None`: clients need not.
    pub users: Option<Arc<Users>>,
    /// TLS; `None`: connections are not encrypted.
    pub tls: Option<Tls>,
    /// Whether to listen beyond loopback although anybody may connect and write.
    pub open_to_all: bool,
    /// Bounds.
    pub limits: Limits,
}

/// Bounds of what clients may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most connections; others get an error and are closed.
    pub connections: usize,
    /// Most words and bytes of a command.
    pub command: DecodeLimits,
    /// Memory that long commands, replies and transactions of all connections share, in bytes.
    /// Those of up to 16 KiB use none of it.
    pub shared_bytes: usize,
    /// Most commands of one connection that are in flight.
    pub in_flight: usize,
    /// After this long without a command, a connection is closed; `None`: never.
    pub idle: Option<Duration>,
    /// After this long in the middle of a command, a TLS handshake or a reply without a byte moved,
    /// a connection is closed. Likewise if the client does not authenticate.
    pub stall: Duration,
    /// How long a stop waits for commands in flight.
    pub stop: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 10_000,
            command: DecodeLimits { words: 65_536, bytes: 32 << 20 },
            shared_bytes: 256 << 20,
            in_flight: 512,
            idle: None,
            stall: Duration::from_secs(30),
            stop: Duration::from_secs(10),
        }
    }
}
