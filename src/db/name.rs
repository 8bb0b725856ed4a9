//! [`KeyspaceName`]: the name of a keyspace in snapshots and transactions.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::tree::manifest::DEFAULT_KEYSPACE;

/// A keyspace's name, as snapshots keep it. That of the default keyspace needs no count of
/// references, which threads would share.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeyspaceName {
    Default,
    Named(Arc<str>),
}

impl KeyspaceName {
    /// The name of keyspace number `id`.
    pub(super) fn new(id: u32, name: &Arc<str>) -> KeyspaceName {
        if id == 0 { KeyspaceName::Default } else { KeyspaceName::Named(Arc::clone(name)) }
    }
}

impl Deref for KeyspaceName {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            KeyspaceName::Default => DEFAULT_KEYSPACE,
            KeyspaceName::Named(name) => name,
        }
    }
}

impl fmt::Debug for KeyspaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
