//! [`Relay`]: batches on their way from whoever reads the logs to whoever applies them.
//!
//! To read a log and verify it takes about as long as to apply what it holds. So a long one is applied by a thread of its own, while the
//! calling one reads on. Batches go over in buffers, which come back to be filled again: there are few of them, and whoever is faster waits
//! for the other one. A batch that is longer than a buffer is not copied: it is applied where it was read, when all before it is.
//!
//! What is applied, in which order, and with which error it ends does not depend on there being a thread:
//! - Stretches are applied in the order of the logs, whichever thread does it, and none behind one that failed.
//! - An error of applying counts before one of reading, because what was read before an error is applied first.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::format::Malformed;
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::write::batch::BatchReader;
use crate::write::log::Record;

/// Bytes of a buffer. They are still near the processors when they are applied.
const BUFFER_LEN: usize = 256 << 10;
/// So many may be passed on before one comes back. One is applied; the others make up for unevenness.
const BUFFERS: usize = 3;

/// Some batches that follow each other in the logs.
#[derive(Clone, Copy)]
pub(crate) struct Stretch<'a> {
    payloads: &'a [u8],
    places: &'a [Place],
}

/// Memory for a stretch that somebody else is to apply.
#[derive(Default)]
struct Buffer {
    payloads: Vec<u8>,
    places: Vec<Place>,
}

/// Where a batch stands.
struct Place {
    log: u64,
    offset: u64,
    first: SeqNo,
    count: u32,
    /// Where its payload ends among those of its stretch; it begins where the one before it ends.
    end: usize,
}

/// A batch, and where it was found.
pub(crate) struct Batch<'a> {
    /// The log's number.
    pub(crate) log: u64,
    /// Of the batch's record in the log.
    pub(crate) offset: u64,
    /// The sequence number of the first operation.
    pub(crate) first: SeqNo,
    payload: &'a [u8],
    count: u32,
}

impl<'a> Batch<'a> {
    pub(crate) fn operations(&self) -> BatchReader<'a> {
        BatchReader::new(self.payload, self.count)
    }

    /// The error for a rule that the batch breaks although its checksum matches; `dir` is the directory of the logs.
    pub(crate) fn corruption(&self, dir: &Path, rule: Malformed) -> Error {
        Error::corruption(&FileKind::Wal(self.log).path(dir), self.offset, rule)
    }
}

impl<'a> Stretch<'a> {
    pub(crate) fn batches(self) -> impl Iterator<Item = Batch<'a>> {
        let mut start = 0;
        self.places.iter().map(move |&Place { log, offset, first, count, end }| {
            let payload = &self.payloads[start..end];
            start = end;
            Batch { log, offset, first, payload, count }
        })
    }
}

impl Place {
    /// That of a record whose payload ends at `end`.
    fn new(record: &Record<'_>, end: usize) -> Place {
        Place { log: record.number, offset: record.offset, first: record.first, count: record.count, end }
    }
}

impl Buffer {
    fn stretch(&self) -> Stretch<'_> {
        Stretch { payloads: &self.payloads, places: &self.places }
    }

    fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether there is room for a batch of `payload_len` bytes more.
    fn has_room(&self, payload_len: usize) -> bool {
        let places_len = (self.places.len() + 1) * size_of::<Place>();
        self.payloads.len() + payload_len + places_len <= BUFFER_LEN
    }

    fn push(&mut self, record: &Record<'_>) {
        self.payloads.extend_from_slice(record.payload);
        self.places.push(Place::new(record, self.payloads.len()));
    }

    fn clear(&mut self) {
        self.payloads.clear();
        self.places.clear();
    }
}

/// Applies the batches of a stretch.
pub(super) type Apply<'a> = dyn FnMut(Stretch<'_>) -> Result<()> + Send + 'a;

pub(super) struct Relay<'scope, 'env, 'a> {
    scope: &'scope Scope<'scope, 'env>,
    apply: &'scope Mutex<&'a mut Apply<'a>>,
    filling: Buffer,
    /// Whether a thread may be begun.
    may_begin: bool,
    helper: Option<Helper<'scope>>,
}

/// The thread that applies.
struct Helper<'scope> {
    filled: Sender<Buffer>,
    /// Ends when the thread does.
    applied: Receiver<Buffer>,
    /// Buffers that have not come back.
    away: usize,
    thread: ScopedJoinHandle<'scope, Result<()>>,
}

/// The thread has ended before its time: it has failed.
struct Gone;

impl<'scope, 'env, 'a> Relay<'scope, 'env, 'a> {
    /// Hands stretches to `apply`, by a thread of `scope` if there are several and `threaded` allows it.
    pub(super) fn new(
        scope: &'scope Scope<'scope, 'env>,
        apply: &'scope Mutex<&'a mut Apply<'a>>,
        threaded: bool,
    ) -> Relay<'scope, 'env, 'a> {
        Relay { scope, apply, filling: Buffer::default(), may_begin: threaded, helper: None }
    }

    /// Adds the batch of a record. After an error nothing more is to be added.
    pub(super) fn add(&mut self, record: &Record<'_>) -> Result<()> {
        if !self.filling.has_room(record.payload.len()) {
            if !self.filling.is_empty() && std::mem::take(&mut self.may_begin) {
                self.helper = Helper::begin(self.scope, self.apply);
            }
            self.hand_over()?;
        }
        if self.filling.has_room(record.payload.len()) {
            self.filling.push(record);
            return Ok(());
        }
        // It is longer than a buffer, and is not copied into one.
        self.with_helper(Helper::wait)?;
        let places = [Place::new(record, record.payload.len())];
        (self.apply.lock())(Stretch { payloads: record.payload, places: &places })
    }

    /// Sees to it that everything that was added is applied, unless something has failed. A failure that [`add`](Relay::add) returned is
    /// not returned again.
    pub(super) fn finish(mut self) -> Result<()> {
        self.hand_over()?;
        self.helper.take().map_or(Ok(()), Helper::end)
    }

    /// Has what was gathered applied, and leaves an empty buffer.
    fn hand_over(&mut self) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.filling);
        if buffer.is_empty() {
            return Ok(());
        }
        if self.helper.is_some() {
            buffer = self.with_helper(|helper| helper.swap(buffer))?.unwrap_or_default();
        } else {
            (self.apply.lock())(buffer.stretch())?;
            buffer.clear();
        }
        self.filling = buffer;
        Ok(())
    }

    /// Does something with the thread, if there is one. If it has failed, the error is its own.
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
    /// `None` if the system has no thread to give.
    fn begin<'a>(scope: &'scope Scope<'scope, '_>, apply: &'scope Mutex<&'a mut Apply<'a>>) -> Option<Helper<'scope>> {
        let (filled, to_apply) = channel::<Buffer>();
        let (done, applied) = channel();
        let run = move || {
            for mut buffer in to_apply {
                (apply.lock())(buffer.stretch())?;
                buffer.clear();
                // Nobody waits for it when all is read.
                let _ = done.send(buffer);
            }
            Ok(())
        };
        let thread = Builder::new().name("tamis-replay".into()).spawn_scoped(scope, run).ok()?;
        Some(Helper { filled, applied, away: 0, thread })
    }

    /// Passes a buffer on, and gets an empty one, for which it waits when there are enough.
    fn swap(&mut self, buffer: Buffer) -> Result<Buffer, Gone> {
        self.filled.send(buffer).map_err(|_| Gone)?;
        self.away += 1;
        match self.applied.try_recv() {
            Err(TryRecvError::Empty) if self.away < BUFFERS => Ok(Buffer::default()),
            Err(_) => self.take_back(),
            Ok(buffer) => {
                self.away -= 1;
                Ok(buffer)
            }
        }
    }

    /// Waits until everything that was passed on is applied.
    fn wait(&mut self) -> Result<(), Gone> {
        while self.away > 0 {
            self.take_back()?;
        }
        Ok(())
    }

    fn take_back(&mut self) -> Result<Buffer, Gone> {
        let buffer = self.applied.recv().map_err(|_| Gone)?;
        self.away -= 1;
        Ok(buffer)
    }

    /// Lets the thread end when everything that was passed on is applied.
    fn end(self) -> Result<()> {
        drop(self.filled);
        self.thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::batch::WriteBatch;

    /// A batch of one operation, long enough that a buffer takes few, and every hundredth one longer than a buffer.
    fn payload(i: u64) -> Vec<u8> {
        let len = if i % 100 == 99 { BUFFER_LEN + 1 } else { BUFFER_LEN / 7 };
        let mut batch = WriteBatch::new();
        batch.put(i.to_be_bytes(), vec![1; len]);
        batch.into_payload()
    }

    const BATCHES: u64 = if cfg!(miri) { 120 } else { 1000 };

    /// Adds batches until that fails, or all of them; returns what was applied, what `add` said last, and what `finish` said. Batch
    /// `fails` is refused.
    fn relay(threaded: bool, fails: u64) -> (Vec<u64>, Result<()>, Result<()>) {
        let (mut applied, mut by_others) = (Vec::new(), 0);
        let caller = std::thread::current().id();
        let mut apply = |stretch: Stretch<'_>| {
            assert!(!stretch.places.is_empty());
            by_others += u64::from(std::thread::current().id() != caller);
            for batch in stretch.batches() {
                if batch.first == fails {
                    return Err(batch.corruption(Path::new("/db"), Malformed("refused")));
                }
                assert_eq!((batch.log, batch.offset), (batch.first / 10, batch.first * 3));
                let operations = batch.operations().map(|operation| operation.map(|operation| operation.key));
                let keys: Vec<_> = operations.collect::<Result<_, _>>().unwrap();
                assert_eq!(keys, [batch.first.to_be_bytes()]);
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
    fn all_batches_come_over_in_their_order() {
        for threaded in [false, true] {
            let (applied, added, finished) = relay(threaded, u64::MAX);
            assert!(added.is_ok() && finished.is_ok());
            assert!(applied.into_iter().eq(0..BATCHES));
        }
    }

    #[test]
    fn what_was_not_applied_is_told_once_and_nothing_behind_it_is_applied() {
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
        let mut apply = |_: Stretch<'_>| panic!("a panic that is part of the test");
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
            let mut apply = |stretch: Stretch<'_>| {
                seen.extend(stretch.batches().map(|batch| batch.payload.as_ptr().addr() == lent));
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
