//! [`FormerNames`]: what keyspaces are not called any more, for errors.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Ids of dropped or renamed keyspaces, with their former names as long as handles keep them. A
/// handle keeps the name by which it was asked for.
#[derive(Default)]
pub(super) struct FormerNames {
    names: HashMap<u32, Vec<Weak<str>>>,
    /// The size at which names without handles are removed: amortised, each costs one look.
    purge_at: usize,
}

fn are_kept(names: &mut Vec<Weak<str>>) -> bool {
    names.retain(|name| name.strong_count() > 0);
    !names.is_empty()
}

impl FormerNames {
    pub(super) fn add(&mut self, id: u32, name: &Arc<str>) {
        if self.names.len() >= self.purge_at {
            self.names.retain(|_, names| are_kept(names));
            self.purge_at = 2 * self.names.len() + 16;
        }
        let names = self.names.entry(id).or_default();
        are_kept(names);
        names.push(Arc::downgrade(name));
    }

    /// The last name of a dropped keyspace that a handle keeps.
    pub(super) fn name(&self, id: u32) -> Option<Arc<str>> {
        self.names.get(&id)?.iter().rev().find_map(Weak::upgrade)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }
}
