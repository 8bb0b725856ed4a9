//! What a store must hold after each of its writes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;

use tamis::operator::{MergeError, MergeOperator};
use tamis::{Operation, OperationKind};

use super::op::{Kind, Operator};
use super::reads::contains;

pub(super) type Bytes = Vec<u8>;
pub(super) type Entries = Vec<(Bytes, Bytes)>;

/// A keyspace from its creation to its drop; a later one of the same name is another.
pub(super) type Incarnation = usize;

/// Functions x → ax + b of numbers that wrap around, and their composition: associative, and not
/// commutative. What follows the two numbers makes the operand longer; the longest one stays.
pub(super) struct Affine;

const AFFINE_LEN: usize = 16;

fn affine(a: u64, b: u64, len: usize) -> Bytes {
    let mut bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
    bytes.resize(AFFINE_LEN + len, b'.');
    bytes
}

impl MergeOperator for Affine {
    fn name(&self) -> &'static str {
        "test.affine"
    }

    fn merge(&self, _key: &[u8], operands: &[&[u8]], out: &mut Bytes) -> Result<(), MergeError> {
        let (mut a, mut b, mut len) = (1u64, 0u64, 0);
        for operand in operands {
            let [next_a, next_b] = [0, 8].map(|at| u64::from_le_bytes(operand[at..at + 8].try_into().unwrap()));
            (a, b) = (a.wrapping_mul(next_a), b.wrapping_mul(next_a).wrapping_add(next_b));
            len = len.max(operand.len() - AFFINE_LEN);
        }
        out.extend_from_slice(&affine(a, b, len));
        Ok(())
    }
}

impl Operator {
    /// Value number `n`, of about `len` bytes.
    pub(super) fn value(self, n: u64, len: u16) -> Bytes {
        match self {
            Operator::Add => n.to_le_bytes().to_vec(),
            Operator::Affine => affine(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, n, len.into()),
            _ if len == 0 => Bytes::new(),
            _ => {
                let mut value = format!("<{n}>").into_bytes();
                value.resize(value.len().max(len.into()), b'.');
                value
            }
        }
    }

    pub(super) fn combine(self, operands: &[&[u8]]) -> Bytes {
        match self {
            _ if operands.len() == 1 => operands[0].to_vec(),
            Operator::None | Operator::Append => operands.concat(),
            Operator::Max => operands.iter().max().unwrap().to_vec(),
            Operator::Add => {
                let number = |bytes: &&[u8]| u64::from_le_bytes((**bytes).try_into().unwrap());
                operands.iter().map(number).fold(0, u64::wrapping_add).to_le_bytes().to_vec()
            }
            Operator::Affine => {
                let mut out = Bytes::new();
                Affine.merge(b"", operands, &mut out).unwrap();
                out
            }
        }
    }
}

/// What an operation does, to its key or a range of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    Put(Rc<Bytes>, Option<u64>),
    Delete,
    Merge(Rc<Bytes>),
    DeleteRange(Bytes, Option<Bytes>),
}

impl Effect {
    fn in_short(&self) -> String {
        match self {
            Effect::Put(value, None) => format!("put {}", in_short(value)),
            Effect::Put(value, Some(deadline)) => format!("put until {deadline} {}", in_short(value)),
            Effect::Delete => "delete".to_owned(),
            Effect::Merge(operand) => format!("merge {}", in_short(operand)),
            Effect::DeleteRange(..) => "delete range".to_owned(),
        }
    }
}

/// An operation of a write, with its number.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) seqno: u64,
    pub(super) of: Incarnation,
    pub(super) key: Bytes,
    pub(super) effect: Effect,
    /// Whether the log has it, or a table of its own.
    pub(super) logged: bool,
    /// Whether the feed tells of an ingest instead of it.
    pub(super) ingested: bool,
}

/// A moment of a store: the last number of what is logged, that of the rest, and a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moment {
    pub(super) seqno: u64,
    pub(super) unlogged: u64,
    pub(super) now: u64,
}

#[derive(Clone)]
pub(super) struct Model {
    pub(super) names: BTreeMap<u8, Incarnation>,
    /// A name, and what it may mean instead: creating or dropping it has failed.
    pub(super) in_doubt: Option<(u8, Option<Incarnation>)>,
    /// By incarnation.
    pub(super) kinds: Vec<Kind>,
    /// By incarnation and key: positions in `written`.
    versions: BTreeMap<(Incarnation, Bytes), Vec<usize>>,
    pub(super) written: Vec<Written>,
    /// What had been written, and was lost.
    pub(super) lost: Vec<Written>,
    /// The last number of each write.
    ends: BTreeSet<u64>,
    pub(super) last: u64,
    /// Up to here a kill may lose nothing that is logged, and a power cut neither.
    pub(super) acknowledged: u64,
    pub(super) durable: u64,
    /// Up to here nothing may lose anything.
    pub(super) flushed: u64,
    pub(super) now: u64,
}

impl Model {
    pub(super) fn new() -> Model {
        Model {
            names: BTreeMap::new(),
            in_doubt: None,
            kinds: Vec::new(),
            versions: BTreeMap::new(),
            written: Vec::new(),
            lost: Vec::new(),
            ends: BTreeSet::from([0]),
            last: 0,
            acknowledged: 0,
            durable: 0,
            flushed: 0,
            now: 1000,
        }
    }

    pub(super) fn moment(&self) -> Moment {
        Moment { seqno: self.last, unlogged: self.last, now: self.now }
    }

    /// Adds a write of `count` numbers; its operations have their place among them.
    pub(super) fn write(&mut self, mut ops: Vec<Written>, count: u64) {
        for mut op in ops.drain(..) {
            op.seqno += self.last + 1;
            let position = self.written.len();
            match &op.effect {
                Effect::DeleteRange(from, to) => {
                    let to = to.clone().map_or(Bound::Unbounded, Bound::Excluded);
                    let range = (Bound::Included(from.clone()), to);
                    let all = self.versions.range_mut((op.of, from.clone())..(op.of + 1, Bytes::new()));
                    all.filter(|((_, key), _)| range.contains(key)).for_each(|(_, of_key)| of_key.push(position));
                }
                _ => self.versions.entry((op.of, op.key.clone())).or_default().push(position),
            }
            self.written.push(op);
        }
        self.last += count;
        self.ends.insert(self.last);
    }

    pub(super) fn acknowledge(&mut self, durable: bool) {
        self.acknowledged = self.last;
        if durable {
            self.durable = self.last;
        }
    }

    /// The number of the last write that is logged, of those up to `seqno`.
    pub(super) fn last_logged(&self, seqno: u64) -> u64 {
        let last = self.written.iter().rev().find(|op| op.seqno <= seqno && op.logged);
        last.map_or(0, |op| *self.ends.range(op.seqno..).next().unwrap())
    }

    fn is_there(op: &Written, at: Moment) -> bool {
        op.seqno <= if op.logged { at.seqno } else { at.unlogged }
    }

    /// Whether the store was ever at this number.
    pub(super) fn is_end(&self, seqno: u64) -> bool {
        self.ends.contains(&seqno)
    }

    /// A store shows this number after an end: what follows it has never been, nor what is not
    /// logged and follows the other one.
    pub(super) fn truncate(&mut self, at: Moment) {
        let kept: Vec<Option<usize>> = self
            .written
            .iter()
            .scan(0, |next, op| {
                *next += usize::from(Model::is_there(op, at));
                Some(Model::is_there(op, at).then(|| *next - 1))
            })
            .collect();
        self.lost.extend(self.written.extract_if(.., |op| !Model::is_there(op, at)));
        for of_key in self.versions.values_mut() {
            *of_key = of_key.iter().filter_map(|position| kept[*position]).collect();
        }
        self.ends.retain(|end| *end <= at.seqno);
        self.ends.insert(at.seqno);
        self.last = at.seqno;
        self.acknowledged = at.seqno;
    }

    /// Numbers of operations without a log after `from`, oldest first: where a kill may have cut.
    pub(super) fn unlogged_after(&self, from: u64) -> Vec<u64> {
        let after = self.written.iter().filter(|op| !op.logged && op.seqno > from);
        let ends = after.map(|op| *self.ends.range(op.seqno..).next().unwrap());
        BTreeSet::from_iter(ends).into_iter().collect()
    }

    pub(super) fn has_unlogged(&self, of: Incarnation) -> bool {
        self.written.iter().any(|op| op.of == of && !op.logged)
    }

    fn value(&self, of: Incarnation, versions: &[usize], at: Moment) -> Option<Bytes> {
        let mut operands: Vec<&[u8]> = Vec::new();
        for op in versions.iter().rev().map(|position| &self.written[*position]) {
            match &op.effect {
                _ if !Model::is_there(op, at) => continue,
                Effect::Merge(operand) => operands.push(operand),
                Effect::Put(value, deadline) => {
                    operands.extend(deadline.is_none_or(|deadline| at.now < deadline).then_some(&value[..]));
                    break;
                }
                Effect::Delete | Effect::DeleteRange(..) => break,
            }
        }
        operands.reverse();
        (!operands.is_empty()).then(|| self.kinds[of].operator.combine(&operands))
    }

    pub(super) fn get(&self, of: Incarnation, key: &[u8], at: Moment) -> Option<Bytes> {
        self.value(of, self.versions.get(&(of, key.to_vec()))?, at)
    }

    /// What a keyspace holds in a range of keys.
    pub(super) fn range(&self, of: Incarnation, range: &impl RangeBounds<Bytes>, at: Moment) -> Entries {
        let all = self.versions.range((of, Bytes::new())..(of + 1, Bytes::new()));
        let within = all.filter(|((_, key), _)| range.contains(key));
        within.filter_map(|((_, key), versions)| Some((key.clone(), self.value(of, versions, at)?))).collect()
    }

    pub(super) fn entries(&self, of: Incarnation, at: Moment) -> Entries {
        self.range(of, &.., at)
    }

    /// All keys that a keyspace has ever had.
    pub(super) fn keys(&self, of: Incarnation) -> Vec<Bytes> {
        self.versions.range((of, Bytes::new())..(of + 1, Bytes::new())).map(|((_, key), _)| key.clone()).collect()
    }

    /// Whether something in a range was written after `seqno`, or has expired since `then`.
    pub(super) fn has_changed(&self, of: Incarnation, range: &(Bytes, Option<Bytes>), seqno: u64, then: u64) -> bool {
        let within = |op: &&Written| match &op.effect {
            _ if op.of != of => false,
            Effect::DeleteRange(from, to) => {
                range.1.as_ref().is_none_or(|end| from < end) && to.as_ref().is_none_or(|to| range.0 < *to)
            }
            _ => contains(range, &op.key),
        };
        self.written.iter().filter(within).any(|op| {
            let expired = |deadline: u64| then < deadline && deadline <= self.now;
            op.seqno > seqno || matches!(op.effect, Effect::Put(_, Some(deadline)) if expired(deadline))
        })
    }

    /// Where two lists of entries differ, with what happened to the keys.
    pub(super) fn difference(&self, of: Incarnation, found: &[(Bytes, Bytes)], expected: &[(Bytes, Bytes)]) -> String {
        let [found, expected] = [found, expected].map(|list| list.iter().cloned().collect::<BTreeMap<_, _>>());
        let keys: BTreeSet<&Bytes> = found.keys().chain(expected.keys()).collect();
        let differ = keys.into_iter().filter(|key| found.get(*key) != expected.get(*key)).take(5);
        let lines = differ.map(|key| {
            let show = |value: Option<&Bytes>| value.map_or("nothing".to_owned(), |value| in_short(value));
            let versions = self.versions.get(&(of, key.clone())).map_or(&[][..], |versions| versions);
            let tail = versions[versions.len().saturating_sub(10)..].iter().map(|position| &self.written[*position]);
            let tail: Vec<String> = tail.map(|op| format!("{} {}", op.seqno, op.effect.in_short())).collect();
            let (found, expected) = (show(found.get(key)), show(expected.get(key)));
            format!("{}: found {found}, expected {expected}; {}", in_short(key), tail.join(", "))
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// What an operation of the change feed does.
pub(super) fn effect_of(operation: &Operation<'_>) -> Option<(Bytes, Effect)> {
    let millis = |time: std::time::SystemTime| {
        u64::try_from(time.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis()).unwrap()
    };
    let value = |bytes: &[u8]| Rc::new(bytes.to_vec());
    Some(match operation.kind {
        OperationKind::Put { key, value: bytes } => (key.to_vec(), Effect::Put(value(bytes), None)),
        OperationKind::PutWithExpiry { key, value: bytes, deadline } => {
            (key.to_vec(), Effect::Put(value(bytes), Some(millis(deadline))))
        }
        OperationKind::Merge { key, operand } => (key.to_vec(), Effect::Merge(value(operand))),
        OperationKind::Delete { key } => (key.to_vec(), Effect::Delete),
        OperationKind::DeleteRange { from, to } => {
            (Bytes::new(), Effect::DeleteRange(from.to_vec(), to.map(<[u8]>::to_vec)))
        }
        _ => return None,
    })
}

pub(super) fn in_short(value: &[u8]) -> String {
    // Fillers tell nothing.
    let text: String = value.iter().filter(|byte| **byte != b'.').map(|byte| byte.escape_ascii().to_string()).collect();
    format!("{}+{}", &text[..text.len().min(60)], value.len())
}
