//! Makes a history that fails shorter, as long as it still fails.

use super::op::{Change, History, Kind, Op};

/// Histories that are tried at most.
const TRIES: u32 = 3000;

/// The shortest history found that fails.
pub(super) fn shrink(history: &History, fails: impl Fn(&History) -> bool) -> History {
    let mut best = history.clone();
    let mut tries = 0;
    let mut attempt = |candidate: History, best: &mut History| {
        tries += 1;
        let is_better = tries < TRIES && fails(&candidate);
        if is_better {
            *best = candidate;
        }
        is_better
    };
    loop {
        let before = best.clone();
        // Without a run of operations, of half of all down to one.
        let mut len = best.ops.len().div_ceil(2).max(1);
        loop {
            let mut at = best.ops.len();
            while at > 0 {
                let start = at.saturating_sub(len);
                let mut candidate = best.clone();
                candidate.ops.drain(start..at.min(best.ops.len()));
                attempt(candidate, &mut best);
                at = start;
            }
            if len == 1 {
                break;
            }
            len = len.div_ceil(2);
        }
        // With a simpler operation in the place of one, or plainer keyspaces.
        for at in 0..best.ops.len() {
            while simpler(&best.ops[at]).into_iter().any(|op| {
                let mut candidate = best.clone();
                candidate.ops[at] = op;
                attempt(candidate, &mut best)
            }) {}
        }
        for at in 0..best.kinds.len() {
            for kind in plainer(best.kinds[at]) {
                let mut candidate = best.clone();
                candidate.kinds[at] = kind;
                attempt(candidate, &mut best);
            }
        }
        if best == before {
            return best;
        }
    }
}

/// Lists with one element less each.
fn without_one<T: Clone>(list: &[T]) -> impl Iterator<Item = Vec<T>> {
    (0..list.len()).map(|at| [&list[..at], &list[at + 1..]].concat())
}

fn plainer(kind: Kind) -> Vec<Kind> {
    let plain = Kind::PLAIN;
    let candidates = [
        Kind { operator: plain.operator, ..kind },
        Kind { separate: None, ..kind },
        Kind { ttl: None, ..kind },
        Kind { wal: true, ..kind },
        Kind { lz4: false, filter: plain.filter, levels: 0, prefix: 0, ..kind },
    ];
    candidates.into_iter().filter(|candidate| *candidate != kind).collect()
}

fn simpler(op: &Op) -> Vec<Op> {
    match op {
        Op::Write(changes, sync) => {
            let fewer = without_one(changes).map(|changes| Op::Write(changes, *sync));
            let unsynced = sync.then(|| Op::Write(changes.clone(), false));
            let shorter = changes.iter().enumerate().filter_map(|(at, (n, change))| {
                let mut changes = changes.clone();
                changes[at] = (*n, shorter(change)?);
                Some(Op::Write(changes, *sync))
            });
            fewer.chain(unsynced).chain(shorter).collect()
        }
        Op::Ingest(n, spans, changes) => {
            let fewer = without_one(spans).map(|spans| Op::Ingest(*n, spans, changes.clone()));
            fewer.chain(without_one(changes).map(|changes| Op::Ingest(*n, spans.clone(), changes))).collect()
        }
        Op::Update(n, k, update, Some(_)) => vec![Op::Update(*n, *k, *update, None)],
        Op::MultiGet(n, keys) => without_one(keys).map(|keys| Op::MultiGet(*n, keys)).collect(),
        Op::Use(n, moves) => without_one(moves).map(|moves| Op::Use(*n, moves)).collect(),
        Op::Amid(work, nested) => {
            let fewer = without_one(nested).map(|nested| Op::Amid(work.clone(), nested));
            [(**work).clone()].into_iter().chain(fewer).collect()
        }
        Op::Elsewhere(n, op) => simpler(op).into_iter().map(|op| Op::Elsewhere(*n, Box::new(op))).collect(),
        Op::Arm(at, trouble, true) => vec![Op::Arm(*at, *trouble, false)],
        _ => Vec::new(),
    }
}

/// With a value of few bytes.
fn shorter(change: &Change) -> Option<Change> {
    match change {
        Change::Put(k, len) if *len > 8 => Some(Change::Put(*k, len / 2)),
        Change::PutUntil(k, len, millis) if *len > 8 => Some(Change::PutUntil(*k, len / 2, *millis)),
        Change::Merge(k, len) if *len > 8 => Some(Change::Merge(*k, len / 2)),
        _ => None,
    }
}
