//! [`Leadership`]: whether this node leads a group, and which voters have confirmed that when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use openraft::ServerState;
use parking_lot::Mutex;

use super::library::Raft;
use super::types::StoredMembership;
use crate::replica::{NodeId, WriteError};

/// See the module.
pub(super) struct Leadership {
    raft: Raft,
    /// Without an answer of a majority for so long, the others may have elected another leader.
    lost_after: Duration,
    term: Mutex<Term>,
}

/// A term in which this node leads.
struct Term {
    number: u64,
    /// When it was first seen. A majority has voted for this node just before.
    since: Instant,
    /// When the calls were sent in whose answers the other voters have confirmed the lead.
    confirmed: BTreeMap<NodeId, Instant>,
    /// Until then a majority need not be looked for.
    good_until: Instant,
}

impl Term {
    fn new(number: u64) -> Term {
        let now = Instant::now();
        Term { number, since: now, confirmed: BTreeMap::new(), good_until: now }
    }

    /// The last moment at which a majority has confirmed the lead. `missing` stands for voters that
    /// have not yet.
    fn confirmed_at(&self, id: NodeId, of: &StoredMembership, missing: Option<Instant>) -> Option<Instant> {
        let now = Instant::now();
        let of_voter = |voter: &NodeId| if *voter == id { Some(now) } else { self.confirmed.get(voter).copied() };
        let majority = |voters: &BTreeSet<NodeId>| {
            let mut moments: Vec<Option<Instant>> = voters.iter().map(|voter| of_voter(voter).or(missing)).collect();
            moments.sort_unstable_by(|a, b| b.cmp(a));
            moments.get(voters.len() / 2).copied().flatten()
        };
        // While the voters change, a majority of the old and one of the new.
        of.membership().get_joint_config().iter().map(majority).min().flatten()
    }
}

impl Leadership {
    pub(super) fn new(raft: Raft, lost_after: Duration) -> Leadership {
        Leadership { raft, lost_after, term: Mutex::new(Term::new(0)) }
    }

    /// Fails unless this node leads, and has heard from a majority lately: what a leader proposes
    /// that is cut off would have an unknown outcome, and is better refused.
    pub(super) fn check(&self) -> Result<(), WriteError> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        if metrics.state != ServerState::Leader {
            return Err(WriteError::NotLeader { leader: metrics.current_leader });
        }
        let mut term = self.term.lock();
        if term.number != metrics.current_term {
            *term = Term::new(metrics.current_term);
        }
        let now = Instant::now();
        if now >= term.good_until {
            let confirmed = term.confirmed_at(metrics.id, &metrics.membership_config, Some(term.since));
            term.good_until = confirmed.map_or(now, |at| at + self.lost_after);
        }
        if now < term.good_until { Ok(()) } else { Err(WriteError::NotLeader { leader: None }) }
    }

    /// Notes that a node has confirmed the lead in a term, when asked at `asked`: it had promised
    /// itself to no later leader when the question arrived.
    pub(super) fn note_confirmed(&self, number: u64, by: NodeId, asked: Instant) {
        let mut term = self.term.lock();
        if term.number < number {
            *term = Term::new(number);
        }
        if term.number == number {
            let confirmed = term.confirmed.entry(by).or_insert(asked);
            *confirmed = asked.max(*confirmed);
        }
    }

    /// The term in which this node leads, and the last moment for which a majority has confirmed
    /// that there was no later leader.
    pub(super) fn confirmed(&self) -> Option<(u64, Instant)> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let term = self.term.lock();
        if metrics.state != ServerState::Leader {
            return None;
        }
        let alone = Term::new(metrics.current_term);
        let known = if term.number == metrics.current_term { &*term } else { &alone };
        Some((metrics.current_term, known.confirmed_at(metrics.id, &metrics.membership_config, None)?))
    }
}

#[cfg(test)]
mod tests {
    use openraft::Membership;

    use super::*;
    use crate::raft::types::Member;

    fn members(configs: &[&[NodeId]]) -> StoredMembership {
        let configs: Vec<BTreeSet<NodeId>> = configs.iter().map(|voters| voters.iter().copied().collect()).collect();
        let nodes: BTreeMap<NodeId, Member> = (1..=9).map(|id| (id, Member::default())).collect();
        StoredMembership::new(None, Membership::new(configs, nodes))
    }

    #[test]
    fn a_lead_is_confirmed_by_the_majorities_of_old_and_new_voters() {
        let (mut term, start) = (Term::new(1), Instant::now() - Duration::from_secs(10));
        let at = |seconds| start + Duration::from_secs(seconds);
        term.confirmed = BTreeMap::from([(2, at(2)), (3, at(3)), (4, at(4)), (5, at(5))]);
        let seconds = |of: &[&[NodeId]]| Some((term.confirmed_at(1, &members(of), None)? - start).as_secs());
        // Node 1 confirms itself, now.
        assert_eq!(seconds(&[&[1]]), Some(10));
        assert_eq!(seconds(&[&[1, 2]]), Some(2));
        assert_eq!(seconds(&[&[1, 2, 3]]), Some(3));
        assert_eq!(seconds(&[&[1, 2, 3, 4]]), Some(3));
        assert_eq!(seconds(&[&[1, 2, 3, 4, 5]]), Some(4));
        // It is no voter any more.
        assert_eq!(seconds(&[&[2, 3, 4]]), Some(3));
        assert_eq!(seconds(&[&[3, 4, 5], &[1, 2, 3]]), Some(3));
        assert_eq!(seconds(&[&[1, 4, 5], &[2, 3, 4]]), Some(3));
        // Voters that have not confirmed it.
        assert_eq!(seconds(&[&[1, 7, 8]]), None);
        assert_eq!(seconds(&[&[1, 2, 3], &[1, 7, 8]]), None);
        assert_eq!(term.confirmed_at(1, &members(&[&[1, 7, 8]]), Some(term.since)), Some(term.since));
    }
}
