//! Options of a store and of a keyspace: plain data with defaults that suit most stores.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use crate::log::wal::WalMode;
pub use crate::sorted::compress::Compression;
pub use crate::sorted::files::ReadMode;
pub use crate::sorted::table::FilterMode;
/// # Examples
///
/// A keyspace without a log, of a state machine whose log is elsewhere:
///
/// ```
/// # fn main() -> tamis::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = tamis::Db::open(dir.path().join("db"))?;
/// use tamis::{KeyspaceOptions, WriteBatch};
///
/// let state = db.keyspace_with("state", KeyspaceOptions::new().wal(false))?;
/// let mut batch = WriteBatch::new();
/// batch.put_in(&state, "x", "5");
/// batch.put_in(&state, "applied", 17u64.to_be_bytes());
/// let seqno = db.write(batch)?;
/// assert!(db.flushed_seqno() < seqno, "a crash would take the state back to before entry 17");
/// db.flush()?;
/// assert!(db.flushed_seqno() >= seqno, "entries up to 17 may be removed from that log");
/// # Ok(()) }
/// ```
///
/// A keyspace whose long values are stored apart:
///
/// ```
/// # fn main() -> tamis::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = tamis::Db::open(dir.path().join("db"))?;
/// let options = tamis::KeyspaceOptions::new().separate_values(4096);
/// let images = db.keyspace_with("images", options)?;
/// images.put("cat.jpg", vec![7; 100_000])?;
/// db.flush()?;
/// assert_eq!(images.get("cat.jpg")?.map(|image| image.len()), Some(100_000));
/// # Ok(()) }
/// ```
///
/// # All options
#[doc(inline)]
pub use crate::tree::options::KeyspaceOptions;
pub use crate::tree::options::{BudgetLimit, FilterBudget, LevelFilters};

use crate::environment::{Environment, EnvironmentOptions};
use crate::error::{Error, Result};
use crate::exec::Executor;
use crate::operator::{MergeOperator, NamedOperator};
use crate::rate::RateLimit;
use crate::report::delivery::Listener;
use crate::report::event::Event;
use crate::vfs::{FileSystem, OsFileSystem};

/// How long log files are kept that recovery does not need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub(crate) struct KeepLog {
    pub(crate) bytes: u64,
    pub(crate) age: Duration,
    /// Bytes kept for pins.
    pub(crate) pinned: u64,
}

impl KeepLog {
    /// Everything that there is.
    pub(crate) const ALL: KeepLog = KeepLog { bytes: u64::MAX, age: Duration::MAX, pinned: u64::MAX };
}

impl Default for KeepLog {
    fn default() -> KeepLog {
        KeepLog { bytes: 0, age: Duration::ZERO, pinned: 1 << 30 }
    }
}

/// What tells the time.
pub(crate) type ClockSource = dyn Fn() -> SystemTime + Send + Sync;

/// Options of a store.
///
/// ```no_run
/// # fn main() -> tamis::Result<()> {
/// let db = tamis::Options::new().cache_size(256 << 20).open("words.db")?;
/// # Ok(()) }
/// ```
///
/// With the feature `serde` they are values of it, named as the methods below: those that are
/// missing have their defaults, an unknown name is an error, and ranges are checked when a store is
/// opened with them. The options of an environment are among them, and
/// [`keep_log`](Options::keep_log) and [`max_pinned_log`](Options::max_pinned_log) are
/// `keep_log: { bytes, age, pinned }`. Left out is what is no data: operators, executor, file
/// system, environment, clock, listener.
#[derive(Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Options {
    pub(crate) create_if_missing: bool,
    pub(crate) memtable_size: usize,
    pub(crate) table_size: u64,
    pub(crate) read_mode: ReadMode,
    pub(crate) paranoid: bool,
    pub(crate) slow_operation: Option<Duration>,
    pub(crate) refresh_every: Option<Duration>,
    pub(crate) publish_stats: Option<Duration>,
    pub(crate) wal_mode: WalMode,
    pub(crate) keep_log: KeepLog,
    pub(crate) hash_seed: Option<u64>,
    pub(crate) default_keyspace: Option<KeyspaceOptions>,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) merge_operators: Vec<NamedOperator>,
    #[cfg_attr(feature = "serde", serde(skip, default = "disk"))]
    pub(crate) file_system: Arc<dyn FileSystem>,
    /// What the store has of its own without an `environment`.
    #[cfg_attr(feature = "serde", serde(rename = "environment"))]
    pub(crate) own: EnvironmentOptions,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) environment: Option<Environment>,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) clock: Option<Arc<ClockSource>>,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) listener: Listener,
}

fn disk() -> Arc<dyn FileSystem> {
    Arc::new(OsFileSystem::new())
}

impl Default for Options {
    fn default() -> Options {
        Options {
            create_if_missing: true,
            memtable_size: 64 << 20,
            table_size: 64 << 20,
            read_mode: ReadMode::Auto,
            paranoid: false,
            slow_operation: None,
            refresh_every: None,
            publish_stats: None,
            wal_mode: WalMode::Auto,
            keep_log: KeepLog::default(),
            hash_seed: None,
            default_keyspace: None,
            merge_operators: Vec::new(),
            file_system: disk(),
            own: EnvironmentOptions::default(),
            environment: None,
            clock: None,
            listener: Listener::default(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("create_if_missing", &self.create_if_missing)
            .field("memtable_size", &self.memtable_size)
            .field("table_size", &self.table_size)
            .field("read_mode", &self.read_mode)
            .field("paranoid", &self.paranoid)
            .field("slow_operation", &self.slow_operation)
            .field("refresh_every", &self.refresh_every)
            .field("publish_stats", &self.publish_stats)
            .field("own", &self.own)
            .field("wal_mode", &self.wal_mode)
            .field("keep_log", &self.keep_log)
            .field("default_keyspace", &self.default_keyspace)
            .field("merge_operators", &self.merge_operators)
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// Whether to create the store when its directory is absent or empty. Default: true.
    ///
    /// A directory that holds anything else never becomes a store: see
    /// [`Error::NotAStore`].
    pub fn create_if_missing(mut self, create: bool) -> Self {
        self.create_if_missing = create;
        self
    }

    /// Bytes of writes held in memory before they are flushed to a table, for all keyspaces
    /// together, and an eighth of [`memory`](Options::memory) at most. Default: 64 MiB. Up to three
    /// times as much may be in memory while flushes are behind; the log on disk has the same bound.
    pub fn memtable_size(mut self, bytes: usize) -> Self {
        self.memtable_size = bytes;
        self
    }

    /// Size at which compaction ends a table and starts the next, in bytes, and a sixteenth
    /// of [`memory`](Options::memory) at most. Default: 64 MiB.
    pub fn table_size(mut self, bytes: u64) -> Self {
        self.table_size = bytes;
        self
    }

    /// Bytes of memory for all of the store, 64 KiB or more. Default: half of the machine's memory,
    /// or of what its control group allows (Linux). See [`EnvironmentOptions::memory`], which says
    /// what is within it. [`MemoryStats::usage`](crate::MemoryStats::usage) has what is used.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let db = tamis::Options::new().memory(32 << 20).open(dir.path().join("db"))?;
    /// db.put("apple", "red")?;
    /// let usage = db.stats().memory.usage;
    /// assert!(usage.limit == 32 << 20 && usage.total() <= usage.limit);
    /// # Ok(()) }
    /// ```
    pub fn memory(mut self, bytes: usize) -> Self {
        self.own = self.own.memory(bytes);
        self
    }

    /// Bytes of data blocks kept in memory, within [`memory`](Options::memory). Default: all that
    /// the other uses leave, if `memory` is set, and otherwise 64 MiB. Filters and indexes take
    /// about 2 bytes per key in addition.
    ///
    /// Without `memory`, the limit of all memory is at least twice as large.
    pub fn cache_size(mut self, bytes: usize) -> Self {
        self.own = self.own.cache_size(bytes);
        self
    }

    /// Table files held open at once. Default: 512, half of the usual limit of a process. A store
    /// that is opened read-only holds all of its files open.
    pub fn max_open_files(mut self, count: usize) -> Self {
        self.own.max_open_files = count;
        self
    }

    /// How blocks of tables and separate values are read from disk. Default: [`ReadMode::Auto`].
    pub fn read_mode(mut self, mode: ReadMode) -> Self {
        self.read_mode = mode;
        self
    }

    /// Threads for compactions, of which several may share a large one; at most 1,024. Default: 2.
    /// One more thread only flushes, and compacts within level 0 when writers might have to wait
    /// otherwise.
    pub fn background_threads(mut self, count: usize) -> Self {
        self.own.background_threads = count;
        self
    }

    /// Reads every new table back before the manifest names it, and verifies every table on open.
    /// Default: false. Block checksums are verified on every read from disk in any case.
    pub fn paranoid(mut self, paranoid: bool) -> Self {
        self.paranoid = paranoid;
        self
    }

    /// How the write-ahead log is written. Default: [`WalMode::Auto`].
    pub fn wal_mode(mut self, mode: WalMode) -> Self {
        self.wal_mode = mode;
        self
    }

    /// Keeps log files for [`Db::changes_since`](crate::Db::changes_since) after their entries are
    /// in tables: up to `bytes` bytes of them, each for `age` at most. As each flush begins a file,
    /// a limit on their number goes with it: one for each 16 KiB of `bytes`, but not less than
    /// 1,000. Default: none.
    ///
    /// Opening a store keeps them as well, and their age counts anew. What exceeds either bound is
    /// removed with the next flush. A kept log is synced before the flush that makes it obsolete.
    /// If a kept log cannot be read, opening fails; opening without this option removes it.
    pub fn keep_log(mut self, bytes: u64, age: Duration) -> Self {
        (self.keep_log.bytes, self.keep_log.age) = (bytes, age);
        self
    }

    /// Bytes of log files that a [`LogPin`](crate::LogPin), or a [`Changes`](crate::Changes), may
    /// keep after their entries are in tables. If more are kept, the pins that hold the oldest file
    /// are revoked, so that a stuck reader does not fill the disk. As each flush begins a file, a
    /// limit on their number goes with it: one for each 16 KiB of `bytes`, but not less than 1,000.
    /// Nothing else revokes a pin. Default: 1 GiB, hence 65,536 files: a store that is flushed
    /// every second keeps what a reader needs that stands still for 18 hours.
    pub fn max_pinned_log(mut self, bytes: u64) -> Self {
        self.keep_log.pinned = bytes;
        self
    }

    /// Fixes the seed of the filters' hash, so that the same writes make the same files. Applies
    /// when a store is created. Default: random.
    pub fn hash_seed(mut self, seed: u64) -> Self {
        self.hash_seed = Some(seed);
        self
    }

    /// Options of the default keyspace. If set, they replace the stored ones.
    pub fn default_keyspace(mut self, options: KeyspaceOptions) -> Self {
        self.default_keyspace = Some(options);
        self
    }

    /// Makes a merge operator known to the keyspaces that name it. Those in
    /// [`operator`](crate::operator) are known anyway.
    pub fn merge_operator(mut self, operator: impl MergeOperator + 'static) -> Self {
        self.merge_operators.push(NamedOperator::new(Arc::new(operator)));
        self
    }

    /// The operator called `name`, as far as it is known.
    pub(crate) fn operator_named(&self, name: &str) -> NamedOperator {
        let default = self.default_keyspace.as_ref().and_then(|options| options.merge_operator.as_ref());
        let mut given = self.merge_operators.iter().chain(default);
        let given = given.find(|operator| operator.name() == name);
        given.cloned().unwrap_or_else(|| NamedOperator::stored(name))
    }

    /// Where files live. Default: [`OsFileSystem`].
    pub fn file_system(mut self, file_system: Arc<dyn FileSystem>) -> Self {
        self.file_system = file_system;
        self
    }

    /// Runs background work on `executor` instead of the store's own threads. Several stores may
    /// share one. Only threads that prepare memory run beside it; they come and go.
    pub fn executor(mut self, executor: Arc<dyn Executor>) -> Self {
        self.own.executor = Some(executor);
        self
    }

    /// Shares threads, block cache, open files, rate limit and memory for memtables with the other
    /// stores of `environment`, instead of having its own.
    ///
    /// What the environment has is then not the store's to set: of these options, `memory`,
    /// `cache_size`, `max_open_files`, `background_threads`, `executor` and `rate_limit` have no
    /// effect.
    pub fn environment(mut self, environment: &Environment) -> Self {
        self.environment = Some(environment.clone());
        self
    }

    /// Tells by `clock` what has expired, instead of by the system's clock; for tests. It must
    /// return soon and must not use the store. When it panics, the store
    /// keeps the latest time that it has seen, or the system's if it has seen none.
    ///
    /// Either clock may go back: the store goes on with the latest time that it has seen, so that
    /// what has expired does not come back. Flushes, compactions and closing store that time. After
    /// a crash, the store goes on with the time of the last of them; a store that is open read-only
    /// stores none.
    ///
    /// A clock that runs ahead expires data early, and compactions drop it for good. Once it is set
    /// right, the store still goes on with the time that it has seen: deadlines before that time
    /// count as past until the clock gets there, and a ttl counts from then.
    /// [`Stats::clock_lag`](crate::Stats::clock_lag) tells how far the clock is behind.
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Calls `listener` with each [`Event`], on a thread of the store's own, or of its environment,
    /// one event after the other, under no lock. It may use the store. Up to 4096 events wait for
    /// it; what comes then is lost and counted
    /// ([`Stats::lost_events`](crate::Stats::lost_events)). A panic in it ends the call and nothing
    /// else.
    ///
    /// [`Db::close`](crate::Db::close) waits until the listener has returned from the last event,
    /// unless the listener itself calls it.
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.listener = Listener::new(listener);
        self
    }

    /// Limits how many bytes a second compactions and flushes read and write. Default:
    /// [`RateLimit::None`]. [`Db::set_rate_limit`](crate::Db::set_rate_limit) changes it while the
    /// store is open.
    ///
    /// A compaction otherwise takes what the disk gives, and reads that miss the cache wait behind
    /// it. docs/MEASUREMENTS.md has figures.
    pub fn rate_limit(mut self, limit: RateLimit) -> Self {
        self.own.rate_limit = limit;
        self
    }

    /// Tells the listener of point reads, writes and syncs that take at least so long
    /// ([`Event::SlowOperation`]), and of closures that the caller passes to the store and that
    /// run so long ([`Event::LongClosure`]). Default: `None`, for which no clock is read; otherwise
    /// each operation reads the clock twice. Steps of cursors and iterators are not timed; flushes
    /// and compactions have events of their own.
    pub fn slow_operation(mut self, duration: impl Into<Option<Duration>>) -> Self {
        self.slow_operation = duration.into();
        self
    }

    /// Has a store that is opened for writing publish its [statistics](crate::Stats) to other
    /// processes: each time that this has passed, and at most every 10 ms, it replaces a file
    /// `stats.prom` in its directory, until it is closed. `kvtool top` shows them as they change.
    /// Default: `None`.
    ///
    /// The file has [`Stats::to_prometheus`](crate::Stats::to_prometheus), which the textfile
    /// collector of Prometheus' node exporter takes, and, as `tamis_page_time_seconds` and
    /// `tamis_page_interval_seconds`, when it was written and how often. It is written by a job of
    /// the [`executor`](Options::executor), as delayed jobs are
    /// ([`Executor::spawn_after`](crate::Executor::spawn_after)), and never synced. A failure to
    /// write it is of no consequence: the next page is another attempt.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let path = dir.path().join("db");
    /// use std::time::Duration;
    ///
    /// let db = tamis::Options::new().publish_stats(Duration::from_secs(1)).open(&path)?;
    /// db.put("apple", "1")?;
    /// # Ok(()) }
    /// ```
    pub fn publish_stats(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.publish_stats = interval.into();
        self
    }

    /// Has a store that is opened read-only follow the process that writes: it is
    /// [refreshed](crate::Db::refresh) each time this long after the last refresh has ended, by a
    /// job of its [`executor`](Options::executor), until it is closed. What was written is visible
    /// after this time and that of a refresh. Default: `None`.
    ///
    /// [`Stats::reader`](crate::Stats::reader) says when the last refresh has succeeded, or why it
    /// failed. An executor of your own must run delayed jobs
    /// ([`Executor::spawn_after`](crate::Executor::spawn_after)). Has no effect on a store that is
    /// opened for writing.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let path = dir.path().join("db");
    /// # let writer = tamis::Db::open(&path)?;
    /// use std::time::Duration;
    ///
    /// let options = tamis::Options::new().refresh_every(Duration::from_millis(10));
    /// let reader = options.open_read_only(&path)?;
    /// let seqno = writer.put("apple", "1")?;
    /// while reader.last_seqno() < seqno {
    ///     std::thread::yield_now();
    /// }
    /// assert!(reader.contains_key("apple")?);
    /// # Ok(()) }
    /// ```
    pub fn refresh_every(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.refresh_every = interval.into();
        self
    }

    /// These options with memtables and tables that fit into the memory of `environment`.
    pub(crate) fn fitted(mut self, environment: &Environment) -> Options {
        let most = environment.largest_part();
        self.memtable_size = self.memtable_size.min(most);
        // Several are written at once, and one of short entries takes twice its size meanwhile.
        self.table_size = self.table_size.min(most as u64 / 2);
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.memtable_size < 4096 || self.memtable_size > 1 << 31 {
            return Err(Error::invalid("memtable_size must be 4 KiB to 2 GiB"));
        }
        if self.table_size < 4096 || self.table_size > 1 << 40 {
            return Err(Error::invalid("table_size must be 4 KiB to 1 TiB"));
        }
        self.own.validate()?;
        self.environment.as_ref().map_or(Ok(()), Environment::check_process)?;
        match &self.default_keyspace {
            Some(options) => options.validate(),
            None => Ok(()),
        }
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;
    use crate::{FilterPolicy, PrefixExtractor, RangeFilterPolicy};

    fn parsed(json: &str) -> serde_json::Result<Options> {
        serde_json::from_str(json)
    }

    #[test]
    fn options_come_back_and_those_that_are_missing_have_their_defaults() {
        let each = LevelFilters::Each(vec![FilterPolicy::bloom(12.5), FilterPolicy::None]);
        let keyspace = KeyspaceOptions::new()
            .filter(FilterPolicy::binary_fuse(8))
            .level_filters(each)
            .compression(Compression::None)
            .block_size(8192)
            .prefix(PrefixExtractor::UpTo(b':'))
            .range_filter(RangeFilterPolicy::ORDERED)
            .ttl(Duration::from_millis(1500))
            .separate_values(4096);
        let options = Options::new()
            .memory(1 << 30)
            .cache_size(1 << 28)
            .memtable_size(1 << 20)
            .keep_log(1 << 20, Duration::from_secs(60))
            .hash_seed(7)
            .read_mode(ReadMode::Pread)
            .wal_mode(WalMode::Write)
            .rate_limit(RateLimit::Auto { max: 1 << 20 })
            .slow_operation(Duration::from_millis(5))
            .default_keyspace(keyspace.clone());
        let json = serde_json::to_string(&options).unwrap();
        let back = parsed(&json).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), json);
        assert_eq!(format!("{back:?}"), format!("{options:?}"));
        assert_eq!(back.default_keyspace, Some(keyspace));
        let budget = LevelFilters::Budget(FilterBudget::bytes(1 << 20));
        let short = r#"{ "budget": { "limit": { "bytes": 1048576 } } }"#;
        assert_eq!(serde_json::from_str::<LevelFilters>(short).unwrap(), budget);
        assert_eq!(format!("{:?}", parsed("{}").unwrap()), format!("{:?}", Options::new()));
        assert_eq!(serde_json::from_str::<KeyspaceOptions>("{}").unwrap(), KeyspaceOptions::new());
    }

    #[test]
    fn a_wrong_name_is_refused_at_once_and_a_wrong_range_when_it_is_used() {
        for json in
            [r#"{ "cache": 1 }"#, r#"{ "default_keyspace": { "bloom": 10 } }"#, r#"{ "environment": { "a": 1 } }"#]
        {
            let error = parsed(json).map(drop).unwrap_err().to_string();
            assert!(error.contains("unknown field"), "{error}");
        }
        for json in [
            r#"{ "memtable_size": 1 }"#,
            r#"{ "default_keyspace": { "filter": { "bloom": { "bits_per_key": 99 } } } }"#,
        ] {
            let opened = parsed(json).unwrap().open_in_memory();
            assert!(matches!(opened, Err(Error::InvalidArgument(_))), "{json}");
        }
    }

    #[test]
    fn the_example_of_the_guide_is_one() {
        let page = include_str!("../docs/guide/tuning.md");
        let json = page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let options = parsed(json).unwrap();
        assert_eq!(options.own.max_open_files, 2000);
        let db = options.open_in_memory().unwrap();
        assert_eq!(db.default_keyspace().options().unwrap().ttl, Some(Duration::from_secs(3600)));
    }
}
