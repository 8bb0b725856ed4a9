//! [`Relay`]: passes batches from the thread that reads the logs to the thread that applies them.
//!
//! Reading and verifying a log takes about as long as applying it. Therefore a long log is applied
//! by another thread while the calling thread reads on. Batches are passed in a few buffers, which
//! come back to be reused; the faster thread waits for the other. A batch longer than a buffer is
//! not copied: the reading thread applies it in place, after all batches before it.
//!
//! What is applied, in which order, and with which error it ends does not depend on there being a
//! thread:
//! - Groups of batches are applied in log order, by either thread, and none after one that failed.
//! - An error of applying takes precedence over one of reading, because everything read before an
//!   error is applied first.
//!
//! Gain, 40 MB of log on two cores: opening takes 61 ms instead of 125. To remove it, pass no
//! thread to `wal::recover`.

use std::panic::resume_unwind;
use std::path::Path;

use crate::Record;
use crate::op::{LogOps, LoggedPart};
use tamis_base::error::{Error, Result};
use tamis_base::format::filename::FileKind;
use tamis_base::format::key::SeqNo;
use tamis_base::format::{Decoded, Malformed};
use tamis_base::sync::Mutex;
use tamis_base::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use tamis_base::sync::thread::{Scope, ScopedJoinHandle, spawn_scoped};

/// Bytes of a buffer: small enough to be still in the CPU cache when it is applied.
const BUFFER_LEN: usize = 128 << 10;
/// Buffers in flight before the reader waits. One is being applied; the others even out differences
/// in speed: a thread may lose its processor for a while to the one that touches memory ahead.
const BUFFERS: usize = 8;

/// Consecutive batches of the logs.
#[derive(Clone, Copy)]
pub struct BatchGroup<'a> {
    payloads: &'a [u8],
    positions: &'a [BatchPosition],
}

/// Owned memory of a group, to be applied by the other thread.
#[derive(Default)]
struct BatchBuffer {
    payloads: Vec<u8>,
    positions: Vec<BatchPosition>,
}

/// Position of a batch in the logs and in its group.
struct BatchPosition {
    log: u64,
    offset: u64,
    first: SeqNo,
    count: u32,
    /// End of its payload in the payloads of the group; it begins where the one before ends.
    end: usize,
}

/// A batch, and where it was found.
pub struct LogBatch<'a> {
    /// The log's number.
    pub log: u64,
    /// Offset of the batch's record in the log.
    pub offset: u64,
    /// The sequence number of the first operation.
    pub first: SeqNo,
    payload: &'a [u8],
    count: u32,
}

impl<'a> LogBatch<'a> {
    /// The batch in a record.
    pub(super) fn of(record: &Record<'a>) -> LogBatch<'a> {
        let Record { number, offset, first, payload, count, .. } = *record;
        LogBatch { log: number, offset, first, payload, count }
    }

    /// How many operations it has, with those that the log does not store.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// What is in it of the keyspaces that `is_kept` names.
    pub fn part(&self, is_kept: impl Fn(u32) -> bool) -> Decoded<LoggedPart> {
        LoggedPart::of_log(self.payload, self.count, is_kept)
    }

    pub fn operations(&self) -> LogOps<'a> {
        LogOps::new(self.payload, self.count)
    }

    /// The error for a batch that breaks `rule` although its checksum matches; `dir` is the
    /// directory of the logs.
    pub fn corruption(&self, dir: &Path, rule: Malformed) -> Error {
        Error::corruption(&FileKind::Wal(self.log).path(dir), self.offset, rule)
    }
}

impl<'a> BatchGroup<'a> {
    pub fn batches(self) -> impl Iterator<Item = LogBatch<'a>> {
        let mut start = 0;
        self.positions.iter().map(move |&BatchPosition { log, offset, first, count, end }| {
            let payload = &self.payloads[start..end];
            start = end;
            LogBatch { log, offset, first, payload, count }
        })
    }
}

impl BatchPosition {
    /// The position of the batch in `record`, whose payload ends at `end` in the group.
    fn new(record: &Record<'_>, end: usize) -> BatchPosition {
        BatchPosition { log: record.number, offset: record.offset, first: record.first, count: record.count, end }
    }
}

impl BatchBuffer {
    fn group(&self) -> BatchGroup<'_> {
        BatchGroup { payloads: &self.payloads, positions: &self.positions }
    }

    fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Whether a batch of `payload_len` bytes fits.
    fn has_space_for(&self, payload_len: usize) -> bool {
        let positions_len = (self.positions.len() + 1) * size_of::<BatchPosition>();
        self.payloads.len() + payload_len + positions_len <= BUFFER_LEN
    }

    fn push(&mut self, record: &Record<'_>) {
        self.payloads.extend_from_slice(record.payload);
        self.positions.push(BatchPosition::new(record, self.payloads.len()));
    }

    fn clear(&mut self) {
        self.payloads.clear();
        self.positions.clear();
    }
}

/// Applies the batches of a group.
pub(super) type Apply<'a> = dyn FnMut(BatchGroup<'_>) -> Result<()> + Send + 'a;

pub(super) struct Relay<'scope, 'env, 'a> {
    scope: &'scope Scope<'scope, 'env>,
    apply: &'scope Mutex<&'a mut Apply<'a>>,
    filling: BatchBuffer,
    /// Whether a thread may be started.
    may_start: bool,
    helper: Option<Helper<'scope>>,
}

/// The thread that applies.
struct Helper<'scope> {
    filled: Sender<BatchBuffer>,
    /// Buffers that were applied. Closed when the thread ends.
    applied: Receiver<BatchBuffer>,
    /// Buffers in flight.
    in_flight: usize,
    thread: ScopedJoinHandle<'scope, Result<()>>,
}

/// The thread has ended early: it has failed.
struct Gone;

impl<'scope, 'env, 'a> Relay<'scope, 'env, 'a> {
    /// Passes groups to `apply`, on a thread of `scope` if there are several and `threaded`
    /// allows it.
    pub(super) fn new(
        scope: &'scope Scope<'scope, 'env>,
        apply: &'scope Mutex<&'a mut Apply<'a>>,
        threaded: bool,
    ) -> Relay<'scope, 'env, 'a> {
        Relay { scope, apply, filling: BatchBuffer::default(), may_start: threaded, helper: None }
    }

    /// Adds the batch of a record. After an error, add nothing more.
    pub(super) fn add(&mut self, record: &Record<'_>) -> Result<()> {
        if !self.filling.has_space_for(record.payload.len()) {
            if !self.filling.is_empty() && std::mem::take(&mut self.may_start) {
                self.helper = Helper::start(self.scope, self.apply);
            }
            self.hand_over()?;
        }
        if self.filling.has_space_for(record.payload.len()) {
            self.filling.push(record);
            return Ok(());
        }
        // A batch longer than a buffer is not copied.
        self.with_helper(Helper::wait)?;
        let positions = [BatchPosition::new(record, record.payload.len())];
        (self.apply.lock())(BatchGroup { payloads: record.payload, positions: &positions })
    }

    /// Waits until everything added is applied, unless something has failed. A failure that
    /// [`add`](Relay::add) returned is not returned again.
    pub(super) fn finish(mut self) -> Result<()> {
        self.hand_over()?;
        self.helper.take().map_or(Ok(()), Helper::end)
    }

    /// Passes on the filled buffer, or applies it, and leaves an empty one.
    fn hand_over(&mut self) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.filling);
        if buffer.is_empty() {
            return Ok(());
        }
        if self.helper.is_some() {
            buffer = self.with_helper(|helper| helper.swap(buffer))?.unwrap_or_default();
        } else {
            (self.apply.lock())(buffer.group())?;
            buffer.clear();
        }
        self.filling = buffer;
        Ok(())
    }

    /// Calls `act` with the thread, if there is one. If the thread has failed, returns its error.
    fn with_helper<T>(&mut self, act: impl FnOnce(&mut Helper<'scope>) -> Result<T, Gone>) -> Result<Option<T>> {
        let Some(mut helper) = self.helper.take() else { return Ok(None) };
        match act(&mut helper) {
            Ok(result) => {
                self.helper = Some(helper);
                Ok(Some(result))
            }
            Err(Gone) => match helper.end() {
                Ok(()) => unreachable!("it ends early only if it fails"),
                Err(error) => Err(error),
            },
        }
    }
}

impl<'scope> Helper<'scope> {
    /// `None` if the system cannot start a thread.
    fn start<'a>(scope: &'scope Scope<'scope, '_>, apply: &'scope Mutex<&'a mut Apply<'a>>) -> Option<Helper<'scope>> {
        let (filled, to_apply) = channel::<BatchBuffer>();
        let (done, applied) = channel();
        let run = move || {
            for mut buffer in to_apply {
                (apply.lock())(buffer.group())?;
                buffer.clear();
                // Nobody receives it once everything has been read.
                let _ = done.send(buffer);
            }
            Ok(())
        };
        let thread = spawn_scoped(scope, "tamis-replay", run).ok()?;
        Some(Helper { filled, applied, in_flight: 0, thread })
    }

    /// Passes on a buffer and returns an empty one; waits for it if [`BUFFERS`] are in flight.
    fn swap(&mut self, buffer: BatchBuffer) -> Result<BatchBuffer, Gone> {
        self.filled.send(buffer).map_err(|_| Gone)?;
        self.in_flight += 1;
        match self.applied.try_recv() {
            Err(TryRecvError::Empty) if self.in_flight < BUFFERS => Ok(BatchBuffer::default()),
            Err(_) => self.take_back(),
            Ok(buffer) => {
                self.in_flight -= 1;
                Ok(buffer)
            }
        }
    }

    /// Waits until everything passed on is applied.
    fn wait(&mut self) -> Result<(), Gone> {
        while self.in_flight > 0 {
            self.take_back()?;
        }
        Ok(())
    }

    fn take_back(&mut self) -> Result<BatchBuffer, Gone> {
        let buffer = self.applied.recv().map_err(|_| Gone)?;
        self.in_flight -= 1;
        Ok(buffer)
    }

    /// Ends the thread after everything passed on is applied.
    fn end(self) -> Result<()> {
        drop(self.filled);
        self.thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{LogOp, Write, encode_op};

    /// A batch of one operation. A buffer holds only a few; every hundredth batch is longer than a
    /// buffer.
    fn payload(i: u64) -> Vec<u8> {
        let len = if i % 100 == 99 { BUFFER_LEN + 1 } else { BUFFER_LEN / 7 };
        let mut payload = Vec::new();
        encode_op(&mut payload, 0, &i.to_be_bytes(), Write::Put(&vec![1; len])).unwrap();
        payload
    }

    const BATCHES: u64 = if cfg!(miri) { 120 } else { 1000 };

    /// Adds all batches, or until that fails. Returns the batches applied, the last result of
    /// `add`, and the result of `finish`. LogBatch `fails` is refused.
    fn relay(threaded: bool, fails: u64) -> (Vec<u64>, Result<()>, Result<()>) {
        let (mut applied, mut by_others) = (Vec::new(), 0);
        let caller = std::thread::current().id();
        let mut apply = |group: BatchGroup<'_>| {
            assert!(!group.positions.is_empty());
            by_others += u64::from(std::thread::current().id() != caller);
            for batch in group.batches() {
                if batch.first == fails {
                    return Err(batch.corruption(Path::new("/db"), Malformed("refused")));
                }
                assert_eq!((batch.log, batch.offset), (batch.first / 10, batch.first * 3));
                let operations: Vec<_> = batch.operations().collect::<Result<_, _>>().unwrap();
                let [LogOp::Write(operation)] = operations[..] else { panic!("{operations:?}") };
                assert_eq!(operation.key, batch.first.to_be_bytes());
                applied.push(batch.first);
            }
            Ok(())
        };
        let apply: Mutex<&mut Apply<'_>> = Mutex::new(&mut apply);
        let (added, finished) = std::thread::scope(|scope| {
            let mut relay = Relay::new(scope, &apply, threaded);
            let added = (0..BATCHES).try_for_each(|i| {
                let payload = payload(i);
                let (file, payload) = (Path::new("/db/log"), &payload[..]);
                let record = Record { file, number: i / 10, offset: i * 3, first: i, count: 1, synced: 0, payload };
                relay.add(&record)
            });
            (added, relay.finish())
        });
        assert_eq!(by_others > 0, threaded, "there is a thread if there may be one");
        (applied, added, finished)
    }

    #[test]
    fn all_batches_are_applied_in_order() {
        for threaded in [false, true] {
            let (applied, added, finished) = relay(threaded, u64::MAX);
            assert!(added.is_ok() && finished.is_ok());
            assert!(applied.into_iter().eq(0..BATCHES));
        }
    }

    #[test]
    fn a_failure_is_returned_once_and_nothing_after_it_is_applied() {
        for (threaded, fails) in [false, true]
            .into_iter()
            .flat_map(|threaded| [0, 1, 50, 99, 100, BATCHES - 1].map(|fails| (threaded, fails)))
        {
            let (applied, added, finished) = relay(threaded, fails);
            assert!(applied.into_iter().eq(0..fails));
            let error = match (added, finished) {
                (Err(error), Ok(())) | (Ok(()), Err(error)) => error,
                both => panic!("{both:?}"),
            };
            match error {
                Error::Corruption { file, offset, .. } => {
                    assert_eq!((file, offset), (FileKind::Wal(fails / 10).path(Path::new("/db")), fails * 3));
                }
                error => panic!("{error}"),
            }
        }
    }

    #[test]
    fn panic_of_the_thread_is_passed_on() {
        let mut apply = |_: BatchGroup<'_>| panic!("a panic that is part of the test");
        let apply: Mutex<&mut Apply<'_>> = Mutex::new(&mut apply);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            std::thread::scope(|scope| {
                let mut relay = Relay::new(scope, &apply, true);
                for i in 0..BATCHES {
                    let payload = vec![0; BUFFER_LEN / 2];
                    let (file, payload) = (Path::new("/db/log"), &payload[..]);
                    let record = Record { file, number: 1, offset: i, first: i, count: 1, synced: 0, payload };
                    relay.add(&record).unwrap();
                }
            });
        }));
        let panic = caught.expect_err("the thread has panicked");
        assert_eq!(panic.downcast_ref(), Some(&"a panic that is part of the test"));
    }

    #[test]
    fn long_batch_is_not_copied() {
        let payload = payload(99);
        let lent = payload.as_ptr().addr();
        for threaded in [false, true] {
            let mut seen = Vec::new();
            let mut apply = |group: BatchGroup<'_>| {
                seen.extend(group.batches().map(|batch| batch.payload.as_ptr().addr() == lent));
                Ok(())
            };
            let apply: Mutex<&mut Apply<'_>> = Mutex::new(&mut apply);
            std::thread::scope(|scope| {
                let mut relay = Relay::new(scope, &apply, threaded);
                for payload in [&payload[..10], &payload, &payload[..20], &payload] {
                    let file = Path::new("/db/log");
                    relay.add(&Record { file, number: 1, offset: 0, first: 1, count: 1, synced: 0, payload }).unwrap();
                }
                relay.finish().unwrap();
            });
            assert_eq!(seen, [false, true, false, true]);
        }
    }
}
