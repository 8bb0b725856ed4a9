//! [`PersistentMap`]: an ordered map whose copies share what they have in common.
//!
//! A copy costs one reference count. A change copies the path from the root to one leaf, a few
//! dozen entries whatever the size of the map, and only the nodes of the path that a copy still
//! shares. Views of a store with thousands of keyspaces are replaced at each flush: they must not
//! cost their number.
//!
//! A B+-tree without rebalancing: nodes split when they are full, and go when they are empty. Ids
//! of keyspaces ascend, so that the depth stays that of the greatest size.

use std::borrow::Borrow;
use std::sync::Arc;

/// Most entries of a node.
const WIDTH: usize = 32;

pub(super) struct PersistentMap<K, V> {
    root: Arc<MapNode<K, V>>,
    len: usize,
}

#[derive(Clone)]
enum MapNode<K, V> {
    /// In the order of the keys.
    Leaf(Vec<(K, V)>),
    /// Children that are not empty, each with a key that is not greater than its first one.
    Inner(Vec<(K, Arc<MapNode<K, V>>)>),
}

/// A new node to the right of a full one, with its first key.
type Split<K, V> = Option<(K, Arc<MapNode<K, V>>)>;

impl<K, V> Default for PersistentMap<K, V> {
    fn default() -> PersistentMap<K, V> {
        PersistentMap { root: Arc::new(MapNode::Leaf(Vec::new())), len: 0 }
    }
}

impl<K, V> Clone for PersistentMap<K, V> {
    fn clone(&self) -> PersistentMap<K, V> {
        PersistentMap { root: Arc::clone(&self.root), len: self.len }
    }
}

impl<K: Ord + Clone, V: Clone> PersistentMap<K, V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut node = &*self.root;
        loop {
            match node {
                MapNode::Leaf(entries) => {
                    let at = entries.binary_search_by(|(other, _)| other.borrow().cmp(key)).ok()?;
                    return Some(&entries.get(at)?.1);
                }
                MapNode::Inner(children) => {
                    let behind = children.partition_point(|(first, _)| first.borrow() <= key);
                    node = &children.get(behind.checked_sub(1)?)?.1;
                }
            }
        }
    }

    /// Sets the value of a key; returns the former one.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (former, split) = MapNode::insert(&mut self.root, key, value);
        self.len += usize::from(former.is_none());
        if let Some(right) = split {
            let left = Arc::clone(&self.root);
            // The root's first key is never compared: see `MapNode::child_of`.
            let first = left.first().cloned().unwrap_or_else(|| right.0.clone());
            self.root = Arc::new(MapNode::Inner(vec![(first, left), right]));
        }
        former
    }

    /// Removes a key; returns its value.
    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        // Copies nothing for a key that is not there.
        self.get(key)?;
        let removed = MapNode::remove(&mut self.root, key);
        self.len -= usize::from(removed.is_some());
        loop {
            let only = match &*self.root {
                MapNode::Inner(children) if children.is_empty() => Arc::new(MapNode::Leaf(Vec::new())),
                MapNode::Inner(children) if children.len() == 1 => Arc::clone(&children[0].1),
                MapNode::Inner(_) | MapNode::Leaf(_) => return removed,
            };
            self.root = only;
        }
    }

    /// The values in the order of their keys.
    pub(super) fn values(&self) -> Values<'_, K, V> {
        Values { path: vec![(&self.root, 0)] }
    }
}

impl<K: Ord + Clone, V: Clone> MapNode<K, V> {
    fn first(&self) -> Option<&K> {
        match self {
            MapNode::Leaf(entries) => entries.first().map(|(key, _)| key),
            MapNode::Inner(children) => children.first().map(|(key, _)| key),
        }
    }

    /// The child that holds `key`, or would. The first one takes smaller keys, too.
    fn child_of<Q: Ord + ?Sized>(children: &[(K, Arc<MapNode<K, V>>)], key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        children.partition_point(|(first, _)| first.borrow() <= key).saturating_sub(1)
    }

    fn insert(this: &mut Arc<MapNode<K, V>>, key: K, value: V) -> (Option<V>, Split<K, V>) {
        match Arc::make_mut(this) {
            MapNode::Leaf(entries) => match entries.binary_search_by(|(other, _)| other.cmp(&key)) {
                Ok(at) => (Some(std::mem::replace(&mut entries[at].1, value)), None),
                Err(at) => {
                    entries.insert(at, (key, value));
                    (None, split(entries, MapNode::Leaf))
                }
            },
            MapNode::Inner(children) => {
                let at = MapNode::child_of(children, &key);
                if key < children[at].0 {
                    children[at].0 = key.clone();
                }
                let (former, right) = MapNode::insert(&mut children[at].1, key, value);
                if let Some(right) = right {
                    children.insert(at + 1, right);
                }
                (former, split(children, MapNode::Inner))
            }
        }
    }

    fn remove<Q: Ord + ?Sized>(this: &mut Arc<MapNode<K, V>>, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        match Arc::make_mut(this) {
            MapNode::Leaf(entries) => {
                let at = entries.binary_search_by(|(other, _)| other.borrow().cmp(key)).ok()?;
                Some(entries.remove(at).1)
            }
            MapNode::Inner(children) => {
                let at = MapNode::child_of(children, key);
                let removed = MapNode::remove(&mut children.get_mut(at)?.1, key);
                if children[at].1.first().is_none() {
                    children.remove(at);
                }
                removed
            }
        }
    }
}

/// Moves what a full node has too many of to a new one. The new node gets few if entries are added
/// at the end, as those of ascending keys are: nodes are then three quarters full.
fn split<K: Clone, T, V>(entries: &mut Vec<(K, T)>, node: impl Fn(Vec<(K, T)>) -> MapNode<K, V>) -> Split<K, V> {
    if entries.len() <= WIDTH {
        return None;
    }
    let right = entries.split_off(WIDTH * 3 / 4);
    let first = right.first()?.0.clone();
    Some((first, Arc::new(node(right))))
}

/// See [`PersistentMap::values`].
pub(super) struct Values<'a, K, V> {
    /// From the root to a leaf: nodes with the position of the next entry or child.
    path: Vec<(&'a MapNode<K, V>, usize)>,
}

impl<'a, K, V> Iterator for Values<'a, K, V> {
    type Item = &'a V;

    fn next(&mut self) -> Option<&'a V> {
        loop {
            let (node, at) = self.path.last_mut()?;
            *at += 1;
            match *node {
                MapNode::Leaf(entries) => {
                    if let Some((_, value)) = entries.get(*at - 1) {
                        return Some(value);
                    }
                }
                MapNode::Inner(children) => {
                    if let Some((_, child)) = children.get(*at - 1) {
                        self.path.push((child, 0));
                        continue;
                    }
                }
            }
            self.path.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_map_and_its_copies_are_those_of_the_standard_library(
            changes in prop::collection::vec((0u32..400, prop::option::of(any::<u8>())), 0..600),
        ) {
            let (mut map, mut model) = (PersistentMap::default(), BTreeMap::new());
            let mut copies = Vec::new();
            for (i, (key, value)) in changes.into_iter().enumerate() {
                match value {
                    Some(value) => prop_assert_eq!(map.insert(key, value), model.insert(key, value)),
                    None => prop_assert_eq!(map.remove(&key), model.remove(&key)),
                }
                if i % 50 == 0 {
                    copies.push((map.clone(), model.clone()));
                }
            }
            for (map, model) in copies.into_iter().chain([(map, model)]) {
                prop_assert_eq!(map.len(), model.len());
                prop_assert!(map.values().eq(model.values()));
                prop_assert!((0..400).all(|key| map.get(&key) == model.get(&key)));
            }
        }
    }

    /// How many entries the tree has on the longest path, children included.
    fn longest_path<K, V>(node: &MapNode<K, V>) -> usize {
        match node {
            MapNode::Leaf(entries) => entries.len(),
            MapNode::Inner(children) => {
                children.len() + children.iter().map(|(_, child)| longest_path(child)).max().unwrap_or(0)
            }
        }
    }

    #[test]
    fn law2_a_change_copies_few_entries_of_the_largest_map_issue_29() {
        let mut map = PersistentMap::default();
        for key in 0..65_535u32 {
            map.insert(key * 3, ());
        }
        let all: Vec<u32> = (0..65_535).map(|key| key * 3).collect();
        assert!(longest_path(&map.root) <= 4 * WIDTH);
        let copy = map.clone();
        all.iter().for_each(|key| map.remove(key).unwrap());
        assert_eq!((map.len(), map.values().count(), longest_path(&map.root)), (0, 0, 0));
        assert_eq!((copy.len(), copy.values().count()), (65_535, 65_535));
    }
}
