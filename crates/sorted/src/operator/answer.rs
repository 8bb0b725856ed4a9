//! [`Answer`]: what a reader sees of a key, from its versions in the read's window.
//!
//! Point reads, cursors in both directions, transactions and salvage differ in who brings the
//! versions. What each version means is decided here:
//!
//! - a put whose deadline has passed is a delete; what was merged into it since stays: operands
//!   have no deadline;
//! - a put or a delete ends the answer: older versions change nothing;
//! - operands wait for what they change. All of them are combined at the end.
//!
//! A reader whose newest version is a put needs none of this, and takes it where it lies.

use super::{NamedOperator, OperandChain, Resolved};
use crate::error::Result;
use crate::format::deadline::Deadline;
use crate::format::effect::{Effect, Put, ValuePlace};
use crate::format::key::{SeqNo, ValueKind};

/// Reads values that are not in their entries.
pub trait ReadValue {
    /// What the entry of `key` with this encoded pointer would store, if it had its value.
    fn read_value(&self, key: &[u8], pointer: &[u8]) -> Result<Vec<u8>>;
}

/// The versions of a key that a reader has seen, from new to old.
pub struct Answer<'a> {
    key: &'a [u8],
    /// When deadlines are judged.
    at: Deadline,
    /// `None` for a reader of entries that have their values.
    values: Option<&'a dyn ReadValue>,
    chain: OperandChain,
}

impl<'a> Answer<'a> {
    pub fn new(key: &'a [u8], at: Deadline, values: Option<&'a dyn ReadValue>) -> Answer<'a> {
        Answer { key, at, values, chain: OperandChain::default() }
    }

    /// An answer to the same read, without versions.
    pub fn empty(&self) -> Answer<'a> {
        Answer { chain: OperandChain::default(), ..*self }
    }

    pub fn key(&self) -> &[u8] {
        self.key
    }

    /// Whether older versions change nothing.
    pub fn is_complete(&self) -> bool {
        self.chain.is_complete()
    }

    /// The oldest number that the versions stand for: those between it and the last one seen change
    /// nothing.
    pub fn oldest(&self) -> SeqNo {
        self.chain.oldest()
    }

    /// Takes the next older version, as its entry stores it.
    pub fn see(&mut self, seqno: SeqNo, kind: ValueKind, stored: &[u8]) -> Result<()> {
        match (Effect::of(kind, stored), self.values) {
            (Effect::Merge(stored), _) => self.chain.push(seqno, kind, stored),
            (Effect::Delete, _) => self.chain.push(seqno, kind, &[]),
            (Effect::Put(put), _) if put.has_expired(self.at) => self.chain.push(seqno, ValueKind::Delete, &[]),
            (Effect::Put(Put { value: ValuePlace::Entry(_), .. }), _) => self.chain.push(seqno, kind, stored),
            (Effect::Put(Put { value: ValuePlace::ValueFile(pointer), .. }), Some(values)) => {
                self.chain.push(seqno, kind.whole(), &values.read_value(self.key, pointer)?)
            }
            (Effect::Put(_), None) => Err(kind.misplaced("a source of a read")),
        }
    }

    /// Takes the versions of another answer, which are older.
    pub fn append(&mut self, older: Answer<'_>) -> Result<()> {
        self.chain.append(older.chain)
    }

    /// Number of versions.
    pub fn count(&self) -> usize {
        self.chain.count()
    }

    /// Combines the operands; see [`OperandChain::fold`].
    pub fn fold(&mut self, operator: Option<&NamedOperator>) -> Option<(SeqNo, SeqNo, Vec<u8>, usize)> {
        self.chain.fold(operator, self.key)
    }

    /// When the value expires, if it does.
    pub fn deadline(&self) -> Option<Deadline> {
        self.chain.deadline()
    }

    /// The value that was put, if there is one, and the operands that change it, oldest first.
    pub fn parts(&self) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
        self.chain.parts()
    }

    /// The value, if there is one.
    pub fn value(&self, operator: Option<&NamedOperator>, keyspace: &str) -> Result<Option<Vec<u8>>> {
        if self.chain.is_nothing() {
            return Ok(None);
        }
        match self.chain.resolve(operator, keyspace, self.key, true)? {
            Resolved::Value(value) | Resolved::Operand(value) => Ok(Some(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::deadline::DEADLINE_LEN;
    use crate::format::deadline::put_expiring;
    use crate::operator::{Append, put_operand};
    use proptest::prelude::*;
    use std::sync::Arc;

    #[derive(Clone, Debug)]
    enum Version {
        Put(Vec<u8>, Option<Deadline>),
        Delete,
        Merge(Vec<u8>),
    }

    fn version() -> impl Strategy<Value = Version> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..4);
        prop_oneof![
            (bytes(), proptest::option::of(0..6u64)).prop_map(|(value, deadline)| Version::Put(value, deadline)),
            Just(Version::Delete),
            bytes().prop_map(Version::Merge),
        ]
    }

    /// What the versions come to if they are applied one after the other, oldest first.
    fn apply(versions: &[Version], at: Deadline) -> Option<Vec<u8>> {
        versions.iter().fold(None, |before, version| match version {
            Version::Put(_, Some(deadline)) if *deadline <= at => None,
            Version::Put(value, _) => Some(value.clone()),
            Version::Delete => None,
            Version::Merge(operand) => Some([before.unwrap_or_default(), operand.clone()].concat()),
        })
    }

    proptest! {
        #[test]
        fn an_answer_is_what_the_versions_come_to(
            versions in proptest::collection::vec(version(), 0..8),
            at in 0..7u64,
            split in 0..8usize,
        ) {
            let operator = NamedOperator::new(Arc::new(Append));
            let mut answer = Answer::new(b"key", at, None);
            let mut part = answer.empty();
            for (i, version) in versions.iter().enumerate().rev() {
                if versions.len() - i == split {
                    let newer = std::mem::replace(&mut part, answer.empty());
                    answer.append(newer).unwrap();
                }
                if answer.is_complete() {
                    break;
                }
                let (seqno, mut stored) = (i as SeqNo + 1, Vec::new());
                let kind = match version {
                    Version::Put(value, None) => { stored.clone_from(value); ValueKind::Put }
                    Version::Put(value, Some(deadline)) => {
                        put_expiring(&mut stored, *deadline, value);
                        ValueKind::ExpiringPut
                    }
                    Version::Delete => ValueKind::Delete,
                    Version::Merge(operand) => {
                        put_operand(&mut stored, seqno, seqno, operand);
                        ValueKind::Merge
                    }
                };
                if !part.is_complete() {
                    part.see(seqno, kind, &stored).unwrap();
                }
            }
            answer.append(part).unwrap();
            prop_assert_eq!(answer.value(Some(&operator), "k").unwrap(), apply(&versions, at));
        }
    }

    #[test]
    fn pointers_that_lead_nowhere_are_errors() {
        for (kind, stored) in [(ValueKind::SeparatePut, &[][..]), (ValueKind::SeparateExpiringPut, &[7; DEADLINE_LEN])]
        {
            let error = Answer::new(b"key", 0, None).see(1, kind, stored).unwrap_err();
            assert!(error.to_string().contains(&format!("kind {}", kind as u8)), "{error}");
        }
    }
}
