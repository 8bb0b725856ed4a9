//! What a store must hold after each of its writes.

use std::collections::BTreeMap;

use tamis::operator::{MergeError, MergeOperator};
use tamis::{Cursor, Db, Keyspace, Snapshot};

pub(super) type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// How operands change a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    None,
    Append,
    /// The store's counters, which memtables combine at once.
    Add,
    /// The caller's own: see [`Affine`].
    Affine,
}

/// A keyspace and its options that matter here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) operator: Operator,
    pub(super) separate: Option<u32>,
    /// In milliseconds.
    pub(super) ttl: Option<u64>,
}

/// Functions x → ax + b of numbers that wrap around, and their composition: associative, and not
/// commutative. What follows the two numbers makes the operand longer; the longest one stays.
pub(super) struct Affine;

pub(super) const AFFINE_LEN: usize = 16;

pub(super) fn affine(a: u64, b: u64, len: usize) -> Vec<u8> {
    let mut bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
    bytes.resize(AFFINE_LEN + len, b'.');
    bytes
}

fn parts(bytes: &[u8]) -> Option<(u64, u64)> {
    let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some((number(0)?, number(8)?))
}

impl MergeOperator for Affine {
    fn name(&self) -> &'static str {
        "test.affine"
    }

    fn merge(&self, _key: &[u8], operands: &[&[u8]], out: &mut Vec<u8>) -> Result<(), MergeError> {
        let (mut a, mut b, mut len) = (1u64, 0u64, 0);
        for operand in operands {
            let (next_a, next_b) = parts(operand).ok_or_else(|| MergeError::new("it has no two numbers"))?;
            (a, b) = (a.wrapping_mul(next_a), b.wrapping_mul(next_a).wrapping_add(next_b));
            len = len.max(operand.len() - AFFINE_LEN);
        }
        out.extend_from_slice(&affine(a, b, len));
        Ok(())
    }
}

impl Operator {
    fn combine(self, operands: &[&[u8]]) -> Vec<u8> {
        match self {
            _ if operands.len() == 1 => operands[0].to_vec(),
            Operator::None | Operator::Append => operands.concat(),
            Operator::Add => {
                let number = |bytes: &&[u8]| u64::from_le_bytes((**bytes).try_into().unwrap());
                operands.iter().map(number).fold(0, u64::wrapping_add).to_le_bytes().to_vec()
            }
            Operator::Affine => {
                let mut out = Vec::new();
                Affine.merge(b"", operands, &mut out).unwrap();
                out
            }
        }
    }
}

/// What a write does to a key.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    Put(Vec<u8>),
    /// A put that expires at this time.
    PutUntil(Vec<u8>, u64),
    Delete,
    Merge(Vec<u8>),
}

/// Keyspace, key and effect.
pub(super) type Op = (usize, Vec<u8>, Effect);

/// What happened to a key, by number.
type Versions = Vec<(u64, Effect)>;

/// Every version of every key, with the numbers of the writes.
#[derive(Clone, Default)]
pub(super) struct Model {
    versions: BTreeMap<(usize, Vec<u8>), Versions>,
    /// The last number of each write.
    ends: Vec<u64>,
    /// Up to here everything was acknowledged.
    pub(super) acknowledged: u64,
    /// Up to here everything is on stable storage.
    pub(super) durable: u64,
}

impl Model {
    pub(super) fn last(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Adds a write of operations, each with its place among them; returns its last number.
    pub(super) fn write(&mut self, ops: Vec<(u64, Op)>, count: u64) -> u64 {
        let first = self.last() + 1;
        for (at, (keyspace, key, effect)) in ops {
            self.versions.entry((keyspace, key)).or_default().push((first + at, effect));
        }
        self.ends.push(first + count - 1);
        self.last()
    }

    /// Whether a write, or nothing, ends with this number.
    pub(super) fn is_end(&self, seqno: u64) -> bool {
        seqno == 0 || self.ends.binary_search(&seqno).is_ok()
    }

    /// Forgets everything after `seqno`: it has never been.
    pub(super) fn truncate(&mut self, seqno: u64) {
        self.ends.retain(|end| *end <= seqno);
        self.versions.values_mut().for_each(|versions| versions.retain(|(of, _)| *of <= seqno));
        self.acknowledged = seqno;
        self.durable = self.durable.min(seqno);
    }

    /// What a keyspace holds after the write `seqno`, at a time.
    pub(super) fn map(&self, kinds: &[Kind], keyspace: usize, seqno: u64, now: u64) -> Map {
        let of_keyspace = self.versions.range((keyspace, Vec::new())..(keyspace + 1, Vec::new()));
        let value = |versions: &[(u64, Effect)]| {
            let mut operands: Vec<&[u8]> = Vec::new();
            for (_, effect) in versions.iter().rev().skip_while(|(of, _)| *of > seqno) {
                match effect {
                    Effect::Merge(operand) => operands.push(operand),
                    Effect::Put(value) => {
                        operands.push(value);
                        break;
                    }
                    Effect::PutUntil(value, deadline) => {
                        operands.extend((*deadline > now).then_some(&value[..]));
                        break;
                    }
                    Effect::Delete => break,
                }
            }
            operands.reverse();
            (!operands.is_empty()).then(|| kinds[keyspace].operator.combine(&operands))
        };
        of_keyspace.filter_map(|((_, key), versions)| Some((key.clone(), value(versions)?))).collect()
    }

    /// The versions of a key, for a message.
    pub(super) fn history(&self, keyspace: usize, key: &[u8]) -> String {
        let versions = self.versions.get(&(keyspace, key.to_vec())).map_or(&[][..], |versions| versions);
        let from = versions.len().saturating_sub(12);
        let brief = |(seqno, effect): &(u64, Effect)| match effect {
            Effect::Put(value) => format!("{seqno} put {}", in_short(value)),
            Effect::PutUntil(value, deadline) => format!("{seqno} put until {deadline} {}", in_short(value)),
            Effect::Delete => format!("{seqno} delete"),
            Effect::Merge(operand) => format!("{seqno} merge {}", in_short(operand)),
        };
        versions[from..].iter().map(brief).collect::<Vec<_>>().join(", ")
    }
}

pub(super) fn in_short(value: &[u8]) -> String {
    // Fillers tell nothing.
    let text: String = value.iter().filter(|byte| **byte != b'.').map(|byte| byte.escape_ascii().to_string()).collect();
    format!("{text}+{}", value.len())
}

/// A store or a snapshot, to read a keyspace of it.
pub(super) enum Reads<'a> {
    Db(&'a Db),
    Snapshot(&'a Db, &'a Snapshot),
}

/// What one way to read a keyspace has found.
pub(super) type Found = (&'static str, Vec<(Vec<u8>, Vec<u8>)>);

macro_rules! read {
    ($reads:expr, $universe:expr, $ways:expr) => {{
        let (reads, universe, ways): (_, &[Vec<u8>], u8) = ($reads, $universe, $ways);
        let pair = |entry: tamis::Result<(tamis::Value, tamis::Value)>| {
            entry.map(|(key, value)| (key.to_vec(), value.to_vec()))
        };
        let forward = reads.iter().map(pair).collect::<tamis::Result<Vec<_>>>()?;
        let mut backward = reads.iter().rev().map(pair).collect::<tamis::Result<Vec<_>>>()?;
        backward.reverse();
        let mut found: Vec<Found> = vec![("forward", forward), ("backward", backward)];
        if ways & 1 != 0 {
            let mut gets = Vec::new();
            for key in universe {
                gets.extend(reads.get(key)?.map(|value| (key.clone(), value.to_vec())));
            }
            found.push(("gets", gets));
        }
        if ways & 6 == 0 {
            let values = universe.iter().zip(reads.multi_get(universe)?);
            let many = values.filter_map(|(key, value)| Some((key.clone(), value?.to_vec()))).collect();
            found.push(("multi_get", many));
        }
        if ways & 24 == 0 {
            found.push(("a cursor that turns at each entry", turning(reads.cursor()?)?));
        }
        found
    }};
}

/// The entries from the last one back, with a step forward from each.
fn turning(mut cursor: Cursor) -> tamis::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut found: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut is_there = cursor.seek_to_last()?;
    while is_there {
        found.extend(cursor.key().zip(cursor.value()).map(|(key, value)| (key.to_vec(), value.to_vec())));
        let key = found.last().map(|(key, _)| key.clone()).unwrap_or_default();
        match cursor.next()? {
            true => cursor.prev()?,
            false => cursor.seek_to_last()?,
        };
        assert_eq!(cursor.key(), Some(&key[..]), "the cursor has lost its place");
        is_there = cursor.prev()?;
    }
    found.reverse();
    Ok(found)
}

/// Reads a keyspace forward, backward, and in those of the other ways that the bits of `ways` say.
pub(super) fn read_all(
    reads: &Reads<'_>,
    keyspace: &Keyspace,
    universe: &[Vec<u8>],
    ways: u8,
) -> tamis::Result<Vec<Found>> {
    Ok(match reads {
        Reads::Db(_) => read!(keyspace, universe, ways),
        Reads::Snapshot(_, snapshot) => read!(snapshot.keyspace(keyspace), universe, ways),
    })
}
