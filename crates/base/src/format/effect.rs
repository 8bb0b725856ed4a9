//! [`Effect`]: what an entry of a memtable or of a table does to its key.

use super::deadline::{Deadline, split_expiring};
use super::key::ValueKind;

/// One of three things. Whether a value expires and where it lies are attributes of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect<'a> {
    Put(Put<'a>),
    Delete,
    /// An operand changes the value; as the entry stores it.
    Merge(&'a [u8]),
}

/// A value that a key was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put<'a> {
    /// From then on, the put is a delete.
    pub deadline: Option<Deadline>,
    pub value: ValuePlace<'a>,
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValuePlace<'a> {
    /// In the entry.
    Entry(&'a [u8]),
    /// In a value file, to which this encoded pointer leads.
    ValueFile(&'a [u8]),
}

impl<'a> Effect<'a> {
    /// An entry of this kind with these bytes, which have been verified.
    #[inline]
    pub fn of(kind: ValueKind, stored: &'a [u8]) -> Effect<'a> {
        let put = |deadline, value| Effect::Put(Put { deadline, value });
        match kind {
            ValueKind::Put => put(None, ValuePlace::Entry(stored)),
            ValueKind::Delete => Effect::Delete,
            ValueKind::Merge => Effect::Merge(stored),
            ValueKind::ExpiringPut => {
                let (deadline, value) = split_expiring(stored);
                put(Some(deadline), ValuePlace::Entry(value))
            }
            ValueKind::SeparatePut => put(None, ValuePlace::ValueFile(stored)),
            ValueKind::SeparateExpiringPut => {
                let (deadline, pointer) = split_expiring(stored);
                put(Some(deadline), ValuePlace::ValueFile(pointer))
            }
        }
    }
}

impl Put<'_> {
    /// Whether the deadline has passed at time `at`.
    #[inline]
    pub fn has_expired(&self, at: Deadline) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::deadline::put_expiring;

    #[test]
    fn an_entry_is_what_its_kind_and_bytes_say() {
        let put = |deadline, value| Effect::Put(Put { deadline, value });
        let mut expiring = Vec::new();
        put_expiring(&mut expiring, 7, b"v");
        assert_eq!(Effect::of(ValueKind::Put, b"v"), put(None, ValuePlace::Entry(b"v")));
        assert_eq!(Effect::of(ValueKind::SeparatePut, b"v"), put(None, ValuePlace::ValueFile(b"v")));
        assert_eq!(Effect::of(ValueKind::ExpiringPut, &expiring), put(Some(7), ValuePlace::Entry(b"v")));
        assert_eq!(Effect::of(ValueKind::SeparateExpiringPut, &expiring), put(Some(7), ValuePlace::ValueFile(b"v")));
        assert_eq!(Effect::of(ValueKind::Delete, b""), Effect::Delete);
        assert_eq!(Effect::of(ValueKind::Merge, b"v"), Effect::Merge(b"v"));
    }

    #[test]
    fn a_put_expires_with_its_deadline() {
        let put = |deadline| Put { deadline, value: ValuePlace::Entry(b"") };
        assert_eq!([6, 7, 8].map(|at| put(Some(7)).has_expired(at)), [false, true, true]);
        assert!(!put(None).has_expired(u64::MAX));
    }
}
