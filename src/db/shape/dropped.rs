//! [`DroppedNames`]: what dropped keyspaces were called, for errors.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Ids of dropped keyspaces, with their names as long as handles keep them.
#[derive(Default)]
pub(super) struct DroppedNames {
    names: HashMap<u32, Weak<str>>,
    /// The size at which names without handles are removed: amortised, each costs one look.
    purge_at: usize,
}

impl DroppedNames {
    pub(super) fn add(&mut self, id: u32, name: &Arc<str>) {
        if self.names.len() >= self.purge_at {
            self.names.retain(|_, name| name.strong_count() > 0);
            self.purge_at = 2 * self.names.len() + 16;
        }
        self.names.insert(id, Arc::downgrade(name));
    }

    pub(super) fn name(&self, id: u32) -> Option<Arc<str>> {
        self.names.get(&id)?.upgrade()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }
}
