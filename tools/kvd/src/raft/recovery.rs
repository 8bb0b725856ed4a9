//! What the store of a node holds, without the node: for a cluster of one node, when the others are
//! lost, and for exports.
//!
//! Takes the state of each group and all entries of its log after that, also those of which the
//! node did not know whether they were committed. Some of these may have been acknowledged by other
//! nodes; none was refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use openraft::{CommittedLeaderId, EntryPayload, Membership};
use tamis::{Keyspace, Options};
use tamis_openraft::{Item, Position, Staging, StateMachine, View, last_entry, positions, read_entries};

use super::library::Types;
use super::types::{LogId, Member, StoredMembership, Vote};
use crate::error::{Error, Result};
use crate::machine::{Machine, Records};
use crate::replica::NodeId;
use crate::store::{Store, VERSION, decode};

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
    let (_, groups) = old.identity()?.ok_or_else(|| Error::Config(format!("{} is no store of kvd", from.display())))?;
    let new = Store::begin_recovery(options.clone(), to)?;
    let recover = |group| recover_group(&old, &new, group, id, member);
    let recovered = (0..groups).map(recover).collect::<Result<Vec<_>>>()?;
    new.db.flush()?;
    new.end_recovery(id, groups, rand::random::<u64>().max(1))?;
    new.db.clone().close()?;
    Ok(recovered)
}

fn recover_group(old: &Store, new: &Store, group: u32, id: NodeId, member: &Member) -> Result<Recovered> {
    let Replayed { machine, applied, last, from_log } = replay(old, new, group, &|| Ok(()))?;
    let last = last.unwrap_or(LogId::new(CommittedLeaderId::new(0, 0), 0));
    let members = Membership::new(vec![[id].into()], BTreeMap::from([(id, member.clone())]));
    let position = Position::after::<Types>(&last, Some(&StoredMembership::new(Some(last), members)))?;
    StateMachine::apply(&machine, None, &position)?;
    // The next term is greater than that of any entry.
    new.write_item(group, Item::VOTE, &Vote::new(last.leader_id.term, id), false)?;
    new.write_item(group, Item::PURGED, &last, false)?;
    new.write_item(group, VERSION, &old.version(group)?, false)?;
    Ok(Recovered { group, applied: index(applied), from_log })
}

fn index(of: Option<LogId>) -> u64 {
    of.map_or(0, |of| of.index)
}

/// A copy of a group's state to which the whole log was applied.
struct Replayed {
    machine: Machine,
    /// The last entry that the state had before.
    applied: Option<LogId>,
    /// The last entry of the log, or that one.
    last: Option<LogId>,
    /// Entries applied.
    from_log: u64,
}

/// Copies a group's state from `old` to `new`, and applies what the log holds after it. Calls
/// `go_on` now and then, and ends with its error.
fn replay(old: &Store, new: &Store, group: u32, go_on: &dyn Fn() -> Result<()>) -> Result<Replayed> {
    let mut staging = Staging::begin(new, group, 0)?;
    if let Some(state) = stored_state(old, group)? {
        for piece in View::new(old, &state).pieces() {
            go_on()?;
            staging.add(&piece?)?;
        }
    }
    let machine = Machine::open_in(&new.db, &staging.keep())?;
    let (applied, _) = positions::<Types, _>(&machine)?;
    check_log(old, group, applied)?;
    let mut last = applied;
    let mut from_log = 0;
    loop {
        go_on()?;
        let next = last.map_or(0, |last| last.index + 1);
        let entries = read_entries::<Types>(old, group, next, u64::MAX, PIECE)?;
        if entries.is_empty() {
            return Ok(Replayed { machine, applied, last, from_log });
        }
        for (entry, index) in entries.iter().zip(next..) {
            if entry.log_id.index != index {
                let rule = format!("entry {index} of group {group} is missing");
                return Err(Error::Decode { place: "raft-log", rule });
            }
            if let EntryPayload::Normal(proposal) = &entry.payload {
                machine.apply(proposal.entry()?, &[])?;
            }
            last = Some(entry.log_id);
            from_log += 1;
        }
    }
}

/// The keyspace of a group's state, which a node makes when it starts.
fn stored_state(store: &Store, group: u32) -> Result<Option<Keyspace>> {
    store.version(group)?;
    let generation: u64 = store.item(group, Item::GENERATION)?.unwrap_or(0);
    Ok(store.db.existing_keyspace(&tamis_openraft::Store::keyspace_name(group, generation))?)
}

/// Checks that no entry after `applied` was removed from the log.
fn check_log(store: &Store, group: u32, applied: Option<LogId>) -> Result<()> {
    let purged: Option<LogId> = store.item(group, Item::PURGED)?;
    let [purged, applied] = [purged, applied].map(|of| of.map(|of| of.index));
    if purged <= applied {
        return Ok(());
    }
    let (purged, applied) = (purged.unwrap_or(0), applied.unwrap_or(0));
    let rule = format!("it lacks entries up to {purged} of group {group}, and the state those after {applied}");
    Err(Error::Decode { place: "raft-log", rule })
}

/// A group's state with its whole log applied.
pub(crate) struct FoundState {
    /// The group.
    pub(crate) group: u32,
    /// What holds the state.
    pub(crate) keyspace: Keyspace,
    /// Which of the directories it is from.
    pub(crate) dir: usize,
    /// Index of the entry up to which the store had applied the log.
    pub(crate) applied: u64,
    /// Entries after it that were found in the log.
    pub(crate) from_log: u64,
    /// How many of them the node did not know to be committed.
    pub(crate) unsure: u64,
}

/// The states of groups in stores of nodes.
pub(crate) struct Found {
    /// One for each group of which there is a replica.
    pub(crate) states: Vec<FoundState>,
    /// The other groups.
    pub(crate) absent: Vec<u32>,
}

/// Finds the states of all groups in the stores in `dirs`, which are of one cluster. They are not
/// changed and may be in use; what is found is of the moment at which a store was opened.
///
/// Of each group it takes the replica whose log ends last. Among a majority of the group's members,
/// that one could become the leader, and has all entries that were committed.
///
/// A state that lacks entries of the log, as after a kill, is copied: to a store in the directory
/// `work`, which is then made. Calls `go_on` now and then, and ends with its error.
pub(crate) fn find_states(
    options: &Options,
    dirs: &[PathBuf],
    work: &Path,
    go_on: &dyn Fn() -> Result<()>,
) -> Result<Found> {
    let (stores, groups) = open_stores(options, dirs)?;
    let mut copies: Option<Store> = None;
    let (mut states, mut absent) = (Vec::new(), Vec::new());
    for group in 0..groups {
        let ends = stores.iter().map(|store| end(store, group));
        let ends = ends.collect::<Result<Vec<_>>>()?;
        let last = ends.iter().zip(&stores).enumerate().max_by_key(|(_, (end, _))| *end);
        let Some((dir, ((Some(_), applied), old))) = last else {
            absent.push(group);
            continue;
        };
        let (state, applied) = (stored_state(old, group)?, *applied);
        let next = applied.map_or(0, |applied| applied.index + 1);
        let is_whole = read_entries::<Types>(old, group, next, u64::MAX, 1)?.is_empty();
        if let Some(keyspace) = state.filter(|_| is_whole) {
            check_log(old, group, applied)?;
            states.push(FoundState { group, keyspace, dir, applied: index(applied), from_log: 0, unsure: 0 });
            continue;
        }
        let new = match &copies {
            Some(copies) => copies,
            None => copies.insert(Store::open(options.clone(), work)?),
        };
        let Replayed { machine, applied, last, from_log } = replay(old, new, group, go_on)?;
        let committed: Option<LogId> = old.item(group, Item::COMMITTED)?;
        let unsure = index(last).saturating_sub(index(applied.max(committed)));
        let keyspace = machine.keyspace().clone();
        states.push(FoundState { group, keyspace, dir, applied: index(applied), from_log, unsure });
    }
    Ok(Found { states, absent })
}

/// Opens stores of nodes of one cluster. Returns the number of groups, too.
fn open_stores(options: &Options, dirs: &[PathBuf]) -> Result<(Vec<Store>, u32)> {
    let (mut stores, mut first) = (Vec::new(), None);
    for dir in dirs {
        let store = Store::open_read_only(options.clone(), dir)?;
        let identity = store.identity()?;
        let (_, groups) = identity.ok_or_else(|| Error::Config(format!("{} is no store of kvd", dir.display())))?;
        let cluster = (groups, store.cluster()?);
        if *first.get_or_insert(cluster) != cluster {
            return Err(Error::Config(format!("{} is of another cluster than the stores before it", dir.display())));
        }
        stores.push(store);
    }
    Ok((stores, first.map_or(0, |(groups, _)| groups)))
}

/// The last entry that a replica has: in its log, in its state, or removed from its log; `None` if
/// there is no replica. And the last one that the state has applied.
fn end(store: &Store, group: u32) -> Result<(Option<LogId>, Option<LogId>)> {
    let applied = match stored_state(store, group)? {
        Some(state) => Records::of(&state)?.meta(Position::APPLIED)?,
        None => None,
    };
    let applied: Option<LogId> = applied.map(|bytes| decode(&bytes, "the state's log index")).transpose()?;
    let purged: Option<LogId> = store.item(group, Item::PURGED)?;
    Ok((last_entry::<Types>(store, group)?.max(applied).max(purged), applied))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn entry(index: u64) -> LogId {
        LogId::new(CommittedLeaderId::new(1, 1), index)
    }

    /// A store of a node of a cluster with as many groups as there are replicas. Each of these has
    /// applied the entries up to the first index, and lacks those up to the second one in its log.
    fn make(options: &Options, dir: &str, cluster: u64, replicas: &[Option<(u64, u64)>]) -> PathBuf {
        let store = Store::open(options.clone(), dir.as_ref()).unwrap();
        store.bind(1, u32::try_from(replicas.len()).unwrap()).unwrap();
        let mut batch = tamis::WriteBatch::new();
        store.put_cluster(&mut batch, cluster).unwrap();
        store.write_durably(batch).unwrap();
        for (group, replica) in (0..).zip(replicas) {
            let machine = Machine::open_in(&store.db, &tamis_openraft::Store::keyspace_name(group, 0)).unwrap();
            let Some((applied, purged)) = replica else { continue };
            let position = Position::after::<Types>(&entry(*applied), None).unwrap();
            StateMachine::apply(&machine, None, &position).unwrap();
            store.write_item(group, Item::PURGED, &entry(*purged), true).unwrap();
        }
        store.db.clone().close().unwrap();
        dir.into()
    }

    fn options() -> Options {
        Options::new().file_system(Arc::new(tamis::vfs::MemoryFileSystem::new()))
    }

    fn find(options: &Options, dirs: &[PathBuf]) -> Result<Found> {
        find_states(options, dirs, "/work".as_ref(), &|| Ok(()))
    }

    #[test]
    fn a_state_without_the_entries_that_the_log_lacks_is_refused() {
        let check = |applied, purged| {
            let options = options();
            let dir = make(&options, "/store", 1, &[Some((applied, purged))]);
            let member = Member { raft: String::new(), resp: String::new() };
            let recovered = recover(&options, &dir, "/recovered".as_ref(), 2, &member);
            let found = find(&options, &[dir]);
            assert_eq!(recovered.is_ok(), found.is_ok());
            found
        };
        let found = check(7, 7).unwrap();
        assert_eq!((found.states[0].applied, found.states[0].from_log, found.states[0].unsure), (7, 0, 0));
        let error = check(6, 7).err().unwrap().to_string();
        assert!(error.contains("it lacks entries up to 7 of group 0"), "{error}");
    }

    #[test]
    fn the_replica_whose_log_ends_last_is_taken() {
        let options = options();
        let first = make(&options, "/1", 9, &[Some((5, 5)), Some((8, 1)), None, None]);
        let second = make(&options, "/2", 9, &[Some((7, 2)), Some((6, 6)), Some((3, 3)), None]);
        let found = find(&options, &[first.clone(), second]).unwrap();
        let taken = found.states.iter().map(|state| (state.group, state.dir, state.applied));
        assert_eq!(taken.collect::<Vec<_>>(), [(0, 1, 7), (1, 0, 8), (2, 1, 3)]);
        assert_eq!(found.absent, [3]);
        assert_eq!(find(&options, &[first]).unwrap().absent, [2, 3]);
    }

    #[test]
    fn stores_of_two_clusters_are_refused() {
        let options = options();
        let dirs = [make(&options, "/1", 8, &[None]), make(&options, "/2", 9, &[None])];
        let error = find(&options, &dirs).err().unwrap().to_string();
        assert!(error.contains("/2 is of another cluster"), "{error}");
    }
}
