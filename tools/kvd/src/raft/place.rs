//! Where a group's state is in the store, and how far it has come.

use super::types::{LogId, StoredMembership, Vote};
use crate::error::Result;
use crate::machine::Machine;
use crate::replica::NodeId;
use crate::store::{Item, Store, decode};

/// Name of the meta pair that holds the id of the last entry applied.
pub(super) const APPLIED: &[u8] = b"applied";
/// Name of the meta pair that holds the last membership applied.
pub(super) const MEMBERSHIP: &[u8] = b"membership";

/// Name of the keyspace that holds a generation of a group's state.
pub(super) fn keyspace_name(group: u32, generation: u64) -> String {
    format!("{}-{generation}", Machine::keyspace_name(group))
}

/// Generations of the group's state that are in the store.
pub(super) fn generations(store: &Store, group: u32) -> Result<Vec<u64>> {
    let prefix = format!("{}-", Machine::keyspace_name(group));
    let names = store.db.keyspace_names()?;
    Ok(names.iter().filter_map(|name| name.strip_prefix(&prefix)?.parse().ok()).collect())
}

/// The last entry applied, and the last membership.
pub(super) fn positions(machine: &Machine) -> Result<(Option<LogId>, StoredMembership)> {
    let applied = machine.meta(APPLIED)?.map(|bytes| decode(&bytes, "the state's log index")).transpose()?;
    let membership = machine.meta(MEMBERSHIP)?.map(|bytes| decode(&bytes, "the state's membership")).transpose()?;
    Ok((applied, membership.unwrap_or_default()))
}

/// Has a node that led a group when it stopped stand for election when it starts. Returns whether
/// it led.
///
/// The library would have it lead on at once (openraft issue 1511). It need not know what was
/// committed, and would answer reads without it; a new leader first commits an entry of its term.
pub(super) fn end_lead(store: &Store, group: u32, id: NodeId) -> Result<bool> {
    let vote: Option<Vote> = store.item(group, Item::Vote)?;
    let Some(mut vote) = vote.filter(|vote| vote.committed && vote.leader_id.voted_for() == Some(id)) else {
        return Ok(false);
    };
    vote.committed = false;
    store.write_item(group, Item::Vote, &vote, false)?;
    Ok(true)
}
