//! [`OperandChain`]: the versions of a key that make up its value.
//!
//! ```text
//! stored operand = span: varint, operand
//! ```
//!
//! A memtable or table stores an operand as the value of an entry of kind 3. The entry numbered n
//! stands for all operands of the key from n - span to n, combined; versions with those numbers
//! that are still there are for older snapshots.
//!
//! If the newest version of a key is an operand, a read collects versions from all sources, new to
//! old, until a put or a delete ends the chain. It combines them by the keyspace's operator.
//! Flushes and compactions combine within a snapshot's stripe. A memtable combines an operand of a
//! built-in operator at once, unless what it changes is much longer. Versions within an operand's
//! span are skipped, wherever they are. Therefore an operand that a compaction in stages leaves in
//! two places counts once.

use std::ops::Range;

use super::NamedOperator;
use crate::error::{Error, Result};
use crate::format::coding::{Decoder, put_varint};
use crate::format::deadline::{Deadline, split_expiring};
use crate::format::key::{MAX_OPERAND_LEN, MAX_VALUE_LEN, SeqNo, ValueKind};
use crate::format::{Decoded, Malformed};

/// Appends an operand as entry `seqno` stores it, which stands for all from `oldest` on.
pub fn put_operand(out: &mut Vec<u8>, seqno: SeqNo, oldest: SeqNo, operand: &[u8]) {
    put_varint(out, seqno - oldest);
    out.extend_from_slice(operand);
}

/// The oldest number that an operand stored in entry `seqno` stands for, and its bytes.
pub fn decode_operand(seqno: SeqNo, stored: &[u8]) -> Decoded<(SeqNo, &[u8])> {
    let mut fields = Decoder::new(stored);
    let span = fields.varint()?;
    let oldest = seqno.checked_sub(span).filter(|&oldest| oldest > 0);
    let oldest = oldest.ok_or(Malformed("an operand stands for numbers below 1"))?;
    Ok((oldest, fields.take(fields.remaining())?))
}

/// The oldest number that an operand stands for. The entry has been verified.
pub fn oldest_of_operand(seqno: SeqNo, stored: &[u8]) -> Result<SeqNo> {
    decode_operand(seqno, stored).map(|(oldest, _)| oldest).map_err(bug)
}

fn bug(rule: Malformed) -> Error {
    Error::invalid(format_args!("{}; this is a bug in tamis", rule.0))
}

/// The versions of a key from the newest that a reader sees to the value that the operands change,
/// collected from newest to oldest.
///
/// Several sources may hold them: while a compaction runs in stages, one may hold operands that
/// another holds as well, alone or combined with older ones. Of what is held twice, the chain keeps
/// what is combined.
#[derive(Default)]
pub struct OperandChain {
    /// Newest first.
    links: Vec<Link>,
    /// The bytes of all links, and of some that were replaced.
    bytes: Vec<u8>,
}

#[derive(Clone)]
struct Link {
    kind: ValueKind,
    seqno: SeqNo,
    /// The oldest number that it stands for: 0 for a put or a delete, which ends the chain.
    oldest: SeqNo,
    /// Its operand, or its value as the entry stores it.
    at: Range<usize>,
}

/// What a chain comes to.
#[derive(Debug, PartialEq, Eq)]
pub enum Resolved {
    Value(Vec<u8>),
    /// An operand as the entry of the chain's newest number stores it.
    Operand(Vec<u8>),
}

impl OperandChain {
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    pub fn clear(&mut self) {
        self.links.clear();
        self.bytes.clear();
    }

    /// Bytes of memory for operands.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The number of the newest version; 0 if there is none.
    pub fn newest(&self) -> SeqNo {
        self.links.first().map_or(0, |link| link.seqno)
    }

    /// The oldest number that the chain stands for.
    pub fn oldest(&self) -> SeqNo {
        self.links.last().map_or(SeqNo::MAX, |link| link.oldest)
    }

    /// Whether a put or a delete has ended the chain: older versions change nothing.
    pub fn is_complete(&self) -> bool {
        self.oldest() == 0
    }

    /// Adds a version of the key, as an entry stores it. The entry has been verified.
    pub fn push(&mut self, seqno: SeqNo, kind: ValueKind, stored: &[u8]) -> Result<()> {
        let is_operand = kind == ValueKind::Merge;
        let (oldest, bytes) = if is_operand { decode_operand(seqno, stored).map_err(bug)? } else { (0, stored) };
        while self.links.last().is_some_and(|last| last.seqno < seqno || last.seqno == seqno && oldest < last.oldest) {
            self.links.pop();
        }
        if self.links.last().is_none_or(|last| seqno < last.oldest) {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            self.links.push(Link { kind, seqno, oldest, at: start..self.bytes.len() });
        }
        Ok(())
    }

    /// The deadline of the value that the operands change, if it has one.
    pub fn deadline(&self) -> Option<Deadline> {
        let base = self.links.last().filter(|link| link.kind == ValueKind::ExpiringPut)?;
        Some(split_expiring(&self.bytes[base.at.clone()]).0)
    }

    /// Whether the newest version is a delete, or there is none.
    pub fn is_nothing(&self) -> bool {
        self.links.first().is_none_or(|link| link.kind == ValueKind::Delete)
    }

    /// The value that was put, if there is one, and the operands that change it, oldest first.
    pub fn parts(&self) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
        let (mut value, mut operands) = (None, Vec::new());
        for link in self.links.iter().rev() {
            let stored = &self.bytes[link.at.clone()];
            match link.kind {
                ValueKind::Merge => operands.push(stored.to_vec()),
                ValueKind::Put => value = Some(stored.to_vec()),
                ValueKind::ExpiringPut => value = Some(split_expiring(stored).1.to_vec()),
                // `push` is given no others.
                _ => {}
            }
        }
        (value, operands)
    }

    /// Combines the chain, which is not empty. With `is_whole`, there is nothing older.
    pub fn resolve(
        &self,
        operator: Option<&NamedOperator>,
        keyspace: &str,
        key: &[u8],
        is_whole: bool,
    ) -> Result<Resolved> {
        if self.links.last().is_some_and(|base| base.kind.is_separate()) {
            return Err(bug(Malformed("a pointer is merged in place of its value")));
        }
        let older_first = self.links.iter().rev().filter(|link| link.kind != ValueKind::Delete);
        let operand = |link: &'_ Link| match (link.kind, &self.bytes[link.at.clone()]) {
            (ValueKind::ExpiringPut, stored) => split_expiring(stored).1,
            (_, operand) => operand,
        };
        let operands: Vec<&[u8]> = older_first.map(operand).collect();
        let merged = match *operands {
            [] => Vec::new(),
            [operand] => operand.to_vec(),
            _ => {
                let merged = operator.and_then(|operator| operator.merge(key, &operands));
                let merged = merged.ok_or_else(|| Error::MergeOperatorMissing {
                    keyspace: keyspace.to_owned(),
                    operator: operator.map_or_else(String::new, |operator| operator.name().to_owned()),
                })?;
                merged.map_err(|reason| Error::Merge {
                    keyspace: keyspace.to_owned(),
                    key: key.to_vec(),
                    reason: reason.to_string(),
                })?
            }
        };
        let is_value = is_whole || self.is_complete();
        let limit = if is_value { MAX_VALUE_LEN } else { MAX_OPERAND_LEN };
        if merged.len() > limit {
            let reason = format!("the result has {} bytes, more than {limit}", merged.len());
            return Err(Error::Merge { keyspace: keyspace.to_owned(), key: key.to_vec(), reason });
        }
        if is_value {
            return Ok(Resolved::Value(merged));
        }
        let mut stored = Vec::with_capacity(merged.len() + 1);
        put_operand(&mut stored, self.newest(), self.oldest(), &merged);
        Ok(Resolved::Operand(stored))
    }

    /// Number of versions.
    pub fn count(&self) -> usize {
        self.links.len()
    }

    /// Adds the versions of another chain, which are older.
    pub fn append(&mut self, mut older: OperandChain) -> Result<()> {
        if self.is_empty() {
            *self = older;
            return Ok(());
        }
        older.take_newest(0).into_iter().try_for_each(|(seqno, kind, stored)| self.push(seqno, kind, &stored))
    }

    /// Combines the operands to one, apart from the value that they change. Returns the newest and
    /// the oldest number that it stands for, the operand as an entry stores it, and how many bytes
    /// it is made of. Does nothing if the operator cannot combine them.
    pub fn fold(&mut self, operator: Option<&NamedOperator>, key: &[u8]) -> Option<(SeqNo, SeqNo, Vec<u8>, usize)> {
        let base = if self.is_complete() { self.links.pop() } else { None };
        let resolved = if self.links.len() < 2 { None } else { self.resolve(operator, "", key, false).ok() };
        let Some(Resolved::Operand(stored)) = resolved else {
            self.links.extend(base);
            return None;
        };
        let (newest, oldest) = (self.newest(), self.oldest());
        let made_of = self.links.iter().map(|link| link.at.len() + size_of::<Link>()).sum();
        let mut folded = OperandChain::default();
        folded.push(newest, ValueKind::Merge, &stored).ok()?;
        if let Some(base) = base {
            folded.push(base.seqno, base.kind, &self.bytes[base.at]).ok()?;
        }
        *self = folded;
        Some((newest, oldest, stored, made_of))
    }

    /// Combines all operands but the last. Returns false, and does nothing, if that is not
    /// possible.
    pub fn shorten(&mut self, operator: Option<&NamedOperator>, key: &[u8]) -> bool {
        let Some(last) = self.links.pop() else { return false };
        let merged = match self.is_empty() {
            true => None,
            false => self.resolve(operator, "", key, true).ok(),
        };
        let Some(Resolved::Value(merged) | Resolved::Operand(merged)) = merged else {
            self.links.push(last);
            return false;
        };
        let (seqno, oldest) = (self.newest(), self.oldest());
        let bytes = [&merged[..], &self.bytes[last.at.clone()]].concat();
        let last = Link { at: merged.len()..bytes.len(), ..last };
        self.links = vec![Link { kind: ValueKind::Merge, seqno, oldest, at: 0..merged.len() }, last];
        self.bytes = bytes;
        true
    }

    /// Removes all versions but the last `count`, and returns them, newest first, as entries store
    /// them.
    pub fn take_newest(&mut self, count: usize) -> Vec<(SeqNo, ValueKind, Vec<u8>)> {
        let kept = self.links.split_off(self.links.len().saturating_sub(count));
        let taken = std::mem::replace(&mut self.links, kept);
        let stored = taken.into_iter().map(|Link { kind, seqno, oldest, at }| {
            let mut stored = Vec::new();
            match kind {
                ValueKind::Merge => put_operand(&mut stored, seqno, oldest, &self.bytes[at]),
                _ => stored.extend_from_slice(&self.bytes[at]),
            }
            (seqno, kind, stored)
        });
        let stored = stored.collect();
        if self.links.len() < 2 {
            let bytes = self.links.first().map(|link| self.bytes[link.at.clone()].to_vec());
            self.bytes = bytes.unwrap_or_default();
            self.links.iter_mut().for_each(|link| link.at = 0..self.bytes.len());
        }
        stored
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::Append;
    use std::sync::Arc;

    /// Versions of a key, newest first: number, kind, the oldest number that an operand stands for,
    /// and its bytes.
    type Versions<'a> = &'a [(SeqNo, ValueKind, SeqNo, &'a str)];

    fn chain(versions: Versions<'_>) -> OperandChain {
        let mut chain = OperandChain::default();
        for &(seqno, kind, oldest, bytes) in versions {
            let mut stored = Vec::new();
            match kind {
                ValueKind::Merge => put_operand(&mut stored, seqno, oldest, bytes.as_bytes()),
                _ => stored.extend_from_slice(bytes.as_bytes()),
            }
            chain.push(seqno, kind, &stored).unwrap();
        }
        chain
    }

    fn append() -> NamedOperator {
        NamedOperator::new(Arc::new(Append))
    }

    fn value(versions: Versions<'_>) -> String {
        match chain(versions).resolve(Some(&append()), "", b"key", true).unwrap() {
            Resolved::Value(value) | Resolved::Operand(value) => String::from_utf8(value).unwrap(),
        }
    }

    use ValueKind::{Delete, Merge, Put};

    #[test]
    fn operands_change_the_value_before_them_and_nothing_older_counts() {
        assert_eq!(value(&[(9, Merge, 9, "c"), (7, Merge, 7, "b"), (5, Put, 0, "a"), (3, Merge, 3, "x")]), "abc");
        assert_eq!(value(&[(9, Merge, 9, "c"), (7, Delete, 0, ""), (5, Put, 0, "a")]), "c");
        assert_eq!(value(&[(9, Merge, 9, "c"), (7, Merge, 7, "b")]), "bc");
    }

    #[test]
    fn of_what_two_sources_hold_the_combined_one_counts() {
        // An input that stayed, and the output of the stage that has rewritten it.
        let (newer, older) = ((9, Merge, 9, "c"), (7, Merge, 7, "b"));
        for output in [&[(9, Put, 0, "abc")][..], &[(9, Merge, 7, "bc"), (5, Put, 0, "a")]] {
            assert_eq!(value(&[&[newer, older], output].concat()), "abc", "source by source");
            // As a merging cursor gives them.
            assert_eq!(value(&[&[newer], &output[..1], &[older], &output[1..]].concat()), "abc");
            assert_eq!(value(&[&output[..1], &[newer, older], &output[1..]].concat()), "abc");
        }
        // The output begins below the newest operand.
        assert_eq!(value(&[newer, older, (7, Put, 0, "ab")]), "abc");
    }

    #[test]
    fn what_an_operand_stands_for_is_skipped() {
        let versions = [(9, Merge, 5, "bcd"), (8, Merge, 5, "bc"), (5, Merge, 5, "b"), (4, Put, 0, "a")];
        assert_eq!(value(&versions), "abcd");
        assert_eq!(value(&versions[1..]), "abc");
    }

    #[test]
    fn a_part_of_a_chain_becomes_an_operand_that_stands_for_all_of_it() {
        let chain = chain(&[(9, Merge, 8, "cd"), (7, Merge, 7, "b")]);
        let mut expected = Vec::new();
        put_operand(&mut expected, 9, 7, b"bcd");
        let resolved = chain.resolve(Some(&append()), "", b"key", false).unwrap();
        assert_eq!(resolved, Resolved::Operand(expected));
        let missing = chain.resolve(None, "ks", b"key", true).unwrap_err();
        assert!(matches!(missing, Error::MergeOperatorMissing { .. }), "{missing}");
    }

    #[test]
    fn a_chain_that_is_shortened_or_taken_apart_stays_the_same() {
        let versions = [(9, Merge, 9, "d"), (8, Merge, 7, "bc"), (4, Merge, 4, "a"), (3, Put, 0, "x")];
        let mut shorter = chain(&versions[..3]);
        assert!(shorter.shorten(Some(&append()), b"key"));
        assert_eq!((shorter.links.len(), shorter.newest(), shorter.oldest()), (2, 9, 4));
        shorter.push(3, Put, b"x").unwrap();
        let resolved = shorter.resolve(Some(&append()), "", b"key", true).unwrap();
        assert_eq!(resolved, Resolved::Value(b"xabcd".to_vec()));
        assert!(!chain(&versions[..3]).shorten(None, b"key"));
        assert!(!chain(&versions[..1]).shorten(Some(&append()), b"key"));

        let mut whole = chain(&versions);
        let taken: Vec<SeqNo> = whole.take_newest(1).into_iter().map(|(seqno, ..)| seqno).collect();
        assert_eq!((taken, whole.newest(), whole.len()), (vec![9, 8, 4], 3, 1));
        let taken = whole.take_newest(0);
        assert_eq!(taken, [(3, Put, b"x".to_vec())]);
        assert!(whole.is_empty());
    }

    #[test]
    fn a_stored_operand_that_stands_for_impossible_numbers_is_malformed() {
        let mut stored = Vec::new();
        put_operand(&mut stored, 9, 7, b"ab");
        assert_eq!(decode_operand(9, &stored), Ok((7, &b"ab"[..])));
        assert!(decode_operand(2, &stored).is_err(), "numbers begin at 1");
        assert!(decode_operand(9, &[]).is_err());
        assert!(decode_operand(9, &[0x80]).is_err());
    }
}
