//! [`Environment`]: what stores share: threads, block cache, open files, rate limit, and a budget
//! for their memtables.
//!
//! Every store has an environment. One that is opened without makes its own, of its own options and
//! without a budget, so that no code asks which of the two it is.
//!
//! # The budget
//!
//! The pool of memtable memory counts what all memtables have taken, and tells of each change. A
//! write thus pays for the budget only when its memtable takes another chunk.
//!
//! - Memtables that still fill may take half of it. Beyond that, a job of the executor has the
//!   largest of them sealed and flushed. Stores whose flush cannot go on just now are left out.
//! - While all memtables together exceed it, the memtable of a store counts as full at the store's
//!   *share*. A writer then seals it and waits for the flush of its own store alone. No store waits
//!   for another: not for one whose disk is full, nor for one that is closing.
//!
//! Beyond the budget, each store may have two shares, one of them being flushed, and what its next
//! memtable takes at first ([`Environment::first_size`]).
//!
//! What is shared knows each store by a handle of its own: `CacheOwner` (with the store's epoch, so
//! that a long read holds up blocks of its own store alone), `FilePool`, `RateLimiter`, `Events`.

mod memory;

use std::fmt;
use std::sync::{Arc, Weak};

pub use self::memory::MemoryUsage;
use self::memory::{LEAST_MEMORY, MemoryLimits, largest_part};
use crate::error::{Error, Result};
use crate::exec::{Executor, Priority, ThreadPool};
use crate::fork::Process;
use crate::memory::budget::MemoryBudget;
use crate::memory::pool::{CHUNK_LEN, MemtablePool, PoolChange};
use crate::rate::{RateLimit, SharedRate};
use crate::report::delivery::Delivery;
use crate::sorted::files::WRITE_LEN;
use crate::sorted::table::TableResources;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Most threads for compactions: more than any machine has processors for one store.
const MOST_THREADS: usize = 1024;

/// The least budget.
const LEAST_BUDGET: usize = 64 << 10;
/// The part of the budget, as a divisor, that memtables that still fill may take.
const FILLING: usize = 2;
/// The part of the budget, as a divisor, of which all stores have an equal share when it is
/// exceeded.
const SHARED_OUT: usize = 8;
/// The memtables of all stores are made for this part of the budget, as a divisor, and each for at
/// least `LEAST_FIRST` of it.
const FIRST: usize = 16;
const LEAST_FIRST: usize = 1024;
/// The largest memtable is looked for again when this part of the budget, as a divisor, has been
/// taken since.
const STEP: usize = 64;
/// The part of all memory, as a divisor, that the budget may take.
const MEMTABLES: usize = 4;
/// Threads that sync stores for followers, at most. Other followers sync for themselves.
const SYNCERS: usize = 4;
/// The least size that a memtable is made for, and the least share of a store.
const LEAST_SIZE: usize = 16 << 10;
/// Least memory for writing a table: 4,000 keys.
const LEAST_TABLE_MEMORY: usize = 64 << 10;

/// Options of an [`Environment`].
///
/// With the feature `serde` they are values of it, without the executor: those that are missing
/// have their defaults, an unknown name is an error, and ranges are checked when an environment is
/// made of them. `memory: { all, cache }` has [`memory`](EnvironmentOptions::memory) and
/// [`cache_size`](EnvironmentOptions::cache_size).
#[derive(Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct EnvironmentOptions {
    pub(crate) memory: MemoryLimits,
    pub(crate) max_open_files: usize,
    pub(crate) background_threads: usize,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) executor: Option<Arc<dyn Executor>>,
    pub(crate) rate_limit: RateLimit,
    pub(crate) memtable_budget: usize,
}

impl Default for EnvironmentOptions {
    fn default() -> EnvironmentOptions {
        EnvironmentOptions {
            memory: MemoryLimits::default(),
            max_open_files: 512,
            background_threads: 2,
            executor: None,
            rate_limit: RateLimit::None,
            memtable_budget: 256 << 20,
        }
    }
}

impl fmt::Debug for EnvironmentOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvironmentOptions")
            .field("memory", &self.memory)
            .field("max_open_files", &self.max_open_files)
            .field("background_threads", &self.background_threads)
            .field("rate_limit", &self.rate_limit)
            .field("memtable_budget", &self.memtable_budget)
            .finish_non_exhaustive()
    }
}

impl EnvironmentOptions {
    /// The defaults.
    pub fn new() -> EnvironmentOptions {
        EnvironmentOptions::default()
    }

    /// Bytes of memory for all stores together, 64 KiB or more. Default: half of the machine's
    /// memory, or of what its control group allows (Linux).
    ///
    /// Within it are memtables, cached blocks, filters and indexes of open tables, range deletes,
    /// what scans have read ahead, and tables being written, with what is read for them:
    /// [`EnvironmentStats::usage`] has the sum of each. The cache has what the others leave, and
    /// gives way to them. Memtables are an eighth of it long at most, tables a sixteenth. Scans
    /// read ahead a quarter of it at most, and not where there is no room for it; filters and
    /// indexes for which there is none are read in pages through the cache.
    ///
    /// What stores cannot do without is taken even if it exceeds the limit: of the tables in use, 9
    /// bytes per data block and their binary fuse filters, and range deletes. Not counted are what
    /// calls return and take (batches, transactions, values), blocks in use by reads in progress,
    /// and pages that the system caches.
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory.all = Some(bytes);
        self
    }

    /// Bytes of data blocks of all stores kept in memory, within [`memory`](Self::memory). Default:
    /// all that the other uses leave, if `memory` is set, and otherwise 64 MiB.
    ///
    /// Without `memory`, the limit of all memory is at least twice as large.
    pub fn cache_size(mut self, bytes: usize) -> Self {
        self.memory.cache = Some(bytes);
        self
    }

    /// Files of tables and values of all stores held open at once. Default: 512, half of the usual
    /// limit of a process. Each open store also holds a few files of its own: its lock, its
    /// manifest and its log.
    pub fn max_open_files(mut self, count: usize) -> Self {
        self.max_open_files = count;
        self
    }

    /// Threads for the compactions of all stores, at most 1,024. Default: 2. One more thread only
    /// flushes, and compacts within level 0 when writers might have to wait otherwise.
    pub fn background_threads(mut self, count: usize) -> Self {
        self.background_threads = count;
        self
    }

    /// Runs background work on `executor` instead of threads of the environment.
    pub fn executor(mut self, executor: Arc<dyn Executor>) -> Self {
        self.executor = Some(executor);
        self
    }

    /// Limits how many bytes a second the flushes and compactions of all stores read and write
    /// together. Default: [`RateLimit::None`]. See
    /// [`Options::rate_limit`](crate::Options::rate_limit).
    pub fn rate_limit(mut self, limit: RateLimit) -> Self {
        self.rate_limit = limit;
        self
    }

    /// Bytes of memory for the memtables of all stores together, and at most a quarter of
    /// [`memory`](Self::memory). Default: 256 MiB.
    ///
    /// When those that still fill take half of it, the largest is flushed, whatever its store's
    /// [`memtable_size`](crate::Options::memtable_size). When all together exceed it, a store's
    /// writers wait for the store's own flush each time they have written an equal share of an
    /// eighth of the budget, or 16 KiB. Twice this share for each store may therefore come on top,
    /// what its next memtable takes at first, and any single write that is larger.
    ///
    /// An eighth of the budget at most is kept for reuse in addition.
    pub fn memtable_budget(mut self, bytes: usize) -> Self {
        self.memtable_budget = bytes;
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.max_open_files < 8 {
            return Err(Error::invalid("max_open_files must be at least 8"));
        }
        if self.background_threads > MOST_THREADS {
            return Err(Error::invalid(format_args!("background_threads must be at most {MOST_THREADS}")));
        }
        if self.memory.all.is_some_and(|bytes| bytes < LEAST_MEMORY) {
            return Err(Error::invalid("memory must be at least 64 KiB"));
        }
        if self.memtable_budget < LEAST_BUDGET {
            return Err(Error::invalid("memtable_budget must be at least 64 KiB"));
        }
        self.rate_limit.validate()
    }
}

/// What several stores of a process share: threads, block cache, open files, rate limit, and a
/// budget for their memtables.
///
/// A handle, cheap to clone. Stores that are opened with [`Options::environment`] keep it alive;
/// they may be opened, closed and dropped in any order, before or after it. Stores stay apart in
/// everything else: one whose disk fails, or whose listener panics, holds up no other. But one
/// thread calls all listeners, so that one that takes long delays the events of the others.
///
/// ```
/// # fn main() -> tamis::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// use tamis::{Environment, EnvironmentOptions, Options};
///
/// let options = EnvironmentOptions::new().cache_size(32 << 20).memtable_budget(64 << 20);
/// let environment = Environment::new(options)?;
/// let tenant = |name: &str| Options::new().environment(&environment).open(dir.path().join(name));
/// let tenants = [tenant("ann")?, tenant("bob")?, tenant("eve")?];
/// for db in &tenants {
///     db.put("greeting", "hello")?;
/// }
/// assert_eq!(environment.stats().stores, 3);
/// # Ok(()) }
/// ```
///
/// [`Options::environment`]: crate::Options::environment
#[derive(Clone)]
pub struct Environment(Arc<EnvironmentState>);

struct EnvironmentState {
    executor: Arc<dyn Executor>,
    /// Locked while a store is opened with the help of a thread that replays its logs. `None` if
    /// there is to be no such thread.
    replaying: Option<Mutex<()>>,
    tables: TableResources,
    rate: Arc<SharedRate>,
    delivery: Delivery,
    budget: Arc<Budget>,
    /// Memory for the memtables of stores that are open read-only.
    reader_memtables: Arc<MemtablePool>,
    /// Threads that sync stores for followers.
    syncers: AtomicUsize,
    /// The process that has the threads.
    process: Process,
}

/// The right to have a thread that syncs a store for a follower; see [`Environment::syncer`].
pub(crate) struct SyncerPermit(Environment);

impl Drop for SyncerPermit {
    fn drop(&mut self) {
        self.0.0.syncers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A store, as its environment sees it.
pub(crate) trait Tenant: Send + Sync {
    /// Bytes of the memtable that still fills, if it could be sealed and flushed now.
    fn filling(&self) -> Option<usize>;

    /// Seals that memtable. Does not wait: if a writer is busy, the next one seals it.
    fn seal(self: Arc<Self>);

    /// Begins work again that has failed and whose back-off has ended.
    fn retry(self: Arc<Self>);
}

/// At which size the memtable of a store counts as full.
pub(crate) struct Quota {
    limit: AtomicUsize,
    /// By the store's own options.
    own: usize,
}

impl Quota {
    #[inline]
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Whether the budget, and not the store's options, sets the limit.
    pub(crate) fn is_reduced(&self) -> bool {
        (1..self.own).contains(&self.limit())
    }

    /// Has the memtable count as full, until the next one is [begun](Environment::renew).
    pub(crate) fn exhaust(&self) {
        self.limit.store(0, Ordering::Relaxed);
    }
}

/// A store's place in its environment: it counts as open until it leaves, or this is dropped.
pub(crate) struct Seat {
    environment: Environment,
    pub(crate) quota: Arc<Quota>,
}

impl Seat {
    /// Has the store's memtables sealed when the environment needs memory.
    pub(crate) fn join(&self, store: Weak<dyn Tenant>) {
        let mut members = self.environment.0.budget.members.lock();
        if let Some(member) = members.iter_mut().find(|member| Arc::ptr_eq(&member.quota, &self.quota)) {
            member.store = Some(store);
        }
    }

    /// Sets the quota of a memtable that begins.
    pub(crate) fn renew(&self) {
        let budget = &self.environment.0.budget;
        let members = budget.members.lock();
        self.quota.limit.store(budget.limit_of(self.quota.own), Ordering::Relaxed);
        drop(members);
    }

    /// Ends the membership. May be called again.
    pub(crate) fn leave(&self) {
        let budget = &self.environment.0.budget;
        let mut members = budget.members.lock();
        let gone: Vec<Member> = members.extract_if(.., |member| Arc::ptr_eq(&member.quota, &self.quota)).collect();
        budget.count_members(&members);
        drop(members);
        drop(gone);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

struct Member {
    quota: Arc<Quota>,
    /// `None` while the store is being opened.
    store: Option<Weak<dyn Tenant>>,
}

struct Budget {
    bytes: usize,
    memtables: Arc<MemtablePool>,
    members: Mutex<Vec<Member>>,
    count: AtomicUsize,
    /// Whether memtables exceed the budget. Changed with `members` locked.
    is_short: AtomicBool,
    /// The largest memtable is looked for when so many bytes are taken.
    check_at: AtomicUsize,
    /// Whether a job that does so is queued.
    is_queued: AtomicBool,
    /// Memtables sealed to keep the budget.
    sealed: AtomicUsize,
    executor: Weak<dyn Executor>,
}

impl Environment {
    /// Makes an environment, and starts its threads.
    pub fn new(options: EnvironmentOptions) -> Result<Environment> {
        options.validate()?;
        let (all, _) = options.memory.bytes();
        let budget = options.memtable_budget.min(all / MEMTABLES);
        Ok(Environment::with_pool(options.memtable_budget(budget), budget / SHARED_OUT))
    }

    /// The environment of a store that shares nothing: without a budget.
    pub(crate) fn of_one_store(options: EnvironmentOptions, memtable_size: usize) -> Environment {
        // Memory of one memtable with its index and sort order. While one memtable is flushed, the
        // active one reuses the memory of the one before.
        let idle = memtable_size + memtable_size / 4 + 2 * CHUNK_LEN;
        Environment::with_pool(options.memtable_budget(usize::MAX), idle)
    }

    fn with_pool(options: EnvironmentOptions, idle: usize) -> Environment {
        // An executor that runs one job at a time is for callers that need a deterministic order.
        let replays_on_threads = options.executor.as_ref().is_none_or(|executor| executor.parallelism() > 1);
        let executor = options.executor.unwrap_or_else(|| Arc::new(ThreadPool::new(options.background_threads)));
        let (all, cache) = options.memory.bytes();
        let memory = MemoryBudget::new(all);
        let memtables = MemtablePool::charging(&memory, idle);
        let bytes = options.memtable_budget;
        let budget = Arc::new(Budget {
            bytes,
            memtables: Arc::clone(&memtables),
            members: Mutex::default(),
            count: AtomicUsize::new(0),
            is_short: AtomicBool::new(false),
            check_at: AtomicUsize::new(bytes / FILLING),
            is_queued: AtomicBool::new(false),
            sealed: AtomicUsize::new(0),
            executor: Arc::downgrade(&executor),
        });
        if bytes < usize::MAX {
            let watching = Arc::downgrade(&budget);
            memtables.watch(move |change| {
                if let Some(budget) = watching.upgrade() {
                    budget.note(change);
                }
            });
        }
        Environment(Arc::new(EnvironmentState {
            executor,
            replaying: replays_on_threads.then(Mutex::default),
            tables: TableResources::new(&memory, cache, options.max_open_files),
            rate: Arc::new(SharedRate::new(options.rate_limit)),
            delivery: Delivery::default(),
            process: Process::current(),
            budget,
            reader_memtables: MemtablePool::charging(&memory, idle),
            syncers: AtomicUsize::new(0),
        }))
    }

    /// Changes how many bytes a second the background work of all stores may read and write
    /// together. Running compactions follow at once.
    ///
    /// Fails with [`Error::InvalidArgument`] if the limit is less than 64 KiB a second.
    pub fn set_rate_limit(&self, limit: RateLimit) -> Result<()> {
        limit.validate()?;
        self.0.rate.set(limit);
        Ok(())
    }

    /// What the stores use together at this moment.
    pub fn stats(&self) -> EnvironmentStats {
        let EnvironmentState { executor, tables, rate, delivery, budget, reader_memtables, .. } = &*self.0;
        EnvironmentStats {
            usage: MemoryUsage::of(&tables.budget),
            stores: budget.count.load(Ordering::Relaxed),
            background_threads: executor.parallelism(),
            delivers_events: delivery.is_running(),
            cache: tables.cache.usage(),
            cache_limit: tables.cache.capacity(),
            open_files: tables.files.count(),
            open_files_limit: tables.files.limit(),
            memtables: budget.memtables.taken(),
            memtable_budget: budget.bytes,
            reader_memtables: reader_memtables.taken(),
            idle_memtables: budget.memtables.idle() + reader_memtables.idle(),
            idle_tables: tables.memory.idle(),
            sealed_early: budget.sealed.load(Ordering::Relaxed) as u64,
            rate_limit: rate.rate(),
        }
    }

    pub(crate) fn executor(&self) -> &Arc<dyn Executor> {
        &self.0.executor
    }

    /// The most bytes of a memtable, and twice those of a table, within the limit of all memory.
    pub(crate) fn largest_part(&self) -> usize {
        largest_part(self.0.tables.budget.limit())
    }

    /// The most bytes of memory that a table may take beside its buffers while it is written: all
    /// that are written at a time take an eighth of the limit. Beside a flush and the compactions
    /// there is a merge of runs, whose turn comes between those of a compaction.
    pub(crate) fn table_memory(&self) -> usize {
        (self.largest_part() / self.written_at_a_time()).max(LEAST_TABLE_MEMORY)
    }

    /// How many bytes of a table or value file are written at a time: a sixty-fourth of the limit,
    /// where three tables are written at a time, as by default.
    pub(crate) fn write_len(&self) -> usize {
        WRITE_LEN.min(self.largest_part() * 3 / 8 / self.written_at_a_time())
    }

    /// The most tables that are written at a time.
    fn written_at_a_time(&self) -> usize {
        self.executor().parallelism().max(2) + 1
    }

    /// [`table_memory`](Environment::table_memory) for a run of level 0, which cannot end early:
    /// also half of what is left for it, where the cache gives way. Without merges among runs,
    /// writers would wait for a compaction.
    pub(crate) fn run_memory(&self) -> usize {
        self.table_memory().max(self.0.tables.budget.left_for_jobs() / 2)
    }

    /// The right to replay a store's logs with the help of another thread, unless another store
    /// has it just now.
    pub(crate) fn replay_thread(&self) -> Option<MutexGuard<'_, ()>> {
        self.0.replaying.as_ref()?.try_lock()
    }

    pub(crate) fn tables(&self) -> &TableResources {
        &self.0.tables
    }

    pub(crate) fn rate(&self) -> &Arc<SharedRate> {
        &self.0.rate
    }

    /// Fails in a fork of the process that made it: the threads are there.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.0.process.is_current() {
            return Ok(());
        }
        Err(Error::invalid("the environment is of the process that this one was forked from, as are its threads"))
    }

    pub(crate) fn delivery(&self) -> &Delivery {
        &self.0.delivery
    }

    pub(crate) fn memtables(&self) -> &Arc<MemtablePool> {
        &self.0.budget.memtables
    }

    pub(crate) fn reader_memtables(&self) -> &Arc<MemtablePool> {
        &self.0.reader_memtables
    }

    /// The right to have a thread that syncs a store for a follower, unless [`SYNCERS`] others have
    /// it.
    pub(crate) fn syncer(&self) -> Option<SyncerPermit> {
        let more = |count: usize| (count < SYNCERS).then_some(count + 1);
        let taken = self.0.syncers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| SyncerPermit(self.clone()))
    }

    /// Counts a store as open, from before it recovers. Its memtables are full at `memtable_size`
    /// bytes by its own options.
    pub(crate) fn enter(&self, memtable_size: usize) -> Seat {
        let seat = self.reader_seat(memtable_size);
        let budget = &self.0.budget;
        let mut members = budget.members.lock();
        members.push(Member { quota: Arc::clone(&seat.quota), store: None });
        budget.count_members(&members);
        drop(members);
        seat
    }

    /// The seat of a store that is open read-only: it does not count, since nothing can flush its
    /// memtables.
    pub(crate) fn reader_seat(&self, memtable_size: usize) -> Seat {
        let quota = Arc::new(Quota { limit: AtomicUsize::new(memtable_size), own: memtable_size });
        Seat { environment: self.clone(), quota }
    }

    /// At which size a memtable counts as full now that is not the active one of a store with a
    /// quota.
    pub(crate) fn full_size(&self, memtable_size: usize) -> usize {
        self.0.budget.limit_of(memtable_size)
    }

    /// The size for which a memtable is made that may take `memtable_size` bytes: its memory comes
    /// in pieces suited to that, and the more stores there are, the smaller they are.
    pub(crate) fn first_size(&self, memtable_size: usize) -> usize {
        let Budget { bytes, count, .. } = &*self.0.budget;
        let equal = bytes / FIRST / count.load(Ordering::Relaxed).max(1);
        equal.max(bytes / LEAST_FIRST).max(LEAST_SIZE).min(memtable_size)
    }
}

impl Budget {
    /// Weak: a reference taken under the lock of the members may be the last one of a store, whose
    /// drop takes that lock.
    fn stores(&self) -> Vec<Weak<dyn Tenant>> {
        self.members.lock().iter().filter_map(|member| member.store.clone()).collect()
    }

    /// At which size a memtable of a store counts as full that is `own` by its options.
    fn limit_of(&self, own: usize) -> usize {
        if !self.is_short.load(Ordering::Relaxed) {
            return own;
        }
        let share = self.bytes / SHARED_OUT / self.count.load(Ordering::Relaxed).max(1);
        share.max(LEAST_SIZE).min(own)
    }

    fn count_members(&self, members: &[Member]) {
        self.count.store(members.len(), Ordering::Relaxed);
        self.set_quotas(members);
    }

    /// Sets the quotas of memtables that are not to be sealed.
    fn set_quotas(&self, members: &[Member]) {
        for Member { quota, .. } in members {
            let set = |limit: usize| (limit > 0).then(|| self.limit_of(quota.own));
            // A racing request to seal the memtable stays.
            let _ = quota.limit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
        }
    }

    /// Looks at what is taken, after it has changed. The caller may hold any lock of a store.
    fn note(self: &Arc<Self>, change: PoolChange) {
        let taken = self.memtables.taken();
        if (taken > self.bytes) != self.is_short.load(Ordering::Relaxed) {
            let members = self.members.lock();
            // The newest number: the last thread to get here sees all changes.
            self.is_short.store(self.memtables.taken() > self.bytes, Ordering::Relaxed);
            self.set_quotas(&members);
        }
        let next = self.next_check(taken);
        if taken < self.check_at.load(Ordering::Relaxed) {
            self.check_at.fetch_min(next, Ordering::Relaxed);
        } else if change == PoolChange::Taken
            && !self.is_queued.swap(true, Ordering::Relaxed)
            && let Some(executor) = self.executor.upgrade()
        {
            let budget = Arc::clone(self);
            executor.spawn(Priority::High, Box::new(move || budget.seal_largest()));
        }
    }

    fn next_check(&self, taken: usize) -> usize {
        (taken + self.bytes / STEP).max(self.bytes / FILLING)
    }

    /// Has the largest memtables sealed until the others that still fill take no more than they
    /// may.
    fn seal_largest(&self) {
        self.is_queued.store(false, Ordering::Relaxed);
        let stores = self.stores();
        let stores = || stores.iter().filter_map(Weak::upgrade);
        stores().for_each(Tenant::retry);
        let mut filling: Vec<(usize, Arc<dyn Tenant>)> =
            stores().filter_map(|store| Some((store.filling()?, store))).collect();
        filling.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let mut total: usize = filling.iter().map(|(bytes, _)| bytes).sum();
        for (bytes, store) in filling {
            if total <= self.bytes / FILLING {
                break;
            }
            total -= bytes;
            self.sealed.fetch_add(1, Ordering::Relaxed);
            store.seal();
        }
        self.check_at.store(self.next_check(self.memtables.taken()), Ordering::Relaxed);
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// What the stores of an [`Environment`] use together. What each of them uses is in its own
/// [`Stats`](crate::Stats).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct EnvironmentStats {
    /// All memory, against its limit, by use. The other figures of memory here are parts of it,
    /// except for `idle_tables`.
    pub usage: MemoryUsage,
    /// Stores that are open or being opened, without those that are open read-only.
    pub stores: usize,
    /// Threads for flushes and compactions.
    pub background_threads: usize,
    /// Whether there is a thread that calls listeners.
    pub delivers_events: bool,
    /// Bytes of the block cache, free frames included.
    pub cache: usize,
    /// Limit of the block cache.
    pub cache_limit: usize,
    /// Files of tables and values that are held open.
    pub open_files: usize,
    /// The most files that are held open.
    pub open_files_limit: usize,
    /// Bytes of all memtables, including those that iterators keep.
    pub memtables: usize,
    /// The budget for these.
    pub memtable_budget: usize,
    /// Bytes of the memtables of stores that are open read-only, which are not in the budget: each
    /// holds what is in the logs of the process that writes.
    pub reader_memtables: usize,
    /// Free memory kept for future memtables.
    pub idle_memtables: usize,
    /// Free memory in huge pages of filters and indexes.
    pub idle_tables: usize,
    /// Memtables flushed before they were full, to keep the budget.
    pub sealed_early: u64,
    /// Bytes a second that background work may read and write now, if there is a limit.
    pub rate_limit: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::SteppedExecutor;
    use crate::memory::pool::MemtableChunk;

    /// A store with a memtable of so many bytes, which sealing gives back.
    struct Store {
        memtable: Mutex<Option<MemtableChunk>>,
        can_flush: bool,
    }

    impl Tenant for Store {
        fn filling(&self) -> Option<usize> {
            self.memtable.lock().as_ref().map(MemtableChunk::len).filter(|_| self.can_flush)
        }

        fn seal(self: Arc<Self>) {
            *self.memtable.lock() = None;
        }

        fn retry(self: Arc<Self>) {}
    }

    const KIB: usize = 1 << 10;

    fn environment() -> (Environment, Arc<SteppedExecutor>) {
        let executor = Arc::new(SteppedExecutor::new());
        let options = EnvironmentOptions::new().memtable_budget(1024 * KIB).executor(executor.clone());
        (Environment::new(options).unwrap(), executor)
    }

    fn join(environment: &Environment, can_flush: bool) -> (Arc<Store>, Seat) {
        let (store, seat) = (Arc::new(Store { memtable: Mutex::default(), can_flush }), environment.enter(500 * KIB));
        let tenant: Arc<dyn Tenant> = store.clone();
        seat.join(Arc::downgrade(&tenant));
        (store, seat)
    }

    fn fill(environment: &Environment, store: &Store, kib: usize) {
        *store.memtable.lock() = Some(environment.memtables().take(kib * KIB));
    }

    #[test]
    fn the_largest_memtables_that_can_be_flushed_are_sealed() {
        let (environment, executor) = environment();
        let joined = [true, true, false, true].map(|can_flush| join(&environment, can_flush));
        let stores = joined.each_ref().map(|(store, _)| store);
        let filled = || stores.each_ref().map(|store| store.memtable.lock().is_some());
        fill(&environment, stores[2], 500);
        for (store, kib) in [(0, 100), (1, 200), (3, 150)] {
            fill(&environment, stores[store], kib);
        }
        while executor.step() {}
        assert_eq!(filled(), [true; 4], "without the one that cannot be flushed, less than half of the budget");
        fill(&environment, stores[0], 300);
        while executor.step() {}
        assert_eq!(filled(), [false, true, true, true]);
        assert_eq!(environment.stats().sealed_early, 1);
    }

    #[test]
    fn quotas_are_shares_while_memtables_exceed_the_budget() {
        let (environment, _executor) = environment();
        let ((store, seat), (_other, other)) = (join(&environment, true), join(&environment, true));
        let quota = &seat.quota;
        assert_eq!((quota.limit(), quota.is_reduced()), (500 * KIB, false));
        fill(&environment, &store, 1025);
        assert_eq!((quota.limit(), quota.is_reduced(), other.quota.limit()), (64 * KIB, true, 64 * KIB));
        // Also one that is only being opened.
        let opening = environment.enter(20 * KIB);
        assert_eq!(opening.quota.limit(), 20 * KIB, "a small memtable is full at its own size");
        assert_eq!((quota.limit(), environment.stats().stores), (1024 * KIB / 8 / 3, 3));
        drop(opening);
        // With fewer stores, each share is larger.
        other.leave();
        other.leave();
        assert_eq!((quota.limit(), environment.stats().stores), (128 * KIB, 1));
        quota.exhaust();
        *store.memtable.lock() = None;
        assert_eq!((quota.limit(), quota.is_reduced()), (0, false), "the request to seal the memtable stays");
        seat.renew();
        assert_eq!(quota.limit(), 500 * KIB);
    }

    #[test]
    fn memtables_of_many_stores_are_made_for_less() {
        let (environment, _executor) = environment();
        assert_eq!(environment.first_size(64 << 20), 64 * KIB);
        let joined: Vec<_> = (0..8).map(|_| join(&environment, true)).collect();
        assert_eq!((environment.first_size(64 << 20), environment.first_size(4 * KIB)), (16 * KIB, 4 * KIB));
        drop(joined);
        let alone = Environment::of_one_store(EnvironmentOptions::new().background_threads(1), 64 << 20);
        assert_eq!(alone.first_size(64 << 20), 64 << 20);
    }

    #[test]
    fn only_some_followers_have_a_thread() {
        let (environment, _executor) = environment();
        let permits: Vec<_> = std::iter::from_fn(|| environment.syncer()).collect();
        assert_eq!(permits.len(), SYNCERS);
        drop(permits);
        assert!(environment.syncer().is_some());
    }
}
