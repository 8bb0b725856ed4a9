//! [`Config`]: what a server is told when it starts.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::decode::DecodeLimits;
use super::tls::Tls;
use super::users::Users;
use crate::machine::MAX_VALUE_LEN;

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

/// Who may connect, as it is now. Clones are one.
#[derive(Clone)]
pub struct Gate(Arc<RwLock<Known>>);

struct Known {
    users: Option<Arc<Users>>,
    tls: Option<Tls>,
}

impl Known {
    fn of(config: &Config) -> Known {
        Known { users: config.users.clone(), tls: config.tls.clone() }
    }
}

impl Gate {
    pub(super) fn of(config: &Config) -> Gate {
        Gate(Arc::new(RwLock::new(Known::of(config))))
    }

    /// Has users and TLS be those of `config` for what comes from now on. Clients that have
    /// authenticated, and their connections, stay.
    pub fn replace(&self, config: &Config) {
        *self.0.write() = Known::of(config);
    }

    pub(super) fn users(&self) -> Option<Arc<Users>> {
        self.0.read().users.clone()
    }

    pub(super) fn tls(&self) -> Option<Tls> {
        self.0.read().tls.clone()
    }

    /// Whether there is a user of this name. Without a list of users, there is `default`.
    pub(super) fn knows_user(&self, name: &[u8]) -> bool {
        self.users().map_or(name == b"default", |users| users.has(name))
    }
}

/// Bounds of what clients may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most connections; others get an error and are closed.
    pub connections: usize,
    /// Most words and bytes of a command.
    pub command: DecodeLimits,
    /// Longest word of a command, in bytes: at most [`MAX_VALUE_LEN`].
    pub value: usize,
    /// Memory that long commands, replies and transactions of all connections share, in bytes.
    /// Those of up to 16 KiB use none of it. One command at a time may use its own length beyond
    /// it.
    pub shared_bytes: usize,
    /// The part of it that one connection may use.
    pub client_bytes: usize,
    /// Most commands of one connection that are in flight.
    pub in_flight: usize,
    /// After this long without a command, a connection is closed; `None`: never.
    pub idle: Option<Duration>,
    /// After this long in the middle of a command, a TLS handshake or a reply without a byte moved,
    /// a connection is closed. Likewise if the client does not authenticate.
    pub stall: Duration,
    /// How long a stop waits for commands in flight.
    pub stop: Duration,
    /// How stale the reads may be of a client that has said READONLY.
    pub stale: Duration,
    /// Commands that take longer are kept by the slow log; `None`: none are.
    pub slow: Option<Duration>,
    /// How many of them.
    pub slow_kept: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 10_000,
            command: DecodeLimits { words: 65_536, bytes: 32 << 20 },
            value: MAX_VALUE_LEN,
            shared_bytes: 256 << 20,
            client_bytes: 128 << 20,
            in_flight: 512,
            idle: None,
            stall: Duration::from_secs(30),
            stop: Duration::from_secs(10),
            stale: Duration::from_secs(1),
            slow: Some(Duration::from_millis(100)),
            slow_kept: 128,
        }
    }
}
