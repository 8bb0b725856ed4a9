//! [`Transaction`]: what a connection has watched and queued, between WATCH, MULTI and EXEC.

use bytes::Bytes;

use super::memory::{Account, Memory, Share};
use crate::command::Command;
use crate::machine::{Body, Reply, Step};

/// Most commands and most bytes of a transaction: it is one log entry.
const MAX_STEPS: usize = 1024;
const MAX_LEN: usize = 32 << 20;

/// A connection's transaction. All keys are in one slot.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    watched: Vec<(Bytes, u64)>,
    /// The slot of all keys watched and queued.
    slot: Option<u16>,
    /// Whether MULTI was given, and what was queued since.
    queue: Option<Vec<Queued>>,
    /// Whether a command was refused since MULTI.
    broken: bool,
    /// Bytes watched and queued, and the shared memory that they use.
    len: usize,
    share: Share,
    /// What the connection uses of that memory.
    account: Account,
}

#[derive(Debug)]
enum Queued {
    Step(Step),
    /// A command that needs no state: its reply.
    Answer(Reply),
}

impl Queued {
    fn weight(&self) -> usize {
        match self {
            Queued::Step(step) => step.weight(),
            Queued::Answer(reply) => reply.weight(),
        }
    }
}

/// What EXEC is to do.
#[derive(Debug)]
pub(super) enum Exec {
    /// Answer this at once.
    Answer(Reply),
    /// Propose this, and put its replies among the others.
    Propose(u16, Body, Weave),
}

/// Puts the replies of steps and those that were known before in the order of the commands.
#[derive(Debug)]
pub(super) struct Weave {
    /// `None`: the next step's reply.
    replies: Vec<Option<Reply>>,
}

impl Weave {
    pub(super) fn weave(self, reply: Reply) -> Reply {
        let Reply::Array(steps) = reply else { return reply };
        let mut steps = steps.into_iter();
        let replies = self.replies.into_iter().map(|known| known.or_else(|| steps.next()).unwrap_or(Reply::Nil));
        Reply::Array(replies.collect())
    }
}

impl Transaction {
    pub(super) fn new(account: Account) -> Transaction {
        Transaction { account, ..Transaction::default() }
    }

    /// Ends the transaction, and returns it.
    fn take(&mut self) -> Transaction {
        let next = Transaction::new(self.account.clone());
        std::mem::replace(self, next)
    }

    /// How many commands are queued, if MULTI was given.
    pub(super) fn queued(&self) -> Option<usize> {
        self.queue.as_ref().map(Vec::len)
    }

    /// Whether commands are queued.
    pub(super) fn is_open(&self) -> bool {
        self.queue.is_some()
    }

    /// MULTI.
    pub(super) fn begin(&mut self) -> Reply {
        if self.is_open() {
            return Reply::error("ERR MULTI calls can not be nested");
        }
        self.queue = Some(Vec::new());
        Reply::OK
    }

    /// DISCARD.
    pub(super) fn discard(&mut self) -> Reply {
        if !self.is_open() {
            return Reply::error("ERR DISCARD without MULTI");
        }
        self.take();
        Reply::OK
    }

    /// UNWATCH.
    pub(super) fn unwatch(&mut self) {
        if !self.is_open() {
            self.take();
        }
    }

    /// Makes EXEC fail, if commands are queued.
    pub(super) fn spoil(&mut self) {
        self.broken |= self.is_open();
    }

    /// Checks that keys of a slot may join.
    pub(super) fn join(&mut self, slot: Option<u16>) -> Result<(), Reply> {
        if self.slot.is_some() && slot.is_some() && self.slot != slot {
            return Err(Reply::error("CROSSSLOT Keys in request don't hash to the same slot"));
        }
        self.slot = self.slot.or(slot);
        Ok(())
    }

    /// Counts bytes that are to be kept.
    fn keep(&mut self, len: usize, memory: &Memory) -> Result<(), Reply> {
        if self.len + len > MAX_LEN {
            return Err(Reply::error(format!("ERR a transaction is longer than {MAX_LEN} bytes")));
        }
        if !memory.try_enlarge(&mut self.share, &self.account, self.len + len) {
            return Err(Reply::error("TRYAGAIN there is no memory for a transaction of this length now"));
        }
        self.len += len;
        Ok(())
    }

    /// Adds keys with the versions in which the client sees them. A key that was watched before
    /// keeps its version: changes since then count.
    pub(super) fn watch(&mut self, keys: impl IntoIterator<Item = (Bytes, u64)>, memory: &Memory) -> Result<(), Reply> {
        for (key, version) in keys {
            if self.watched.iter().any(|(watched, _)| *watched == key) {
                continue;
            }
            if self.watched.len() == MAX_STEPS {
                return Err(Reply::error(format!("ERR more than {MAX_STEPS} keys are watched")));
            }
            self.keep(key.len(), memory)?;
            self.watched.push((key, version));
        }
        Ok(())
    }

    /// Queues a command.
    pub(super) fn queue(&mut self, slot: Option<u16>, command: Command, memory: &Memory) -> Result<Reply, Reply> {
        let queued = match command {
            Command::Write(operation) => Queued::Step(Step::Write(operation)),
            Command::Read(query) => Queued::Step(Step::Read(query)),
            Command::Answer(reply) => Queued::Answer(reply),
            _ => return Err(Reply::error("ERR Command not allowed inside a transaction")),
        };
        self.join(slot)?;
        self.keep(queued.weight(), memory)?;
        let Some(queue) = &mut self.queue else { return Err(Reply::error("ERR EXEC without MULTI")) };
        if queue.len() == MAX_STEPS {
            return Err(Reply::error(format!("ERR a transaction has more than {MAX_STEPS} commands")));
        }
        queue.push(queued);
        Ok(Reply::Status("QUEUED".into()))
    }

    /// EXEC. Ends the transaction.
    pub(super) fn exec(&mut self) -> Exec {
        if !self.is_open() {
            return Exec::Answer(Reply::error("ERR EXEC without MULTI"));
        }
        let Transaction { watched, slot, queue, broken, .. } = self.take();
        if broken {
            return Exec::Answer(Reply::error("EXECABORT Transaction discarded because of previous errors."));
        }
        let (mut steps, mut replies) = (Vec::new(), Vec::new());
        for queued in queue.into_iter().flatten() {
            match queued {
                Queued::Step(step) => {
                    steps.push(step);
                    replies.push(None);
                }
                Queued::Answer(reply) => replies.push(Some(reply)),
            }
        }
        let weave = Weave { replies };
        match slot {
            Some(slot) => Exec::Propose(slot, Body::Transaction { watched, steps }, weave),
            None => Exec::Answer(weave.weave(Reply::Array(Vec::new()))),
        }
    }
}
