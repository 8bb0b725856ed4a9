//! How a node gives up what it has of a group, to join it anew.

use tamis::WriteBatch;
use tamis_openraft::{Item, delete_entries};

use super::types::Vote;
use super::wire::Lead;
use crate::error::Result;
use crate::store::{LATE, Store};

/// Adds to `batch` what makes of this node's replica of a group one that has nothing and has heard
/// of `lead`: it heeds no leader before that one, and neither votes nor stands before later members
/// include it. [`StateStore::open`](super::state::StateStore::open) then removes the state.
pub(super) fn begin_late(store: &Store, batch: &mut WriteBatch, group: u32, lead: &Lead) -> Result<()> {
    let own: Vote = store.item(group, Item::VOTE)?.unwrap_or_default();
    let vote = if own > lead.vote { own } else { lead.vote };
    // What is left of a snapshot that was being received is not the state either.
    let generation = store.generations(group)?.into_iter().max().map_or(0, |last| last + 1);
    store.put_item(batch, group, Item::VOTE, &vote)?;
    store.put_item(batch, group, Item::GENERATION, &generation)?;
    store.put_item(batch, group, LATE, &lead.members)?;
    store.delete_item(batch, group, Item::PURGED);
    store.delete_item(batch, group, Item::COMMITTED);
    delete_entries(store, batch, group, 0, u64::MAX);
    Ok(())
}
