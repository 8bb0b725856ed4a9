//! The log of a group: its entries, its vote, and which of them the disk has.
//!
//! Appends are written without a sync and are visible at once. The thread of a [`Syncer`] then
//! syncs the store and reports, for all groups and all appends that wait. Votes are synced before
//! `save_vote` returns. All of it goes to one write-ahead log, so that after a power cut the disk
//! has a prefix of what was written here: no hole, no vote before an earlier entry.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, mpsc};
use std::thread;

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{Entry, LogState, OptionalSend, RaftLogReader, RaftTypeConfig, StorageError, StorageIOError, Vote};
use tamis::WriteBatch;

use crate::error::Result;
use crate::state::{DiskWait, State, StateMachine};
use crate::store::{Item, Store, decode, encode};
use crate::{LogId, blocking};

/// Most bytes of entries that one read for replication returns, unless a single entry is longer.
/// Slow links carry that much within a heartbeat, so that each piece counts as progress.
const READ_LIMIT: usize = 256 << 10;

/// What a program wants to know of its log. By default nothing, as with `()`.
pub trait Events<C: RaftTypeConfig>: Send + Sync + 'static {
    /// Waits for a sync with the entries of an append.
    type Waiting: Send + 'static;

    /// Entries are about to be written.
    fn append(&self) -> impl Appending<C, Self::Waiting> + Send;

    /// The sync of an append has ended, for good or bad, and openraft knows.
    fn synced(waiting: Self::Waiting) {
        drop(waiting);
    }

    /// A vote is about to be written.
    fn vote(&self, vote: &Vote<C::NodeId>) {
        let _ = vote;
    }

    /// openraft has told that entries up to `last` are committed.
    fn committed(&self, last: &LogId<C>) {
        let _ = last;
    }

    /// Whether an entry that was read can be used.
    fn check(&self, entry: &Entry<C>) -> Result<()> {
        let _ = entry;
        Ok(())
    }
}

/// An append that is being made. Dropped before [`written`](Appending::written) if it fails.
pub trait Appending<C: RaftTypeConfig, W> {
    /// An entry is added, which takes `len` bytes.
    fn entry(&mut self, entry: &Entry<C>, len: usize);

    /// All are added. More may be written with them.
    fn end(&mut self, batch: &mut WriteBatch) -> Result<()>;

    /// They are written.
    fn written(self) -> W;
}

impl<C: RaftTypeConfig> Events<C> for () {
    type Waiting = ();

    fn append(&self) -> impl Appending<C, ()> + Send {}
}

impl<C: RaftTypeConfig> Appending<C, ()> for () {
    fn entry(&mut self, _: &Entry<C>, _: usize) {}

    fn end(&mut self, _: &mut WriteBatch) -> Result<()> {
        Ok(())
    }

    fn written(self) {}
}

/// Syncs the store for all groups.
pub struct Syncer<C: RaftTypeConfig, E: Events<C>> {
    waiting: mpsc::Sender<Appended<C, E>>,
}

/// Entries that wait for a sync.
type Appended<C, E> = (LogFlushed<C>, <E as Events<C>>::Waiting, DiskWait);

impl<C: RaftTypeConfig, E: Events<C>> Clone for Syncer<C, E> {
    fn clone(&self) -> Syncer<C, E> {
        Syncer { waiting: self.waiting.clone() }
    }
}

impl<C: RaftTypeConfig, E: Events<C>> Syncer<C, E> {
    /// Starts the thread, which calls `sync`: that of the store, or one that does more. It ends
    /// when all clones are gone.
    pub fn start(sync: impl Fn() -> tamis::Result<()> + Send + 'static) -> io::Result<Syncer<C, E>> {
        let (waiting, incoming) = mpsc::channel::<Appended<C, E>>();
        let work = move || {
            while let Ok(first) = incoming.recv() {
                let mut served = vec![first];
                served.extend(incoming.try_iter());
                let synced = sync();
                for (callback, waiting, disk) in served {
                    // The core may go on, and wait again, as soon as it is called.
                    drop(disk);
                    callback.log_io_completed(
                        synced.as_ref().map(|_| ()).map_err(|error| io::Error::other(error.to_string())),
                    );
                    E::synced(waiting);
                }
            }
        };
        thread::Builder::new().name("raft-sync".to_owned()).spawn(work)?;
        Ok(Syncer { waiting })
    }
}

/// The log of one group.
pub struct LogStore<C: RaftTypeConfig, M, E: Events<C> = ()> {
    store: Store,
    group: u32,
    state: Arc<State<C, M>>,
    events: Arc<E>,
    syncer: Syncer<C, E>,
}

impl<C: RaftTypeConfig, M, E: Events<C>> Clone for LogStore<C, M, E> {
    fn clone(&self) -> LogStore<C, M, E> {
        let (store, group, state) = (self.store.clone(), self.group, Arc::clone(&self.state));
        LogStore { store, group, state, events: Arc::clone(&self.events), syncer: self.syncer.clone() }
    }
}

impl<C, M, E> LogStore<C, M, E>
where
    C: RaftTypeConfig<Entry = Entry<C>>,
    E: Events<C>,
{
    /// The log of `group`, whose state is `state`.
    pub fn new(
        store: &Store,
        group: u32,
        state: Arc<State<C, M>>,
        events: Arc<E>,
        syncer: Syncer<C, E>,
    ) -> LogStore<C, M, E> {
        LogStore { store: store.clone(), group, state, events, syncer }
    }

    /// Has a node that led a group when it stopped stand for election when it starts; to be called
    /// before openraft starts. Returns whether it led.
    ///
    /// openraft would have it lead on at once (its issue 1511). It need not know what was
    /// committed, and would answer reads without it; a new leader first commits an entry of its
    /// term.
    pub fn end_lead(store: &Store, group: u32, id: &C::NodeId) -> Result<bool> {
        let vote: Option<Vote<C::NodeId>> = store.item(group, Item::VOTE)?;
        let Some(mut vote) = vote.filter(|vote| vote.committed && vote.leader_id.voted_for().as_ref() == Some(id))
        else {
            return Ok(false);
        };
        vote.committed = false;
        store.write_item(group, Item::VOTE, &vote, false)?;
        Ok(true)
    }

    fn read(&self, first: u64, end: u64, limit: usize) -> Result<Vec<Entry<C>>> {
        let entries = read_entries(&self.store, self.group, first, end, limit)?;
        entries.iter().try_for_each(|entry| self.events.check(entry))?;
        Ok(entries)
    }
}

/// The last entry in the log of a group.
pub fn last_entry<C: RaftTypeConfig<Entry = Entry<C>>>(store: &Store, group: u32) -> Result<Option<LogId<C>>> {
    let range = entry_key(group, 0)..=entry_key(group, u64::MAX);
    let last = store.log.range(range).next_back().transpose()?;
    last.map(|(_, entry)| Ok(decode::<Entry<C>>(&entry, "raft-log")?.log_id)).transpose()
}

/// Reads entries of a group from `first` to before `end`: of about `limit` bytes, and at least one.
pub fn read_entries<C: RaftTypeConfig<Entry = Entry<C>>>(
    store: &Store,
    group: u32,
    first: u64,
    end: u64,
    limit: usize,
) -> Result<Vec<Entry<C>>> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    if first >= end {
        return Ok(entries);
    }
    for item in store.log.range(entry_key(group, first)..entry_key(group, end)) {
        let (_, value) = item?;
        if bytes > 0 && bytes + value.len() > limit {
            break;
        }
        bytes += value.len();
        entries.push(decode(&value, "raft-log")?);
    }
    Ok(entries)
}

/// Adds the removal of entries of a group to `batch`, from `first` to `last`, both inclusive.
pub fn delete_entries(store: &Store, batch: &mut WriteBatch, group: u32, first: u64, last: u64) {
    batch.delete_range_in(&store.log, entry_key(group, first)..=entry_key(group, last));
}

fn entry_key(group: u32, index: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&group.to_be_bytes());
    key[4..].copy_from_slice(&index.to_be_bytes());
    key
}

impl<C, M, E> RaftLogReader<C> for LogStore<C, M, E>
where
    C: RaftTypeConfig<Entry = Entry<C>>,
    M: StateMachine<C>,
    E: Events<C>,
{
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry<C>>, StorageError<C::NodeId>> {
        let first = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(index) => index.saturating_add(1),
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        blocking(|| self.read(first, end, usize::MAX)).map_err(|e| StorageIOError::read_logs(&e).into())
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry<C>>, StorageError<C::NodeId>> {
        blocking(|| self.read(start, end, READ_LIMIT)).map_err(|e| StorageIOError::read_logs(&e).into())
    }
}

impl<C, M, E> RaftLogStorage<C> for LogStore<C, M, E>
where
    C: RaftTypeConfig<Entry = Entry<C>>,
    M: StateMachine<C>,
    E: Events<C>,
{
    type LogReader = LogStore<C, M, E>;

    async fn get_log_state(&mut self) -> Result<LogState<C>, StorageError<C::NodeId>> {
        let state = || -> Result<LogState<C>> {
            let purged: Option<LogId<C>> = self.store.item(self.group, Item::PURGED)?;
            let last = last_entry::<C>(&self.store, self.group)?.or_else(|| purged.clone());
            Ok(LogState { last_purged_log_id: purged, last_log_id: last })
        };
        blocking(state).map_err(|e| StorageIOError::read_logs(&e).into())
    }

    async fn get_log_reader(&mut self) -> LogStore<C, M, E> {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        self.events.vote(vote);
        let _waiting = self.state.progress().wait_for_disk();
        let write = || self.store.write_item(self.group, Item::VOTE, vote, true);
        blocking(write).map_err(|e| StorageIOError::write_vote(&e).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<C::NodeId>>, StorageError<C::NodeId>> {
        self.store.item(self.group, Item::VOTE).map_err(|e| StorageIOError::read_vote(&e).into())
    }

    async fn save_committed(&mut self, committed: Option<LogId<C>>) -> Result<(), StorageError<C::NodeId>> {
        let Some(committed) = committed else { return Ok(()) };
        self.events.committed(&committed);
        // Not synced: an older one is as good, the entries after it are applied a little later.
        let write = || self.store.write_item(self.group, Item::COMMITTED, &committed, false);
        blocking(write).map_err(|e| StorageIOError::write(&e).into())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<C>>, StorageError<C::NodeId>> {
        self.store.item(self.group, Item::COMMITTED).map_err(|e| StorageIOError::read(&e).into())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<C>) -> Result<(), StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = Entry<C>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let disk = self.state.progress().wait_for_disk();
        let write = || -> Result<E::Waiting> {
            let (mut batch, mut appending) = (WriteBatch::new(), self.events.append());
            for entry in entries {
                let bytes = encode(&entry)?;
                appending.entry(&entry, bytes.len());
                batch.put_in(&self.store.log, entry_key(self.group, entry.log_id.index), bytes);
            }
            appending.end(&mut batch)?;
            self.store.db.write(batch)?;
            Ok(appending.written())
        };
        let waiting = blocking(write).map_err(|e| StorageError::from(StorageIOError::write_logs(&e)))?;
        self.syncer.waiting.send((callback, waiting, disk)).map_err(|mpsc::SendError(_)| {
            StorageIOError::write_logs(&io::Error::other("the thread that syncs logs has ended")).into()
        })
    }

    async fn truncate(&mut self, log_id: LogId<C>) -> Result<(), StorageError<C::NodeId>> {
        let _waiting = self.state.progress().wait_for_disk();
        let write = || -> Result<()> {
            let mut batch = WriteBatch::new();
            delete_entries(&self.store, &mut batch, self.group, log_id.index, u64::MAX);
            self.store.db.write(batch)?;
            Ok(())
        };
        blocking(write).map_err(|e| StorageIOError::write_logs(&e).into())
    }

    /// Removes entries whose effects survive a power cut without them.
    async fn purge(&mut self, log_id: LogId<C>) -> Result<(), StorageError<C::NodeId>> {
        let progress = self.state.progress();
        let applied = progress.wait_applied(&log_id).await;
        applied.map_err(|e| StorageError::from(StorageIOError::write_logs(&e)))?;
        let _waiting = progress.wait_for_disk();
        let write = || -> Result<()> {
            progress.flush_up_to(Some(&log_id))?;
            let mut batch = WriteBatch::new();
            self.store.put_item(&mut batch, self.group, Item::PURGED, &log_id)?;
            delete_entries(&self.store, &mut batch, self.group, 0, log_id.index);
            self.store.db.write(batch)?;
            Ok(())
        };
        blocking(write).map_err(|e| StorageIOError::write_logs(&e).into())
    }
}
