//! A cluster of one node, made of the store of a node whose cluster is lost, or of a copy of it.
//!
//! Takes what the store holds: the state of each group, and all entries of its log after that, also
//! those of which the node did not know whether they were committed. Some of these may have been
//! acknowledged by nodes that are lost; none was refused.

use std::collections::BTreeMap;
use std::path::Path;

use openraft::{CommittedLeaderId, EntryPayload, Membership};
use tamis::Options;

use super::log::read_entries;
use super::place::{APPLIED, MEMBERSHIP, keyspace_name, positions};
use super::snapshot::{Staging, View};
use super::types::{LogId, Member, StoredMembership, Vote};
use crate::error::{Error, Result};
use crate::machine::{self, Machine};
use crate::replica::NodeId;
use crate::store::{Item, Store, encode};

/// Bytes of entries that are read at a time.
const PIECE: usize = 4 << 20;

/// What became of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The group.
    pub group: u32,
    /// Index of the entry up to which the store had applied the log.
    pub applied: u64,
    /// Entries after it that were found in the log.
    pub from_log: u64,
}

/// Makes a store in `to`, which must be empty, of that in `from`, which is not changed and may be
/// in use. It is of a new cluster, whose one member is node `id`.
pub fn recover(options: &Options, from: &Path, to: &Path, id: NodeId, member: &Member) -> Result<Vec<Recovered>> {
    let old = Store::open_read_only(options.clone(), from)?;
    let new = Store::open(options.clone(), to)?;
    let (_, groups) = old.identity()?.ok_or_else(|| Error::Config(format!("{} is no store of kvd", from.display())))?;
    new.begin_recovery()?;
    let recover = |group| recover_group(&old, &new, group, id, member);
    let recovered = (0..groups).map(recover).collect::<Result<Vec<_>>>()?;
    new.db.flush()?;
    new.end_recovery(id, groups, rand::random::<u64>().max(1))?;
    new.db.close()?;
    Ok(recovered)
}

fn recover_group(old: &Store, new: &Store, group: u32, id: NodeId, member: &Member) -> Result<Recovered> {
    let generation: u64 = old.item(group, Item::Generation)?.unwrap_or(0);
    let mut staging = Staging::begin(new, group, 0)?;
    if let Some(state) = old.db.existing_keyspace(&keyspace_name(group, generation))? {
        staging.copy(&View::new(old, &state))?;
    }
    let machine = Machine::open_in(&new.db, &staging.keep())?;
    let (applied, _) = positions(&machine)?;
    check_log(old, group, applied)?;
    let mut last: Option<LogId> = applied;
    let mut from_log = 0;
    loop {
        let next = last.map_or(0, |last| last.index + 1);
        let entries = read_entries(old, group, next, u64::MAX, PIECE)?;
        if entries.is_empty() {
            break;
        }
        for (entry, index) in entries.iter().zip(next..) {
            if entry.log_id.index != index {
                let rule = format!("entry {index} of group {group} is missing");
                return Err(Error::Decode { place: "raft-log", rule });
            }
            if let EntryPayload::Normal(proposal) = &entry.payload {
                machine.apply(&proposal.entry, &[])?;
            }
            last = Some(entry.log_id);
            from_log += 1;
        }
    }
    let last = last.unwrap_or(LogId::new(CommittedLeaderId::new(0, 0), 0));
    let members = Membership::new(vec![[id].into()], BTreeMap::from([(id, member.clone())]));
    let (applied_bytes, membership) = (encode(&last)?, encode(&StoredMembership::new(Some(last), members))?);
    let nothing = machine::Entry { time_ms: 0, requests: Vec::new() };
    machine.apply(&nothing, &[(APPLIED, &applied_bytes), (MEMBERSHIP, &membership)])?;
    // The next term is greater than that of any entry.
    new.write_item(group, Item::Vote, &Vote::new(last.leader_id.term, id), false)?;
    new.write_item(group, Item::Purged, &last, false)?;
    Ok(Recovered { group, applied: applied.map_or(0, |applied| applied.index), from_log })
}

/// Checks that no entry after `applied` was removed from the log.
fn check_log(store: &Store, group: u32, applied: Option<LogId>) -> Result<()> {
    let purged: Option<LogId> = store.item(group, Item::Purged)?;
    let [purged, applied] = [purged, applied].map(|of| of.map(|of| of.index));
    if purged <= applied {
        return Ok(());
    }
    let (purged, applied) = (purged.unwrap_or(0), applied.unwrap_or(0));
    let rule = format!("it lacks entries up to {purged} of group {group}, and the state those after {applied}");
    Err(Error::Decode { place: "raft-log", rule })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_state_without_the_entries_that_the_log_lacks_is_refused() {
        let entry = |index| LogId::new(CommittedLeaderId::new(1, 1), index);
        let options = Options::new().file_system(Arc::new(tamis::vfs::MemoryFileSystem::new()));
        let store = Store::open(options.clone(), "/store".as_ref()).unwrap();
        store.bind(1, 1).unwrap();
        let machine = Machine::open_in(&store.db, &keyspace_name(0, 0)).unwrap();
        let nothing = machine::Entry { time_ms: 0, requests: Vec::new() };
        machine.apply(&nothing, &[(APPLIED, &encode(&entry(6)).unwrap())]).unwrap();
        store.write_item(0, Item::Purged, &entry(7), true).unwrap();
        store.db.close().unwrap();
        let member = Member { raft: String::new(), resp: String::new() };
        let error = recover(&options, "/store".as_ref(), "/new".as_ref(), 2, &member).unwrap_err().to_string();
        assert!(error.contains("it lacks entries up to 7 of group 0"), "{error}");
    }
}
