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
use openraft::{EntryPayload, LogState, OptionalSend, RaftLogReader};
use tamis::WriteBatch;

use super::library::{Entry, Types};
use super::state::{State, Waiting};
use super::types::{LogId, Logged, StorageError, StorageIoError, Vote};
use crate::error::{Error, Result};
use crate::store::{Item, Store, decode, encode};

/// Most bytes of entries that one read for replication returns, unless a single entry is longer.
/// Slow links carry that much within a heartbeat, so that each piece counts as progress.
const READ_LIMIT: usize = 256 << 10;

/// Syncs the store for all groups.
#[derive(Clone, Debug)]
pub(crate) struct Syncer {
    waiting: mpsc::Sender<Appended>,
}

/// Entries that wait for a sync.
type Appended = (LogFlushed<Types>, Vec<Arc<Logged>>, Waiting);

impl Syncer {
    /// Starts the thread, which calls `sync`. It ends when all clones are gone.
    pub(crate) fn start(sync: impl Fn() -> tamis::Result<()> + Send + 'static) -> Result<Syncer> {
        let (waiting, incoming) = mpsc::channel::<Appended>();
        let work = move || {
            while let Ok(first) = incoming.recv() {
                let mut served = vec![first];
                served.extend(incoming.try_iter());
                let synced = sync();
                for (callback, proposals, waiting) in served {
                    // The core may go on, and wait again, as soon as it is called.
                    drop(waiting);
                    callback.log_io_completed(
                        synced.as_ref().map(|_| ()).map_err(|error| io::Error::other(error.to_string())),
                    );
                    proposals.iter().for_each(|logged| logged.note_passed());
                }
            }
        };
        let thread = thread::Builder::new().name("kvd-sync".to_owned()).spawn(work);
        thread.map_err(Error::io("start", "the thread that syncs logs"))?;
        Ok(Syncer { waiting })
    }
}

/// The log of one group.
#[derive(Clone)]
pub(crate) struct LogStore {
    store: Store,
    group: u32,
    state: Arc<State>,
    syncer: Syncer,
}

impl LogStore {
    pub(crate) fn new(store: Store, group: u32, state: Arc<State>, syncer: Syncer) -> LogStore {
        LogStore { store, group, state, syncer }
    }

    fn key(&self, index: u64) -> [u8; 12] {
        entry_key(self.group, index)
    }

    fn last(&self) -> Result<Option<LogId>> {
        last_entry(&self.store, self.group)
    }

    fn read(&self, first: u64, end: u64, limit: usize) -> Result<Vec<Entry>> {
        read_entries(&self.store, self.group, first, end, limit)
    }
}

/// The last entry in the log of a group.
pub(super) fn last_entry(store: &Store, group: u32) -> Result<Option<LogId>> {
    let range = entry_key(group, 0)..=entry_key(group, u64::MAX);
    let last = store.log.range(range).next_back().transpose()?;
    last.map(|(_, entry)| Ok(decode::<Entry>(&entry, "raft-log")?.log_id)).transpose()
}

/// Reads entries of a group from `first` to before `end`: of about `limit` bytes, and at least one.
pub(super) fn read_entries(store: &Store, group: u32, first: u64, end: u64, limit: usize) -> Result<Vec<Entry>> {
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
pub(super) fn delete_entries(store: &Store, batch: &mut WriteBatch, group: u32, first: u64, last: u64) {
    batch.delete_range_in(&store.log, entry_key(group, first)..=entry_key(group, last));
}

fn entry_key(group: u32, index: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&group.to_be_bytes());
    key[4..].copy_from_slice(&index.to_be_bytes());
    key
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError> {
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
        super::blocking(|| self.read(first, end, usize::MAX)).map_err(|e| StorageIoError::read_logs(&e).into())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, StorageError> {
        super::blocking(|| self.read(start, end, READ_LIMIT)).map_err(|e| StorageIoError::read_logs(&e).into())
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError> {
        let state = || {
            let purged: Option<LogId> = self.store.item(self.group, Item::Purged)?;
            Ok(LogState { last_purged_log_id: purged, last_log_id: self.last()?.or(purged) })
        };
        super::blocking(state).map_err(|e: Error| StorageIoError::read_logs(&e).into())
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        self.state.note_promised(*vote);
        let _waiting = State::wait_for_disk(&self.state);
        let write = || self.store.write_item(self.group, Item::Vote, vote, true);
        super::blocking(write).map_err(|e| StorageIoError::write_vote(&e).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        self.store.item(self.group, Item::Vote).map_err(|e| StorageIoError::read_vote(&e).into())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        let Some(committed) = committed else { return Ok(()) };
        self.state.note_committed(committed.index);
        // Not synced: an older one is as good, the entries after it are applied a little later.
        let write = || self.store.write_item(self.group, Item::Committed, &committed, false);
        super::blocking(write).map_err(|e| StorageIoError::write(&e).into())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        self.store.item(self.group, Item::Committed).map_err(|e| StorageIoError::read(&e).into())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut proposals = Vec::new();
        let write = || -> Result<()> {
            let mut batch = WriteBatch::new();
            for entry in entries {
                if let EntryPayload::Normal(proposal) = &entry.payload {
                    proposals.extend(proposal.note_logged());
                }
                let bytes = encode(&entry)?;
                self.state.retention.note_appended(bytes.len());
                batch.put_in(&self.store.log, self.key(entry.log_id.index), bytes);
            }
            self.store.db.write(batch)?;
            Ok(())
        };
        super::blocking(write).map_err(|e| StorageError::from(StorageIoError::write_logs(&e)))?;
        self.syncer.waiting.send((callback, proposals, State::wait_for_disk(&self.state))).map_err(
            |mpsc::SendError(_)| {
                StorageIoError::write_logs(&io::Error::other("the thread that syncs logs has ended")).into()
            },
        )
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let write = || -> Result<()> {
            let mut batch = WriteBatch::new();
            delete_entries(&self.store, &mut batch, self.group, log_id.index, u64::MAX);
            self.store.db.write(batch)?;
            Ok(())
        };
        super::blocking(write).map_err(|e| StorageIoError::write_logs(&e).into())
    }

    /// Removes entries whose effects survive a power cut without them.
    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let applied = self.state.wait_applied(log_id).await;
        applied.map_err(|e| StorageError::from(StorageIoError::write_logs(&e)))?;
        let write = || -> Result<()> {
            self.state.flush_up_to(Some(log_id))?;
            let mut batch = WriteBatch::new();
            self.store.put_item(&mut batch, self.group, Item::Purged, &log_id)?;
            delete_entries(&self.store, &mut batch, self.group, 0, log_id.index);
            self.store.db.write(batch)?;
            Ok(())
        };
        super::blocking(write).map_err(|e| StorageIoError::write_logs(&e).into())
    }
}
