//! [`Clock`]: a bounded map with clock eviction.

use std::collections::HashMap;
use std::hash::Hash;

/// A map whose entries' charges never add up to more than its capacity.
///
/// A new entry is unreferenced, so a stream of entries that are used once evicts only its own
/// entries.
pub(super) struct Clock<K, V> {
    positions: HashMap<K, usize>,
    slots: Vec<Option<Slot<K, V>>>,
    /// Positions of `slots` that are `None`.
    free: Vec<usize>,
    hand: usize,
    used: usize,
    capacity: usize,
}

struct Slot<K, V> {
    key: K,
    value: V,
    charge: usize,
    referenced: bool,
}

impl<K: Copy + Eq + Hash, V> Clock<K, V> {
    pub(super) fn new(capacity: usize) -> Clock<K, V> {
        Clock { positions: HashMap::new(), slots: Vec::new(), free: Vec::new(), hand: 0, used: 0, capacity }
    }

    /// Sum of the entries' charges.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn get(&mut self, key: &K) -> Option<&V> {
        let slot = self.slots[*self.positions.get(key)?].as_mut()?;
        slot.referenced = true;
        Some(&slot.value)
    }

    /// Inserts an entry, replacing one with the same key, unless its charge exceeds the whole
    /// capacity.
    pub(super) fn insert(&mut self, key: K, value: V, charge: usize) {
        self.remove(&key);
        if charge > self.capacity {
            return;
        }
        while self.used > self.capacity - charge {
            self.evict();
        }
        let slot = Some(Slot { key, value, charge, referenced: false });
        let position = match self.free.pop() {
            Some(position) => {
                self.slots[position] = slot;
                position
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.positions.insert(key, position);
        self.used += charge;
    }

    pub(super) fn remove(&mut self, key: &K) {
        if let Some(&position) = self.positions.get(key) {
            self.vacate(position);
        }
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&K) -> bool) {
        for position in 0..self.slots.len() {
            if self.slots[position].as_ref().is_some_and(|slot| !keep(&slot.key)) {
                self.vacate(position);
            }
        }
    }

    /// Evicts the first unreferenced entry from the hand on. The map must not be empty.
    fn evict(&mut self) {
        loop {
            let position = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            match &mut self.slots[position] {
                Some(slot) if slot.referenced => slot.referenced = false,
                Some(_) => return self.vacate(position),
                None => {}
            }
        }
    }

    fn vacate(&mut self, position: usize) {
        if let Some(slot) = self.slots[position].take() {
            self.positions.remove(&slot.key);
            self.free.push(position);
            self.used -= slot.charge;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn capacity_is_never_exceeded(steps in prop::collection::vec((0u8..20, 0usize..12, 0u8..4), 0..200)) {
            let mut clock = Clock::new(30);
            let mut charges = HashMap::new();
            for (key, charge, step) in steps {
                match step {
                    0 => clock.remove(&key),
                    1 => clock.retain(|other| other % 5 != key % 5),
                    2 => {
                        prop_assert!(clock.get(&key).is_none_or(|value| *value == charges[&key]));
                    }
                    _ => {
                        clock.insert(key, charge, charge);
                        charges.insert(key, charge);
                        prop_assert_eq!(clock.get(&key), Some(&charge));
                    }
                }
                let sum: usize = clock.positions.keys().map(|key| charges[key]).sum();
                prop_assert_eq!(clock.used(), sum);
                prop_assert!(sum <= 30);
            }
        }
    }

    #[test]
    fn referenced_entries_survive_a_stream_of_others() {
        let mut clock = Clock::new(10);
        for key in 0..10 {
            clock.insert(key, (), 1);
        }
        for key in 100..1000 {
            for hot in 0..5 {
                assert!(clock.get(&hot).is_some(), "{hot} is gone at {key}");
            }
            clock.insert(key, (), 1);
        }
    }

    #[test]
    fn an_entry_larger_than_the_capacity_replaces_nothing_but_itself() {
        let mut clock = Clock::new(10);
        clock.insert(1, 'a', 5);
        clock.insert(2, 'b', 5);
        clock.insert(1, 'c', 11);
        assert_eq!(clock.get(&1), None);
        assert_eq!(clock.get(&2), Some(&'b'));
    }
}
