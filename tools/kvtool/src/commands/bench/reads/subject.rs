//! [`Subject`]: the store under measurement, in a directory of its own.

use std::path::{Path, PathBuf};
use std::time::Instant;

use tamis::{Db, FilterPolicy, Options, RangeFilterPolicy, ReadMode};

use super::asked::Kind;
use super::copy::copy;
use crate::args::{BenchReads, Common};
use crate::commands::store::existing_keyspace;
use crate::commands::workload::keys::Keys;
use crate::commands::workload::load::{Load, settle};
use crate::failure::{Failure, Result};
use crate::output::say;
use crate::text::{Decimal, count};

/// Default number of keys to load.
const KEYS: u64 = 1_000_000;
const VALUE_LEN: usize = 100;

pub(super) struct Subject {
    pub(super) path: PathBuf,
    /// Options under which compaction leaves the levels as they are.
    options: Options,
    /// The keys loaded; `None` for a given store.
    pub(super) keys: Option<Keys>,
    /// The filters that are measured.
    pub(super) kind: Kind,
}

impl Subject {
    /// Loads a new store at `path`, with filters of `bits` per key, or copies the store that the
    /// command line names to it.
    pub(super) fn prepare(common: &Common, args: &BenchReads, bits: &[f32], path: &Path) -> Result<Subject> {
        let kind = kind(args);
        match &args.db {
            Some(db) => Subject::copy_of(common, db, path, kind),
            None if common.keyspace.is_some() => {
                Err(Failure::usage("--keyspace needs an existing store: name one as DB"))
            }
            None => Subject::load(args, bits, path),
        }
    }

    fn load(args: &BenchReads, bits: &[f32], path: &Path) -> Result<Subject> {
        let bits_per_key = bits.first().copied().ok_or_else(|| Failure::usage("--bits needs a number"))?;
        let (kind, number, seed) = (kind(args), args.keys.unwrap_or(KEYS), args.seed);
        let (keys, filter, ranges) = match kind {
            Kind::Keys => (Keys::dense(number, seed), FilterPolicy::Bloom { bits_per_key }, RangeFilterPolicy::None),
            Kind::Ranges => {
                (Keys::spread(number, seed), FilterPolicy::DEFAULT, RangeFilterPolicy::Ordered { bits_per_key })
            }
        };
        let load = Load { keys, value_len: args.value_size.unwrap_or(VALUE_LEN), filter, ranges };
        let start = Instant::now();
        load.run(path)?;
        say(format_args!("loaded {} keys in {} s", count(keys.count()), Decimal(start.elapsed().as_secs_f64())));
        Ok(Subject { path: path.to_owned(), options: load.late_options(), keys: Some(keys), kind })
    }

    fn copy_of(common: &Common, from: &Path, path: &Path, kind: Kind) -> Result<Subject> {
        // Fails early if there is no store, or no such keyspace.
        existing_keyspace(&Db::open_read_only(from)?, common)?;
        copy(from, path)?;
        Ok(Subject { path: path.to_owned(), options: idle_options(path)?, keys: None, kind })
    }

    pub(super) fn is_given(&self) -> bool {
        self.keys.is_none()
    }

    /// Opens it read-only, with a block cache of `cache` bytes. The system counts every read.
    pub(super) fn open(&self, cache: usize) -> Result<Db> {
        Ok(self.options.clone().read_mode(ReadMode::Pread).cache_size(cache).open_read_only(&self.path)?)
    }

    /// Gives all tables filters of `bits_per_key`.
    pub(super) fn rebuild(&self, common: &Common, bits_per_key: f32) -> Result<()> {
        let db = self.options.clone().create_if_missing(false).open(&self.path)?;
        let keyspace = existing_keyspace(&db, common)?;
        match self.kind {
            Kind::Keys => _ = keyspace.rebuild_filters(FilterPolicy::Bloom { bits_per_key }, |_| {})?,
            Kind::Ranges => {
                let options = keyspace.options()?.range_filter(RangeFilterPolicy::Ordered { bits_per_key });
                db.keyspace_with(keyspace.name(), options)?;
                keyspace.renew_filters(|_| {})?;
            }
        }
        settle(&db);
        drop(keyspace);
        Ok(db.close()?)
    }
}

/// What the command line asks for.
pub(super) fn kind(args: &BenchReads) -> Kind {
    if args.ranges { Kind::Ranges } else { Kind::Keys }
}

/// Options under which the store at `path` needs no compaction; the defaults if none are found.
///
/// The levels' target sizes follow from the memtable size, which a store does not record. With
/// another memtable size, compaction would change the levels between two measurements. (Each
/// measurement is compared with the expectation for its own levels.)
fn idle_options(path: &Path) -> Result<Options> {
    let sizes = (14..=30).step_by(2).map(|log| Options::new().memtable_size(1 << log));
    for options in std::iter::once(Options::new()).chain(sizes) {
        let db = options.clone().open_read_only(path)?;
        if db.stats().compaction_debt == 0 {
            return Ok(options);
        }
    }
    Ok(Options::new())
}
