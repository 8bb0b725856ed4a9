#![doc = include_str!("guide/links.md")]
#![doc = include_str!("../docs/guide/README.md")]
// The pages are the files of docs/guide. They name each other, documents and recipes by reference,
// and end with what the references mean on GitHub: `[keys]: keys.md`. In front of each page stands
// what they mean here (`guide/links.md`): of two definitions, Markdown takes the first. A new page
// is a file there, a line below, and one in the index and in the links.

/// A module for each page, which ends with links to what the page uses.
macro_rules! pages {
    ($($page:ident: $($item:path),+ $(; $more:expr)?)*) => {$(
        #[doc = include_str!("guide/links.md")]
        #[doc = include_str!(concat!("../docs/guide/", stringify!($page), ".md"))]
        #[doc = "\nIn the reference:"]
        $(#[doc = concat!("[`", stringify!($item), "`](crate::", stringify!($item), ")")])+
        $(#[doc = $more])?
        pub mod $page {}
    )*};
}

pages! {
    first_program: Db, Options, Value, Keyspace
    keys: KeyRange, MAX_KEY_LEN
    ranges: KeyRange, Iter, Keys, Cursor, Db::delete_range, Db::approximate_len, PrefixExtractor, RangeFilterPolicy
    indexes: Db::transact, WriteBatch, Snapshot, Db::multi_get
    transactions: WriteBatch, Db::transact, Transaction, Db::update, Db::compare_and_swap, Error::Conflict
    operations: Db, Keyspace, Snapshot, Transaction, WriteBatch
    counters: Db::fetch_add, operator, KeyspaceOptions::merge_operator
    queues: Keyspace::pop_first, Db::transact
    timeseries: KeyspaceOptions::ttl, Keyspace::delete_range, Db::drop_keyspace
    sessions: Keyspace::put_with_ttl, Db::set_expiry, Db::get_with_expiry, KeyspaceOptions::ttl, Expiry, Options::clock
    large_values: KeyspaceOptions::separate_values, Db::read, Compression, MAX_VALUE_LEN
    loading: SstWriter, SstFormat, Keyspace::ingest, IngestOptions, WriteBatch
    changes: Db::changes_since, Db::follow, Changes, OperationKind, LogPin, Options::keep_log
    durability: WriteOptions::sync, Db::sync, Db::flush, Db::close, KeyspaceOptions::wal, Error::Poisoned
    snapshots: Snapshot, Options::open_read_only, Db::refresh, Options::refresh_every, HeldStats, ReaderStats
    backup: Db::checkpoint, Db::image, Options::open_to_copy
    async_code: Db, Db::multi_get, Changes
    many_stores: Environment, EnvironmentOptions, EnvironmentStats
    memory: Options::memory, MemoryUsage, Options::cache_size, Options::memtable_size
    tuning: Options, KeyspaceOptions, RateLimit, Stats
    filters: FilterPolicy, LevelFilters, RangeFilterPolicy, FilterLedger, Db::explain, filter; concat!(
        // In the page's place, an image cannot be found from docs.rs.
        "\n# The picture\n\n<style>.only-in-the-repository { display: none } .picture svg { max-width: 100%; height: auto }</style>\
         <div class=\"picture\">\n",
        include_str!("../docs/images/reads-per-missing-key.svg"),
        "\n</div>"
    )
    errors: Error, Event, Severity, Stats
    damage: repair, RepairReport, Keyspace::salvage, inspect, Error::Corruption
    coming_from: Db, Keyspace, Options
    something_else: Db, Options
}
