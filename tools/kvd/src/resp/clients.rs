//! [`Clients`]: the open connections, as CLIENT LIST shows and CLIENT KILL ends them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::memory::Account;
use crate::command::{COMMANDS, KillFilter, Spec};
use crate::machine::Reply;

/// The open connections by their numbers.
#[derive(Default)]
pub(super) struct Clients {
    open: Mutex<BTreeMap<u64, Arc<Client>>>,
}

/// An open connection, as others see it.
pub(super) struct Client {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    local: Option<SocketAddr>,
    opened: Instant,
    /// The last command: its position in the table, and one more than that.
    last: AtomicUsize,
    /// When it came, in milliseconds since the connection was opened.
    last_ms: AtomicU64,
    /// How many bytes it had.
    last_len: AtomicUsize,
    /// Commands queued since MULTI, and one more than that; 0: there was none.
    queued: AtomicUsize,
    /// What it holds of the memory that connections share.
    pub(super) account: Account,
    /// What the client says of itself.
    pub(super) profile: Mutex<Profile>,
    killed: AtomicBool,
    /// Whether it is to end because it stands still and holds memory.
    still: AtomicBool,
    kill: Notify,
}

/// What a client says of itself, or has proved.
#[derive(Debug, Clone, Default)]
pub(super) struct Profile {
    pub(super) name: Bytes,
    pub(super) library: Bytes,
    pub(super) library_version: Bytes,
    pub(super) user: Option<String>,
    pub(super) resp: i64,
    pub(super) read_only: bool,
}

/// Removes a connection from the list when dropped.
pub(super) struct Listed<'a>(&'a Clients, u64);

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.0.open.lock().remove(&self.1);
    }
}

impl Client {
    pub(super) fn new(id: u64, peer: SocketAddr, local: Option<SocketAddr>) -> Client {
        Client {
            id,
            peer,
            local,
            opened: Instant::now(),
            last: AtomicUsize::new(0),
            last_ms: AtomicU64::new(0),
            last_len: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            account: Account::default(),
            profile: Mutex::new(Profile { resp: 2, ..Profile::default() }),
            killed: AtomicBool::new(false),
            still: AtomicBool::new(false),
            kill: Notify::new(),
        }
    }

    pub(super) fn opened(&self) -> Instant {
        self.opened
    }

    /// Notes a command that was read.
    pub(super) fn note(&self, spec: &Spec, len: usize, now: Instant) {
        self.last.store(spec.index + 1, Relaxed);
        self.last_ms.store(u64::try_from((now - self.opened).as_millis()).unwrap_or(u64::MAX), Relaxed);
        self.last_len.store(len, Relaxed);
    }

    /// Notes how many commands are queued since MULTI, if it was given.
    pub(super) fn note_queue(&self, queued: Option<usize>) {
        self.queued.store(queued.map_or(0, |queued| queued + 1), Relaxed);
    }

    /// Ends the connection before its next command.
    pub(super) fn kill(&self) {
        self.killed.store(true, Relaxed);
        self.kill.notify_one();
    }

    pub(super) fn is_killed(&self) -> bool {
        self.killed.load(Relaxed)
    }

    /// Waits until the connection is to end.
    pub(super) async fn killed(&self) {
        while !self.is_killed() {
            self.kill.notified().await;
        }
    }

    /// Whether it was ended because it stood still while others needed memory.
    pub(super) fn stood_still(&self) -> bool {
        self.still.load(Relaxed)
    }

    /// Waits until the connection is to end for that.
    pub(super) async fn told_to_end(&self) {
        self.killed().await;
        if !self.stood_still() {
            // Its last reply may leave.
            std::future::pending::<()>().await;
        }
    }

    /// A line of CLIENT LIST.
    pub(super) fn line(&self) -> String {
        let profile = self.profile.lock().clone();
        let age_ms = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        let idle = age_ms.saturating_sub(self.last_ms.load(Relaxed)) / 1000;
        let last = self.last.load(Relaxed).checked_sub(1).and_then(|last| COMMANDS.get(last));
        let mut flags = String::new();
        flags.extend((self.queued.load(Relaxed) > 0).then_some('x'));
        flags.extend(profile.read_only.then_some('r'));
        let multi = i64::try_from(self.queued.load(Relaxed)).unwrap_or(i64::MAX) - 1;
        let held = self.account.held();
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let mut line = String::new();
        // Writing to a string does not fail.
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd=-1 name={} age={} idle={idle} flags={} db=0 sub=0 psub=0 ssub=0 multi={multi} \
             qbuf={} qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem={held} events=r cmd={} \
             user={} redir=-1 resp={} lib-name={} lib-ver={}",
            self.id,
            self.peer,
            self.local.map_or_else(String::new, |local| local.to_string()),
            text(&profile.name),
            age_ms / 1000,
            if flags.is_empty() { "N" } else { &flags },
            self.last_len.load(Relaxed),
            last.map_or("NULL", |spec| spec.name),
            profile.user.as_deref().unwrap_or("default"),
            profile.resp,
            text(&profile.library),
            text(&profile.library_version),
        );
        line
    }

    fn is_meant(&self, filter: &KillFilter) -> bool {
        let is = |address: Option<SocketAddr>, wanted: &Option<Bytes>| {
            wanted.as_ref().is_none_or(|wanted| address.is_some_and(|it| it.to_string().as_bytes() == wanted))
        };
        let user = |wanted: &Bytes| self.profile.lock().user.as_deref().unwrap_or("default").as_bytes() == wanted;
        filter.id.is_none_or(|id| id == self.id)
            && is(Some(self.peer), &filter.address)
            && is(self.local, &filter.local_address)
            && filter.user.as_ref().is_none_or(user)
            && !filter.none
            && !self.is_killed()
    }
}

impl Clients {
    /// Lists a connection until the result is dropped.
    pub(super) fn list(&self, client: &Arc<Client>) -> Listed<'_> {
        self.open.lock().insert(client.id, Arc::clone(client));
        Listed(self, client.id)
    }

    fn all(&self) -> Vec<Arc<Client>> {
        self.open.lock().values().cloned().collect()
    }

    /// How many there are that are not about to end.
    pub(super) fn count(&self) -> usize {
        self.open.lock().values().filter(|client| !client.is_killed()).count()
    }

    /// CLIENT LIST.
    pub(super) fn lines(&self, ids: Option<&[u64]>) -> Reply {
        let asked = |client: &&Arc<Client>| ids.is_none_or(|ids| ids.contains(&client.id)) && !client.is_killed();
        Reply::Text(self.all().iter().filter(asked).map(|client| client.line() + "\n").collect())
    }

    /// CLIENT KILL.
    pub(super) fn kill(&self, filter: &KillFilter, me: u64) -> Reply {
        let all = self.all();
        let meant = all.iter().filter(|client| client.is_meant(filter) && !(filter.skip_me && client.id == me));
        let count = meant.inspect(|client| client.kill()).count();
        match (filter.one, count) {
            (false, count) => Reply::count(count),
            (true, 0) => Reply::error("ERR No such client"),
            (true, _) => Reply::OK,
        }
    }

    /// Ends the connection that has stood still for the longest time while it holds shared memory,
    /// if that is so long.
    pub(super) fn end_idlest(&self, least: Duration) {
        let least_ms = u64::try_from(least.as_millis()).unwrap_or(u64::MAX);
        let all = self.all();
        let idle = |client: &&Arc<Client>| client.account.idle_ms(least_ms).filter(|_| !client.is_killed());
        let idlest = all.iter().filter_map(|client| Some((idle(&client)?, client))).max_by_key(|(idle, _)| *idle);
        if let Some((_, client)) = idlest {
            client.still.store(true, Relaxed);
            client.kill();
        }
    }
}
