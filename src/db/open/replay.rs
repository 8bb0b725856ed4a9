//! [`Replay`]: passes the operations of logs to where they go: to the memtables and the state of a
//! store that recovers (`recovery`), or of a reader beside another process (`follow`).
//!
//! Writes are inserted in groups whose index slots are prefetched, so that the cache misses
//! overlap. An ingest comes after the writes before it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::batch::{Ingest, LogOp, Op, OpKind};
use crate::error::Result;
use crate::filter::KeyHash;
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::log::wal::LogBatch;
use crate::report::delivery::Events;
use crate::report::event::Event;
use crate::sorted::memtable::{Memtable, any_in};
use crate::tree::insert::apply;
use crate::tree::manifest::ManifestState;

/// Operations inserted at a time.
const GROUP: usize = 32;

/// Takes what logs hold, in order.
pub(crate) trait Sink {
    /// The manifest's state, with what the sink has added to it.
    fn state(&self) -> &ManifestState;

    /// The next batch, which begins with number `first`, is in another log than the one before it,
    /// or the first of a call.
    fn begin_log(&mut self, _log: u64, _first: SeqNo) {}

    /// A batch names a keyspace with a greater id than all before it.
    fn meet_keyspace(&mut self, _batch: &LogBatch<'_>, _id: u32) -> Result<()> {
        Ok(())
    }

    /// The memtable that writes go to.
    fn memtable(&mut self) -> &Arc<Memtable>;

    /// At how many bytes that is full.
    fn full_size(&self) -> usize;

    /// The memtable is full. The next batch is in `log` and begins with number `first`.
    fn turn_over(&mut self, log: u64, first: SeqNo) -> Result<()>;

    fn ingest(&mut self, batch: &LogBatch<'_>, ingest: &Ingest<'_>, seqno: SeqNo) -> Result<()>;
}

/// What a replay has met.
#[derive(Debug, Default)]
pub(crate) struct Met {
    /// Number of operations.
    pub(crate) operations: u64,
    /// Whether an entry has a deadline.
    pub(crate) has_deadlines: bool,
    /// The greatest id of a keyspace, with the log and the offset that name it.
    pub(crate) newest_keyspace: Option<(u32, u64, u64)>,
}

impl Met {
    /// For logs that are read anew: counts on.
    pub(crate) fn successor(&self) -> Met {
        Met { operations: self.operations, ..Met::default() }
    }
}

/// Passes the operations of logs to a [`Sink`].
pub(crate) struct Replay<'a> {
    /// The directory of the logs.
    pub(crate) dir: &'a Path,
    /// Of the range deletes that are in a memtable, those stay that readers at these numbers,
    /// ascending, need.
    pub(crate) kept: &'a [SeqNo],
    pub(crate) met: &'a mut Met,
    /// `None` if nobody is told.
    pub(crate) progress: Option<Progress<'a>>,
}

/// A write read from a log.
struct Insertion<'a> {
    operation: Op<'a>,
    hash: KeyHash,
    seqno: SeqNo,
    /// If this is the first operation of its batch, the number of the log and of the batch's first
    /// operation, which the log may not have.
    begins: Option<(u64, SeqNo)>,
}

impl Replay<'_> {
    /// Passes the operations of `batches` to `sink`. After an error, some may not have been passed.
    pub(crate) fn pass<'b>(&mut self, batches: impl Iterator<Item = LogBatch<'b>>, sink: &mut impl Sink) -> Result<()> {
        let (mut log, mut group) = (None, Vec::with_capacity(GROUP));
        for batch in batches {
            if log.replace(batch.log) != Some(batch.log) {
                self.insert(&mut group, sink)?;
                self.progress.iter_mut().for_each(|progress| progress.tell(batch.log, self.met.operations));
                sink.begin_log(batch.log, batch.first);
            }
            for (at, operation) in batch.operations().enumerate() {
                let operation = operation.map_err(|rule| batch.corruption(self.dir, rule))?;
                let (keyspace, seqno) = (operation.keyspace(), batch.first + u64::from(operation.index()));
                self.met.operations += 1;
                if self.met.newest_keyspace.is_none_or(|(id, ..)| id < keyspace) {
                    self.met.newest_keyspace = Some((keyspace, batch.log, batch.offset));
                    sink.meet_keyspace(&batch, keyspace)?;
                }
                if group.len() == GROUP || matches!(operation, LogOp::Ingest(_)) {
                    self.insert(&mut group, sink)?;
                }
                match operation {
                    LogOp::Ingest(ingest) => sink.ingest(&batch, &ingest, seqno)?,
                    LogOp::Write(operation) => {
                        self.met.has_deadlines |= operation.kind == OpKind::ExpiringPut;
                        let hash = KeyHash::new(sink.state().hash_seed, operation.key);
                        sink.memtable().prefetch(keyspace, hash);
                        let begins = (at == 0).then_some((batch.log, batch.first));
                        group.push(Insertion { operation, hash, seqno, begins });
                    }
                }
            }
        }
        self.insert(&mut group, sink)
    }

    /// Inserts a group, and empties it.
    fn insert(&self, group: &mut Vec<Insertion<'_>>, sink: &mut impl Sink) -> Result<()> {
        let mut rest = &group[..];
        while !rest.is_empty() {
            let memtable = Arc::clone(sink.memtable());
            rest = &rest[self.insert_until_full(&memtable, rest, sink)..];
            if let Some((log, first)) = rest.first().and_then(|next| next.begins) {
                sink.turn_over(log, first)?;
            }
        }
        group.clear();
        Ok(())
    }

    /// Inserts operations until one begins a batch and the memtable is full: a batch is never
    /// split. Returns how many it has inserted, at least one if the memtable is not full.
    fn insert_until_full(&self, memtable: &Memtable, group: &[Insertion<'_>], sink: &impl Sink) -> usize {
        let full_size = sink.full_size();
        let fold = |keyspace| sink.state().keyspaces.get(&keyspace)?.options.merge_operator.as_ref()?.fold();
        let is_needed = |numbers: Range<SeqNo>| any_in(self.kept, numbers);
        let mut writer = memtable.writer();
        writer.keep_ranges_if(&is_needed);
        let mut inserted = 0;
        for Insertion { operation, hash, seqno, begins } in group {
            if begins.is_some() && writer.used() >= full_size {
                break;
            }
            apply(&mut writer, operation, *hash, *seqno, || fold(operation.keyspace));
            inserted += 1;
        }
        inserted
    }
}

/// Tells listeners how far a replay is.
pub(crate) struct Progress<'a> {
    dir: &'a Path,
    events: &'a Events,
    /// Numbers of all logs, ascending.
    logs: &'a [u64],
    replaying: Option<u64>,
}

impl<'a> Progress<'a> {
    pub(crate) fn new(dir: &'a Path, events: &'a Events, logs: &'a [u64]) -> Progress<'a> {
        Progress { dir, events, logs, replaying: None }
    }

    /// Tells that so many operations have been replayed if `log` is another one than before.
    fn tell(&mut self, log: u64, operations: u64) {
        if self.replaying.replace(log) != Some(log) {
            self.events.send(|| Event::RecoveryProgress {
                log: FileKind::Wal(log).path(self.dir),
                position: self.logs.partition_point(|other| *other <= log),
                logs: self.logs.len(),
                operations,
            });
        }
    }
}
