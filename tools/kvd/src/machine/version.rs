//! [`Version`]: which entries, snapshots and messages a node can read.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A step in what nodes write into logs and send to each other. Each version can read all before.
///
/// A group writes nothing that is newer than its version, which its leader raises once all members
/// say that they know the next one. An operation, query or message that comes with a new version
/// must say so in `version()` of [`Request`](super::Request) or of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(u8);

impl Version {
    /// What every node can read.
    pub const FIRST: Version = Version(1);
    /// All commands of Redis 7.2 for strings and keys, `SET IFEQ`, and the time on the wall.
    pub const REDIS_7_2: Version = Version(2);
    /// What this program can read.
    pub const LATEST: Version = Version::REDIS_7_2;

    /// The version with a number.
    pub const fn new(number: u8) -> Version {
        Version(number)
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
